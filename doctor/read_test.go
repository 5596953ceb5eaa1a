package doctor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/nvml"
)

func TestKernelLog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		lines []string
		from  string
		want  int
	}{
		{"none", nil, "", 0},
		{"before the start", []string{"var/log/kern.log = Xid (PCI:0000:01:00): 79, a\\nLinux version 6\\nXid (PCI:0000:01:00): 31, b\\n"}, "/var/log/kern.log", 1},
		{"two starts", []string{"var/log/kern.log = Linux version 6\\nXid (PCI:0000:01:00): 79, a\\n[ 0.0] Linux version 6\\n"}, "/var/log/kern.log", 0},
		{"rotated since the start", []string{"var/log/kern.log = NVRM: Xid (PCI:0000:01:00): 79, a\\nNVRM: Xid (0000:02:00): 13\\n"}, "/var/log/kern.log", 2},
		{"empty, and another", []string{"var/log/kern.log =", "var/log/messages = Xid (PCI:0000:01:00): 79, a"}, "/var/log/messages", 1},
		{"the ring goes first", []string{"dev/kmsg = 4,1,0,-;NVRM: Xid (PCI:0000:01:00): 79, a\\n", "var/log/kern.log = x\\n"}, "/dev/kmsg", 1},
		{"odd lines", []string{"var/log/kern.log = Xid (\\nXid (PCI:): \\nXid (PCI:0000:01:00): x\\nXid (PCI:0000:01:00): 99999999999999999999, a\\n"}, "/var/log/kern.log", 0},
	} {
		n := Node{Root: t.TempDir()}
		change(t, &n, c.lines...)
		k := newMachine(n).kernel()
		if got := k.xids(); k.from != c.from || len(got) != c.want || (k.why == "") != (c.from != "") {
			t.Errorf("%s: %q, %+v, %q; want %d of %q", c.name, k.from, got, k.why, c.want, c.from)
		}
	}
}

// Only the end of a large log is read, and the lines after the last start still count.
func TestLargeLog(t *testing.T) {
	t.Parallel()
	n := Node{Root: tempDir(t)}
	text := "Xid (PCI:0000:01:00): 79, too early\n" + strings.Repeat(strings.Repeat("x", 99)+"\n", maxLog/100+1) + "Xid (PCI:0000:02:00): 79, a\n"
	if err := write(filepath.Join(n.Root, "var/log/kern.log"), text); err != nil {
		t.Fatal(err)
	}
	if got := newMachine(n).kernel().xids(); len(got) != 1 || got[0].bus != "0000:02:00" {
		t.Errorf("%+v", got)
	}
}

func TestShmSize(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]uint64{
		"rw": 4 << 30, "rw,size=65536k": 64 << 20, "rw,size=16g": 16 << 30, "size=50%": 8 << 30 / 100 * 50, "size=1048576": 1 << 20, "size=2M": 2 << 20, "size=x": 0, "size=": 0, "size=99999999999999999999g": 0, "size=9999999999999g": 0,
	} {
		n := Node{Root: t.TempDir()}
		change(t, &n, "proc/meminfo = MemTotal: 8388608 kB\\n", "proc/self/mounts = tmpfs /dev/shm tmpfs "+options+" 0 0\\n")
		space, why := newMachine(n).shm()
		if want == 0 && (space != nil || why == "") || want != 0 && (space == nil || space.TotalBytes != want) {
			t.Errorf("%s: %+v, %q; want %d", options, space, why, want)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	n := Node{Root: t.TempDir()}
	change(t, &n, "proc/net/route = Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\neth0\\t00000000\\t0101A8C0\\t3\\t0\\t0\\t0\\t00000000\\neth1\\t0002010A\\t0\\t1\\t0\\t0\\t0\\t00FFFFFF\\nbad\\tx\\t0\\t0\\t0\\t0\\t0\\tffff\\nshort\\n")
	m := newMachine(n)
	got := m.routes()
	if len(got) != 2 || !got[0].isGlobal || got[1].dev != "eth1" || got[1].net.String() != "10.1.2.0/24" {
		t.Errorf("%+v", got)
	}
	if len(m.warnings) != 1 || !strings.HasPrefix(m.warnings[0], "/proc/net/route:4: ") {
		t.Errorf("warnings: %q", m.warnings)
	}
}

func TestInterfaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		setting string
		devs    []string
		want    []string
	}{
		{"", []string{"lo", "docker0", "eth0", "eth1"}, []string{"eth0", "eth1"}},
		{"", []string{"lo", "eth0", "ib0", "ib1"}, []string{"ib0", "ib1"}},
		{"", []string{"lo", "virbr0", "docker0"}, []string{"docker0"}},
		{"", []string{"lo", "virbr0"}, []string{"lo"}},
		{"^eth0,lo", []string{"lo", "eth0", "docker0"}, []string{"docker0"}},
		{"=eth1", []string{"lo", "eth1", "eth10"}, []string{"eth1"}},
		{"eth1", []string{"lo", "eth1", "eth10"}, []string{"eth1", "eth10"}},
	} {
		n := Node{Root: t.TempDir(), Env: []string{"NCCL_SOCKET_IFNAME=" + c.setting}}
		table := "proc/net/route = Iface\\n"
		for i, d := range c.devs {
			table += d + "\\t0000000A\\t0\\t1\\t0\\t0\\t0\\t000000FF\\n"
			change(t, &n, "sys/class/net/"+d+"/ifindex = "+string(rune('1'+i)))
		}
		change(t, &n, table)
		var got []string
		for _, x := range newMachine(n).ncclInterfaces() {
			got = append(got, x.name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q of %q: %q, want %q", c.setting, c.devs, got, c.want)
		}
	}
}

