//go:build !race

// Not under the race detector: unpacking gigabytes of wheels takes minutes there, and nothing here is of interest to it. `make test` runs these
// tests apart.

package csrc_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// ncclVersions are the versions that abi.h is compared with: from the oldest that we support to the newest known good. Not every version,
// because each is a download of some 300 MB.
var ncclVersions = []string{"2.18.3", "2.21.5", "2.23.4", "2.26.5", "2.28.9", "2.30.7", "2.32.3"}

// The runtime packages carry the driver's header too.
var cudartPackages = []abiPackage{
	{name: "nvidia-cuda-runtime-cu12", version: "12.9.79", code: 12090, lib: "libcudart.so.12", keep: []string{"include/", "lib/libcudart.so.12"}},
	{name: "nvidia-cuda-runtime", version: "13.0.96", code: 13000, lib: "libcudart.so.13", keep: []string{"include/", "lib/libcudart.so.13"}},
}

// abiSince is the first version of each function that not every supported version has. Before it the header must not declare the function
// and the library must not export it; from it on both must.
var abiSince = map[string]int{
	"ncclGetLastError":         21300,
	"ncclMemAlloc":             21900,
	"ncclMemFree":              21900,
	"ncclCommRegister":         21900,
	"ncclCommDeregister":       21900,
	"ncclCommWindowRegister":   22700,
	"ncclCommWindowDeregister": 22700,
	"ncclAlltoAll":             22800,
	"ncclGather":               22800,
	"ncclScatter":              22800,
}

// unavailable skips, except in CI, where a check that nobody runs is worse than a red build.
func unavailable(t *testing.T, reason any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// TestABI compares abi.h with the vendors' headers and libraries.
func TestABI(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		unavailable(t, "not every version has a package for "+runtime.GOOS+"/"+runtime.GOARCH)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		unavailable(t, err)
	}
	cache, err := abiCache()
	if err != nil {
		t.Fatal(err)
	}
	// The small packages first: every other check needs their headers, and without a network they say so soon.
	for _, err := range fetchAll(t, cache, cudartPackages) {
		require(t, err)
	}
	var nccl []abiPackage
	for _, v := range ncclVersions {
		nccl = append(nccl, ncclPackage(v))
	}
	errs := fetchAll(t, cache, nccl)
	probe := buildProbe(t)

	for _, p := range cudartPackages {
		t.Run(p.name+"-"+p.version, func(t *testing.T) {
			t.Parallel()
			report(t, checkCudart("abi.h", cache, p))
			report(t, checkLibrary(t, probe, "cudart", cache, p))
		})
	}
	for i, p := range nccl {
		t.Run(p.name+"-"+p.version, func(t *testing.T) {
			t.Parallel()
			require(t, errs[i])
			report(t, checkNCCL("abi.h", cache, p))
			report(t, checkLibrary(t, probe, "nccl", cache, p))
		})
	}
	for _, m := range mutations {
		t.Run("wrong "+m.what, func(t *testing.T) {
			t.Parallel()
			for i, p := range nccl {
				if p.version == m.nccl {
					require(t, errs[i])
				}
			}
			m.check(t, cache)
		})
	}
}

func require(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, errUnavailable) {
		unavailable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// TestABICovered finds a constant or config field of abi.h that nothing compares with the vendors' headers.
func TestABICovered(t *testing.T) {
	header := readText(t, "abi.h")
	checks := readText(t, "testdata/abi_nccl.c") + readText(t, "testdata/abi_cudart.c")
	constant := regexp.MustCompile(`(?m)^\s*(CP_\w+) = |^#define (CP_NCCL_CONFIG_\w+) `)
	names := constant.FindAllStringSubmatch(header, -1)
	if len(names) < 50 {
		t.Fatalf("found %d constants in abi.h: the pattern no longer fits", len(names))
	}
	for _, m := range names {
		name := cmp.Or(m[1], m[2])
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(checks) {
			t.Errorf("%s: not compared with the vendor's value", name)
		}
	}
	fields, err := configFields(header)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		if !strings.Contains(checks, "X("+f.name+", ") {
			t.Errorf("config.%s: not compared with the vendor's field", f.name)
		}
	}
}

