package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// envFile writes a file into a folder of the test and returns its path.
func envFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEnvCheckFile(t *testing.T) {
	t.Parallel()
	good := envFile(t, "node1.env", "NCCL_DEBUG=WARN\nAPI_KEY=hunter2\n")
	bad := envFile(t, "job.sh", "#!/bin/sh\nexport NCCL_BUFFSIZE=4M NCCL_IB_HCA=mlx5_1\nexport API_KEY=hunter2\n")
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"env", "check", "--file", good}, 0, []string{"NCCL_DEBUG  WARN", "Nothing to remark."}},
		{[]string{"env", "check", good}, 0, []string{"Nothing to remark."}},
		{[]string{"env", "check", bad}, 8, []string{"1 fault, 1 warning", "NCCL_BUFFSIZE=4M", ":2", "[unit]", "4194304", "[prefix-match]", "NCCL_IB_HCA==mlx5_1"}},
		{[]string{"env", "check", "--file", good, "--nccl-version", "2.21.5"}, 0, []string{"Nothing"}},
		{[]string{"env", "check", envFile(t, "a.env", "NCCL_RAS_ENABLE=1\n"), "--nccl-version", "2.21.5"}, 8, []string{"[too-new]", "2.24.3"}},
		{[]string{"env", "check", envFile(t, "w.env", "NCCL_IB_HCA=mlx5_1\n")}, 0, []string{"1 warning"}},
	} {
		f := inProcess(tt.args...)
		if f.code != tt.code || f.stderr != "" {
			t.Errorf("%v: exit status %d, want %d; %s", tt.args, f.code, tt.code, f.stderr)
		}
		has(t, f.stdout, tt.says...)
		if strings.Contains(f.stdout, "hunter2") {
			t.Errorf("%v shows a secret:\n%s", tt.args, f.stdout)
		}
	}
}

func TestEnvCheckHosts(t *testing.T) {
	t.Parallel()
	a, b := envFile(t, "node1.env", "NCCL_ALGO=allreduce:ring\n"), envFile(t, "node2.env", "NCCL_ALGO=allreduce:tree\n")
	f := inProcess("env", "check", a, b)
	if f.code != 8 {
		t.Errorf("exit status %d\n%s", f.code, f.stdout)
	}
	has(t, f.stdout, "[host-differs]", `"allreduce:ring" on node1; "allreduce:tree" on node2`)
	if same := inProcess("env", "check", "--file", a, "--file", a); same.code != 0 {
		t.Errorf("exit status %d for equal files\n%s", same.code, same.stdout)
	}
}

