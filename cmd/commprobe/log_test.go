package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/nccl/ncclog"
)

const logFolder = "../../nccl/ncclog/testdata/"

// logRun runs `commprobe log` in this process.
func logRun(args ...string) finished { return inProcess(append([]string{"log"}, args...)...) }

func TestLogReport(t *testing.T) {
	t.Parallel()
	f := logRun(logFolder + "two_nodes_2.20.log")
	if f.code != 0 || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	findings, comm := strings.Index(f.stdout, "FINDINGS"), strings.Index(f.stdout, "COMMUNICATOR 0x77aa1100ccdd  4 ranks")
	if findings < 0 || comm < findings {
		t.Errorf("findings at %d, the communicator at %d of\n%s", findings, comm, f.stdout)
	}
	has(t, f.stdout, "NCCL_IB_GID_INDEX=3  [environment] (ranks 0-2)", "0 - 1 => 2 - 3 => 0", "mlx5_2+mlx5_3")
	for line := range strings.Lines(f.stdout) {
		if len(line) > 130 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}

func TestLogFaultIsStatus8(t *testing.T) {
	t.Parallel()
	f := logRun(logFolder + "errors_2.28.log")
	if f.code != bench.ExitFindings || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "FAULT", "WARN LINES", "means:")
}

func TestLogJSON(t *testing.T) {
	t.Parallel()
	f := logRun(logFolder+"errors_2.28.log", "--json", "-")
	var doc struct {
		Format   string
		Findings []ncclog.Finding
		Log      ncclog.Log
	}
	if err := json.Unmarshal([]byte(f.stdout), &doc); err != nil || f.code != bench.ExitFindings {
		t.Fatalf("exit status %d, %v", f.code, err)
	}
	if doc.Format != "commprobe log 1" || len(doc.Findings) == 0 || len(doc.Log.Processes) != 2 || len(doc.Log.Warnings) != 7 {
		t.Errorf("%s with %d findings, %d processes, %d warnings", doc.Format, len(doc.Findings), len(doc.Log.Processes), len(doc.Log.Warnings))
	}
	file := filepath.Join(t.TempDir(), "log.json")
	if f := logRun(logFolder+"two_nodes_2.20.log", "--json", file); f.code != 0 || !strings.Contains(f.stdout, "FINDINGS") {
		t.Errorf("--json FILE: exit status %d, no report", f.code)
	}
	if b, err := os.ReadFile(file); err != nil || !json.Valid(b) {
		t.Errorf("%s: %v", file, err)
	}
	if f := logRun(logFolder+"two_nodes_2.20.log", "--json", file); f.code != 2 {
		t.Errorf("an existing file: exit status %d", f.code)
	}
}

func TestLogVs(t *testing.T) {
	t.Parallel()
	old := logFolder + "two_nodes_2.20.log"
	if f := logRun(old, "--vs", old); f.code != 0 || !strings.Contains(f.stdout, "nothing was decided differently") {
		t.Errorf("a log against itself: exit status %d\n%s", f.code, f.stdout)
	}
	text, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "new.log")
	if err := os.WriteFile(other, bytes.ReplaceAll(text, []byte("GID_INDEX set by environment to 3"), []byte("GID_INDEX set by environment to 1")), 0o644); err != nil {
		t.Fatal(err)
	}
	f := logRun(other, "--vs", old)
	has(t, f.stdout, "setting NCCL_IB_GID_INDEX  (ranks 0-2)\n    old  3  [", "    new  1  [")
}

func TestLogUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"no/such/file"}, {t.TempDir()}, {"-", "--vs", "-"}, {logFolder + "two_nodes_2.20.log", "--vs", "no/such/file"}, {"--nonsense"}} {
		if f := logRun(args...); f.code != 2 || f.stdout != "" || !strings.HasPrefix(f.stderr, "commprobe: ") {
			t.Errorf("%q: exit status %d, stderr %q", args, f.code, f.stderr)
		}
	}
	f := logRun("--help")
	has(t, f.stdout, "commprobe log job.log", "--vs OTHER", "--json FILE", "exit status is 8")
}
