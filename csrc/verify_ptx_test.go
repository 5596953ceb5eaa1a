package csrc

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// generateCommand is the command that a file's go:generate line runs, so that the test and the line cannot differ.
func generateCommand(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "//go:generate "); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatal(file + " has no go:generate line")
	return nil
}

func TestPTXIsCurrent(t *testing.T) {
	for _, c := range []struct{ from, to, embedded string }{{"verify_embed.go", "verify.ptx", verifyPTX}, {"busy.go", "busy.ptx", busyPTX}} {
		t.Run(c.to, func(t *testing.T) { ptxIsCurrent(t, c.from, c.to, c.embedded) })
	}
}

func ptxIsCurrent(t *testing.T, from, to, embedded string) {
	command := generateCommand(t, from)
	if _, err := exec.LookPath(command[0]); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is needed to check %s: %v", command[0], to, err)
		}
		t.Skipf("%s is not installed, cannot rebuild %s: %v", command[0], to, err)
	}
	fresh := filepath.Join(t.TempDir(), to)
	if last := len(command) - 1; command[last] != to {
		t.Fatalf("the go:generate line does not end with its output: %q", command)
	}
	command[len(command)-1] = fresh
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	got, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	if embedded != string(got) {
		t.Errorf("%s is not what its sources give: run go generate in csrc", to)
	}
}

// The device and the host build have the same kernels, and the device's take as many arguments as the launches here pass.
func TestPTXHasTheKernels(t *testing.T) {
	ptxHasTheKernels(t, VerifyPTX(), map[string]int{
		"cp_fill_input": 8, "cp_check": 9, "cp_check_reset": 1, "cp_poison": 3, "cp_corrupt": 3, "cp_hash": 5, "cp_nan_scan": 5,
	})
	ptxHasTheKernels(t, BusyPTX(), map[string]int{"cp_busy": 2})
}

func ptxHasTheKernels(t *testing.T, ptx []byte, params map[string]int) {
	t.Helper()
	if len(ptx) == 0 || ptx[len(ptx)-1] != 0 || bytes.IndexByte(ptx, 0) != len(ptx)-1 {
		t.Error("the PTX does not end with its only NUL")
	}
	for _, m := range regexp.MustCompile(`(?s)\.entry (\w+)\((.*?)\n\)`).FindAllSubmatch(ptx, -1) {
		name := string(m[1])
		if got := bytes.Count(m[2], []byte(".param ")); got != params[name] {
			t.Errorf("%s has %d arguments, want %d", name, got, params[name])
		}
		if HostKernel(name) == 0 {
			t.Errorf("%s has no host build", name)
		}
		delete(params, name)
	}
	if len(params) != 0 {
		t.Errorf("not in the PTX: %v", params)
	}
	for _, head := range []string{".target sm_70\n", ".version 6.0\n"} {
		if !bytes.Contains(ptx, []byte(head)) {
			t.Errorf("the PTX does not have %q", head)
		}
	}
}
