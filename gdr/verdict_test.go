package gdr

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func p[T any](v T) *T { return &v }

// good is a node on which everything is as it should be, with one pair that was not tried yet.
func good() Facts {
	return Facts{
		Kernel: "6.8.0", DMABufKernel: p(true), Driver: "580.82.07", OpenModules: p(true), PeerLoaded: p(false), Library: "50.0 /lib/libibverbs.so.1", DMABufVerbs: p(true),
		Memlock: p(^uint64(0)), Container: p(false), Virtual: p(false), Level: "P2C", LevelFrom: "default",
		GPUs:  []GPU{{ID: "GPU0", PCI: "0000:0f:00.0", DMABuf: p(true), BAR1: p(uint64(128 << 30)), Memory: 80 << 30, Export: Outcome{State: Works}}},
		NICs:  []NIC{{Name: "mlx5_0", PCI: "0000:10:00.0", Port: "active", DMABuf: p(true), Relaxed: p(true)}},
		Pairs: []Pair{{GPU: "GPU0", NIC: "mlx5_0", Distance: "PIX", SMI: "PIX", Translated: p(false)}},
	}
}

var (
	wentThrough  = Trial{DMABuf, Outcome{State: Works}, Outcome{State: Works}}
	refusedBuf   = Trial{DMABuf, Outcome{Fails, "operation not supported"}, Outcome{}}
	refusedPeer  = Trial{PeerMem, Outcome{Fails, "bad address"}, Outcome{}}
	lostOnTheWay = Trial{DMABuf, Outcome{State: Works}, Outcome{Fails, "status 4"}}
	portDown     = Trial{DMABuf, Outcome{State: Works}, Outcome{Text: "port 1 is down"}}
)

