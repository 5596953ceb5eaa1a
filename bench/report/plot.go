package report

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgpdf"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/commprobe/commprobe/bench/result"
)

const (
	pixelsPerInch = 96
	textSize      = 13 // points: 17 pixels
	titleSize     = 17
	margin        = 14
	// pointsPerSet is the height that the picture needs for each collective, type and op: more of them are left out, and the title says so.
	pointsPerSet = 80
	// maxFitted bounds the model lines: with more curves they would hide each other.
	maxFitted = 3
	// misfit is the median error from which on a model line does not describe its curve.
	misfit = 0.3
)

// Curve is a run and the name that it has in a picture of several.
type Curve struct {
	Label string
	Run   *result.Run
}

// WritePlot makes a picture of run in a file, whole or not at all: busbw and time over message size, both log–log, with the fitted ring α–β line
// and its knee. The ending of path tells the format: .png, .svg or .pdf. Size in pixels: opts.Width × opts.Height, 1600 × 900 if 0. Several
// runs are drawn as their median with the range as a bar; the band is p50–p99 of single iterations where they were measured. Errors: an
// unknown ending, those of WriteFile, a run without rows.
func WritePlot(path string, run *result.Run, opts Options) error {
	return WriteCurvesPlot(path, []Curve{{Run: run}}, opts)
}

// WriteCurvesPlot is WritePlot for several runs in one picture, each with its label in the legend and no bands and model lines. With more
// than two only one placement of each is drawn, out-of-place where it is there; the same goes for a run of more than four types or operators.
func WriteCurvesPlot(path string, curves []Curve, opts Options) error {
	format, err := PlotFormat(path)
	if err != nil {
		return err
	}
	return WriteFile(path, opts, func(w io.Writer) error { return PlotCurves(w, format, curves, opts) })
}

// Plot is WritePlot to w, in format "png", "svg" or "pdf".
func Plot(w io.Writer, format string, run *result.Run, opts Options) error {
	return PlotCurves(w, format, []Curve{{Run: run}}, opts)
}

// PlotCurves is WriteCurvesPlot to w, in format "png", "svg" or "pdf".
func PlotCurves(w io.Writer, format string, curves []Curve, opts Options) error {
	rows := 0
	for _, c := range curves {
		rows += len(c.Run.Rows)
	}
	if rows == 0 {
		return errors.New("plot: the run has no rows")
	}
	width, height := opts.Width, opts.Height
	if width == 0 {
		width = 1600
	}
	if height == 0 {
		height = 900
	}
	if width < 640 || height < 400 || width > 20000 || height > 20000 {
		return fmt.Errorf("plot: %d×%d pixels; need 640×400 to 20000×20000", width, height)
	}
	canvas, err := newCanvas(format, points(width), points(height))
	if err != nil {
		return err
	}
	fig := newFigure(curves, int(points(height)/pointsPerSet), format == "pdf")
	fig.draw(draw.New(canvas))
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

func points(pixels int) vg.Length { return vg.Length(pixels) * vg.Inch / pixelsPerInch }

type sizedCanvas interface {
	vg.CanvasSizer
	io.WriterTo
}

func newCanvas(format string, width, height vg.Length) (sizedCanvas, error) {
	switch format {
	case "png":
		c := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(pixelsPerInch))
		return vgimg.PngCanvas{Canvas: c}, nil
	case "svg":
		// Embedded fonts: viewers without Liberation would set the labels in another width, over each other.
		return vgsvg.NewWith(vgsvg.UseWH(width, height), vgsvg.EmbedFonts(true)), nil
	case "pdf":
		return vgpdf.New(width, height), nil
	}
	return nil, fmt.Errorf("plot: unknown format %q; known: %s", format, strings.Join(plotFormats, ", "))
}

// figure is the whole picture: title, two panels side by side, legend below them, where it covers nothing.
type figure struct {
	title, subtitle string
	panels          [2]*panel
	legend          []legendEntry
	asciiOnly       bool // the PDF writer garbles everything else
	onePlacement    bool // so many curves that both placements would hide each other
}

type legendEntry struct {
	name   string
	thumbs []plot.Thumbnailer
}

// drawnSet is one collective, type and op of one run.
type drawnSet struct {
	set   rowSet
	run   *result.Run
	label string // of the run, where there are several
}

// name tells the set apart from the others of the picture.
func (d *drawnSet) name(sameKey bool) string {
	switch {
	case d.label == "":
		return d.set.key.String()
	case sameKey:
		return d.label
	}
	return d.label + ", " + d.set.key.String()
}

