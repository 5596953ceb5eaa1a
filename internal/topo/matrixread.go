package topo

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A matrix has at most this many columns: nvidia-smi itself stops before 100.
const (
	maxColumns  = 1024
	maxRawNotes = 4096 // before those that are alike become one
)

var (
	labelPattern   = regexp.MustCompile(`^(GPU\d{1,4}|NIC\d{1,4}|[a-zA-Z][\w.-]*_\w+|(?:ib|eth|en|rocep|ibp|rdmap|efa|irdma|bnxt_re|hfi|mlx)[\w.-]*\d\w*)$`)
	gluedLabel     = regexp.MustCompile(`GPU\d+|NIC\d+|mlx\d+_(?:bond_|ib|eth)?\d+`)
	wordPattern    = regexp.MustCompile(`^(X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U|\?|PHB\|NODE|NODE\|SYS)$`)
	gluedWords     = regexp.MustCompile(`^(?:X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS)+$`)
	oneGluedWord   = regexp.MustCompile(`X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS`)
	strangeWord    = regexp.MustCompile(`^[A-Z][A-Z0-9]{1,5}$`)
	p2pWord        = regexp.MustCompile(`^(OK|CNS|GNS|TNS|NS|DR|U)$`)
	affinityHead   = regexp.MustCompile(`(CPU Affinity|NUMA Affinity|GPU NUMA ID)`)
	affinityStart  = regexp.MustCompile(`\s(CPU|NUMA|GPU NUMA)\b`)
	legendLine     = regexp.MustCompile(`(?:^|\s)(NIC\d{1,4})\s*:\s*([\w.:-]+)\s*$`)
	hiddenNICs     = regexp.MustCompile(`^\s*(\d+) NICs found in the topology, only displaying (\d+)`)
	commandPattern = regexp.MustCompile(`nvidia-smi\s+topo\s+-{1,2}(mp|m|matrix_pci|matrix|p2p)\b(?:\s+-?([rwnap]{1,2})\b)?`)
)

// textLine is a line of a pasted text, cleaned.
type textLine struct {
	n    int
	text string // tabs and all, no colours, no carriage return
}

// matrixReader collects matrices from lines.
type matrixReader struct {
	name    string
	done    []*Matrix
	m       *Matrix
	head    string // the heading as it stands, for wraps
	headEnd bool   // rows have begun
	offsets []int  // of the columns, as a terminal shows them
	affAt   []int  // of the affinity columns
	last    *textLine
	kind    MatrixKind
	notes   []Note // before any matrix
	unknown int    // words of the last row that are none of nvidia-smi's
	excess  int    // and what it has more than the heading
}

// readMatrices reads every matrix of a text; the rest of the text does not matter.
func readMatrices(lines []textLine, name string) ([]*Matrix, []Note) {
	r := &matrixReader{name: name}
	for _, l := range lines {
		r.line(l)
	}
	r.finish()
	return r.done, r.notes
}

func (r *matrixReader) note(line int, code, format string, args ...any) {
	n := Note{Code: code, Where: where(r.name, line), Text: fmt.Sprintf(format, args...)}
	if r.m != nil {
		if len(r.m.Notes) < maxRawNotes && !slices.Contains(r.m.Notes, n) {
			r.m.Notes = append(r.m.Notes, n)
		}
		return
	}
	r.notes = appendOnce(r.notes, n)
}

