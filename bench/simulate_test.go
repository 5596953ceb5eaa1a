package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// The collectives' calls are carried out here on symbolic data, by NCCL's definitions, and what is then in the receive buffers is compared
// with what the check will expect. An element is whose data it is (a set of ranks: a reduction is their union) and which of its elements.
type symbol struct {
	ranks uint64
	index int64
}

// memory is one rank's elements by address.
type memory map[int64]symbol

// player is one rank in the simulation.
type player struct {
	member
	mem        memory
	send, recv int64 // where input and result are
	rounds     [][]csrc.Step
}

// play is one operation of all ranks.
type play struct {
	t       *testing.T
	task    *task
	elt     int64
	inPlace bool
	all     []*player
}

// Addresses of the buffers: far apart, so that whoever leaves its own is noticed.
const (
	playSend   = 1 << 20
	playRecv   = 1 << 30
	playBuffer = 1 << 16
	playShift  = 4096 // of the rotation
)

func newPlay(t *testing.T, plan *Plan, c cell, size result.Bytes, inPlace bool) *play {
	t.Helper()
	p := &play{t: t, task: &task{step: step{cell: c, ask: size}, plan: plan}, elt: int64(c.dtype.Size()), inPlace: inPlace}
	for r := range plan.World {
		m := member{lane: &lane{rank: r, at: r, world: plan.World, send: playSend, recv: playRecv, bufBytes: playBuffer}, s: plan.shape(c, r, plan.World), op: c.op}
		m.ly = c.coll.lay(m.s, size, c.dtype)
		m.idle = c.coll.idle != nil && c.coll.idle(m.s)
		m.sideBySide = c.coll.exchange
		m.base = int64(plan.Modes.Unalign) * p.elt
		a := &player{member: m, mem: memory{}}
		send, recv := m.buffers(inPlace)
		a.send, a.recv = int64(send)+playShift, int64(recv)+playShift
		for i := range int64(m.ly.send) {
			a.mem[a.send+i*p.elt] = symbol{1 << r, i}
		}
		if !m.idle {
			a.rounds = m.rounds(p.task, r, inPlace, playShift)
		}
		p.all = append(p.all, a)
	}
	return p
}

func (p *play) fail(format string, args ...any) {
	p.t.Helper()
	where := "out of place"
	if p.inPlace {
		where = "in place"
	}
	p.t.Fatalf("%s, %d bytes on %d ranks, %s: %s", p.task.name(), p.task.ask, len(p.all), where, fmt.Sprintf(format, args...))
}

// run carries out all rounds.
func (p *play) run() {
	p.t.Helper()
	n := -1
	for r, a := range p.all {
		switch {
		case a.idle:
		case n < 0:
			n = len(a.rounds)
		case n != len(a.rounds):
			p.fail("rank %d has %d rounds, others have %d", r, len(a.rounds), n)
		}
	}
	for k := range max(0, n) {
		calls := make([][]csrc.Step, len(p.all))
		for r, a := range p.all {
			if !a.idle {
				calls[r] = a.rounds[k]
			}
		}
		p.round(k, calls)
	}
}

// change is one element that a call writes.
type change struct {
	rank int
	at   int64
	to   symbol
}

// round carries out one round: all that is read is read before anything is written, since NCCL promises no order.
func (p *play) round(k int, calls [][]csrc.Step) {
	p.t.Helper()
	var changes []change
	sends := map[[2]int][]csrc.Step{} // from, to
	recvs := map[[2]int][]csrc.Step{}
	joined := map[csrc.StepKind]int{}
	for r, list := range calls {
		for _, s := range list {
			if s.DType != int(p.task.dtype) || s.Lane != r {
				p.fail("round %d, rank %d: type %d, lane %d", k, r, s.DType, s.Lane)
			}
			switch s.Kind {
			case csrc.StepSend:
				sends[[2]int{r, s.Peer}] = append(sends[[2]int{r, s.Peer}], s)
			case csrc.StepRecv:
				recvs[[2]int{s.Peer, r}] = append(recvs[[2]int{s.Peer, r}], s)
			case csrc.StepCopy:
				for i := range int64(s.Count) {
					changes = append(changes, change{r, int64(s.Recv) + i*p.elt, p.read(k, r, s.Send, i)})
				}
			default:
				joined[s.Kind]++
				changes = append(changes, p.collective(k, r, s, calls)...)
			}
		}
	}
	for kind, n := range joined {
		if n != len(p.all) {
			p.fail("round %d: %d of %d ranks call %d", k, n, len(p.all), kind)
		}
	}
	for pair, list := range sends {
		if len(list) != len(recvs[pair]) {
			p.fail("round %d: rank %d sends %d times to rank %d, which receives %d times", k, pair[0], len(list), pair[1], len(recvs[pair]))
		}
		for j, s := range list {
			if s.Count != recvs[pair][j].Count {
				p.fail("round %d: rank %d sends %d elements to rank %d, which receives %d", k, pair[0], s.Count, pair[1], recvs[pair][j].Count)
			}
			for i := range int64(s.Count) {
				changes = append(changes, change{pair[1], int64(recvs[pair][j].Recv) + i*p.elt, p.read(k, pair[0], s.Send, i)})
			}
		}
	}
	for pair := range recvs {
		if len(sends[pair]) == 0 {
			p.fail("round %d: rank %d waits for rank %d, which sends nothing", k, pair[1], pair[0])
		}
	}
	p.write(k, changes)
}

