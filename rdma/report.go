package rdma

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Schema names the JSON form of Report.
const Schema = "commprobe/rdma/1"

// Report is one test between two hosts: who, how, every row, and the end. Both sides hold the same but for Outcome.
type Report struct {
	Schema    string     `json:"schema"`
	Started   time.Time  `json:"started"`
	Ended     time.Time  `json:"ended"`
	Role      string     `json:"role"` // "client" or "server": whose report this is
	Client    *Side      `json:"client"`
	Server    *Side      `json:"server"`
	Options   *Options   `json:"options"`
	Agreement *Agreement `json:"agreement"`
	Rows      []Row      `json:"rows"`
	Events    []string   `json:"events,omitempty"` // what the device reported meanwhile: port down, QP fatal
	Outcome   Outcome    `json:"outcome"`
}

// Outcome is how it ended.
type Outcome struct {
	Status  string `json:"status"` // "ok" or a Kind
	Message string `json:"message,omitempty"`
}

// Row is one test at one size.
type Row struct {
	Test       string      `json:"test"`
	Bytes      int         `json:"bytes"`
	Iterations int64       `json:"iterations"` // timed operations of one direction, all QPs
	QPs        int         `json:"qps"`
	Bandwidth  *Bandwidth  `json:"bandwidth,omitempty"`  // of both directions together
	Directions []Direction `json:"directions,omitempty"` // with two of them: each
	Latency    *Latency    `json:"latency,omitempty"`
	Checked    int         `json:"checked"`            // rounds whose data was compared, the timed series among them, all QPs and directions
	Counters   []Moved     `json:"counters,omitempty"` // that moved during the timed series and should not on a healthy link
	Fault      *Fault      `json:"fault,omitempty"`
}

// Direction is the bandwidth that one side measured.
type Direction struct {
	Side      string    `json:"side"` // who posted
	Bandwidth Bandwidth `json:"bandwidth"`
}

// Fault is data that arrived wrong.
type Fault struct {
	Test     string `json:"test"`
	Bytes    int    `json:"bytes"` // of one message
	QP       int    `json:"qp"`    // from 0
	Round    string `json:"round"` // "checked round 2" or "timed series"
	Host     string `json:"host"`  // where it was found
	Wrong    int    `json:"wrong"` // bytes
	First    int    `json:"first"` // offsets of the first and the last
	Last     int    `json:"last"`
	Expected byte   `json:"expected"` // at First
	Found    byte   `json:"found"`
	Guess    string `json:"guess,omitempty"` // what Found is likely to be
}

// String says where and what.
func (f *Fault) String() string {
	s := fmt.Sprintf("wrong data: %s of %d bytes, QP %d, %s, found on %s: %d of %d bytes are wrong, the first at offset %d: expected 0x%02x, found 0x%02x",
		f.Test, f.Bytes, f.QP, f.Round, f.Host, f.Wrong, f.Bytes, f.First, f.Expected, f.Found)
	if f.Last > f.First {
		s += fmt.Sprintf(", the last at %d", f.Last)
	}
	if f.Guess != "" {
		s += " (" + f.Guess + ")"
	}
	return s
}

// Table prints a report as it grows: a header, then each row as it comes.
type Table struct {
	w       io.Writer
	heading string // of the rows above; another kind of test gets a new one
	err     error
}

// NewTable prints to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// Err is the first error of writing.
func (t *Table) Err() error { return t.err }

func (t *Table) print(format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, format, args...); t.err == nil {
		t.err = err
	}
}

