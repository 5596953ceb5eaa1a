package topo

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// placed is a word of a row with the column of the terminal where it stands.
type placed struct {
	word string
	col  int
}

// parseRow reads one row. strange says that it has text that belongs to no matrix.
func (r *matrixReader) parseRow(l textLine) (row Row, strange bool) {
	f := fieldsAt(l.text)
	row = Row{Label: f[0].text, Line: l.n}
	if parts := gluedLabel.FindAllString(row.Label, -1); len(parts) == 1 {
		row.Label = parts[0]
	}
	n := len(r.m.Columns)
	var words []placed
	i := 1
	for ; i < len(f); i++ {
		if n > 0 && len(words) >= n && !isWord(f[i].text) {
			break
		}
		more := r.wordsOf(l, f[i], n == 0 || len(words) < n)
		if more == nil {
			break
		}
		words = append(words, more...)
	}
	if n > 0 && len(words) > n {
		r.excess++
		r.note(l.n, "row-long", "%s has %d words, the heading has %d columns: the rest is left out", row.Label, len(words), n)
		words = words[:n]
	}
	row.Words = r.place(l, words, n)
	strange = r.affinity(&row, l, f[i:])
	if n > 0 && len(words) < n {
		r.note(l.n, "row-short", "%s has %d of %d words: the row is cut", row.Label, len(words), n)
	}
	return row, strange
}

// wordsOf splits what stands between blanks into words; nil: it is no word of a matrix.
func (r *matrixReader) wordsOf(l textLine, f field, expected bool) []placed {
	at := column(l.text, f.at)
	switch {
	case wordPattern.MatchString(f.text):
		return []placed{{f.text, at}}
	case gluedWords.MatchString(f.text):
		var out []placed
		for _, p := range oneGluedWord.FindAllStringIndex(f.text, -1) {
			out = append(out, placed{f.text[p[0]:p[1]], at + p[0]})
		}
		r.note(l.n, "glued", "%q stands for %d columns: a blank was lost", f.text, len(out))
		return out
	case expected && strangeWord.MatchString(f.text) && f.text != "N":
		r.unknown++
		r.note(l.n, "unknown-word", "%q is no word that nvidia-smi topo is known to print", f.text)
		return []placed{{f.text, at}}
	}
	return nil
}

// place gives words their columns: from the left, unless some are missing and tabs or the heading show where.
func (r *matrixReader) place(l textLine, words []placed, n int) []string {
	out := make([]string, max(n, len(words)))
	if n == 0 || len(words) == n {
		for i, w := range words {
			out[i] = w.word
		}
		return out
	}
	if cells := strings.Split(l.text, "\t"); len(cells) > n && filled(trimAll(cells[1:n+1])) == len(words) {
		for i, c := range cells[1 : n+1] {
			out[i] = strings.TrimSpace(c)
		}
		return out
	}
	if at := r.byOffset(words); at != nil {
		for i, w := range words {
			out[at[i]] = w.word
		}
		return out
	}
	for i, w := range words {
		out[i] = w.word
	}
	return out
}

func trimAll(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = strings.TrimSpace(c)
	}
	return out
}

// byOffset finds the heading above each word; nil: they do not line up.
func (r *matrixReader) byOffset(words []placed) []int {
	var out []int
	next := 0
	for _, w := range words {
		for next < len(r.offsets) && r.offsets[next] < w.col-3 {
			next++
		}
		if next == len(r.offsets) || r.offsets[next] > w.col+3 {
			return nil
		}
		out = append(out, next)
		next++
	}
	return out
}

var (
	cpuList  = regexp.MustCompile(`^(\d+(-\d+)?(,\d+(-\d+)?)*[,-]?|N/?A?)$`) // a wrapped line may end within it
	numaList = regexp.MustCompile(`^(\d+(-\d+)?(,\d+(-\d+)?)*|N/A)$`)
)

