package report

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

// columns is what the header of a table says.
type columns struct {
	names        []string // after size and count: "type", "redop", "root", then figures, by one name for all eras
	figures      []string // the part of names from the first time on
	check        string   // "#wrong", "error" or "res"
	ms           bool     // time is in milliseconds
	cpuTime      bool
	timestamp    bool
	placements   []bool // of each half, true = in-place
	guessed      bool   // there was no header
	iterationEnd bool   // -I: minimum, maximum, 99th percentile and variation behind each half
}

func (c *columns) has(name string) bool {
	for _, n := range c.names {
		if n == name {
			return true
		}
	}
	return false
}

// old says that the table is of nccl-tests before 2.13, which computed some bandwidths in another way and showed errors, not counts.
func (c *columns) old() bool { return c.check == "error" || c.check == "res" }

// columnNames are the names that programs of all eras gave to one column.
var columnNames = map[string]string{
	"size": "size", "bytes": "size", "count": "count", "n": "count", "type": "type", "redop": "redop", "op": "redop", "root": "root",
	"time": "time", "cputime": "time", "algbw": "algbw", "busbw": "busbw", "#wrong": "check", "wrong": "check", "error": "check", "res": "check",
	"i_min": "min", "i_max": "max", "i_p99": "p99", "i_cv%": "cv", "p50": "p50", "p99": "p99", "max": "max", "timestamp": "timestamp",
	"group": "group",
}

// modern is the layout since nccl-tests 2.13, taken where a table has lost its header.
func modern() *columns {
	half := []string{"time", "algbw", "busbw", "check"}
	figures := append(append([]string{}, half...), half...)
	return &columns{names: append([]string{"type", "redop", "root"}, figures...), figures: figures, check: "#wrong", placements: []bool{false, true}, guessed: true}
}

// header reads the line with the names of the columns.
func (p *parser) header(s string) bool {
	lower := strings.ToLower(s)
	if !strings.Contains(lower, "algbw") || !strings.Contains(lower, "busbw") {
		return p.units(lower)
	}
	c := &columns{}
	size := false
	for _, word := range strings.Fields(strings.TrimLeft(lower, "# \t")) {
		name, known := columnNames[word]
		if !known || len(c.names) > 64 {
			return false
		}
		switch {
		case name == "size":
			size = true
			continue
		case name == "count":
			continue
		case name == "timestamp":
			c.timestamp = true
			continue
		case name == "check":
			c.check = word
		case name == "time":
			c.cpuTime = c.cpuTime || word == "cputime"
		}
		c.names = append(c.names, name)
		if name == "time" || len(c.figures) > 0 {
			c.figures = append(c.figures, name)
		}
		c.iterationEnd = c.iterationEnd || name == "cv"
	}
	if !size || len(c.figures) < 3 {
		return false
	}
	// NCCL 1 and the first nccl-tests of NCCL 2 gave milliseconds, and only those had a column of this name.
	c.ms = c.check == "res"
	c.placements = p.placed
	if len(c.placements) == 0 {
		c.placements = []bool{false, true}
	}
	p.placed = nil
	p.useColumns(c)
	return true
}

func (p *parser) useColumns(c *columns) {
	same := p.cur != nil && p.cur.state.columns != nil && len(p.cur.Run.Rows) == 0 && p.pending == nil && p.title == ""
	p.flushRow("a new table begins")
	p.again(func(st *runState) *bool { return &st.header }, same)
	p.cur.state.columns = c
	p.cur.Run.Config.Modes.CPUTime = c.cpuTime
	p.cur.Run.Config.Modes.Timestamps = c.timestamp
	if p.title == "" {
		return
	}
	p.cur.Title = p.title
	defer func() { p.title = "" }()
	if v := strings.TrimPrefix(strings.TrimPrefix(p.title, "NCCL "), "v"); dotted.FindString(v) == v && library(&p.cur.Run.Environment, "nccl") == nil {
		setVersion(p, p.cur, v)
		p.tally("version-from-title", Info, p.line, "", func(int, []string) string {
			return fmt.Sprintf("NCCL %s is taken from the line above the table", v)
		})
	}
}

