package ras

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/internal/rankset"
)

// Kind is what a comparison of two samples found.
type Kind string

// The kinds of findings. Stuck, Lost and Failed are alarms; Frozen is one only where the job is known to have work.
const (
	Stuck  Kind = "stuck"  // ranks have called an operation differently often, and neither side moved
	Lost   Kind = "lost"   // a rank or process gave no data, twice
	Failed Kind = "failed" // ranks report an error
	State  Kind = "state"  // ranks are in different states, and stay there: some are being made or have left
	Frozen Kind = "frozen" // all have called the same, and nothing moved: launched everywhere, or idle
	Moving Kind = "moving" // counts rose
)

// Finding is one thing about one communicator, or about the job.
type Finding struct {
	Kind    Kind    `json:"kind"`
	Comm    string  `json:"communicator,omitempty"` // its hash, or "group 0" where the text does not say
	Size    int     `json:"size,omitempty"`
	Op      string  `json:"op,omitempty"`
	Levels  []Level `json:"levels,omitempty"`
	Behind  []int   `json:"behind"` // ranks with the lowest count, where they are known by number
	BehindN int     `json:"behind_count,omitempty"`
	Ahead   []int   `json:"ahead"`
	AheadN  int     `json:"ahead_count,omitempty"`
	Ranks   []int   `json:"ranks"` // of Lost, Failed and State
	Text    string  `json:"text"`
}

// Comparison is what two samples of one job say together.
type Comparison struct {
	Alarm    bool      `json:"alarm"`
	Moving   bool      `json:"moving"` // some count rose: the job as a whole is not stuck
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes"`
}

// Compare holds two reports of one job against each other, b the later one. Counts never fall, so ranks that differ in a and in b by the same
// numbers stood still in between. working says that the job is expected to make progress: then equal counts that stay equal are an alarm as well. It
// is pure: no clock.
func Compare(a, b *Report, working bool) *Comparison {
	c := &Comparison{Findings: []Finding{}, Notes: []string{}}
	c.processes(a, b)
	old := make(map[string]*Communicator)
	for i := range a.Communicators {
		old[identity(&a.Communicators[i])] = &a.Communicators[i]
	}
	met := 0
	for i := range b.Communicators {
		now := &b.Communicators[i]
		was := old[identity(now)]
		if was == nil {
			was = headless(a, now)
		}
		if was == nil {
			if now.Errors != "OK" && now.Hash != "" {
				c.Notes = append(c.Notes, fmt.Sprintf("communicator %s is in the last sample only: nothing to compare", name(now)))
			}
			continue
		}
		met++
		c.communicator(was, now, working)
	}
	if met == 0 && len(a.Communicators) > 0 && len(b.Communicators) > 0 {
		c.Notes = append(c.Notes, "the samples have no communicator in common: several jobs on this host share the port, or the job makes new ones all the time; "+
			"give each job its own NCCL_RAS_ADDR")
	}
	if !b.FromJSON && met > 0 {
		c.Notes = append(c.Notes, "this NCCL has no JSON form: counts are known only where ranks differ, so a hang in which all have called the same does not show")
	}
	for _, f := range c.Findings {
		c.Moving = c.Moving || f.Kind == Moving
		c.Alarm = c.Alarm || f.Kind == Stuck || f.Kind == Lost || f.Kind == Failed || f.Kind == Frozen && working
	}
	return c
}

// identity joins a communicator of two samples: by hash, or by its place in the table where there is none.
func identity(c *Communicator) string {
	if c.Hash != "" {
		return strings.TrimPrefix(c.Hash, "0x") + " " + c.Secondary
	}
	return fmt.Sprintf("group %d of %d x %d %s", c.Group, c.Comms, c.Size, c.Status)
}

// headless finds the communicator where one of the two samples was cut off before the line that names it: the only one of that size.
func headless(a *Report, now *Communicator) *Communicator {
	var found *Communicator
	for i := range a.Communicators {
		was := &a.Communicators[i]
		unnamed := was.Hash == "" && was.Group < 0 || now.Hash == "" && now.Group < 0
		if !unnamed || was.Size != now.Size || was.Size == 0 {
			continue
		}
		if found != nil {
			return nil
		}
		found = was
	}
	return found
}

