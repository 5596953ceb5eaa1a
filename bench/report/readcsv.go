package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

const (
	formatCSV     = "commprobe CSV"
	formatRowsCSV = "CSV"
)

// csvTable is a table of comma-separated lines that is being read.
type csvTable struct {
	names []string // lower case
	run   *ReadRun
	own   bool
}

// csvLine reads a header or a row of comma-separated values; false: the line is neither.
func (p *parser) csvLine(s string) bool {
	if strings.Count(s, ",") < 5 || strings.HasPrefix(s, "#") {
		return false
	}
	r := csv.NewReader(strings.NewReader(s))
	r.TrimLeadingSpace = true
	r.LazyQuotes = true
	fields, err := r.Read()
	if err != nil {
		return false
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	if p.csvHeader(fields) {
		return true
	}
	if p.table == nil || p.table.run != p.cur {
		return false
	}
	p.csvRow(fields)
	return true
}

// csvHeader begins a table: ours, or that of rccl-tests.
func (p *parser) csvHeader(fields []string) bool {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = strings.ToLower(f)
	}
	if !slices.Contains(names, "algbw") || !slices.Contains(names, "busbw") {
		return false
	}
	own := slices.Contains(names, "time_us") && slices.Contains(names, "bytes") && slices.Contains(names, "placement")
	if !own && (!slices.Contains(names, "time") || !slices.Contains(names, "size")) {
		return false
	}
	p.flushRow("a table of values begins")
	format := formatRowsCSV
	if own {
		format = formatCSV
	}
	run := p.begin(format)
	if own {
		run.Run.Program.Name = "commprobe"
	}
	p.table = &csvTable{names: names, run: run, own: own}
	return true
}

// sourceRun is the run of a source column, by which WriteCurvesCSV tells several runs apart.
func (p *parser) sourceRun(t *csvTable, v map[string]string) {
	source, has := v["source"]
	if !has || source == t.run.Title {
		return
	}
	if t.run.Title != "" || len(t.run.Run.Rows) > 0 {
		t.run = p.begin(formatCSV)
		t.run.Run.Program.Name = "commprobe"
	}
	t.run.Title = source
	setRanks(t.run, atoi(v["ranks"]), 1, 0)
}

// csvRow reads one half of a row.
func (p *parser) csvRow(fields []string) {
	t := p.table
	names := t.names
	if len(fields) == len(names)+1 && slices.Contains(names, "ranks") {
		// rccl-tests with MPI writes the number of nodes before the ranks and forgets it in the header.
		at := slices.Index(names, "ranks")
		names = slices.Insert(slices.Clone(names), at, "nodes")
		p.tally("csv-header-short", Info, p.line, "", func(int, []string) string {
			return "the header lacks the column of nodes, as rccl-tests with MPI writes it"
		})
	}
	if len(fields) != len(names) {
		p.badRow(fmt.Sprintf("%d values under %d names", len(fields), len(names)))
		return
	}
	v := map[string]string{}
	for i, name := range names {
		v[name] = fields[i]
	}
	var row result.Row
	var half *result.Half
	var detail *halfDetail
	inPlace := false
	if t.own {
		p.sourceRun(t, v)
		row, half, detail, inPlace = ownCSVRow(v)
	} else {
		row, half, detail, inPlace = foreignCSVRow(v)
		setRanks(t.run, atoi(v["ranks"]), atoi(v["gpusperrank"]), atoi(v["gpus"]))
	}
	if half == nil {
		p.badRow("no figures in " + strings.Join(fields, ","))
		return
	}
	p.addHalf(t.run, row, half, detail, inPlace)
}

func (p *parser) badRow(why string) {
	p.tally("bad-row", Odd, p.line, why, func(n int, details []string) string {
		return fmt.Sprintf("%s of values left out: %s", plural(n, "line"), strings.Join(details, "; "))
	})
}

func atoi(s string) int64 {
	v, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || v < 0 {
		return 0
	}
	return v
}

// setRanks notes the number of ranks that each line repeats. gpus is that of builds without MPI.
func setRanks(run *ReadRun, ranks, perRank, gpus int64) {
	n := ranks * max(perRank, 1)
	if ranks == 0 {
		n = gpus
	}
	if n > 0 && n < 1<<24 {
		run.Run.Config.World = int(n)
	}
}

// addHalf puts a half into the row it belongs to: the last one, if that is of the same size and lacks it, else a new one.
func (p *parser) addHalf(run *ReadRun, row result.Row, half *result.Half, detail *halfDetail, inPlace bool) {
	if n := len(run.Run.Rows); n > 0 {
		last := &run.Run.Rows[n-1]
		if keyOf(last) == keyOf(&row) && last.Bytes == row.Bytes && last.Count == row.Count && last.Run == row.Run && last.Cycle == row.Cycle && last.Group == row.Group && last.Algo == row.Algo && last.Proto == row.Proto &&
			halfOf(last, inPlace) == nil {
			setHalf(last, &run.details[n-1], inPlace, half, detail)
			return
		}
	}
	d := rowDetail{line: p.line, exact: true}
	setHalf(&row, &d, inPlace, half, detail)
	p.addRow(run, row, d)
}

// optionalCount is the value of a column that may be empty.
func optionalCount(s string) *int64 {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil
	}
	return &v
}

func optionalMicros(s string) *result.Micros {
	v, ok := csvNumber(s)
	if !ok {
		return nil
	}
	m := result.Micros(v)
	return &m
}

func csvNumber(s string) (float64, bool) {
	var l lenient
	_ = l.UnmarshalJSON([]byte(s)) // never fails
	return l.v, l.ok
}

