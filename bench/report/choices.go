package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/commprobe/commprobe/bench/result"
)

// choiceRange is neighbouring sizes for which NCCL chose the same.
type choiceRange struct {
	from, to result.Bytes
	text     string
}

// choiceRanges joins a curve's sizes by what NCCL chose; nil when nothing is known.
func choiceRanges(set rowSet) []choiceRange {
	var out []choiceRange
	for _, size := range set.sizes {
		text := ""
		for i := range size.rows {
			if t := choiceText(size.rows[i].Choices); t != "" {
				text = t
				break
			}
		}
		switch n := len(out); {
		case text == "":
		case n > 0 && out[n-1].text == text:
			out[n-1].to = size.bytes
		default:
			out = append(out, choiceRange{size.bytes, size.bytes, text})
		}
	}
	return out
}

// choiceText is "Ring LL, 2 channels". A size with several choices (out-of-place and in-place may differ) names them all.
func choiceText(choices []result.Choice) string {
	var parts []string
	for _, c := range choices {
		words := []string{c.Kind, c.Algo, c.Proto, c.Kernel}
		text := strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " ")
		if c.Channels > 0 {
			text += ", " + plural(c.Channels, "channel")
		}
		if text != "" && !slices.Contains(parts, text) {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, " or ")
}

// choiceLines say what NCCL chose for which sizes.
func choiceLines(rows []result.Row) string {
	var b strings.Builder
	sets := setsOf(rows)
	for _, set := range sets {
		for _, r := range choiceRanges(set) {
			span := FormatSize(r.from)
			if r.to != r.from {
				span += " … " + FormatSize(r.to)
			}
			name := ""
			if len(sets) > 1 {
				name = set.key.String() + ": "
			}
			fmt.Fprintf(&b, "#   %s%s: %s\n", name, span, r.text)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "# NCCL's choices, from a pass of its own with the TUNING log:\n" + b.String()
}

// choiceMark is a line where NCCL's choice changes, with what it chose from there on written along it.
type choiceMark struct {
	ranges []choiceRange
	curve  curve // the captions keep away from
}

// Plot implements plot.Plotter.
func (m choiceMark) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	style := textStyle(textSize - 2)
	style.Color = color.Gray{0x50}
	style.Rotation = math.Pi / 2
	style.YAlign = draw.YTop // right of the line
	for i, r := range m.ranges {
		x := toX(max(float64(r.from), p.X.Min))
		if i > 0 {
			// Between the last size with the old choice and the first with the new one.
			x = toX(geometricMean(float64(m.ranges[i-1].to), float64(r.from)))
			c.StrokeLine2(draw.LineStyle{Color: color.Gray{0xa0}, Width: 0.8, Dashes: []vg.Length{2, 4}}, x, c.Min.Y, x, c.Max.Y)
		}
		at := vg.Point{X: x + 3, Y: c.Min.Y + 4*textSize} // above the knee's caption
		room := c.Max.Y - at.Y
		style.XAlign = draw.XLeft
		if y := toY(m.height(float64(r.from))); y < c.Center().Y {
			at.Y, style.XAlign = c.Max.Y-4, draw.XRight
			room = at.Y - y - 2*textSize
		}
		text := []rune(r.text)
		flat := style
		flat.Rotation = 0
		for len(text) > 1 && flat.Width(string(text)) > room {
			text = append(text[:len(text)-2], '…')
		}
		c.FillText(style, at, string(text))
	}
}

// height is the curve's value at a size.
func (m choiceMark) height(bytes float64) float64 {
	v := 0.0
	for _, pt := range m.curve {
		if v == 0 || pt.bytes <= bytes {
			v = pt.median
		}
	}
	return v
}

func geometricMean(a, b float64) float64 {
	if a <= 0 || b <= 0 {
		return max(a, b)
	}
	return math.Sqrt(a * b)
}

// addChoices marks in the bandwidth panel what NCCL chose, when the picture has one curve that knows.
func (f *figure) addChoices(sets []drawnSet) {
	if len(sets) != 1 {
		return
	}
	if ranges := choiceRanges(sets[0].set); len(ranges) > 0 {
		f.panels[0].plot.Add(choiceMark{ranges, curveOf(sets[0].set, false, busBW).positive()})
	}
}
