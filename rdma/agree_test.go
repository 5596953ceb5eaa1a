package rdma

import (
	"strings"
	"testing"
)

func TestAgree(t *testing.T) {
	t.Parallel()
	ib := func(s *Side, lid uint16) {
		s.LinkLayer, s.LID, s.GIDs = infiniband, lid, []GID{{Index: 0, Addr: "fe80::" + string(rune('0'+lid)), Type: typeRoCE1}}
	}
	for _, c := range []struct {
		name   string
		change func(client, server *Side, o *Options)
		mtu    int
		reads  int
		notes  []string
		why    string
	}{
		{"alike", func(*Side, *Side, *Options) {}, 1024, 16, nil, "RoCE v2"},
		{"MTUs differ", func(_, s *Side, _ *Options) { s.MTU = 4096 }, 1024, 16, []string{"the MTUs differ: rxe0 port 1 of a has 1024, rxe0 port 1 of b has 4096; both use 1024"}, "RoCE v2"},
		{"MTU asked for", func(_, _ *Side, o *Options) { o.MTU = 512 }, 512, 16, nil, "RoCE v2"},
		{"reads of the weaker", func(_, s *Side, _ *Options) { s.MaxReads = 4 }, 1024, 4, nil, "RoCE v2"},
		{"reads in both directions", func(_, s *Side, o *Options) { s.MaxReadsOut, o.Bidirectional = 2, true }, 1024, 2, nil, "RoCE v2"},
		{"reads asked for", func(_, _ *Side, o *Options) { o.Reads = 3 }, 1024, 3, nil, "RoCE v2"},
		{"more reads than there are", func(_, s *Side, o *Options) { s.MaxReads, o.Reads = 4, 9 }, 1024, 4, nil, "RoCE v2"},
		{"InfiniBand", func(a, b *Side, _ *Options) { ib(a, 1); ib(b, 2) }, 1024, 16, nil, "InfiniBand, LID 1 to LID 2"},
		{"InfiniBand with GRH", func(a, b *Side, _ *Options) { ib(a, 1); ib(b, 2); b.GRHRequired = true }, 1024, 16, nil, "global header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, o := goodSide("a", 1), goodSide("b", 2), Defaults()
			c.change(a, b, &o)
			got, err := agree(a, b, &o)
			if err != nil {
				t.Fatal(err)
			}
			if got.MTU != c.mtu || got.Reads != c.reads || !strings.Contains(got.Pairs[0].Why, c.why) || len(got.Notes) != len(c.notes) {
				t.Errorf("%+v", got)
			}
			if global := got.Pairs[0].Global; global != (a.LinkLayer == ethernet || b.GRHRequired) {
				t.Errorf("global %v", global)
			}
			for i, n := range c.notes {
				if !strings.Contains(got.Notes[i], n) {
					t.Errorf("note %q, want %q", got.Notes[i], n)
				}
			}
		})
	}
}

