package gdr

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/internal/topo/topotest"
	"github.com/commprobe/commprobe/rdma"
)

func put(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		bindtest.Write(t, filepath.Join(root, name), text)
	}
}

func TestFiles(t *testing.T) {
	root := t.TempDir()
	put(t, root, map[string]string{
		"proc/sys/kernel/osrelease":              "5.4.0-150-generic\n",
		"proc/modules":                           "nvidia_peermem 20480 0 - Live 0x0\nnvidia 56000 1 nvidia_peermem, Live 0x0\n",
		"proc/driver/nvidia/version":             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n",
		"sys/bus/pci/devices/a/x":                "",
		"sys/bus/pci/devices/b/iommu_group/type": "identity\n",
		"sys/bus/pci/devices/c/iommu_group/type": "DMA-FQ\n",
	})
	var f Facts
	f.files(root)
	if f.Kernel != "5.4.0-150-generic" || !is(f.DMABufKernel, false) || !is(f.PeerLoaded, true) || f.PeerModule != "nvidia_peermem" || !is(f.OpenModules, true) || f.Driver != "570.124.06" || f.Memlock == nil {
		t.Errorf("%+v", f)
	}
	put(t, root, map[string]string{"proc/modules": "nvidia 56000 1 - Live 0x0\n", "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03\n"})
	f = Facts{}
	if f.files(root); !is(f.PeerLoaded, false) || !is(f.OpenModules, false) {
		t.Errorf("%+v", f)
	}
	f = Facts{}
	if f.files(t.TempDir()); f.PeerLoaded != nil || f.OpenModules != nil || f.DMABufKernel != nil || f.Kernel != "" {
		t.Errorf("an empty tree: %+v", f)
	}
	for _, c := range []struct {
		pci  []string
		want string
	}{{[]string{"a", ""}, "unknown"}, {[]string{"a", "b"}, "no"}, {[]string{"b", "c"}, "yes"}, {[]string{"c", "b"}, "yes"}} {
		if got := yesNo(translated(root, c.pci...)); got != c.want {
			t.Errorf("%q: %s, want %s", c.pci, got, c.want)
		}
	}
}

