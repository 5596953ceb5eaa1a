package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
)

// Node is what a report is made from. Everything else is read from files below Root.
type Node struct {
	Root    string      // "/" on the machine itself; links in /sys that lead out of it are not followed
	NVML    *nvml.Node  // nil: see NVMLErr
	NVMLErr error       // why there is no NVML
	Env     []string    // as os.Environ gives it: the settings of the shell that will start the job
	Now     time.Time   // by the node's clock
	Shm     *nvml.Space // /dev/shm as the file system says; nil: from the options with which it is mounted
	// Sleep passes the time between two samples of error counters; nil: one sample only.
	Sleep    func(time.Duration)
	Patience time.Duration // for one check; 0 is three seconds
	// Access tells whether this process may read and write a file; nil: not known.
	Access func(path string) error
}

// Live is the machine that this runs on. It blocks until NVML has answered, or ctx ends.
func Live(ctx context.Context) Node {
	n := Node{Root: "/", Env: os.Environ(), Now: time.Now(), Sleep: time.Sleep}
	n.NVML, n.NVMLErr = nvml.Read(ctx, nvml.Options{})
	n.Access = func(name string) error { return syscall.Access(name, 6) } // 6: to read and to write
	var s syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &s); err == nil && isMount("/", "/dev/shm") {
		n.Shm = &nvml.Space{TotalBytes: s.Blocks * uint64(s.Bsize), UsedBytes: (s.Blocks - s.Bfree) * uint64(s.Bsize)}
	}
	return n
}

func isMount(root, where string) bool {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/mounts"))
	return err == nil && strings.Contains(string(text), " "+where+" ")
}

// maxFile bounds what is read of one file; none of those that are looked at is as large.
const maxFile = 4 << 20

// machine is a node with what several checks look at, read once.
type machine struct {
	Node
	env      map[string]string
	lock     sync.Mutex // of warnings: a check that is late may still add some
	warnings []string

	graph *topo.Graph
	nics  *[]port
	klog  *kernelLog
	procs *[]process
	moved *[]movedCounter
}

func newMachine(n Node) *machine {
	m := &machine{Node: n, env: map[string]string{}}
	for _, e := range n.Env {
		if name, value, ok := strings.Cut(e, "="); ok {
			if _, twice := m.env[name]; !twice {
				m.env[name] = value
			}
		}
	}
	return m
}

func (m *machine) at(name string) string { return filepath.Join(m.Root, filepath.FromSlash(name)) }

// read is a file's text without blanks around it.
func (m *machine) read(name string) (string, error) {
	f, err := os.OpenFile(m.at(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.TrimRight(string(b), "\x00")), nil
}

// text is read where absence needs no reason: "" is both absent and empty.
func (m *machine) text(name string) string {
	s, err := m.read(name)
	if err != nil {
		return ""
	}
	return s
}

// number is a file that holds one; nil when it does not exist or holds something else, which is then a warning.
func (m *machine) number(name string) *int64 {
	s, err := m.read(name)
	if err != nil || s == "" {
		return nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		m.complain(name, 1, "is no number: %.40q", s)
		return nil
	}
	return &n
}

func (m *machine) complain(file string, line int, format string, args ...any) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if text := fmt.Sprintf("/%s:%d: ", strings.TrimPrefix(file, "/"), line) + fmt.Sprintf(format, args...); len(m.warnings) < 100 && !slices.Contains(m.warnings, text) {
		m.warnings = append(m.warnings, text)
	}
}

// warned is a copy of the warnings so far.
func (m *machine) warned() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	return slices.Clone(m.warnings)
}

func (m *machine) exists(name string) bool {
	_, err := os.Stat(m.at(name))
	return err == nil
}

// list is a folder's names, sorted as people count: mlx5_2 before mlx5_10.
func (m *machine) list(name string) []string {
	entries, err := os.ReadDir(m.at(name))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.SortFunc(out, naturally)
	return out
}

// glob lists paths below the root that match a pattern.
func (m *machine) glob(pattern string) []string {
	found, _ := filepath.Glob(m.at(pattern)) // the only error is a bad pattern
	for i, f := range found {
		if rel, err := filepath.Rel(m.at(""), f); err == nil {
			found[i] = filepath.ToSlash(rel)
		}
	}
	return found
}

// link is where a symbolic link leads, its last element; "" when it is none.
func (m *machine) link(name string) string {
	to, err := os.Readlink(m.at(name))
	if err != nil {
		return ""
	}
	return path.Base(filepath.ToSlash(to))
}

var digits = regexp.MustCompile(`\d+|\D+`)

func naturally(a, b string) int {
	x, y := digits.FindAllString(a, -1), digits.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		n, errX := strconv.ParseUint(x[i], 10, 64)
		k, errY := strconv.ParseUint(y[i], 10, 64)
		if errX == nil && errY == nil && n != k {
			return cmp.Compare(n, k)
		}
		if c := strings.Compare(x[i], y[i]); c != 0 && (errX != nil || errY != nil) {
			return c
		}
	}
	return cmp.Or(len(x)-len(y), strings.Compare(a, b))
}

