package pairs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commprobe/commprobe/rdma"
)

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in:\n%s", p, text)
		}
	}
}

// Every NIC of every host pair is measured once, no host is in two measurements, the slow NIC is measured again and named.
func TestMatrix(t *testing.T) {
	w := newWorld(t, 2, "a", "b", "c", "d")
	w.value = func(from, _ string, _ int) float64 {
		if from == "b:m1" {
			return 41
		}
		return 95
	}
	r, told, err := w.run(t.Context(), w.plan("a", "b", "c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pairs) != 48 || r.Count(Measured) != 48 || w.tests != 48+6 {
		t.Errorf("%d pairs, %d measured, %d tests", len(r.Pairs), r.Count(Measured), w.tests)
	}
	if w.most > 2 || r.Concurrent != 2 {
		t.Errorf("%d host pairs at once, said %d", w.most, r.Concurrent)
	}
	if p := find(t, r, "b:m1", "c:m0"); !p.Slow || len(p.Values) != 2 || *p.OfPort != 0.41 || *p.Like != 95 {
		t.Errorf("%+v", p)
	}
	if p := find(t, r, "c:m0", "b:m1"); p.Slow || len(p.Values) != 1 {
		t.Errorf("%+v", p)
	}
	if f := r.Verdict.Findings; len(f) != 1 || f[0].Kind != KindNICSend || f[0].Name != "b:m1" || f[0].Bad != 6 || f[0].Of != 6 {
		t.Errorf("%+v", f)
	}
	has(t, strings.Join(told, "\n"), "48 measurements (write, 65536 bytes) between 8 NICs of 4 hosts, 2 host pairs at a time", "a says: Welcome to a", "6 pairs look slow")
}

func TestOneAtATime(t *testing.T) {
	w := newWorld(t, 1, "a", "b", "c", "d")
	p := w.plan("a", "b", "c", "d")
	p.OneAtATime = true
	r, _, err := w.run(t.Context(), p)
	if err != nil || w.most != 1 || r.Count(Measured) != 12 || r.Verdict.Status != Good {
		t.Errorf("%v: %d at once, %+v", err, w.most, r.Verdict)
	}
}

// Data goes from the row's NIC to the column's, whatever the test and whoever asks.
func TestDirections(t *testing.T) {
	for _, c := range []struct {
		test string
		both bool
		runs int
	}{{"write", false, 2}, {"read", false, 2}, {"send", false, 2}, {"write", true, 1}, {"read", true, 1}, {"write latency", false, 2}} {
		w := newWorld(t, 1, "a", "b")
		w.value = func(from, _ string, _ int) float64 { return map[string]float64{"a:m0": 91, "b:m0": 92}[from] }
		p := w.plan("a", "b")
		p.Options.Tests, p.Options.Bidirectional = []string{c.test}, c.both
		r, _, err := w.run(t.Context(), p)
		if err != nil || w.tests != c.runs {
			t.Fatalf("%+v: %v, %d tests", c, err, w.tests)
		}
		if x, y := *find(t, r, "a:m0", "b:m0").Value, *find(t, r, "b:m0", "a:m0").Value; x != 91 || y != 92 {
			t.Errorf("%+v: a to b %g, b to a %g", c, x, y)
		}
	}
}

// A host that fails is named with its phase, and the others go on.
func TestHostsThatFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(w *world)
		phase string
		kind  rdma.Kind
		says  []string
	}{
		{"cannot be started", func(w *world) { w.refuse["c"] = errors.New("exit status 255: no route") }, phaseStart, rdma.Died, []string{"no route"}},
		{"no agent", func(w *world) { w.noHello["c"] = "sh: commprobe: not found\n" }, phaseHello, rdma.Died, []string{"ended by itself"}},
		{"answers nonsense", func(w *world) { w.noHello["c"] = mark + "{\n" }, phaseHello, rdma.Died, []string{"no answer"}},
		{"version skew", func(w *world) { w.program["c"] = "v2" }, phaseVersion, rdma.Usage, []string{"commprobe v2", "v1", "--remote-binary"}},
		{"no device", func(w *world) { delete(w.hosts, "c") }, phaseList, rdma.Unusable, []string{"no RDMA device here"}},
		{"port down", func(w *world) {
			w.hosts["c"].Devices[0].Ports[0].Active, w.hosts["c"].Devices[0].Ports[0].State = false, "down"
		}, phaseList, rdma.Unusable, []string{"m0: port is down"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, "a", "b", "c")
			c.spoil(w)
			r, told, err := w.run(t.Context(), w.plan("a", "b", "c"))
			if err != nil || r.Count(Measured) != 2 || len(r.Pairs) != 2 || !r.HostFailed() {
				t.Fatalf("%v: %+v", err, r)
			}
			e := r.Hosts[2].Error
			if e == nil || e.Phase != c.phase || e.Kind != c.kind || e.Host != "c" {
				t.Fatalf("%+v", e)
			}
			has(t, e.Text, c.says...)
			has(t, strings.Join(told, "\n"), "c: "+c.phase+": ", "going on without it")
			var text strings.Builder
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			has(t, text.String(), "# c", "FAILED ("+c.phase+"): ")
		})
	}
}

