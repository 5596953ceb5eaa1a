package nccl_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/nccl"
	"github.com/google/go-cmp/cmp"
)

// newer are the functions that 2.18 lacks, with the versions that brought them.
var newer = map[string]string{
	"ncclMemAlloc": "2.19", "ncclMemFree": "2.19", "ncclCommRegister": "2.19", "ncclCommDeregister": "2.19",
	"ncclCommWindowRegister": "2.27", "ncclCommWindowDeregister": "2.27", "ncclAlltoAll": "2.28", "ncclGather": "2.28", "ncclScatter": "2.28",
}

// old are the flags of a 2.18.3.
func old(t *testing.T) []string {
	t.Helper()
	var names []string
	for name := range newer {
		names = append(names, name)
	}
	return append(bindtest.Lacking(t, names...), "-DFAKE_VERSION=21803")
}

// standIn starts the test in a process that finds a stand-in at path below its folder.
func standIn(t *testing.T, path, lib string, flags []string, env ...string) bool {
	t.Helper()
	return bindtest.Isolated(t, func(dir string) []string {
		if lib == "text" {
			bindtest.Write(t, filepath.Join(dir, path), strings.Repeat("not a library\n", 1000))
		} else if lib != "" {
			bindtest.Put(t, filepath.Join(dir, path), lib, flags...)
		}
		return append([]string{
			"LD_LIBRARY_PATH=" + filepath.Join(dir, "ld"), "VIRTUAL_ENV=" + filepath.Join(dir, "venv"), "CUDA_HOME=" + filepath.Join(dir, "home"),
			"FAKE_LOG=" + filepath.Join(dir, "log"), "FAKE_CONFIG=" + filepath.Join(dir, "config"),
		}, env...)
	})
}

// load loads a stand-in of the given version.
func load(t *testing.T, version int, env ...string) bool {
	t.Helper()
	if !standIn(t, "ld/libnccl.so.2", "nccl", []string{fmt.Sprint("-DFAKE_VERSION=", version)}, env...) {
		return false
	}
	ok(t, nccl.Load(""))
	return true
}

// otherwiseFound skips tests for places that come after those where a machine with GPUs has its own libraries.
func otherwiseFound(t *testing.T) {
	t.Helper()
	if native() {
		t.Skip("this machine's own libraries come first")
	}
}

func TestLoad(t *testing.T) {
	const wheel = "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
	for _, c := range []struct {
		name, path, explicit string
		code                 int
		version              string
	}{
		{"found by the loader", "ld/libnccl.so.2", "", 22809, "2.28.9"},
		{"of a wheel", wheel, "", 21803, "2.18.3"},
		{"beside cuda", "home/lib64/libnccl.so.2", "", 23007, "2.30.7"},
		{"explicit", "my/nccl.so", "my/nccl.so", 22605, "2.26.5"},
		{"numbered in the old way", "my/nccl.so", "my/nccl.so", 2708, "2.7.8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.explicit == "" && !strings.HasPrefix(c.path, "ld/") {
				otherwiseFound(t)
			}
			if !standIn(t, c.path, "nccl", []string{fmt.Sprint("-DFAKE_VERSION=", c.code)}) {
				return
			}
			explicit := ""
			if c.explicit != "" {
				explicit = bindtest.InDir(c.explicit)
			}
			ok(t, nccl.Load(explicit))
			if d := cmp.Diff(cuda.Library{Name: "nccl", Path: bindtest.InDir(c.path), Version: c.version}, nccl.Library()); d != "" {
				t.Error(d)
			}
			if v := nccl.LibraryVersion(); int(v) != c.code || !nccl.Has("ncclAllReduce") || nccl.Has("ncclNoSuchThing") {
				t.Errorf("version %d, has functions %v and %v", v, nccl.Has("ncclAllReduce"), nccl.Has("ncclNoSuchThing"))
			}
		})
	}
}