func why(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func (m *machine) host() string {
	return cmp.Or(m.text("proc/sys/kernel/hostname"), m.text("etc/hostname"), "unknown")
}

// describe says in a line what the machine is.
func (m *machine) describe() string {
	var parts []string
	gpus := max(len(m.gpus()), m.gpuDevices())
	switch {
	case gpus == 0:
		parts = append(parts, "no GPU")
	case len(m.gpus()) > 0 && m.gpus()[0].Name != nil:
		parts = append(parts, fmt.Sprintf("%d × %s", gpus, *m.gpus()[0].Name))
	default:
		parts = append(parts, count(gpus, "NVIDIA GPU"))
	}
	switch n := len(m.ports()); n {
	case 0:
		parts = append(parts, "no RDMA device")
	default:
		parts = append(parts, count(n, "RDMA port"))
	}
	if m.isVirtual() {
		parts = append(parts, "virtual machine")
	}
	if c := m.container(); c != "" {
		parts = append(parts, "in "+c)
	}
	return strings.Join(parts, ", ")
}

// gpus are NVML's; none when it did not answer.
func (m *machine) gpus() []nvml.GPU {
	if m.NVML == nil {
		return nil
	}
	return m.NVML.GPUs
}

// needGPUs skips a check that looks at NVML's GPUs.
func (m *machine) needGPUs(v *verdict) bool {
	if len(m.gpus()) > 0 {
		return true
	}
	if m.gpuDevices() == 0 && !m.exists("proc/driver/nvidia/version") {
		v.skip("no GPU")
		return false
	}
	v.unknown("see the check driver-nvml", "NVML does not tell: %v", cmpError(m.NVMLErr))
	return false
}

func cmpError(err error) error {
	if err == nil {
		return errors.New("it was not asked")
	}
	return err
}

// process is one entry of /proc.
type process struct {
	pid  int
	comm string // the first 15 characters of its name
}

// processes lists /proc once.
func (m *machine) processes() []process {
	if m.procs != nil {
		return *m.procs
	}
	list := []process{}
	for _, name := range m.list("proc") {
		if pid, err := strconv.Atoi(name); err == nil {
			if comm := m.text("proc/" + name + "/comm"); comm != "" {
				list = append(list, process{pid, comm})
			}
		}
	}
	m.procs = &list
	return list
}

// running finds a process by the beginning of its name.
func (m *machine) running(names ...string) string {
	for _, p := range m.processes() {
		for _, n := range names {
			if len(n) > 15 {
				n = n[:15]
			}
			if p.comm == n {
				return fmt.Sprintf("%s (process %d)", p.comm, p.pid)
			}
		}
	}
	return ""
}

// container says by what the process is contained, "" if by nothing.
func (m *machine) container() string {
	switch {
	case m.env["KUBERNETES_SERVICE_HOST"] != "" || m.exists("var/run/secrets/kubernetes.io"):
		return "Kubernetes"
	case m.env["APPTAINER_CONTAINER"] != "" || m.env["SINGULARITY_CONTAINER"] != "":
		return "Apptainer"
	case m.exists(".dockerenv"):
		return "Docker"
	case m.exists("run/.containerenv"):
		return "Podman"
	}
	for line := range strings.Lines(m.text("proc/1/cgroup")) {
		for word, name := range map[string]string{"docker": "Docker", "kubepods": "Kubernetes", "containerd": "containerd", "libpod": "Podman", "/lxc": "LXC"} {
			if strings.Contains(line, word) {
				return name
			}
		}
	}
	return ""
}

// virtual tells whether the machine is a guest; nil: cannot tell.
func (m *machine) virtual() *bool {
	yes, no := true, false
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			if slices.Contains(strings.Fields(value), "hypervisor") {
				return &yes
			}
			return &no
		}
	}
	vendor := m.text("sys/class/dmi/id/sys_vendor")
	for _, v := range []string{"QEMU", "VMware", "Amazon EC2", "Google", "Xen", "KVM"} {
		if strings.Contains(vendor, v) {
			return &yes
		}
	}
	return nil
}

func (m *machine) isVirtual() bool {
	v := m.virtual()
	return v != nil && *v
}

// arm tells whether the processor is one of ARM's.
func (m *machine) arm() bool { return strings.Contains(m.text("proc/cpuinfo"), "CPU implementer") }

// cpuNodes are the NUMA nodes that have processors.
func (m *machine) cpuNodes() []string {
	var out []string
	for _, c := range m.topology().CPUs {
		if c.CPUs != "" {
			out = append(out, fmt.Sprint("node", c.NUMA))
		}
	}
	return out
}

// countList counts the members of a list such as 0-3,8.
func countList(list string) int { return len(members(list)) }

// maxMember bounds a list: no machine has as many processors.
const maxMember = 1 << 16

// members are those of a list such as 0-3,8.
func members(list string) map[int]bool {
	out := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, errA := strconv.Atoi(from)
		b, errB := a, errA
		if isRange {
			b, errB = strconv.Atoi(to)
		}
		for n := a; errA == nil && errB == nil && n >= 0 && n <= min(b, maxMember); n++ {
			out[n] = true
		}
	}
	return out
}

// chosen is the word in brackets of a kernel's choice such as "always [madvise] never".
func chosen(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

func sizeText(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(bytes), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.4g %s", f, units[i])
}
