package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/bench/stat"
)

// placementName is the word for a half.
func placementName(inPlace bool) string {
	if inPlace {
		return "in-place"
	}
	return "out-of-place"
}

// faultLines says which rank had which elements wrong, below the row.
func faultLines(row *result.Row, nameRun bool) string {
	var b strings.Builder
	for _, inPlace := range []bool{false, true} {
		h := halfOf(row, inPlace)
		if h == nil {
			continue
		}
		if h.Together != "" && len(h.Faults) > 1 {
			fmt.Fprintf(&b, "#   %s: %s\n", placementName(inPlace), oneLine(h.Together))
		}
		for i := range h.Faults {
			if i == maxFaultRanks && len(h.Faults) > maxFaultRanks+1 {
				fmt.Fprintf(&b, "#   … and %d more ranks (all are in the JSON)\n", len(h.Faults)-i)
				break
			}
			b.WriteString(faultLine(&h.Faults[i], row.Run, nameRun, inPlace))
		}
	}
	return b.String()
}

// maxFaultRanks is how many ranks' faults are told one by one for one half of a row.
const maxFaultRanks = 16

func faultLine(f *result.Fault, run int, nameRun, inPlace bool) string {
	text := "#   "
	if nameRun {
		text += fmt.Sprintf("run %d, ", run)
	}
	noun := "elements"
	if f.Wrong == 1 {
		noun = "element"
	}
	text += fmt.Sprintf("rank %d: %d wrong %s in [%d, %d]", f.Rank, f.Wrong, noun, f.First, f.Last)
	if len(f.Samples) > 0 {
		s := f.Samples[0]
		text += fmt.Sprintf("; first: index %d got %s expected %s", s.Index, oneLine(s.Got), oneLine(s.Expected))
	}
	text += " (" + placementName(inPlace) + ")"
	if f.Analysis != "" {
		text += "; " + oneLine(f.Analysis)
	}
	return text + "\n"
}

// oneLine keeps foreign text from breaking out of its comment line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// remarks is the part of the footer that nccl-tests does not have; printed are the rows as they were shown.
func remarks(run *result.Run, printed []result.Row) string {
	var b strings.Builder
	if len(run.Skipped) > 0 {
		b.WriteString("# Skipped:\n")
		for _, s := range run.Skipped {
			fmt.Fprintf(&b, "#   %s: %s\n", oneLine(s.What), oneLine(s.Why))
		}
	}
	bound := launchBoundLines(printed, &run.Config)
	if len(run.Notes)+len(bound) > 0 {
		b.WriteString("# Notes:\n")
		for _, n := range run.Notes {
			fmt.Fprintf(&b, "#   %s: %s\n", n.Severity, oneLine(n.Text))
		}
		for i, line := range bound {
			if i == maxBound && len(bound) > maxBound+1 {
				fmt.Fprintf(&b, "#   info: … and %d more of that kind (all are in the JSON)\n", len(bound)-i)
				break
			}
			b.WriteString("#   info: " + line + "\n")
		}
	}
	b.WriteString(choiceLines(run.Rows))
	b.WriteString(modesTable(run.Modes))
	b.WriteString(cyclesTable(run.Cycles))
	b.WriteString(consistencyLines(run.Consistency))
	if b.Len() > 0 {
		b.WriteString("#\n")
	}
	return b.String()
}

// maxBound is how many launch-bound curves are told one by one.
const maxBound = 8

func outcomeLine(o *result.Outcome) string {
	if o.Status == "" || o.Status == "ok" {
		return ""
	}
	text := fmt.Sprintf("# error: %s (exit status %d)", o.Status, o.Exit)
	var where []string
	if o.Rank != nil {
		where = append(where, fmt.Sprintf("rank %d", *o.Rank))
	}
	if o.Host != "" {
		where = append(where, "host "+o.Host)
	}
	if o.Phase != "" {
		where = append(where, "in "+o.Phase)
	}
	if len(where) > 0 {
		text += ", " + strings.Join(where, ", ")
	}
	if o.Message != "" {
		text += ": " + oneLine(o.Message)
	}
	return text + "\n"
}

// boundGroup is the sizes of one curve that wait for one rank's queueing.
type boundGroup struct {
	rank     int
	from, to result.Bytes
	enqueue  []float64 // microseconds, one for each such half
	shared   []float64 // core shares of those on a core whose other hardware thread was busy
}