func TestEnvCheckJSON(t *testing.T) {
	t.Parallel()
	path := envFile(t, "nccl.conf", "NCCL_IB_DISABLE=true\n")
	f := inProcess("env", "check", path, "--json", "-")
	var doc struct {
		Catalogue string
		Sources   []struct {
			Kind     string
			Settings []struct{ Name, Value, From string }
		}
		Findings []struct {
			ID, Severity, Name, From string
			Line                     int
		}
	}
	if err := json.Unmarshal([]byte(f.stdout), &doc); err != nil || f.code != 8 {
		t.Fatalf("%v, exit status %d\n%s", err, f.code, f.stdout)
	}
	if len(doc.Findings) != 1 || doc.Findings[0].ID != "bool-word" || doc.Findings[0].Severity != "fault" || doc.Findings[0].From != path || doc.Findings[0].Line != 1 ||
		len(doc.Sources) != 1 || doc.Sources[0].Kind != "settings file" || doc.Sources[0].Settings[0].Value != "true" || doc.Catalogue == "" {
		t.Errorf("%+v", doc)
	}
	// Into a file, the text still goes to stdout; a file that exists is kept.
	out := filepath.Join(t.TempDir(), "r.json")
	if f := inProcess("env", "check", path, "--json", out); f.code != 8 || !strings.Contains(f.stdout, "[bool-word]") {
		t.Errorf("exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
	if f := inProcess("env", "check", path, "--json", out); f.code != 2 || !strings.Contains(f.stderr, "--force") {
		t.Errorf("exit status %d\n%s", f.code, f.stderr)
	}
	if f := inProcess("env", "check", path, "--json", out, "--force"); f.code != 8 {
		t.Errorf("exit status %d\n%s", f.code, f.stderr)
	}
	// Without a finding it is an empty list, not null.
	if f := inProcess("env", "check", envFile(t, "e.env", "A=b\n"), "--json", "-"); f.code != 0 || !strings.Contains(f.stdout, `"findings": []`) {
		t.Errorf("exit status %d\n%s", f.code, f.stdout)
	}
}

// The environment of the program itself, and of another process by its number.
func TestEnvCheckProcess(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".nccl.conf"), []byte("NCCL_NET=IB\nNCCL_DEBUG=INFO\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	vars := []string{"HOME=" + home, "NCCL_CONF_FILE=", "NCCL_DEBUG=WARN", "NCCL_SOKET_IFNAME=eth0"}
	f := commprobe(t, vars, "env", "check")
	if f.code != 8 {
		t.Errorf("exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
	has(t, f.stdout, "In force: environment", "NCCL_NET", "[shadowed]", "was NCCL_SOCKET_IFNAME meant?")

	sleep := exec.Command("sleep", "60")
	sleep.Env = vars
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	f = inProcess("env", "check", "--pid", strconv.Itoa(sleep.Process.Pid))
	if f.code != 8 {
		t.Errorf("exit status %d\n%s%s", f.code, f.stdout, f.stderr)
	}
	has(t, f.stdout, "process "+strconv.Itoa(sleep.Process.Pid), "NCCL_NET", "[shadowed]", "[unknown-name]")
}

func TestEnvExplain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{"env", "explain", "NCCL_IB_TIMEOUT"}, []string{"NCCL_IB_TIMEOUT\n", "4.096 µs", "18 from 2.14.3", "net-ib"}},
		{[]string{"env", "explain", "ib_hca", "nccl_p2p_l*"}, []string{"NCCL_IB_HCA\n", "NCCL_P2P_LEVEL\n", "NCCL_P2P_LL_THRESHOLD\n"}},
		{[]string{"env", "explain", "--layer", "ras"}, []string{"NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR"}},
		{[]string{"env", "explain"}, []string{"net-ib", "bootstrap", "--layer LAYER"}},
		{[]string{"env", "profile", "prod"}, []string{"export NCCL_DEBUG=WARN\n", "#export NCCL_IB_HCA==mlx5_0"}},
		{[]string{"env", "profile", "debug"}, []string{"export NCCL_DEBUG=INFO\n", "TORCH_FR_DUMP_TEMP_FILE"}},
		{[]string{"env", "--help"}, []string{"env check --pid", "Exit status 8", "--nccl-version"}},
		{[]string{"env", "check", "-h"}, []string{"env check --pid"}},
		{[]string{"--quiet", "rdma", "write", "hostb", "-s", "4", "--help"}, []string{"commprobe rdma read hostb"}},
		{[]string{"hang", "run", "size", "--help", "--steps"}, []string{"commprobe hang"}},
		{[]string{"--help"}, []string{"env"}},
	} {
		f := inProcess(tt.args...)
		if f.code != 0 || f.stderr != "" {
			t.Errorf("%v: exit status %d: %s", tt.args, f.code, f.stderr)
		}
		has(t, f.stdout, tt.says...)
	}
	f := inProcess("env", "explain", "NCCL_ALGO", "--json", "-")
	var vars []struct{ Name, Layer, Since string }
	if err := json.Unmarshal([]byte(f.stdout), &vars); err != nil || len(vars) != 1 || vars[0].Since != "2.5.6" || vars[0].Layer != "tuning" {
		t.Errorf("%v %+v\n%s", err, vars, f.stdout)
	}
}

// The templates must be good for a shell, and the shell's result for the check.
func TestEnvProfileInAShell(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"debug", "prod"} {
		file := envFile(t, profile+".sh", inProcess("env", "profile", profile).stdout)
		cmd := exec.Command("sh", "-euc", ". \"$1\"; env", "sh", file)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", profile, err, out)
			continue
		}
		f := inProcess("env", "check", envFile(t, "after.env", string(out)))
		if f.code != 0 {
			t.Errorf("%s: exit status %d\n%s", profile, f.code, f.stdout)
		}
		has(t, f.stdout, "NCCL_DEBUG ", "TORCH_FR_BUFFER_SIZE")
	}
}

func TestEnvBadInput(t *testing.T) {
	t.Parallel()
	file, dir := envFile(t, "a.env", "NCCL_DEBUG=WARN\n"), t.TempDir()
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{"env"}, []string{"check, explain or profile"}},
		{[]string{"env", "chek"}, []string{"chek", "check, explain and profile"}},
		{[]string{"env", "check", "--pid", "0"}, []string{"--pid 0"}},
		{[]string{"env", "check", "--pid", "x"}, []string{"pid", "x"}},
		{[]string{"env", "check", "--pid", "1", "--file", file}, []string{"choose one"}},
		{[]string{"env", "check", "--pid", "999999999"}, []string{"no process 999999999"}},
		{[]string{"env", "check", "--file", filepath.Join(dir, "none")}, []string{"none", "no such file"}},
		{[]string{"env", "check", dir}, []string{"is a directory"}},
		{[]string{"env", "check", "--nccl-version", "new"}, []string{`"new"`, "2.21.5"}},
		{[]string{"env", "check", "--layer", "ras"}, []string{"--layer"}},
		{[]string{"env", "check", file, "--json", filepath.Join(dir, "x", "r.json")}, []string{"--json", "x"}},
		{[]string{"env", "explain", "NCCL_DEBUGG"}, []string{"NCCL_DEBUGG", "NCCL_DEBUG"}},
		{[]string{"env", "explain", "soket_ifname"}, []string{"NCCL_SOCKET_IFNAME"}},
		{[]string{"env", "explain", "NCCL_ZZ*"}, []string{"NCCL_ZZ*"}},
		{[]string{"env", "explain", "carpet"}, []string{"carpet", "searches"}},
		{[]string{"env", "explain", "--layer", "nic"}, []string{`"nic"`, "net-ib"}},
		{[]string{"env", "explain", "NCCL_ALGO", "--layer", "ras"}, []string{"choose one"}},
		{[]string{"env", "explain", "NCCL_ALGO", "--pid", "3"}, []string{"--pid"}},
		{[]string{"env", "profile"}, []string{"debug or prod"}},
		{[]string{"env", "profile", "test"}, []string{`"test"`, "debug and prod"}},
		{[]string{"env", "check", "--nope"}, []string{"nope", "env --help"}},
	} {
		f := inProcess(tt.args...)
		if f.code != 2 || f.stdout != "" {
			t.Errorf("%v: exit status %d, stdout %q", tt.args, f.code, f.stdout)
		}
		oneLine(t, f.stderr)
		has(t, f.stderr, tt.says...)
	}
}
