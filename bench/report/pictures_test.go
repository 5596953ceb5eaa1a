package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/commprobe/commprobe/bench/result"
)

// colored counts pixels of a picture in exactly one colour.
func colored(t *testing.T, data []byte, want color.RGBA) int {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if r, g, b, _ := img.At(x, y).RGBA(); uint8(r>>8) == want.R && uint8(g>>8) == want.G && uint8(b>>8) == want.B {
				n++
			}
		}
	}
	return n
}

func TestPlotPNG(t *testing.T) {
	one := h200Run(t, "ar_mpi2.txt", "all_reduce", true)
	one.Rows = one.Rows[:1]
	inOnly := h200Run(t, "ar_mpi2.txt", "all_reduce", true)
	for i := range inOnly.Rows {
		inOnly.Rows[i].OutOfPlace = nil
	}
	for name, run := range map[string]*result.Run{
		"recorded": h200Run(t, "ar_mpi2.txt", "all_reduce", true), "single row": one, "one rank": oneRankRun(), "runs": hostRun(3), "in-place only": inOnly,
	} {
		var b bytes.Buffer
		if err := Plot(&b, "png", run, Options{Width: 800, Height: 450}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		cfg, err := png.DecodeConfig(bytes.NewReader(b.Bytes()))
		if err != nil || cfg.Width != 800 || cfg.Height != 450 {
			t.Errorf("%s: %d×%d, %v", name, cfg.Width, cfg.Height, err)
		}
		if n := colored(t, b.Bytes(), okabe[0]) + colored(t, b.Bytes(), okabe[1]); n < 30 {
			t.Errorf("%s: %d pixels of curves", name, n)
		}
	}
}

// svgTexts returns the texts of a picture.
func svgTexts(t *testing.T, run *result.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := Plot(&b, "svg", run, Options{}); err != nil {
		t.Fatal(err)
	}
	var texts strings.Builder
	dec := xml.NewDecoder(&b)
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return texts.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "text" {
			var s string
			if err := dec.DecodeElement(&s, &start); err != nil {
				t.Fatal(err)
			}
			texts.WriteString(strings.TrimSpace(s) + "\n")
		}
	}
}

func TestPlotTexts(t *testing.T) {
	texts := svgTexts(t, h200Run(t, "ar_g2.txt", "all_reduce", true))
	for _, want := range []string{"all_reduce float sum", "native engine", "2 ranks", "2 × NVIDIA H200", "NCCL 2.28.9", "8 B\n", "1 KiB\n", "1 MiB\n", "1 GiB\n",
		"busbw (GB/s)", "time (µs)", "out-of-place\n", "in-place\n", "ring model α ", "knee "} {
		if !strings.Contains(texts, want) {
			t.Errorf("no %q in\n%s", want, texts)
		}
	}
	if texts := svgTexts(t, hostRun(3)); !strings.Contains(texts, "p50–p99 of iterations") || !strings.Contains(texts, "median of 3 runs") {
		t.Errorf("no band or no word on runs in\n%s", texts)
	}
	if texts := svgTexts(t, oneRankRun()); !strings.Contains(texts, "busbw is 0 by definition") || strings.Contains(texts, "ring model") {
		t.Errorf("one rank:\n%s", texts)
	}
	small := h200Run(t, "ar_g2.txt", "all_reduce", true)
	small.Rows = small.Rows[6:16]
	if texts := svgTexts(t, small); !strings.Contains(texts, "β unknown") || strings.Contains(texts, "knee ") {
		t.Errorf("small sizes only:\n%s", texts)
	}
	many := h200Run(t, "ar_check.txt", "all_reduce", true)
	for _, typ := range strings.Fields("int8 uint8 int32 uint32 int64 uint64 half double bfloat16 a b c d e f g h i j") {
		rows := h200Run(t, "ar_check.txt", "all_reduce", true).Rows
		for i := range rows {
			rows[i].Type = typ
		}
		many.Rows = append(many.Rows, rows...)
	}
	if texts := svgTexts(t, many); !strings.Contains(texts, "the first 16 of 20 shown") {
		t.Errorf("20 types:\n%s", texts)
	}
	if err := Plot(io.Discard, "png", many, Options{Width: 640, Height: 400}); err != nil {
		t.Errorf("20 types in a small picture: %v", err)
	}
}

func TestPlotOfExtremeFigures(t *testing.T) {
	run := h200Run(t, "ar_check.txt", "all_reduce", true)
	run.Rows[0].OutOfPlace.TimeUS, run.Rows[1].OutOfPlace.TimeUS, run.Rows[2].OutOfPlace.BusBW = 1e-300, 1e300, 5e-324
	run.Rows[3].Bytes, run.Rows[4].Bytes, run.Rows[5].Bytes, run.Rows[6].InPlace.TimeUS = 0, -8, 1<<62, -1
	if err := Plot(io.Discard, "svg", run, Options{}); err != nil {
		t.Error(err)
	}
	if err := Terminal(io.Discard, run, Options{}); err != nil {
		t.Error(err)
	}
}