// TestABISince compares the comments of abi.h, which say since when a function exists, with the table that is checked against the vendors.
func TestABISince(t *testing.T) {
	said := map[string]int{}
	re := regexp.MustCompile(`(?m)^\s*X\((\w+), .*/\* (\d+)\.(\d+) \*/`)
	for _, m := range re.FindAllStringSubmatch(readText(t, "abi.h"), -1) {
		said[m[1]] = versionCode(m[2], m[3])
	}
	for name, since := range abiSince {
		if said[name] != since {
			t.Errorf("%s: abi.h says version %d, the table %d", name, said[name], since)
		}
	}
	for name := range said {
		if _, ok := abiSince[name]; !ok {
			t.Errorf("%s: abi.h says version %d, the table nothing", name, said[name])
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// versionCode is NCCL's code of major.minor.0; both are digits.
func versionCode(major, minor string) int {
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	return a*10000 + b*100
}

type configField struct {
	name  string
	since int // 0: in every version
}

// configFields reads the config struct from abi.h. The first version of a field is taken from its comment, so that the comment is what the
// vendor's header confirms.
func configFields(header string) ([]configField, error) {
	head, _, ok := strings.Cut(header, "} cp_nccl_config;")
	if !ok {
		return nil, errors.New("abi.h: no cp_nccl_config")
	}
	body := head[strings.LastIndex(head, "{")+1:]
	var fields []configField
	for _, m := range regexp.MustCompile(`(?m)^\s*[\w *]*?(\w+);(?: *// (\d+)\.(\d+))?`).FindAllStringSubmatch(body, -1) {
		fields = append(fields, configField{m[1], versionCode(m[2], m[3])})
	}
	if len(fields) != strings.Count(body, ";") {
		return nil, errors.New("abi.h: cp_nccl_config has a line that this test does not understand")
	}
	return fields, nil
}

// checkNCCL returns where header differs from p's nccl.h.
func checkNCCL(header, cache string, p abiPackage) []string {
	text, err := os.ReadFile(header)
	if err != nil {
		return []string{err.Error()}
	}
	fields, err := configFields(string(text))
	if err != nil {
		return []string{err.Error()}
	}
	var args []string
	count := 0
	for _, f := range fields {
		has := 0
		if f.since <= p.code {
			has = 1
			count++
		}
		args = append(args, fmt.Sprintf("-DHAS_%s=%d", f.name, has))
	}
	args = append(args, fmt.Sprintf("-DCONFIG_FIELDS=%d", count), "-isystem", filepath.Join(p.dir(cache), "include"))
	return checkHeader(header, "testdata/abi_nccl.c", cudartPackages[0].dir(cache), p, args)
}

// checkCudart returns where header differs from p's CUDA headers.
func checkCudart(header, cache string, p abiPackage) []string {
	return checkHeader(header, "testdata/abi_cudart.c", p.dir(cache), p, nil)
}

func checkHeader(header, source, cuda string, p abiPackage, args []string) []string {
	aux, err := os.CreateTemp("", "abi-*.txt")
	if err != nil {
		return []string{err.Error()}
	}
	aux.Close()
	defer os.Remove(aux.Name())
	// Optimized, because a call to a function with the error attribute counts only where the optimizer leaves it.
	args = append([]string{
		"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-c", "-o", os.DevNull, "-aux-info", aux.Name(),
		fmt.Sprintf("-DWANT_VERSION=%d", p.code), "-I", filepath.Dir(header), "-I", "testdata/abi_stub", "-isystem", filepath.Join(cuda, "include"),
	}, args...)
	cmd := exec.Command("gcc", append(args, source)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		var problems []string
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "error:") {
				problems = append(problems, strings.TrimSpace(line))
			}
		}
		if problems == nil {
			problems = []string{fmt.Sprintf("gcc: %v: %s", err, out)}
		}
		return problems
	}
	data, err := os.ReadFile(aux.Name())
	if err != nil {
		return []string{err.Error()}
	}
	return comparePrototypes(string(data), abiSince, p.code)
}

// prototype is a function's type as gcc prints it: return type first, then the parameters.
type prototype []string

var auxLine = regexp.MustCompile(`\*/ extern (.*?)(\w+) \((.*)\);`)

// comparePrototypes reads gcc's list of declarations and compares every our_NAME with NAME.
func comparePrototypes(aux string, since map[string]int, version int) []string {
	declared := map[string]prototype{}
	pairs := map[[2]string]bool{}
	var names []string
	for _, m := range auxLine.FindAllStringSubmatch(aux, -1) {
		types := prototype{strings.TrimSpace(m[1])}
		// The second is gcc's way to write (), which NCCL's header uses for functions without parameters.
		if m[3] != "void" && m[3] != "/* ??? */" {
			types = append(types, strings.Split(m[3], ", ")...)
		}
		declared[m[2]] = types
		if name, ok := strings.CutPrefix(m[2], "our_"); ok {
			names = append(names, name)
		} else if strings.HasPrefix(m[2], "abi_pair_") && len(types) == 3 {
			pairs[[2]string{types[1], types[2]}] = true
		}
	}
	if len(names) == 0 || len(pairs) == 0 {
		return []string{"gcc -aux-info listed none of our declarations"}
	}
	var problems []string
	for _, name := range names {
		theirs, ok := declared[name]
		if problem := presence(name, ok, since, version); problem != "" {
			problems = append(problems, problem)
		}
		if !ok {
			continue
		}
		ours := declared["our_"+name]
		same := len(ours) == len(theirs)
		for i := 0; same && i < len(ours); i++ {
			same = sameType(ours[i], theirs[i], pairs)
		}
		if !same {
			problems = append(problems, fmt.Sprintf("%s: ours is %q, the vendor's %q", name, ours, theirs))
		}
	}
	return problems
}

func presence(name string, present bool, since map[string]int, version int) string {
	switch {
	case present && version < since[name]:
		return fmt.Sprintf("%s: version %d has it, the table says since %d", name, version, since[name])
	case !present && version >= since[name]:
		return fmt.Sprintf("%s: version %d lacks it, the table says since %d", name, version, since[name])
	}
	return ""
}

// sameType reports whether two types are spelled alike but for a name that the pairs allow.
func sameType(ours, theirs string, pairs map[[2]string]bool) bool {
	if ours == theirs {
		return true
	}
	if !strings.HasSuffix(theirs, "*") {
		// A const argument is passed as any other; NCCL declares some handles so.
		theirs = strings.TrimSpace(strings.TrimPrefix(theirs, "const "))
	}
	for strings.HasSuffix(ours, "*") && strings.HasSuffix(theirs, "*") {
		ours = strings.TrimSpace(strings.TrimSuffix(ours, "*"))
		theirs = strings.TrimSpace(strings.TrimSuffix(theirs, "*"))
	}
	return pairs[[2]string{ours, theirs}]
}

// buildProbe compiles the program that opens the libraries. It is a process of its own because a library is never closed again and two
// versions of one are not meant to share a process.
func buildProbe(t *testing.T) string {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "abi_dlopen")
	out, err := exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", ".", "-o", probe, "testdata/abi_dlopen.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return probe
}

