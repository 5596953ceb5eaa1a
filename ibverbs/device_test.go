package ibverbs_test

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/google/go-cmp/cmp"
)

func TestFakeLoad(t *testing.T) {
	if !fake(t) {
		return
	}
	lib, err := ibverbs.Load("")
	ok(t, err)
	want := ibverbs.Library{Path: bindtest.InDir("libibverbs.so.1.14.44.0"), Version: "44.0", DMABuf: true}
	if d := cmp.Diff(want, lib); d != "" {
		t.Error(d)
	}
	if again, err := ibverbs.Load(lib.Path); err != nil || again != lib {
		t.Errorf("the same once more: %v, %v", again, err)
	}
	_, err = ibverbs.Load("/nowhere/libibverbs.so.1")
	says(t, err, "load /nowhere/libibverbs.so.1", lib.Path+" is loaded already")
}

func TestLoadError(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"absent", "", []string{"cannot use", "No such file"}},
		{"no device list", "lib.so", []string{"ibv_get_device_list: not in"}},
		{"text", "text", []string{"invalid ELF header"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := bindtest.Isolated(t, func(dir string) []string {
				path := filepath.Join(dir, "lib.so")
				switch c.file {
				case "text":
					bindtest.Write(t, path, strings.Repeat("not a library\n", 1000))
				case "lib.so":
					bindtest.PutVerbs(t, path, bindtest.Lacking(t, "ibv_get_device_list")...)
				}
				return []string{ibverbs.LibraryEnv + "=" + path}
			})
			if !in {
				return
			}
			_, err := ibverbs.Load("")
			if e, lib := csrc.IsLibrary(err); !lib || e.Library != "libibverbs" {
				t.Fatalf("got %v, want a *csrc.LibraryError", err)
			}
			says(t, err, append(c.want, "no libibverbs", "ibverbs-providers", "name the file with COMMPROBE_IBVERBS_LIB")...)
			if _, err := ibverbs.Devices(); err == nil {
				t.Error("devices without a library")
			}
		})
	}
}

