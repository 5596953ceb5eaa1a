// Package report writes a measurement: nccl-tests' text table as rows come in, JSON, CSV, pictures, a curve in the terminal, a progress bar.
// It reads all of that back but the pictures, and the output of nccl-tests of every era and of its relatives (Read).
//
// Writers take an io.Writer and know nothing of files; WriteFile and WritePlot make files, whole or not at all. Nothing here touches a device.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/bench/stat"
)

// Options are the choices of all writers; the zero value is the usual form.
type Options struct {
	Percentiles bool // Table: p50, p99 and max of each half after the standard columns
	Force       bool // files: replace an existing one
	Color       bool // Terminal: ANSI colours; the NO_COLOR environment variable overrules it
	ASCII       bool // Terminal: no character outside ASCII
	Width       int  // Terminal: columns in all; Plot: pixels; 0 = 80 columns, 1600 pixels
	Height      int  // Terminal: rows of the curve; Plot: pixels; 0 = 16 rows, 900 pixels
}

// setKey names one curve: everything but size, run and placement.
type setKey struct {
	Collective, Type, Op string
	Algo, Proto          string
	Root, Group          int
}

func keyOf(r *result.Row) setKey {
	return setKey{r.Collective, r.Type, r.Op, r.Algo, r.Proto, r.Root, r.Group}
}

// String is the label of a curve: what distinguishes it, without the parts that say nothing.
func (k setKey) String() string {
	s := strings.TrimSpace(k.Collective + " " + k.Type)
	if k.Collective == "" {
		s = strings.TrimSpace("unnamed collective " + k.Type)
	}
	if k.Op != "" && k.Op != "none" {
		s += " " + k.Op
	}
	if k.Root > 0 {
		s += fmt.Sprintf(" root %d", k.Root)
	}
	for _, s2 := range []string{k.Algo, k.Proto} {
		if s2 != "" {
			s += " " + s2
		}
	}
	if k.Group > 0 {
		s += fmt.Sprintf(" group %d", k.Group)
	}
	return s
}

// rowSet is the rows of one curve, by size; each size has the rows of all runs.
type rowSet struct {
	key   setKey
	sizes []sizeRows
}

type sizeRows struct {
	bytes result.Bytes
	rows  []result.Row
}

// setsOf groups rows into curves, in order of first appearance, sizes ascending.
func setsOf(rows []result.Row) []rowSet {
	var sets []rowSet
	for _, r := range rows {
		i := slices.IndexFunc(sets, func(s rowSet) bool { return s.key == keyOf(&r) })
		if i < 0 {
			i = len(sets)
			sets = append(sets, rowSet{key: keyOf(&r)})
		}
		at, found := slices.BinarySearchFunc(sets[i].sizes, r.Bytes, func(s sizeRows, b result.Bytes) int { return cmp.Compare(s.bytes, b) })
		if !found {
			sets[i].sizes = slices.Insert(sets[i].sizes, at, sizeRows{bytes: r.Bytes})
		}
		sets[i].sizes[at].rows = append(sets[i].sizes[at].rows, r)
	}
	return sets
}

// halfOf picks a placement of a row.
func halfOf(r *result.Row, inPlace bool) *result.Half {
	if inPlace {
		return r.InPlace
	}
	return r.OutOfPlace
}

func halvesOf(rows []result.Row, inPlace bool) []*result.Half {
	var halves []*result.Half
	for i := range rows {
		if h := halfOf(&rows[i], inPlace); h != nil {
			halves = append(halves, h)
		}
	}
	return halves
}

// medianRow joins the rows of one size over all runs: medians of figures, wrong elements added up, the launch-bound rank of most runs.
func medianRow(rows []result.Row) result.Row {
	m := rows[0]
	if len(rows) > 1 {
		m.Run = 0
		m.OutOfPlace = medianHalf(halvesOf(rows, false))
		m.InPlace = medianHalf(halvesOf(rows, true))
	}
	return m
}

func medianHalf(halves []*result.Half) *result.Half {
	switch len(halves) {
	case 0:
		return nil
	case 1:
		return halves[0]
	}
	median := func(get func(*result.Half) float64) float64 { return stat.Median(each(halves, get)) }
	m := &result.Half{
		Iters:     halves[0].Iters,
		TimeUS:    result.Micros(median(func(h *result.Half) float64 { return float64(h.TimeUS) })),
		AlgBW:     result.GBps(median(func(h *result.Half) float64 { return float64(h.AlgBW) })),
		BusBW:     result.GBps(median(func(h *result.Half) float64 { return float64(h.BusBW) })),
		CPUTimeUS: result.Micros(median(func(h *result.Half) float64 { return float64(h.CPUTimeUS) })),
		Iter:      medianIter(halves),
	}
	for _, h := range halves {
		if h.Wrong != nil {
			if m.Wrong == nil {
				m.Wrong = new(int64)
			}
			*m.Wrong += *h.Wrong
		}
	}
	m.LaunchBound = commonLaunchBound(halves)
	return m
}