func name(c *Communicator) string {
	if c.Hash != "" {
		return c.Hash
	}
	return "group " + strconv.Itoa(c.Group)
}

// processes finds those that did not answer twice.
func (c *Comparison) processes(a, b *Report) {
	same := func(m Missing) func(Missing) bool {
		return func(n Missing) bool { return n.Host == m.Host && n.PID == m.PID }
	}
	add := func(m Missing, text string) {
		f := Finding{Kind: Lost, Behind: []int{}, Ahead: []int{}, Ranks: []int{}}
		who := "process"
		if rank := b.rankOf(m); rank >= 0 {
			f.Ranks, who = append(f.Ranks, rank), fmt.Sprintf("rank %d, process", rank)
		}
		f.Text = fmt.Sprintf("%s %d on %s %s", who, m.PID, m.Host, text)
		c.Findings = append(c.Findings, f)
	}
	for _, m := range b.Dead {
		add(m, "is dead: RAS has not reached it for a minute")
	}
	for _, m := range b.Incomplete {
		if slices.ContainsFunc(a.Incomplete, same(m)) || slices.ContainsFunc(a.Dead, same(m)) {
			add(m, "did not answer twice: it is stopped, gone, or cut off")
		}
	}
}

// rankOf is the rank of a process that is missing: in the largest communicator that misses it, since a rank in a smaller one is another number. -1: not said.
func (r *Report) rankOf(m Missing) int {
	rank, size := m.Rank, 0
	for i := range r.Communicators {
		x := &r.Communicators[i]
		for _, n := range x.Missing {
			if n.Rank >= 0 && n.PID == m.PID && n.Host == m.Host && x.Size > size {
				rank, size = n.Rank, x.Size
			}
		}
	}
	return rank
}

func (c *Comparison) communicator(was, now *Communicator, working bool) {
	base := Finding{Comm: name(now), Size: now.Size, Behind: []int{}, Ahead: []int{}, Ranks: []int{}}
	c.lost(base, was, now)
	for _, e := range now.RankErrors {
		f := base
		f.Kind, f.Ranks = Failed, slices.Clone(e.Ranks)
		what := "an asynchronous error"
		if e.Init {
			what = "an error of the initialisation"
		}
		f.Text = fmt.Sprintf("%s report %s: %s", who(e.Ranks, e.N), what, e.Text)
		c.Findings = append(c.Findings, f)
	}
	if f, ok := sameStates(base, was, now); ok {
		c.Findings = append(c.Findings, f)
	}
	stuck, moved, equal := 0, 0, 0
	for _, op := range slices.Sorted(maps.Keys(now.Counts)) {
		levels, before := now.Counts[op], was.Counts[op]
		switch {
		case !sameLevels(before, levels):
			moved++
			f := base
			f.Kind, f.Op, f.Levels = Moving, op, levels
			f.Text = op + " counts rose between the samples"
			c.Findings = append(c.Findings, f)
		case len(levels) > 1:
			stuck++
			c.Findings = append(c.Findings, stuckFinding(base, now, op, levels))
		default:
			equal++
		}
	}
	if moved == 0 && len(was.Counts) > len(now.Counts) { // what differed before does no longer
		f := base
		f.Kind, f.Text = Moving, "ranks that differed caught up"
		c.Findings = append(c.Findings, f)
	} else if moved == 0 && stuck == 0 && equal > 0 {
		f := base
		f.Kind = Frozen
		f.Text = "all ranks have called the same and none called anything more: idle, or launched everywhere and finished nowhere (GPU or network)"
		c.Findings = append(c.Findings, f)
	}
}

// lost finds ranks without data in both samples.
func (c *Comparison) lost(base Finding, was, now *Communicator) {
	f := base
	f.Kind = Lost
	for _, m := range now.Missing {
		gone := m.Dead || m.Unresponsive
		if gone && slices.ContainsFunc(was.Missing, func(n Missing) bool { return n.Rank == m.Rank && (n.Unresponsive || n.Dead) }) {
			f.Ranks = append(f.Ranks, m.Rank)
		}
	}
	n := len(f.Ranks)
	if n == 0 && len(now.Missing) == 0 { // the text names outliers only
		n = min(was.Lost, now.Lost)
	}
	if n > 0 {
		slices.Sort(f.Ranks)
		f.Text = who(f.Ranks, n) + " gave no data in either sample"
		c.Findings = append(c.Findings, f)
	}
}

