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
//	iters               timed operations
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
	out := csv.NewWriter(w)
	if err := out.Write(CSVColumns()); err != nil {
		return fmt.Errorf("csv: %w", err)
	}
	for i := range run.Rows {
		for _, inPlace := range []bool{false, true} {
			half := halfOf(&run.Rows[i], inPlace)
			if half == nil {
				continue
			}
			record, err := csvRecord(&run.Rows[i], half, inPlace)
			if err != nil {
				return fmt.Errorf("csv: rows[%d]: %w", i, err)
			}
			if err := out.Write(record); err != nil {
				return fmt.Errorf("csv: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("csv: %w", err)
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
	f.int(int64(half.Iters))
	f.float(float64(half.TimeUS))
	f.float(float64(half.AlgBW))
	f.float(float64(half.BusBW))
	if half.Wrong != nil {
		f.int(*half.Wrong)
	} else {
		f.text("")
	}
	if it := half.Iter; it != nil {
		f.int(int64(it.N))
		f.float(float64(it.P50US))
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
	return largest
}
