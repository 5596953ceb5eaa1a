package pages

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const (
	maxLines   = 80
	maxColumns = 110
)

var headings = []string{"What happens", "What you see", "Tell it from", "Outcome varies with", "Fix", "Knobs"}

// marks say how far a statement may be trusted. A page that uses one explains it in its line "Marks:".
var marks = regexp.MustCompile(`\[(H200|host|source|likely)\b`)

// section is the text below a heading; the first one is the title with the mechanism.
type section struct{ heading, text string }

func split(page string) []section {
	var all []section
	for _, line := range strings.Split(page, "\n") {
		if h, ok := strings.CutPrefix(strings.TrimPrefix(line, "#"), "# "); ok && strings.HasPrefix(line, "##") {
			all = append(all, section{heading: h})
			continue
		}
		if len(all) == 0 {
			all = append(all, section{})
		}
		last := &all[len(all)-1]
		last.text += line + "\n"
	}
	return all
}

// neighbours are the scenarios that a section "Tell it from" compares with: its bullets are all of the form "- NAME: observation".
func neighbours(text string) ([]string, error) {
	var names []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		bullet, ok := strings.CutPrefix(line, "- ")
		name, what, found := strings.Cut(bullet, ": ")
		if !ok || !found || strings.TrimSpace(what) == "" {
			return nil, fmt.Errorf(`line %q is not "- NAME: observation"`, line)
		}
		names = append(names, name)
	}
	return names, nil
}

// problems are the rules that a page breaks.
func problems(name, page string, known []string) []string {
	var bad []string
	add := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if n := strings.Count(page, "\n"); n > maxLines {
		add("%d lines, at most %d", n, maxLines)
	}
	if !strings.HasSuffix(page, "\n") || strings.HasSuffix(page, "\n\n") {
		add("does not end with one newline")
	}
	for i, line := range strings.Split(page, "\n") {
		if n := utf8.RuneCountInString(line); n > maxColumns {
			add("line %d: %d columns, at most %d", i+1, n, maxColumns)
		}
		if strings.TrimRight(line, " \t") != line {
			add("line %d: blank at its end", i+1)
		}
	}
	sections := split(page)
	title, mechanism, _ := strings.Cut(sections[0].text, "\n")
	if !strings.HasPrefix(title, "# "+name+": ") || strings.TrimSpace(mechanism) == "" {
		add(`does not begin with "# %s: title" and a paragraph`, name)
	}
	var got []string
	for _, s := range sections[1:] {
		got = append(got, s.heading)
		if strings.TrimSpace(s.text) == "" {
			add("section %q is empty", s.heading)
		}
	}
	if d := cmp.Diff(headings, got); d != "" {
		add("headings (-want +got):\n%s", d)
	}
	bad = append(bad, badNeighbours(name, sections, known)...)
	return append(bad, unexplainedMarks(page)...)
}

func badNeighbours(name string, sections []section, known []string) []string {
	var bad []string
	for _, s := range sections {
		if s.heading != "Tell it from" {
			continue
		}
		names, err := neighbours(s.text)
		if err != nil {
			bad = append(bad, err.Error())
		}
		for i, n := range names {
			switch {
			case !slices.Contains(known, n):
				bad = append(bad, fmt.Sprintf("tells itself from %q, which is no scenario", n))
			case n == name:
				bad = append(bad, "tells itself from itself")
			case slices.Contains(names[:i], n):
				bad = append(bad, fmt.Sprintf("tells itself from %q twice", n))
			}
		}
	}
	return bad
}

func unexplainedMarks(page string) []string {
	_, legend, _ := strings.Cut(page, "\nMarks: ")
	legend, _, _ = strings.Cut(legend, "\n\n")
	legend = strings.Join(strings.Fields(legend), " ") // a mark and its meaning may lie on two lines
	var bad []string
	for _, m := range marks.FindAllString(page, -1) {
		if note := m + "] "; !strings.Contains(legend, note) && !slices.Contains(bad, note) {
			bad = append(bad, note)
		}
	}
	for i := range bad {
		bad[i] = fmt.Sprintf("uses %sand does not explain it", bad[i])
	}
	return bad
}

