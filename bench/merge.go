package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/bench/stat"
)

// pace chooses how often an operation is repeated, from how long the one before took. All ranks are told the same numbers.
type pace struct {
	plan *Plan
	key  string  // collective and type of the last row
	us   float64 // its time an operation
}

// Without --iters-exact a series lasts at least seriesUS (small sizes repeat more, up to mostFactor times -n), and the per-iteration series
// has at least 100 samples, as a 99th percentile needs, unless that would take longer than eventUS.
const (
	seriesUS   = 20e3
	mostFactor = 20
	eventUS    = 3e5
	eventMin   = 100
)

func (p *pace) next(st step) stepMsg {
	n := p.plan.Iters
	msg := stepMsg{Iters: n, EventIters: min(n, 1000)}
	graph, agg := p.plan.Modes.Graph, float64(max(1, p.plan.Modes.Aggregate))
	if graph > 0 {
		msg.EventIters = min(graph, 20)
	}
	if key := st.coll.name + "/" + st.dtype.String(); p.key != key {
		p.key, p.us = key, 0
		return msg
	}
	if p.us <= 0 {
		return msg
	}
	us := p.us * agg // an iteration
	if graph > 0 {
		// A launch is one sample and takes all of the iterations.
		msg.EventIters = int(min(float64(max(graph, 20)), max(eventUS/(us*float64(n)), 5)))
		return msg
	}
	if !p.plan.ItersExact {
		msg.Iters = int(min(max(float64(n), seriesUS/us), float64(n)*mostFactor))
	}
	msg.EventIters = int(min(float64(max(min(n, 1000), eventMin)), max(eventUS/us, 5)))
	return msg
}

func (p *pace) saw(row result.Row) {
	if row.OutOfPlace != nil {
		p.us = float64(row.OutOfPlace.TimeUS)
	}
}

// mergeRows makes a row for each group of what all ranks measured in a step.
func mergeRows(plan *Plan, st step, msg stepMsg, ranks []rankRow) []result.Row {
	members := make([][]int, len(plan.worlds()))
	for r := range ranks {
		g := 0
		if plan.Groups != nil {
			g = plan.Groups[r]
		}
		members[g] = append(members[g], r)
	}
	out := make([]result.Row, len(members))
	for g, m := range members {
		out[g] = mergeRow(plan, st, msg, ranks, m, len(m))
		out[g].Group = g
	}
	return out
}

// halfKey is one half of a row over several runs or cycles.
type halfKey struct {
	coll, dtype, op, algo, proto string
	root, group                  int
	bytes                        result.Bytes
	inPlace                      bool
}

func keyOf(r *result.Row, inPlace bool) halfKey {
	return halfKey{r.Collective, r.Type, r.Op, r.Algo, r.Proto, r.Root, r.Group, r.Bytes, inPlace}
}

// mergeRow makes one row of what the members of a group measured.
func mergeRow(plan *Plan, st step, msg stepMsg, ranks []rankRow, members []int, world int) result.Row {
	l := st.coll.lay(plan.shape(st.cell, st.root, world), st.ask, st.dtype)
	row := result.Row{Collective: st.coll.name, Type: st.dtype.String(), Op: "none", Root: -1, Bytes: l.bytes, Count: l.count}
	if st.coll.reduces {
		row.Op = opName(st.op)
	}
	if st.coll.rooted {
		row.Root = st.root
	}
	for h, to := range []**result.Half{&row.OutOfPlace, &row.InPlace} {
		half := mergeHalf(msg, ranks, members, h)
		average := plan.Average
		if average == AverageDefault && st.coll.slowest {
			average = AverageMax
		}
		ns := averaged(half.Ranks, average, func(r result.RankTime) float64 { return float64(r.TimeUS) }) * 1e3
		half.TimeUS = result.Micros(ns / 1e3)
		half.CPUTimeUS = result.Micros(averaged(half.Ranks, average, func(r result.RankTime) float64 { return float64(r.QueuedUS) }))
		if ns > 0 {
			half.AlgBW = result.GBps(float64(l.moved) / ns) // bytes a nanosecond are 10^9 bytes a second
			half.BusBW = half.AlgBW * result.GBps(st.coll.factor(world))
			if l.crossing > 0 {
				half.BusBW = result.GBps(float64(l.crossing) / ns)
			}
		}
		half.LaunchBound = launchBound(half)
		*to = half
	}
	return row
}

// averaged is one figure for all ranks.
func averaged(ranks []result.RankTime, how Average, of func(result.RankTime) float64) float64 {
	var all []float64
	for _, r := range ranks {
		all = append(all, of(r))
	}
	switch {
	case len(all) == 0:
		return 0
	case how == AverageRank0:
		return all[0]
	case how == AverageMin:
		return slices.Min(all)
	case how == AverageMax:
		return slices.Max(all)
	}
	return stat.Mean(all)
}

