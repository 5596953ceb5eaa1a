package csrc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hostFiles are the host engine's sources; verify_host.c, which has the kernels, is replaced by a few kernels of the exercise program.
var hostFiles = []string{"host_cuda.c", "host_math.c", "host_net.c", "host_nccl.c"}

// gccRun runs gcc in this folder and returns what it wrote.
func gccRun(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: ", err)
	}
	out, err := exec.Command("gcc", append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// hostBuild builds the exercise program with the given sanitizer flags. It skips the test where the compiler lacks the sanitizer's library.
func hostBuild(t *testing.T, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.c")
	if err := os.WriteFile(empty, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", append(flags, "-o", filepath.Join(dir, "empty"), empty)...).CombinedOutput(); err != nil {
		t.Skipf("gcc cannot build with %s: %s", flags, out)
	}
	exe := filepath.Join(dir, "host")
	args := append([]string{"-g", "-O1", "-o", exe, "testdata/host_tsan_main.c"}, hostFiles...)
	gccRun(t, append(append(args, flags...), "-lpthread", "-lm")...)
	return exe
}

// hostRun runs the exercise program. Each of its scenarios has its own time limit, after which it kills what hangs.
func hostRun(t *testing.T, exe string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	run := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(exe)
	// ThreadSanitizer wants a part of the address space that some kernels' randomisation hands out.
	if err != nil && strings.Contains(out, "unexpected memory mapping") {
		if _, missing := exec.LookPath("setarch"); missing != nil {
			t.Skip("ThreadSanitizer cannot map its memory here, and there is no setarch")
		}
		out, err = run("setarch", "-R", exe)
	}
	if err != nil || strings.Contains(out, "Sanitizer") || strings.Contains(out, "runtime error:") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log("\n" + out)
}

func TestHostEngineThreadSanitizer(t *testing.T) {
	if testing.Short() {
		t.Skip("about half a minute")
	}
	hostRun(t, hostBuild(t, "-fsanitize=thread"), "TSAN_OPTIONS=second_deadlock_stack=1:atexit_sleep_ms=50")
}

func TestHostEngineAddressSanitizer(t *testing.T) {
	hostRun(t, hostBuild(t, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"), "ASAN_OPTIONS=detect_leaks=1")
}

// TestHostEngineSymbols: as everything is linked into one binary, the engine must not add names but its own.
func TestHostEngineSymbols(t *testing.T) {
	dir := t.TempDir()
	for _, f := range hostFiles {
		object := filepath.Join(dir, f+".o")
		gccRun(t, "-O2", "-c", "-o", object, f)
		out, err := exec.Command("nm", "--defined-only", "--extern-only", "--format=posix", object).Output()
		if err != nil {
			t.Skip("no nm: ", err)
		}
		for line := range strings.Lines(string(out)) {
			if name, _, _ := strings.Cut(line, " "); !strings.HasPrefix(name, "cp_host_") {
				t.Errorf("%s defines %s", f, name)
			}
		}
	}
}