// ownCSVRow reads a line of WriteCSV by the names of its columns, since later versions add some.
func ownCSVRow(v map[string]string) (row result.Row, h *result.Half, d *halfDetail, inPlace bool) {
	time, ok1 := csvNumber(v["time_us"])
	alg, ok2 := csvNumber(v["algbw"])
	bus, ok3 := csvNumber(v["busbw"])
	bytes, err := strconv.ParseInt(v["bytes"], 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil || bytes < 0 {
		return row, nil, nil, false
	}
	row = result.Row{Run: int(atoi(v["run"])), Collective: v["collective"], Type: v["type"], Op: v["op"], Bytes: result.Bytes(bytes), Count: result.Count(atoi(v["count"])),
		Root: int(integer(v["root"])), Cycle: int(atoi(v["cycle"])), Group: int(atoi(v["group"])), Algo: v["algo"], Proto: v["proto"]}
	h, d = jsonHalf(lenient{time, true}, lenient{alg, true}, lenient{bus, true})
	if h == nil {
		return row, nil, nil, false
	}
	h.Iters = int(atoi(v["iters"]))
	h.Wrong = optionalCount(v["wrong"])
	if p50 := optionalMicros(v["p50"]); p50 != nil {
		h.Iter = &result.IterStats{N: int(atoi(v["n"])), P50US: *p50, P95US: optionalMicros(v["p95"]), P99US: optionalMicros(v["p99"]), Lacks: []string{"min_us", "mean_us", "stdev_us"}}
		if hi := optionalMicros(v["max"]); hi != nil {
			h.Iter.MaxUS = *hi
		} else {
			h.Iter.Lacks = append(h.Iter.Lacks, "max_us")
		}
	}
	if r := optionalCount(v["slowest_rank"]); r != nil {
		rank := int(*r)
		h.SlowestRank = &rank
	}
	if r := optionalCount(v["launch_bound_rank"]); r != nil {
		h.LaunchBound = &result.LaunchBound{Rank: int(*r)}
		if e := optionalMicros(v["enqueue_us"]); e != nil {
			h.LaunchBound.EnqueueUS = *e
		}
	}
	return row, h, d, v["placement"] == "in"
}

// foreignCSVRow reads a line of rccl-tests.
func foreignCSVRow(v map[string]string) (row result.Row, h *result.Half, d *halfDetail, inPlace bool) {
	number := func(name string) lenient {
		n, ok := csvNumber(v[name])
		return lenient{n, ok}
	}
	h, d = jsonHalf(number("time"), number("algbw"), number("busbw"))
	size, err := strconv.ParseInt(v["size"], 10, 64)
	if h == nil || err != nil || size < 0 {
		return row, nil, nil, false
	}
	name := v["collective"]
	if name == "" {
		name = v["name"]
	}
	row = foreignRow(name, v["type"], v["redop"], size)
	row.Cycle = int(atoi(v["numcycle"]))
	if h.Wrong = optionalCount(v["#wrong"]); h.Wrong == nil {
		h.Unchecked = "not checked"
	}
	d.loosen()
	return row, h, d, v["inplace"] == "1"
}

func foreignRow(name, dataType, op string, size int64) result.Row {
	row := result.Row{Run: 1, Collective: collectiveName(name), Type: dataType, Op: op, Root: -1, Bytes: result.Bytes(size)}
	if row.Op == "" {
		row.Op = "none"
	}
	if width := dataTypes[dataType]; width > 0 && (row.Collective == "all_reduce" || row.Collective == "broadcast" || row.Collective == "reduce" || row.Collective == "sendrecv") {
		row.Count = result.Count(size / width)
	}
	return row
}

// loosen allows for figures that passed through a stream of few digits.
func (d *halfDetail) loosen() {
	for _, f := range []*printed{&d.time, &d.algbw, &d.busbw} {
		f.half = max(f.half, 1e-4*f.value)
	}
}

// rowJSON reads one line of the JSON of rccl-tests or mscclpp's tests: one half of a row.
func (p *parser) rowJSON(data []byte) bool {
	var v struct {
		Name        plainText `json:"name"`
		Size        lenient   `json:"size"`
		Type        plainText `json:"type"`
		Op          plainText `json:"redop"`
		InPlace     lenient   `json:"inPlace"`
		Time        lenient   `json:"time"`
		AlgBW       lenient   `json:"algBw"`
		BusBW       lenient   `json:"busBw"`
		Wrong       lenient   `json:"wrong"`
		Wrong1      lenient   `json:"#wrong"`
		Ranks       lenient   `json:"ranks"`
		GPUsPerRank lenient   `json:"gpusPerRank"`
		GPUs        lenient   `json:"gpus"`
		Cycle       lenient   `json:"numCycle"`
	}
	h, detail := (*result.Half)(nil), (*halfDetail)(nil)
	if json.Unmarshal(data, &v) == nil && v.Size.v >= 0 {
		h, detail = jsonHalf(v.Time, v.AlgBW, v.BusBW)
	}
	if p.lines == nil || p.cur != p.lines {
		p.flushRow("a document begins")
		p.lines = p.begin(formatRowsJSON)
	}
	if h == nil {
		p.badRow("no figures")
		return true
	}
	detail.loosen()
	if wrong := v.Wrong; wrong.ok || v.Wrong1.ok {
		if !wrong.ok {
			wrong = v.Wrong1
		}
		n := wrong.whole()
		h.Wrong = &n
	} else {
		h.Unchecked = "not checked"
	}
	row := foreignRow(string(v.Name), string(v.Type), string(v.Op), v.Size.whole())
	row.Cycle = int(v.Cycle.whole())
	setRanks(p.lines, v.Ranks.whole(), v.GPUsPerRank.whole(), v.GPUs.whole())
	p.addHalf(p.lines, row, h, detail, v.InPlace.v == 1)
	return true
}