// checkLibrary returns where the functions of p's shared object differ from the table. It needs no device.
func checkLibrary(t *testing.T, probe, kind, cache string, p abiPackage) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), probe, kind, filepath.Join(p.dir(cache), "lib", p.lib))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return []string{fmt.Sprintf("%s: %v: %s", p.lib, err, &stderr)}
	}
	var problems []string
	functions, version := 0, ""
	for line := range strings.Lines(string(out)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue // a library may print on its own
		}
		if name == "version" {
			version = value
			continue
		}
		functions++
		if problem := presence(name, value == "present", abiSince, p.code); problem != "" {
			problems = append(problems, p.lib+": "+problem)
		}
	}
	if version != strconv.Itoa(p.code) {
		problems = append(problems, fmt.Sprintf("%s: version %q, want %d", p.lib, version, p.code))
	}
	if functions < 30 {
		problems = append(problems, fmt.Sprintf("%s: the probe listed %d functions", p.lib, functions))
	}
	return problems
}

// mutation is a mistake in abi.h that the check must find: a check that cannot fail proves nothing.
type mutation struct {
	what     string
	nccl     string // version of NCCL to check against; empty: the first CUDA runtime
	old, new string
	want     string // in one of the problems
}

var mutations = []mutation{
	{"value", "2.28.9", "CP_AVG = 4,", "CP_AVG = 5,", "CP_AVG differs"},
	{"value of a later version", "2.26.5", "CP_FLOAT8E5M2 = 11,", "CP_FLOAT8E5M2 = 12,", "CP_FLOAT8E5M2 differs"},
	{"config field size", "2.26.5", "int traffic_class;", "long traffic_class;", "config.traffic_class: "},
	{"config field sign", "2.28.9", "int cta_policy;", "unsigned cta_policy;", "config.cta_policy: type differs"},
	{"config field order", "2.28.9", "int min_ctas;             // 2.17\n  int max_ctas;", "int max_ctas;             // 2.17\n  int min_ctas;", "config.min_ctas: offset differs"},
	{"config field added", "2.28.9", "} cp_nccl_config;", "int more;\n} cp_nccl_config;", "config: number of fields differs"},
	{"config field too old", "2.23.4", "int traffic_class;        // 2.26", "int traffic_class;        // 2.23", "trafficClass"},
	{"config field too new", "2.28.9", "int nvlink_centric_sched; // 2.28", "int nvlink_centric_sched; // 2.29", "config: number of fields differs"},
	{"config magic", "2.21.5", "0xcafebeefu", "0xcafebeeeu", "NCCL_CONFIG_INITIALIZER differs"},
	{"unique id", "2.32.3", "char internal[128];", "char internal[64];", "ncclUniqueId: size differs"},
	{"parameter size", "2.18.3", "size_t send_count,", "int send_count,", "ncclAllGather: ours is"},
	{"parameter count", "2.18.3", "(cp_comm comm, int *count), (comm, count)", "(cp_comm comm), (comm)", "ncclCommCount: ours is"},
	{"parameter by reference", "2.18.3", "(cp_comm *comm, int nranks, cp_unique_id id, int rank),", "(cp_comm *comm, int nranks, cp_unique_id *id, int rank),", "ncclCommInitRank: ours is"},
	{"cuda value", "", "CP_ATTR_PCI_DOMAIN_ID = 50,", "CP_ATTR_PCI_DOMAIN_ID = 51,", "CP_ATTR_PCI_DOMAIN_ID differs"},
	{"ipc handle", "", "char reserved[64];", "char reserved[60];", "cudaIpcMemHandle_t: size differs"},
	{"cuda parameter", "", "X(cudaMalloc, (void **p, size_t bytes),", "X(cudaMalloc, (void **p, unsigned bytes),", "cudaMalloc: ours is"},
	{"driver parameter", "", "(cp_function *f, cp_module m, const char *name)", "(cp_module m, cp_function *f, const char *name)", "cuModuleGetFunction: ours is"},
}