func TestPages(t *testing.T) {
	known := Names()
	for _, name := range known {
		page, err := Page(name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, p := range problems(name, page, known) {
			t.Errorf("%s.md: %s", name, p)
		}
	}
}

func TestNames(t *testing.T) {
	want := []string{"cold_comm", "control", "crossed", "dtype", "exit", "gpu_busy", "kill", "lazy_skip", "nan", "netcut", "op", "order", "panic",
		"race", "sendrecv_large", "sendrecv_small", "size", "skip", "skip_same", "skip_stop", "stop", "straggler", "stuck", "wrong_device"}
	if d := cmp.Diff(want, Names()); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}

func TestUnknownPage(t *testing.T) {
	for _, name := range []string{"", "sizes", "../pages", "size.md", "size/"} {
		page, err := Page(name)
		if err == nil || page != "" {
			t.Errorf("Page(%q) = %d bytes, error %v", name, len(page), err)
			continue
		}
		if !strings.Contains(err.Error(), "straggler") {
			t.Errorf("Page(%q): %q does not list the scenarios", name, err)
		}
	}
}

// A good page, broken in one place at a time, must be found out: otherwise TestPages proves nothing.
func TestProblems(t *testing.T) {
	good := "# size: title\n\nMechanism.\n\n## What happens\n\nIt. [likely]\n\n## What you see\n\n- That.\n\nMarks: [likely] not measured.\n\n" +
		"## Tell it from\n\n- skip: one\n  more.\n- op: two.\n\n## Outcome varies with\n\n- x\n\n## Fix\n\n- y\n\n## Knobs\n\n- z\n"
	known := []string{"op", "size", "skip"}
	if p := problems("size", good, known); len(p) > 0 {
		t.Fatalf("the good page has problems: %q", p)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"heading missing", "## Fix\n\n- y\n\n", "", "headings"},
		{"heading order", "## Fix\n\n- y\n\n## Knobs\n\n- z\n", "## Knobs\n\n- z\n\n## Fix\n\n- y\n", "headings"},
		{"heading too many", "## Knobs", "## More\n\nm\n\n## Knobs", "headings"},
		{"heading of another level", "## Fix", "### Fix", "headings"},
		{"empty section", "- y\n", "", `section "Fix" is empty`},
		{"other title", "# size:", "# sizes:", "does not begin"},
		{"no mechanism", "Mechanism.\n", "", "does not begin"},
		{"wide line", "Mechanism.", strings.Repeat("é", maxColumns+1), "111 columns"},
		{"long page", "- z\n", strings.Repeat("- z\n", maxLines), "at most 80"},
		{"blank at the end of a line", "Mechanism.", "Mechanism. ", "line 3: blank"},
		{"no newline at the end", "- z\n", "- z", "one newline"},
		{"unknown neighbour", "- op:", "- opp:", `"opp", which is no scenario`},
		{"itself", "- op:", "- size:", "from itself"},
		{"twice", "- op:", "- skip:", "twice"},
		{"no neighbour form", "- op: two.", "- op, of course.", "is not"},
		{"prose among neighbours", "- op: two.", "Also op.", "is not"},
		{"unexplained mark", "It. [likely]", "It. [likely] [H200]", "uses [H200]"},
		{"no legend", "Marks: [likely] not measured.\n", "", "uses [likely]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := strings.Replace(good, c.old, c.new, 1)
			if page == good {
				t.Fatalf("%q is not in the page", c.old)
			}
			if p := problems("size", page, known); !strings.Contains(strings.Join(p, "\n"), c.want) {
				t.Errorf("problems %q, want one with %q", p, c.want)
			}
		})
	}
}
