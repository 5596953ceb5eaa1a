package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench/result"
)

func TestParseSplit(t *testing.T) {
	for text, want := range map[string]splitter{
		"node": {by: "node"}, "local": {by: "local"}, " Node ": {by: "node"}, "LOCAL": {by: "local"},
		"mod:2": {"mod", 2}, "%2": {"mod", 2}, "% 2": {"mod", 2}, "MOD 2": {"mod", 2}, "mod: 2": {"mod", 2}, "div:4": {"div", 4}, "/4": {"div", 4}, "DIV 0x4": {"div", 4},
		"and:7": {"and", 7}, "&0x7": {"and", 7}, "AND 0b11": {"and", 3}, "and:0": {"and", 0}, "or:3": {"or", 3}, "|3": {"or", 3}, "OR 0": {"or", 0},
	} {
		got, err := parseSplit(text)
		if err != nil || got != want || ParseSplit(text) != nil {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"": "use node, local", "foo": "use node, local, mod:N", "foo:2": "use node, local", "mod": "use node", "mod:": "use node", "mod:x": "use node", "mod:-1": "use node",
		"mod:1.5": "use node", "mod:0": "must be 1 or more", "%0": "must be 1 or more", "div:0": "must be 1 or more", "/0": "must be 1 or more", "node:2": "use node",
		"2": "use node", "%": "use node", "mod:99999999999": "use node", "^2": "use node", "%/2": "use node",
	} {
		if err := ParseSplit(text); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "--split") {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func TestDivide(t *testing.T) {
	one := strings.Fields("a a a a a a")
	for _, c := range []struct {
		split string
		hosts []string
		want  []int
	}{
		{"mod:2", one, []int{0, 1, 0, 1, 0, 1}},
		{"mod:4", one, []int{0, 1, 2, 3, 0, 1}},
		{"div:2", one, []int{0, 0, 1, 1, 2, 2}},
		{"div:4", one, []int{0, 0, 0, 0, 1, 1}},
		{"div:99", one, []int{0, 0, 0, 0, 0, 0}},
		{"and:1", one, []int{0, 1, 0, 1, 0, 1}},
		{"and:2", one, []int{0, 0, 1, 1, 0, 0}},
		{"and:0", one, []int{0, 0, 0, 0, 0, 0}},
		{"or:1", one, []int{0, 0, 1, 1, 2, 2}},
		{"or:4", one, []int{0, 1, 2, 3, 0, 1}},
		{"node", one, []int{0, 0, 0, 0, 0, 0}},
		{"local", one, []int{0, 1, 2, 3, 4, 5}},
		// Hosts in turn, and of unequal size.
		{"node", strings.Fields("b a b a b b"), []int{0, 1, 0, 1, 0, 0}},
		{"local", strings.Fields("b a b a b b"), []int{0, 0, 1, 1, 2, 3}},
		{"mod:2", strings.Fields("b a b a b b"), []int{0, 1, 0, 1, 0, 1}},
		{"node", strings.Fields("a a b b c c"), []int{0, 0, 1, 1, 2, 2}},
		{"local", strings.Fields("a a b b c c"), []int{0, 1, 0, 1, 0, 1}},
	} {
		s, err := parseSplit(c.split)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.divide(c.hosts); !slices.Equal(got, c.want) {
			t.Errorf("%s of %v: %v, want %v", c.split, c.hosts, got, c.want)
		}
	}
}

func TestPlaces(t *testing.T) {
	p := goodPlan()
	p.World, p.Groups = 6, []int{1, 0, 1, 0, 1, 2}
	if w := p.worlds(); !slices.Equal(w, []int{2, 3, 1}) {
		t.Errorf("worlds %v", w)
	}
	want := [][3]int{{1, 0, 3}, {0, 0, 2}, {1, 1, 3}, {0, 1, 2}, {1, 2, 3}, {2, 0, 1}}
	for r, w := range want {
		if group, at, world := p.place(r); [3]int{group, at, world} != w {
			t.Errorf("rank %d: group %d, rank %d of %d; want %v", r, group, at, world, w)
		}
	}
	p.Groups = nil
	if group, at, world := p.place(4); group != 0 || at != 4 || world != 6 || !slices.Equal(p.worlds(), []int{6}) {
		t.Errorf("without groups: group %d, rank %d of %d; %v", group, at, world, p.worlds())
	}
}

// splitRun is a run of ranks on hosts whose devices are known.
func splitRun(split string, hosts ...string) *oneRun {
	var reports []deviceReport
	for _, h := range hosts {
		reports = append(reports, deviceReport{HostKey: h, Free: 80 << 30, Drivers: 1})
	}
	o := reported("host", 8, 4096, reports...)
	o.plan.Modes.Split = split
	return o
}

func TestGroups(t *testing.T) {
	g, err := splitRun("local", "a", "b", "a", "b").groups()
	if err != nil || !slices.Equal(g, []int{0, 0, 1, 1}) {
		t.Errorf("%v, %v", g, err)
	}
	if g, err := splitRun("", "a", "b").groups(); g != nil || err != nil {
		t.Errorf("without --split: %v, %v", g, err)
	}
	o := splitRun("node", "a", "a", "a", "b")
	o.plan.Root = 1
	var f *Failure
	if _, err := o.groups(); !errors.As(err, &f) || f.Kind != FailUsage || !strings.Contains(f.Text, "-r 1 with --split node: the smallest group has 1 ranks") {
		t.Errorf("a root beyond the smallest group: %v", err)
	}
	o.plan.Root = AllRoots
	if g, err := o.groups(); err != nil || !slices.Equal(g, []int{0, 0, 0, 1}) {
		t.Errorf("all roots: %v, %v", g, err)
	}
}

// What cannot be in one of the groups is left out with its reason, and the roots are those that all groups have.
func TestFinalPlanOfGroups(t *testing.T) {
	o := splitRun("node", "a", "b", "a", "b", "a")
	o.plan.Collectives = []string{"hypercube", "broadcast", "bisection"}
	o.plan.Root = AllRoots
	msg, err := o.finalPlan()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(msg.Plan.Groups, []int{0, 1, 0, 1, 0}) || len(o.out.Ranks) != 5 || o.out.Ranks[3].Group != 1 || o.out.Ranks[4].Group != 0 {
		t.Errorf("groups %v, ranks %+v", msg.Plan.Groups, o.out.Ranks)
	}
	if s := o.out.Skipped; len(s) != 1 || s[0].What != "hypercube" || !strings.Contains(s[0].Why, "power of two of ranks, not 3") {
		t.Errorf("skipped %+v", s)
	}
	steps, err := o.plan.steps()
	if err != nil {
		t.Fatal(err)
	}
	roots := map[string][]int{}
	for _, st := range steps {
		if st.ask == 64 {
			roots[st.coll.name] = append(roots[st.coll.name], st.root)
		}
	}
	if !slices.Equal(roots["broadcast"], []int{0, 1}) || !slices.Equal(roots["bisection"], []int{0}) {
		t.Errorf("roots %v", roots)
	}

	t.Run("nothing is left", func(t *testing.T) {
		o := splitRun("node", "a", "b", "a", "b", "a")
		o.plan.Collectives = []string{"hypercube"}
		var f *Failure
		if _, err := o.finalPlan(); !errors.As(err, &f) || f.Kind != FailUsage || !strings.Contains(f.Text, "not 3") {
			t.Errorf("%v", err)
		}
	})
	t.Run("groups may where the whole may not", func(t *testing.T) {
		o := splitRun("mod:3", "a", "a", "a", "a", "a", "a")
		o.plan.Collectives = []string{"hypercube"}
		if err := o.plan.Validate(); err != nil {
			t.Errorf("before the groups are known: %v", err)
		}
		if _, err := o.finalPlan(); err != nil {
			t.Errorf("three groups of two: %v", err)
		}
	})
}

// Groups of unequal size: each rank has the layout of its own group, each group its own row with its own size, count and busbw.
func TestMergeGroups(t *testing.T) {
	p := goodPlan()
	p.World, p.Groups = 5, []int{0, 1, 0, 1, 0}
	st := step{cell: cell{coll: &gather, dtype: 0, root: 1}, ask: 96, bytes: 96}
	var ranks []rankRow
	for r := range 5 {
		h := rankHalf{TimeNS: float64(1000 * (r + 1)), Checked: r != 3}
		ranks = append(ranks, rankRow{Halves: [2]rankHalf{h, h}})
	}
	ranks[4].Halves[0].Faults = []result.Fault{{Rank: 4, Wrong: 2}}
	rows := mergeRows(&p, st, stepMsg{Iters: 3}, ranks)
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	for g, want := range []struct {
		bytes  result.Bytes
		count  result.Count
		us     result.Micros
		factor float64
		ranks  []int
	}{{96, 32, 3, 2.0 / 3, []int{0, 2, 4}}, {96, 48, 3, 0.5, []int{1, 3}}} {
		r := rows[g]
		h := r.OutOfPlace
		if r.Group != g || r.Root != 1 || r.Op != "none" || r.Bytes != want.bytes || r.Count != want.count || h.TimeUS != want.us {
			t.Errorf("row %+v, half %+v; want %+v", r, h, want)
		}
		alg := float64(want.bytes) / float64(want.us) / 1e3
		if d := float64(h.BusBW) - alg*want.factor; d > 1e-12 || d < -1e-12 || float64(h.AlgBW) != alg {
			t.Errorf("group %d: algbw %g, busbw %g; want %g and a factor of %g", g, h.AlgBW, h.BusBW, alg, want.factor)
		}
		var have []int
		for _, k := range h.Ranks {
			have = append(have, k.Rank)
		}
		if !slices.Equal(have, want.ranks) {
			t.Errorf("group %d has ranks %v, want %v", g, have, want.ranks)
		}
	}
	if w := rows[0].OutOfPlace.Wrong; w == nil || *w != 2 || len(rows[0].OutOfPlace.Faults) != 1 {
		t.Errorf("the first group's faults: %+v", rows[0].OutOfPlace)
	}
	if h := rows[1].OutOfPlace; h.Wrong != nil || len(h.Faults) != 0 {
		t.Errorf("the second group did not check on rank 3: %+v", h)
	}
}