func TestLoadError(t *testing.T) {
	for _, c := range []struct {
		name, lib, explicit string
		flags               []string
		want                []string
	}{
		{"absent", "", "", nil, []string{"looked for libnccl.so.2", "LD_LIBRARY_PATH"}},
		{"text", "text", "", nil, []string{"ld/libnccl.so.2: invalid ELF header"}},
		{"another library", "nothing", "", nil, []string{"none of the functions of NCCL"}},
		{"no version", "nccl", "", []string{"-DncclGetVersion=other"}, []string{"ncclGetVersion: not in the loaded NCCL library"}},
		{"version fails", "nccl", "", []string{`-DFAKE_FAIL="ncclGetVersion=3"`}, []string{"ncclGetVersion: ncclInternalError (fake text 3)"}},
		{"explicit is absent", "nccl", "my/nccl.so", nil, []string{"cannot use", "my/nccl.so: cannot open shared object file: No such file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.explicit == "" {
				otherwiseFound(t)
			}
			if !standIn(t, "ld/libnccl.so.2", c.lib, c.flags) {
				return
			}
			explicit := ""
			if c.explicit != "" {
				explicit = bindtest.InDir(c.explicit)
			}
			err := nccl.Load(explicit)
			if e, lib := csrc.IsLibrary(err); !lib || e.Library != "NCCL" {
				t.Fatalf("got %v, want a *csrc.LibraryError", err)
			}
			wantText(t, err, append(c.want, "no NCCL: ", "collectives between GPUs need it", "libnccl2", "nvidia-nccl-cu13", "--engine host still works", "--nccl-lib")...)
			if strings.Contains(err.Error(), "0.0.0") {
				t.Errorf("%q has a version that nobody told", err)
			}
		})
	}
}

func drop[T any](_ T, err error) error { return err }

var (
	someID nccl.UniqueID
	noType = nccl.Int8
)