// TestJudge plants each cause by itself.
func TestJudge(t *testing.T) {
	refused := func(change func(f *Facts)) func(f *Facts) {
		return func(f *Facts) {
			f.Pairs[0].Trials = []Trial{refusedBuf, refusedPeer}
			f.PeerLoaded, f.PeerModule = p(true), "nvidia_peermem" // no cause but the planted one
			change(f)
		}
	}
	moved := func(trial Trial, change func(f *Facts)) func(f *Facts) {
		return func(f *Facts) {
			f.Pairs[0].Trials = []Trial{trial}
			change(f)
		}
	}
	nothing := func(*Facts) {}
	for _, c := range []struct {
		name   string
		change func(f *Facts)
		answer Answer
		method Method
		causes []string
		why    string
	}{
		{"works", moved(wentThrough, nothing), Yes, DMABuf, nil, "data went through"},
		{"works by peer memory alone", func(f *Facts) {
			f.Pairs[0].Trials = []Trial{refusedBuf, {PeerMem, Outcome{State: Works}, Outcome{State: Works}}}
		}, Yes, PeerMem, nil, "peer memory"},
		{"works, ACS slows", moved(wentThrough, func(f *Facts) { f.Pairs[0].ACS = []string{"0000:0a:00.0"} }), Yes, DMABuf, []string{"acs"}, ""},
		{"works, IOMMU slows", moved(wentThrough, func(f *Facts) { f.Pairs[0].Translated = p(true) }), Yes, DMABuf, []string{"iommu"}, ""},
		{"works, IOMMU of a guest", moved(wentThrough, func(f *Facts) { f.Pairs[0].Translated, f.Virtual = p(true), p(true) }), Yes, DMABuf, nil, ""},
		{"works, BAR1 smaller than memory", moved(wentThrough, func(f *Facts) { *f.GPUs[0].BAR1 = 32 << 30 }), Yes, DMABuf, []string{"bar1"}, ""},
		{"works, no relaxed ordering", moved(wentThrough, func(f *Facts) { f.NICs[0].Relaxed = p(false) }), Yes, DMABuf, []string{"relaxed-ordering"}, ""},
		{"works, little may be locked", moved(wentThrough, func(f *Facts) { f.Memlock = p(uint64(8 << 20)) }), Yes, DMABuf, []string{"memlock"}, ""},
		{"data lost, nothing seen", moved(lostOnTheWay, nothing), No, "", []string{"transfer"}, "status 4"},
		{"data lost, ACS", moved(lostOnTheWay, func(f *Facts) { f.Pairs[0].ACS = []string{"0000:0a:00.0"} }), No, "", []string{"acs"}, ""},
		{"data lost, ACS hidden", moved(lostOnTheWay, func(f *Facts) { f.Pairs[0].ACSHidden = true }), No, "", []string{"acs-unknown"}, ""},
		{"data lost, IOMMU", moved(lostOnTheWay, func(f *Facts) { f.Pairs[0].Translated = p(true) }), No, "", []string{"iommu"}, ""},
		{"registered, port down", moved(portDown, nothing), CannotTell, DMABuf, nil, "port 1 is down"},
		{"refused, nothing seen", refused(nothing), No, "", nil, "DMA-BUF: operation not supported; peer memory: bad address"},
		{"old kernel", refused(func(f *Facts) { f.Kernel, f.DMABufKernel = "5.4.0", p(false) }), No, "", []string{"old-kernel"}, ""},
		{"closed modules", refused(func(f *Facts) { f.OpenModules, f.GPUs[0].DMABuf = p(false), p(false) }), No, "", []string{"closed-modules"}, ""},
		{"card without", refused(func(f *Facts) { f.GPUs[0].DMABuf = p(false) }), No, "", []string{"no-attribute"}, ""},
		{"old libibverbs", refused(func(f *Facts) { f.DMABufVerbs = p(false) }), No, "", []string{"old-libibverbs"}, ""},
		{"NIC driver without DMA-BUF", refused(func(f *Facts) { f.NICs[0].DMABuf = p(false) }), No, "", []string{"nic-no-dmabuf"}, ""},
		{"no peer memory module", refused(func(f *Facts) { f.PeerLoaded = p(false) }), No, "", []string{"no-peermem"}, ""},
		{"small BAR1", refused(func(f *Facts) { *f.GPUs[0].BAR1 = 256 << 20 }), No, "", []string{"small-bar1"}, ""},
		{"locked memory", refused(func(f *Facts) {
			f.Memlock, f.Pairs[0].Trials = p(uint64(64<<10)), []Trial{{PeerMem, Outcome{Fails, "ibv_reg_mr: cannot allocate memory"}, Outcome{}}}
		}), No, "", []string{"memlock"}, ""},
		{"locked memory is not it", refused(func(f *Facts) { f.Memlock = p(uint64(64 << 10)) }), No, "", nil, ""},
		{"nothing is known", refused(func(f *Facts) {
			*f = Facts{GPUs: []GPU{{ID: "GPU0"}}, NICs: []NIC{{Name: "mlx5_0"}}, Pairs: f.Pairs}
		}), No, "", nil, ""},
		{"NIC cannot be opened", moved(Trial{DMABuf, Outcome{Text: "no permission"}, Outcome{}}, nothing), CannotTell, "", nil, "no permission"},
		{"nothing tried", nil, CannotTell, "", nil, "nothing was tried"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Report{Facts: good()}
			if c.change != nil {
				c.change(&r.Facts)
			}
			Judge(&r)
			if len(r.Verdicts) != 1 {
				t.Fatalf("%+v", r.Verdicts)
			}
			v := r.Verdicts[0]
			var causes []string
			for _, x := range v.Causes {
				causes = append(causes, x.Code)
				if x.Text == "" || x.Fix == "" {
					t.Errorf("%+v says too little", x)
				}
			}
			if v.Answer != c.answer || v.Method != c.method || !slices.Equal(causes, c.causes) || !strings.Contains(v.Why, c.why) || v.Why == "" {
				t.Errorf("got %+v", v)
			}
		})
	}
}

func TestNCCLRule(t *testing.T) {
	for _, c := range []struct {
		env      map[string]string
		distance string
		level    string
		uses     *bool
	}{
		{nil, "PIX", "P2C", p(true)},
		{nil, "P2C", "P2C", p(true)},
		{nil, "PHB", "P2C", p(false)},
		{nil, "", "P2C", nil},
		{map[string]string{"NCCL_NET_GDR_C2C": "0"}, "P2C", "PXB", p(false)},
		{map[string]string{"NCCL_NET_GDR_LEVEL": "sys"}, "SYS", "SYS", p(true)},
		{map[string]string{"NCCL_NET_GDR_LEVEL": "3"}, "PHB", "PHB", p(true)},
		{map[string]string{"NCCL_NET_GDR_LEVEL": "1"}, "PXB", "PIX", p(false)},
		{map[string]string{"NCCL_NET_GDR_LEVEL": "nonsense"}, "PXB", "P2C", p(true)},
	} {
		f := good()
		f.Level, f.LevelFrom = Level(func(k string) string { return c.env[k] })
		f.Pairs[0].Distance = c.distance
		uses, why := f.nccl(&f.Pairs[0])
		if f.Level != c.level || !reflect.DeepEqual(uses, c.uses) || (uses == nil) != (why == "") {
			t.Errorf("%v at %q: level %s, uses %v: %s", c.env, c.distance, f.Level, uses, why)
		}
	}
}

// fakeTester answers by GPU and NIC, and remembers what was asked.
type fakeTester struct {
	export map[int]Outcome
	trial  map[Method]Trial
	asked  []string
}

func (f *fakeTester) Export(device int) Outcome { return f.export[device] }