// units reads the line below the header.
func (p *parser) units(lower string) bool {
	if !strings.Contains(lower, "(elements)") || !strings.Contains(lower, "(gb/s)") {
		return false
	}
	if p.cur != nil && p.cur.state.columns != nil && len(p.cur.Run.Rows) == 0 {
		p.cur.state.columns.ms = strings.Contains(lower, "(ms)")
	}
	return true
}

// placement reads the line above the header that says which half is which.
func (p *parser) placement(s string) bool {
	if !strings.Contains(s, "-place") {
		return false
	}
	var order []bool
	for _, word := range strings.Fields(strings.TrimLeft(s, "# \t")) {
		switch strings.Trim(word, ",") {
		case "out-of-place":
			order = append(order, false)
		case "in-place":
			order = append(order, true)
		case "(+", "per-iteration)", "iterations":
		default:
			return false
		}
	}
	// Our percentile columns name the placements once more.
	p.placed = order[:min(len(order), 2)]
	return true
}

// dataTypes are the names of element types and their bytes.
var dataTypes = map[string]int64{
	"int8": 1, "uint8": 1, "char": 1, "int32": 4, "uint32": 4, "int": 4, "int64": 8, "uint64": 8, "half": 2, "float16": 2, "fp16": 2, "bfloat16": 2,
	"bf16": 2, "float": 4, "float32": 4, "fp32": 4, "double": 8, "float64": 8, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}

var (
	rowStart  = regexp.MustCompile(`(?:^|[\s\]:>|])(\d{1,18})\s+(\d{1,18})\s+([a-z][a-z0-9_]{2,11})(?:\s|\[|$)`)
	bareStart = regexp.MustCompile(`^\s*(\d{1,18})\s+(\d{1,18})(\s+)\S`)
	stamp     = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	operator  = regexp.MustCompile(`^[a-z]{2,12}$`)
	wholeInt  = regexp.MustCompile(`^-?\d+$`)
)

// pendingRow is a row whose figures have not all been seen: its pieces are written one by one, and other text may come between.
type pendingRow struct {
	row    result.Row
	figure []string // tokens of the figures
	line   int      // of the first piece
	pieces int      // 1: not cut
	gap    bool     // the place of the first half is blank
}

// rowLine reads a row or a piece of one; false: it is neither. cut: a log entry ended the line.
func (p *parser) rowLine(s string, cut bool) bool {
	at := rowStart.FindStringSubmatchIndex(s)
	if at != nil && dataTypes[s[at[6]:at[7]]] == 0 && !p.foreignType(s[at[6]:]) {
		at = nil
	}
	if at == nil {
		if p.bareRow(s) {
			return true
		}
		return p.piece(s, cut)
	}
	p.flushRow("the next row begins")
	if p.cur == nil || p.cur.Format != formatText || p.cur.Footer != nil && p.cur.Footer.AvgBusBW != nil {
		c := (*columns)(nil)
		if p.cur != nil {
			c = p.cur.state.columns
		}
		p.begin(formatText)
		p.adopt()
		p.cur.state.columns = c
	}
	row := result.Row{Bytes: result.Bytes(integer(s[at[2]:at[3]])), Count: result.Count(integer(s[at[4]:at[5]])), Type: s[at[6]:at[7]]}
	p.startRow(row, s[at[7]:])
	return true
}

// foreignType accepts a type that is not in the list if what follows fills the table.
func (p *parser) foreignType(rest string) bool {
	return p.cur != nil && p.cur.state.columns != nil && p.cur.state.columns.has("type") &&
		len(strings.Fields(rest)) >= len(p.cur.state.columns.names)-1 && numeric(strings.Fields(rest)[1:], 2)
}

// numeric says that all but the first skip tokens are figures.
func numeric(tokens []string, skip int) bool {
	for i, t := range tokens {
		if _, ok := readFigure(t); !ok && i >= skip {
			return false
		}
	}
	return len(tokens) > skip
}

// bareRow reads a row of a table without types, as mscclpp's tests write.
func (p *parser) bareRow(s string) bool {
	if p.cur == nil || p.cur.state.columns == nil || p.cur.state.columns.has("type") {
		return false
	}
	at := bareStart.FindStringSubmatchIndex(s)
	if at == nil || !numeric(strings.Fields(s), 0) {
		return false
	}
	p.flushRow("the next row begins")
	p.startRow(result.Row{Bytes: result.Bytes(integer(s[at[2]:at[3]])), Count: result.Count(integer(s[at[4]:at[5]]))}, s[at[5]:])
	return true
}

