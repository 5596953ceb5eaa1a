package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/google/go-cmp/cmp"
)

// file is one stand-in below the test's folder; lib "text" is none at all.
type file struct {
	path, lib string
	flags     []string
}

const (
	tooNew = `-DFAKE_FAIL="cudaGetDeviceCount=35"`
	v12    = "-DFAKE_VERSION=12090"
)

var driver = file{path: "ld/libcuda.so.1", lib: "cuda"}

// standIns starts the test in a process whose loader looks into ld and whose environment is venv.
func standIns(t *testing.T, files []file, env ...string) bool {
	t.Helper()
	return bindtest.Isolated(t, func(dir string) []string {
		for _, f := range files {
			if path := filepath.Join(dir, f.path); f.lib == "text" {
				bindtest.Write(t, path, strings.Repeat("not a library\n", 1000))
			} else {
				bindtest.Put(t, path, f.lib, f.flags...)
			}
		}
		return append([]string{
			"LD_LIBRARY_PATH=" + filepath.Join(dir, "ld"), "VIRTUAL_ENV=" + filepath.Join(dir, "venv"), "CUDA_HOME=" + filepath.Join(dir, "home"),
			"FAKE_LOG=" + filepath.Join(dir, "log"),
		}, env...)
	})
}

// otherwiseFound skips tests for places that come after those where a machine with GPUs has its own libraries.
func otherwiseFound(t *testing.T) {
	t.Helper()
	if native() {
		t.Skip("this machine's own libraries come first")
	}
}

// TestLoadRuntime shows which runtime is taken.
func TestLoadRuntime(t *testing.T) {
	for _, c := range []struct {
		name          string
		files         []file
		explicit      string
		path, version string
	}{
		{name: "newest", files: []file{{"ld/libcudart.so.13", "cudart", nil}, {"ld/libcudart.so.12", "cudart", []string{v12}}}, path: "ld/libcudart.so.13", version: "13.0"},
		{name: "too new for the driver", files: []file{{"ld/libcudart.so.13", "cudart", []string{tooNew}}, {"ld/libcudart.so.12", "cudart", []string{v12}}}, path: "ld/libcudart.so.12", version: "12.9"},
		{name: "broken newest", files: []file{{"ld/libcudart.so.13", "text", nil}, {"ld/libcudart.so.12", "cudart", []string{v12}}}, path: "ld/libcudart.so.12", version: "12.9"},
		{name: "not a runtime", files: []file{{"ld/libcudart.so.13", "nothing", nil}, {"ld/libcudart.so.12", "cudart", []string{v12}}}, path: "ld/libcudart.so.12", version: "12.9"},
		{name: "explicit", files: []file{{"ld/libcudart.so.13", "cudart", nil}, {"my/rt.so", "cudart", []string{v12}}}, explicit: "my/rt.so", path: "my/rt.so", version: "12.9"},
		{name: "cuda home", files: []file{{"home/lib64/libcudart.so.13", "cudart", nil}}, path: "home/lib64/libcudart.so.13", version: "13.0"},
		{name: "wheel of 13", files: []file{{"venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", "cudart", nil}}, path: "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", version: "13.0"},
		{name: "wheel of 12", files: []file{{"venv/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", "cudart", []string{v12}}}, path: "venv/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", version: "12.9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !strings.HasPrefix(c.files[0].path, "ld/") {
				otherwiseFound(t)
			}
			if !standIns(t, append(c.files, driver)) {
				return
			}
			opts := cuda.Options{}
			if c.explicit != "" {
				opts.RuntimePath = bindtest.InDir(c.explicit)
			}
			ok(t, cuda.Load(opts))
			want := []cuda.Library{{Name: "cuda driver", Path: bindtest.InDir(driver.path), Version: "13.0"}, {Name: "cudart", Path: bindtest.InDir(c.path), Version: c.version}}
			if d := cmp.Diff(want, cuda.Libraries()); d != "" || cuda.IsHost() {
				t.Errorf("host %v, libraries %s", cuda.IsHost(), d)
			}
		})
	}
}

