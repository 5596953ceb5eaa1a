package diagnose

import (
	"fmt"
	"slices"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// oneSided reads NCCL's log of a few processes whose peers' logs are not there: what shows is which sends and receives they have posted.
func (j *job) oneSided(groups []*group) []*finding {
	if f := j.bothWays(); f != nil {
		return []*finding{f}
	}
	f := newFinding(UnpairedP2P, transport, oneView)
	for _, g := range groups {
		for _, m := range g.members {
			for i := len(m.p2p) - 1; i >= max(0, len(m.p2p)-2); i-- {
				c := &m.p2p[i]
				peer := c.ask.dst
				if c.ask.kind == "recv" {
					peer = c.ask.src
				}
				if len(m.calls) > 0 || peer < 0 || g.by[peer] != nil {
					continue
				}
				f.Ranks = union(f.Ranks, []int{m.rank})
				f.Op, f.P2P, f.Group = c.ask.op, true, g.title()
				w := m.where
				w.Line = int(c.pos)
				f.item(w, fmt.Sprintf("rank %d: %s with rank %d of the communicator", m.rank, c.ask, peer), "its partner's call is not in these logs")
				break
			}
		}
	}
	if len(f.Ranks) < 2 || len(f.Ranks) > 4 {
		return nil
	}
	f.Next = append(f.Next, "the same log of the peers that are named, and the sizes that each side expects: messages of size 0 must be left out on both sides or on none")
	return []*finding{f.say("%s have posted sends or receives whose partners are not to be seen: in the logs that are here, no peer has posted the other half", showRanks(f.Ranks))}
}

// bothWays: one process sends in one communicator of two ranks and receives in another. Its peer may take them in the other order.
func (j *job) bothWays() *finding {
	type use struct{ send, recv *evidence.Comm }
	seen := map[process]*use{}
	for _, c := range j.e.Comms {
		if c.NRanks != 2 || len(c.Calls) == 0 {
			continue
		}
		u := seen[process{c.Host, c.PID}]
		if u == nil {
			u = &use{}
			seen[process{c.Host, c.PID}] = u
		}
		kinds := map[string]bool{}
		for i := range c.Calls {
			kinds[c.Calls[i].Op] = true
		}
		if len(kinds) == 1 && kinds["send"] {
			u.send = c
		} else if len(kinds) == 1 && kinds["recv"] {
			u.recv = c
		}
	}
	for _, p := range sortedProcesses(seen) {
		u := seen[p]
		if u.send == nil || u.recv == nil {
			continue
		}
		f := newFinding(CrossedComms, transport, oneView, 0, 1)
		if len(seen) > 1 {
			f.Confidence = byAbsence
		}
		f.P2P, f.Op = true, "send / recv"
		for _, c := range []*evidence.Comm{u.recv, u.send} {
			last := &c.Calls[len(c.Calls)-1]
			f.item(evidence.Where{File: c.Where.File, Line: int(last.Line)}, fmt.Sprintf("communicator %s: %s, opCount %x", c.Pointer, last.Op, last.OpCount),
				fmt.Sprintf("%d calls in this communicator, all in this direction", len(c.Calls)))
		}
		f.Next = append(f.Next, "the same log of the peer: in which order it uses the two communicators")
		f.alternative(UnpairedP2P, direction)
		return f.say("two ranks talk over two communicators, one for each direction: if one side's receive waits before its send, and the other side's order is another, both wait for ever")
	}
	return nil
}

func sortedProcesses[V any](m map[process]V) []process {
	out := make([]process, 0, len(m))
	for p := range m {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b process) int { return a.compare(b) })
	return out
}