// affinity reads what follows the words. strange says that it is something else.
func (r *matrixReader) affinity(row *Row, l textLine, f []field) (strange bool) {
	if len(f) == 1 && partOfWord(f[0].text) {
		f = nil // the line is wrapped within a word
	}
	f = joinLists(f)
	for _, x := range f {
		strange = strange || !cpuList.MatchString(x.text)
	}
	heads, at := r.m.Affinity, r.affAt
	if len(f) == 0 || !isGPU(row.Label) || strange {
		if strange {
			r.note(l.n, "row-rest", "%s ends with %q, which is not an affinity", row.Label, f[0].text)
		}
		return strange
	}
	if len(heads) == 0 && len(r.m.Columns) > 0 && len(r.head) > 0 || len(f) > len(heads) {
		if len(r.m.Columns) > 0 {
			r.excess++
			r.note(l.n, "header-short", "the rows have %d columns after the words, the heading has %d: taken as CPU, NUMA, GPU NUMA", len(f), len(heads))
		}
		heads, at = []string{AffinityCPU, AffinityNUMA, AffinityGPUNUMA}, nil
	}
	for i, x := range f {
		if i >= len(heads) {
			break
		}
		k := i
		switch {
		case len(f) == len(heads)-1 && heads[0] == AffinityCPU && !strings.ContainsAny(f[0].text, "-,"):
			k = i + 1 // no CPUs, as in some containers: a list has a dash or a comma
		case len(f) < len(heads) && at != nil:
			k = nearestHead(at, column(l.text, x.at), i)
		}
		v := x.text
		switch heads[k] {
		case AffinityCPU:
			row.CPUs = &v
		case AffinityNUMA:
			row.NUMA = &v
		case AffinityGPUNUMA:
			row.GPUNUMA = &v
		}
	}
	return false
}

func partOfWord(s string) bool {
	return slices.ContainsFunc([]string{SMIPIX, SMIPXB, SMIPHB, SMINODE, SMISYS, "NV", "CNS", "GNS", "TNS", "OK"}, func(w string) bool { return strings.HasPrefix(w, s) })
}

// joinLists puts "6, 14, 22" together again.
func joinLists(f []field) []field {
	var out []field
	for _, x := range f {
		if n := len(out); n > 0 && strings.HasSuffix(out[n-1].text, ",") {
			out[n-1].text += x.text
			continue
		}
		out = append(out, x)
	}
	return out
}

// nearestHead is the heading that a value stands under, not before the i-th.
func nearestHead(at []int, col, i int) int {
	best := i
	for k := i; k < len(at); k++ {
		if abs(at[k]-col) < abs(at[best]-col) {
			best = k
		}
	}
	return best
}

func abs(v int) int { return max(v, -v) }

// inferColumns names the columns of rows without a heading: X stands where a device meets itself, so NIC0's place says how many GPUs there are.
func inferColumns(m *Matrix) {
	width, gpus := 0, -1
	for i := range m.Rows {
		r := &m.Rows[i]
		width = max(width, len(r.Words))
		x := slices.Index(r.Words, SMISelf)
		if digits, ok := strings.CutPrefix(r.Label, "NIC"); ok && x >= 0 && gpus < 0 {
			if k, err := strconv.Atoi(digits); err == nil && x >= k {
				gpus = x - k
			}
		}
	}
	if gpus < 0 { // no NIC row: all that is known is the rows' own places
		gpus = width
	}
	for i := range width {
		if i < gpus {
			m.Columns = append(m.Columns, "GPU"+strconv.Itoa(i))
		} else {
			m.Columns = append(m.Columns, "NIC"+strconv.Itoa(i-gpus))
		}
	}
	for i := range m.Rows {
		for len(m.Rows[i].Words) < width {
			m.Rows[i].Words = append(m.Rows[i].Words, "")
		}
	}
}

