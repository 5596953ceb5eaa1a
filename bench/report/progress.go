package report

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/commprobe/commprobe/bench/result"
)

// Progress shows on a terminal how far a sweep is: row k of N, the size being measured, the time left. On anything that is no terminal it is
// silent. Its output belongs on stderr. Not for concurrent use; the zero value and nil are silent.
type Progress struct {
	bar *progressbar.ProgressBar
	out io.Writer
}

// NewProgress returns a progress bar of total steps on f, silent unless f is a terminal, total is positive and quiet is false.
func NewProgress(f *os.File, total int, quiet bool) *Progress {
	if f == nil || quiet || total <= 0 || !term.IsTerminal(int(f.Fd())) {
		return &Progress{}
	}
	return newProgress(f, total)
}

func newProgress(w io.Writer, total int) *Progress {
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(24),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionClearOnFinish(),
	)
	return &Progress{bar: bar, out: w}
}

// Begin says what is being measured now, such as all_reduce at 1 MiB.
func (p *Progress) Begin(what string, size result.Bytes) {
	if p == nil || p.bar == nil {
		return
	}
	p.bar.Describe(fmt.Sprintf("%s %10s", what, FormatSize(size)))
}

// Step counts one row as done.
func (p *Progress) Step() {
	if p == nil || p.bar == nil {
		return
	}
	_ = p.bar.Add(1) // a terminal that went away must not end the measurement
}

// Interrupt takes the bar off the terminal, calls print, which may write lines there, and draws the bar again. It calls print in any case.
func (p *Progress) Interrupt(print func()) {
	if p == nil || p.bar == nil {
		print()
		return
	}
	_ = p.bar.Clear()
	print()
	if !p.bar.IsFinished() {
		_ = p.bar.RenderBlank()
	}
}

// Close takes the bar off the terminal. It may be called more than once.
func (p *Progress) Close() {
	if p == nil || p.bar == nil {
		return
	}
	_ = p.bar.Clear()
	_ = p.bar.Exit()
	p.bar = nil
}
