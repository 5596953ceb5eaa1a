package bench

import (
	"slices"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/bench/stat"
)

// history follows row halves over many cycles. A run until stopped may last for days: of each half it keeps a number a cycle, and of the rows
// the first and the last ones.
type history struct {
	order  []halfKey
	halves map[halfKey]*past
	cycles bool // there was more than one
}

type past struct {
	us     []float64
	cycles []int
	wrong  int64
}

// The rows kept of a run with more cycles than that.
const (
	keepFirst = 5_000
	keepLast  = 20_000
)

func (h *history) add(row result.Row) {
	if row.Cycle == 0 {
		return
	}
	if h.halves == nil {
		h.halves = make(map[halfKey]*past)
	}
	h.cycles = h.cycles || row.Cycle > 1
	for i, half := range []*result.Half{row.OutOfPlace, row.InPlace} {
		if half == nil {
			continue
		}
		k := keyOf(&row, i == 1)
		p := h.halves[k]
		if p == nil {
			p = &past{}
			h.halves[k] = p
			h.order = append(h.order, k)
		}
		p.us, p.cycles = append(p.us, float64(half.TimeUS)), append(p.cycles, row.Cycle)
		if half.Wrong != nil {
			p.wrong += *half.Wrong
		}
	}
}

// thin drops the single samples of a row; its percentiles stay.
func (h *history) thin(row *result.Row) {
	for _, half := range []*result.Half{row.OutOfPlace, row.InPlace} {
		if half == nil {
			continue
		}
		for i := range half.Ranks {
			half.Ranks[i].EventUS = nil
		}
	}
}

// keep drops rows from the middle when there are too many.
func (h *history) keep(rows []result.Row) []result.Row {
	if !h.cycles || len(rows) <= keepFirst+2*keepLast {
		return rows
	}
	return slices.Delete(rows, keepFirst, len(rows)-keepLast)
}

// summary describes every half, nil when there was one cycle only.
func (h *history) summary() []result.Cycles {
	if !h.cycles {
		return nil
	}
	var out []result.Cycles
	for _, k := range h.order {
		p := h.halves[k]
		tenth := max(1, len(p.us)/10)
		worst := 0
		for i, us := range p.us {
			if us > p.us[worst] {
				worst = i
			}
		}
		out = append(out, result.Cycles{
			Collective: k.coll, Type: k.dtype, Op: k.op, Root: k.root, Group: k.group, Bytes: k.bytes, InPlace: k.inPlace, N: len(p.us),
			MedianUS: result.Micros(stat.Median(p.us)), MinUS: result.Micros(slices.Min(p.us)), MaxUS: result.Micros(p.us[worst]), MaxCycle: p.cycles[worst],
			FirstUS: result.Micros(stat.Median(p.us[:tenth])), LastUS: result.Micros(stat.Median(p.us[len(p.us)-tenth:])), Wrong: p.wrong,
		})
	}
	return out
}