// TestLoadLibraryError: what is lacking, where it was looked for, what that means and what still works.
func TestLoadLibraryError(t *testing.T) {
	for _, c := range []struct {
		name     string
		files    []file
		explicit string
		library  string
		want     []string
	}{
		{"no driver", nil, "", "NVIDIA driver library", []string{"libcuda.so.1", "LD_LIBRARY_PATH", "no GPU can be used"}},
		{"driver is text", []file{{"ld/libcuda.so.1", "text", nil}}, "", "NVIDIA driver library", []string{"ld/libcuda.so.1: invalid ELF header"}},
		{"driver has no functions", []file{{"ld/libcuda.so.1", "nothing", nil}}, "", "NVIDIA driver library", []string{"has none of the functions"}},
		{"no runtime", []file{driver}, "", "CUDA runtime", []string{"libcudart.so.13, libcudart.so.12", "LD_LIBRARY_PATH", "--cudart-lib"}},
		{"runtime too new", []file{driver, {"ld/libcudart.so.13", "cudart", []string{tooNew}}}, "", "CUDA runtime", []string{"ld/libcudart.so.13 is newer than the driver supports", "--cudart-lib"}},
		{"explicit is too new", []file{driver, {"my/rt.so", "cudart", []string{tooNew}}, {"ld/libcudart.so.12", "cudart", nil}}, "my/rt.so", "CUDA runtime", []string{"cannot use", "my/rt.so is newer than the driver supports"}},
		{"explicit is text", []file{driver, {"my/rt.so", "text", nil}, {"ld/libcudart.so.13", "cudart", nil}}, "my/rt.so", "CUDA runtime", []string{"cannot use", "my/rt.so: invalid ELF header"}},
		{"explicit is absent", []file{driver, {"ld/libcudart.so.13", "cudart", nil}}, "my/rt.so", "CUDA runtime", []string{"cannot use", "my/rt.so: cannot open shared object file"}},
		{"device count fails", []file{driver, {"ld/libcudart.so.13", "cudart", []string{`-DFAKE_FAIL="cudaGetDeviceCount=3"`}}}, "", "CUDA runtime", []string{"cudaGetDeviceCount: cudaErrorFake (3: fake text 3)"}},
		{"no device count", []file{driver, {"ld/libcudart.so.13", "cudart", []string{"-DcudaGetDeviceCount=other"}}}, "", "CUDA runtime", []string{"cudaGetDeviceCount: not in the loaded CUDA runtime library"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.explicit == "" {
				otherwiseFound(t)
			}
			if !standIns(t, c.files) {
				return
			}
			opts := cuda.Options{}
			if c.explicit != "" {
				opts.RuntimePath = bindtest.InDir(c.explicit)
			}
			err := cuda.Load(opts)
			e, lib := csrc.IsLibrary(err)
			if !lib || e.Library != c.library {
				t.Fatalf("got %v, want a *csrc.LibraryError for the %s", err, c.library)
			}
			wantText(t, err, append(c.want, "no "+c.library, "--engine host still works")...)
			if len(cuda.Libraries()) != 0 {
				t.Errorf("loaded %+v", cuda.Libraries())
			}
			cuda.UseHost(2)
			if n, err := cuda.DeviceCount(); err != nil || n != 2 || !cuda.IsHost() {
				t.Errorf("the host engine, which still works, has %d devices, %v", n, err)
			}
		})
	}
}

