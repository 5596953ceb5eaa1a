package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/doctor"
)

// doctorRun runs `commprobe doctor` in this process.
func doctorRun(args ...string) finished { return inProcess(append([]string{"doctor"}, args...)...) }

// doctorTree is a machine of files: two processors, /dev/shm, and what is given as path and text.
func doctorTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"proc/sys/kernel/hostname": "n1\n", "proc/sys/kernel/osrelease": "6.8.0\n", "proc/meminfo": "MemTotal: 64000000 kB\n", "proc/self/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n",
		"proc/sys/net/ipv4/ip_local_port_range": "32768 60999\n", "proc/1/comm": "systemd\n", "proc/9/comm": "chronyd\n",
	}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// faulty has an RDMA port without a subnet manager, and no way to open it.
var faulty = map[string]string{
	"sys/class/infiniband/mlx5_0/ports/1/state": "2: INIT\n", "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n", "sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
	"dev/infiniband/uverbs0": "", "usr/lib64/libibverbs.so.1": "", "etc/libibverbs.d/mlx5.driver": "",
}

func TestDoctorReport(t *testing.T) {
	t.Parallel()
	f := doctorRun("--root", doctorTree(t, nil))
	if f.code != 0 || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "n1 (no GPU, no RDMA device): 0 faults, ", "LIMITS", "limit-shm", "DOES NOT APPLY HERE", "gpu-count")
	if strings.Contains(f.stdout, "\x1b") {
		t.Error("colours where there is no terminal")
	}
}

func TestDoctorFaultIsStatus8(t *testing.T) {
	t.Parallel()
	f := doctorRun("--root", doctorTree(t, faulty))
	if f.code != bench.ExitFindings || f.stderr != "" {
		t.Fatalf("exit status %d: %s", f.code, f.stderr)
	}
	has(t, f.stdout, "1 fault, ", "mlx5_0: INIT: no subnet manager", "why: ", "→ sminfo")
	if first, areas := strings.Index(f.stdout, "\nfault "), strings.Index(f.stdout, "\nRDMA\n"); first < 0 || areas < first {
		t.Errorf("the fault at %d, the areas at %d", first, areas)
	}
	if f := doctorRun("--root", doctorTree(t, faulty), "--area", "host,limits"); f.code != 0 || strings.Contains(f.stdout, "mlx5_0") || !strings.Contains(f.stdout, "limit-shm") {
		t.Errorf("other areas: exit status %d\n%s", f.code, f.stdout)
	}
}

func TestDoctorJSON(t *testing.T) {
	t.Parallel()
	root := doctorTree(t, faulty)
	f := doctorRun("--root", root, "--json", "-")
	var r doctor.Report
	if err := json.Unmarshal([]byte(f.stdout), &r); err != nil || f.code != bench.ExitFindings {
		t.Fatalf("exit status %d, %v", f.code, err)
	}
	if x := r.Get("rdma-state"); r.Schema != doctor.Schema || r.Host != "n1" || x == nil || x.Status != doctor.Fault || x.Why == "" || len(x.Fix) == 0 {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(t.TempDir(), "r.json")
	if f := doctorRun("--root", root, "--json", file); f.code != bench.ExitFindings || !strings.Contains(f.stdout, "RDMA") {
		t.Errorf("--json FILE: exit status %d, no report", f.code)
	}
	if f := doctorRun("--root", root, "--json", file); f.code != 2 {
		t.Errorf("an existing file: exit status %d", f.code)
	}
	if f := doctorRun("--root", root, "--json", file, "--force"); f.code != bench.ExitFindings {
		t.Errorf("--force: exit status %d", f.code)
	}
}

func TestDoctorCompare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var files []string
	for name, kernel := range map[string]string{"a": "6.8.0", "b": "6.8.0", "c": "5.15.0"} {
		file := filepath.Join(dir, name+".json")
		if f := doctorRun("--root", doctorTree(t, map[string]string{"proc/sys/kernel/hostname": name, "proc/sys/kernel/osrelease": kernel}), "--json", file); f.code != 0 {
			t.Fatalf("exit status %d: %s", f.code, f.stderr)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	f := doctorRun(append([]string{"--compare"}, files...)...)
	if f.code != 0 || f.stdout != "kernel\n   6.8.0  a, b\n   5.15.0  c\n" {
		t.Errorf("exit status %d, %s%s", f.code, f.stdout, f.stderr)
	}
	if f := doctorRun("--compare", files[0], files[1]); f.code != 0 || !strings.Contains(f.stdout, "do not differ") {
		t.Errorf("equal nodes: exit status %d, %s", f.code, f.stdout)
	}
	if f := doctorRun("--compare", files[0], files[1], "--json", "-"); strings.TrimSpace(f.stdout) != "[]" {
		t.Errorf("equal nodes as JSON: %s", f.stdout)
	}
	bad := filepath.Join(dir, "bad.json")
	for _, text := range []string{"", "{}", "[1", `{"schema": "other"}`} {
		if err := os.WriteFile(bad, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if f := doctorRun("--compare", files[0], bad); f.code != 2 || !strings.Contains(f.stderr, "bad.json") {
			t.Errorf("%q: exit status %d, %s", text, f.code, f.stderr)
		}
	}
}

func TestDoctorList(t *testing.T) {
	t.Parallel()
	f := doctorRun("--list", "--area", "limits")
	if f.code != 0 || !strings.Contains(f.stdout, "limit-memlock") || strings.Contains(f.stdout, "gpu-count") {
		t.Errorf("exit status %d\n%s", f.code, f.stdout)
	}
	var rules []doctor.Rule
	if f := doctorRun("--list", "--json", "-"); json.Unmarshal([]byte(f.stdout), &rules) != nil || len(rules) < 50 {
		t.Errorf("%d rules in JSON", len(rules))
	}
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--area", "none"}, {"extra"}, {"--root", "no/such/folder"}, {"--root", file}, {"--compare"}, {"--compare", file}, {"--compare", file, "no/such/file"}, {"--compare", "--list"}, {"--json", t.TempDir()}, {"--nonsense"}} {
		if f := doctorRun(args...); f.code != 2 || f.stdout != "" || !strings.HasPrefix(f.stderr, "commprobe: ") {
			t.Errorf("%q: exit status %d, stderr %q", args, f.code, f.stderr)
		}
	}
	f := doctorRun("--help")
	has(t, f.stdout, "commprobe doctor --area gpu,rdma", "--json FILE", "exit status is 8")
}

// This machine, whatever it is: an answer within ten seconds, and a status that fits it.
func TestDoctorHere(t *testing.T) {
	t.Parallel()
	f := doctorRun("--json", "-")
	var r doctor.Report
	if err := json.Unmarshal([]byte(f.stdout), &r); err != nil {
		t.Fatalf("exit status %d, %v: %s", f.code, err, f.stderr)
	}
	want := 0
	if r.Count(doctor.Fault) > 0 {
		want = bench.ExitFindings
	}
	if f.code != want || len(r.Results) < 10 {
		t.Errorf("exit status %d with %d faults of %d results", f.code, r.Count(doctor.Fault), len(r.Results))
	}
}