// calls are the binding's functions by the name of the C function that they call.
var calls = map[string]func(c *nccl.Comm) error{
	"ncclGetUniqueId":          func(c *nccl.Comm) error { return drop(nccl.NewUniqueID()) },
	"ncclCommInitRank":         func(c *nccl.Comm) error { return brief(nccl.InitRank(someID, 1, 0, nil)) },
	"ncclCommInitRankConfig":   func(c *nccl.Comm) error { return brief(nccl.InitRank(someID, 1, 0, nccl.NewConfig())) },
	"ncclCommInitAll":          func(c *nccl.Comm) error { all, err := nccl.InitAll([]int{0}); return brief(append(all, nil)[0], err) },
	"ncclCommSplit":            func(c *nccl.Comm) error { return brief(c.Split(0, 0, nil)) },
	"ncclCommFinalize":         (*nccl.Comm).Finalize,
	"ncclCommGetAsyncError":    (*nccl.Comm).AsyncError,
	"ncclCommCount":            func(c *nccl.Comm) error { return drop(c.Size()) },
	"ncclCommCuDevice":         func(c *nccl.Comm) error { return drop(c.Device()) },
	"ncclCommUserRank":         func(c *nccl.Comm) error { return drop(c.Rank()) },
	"ncclGroupStart":           func(*nccl.Comm) error { return nccl.Group(func() error { return nil }) },
	"ncclGroupEnd":             func(*nccl.Comm) error { return nccl.Group(func() error { return nil }) },
	"ncclAllReduce":            func(c *nccl.Comm) error { return c.AllReduce(1, 2, 3, noType, nccl.Sum, cuda.Stream{}) },
	"ncclBroadcast":            func(c *nccl.Comm) error { return c.Broadcast(1, 2, 3, noType, 0, cuda.Stream{}) },
	"ncclReduce":               func(c *nccl.Comm) error { return c.Reduce(1, 2, 3, noType, nccl.Max, 0, cuda.Stream{}) },
	"ncclAllGather":            func(c *nccl.Comm) error { return c.AllGather(1, 2, 3, noType, cuda.Stream{}) },
	"ncclReduceScatter":        func(c *nccl.Comm) error { return c.ReduceScatter(1, 2, 3, noType, nccl.Min, cuda.Stream{}) },
	"ncclSend":                 func(c *nccl.Comm) error { return c.Send(1, 3, noType, 0, cuda.Stream{}) },
	"ncclRecv":                 func(c *nccl.Comm) error { return c.Recv(2, 3, noType, 0, cuda.Stream{}) },
	"ncclAlltoAll":             func(c *nccl.Comm) error { return c.AlltoAll(1, 2, 3, noType, cuda.Stream{}) },
	"ncclGather":               func(c *nccl.Comm) error { return c.Gather(1, 2, 3, noType, 0, cuda.Stream{}) },
	"ncclScatter":              func(c *nccl.Comm) error { return c.Scatter(1, 2, 3, noType, 0, cuda.Stream{}) },
	"ncclMemAlloc":             func(c *nccl.Comm) error { return drop(nccl.MemAlloc(8)) },
	"ncclMemFree":              func(c *nccl.Comm) error { return nccl.MemFree(1) },
	"ncclCommRegister":         func(c *nccl.Comm) error { return drop(c.Register(1, 8)) },
	"ncclCommDeregister":       func(c *nccl.Comm) error { r, err := c.Register(1, 8); return first(r.Deregister(), err) },
	"ncclCommWindowRegister":   func(c *nccl.Comm) error { return drop(c.RegisterWindow(1, 8, true)) },
	"ncclCommWindowDeregister": func(c *nccl.Comm) error { w, err := c.RegisterWindow(1, 8, true); return first(w.Deregister(), err) },
	"ncclRedOpCreatePreMulSum": func(c *nccl.Comm) error { return drop(c.NewPreMulSum([8]byte{}, noType)) },
	"ncclRedOpDestroy":         func(c *nccl.Comm) error { return c.DestroyOp(5) },
	"ncclCommDestroy":          func(c *nccl.Comm) error { return ended((*nccl.Comm).Destroy) },
	"ncclCommAbort":            func(c *nccl.Comm) error { return ended((*nccl.Comm).Abort) },
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// someone is a communicator of the loaded stand-in.
func someone(t *testing.T) *nccl.Comm {
	t.Helper()
	c, err := nccl.InitRank(someID, 1, 0, nil)
	ok(t, err)
	t.Cleanup(func() {
		ok(t, os.Setenv("FAKE_FAIL", ""))
		ok(t, c.Abort())
	})
	return c
}

// brief ends a communicator that came to be.
func brief(c *nccl.Comm, err error) error {
	if err != nil {
		return err
	}
	return c.Abort()
}

func ended(end func(*nccl.Comm) error) error {
	c, err := nccl.InitRank(someID, 1, 0, nil)
	if err != nil {
		return err
	}
	return end(c)
}

// TestCallFails makes every function of the library fail and looks at the binding's error.
func TestCallFails(t *testing.T) {
	t.Parallel()
	if !load(t, 22809) {
		return
	}
	c := someone(t)
	for name, call := range calls {
		for _, code := range []nccl.Result{nccl.ErrUnhandledCUDA, nccl.ErrInternal, nccl.ErrRemote, 77} {
			ok(t, os.Setenv("FAKE_FAIL", fmt.Sprintf("%s=%d", name, code)))
			err := call(c)
			var e *nccl.Error
			if !errors.As(err, &e) {
				t.Errorf("%s = %d: got %v, want a *nccl.Error", name, code, err)
				continue
			}
			if d := cmp.Diff(nccl.Error{Func: name, Code: code, Text: fmt.Sprint("fake text ", int(code)), Last: "fake last"}, *e); d != "" {
				t.Error(d)
			}
			is(t, fmt.Errorf("rank 3: %w", err), code)
			if errors.Is(err, nccl.ErrInProgress) {
				t.Errorf("%v is everything", err)
			}
			wantText(t, err, name+": "+code.Name()+" (fake text ", "; last message: fake last")
		}
	}
	ok(t, os.Setenv("FAKE_FAIL", "ncclGroupStart=5"))
	is(t, nccl.Group(func() error { t.Error("runs outside of a group"); return nil }), nccl.ErrInvalidUsage)
	for name := range csrc.Functions(csrc.NCCL) {
		if calls[name] == nil && name != "ncclGetVersion" && name != "ncclGetErrorString" && name != "ncclGetLastError" {
			t.Errorf("%s is in the table and not tested", name)
		}
	}
	if n := nccl.Live(); n != 1 {
		t.Errorf("%d communicators count that never came to be, or have ended", n)
	}
}

// TestOldLibrary: a 2.18 lacks functions, and each says when it came.
func TestOldLibrary(t *testing.T) {
	t.Parallel()
	if !standIn(t, "ld/libnccl.so.2", "nccl", old(t)) {
		return
	}
	ok(t, nccl.Load(""))
	c := someone(t)
	for name, call := range calls {
		err := call(c)
		var e *csrc.MissingSymbolError
		since, lacks := newer[name]
		if lacks == nccl.Has(name) {
			t.Errorf("Has(%s) is %v", name, nccl.Has(name))
		}
		if !lacks {
			ok(t, err)
			continue
		}
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want a *csrc.MissingSymbolError", name, err)
			continue
		}
		want := csrc.MissingSymbolError{Func: name, Library: "NCCL", Path: bindtest.InDir("ld/libnccl.so.2"), Version: "2.18.3", Since: since}
		// What cannot be registered cannot be deregistered either.
		want.Func = strings.Replace(want.Func, "Deregister", "Register", 1)
		e.Func = strings.Replace(e.Func, "Deregister", "Register", 1)
		if d := cmp.Diff(want, *e); d != "" {
			t.Error(d)
		}
		wantText(t, err, "2.18.3", "it came with "+since)
	}
}

