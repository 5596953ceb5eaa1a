package pairs

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/stat"
)

// How much a text shows; the JSON has all.
const (
	maxColumns   = 12  // of the matrix
	maxListed    = 40  // slow or failed pairs
	maxHostPairs = 200 // lines of the summary
	maxReasons   = 20  // different ones
	maxReason    = 500 // letters of one
)

// WriteText prints the hosts, the matrix or its summary, the pairs that are not well, and the verdict.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	nics := r.nics()
	switch {
	case len(r.Pairs) == 0:
	case len(nics) <= maxColumns:
		r.writeMatrix(&b, nics)
	default:
		r.writeSummary(&b, len(nics))
	}
	r.writeBad(&b)
	r.writeReasons(&b)
	r.writeVerdict(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) writeHead(b *strings.Builder) {
	fmt.Fprintf(b, "# %s, %d bytes, %s", r.Test, r.Bytes, map[string]string{"Gb/s": "bandwidth in Gb/s", "us": "median latency in us"}[r.Unit])
	if o := r.Options; o != nil {
		if o.Bidirectional {
			b.WriteString(", both directions at the same time")
		}
		if r.Unit != "us" {
			fmt.Fprintf(b, ", %d QPs, depth %d", o.QPs, o.Depth)
		}
	}
	if r.Concurrent > 0 {
		fmt.Fprintf(b, ", %d host pairs at a time", r.Concurrent)
	}
	b.WriteString("\n")
	for _, h := range r.Hosts {
		fmt.Fprintf(b, "# %s", h.Name)
		if h.Hostname != "" && h.Hostname != h.Name {
			fmt.Fprintf(b, " (%s)", h.Hostname)
		}
		b.WriteString(":")
		if h.Error != nil {
			fmt.Fprintf(b, " FAILED (%s): %s", h.Error.Phase, h.Error.Text)
		}
		for i, p := range h.Ports {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(b, " %s", portName(p.Device, p.Port))
			if !p.Used {
				fmt.Fprintf(b, " (not used: %s)", p.Why)
				continue
			}
			rate := "rate unknown"
			if p.RateGbps > 0 {
				rate = strconv.FormatFloat(p.RateGbps, 'f', -1, 64) + " Gb/s"
			}
			fmt.Fprintf(b, " (%s, %s, MTU %d)", p.LinkLayer, rate, p.MTU)
		}
		b.WriteString("\n")
	}
	if r.Rails {
		fmt.Fprintf(b, "# only NICs of the same rail are paired; a rail is made by %s\n", r.RailsBy)
	}
}

// nics lists all ends, in the order of hosts and ports.
func (r *Result) nics() (out []NIC) {
	for _, h := range r.Hosts {
		for _, p := range h.Ports {
			if p.Used {
				out = append(out, NIC{h.Name, p.Device, p.Port, p.Rail})
			}
		}
	}
	return out
}

// writeMatrix has a row for each NIC that sends and a column for each that receives.
func (r *Result) writeMatrix(b *strings.Builder, nics []NIC) {
	type ends struct{ from, to NIC }
	at := map[ends]*Pair{}
	for i := range r.Pairs {
		at[ends{r.Pairs[i].From, r.Pairs[i].To}] = &r.Pairs[i]
	}
	first := len("from \\ to")
	for _, n := range nics {
		first = max(first, len(n.String()))
	}
	fmt.Fprintf(b, "%-*s", first, "from \\ to")
	widths := make([]int, len(nics))
	for i, n := range nics {
		widths[i] = max(len(n.String()), 9)
		fmt.Fprintf(b, "  %*s", widths[i], n)
	}
	b.WriteString("\n")
	for _, f := range nics {
		fmt.Fprintf(b, "%-*s", first, f)
		for i, t := range nics {
			fmt.Fprintf(b, "  %*s", widths[i], r.cell(at[ends{f, t}]))
		}
		b.WriteString("\n")
	}
	b.WriteString("# * slow   ~ slow or failed at first, good when measured again   - no path   ? not measured   FAIL, WRONG: see below   . not paired\n")
}

