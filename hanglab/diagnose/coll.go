package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// groupsOfCalls aligns the calls that NCCL itself logs. They are logged when they are enqueued; whether they finish is not there.
func (j *job) groupsOfCalls() []*group {
	procs := j.processes()
	groups := map[string]*group{}
	var all []*group
	keys, ordered := j.commKeys()
	for i, c := range j.e.Comms {
		key := keys[i]
		if key == "" {
			continue
		}
		g := groups[key]
		if g == nil {
			g = newGroup(key, "", "calls")
			groups[key] = g
			all = append(all, g)
		}
		g.size = max(g.size, c.NRanks)
		g.add(j.caller(c, procs, ordered[key]))
	}
	all = slices.DeleteFunc(all, func(g *group) bool { // without their ids, communicators of one size cannot be told apart
		return g.size > 0 && len(g.members) > g.size
	})
	for _, g := range all {
		g.pace()
		g.finish()
		if g.p2p {
			g.unmatched()
		}
	}
	return all
}

// commKeys tells communicators apart: by their id, else as the k-th one of its size in its process. ordered are those that carry sends and receives: the library
// counts these with the collectives, so its count means something else on each rank.
func (j *job) commKeys() (keys []string, ordered map[string]bool) {
	nth := map[string]int{}
	ordered = map[string]bool{}
	for _, c := range j.e.Comms {
		key := c.ID
		if key == "" && len(c.Calls) > 0 {
			k := fmt.Sprintf("%s/%d/%d", c.Host, c.PID, c.NRanks)
			key = fmt.Sprintf("of %d ranks, the %s", c.NRanks, ordinal(nth[k]))
			nth[k]++
		}
		keys = append(keys, key)
		for i := range c.Calls {
			if op := c.Calls[i].Op; op == "send" || op == "recv" {
				ordered[key] = true
				break
			}
		}
	}
	return keys, ordered
}

// unmatched marks sends and receives as open that have no partner in the logs of both ends.
func (g *group) unmatched() {
	for _, p := range g.pairs() {
		if g.by[p.src] == nil || g.by[p.dst] == nil || !p.counted {
			continue
		}
		n := min(len(p.sends), len(p.recvs))
		for _, c := range slices.Concat(p.sends[n:], p.recvs[n:]) {
			c.open = true
		}
	}
}

func ordinal(n int) string {
	if n < 3 {
		return [...]string{"first", "second", "third"}[n]
	}
	return fmt.Sprintf("%dth", n+1)
}

type process struct {
	host string
	pid  int
}

// processes gives each process its rank in the job: that of its largest communicator, else its place among all processes.
func (j *job) processes() map[process]int {
	size, out := map[process]int{}, map[process]int{}
	var order []process
	for _, c := range j.e.Comms {
		p := process{c.Host, c.PID}
		if _, seen := size[p]; !seen {
			size[p] = -1
			order = append(order, p)
		}
		if c.Rank >= 0 && c.NRanks > size[p] {
			size[p], out[p] = c.NRanks, c.Rank
		}
	}
	slices.SortFunc(order, process.compare)
	if len(out) == 0 {
		j.guessRanks(order, out)
	}
	return out
}

func (p process) compare(q process) int {
	return cmp.Or(strings.Compare(p.host, q.host), cmp.Compare(p.pid, q.pid))
}

// guessRanks numbers processes that no line gives a rank: hosts in the order of their names, with as many ranks each as divide the communicator evenly, and on
// a host by the device; where devices do not tell processes apart, by their ids.
func (j *job) guessRanks(order []process, out map[process]int) {
	device := map[process]int{}
	world, most := 0, 0
	for _, c := range j.e.Comms {
		device[process{c.Host, c.PID}] = c.Device
		world, most = max(world, c.NRanks), max(most, c.Device)
	}
	local := 1
	for local <= most || world%local != 0 && local < world {
		local *= 2
	}
	for local < 8 && world%(local*2) == 0 && world > local {
		local *= 2
	}
	used := map[int]bool{}
	host, last := -1, ""
	for _, p := range order {
		if p.host != last || host < 0 {
			host, last = host+1, p.host
		}
		r := host*local + device[p]
		if device[p] < 0 || used[r] || r >= world && world > 0 {
			clear(out)
			for i, p := range order {
				out[p] = i
			}
			return
		}
		used[r] = true
		out[p] = r
	}
}

// caller is one process's part in a communicator. Its calls are numbered by the library's own count, or by their order.
func (j *job) caller(c *evidence.Comm, procs map[process]int, ordered bool) *member {
	rank, ok := procs[process{c.Host, c.PID}]
	if !ok {
		rank = c.Rank
	}
	m := &member{rank: rank, place: c.Rank, where: c.Where, source: "calls", counted: true, log: true}
	byOp := c.HasOp && rises(c.Calls) && !ordered
	gap := -1
	if c.Left > 0 {
		gap = widest(c.Calls)
	}
	n, coll, p2p := int64(0), int64(0), int64(0)
	for i := range c.Calls {
		call := &c.Calls[i]
		if n++; i == gap {
			n += int64(c.Left)
		}
		a := askOfCall(call, c.Rank)
		if a.p2p {
			p2p++
			m.p2p = append(m.p2p, issued{seq: p2p, coll: coll, ask: j.asks.keep(nil, a), pos: call.Line})
			continue
		}
		coll++
		seq := n - p2p
		if byOp {
			seq = call.OpCount
		}
		m.calls = append(m.calls, issued{seq: seq, ask: j.asks.keep(nil, a), pos: call.Line})
	}
	m.enq = 0
	if len(m.calls) > 0 {
		m.enq = m.high()
	}
	m.done = m.enq
	return m
}

func rises(calls []evidence.CommCall) bool {
	for i := 1; i < len(calls); i++ {
		if calls[i].OpCount <= calls[i-1].OpCount {
			return false
		}
	}
	return len(calls) > 0
}

// widest is the call before which most lines are missing.
func widest(calls []evidence.CommCall) int {
	at, most := -1, int32(0)
	for i := 1; i < len(calls); i++ {
		if d := calls[i].Line - calls[i-1].Line; d > most {
			at, most = i, d
		}
	}
	return at
}

func askOfCall(c *evidence.CommCall, rank int) ask {
	a := ask{op: c.Op, kind: kindOf(c.Op), size: c.Count, dtype: c.DType, root: -1, in: c.Count, out: c.Count, src: -1, dst: -1}
	switch a.kind {
	case "send":
		a.p2p, a.src, a.dst = true, rank, c.Root
	case "recv":
		a.p2p, a.src, a.dst = true, c.Root, rank
	case "broadcast", "reduce", "gather", "scatter":
		a.root = c.Root
	}
	return a
}

// pace: members that have made more calls than the slowest wait for it, if anything does.
func (g *group) pace() {
	if len(g.members) < 2 {
		return
	}
	least := g.members[0].enq
	for _, m := range g.members {
		least = min(least, m.enq)
		g.p2p = g.p2p || len(m.p2p) > 0
	}
	for _, m := range g.members {
		m.done = min(least, m.enq)
	}
}