// blankHalf is more blanks than stand between two columns: the width of a half that was not measured.
const blankHalf = 24

// startRow takes a row from the text behind its size, count and type.
func (p *parser) startRow(row result.Row, rest string) {
	c := p.cur.state.columns
	if c == nil {
		c = guessColumns(midLabel.ReplaceAllString(rest, " "))
		p.cur.state.columns = c
		p.tally("no-header", Info, p.line, "", func(int, []string) string {
			return "rows without a header line: the columns are taken to be those of their shape"
		})
	}
	row.Run, row.Root, row.Op = 1, -1, "none"
	row.Cycle, row.Algo, row.Proto = p.variant.Cycle, p.variant.Algo, p.variant.Proto
	plain := midLabel.ReplaceAllString(rest, " ")
	if at := stamp.FindStringIndex(plain); at != nil {
		row.Time = parseStamp(plain[at[0]:at[1]])
		plain = plain[:at[0]] + plain[at[1]:]
	}
	tokens := strings.Fields(plain)
	if c.has("redop") && len(tokens) > 0 && operator.MatchString(tokens[0]) {
		row.Op, tokens = tokens[0], tokens[1:]
	}
	if c.has("root") && len(tokens) > 0 && wholeInt.MatchString(tokens[0]) {
		row.Root, tokens = int(integer(tokens[0])), tokens[1:]
	}
	r := &pendingRow{row: row, line: p.line, pieces: 1}
	if plain != rest && midLabel.MatchString(rest) {
		r.pieces = 1 + len(midLabel.FindAllString(rest, -1))
	}
	if blank := len(plain) - len(strings.TrimLeft(plain, " ")); !c.has("type") && blank > blankHalf {
		r.gap = true
	} else if len(tokens) > 0 && strings.Contains(plain, strings.Repeat(" ", blankHalf+8)) && len(tokens) <= len(c.figures)/2 {
		r.gap = true
	}
	p.pending = r
	p.feed(tokens)
}

// guessColumns makes columns out of the first row where the header is lost.
func guessColumns(rest string) *columns {
	c := modern()
	tokens := strings.Fields(rest)
	if len(tokens) == 0 || operator.MatchString(tokens[0]) && (len(tokens) < 2 || wholeInt.MatchString(tokens[1])) {
		return c
	}
	c.check = "error"
	switch {
	case operator.MatchString(tokens[0]):
		c.names = append([]string{"type", "redop"}, c.figures...)
	case wholeInt.MatchString(tokens[0]) && len(tokens) > len(c.figures):
		c.names = append([]string{"type", "root"}, c.figures...)
	default:
		c.names = append([]string{"type"}, c.figures...)
	}
	return c
}

// piece reads the rest of a row that was cut.
func (p *parser) piece(s string, cut bool) bool {
	plain := midLabel.ReplaceAllString(s, " ")
	tokens := strings.Fields(plain)
	if len(tokens) == 0 || len(tokens) > 64 || !numeric(tokens, 0) {
		return false
	}
	if p.pending == nil {
		// Half of a row whose size is lost: four figures, or eight.
		if len(tokens)%4 != 0 && !cut || len(tokens) < 3 {
			return false
		}
		p.tally("row-cut", Odd, p.line, "", rowCutText)
		return true
	}
	p.pending.pieces++
	p.feed(tokens)
	return true
}

func rowCutText(n int, details []string) string {
	text := fmt.Sprintf("%s cut: what is not whole was left out", plural(n, "row"))
	if len(details) > 0 {
		text += " (" + strings.Join(details, "; ") + ")"
	}
	return text
}

// feed adds tokens to the pending row and closes it when it is full.
func (p *parser) feed(tokens []string) {
	r, c := p.pending, p.cur.state.columns
	for _, t := range tokens {
		if _, ok := readFigure(t); !ok {
			// Text behind the figures belongs to somebody else; in front of their end it ends the row.
			break
		}
		if len(r.figure) == len(c.figures) {
			break
		}
		r.figure = append(r.figure, t)
	}
	if len(r.figure) == len(c.figures) || r.gap && len(r.figure) >= len(c.figures)/2 {
		p.closeRow()
	}
}