// sameStates tells whether ranks are in different states and stay there.
func sameStates(base Finding, was, now *Communicator) (Finding, bool) {
	if len(now.States) < 2 || len(was.States) != len(now.States) {
		return base, false
	}
	var parts []string
	for i, s := range now.States {
		if w := was.States[i]; w.Status != s.Status || w.N != s.N || !slices.Equal(w.Ranks, s.Ranks) {
			return base, false
		}
		parts = append(parts, who(s.Ranks, s.N)+" "+s.Status)
		if i > 0 && s.N <= now.States[0].N {
			base.Ranks = append(base.Ranks, s.Ranks...)
		}
	}
	base.Kind, base.Text = State, "states differ and stay: "+strings.Join(parts, ", ")
	return base, true
}

// sameLevels tells whether no rank moved.
func sameLevels(a, b []Level) bool {
	if len(a) != len(b) {
		return false
	}
	a, b = slices.Clone(a), slices.Clone(b)
	slices.SortFunc(a, byCount)
	slices.SortFunc(b, byCount)
	return slices.EqualFunc(a, b, func(x, y Level) bool {
		return x.Count == y.Count && x.N == y.N && (len(x.Ranks) == 0 || len(y.Ranks) == 0 || slices.Equal(x.Ranks, y.Ranks))
	})
}

func byCount(a, b Level) int { return cmp.Compare(a.Count, b.Count) }

func stuckFinding(f Finding, c *Communicator, op string, levels []Level) Finding {
	levels = named(levels, c.Size)
	slices.SortFunc(levels, byCount)
	low, high := levels[0], levels[len(levels)-1]
	f.Kind, f.Op, f.Levels = Stuck, op, levels
	f.Behind, f.BehindN = append(f.Behind, low.Ranks...), low.N
	f.Ahead, f.AheadN = append(f.Ahead, high.Ranks...), high.N
	f.Text = fmt.Sprintf("%s: %s at %d, %s at %d, and none moved", op, who(low.Ranks, low.N), low.Count, who(high.Ranks, high.N), high.Count)
	return f
}

// named gives the ranks of the one set that the text does not name: all that are in no other.
func named(levels []Level, size int) []Level {
	levels = slices.Clone(levels)
	unnamed, total := -1, 0
	there := make(map[int]bool)
	for i, l := range levels {
		total += l.N
		switch {
		case len(l.Ranks) == l.N:
			for _, r := range l.Ranks {
				there[r] = true
			}
		case unnamed >= 0:
			return levels
		default:
			unnamed = i
		}
	}
	if unnamed < 0 || total != size || size > maxRank || len(levels[unnamed].Ranks) > 0 {
		return levels
	}
	var rest []int
	for r := range size {
		if !there[r] {
			rest = append(rest, r)
		}
	}
	if len(rest) == levels[unnamed].N {
		levels[unnamed].Ranks = rest
	}
	return levels
}

// who names ranks, or says how many they are.
func who(ranks []int, n int) string {
	switch {
	case len(ranks) == 1 && n <= 1:
		return "rank " + strconv.Itoa(ranks[0])
	case len(ranks) == n && n > 0:
		return "ranks " + rankset.Fold(ranks, ",")
	case n == 1:
		return "1 rank"
	}
	return strconv.Itoa(n) + " ranks"
}

// Watch takes n samples, interval apart. It gives those that it has when one fails, with the error, and when ctx ends.
func Watch(ctx context.Context, addr string, opt Options, n int, interval time.Duration) ([]*Report, error) {
	var out []*Report
	for i := range n {
		if i > 0 {
			t := time.NewTimer(interval)
			select {
			case <-ctx.Done():
				t.Stop()
				return out, ctx.Err()
			case <-t.C:
			}
		}
		rep, err := Query(ctx, addr, opt)
		if err != nil {
			return out, fmt.Errorf("sample %d of %d: %w", i+1, n, err)
		}
		out = append(out, rep)
	}
	return out, nil
}
