// Package ncclenv knows the environment variables that NCCL and PyTorch's NCCL backend read: what each does, which values it takes, and how the
// library understands what was written. It reads them from where they are kept (a process, settings files, job scripts, container descriptions,
// NCCL logs) and finds what does not do what it seems to.
package ncclenv

import (
	_ "embed"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Known is the version of NCCL that the catalogue describes.
const Known = "2.30.7"

// Status of a variable.
const (
	Current    = "current"
	Deprecated = "deprecated" // read, but Replaced is the name to use
	Unread     = "unread"     // declared in the source and looked at nowhere
	Removed    = "removed"    // Last is the last version that read it
	Gone       = "gone"       // from before the versions compared; the documents still mention it
	Foreign    = "foreign"    // looks like NCCL's and is not
)

// Class says when a variable should be set.
const (
	Production = "production" // for a site: set it and leave it
	Compare    = "compare"    // to find a culprit: set it, compare, remove it
	Rare       = "rare"       // the default comes from the machine: hardly ever touch
)

// Variable is one row of the catalogue.
type Variable struct {
	Name        string   `json:"name"`
	Status      string   `json:"status"`
	Since       Version  `json:"since,omitzero"` // first version that reads it; zero where not known and for PyTorch
	Last        Version  `json:"last,omitzero"`  // last version that reads it; zero while it is read
	Documented  string   `json:"documented"`     // yes, no, mentioned (without a heading of its own) or old
	Type        string   `json:"type"`           // see types in value.go
	Default     string   `json:"default"`        // "config": what the program asks for; empty: unset, or NCCL decides
	History     []Change `json:"history,omitempty"`
	Values      []Choice `json:"values,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	Layer       string   `json:"layer"`
	Class       string   `json:"class"`
	Replaced    []string `json:"replaced_by,omitempty"`
	Description string   `json:"description"`
}

// Change is a default from a version on.
type Change struct {
	Since   Version `json:"since"`
	Default string  `json:"default"`
}

// Choice is one value, or a range of whole numbers, that is allowed.
type Choice struct {
	Value string `json:"value"` // a word, a number, or "1..31", "1.." for ranges
	Means string `json:"means,omitempty"`
}

// Torch tells whether PyTorch reads the variable and not NCCL.
func (v *Variable) Torch() bool { return strings.HasPrefix(v.Name, "TORCH_") }

// NCCL tells whether the library itself reads the variable, or once did.
func (v *Variable) NCCL() bool { return strings.HasPrefix(v.Name, "NCCL_") && v.Status != Foreign }

// Layers maps the part of the system that a variable acts on to what that part does.
var Layers = []struct{ Name, Does string }{
	{"bootstrap", "how ranks meet: interfaces, sockets, the id, connecting"},
	{"net", "which network, which NIC for which GPU, joining of NICs, routes through peers"},
	{"net-ib", "InfiniBand and RoCE: devices, addresses, classes, time-outs, queue pairs"},
	{"net-socket", "data over TCP: threads and sockets"},
	{"gdr", "GPUDirect RDMA: does the NIC reach GPU memory itself"},
	{"topology", "what NCCL believes the machine looks like, and the graphs made from it"},
	{"p2p", "GPU to GPU within a node, and send/recv"},
	{"shm", "through shared host memory within a node"},
	{"nvls", "reduction inside NVSwitch"},
	{"collnet", "reduction inside network switches (SHARP)"},
	{"mnnvl", "NVLink between nodes"},
	{"tuning", "algorithms, protocols, channels, threads, buffer sizes"},
	{"launch", "kernels, streams, CUDA graphs"},
	{"memory", "allocation, registration, windows"},
	{"symmetric", "kernels on symmetric memory"},
	{"gin", "networking started by GPU kernels"},
	{"rma", "one-sided operations"},
	{"proxy", "the threads that drive the network"},
	{"communicator", "the config of communicators"},
	{"plugin", "libraries loaded for network, tuning, profiling"},
	{"ras", "the service that tells the state of a running job"},
	{"debug", "logs, checks and dumps"},
	{"conf", "where settings come from"},
	{"torch", "PyTorch's watchdog and flight recorder"},
	{"process", "CUDA and the loader, as far as NCCL depends on them"},
	{"build", "build systems and containers"},
	{"other", "names that nothing reads"},
}

//go:embed catalogue.tsv
var catalogueTSV string

var catalogue = sync.OnceValue(func() map[string]*Variable {
	vars := map[string]*Variable{}
	lines := strings.Split(strings.TrimSuffix(catalogueTSV, "\n"), "\n")
	for _, line := range lines[1:] {
		v := parseVariable(strings.Split(line, "\t"))
		vars[v.Name] = v
	}
	return vars
})

// parseVariable turns the cells of a row into a Variable; a test reads the table as well and checks every cell.
func parseVariable(c []string) *Variable {
	since, _ := ParseVersion(c[2])
	last, _ := ParseVersion(c[3])
	v := &Variable{Name: c[0], Status: c[1], Since: since, Last: last, Documented: c[4], Type: c[5], Default: c[6], Unit: c[9], Layer: c[10],
		Class: c[11], Description: c[13]}
	for _, h := range strings.Fields(c[7]) {
		at, value, _ := strings.Cut(h, ":")
		from, _ := ParseVersion(at)
		v.History = append(v.History, Change{from, value})
	}
	for _, item := range split(c[8], ";") {
		value, means, _ := strings.Cut(item, "=")
		v.Values = append(v.Values, Choice{value, means})
	}
	if v.Type == typeFlag && v.Values == nil {
		v.Values = []Choice{{"0", "off"}, {"1", "on"}}
	}
	v.Replaced = split(c[12], ",")
	return v
}

func split(s, sep string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, sep)
}

var inOrder = sync.OnceValue(func() []*Variable {
	all := make([]*Variable, 0, len(catalogue()))
	for _, v := range catalogue() {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *Variable) int { return strings.Compare(a.Name, b.Name) })
	return all
})

// Variables returns the whole catalogue in order of names.
func Variables() []*Variable { return slices.Clone(inOrder()) }

// Lookup finds a variable by its exact name, nil where there is none.
func Lookup(name string) *Variable { return catalogue()[name] }

// Find returns the variables that a user may mean: an exact name, one without its prefix or in lower case, or a pattern with * and ?.
func Find(pattern string) []*Variable {
	up := strings.ToUpper(strings.TrimSpace(pattern))
	for _, name := range []string{up, "NCCL_" + up, "TORCH_" + up, "TORCH_NCCL_" + up} {
		if v := Lookup(name); v != nil {
			return []*Variable{v}
		}
	}
	if !strings.ContainsAny(up, "*?[") {
		return nil
	}
	var found []*Variable
	for _, v := range Variables() {
		full, err := path.Match(up, v.Name)
		short, _ := path.Match(up, strings.TrimPrefix(v.Name, "NCCL_"))
		if err == nil && (full || short) {
			found = append(found, v)
		}
	}
	return found
}

// Version is a version of NCCL (or of PyTorch, for its variables).
type Version struct{ Major, Minor, Patch int }

// ParseVersion reads "2.21.5", "2.21", "2.21.5+cuda12.4", "v2.21.5-1", and the number that ncclGetVersion returns (22105).
func ParseVersion(s string) (Version, bool) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "v")
	if i := strings.IndexAny(s, "+-"); i > 0 {
		s = s[:i]
	}
	parts := strings.Split(s, ".")
	if n, err := strconv.Atoi(s); err == nil && n >= 2000 && n < 1e6 {
		if n < 10000 { // until 2.8: one digit for the minor version
			return Version{n / 1000, n / 100 % 10, n % 100}, true
		}
		return Version{n / 10000, n / 100 % 100, n % 100}, true
	}
	if len(parts) < 2 || len(parts) > 3 {
		return Version{}, false
	}
	var n [3]int
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil || n[i] < 0 || n[i] > 9999 {
			return Version{}, false
		}
	}
	return Version{n[0], n[1], n[2]}, true
}

func (v Version) String() string {
	if v == (Version{}) {
		return ""
	}
	s := strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor)
	if v.Patch > 0 {
		s += "." + strconv.Itoa(v.Patch)
	}
	return s
}

// MarshalText writes the version as a string in JSON.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Before tells whether v is older than w.
func (v Version) Before(w Version) bool {
	return slices.Compare([]int{v.Major, v.Minor, v.Patch}, []int{w.Major, w.Minor, w.Patch}) < 0
}

// IsZero tells that no version is known.
func (v Version) IsZero() bool { return v == Version{} }