// launchBoundLines joins launch-bound rows into one sentence a curve and rank: a table of 20 such rows has one cause.
func launchBoundLines(rows []result.Row, c *result.Config) []string {
	var lines []string
	sets := setsOf(rows)
	waiter := "the GPU waits for the CPU"
	if c.Engine == "host" {
		waiter = "the stream waits for the thread that queues"
	}
	cure := "--quiet-cores avoids such cores"
	if c.QuietCores {
		cure = "none quieter was found, or it became busy during the series"
	}
	for _, set := range sets {
		for _, g := range boundGroups(set) {
			text, verb := "rows "+FormatSize(g.from)+" … "+FormatSize(g.to), "are"
			if g.from == g.to {
				text, verb = "row "+FormatSize(g.from), "is"
			}
			if len(sets) > 1 {
				text = set.key.String() + ": " + text
			}
			text += fmt.Sprintf(" %s launch-bound on rank %d", verb, g.rank)
			if all := halvesBetween(set, g.from, g.to); len(g.enqueue) < all {
				text += fmt.Sprintf(" (%d of %d row halves)", len(g.enqueue), all)
			}
			text = fmt.Sprintf("%s: queueing one operation takes %s µs; %s", text, rangeText(g.enqueue), waiter)
			if len(g.shared) > 0 {
				text += fmt.Sprintf("; in %d of them its core did only %.0f %% of what it does alone: the core's other hardware thread was busy (%s)",
					len(g.shared), 100*stat.Median(g.shared), cure)
			}
			lines = append(lines, text)
		}
	}
	return lines
}

// boundGroups has one group a rank, in order of the smallest size; rows of a set are one a size.
func boundGroups(set rowSet) []boundGroup {
	var groups []boundGroup
	for _, size := range set.sizes {
		for _, h := range append(halvesOf(size.rows, false), halvesOf(size.rows, true)...) {
			if h.LaunchBound == nil {
				continue
			}
			i := slices.IndexFunc(groups, func(g boundGroup) bool { return g.rank == h.LaunchBound.Rank })
			if i < 0 {
				i = len(groups)
				groups = append(groups, boundGroup{rank: h.LaunchBound.Rank, from: size.bytes})
			}
			groups[i].to = size.bytes
			groups[i].enqueue = append(groups[i].enqueue, float64(h.LaunchBound.EnqueueUS))
			if share := h.LaunchBound.CoreShare; share != nil && *share < result.SharedCore {
				groups[i].shared = append(groups[i].shared, *share)
			}
		}
	}
	return groups
}

func halvesBetween(set rowSet, from, to result.Bytes) int {
	n := 0
	for _, size := range set.sizes {
		if size.bytes >= from && size.bytes <= to {
			n += len(halvesOf(size.rows, false)) + len(halvesOf(size.rows, true))
		}
	}
	return n
}

// rangeText is the median of values that agree within 10 %, else their range.
func rangeText(values []float64) string {
	lo, hi, mid := slices.Min(values), slices.Max(values), stat.Median(values)
	if hi-lo <= 0.1*mid {
		return threeDigits(mid)
	}
	return threeDigits(lo) + "–" + threeDigits(hi)
}

