package diagnose

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

var seedOnly = flag.Int64("seed", -1, "run this seed of the simulation alone")

// simCall is one call of a rank's program.
type simCall struct {
	group string
	op    string
	n     int64
}

// sim is a job in lock step: devices work on one call after the other, a call completes when all members of its group are in the same one, and hosts run ahead
// by a few calls.
type sim struct {
	w       *world
	program [][]simCall
	made    []int // calls enqueued
	done    []int // calls complete
	stopAt  []int // a rank's host stops before that call, -1: never
	ahead   int
	seqs    [][]int64 // of each call of each rank
}

func newSim(rng *rand.Rand, ranks int) *sim {
	s := &sim{w: newWorld(ranks), ahead: 1 + rng.IntN(4)}
	tp := []int{2, 4}[rng.IntN(2)]
	for i := 0; i < ranks; i += tp {
		var m []int
		for r := i; r < i+tp; r++ {
			m = append(m, r)
		}
		s.w.group(fmt.Sprint(1+i/tp), "tp", m...)
	}
	for i := range tp {
		var m []int
		for r := i; r < ranks; r += tp {
			m = append(m, r)
		}
		if len(m) > 1 {
			s.w.group(fmt.Sprint(100+i), "dp", m...)
		}
	}
	steps, layers := 2+rng.IntN(4), 1+rng.IntN(4)
	for r := range ranks {
		var p []simCall
		for step := range steps {
			for l := range layers {
				p = append(p, simCall{fmt.Sprint(1 + r/tp), "all_reduce", int64(1000 * (l + 1))})
			}
			if ranks > tp {
				p = append(p, simCall{fmt.Sprint(100 + r%tp), "all_gather", 64})
			}
			p = append(p, simCall{"0", "all_reduce", int64(step + 1)})
		}
		s.program = append(s.program, p)
	}
	s.made, s.done, s.stopAt = make([]int, ranks), make([]int, ranks), make([]int, ranks)
	for r := range s.stopAt {
		s.stopAt[r] = -1
	}
	return s
}

// run goes on until nothing moves.
func (s *sim) run() {
	s.seqs = make([][]int64, len(s.program))
	for r, p := range s.program {
		at := map[string]int64{}
		for _, c := range p {
			at[c.group]++
			s.seqs[r] = append(s.seqs[r], at[c.group])
		}
	}
	for moved := true; moved; {
		moved = false
		for r := range s.program {
			for s.made[r] < len(s.program[r]) && s.made[r] < s.done[r]+s.ahead && s.made[r] != s.stopAt[r] {
				s.made[r]++
				moved = true
			}
		}
		for r := range s.program {
			moved = s.complete(r) || moved
		}
	}
}

// complete finishes the call at the head of a rank's device if all members are in it.
func (s *sim) complete(r int) bool {
	if s.done[r] == s.made[r] {
		return false
	}
	c, seq := s.program[r][s.done[r]], s.seqs[r][s.done[r]]
	for _, o := range s.w.groups[c.group] {
		if s.done[o] == s.made[o] || s.program[o][s.done[o]] != c || s.seqs[o][s.done[o]] != seq {
			return false
		}
	}
	for _, o := range s.w.groups[c.group] {
		s.done[o]++
	}
	return true
}

// record writes the dumps, with rings of a few entries.
func (s *sim) record(rng *rand.Rand) {
	ring := 6 + rng.IntN(40)
	for r, p := range s.program {
		for i := range s.made[r] {
			s.w.call(r, p[i].group, s.seqs[r][i], p[i].op, p[i].n, i < s.done[r])
		}
		d := s.w.dumps[r]
		d.Entries = d.Entries[max(0, len(d.Entries)-ring):]
	}
}

// TestSimulated plants faults in simulated jobs of several groups. The culprit must be among those named, alone where its group has a majority.
func TestSimulated(t *testing.T) {
	for seed := range int64(2500) {
		if *seedOnly >= 0 && seed != *seedOnly {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		ranks := []int{4, 8, 16}[rng.IntN(3)]
		s := newSim(rng, ranks)
		odd := rng.IntN(ranks)
		at := rng.IntN(len(s.program[odd]))
		fault := []string{"none", "size", "op", "skip", "stuck", "no dump"}[rng.IntN(6)]
		group := s.program[odd][at].group
		switch fault {
		case "size":
			s.program[odd][at].n += 7
		case "op":
			s.program[odd][at].op = "reduce_scatter"
		case "skip":
			s.program[odd] = slices.Delete(s.program[odd], at, at+1)
		case "stuck", "no dump":
			s.stopAt[odd] = at
		}
		s.run()
		s.record(rng)
		e := s.w.evidence()
		if fault == "no dump" {
			e = s.w.evidence(odd)
		}
		v := Diagnose(e)
		checkVerdict(t, fmt.Sprintf("seed %d", seed), v)
		if why := judge(fault, odd, len(s.w.groups[group]), v); why != "" {
			t.Errorf("seed %d: %d ranks, %s on rank %d at its call %d (group %s of %d): %s %v (%.2f): %s: %s", seed, ranks, fault, odd, at, group,
				len(s.w.groups[group]), v.Class, v.Ranks, v.Confidence, why, v.Summary)
		}
	}
}

func judge(fault string, odd, members int, v *Verdict) string {
	classes := map[string][]Class{
		"none": {NotAHang}, "size": {SizeMismatch, SkippedCollective, OrderMismatch}, "op": {OpMismatch}, "stuck": {SkippedCollective, RankStuckHost}, "no dump": {RankCrash, Undecided},
		"skip": {SkippedCollective, SizeMismatch, OpMismatch, OrderMismatch, CrossedComms},
	}
	switch {
	case fault == "op" && members == 2 && (v.Class == OrderMismatch || v.Class == SkippedCollective): // with two, one call more looks the same
	case !slices.Contains(classes[fault], v.Class):
		return "another class"
	case fault == "none" || v.Class == Undecided:
		return ""
	case !slices.Contains(v.Ranks, odd):
		return "an innocent"
	case members > 2 && len(v.Ranks) > 1 && v.Class != CrossedComms:
		return "more than one"
	}
	return ""
}
