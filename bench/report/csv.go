package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/commprobe/commprobe/bench/result"
)

// CSVColumns are the columns of WriteCSV, in order; later versions only add at the end.
//
//	run                 1 … number of runs
//	collective, type, op, root
//	bytes, count        as nccl-tests prints them
//	placement           "out" of place or "in" place
//	iters               timed operations; empty: not known (a run that was read from a file without it)
//	time_us             microseconds an operation, host clock, mean over ranks
//	algbw, busbw        10^9 bytes a second
//	wrong               wrong elements over all ranks; empty: not checked
//	n, p50, p95, p99, max   samples, and microseconds of an iteration's slowest rank (events); empty: not measured or too few samples
//	enqueue_us          microseconds to queue one operation, the largest over ranks
//	slowest_rank        empty: none stands out
//	launch_bound_rank   rank whose queueing the operation waits for; empty: none
func CSVColumns() []string {
	return []string{"run", "collective", "type", "op", "root", "bytes", "count", "placement", "iters", "time_us", "algbw", "busbw", "wrong",
		"n", "p50", "p95", "p99", "max", "enqueue_us", "slowest_rank", "launch_bound_rank"}
}

// WriteCSV writes a header line and one line for each half of each row (RFC 4180, lines end in \n). Every run has its own lines. Numbers are
// written so that they read back exactly. Errors: a NaN or an infinity, with its place; those of w.
func WriteCSV(w io.Writer, run *result.Run) error {
	return writeCSV(w, CSVColumns(), []Curve{{Run: run}}, nil)
}

// WriteCurvesCSV is WriteCSV for several runs, with two more columns: source, the curve's label, and ranks, empty where not known.
func WriteCurvesCSV(w io.Writer, curves []Curve) error {
	return writeCSV(w, append(CSVColumns(), "source", "ranks"), curves, func(c *Curve) []string {
		if n := rankCount(c.Run); n > 0 {
			return []string{c.Label, strconv.Itoa(n)}
		}
		return []string{c.Label, ""}
	})
}

func writeCSV(w io.Writer, header []string, curves []Curve, more func(*Curve) []string) error {
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return fmt.Errorf("csv: %w", err)
	}
	for c := range curves {
		var last []string
		if more != nil {
			last = more(&curves[c])
		}
		if err := writeCSVRows(out, curves[c].Run.Rows, last); err != nil {
			return err
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("csv: %w", err)
	}
	return nil
}

func writeCSVRows(out *csv.Writer, rows []result.Row, last []string) error {
	for i := range rows {
		for _, inPlace := range []bool{false, true} {
			half := halfOf(&rows[i], inPlace)
			if half == nil {
				continue
			}
			record, err := csvRecord(&rows[i], half, inPlace)
			if err != nil {
				return fmt.Errorf("csv: rows[%d]: %w", i, err)
			}
			if err := out.Write(append(record, last...)); err != nil {
				return fmt.Errorf("csv: %w", err)
			}
		}
	}
	return nil
}

// csvFields builds a record; the first number that is none stops it.
type csvFields struct {
	record []string
	err    error
}

func (f *csvFields) text(s string) { f.record = append(f.record, s) }
func (f *csvFields) int(v int64)   { f.text(strconv.FormatInt(v, 10)) }

// known writes a number that is 0 only where it is not known.
func (f *csvFields) known(v int64) {
	if v == 0 {
		f.text("")
		return
	}
	f.int(v)
}

func (f *csvFields) float(v float64) {
	if (math.IsNaN(v) || math.IsInf(v, 0)) && f.err == nil {
		f.err = fmt.Errorf("%s is %v, not a number that can be written", CSVColumns()[len(f.record)], v)
	}
	f.text(strconv.FormatFloat(v, 'f', -1, 64))
}

func (f *csvFields) optional(v *result.Micros) {
	if v == nil {
		f.text("")
		return
	}
	f.float(float64(*v))
}

func csvRecord(row *result.Row, half *result.Half, inPlace bool) ([]string, error) {
	f := &csvFields{}
	f.int(int64(row.Run))
	f.text(row.Collective)
	f.text(row.Type)
	f.text(row.Op)
	f.int(int64(row.Root))
	f.int(int64(row.Bytes))
	f.int(int64(row.Count))
	if inPlace {
		f.text("in")
	} else {
		f.text("out")
	}
	f.known(int64(half.Iters))
	f.float(float64(half.TimeUS))
	f.float(float64(half.AlgBW))
	f.float(float64(half.BusBW))
	if half.Wrong != nil {
		f.int(*half.Wrong)
	} else {
		f.text("")
	}
	if it := half.Iter; it != nil {
		f.known(int64(it.N))
		if lacks(it, "p50_us") {
			f.text("")
		} else {
			f.float(float64(it.P50US))
		}
		f.optional(it.P95US)
		f.optional(it.P99US)
		f.float(float64(it.MaxUS))
	} else {
		f.record = append(f.record, "", "", "", "", "")
	}
	f.optional(largestEnqueue(half))
	if half.SlowestRank != nil {
		f.int(int64(*half.SlowestRank))
	} else {
		f.text("")
	}
	if half.LaunchBound != nil {
		f.int(int64(half.LaunchBound.Rank))
	} else {
		f.text("")
	}
	return f.record, f.err
}

func largestEnqueue(half *result.Half) *result.Micros {
	var largest *result.Micros
	for i := range half.Ranks {
		if v := half.Ranks[i].EnqueueUS; largest == nil || v > *largest || math.IsNaN(float64(v)) {
			largest = &half.Ranks[i].EnqueueUS
		}
	}
	if largest == nil && half.LaunchBound != nil && half.LaunchBound.EnqueueUS > 0 {
		return &half.LaunchBound.EnqueueUS // read from a file without the ranks' times
	}
	return largest
}