// cell is one entry of the matrix.
func (r *Result) cell(p *Pair) string {
	if p == nil {
		return ". "
	}
	switch p.Status {
	case Failed:
		return "FAIL "
	case WrongData:
		return "WRONG "
	case NoPath:
		return "- "
	case NotMeasured:
		return "? "
	}
	sign := " "
	switch {
	case p.Slow:
		sign = "*"
	case p.Unsteady:
		sign = "~"
	}
	return number(*p.Value) + sign
}

// clip shortens a reason: a path that was tried over six GID pairs has the same one six times.
func clip(text string) string {
	runes := []rune(text)
	if len(runes) <= maxReason {
		return text
	}
	return string(runes[:maxReason]) + " … (all of it in the JSON)"
}

// number has three or four digits that count.
func number(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// summed is what is known between two hosts.
type summed struct {
	a, b                        string
	values                      []float64
	slow, failed, noPath, other int
}

// writeSummary has a line for each pair of hosts; of very many, for those with something bad only.
func (r *Result) writeSummary(b *strings.Builder, columns int) {
	var list []*summed
	at := map[[2]string]*summed{}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		key := [2]string{min(p.From.Host, p.To.Host), max(p.From.Host, p.To.Host)}
		s := at[key]
		if s == nil {
			s = &summed{a: key[0], b: key[1]}
			at[key], list = s, append(list, s)
		}
		s.add(p)
	}
	few := len(list) <= maxHostPairs
	fmt.Fprintf(b, "# %d NICs: by host pair, both directions together, in %s; the matrix is in the JSON\n", columns, r.Unit)
	wide := 0
	for _, s := range list {
		wide = max(wide, len(s.a)+len(s.b)+3)
	}
	fmt.Fprintf(b, "%-*s  %8s %8s %8s %8s %6s %6s %8s %6s\n", wide, "hosts", "pairs", "min", "median", "max", "slow", "failed", "no path", "other")
	hidden := 0
	for _, s := range list {
		if !few && s.slow+s.failed == 0 {
			hidden++
			continue
		}
		lo, mid, hi := "-", "-", "-"
		if len(s.values) > 0 {
			lo, mid, hi = number(slices.Min(s.values)), number(stat.Median(s.values)), number(slices.Max(s.values))
		}
		fmt.Fprintf(b, "%-*s  %8d %8s %8s %8s %6d %6d %8d %6d\n", wide, s.a+" - "+s.b, len(s.values), lo, mid, hi, s.slow, s.failed, s.noPath, s.other)
	}
	if hidden > 0 {
		fmt.Fprintf(b, "# %d host pairs with nothing slow or failed are not shown\n", hidden)
	}
}

func (s *summed) add(p *Pair) {
	switch p.Status {
	case Measured:
		s.values = append(s.values, *p.Value)
		if p.Slow {
			s.slow++
		}
	case Failed, WrongData:
		s.failed++
	case NoPath:
		s.noPath++
	default:
		s.other++
	}
}

