package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// TestMain fails when a test has left a handle behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left, comms := cuda.Live(), nccl.Live(); (len(left) > 0 || comms != 0) && code == 0 {
		fmt.Fprintln(os.Stderr, "not destroyed:", left, comms, "communicators")
		code = 1
	}
	os.Exit(code)
}

func native() bool { return os.Getenv("COMMPROBE_TEST_ENGINE") == "native" }

// engine chooses the provider of this process once and answers the number of devices.
var engine = sync.OnceValues(func() (int, error) {
	if native() {
		if err := cuda.Load(cuda.Options{}); err != nil {
			return 0, err
		}
		if err := nccl.Load(""); err != nil {
			return 0, err
		}
	} else {
		cuda.UseHost(4)
		if err := nccl.UseHost(); err != nil {
			return 0, err
		}
	}
	return cuda.DeviceCount()
})

// devices skips the test where there are fewer than n devices.
func devices(t *testing.T, n int) {
	t.Helper()
	have, err := engine()
	var none *cuda.NoDeviceError
	if _, lib := csrc.IsLibrary(err); (lib || errors.As(err, &none)) && os.Getenv("REQUIRE_GPU") == "" {
		t.Skip(err)
	}
	ok(t, err)
	if have < n {
		t.Skipf("needs %d devices, there are %d", n, have)
	}
}

func hostOnly(t *testing.T, why string) {
	t.Helper()
	if native() {
		t.Skip("only on the host engine: ", why)
	}
	devices(t, 1)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
}

// soon is a context for what should be done in an instant.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A library is loaded once a process, so a test that loads stand-ins (../csrc/testdata/fake) runs its body in a process of its own.

const isolatedEnv = "COMMPROBE_TEST_ISOLATED"

// isolated starts this test once more in a process of its own and answers false, and true in that process. setup prepares what the process
// finds in dir, the value of FAKE_DIR, and returns variables for it; nothing else tells it where libraries are.
func isolated(t *testing.T, setup func(dir string) []string) bool {
	t.Helper()
	if os.Getenv(isolatedEnv) == t.Name() {
		return true
	}
	dir := t.TempDir()
	env := []string{isolatedEnv + "=" + t.Name(), "FAKE_DIR=" + dir, "HOME=" + dir, "GORACE=" + os.Getenv("GORACE") + " atexit_sleep_ms=0"}
	for _, v := range []string{"PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES"} {
		env = append(env, v+"=")
	}
	env = append(env, setup(dir)...)
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v", "-test.count=1", "-test.timeout=50s")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

var fakes struct {
	sync.Mutex
	built map[string]string // from kind and flags to the file's bytes
}

// fake puts a stand-in for a library at path: lib is nccl or nothing.
func fake(t *testing.T, path, lib string, flags ...string) {
	t.Helper()
	fakes.Lock()
	defer fakes.Unlock()
	key := lib + " " + strings.Join(flags, " ")
	if fakes.built == nil {
		fakes.built = make(map[string]string)
	}
	if fakes.built[key] == "" {
		fakes.built[key] = buildFake(t, lib, flags)
	}
	write(t, path, fakes.built[key])
}

const sources = "../csrc/testdata/fake/"

func buildFake(t *testing.T, lib string, flags []string) string {
	t.Helper()
	_, err := exec.LookPath("gcc")
	if err == nil {
		_, err = os.Stat(sources)
	}
	if err != nil && (native() || os.Getenv("REQUIRE_GPU") != "") {
		t.Skip("stand-ins for libraries are tested where there are a compiler and the sources: ", err)
	}
	ok(t, err)
	out := filepath.Join(t.TempDir(), "fake.so")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", out, sources + lib + ".c"}
	if lib == "nccl" {
		args = append(args, sources+"weak.c", "-DFAKE_LIST=CP_NCCL_FUNCS")
	}
	text, err := exec.Command("gcc", append(args, flags...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc %s: %v\n%s", lib, err, text)
	}
	b, err := os.ReadFile(out)
	ok(t, err)
	return string(b)
}

// lacking are linker flags that hide functions.
func lacking(t *testing.T, names ...string) []string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "hide.map")
	write(t, script, "{ global: *; local: "+strings.Join(names, "; ")+"; };\n")
	return []string{"-Wl,--version-script=" + script}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(t, os.WriteFile(path, []byte(text), 0o755))
}

func inDir(name string) string { return filepath.Join(os.Getenv("FAKE_DIR"), name) }

func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not say %q", err, p)
		}
	}
}