func TestTooFewHosts(t *testing.T) {
	w := newWorld(t, 1, "a", "b")
	w.refuse["b"] = errors.New("no")
	r, _, err := w.run(t.Context(), w.plan("a", "b"))
	var f *Failure
	if !errors.As(err, &f) || f.Kind != rdma.Died || r.Verdict.Status != Nothing {
		t.Errorf("%v: %+v", err, r.Verdict)
	}
}

// A host that is lost in the middle takes its pairs with it, not the others'.
func TestHostLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, "a", "b", "c", "d")
	var once atomic.Bool
	w.during = func(client, server string) {
		if strings.HasPrefix(client+server, "b") || strings.Contains(server, "b:") {
			if once.CompareAndSwap(false, true) {
				w.mu.Lock()
				w.cut["b"]()
				w.mu.Unlock()
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	r, told, err := w.run(t.Context(), w.plan("a", "b", "c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	if e := r.Hosts[1].Error; e == nil || e.Phase != phaseMeasure {
		t.Errorf("%+v; told %q", e, told)
	}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		of := p.From.Host == "b" || p.To.Host == "b"
		if !of && p.Status != Measured || of && p.Status == Measured && p.Value == nil {
			t.Errorf("%s to %s: %s: %s", p.From, p.To, p.Status, p.Reason)
		}
	}
	if n := r.Count(NotMeasured); n == 0 || n > 6 {
		t.Errorf("%d not measured", n)
	}
}

// An agent that hangs in a call is given up after its time.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, "a", "b", "c")
	w.deadlock = "b"
	r, _, err := w.run(t.Context(), w.plan("a", "b", "c"))
	if err != nil || r.Hosts[1].Error == nil || find(t, r, "a:m0", "c:m0").Status != Measured {
		t.Fatalf("%v: %+v", err, r.Hosts[1].Error)
	}
	has(t, r.Hosts[1].Error.Text, "serve on b:m0: no answer of the agent within 2s")
}

// What was measured by then is kept.
func TestInterrupt(t *testing.T) {
	w := newWorld(t, 2, "a", "b", "c")
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int32
	w.during = func(string, string) {
		if n.Add(1) == 5 {
			cancel()
			time.Sleep(100 * time.Millisecond)
		}
	}
	r, _, err := w.run(ctx, w.plan("a", "b", "c"))
	if err != nil || !r.Interrupted || r.Count(Measured) < 4 || r.Count(Measured) > 6 || r.HostFailed() {
		t.Errorf("%v: interrupted %v, %d measured, %+v", err, r.Interrupted, r.Count(Measured), r.Hosts)
	}
	for i := range r.Pairs {
		if p := &r.Pairs[i]; p.Status == NotMeasured && p.Reason != "interrupted" {
			t.Errorf("%+v", p)
		}
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	has(t, text.String(), "# interrupted", "not measured: ")
}

// Wrong data is what it is; it is not tried again until it is right.
func TestWrongData(t *testing.T) {
	w := newWorld(t, 1, "a", "b", "c")
	w.fails = func(client, server string, _ int) error {
		if client == "a:m0" {
			return &rdma.Problem{Kind: rdma.WrongData, Text: "wrong data: 1 of 2 bytes"}
		}
		return nil
	}
	r, _, err := w.run(t.Context(), w.plan("a", "b", "c"))
	if err != nil || r.Count(WrongData) != 2 || w.tests != 6 {
		t.Fatalf("%v: %d tests, %+v", err, w.tests, r.Pairs)
	}
	if f := r.Verdict.Findings; len(f) != 1 || f[0].Kind != KindNICSend || f[0].Name != "a:m0" || f[0].Worst != 0 {
		t.Errorf("%+v", f)
	}
	has(t, r.Verdict.Findings[0].Text, "2 with wrong data of 2 pairs")
}

// What was slow or failed once only is told, and is no finding.
func TestSecondTime(t *testing.T) {
	w := newWorld(t, 1, "a", "b", "c")
	w.value = func(from, to string, try int) float64 {
		if from == "a:m0" && to == "b:m0" && try == 1 {
			return 30
		}
		return 95
	}
	w.fails = func(client, server string, try int) error {
		if client == "c:m0" && server == "b:m0" && try == 1 {
			return &rdma.Problem{Kind: rdma.TimedOut, Text: "nothing came"}
		}
		return nil
	}
	r, _, err := w.run(t.Context(), w.plan("a", "b", "c"))
	if err != nil || r.Verdict.Status != Good || w.tests != 8 {
		t.Fatalf("%v: %d tests, %+v", err, w.tests, r.Verdict)
	}
	if p := find(t, r, "a:m0", "b:m0"); !p.Unsteady || !slices.Equal(p.Values, []float64{30, 95}) || *p.Value != 95 {
		t.Errorf("%+v", p)
	}
	if p := find(t, r, "c:m0", "b:m0"); !p.Unsteady || p.FirstFailure != "nothing came" || *p.Value != 95 {
		t.Errorf("%+v", p)
	}
	w = newWorld(t, 1, "a", "b", "c")
	w.fails = func(client, server string, _ int) error {
		if client == "c:m0" && server == "b:m0" {
			return &rdma.Problem{Kind: rdma.TimedOut, Text: "nothing came"}
		}
		return nil
	}
	r, _, err = w.run(t.Context(), w.plan("a", "b", "c"))
	if f := r.Verdict.Findings; err != nil || len(f) != 1 || f[0].Kind != KindPairOneWay || f[0].Name != "c:m0 to b:m0" || w.tests != 7 {
		t.Errorf("%v: %d tests, %+v", err, w.tests, f)
	}
}

// Rails in subnets of their own that do not reach each other are no failures, and not all of them are tried. Silence within a rail is one.
func TestRailsWithoutPath(t *testing.T) {
	other := func(client, server string) bool { return client[len(client)-1] != server[len(server)-1] }
	w := newWorld(t, 2, "a", "b", "c")
	w.silent = other
	r, _, err := w.run(t.Context(), w.plan("a", "b", "c"))
	if err != nil || r.Count(NoPath) != 12 || r.Count(Measured) != 12 || r.Verdict.Status != Good {
		t.Fatalf("%v: %d without path, %d measured, %+v", err, r.Count(NoPath), r.Count(Measured), r.Verdict)
	}
	if w.tests != 12+enoughPath {
		t.Errorf("%d tests: subnets that do not reach each other were tried too often", w.tests)
	}
	has(t, find(t, r, "a:m0", "c:m1").Reason, "different subnets (10.0.0.0/24 and 10.1.0.0/24)")
	// InfiniBand says nothing of subnets.
	w = newWorld(t, 2, "a", "b", "c")
	w.silent = other
	for _, l := range w.hosts {
		for i := range l.Devices {
			p := &l.Devices[i].Ports[0]
			p.LinkLayer, p.LID, p.GIDs = infiniband, uint16(i+1), []rdma.GID{{Addr: "fe80::1", Subnet: "fe80::/64"}}
		}
	}
	r, _, err = w.run(t.Context(), w.plan("a", "b", "c"))
	if err != nil || r.Count(NoPath) != 12 || r.Verdict.Status != Good || w.tests != 12+enoughPath {
		t.Fatalf("%v: %d tests, %d without path, %+v", err, w.tests, r.Count(NoPath), r.Verdict)
	}
	has(t, find(t, r, "a:m0", "c:m1").Reason, "rails m0 and m1")
	w = newWorld(t, 2, "a", "b", "c")
	w.silent = func(client, server string) bool { return client == "a:m1" && server == "b:m1" }
	r, _, err = w.run(t.Context(), w.plan("a", "b", "c"))
	if f := r.Verdict.Findings; err != nil || r.Count(NoPath) != 0 || len(f) != 1 || f[0].Name != "a:m1 to b:m1" {
		t.Errorf("%v: %+v", err, r.Verdict.Findings)
	}
}

// A host that nobody reaches, or a NIC, is named without trying all of its pairs, and makes no other pair look as if it had no path.
func TestUnreachable(t *testing.T) {
	for _, c := range []struct {
		who  string
		kind Kind
		most int // attempts that fail, those of the second time among them
	}{{"b", KindHost, 3*enoughHost + maxSecond}, {"b:m1", KindNIC, 40}} {
		w := newWorld(t, 4, "a", "b", "c", "d")
		var silent atomic.Int32
		w.silent = func(client, server string) bool {
			if strings.HasPrefix(client, c.who) || strings.HasPrefix(server, c.who) {
				silent.Add(1)
				return true
			}
			return false
		}
		r, _, err := w.run(t.Context(), w.plan("a", "b", "c", "d"))
		if f := r.Verdict.Findings; err != nil || len(f) != 1 || f[0].Kind != c.kind || f[0].Name != c.who || int(silent.Load()) > c.most {
			t.Errorf("%s: %v: %d vain attempts, %+v", c.who, err, silent.Load(), f)
		}
		for i := range r.Pairs {
			p := &r.Pairs[i]
			if of := strings.HasPrefix(p.From.String(), c.who) || strings.HasPrefix(p.To.String(), c.who); !of && p.Status != Measured {
				t.Errorf("%s to %s: %s: %s", p.From, p.To, p.Status, p.Reason)
			} else if of && p.Status != Failed && p.Status != NotMeasured && p.Status != NoPath {
				t.Errorf("%s to %s: %s", p.From, p.To, p.Status)
			}
		}
	}
}

func TestRailsOnly(t *testing.T) {
	w := newWorld(t, 3, "a", "b")
	p := w.plan("a", "b")
	p.Rails = true
	r, _, err := w.run(t.Context(), p)
	if err != nil || len(r.Pairs) != 6 || r.RailsBy != "device name" {
		t.Errorf("%v: %d pairs by %s", err, len(r.Pairs), r.RailsBy)
	}
	w = newWorld(t, 2, "a", "b")
	for i := range w.hosts["b"].Devices {
		d := &w.hosts["b"].Devices[i]
		d.Name = "ib" + d.Name
		d.Ports[0].Device = d.Name
	}
	r, _, err = w.run(t.Context(), p)
	if err != nil || len(r.Pairs) != 4 || r.RailsBy != "position" || find(t, r, "a:m1", "b:ibm1").From.Rail != "#1" {
		t.Errorf("%v: %d pairs by %s", err, len(r.Pairs), r.RailsBy)
	}
}

// Other link layers are not tried, ports that are down or not named are listed with the reason.
func TestWhatIsNotPaired(t *testing.T) {
	w := newWorld(t, 3, "a", "b")
	w.hosts["a"].Devices[1].Ports[0].LinkLayer = "InfiniBand"
	w.hosts["b"].Devices[2].Ports[0].Active, w.hosts["b"].Devices[2].Ports[0].State = false, "init"
	p := w.plan("a", "b")
	p.Devices = []string{"m1", "m2/1"}
	r, _, err := w.run(t.Context(), p)
	if err != nil || len(r.Pairs) != 4 || r.Count(NoPath) != 2 || r.Count(Measured) != 2 {
		t.Fatalf("%v: %+v", err, r.Pairs)
	}
	has(t, find(t, r, "a:m1", "b:m1").Reason, "wrong link layer")
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	has(t, text.String(), "m0 (not used: not named by --devices)", "m2 (not used: port is init)", "# no path: ")
}

// What the options ask for and a device cannot is said of each pair, and fails.
func TestOptionsTooLarge(t *testing.T) {
	w := newWorld(t, 1, "a", "b")
	w.hosts["a"].Devices[0].Ports[0].MaxQPs = 4
	p := w.plan("a", "b")
	p.Options.QPs = 8
	r, _, err := w.run(t.Context(), p)
	if err != nil || r.Count(Failed) != 2 || w.tests != 0 || r.Verdict.Status != Bad {
		t.Fatalf("%v: %+v", err, r)
	}
	has(t, r.Pairs[0].Reason, "8 QPs are needed, the device can have 4")
}

func TestPlanIsChecked(t *testing.T) {
	for _, c := range []struct {
		spoil func(p *Plan)
		says  string
	}{
		{func(p *Plan) { p.Options.Sizes = []int{1, 2} }, "one test at one size"},
		{func(p *Plan) { p.Options.Tests = []string{"write", "read"} }, "one test at one size"},
		{func(p *Plan) { p.Options.Tests = []string{"push"} }, "push"},
		{func(p *Plan) { p.Below = 1.5 }, "--below 1.5"},
		{func(p *Plan) { p.Hosts = p.Hosts[:1] }, "two hosts"},
	} {
		w := newWorld(t, 1, "a", "b")
		p := w.plan("a", "b")
		c.spoil(&p)
		if _, _, err := w.run(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.says, err)
		}
	}
}

// Many NICs are summed up by host pair instead of a matrix.
func TestSummary(t *testing.T) {
	w := newWorld(t, 4, "a", "b", "c", "d")
	w.value = func(from, to string, _ int) float64 {
		if from == "a:m0" && to == "d:m3" {
			return 20
		}
		return 95
	}
	r, _, err := w.run(t.Context(), w.plan("a", "b", "c", "d"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	has(t, text.String(), "by host pair", fmt.Sprintf("%-5s  %8d %8s %8s %8s %6d", "a - d", 32, "20.0", "95.0", "95.0", 1),
		"a:m0 to d:m3: slow: 20.0 Gb/s, 20 % of the ports' 100 Gb/s; like pairs have 95.0; twice measured", "VERDICT: path from a:m0 to d:m3, in this direction only; 1 slow of 1 pairs")
	if strings.Contains(text.String(), "from \\ to") {
		t.Error("a matrix as well")
	}
}
