package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/commprobe/commprobe/bench/costmodel"
	"github.com/commprobe/commprobe/bench/result"
)

// collectiveName brings the names of all programs to those of this one: "all_reduce_perf_mpi", "AllReduce" and "allreduce" are "all_reduce". An
// unknown name gives "".
func collectiveName(s string) string {
	if i := strings.LastIndexAny(s, `/\`); i >= 0 {
		s = s[i+1:]
	}
	s = strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(s), "_mpi"), "_perf")
	plain := strings.ReplaceAll(s, "_", "")
	for _, name := range append(costmodel.Collectives(), "alltoallv", "hypercube") {
		if strings.ReplaceAll(name, "_", "") == plain {
			return name
		}
	}
	return ""
}

// checker looks at a run as a whole after the file was read.
type checker struct {
	p     *parser
	run   *ReadRun
	index int
}

// warn adds a warning about the run.
func (c *checker) warn(line int, severity, code, format string, args ...any) {
	c.p.doc.Warnings = append(c.p.doc.Warnings, Warning{Line: line, Run: c.index, Severity: severity, Code: code, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) check() {
	run := c.run.Run
	c.p.cur = c.run
	if run.Program.Name == "commprobe" && c.run.Format == formatOwnJSON {
		c.run.World = World{Ranks: run.Config.World, Lo: run.Config.World, Hi: run.Config.World, Group: run.Config.World, From: "file"}
		c.wrongData()
		c.outcome()
		return
	}
	c.collective()
	c.findWorld()
	c.fillConfig()
	c.ranks()
	c.unchecked()
	c.sizes()
	c.wrongData()
	c.oneRank()
	c.bandwidths()
	c.average()
	c.outcome()
}

func (c *checker) hasColumns() *columns {
	if c.run.state.columns == nil {
		return &columns{}
	}
	return c.run.state.columns
}

// widthOf is the size of an element, 0 when it is not known. mscclpp's tests name no type; they count in words of four bytes.
func widthOf(row *result.Row) int64 {
	if row.Type == "" {
		return 4
	}
	return dataTypes[row.Type]
}

// perRank is size over count in elements: what a gather-like collective has for each rank; 0 when the row does not say.
func perRank(row *result.Row) int64 {
	width := widthOf(row)
	if width == 0 || row.Count <= 0 || row.Bytes <= 0 || int64(row.Bytes)%(int64(row.Count)*width) != 0 {
		return 0
	}
	return int64(row.Bytes) / (int64(row.Count) * width)
}

// collective names the collective of each row that has no name: from the program's name, a command line above, or the shape of the rows.
func (c *checker) collective() {
	name, how := c.run.state.name, ""
	if name == "" && len(c.run.Run.Rows) > 0 && c.run.Run.Rows[0].Collective == "" {
		shape := c.shape()
		name = c.run.state.hint
		if name != "" && len(shape) > 0 && !slices.Contains(shape, name) {
			name = ""
		}
		if how = "a command line"; name == "" && len(shape) == 1 {
			name, how = shape[0], "the columns and busbw over algbw"
		}
		switch {
		case name == "" && len(shape) > 0:
			c.warn(c.run.Line, Info, "collective-unknown", "the file does not name the collective; by its rows it is %s", strings.Join(shape, " or "))
		case name == "":
			c.warn(c.run.Line, Info, "collective-unknown", "the file does not name the collective, and its rows do not tell")
		default:
			c.warn(c.run.Line, Info, "collective-inferred", "the table does not name the collective; %s is taken from %s", name, how)
		}
	}
	for i := range c.run.Run.Rows {
		if row := &c.run.Run.Rows[i]; row.Collective == "" {
			row.Collective = name
		}
	}
	if name != "" {
		c.run.Run.Config.Collectives = []string{name}
	}
}

// shape lists the collectives that the rows can be of.
func (c *checker) shape() []string {
	row, d := c.best()
	if row == nil || widthOf(row) == 0 || row.Count <= 0 {
		return nil
	}
	gathers := perRank(row) > 1
	unequal := d.algbw.value > 0 && math.Abs(d.busbw.value-d.algbw.value) > 2*(d.busbw.half+d.algbw.half)
	reduces := row.Op != "none"
	onlyOut := c.onlyOutChecked()
	switch {
	case row.Root >= 0 && gathers:
		return []string{"gather", "scatter"}
	case row.Root >= 0 && reduces:
		return []string{"reduce"}
	case row.Root >= 0:
		return []string{"broadcast"}
	case gathers && reduces:
		return []string{"reduce_scatter"}
	case (gathers || unequal && !reduces) && onlyOut:
		return []string{"alltoall"}
	case gathers:
		return []string{"all_gather", "alltoall"}
	case reduces && unequal, row.Type == "" && d.busbw.value > d.algbw.value+2*(d.busbw.half+d.algbw.half):
		return []string{"all_reduce"}
	case reduces && (onlyOut || len(c.run.Run.Ranks) > 2):
		return []string{"sendrecv"}
	case reduces && row.OutOfPlace != nil && row.OutOfPlace.Wrong == nil && row.InPlace != nil && !c.hasColumns().old():
		return []string{"all_reduce", "sendrecv"}
	case reduces:
		return []string{"all_reduce"}
	case unequal:
		return []string{"all_gather", "alltoall"}
	}
	return []string{"sendrecv"}
}

// onlyOutChecked says that there is a row whose in-place half was not checked although its other one was.
func (c *checker) onlyOutChecked() bool {
	for _, row := range c.run.Run.Rows {
		if row.OutOfPlace != nil && row.OutOfPlace.Wrong != nil && row.InPlace != nil && row.InPlace.Unchecked == "not checked" {
			return true
		}
	}
	return false
}

// best is the row whose bandwidths are printed with the most digits, and that half.
func (c *checker) best() (*result.Row, *halfDetail) {
	var row *result.Row
	var detail *halfDetail
	for i := range c.run.details {
		for _, d := range c.run.details[i].halfs {
			if d != nil && (detail == nil || d.algbw.value > detail.algbw.value) {
				row, detail = &c.run.Run.Rows[i], d
			}
		}
	}
	return row, detail
}

// findWorld finds the number of ranks.
func (c *checker) findWorld() {
	run := c.run.Run
	w := &c.run.World
	w.From = "unknown"
	if run.Config.World > 0 { // a JSON or CSV field
		*w = World{Ranks: run.Config.World, Lo: run.Config.World, Hi: run.Config.World, Group: run.Config.World, From: "file"}
		return
	}
	listed := 0
	groups := map[int]int{}
	for _, r := range run.Ranks {
		listed = max(listed, r.Rank+1)
		groups[r.Group]++
	}
	if listed > 0 {
		*w = World{Ranks: listed, Lo: listed, Hi: listed, Group: listed, From: "rank list"}
		if len(groups) > 1 && listed == len(run.Ranks) {
			w.Group = groups[0]
		}
	}
	if n := c.run.state.logRanks; n > 0 && listed == 0 {
		*w = World{Ranks: n, Lo: n, Hi: n, Group: n, From: "NCCL log"}
	}
	process := c.run.state.threads * c.run.state.gpus
	if n := c.worldFromSizes(); n > 0 {
		c.settle(n, n, "size over count")
	} else if lo, hi, ok := c.worldFromBandwidths(); ok {
		c.settle(lo, hi, "busbw over algbw")
	} else if w.From == "rank list" && process > 1 && listed%process != 0 {
		c.warn(c.run.Line, Odd, "rank-list-cut", "the list names %s, but each process has %d: the list was cut, or lines of it are missing", plural(listed, "rank"), process)
		*w = World{Lo: (listed + process - 1) / process * process, From: "rank list"}
	}
}

// settle joins the number solved for with the rank list, which programs cut when it is long.
func (c *checker) settle(lo, hi int, from string) {
	w := &c.run.World
	if w.Group > 0 && w.Group >= lo && (hi == 0 || w.Group <= hi) {
		return
	}
	if w.Ranks > 0 {
		if w.Group < w.Ranks { // split ranks: the list is whole
			return
		}
		c.warn(c.run.Line, Odd, "rank-list-cut", "the list names %s, but by %s there are %s: the list was cut, or lines of it are missing",
			plural(w.Ranks, "rank"), from, rangeOfRanks(lo, hi))
	}
	step := max(1, c.run.state.threads*c.run.state.gpus)
	if step > 1 {
		lo = (lo + step - 1) / step * step
		hi = hi / step * step
	}
	*w = World{Lo: lo, Hi: hi, From: from}
	if lo == hi {
		w.Ranks, w.Group = lo, lo
		return
	}
	c.warn(c.run.Line, Info, "ranks-range", "the number of ranks is not printed; by %s it is %s", from, rangeOfRanks(lo, hi))
}

func rangeOfRanks(lo, hi int) string {
	switch {
	case hi == 0:
		return fmt.Sprintf("%d or more", lo)
	case lo == hi:
		return plural(lo, "rank")
	}
	return fmt.Sprintf("%d to %d", lo, hi)
}

// worldFromSizes is exact for collectives whose size is that of all ranks together.
func (c *checker) worldFromSizes() int {
	found := 0
	for i := range c.run.Run.Rows {
		row := &c.run.Run.Rows[i]
		if row.Bytes == 0 {
			continue
		}
		n := perRank(row)
		if n <= 1 || n > 1<<24 || found > 0 && int(n) != found {
			return 0
		}
		found = int(n)
	}
	return found
}

// worldFromBandwidths solves busbw = factor(n)·algbw for n, as far as rounding lets it.
func (c *checker) worldFromBandwidths() (lo, hi int, ok bool) {
	scale := 0.0
	if len(c.run.Run.Rows) > 0 {
		switch c.run.Run.Rows[0].Collective {
		case "all_reduce":
			scale = 2
		case "all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter":
			scale = 1
		}
	}
	if scale == 0 || c.hasColumns().old() && scale == 1 {
		return 0, 0, false
	}
	from, to := 0.0, scale
	for i, d := range c.run.details {
		bytes := float64(c.run.Run.Rows[i].Bytes)
		for _, h := range d.halfs {
			if h == nil || h.algbw.value <= 0 || h.busbw.value <= 0 {
				continue
			}
			a, b := ratio(h.busbw, h.algbw)
			from, to = max(from, a), min(to, b)
			if !c.hasColumns().old() {
				a, b = ratio(h.busbw, rate(bytes, h.time))
				from, to = max(from, a), min(to, b)
			}
		}
	}
	if from <= 0 || from > to {
		return 0, 0, false
	}
	// The factor is scale·(n−1)/n.
	lo = int(math.Ceil(scale/(scale-from) - 1e-9))
	if to < scale {
		hi = int(math.Floor(min(scale/(scale-to)+1e-9, 1e9)))
		if hi < lo {
			return 0, 0, false
		}
	}
	return max(lo, 2), hi, from < scale && lo < 1<<24
}

// ratio is the range of a over b when both are rounded.
func ratio(a, b printed) (lo, hi float64) {
	lo = (a.value - a.half) / (b.value + b.half)
	if b.value <= b.half {
		return lo, math.Inf(1)
	}
	return lo, (a.value + a.half) / (b.value - b.half)
}

// rate is bytes over a rounded time, in GB/s.
func rate(bytes float64, t printed) printed {
	if t.value <= t.half {
		return printed{value: 0, half: math.Inf(1)}
	}
	lo, hi := bytes/(t.value+t.half)/1e3, bytes/(t.value-t.half)/1e3
	return printed{value: (lo + hi) / 2, half: (hi - lo) / 2 * (1 + 1e-9)}
}

// fillConfig says what was asked for, as far as the rows show it.
func (c *checker) fillConfig() {
	config := &c.run.Run.Config
	config.World = c.run.World.Ranks
	for i := range c.run.Run.Rows {
		row := &c.run.Run.Rows[i]
		for _, list := range []struct {
			to   *[]string
			name string
		}{{&config.Collectives, row.Collective}, {&config.Types, row.Type}, {&config.Ops, row.Op}} {
			if list.name != "" && len(*list.to) < 100 && !slices.Contains(*list.to, list.name) {
				*list.to = append(*list.to, list.name)
			}
		}
	}
}

// ranks looks for devices that two ranks share.
func (c *checker) ranks() {
	type device struct{ host, bus string }
	seen := map[device]int{}
	for _, r := range c.run.Run.Ranks {
		if strings.Trim(r.PCIBusID, "0x:.") == "" || r.PCIBusID == "none" {
			continue // [0x00] is what old versions print when they do not know, none is a device of the host engine
		}
		d := device{r.Host, r.PCIBusID}
		if first, twice := seen[d]; twice {
			c.warn(c.run.Line, Odd, "shared-device", "ranks %d and %d use one device, %s on %s: they took turns, and NCCL refuses it unless the hosts look different", first, r.Rank, d.bus, d.host)
			return
		}
		seen[d] = r.Rank
	}
	if n := len(c.run.Run.Ranks); n > 0 && n < c.run.World.Ranks && c.run.World.From == "rank list" {
		c.warn(c.run.Line, Info, "rank-list-cut", "the list has lines for %d of %s", n, plural(c.run.World.Ranks, "rank"))
	}
}

// unchecked says which halves were not verified, and which error columns mean nothing.
func (c *checker) unchecked() {
	rows := c.run.Run.Rows
	out, in := 0, 0
	for i := range rows {
		if h := rows[i].OutOfPlace; h != nil && h.Wrong == nil && h.Unchecked == "not checked" {
			out++
		}
		if h := rows[i].InPlace; h != nil && h.Wrong == nil && h.Unchecked == "not checked" {
			in++
		}
	}
	switch {
	case len(rows) == 0:
	case out > 0:
		c.warn(c.details(0).line, Info, "not-checked", "the data was not checked (-c 0): the figures do not show whether the results were right")
	case in > 0:
		text := "in-place results were not checked"
		if slices.Contains([]string{"alltoall", "alltoallv", "sendrecv"}, rows[0].Collective) {
			text += "; the program never does for " + rows[0].Collective
		}
		c.warn(c.details(0).line, Info, "in-place-not-checked", "%s", text)
	}
	if !c.hasColumns().old() || len(rows) == 0 {
		return
	}
	if name := rows[0].Collective; name == "alltoall" || name == "sendrecv" || name == "" && c.onlyInPlaceErrors() {
		if name == "" {
			name = "alltoall"
		}
		for i := range rows {
			if h := rows[i].InPlace; h != nil {
				h.Wrong, h.Unchecked = nil, "the in-place error of "+name+" has no meaning in this version"
			}
		}
		c.warn(c.details(0).line, Info, "in-place-error-void", "the in-place error column of %s has no meaning in this version: not a failure", name)
	}
	if c.hasColumns().ms {
		c.warn(c.details(0).line, Info, "milliseconds", "times are in milliseconds in this old format; here they are microseconds")
	}
}

// onlyInPlaceErrors says that an old table has large errors, but none out-of-place.
func (c *checker) onlyInPlaceErrors() bool {
	found := false
	for i := range c.run.Run.Rows {
		limit := errorLimit(c.run.Run.Rows[i].Type)
		if c.errorOf(i, false) > limit {
			return false
		}
		found = found || c.errorOf(i, true) > limit
	}
	return found
}

func (c *checker) details(i int) rowDetail { return c.run.details[i] }

// sizes finds rows without data and sizes that come more than once.
func (c *checker) sizes() {
	type point struct {
		key   setKey
		bytes result.Bytes
		run   int
		group int
	}
	seen := map[point]bool{}
	c.missingHalves()
	zero, twice, above, zeroLine, twiceLine := 0, 0, 0, 0, 0
	for i := range c.run.Run.Rows {
		row := &c.run.Run.Rows[i]
		if limit := c.run.Run.Config.MaxBytes; limit > 0 && row.Bytes > limit {
			above++
		}
		at := point{keyOf(row), row.Bytes, row.Run, row.Group}
		switch {
		case row.Bytes == 0:
			if zero++; zero == 1 {
				zeroLine = c.details(i).line
			}
		case seen[at]:
			if twice++; twice == 1 {
				twiceLine = c.details(i).line
			}
		}
		seen[at] = true
	}
	if zero > 0 {
		c.warn(zeroLine, Info, "zero-size", "%s of 0 B: sizes below 16 B a rank are rounded down to nothing; they are launch times, not results", plural(zero, "row"))
	}
	if twice > 0 {
		c.warn(twiceLine, Info, "duplicate-size", "%s of a size that was there before: cycles (-N), or two outputs in one", plural(twice, "row"))
	}
	if above > 0 {
		c.warn(c.run.Line, Odd, "config-mismatch", "%s beyond the largest size that the line of options names: the line belongs to another run, or the file was edited", plural(above, "row"))
	}
	if c.run.Run.Config.Modes.CPUTime && len(c.run.Run.Rows) > 0 {
		text := "the time column is the processor's time to queue (-C 1), not that of the operation"
		if c.run.Run.Program.Name != "commprobe" {
			text += ": bandwidths made of it mean nothing"
		}
		c.warn(c.run.Line, Odd, "cpu-time", "%s", text)
	}
}

// missingHalves finds rows of lists of halves that lack one of theirs; in a table that is a cut row.
func (c *checker) missingHalves() {
	both, one := 0, 0
	for i := range c.run.Run.Rows {
		if row := &c.run.Run.Rows[i]; row.OutOfPlace != nil && row.InPlace != nil {
			both++
		} else {
			one++
		}
	}
	if both > 0 && one > 0 && c.run.Format != formatText {
		c.warn(c.run.Line, Info, "half-missing", "%s with one placement where the others have both: cut, or not measured", plural(one, "row"))
	}
}

// errorLimit is the largest relative error that nccl-tests before 2.13 accepted.
func errorLimit(dataType string) float64 {
	switch dataType {
	case "half", "bfloat16":
		return 1e-2
	case "float":
		return 1e-5
	case "double":
		return 1e-12
	}
	return 0
}

// wrongData finds wrong elements; performance of wrong results is void.
func (c *checker) wrongData() {
	halves, all, first := 0, 0, ""
	line := c.run.Line
	for i := range c.run.Run.Rows {
		row := &c.run.Run.Rows[i]
		for _, inPlace := range []bool{false, true} {
			h := halfOf(row, inPlace)
			if h == nil {
				continue
			}
			all++
			text := ""
			if h.Wrong != nil && *h.Wrong > 0 {
				text = plural(int(min(*h.Wrong, math.MaxInt32)), "wrong element")
			} else if e := c.errorOf(i, inPlace); h.Wrong == nil && e > errorLimit(row.Type) {
				text = fmt.Sprintf("relative error %g", e)
			}
			if text == "" {
				continue
			}
			if halves++; halves == 1 {
				first = fmt.Sprintf("%s %s: %s", FormatSize(row.Bytes), placementName(inPlace), text)
				if i < len(c.run.details) {
					line = c.details(i).line
				}
			}
		}
	}
	if halves > 0 {
		c.warn(line, Fault, "wrong-data", "wrong results in %d of %d row halves, first %s: the data was corrupt, and the figures of such a run are void", halves, all, first)
	}
	if f := c.run.Footer; f != nil && f.Failed {
		c.warn(line, Fault, "failed-check", "the program's own verdict is FAILED: %d row halves with wrong elements", *f.OutOfBounds)
	}
	if f := c.run.Footer; f != nil && f.BelowMinBW {
		c.warn(line, Fault, "failed-bandwidth", "the average bandwidth is below the minimum that was asked for (NCCL_TESTS_MIN_BW)")
	}
}

// errorOf is the error column of an old table, 0 where it has no meaning.
func (c *checker) errorOf(i int, inPlace bool) float64 {
	if !c.hasColumns().old() || i >= len(c.run.details) {
		return 0
	}
	h := halfOf(&c.run.Run.Rows[i], inPlace)
	if h == nil || strings.HasPrefix(h.Unchecked, "the in-place error") {
		return 0
	}
	d := c.details(i).halfs[0]
	if inPlace {
		d = c.details(i).halfs[1]
	}
	if v, ok := readFigure(d.check); ok && !math.IsNaN(v.value) {
		return v.value
	}
	return 0
}

// oneRank says why bandwidths are 0.
func (c *checker) oneRank() {
	rows := c.run.Run.Rows
	if len(rows) == 0 {
		return
	}
	zero := true
	for i := range rows {
		for _, h := range []*result.Half{rows[i].OutOfPlace, rows[i].InPlace} {
			if h != nil && (h.BusBW != 0 || h.AlgBW < 1) {
				zero = false
			}
		}
	}
	if w := &c.run.World; zero && w.Ranks == 0 {
		*w = World{Ranks: 1, Lo: 1, Hi: 1, Group: 1, From: "busbw over algbw"}
		c.run.Run.Config.World = 1
	}
	if c.run.World.Group == 1 {
		c.warn(c.details(0).line, Odd, "one-rank", "one rank: nothing travels, busbw is 0 by definition, and in-place may do nothing at all; such times belong in no average")
	}
}
