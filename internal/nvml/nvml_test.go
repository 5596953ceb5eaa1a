package nvml

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/internal/bindtest"
)

// vendorHeader is the folder of NVIDIA's nvml.h.
func vendorHeader(t *testing.T) string {
	t.Helper()
	folder, err := bindtest.NVMLHeader(t)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return folder
}

// fake builds the stand-in for the library at path.
func fake(t *testing.T, path string, flags ...string) {
	t.Helper()
	_, err := os.Stat("testdata/fake/nvml.c")
	_, noCompiler := exec.LookPath("gcc")
	if err = errors.Join(err, noCompiler); err != nil {
		if bindtest.Native() || os.Getenv("REQUIRE_GPU") != "" {
			t.Skip("the stand-in for NVML is tested where there are a compiler and the sources: ", err)
		}
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I../../csrc", "-o", path, "testdata/fake/nvml.c"}, flags...)
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
}

// isolated runs the test with the stand-in in a process of its own: a process keeps the first library that it opened.
func isolated(t *testing.T, env []string, flags ...string) bool {
	t.Helper()
	return bindtest.Isolated(t, func(dir string) []string {
		fake(t, filepath.Join(dir, "ml.so"), flags...)
		return env
	})
}

func readFake(t *testing.T) (*Node, error) {
	t.Helper()
	return Read(t.Context(), Options{Library: bindtest.InDir("ml.so")})
}

// readTwo wants what the stand-in says of its machine.
func readTwo(t *testing.T) {
	t.Helper()
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(n, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = regexp.MustCompile(`"library": ".*"`).ReplaceAll(got, []byte(`"library": "ml.so"`))
	want, err := os.ReadFile("testdata/two.json")
	if err != nil || strings.TrimSpace(string(want)) != string(got) {
		t.Errorf("not as in testdata/two.json (%v):\n%s", err, got)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	if !isolated(t, nil) {
		return
	}
	readTwo(t)
	for name, present := range csrc.Functions(csrc.NVML) {
		if !present {
			t.Errorf("%s is not in the stand-in, and nothing here tests it", name)
		}
	}
	if again, err := readFake(t); err != nil || len(again.GPUs) != 2 {
		t.Errorf("a second reading: %v, %v", again, err)
	}
	if _, err := Read(t.Context(), Options{Library: "other.so"}); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("another library in the same process: %v", err)
	}
}

// A stand-in that lays out its structs as NVIDIA's header does gives the same.
func TestReadVendorLayout(t *testing.T) {
	t.Parallel()
	if !bindtest.Isolated(t, func(dir string) []string {
		fake(t, filepath.Join(dir, "ml.so"), "-DVENDOR", "-DNVML_NO_UNVERSIONED_FUNC_DEFS=1", "-isystem", vendorHeader(t))
		return nil
	}) {
		return
	}
	readTwo(t)
}

// The program starts where the loader resolves all functions at once, and needs none of the library's: a link against them would end every command there.
func TestBindNow(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("LD_BIND_NOW=1: %v\n%s", err, out)
	}
	f, err := elf.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, s := range names {
		found[s.Name] = true
	}
	if !found["dlopen"] {
		t.Fatal("the test binary imports no dlopen: what does it open the library with?")
	}
	for name := range csrc.Functions(csrc.NVML) {
		if found[name] {
			t.Errorf("%s is looked for when the program starts", name)
		}
	}
}

// symbols are the functions of the stand-in, from its source.
func symbols(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/fake/nvml.c")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^(?:FN\(|nvmlReturn_t )(nvml\w+)`).FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	if len(out) < 40 {
		t.Fatalf("only %d functions in the stand-in", len(out))
	}
	return out
}

// Without nearly all functions nothing crashes: every value is nil and has a reason.
func TestMissingSymbols(t *testing.T) {
	t.Parallel()
	keep := []string{"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"} // the oldest forms
	hide := slices.DeleteFunc(symbols(t), func(s string) bool { return slices.Contains(keep, s) })
	if !isolated(t, nil, bindtest.Lacking(t, hide...)...) {
		return
	}
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	if n.Driver != nil || n.NVML != nil || n.CUDADriver != nil || !strings.Contains(n.Missing["driver_version"], "nvmlSystemGetDriverVersion") {
		t.Errorf("node: %+v", n)
	}
	g := n.GPUs[1]
	if g.Name != nil || g.PCI != nil || g.Memory != nil || g.PCIe.Width != nil || g.ECC.On != nil || g.Rows != nil || g.Clocks != nil || g.Fabric != nil || g.Links != nil || g.Processes != nil {
		t.Errorf("GPU: %+v", g)
	}
	for _, field := range []string{"name", "uuid", "pci", "memory", "bar1", "pcie.width", "ecc.on", "remapped_rows", "clock_event_mask", "nvlinks", "fabric", "cpu_affinity", "processes", "mig"} {
		if !strings.Contains(g.Missing[field], "the driver's library has no nvml") {
			t.Errorf("%s: %q", field, g.Missing[field])
		}
	}
	if p := n.Pairs[0]; p.Ancestor != nil || len(p.P2P) != 0 || len(p.Missing) != 6 {
		t.Errorf("pair: %+v", p)
	}
}

