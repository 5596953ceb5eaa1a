package diagnose

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// TextOptions are for WriteText.
type TextOptions struct {
	Color  bool
	Width  int              // of the screen in columns; 0: 110
	Height int              // lines to stay within, 0: 40. All overrules it
	All    bool             // all evidence with the text of each line, and all inputs
	Inputs []evidence.Input // what was read, for the last line, or for all of it
}

const (
	textWidth   = 110
	textHeight  = 40
	labelWidth  = 11
	screenSizes = 4 // sides of a mismatch that are shown on the screen
)

// textPage collects lines of a verdict.
type textPage struct {
	o     TextOptions
	lines []string
	strip string // folder that all evidence is in
}

// WriteText writes the verdict for a person who has one screen.
func (v *Verdict) WriteText(w io.Writer, o TextOptions) error {
	if o.Width <= 0 {
		o.Width = textWidth
	}
	o.Width = max(60, o.Width)
	if o.Height <= 0 {
		o.Height = textHeight
	}
	p := &textPage{o: o, strip: v.folder()}
	p.head(v)
	p.where(v)
	p.picture(v)
	tail := &textPage{o: o, strip: p.strip}
	tail.rest(v)
	p.evidence(v, o.Height-len(p.lines)-len(tail.lines))
	p.lines = append(p.lines, tail.lines...)
	p.lines = slices.CompactFunc(p.lines, func(a, b string) bool { return a == "" && b == "" })
	_, err := io.WriteString(w, strings.Join(p.lines, "\n")+"\n")
	return err
}

// folder is the one that all evidence lies in, with its slash; "" if there is none.
func (v *Verdict) folder() string {
	common, first := "", true
	for _, list := range [][]Item{v.Evidence, v.Against} {
		for _, i := range list {
			if i.File == "" {
				continue
			}
			dir, _ := path.Split(i.File)
			if first {
				common, first = dir, false
			}
			for common != "" && !strings.HasPrefix(dir, common) {
				common, _ = path.Split(strings.TrimSuffix(common, "/"))
			}
		}
	}
	if common == "/" {
		return ""
	}
	return common
}

const (
	red    = "31"
	bold   = "1"
	dim    = "2"
	green  = "1;32"
	yellow = "1;33"
	alarm  = "1;31"
)

func (p *textPage) paint(code, s string) string {
	if !p.o.Color || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *textPage) add(line string) { p.lines = append(p.lines, line) }

func (p *textPage) blank() { p.add("") } // several in a row become one

func (p *textPage) head(v *Verdict) {
	color := alarm
	switch v.Class {
	case NotAHang:
		color = green
	case Undecided:
		color = yellow
	}
	title := strings.ToUpper(v.Class.Words())
	if len(v.Ranks) > 0 {
		title += ": " + cutText(showRanks(v.Ranks), p.o.Width-len(title)-2)
	}
	p.add(p.paint(color, title))
	for _, line := range limit(wrap(printable(upperFirst(v.Summary)), p.o.Width), 3, p.o.Width) {
		p.add(line)
	}
	if v.Class != Undecided {
		p.paragraph("confidence", fmt.Sprintf("%s (%.2f); class %s", sure(v.Confidence), v.Confidence, v.Class), 1)
	}
}

func (p *textPage) where(v *Verdict) {
	if call := v.call(); call != "" {
		p.paragraph("where", call, 2)
	}
	for i, s := range v.Sizes {
		if i == screenSizes && !p.o.All && len(v.Sizes) > screenSizes+1 {
			p.paragraph("", fmt.Sprintf("and %d more", len(v.Sizes)-i), 1)
			break
		}
		label := ""
		if i == 0 && v.call() == "" {
			label = "where"
		}
		p.paragraph(label, s, 1)
	}
	if v.Location != "" {
		p.paragraph("at", v.Location, 2)
	}
}

// evidence takes the lines that are left on the screen: first the text of each line goes, then the last items.
func (p *textPage) evidence(v *Verdict, room int) {
	if len(v.Evidence) == 0 {
		return
	}
	full := p.items("evidence", v.Evidence, true, len(v.Evidence))
	room -= 2 // blank lines
	if p.o.All || len(full) <= room {
		p.blank()
		p.lines = append(p.lines, full...)
		return
	}
	room = max(room, 4)
	n := len(v.Evidence)
	short := p.items("evidence", v.Evidence, false, n)
	for n > 1 && len(short) > room {
		n--
		short = p.items("evidence", v.Evidence, false, n)
	}
	p.blank()
	p.lines = append(p.lines, short...)
}