// writeBad lists what is slow, wrong or failed, the worst first.
func (r *Result) writeBad(b *strings.Builder) {
	var bad []int
	for i := range r.Pairs {
		if r.Pairs[i].bad() {
			bad = append(bad, i)
		}
	}
	slices.SortStableFunc(bad, func(x, y int) int {
		switch a, c := worst(r.Pairs, []int{x}), worst(r.Pairs, []int{y}); {
		case a < c:
			return -1
		case a > c:
			return 1
		}
		return 0
	})
	for n, i := range bad {
		if n == maxListed {
			fmt.Fprintf(b, "# … and %d more; the JSON has all\n", len(bad)-n)
			break
		}
		p := &r.Pairs[i]
		fmt.Fprintf(b, "%s to %s: ", p.From, p.To)
		if p.Status != Measured {
			fmt.Fprintf(b, "%s: %s\n", p.Status, clip(strings.TrimPrefix(p.Reason, string(p.Status)+": ")))
			continue
		}
		fmt.Fprintf(b, "slow: %s %s", number(*p.Value), r.Unit)
		if p.OfPort != nil {
			fmt.Fprintf(b, ", %.0f %% of the ports' %g Gb/s", 100**p.OfPort, *p.PortGbps)
		}
		fmt.Fprintf(b, "; like pairs have %s", number(*p.Like))
		if len(p.Values) > 1 {
			b.WriteString("; twice measured")
		}
		for _, m := range p.Counters {
			fmt.Fprintf(b, "; %s of the %s moved by %d (%s)", m.Name, m.Side, m.By, m.Means)
		}
		b.WriteString("\n")
	}
}

// writeReasons tells why pairs have no path or were not measured, each reason once.
func (r *Result) writeReasons(b *strings.Builder) {
	type reason struct {
		status Status
		text   string
	}
	count, first := map[reason]int{}, map[reason]*Pair{}
	var order []reason
	for i := range r.Pairs {
		p := &r.Pairs[i]
		if p.Status != NoPath && p.Status != NotMeasured {
			continue
		}
		k := reason{p.Status, p.Reason}
		if count[k] == 0 {
			first[k], order = p, append(order, k)
		}
		count[k]++
	}
	for n, k := range order {
		if n == maxReasons {
			fmt.Fprintf(b, "# … and %d more reasons; the JSON has all\n", len(order)-n)
			return
		}
		fmt.Fprintf(b, "# %s: %s to %s", k.status, first[k].From, first[k].To)
		if more := count[k] - 1; more > 0 {
			fmt.Fprintf(b, " and %d more", more)
		}
		fmt.Fprintf(b, ": %s\n", clip(k.text))
	}
}

func (r *Result) writeVerdict(b *strings.Builder) {
	if r.Interrupted {
		b.WriteString("# interrupted: the verdict is on what was measured until then\n")
	}
	fmt.Fprintf(b, "# measured %d of %d pairs, failed %d, wrong data %d, no path %d; a pair is slow below %g of ", r.Count(Measured), len(r.Pairs), r.Count(Failed), r.Count(WrongData), r.Count(NoPath), r.Below)
	if r.Unit == "us" {
		b.WriteString("what a fifth of the like pairs have or beat (compared as rates)\n")
	} else {
		b.WriteString("the smaller port rate, or of what a fifth of the like pairs reach\n")
	}
	for _, c := range r.Verdict.Classes {
		rate := "unknown rate"
		if c.PortGbps != nil {
			rate = fmt.Sprintf("%g Gb/s", *c.PortGbps)
		}
		fmt.Fprintf(b, "# %s, %s ports: %d pairs, min %s, median %s, max %s %s\n", c.LinkLayer, rate, c.Pairs, number(c.Min), number(c.Median), number(c.Max), r.Unit)
	}
	unsteady := 0
	for i := range r.Pairs {
		if r.Pairs[i].Unsteady {
			unsteady++
		}
	}
	if unsteady > 0 {
		fmt.Fprintf(b, "# unsteady %d: slow or failed at first, good when measured again alone: other traffic, or this test's own (--one-at-a-time tells)\n", unsteady)
	}
	switch r.Verdict.Status {
	case Nothing:
		b.WriteString("VERDICT: none: nothing was measured\n")
	case Good:
		b.WriteString("VERDICT: good: no pair is slow\n")
	}
	for i, f := range r.Verdict.Findings {
		if i == maxListed {
			fmt.Fprintf(b, "# … and %d more findings; the JSON has all\n", len(r.Verdict.Findings)-i)
			break
		}
		fmt.Fprintf(b, "VERDICT: %s\n", f.Text)
		if f.Advice != "" {
			fmt.Fprintf(b, "   %s\n", f.Advice)
		}
	}
}