// Lines that cannot be read are warnings with their place, and the rest of the report stands.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	n := healthy(t, "dgx-h100")
	change(t, &n, "sys/class/infiniband/mlx5_3/ports/1/rate = fast", "sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error = many", "sys/class/net/eth0/ifindex = -", "proc/sys/net/ipv4/ip_local_port_range = 9 1", "proc/cpuinfo = \\x00\\xff\\x1b[31m")
	r := Run(n)
	for _, want := range []string{"/sys/class/infiniband/mlx5_3/ports/1/rate:1: ", "/sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error:1: ", "/sys/class/net/eth0/ifindex:1: ", "/proc/sys/net/ipv4/ip_local_port_range:1: "} {
		if !slices.ContainsFunc(r.Warnings, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("no warning of %s in %q", want, r.Warnings)
		}
	}
	if x := r.Get("rdma-rate"); x.Status != CannotTell || r.Count(Fault) != 0 {
		t.Errorf("%+v, %d faults", x, r.Count(Fault))
	}
}

// What the configuration space of one bridge says, whatever is wrong with it.
func TestACS(t *testing.T) {
	t.Parallel()
	n := healthy(t, "dgx-h100")
	loop := []byte(configuration("none")) // a list that goes round in circles
	copy(loop[0x100:], []byte{0x01, 0x00, 0x01, 0x10})
	for _, c := range []struct {
		name, config, says string
		want               Status
	}{
		{"redirects", configuration("001d"), "1 of 32 bridges above GPUs and adapters: 0000:5d:02.0 (SV RR CR UF)", Fault},
		{"completions alone", configuration("0008"), "0000:5d:02.0 (CR)", Fault},
		{"redirects nothing", configuration("0001"), "off in all", OK},
		{"without", configuration("none"), "off in all", OK},
		{"not root", "64 bytes", "1 of 32 bridges", CannotTell},
		{"loop", string(loop), "off in all", OK},
	} {
		if err := write(filepath.Join(n.Root, "sys/bus/pci/devices/0000:5d:02.0/config"), c.config); err != nil {
			t.Fatal(err)
		}
		if x := Run(n, "gdr").Get("gdr-acs"); x == nil || x.Status != c.want || !strings.Contains(x.Found[0], c.says) {
			t.Errorf("%s: %+v, want %s with %q", c.name, x, c.want, c.says)
		}
	}
	change(t, &n, "rm sys/bus/pci/devices/0000:5d:02.0/config")
	if x := Run(n, "gdr").Get("gdr-acs"); x.Status != CannotTell {
		t.Errorf("no configuration space: %+v", x)
	}
}

