package report

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/guptarohit/asciigraph"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/bench/stat"
)

// Terminal draws busbw over message size, both axes logarithmic, one graph for each collective, type and op. With opts.Color (and no
// NO_COLOR in the environment) out-of-place and in-place are two curves; without colour the curve is out-of-place, or in-place where that is
// all there is. Several runs are drawn as their median. Where busbw is 0 by definition (one rank) or was not measured it says so instead.
// opts.Width is the width in all, opts.Height the rows of the curve, opts.ASCII keeps to ASCII. Errors: those of w.
func Terminal(w io.Writer, run *result.Run, opts Options) error {
	var b strings.Builder
	for _, set := range setsOf(run.Rows) {
		b.WriteString(terminalGraph(set, run, opts))
	}
	if b.Len() == 0 {
		b.WriteString("no rows to draw\n")
	}
	text := b.String()
	if opts.ASCII {
		text = toASCII(text)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	return nil
}

const (
	minGraphWidth  = 20
	minGraphHeight = 4
	yLabelWidth    = 7  // a bandwidth
	yAxisColumn    = 9  // where asciigraph puts the axis behind such labels
	defaultWidth   = 80 // columns in all
	defaultHeight  = 16 // rows of the curve
)

func terminalGraph(set rowSet, run *result.Run, opts Options) string {
	color := opts.Color && os.Getenv("NO_COLOR") == ""
	var curves []curve
	var names []string
	for i, colorName := range []string{" (blue)", " (red)"} {
		c := curveOf(set, i == 1, busBW).positive()
		switch {
		case len(c) > 0 && color:
			curves, names = append(curves, c), append(names, placementName(i == 1)+colorName)
		case len(c) > 0 && len(curves) == 0:
			curves, names = append(curves, c), append(names, placementName(i == 1))
		}
	}
	if len(curves) == 0 {
		return fmt.Sprintf("busbw, %s: nothing to draw, %s\n", set.key, noBandwidthReason(run))
	}
	lo, hi := curves[0].sizeRange()
	for _, c := range curves[1:] {
		cLo, cHi := c.sizeRange()
		lo, hi = min(lo, cLo), max(hi, cHi)
	}
	if lo == hi {
		p := curves[0][0]
		return fmt.Sprintf("busbw, %s, %s: %s GB/s at %s, a single size makes no curve\n",
			set.key, names[0], shortNumber(p.median), FormatSize(result.Bytes(p.bytes)))
	}
	plotWidth := max(orDefault(opts.Width, defaultWidth)-yAxisColumn-1, minGraphWidth)
	data := make([][]float64, len(curves))
	for i, c := range curves {
		data[i] = c.resample(lo, hi, plotWidth)
	}
	options := []asciigraph.Option{
		asciigraph.Height(max(orDefault(opts.Height, defaultHeight), minGraphHeight) - 1),
		asciigraph.YAxisValueFormatter(func(v float64) string { return fmt.Sprintf("%*s", yLabelWidth, shortNumber(math.Pow(10, v))) }),
	}
	if len(curves) == 2 {
		options = append(options, asciigraph.SeriesColors(asciigraph.Blue, asciigraph.Red))
	} else if color && strings.Contains(names[0], "red") {
		options = append(options, asciigraph.SeriesColors(asciigraph.Red))
	} else if color {
		options = append(options, asciigraph.SeriesColors(asciigraph.Blue))
	}
	return fmt.Sprintf("busbw, GB/s, %s, %s\n", set.key, strings.Join(names, " and ")) +
		asciigraph.PlotMany(data, options...) + "\n" + sizeAxis(lo, hi, plotWidth) + "\n"
}

func orDefault(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

// noBandwidthReason says why there is no positive busbw.
func noBandwidthReason(run *result.Run) string {
	if run.Config.World == 1 {
		return "with one rank busbw is 0 by definition"
	}
	return "no row has a bandwidth above 0"
}

// shortNumber keeps three digits or so.
func shortNumber(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 0.01:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// sizeAxis is the axis line and the sizes below it, for columns lo … hi in log2, behind the labels of the other axis.
func sizeAxis(lo, hi float64, width int) string {
	line := []rune(strings.Repeat(" ", yAxisColumn) + "└" + strings.Repeat("─", width))
	labels := []rune(strings.Repeat(" ", len(line)+10))
	next := 0 // first free column
	for _, size := range sizeLabels(lo, hi, width/9) {
		mark := yAxisColumn + 1 + int(math.Round((size-lo)/(hi-lo)*float64(width-1)))
		text := []rune(FormatSize(result.Bytes(math.Round(math.Exp2(size)))))
		column := max(mark-len(text)/2, 0)
		if column+len(text) > len(line) {
			column = len(line) - len(text) // keeps the last label inside the width asked for
		}
		if column < next {
			continue
		}
		line[mark] = '┴'
		copy(labels[column:], text)
		next = column + len(text) + 1
	}
	return string(line) + "\n" + strings.TrimRight(string(labels), " ")
}

// sizeLabels picks the sizes (as log2) that get a label: powers of two that 1 KiB, 1 MiB and 1 GiB are among, as many as fit, and the smallest
// size if no other is near.
func sizeLabels(lo, hi float64, most int) []float64 {
	step := 1.0
	for _, s := range []float64{1, 2, 5, 10, 20} {
		step = s
		if (hi-lo)/s <= float64(max(most, 1)) {
			break
		}
	}
	labels := []float64{lo}
	for v := math.Ceil(lo/step) * step; v <= hi+1e-9; v += step {
		if v-lo > 0.6*step {
			labels = append(labels, v)
		}
	}
	return labels
}

var asciiForms = strings.NewReplacer("┼", "+", "┤", "|", "┴", "+", "└", "+", "─", "-", "│", "|", "╭", ".", "╮", ".", "╰", "'", "╯", "'",
	"╴", "-", "╶", "-", "■", "#", "µ", "u", "·", "-", "×", "x", "–", "-", "…", "...", "α", "alpha", "β", "beta")

func toASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r > 126 {
			return '?'
		}
		return r
	}, asciiForms.Replace(s))
}