func (f *fakeTester) Loopback(device int, nic string, m Method) Trial {
	f.asked = append(f.asked, nic+" "+string(m))
	t := f.trial[m]
	t.Method = m
	return t
}

// TestTry: what cannot work is not tried, and what is tried ends in the pair.
func TestTry(t *testing.T) {
	quiet := func(string) {}
	f := good()
	tester := &fakeTester{export: map[int]Outcome{0: {State: Works}}, trial: map[Method]Trial{DMABuf: wentThrough, PeerMem: refusedPeer}}
	Try(&f, tester, quiet)
	if !slices.Equal(tester.asked, []string{"mlx5_0 DMA-BUF", "mlx5_0 peer memory"}) || f.Pairs[0].Trials[0].Move.State != Works || f.Pairs[0].Trials[1].Register.State != Fails {
		t.Errorf("%q, %+v", tester.asked, f.Pairs[0].Trials)
	}

	f, tester.asked = good(), nil
	tester.export[0] = Outcome{Fails, "not supported"}
	Try(&f, tester, quiet)
	if !slices.Equal(tester.asked, []string{"mlx5_0 peer memory"}) || f.Pairs[0].Trials[0].Register != (Outcome{Fails, "not supported"}) {
		t.Errorf("without export: %q, %+v", tester.asked, f.Pairs[0].Trials)
	}

	f, tester.asked = good(), nil
	f.NICs[0].Closed = "no permission"
	Try(&f, tester, quiet)
	r := Report{Facts: f}
	Judge(&r)
	if tester.asked != nil || r.Verdicts[0].Answer != CannotTell || !strings.Contains(r.Verdicts[0].Why, "no permission") {
		t.Errorf("closed NIC: %q, %+v", tester.asked, r.Verdicts)
	}

	f, tester.asked = good(), nil
	f.HostEngine = true
	Try(&f, tester, quiet)
	r = Report{Facts: f}
	Judge(&r)
	if tester.asked != nil || r.Verdicts[0].Answer != CannotTell || !strings.Contains(r.Verdicts[0].Why, "host memory, no GPUDirect") || r.Count(No) != 0 {
		t.Errorf("host engine: %q, %+v", tester.asked, r.Verdicts)
	}
}

// TestWithoutNIC: each GPU's export is told, with what is in its way.
func TestWithoutNIC(t *testing.T) {
	f := good()
	f.NICs, f.Pairs = nil, nil
	f.OpenModules = p(false)
	f.GPUs = append(f.GPUs, GPU{ID: "GPU1", Device: 1})
	Try(&f, &fakeTester{export: map[int]Outcome{0: {State: Works}, 1: {Fails, "not supported"}}}, func(string) {})
	r := Report{Facts: f}
	Judge(&r)
	if len(r.Verdicts) != 0 || len(r.Causes) != 1 || r.Causes[0].Code != "closed-modules" {
		t.Errorf("%+v", r)
	}
	text := textOf(t, &r)
	for _, want := range []string{"GPU0", "export: works", "export: fails (not supported)", "no RDMA device", "in the way of exporting GPU memory", "nvidia-open"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func textOf(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestText: a reason that many pairs share is told once, the worst answer first, and the JSON reads back as the same.
func TestText(t *testing.T) {
	f := good()
	f.GPUs = append(f.GPUs, GPU{ID: "GPU1", DMABuf: p(false)})
	f.NICs = append(f.NICs, NIC{Name: "mlx5_bond_0", Closed: "no permission"})
	f.Pairs = nil
	for _, g := range []string{"GPU0", "GPU1"} {
		f.Pairs = append(f.Pairs, Pair{GPU: g, NIC: "mlx5_0", Distance: "PIX", Trials: []Trial{wentThrough}}, Pair{GPU: g, NIC: "mlx5_bond_0", Distance: "SYS", Trials: []Trial{refusedBuf}})
	}
	r := Report{Schema: Schema, Facts: f}
	Judge(&r)
	text := textOf(t, &r)
	for _, want := range []string{"yes PIX", "NO SYS", "works: GPU0 and mlx5_0, GPU1 and mlx5_0", "NCCL uses it: no; distance SYS is beyond P2C", "cannot be opened: no permission", "locked memory limit    none"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Index(text, "does not work:") > strings.Index(text, "\nworks:") {
		t.Error("what works stands before what does not")
	}
	raw, err := json.Marshal(&r)
	var back Report
	if err == nil {
		err = json.Unmarshal(raw, &back)
	}
	if err != nil || !reflect.DeepEqual(r.Verdicts, back.Verdicts) || !reflect.DeepEqual(r.Facts, back.Facts) {
		t.Errorf("the JSON does not read back: %v\n%s", err, raw)
	}
}