func (p *play) read(k, rank int, base uintptr, i int64) symbol {
	p.t.Helper()
	v, ok := p.all[rank].mem[int64(base)+i*p.elt]
	if !ok {
		p.fail("round %d: rank %d reads element %d at %#x, where nothing is", k, rank, i, base)
	}
	return v
}

func (p *play) write(k int, changes []change) {
	p.t.Helper()
	seen := map[[2]int64]bool{}
	for _, c := range changes {
		a := p.all[c.rank]
		if c.at < a.recv || c.at >= a.recv+int64(a.ly.recv)*p.elt {
			p.fail("round %d: rank %d writes at %#x, outside its result", k, c.rank, c.at)
		}
		if place := [2]int64{int64(c.rank), c.at}; seen[place] {
			p.fail("round %d: rank %d: two calls write at %#x", k, c.rank, c.at)
		} else {
			seen[place] = true
		}
		a.mem[c.at] = c.to
	}
}

// collective is what a rank's call of a whole collective leaves in its memory, by the definitions in NCCL's documentation.
func (p *play) collective(k, rank int, s csrc.Step, calls [][]csrc.Step) []change {
	p.t.Helper()
	var out []change
	put := func(i int64, v symbol) { out = append(out, change{rank, int64(s.Recv) + i*p.elt, v}) }
	n := int64(s.Count)
	for r, list := range calls {
		if len(list) != 1 || list[0].Kind != s.Kind || list[0].Count != s.Count || list[0].Op != s.Op || list[0].Peer != s.Peer {
			p.fail("round %d: rank %d calls %+v, rank %d calls %+v", k, rank, s, r, list)
		}
	}
	from := func(r int, i int64) symbol { return p.read(k, r, calls[r][0].Send, i) }
	reduced := func(i int64) (v symbol) {
		if s.Op != int(p.task.op) {
			p.fail("round %d: operator %d", k, s.Op)
		}
		for r := range p.all {
			one := from(r, i)
			if r > 0 && one.index != v.index || one.ranks&v.ranks != 0 {
				p.fail("round %d: %+v is reduced with %+v", k, v, one)
			}
			v = symbol{v.ranks | one.ranks, one.index}
		}
		return v
	}
	root := rank == s.Peer
	for i := range n {
		switch s.Kind {
		case csrc.StepAllReduce:
			put(i, reduced(i))
		case csrc.StepReduce:
			if root {
				put(i, reduced(i))
			}
		case csrc.StepReduceScatter:
			put(i, reduced(int64(rank)*n+i))
		case csrc.StepBroadcast:
			put(i, from(s.Peer, i))
		case csrc.StepScatter:
			put(i, from(s.Peer, int64(rank)*n+i))
		case csrc.StepAllGather, csrc.StepGather, csrc.StepAllToAll:
			for r := range p.all {
				switch {
				case s.Kind == csrc.StepAllToAll:
					put(int64(r)*n+i, from(r, int64(rank)*n+i))
				case s.Kind == csrc.StepAllGather || root:
					put(int64(r)*n+i, from(r, i))
				}
			}
		default:
			p.fail("round %d: call %d", k, s.Kind)
		}
	}
	return out
}