// TestInProgress is a state of calls that go on, and not an error of theirs.
func TestInProgress(t *testing.T) {
	t.Parallel()
	if !load(t, 22809, "FAKE_STARTING=1", "FAKE_BROKEN=2") {
		return
	}
	goesOn := []string{"ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommSplit", "ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort", "ncclGroupEnd", "ncclAllReduce", "ncclSend", "ncclCommWindowRegister"}
	c := someone(t)
	for _, name := range goesOn {
		ok(t, os.Setenv("FAKE_FAIL", name+"=7"))
		if err := calls[name](c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok(t, os.Setenv("FAKE_FAIL", ""))
	comms, err := nccl.InitAll([]int{0, 1, 2})
	ok(t, err)
	for i, want := range []error{nccl.ErrInProgress, nccl.ErrRemote, nil} {
		if err := comms[i].AsyncError(); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("communicator %d: got %v, want %v", i, err, want)
		}
		ok(t, comms[i].Destroy())
	}
	if n := nccl.Live(); n != 1 {
		t.Errorf("%d communicators", n)
	}
}

// configBytes is the size of ncclConfig_t as of 2.28.
const configBytes = 80

// received is the config that the stand-in was given.
func received(t *testing.T) (b []byte, texts string) {
	t.Helper()
	b, err := os.ReadFile(bindtest.InDir("config"))
	ok(t, err)
	if len(b) < configBytes {
		t.Fatalf("%d bytes were passed on", len(b))
	}
	return b[:configBytes], string(b[configBytes:])
}

// places are the config's fields in ncclConfig_t of 64 bits, but for the pointers to texts at 32 and 48.
var places = map[string]int{
	"version": 12, "blocking": 16, "cgaClusterSize": 20, "minCTAs": 24, "maxCTAs": 28, "splitShare": 40, "trafficClass": 44,
	"collnetEnable": 56, "CTAPolicy": 60, "shrinkShare": 64, "nvlsCTAs": 68, "nChannelsPerNetPeer": 72, "nvlinkCentricSched": 76,
}

// wantConfig compares what the stand-in was given; fields that are not named must be undefined.
func wantConfig(t *testing.T, set map[string]int, texts string) {
	t.Helper()
	b, gotTexts := received(t)
	if size, magic := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:]); size != configBytes || magic != 0xcafebeef {
		t.Errorf("size %d, magic %#x", size, magic)
	}
	got, want := make(map[string]int), make(map[string]int)
	for name, at := range places {
		got[name] = int(int32(binary.NativeEndian.Uint32(b[at:])))
		want[name] = math.MinInt32
	}
	for name, v := range set {
		want[name] = v
	}
	if d := cmp.Diff(want, got); d != "" || gotTexts != texts {
		t.Errorf("texts %q, want %q; fields:\n%s", gotTexts, texts, d)
	}
	for name, at := range map[string]int{"netName": 32, "commName": 48} {
		net, comm, _ := strings.Cut(texts, "|")
		empty := map[string]string{"netName": net, "commName": comm}[name] == ""
		if p := binary.NativeEndian.Uint64(b[at:]); (p == 0) != empty {
			t.Errorf("%s is at %#x", name, p)
		}
	}
}

