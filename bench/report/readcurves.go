package report

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Curves are the runs of result files that have rows, each with a label that tells it from the others: the file's name, and with several
// runs in a file the title of the table or its number. exact: bandwidths as Exact computes them, else as printed.
func Curves(docs []*Document, exact bool) []Curve {
	var curves []Curve
	for _, d := range docs {
		several := 0
		for i := range d.Runs {
			if len(d.Runs[i].Run.Rows) > 0 {
				several++
			}
		}
		for i := range d.Runs {
			r := &d.Runs[i]
			if len(r.Run.Rows) == 0 {
				continue
			}
			c := Curve{Label: fileLabel(d.Name, docs), Run: r.Run}
			switch {
			case r.Title != "":
				c.Label += " " + r.Title
			case several > 1:
				c.Label += fmt.Sprintf(" line %d", r.Line)
			}
			if exact {
				c.Run = r.Exact()
			}
			curves = append(curves, c)
		}
	}
	return curves
}

// fileLabel is the name of a file without folder and usual ending, if that is enough to tell it from the others.
func fileLabel(name string, docs []*Document) string {
	short := shortName(name)
	same := 0
	for _, d := range docs {
		if shortName(d.Name) == short {
			same++
		}
	}
	if same > 1 {
		return name
	}
	return short
}

func shortName(name string) string {
	base := filepath.Base(name)
	if end := filepath.Ext(base); slices.Contains([]string{".txt", ".log", ".out", ".json", ".jsonl", ".csv"}, end) && base != end {
		base = strings.TrimSuffix(base, end)
	}
	return base
}

// Summary is one line on a run for people: where it comes from, what it ran on, how much there is.
func (r *ReadRun) Summary() string {
	parts := []string{r.Format}
	if p := &r.Run.Program; p.Name != "" && p.Version != "" {
		parts[0] = p.Name + " " + p.Version
	}
	if r.Title != "" {
		parts = append([]string{r.Title}, parts...)
	}
	if l := libraryLabel(r.Run); l != "" {
		parts = append(parts, l)
	}
	switch w := &r.World; {
	case w.Ranks > 0 && (w.From == "rank list" || w.From == "file"):
		parts = append(parts, plural(w.Ranks, "rank"))
	case w.Ranks > 0:
		parts = append(parts, fmt.Sprintf("%s by %s", plural(w.Ranks, "rank"), w.From))
	case w.Lo > 0:
		parts = append(parts, fmt.Sprintf("%s ranks by %s", rangeOfRanks(w.Lo, w.Hi), w.From))
	}
	if device := deviceSummary(r.Run); device != "" {
		parts = append(parts, device)
	}
	parts = append(parts, plural(len(r.Run.Rows), "row"))
	if s := r.Run.Outcome.Status; s != "" && s != "ok" {
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}