// Header tells both sides, the path and how it is measured.
func (t *Table) Header(r *Report) {
	for _, s := range []struct {
		role string
		side *Side
	}{{"client", r.Client}, {"server", r.Server}} {
		t.print("# %s %s: %s port %d, %s, %s, MTU %d, %s memory, %s\n", s.role, s.side.Host, s.side.Device, s.side.Port, s.side.LinkLayer, rateText(s.side.RateGbps), s.side.MTU, s.side.Memory, s.side.CPUs)
	}
	a := r.Agreement
	if p, ok := a.pair(); ok {
		t.print("# path: %s: %s; MTU %d\n", p, p.Why, a.MTU)
		for i, o := range a.Pairs {
			const most = 4
			if i == a.Chosen {
				continue
			}
			if i > most {
				t.print("#   … and %d more pairs\n", len(a.Pairs)-i)
				break
			}
			t.print("#   other: %s: %s\n", o, o.Why)
		}
		for _, x := range a.Rejected {
			t.print("#   not: GID %d (%s) of the %s: %s\n", x.GID.Index, x.GID.Addr, x.Side, x.Why)
		}
	}
	for _, n := range a.Notes {
		t.print("# note: %s\n", n)
	}
	o := r.Options
	how := fmt.Sprintf("%d iterations a QP", o.Iterations)
	if o.Duration > 0 {
		how = fmt.Sprintf("%v a series (write and read: %v left out at both ends; others: as many operations as a trial says)", o.Duration, o.Margin)
	}
	direction := "one direction"
	if o.Bidirectional {
		direction = "both directions, rates added"
	}
	t.print("# RC, %d QPs, depth %d, %s, %s, %d checked rounds a size\n", o.QPs, o.Depth, how, direction, o.Checks)
}

// pair is the one that works.
func (a *Agreement) pair() (Pair, bool) {
	if a.Chosen < 0 || a.Chosen >= len(a.Pairs) {
		return Pair{}, false
	}
	return a.Pairs[a.Chosen], true
}

func rateText(gbps float64) string {
	if gbps <= 0 {
		return "rate unknown"
	}
	return strconv.FormatFloat(gbps, 'f', -1, 64) + " Gb/s"
}

// The headings of the two kinds of rows.
const (
	bandwidthHeading = "#  test             bytes  iterations  peak MiB/s  average MiB/s  average Gb/s      Mops/s  check\n"
	latencyHeading   = "#  test             bytes  iterations     min us  median us    mean us     p99 us   p99.9 us     max us   stdev us  check\n"
)

// Row prints one line, and the heading where the kind of test changes.
func (t *Table) Row(r *Row) {
	name, latency := strings.CutSuffix(r.Test, " latency")
	heading := bandwidthHeading
	if latency {
		heading = latencyHeading
	}
	if heading != t.heading {
		t.print("%s", heading)
		t.heading = heading
	}
	check := fmt.Sprintf("ok (%d)", r.Checked)
	if r.Fault != nil {
		check = "WRONG"
	}
	switch l, b := r.Latency, r.Bandwidth; {
	case l != nil:
		t.print("   %-10s %11d %11d %10.2f %10.2f %10.2f %10s %10s %10.2f %10.2f  %s\n", name, r.Bytes, r.Iterations, l.MinUS, l.MedianUS, l.MeanUS, optional(l.P99US), optional(l.P999US), l.MaxUS, l.StdevUS, check)
	case b != nil:
		t.print("   %-10s %11d %11d %11s %14.2f %13.4f %11.6f  %s\n", name, r.Bytes, r.Iterations, optional(b.PeakMiB), b.AverageMiB, b.AverageGbps, b.Mops, check)
	default: // wrong before anything was timed
		t.print("   %-10s %11d %11s %s%s\n", name, r.Bytes, "-", strings.Repeat(" ", len(heading)-len("check\n")-38), check)
	}
	for _, d := range r.Directions {
		t.print("#    posted by %s: %.2f MiB/s, %.4f Gb/s, %.6f Mops/s\n", d.Side, d.Bandwidth.AverageMiB, d.Bandwidth.AverageGbps, d.Bandwidth.Mops)
	}
	for _, m := range r.Counters {
		t.print("#    %s of the %s moved by %d: %s\n", m.Name, m.Side, m.By, m.Means)
	}
	if r.Fault != nil {
		t.print("#    %s\n", r.Fault)
	}
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// Footer tells the events of the device, and how to read latencies where there are any. How a test ended is in its error.
func (t *Table) Footer(r *Report) {
	for _, e := range r.Events {
		t.print("# device event: %s\n", e)
	}
	for _, row := range r.Rows {
		if row.Latency != nil {
			t.print("# write and send: half a round trip; read and atomic: from post to completion. No sample is left out.\n")
			return
		}
	}
}

const okStatus = "ok"