// compare holds the receive buffers against what the check expects, element by element.
func (p *play) compare() {
	p.t.Helper()
	all := uint64(1)<<len(p.all) - 1
	for r, a := range p.all {
		if a.idle {
			if len(a.mem) != int(a.ly.send) {
				p.fail("rank %d is idle and got something", r)
			}
			continue
		}
		var pieces []piece
		if p.task.coll.expect != nil {
			pieces = p.task.coll.expect(a.s, a.ly)
		}
		covered := map[int64]bool{}
		for _, q := range pieces {
			for i := range q.count {
				want := symbol{all, q.first + i}
				if q.source >= 0 {
					want.ranks = 1 << q.source
				}
				at := q.at + i
				if got := a.mem[a.recv+at*p.elt]; got != want {
					p.fail("rank %d, element %d: ranks %b element %d, want ranks %b element %d", r, at, got.ranks, got.index, want.ranks, want.index)
				}
				if covered[at] {
					p.fail("rank %d, element %d is expected twice", r, at)
				}
				covered[at] = true
			}
		}
		if len(covered) != int(a.ly.recv) {
			p.fail("rank %d: %d of %d elements of the result are checked", r, len(covered), a.ly.recv)
		}
	}
}

// noLibrary tells a process of this test that NCCL's newer calls are not to be had.
const noLibrary = "COMMPROBE_TEST_NO_LIBRARY"

func TestResults(t *testing.T) {
	if os.Getenv(noLibrary) == "" {
		engine, _ := testEngine(t, 1)
		if err := UseEngine(engine, "", "", 1); err != nil {
			t.Fatal(err)
		}
	} else if nccl.Has("ncclAlltoAll") || nccl.Has("ncclGather") || nccl.Has("ncclScatter") {
		t.Fatal("a library is loaded")
	}
	for _, c := range collectives {
		t.Run(c.name, func(t *testing.T) {
			for world := 1; world <= 9; world++ {
				if c.fits == nil || c.fits(world) == "" {
					playAll(t, c, world)
				}
			}
		})
	}
}

// playAll plays a collective with every root, several sizes and types, shifted buffers, in place and out of place.
func playAll(t *testing.T, c *collective, world int) {
	t.Helper()
	plan := goodPlan()
	plan.World, plan.Root = world, AllRoots
	for _, root := range plan.roots(c) {
		for _, d := range []nccl.DataType{nccl.Int8, nccl.Float32} {
			for i, size := range []result.Bytes{4, result.Bytes(16*world - 1), result.Bytes(16 * world), result.Bytes(48*world + 5)} {
				plan.Modes.Unalign = i % 3
				for _, in := range trafficsFor(c, world) {
					plan.Modes.Spread, plan.Traffic = in.spread, in.bytes
					for _, inPlace := range []bool{false, true} {
						p := newPlay(t, &plan, cell{c, d, nccl.Max, root}, size, inPlace)
						p.run()
						p.compare()
					}
				}
			}
		}
	}
}

func trafficsFor(c *collective, world int) []traffic {
	if c != &allToAllV {
		return []traffic{{}}
	}
	random := rand.New(rand.NewPCG(1, uint64(world)))
	matrix := make(Matrix, world)
	for r := range matrix {
		for range world {
			matrix[r] = append(matrix[r], random.Int64N(3)*random.Int64N(1000))
		}
	}
	matrix[0][0] += 16
	return []traffic{{}, {spread: 0.3}, {spread: 1}, {bytes: matrix}}
}