func (r *matrixReader) line(l textLine) {
	if c := commandPattern.FindStringSubmatch(l.text); c != nil && (l.text[0] != '#' || strings.HasPrefix(strings.TrimLeft(l.text, "# "), "nvidia-smi")) {
		r.finish()
		r.kind = map[string]MatrixKind{"m": MatrixTopo, "matrix": MatrixTopo, "mp": MatrixPCI, "matrix_pci": MatrixPCI, "p2p": MatrixP2P}[c[1]]
		if r.kind == MatrixP2P && c[2] != "" {
			r.kind += MatrixKind(" " + c[2])
		}
		return
	}
	if strings.HasPrefix(l.text, "#") {
		return
	}
	if m := hiddenNICs.FindStringSubmatch(l.text); m != nil {
		r.note(l.n, "nics-hidden", "nvidia-smi shows %s of %s NICs: the others are missing here", m[2], m[1])
		return
	}
	if m := legendLine.FindStringSubmatch(l.text); m != nil && r.m != nil && (len(r.m.Columns) == 0 || slices.Contains(r.m.Columns, m[1])) {
		if r.m.Legend == nil {
			r.m.Legend = map[string]string{}
		}
		r.m.Legend[m[1]] = m[2]
		r.last = nil
		return
	}
	text, kind := r.classify(l.text)
	if kind == lineHead && r.headGoesOn(l.text) {
		kind = lineOther
	}
	switch kind {
	case lineHead:
		r.heading(textLine{l.n, text})
	case lineRow:
		r.row(textLine{l.n, text})
	default:
		r.other(textLine{l.n, l.text})
	}
}

type lineKind int

const (
	lineOther lineKind = iota
	lineHead
	lineRow
)

// classify finds a heading or a row, also behind something that stands before each line, such as a time or a host name.
func (r *matrixReader) classify(text string) (string, lineKind) {
	f := fieldsAt(text)
	for i := 0; i < len(f) && i < 6; i++ {
		if !labelPattern.MatchString(f[i].text) && !(len(gluedLabel.FindAllString(f[i].text, -1)) > 1) {
			continue
		}
		rest := text
		if i > 0 {
			rest = text[f[i].at:]
		}
		next := ""
		if i+1 < len(f) {
			next = f[i+1].text
		}
		switch {
		case isWord(next):
			return rest, lineRow
		case r.m != nil && strangeWord.MatchString(next) && slices.Contains(r.m.Columns, f[i].text) && slices.ContainsFunc(f[i+1:], func(x field) bool { return isWord(x.text) }):
			return rest, lineRow // a word of some other driver
		case isGPU(f[i].text) && next != "NUMA" && next != "" && headWord(next):
			return rest, lineHead
		case i == 0 && r.m != nil && !r.headEnd && (next == "" || next == "CPU" || next == "NUMA" || labelPattern.MatchString(next)):
			return rest, lineHead // the heading goes on
		case i == 0 && r.m != nil && r.headEnd && slices.Contains(r.m.Columns, f[i].text) && next == "":
			return rest, lineRow
		}
	}
	return text, lineOther
}

func isWord(s string) bool {
	return wordPattern.MatchString(s) || len(s) > 2 && gluedWords.MatchString(s)
}

// field is a word with its place.
type field struct {
	text string
	at   int // byte offset
}

func fieldsAt(s string) []field {
	var out []field
	start := -1
	for i := 0; i <= len(s); i++ {
		blank := i == len(s) || s[i] == ' ' || s[i] == '\t'
		switch {
		case !blank && start < 0:
			start = i
		case blank && start >= 0:
			out = append(out, field{s[start:i], start})
			start = -1
		}
	}
	return out
}

// column is where a byte of a line stands on a terminal, with tab stops every eight columns.
func column(s string, at int) int {
	col := 0
	for i := 0; i < at && i < len(s); i++ {
		if s[i] == '\t' {
			col += 8 - col%8
		} else {
			col++
		}
	}
	return col
}

func (r *matrixReader) heading(l textLine) {
	if r.m != nil && !r.headEnd {
		first := fieldsAt(l.text)[0].text
		if !slices.Contains(r.m.Columns, first) { // each line has something in front
			r.note(l.n, "wrapped", "the heading is wrapped; joined")
			r.parseHeading(joinWrapped(r.head, l.text, headWord), l.n)
			return
		}
	}
	r.finish()
	r.m, r.headEnd = r.newMatrix(), false
	r.parseHeading(l.text, l.n)
}