// Each function alone may be missing.
func TestEachSymbolMissing(t *testing.T) {
	t.Parallel()
	for _, s := range symbols(t) {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			if !isolated(t, nil, bindtest.Lacking(t, s)...) {
				return
			}
			if n, err := readFake(t); err != nil || len(n.GPUs) != 2 {
				t.Errorf("%v, %v", n, err)
			}
		})
	}
}

// An older library has other functions for the same: those are asked instead.
func TestOlderForms(t *testing.T) {
	t.Parallel()
	if !isolated(t, nil, bindtest.Lacking(t, "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCount_v2", "nvmlInit_v2")...) {
		return
	}
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	g := n.GPUs[0]
	if *n.CUDADriver != "12.9" || *g.Clocks != 4 || g.Fabric.State != "in progress" || g.Fabric.Health != nil {
		t.Errorf("CUDA %v, clocks %v, fabric %+v", *n.CUDADriver, *g.Clocks, g.Fabric)
	}
}

// The oldest library has the first form of everything.
func TestOldestForms(t *testing.T) {
	t.Parallel()
	var hide []string
	for _, s := range symbols(t) {
		if strings.HasSuffix(s, "_v2") || strings.HasSuffix(s, "_v3") {
			hide = append(hide, s)
		}
	}
	if !isolated(t, nil, bindtest.Lacking(t, hide...)...) {
		return
	}
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	g := n.GPUs[1]
	if *g.PCI != "0009:2d:00.0" || *g.Links[0].RemotePCI != "0000:c5:00.0" {
		t.Errorf("PCI %v, remote %v", *g.PCI, *g.Links[0].RemotePCI)
	}
	p := g.Processes
	if len(p) != 3 || p[0].PID != 300 || *p[0].UsedBytes != 7 || p[1].PID != 400 || p[1].UsedBytes != nil || p[2].PID != 500 || *p[2].UsedBytes != 9 {
		t.Errorf("processes: %+v", p)
	}
}