// check says what is odd about a whole matrix.
func (m *Matrix) check(note func(line int, code, format string, args ...any)) {
	first := m.Rows[0].Line
	for i := range m.Rows {
		if slices.ContainsFunc(m.Rows[i].Words, func(w string) bool { return p2pWord.MatchString(w) }) && !strings.HasPrefix(string(m.Kind), "p2p") {
			m.Kind = MatrixP2P
		}
	}
	var missing []string
	for _, c := range m.Columns {
		if !slices.ContainsFunc(m.Rows, func(r Row) bool { return r.Label == c }) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		note(m.Rows[len(m.Rows)-1].Line, "rows-missing", "%d of %d rows are missing (%s): the text is cut", len(missing), len(m.Columns), shorten(missing))
	}
	if len(m.Legend) == 0 && slices.ContainsFunc(m.Columns, func(c string) bool { return strings.HasPrefix(c, "NIC") }) {
		note(first, "no-legend", "the NIC Legend is missing: which device NIC0 is cannot be told")
	}
	m.checkSymmetry(note)
	m.checkSelf(note)
	if !strings.HasPrefix(string(m.Kind), "p2p") {
		m.checkNVLink(note)
		m.checkNUMA(note)
	}
}

func shorten(names []string) string {
	if len(names) > 6 {
		return names[0] + " … " + names[len(names)-1]
	}
	return strings.Join(names, " ")
}

func (m *Matrix) checkSymmetry(note func(int, string, string, ...any)) {
	for i := range m.Rows {
		for j := range m.Rows[:i] {
			a, b := m.Rows[i].Label, m.Rows[j].Label
			x, y := m.Word(a, b), m.Word(b, a)
			if x != "" && y != "" && x != y && x != SMISelf && y != SMISelf {
				note(m.Rows[i].Line, "asymmetric", "%s to %s is %s, %s to %s is %s", a, b, x, b, a, y)
				return
			}
		}
	}
}

// checkSelf finds rows whose X stands in the wrong column: words were shifted.
func (m *Matrix) checkSelf(note func(int, string, string, ...any)) {
	for i := range m.Rows {
		r := &m.Rows[i]
		if x := slices.Index(r.Words, SMISelf); x >= 0 && x < len(m.Columns) && m.Columns[x] != r.Label && slices.Contains(m.Columns, r.Label) {
			note(r.Line, "shifted", "the X of %s stands under %s: words of this row are missing or shifted", r.Label, m.Columns[x])
		}
	}
}

// checkNVLink finds GPUs that have no NVLink where others have it.
func (m *Matrix) checkNVLink(note func(int, string, string, ...any)) {
	has := map[string]bool{}
	for i := range m.Rows {
		for j, w := range m.Rows[i].Words {
			if _, ok := NVLinkCount(w); ok && j < len(m.Columns) {
				has[m.Rows[i].Label], has[m.Columns[j]] = true, true
			}
		}
	}
	if len(has) == 0 {
		return
	}
	for i := range m.Rows {
		if l := m.Rows[i].Label; isGPU(l) && !has[l] && len(m.Rows[i].Words) > 1 {
			note(m.Rows[i].Line, "nvlink-missing", "%s has no NVLink, other GPUs have", l)
		}
	}
}

// checkNUMA compares the words with the affinity columns.
func (m *Matrix) checkNUMA(note func(int, string, string, ...any)) {
	for i := range m.Rows {
		a := &m.Rows[i]
		if a.NUMA != nil && *a.NUMA == notAvailable {
			note(m.Rows[0].Line, "numa-na", "NUMA Affinity is N/A: the kernel gives no NUMA node, so that near and far cannot be told")
			return
		}
		for j := range m.Rows[:i] {
			b := &m.Rows[j]
			if a.NUMA == nil || b.NUMA == nil || *a.NUMA == "" || !numaList.MatchString(*a.NUMA) {
				continue
			}
			if *a.NUMA == *b.NUMA && m.Between(a.Label, b.Label) == SMISYS {
				note(a.Line, "sys-in-numa", "%s to %s is SYS although both have NUMA node %s", b.Label, a.Label, *a.NUMA)
				return
			}
		}
	}
}
