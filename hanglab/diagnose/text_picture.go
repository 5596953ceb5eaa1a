package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	screenRows = 6  // rows of the picture on a screen
	rowLabel   = 16 // width of a row's name
)

// gridRow is ranks whose calls look the same.
type gridRow struct {
	ranks []int
	odd   bool
	cells []PictureCell
}

// fold puts equal rows together: odd ones first, then those of most ranks.
func (g *Picture) fold() []gridRow {
	var rows []gridRow
	for _, r := range g.Rows {
		i := slices.IndexFunc(rows, func(x gridRow) bool { return x.odd == r.Odd && slices.Equal(x.cells, r.Cells) })
		if i < 0 {
			rows = append(rows, gridRow{odd: r.Odd, cells: r.Cells})
			i = len(rows) - 1
		}
		rows[i].ranks = append(rows[i].ranks, r.Rank)
	}
	slices.SortStableFunc(rows, func(a, b gridRow) int {
		if a.odd != b.odd {
			if a.odd {
				return -1
			}
			return 1
		}
		return len(b.ranks) - len(a.ranks)
	})
	return rows
}

// shortOps are for pictures that would not fit otherwise.
var shortOps = map[string]string{
	"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "broadcast": "BC", "reduce": "RD", "all_to_all": "A2A", "barrier": "BAR",
	"gather": "GA", "scatter": "SC", "coalesced": "CO",
}

// grid is a picture laid out for a width.
type grid struct {
	rows   []gridRow
	cells  [][]string // by row and column
	odd    [][]bool
	first  int64
	width  int             // of a column
	oneOp  string          // the only one; "" if there are several
	shorts map[string]bool // that were used
	states map[string]bool
}

func (p *textPage) picture(v *Verdict) {
	if v.Picture == nil || len(v.Picture.Rows) == 0 {
		return
	}
	room := p.o.Width - rowLabel - 2
	g := layOut(v.Picture, false)
	if g.fitting(room) < min(5, g.columns()) {
		g = layOut(v.Picture, true)
	}
	from, to := g.window(room, v.Sequence)
	p.blank()
	p.paragraph("picture", g.caption(v), 2)
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", rowLabel+2))
	for c := from; c < to; c++ {
		fmt.Fprintf(&b, "%-*s", g.width, strconv.FormatInt(g.first+int64(c), 10))
	}
	p.add(p.paint(dim, strings.TrimRight(b.String(), " ")))
	most := screenRows
	if p.o.All {
		most = len(g.rows)
	}
	for i := range g.rows[:min(most, len(g.rows))] {
		p.add(p.row(g, i, from, to))
	}
	p.left(v.Picture, g, most)
}

func (p *textPage) row(g *grid, i, from, to int) string {
	r := g.rows[i]
	mark := "  "
	if r.odd {
		mark = "> "
	}
	name := cutText(showRanks(r.ranks), rowLabel-1)
	line := mark + name + strings.Repeat(" ", rowLabel-utf8.RuneCountInString(name))
	if r.odd {
		line = p.paint(red, line)
	}
	for c := from; c < to; c++ {
		text := g.cells[i][c]
		pad := strings.Repeat(" ", max(1, g.width-utf8.RuneCountInString(text)))
		if g.odd[i][c] {
			text = p.paint(alarm, text)
		}
		line += text + pad
	}
	return strings.TrimRight(line, " ")
}

// left says what the picture leaves out.
func (p *textPage) left(pic *Picture, g *grid, most int) {
	var more []string
	if n := len(pic.Left); n > 0 {
		more = append(more, fmt.Sprintf("%s: each as one above", showRanks(pic.Left)))
	}
	if n := len(g.rows) - most; n > 0 {
		more = append(more, fmt.Sprintf("%d more rows (--all)", n))
	}
	if len(more) > 0 {
		p.add("  " + cutText(strings.Join(more, "; "), p.o.Width-2))
	}
}

// layOut writes the cells' texts. Ops are named in each cell only where there are several.
func layOut(pic *Picture, short bool) *grid {
	g := &grid{rows: pic.fold(), first: pic.First, shorts: map[string]bool{}, states: map[string]bool{}}
	ops := map[string]bool{}
	for _, r := range g.rows {
		for _, c := range r.cells {
			if c.Op != "" {
				ops[c.Op] = true
				g.oneOp = c.Op
			}
		}
	}
	if len(ops) > 1 {
		g.oneOp = ""
	}
	n := 0
	for _, r := range g.rows {
		n = max(n, len(r.cells))
	}
	g.width = 4
	for _, r := range g.rows {
		texts, odd := make([]string, n), make([]bool, n)
		for c := range n {
			texts[c] = "."
			if c < len(r.cells) {
				texts[c], odd[c] = g.text(r.cells[c], short), r.cells[c].Odd
			}
			g.width = max(g.width, utf8.RuneCountInString(texts[c])+2)
		}
		g.cells, g.odd = append(g.cells, texts), append(g.odd, odd)
	}
	return g
}

func (g *grid) text(c PictureCell, short bool) string {
	var parts []string
	op := c.Op
	if s, ok := shortOps[op]; ok && short {
		op = s
		g.shorts[c.Op] = true
	}
	if g.oneOp != "" {
		op = ""
	}
	for _, s := range []string{op, c.Size, c.State} {
		if s != "" {
			parts = append(parts, printable(s))
		}
	}
	if c.State != "" {
		g.states[c.State] = true
	}
	text := strings.Join(parts, " ")
	if text == "" {
		text = "."
	}
	if c.Odd {
		text += "<"
	}
	return cutText(text, 28)
}

func (g *grid) columns() int {
	if len(g.cells) == 0 {
		return 0
	}
	return len(g.cells[0])
}

func (g *grid) fitting(room int) int { return max(1, room/g.width) }

// window is which columns are shown: that of the sequence number two thirds to the right.
func (g *grid) window(room int, seq int64) (from, to int) {
	n, fit := g.columns(), g.fitting(room)
	if n <= fit {
		return 0, n
	}
	at := n - 1
	if i := int(seq - g.first); seq >= 0 && i >= 0 && i < n {
		at = i
	}
	from = min(max(0, at-fit*2/3), n-fit)
	return from, from + fit
}

// caption is what the picture shows, and its letters.
func (g *grid) caption(v *Verdict) string {
	what := "group " + v.Picture.Group
	if v.Picture.Group == "" {
		what = "calls"
	}
	if g.oneOp != "" {
		what += ", " + g.oneOp
	}
	what += " by sequence number:"
	var legend []string
	for _, s := range []struct{ state, word string }{{"C", "C completed"}, {"S", "S started"}, {"Q", "Q queued"}} {
		if g.states[s.state] {
			legend = append(legend, s.word)
		}
	}
	if g.has(".") {
		legend = append(legend, ". no call")
	}
	if len(g.shorts) > 0 && g.oneOp == "" {
		var names []string
		for op := range g.shorts {
			names = append(names, shortOps[op]+" "+op)
		}
		slices.Sort(names)
		legend = append(legend, names...)
	}
	return printable(what + " " + strings.Join(legend, ", "))
}

func (g *grid) has(text string) bool {
	for _, row := range g.cells {
		if slices.Contains(row, text) || slices.Contains(row, text+"<") {
			return true
		}
	}
	return false
}