// items lists evidence. On a screen, several places that say the same are one item, and n counts places.
func (p *textPage) items(label string, list []Item, withText bool, n int) []string {
	q := &textPage{o: p.o, strip: p.strip}
	for i, it := range list[:n] {
		at := []string{p.place(it)}
		if !p.o.All && it.Says != "" {
			if slices.ContainsFunc(list[:i], func(x Item) bool { return x.Says == it.Says }) {
				continue
			}
			for _, x := range list[i+1 : n] {
				if x.Says == it.Says && !slices.Contains(at, p.place(x)) {
					at = append(at, p.place(x))
				}
			}
		}
		says, text := it.Says, printable(strings.TrimSpace(it.Text))
		if says == "" {
			says, text = text, ""
		}
		if where := shortList(at); where != "" {
			says = where + ": " + says
		}
		q.paragraph(label, says, q.most(2))
		label = ""
		if withText && text != "" {
			q.add(strings.Repeat(" ", labelWidth) + p.paint(dim, "  "+q.fit("| "+text, p.o.Width-labelWidth-2)))
		}
	}
	if n < len(list) {
		q.paragraph("", fmt.Sprintf("and %d more (--all)", len(list)-n), 1)
	}
	return q.lines
}

// place is where an item is, below the folder that all are in.
func (p *textPage) place(i Item) string { return printable(strings.TrimPrefix(i.at(), p.strip)) }

// shortList names the first few of several places.
func shortList(at []string) string {
	const most = 3
	if len(at) <= most+1 {
		return strings.Join(at, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(at[:most], ", "), len(at)-most)
}

// most is the largest number of lines of one thing; none for --all.
func (p *textPage) most(n int) int {
	if p.o.All {
		return 1 << 20
	}
	return n
}

func (p *textPage) fit(s string, width int) string {
	if p.o.All {
		return s
	}
	return cutText(s, width)
}

// rest is what follows the evidence.
func (p *textPage) rest(v *Verdict) {
	if len(v.Against) > 0 {
		n := len(v.Against)
		if !p.o.All && n > 3 {
			n = 2
		}
		p.lines = append(p.lines, p.items("against", v.Against, p.o.All, n)...)
	}
	var others []string
	for _, a := range v.others() {
		s := fmt.Sprintf("%s (%.2f)", a.Class.Words(), a.Confidence)
		if len(a.Ranks) > 0 {
			s = fmt.Sprintf("%s, %s (%.2f)", a.Class.Words(), showRanks(a.Ranks), a.Confidence)
		}
		others = append(others, s)
	}
	p.paragraph("or else", strings.Join(others, "; "), p.most(2))
	if len(v.Next) > 0 || v.Fix != "" {
		p.blank()
	}
	for i, s := range v.Next {
		label := ""
		if i == 0 {
			label = "collect"
		}
		if i == 3 && !p.o.All && len(v.Next) > 4 {
			p.paragraph("", fmt.Sprintf("and %d more (--all)", len(v.Next)-i), 1)
			break
		}
		p.paragraph(label, "- "+s, p.most(2))
	}
	p.paragraph("fix", v.Fix, p.most(4))
	p.remarks(v)
	p.inputs()
}

// remarks are about the evidence as a whole.
func (p *textPage) remarks(v *Verdict) {
	for i, s := range v.Notes {
		label := ""
		if i == 0 {
			label = "note"
			p.blank()
		}
		p.paragraph(label, p.below(s), p.most(3))
	}
}

// below takes the folder that all files are in out of a text.
func (p *textPage) below(s string) string {
	if p.strip == "" {
		return s
	}
	return strings.ReplaceAll(s, p.strip, "")
}

func (p *textPage) inputs() {
	if len(p.o.Inputs) == 0 {
		return
	}
	p.blank()
	if !p.o.All {
		p.paragraph("read", countInputs(p.o.Inputs)+p.in(), 2)
		return
	}
	for i, in := range p.o.Inputs {
		label := ""
		if i == 0 {
			label = "read"
		}
		s := printable(in.Name) + "  " + in.Kind
		if in.Rank >= 0 {
			s += fmt.Sprintf(" of rank %d", in.Rank)
		}
		s += fmt.Sprintf(", %d bytes", in.Bytes)
		if in.Err != "" {
			s += ": " + in.Err
		}
		for _, note := range in.Notes {
			s += "; " + note
		}
		p.paragraph(label, s, 1<<20)
	}
}

func (p *textPage) in() string {
	if p.strip == "" {
		return ""
	}
	return "; the files named are in " + printable(p.strip)
}

// countInputs is "4 dumps, 4 logs, 2 other files (no evidence); of these 1 not or not wholly (--all says why)".
func countInputs(inputs []evidence.Input) string {
	words := []string{"dump", "JSON dump", "empty file", "log", "RAS report", "report of stacks", "other file"}
	many := []string{"dumps", "JSON dumps", "empty files", "logs", "RAS reports", "reports of stacks", "other files"}
	which := map[string]int{
		"flight_pickle": 0, "flight_json": 1, "empty": 2, "log": 3, "ras_text": 4, "ras_json": 4, "pyspy": 5, "gdb": 5, "proc": 5, "go": 5,
	}
	n, bad, missed := make([]int, len(words)), 0, 0
	for _, in := range inputs {
		if in.Kind == "not_collected" { // of a running job
			missed++
			continue
		}
		w, ok := which[in.Kind]
		if !ok {
			w = len(words) - 1
		}
		n[w]++
		if in.Err != "" {
			bad++
		}
	}
	var parts []string
	for i, w := range words {
		switch {
		case n[i] == 1:
			parts = append(parts, "1 "+w)
		case n[i] > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n[i], many[i]))
		}
	}
	if n[len(words)-1] > 0 {
		parts[len(parts)-1] += " (no evidence)"
	}
	s := strings.Join(parts, ", ")
	switch {
	case missed > 0:
		s += fmt.Sprintf("; %d could not be had (--all says why)", missed+bad)
	case bad == 1 && len(inputs) == 1:
		s += ": " + inputs[0].Err
	case bad > 0:
		s += fmt.Sprintf("; of these %d not or not wholly (--all says why)", bad)
	}
	return s
}

