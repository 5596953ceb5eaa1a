package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// hostStuck: a rank's own watchdog did not come round, or its process is stopped.
func (j *job) hostStuck() (out []*finding) {
	var stopped, beats []*evidence.Fact
	for _, x := range j.logs.by[evidence.Stopped] {
		if x.Detail == "state T" || strings.Contains(x.Text, "stopped") {
			stopped = append(stopped, x)
		} else if x.Rank >= 0 {
			beats = append(beats, x)
		}
	}
	if len(stopped) > 0 {
		f := newFinding(RankStuckHost, unfinished, stated, ranksOf(stopped)...)
		for _, x := range stopped[:min(3, len(stopped))] {
			f.fact(x, fmt.Sprintf("%s is stopped", whose(x)))
		}
		out = append(out, f.say("the process of %s is stopped (SIGSTOP, a debugger, or a job control)", orText(rankText(f.Ranks), "a rank")))
	}
	timed := ranksOf(j.logs.by[evidence.Timeout])
	for _, x := range j.logs.by[evidence.HostStuck] {
		if rankOf(x) >= 0 && !slices.Contains(timed, rankOf(x)) {
			beats = append(beats, x)
		}
	}
	if len(beats) > 0 {
		var ranks []int
		for _, x := range beats {
			ranks = append(ranks, rankOf(x))
		}
		f := newFinding(RankStuckHost, unfinished, probable, ranks...)
		for _, x := range beats[:min(4, len(beats))] {
			f.fact(x, fmt.Sprintf("%s's watchdog itself did not come round: a call into CUDA or a lock holds it", whose(x)))
		}
		for _, x := range j.logs.by[evidence.Timeout][:min(2, len(j.logs.by[evidence.Timeout]))] {
			f.fact(x, fmt.Sprintf("%s waits", whose(x)))
			f.Sequence, f.Op, f.Group = x.Seq, x.Op, x.Group
		}
		f.alternative(RankStuckGPU, byAbsence, ranks...)
		out = append(out, f.say("the watchdog of %s stood still: its host side is stuck, in a call into CUDA or behind the interpreter's lock", showRanks(f.Ranks)))
	}
	return out
}

// waitWords are in the names of functions in which a rank waits for others.
var waitWords = []string{"all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "ncclAllReduce", "ncclAllGather",
	"ncclReduceScatter", "ncclBroadcast", "ncclSend", "ncclRecv", "ncclGroupEnd", "_wait_for", "irecv", "isend", "synchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
	"cudaDeviceSynchronize", "CommInitRank", "reduce_dict", "send_object", "recv_object"}

// mainThread is the one that runs the program.
func mainThread(s *evidence.Stack) *evidence.Thread {
	for i := range s.Threads {
		if s.Threads[i].Name == "MainThread" {
			return &s.Threads[i]
		}
	}
	for i := range s.Threads { // the system gives it the number of the process
		if s.PID > 0 && s.Threads[i].ID == strconv.Itoa(s.PID) {
			return &s.Threads[i]
		}
	}
	if len(s.Threads) > 0 {
		return &s.Threads[0]
	}
	return nil
}

// standing is where a process is: the first frame outside libraries, and whether it waits for others there.
type standing struct {
	rank  int
	stack *evidence.Stack
	at    string
	waits bool
	over  bool // in its program's end
	frame flight.Frame
	fn    string
}

// stacks compares where the processes are. Most are in a collective; the one that is elsewhere is the one they wait for.
func (j *job) stacks() (out []*finding) {
	var list []standing
	guess := map[int]int{}
	var pids []int
	for i := range j.e.Stacks {
		if s := &j.e.Stacks[i]; s.Rank < 0 && len(s.Threads) > 0 {
			pids = append(pids, s.PID)
		}
	}
	slices.Sort(pids)
	for i, pid := range slices.Compact(pids) {
		guess[pid] = i
	}
	for i := range j.e.Stacks {
		s := &j.e.Stacks[i]
		t := mainThread(s)
		if t == nil || len(t.Frames) == 0 {
			continue
		}
		rank := s.Rank
		if rank < 0 {
			rank = guess[s.PID]
		}
		list = append(list, stand(rank, s, t))
	}
	if len(list) < 2 {
		return nil
	}
	var outside, inside []standing
	for _, s := range list {
		if s.waits {
			inside = append(inside, s)
		} else {
			outside = append(outside, s)
		}
	}
	if len(outside) > 0 && len(inside) > 0 && len(outside) <= len(inside) {
		return []*finding{stuckOutside(outside, inside)}
	}
	if len(outside) == 0 {
		return differentLines(inside)
	}
	return nil
}

