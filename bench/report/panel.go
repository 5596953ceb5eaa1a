package report

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/commprobe/commprobe/bench/costmodel"
	"github.com/commprobe/commprobe/bench/result"
)

// panel is one of the two graphs.
type panel struct {
	plot             *plot.Plot
	title            string
	get              value
	points           int
	xLo, xHi         float64
	yLo, yHi         float64
	message          string
	knees            []knee
	wantsKneeCaption bool
}

// knee is a mark on the x axis.
type knee struct {
	bytes   float64
	caption string
	color   color.Color
}

func newPanel(title, yLabel string, get value) *panel {
	p := plot.New()
	p.X.Label.Text = "message size"
	p.Y.Label.Text = yLabel
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Scale = plot.LogScale{}
		axis.Label.TextStyle.Font = textStyle(textSize).Font
		axis.Tick.Label.Font = textStyle(textSize).Font
		axis.Label.Padding = 4
		axis.Padding = 2
	}
	p.X.Tick.Marker = sizeTicks{}
	p.Y.Tick.Marker = decadeTicks{}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xe0}, color.Gray{0xe0}
	grid.Horizontal.Width, grid.Vertical.Width = 0.7, 0.7
	p.Add(grid)
	return &panel{plot: p, title: title, get: get, xLo: math.Inf(1), yLo: math.Inf(1)}
}

// see widens the axes to show a value.
func (p *panel) see(x float64, ys ...float64) {
	p.points++
	p.xLo, p.xHi = min(p.xLo, x), max(p.xHi, x)
	for _, y := range ys {
		if positive(y) {
			p.yLo, p.yHi = min(p.yLo, y), max(p.yHi, y)
		}
	}
}

// finish fixes the axes; a panel without any point a logarithmic axis can show gets a sentence instead.
func (p *panel) finish(whyNothing string) {
	if p.points == 0 {
		p.message = "nothing to show: " + whyNothing
		return
	}
	p.plot.X.Min, p.plot.X.Max = ranges(p.xLo, p.xHi, 0.03, 1.4, 16)
	p.plot.Y.Min, p.plot.Y.Max = ranges(p.yLo, p.yHi, 0.05, 1.3, 10)
}

// complete adds what needs the final axes.
func (p *panel) complete() {
	for i, k := range p.knees {
		if k.bytes > p.plot.X.Min && k.bytes < p.plot.X.Max {
			p.plot.Add(kneeMark{knee: k, line: i, caption: p.wantsKneeCaption})
		}
	}
}

func (p *panel) draw(c draw.Canvas) {
	if p.message != "" {
		style := textStyle(textSize)
		style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
		c.FillText(style, c.Center(), p.title+": "+p.message)
		return
	}
	p.plot.Draw(c)
}

// okabe is the palette of Okabe and Ito, which colour-blind readers can tell apart.
var okabe = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x60, 0x60, 0x60, 0xff},
}

// addSet draws one collective, type and op of a run in both panels. sameKey: all sets of the picture have the same.
func (f *figure) addSet(d *drawnSet, index, sets int, sameKey bool) {
	for _, inPlace := range []bool{false, true} {
		style := seriesStyle(index, sets, inPlace)
		name := placementName(inPlace)
		switch {
		case f.onePlacement && !inPlace:
			name = d.name(sameKey)
		case sets > 1:
			name = d.name(sameKey) + ", " + name
		}
		if f.onePlacement && sets <= 4 {
			style.layer(sets - 1 - index)
		}
		var thumbs []plot.Thumbnailer
		for _, p := range f.panels {
			if c := curveOf(d.set, inPlace, p.get).positive(); len(c) > 0 {
				thumbs = p.addCurve(c, style)
			}
		}
		if thumbs != nil {
			f.legend = append(f.legend, legendEntry{name, thumbs})
			if f.onePlacement {
				return
			}
		}
	}
	if d.label != "" || f.onePlacement {
		return
	}
	f.addBand(d.set, index, sets)
	if index < maxFitted {
		f.addModel(d.set, index, sets, d.run)
	}
}

// series is how a curve looks.
type series struct {
	line  draw.LineStyle
	glyph draw.GlyphStyle
	color color.RGBA
}

func seriesStyle(index, sets int, inPlace bool) series {
	c := okabe[index%len(okabe)]
	if sets == 1 && inPlace {
		c = okabe[1]
	}
	s := series{
		color: c,
		line:  draw.LineStyle{Color: c, Width: 2},
		glyph: draw.GlyphStyle{Color: c, Radius: 3.5, Shape: draw.CircleGlyph{}},
	}
	// The palette begins again after seven curves; then the marks differ.
	if index >= len(okabe) {
		s.glyph.Shape = []draw.GlyphDrawer{draw.TriangleGlyph{}, draw.PyramidGlyph{}, draw.CrossGlyph{}}[(index/len(okabe)-1)%3]
		s.line.Dashes = []vg.Length{12, 3}
	}
	if inPlace {
		s.line.Dashes = []vg.Length{6, 3}
		s.glyph.Shape = draw.SquareGlyph{}
		s.glyph.Radius = 4
	}
	return s
}