// threeDigits writes a time for a sentence: 9.4, 10.7, 128, 12430.
func threeDigits(v float64) string {
	switch {
	case v < 9.995:
		return strings.TrimSuffix(fmt.Sprintf("%.2f", v), "0")
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// modesTable shows how runs of each row half fall into groups, in columns that line up whatever their content.
func modesTable(modes []result.Modes) string {
	if len(modes) == 0 {
		return ""
	}
	cells := [][]string{{"size", "placement", "runs", "median", "min", "max", "groups"}}
	several := slices.ContainsFunc(modes, func(m result.Modes) bool {
		return modesKey(&m) != modesKey(&modes[0])
	})
	for i := range modes {
		m := &modes[i]
		line := []string{FormatSize(m.Bytes), placementName(m.InPlace), fmt.Sprint(m.Runs), fixedWidth(float64(m.MedianUS), 7),
			fixedWidth(float64(m.MinUS), 7), fixedWidth(float64(m.MaxUS), 7), groupsText(m)}
		if m.SlowSharedCore > 0 {
			line[6] += fmt.Sprintf("; of the %d slow runs %d waited for a rank on a shared core", m.SlowRuns, m.SlowSharedCore)
		}
		if several {
			line[6] += "  " + modesKey(m).String()
		}
		cells = append(cells, line)
	}
	return "# Modes: time of each fresh run, µs, and the groups that the runs fall into\n" + aligned(cells)
}

func modesKey(m *result.Modes) setKey {
	return setKey{m.Collective, m.Type, m.Op, m.Algo, m.Proto, m.Root, m.Group}
}

// cyclesTable shows how each row half behaved from cycle to cycle.
func cyclesTable(cycles []result.Cycles) string {
	if len(cycles) == 0 {
		return ""
	}
	cells := [][]string{{"size", "placement", "cycles", "median", "min", "max", "in cycle", "first tenth", "last tenth", "#wrong", ""}}
	for i := range cycles {
		c := &cycles[i]
		us := func(v result.Micros) string { return fixedWidth(float64(v), 7) }
		cells = append(cells, []string{FormatSize(c.Bytes), placementName(c.InPlace), fmt.Sprint(c.N), us(c.MedianUS), us(c.MinUS), us(c.MaxUS), fmt.Sprint(c.MaxCycle),
			us(c.FirstUS), us(c.LastUS), fmt.Sprint(c.Wrong), setKey{Collective: c.Collective, Type: c.Type, Op: c.Op, Root: c.Root, Group: c.Group}.String()})
	}
	return "# Cycles: time of each cycle, µs\n" + aligned(cells)
}

// consistencyLines say what was compared and what differed. Verdicts that many operations share come once, with how many.
func consistencyLines(all []result.Consistency) string {
	if len(all) == 0 {
		return ""
	}
	text := fmt.Sprintf("# Consistency: %d operations, each repeated on the same data, compared between ranks, repeats, runs and algorithms\n", len(all))
	var order []string
	byVerdict := make(map[string][]*result.Consistency)
	for i := range all {
		c := &all[i]
		if _, ok := byVerdict[c.Verdict]; !ok {
			order = append(order, c.Verdict)
		}
		byVerdict[c.Verdict] = append(byVerdict[c.Verdict], c)
	}
	for _, v := range order {
		severity := "info"
		if byVerdict[v][0].Fault {
			severity = "fault"
		}
		text += fmt.Sprintf("#   %s: %d × %s\n", severity, len(byVerdict[v]), oneLine(v))
		for i, c := range byVerdict[v] {
			if len(c.Variants) < 2 && !c.Fault && !c.RunsDiffer && len(c.Unsteady) == 0 || i == 8 {
				break // the first few show the kind
			}
			text += fmt.Sprintf("#     %s %s:%s\n", setKey{Collective: c.Collective, Type: c.Type, Op: c.Op, Root: c.Root, Group: c.Group}, FormatSize(c.Bytes), fingerprints(c))
		}
	}
	return text
}

func fingerprints(c *result.Consistency) string {
	text := ""
	for _, v := range c.Variants {
		name := strings.TrimSpace(v.Algo + " " + v.Proto)
		if name == "" {
			name = "NCCL's choice"
		}
		var short []string
		for _, h := range v.Hashes {
			short = append(short, h[:min(8, len(h))])
		}
		text += fmt.Sprintf("  %s %s", name, strings.Join(short, "|"))
	}
	return text
}

// aligned sets cells in columns of comment lines, all but the last to the right.
func aligned(cells [][]string) string {
	widths := make([]int, len(cells[0])-1)
	for _, line := range cells {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
	}
	var b strings.Builder
	for _, line := range cells {
		text := "#"
		for i, w := range widths {
			text += fmt.Sprintf("  %*s", w, line[i])
		}
		b.WriteString(strings.TrimRight(text+"  "+line[len(line)-1], " ") + "\n")
	}
	return b.String()
}

// agreeWithin is the spread, as a share of the median, up to which runs in one group are said to agree.
const agreeWithin = 0.1

func groupsText(m *result.Modes) string {
	if len(m.Groups) <= 1 {
		spread := float64(m.MaxUS-m.MinUS) / float64(m.MedianUS)
		if spread <= agreeWithin {
			return "the runs agree"
		}
		return fmt.Sprintf("no clear groups, but they differ by %.0f %% of the median", 100*spread)
	}
	parts := make([]string, len(m.Groups))
	for i, g := range m.Groups {
		parts[i] = fmt.Sprintf("%s µs ×%d (%.0f %%)", threeDigits(float64(g.MedianUS)), g.Runs, 100*g.Share)
	}
	return strings.Join(parts, ", ")
}