// newMatrix begins a matrix of the kind that the last command names.
func (r *matrixReader) newMatrix() *Matrix {
	m := &Matrix{Source: r.name, Kind: MatrixTopo}
	if r.kind != "" {
		m.Kind = r.kind
	}
	r.kind = ""
	return m
}

// headGoesOn says whether a line, as a whole, goes on with a heading that was broken, perhaps within a word.
func (r *matrixReader) headGoesOn(text string) bool {
	f := strings.Fields(text)
	return r.m != nil && !r.headEnd && len(f) > 0 && !slices.Contains(r.m.Columns, f[0]) && isHeading(joinWrapped(r.head, text, headWord))
}

// headWord says whether a word can stand in a heading.
func headWord(s string) bool {
	return labelPattern.MatchString(s) || len(gluedLabel.FindAllString(s, -1)) > 1 || slices.Contains([]string{"CPU", "NUMA", "GPU", "ID", "Affinity"}, s)
}

func isHeading(text string) bool {
	for _, w := range strings.Fields(text) {
		broken := func(whole string) bool { return strings.HasPrefix(whole, w) } // at the end of this line, too
		if !headWord(w) && !slices.ContainsFunc([]string{"Affinity", "NUMA", "CPU", "GPU", "NIC", "ID"}, broken) {
			return false
		}
	}
	return true
}

// joinWrapped joins a line that a terminal or mail program has broken: in the middle of a word, or between two.
func joinWrapped(a, b string, complete func(string) bool) string {
	fa, fb := strings.Fields(a), strings.Fields(b)
	if len(fa) == 0 || len(fb) == 0 || strings.HasSuffix(a, " ") || strings.HasSuffix(a, "\t") || strings.HasPrefix(b, " ") || strings.HasPrefix(b, "\t") {
		return a + b
	}
	if complete(fa[len(fa)-1]) && complete(fb[0]) {
		return a + " " + b
	}
	return a + b
}

func (r *matrixReader) parseHeading(text string, line int) {
	r.head, r.m.Columns, r.m.Affinity, r.offsets, r.affAt = text, nil, nil, nil, nil
	devices := text
	if at := affinityStart.FindStringIndex(text); at != nil {
		devices = text[:at[0]]
		for _, m := range affinityHead.FindAllStringIndex(text[at[0]:], -1) {
			r.m.Affinity = append(r.m.Affinity, text[at[0]+m[0]:at[0]+m[1]])
			r.affAt = append(r.affAt, column(text, at[0]+m[0]))
		}
	}
	for _, f := range fieldsAt(devices) {
		parts := gluedLabel.FindAllStringIndex(f.text, -1)
		if len(parts) < 2 || strings.Join(gluedLabel.FindAllString(f.text, -1), "") != f.text {
			parts = [][]int{{0, len(f.text)}}
		} else {
			r.note(line, "glued", "%q stands for %d columns: a blank was lost", f.text, len(parts))
		}
		for _, p := range parts {
			label := f.text[p[0]:p[1]]
			if slices.Contains(r.m.Columns, label) || len(r.m.Columns) >= maxColumns {
				r.note(line, "column-twice", "the column %s occurs twice; the first counts", label)
				continue
			}
			r.m.Columns = append(r.m.Columns, label)
			r.offsets = append(r.offsets, column(text, f.at+p[0]))
		}
	}
}