// settings are all setters, with the first version that reads the field.
var settings = []struct {
	name  string
	since nccl.Version
	value int
	set   func(c *nccl.Config) error
}{
	{"blocking", 21400, 0, func(c *nccl.Config) error { return c.SetBlocking(false) }},
	{"cgaClusterSize", 21700, 4, func(c *nccl.Config) error { return c.SetCGAClusterSize(4) }},
	{"minCTAs", 21700, 5, func(c *nccl.Config) error { return c.SetMinCTAs(5) }},
	{"maxCTAs", 21700, 6, func(c *nccl.Config) error { return c.SetMaxCTAs(6) }},
	{"netName", 21700, -1, func(c *nccl.Config) error { return c.SetNetName("Socket") }},
	{"splitShare", 21800, 1, func(c *nccl.Config) error { return c.SetSplitShare(true) }},
	{"trafficClass", 22600, 7, func(c *nccl.Config) error { return c.SetTrafficClass(7) }},
	{"commName", 22700, -1, func(c *nccl.Config) error { return c.SetCommName("world") }},
	{"CTAPolicy", 22700, 2, func(c *nccl.Config) error { return c.SetCTAPolicy(2) }},
	{"nvlsCTAs", 22700, 8, func(c *nccl.Config) error { return c.SetNVLSCTAs(8) }},
	{"nvlinkCentricSched", 22800, 1, func(c *nccl.Config) error { return c.SetNVLinkCentricSched(true) }},
}

// TestConfig: a field reaches the library that reads it, and is refused where an older one would ignore it in silence.
func TestConfig(t *testing.T) {
	for version, told := range map[int]int{21301: 21301, 21405: 21405, 21803: 21803, 22605: 22605, 22703: 22703, 22800: 22800, 22809: 22800, 23007: 22800} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			if !load(t, version) {
				return
			}
			other, c := someone(t), nccl.NewConfig()
			want, net, comm := map[string]int{"version": told}, "", ""
			ok(t, brief(nccl.InitRank(someID, 1, 0, c)))
			wantConfig(t, want, "|")
			for _, s := range settings {
				err := s.set(c)
				if nccl.Version(version) < s.since {
					refused(t, err, nccl.VersionError{What: s.name, Since: s.since, Have: nccl.Version(version)})
					continue
				}
				ok(t, err)
				switch s.name {
				case "netName":
					net = "Socket"
				case "commName":
					comm = "world"
				default:
					want[s.name] = s.value
				}
			}
			ok(t, brief(nccl.InitRank(someID, 1, 0, c)))
			wantConfig(t, want, net+"|"+comm)
			ok(t, os.Remove(bindtest.InDir("config")))
			ok(t, brief(other.Split(1, 2, c)))
			wantConfig(t, want, net+"|"+comm)
		})
	}
}

func refused(t *testing.T, err error, want nccl.VersionError) {
	t.Helper()
	var e *nccl.VersionError
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v, want a *nccl.VersionError", want.What, err)
		return
	}
	if d := cmp.Diff(want, *e); d != "" {
		t.Error(d)
	}
	wantText(t, err, want.What+" needs NCCL ", fmt.Sprintf("%d.%d or newer", want.Since/10000, want.Since%10000/100), "the loaded library is "+want.Have.String())
}

// TestAbortInterrupts: Abort is for a communicator on which another thread hangs.
func TestAbortInterrupts(t *testing.T) {
	t.Parallel()
	if !load(t, 22809, "FAKE_HANG=ncclAllReduce") {
		return
	}
	c, err := nccl.InitRank(someID, 1, 0, nil)
	ok(t, err)
	returned := make(chan error, 1)
	go func() { returned <- c.AllReduce(1, 2, 3, noType, nccl.Sum, cuda.Stream{}) }()
	select {
	case err := <-returned:
		t.Fatalf("the call that should hang returns %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	start := time.Now()
	ok(t, c.Abort())
	<-returned
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("the call went on for %v", d)
	}
}

func TestHostNeedsTables(t *testing.T) {
	t.Parallel()
	if !standIn(t, "", "", nil) {
		return
	}
	var e *csrc.MissingSymbolError
	if err := nccl.UseHost(); !errors.As(err, &e) {
		t.Errorf("without cuda.UseHost: %v", err)
	}
}
