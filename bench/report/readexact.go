package report

import (
	"math"

	"github.com/commprobe/commprobe/bench/costmodel"
	"github.com/commprobe/commprobe/bench/result"
)

// factor is busbw over algbw, exact where the number of ranks is known, else as the best row has it; 0: not known.
func (r *ReadRun) factor(row *result.Row) float64 {
	if r.World.Group > 0 && row.Collective != "" {
		if f, err := costmodel.Factor(row.Collective, r.World.Group); err == nil {
			return f
		}
	}
	if r.World.From == "size over count" && !r.hasOldColumns() {
		return float64(r.World.Group-1) / float64(r.World.Group) // whichever it is, each rank's own part does not travel
	}
	best, f := 0.0, 0.0
	for i, d := range r.details {
		for _, h := range d.halfs {
			if h != nil && keyOf(&r.Run.Rows[i]) == keyOf(row) && h.algbw.value > max(best, 1) {
				best, f = h.algbw.value, h.busbw.value/h.algbw.value
			}
		}
	}
	return f
}

func (r *ReadRun) hasOldColumns() bool { return r.state.columns != nil && r.state.columns.old() }

// Exact returns the run with bandwidths computed from size and time wherever the printed ones agree with that within their rounding. A table
// has two decimals: without this, 0.00 GB/s would be all that small sizes have.
func (r *ReadRun) Exact() *result.Run {
	if len(r.details) == 0 {
		return r.Run
	}
	run := *r.Run
	run.Rows = make([]result.Row, len(r.Run.Rows))
	factors := map[setKey]float64{}
	for i, row := range r.Run.Rows {
		run.Rows[i] = row
		if i >= len(r.details) || r.details[i].exact {
			continue
		}
		f, known := factors[keyOf(&row)]
		if !known {
			f = r.factor(&row)
			factors[keyOf(&row)] = f
		}
		run.Rows[i].OutOfPlace = exactHalf(row.OutOfPlace, r.details[i].halfs[0], float64(row.Bytes), f)
		run.Rows[i].InPlace = exactHalf(row.InPlace, r.details[i].halfs[1], float64(row.Bytes), f)
	}
	return &run
}

func exactHalf(h *result.Half, d *halfDetail, bytes, factor float64) *result.Half {
	if h == nil || d == nil || d.time.value <= 0 || factor <= 0 || bytes <= 0 {
		return h
	}
	alg := rate(bytes, d.time)
	if !within(alg, d.algbw, 1) || !within(alg, d.busbw, factor) {
		return h
	}
	exact, share := *h, alg.half/alg.value // the time may be the coarser figure: "1.2e+07"
	if share < d.algbw.half/d.algbw.value {
		exact.AlgBW = result.GBps(bytes / d.time.value / 1e3)
	}
	if share < d.busbw.half/d.busbw.value {
		exact.BusBW = result.GBps(bytes / d.time.value / 1e3 * factor)
	}
	return &exact
}

// within says that a, times a factor, and b can be one number that was rounded twice.
func within(a, b printed, factor float64) bool {
	return math.Abs(a.value*factor-b.value) <= a.half*factor+b.half+1e-6*b.value
}

// disagreement is a row whose bandwidth is not what its time and size give.
type disagreement struct {
	row     *result.Row
	inPlace bool
	line    int
	what    string
	printed float64
	got     float64
}

// bandwidths recomputes algbw and busbw of every row.
func (c *checker) bandwidths() {
	if c.run.Run.Program.Name == "commprobe" && c.run.Run.Config.Modes.CPUTime {
		return // the time column is not what the bandwidths are made of
	}
	var found []disagreement
	halves := 0
	for i := range c.run.details {
		row, d := &c.run.Run.Rows[i], &c.run.details[i]
		if row.Collective == "hypercube" {
			continue // the one whose bandwidth is not that of the printed size
		}
		f := 0.0
		if c.run.World.Group > 0 {
			f, _ = costmodel.Factor(row.Collective, c.run.World.Group)
		}
		for place, h := range d.halfs {
			if h == nil || h.time.value <= 0 {
				continue
			}
			halves++
			alg := rate(float64(row.Bytes), h.time)
			if !within(alg, h.algbw, 1) {
				found = append(found, disagreement{row, place == 1, d.line, "algbw", h.algbw.value, alg.value})
			} else if f > 0 && !within(alg, h.busbw, f) {
				found = append(found, disagreement{row, place == 1, d.line, "busbw", h.busbw.value, alg.value * f})
			}
		}
	}
	if len(found) == 0 {
		return
	}
	first := found[0]
	if c.hasColumns().old() {
		c.warn(first.line, Info, "old-bandwidth", "this old format computes bandwidths in another way: %s of %s is %s where size, time and today's factor give %s; not comparable with newer output",
			first.what, FormatSize(first.row.Bytes), shortNumber(first.printed), shortNumber(first.got))
		return
	}
	c.warn(first.line, Odd, "bandwidth-mismatch", "bandwidths of %d of %d row halves are not what size and time give, first %s %s: %s printed %.6g, computed %.6g; the file was edited, or the number of ranks is not %d",
		len(found), halves, FormatSize(first.row.Bytes), placementName(first.inPlace), first.what, first.printed, first.got, c.run.World.Group)
}

// average compares the footer with the rows that are there.
func (c *checker) average() {
	f := c.run.Footer
	if f == nil || f.AvgBusBW == nil || len(c.run.details) == 0 {
		return
	}
	sum, n, slack := 0.0, 0, 0.0
	for _, d := range c.run.details {
		for _, h := range d.halfs {
			if h != nil {
				sum, slack = sum+h.busbw.value, slack+h.busbw.half
				n++
			}
		}
	}
	mean := sum / float64(n)
	if math.Abs(mean-*f.AvgBusBW) > slack/float64(n)+1e-5*math.Abs(*f.AvgBusBW)+1e-9 {
		c.warn(c.run.Line, Odd, "average-mismatch", "the footer's average is %.6g GB/s, that of the rows here %.6g: rows are missing or were changed", *f.AvgBusBW, mean)
	}
}

// outcome says how the run ended where it does not say so itself.
func (c *checker) outcome() {
	run := c.run.Run
	if c.run.Footer == nil && c.run.Format == formatText {
		switch {
		case len(run.Rows) > 0:
			c.warn(c.run.Line, Odd, "no-footer", "no line of the program's end: the output is cut, or the program did not finish; the rows that are there count")
		case run.Outcome.Status == "":
			c.warn(c.run.Line, Odd, "no-footer", "the program began but wrote no row and no end")
		}
	}
	if s := run.Outcome.Status; s != "" {
		if run.Program.Name == "commprobe" && s != "ok" && s != "incomplete" {
			c.warn(c.run.Line, Fault, "outcome", "the run ended with %q: %s", s, excerpt(run.Outcome.Message, maxDetail))
		}
		return
	}
	wrong := c.run.Footer != nil && c.run.Footer.Failed
	for i := range run.Rows {
		for _, h := range []*result.Half{run.Rows[i].OutOfPlace, run.Rows[i].InPlace} {
			wrong = wrong || h != nil && h.Wrong != nil && *h.Wrong > 0
		}
	}
	switch {
	case wrong:
		run.Outcome.Status = "wrong data"
	case c.run.Footer != nil || c.run.Format == formatRowsJSON || c.run.Format == formatCSV || c.run.Format == formatRowsCSV:
		run.Outcome.Status = "ok"
	default:
		run.Outcome.Status = "incomplete"
	}
}