// other is a line that is neither: what a wrapped row goes on with, or text around the matrix.
func (r *matrixReader) other(l textLine) {
	if r.m == nil || strings.TrimSpace(l.text) == "" {
		r.last = nil
		return
	}
	if !r.headEnd {
		if text := joinWrapped(r.head, l.text, headWord); isHeading(text) {
			r.note(l.n, "wrapped", "the heading is wrapped; joined")
			r.parseHeading(text, l.n)
		}
		return
	}
	if r.last == nil || len(r.m.Rows) == 0 {
		return
	}
	before := r.m.Rows[len(r.m.Rows)-1]
	best := r.join(joinWrapped(r.last.text, l.text, isWord))
	if spaced := r.join(r.last.text + " " + l.text); spaced.score > best.score { // blanks at the end of the line were lost
		best = spaced
	}
	if best.strange || best.score <= filled(before.Words)+affinities(before) || filled(best.row.Words) < filled(before.Words) {
		r.last = nil
		return
	}
	r.m.Notes = best.notes
	r.note(l.n, "wrapped", "the row of %s is wrapped; joined", best.row.Label)
	r.m.Rows[len(r.m.Rows)-1] = best.row
	r.last = &textLine{r.last.n, best.text}
}

// joined is a row put together from two lines.
type joined struct {
	text    string
	row     Row
	strange bool
	score   int // words and affinities that it has; less than any other if there are too many
	notes   []Note
}

// join reads a row put together, without leaving notes behind.
func (r *matrixReader) join(text string) joined {
	kept := r.m.Notes
	defer func() { r.m.Notes = kept }()
	r.m.Notes = slices.DeleteFunc(slices.Clone(kept), func(n Note) bool { // what was said of the first part alone
		return slices.Contains([]string{"row-short", "row-rest", "unknown-word"}, n.Code) && n.Where == where(r.name, r.last.n)
	})
	r.unknown, r.excess = 0, 0
	j := joined{text: text}
	j.row, j.strange = r.parseRow(textLine{r.last.n, text})
	j.notes, j.score = r.m.Notes, filled(j.row.Words)+affinities(j.row)-2*r.unknown
	if j.strange || r.excess > 0 {
		j.score = -1
	}
	return j
}

func filled(words []string) (n int) {
	for _, w := range words {
		if w != "" {
			n++
		}
	}
	return n
}

func affinities(r Row) (n int) {
	for _, v := range []*string{r.CPUs, r.NUMA, r.GPUNUMA} {
		if v != nil {
			n++
		}
	}
	return n
}

func (r *matrixReader) row(l textLine) {
	if r.m == nil {
		r.m = r.newMatrix()
		r.note(l.n, "no-header", "the heading is missing: columns are numbered after the place of X in the rows")
	}
	r.headEnd = true
	row, _ := r.parseRow(l)
	if len(r.m.Rows) >= maxColumns {
		return
	}
	if slices.ContainsFunc(r.m.Rows, func(o Row) bool { return o.Label == row.Label }) {
		r.note(l.n, "row-twice", "the row %s occurs twice; the first counts", row.Label)
		r.last = nil
		return
	}
	r.m.Rows = append(r.m.Rows, row)
	r.last = &l
}

// finish completes the matrix at hand.
func (r *matrixReader) finish() {
	m := r.m
	r.m, r.last = nil, nil
	if m == nil || len(m.Rows) == 0 {
		return
	}
	r.m = m // for notes
	if len(m.Columns) == 0 {
		inferColumns(m)
	}
	m.check(r.note)
	m.Notes = gather(m.Notes)
	r.m = nil
	r.done = append(r.done, m)
}

// gather makes one note of many of a kind that says the same of many lines.
func gather(notes []Note) []Note {
	var out []Note
	at, more := map[string]int{}, map[string]int{}
	for _, n := range notes {
		if n.Code == "glued" || n.Code == "header-short" || n.Code == "wrapped" || n.Code == "row-short" || n.Code == "unknown-word" {
			if _, ok := at[n.Code]; ok {
				more[n.Code]++
				continue
			}
			at[n.Code] = len(out)
		}
		out = append(out, n)
	}
	out = out[:min(len(out), maxNotes)]
	for code, k := range more {
		if at[code] >= len(out) {
			continue
		}
		out[at[code]].Text += fmt.Sprintf(" (and %d more like it)", k)
	}
	return out
}