// paragraph writes text beside its label, broken at the width of the screen, in at most so many lines. An empty text writes nothing.
func (p *textPage) paragraph(label, s string, most int) {
	s = strings.TrimSpace(printable(s))
	if s == "" {
		return
	}
	for i, line := range limit(wrap(s, p.o.Width-labelWidth), most, p.o.Width-labelWidth) {
		left := strings.Repeat(" ", labelWidth)
		if i == 0 {
			left = p.paint(bold, label) + left[len(label):]
		}
		p.add(left + line)
	}
}

// limit keeps so many lines, and the last of them shows that there were more.
func limit(lines []string, most, width int) []string {
	if len(lines) <= most {
		return lines
	}
	lines = lines[:most]
	last := lines[most-1]
	if r := []rune(last); len(r)+2 > width {
		last = string(r[:width-2])
		if i := strings.LastIndexByte(last, ' '); i > width/2 {
			last = last[:i]
		}
	}
	lines[most-1] = last + " …"
	return lines
}

// wrap breaks at spaces, and within words that are longer than a line.
func wrap(s string, width int) (lines []string) {
	var b strings.Builder
	n := 0
	for word := range strings.FieldsSeq(s) {
		w := utf8.RuneCountInString(word)
		if n > 0 && n+1+w > width && w <= width {
			lines = append(lines, b.String())
			b.Reset()
			n = 0
		}
		if n > 0 {
			b.WriteByte(' ')
			n++
		}
		for r := []rune(word); n+w > width; { // a path or a number longer than the screen
			head := max(0, width-n)
			lines = append(lines, b.String()+string(r[:head]))
			b.Reset()
			r, n, w = r[head:], 0, w-head
			word = string(r)
		}
		b.WriteString(word)
		n += w
	}
	if n > 0 {
		lines = append(lines, b.String())
	}
	return lines
}

// cutText shortens to a width in characters.
func cutText(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 2 {
		return "…"
	}
	return string([]rune(s)[:width-1]) + "…"
}