// Before NCCL 2.28 there is no call for alltoall, gather and scatter; sends and receives do the same. A process that has loaded nothing takes
// that way.
func TestResultsBefore228(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestResults$", "-test.v")
	cmd.Env = append(os.Environ(), noLibrary+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestResults/alltoall") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The calls that one library has and another lacks.
func TestNewCalls(t *testing.T) {
	engine, _ := testEngine(t, 1)
	if err := UseEngine(engine, "", "", 1); err != nil {
		t.Fatal(err)
	}
	if !nccl.Has("ncclAlltoAll") {
		t.Skipf("NCCL %s has none of them", nccl.LibraryVersion())
	}
	for c, kind := range map[*collective]csrc.StepKind{&allToAll: csrc.StepAllToAll, &gather: csrc.StepGather, &scatter: csrc.StepScatter} {
		s := shape{world: 3, rank: 1}
		rounds := c.rounds(call{shape: s, layout: c.lay(s, 96, nccl.Float32)})
		if len(rounds) != 1 || len(rounds[0]) != 1 || rounds[0][0].Kind != kind {
			t.Errorf("%s: %+v", c.name, rounds)
		}
	}
}

// Every two ranks meet exactly once, and a rank has at most one partner at a time.
func TestPairwiseMeetings(t *testing.T) {
	for n := 1; n <= 33; n++ {
		met := map[[2]int]int{}
		for round := range pairRounds(n) {
			resting := 0
			for r := range n {
				p := partner(n, r, round)
				switch {
				case p < 0:
					resting++
				case p == r || p >= n:
					t.Fatalf("%d ranks, round %d: rank %d meets %d", n, round, r, p)
				case partner(n, p, round) != r:
					t.Fatalf("%d ranks, round %d: rank %d meets %d, which meets %d", n, round, r, p, partner(n, p, round))
				case r < p:
					met[[2]int{r, p}]++
				}
			}
			if resting != n%2 {
				t.Fatalf("%d ranks, round %d: %d rest", n, round, resting)
			}
		}
		if len(met) != n*(n-1)/2 {
			t.Fatalf("%d ranks: %d pairs meet, want %d", n, len(met), n*(n-1)/2)
		}
		for pair, times := range met {
			if times != 1 {
				t.Fatalf("%d ranks: %v meet %d times", n, pair, times)
			}
		}
	}
}

// TestChained: a collective says so when its rounds follow each other, so that none is put into one group.
func TestChained(t *testing.T) {
	for _, c := range collectives {
		p := goodPlan()
		s := p.shape(cell{coll: c}, 0, 4)
		rounds := c.rounds(call{shape: s, layout: c.lay(s, 4096, nccl.Float32), send: 1 << 20, recv: 1 << 24})
		if c.chained != (len(rounds) > 1) {
			t.Errorf("%s: %d rounds, chained %v", c.name, len(rounds), c.chained)
		}
	}
}

// In the hypercube partners are at distance 1, 2, 4 … and exchange all that they have.
func TestHypercubeRounds(t *testing.T) {
	s := shape{world: 8, rank: 5}
	rounds := hypercube.rounds(call{shape: s, layout: hypercube.lay(s, 8*64, nccl.Float32), send: 1 << 20, recv: 1 << 24})
	if len(rounds) != 4 || len(rounds[0]) != 1 || rounds[0][0].Kind != csrc.StepCopy {
		t.Fatalf("%+v", rounds)
	}
	for k, peer := range []int{4, 7, 1} {
		r := rounds[k+1]
		if len(r) != 2 || r[0].Peer != peer || r[1].Peer != peer || r[0].Count != 16<<k || r[1].Count != 16<<k {
			t.Errorf("round %d: %+v, want partner %d and %d elements", k+1, r, peer, 16<<k)
		}
	}
}

// Where input and result are: -u shifts both; in place a part lies where it belongs in the whole, and an exchange has its input in the second
// part of the receive buffer.
func TestBuffers(t *testing.T) {
	for _, c := range []struct {
		coll       *collective
		inPlace    bool
		unalign    int
		send, recv uintptr // from the begin of the send and of the receive buffer, or with in place both of the latter
	}{
		{&allReduce, false, 0, playSend, playRecv},
		{&allReduce, false, 3, playSend + 12, playRecv + 12},
		{&allReduce, true, 3, playRecv + 12, playRecv + 12},
		{&allGather, false, 3, playSend + 12, playRecv + 12},
		{&allGather, true, 3, playRecv + 12 + 2*64, playRecv + 12}, // 16 elements a rank, rank 2
		{&reduceScatter, true, 0, playRecv, playRecv + 2*64},
		{&scatter, true, 1, playRecv + 4, playRecv + 4 + 2*64},
		{&allToAll, false, 1, playSend + 4, playRecv + 4},
		{&allToAll, true, 1, playRecv + playBuffer + 4, playRecv + 4},
		{&sendRecv, true, 0, playRecv + playBuffer, playRecv},
	} {
		plan := goodPlan()
		plan.World, plan.Modes.Unalign = 4, c.unalign
		d := &driver{lanes: []*lane{{at: 2, world: 4, send: playSend, recv: playRecv, bufBytes: playBuffer}}}
		ms, err := d.members(&task{step: step{cell: cell{coll: c.coll, dtype: nccl.Float32}, ask: 256}, plan: &plan})
		if err != nil {
			t.Fatal(err)
		}
		if send, recv := ms[0].buffers(c.inPlace); uintptr(send) != c.send || uintptr(recv) != c.recv {
			t.Errorf("%s, in place %v, shifted by %d: %#x and %#x, want %#x and %#x", c.coll.name, c.inPlace, c.unalign, send, recv, c.send, c.recv)
		}
	}
}

// What the timed operations leave can be checked unless each changed the next one's input.
func TestUncheckable(t *testing.T) {
	for _, c := range []struct {
		coll       *collective
		inPlace    bool
		iters, agg int
		graph      int
		slots      uint64
		unknown    bool
	}{
		{&allReduce, false, 100, 1, 5, 4, false},
		{&allReduce, true, 4, 1, 0, 4, false},
		{&allReduce, true, 5, 1, 0, 4, true},
		{&allReduce, true, 3, 2, 0, 4, true}, // six operations
		{&allReduce, true, 2, 2, 1, 4, false},
		{&allReduce, true, 2, 2, 2, 4, true}, // the second launch
		{&reduceScatter, true, 5, 1, 0, 4, true},
		{&allGather, true, 100, 1, 5, 4, false},
		{&broadcast, true, 100, 1, 5, 4, false},
		{&allToAll, true, 100, 1, 5, 4, false},
	} {
		plan := goodPlan()
		plan.Modes.Graph, plan.Modes.Aggregate = c.graph, c.agg
		h := &half{inPlace: c.inPlace, t: &task{plan: &plan, iters: c.iters, step: step{cell: cell{coll: c.coll}}}}
		m := &member{slots: c.slots, sideBySide: c.coll.exchange}
		if why := h.uncheckable(m); (why != "") != c.unknown {
			t.Errorf("%s, in place %v, %d operations in %d places, %d launches: %q", c.coll.name, c.inPlace, c.iters*c.agg, c.slots, c.graph, why)
		}
	}
}

// The expected contents of a place of the rotation, where the buffers repeat a pattern: cut at its end, and for a part in place counted from
// where its rank's part lies.
func TestPatterned(t *testing.T) {
	plan := goodPlan()
	plan.World, plan.Modes.Unalign = 4, 1
	tk := &task{step: step{cell: cell{coll: &allGather, dtype: nccl.Float32}, ask: 256}, plan: &plan}
	d := &driver{lanes: []*lane{{at: 2, world: 4, bufBytes: 400}}} // 100 elements
	ms, err := d.members(tk)
	if err != nil {
		t.Fatal(err)
	}
	// 16 elements a rank. The third place begins at element 2 · 64 + 1 = 129, in the pattern 29.
	h := &half{t: tk}
	want := []piece{{0, 16, 0, 29}, {16, 16, 1, 29}, {32, 16, 2, 29}, {48, 16, 3, 29}}
	if got := h.patterned(&ms[0], 2*256); !slices.Equal(got, want) {
		t.Errorf("out of place: %+v, want %+v", got, want)
	}
	h.inPlace = true // rank r's part begins 16r later; the last is cut: 77 to 92
	want = []piece{{0, 16, 0, 29}, {16, 16, 1, 45}, {32, 16, 2, 61}, {48, 16, 3, 77}}
	if got := h.patterned(&ms[0], 2*256); !slices.Equal(got, want) {
		t.Errorf("in place: %+v, want %+v", got, want)
	}
	// The second place begins at 65: rank 2's part at 97, which the pattern's end cuts after 3.
	want = []piece{{0, 16, 0, 65}, {16, 16, 1, 81}, {32, 3, 2, 97}, {35, 13, 2, 0}, {48, 16, 3, 13}}
	if got := h.patterned(&ms[0], 256); !slices.Equal(got, want) {
		t.Errorf("in place, cut: %+v, want %+v", got, want)
	}
}

// Ranks that one thread drives have their rounds in one list of calls, each round in a group of its own.
func TestStepsOfOneThread(t *testing.T) {
	plan := goodPlan()
	plan.World = 3
	d := &driver{}
	for r := range 3 {
		d.lanes = append(d.lanes, &lane{rank: r, at: r, world: 3, send: cuda.DevicePtr(playSend), recv: cuda.DevicePtr(playRecv), bufBytes: playBuffer})
	}
	tk := &task{step: step{cell: cell{&pairwise, nccl.Float32, nccl.Sum, 0}, ask: 96}, plan: &plan}
	ms, err := d.members(tk)
	if err != nil {
		t.Fatal(err)
	}
	var kinds strings.Builder
	for _, s := range d.steps(tk, ms, false, 0) {
		kinds.WriteString(map[csrc.StepKind]string{
			csrc.StepCopy: "c", csrc.StepGroupStart: "(", csrc.StepGroupEnd: ")", csrc.StepSend: "s", csrc.StepRecv: "r",
		}[s.Kind])
	}
	// Three copies, and three rounds in each of which one pair exchanges.
	if got := kinds.String(); got != "ccc(srsr)(srsr)(srsr)" {
		t.Errorf("%s", got)
	}
	tk.cell.coll, tk.cell.root = &pingPong, 1
	if ms, err = d.members(tk); err != nil {
		t.Fatal(err)
	}
	for i, idle := range []bool{true, false, false} {
		if ms[i].idle != idle {
			t.Errorf("pingpong with root 1: rank %d idle: %v", i, ms[i].idle)
		}
	}
	if steps := d.steps(tk, ms, false, 0); len(steps) != 8 || steps[1].Lane != 1 || steps[2].Lane != 2 {
		t.Errorf("%+v", steps)
	}
}