// layer widens a curve that others lie upon, so that it shows below them where they are equal.
func (s *series) layer(above int) {
	more := vg.Length(min(above, 4))
	s.line.Width += 1.4 * more
	s.glyph.Radius += 0.8 * more
}

// addCurve adds a line with points, and a bar from the fastest to the slowest where there are several runs.
func (p *panel) addCurve(c curve, style series) []plot.Thumbnailer {
	xys := make(plotter.XYs, len(c))
	bars := errorBars{}
	for i, pt := range c {
		xys[i] = plotter.XY{X: pt.bytes, Y: pt.median}
		p.see(pt.bytes, pt.median, pt.lo, pt.hi)
		if pt.runs > 1 {
			bars.XYs = append(bars.XYs, xys[i])
			bars.low, bars.high = append(bars.low, pt.median-pt.lo), append(bars.high, pt.hi-pt.median)
		}
	}
	if len(bars.XYs) > 0 {
		if drawn, err := plotter.NewYErrorBars(bars); err == nil {
			drawn.LineStyle = draw.LineStyle{Color: style.color, Width: 1.2}
			p.plot.Add(drawn)
		}
	}
	line, glyphs, err := plotter.NewLinePoints(xys)
	if err != nil {
		return nil // only NaN and infinities are refused, and positive() has taken those out
	}
	line.LineStyle, glyphs.GlyphStyle = style.line, style.glyph
	p.plot.Add(line, glyphs)
	return []plot.Thumbnailer{line, glyphs}
}

type errorBars struct {
	plotter.XYs
	low, high []float64
}

// YError implements plotter.YErrorer: how far the bar reaches below and above the point.
func (e errorBars) YError(i int) (low, high float64) { return e.low[i], e.high[i] }

// addBand shades p50 to p99 of single iterations in the time panel, out-of-place, or in-place where that is all there is.
func (f *figure) addBand(set rowSet, index, sets int) {
	p := f.panels[1]
	for _, inPlace := range []bool{false, true} {
		var lower, upper plotter.XYs
		for _, pt := range curveOf(set, inPlace, timeUS).positive() {
			if pt.iter == nil || pt.iter.P99US == nil || !positive(float64(pt.iter.P50US)) || !positive(float64(*pt.iter.P99US)) {
				continue
			}
			lower = append(lower, plotter.XY{X: pt.bytes, Y: float64(pt.iter.P50US)})
			upper = append(upper, plotter.XY{X: pt.bytes, Y: float64(*pt.iter.P99US)})
			p.see(pt.bytes, float64(pt.iter.P50US), float64(*pt.iter.P99US))
		}
		if len(lower) < 2 {
			continue
		}
		for i := len(upper) - 1; i >= 0; i-- {
			lower = append(lower, upper[i])
		}
		band, err := plotter.NewPolygon(lower)
		if err != nil {
			return
		}
		c := seriesStyle(index, sets, inPlace).color
		band.Color = color.NRGBA{c.R, c.G, c.B, 0x40}
		band.LineStyle.Width = 0
		p.plot.Add(band)
		name := "p50–p99 of iterations (events), " + placementName(inPlace)
		if sets > 1 {
			name = set.key.String() + ", " + name
		}
		f.legend = append(f.legend, legendEntry{name, []plot.Thumbnailer{band}})
		return
	}
}

// addModel fits the ring line to the curve and draws it in both panels with its knee.
func (f *figure) addModel(set rowSet, index, sets int, run *result.Run) {
	points := curveOf(set, false, timeUS).positive()
	if len(points) == 0 {
		points = curveOf(set, true, timeUS).positive()
	}
	var measured []costmodel.Point
	for _, pt := range points {
		measured = append(measured, costmodel.Point{Bytes: pt.bytes, TimeUS: pt.median})
	}
	m, err := costmodel.Fit(measured, set.key.Collective, costmodel.Ring, groupSize(run))
	if err != nil {
		return // too few sizes or only small ones: the picture is good without the line
	}
	c := color.Color(color.Gray{0x30})
	if sets > 1 {
		c = okabe[index%len(okabe)]
	}
	style := draw.LineStyle{Color: c, Width: 1.5, Dashes: []vg.Length{2, 3}}
	thumb := f.addModelLines(&m, points, style)
	name := fmt.Sprintf("ring model %s, median error %.0f %%", parameters(&m), 100*m.Fit.MedianAbsRel)
	if m.Fit.MedianAbsRel > misfit {
		name += ": does not describe this curve"
	}
	if sets > 1 {
		name = set.key.String() + ", " + name
	}
	f.legend = append(f.legend, legendEntry{name, []plot.Thumbnailer{thumb}})
	if !m.Fit.AlphaSeen || !m.Fit.BetaSeen || m.Fit.MedianAbsRel > misfit {
		return // a knee made of a guess is none
	}
	caption := "knee " + kneeSize(m.KneeBytes()) + "\n" + parameters(&m)
	for _, p := range f.panels {
		p.knees = append(p.knees, knee{bytes: m.KneeBytes(), caption: f.spell(caption), color: c})
	}
	f.panels[0].wantsKneeCaption = true
}

