package rdma

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/rankset"
)

func TestNoDeviceText(t *testing.T) {
	t.Parallel()
	lib := "/usr/lib/libibverbs.so.1.14.44.0"
	for _, c := range []struct {
		name string
		seen seen
		says []string
		not  []string
	}{
		{"bare machine", seen{libError: "no libibverbs: looked for libibverbs.so.1", noClass: true, noFiles: true},
			[]string{"no libibverbs: looked for libibverbs.so.1", "/sys/class/infiniband does not exist", "/dev/infiniband does not exist", "no RDMA module is loaded", "apt-get install libibverbs1", "modprobe mlx5_ib", "rdma_rxe"}, []string{"container"}},
		{"library, no device", seen{library: lib, asked: "ibv_get_device_list: function not implemented", noClass: true, noFiles: true},
			[]string{"libibverbs is there (" + lib + ") but says: ibv_get_device_list"}, []string{"apt-get install libibverbs1"}},
		{"a card without driver", seen{library: lib, noClass: true, noFiles: true, pci: []string{"0000:c1:00.0 (NVIDIA/Mellanox)"}},
			[]string{"network cards that may do RDMA: 0000:c1:00.0 (NVIDIA/Mellanox)", "the kernel module of the card"}, nil},
		{"container without devices", seen{library: lib, class: []string{"mlx5_0"}, noFiles: true, contained: true, modules: []string{"ib_core", "mlx5_ib"}},
			[]string{"/sys/class/infiniband has mlx5_0", "modules loaded: ib_core, mlx5_ib", "--device=/dev/infiniband", "IPC_LOCK", "Kubernetes"}, []string{"rdma link add"}},
		{"no uverbs", seen{library: lib, class: []string{"mlx5_0"}, noFiles: true}, []string{"modprobe ib_uverbs"}, []string{"--device"}},
		{"no provider", seen{library: lib, class: []string{"mlx5_0"}, files: []string{"uverbs0"}}, []string{"/dev/infiniband has uverbs0", "ibverbs-providers", "permission"}, nil},
		{"empty class", seen{library: lib, contained: true, noFiles: true}, []string{"/sys/class/infiniband is empty", "in a container also --device=/dev/infiniband"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := c.seen.String()
			for _, s := range c.says {
				if !strings.Contains(text, s) {
					t.Errorf("%q is not in: %s", s, text)
				}
			}
			for _, s := range c.not {
				if strings.Contains(text, s) {
					t.Errorf("%q is in: %s", s, text)
				}
			}
			if strings.Contains(text, "\n") {
				t.Errorf("more than one line: %s", text)
			}
		})
	}
}