// mergeHalf gathers what the members measured in a half; ranks that were idle have no part in it.
func mergeHalf(msg stepMsg, ranks []rankRow, members []int, h int) *result.Half {
	out := &result.Half{Iters: msg.Iters}
	var wrong int64
	checked := true
	var busy []rankRow
	for _, r := range members {
		m := ranks[r].Halves[h]
		checked = checked && m.Checked
		for _, f := range m.Faults {
			wrong += f.Wrong
			out.Faults = append(out.Faults, f)
		}
		if m.Unchecked != "" {
			out.Unchecked = m.Unchecked
		}
		if m.Idle {
			continue
		}
		busy = append(busy, ranks[r])
		var hashes []string
		for _, sum := range m.Hashes {
			hashes = append(hashes, fmt.Sprintf("%016x", sum))
		}
		out.Ranks = append(out.Ranks, result.RankTime{
			Hashes: hashes, Rank: r, TimeUS: result.Micros(m.TimeNS / 1e3), EnqueueUS: result.Micros(m.EnqueueNS / 1e3), QueuedUS: result.Micros(m.QueuedNS / 1e3),
			EventUS: m.EventUS, BatchUS: result.Micros(stat.Mean(m.EventUS)), CPU: m.CPU, Switches: m.Switches, IssueRate: m.IssueRate,
		})
	}
	if checked {
		out.Wrong = &wrong
	}
	out.Together = together(out.Faults, members)
	out.Iter = stat.Summary(slowestEach(busy, h))
	out.SlowestRank = slowest(out.Ranks)
	return out
}

// together looks at the faults of a communicator's results, one a rank, under the ranks' numbers there.
func together(faults []result.Fault, members []int) string {
	var own []result.Fault
	for _, f := range faults {
		f.Rank = slices.Index(members, f.Rank)
		known := slices.ContainsFunc(own, func(o result.Fault) bool { return o.Rank == f.Rank })
		if f.Kind != result.FaultInput && !known {
			own = append(own, f)
		}
	}
	return jointly(own, len(members))
}

// slowestEach is, for each iteration of the event series, the time of the rank that took longest.
func slowestEach(ranks []rankRow, h int) []float64 {
	var out []float64
	for _, rr := range ranks {
		for i, us := range rr.Halves[h].EventUS {
			if i == len(out) {
				out = append(out, us)
			}
			out[i] = max(out[i], us)
		}
	}
	return out
}

// slowest names the rank whose median event time stands out by a tenth over the median of all ranks.
func slowest(ranks []result.RankTime) *int {
	if len(ranks) < 2 {
		return nil
	}
	medians := make([]float64, len(ranks))
	worst := 0
	for i, r := range ranks {
		if len(r.EventUS) == 0 {
			return nil
		}
		medians[i] = stat.Median(r.EventUS)
		if medians[i] > medians[worst] {
			worst = i
		}
	}
	if medians[worst] < 1.1*stat.Median(medians) {
		return nil
	}
	rank := ranks[worst].Rank
	return &rank
}

// launchBound tells whether the operation takes what its queueing takes on the slowest rank. Then a faster GPU or link would change nothing.
// The margin of a tenth is what was seen between the two on H200s (docs/measurements).
func launchBound(h *result.Half) *result.LaunchBound {
	worst := 0
	for i, r := range h.Ranks {
		if r.EnqueueUS > h.Ranks[worst].EnqueueUS {
			worst = i
		}
	}
	e := h.Ranks[worst].EnqueueUS
	if e <= 0 || float64(h.TimeUS) > 1.1*float64(e) {
		return nil
	}
	return &result.LaunchBound{Rank: h.Ranks[worst].Rank, EnqueueUS: e}
}

// coreShares relates the issue rates in the fresh halves, which are of run, to the best seen on their hosts (best, updated). A new best
// changes the shares of all halves measured before.
func coreShares(run *result.Run, best map[string]float64, fresh []*result.Half) {
	raised := false
	for _, h := range fresh {
		for _, r := range h.Ranks {
			if host := run.Ranks[r.Rank].Host; r.IssueRate > best[host] {
				best[host], raised = r.IssueRate, true
			}
		}
	}
	if raised {
		fresh = allHalves(run.Rows)
	}
	for _, h := range fresh {
		for i := range h.Ranks {
			r := &h.Ranks[i]
			if r.IssueRate <= 0 {
				continue
			}
			share := r.IssueRate / best[run.Ranks[r.Rank].Host]
			r.CoreShare = &share
			if h.LaunchBound != nil && h.LaunchBound.Rank == r.Rank {
				h.LaunchBound.CoreShare = &share
			}
		}
	}
}

// allHalves lists both halves of all rows.
func allHalves(rows []result.Row) []*result.Half {
	var out []*result.Half
	for _, r := range rows {
		for _, h := range []*result.Half{r.OutOfPlace, r.InPlace} {
			if h != nil {
				out = append(out, h)
			}
		}
	}
	return out
}