func TestVersionIn(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/lib/libibverbs.so.1.14.44.0": "44.0", "libibverbs.so.1.14.50.0": "50.0", "libibverbs.so.1": "", "libibverbs.so": "", "/x.so.1.2": "",
	} {
		if got := ibverbs.VersionIn(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestFakeDevice(t *testing.T) {
	if !fake(t) {
		return
	}
	t.Setenv("FAKE_DEVICES", "2")
	list, err := ibverbs.Devices()
	ok(t, err)
	want := []ibverbs.Device{
		{Name: "fake0", NodeGUID: 0x0002c90300000000, NodeType: "channel adapter", Transport: "InfiniBand", UverbsPath: "/dev/infiniband/uverbs0"},
		{Name: "fake1", NodeGUID: 0x0002c90300000001, NodeType: "channel adapter", Transport: "InfiniBand", UverbsPath: "/dev/infiniband/uverbs1"},
	}
	if d := cmp.Diff(want, list); d != "" {
		t.Error(d)
	}
	c := device(t)
	got, err := c.Attr()
	ok(t, err)
	attr := ibverbs.DeviceAttr{FirmwareVersion: "1.2.3", NodeGUID: 0x0002c90300000000, SysImageGUID: 7, VendorID: 0x2c9, PartID: 4129, HWVersion: 5, MaxQP: 100, MaxQPWR: 1000,
		MaxSGE: 30, MaxCQ: 101, MaxCQE: 1001, MaxMR: 102, MaxPD: 103, MaxQPRdAtom: 16, MaxQPInitRdAtom: 15, Ports: 1, MaxMRBytes: 1 << 40, Atomics: "HCA"}
	if d := cmp.Diff(attr, got); d != "" {
		t.Error(d)
	}
	if c.Name() != "fake0" {
		t.Error(c.Name())
	}
	_, err = ibverbs.Device{Name: "mlx5_9"}.Open()
	is(t, err, syscall.ENODEV)
	says(t, err, "ibv_open_device (mlx5_9)", "not that of an RDMA device")
	t.Setenv("FAKE_DEVICES", "0")
	if list, err := ibverbs.Devices(); err != nil || len(list) != 0 {
		t.Errorf("no device: %v, %v", list, err)
	}
}

func TestFakePort(t *testing.T) {
	if !fake(t) {
		return
	}
	port := ibverbs.PortAttr{State: ibverbs.PortActive, PhysState: 5, LinkLayer: ibverbs.LinkEthernet, MaxMTU: 4096, ActiveMTU: 1024, LID: 3, SMLID: 4, GIDs: 8, PKeys: 2,
		GRHRequired: true, Width: 4, LaneGbps: 50, RateGbps: 200}
	c := device(t)
	check := func(what string, c *ibverbs.Context) {
		t.Helper()
		got, err := c.Port(1)
		ok(t, err)
		if d := cmp.Diff(port, got); d != "" {
			t.Error(what, d)
		}
	}
	check("extended", c)
	t.Setenv("FAKE_STATE", "1")
	t.Setenv("FAKE_LINK", "1")
	t.Setenv("FAKE_MTU", "5")
	port.State, port.LinkLayer, port.ActiveMTU = ibverbs.PortDown, ibverbs.LinkInfiniBand, 4096
	check("down", c)
	// A rate that the interface cannot tell comes from the kernel's text.
	dir := t.TempDir()
	defer ibverbs.SetSysRoot(dir)()
	bindtest.Write(t, filepath.Join(dir, "fake0/ports/1/rate"), "800 Gb/sec (4X XDR)\n")
	t.Setenv("FAKE_SPEED", "0")
	port.LaneGbps, port.RateGbps = 0, 800
	check("rate of the kernel", c)
	t.Setenv("FAKE_OLD", "1")
	port.GRHRequired = false
	check("old context", device(t))
	_, err := c.Port(2)
	is(t, err, syscall.EINVAL)
	says(t, err, "ibv_query_port (fake0, port 2)", "no such port")
	if s := ibverbs.PortDown.String() + ibverbs.PortActive.String() + ibverbs.PortState(9).String() + ibverbs.LinkInfiniBand.String() + ibverbs.LinkLayer(7).String(); s != "DOWNACTIVEunknown (9)InfiniBandunknown (7)" {
		t.Error(s)
	}
}

func TestSysRate(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]float64{"400 Gb/sec (4X NDR)\n": 400, "2.5 Gb/sec (1X SDR)\n": 2.5, "fast\n": 0, "": 0, "x Gb/sec": 0} {
		path := filepath.Join(dir, "rate")
		bindtest.Write(t, path, text)
		if got := ibverbs.SysRate(path); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func wantGIDs(types ...ibverbs.GIDType) []ibverbs.GID {
	index := []int{0, 1, 2, 4, 5, 6}
	var out []ibverbs.GID
	for i, a := range []string{"fe80::1:0:2", "fe80::1:0:2", "::ffff:169.254.1.2", "::ffff:10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1"} {
		g := ibverbs.GID{Index: index[i], Raw: netip.MustParseAddr(a).As16(), Type: types[i], NetDev: "lo"}
		if i == 5 {
			g.NetDev = "" // no such interface here
		}
		out = append(out, g)
	}
	return out
}

const (
	v1 = ibverbs.GIDRoCEv1
	v2 = ibverbs.GIDRoCEv2
)

func TestFakeGIDs(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	got, err := c.GIDs(1)
	ok(t, err)
	if d := cmp.Diff(wantGIDs(v1, v2, v2, v1, v2, v2), got); d != "" {
		t.Fatal(d)
	}
	if a := got[4].Addr(); a != netip.MustParseAddr("10.0.0.1") {
		t.Error(a)
	}
	for i, want := range []bool{true, true, true, false, false, false} {
		if got[i].LinkLocal() != want {
			t.Errorf("%v: link-local %v", got[i].Addr(), !want)
		}
	}
	if s := v1.String() + "," + v2.String(); s != "IB/RoCE v1,RoCE v2" {
		t.Error(s)
	}
	oldGIDs(t, c, "FAKE_FAIL", "_ibv_query_gid_ex=95")
	t.Setenv("FAKE_FAIL", "_ibv_query_gid_ex=5")
	_, err = c.GIDs(1)
	is(t, err, syscall.EIO)
	_, err = c.GIDs(3)
	is(t, err, syscall.EINVAL)
}

// oldGIDs looks at a table that is read with the old query and sysfs.
func oldGIDs(t *testing.T, c *ibverbs.Context, env, value string) {
	t.Helper()
	dir := t.TempDir()
	defer ibverbs.SetSysRoot(dir)()
	for index, word := range map[string]string{"0": "IB/RoCE v1", "1": "RoCE v2", "4": "IB/RoCE v1", "5": "RoCE v2", "6": "another"} {
		bindtest.Write(t, filepath.Join(dir, "fake0/ports/1/gid_attrs/types", index), word+"\n")
		bindtest.Write(t, filepath.Join(dir, "fake0/ports/1/gid_attrs/ndevs", index), "eth"+index+"\n")
	}
	t.Setenv(env, value)
	got, err := c.GIDs(1)
	ok(t, err)
	want := wantGIDs(v1, v2, ibverbs.GIDUnknown, v1, v2, ibverbs.GIDUnknown)
	for i, dev := range []string{"eth0", "eth1", "", "eth4", "eth5", "eth6"} {
		want[i].NetDev = dev
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	t.Setenv("FAKE_LINK", "1")
	defer t.Setenv("FAKE_LINK", "")
	got, err = c.GIDs(1)
	ok(t, err)
	if got[0].Type != ibverbs.GIDInfiniBand {
		t.Error("on InfiniBand:", got[0].Type)
	}
	t.Setenv("FAKE_FAIL", value+",ibv_query_gid=22")
	_, err = c.GIDs(1)
	is(t, err, syscall.EINVAL)
}

func TestFakeOldLibrary(t *testing.T) {
	if !fake(t, bindtest.Lacking(t, "_ibv_query_gid_ex", "ibv_reg_dmabuf_mr", "ibv_reg_mr_iova2")...) {
		return
	}
	if lib, err := ibverbs.Load(""); err != nil || lib.DMABuf {
		t.Error(lib, err)
	}
	c := device(t)
	oldGIDs(t, c, "FAKE_X", "")
	pd, err := c.AllocPD()
	ok(t, err)
	defer func() { ok(t, pd.Close()) }()
	if can, err := ibverbs.DMABufProbe(pd); can || err != nil {
		t.Error("DMA-BUF:", can, err)
	}
	_, err = pd.RegDMABuf(3, 0, 4096, 0, ibverbs.AccessLocalWrite)
	var lacking *csrc.MissingSymbolError
	if !errors.As(err, &lacking) || lacking.Func != "ibv_reg_dmabuf_mr" || lacking.Version != "44.0" || lacking.Since != "rdma-core 34" {
		t.Error(err)
	}
	mem, err := ibverbs.AllocHost(4096, false)
	ok(t, err)
	// Relaxed ordering is optional: without the function that takes it, it is left out.
	mr, err := pd.RegMR(mem.Addr(), 4096, ibverbs.AccessLocalWrite|ibverbs.AccessRelaxedOrdering)
	ok(t, err)
	ok(t, mr.Close())
	ok(t, mem.Close())
}

func TestFakeEvents(t *testing.T) {
	if !fake(t) {
		return
	}
	t.Setenv("FAKE_EVENT", "10:1,1:0,8:0,18:1,99:1")
	c := device(t)
	for _, want := range []struct {
		ibverbs.AsyncEvent
		text string
	}{
		{ibverbs.AsyncEvent{Type: 10, Text: "port down", Port: 1, Fatal: true}, "port 1: port down"},
		{ibverbs.AsyncEvent{Type: 1, Text: "queue pair broken by a local fault", QPNum: 17, Fatal: true}, "queue pair 17: queue pair broken by a local fault"},
		{ibverbs.AsyncEvent{Type: 8, Text: "device broken", Fatal: true}, "device broken"},
		{ibverbs.AsyncEvent{Type: 18, Text: "GID table changed", Port: 1}, "port 1: GID table changed"},
		{ibverbs.AsyncEvent{Type: 99, Text: "unknown event 99"}, "unknown event 99"},
	} {
		got, err := c.NextEvent(soon(t))
		ok(t, err)
		if got != want.AsyncEvent || got.String() != want.text {
			t.Errorf("%+v %v, want %+v", got, got, want)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := c.NextEvent(ctx)
	is(t, err, context.DeadlineExceeded)
	// A context that has ended, and one that ends while the wait begins or is over: none may be missed, and no descriptor left.
	before := descriptors(t)
	for i := range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
		if _, err := c.NextEvent(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("wait %d: %v", i, err)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestListsAreWhole(t *testing.T) {
	if ibverbs.LastStatus != ibverbs.HeaderStatus || ibverbs.LastEvent != ibverbs.HeaderEvent {
		t.Errorf("texts up to status %d and event %d, the header has %d and %d", ibverbs.LastStatus, ibverbs.LastEvent, ibverbs.HeaderStatus, ibverbs.HeaderEvent)
	}
	for s := 0; s <= ibverbs.LastStatus; s++ {
		if ibverbs.WCText(s) == "" {
			t.Error("no text for status", s)
		}
	}
	if got := ibverbs.WCText(77) + ibverbs.WCCause(77, 0) + ibverbs.WCCause(0, 0); got != "unknown status 77" {
		t.Error(got)
	}
	for status, want := range map[int]string{4: "ACS", 5: "either side tells why", 10: "remote key", 12: "UDP 4791", 13: "no receive"} {
		if got := ibverbs.WCCause(status, 0); !strings.Contains(got, want) {
			t.Errorf("status %d: %q does not say %q", status, got, want)
		}
	}
	if got := ibverbs.WCCause(12, 0x81); !strings.Contains(got, "vendor error 0x81") {
		t.Error(got)
	}
}

func TestHints(t *testing.T) {
	for _, c := range []struct {
		fn    string
		errno syscall.Errno
		want  string
	}{
		{"ibv_get_device_list", syscall.ENOSYS, "modprobe ib_uverbs"},
		{"ibv_open_device", syscall.EACCES, "may not use /dev/infiniband"},
		{"ibv_open_device", syscall.ENOENT, "--device=/dev/infiniband"},
		{"ibv_reg_mr", syscall.EFAULT, "nvidia_peermem"},
		{"ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP, "Linux 5.12"},
		{"ibv_reg_dmabuf_mr", syscall.EPROTONOSUPPORT, "Linux 5.12"},
		{"ibv_create_qp", syscall.EOPNOTSUPP, "SRD"},
		{"ibv_modify_qp to RTR", syscall.EINVAL, "GID index"},
		{"ibv_modify_qp to RTR", syscall.ETIMEDOUT, "ARP"},
		{"ibv_modify_qp to RTR", syscall.ENODEV, "another GID index"},
		{"ibv_modify_qp to RTR", syscall.ENETUNREACH, "no route"},
	} {
		if got := ibverbs.Hint(c.fn, c.errno); !strings.Contains(got, c.want) {
			t.Errorf("%s, %v: %q does not say %q", c.fn, c.errno, got, c.want)
		}
	}
	if got := ibverbs.Hint("ibv_query_device", syscall.ENOMEM); got != "" {
		t.Error(got)
	}
	for limit, want := range map[uint64]string{8192 << 10: "is 8192 KiB, most likely too small: raise it with ulimit -l unlimited", math.MaxUint64: "is unlimited, so"} {
		undo := ibverbs.SetMemlock(func() (uint64, error) { return limit, nil })
		for _, fn := range []string{"ibv_reg_mr", "ibv_create_cq", "ibv_create_qp"} {
			if got := ibverbs.Hint(fn, syscall.ENOMEM); !strings.Contains(got, want) {
				t.Errorf("%s: %q does not say %q", fn, got, want)
			}
		}
		undo()
	}
	if got := ibverbs.Hint("ibv_reg_mr", syscall.ENOMEM); !strings.Contains(got, "RLIMIT_MEMLOCK") && !strings.Contains(got, "unlimited") {
		t.Error(got)
	}
}