// TestLoadNoDevice: libraries are there and a GPU is not.
func TestLoadNoDevice(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		want []string
	}{
		{"no driver module", []string{"FAKE_FAIL=cuInit=100"}, []string{"cuInit answers CUDA_ERROR_NO_DEVICE (100: no CUDA-capable device is detected)", "/dev/nvidia0"}},
		{"hidden from the driver", []string{"FAKE_FAIL=cuInit=100", "CUDA_VISIBLE_DEVICES=9"}, []string{"cuInit", `CUDA_VISIBLE_DEVICES="9"`}},
		{"driver fails", []string{"FAKE_FAIL=cuInit=803"}, []string{"cuInit answers CUDA_ERROR_FAKE (803: fake driver error)"}},
		{"none", []string{"FAKE_DEVICES=0", "CUDA_VISIBLE_DEVICES="}, []string{"0 devices", `CUDA_VISIBLE_DEVICES=""`}},
		{"runtime finds none", []string{"FAKE_FAIL=cudaGetDeviceCount=100", "CUDA_VISIBLE_DEVICES=7"}, []string{"0 devices", `CUDA_VISIBLE_DEVICES="7"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !standIns(t, []file{driver, {"ld/libcudart.so.13", "cudart", nil}}, c.env...) {
				return
			}
			err := cuda.Load(cuda.Options{})
			var none *cuda.NoDeviceError
			if !errors.As(err, &none) {
				t.Fatalf("got %v, want a *cuda.NoDeviceError", err)
			}
			wantText(t, err, append(c.want, "no CUDA device: ")...)
		})
	}
}

// loadStandIns loads a driver and a runtime with the given flags in a process of its own.
func loadStandIns(t *testing.T, flags []string, env ...string) bool {
	t.Helper()
	if !standIns(t, []file{driver, {"ld/libcudart.so.13", "cudart", flags}}, env...) {
		return false
	}
	ok(t, cuda.Load(cuda.Options{}))
	return true
}

// TestMissingSymbol: a runtime and a driver that lack functions.
func TestMissingSymbol(t *testing.T) {
	t.Parallel()
	files := []file{
		{driver.path, "cuda", bindtest.Lacking(t, "cuModuleUnload", "cuGetErrorName", "cuGetErrorString")},
		{"ld/libcudart.so.13", "cudart", bindtest.Lacking(t, "cudaDeviceGetStreamPriorityRange", "cudaMalloc", "cudaGetErrorName", "cudaGetErrorString")},
	}
	if !standIns(t, files, "FAKE_FAIL=cudaFree=400,cuDeviceGet=101") {
		return
	}
	ok(t, cuda.Load(cuda.Options{}))
	_, _, priorities := cuda.StreamPriorities()
	_, malloc := cuda.Malloc(1)
	for _, c := range []struct {
		err  error
		want csrc.MissingSymbolError
	}{
		{priorities, csrc.MissingSymbolError{Func: "cudaDeviceGetStreamPriorityRange", Library: "CUDA runtime", Path: bindtest.InDir("ld/libcudart.so.13"), Version: "13.0"}},
		{malloc, csrc.MissingSymbolError{Func: "cudaMalloc", Library: "CUDA runtime", Path: bindtest.InDir("ld/libcudart.so.13"), Version: "13.0"}},
		{cuda.Module{}.Unload(), csrc.MissingSymbolError{Func: "cuModuleUnload", Library: "CUDA driver", Path: bindtest.InDir(driver.path), Version: "13.0"}},
	} {
		var e *csrc.MissingSymbolError
		if !errors.As(c.err, &e) {
			t.Errorf("got %v, want a *csrc.MissingSymbolError", c.err)
			continue
		}
		if d := cmp.Diff(c.want, *e); d != "" {
			t.Error(d)
		}
		wantText(t, c.err, c.want.Func, c.want.Library+" library 13.0", c.want.Path)
	}
	// Without the functions that explain codes the number is what is left.
	if err := cuda.Free(0); err == nil || err.Error() != "cudaFree: CUDA error 400" {
		t.Errorf("got %v", err)
	}
	if _, err := cuda.GetProperties(0); err == nil || err.Error() != "cuDeviceGet: CUDA error 101" {
		t.Errorf("got %v", err)
	}
}

func drop[T any](_ T, err error) error { return err }

// calls are the binding's functions by the name of the C function that they call. Handles are of no matter to the stand-ins.
var calls = map[string]func() error{
	"cudaGetDeviceCount":               func() error { return drop(cuda.DeviceCount()) },
	"cudaSetDevice":                    func() error { return cuda.SetDevice(0) },
	"cudaGetDevice":                    func() error { return drop(cuda.GetDevice()) },
	"cudaDeviceGetAttribute":           func() error { return drop(cuda.Attribute(cuda.AttrL2Bytes, 0)) },
	"cudaDeviceGetPCIBusId":            func() error { return drop(cuda.PCIBusID(0)) },
	"cudaDeviceSynchronize":            cuda.Synchronize,
	"cudaDeviceCanAccessPeer":          func() error { return drop(cuda.CanAccessPeer(0, 1)) },
	"cudaDeviceEnablePeerAccess":       func() error { return cuda.EnablePeerAccess(1) },
	"cudaDeviceDisablePeerAccess":      func() error { return cuda.DisablePeerAccess(1) },
	"cudaDriverGetVersion":             func() error { return drop(cuda.DriverVersion()) },
	"cudaRuntimeGetVersion":            func() error { return drop(cuda.RuntimeVersion()) },
	"cudaMalloc":                       func() error { return drop(cuda.Malloc(8)) },
	"cudaFree":                         func() error { return cuda.Free(1) },
	"cudaHostAlloc":                    func() error { return drop(cuda.HostAlloc(8)) },
	"cudaFreeHost":                     func() error { return cuda.FreeHost(1) },
	"cudaMemGetInfo":                   func() error { _, _, err := cuda.MemInfo(); return err },
	"cudaMemset":                       func() error { return cuda.Memset(1, 0, 8) },
	"cudaMemsetAsync":                  func() error { return cuda.MemsetAsync(1, 0, 8, cuda.Stream{}) },
	"cudaMemcpy":                       func() error { return cuda.CopyIn(1, make([]byte, 8)) },
	"cudaMemcpyAsync":                  func() error { return cuda.CopyAsync(1, 2, 8, cuda.Stream{}) },
	"cudaMemcpyPeer":                   func() error { return cuda.CopyPeer(1, 0, 2, 1, 8) },
	"cudaMemcpyPeerAsync":              func() error { return cuda.CopyPeerAsync(1, 0, 2, 1, 8, cuda.Stream{}) },
	"cudaStreamCreateWithFlags":        func() error { return drop(cuda.NewStream()) },
	"cudaStreamCreateWithPriority":     func() error { return drop(cuda.NewPriorityStream(-1)) },
	"cudaDeviceGetStreamPriorityRange": func() error { _, _, err := cuda.StreamPriorities(); return err },
	"cudaStreamDestroy":                cuda.Stream{}.Destroy,
	"cudaStreamQuery":                  func() error { return drop(cuda.Stream{}.Done()) },
	"cudaStreamSynchronize":            cuda.Stream{}.Synchronize,
	"cudaStreamWaitEvent":              func() error { return cuda.Stream{}.Wait(cuda.Event{}) },
	"cudaStreamBeginCapture":           func() error { return cuda.Stream{}.BeginCapture(cuda.CaptureRelaxed) },
	"cudaStreamEndCapture":             func() error { return drop(cuda.Stream{}.EndCapture()) },
	"cudaGraphInstantiateWithFlags":    func() error { return drop(cuda.Graph{}.Instantiate()) },
	"cudaGraphDestroy":                 cuda.Graph{}.Destroy,
	"cudaGraphLaunch":                  func() error { return cuda.GraphExec{}.Launch(cuda.Stream{}) },
	"cudaGraphExecDestroy":             cuda.GraphExec{}.Destroy,
	"cudaEventCreateWithFlags":         func() error { return drop(cuda.NewEvent(cuda.EventTiming)) },
	"cudaEventDestroy":                 cuda.Event{}.Destroy,
	"cudaEventRecord":                  func() error { return cuda.Event{}.Record(cuda.Stream{}) },
	"cudaEventQuery":                   func() error { return drop(cuda.Event{}.Done()) },
	"cudaEventSynchronize":             cuda.Event{}.Synchronize,
	"cudaEventElapsedTime":             func() error { return drop(cuda.Event{}.Since(cuda.Event{})) },
	"cudaIpcGetMemHandle":              func() error { return drop(cuda.IPCExport(1)) },
	"cudaIpcOpenMemHandle":             func() error { return drop(cuda.IPCOpen(cuda.IPCHandle{})) },
	"cudaIpcCloseMemHandle":            func() error { return cuda.IPCClose(1) },
	"cudaIpcGetEventHandle":            func() error { return drop(cuda.Event{}.IPCExport()) },
	"cudaIpcOpenEventHandle":           func() error { return drop(cuda.IPCOpenEvent(cuda.IPCHandle{})) },
	"cuDeviceGet":                      func() error { return drop(cuda.GetProperties(0)) },
	"cuDeviceGetName":                  func() error { return drop(cuda.GetProperties(0)) },
	"cuDeviceTotalMem_v2":              func() error { return drop(cuda.GetProperties(0)) },
	"cuDeviceGetAttribute":             func() error { return drop(cuda.DMABufSupported(0)) },
	"cuMemGetHandleForAddressRange":    func() error { return drop(cuda.ExportDMABuf(4096, 4096)) },
	"cuModuleLoadData":                 func() error { return drop(cuda.LoadModule([]byte{0})) },
	"cuModuleUnload":                   cuda.Module{}.Unload,
	"cuModuleGetFunction":              func() error { return drop(cuda.Module{}.Function("k")) },
	"cuLaunchKernel":                   func() error { return cuda.Function{}.Launch(1, 1, cuda.Stream{}, 1) },
}

// TestCallFails makes every function of the library fail after it was loaded and looks at the binding's error.
func TestCallFails(t *testing.T) {
	t.Parallel()
	if !loadStandIns(t, nil) {
		return
	}
	for name, call := range calls {
		for _, code := range []cuda.Code{cuda.ErrOutOfMemory, cuda.ErrInvalidDevice, 12345} {
			ok(t, os.Setenv("FAKE_FAIL", fmt.Sprintf("%s=%d", name, code)))
			err := call()
			var e *cuda.Error
			if !errors.As(err, &e) || !strings.HasPrefix(e.Func, strings.TrimSuffix(name, "_v2")) || e.Code != code || e.Name == "" || e.Text == "" {
				t.Errorf("%s = %d: got %#v", name, code, err)
				continue
			}
			is(t, fmt.Errorf("rank 3: %w", err), code)
			if errors.Is(err, cuda.ErrNotReady) || errors.Is(err, errors.New("other")) {
				t.Errorf("%v is everything", err)
			}
			wantText(t, err, e.Func+": "+e.Name, fmt.Sprintf("(%d: %s)", code, e.Text))
		}
	}
	if left := cuda.Live(); len(left) != 0 {
		t.Errorf("calls that failed count as handles: %v", left)
	}
	for name := range csrc.Functions(csrc.CUDART) {
		if calls[name] == nil && !slices.Contains([]string{"cudaGetErrorName", "cudaGetErrorString", "cudaGetLastError"}, name) {
			t.Errorf("%s is in the table and not tested", name)
		}
	}
}

// TestErrorIsCleared: the runtime keeps an error for whoever asks next, so the binding takes it away.
func TestErrorIsCleared(t *testing.T) {
	t.Parallel()
	if !loadStandIns(t, nil, "FAKE_FAIL=cudaMalloc=2,cudaDeviceEnablePeerAccess=704") {
		return
	}
	before := logged(t, "cudaGetLastError")
	_, err := cuda.Malloc(8)
	is(t, err, cuda.ErrOutOfMemory)
	if err.Error() != "cudaMalloc: cudaErrorMemoryAllocation (2: fake text 2)" {
		t.Errorf("got %q", err)
	}
	ok(t, cuda.EnablePeerAccess(1)) // enabled already is no error
	if n := logged(t, "cudaGetLastError") - before; n != 2 {
		t.Errorf("cudaGetLastError was called %d times", n)
	}
	if got := cuda.ErrOutOfMemory.Error(); got != "cudaErrorMemoryAllocation: fake text 2" {
		t.Errorf("the code alone says %q", got)
	}
}

func logged(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile(bindtest.InDir("log"))
	ok(t, err)
	return strings.Count("\n"+string(b), "\n"+name+" ")
}

// TestNotReady is a state and not an error.
func TestNotReady(t *testing.T) {
	t.Parallel()
	if !loadStandIns(t, nil, "FAKE_FAIL=cudaStreamQuery=600,cudaEventQuery=600,cudaEventElapsedTime=600") {
		return
	}
	for name, f := range map[string]func() (bool, error){"stream": cuda.Stream{}.Done, "event": cuda.Event{}.Done} {
		if done, err := f(); done || err != nil {
			t.Errorf("%s: %v, %v", name, done, err)
		}
	}
	_, err := cuda.Event{}.Since(cuda.Event{}) // here there is no answer to give
	is(t, err, cuda.ErrNotReady)
	ok(t, os.Setenv("FAKE_FAIL", ""))
	if done, err := (cuda.Stream{}).Done(); !done || err != nil {
		t.Errorf("idle stream: %v, %v", done, err)
	}
}

// TestHang: a call that does not return costs its thread and nothing else.
func TestHang(t *testing.T) {
	t.Parallel()
	if !loadStandIns(t, nil, "FAKE_HANG=cudaStreamSynchronize") {
		return
	}
	th, err := cuda.NewThread(0)
	ok(t, err)
	short := func() context.Context {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 200*time.Millisecond, errors.New("took too long"))
		t.Cleanup(cancel)
		return ctx
	}
	start := time.Now()
	wantText(t, th.Do(short(), cuda.Stream{}.Synchronize), "took too long")
	wantText(t, th.Do(short(), func() error { t.Error("runs on a thread that hangs"); return nil }), "took too long")
	wantText(t, th.Close(short()), "took too long")
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("took %v", d)
	}
	ok(t, cuda.Synchronize()) // others go on
}

func TestKernelDriver(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"module", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.2.0\n", "580.95.05"},
		{"open module", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n", "570.86"},
		{"nothing known", "NVRM version: unknown\n", ""},
		{"empty", "", ""},
	} {
		root := t.TempDir()
		bindtest.Write(t, filepath.Join(root, "proc/driver/nvidia/version"), c.text)
		if got := cuda.KernelDriver(root); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if got := cuda.KernelDriver(t.TempDir()); got != "" {
		t.Errorf("without a driver: %q", got)
	}
}