// value picks a figure of a half.
type value func(*result.Half) float64

func busBW(h *result.Half) float64  { return float64(h.BusBW) }
func timeUS(h *result.Half) float64 { return float64(h.TimeUS) }

// curve is figures over size: the median over runs, and the range where there are several.
type curve []curvePoint

type curvePoint struct {
	bytes          float64
	median, lo, hi float64
	runs           int
	iter           *result.IterStats // median over runs
}

func curveOf(set rowSet, inPlace bool, get value) curve {
	var c curve
	for _, size := range set.sizes {
		halves := halvesOf(size.rows, inPlace)
		if len(halves) == 0 {
			continue
		}
		values := each(halves, get)
		iter := medianIter(halves)
		p := curvePoint{bytes: float64(size.bytes), median: stat.Median(values), lo: values[0], hi: values[0], runs: len(values), iter: iter}
		for _, v := range values {
			p.lo, p.hi = min(p.lo, v), max(p.hi, v)
		}
		c = append(c, p)
	}
	return c
}

// positive keeps what a logarithmic axis can show.
func (c curve) positive() curve {
	var kept curve
	for _, p := range c {
		if positive(p.bytes) && positive(p.median) && positive(p.lo) && positive(p.hi) {
			kept = append(kept, p)
		}
	}
	return kept
}

// sizeRange is the first and last size as log2.
func (c curve) sizeRange() (lo, hi float64) {
	return math.Log2(c[0].bytes), math.Log2(c[len(c)-1].bytes)
}

// resample gives log10 of the figure at width columns, equally apart in log2 of the size: straight between points, nothing (NaN) beyond them.
func (c curve) resample(lo, hi float64, width int) []float64 {
	out := make([]float64, width)
	at := 0
	for i := range out {
		x := lo + (hi-lo)*float64(i)/float64(width-1)
		for at+1 < len(c) && math.Log2(c[at+1].bytes) < x {
			at++
		}
		x0, y0 := math.Log2(c[at].bytes), math.Log10(c[at].median)
		switch {
		case x < x0-1e-9:
			out[i] = math.NaN()
		case at+1 == len(c):
			out[i] = y0
			if x > x0+1e-9 {
				out[i] = math.NaN()
			}
		default:
			x1, y1 := math.Log2(c[at+1].bytes), math.Log10(c[at+1].median)
			out[i] = y0 + (y1-y0)*(x-x0)/(x1-x0)
		}
	}
	return out
}
