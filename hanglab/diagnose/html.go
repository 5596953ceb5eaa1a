package diagnose

import (
	_ "embed"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

//go:embed page.html
var pageSource string

// page is what the template shows.
type page struct {
	V         *Verdict
	Summary   string
	Title     string
	Kind      string // of colour
	Call      string
	Sure      string
	Groups    []pageGroup
	LeftOut   int // groups
	Inputs    []evidence.Input
	Program   string
	Evidence  []pageItem
	Against   []pageItem
	Others    []string
	ShortOps  string
	Confident string
}

type pageItem struct{ At, Says, Text string }

// WriteHTML writes a page of its own: no script, nothing from a network. It has a grid of ranks by sequence number for each group of the
// evidence; a nil evidence leaves the verdict's own picture. The program is named in the last line.
func (v *Verdict) WriteHTML(w io.Writer, e *evidence.Evidence, program string) error {
	p := page{V: v, Summary: upperFirst(v.Summary), Title: v.Headline(), Kind: "accuse", Call: v.call(), Sure: sure(v.Confidence), Program: program,
		Evidence: pageItems(v.Evidence), Against: pageItems(v.Against), Confident: strconv.FormatFloat(v.Confidence, 'f', 2, 64)}
	switch v.Class {
	case NotAHang:
		p.Kind = "good"
	case Undecided:
		p.Kind, p.Confident = "open", ""
	}
	for _, a := range v.others() {
		s := a.Class.Words()
		if len(a.Ranks) > 0 {
			s += ", " + showRanks(a.Ranks)
		}
		p.Others = append(p.Others, s+" ("+strconv.FormatFloat(a.Confidence, 'f', 2, 64)+")")
	}
	var fields []*field
	if e != nil {
		p.Inputs, fields = e.Inputs, collect(e)
	}
	if len(fields) == 0 && v.Picture != nil {
		fields = []*field{v.Picture.field()}
	}
	p.Groups, p.LeftOut = layAll(v, fields)
	p.ShortOps = shorts(fields)
	t, err := template.New("verdict").Parse(pageSource)
	if err != nil {
		return err
	}
	return t.Execute(plainWriter{w}, p)
}

// plainWriter replaces control characters, which HTML has no way to write.
type plainWriter struct{ w io.Writer }

func (p plainWriter) Write(b []byte) (int, error) {
	if !slices.ContainsFunc(b, isControl) {
		return p.w.Write(b)
	}
	b = slices.Clone(b)
	for i := range b {
		if isControl(b[i]) {
			b[i] = '?'
		}
	}
	return p.w.Write(b)
}

func isControl(c byte) bool { return c < ' ' && c != '\n' && c != '\t' || c == 0x7f }

// shorts explains the short names that the page may have.
func shorts(fields []*field) string {
	used := map[string]bool{}
	for _, f := range fields {
		for _, t := range f.all {
			for i := range t.spots {
				if s, ok := shortOps[t.spots[i].op]; ok {
					used[s+" "+t.spots[i].op] = true
				}
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(used)), ", ")
}

func pageItems(items []Item) (out []pageItem) {
	for _, i := range items {
		says, text := i.Says, strings.TrimSpace(i.Text)
		if says == "" {
			says, text = text, ""
		}
		out = append(out, pageItem{i.at(), says, text})
	}
	return out
}

// layAll puts the verdict's group first, then those where ranks part.
func layAll(v *Verdict, all []*field) (groups []pageGroup, left int) {
	name, _, _ := strings.Cut(v.Group, " ")
	about := func(f *field) bool {
		return v.Group != "" && (f.name == v.Group || strings.HasPrefix(f.name+" ", "group "+name+" ") || strings.HasPrefix(f.name+",", "group "+name+","))
	}
	slices.SortStableFunc(all, func(a, b *field) int {
		return yes(about(b)) - yes(about(a))
	})
	for _, f := range all {
		groups = append(groups, f.lay(v, about(f)))
	}
	slices.SortStableFunc(groups, func(a, b pageGroup) int { return yes(b.Open) - yes(a.Open) })
	if len(groups) > pageGroups {
		left = len(groups) - pageGroups
		groups = groups[:pageGroups]
	}
	return groups, left
}

// field is the picture as a group's calls.
func (g *Picture) field() *field {
	f := &field{name: "group " + g.Group, tracks: map[int]*track{}}
	for _, r := range g.Rows {
		t := f.track(r.Rank)
		for i, c := range r.Cells {
			if c.Op != "" || c.Size != "" || c.State != "" {
				n, err := strconv.ParseInt(c.Size, 10, 64)
				if err != nil {
					n = -1
				}
				s := spot{wording: &wording{callKey{op: c.Op, elements: n}, c.Size}}
				if c.State != "" {
					s.state = c.State[0]
				}
				t.put(g.First+int64(i), s)
			}
		}
	}
	return f
}