func newFigure(curves []Curve, most int, asciiOnly bool) *figure {
	f := &figure{asciiOnly: asciiOnly}
	var sets []drawnSet
	var keys []rowSet
	for _, c := range curves {
		for _, set := range setsOf(c.Run.Rows) {
			d := drawnSet{set: set, run: c.Run}
			if len(curves) > 1 {
				d.label = c.Label
			}
			sets = append(sets, d)
			if !slices.ContainsFunc(keys, func(k rowSet) bool { return k.key == set.key }) {
				keys = append(keys, set)
			}
		}
	}
	f.title = figureTitle(keys)
	f.subtitle = curvesSubtitle(curves)
	if len(curves) == 1 {
		f.subtitle = figureSubtitle(curves[0].Run)
	}
	// One placement of each needs half the legend.
	f.onePlacement = len(sets) > 4 || len(curves) > 1 && len(sets) > 2
	if f.onePlacement {
		most *= 2
		f.subtitle += "  ·  out-of-place"
	}
	if len(sets) > most {
		f.title = fmt.Sprintf("%s (the first %d of %d shown)", f.title, most, len(sets))
		sets = sets[:most]
	}
	f.panels[0] = newPanel("bus bandwidth", "busbw (GB/s)", busBW)
	f.panels[1] = newPanel("time per operation", f.spell("time (µs)"), timeUS)
	for i := range sets {
		f.addSet(&sets[i], i, len(sets), len(keys) == 1)
	}
	f.addChoices(sets)
	for _, p := range f.panels {
		p.finish(whyNothing(curves))
	}
	return f
}

// whyNothing says why no run of a picture has a positive bandwidth.
func whyNothing(curves []Curve) string {
	for _, c := range curves {
		if c.Run.Config.World != 1 {
			return noBandwidthReason(c.Run)
		}
	}
	return noBandwidthReason(curves[0].Run)
}