// findModes groups each row half's times over several runs.
func findModes(rows []result.Row, runs int) []result.Modes {
	if runs < 2 {
		return nil
	}
	halves := make(map[halfKey][]*result.Half)
	var order []halfKey
	for _, r := range rows {
		for _, h := range []struct {
			half    *result.Half
			inPlace bool
		}{{r.OutOfPlace, false}, {r.InPlace, true}} {
			if h.half == nil {
				continue
			}
			k := keyOf(&r, h.inPlace)
			if _, ok := halves[k]; !ok {
				order = append(order, k)
			}
			halves[k] = append(halves[k], h.half)
		}
	}
	var out []result.Modes
	for _, k := range order {
		var t []float64
		for _, h := range halves[k] {
			t = append(t, float64(h.TimeUS))
		}
		m := result.Modes{
			Collective: k.coll, Type: k.dtype, Op: k.op, Algo: k.algo, Proto: k.proto, Root: k.root, Group: k.group, Bytes: k.bytes, InPlace: k.inPlace, Runs: len(t),
			MedianUS: result.Micros(stat.Median(t)), MinUS: result.Micros(slices.Min(t)), MaxUS: result.Micros(slices.Max(t)), Groups: stat.Modes(t),
		}
		explainSlow(&m, halves[k])
		out = append(out, m)
	}
	return out
}

// slowFactor is how much slower than the fastest a run counts as slow when the runs form no groups.
const slowFactor = 1.15

// explainSlow counts, among the slow runs (nearer to a slower group than to the fastest), those whose time was one rank's queueing on a
// shared core.
func explainSlow(m *result.Modes, halves []*result.Half) {
	edge := m.MinUS * slowFactor
	if len(m.Groups) > 1 {
		edge = (m.Groups[0].MedianUS + m.Groups[1].MedianUS) / 2
	}
	for _, h := range halves {
		if h.TimeUS <= edge {
			continue
		}
		m.SlowRuns++
		if b := h.LaunchBound; b != nil && b.CoreShare != nil && *b.CoreShare < result.SharedCore {
			m.SlowSharedCore++
		}
	}
}

// Exit statuses of the program (documented in README.md).
const (
	ExitOK          = 0
	ExitInternal    = 1
	ExitUsage       = 2
	ExitNoDevice    = 3
	ExitTimeout     = 4
	ExitDied        = 5
	ExitWrongData   = 6
	ExitFindings    = 8 // a fault was found in what was looked at, not in what was done
	ExitInterrupted = 130
)

// outcome says how the run ended. Wrong data outweighs a failure that came later: it is the graver news.
func outcome(run *result.Run, err error) result.Outcome {
	o := result.Outcome{Status: "ok", Exit: ExitOK}
	var f *Failure
	switch {
	case err == nil:
	case errors.Is(err, errInterrupted):
		o = result.Outcome{Status: "interrupted", Exit: ExitInterrupted, Message: fmt.Sprintf("stopped on request; %d rows measured before are kept", len(run.Rows)) + strings.TrimPrefix(err.Error(), errInterrupted.Error())}
	case errors.As(err, &f):
		o = result.Outcome{Status: string(f.Kind), Exit: f.exit(), Message: f.Text, Host: f.Host, Phase: f.Phase}
		if f.Rank >= 0 {
			o.Rank = &f.Rank
		}
	default:
		o = result.Outcome{Status: string(FailInternal), Exit: ExitInternal, Message: err.Error()}
	}
	odd := slices.IndexFunc(run.Consistency, func(c result.Consistency) bool { return c.Fault })
	if odd >= 0 && o.Exit == ExitOK {
		c := &run.Consistency[odd]
		o = result.Outcome{Status: "wrong data", Exit: ExitWrongData, Message: fmt.Sprintf("%s %s %s, %d bytes: %s", c.Collective, c.Type, c.Op, c.Bytes, c.Verdict)}
	}
	if rank, n := firstFault(run.Rows); rank >= 0 {
		text := fmt.Sprintf("wrong data in %d row halves, first seen on rank %d", n, rank)
		if o.Message != "" {
			text += "; then " + o.Message
		}
		o = result.Outcome{Status: "wrong data", Exit: ExitWrongData, Message: text, Rank: &rank}
	}
	return o
}

func (f *Failure) exit() int {
	switch f.Kind {
	case FailDied, FailRemote:
		return ExitDied
	case FailNoDevice:
		return ExitNoDevice
	case FailUsage:
		return ExitUsage
	case FailTimeout:
		return ExitTimeout
	}
	return ExitInternal
}

func firstFault(rows []result.Row) (rank, halves int) {
	rank = -1
	for _, h := range allHalves(rows) {
		if len(h.Faults) == 0 {
			continue
		}
		if rank < 0 {
			rank = slices.MinFunc(h.Faults, func(a, b result.Fault) int { return a.Rank - b.Rank }).Rank
		}
		halves++
	}
	return rank, halves
}