// The second form of what has three.
func TestMiddleForms(t *testing.T) {
	t.Parallel()
	if !isolated(t, nil, bindtest.Lacking(t, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetComputeRunningProcesses_v3")...) {
		return
	}
	readTwo(t)
}

// A list that never fits ends, and one that fits late is read whole.
func TestGrowing(t *testing.T) {
	t.Parallel()
	ask := func(n, code int, have int) ([]int, int) {
		return growing(func(room int) ([]int, int, int) {
			if room >= have {
				return make([]int, have), have, csrc.NvmlSuccess
			}
			return nil, n, code
		})
	}
	const never = 1 << 30
	for name, c := range map[string]struct{ n, code, have, list, want int }{
		"none":                 {0, 0, 0, 0, csrc.NvmlSuccess},
		"told":                 {100, csrc.NvmlInsufficientSize, 100, 100, csrc.NvmlSuccess},
		"not told":             {0, csrc.NvmlInsufficientSize, 100, 100, csrc.NvmlSuccess},
		"more than fits":       {100, csrc.NvmlSuccess, 100, 100, csrc.NvmlSuccess},
		"never":                {0, csrc.NvmlInsufficientSize, never, 0, csrc.NvmlInsufficientSize},
		"never, a huge number": {1<<32 - 1, csrc.NvmlInsufficientSize, never, 0, csrc.NvmlInsufficientSize},
		"other code":           {5, 15, 100, 0, 15},
		"missing":              {0, csrc.Missing, 100, 0, csrc.Missing},
	} {
		if list, code := ask(c.n, c.code, c.have); len(list) != c.list || code != c.want {
			t.Errorf("%s: %d entries, code %d; want %d, %d", name, len(list), code, c.list, c.want)
		}
	}
}

func TestErrorsBecomeReasons(t *testing.T) {
	t.Parallel()
	if !isolated(t, []string{"FAKE_NVML_LOST=1", "FAKE_NVML_FAIL=nvmlDeviceGetTemperature=15,nvmlDeviceGetMigMode=3,nvmlDeviceGetNvLinkState=4,nvmlDeviceGetGpuFabricInfoV=25,nvmlDeviceGetName=77,nvmlSystemGetDriverVersion=999"}) {
		return
	}
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	g := n.GPUs[0]
	for field, want := range map[string]string{"temperature_c": "the GPU has fallen off the bus", "mig": "not supported", "name": "NVML code 77"} {
		if g.Missing[field] != want {
			t.Errorf("%s: %q, want %q", field, g.Missing[field], want)
		}
	}
	if n.Driver != nil || n.Missing["driver_version"] != "unknown error" {
		t.Errorf("driver: %v, %q", n.Driver, n.Missing["driver_version"])
	}
	if len(g.Links) == 0 || g.Links[0].Active != nil || g.Links[0].Missing["active"] != "no permission" {
		t.Errorf("links: %+v", g.Links)
	}
	if g.Fabric == nil || g.Fabric.State != "in progress" {
		t.Errorf("fabric in its old form: %+v", g.Fabric)
	}
	if lost := n.GPUs[1]; lost.Missing["all"] != "the GPU has fallen off the bus" || lost.Name != nil {
		t.Errorf("lost GPU: %+v", lost)
	}
	if len(n.Pairs) != 0 {
		t.Errorf("pairs with a lost GPU: %+v", n.Pairs)
	}
}

func TestNoNVLink(t *testing.T) {
	t.Parallel()
	if !isolated(t, []string{"FAKE_NVML_FAIL=nvmlDeviceGetNvLinkState=3"}) {
		return
	}
	n, err := readFake(t)
	if err != nil {
		t.Fatal(err)
	}
	if g := n.GPUs[0]; len(g.Links) != 0 || !strings.Contains(g.Missing["nvlinks"], "no NVLink") {
		t.Errorf("%+v, %q", g.Links, g.Missing["nvlinks"])
	}
}

func TestInitErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, env string
		want      error
		says      string
	}{
		{"no driver", "FAKE_NVML_INIT=9", ErrNoDriver, "modprobe"},
		{"mismatch", "FAKE_NVML_INIT=18", ErrMismatch, "reboot"},
		{"part of the library", "FAKE_NVML_INIT=12", ErrNoLibrary, "does not find"},
		{"other", "FAKE_NVML_INIT=999", nil, "unknown error"},
		{"no GPU", "FAKE_NVML_GPUS=0", ErrNoGPU, "580.65.06"},
		{"cannot count", "FAKE_NVML_FAIL=nvmlDeviceGetCount_v2=4", nil, "no permission"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !isolated(t, []string{c.env}) {
				return
			}
			n, err := readFake(t)
			if n != nil || err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, %v; want %v", n, err, c.want)
			}
			bindtest.Says(t, err, c.says)
		})
	}
}

// A library that never answers does not hold the program.
func TestHang(t *testing.T) {
	t.Parallel()
	if !isolated(t, []string{"FAKE_NVML_HANG=1"}) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	n, err := Read(ctx, Options{Library: bindtest.InDir("ml.so")})
	if n != nil || !errors.Is(err, ErrNoAnswer) || time.Since(start) > 10*time.Second {
		t.Errorf("after %v: %v, %v", time.Since(start), n, err)
	}
}

func TestNoLibrary(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"absent": "", "no library": "this is a text"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				if text != "" {
					bindtest.Write(t, filepath.Join(dir, "ml.so"), text)
				}
				return nil
			}) {
				return
			}
			n, err := readFake(t)
			if n != nil || !errors.Is(err, ErrNoLibrary) {
				t.Errorf("%v, %v", n, err)
			}
			bindtest.Says(t, err, "ml.so", "utility")
		})
	}
}

// Another library under the name of NVML: calling its nvmlInit would end the process.
func TestOtherLibrary(t *testing.T) {
	t.Parallel()
	if !isolated(t, nil, bindtest.Lacking(t, symbols(t)...)...) {
		return
	}
	n, err := readFake(t)
	if n != nil || !errors.Is(err, ErrNoLibrary) {
		t.Errorf("%v, %v", n, err)
	}
	bindtest.Says(t, err, "no NVML library", "nvmlInit")
}

// TestNative reads the machine's own GPUs where there are any.
func TestNative(t *testing.T) {
	n, err := Read(bindtest.Soon(t), Options{})
	if errors.Is(err, ErrNoLibrary) || errors.Is(err, ErrNoDriver) || errors.Is(err, ErrNoGPU) {
		if os.Getenv("REQUIRE_GPU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range n.GPUs {
		if g.Name == nil || g.PCI == nil || g.Memory == nil || g.Memory.TotalBytes == 0 || g.PCIe.MaxWidth == nil {
			t.Errorf("GPU %d: %+v", g.Index, g)
		}
	}
	text, err := json.MarshalIndent(n, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if file := os.Getenv("NVML_OUT"); file != "" {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Error(err)
		}
	}
}