// flushRow closes a row that never became full.
func (p *parser) flushRow(string) {
	if p.pending != nil {
		p.closeRow()
	}
}

// printed is a figure as it stood in the text, with half of its last digit's worth: what rounding hides.
type printed struct {
	value, half float64
}

// readFigure reads one figure: a number, N/A, - or nan. The last have no value (NaN) and are figures all the same.
func readFigure(s string) (printed, bool) {
	switch strings.ToLower(s) {
	case "n/a", "-", "nan", "-nan", "inf", "-inf":
		return printed{value: math.NaN()}, true
	}
	if len(s) > 32 || s == "" || s[len(s)-1] == '.' || strings.ContainsAny(s, "xXpP_iI") {
		return printed{}, false
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return printed{}, false
	}
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	e, _ := strconv.Atoi(exponent)
	if _, decimals, point := strings.Cut(mantissa, "."); point {
		e -= len(decimals)
	}
	return printed{v, 0.5 * math.Pow(10, float64(e))}, true
}

// halfDetail is what a half's figures looked like.
type halfDetail struct {
	time, algbw, busbw printed // time in microseconds
	check              string  // as printed
}

type rowDetail struct {
	line  int
	halfs [2]*halfDetail // out-of-place, in-place
	exact bool           // the figures are not rounded to what a column holds
}

// closeRow makes a row out of the pending one.
func (p *parser) closeRow() {
	r, c, run := p.pending, p.cur.state.columns, p.cur
	p.pending = nil
	d := rowDetail{line: r.line}
	group, dropped, placements := -1, false, c.placements
	if r.gap && len(placements) > 1 {
		placements = placements[1:]
	}
	values := map[string]string{}
	take := func() {
		if group < 0 || group >= len(placements) {
			return
		}
		if h, detail := makeHalf(values, c, &run.Run.Config); h != nil {
			setHalf(&r.row, &d, placements[group], h, detail)
		} else if !absentHalf(values) {
			dropped = dropped || !p.notFinite(values, d.line)
		}
	}
	rest := len(c.figures)
	for i, name := range c.figures[:min(len(r.figure), len(c.figures))] {
		if name == "p50" && len(values) >= 4 { // our percentiles stand behind both halves
			rest = i
			break
		}
		if name == "group" {
			r.row.Group = int(integer(r.figure[i]))
			continue
		}
		if name == "time" {
			take()
			values = map[string]string{}
			group++
		}
		values[name] = r.figure[i]
	}
	take()
	if at := slices.Index(c.figures, "group"); at > rest && at < len(r.figure) {
		r.row.Group = int(integer(r.figure[at]))
	}
	p.addPercentiles(r, c, rest)
	// mscclpp's tests write one placement only.
	oneWhole := r.gap || !c.has("type") && len(r.figure) == len(c.figures)/2
	if dropped || !oneWhole && len(r.figure) < len(c.figures) {
		p.tally("row-cut", Odd, r.line, FormatSize(r.row.Bytes), rowCutText)
	}
	if r.pieces > 1 {
		p.tally("row-rejoined", Info, r.line, "", func(n int, _ []string) string {
			return fmt.Sprintf("%s put together from pieces that labels or other output had cut", plural(n, "row"))
		})
	}
	if r.row.OutOfPlace != nil || r.row.InPlace != nil {
		p.addRow(run, r.row, d)
	}
}

// notFinite notes a half that is left out because a figure is no number; false: all are.
func (p *parser) notFinite(values map[string]string, line int) bool {
	for _, name := range []string{"time", "algbw", "busbw"} {
		switch strings.Trim(strings.ToLower(values[name]), "-") {
		case "inf", "nan":
			p.tally("not-finite", Odd, line, values[name], func(n int, details []string) string {
				return fmt.Sprintf("%s with %s for a figure: left out", halves(n), strings.Join(details, ", "))
			})
			return true
		}
	}
	return false
}