func TestWritePlot(t *testing.T) {
	run := h200Run(t, "ar_check.txt", "all_reduce", true)
	dir := t.TempDir()
	if err := WritePlot(filepath.Join(dir, "a.PDF"), run, Options{}); err != nil {
		t.Error(err)
	}
	if err := WritePlot(filepath.Join(dir, "a.PDF"), run, Options{}); !errors.Is(err, ErrExists) {
		t.Errorf("an existing picture: %v", err)
	}
	for _, name := range []string{"a.jpg", "a", "png"} {
		if err := WritePlot(filepath.Join(dir, name), run, Options{}); err == nil || !strings.Contains(err.Error(), ".png, .svg, .pdf") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Plot(io.Discard, "png", emptyH200Run("all_reduce"), Options{}); err == nil {
		t.Error("a picture of no rows")
	}
	if err := Plot(io.Discard, "gif", run, Options{}); err == nil {
		t.Error("an unknown format")
	}
	if err := Plot(io.Discard, "png", run, Options{Width: 10}); err == nil {
		t.Error("ten pixels wide")
	}
}

func terminalOf(t *testing.T, run *result.Run, opts Options) string {
	t.Helper()
	var b strings.Builder
	if err := Terminal(&b, run, opts); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTerminal(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	run := h200Run(t, "ar_g2.txt", "all_reduce", true)
	golden(t, "terminal.golden", terminalOf(t, run, Options{}))
	for _, opts := range []Options{{}, {Width: 60, Height: 8}, {Width: 120, Height: 30}, {ASCII: true}} {
		text := terminalOf(t, run, opts)
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > orDefault(opts.Width, defaultWidth) {
				t.Errorf("%+v: a line of %d columns: %q", opts, n, line)
			}
		}
		if n := strings.Count(text, "\n"); n != orDefault(opts.Height, defaultHeight)+3 {
			t.Errorf("%+v: %d lines", opts, n)
		}
		for _, want := range []string{"8 B", "1 GiB", "345 "} {
			if !strings.Contains(text, want) {
				t.Errorf("%+v: no %q in\n%s", opts, want, text)
			}
		}
		if opts.ASCII && strings.IndexFunc(text, func(r rune) bool { return r > 126 }) >= 0 {
			t.Errorf("not ASCII:\n%s", text)
		}
		if strings.Contains(text, "\x1b") {
			t.Errorf("%+v: colour without asking", opts)
		}
	}
	if text := terminalOf(t, run, Options{Color: true}); !strings.Contains(text, "\x1b[") || !strings.Contains(text, "in-place (red)") {
		t.Error("no colour")
	}
	t.Setenv("NO_COLOR", "1")
	if text := terminalOf(t, run, Options{Color: true}); strings.Contains(text, "\x1b") {
		t.Error("NO_COLOR is not heeded")
	}
}

func TestTerminalWithoutACurve(t *testing.T) {
	if text := terminalOf(t, oneRankRun(), Options{}); !strings.Contains(text, "with one rank busbw is 0 by definition") {
		t.Errorf("one rank: %q", text)
	}
	one := h200Run(t, "ar_g2.txt", "all_reduce", true)
	one.Rows = one.Rows[20:21]
	if text := terminalOf(t, one, Options{}); !strings.Contains(text, "169 GB/s at 8 MiB") {
		t.Errorf("one row: %q", text)
	}
	if text := terminalOf(t, emptyH200Run("all_reduce"), Options{}); text != "no rows to draw\n" {
		t.Errorf("no rows: %q", text)
	}
	if err := Terminal(&counter{fail: 1}, one, Options{}); err == nil {
		t.Error("a failed write is no error")
	}
}

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, 3)
	p.Begin("all_reduce", 1<<20)
	p.Step()
	p.Begin("all_reduce", 2<<20)
	printed := false
	p.Interrupt(func() { printed = true })
	p.Step()
	p.Close()
	p.Close()
	for _, want := range []string{"all_reduce      1 MiB", "all_reduce      2 MiB", "1/3", "2/3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %q", want, b.String())
		}
	}
	if !printed {
		t.Error("Interrupt did not print")
	}
	// Not a terminal, nothing to do, zero value, nil: silent, and Interrupt prints all the same.
	for _, silent := range []*Progress{NewProgress(nil, 3, false), {}, nil} {
		printed = false
		silent.Begin("x", 1)
		silent.Step()
		silent.Interrupt(func() { printed = true })
		silent.Close()
		if !printed {
			t.Error("a silent bar swallows output")
		}
	}
}