// parameters names α and β, as far as the sizes show them.
func parameters(m *costmodel.Model) string {
	alpha, beta := "α "+threeDigits(m.AlphaUS)+" µs", "β "+threeDigits(m.BetaGBps)+" GB/s"
	if !m.Fit.AlphaSeen {
		alpha = "α unknown (sizes too large)"
	}
	if !m.Fit.BetaSeen {
		beta = "β unknown (sizes too small)"
	}
	return alpha + ", " + beta
}

// kneeSize rounds to what the fit is worth: "2 MiB", "9.2 MiB".
func kneeSize(bytes float64) string {
	unit := math.Exp2(10 * math.Floor(math.Log2(max(bytes, 1))/10))
	v := bytes / unit
	if v < 10 {
		v = math.Round(v*10) / 10
	} else {
		v = math.Round(v)
	}
	return FormatSize(result.Bytes(math.Round(v * unit)))
}

func (f *figure) addModelLines(m *costmodel.Model, points curve, style draw.LineStyle) *plotter.Line {
	lo, hi := points.sizeRange()
	const steps = 200
	var thumb *plotter.Line
	for i, p := range f.panels {
		xys := make(plotter.XYs, steps+1)
		for j := range xys {
			x := math.Exp2(lo + (hi-lo)*float64(j)/steps)
			xys[j] = plotter.XY{X: x, Y: m.BusBW(x)}
			if i == 1 {
				xys[j].Y = m.TimeUS(x)
			}
			p.see(x, xys[j].Y)
		}
		line := &plotter.Line{XYs: xys, LineStyle: style}
		p.plot.Add(line)
		thumb = line
	}
	return thumb
}

// kneeMark is a vertical line with a caption at the bottom, below the curve: right of the line, or left of it where the panel ends.
type kneeMark struct {
	knee
	line    int // captions of several knees stand above each other
	caption bool
}

// Plot implements plot.Plotter.
func (k kneeMark) Plot(c draw.Canvas, p *plot.Plot) {
	toX, _ := p.Transforms(&c)
	x := toX(k.bytes)
	c.StrokeLine2(draw.LineStyle{Color: k.color, Width: 1, Dashes: []vg.Length{1, 3}}, x, c.Min.Y, x, c.Max.Y)
	if !k.caption {
		return
	}
	style := textStyle(textSize)
	style.Color = k.color
	style.YAlign = draw.YBottom
	at := vg.Point{X: x + 6, Y: c.Min.Y + 6 + vg.Length(k.line)*2.8*textSize}
	if box := style.Rectangle(k.knee.caption); at.X+box.Size().X > c.Max.X {
		at.X = x - 6
		style.XAlign = draw.XRight
	}
	c.FillText(style, at, k.knee.caption)
}

// sizeTicks labels powers of two as sizes; unlabelled ticks stand at the powers between.
type sizeTicks struct{}

// Ticks implements plot.Ticker.
func (sizeTicks) Ticks(lo, hi float64) []plot.Tick {
	const most = 8 // labels in one panel of 800 pixels
	from, to := math.Log2(lo), math.Log2(hi)
	first := max(math.Ceil(from), 0) // no size is below one byte
	var ticks []plot.Tick
	labelled := map[float64]bool{}
	for _, v := range sizeLabels(first, math.Floor(to), most) {
		labelled[v] = true
		ticks = append(ticks, plot.Tick{Value: math.Exp2(v), Label: FormatSize(result.Bytes(math.Exp2(v)))})
	}
	for v := first; v <= to; v++ {
		if !labelled[v] {
			ticks = append(ticks, plot.Tick{Value: math.Exp2(v)})
		}
	}
	return ticks
}

// decadeTicks labels powers of ten, and 2 and 5 times those where there are few.
type decadeTicks struct{}

// Ticks implements plot.Ticker.
func (decadeTicks) Ticks(lo, hi float64) []plot.Tick {
	wide := math.Log10(hi/lo) > 3
	var ticks []plot.Tick
	for exp := math.Floor(math.Log10(lo)); exp <= math.Ceil(math.Log10(hi)); exp++ {
		for digit := 1.0; digit < 10; digit++ {
			v := digit * math.Pow(10, exp)
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if digit == 1 || !wide && (digit == 2 || digit == 5) {
				t.Label = strconv.FormatFloat(v, 'g', 6, 64)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