// check alters a copy of abi.h and wants the problem found.
func (m mutation) check(t *testing.T, cache string) {
	text := readText(t, "abi.h")
	if n := strings.Count(text, m.old); n != 1 {
		t.Fatalf("abi.h has %q %d times, want once: adapt the mutation", m.old, n)
	}
	header := filepath.Join(t.TempDir(), "abi.h")
	if err := os.WriteFile(header, []byte(strings.Replace(text, m.old, m.new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	var problems []string
	if m.nccl == "" {
		problems = checkCudart(header, cache, cudartPackages[0])
	} else {
		problems = checkNCCL(header, cache, ncclPackage(m.nccl))
	}
	if !strings.Contains(strings.Join(problems, "\n"), m.want) {
		t.Errorf("want a problem with %q, got %q", m.want, problems)
	}
}

// TestABIPresence shows that a wrong table of first versions is found in both directions.
func TestABIPresence(t *testing.T) {
	since := map[string]int{"f": 22700}
	for _, c := range []struct {
		present bool
		version int
		wrong   bool
	}{{true, 22700, false}, {false, 22699, false}, {true, 22699, true}, {false, 22700, true}} {
		if got := presence("f", c.present, since, c.version) != ""; got != c.wrong {
			t.Errorf("present %t in %d: problem %t, want %t", c.present, c.version, got, c.wrong)
		}
	}
}