func setHalf(row *result.Row, d *rowDetail, inPlace bool, h *result.Half, detail *halfDetail) {
	if inPlace {
		row.InPlace, d.halfs[1] = h, detail
	} else {
		row.OutOfPlace, d.halfs[0] = h, detail
	}
}

// absentHalf says that a half was not measured, as opposed to cut.
func absentHalf(values map[string]string) bool {
	for _, v := range values {
		if f, ok := readFigure(v); !ok || !math.IsNaN(f.value) {
			return false
		}
	}
	return len(values) > 0
}

// makeHalf builds a half from its columns; nil if one of the three figures is missing.
func makeHalf(values map[string]string, c *columns, config *result.Config) (*result.Half, *halfDetail) {
	d := &halfDetail{check: values["check"]}
	for _, f := range []struct {
		name string
		to   *printed
	}{{"time", &d.time}, {"algbw", &d.algbw}, {"busbw", &d.busbw}} {
		v, ok := readFigure(values[f.name])
		if !ok || math.IsNaN(v.value) || v.value < 0 {
			return nil, nil
		}
		*f.to = v
	}
	if c.check != "" && d.check == "" {
		return nil, nil // cut before its end: the last figure may be cut as well
	}
	if c.ms {
		d.time.value, d.time.half = d.time.value*1e3, d.time.half*1e3
	}
	h := &result.Half{Iters: config.Iters, TimeUS: result.Micros(d.time.value), AlgBW: result.GBps(d.algbw.value), BusBW: result.GBps(d.busbw.value)}
	if c.cpuTime {
		h.CPUTimeUS = h.TimeUS
	}
	setCheck(h, d.check, c.old())
	if c.iterationEnd {
		h.Iter = iterFromColumns(values, config.Iters)
	}
	return h, d
}

// setCheck reads the last column of a half.
func setCheck(h *result.Half, text string, old bool) {
	v, ok := readFigure(text)
	switch {
	case !ok:
	case math.IsNaN(v.value):
		h.Unchecked = "not checked"
	case old && v.value != 0:
		h.Unchecked = "largest relative error " + text + ", not a count"
	case v.value >= 0 && v.value < 1e18:
		n := int64(v.value)
		h.Wrong = &n
	}
}

// iterFromColumns reads the columns of -I. nccl-tests' 99th percentile of fewer than 100 iterations is their maximum; it is left out then.
func iterFromColumns(values map[string]string, iters int) *result.IterStats {
	lo, ok1 := readFigure(values["min"])
	hi, ok2 := readFigure(values["max"])
	if !ok1 || !ok2 || math.IsNaN(lo.value) || math.IsNaN(hi.value) {
		return nil
	}
	s := &result.IterStats{N: iters, MinUS: result.Micros(lo.value), MaxUS: result.Micros(hi.value), Lacks: []string{"p50_us", "mean_us", "stdev_us"}}
	if iters == 0 {
		s.Lacks = append(s.Lacks, "n")
	}
	if v, ok := readFigure(values["p99"]); ok && !math.IsNaN(v.value) && iters >= 100 {
		p99 := result.Micros(v.value)
		s.P99US = &p99
	}
	return s
}

// addPercentiles reads p50, p99 and max of each placement, which our own table puts behind both halves.
func (p *parser) addPercentiles(r *pendingRow, c *columns, from int) {
	for group := 0; from+3*group+3 <= min(len(r.figure), len(c.figures)); group++ {
		if group >= len(c.placements) {
			return
		}
		half := halfOf(&r.row, c.placements[group])
		at := from + 3*group
		p50, _ := readFigure(r.figure[at])
		p99, _ := readFigure(r.figure[at+1])
		hi, _ := readFigure(r.figure[at+2])
		if half == nil || math.IsNaN(p50.value) || math.IsNaN(hi.value) {
			continue
		}
		half.Iter = &result.IterStats{P50US: result.Micros(p50.value), MaxUS: result.Micros(hi.value), Lacks: []string{"n", "min_us", "mean_us", "stdev_us"}}
		if !math.IsNaN(p99.value) {
			v := result.Micros(p99.value)
			half.Iter.P99US = &v
		}
	}
}

func halves(n int) string {
	if n == 1 {
		return "1 row half"
	}
	return fmt.Sprintf("%d row halves", n)
}