func each[T any](items []T, get func(T) float64) []float64 {
	values := make([]float64, len(items))
	for i, item := range items {
		values[i] = get(item)
	}
	return values
}

// medianIter takes the median of each percentile over runs; the maximum stays the largest of all.
func medianIter(halves []*result.Half) *result.IterStats {
	var p50, p95, p99 []float64
	var m result.IterStats
	for _, h := range halves {
		if h.Iter == nil {
			continue
		}
		m.N += h.Iter.N
		if !lacks(h.Iter, "p50_us") {
			p50 = append(p50, float64(h.Iter.P50US))
		}
		if h.Iter.P95US != nil {
			p95 = append(p95, float64(*h.Iter.P95US))
		}
		if h.Iter.P99US != nil {
			p99 = append(p99, float64(*h.Iter.P99US))
		}
		m.MaxUS = max(m.MaxUS, h.Iter.MaxUS)
	}
	if len(p50) == 0 {
		return nil
	}
	m.P50US = result.Micros(stat.Median(p50))
	m.P95US, m.P99US = medianOrNil(p95), medianOrNil(p99)
	return &m
}

// lacks says that a figure was not in the file that the statistics were read from.
func lacks(it *result.IterStats, field string) bool { return slices.Contains(it.Lacks, field) }

// rankCount is the number of ranks, 0 where a file does not say; the list of ranks of such a file may be shorter.
func rankCount(run *result.Run) int { return run.Config.World }

// groupSize is the ranks of one communicator: all, unless they were split.
func groupSize(run *result.Run) int {
	if len(run.Ranks) == 0 || len(run.Ranks) != rankCount(run) {
		return rankCount(run)
	}
	n := 0
	for i := range run.Ranks {
		if run.Ranks[i].Group == run.Ranks[0].Group {
			n++
		}
	}
	return n
}

func medianOrNil(values []float64) *result.Micros {
	if len(values) == 0 {
		return nil
	}
	m := result.Micros(stat.Median(values))
	return &m
}

// commonLaunchBound is nil unless more than half of the runs were launch-bound; then it names the rank of most of them.
func commonLaunchBound(halves []*result.Half) *result.LaunchBound {
	byRank := map[int][]*result.LaunchBound{}
	bound := 0
	for _, h := range halves {
		if h.LaunchBound != nil {
			bound++
			byRank[h.LaunchBound.Rank] = append(byRank[h.LaunchBound.Rank], h.LaunchBound)
		}
	}
	if 2*bound <= len(halves) {
		return nil
	}
	best := -1
	for rank, of := range byRank {
		if best < 0 || len(of) > len(byRank[best]) || len(of) == len(byRank[best]) && rank < best {
			best = rank
		}
	}
	var enqueue, shares []float64
	for _, l := range byRank[best] {
		enqueue = append(enqueue, float64(l.EnqueueUS))
		if l.CoreShare != nil {
			shares = append(shares, *l.CoreShare)
		}
	}
	b := &result.LaunchBound{Rank: best, EnqueueUS: result.Micros(stat.Median(enqueue))}
	if len(shares) > 0 {
		share := stat.Median(shares)
		b.CoreShare = &share
	}
	return b
}

// library finds a loaded library by name; nil if it is not there.
func library(env *result.Environment, name string) *result.Library {
	for i := range env.Libraries {
		if strings.EqualFold(env.Libraries[i].Name, name) {
			return &env.Libraries[i]
		}
	}
	return nil
}

// libraryLabel is the library that ran the collectives, for a title: "NCCL 2.28.9" or "host engine 0.1".
func libraryLabel(run *result.Run) string {
	if l := library(&run.Environment, "nccl"); l != nil {
		return "NCCL " + l.Version
	}
	if l := library(&run.Environment, "host engine"); l != nil {
		return strings.TrimSpace("host engine " + l.Version)
	}
	return ""
}

// positive says whether a logarithmic axis can show v. Figures of a foreign file beyond all that is measured would give it 600 decades.
func positive(v float64) bool { return v > 1e-12 && v < 1e20 }
