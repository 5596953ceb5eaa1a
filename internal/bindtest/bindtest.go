// Package bindtest is what the tests of the bindings share: stand-ins for vendors' libraries, built from csrc/testdata/fake, a way to run a
// test in a process of its own, since function tables belong to the process and libraries are never closed, and short checks. Only tests
// import it.
package bindtest

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
)

// isolatedEnv names the test that this process was started for, dirEnv the folder that it was given.
const (
	isolatedEnv = "COMMPROBE_TEST_ISOLATED"
	dirEnv      = "FAKE_DIR"
)

// Isolated starts this test once more in a process of its own and answers false, and true in that process. setup prepares what the process
// finds in dir (see InDir) and returns variables for it; nothing else tells it where libraries are. It waits at most a minute.
func Isolated(t *testing.T, setup func(dir string) []string) bool {
	t.Helper()
	if os.Getenv(isolatedEnv) == t.Name() {
		return true
	}
	dir := t.TempDir()
	// The race detector would sleep a second at the end of each process.
	env := []string{isolatedEnv + "=" + t.Name(), dirEnv + "=" + dir, "HOME=" + dir, "GORACE=" + os.Getenv("GORACE") + " atexit_sleep_ms=0"}
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

// InDir is the path of name in the folder that setup of Isolated prepared.
func InDir(name string) string { return filepath.Join(os.Getenv(dirEnv), name) }

var built struct {
	sync.Mutex
	files map[string]string // from kind and flags to the file's bytes
}

// Put puts a stand-in for a library at path: lib is a file of csrc/testdata/fake without its ending (cuda, cudart, nccl, nothing), flags go to
// gcc. Each kind is built once a process. The test is skipped on a machine with GPUs or in the RDMA lab (REQUIRE_GPU, COMMPROBE_TEST_ENGINE, REQUIRE_RDMA) that has no compiler or
// no sources; elsewhere that is a failure.
func Put(t *testing.T, path, lib string, flags ...string) {
	t.Helper()
	files := []string{lib + ".c"}
	if list := map[string]string{"cuda": "CP_CUDRV_FUNCS", "cudart": "CP_CUDART_FUNCS", "nccl": "CP_NCCL_FUNCS"}[lib]; list != "" {
		files, flags = append(files, "weak.c"), append([]string{"-DFAKE_LIST=" + list}, flags...)
	}
	put(t, path, "csrc/testdata/fake", files, flags)
}

// PutVerbs puts the stand-in for libibverbs at path, as Put does: its devices are loopbacks within the process. ibverbs/testdata/fake has its settings.
func PutVerbs(t *testing.T, path string, flags ...string) {
	t.Helper()
	put(t, path, "ibverbs/testdata/fake", []string{"ibverbs.c"}, append([]string{"-Wextra", "-lpthread"}, flags...))
}

func put(t *testing.T, path, folder string, files, flags []string) {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	key := strings.Join(append(files, flags...), " ")
	if built.files == nil {
		built.files = make(map[string]string)
	}
	if built.files[key] == "" {
		built.files[key] = build(t, folder, files, flags)
	}
	Write(t, path, built.files[key])
}

// sources finds a folder of the project from a package's.
func sources(folder string) (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		fakes := filepath.Join(dir, folder)
		if _, missing := os.Stat(fakes); missing == nil {
			return fakes, nil
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("no %s above the test's folder", folder)
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

func build(t *testing.T, folder string, files, flags []string) string {
	t.Helper()
	from, err := sources(folder)
	_, noCompiler := exec.LookPath("gcc")
	if err = errors.Join(err, noCompiler); err != nil {
		if Native() || os.Getenv("REQUIRE_GPU") != "" || os.Getenv("REQUIRE_RDMA") != "" {
			t.Skip("stand-ins for libraries are tested where there are a compiler and the sources: ", err)
		}
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "fake.so")
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", out}
	for _, f := range files {
		args = append(args, filepath.Join(from, f))
	}
	if text, err := exec.Command("gcc", append(args, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", files[0], err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Lacking are flags for Put that hide functions of the library.
func Lacking(t *testing.T, names ...string) []string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "hide.map")
	Write(t, script, "{ global: *; local: "+strings.Join(names, "; ")+"; };\n")
	return []string{"-Wl,--version-script=" + script}
}

// Write makes a file and the folders that it lies in.
func Write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// Native tells whether the tests are to run on GPUs.
func Native() bool { return os.Getenv("COMMPROBE_TEST_ENGINE") == "native" }

// OK ends the test when err is one.
func OK(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Is fails the test unless err is target.
func Is(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
}

// Soon is a context for what should be done in an instant.
func Soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Says fails the test unless err says all parts.
func Says(t *testing.T, err error, parts ...string) {
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
