package topo

import (
	"fmt"
	"image/color"
	"io"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	vgtext "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A scene is a picture before it is drawn: rectangles, lines and texts in pixels from the top left corner. Layout makes a scene, and tests look at it.
type scene struct {
	width, height float64
	rects         []sceneRect
	lines         []sceneLine
	texts         []sceneText
}

type sceneRect struct {
	x, y, w, h   float64
	fill, stroke color.Color
	line         float64 // width of the stroke; 0: none
}

type sceneLine struct {
	pts    []vg.Point // in pixels, y down
	color  color.Color
	width  float64
	dashed bool
}

// sceneText is one line of text; x and y are the top left corner of its box.
type sceneText struct {
	x, y, w, h float64
	s          string
	size       float64 // pixels
	bold       bool
	color      color.Color
}

// pixelsPerInch makes one pixel of a picture a 96th of an inch, as browsers do.
const pixelsPerInch = 96

func px(v float64) vg.Length { return vg.Length(v) * vg.Inch / pixelsPerInch }

func sceneStyle(size float64, bold bool) vgtext.Style {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: px(size)}
	if bold {
		f.Weight = 3 // bold, in the numbers of golang.org/x/image/font
	}
	return vgtext.Style{Color: color.Black, Font: f, Handler: plot.DefaultTextHandler}
}

// textWidth is the width of a line in pixels.
func textWidth(s string, size float64, bold bool) float64 {
	return float64(sceneStyle(size, bold).Width(s)/vg.Inch) * pixelsPerInch
}

// lineHeight is the distance of two lines of text.
func lineHeight(size float64) float64 { return size * 1.3 }

// fit shortens a text to a width.
func fit(s string, size float64, bold bool, width float64) string {
	if textWidth(s, size, bold) <= width {
		return s
	}
	r := []rune(s)
	for len(r) > 1 {
		r = r[:len(r)-1]
		if t := strings.TrimRight(string(r), " ,") + "…"; textWidth(t, size, bold) <= width {
			return t
		}
	}
	return ""
}

// wrapText breaks a text into lines of a width; the last of most lines is shortened.
func wrapText(s string, size float64, bold bool, width float64, most int) (out []string) {
	line := ""
	words := strings.Fields(s)
	for i, w := range words {
		next := strings.TrimPrefix(line+" "+w, " ")
		if line == "" || textWidth(next, size, bold) <= width {
			line = next
			continue
		}
		if len(out) == most-1 {
			return append(out, fit(line+" "+strings.Join(words[i:], " "), size, bold, width))
		}
		out = append(out, fit(line, size, bold, width))
		line = w
	}
	return append(out, fit(line, size, bold, width))
}

// say adds a line of text of at most width pixels and returns the width that it takes.
func (s *scene) say(x, y, width, size float64, bold bool, c color.Color, str string) float64 {
	str = fit(str, size, bold, width)
	if str == "" {
		return 0
	}
	w := textWidth(str, size, bold)
	s.texts = append(s.texts, sceneText{x, y, w, lineHeight(size), str, size, bold, c})
	return w
}

func (s *scene) rect(x, y, w, h float64, fill, stroke color.Color, line float64) {
	s.rects = append(s.rects, sceneRect{x, y, w, h, fill, stroke, line})
}

// path adds a line through points given as x, y, x, y …
func (s *scene) path(c color.Color, width float64, dashed bool, xy ...float64) {
	l := sceneLine{color: c, width: width, dashed: dashed}
	for i := 0; i+1 < len(xy); i += 2 {
		l.pts = append(l.pts, vg.Point{X: vg.Length(xy[i]), Y: vg.Length(xy[i+1])})
	}
	s.lines = append(s.lines, l)
}

// PictureFormats are the kinds of pictures that Draw makes.
var PictureFormats = []string{"svg", "png"}

// Draw makes a picture of the node, "svg" or "png": NUMA nodes as columns, below them root ports, switches, GPUs and NICs with their links, NVLink as a band at the bottom.
// It is 1600 pixels wide, wider only for many NUMA nodes. An error is an unknown format, or w's.
func (g *Graph) Draw(w io.Writer, format string) error {
	s := newPicture(g).scene()
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case "svg": // with fonts in it: a viewer without Liberation would set other widths
		canvas = vgsvg.NewWith(vgsvg.UseWH(px(s.width), px(s.height)), vgsvg.EmbedFonts(true))
	case "png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(px(s.width), px(s.height)), vgimg.UseDPI(pixelsPerInch))}
	default:
		return fmt.Errorf("draw: unknown picture format %q: there are %s", format, strings.Join(PictureFormats, ", "))
	}
	s.render(draw.New(canvas))
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}

func (s *scene) render(c draw.Canvas) {
	at := func(x, y float64) vg.Point { return vg.Point{X: px(x), Y: px(s.height - y)} }
	c.FillPolygon(color.White, []vg.Point{at(0, 0), at(s.width, 0), at(s.width, s.height), at(0, s.height)})
	for _, r := range s.rects {
		corners := []vg.Point{at(r.x, r.y), at(r.x+r.w, r.y), at(r.x+r.w, r.y+r.h), at(r.x, r.y+r.h)}
		if r.fill != nil {
			c.FillPolygon(r.fill, corners)
		}
		if r.line > 0 {
			c.StrokeLines(draw.LineStyle{Color: r.stroke, Width: px(r.line)}, append(corners, corners[0]))
		}
	}
	for _, l := range s.lines {
		style := draw.LineStyle{Color: l.color, Width: px(l.width)}
		if l.dashed {
			style.Dashes = []vg.Length{px(5), px(4)}
		}
		var pts []vg.Point
		for _, p := range l.pts {
			pts = append(pts, at(float64(p.X), float64(p.Y)))
		}
		c.StrokeLines(style, pts)
	}
	for _, t := range s.texts {
		style := sceneStyle(t.size, t.bold)
		style.Color, style.YAlign = t.color, draw.YTop
		c.FillText(style, at(t.x, t.y-t.size*0.1), t.s)
	}
}