func TestKernel(t *testing.T) {
	for text, want := range map[string]string{"5.12.0": "yes", "5.11.22": "no", "6.8": "yes", "4.18.0-553.el8": "no", "10.0.1": "yes", "": "unknown", "linux": "unknown"} {
		if got := yesNo(since512(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// FuzzKernel: any text gives an answer or none, never a panic.
func FuzzKernel(f *testing.F) {
	f.Add("5.12.0-rc1")
	f.Add("99999999999999999999.1")
	f.Fuzz(func(_ *testing.T, s string) { since512(s) })
}

// TestPair: the distance, and the bridges on the way that redirect or cannot be read.
func TestPair(t *testing.T) {
	root := topotest.Build(t, `-- pci --
pci0000:00 numa=0 cpus=0-3
  0000:00:01.0 root gen4x16 acs=off
    0000:01:00.0 up gen4x16 acs=off
      0000:02:00.0 down gen4x16 acs=SV,RR
        0000:03:00.0 gpu gen4x16 id=10de:20b0/10de:134f
      0000:02:01.0 down gen4x16
        0000:04:00.0 nic gen4x16 ib=mlx5_0 layer=IB rate=200 state=ACTIVE
-- nodes --
0 cpus=0-3 socket=0 distance=10
`)
	g, err := topo.ReadSys(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := pairOf(Sources{Root: root, Graph: g}, GPU{ID: "GPU0", PCI: "0000:03:00.0"}, NIC{Name: "mlx5_0", PCI: "0000:04:00.0"})
	if got.Distance != "PIX" || len(got.ACS) != 1 || got.ACS[0] != "0000:02:00.0" || !got.ACSHidden || got.Translated != nil {
		t.Errorf("%+v", got)
	}
}

// TestNICs: one that libibverbs opened, one that it lists but cannot open, one that only /sys has.
func TestNICs(t *testing.T) {
	list := &rdma.List{Devices: []rdma.Listed{
		{Name: "mlx5_0", PCI: "0000:04:00.0", DMABuf: "yes", Ports: []rdma.Side{{State: "down", LinkLayer: "Ethernet"}, {State: "active", Active: true, LinkLayer: "Ethernet"}}},
		{Name: "mlx5_1", Error: "no permission", DMABuf: ""},
	}}
	g := &topo.Graph{
		NICs: []topo.NIC{{Name: "mlx5_0", BusID: "0000:04:00.0", RDMA: p(true)}, {Name: "mlx5_9", BusID: "0000:09:00.0", RDMA: p(true)}, {Name: "eth0", RDMA: p(false)}},
		PCI:  []topo.Function{{BusID: "0000:04:00.0", Relaxed: p(false)}},
	}
	var f Facts
	f.nics(Sources{NICs: list, Graph: g})
	if len(f.NICs) != 3 {
		t.Fatalf("%+v", f.NICs)
	}
	if n := f.NICs[0]; n.Port != "active" || !is(n.DMABuf, true) || !is(n.Relaxed, false) || n.Closed != "" {
		t.Errorf("%+v", n)
	}
	if n := f.NICs[1]; n.Closed != "no permission" || n.DMABuf != nil {
		t.Errorf("%+v", n)
	}
	if n := f.NICs[2]; n.Name != "mlx5_9" || !strings.Contains(n.Closed, "libibverbs") {
		t.Errorf("%+v", n)
	}
}

func TestTrialOf(t *testing.T) {
	bad := errors.New("bad")
	for _, c := range []struct {
		step           rdma.LoopbackStep
		err            error
		register, move State
	}{
		{rdma.LoopOpen, bad, Untried, Untried}, {rdma.LoopMemory, bad, Untried, Untried}, {rdma.LoopRegister, bad, Fails, Untried}, {rdma.LoopPort, bad, Works, Untried},
		{rdma.LoopConnect, bad, Works, Untried}, {rdma.LoopMove, bad, Works, Fails}, {rdma.LoopCheck, bad, Works, Fails}, {rdma.LoopDone, nil, Works, Works},
	} {
		got := trialOf(PeerMem, rdma.Loopback{Step: c.step}, c.err)
		if got.Register.State != c.register || got.Move.State != c.move || c.err != nil && got.Register.Text+got.Move.Text == "" {
			t.Errorf("%s: %+v", c.step, got)
		}
	}
}

// TestLive tries on a stand-in for libibverbs, with host memory in the GPU's place.
func TestLive(t *testing.T) {
	fake := bindtest.Isolated(t, func(dir string) []string {
		bindtest.PutVerbs(t, filepath.Join(dir, "libibverbs.so.1"))
		return []string{ibverbs.LibraryEnv + "=" + filepath.Join(dir, "libibverbs.so.1")}
	})
	if !fake {
		return
	}
	list, err := rdma.Devices("")
	if err != nil || len(list.Devices) == 0 {
		t.Fatal(err, list)
	}
	l := Live{Wait: 2 * time.Second}
	nic := list.Devices[0].Name
	if got := l.loopback("host", nic, PeerMem); got.Register.State != Works || got.Move.State != Works {
		t.Errorf("%+v", got)
	}
	if got := l.loopback("host", "nowhere", PeerMem); got.Register.State != Untried || got.Register.Text == "" {
		t.Errorf("%+v", got)
	}
	cuda.UseHost(2)
	f, err := Look(Sources{Root: "/", NICs: list, Getenv: os.Getenv})
	if err != nil || !f.HostEngine || len(f.GPUs) != 2 || len(f.Pairs) != 2*len(list.Devices) || f.Library == "" {
		t.Errorf("%v: %+v", err, f)
	}
	if got := l.Export(0); got.State != Fails || !strings.Contains(got.Text, "not supported") { // the host engine's memory is the process's own
		t.Errorf("%+v", got)
	}
	if got := l.Export(7); got.State != Untried || got.Text == "" {
		t.Errorf("a device that is not there: %+v", got)
	}
	if left := cuda.Live(); len(left) != 0 {
		t.Errorf("not freed: %v", left)
	}
}

// TestHang: a driver that never answers is given up.
func TestHang(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	got := Live{Wait: time.Millisecond}.bounded("registering", func() Outcome { <-stop; return Outcome{State: Works} })
	if got.State != Untried || !strings.Contains(got.Text, "no answer") {
		t.Errorf("%+v", got)
	}
}