// tree makes files below a new folder; a name that ends in @ is a link to its text.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		link := strings.HasSuffix(name, "@")
		path := filepath.Join(root, strings.TrimSuffix(name, "@"))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && link {
			err = os.Symlink(text, path)
		} else if err == nil {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLook(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"sys/class/infiniband/mlx5_0/x": "", "sys/module/ib_core/x": "", "sys/module/mlx5_ib/x": "", ".dockerenv": "",
		"sys/bus/pci/devices/0000:c1:00.0/vendor": "0x15b3\n", "sys/bus/pci/devices/0000:c1:00.0/class": "0x020000\n",
		"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
		"sys/bus/pci/devices/0000:c2:00.0/vendor": "0x15b3\n", "sys/bus/pci/devices/0000:c2:00.0/class": "0x060400\n",
	})
	s := look(root, nil)
	if !slices.Equal(s.class, []string{"mlx5_0"}) || s.noClass || !s.noFiles || !s.contained || !slices.Equal(s.modules, []string{"ib_core", "mlx5_ib"}) ||
		!slices.Equal(s.pci, []string{"0000:c1:00.0 (NVIDIA/Mellanox)"}) {
		t.Errorf("%+v", s)
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"devices/pci0000:c0/0000:c1:00.0/numa_node": "1\n", "devices/pci0000:c0/0000:c1:00.0/local_cpulist": "4-7,12\n",
		"class/infiniband/mlx5_0/device@": "../../../devices/pci0000:c0/0000:c1:00.0", "class/infiniband/rxe0/x": "",
	})
	p := placeOf(root, "mlx5_0")
	if p.pci != "0000:c1:00.0" || p.node != 1 || !slices.Equal(p.local, []int{4, 5, 6, 7, 12}) {
		t.Errorf("%+v", p)
	}
	if p := placeOf(root, "rxe0"); p.pci != "" || p.node != -1 || p.local != nil {
		t.Errorf("%+v", p)
	}
	for _, c := range []struct {
		p       place
		allowed []int
		named   int
		cpus    string
		why     string
	}{
		{p, []int{0, 4, 5, 6}, -1, "4-6", "CPU 4-6 (NUMA node 1, the device's)"},
		{p, []int{0, 1}, -1, "", "none of NUMA node 1 (4-7,12)"},
		{place{node: -1}, []int{0}, -1, "", "no NUMA node"},
		{p, []int{0}, 9, "9", "CPU 9 as asked"},
	} {
		cpus, why := chooseCPUs(c.p, c.allowed, c.named)
		if rankset.Fold(cpus, ",") != c.cpus || !strings.Contains(why, c.why) {
			t.Errorf("%+v: %v %q", c, cpus, why)
		}
	}
	for _, bad := range []string{"", "x", "3-1", "1-", "-1"} {
		if cpus := rankset.Parse(bad); cpus != nil {
			t.Errorf("%q: %v", bad, cpus)
		}
	}
	if len(allowedCPUs()) == 0 {
		t.Error("this process may use no processor")
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	port := func(name string, n int, state ibverbs.PortState, link ibverbs.LinkLayer) candidate {
		return candidate{device: ibverbs.Device{Name: name}, port: n, attr: ibverbs.PortAttr{State: state, LinkLayer: link}}
	}
	all := []candidate{
		port("mlx5_0", 1, ibverbs.PortDown, ibverbs.LinkEthernet), port("mlx5_1", 1, ibverbs.PortActive, ibverbs.LinkInfiniBand),
		port("mlx5_2", 1, ibverbs.PortActive, ibverbs.LinkEthernet), port("mlx5_2", 2, ibverbs.PortActive, ibverbs.LinkEthernet),
		{device: ibverbs.Device{Name: "mlx5_3"}, err: &ibverbs.Error{Func: "ibv_open_device", Errno: 13, Hint: "add the user to the group"}},
	}
	for _, c := range []struct {
		want Want
		name string
		port int
	}{
		{Want{}, "mlx5_1", 1}, {Want{LinkLayer: "Ethernet"}, "mlx5_2", 1}, {Want{Device: "mlx5_0"}, "mlx5_0", 1}, {Want{Device: "mlx5_2", Port: 2}, "mlx5_2", 2}, {Want{Port: 2}, "mlx5_2", 2},
		{Want{Device: "mlx5_1", LinkLayer: "Ethernet"}, "mlx5_1", 1},
	} {
		got, err := choose(all, c.want)
		if err != nil || got.device.Name != c.name || got.port != c.port {
			t.Errorf("%+v: %s port %d, %v", c.want, got.device.Name, got.port, err)
		}
	}
	_, err := choose(all, Want{Device: "mlx5_9"})
	says(t, err, Usage, "-d mlx5_9", "mlx5_2 port 2 (active, Ethernet)", "mlx5_3")
	_, err = choose(all, Want{Device: "mlx5_3"})
	says(t, err, Unusable, "open mlx5_3", "add the user to the group")
}

func TestDescribeGIDs(t *testing.T) {
	t.Parallel()
	mapped := netip.MustParseAddr("::ffff:10.0.0.1").As16()
	got := describeGIDs([]ibverbs.GID{{Index: 3, Raw: mapped, Type: ibverbs.GIDRoCEv2, NetDev: "eth0"}, {Index: 5, Raw: netip.MustParseAddr("fe80::1").As16()}},
		func(dev string, a netip.Addr) string { return dev + "/" + a.String() })
	want := []GID{{3, "10.0.0.1", typeRoCE2, "eth0", "eth0/10.0.0.1"}, {5, "fe80::1", "", "", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// libibverbs answers ENOENT for a file that it may not open; the file itself tells.
func TestOpenVerdict(t *testing.T) {
	t.Parallel()
	d := ibverbs.Device{Name: "rxe0", UverbsPath: "/dev/infiniband/uverbs0"}
	call := &ibverbs.Error{Func: "ibv_open_device", Errno: syscall.ENOENT, Hint: ibverbs.Hint("ibv_open_device", syscall.ENOENT)}
	says(t, openVerdict(d, call, &fs.PathError{Op: "open", Path: d.UverbsPath, Err: syscall.EACCES}), Unusable, "open rxe0: no permission for /dev/infiniband/uverbs0", "group", "docker --device")
	says(t, openVerdict(d, call, &fs.PathError{Op: "open", Path: d.UverbsPath, Err: syscall.ENOENT}), Unusable, "open rxe0", "modprobe ib_uverbs")
}
