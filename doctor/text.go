package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// TextOptions of WriteText.
type TextOptions struct {
	Color bool // ANSI colours for the status
}

// width is that of a report's lines.
const width = 120

// writer keeps the first error, so that lines are written without looking at each.
type writer struct {
	w     io.Writer
	color bool
	err   error
}

func (w *writer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

// status is padded before it is coloured: the codes have no width.
func (w *writer) status(s Status) string {
	text := fmt.Sprintf("%-12s", s)
	if code := map[Status]string{Fault: "1;31", Warn: "33", CannotTell: "36", OK: "32"}[s]; w.color && code != "" {
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text
}

// WriteText writes a report for people: what is wrong, with what to do, and then every check in a line, by area.
func (r *Report) WriteText(out io.Writer, opts TextOptions) error {
	w := &writer{w: out, color: opts.Color}
	w.printf("%s (%s): %s\n", printable(r.Host), printable(r.Machine), r.Summary())
	for _, s := range []Status{Fault, Warn} {
		for _, x := range r.Results {
			if x.Status == s {
				w.detail(x)
			}
		}
	}
	area := ""
	for _, x := range r.Results {
		if x.Area != area {
			area = x.Area
			w.printf("\n%s\n", strings.ToUpper(area))
		}
		w.printf("  %s%-20s  %s\n", w.status(x.Status), x.ID, clip(oneLine(x), width-36))
	}
	w.skipped(r.Skipped)
	for _, line := range r.Warnings {
		w.printf("not understood: %s\n", line)
	}
	return w.err
}

// skipped joins checks that were skipped for one reason.
func (w *writer) skipped(list []Skip) {
	if len(list) == 0 {
		return
	}
	ids, reasons := map[string][]string{}, []string{}
	for _, s := range list {
		if ids[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		ids[s.Reason] = append(ids[s.Reason], s.ID)
	}
	w.printf("\nDOES NOT APPLY HERE\n")
	for _, reason := range reasons {
		w.printf("  %s\n", wrap(reason+": "+strings.Join(ids[reason], ", "), 4))
	}
}

// Summary counts in words.
func (r *Report) Summary() string {
	var parts []string
	for _, s := range []Status{Fault, Warn, CannotTell, OK} {
		n := r.Count(s)
		name := map[Status]string{Fault: "fault", Warn: "warning", CannotTell: "cannot tell", OK: "ok"}[s]
		if n != 1 && (s == Fault || s == Warn) {
			name += "s"
		}
		parts = append(parts, fmt.Sprintf("%d %s", n, name))
	}
	return strings.Join(parts, ", ")
}

// maxShown facts of one check are shown; the JSON has all.
const maxShown = 8

func (w *writer) detail(x Result) {
	w.printf("\n%s%s\n", w.status(x.Status), wrap(x.ID+": "+printable(x.Found[0]), 12))
	for i, f := range x.Found[1:] {
		if i+1 == maxShown {
			w.printf("   … and %d more\n", len(x.Found)-maxShown)
			break
		}
		w.printf("   %s\n", wrap(printable(f), 5))
	}
	w.printf("   why: %s\n", wrap(x.Why, 8))
	for _, f := range x.Fix {
		w.printf("   → %s\n", wrap(f, 5))
	}
}

func oneLine(x Result) string {
	s := printable(strings.Join(x.Found, "; "))
	if x.Status == CannotTell {
		return x.Title + ": " + s
	}
	return s
}

// printable keeps what an input file may hold from moving the terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// wrap breaks a text into lines and indents all but the first.
func wrap(text string, indent int) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+utf8.RuneCountInString(word)+1 > width-indent {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n"+strings.Repeat(" ", indent))
}

// WriteDifferences writes what Compare found.
func WriteDifferences(out io.Writer, list []Difference) error {
	w := &writer{w: out}
	if len(list) == 0 {
		w.printf("the nodes do not differ in anything that was looked at\n")
	}
	for _, d := range list {
		w.printf("%s\n", d.What)
		for _, g := range d.Groups {
			value := g.Value
			if value == "" {
				value = "(not known)"
			}
			w.printf("   %s  %s\n", wrap(printable(value), 5), shorten(slices.Clone(g.Hosts), 16))
		}
	}
	return w.err
}
