package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// spoken is what one rank says, or another says of it, that it was about to call.
type spoken struct {
	call *evidence.Call
	fact *evidence.Fact
	own  bool
}

// camp is ranks that were about to call the same.
type camp struct {
	call  *evidence.Call
	ranks []int
}

// camps sorts all ranks that are spoken of by what they were about to call, the largest camp first.
func camps(list []*evidence.Fact) (out []camp, said map[int]spoken) {
	said = map[int]spoken{}
	put := func(rank int, c *evidence.Call, f *evidence.Fact, own bool) {
		if rank < 0 || c == nil {
			return
		}
		if old, ok := said[rank]; !ok || own && !old.own {
			said[rank] = spoken{c, f, own}
		}
	}
	for _, f := range list {
		put(rankOf(f), f.Call, f, true)
		put(f.OtherRank, f.Other, f, false)
	}
	for _, r := range sortedRanks(said) {
		c := said[r].call
		i := slices.IndexFunc(out, func(x camp) bool { return differ(x.call, c) == "" })
		if i < 0 {
			out = append(out, camp{call: c})
			i = len(out) - 1
		}
		out[i].ranks = append(out[i].ranks, r)
	}
	slices.SortStableFunc(out, func(a, b camp) int { return len(b.ranks) - len(a.ranks) })
	return out, said
}

// fingerprints votes over all lines: each names only the first rank that differs from the one that speaks, who need not be wrong.
func (j *job) fingerprints() []*finding {
	list := j.logs.by[evidence.Fingerprint]
	if len(list) == 0 {
		return nil
	}
	camps, said := camps(list)
	if len(camps) < 2 {
		if list[0].Detail != "inconsistent" || len(said) == 0 {
			return nil
		}
		f := newFinding(OpMismatch, fingerprint, probable, sortedRanks(said)...)
		f.fact(list[0], "PyTorch found this call different from the other ranks'")
		f.Op = list[0].Op
		return []*finding{f.say("%s calls something else than the other ranks: %s", showRanks(f.Ranks), list[0].Op)}
	}
	class := differ(camps[0].call, camps[1].call)
	tie := len(camps[0].ranks) == len(camps[1].ranks)
	var odd []int
	for i, c := range camps {
		if i > 0 || tie {
			odd = append(odd, c.ranks...)
		}
	}
	confidence := stated
	if tie {
		confidence = inferred
	}
	if class == SkippedCollective && tie { // who is behind has left something out, or begun anew
		low := camps[0]
		for _, c := range camps {
			if c.call.Seq < low.call.Seq {
				low = c
			}
		}
		odd, confidence = low.ranks, inferred
	}
	late := j.cameLate(odd, camps[0].call.Seq)
	if late != nil && !tie {
		class, confidence = SkippedCollective, inferred
	}
	f := newFinding(class, fingerprint, confidence, odd...)
	if late != nil && !tie {
		f.fact(late, fmt.Sprintf("%s was not there when the others were: what it calls now is a later call", showRanks(odd)))
		f.alternative(differ(camps[0].call, camps[1].call), byAbsence, odd...)
	}
	f.Sequence, f.Op = camps[0].call.Seq, orText(camps[0].call.Op, camps[0].call.Name)
	for i := len(camps) - 1; i >= 0; i-- {
		f.Sizes = append(f.Sizes, fmt.Sprintf("%s: %s", showRanks(camps[i].ranks), callText(camps[i].call)))
	}
	for _, x := range list[:min(4, len(list))] {
		f.fact(x, fmt.Sprintf("rank %d was about to call %s", rankOf(x), callText(x.Call)))
	}
	for _, t := range j.logs.by[evidence.Traceback] {
		if slices.Contains(f.Ranks, t.Rank) && f.Location == "" {
			f.Location = userFrame(t)
		}
	}
	if late != nil && !tie {
		return []*finding{f.say("%s did not come to call %d (%s) in time, and came with a later one (%s): one was left out", showRanks(f.Ranks), camps[0].call.Seq,
			callText(camps[0].call), callText(camps[1].call))}
	}
	return []*finding{f.say("the calls were compared before they were made: %s (%s) against %s (%s)", showRanks(camps[1].ranks), callText(camps[1].call),
		showRanks(camps[0].ranks), callText(camps[0].call))}
}

// cameLate is a word of others that these ranks did not come to the call that they are now found to differ in.
func (j *job) cameLate(odd []int, seq int64) *evidence.Fact {
	for _, x := range j.logs.by[evidence.Silent] {
		if x.Seq == seq && seq >= 0 && len(x.Ranks) > 0 && slices.Equal(slices.Sorted(slices.Values(x.Ranks)), odd) {
			return x
		}
	}
	return nil
}

func sortedRanks[V any](m map[int]V) []int {
	out := make([]int, 0, len(m))
	for r := range m {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

// differ says in which way two compared calls are different. Other numbers mean that one side has left calls out, whatever the calls are.
func differ(a, b *evidence.Call) Class {
	an, bn := orText(a.Name, a.Op), orText(b.Name, b.Op)
	switch {
	case a.Seq >= 0 && b.Seq >= 0 && a.Seq != b.Seq:
		return SkippedCollective
	case !strings.EqualFold(an, bn):
		return OpMismatch
	case len(a.Shape) > 0 && len(b.Shape) > 0 && !slices.Equal(a.Shape, b.Shape):
		return SizeMismatch
	case a.DType != "" && b.DType != "" && !strings.EqualFold(a.DType, b.DType):
		return DTypeMismatch
	}
	return ""
}

func callText(c *evidence.Call) string {
	if c == nil {
		return "nothing"
	}
	s := orText(c.Name, c.Op)
	if len(c.Shape) > 0 {
		s += fmt.Sprintf(" of %v", c.Shape)
	}
	if c.DType != "" {
		s += " " + c.DType
	}
	if c.Seq >= 0 {
		s += fmt.Sprintf(", sequence %d", c.Seq)
	}
	return s
}

// desync reads PyTorch's old report, which names the laggards itself.
func (j *job) desync() []*finding {
	var f *finding
	for _, x := range j.logs.by[evidence.Desync] {
		if x.Detail != "finished, next not joined" && x.Detail != "never joined" {
			continue
		}
		if f == nil {
			f = newFinding(SkippedCollective, unfinished, inferred)
			f.alternative(RankStuckHost, byAbsence, x.Ranks...)
		}
		f.Ranks = union(f.Ranks, x.Ranks)
		f.fact(x, fmt.Sprintf("%s finished all that it joined, and did not join the next call", showRanks(x.Ranks)))
		if x.Seq >= 0 {
			f.Sequence = x.Seq
		}
	}
	if f == nil {
		return nil
	}
	for _, x := range j.logs.by[evidence.Desync] {
		if x.Detail == "timeout" || x.Detail == "started" {
			f.Op = orText(f.Op, x.Op)
			f.fact(x, "the others wait here")
		}
	}
	return []*finding{f.say("%s never joined call %d (%s), by PyTorch's own report of all ranks", showRanks(f.Ranks), f.Sequence, f.Op)}
}