func TestSmallReaders(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int{"": 0, "0": 1, "0-3,8": 5, "0-3,2-5": 6, "3-1": 0, "x": 0, "0-x": 0, "-1": 0, "0-99999999999": maxMember + 1} {
		if got := countList(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
	names := []string{"mlx5_10", "mlx5_2", "mlx5_1", "a", "mlx5_bond_0"}
	slices.SortFunc(names, naturally)
	if want := []string{"a", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if got := groups(map[string]string{"a": "1", "b": "2", "c": "1"}); got != "1 (a, c); 2 (b)" {
		t.Error(got)
	}
	if got := groups(map[string]string{"a": "1", "b": "1", "c": "1"}); got != "1 (all of 3)" {
		t.Error(got)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	report := func(host, driver string, status Status, at, received time.Duration) Report {
		r := noon.Add(received)
		return Report{Host: host, Time: noon.Add(at), Received: &r, Facts: map[string]string{"driver": driver, "kernel": "6.8"}, Results: []Result{{ID: "gpu-ecc", Status: status, Found: []string{"x"}}}}
	}
	same := []Report{report("a", "580", OK, 0, time.Second), report("b", "580", CannotTell, 0, 1500*time.Millisecond)}
	if got := Compare(same); len(got) != 0 {
		t.Errorf("equal nodes: %+v", got)
	}
	got := Compare([]Report{report("a", "580", OK, 0, 0), report("b", "535", Fault, 0, 0), report("c", "580", OK, 9*time.Second, 0), report("c", "580", OK, 0, 0)})
	want := []Difference{
		{"driver", []Group{{"580", []string{"a", "c#1", "c#2"}}, {"535", []string{"b"}}}},
		{"check gpu-ecc", []Group{{"ok", []string{"a", "c#1", "c#2"}}, {"fault: x", []string{"b"}}}},
		{"clock", []Group{{"in step", []string{"a", "b", "c#2"}}, {"+9.0 s", []string{"c#1"}}}},
	}
	if a, b := marshal(t, got), marshal(t, want); string(a) != string(b) {
		t.Errorf("got %s\nwant %s", a, b)
	}
	one := []Report{{Host: "a", Facts: map[string]string{"driver": "1"}}, {Host: "b"}}
	if got := Compare(one); len(got) != 1 || got[0].Groups[0].Value != "" || got[0].Groups[1].Value != "1" {
		t.Errorf("a fact that one node lacks: %+v", got)
	}
	if got := Compare(nil); len(got) != 0 {
		t.Errorf("no node: %+v", got)
	}
	var b strings.Builder
	if err := WriteDifferences(&b, want[:1]); err != nil || b.String() != "driver\n   580  a, c#1, c#2\n   535  b\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	r := &Report{Host: "n1", Machine: "no GPU", Results: []Result{
		{ID: "a", Area: "x", Title: "A is well", Status: OK, Found: []string{"fine\x1b[2J"}, Why: "w"},
		{ID: "b", Area: "x", Title: "B is well", Status: Warn, Found: slices.Repeat([]string{"odd"}, 10), Why: "w", Fix: []string{"do this"}},
		{ID: "c", Area: "y", Title: "C is well", Status: Fault, Found: []string{strings.Repeat("long ", 60)}, Why: "because", Fix: []string{"do that"}},
	}, Skipped: []Skip{{"d", "none here"}, {"e", "other"}, {"f", "none here"}}, Warnings: []string{"/a:1: odd"}}
	var plain, colour strings.Builder
	if err := errors.Join(r.WriteText(&plain, TextOptions{}), r.WriteText(&colour, TextOptions{Color: true})); err != nil {
		t.Fatal(err)
	}
	text := plain.String()
	for _, want := range []string{"n1 (no GPU): 1 fault, 1 warning, 0 cannot tell, 1 ok\n", "fault       c: long long ", "… and 2 more\n", "   why: because\n   → do that\n", "\nX\n  ok          a ", "none here: d, f\n", "not understood: /a:1: odd\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Index(text, "c: long") > strings.Index(text, "b: odd") || strings.Contains(text, "\x1b") {
		t.Errorf("the warning before the fault, or an escape:\n%s", text)
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, " \n"))); n > width {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if !strings.Contains(colour.String(), "\x1b[1;31mfault       \x1b[0m") {
		t.Errorf("no colour:\n%q", colour.String())
	}
}

// What one machine wrote, another reads.
func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	r := Run(healthy(t, "dgx-h100"))
	var back Report
	if err := json.Unmarshal(marshal(t, r), &back); err != nil || string(marshal(t, back)) != string(marshal(t, r)) {
		t.Errorf("%v", err)
	}
	if d := Compare([]Report{*r, back}); len(d) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestAreasAlone(t *testing.T) {
	t.Parallel()
	n := healthy(t, "pcie")
	total := 0
	for _, a := range Areas() {
		r := Run(n, a)
		total += len(r.Results) + len(r.Skipped)
		for _, x := range r.Results {
			if x.Area != a {
				t.Errorf("%s: %+v", a, x)
			}
		}
	}
	if total != len(Rules()) {
		t.Errorf("%d checks in areas, %d in all", total, len(Rules()))
	}
	ids := map[string]bool{}
	for _, r := range Rules() {
		if ids[r.ID] || r.Title == "" || r.Why == "" || r.Source == "" {
			t.Errorf("%+v: twice, or a text is missing", r)
		}
		ids[r.ID] = true
	}
}

// The error of NVML is said where there is a driver.
func TestNoNVML(t *testing.T) {
	t.Parallel()
	n := healthy(t, "dgx-h100")
	n.NVML, n.NVMLErr = nil, nvml.ErrNoAnswer
	r := Run(n)
	if x := r.Get("driver-nvml"); x.Status != Warn || !strings.Contains(x.Found[0], "does not answer") {
		t.Errorf("%+v", x)
	}
	if x := r.Get("gpu-ecc"); x.Status != CannotTell {
		t.Errorf("%+v", x)
	}
	if r.Count(Fault) != 0 {
		t.Errorf("%d faults", r.Count(Fault))
	}
}

// fuzzed are files whose content comes from elsewhere.
var fuzzed = []string{
	"proc/net/route", "proc/net/if_inet6", "proc/self/limits", "proc/self/status", "proc/self/cgroup", "proc/self/mounts", "proc/meminfo", "proc/cpuinfo", "proc/cmdline", "proc/driver/nvidia/version", "proc/sys/kernel/osrelease",
	"proc/sys/net/ipv4/ip_local_port_range", "proc/800/comm", "var/log/kern.log", "var/lib/dpkg/status", "usr/local/cuda/version.json", "etc/nccl.conf", "etc/ufw/ufw.conf", "etc/iptables/rules.v4", "sys/bus/pci/devices/0000:40:01.0/config",
	"sys/bus/pci/devices/0000:41:00.0/current_link_speed", "sys/bus/pci/devices/0000:41:00.0/max_link_width", "sys/bus/pci/devices/0000:41:00.0/numa_node", "sys/class/infiniband/mlx5_0/ports/1/state", "sys/class/infiniband/mlx5_0/ports/1/rate",
	"sys/class/infiniband/mlx5_0/ports/1/gids/3", "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "sys/class/infiniband/mlx5_0/tc/1/traffic_class", "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "sys/devices/system/node/node0/cpulist",
	"sys/devices/system/node/node0/meminfo", "sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "sys/kernel/mm/transparent_hugepage/enabled", "sys/class/net/eth0/ifindex",
}

// FuzzRun puts any content into any of the files: no check fails by itself, every answer is one of the four and says something.
func FuzzRun(f *testing.F) {
	root := tempDir(f)
	for i := range fuzzed {
		f.Add(uint8(i), []byte("4: ACTIVE\n0-3,8 [x]\x00\xff 9223372036854775808 -1 65536k"))
	}
	f.Fuzz(func(t *testing.T, which uint8, content []byte) {
		b := &treeBuilder{root: filepath.Join(root, t.Name()), vars: map[string]string{}}
		if _, err := os.Stat(b.root); err != nil {
			b.file(t, "pcie.tree")
		}
		name := filepath.Join(b.root, fuzzed[int(which)%len(fuzzed)])
		before, missing := os.ReadFile(name)
		if err := write(name, string(content)); err != nil {
			t.Fatal(err)
		}
		r := Run(Node{Root: b.root, Now: noon, NVMLErr: nvml.ErrNoLibrary})
		if missing == nil {
			missing = os.WriteFile(name, before, 0o644)
		} else {
			missing = os.Remove(name)
		}
		if missing != nil {
			t.Fatal(missing)
		}
		for _, x := range r.Results {
			if x.Status.weight() < 0 || len(x.Found) == 0 || strings.Contains(x.Found[0], "the check itself failed") {
				t.Errorf("%+v", x)
			}
		}
		var out strings.Builder
		if err := r.WriteText(&out, TextOptions{}); err != nil || strings.ContainsRune(out.String(), 0x1b) {
			t.Errorf("text: %v", err)
		}
	})
}