func stand(rank int, s *evidence.Stack, t *evidence.Thread) standing {
	out := standing{rank: rank, stack: s}
	for _, fr := range t.Frames {
		if slices.ContainsFunc(waitWords, func(w string) bool { return strings.Contains(fr.Name, w) }) {
			out.waits = true
		}
	}
	if atEnd(t) != "" { // whatever it waits for there, it makes no call any more
		out.over, out.waits = true, false
	}
	for _, fr := range t.Frames {
		isWait := slices.ContainsFunc(waitWords, func(w string) bool { return strings.Contains(fr.Name, w) })
		if !library(fr.File) && !isWait && !strings.Contains(fr.File, "communicator") && !strings.Contains(fr.File, "distributed") {
			out.at, out.frame, out.fn = fmt.Sprintf("%s:%d", fr.File, fr.Line), fr, fr.Name
			break
		}
	}
	if out.at == "" {
		fr := t.Frames[0]
		out.at, out.frame, out.fn = fmt.Sprintf("%s:%d", fr.File, fr.Line), fr, fr.Name
	}
	return out
}

func stuckOutside(outside, inside []standing) *finding {
	var ranks []int
	for _, s := range outside {
		ranks = append(ranks, s.rank)
	}
	f := newFinding(RankStuckHost, unfinished, inferred, ranks...)
	for _, s := range outside[:min(3, len(outside))] {
		f.item(s.stack.Where, fmt.Sprintf("%s (%s)", s.fn, s.at), fmt.Sprintf("rank %d is here, in no collective", s.rank))
	}
	for _, s := range inside[:min(3, len(inside))] {
		f.item(s.stack.Where, fmt.Sprintf("%s (%s)", s.fn, s.at), fmt.Sprintf("rank %d waits in a collective", s.rank))
	}
	if outside[0].stack.RankBy == "order" || outside[0].stack.Rank < 0 {
		f.against(outside[0].stack.Where, fmt.Sprintf("process %d", outside[0].stack.PID), "the stacks do not say ranks: processes are numbered in the order of their ids")
		f.Confidence = probable
	}
	f.Location = outside[0].at
	if !slices.ContainsFunc(outside, func(s standing) bool { return !s.over }) {
		f.Class = SkippedCollective
		f.alternative(RankStuckHost, oneView, ranks...)
		f.alternative(RankCrash, oneView, ranks...)
		return f.say("the program of %s is over (%s) while the other %d wait in a collective: a call was left out, or the program was left early", showRanks(f.Ranks), outside[0].fn, len(inside))
	}
	return f.say("%s: in its own program (%s, %s) while the other %d wait in a collective", showRanks(f.Ranks), outside[0].fn, outside[0].at, len(inside))
}

// differentLines: all wait in collectives, at different lines of the program: whoever is in the minority has gone on, or stayed behind.
func differentLines(list []standing) []*finding {
	at := map[string][]standing{}
	for _, s := range list {
		at[s.at] = append(at[s.at], s)
	}
	if len(at) != 2 {
		return nil
	}
	var sides [][]standing
	for _, key := range slices.Sorted(mapsKeys(at)) {
		sides = append(sides, at[key])
	}
	slices.SortStableFunc(sides, func(a, b []standing) int { return len(b) - len(a) })
	tie := len(sides[0]) == len(sides[1])
	var ranks []int
	for i, side := range sides {
		for _, s := range side {
			if i == 1 || tie {
				ranks = append(ranks, s.rank)
			}
		}
	}
	f := newFinding(OrderMismatch, unfinished, probable, ranks...)
	if tie {
		f.Confidence = byAbsence
	}
	for i := len(sides) - 1; i >= 0; i-- {
		for _, s := range sides[i][:min(2, len(sides[i]))] {
			f.item(s.stack.Where, fmt.Sprintf("%s (%s)", s.fn, s.at), fmt.Sprintf("rank %d waits here", s.rank))
		}
	}
	f.alternative(SkippedCollective, byAbsence, ranks...)
	f.Location = sides[1][0].at
	return []*finding{f.say("all wait in a collective, but not at one place of the program: %s at %s, the others at %s", showRanks(f.Ranks), sides[1][0].at, sides[0][0].at)}
}