func TestDisagree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(client, server *Side, o *Options)
		kind   Kind
		says   []string
	}{
		{"port down, no carrier", func(a, _ *Side, _ *Options) { a.Active, a.State, a.PhysState = false, "down", physPolling }, Unusable, []string{"port down: rxe0 port 1 of a is down (physical state polling)", "cable"}},
		{"port without subnet manager", func(_, b *Side, _ *Options) { b.Active, b.State, b.LinkLayer = false, "init", infiniband }, Unusable, []string{"no subnet manager", "opensm"}},
		{"interface down", func(a, _ *Side, _ *Options) { a.Active, a.State, a.PhysState = false, "down", physDisabled }, Unusable, []string{"network device is down", "ip link set DEV up"}},
		{"state that nobody knows", func(a, _ *Side, _ *Options) { a.Active, a.State, a.PhysState = false, "", 9 }, Unusable, []string{"in an unknown state (physical state 9)"}},
		{"link layers", func(_, b *Side, _ *Options) { b.LinkLayer = infiniband }, Unusable, []string{"wrong link layer", "-d and -i"}},
		{"MTU above both", func(_, b *Side, o *Options) { b.MTU, o.MTU = 4096, 2048 }, Usage, []string{"MTU mismatch: -m 2048 is more than both ports carry", "a: 1024", "b: 4096", "at most 1024"}},
		{"no LID", func(a, b *Side, _ *Options) { a.LinkLayer, b.LinkLayer = infiniband, infiniband }, Unusable, []string{"no LID", "subnet manager"}},
		{"too many QPs", func(_, b *Side, o *Options) { b.MaxQPs, o.QPs = 4, 5 }, Usage, []string{"rxe0 port 1 of b: 5 QPs are needed, the device can have 4", "-q"}},
		{"too deep", func(_, b *Side, o *Options) { o.Depth = 2048 }, Usage, []string{"2048 outstanding operations", "-t"}},
		{"too many completions", func(a, _ *Side, o *Options) { a.MaxCQE, o.QPs = 1000, 10 }, Usage, []string{"1280 completions"}},
		{"no reads", func(_, b *Side, o *Options) { b.MaxReads, o.Tests = 0, []string{"read"} }, Unusable, []string{"READ and atomics are not possible"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, o := goodSide("a", 1), goodSide("b", 2), Defaults()
			c.change(a, b, &o)
			_, err := agree(a, b, &o)
			says(t, err, c.kind, c.says...)
		})
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	good := Defaults()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Options)
		says   string
	}{
		{func(o *Options) { o.Tests = nil }, "0 tests"},
		{func(o *Options) { o.Tests = []string{"push"} }, `test "push"`},
		{func(o *Options) { o.Sizes = nil }, "0 sizes"},
		{func(o *Options) { o.Sizes = []int{0} }, "-s 0"},
		{func(o *Options) { o.Sizes = []int{2 << 30} }, "-s 2147483648"},
		{func(o *Options) { o.Sizes, o.QPs = []int{1 << 30}, 1024 }, "2048 GiB"},
		{func(o *Options) { o.Iterations = 1 }, "-n 1"},
		{func(o *Options) { o.Duration = 1 }, "-D 1ns"},
		{func(o *Options) { o.Duration, o.Margin = 1e9, 5e8 }, "leaves nothing between two margins"},
		{func(o *Options) { o.QPs = 0 }, "-q 0"},
		{func(o *Options) { o.Depth = 0 }, "-t 0"},
		{func(o *Options) { o.Signal, o.Depth = 8, 4 }, "signal=8"},
		{func(o *Options) { o.MTU = 1500 }, "-m 1500"},
		{func(o *Options) { o.ClientGID = -2 }, "-x -2"},
		{func(o *Options) { o.Deadline = 0 }, "-T 0s"},
		{func(o *Options) { o.Memory = "gpu" }, `--memory "gpu"`},
		{func(o *Options) { o.Memory = "gpu:x" }, `--memory "gpu:x"`},
		{func(o *Options) { o.Memory = "disk" }, "host, gpu:N or dmabuf:N"},
		{func(o *Options) { o.Checks = 0 }, "checks=0"},
		{func(o *Options) { o.ServiceLevel = 16 }, "sl=16"},
	} {
		o := Defaults()
		c.change(&o)
		says(t, o.Validate(), Usage, c.says)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	o := Defaults()
	for _, kv := range []string{"sl=3", "tclass=106", "margin=0.25", "inline=-1", "cpu=5"} {
		if err := o.Set(kv); err != nil {
			t.Error(err)
		}
	}
	if o.ServiceLevel != 3 || o.TrafficClass != 106 || o.Margin != 250e6 || o.CPU != 5 {
		t.Errorf("%+v", o)
	}
	for kv, want := range map[string]string{"sl": "key=value", "sl=x": "0 to 15", "sl=16": "0 to 15", "tclas=1": "no such key", "margin=-1": "seconds"} {
		says(t, o.Set(kv), Usage, want)
	}
	if lines := Keys(); len(lines) != len(keys)+1 {
		t.Errorf("%d lines for %d keys", len(lines), len(keys))
	}
}

func TestCompleteAddr(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": ":18517", "hostb": "hostb:18517", "hostb:1": "hostb:1", ":7": ":7", "7777": ":7777", "10.0.0.1": "10.0.0.1:18517", "::1": "[::1]:18517", "[::1]": "[::1]:18517", "[::1]:5": "[::1]:5"} {
		if got := CompleteAddr(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The buffers of the QPs neither overlap nor leave the memory.
func TestLayout(t *testing.T) {
	t.Parallel()
	o := Defaults()
	o.QPs, o.Sizes = 3, []int{2, 65537}
	end := 0
	for qp := range o.QPs {
		for _, at := range []int{o.source(qp), o.target(qp)} {
			if at != end || at%4096 != 0 {
				t.Errorf("QP %d: a buffer at %d, the one before ends at %d", qp, at, end)
			}
			end = at + o.stride()
		}
	}
	if end != o.buffer() || o.stride() < 65537 {
		t.Errorf("%d bytes, buffers end at %d", o.buffer(), end)
	}
}