func figureTitle(sets []rowSet) string {
	names := make([]string, 0, len(sets))
	for _, s := range sets {
		names = append(names, s.key.String())
	}
	if len(names) > 4 {
		names = append(names[:3], fmt.Sprintf("%d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}

func figureSubtitle(run *result.Run) string {
	var parts []string
	if run.Config.Engine != "" {
		parts = append(parts, run.Config.Engine+" engine")
	}
	if n := rankCount(run); n > 0 {
		parts = append(parts, plural(n, "rank"))
	}
	if run.Config.Placement != "" {
		parts = append(parts, "placement "+run.Config.Placement)
	}
	if device := deviceSummary(run); device != "" {
		parts = append(parts, device)
	}
	if lib := libraryLabel(run); lib != "" {
		parts = append(parts, lib)
	}
	if run.Config.Runs > 1 {
		parts = append(parts, fmt.Sprintf("median of %d runs, bars from fastest to slowest", run.Config.Runs))
	}
	if !run.Started.IsZero() {
		parts = append(parts, run.Started.UTC().Format("2006-01-02"))
	}
	return strings.Join(parts, "  ·  ")
}

// curvesSubtitle says what the runs of a picture have in common.
func curvesSubtitle(curves []Curve) string {
	parts := []string{plural(len(curves), "run")}
	for _, get := range []func(*result.Run) string{
		func(r *result.Run) string {
			if n := rankCount(r); n > 0 {
				return plural(n, "rank")
			}
			return ""
		},
		deviceSummary,
		libraryLabel,
	} {
		first := get(curves[0].Run)
		if first != "" && !slices.ContainsFunc(curves, func(c Curve) bool { return get(c.Run) != first }) {
			parts = append(parts, first)
		}
	}
	return strings.Join(parts, "  ·  ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// deviceSummary counts devices by name, in order of rank: "2 × NVIDIA H200". Where the list of ranks is not whole it has no numbers.
func deviceSummary(run *result.Run) string {
	var names []string
	count := map[string]int{}
	for i := range run.Ranks {
		name := run.Ranks[i].DeviceName
		if name == "" {
			continue
		}
		if count[name] == 0 {
			names = append(names, name)
		}
		count[name]++
	}
	for i, name := range names {
		if len(run.Ranks) == rankCount(run) {
			names[i] = fmt.Sprintf("%d × %s", count[name], name)
		}
	}
	return strings.Join(names, ", ")
}

func (f *figure) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	inner := draw.Crop(c, margin, -margin, margin, -margin)
	title := textStyle(titleSize)
	title.XAlign, title.YAlign = draw.XCenter, draw.YTop
	inner.FillText(title, vg.Point{X: inner.Center().X, Y: inner.Max.Y}, f.fit(f.title, title, inner))
	sub := textStyle(textSize)
	sub.XAlign, sub.YAlign = draw.XCenter, draw.YTop
	inner.FillText(sub, vg.Point{X: inner.Center().X, Y: inner.Max.Y - 1.6*titleSize}, f.fit(f.subtitle, sub, inner))
	top := vg.Length(1.6*titleSize + 2*textSize)
	bottom := f.drawLegend(inner)
	gap := vg.Length(2 * textSize)
	area := draw.Crop(inner, 0, 0, bottom, -top)
	const titleHeight = 2 * textSize
	for i, p := range f.panels {
		style := textStyle(textSize + 1)
		style.XAlign, style.YAlign = draw.XCenter, draw.YTop
		half := area.Size().X / 2
		area.FillText(style, vg.Point{X: area.Min.X + half/2 + vg.Length(i)*half, Y: area.Max.Y}, p.title)
	}
	area = draw.Crop(area, 0, 0, 0, -titleHeight)
	left, right := f.panels[0], f.panels[1]
	left.complete()
	right.complete()
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: gap}
	if left.message == "" && right.message == "" {
		// Both panels' frames begin and end at one height, whatever their labels need.
		aligned := plot.Align([][]*plot.Plot{{left.plot, right.plot}}, tiles, area)
		left.draw(aligned[0][0])
		right.draw(aligned[0][1])
		return
	}
	left.draw(tiles.At(area, 0, 0))
	right.draw(tiles.At(area, 1, 0))
}

// fit shortens s until it is no wider than the canvas.
func (f *figure) fit(s string, style text.Style, c draw.Canvas) string {
	s = f.spell(s)
	short := []rune(s)
	for style.Width(s) > c.Size().X && len(short) > 1 {
		short = short[:len(short)-1]
		s = string(short) + "..."
	}
	return s
}

func (f *figure) spell(s string) string {
	if f.asciiOnly {
		return toASCII(s)
	}
	return s
}

// drawLegend draws the entries in columns at the bottom and returns the height it took.
func (f *figure) drawLegend(c draw.Canvas) vg.Length {
	style := textStyle(textSize)
	const icon, space = vg.Length(32), vg.Length(24)
	widest := vg.Length(0)
	for _, e := range f.legend {
		widest = max(widest, style.Width("x "+f.spell(e.name)))
	}
	columns := max(1, int((c.Size().X+space)/(icon+widest+space)))
	columns = min(columns, max(len(f.legend), 1))
	lines := (len(f.legend) + columns - 1) / columns
	const lineHeight = 1.5 * textSize
	height := vg.Length(lines) * lineHeight
	total := vg.Length(columns)*(icon+widest+space) - space
	left := max(0, (c.Size().X-total)/2)
	for i, e := range f.legend {
		x := c.Min.X + left + vg.Length(i%columns)*(icon+widest+space)
		y := c.Min.Y + height - vg.Length(i/columns+1)*lineHeight
		cell := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: y}, Max: vg.Point{X: x + icon, Y: y + lineHeight}}}
		for _, t := range e.thumbs {
			t.Thumbnail(&cell)
		}
		style.YAlign = draw.YCenter
		c.FillText(style, vg.Point{X: x + icon + 0.5*textSize, Y: y + lineHeight/2}, f.fit(e.name, style, c))
	}
	return height + textSize
}

// textStyle is the sans-serif of all text; plain handler, so that no name is taken for markup.
func textStyle(size vg.Length) text.Style {
	return text.Style{
		Color:   color.Black,
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Size: size},
		Handler: plot.DefaultTextHandler,
	}
}

// ranges widens lo … hi at each end by a share of its length in log scale, at least by a factor, and to at least a ratio, so that a single
// point gets an axis too.
func ranges(lo, hi, share, factor, ratio float64) (float64, float64) {
	pad := max(math.Pow(hi/lo, share), factor)
	lo, hi = lo/pad, hi*pad
	if hi/lo < ratio {
		middle := math.Sqrt(lo) * math.Sqrt(hi)
		lo, hi = middle/math.Sqrt(ratio), middle*math.Sqrt(ratio)
	}
	return lo, hi
}
