package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

const (
	formatOwnJSON  = "commprobe JSON"
	formatTestJSON = "nccl-tests JSON"
	formatForkJSON = "nccl-tests fork JSON"
	formatRowsJSON = "JSON lines"
)

// lenient is a number as programs write it: bare, as text with blanks, or something that is none; then ok is false.
type lenient struct {
	v  float64
	ok bool
}

// UnmarshalJSON never fails: a bad field is an absent one.
func (l *lenient) UnmarshalJSON(data []byte) error {
	s := strings.TrimSpace(strings.Trim(string(data), `"`))
	v, err := strconv.ParseFloat(s, 64)
	if err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
		l.v, l.ok = v, true
	}
	return nil
}

// whole is the number as an integer, 0 when it is none or too large to be one.
func (l lenient) whole() int64 {
	if !l.ok || math.Abs(l.v) >= 1<<62 {
		return 0
	}
	return int64(l.v)
}

// plainText is text, or whatever else stands there.
type plainText string

// UnmarshalJSON never fails.
func (t *plainText) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) != nil {
		s = string(data)
	}
	*t = plainText(s)
	return nil
}

func (t plainText) yes() bool { return strings.TrimSpace(string(t)) == "true" }

// document takes a JSON document and says whether it was one of results.
func (p *parser) document(data []byte, line int) bool {
	fixed, repairs := repairJSON(data)
	var keys struct {
		Schema    plainText       `json:"schema"`
		Results   json.RawMessage `json:"results"`
		Config    json.RawMessage `json:"config"`
		Benchmark json.RawMessage `json:"benchmark"`
		Size      lenient         `json:"size"`
		AlgBW     *lenient        `json:"algBw"`
		BusBW     *lenient        `json:"busBw"`
	}
	if err := json.Unmarshal(fixed, &keys); err != nil {
		return false
	}
	end := p.line
	p.line = line
	defer func() { p.line = max(end, p.in.number) }()
	var known bool
	switch {
	case strings.HasPrefix(string(keys.Schema), "commprobe/"):
		known = p.ownJSON(fixed, string(keys.Schema))
	case keys.Results != nil || keys.Config != nil:
		known = p.testJSON(fixed)
	case keys.Benchmark != nil:
		known = p.forkJSON(fixed)
	case keys.Size.ok && (keys.AlgBW != nil || keys.BusBW != nil):
		known = p.rowJSON(fixed)
	}
	if known {
		p.repaired(repairs)
	}
	return known
}

func (p *parser) repaired(r repairs) {
	if r.truncated {
		p.tally("json-truncated", Odd, p.line, "", func(int, []string) string {
			return "the JSON document ends before it is whole: the program was stopped while it wrote; what is whole was read"
		})
	}
	if r.nonFinite > 0 {
		p.tally("json-not-finite", Odd, p.line, "", func(int, []string) string {
			return plural(r.nonFinite, "bare inf or nan") + " in the document, which is not JSON: taken as absent"
		})
	}
}

// ownJSON reads a document of WriteJSON.
func (p *parser) ownJSON(data []byte, schema string) bool {
	p.flushRow("a document begins")
	if schema != result.Schema {
		p.tally("unknown-schema", Fault, p.line, "", func(int, []string) string {
			return fmt.Sprintf("the document has schema %q, this version reads %q", schema, result.Schema)
		})
		return true
	}
	run := p.begin(formatOwnJSON)
	if err := json.Unmarshal(data, run.Run); err != nil {
		p.tally("json-field", Odd, p.line, "", func(int, []string) string { return fmt.Sprintf("a field was not read: %v", err) })
	}
	if p.rows += len(run.Run.Rows); p.rows > maxRows {
		run.Run.Rows = nil
	}
	for name := range run.Run.Environment.Env {
		if !strings.HasPrefix(name, "NCCL_") {
			delete(run.Run.Environment.Env, name)
		}
	}
	return true
}

// testDocument is the JSON of nccl-tests -J, versions 1 to 3.
type testDocument struct {
	Version  lenient      `json:"version"`
	Start    plainText    `json:"start_time"`
	End      *plainText   `json:"end_time"`
	Args     []plainText  `json:"args"`
	Env      []plainText  `json:"env"`
	NCCL     lenient      `json:"nccl_version"`
	Config   testConfig   `json:"config"`
	Results  []testResult `json:"results"`
	Bounds   *testBounds  `json:"out_of_bounds"`
	Average  *testAverage `json:"average_bus_bandwidth"`
	Average1 *testAverage `json:"average_bus_bandwidith"` // spelt so up to 2.17.8
	Errors   []plainText  `json:"errors"`
}

type testConfig struct {
	Threads      lenient      `json:"nthreads"`
	GPUs         lenient      `json:"ngpus"`
	MinBytes     lenient      `json:"minimum_bytes"`
	MaxBytes     lenient      `json:"maximum_bytes"`
	StepFactor   lenient      `json:"step_factor"`
	StepBytes    lenient      `json:"step_bytes"`
	Warmup       lenient      `json:"warmup_iters"`
	Iters        lenient      `json:"iterations"`
	Aggregated   lenient      `json:"aggregated_iterations"`
	Validation   lenient      `json:"validation"`
	Graph        lenient      `json:"graph"`
	ParallelInit plainText    `json:"parallel_init"`
	Devices      []testDevice `json:"devices"`
}

type testDevice struct {
	Rank   lenient   `json:"rank"`
	Group  lenient   `json:"group"`
	PID    lenient   `json:"pid"`
	Host   plainText `json:"hostname"`
	Device lenient   `json:"device"`
	Hex    plainText `json:"device_hex"`
	Info   plainText `json:"device_info"`
}

type testBounds struct {
	Count lenient    `json:"count"`
	Okay  *plainText `json:"okay"`
}

type testAverage struct {
	Bandwidth  lenient   `json:"bandwidth"`
	Bandwidth1 lenient   `json:"bandwidith"`
	Okay       plainText `json:"okay"`
}

type testResult struct {
	Size    lenient   `json:"size"`
	Count   lenient   `json:"count"`
	Type    plainText `json:"type"`
	Op      plainText `json:"redop"`
	Root    lenient   `json:"root"`
	Out     *testHalf `json:"out_of_place"`
	In      *testHalf `json:"in_place"`
	OutIter *testIter `json:"out_of_place_per_iter"`
	InIter  *testIter `json:"in_place_per_iter"`
	Iters   lenient   `json:"actual_iterations"`
}

type testHalf struct {
	Time    lenient `json:"time"`
	CPUTime lenient `json:"cpu_time"`
	AlgBW   lenient `json:"alg_bw"`
	BusBW   lenient `json:"bus_bw"`
	Wrong   lenient `json:"nwrong"`
}

type testIter struct {
	Skipped lenient   `json:"skipped_iterations"`
	Min     lenient   `json:"min_us"`
	Max     lenient   `json:"max_us"`
	Avg     lenient   `json:"avg_us"`
	P50     lenient   `json:"p50_us"`
	P95     lenient   `json:"p95_us"`
	P99     lenient   `json:"p99_us"`
	Stdev   lenient   `json:"stdev_us"`
	Times   []lenient `json:"times_us"`
}

// testJSON reads a document of nccl-tests.
func (p *parser) testJSON(data []byte) bool {
	var d testDocument
	if err := json.Unmarshal(data, &d); err != nil {
		p.tally("json-field", Odd, p.line, "", func(int, []string) string { return fmt.Sprintf("a field was not read: %v", err) })
	}
	p.flushRow("a document begins")
	run := p.begin(formatTestJSON)
	if d.Version.ok {
		run.Format = fmt.Sprintf("%s version %d", formatTestJSON, d.Version.whole())
	}
	r := run.Run
	r.Program = result.Program{Name: "nccl-tests"}
	r.Started = parseStamp(string(d.Start))
	if d.End != nil {
		r.Ended = parseStamp(string(*d.End))
	}
	if len(d.Args) > 0 {
		run.state.name = collectiveName(string(d.Args[0]))
		for _, a := range d.Args[:min(len(d.Args), 1000)] {
			r.Command = append(r.Command, string(a))
		}
	}
	if d.NCCL.ok {
		setVersion(p, run, codeVersion(strconv.FormatInt(d.NCCL.whole(), 10)))
	}
	p.testEnv(r, d.Env)
	p.testConfig(run, &d)
	for i := range d.Results {
		p.testRow(run, &d.Results[i], i)
	}
	p.testFooter(run, &d)
	return true
}

var secretName = regexp.MustCompile(`(?i)TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(^|_)AUTH($|_)`)

// testEnv keeps NCCL's variables. The document has all of the process's, and some of those are secrets: they are named at most.
func (p *parser) testEnv(run *result.Run, env []plainText) {
	var secrets []string
	others := 0
	for _, e := range env {
		name, value, _ := strings.Cut(string(e), "=")
		if strings.HasPrefix(name, "NCCL_") && !secretName.MatchString(name) {
			if run.Environment.Env == nil {
				run.Environment.Env = map[string]string{}
			}
			run.Environment.Env[name] = value
			continue
		}
		others++
		if secretName.MatchString(name) || hasPassword(value) {
			if len(secrets) < maxDetails && len(name) < 100 {
				secrets = append(secrets, name)
			}
		}
	}
	if len(secrets) > 0 {
		p.tally("env-secrets", Fault, p.line, "", func(int, []string) string {
			return "the document holds the environment of the process with what look like secrets (" + strings.Join(secrets, ", ") + "): do not pass it on; only NCCL_* was read"
		})
	} else if others > 0 {
		p.tally("env-whole", Info, p.line, "", func(int, []string) string {
			return fmt.Sprintf("the document holds the whole environment of the process, %s beside NCCL_*: look before passing it on; only NCCL_* was read", plural(others, "variable"))
		})
	}
}

// hasPassword finds an address with a password in it.
func hasPassword(value string) bool {
	if !strings.Contains(value, "://") || !strings.Contains(value, "@") {
		return false
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return err != nil
	}
	_, has := u.User.Password()
	return has
}

func (p *parser) testConfig(run *ReadRun, d *testDocument) {
	c, to := &d.Config, &run.Run.Config
	to.MinBytes, to.MaxBytes = result.Bytes(c.MinBytes.whole()), result.Bytes(c.MaxBytes.whole())
	to.StepFactor, to.StepBytes = c.StepFactor.v, result.Bytes(c.StepBytes.whole())
	to.Warmup, to.Iters, to.Check = int(c.Warmup.whole()), int(c.Iters.whole()), int(c.Validation.whole())
	to.Modes.Aggregate, to.Modes.Graph = int(c.Aggregated.whole()), int(c.Graph.whole())
	to.Modes.ParallelInit = c.ParallelInit.yes()
	to.ItersExact = true
	threads, gpus := int(c.Threads.whole()), int(c.GPUs.whole())
	run.state.threads, run.state.gpus = threads, gpus
	to.Placement = placementOf(threads, gpus)
	for _, dev := range c.Devices[:min(len(c.Devices), maxRankList)] {
		run.Run.Ranks = append(run.Run.Ranks, result.Rank{Rank: int(dev.Rank.whole()), Group: int(dev.Group.whole()), PID: int(dev.PID.whole()), Host: string(dev.Host),
			Device: int(dev.Device.whole()), PCIBusID: string(dev.Hex), DeviceName: string(dev.Info)})
	}
	if threads < 1 || gpus < 1 || threads > 1<<12 || gpus > 1<<12 || len(c.Devices) == 0 {
		return
	}
	to.World = len(c.Devices) * threads * gpus
	if threads*gpus > 1 {
		p.tally("json-devices", Info, p.line, "", func(int, []string) string {
			return fmt.Sprintf("the document lists only the first device of each process: %d of %s", len(c.Devices), plural(to.World, "rank"))
		})
	}
}

func (p *parser) testRow(run *ReadRun, from *testResult, i int) {
	if !from.Size.ok || from.Size.v < 0 {
		return
	}
	row := result.Row{Run: 1, Type: string(from.Type), Op: strings.TrimSpace(string(from.Op)), Root: -1, Bytes: result.Bytes(from.Size.whole()), Count: result.Count(from.Count.whole())}
	if row.Op == "" {
		row.Op = "none"
	}
	if from.Root.ok {
		row.Root = int(from.Root.whole())
	}
	d := rowDetail{line: p.line, exact: true}
	iters := int(from.Iters.whole())
	if iters == 0 {
		iters = run.Run.Config.Iters
	}
	for place, half := range []*testHalf{from.Out, from.In} {
		if half == nil {
			continue
		}
		time := half.Time
		if half.CPUTime.ok {
			time, run.Run.Config.Modes.CPUTime = half.CPUTime, true
		}
		h, detail := jsonHalf(time, half.AlgBW, half.BusBW)
		if h == nil {
			p.tally("row-cut", Odd, p.line, fmt.Sprintf("results[%d]", i), rowCutText)
			continue
		}
		h.Iters = iters
		if half.CPUTime.ok {
			h.CPUTimeUS = h.TimeUS
		}
		if half.Wrong.ok {
			n := half.Wrong.whole()
			h.Wrong = &n
		} else {
			h.Unchecked = "not checked"
		}
		h.Iter = p.jsonIter([]*testIter{from.OutIter, from.InIter}[place], iters)
		setHalf(&row, &d, place == 1, h, detail)
	}
	if row.OutOfPlace != nil || row.InPlace != nil {
		p.addRow(run, row, d)
	}
}

// jsonDigits is half of the last digit that these programs print.
const jsonDigits = 5e-7

func jsonHalf(time, alg, bus lenient) (*result.Half, *halfDetail) {
	if !time.ok || !alg.ok || !bus.ok || time.v < 0 || alg.v < 0 || bus.v < 0 {
		return nil, nil
	}
	return &result.Half{TimeUS: result.Micros(time.v), AlgBW: result.GBps(alg.v), BusBW: result.GBps(bus.v)},
		&halfDetail{time: printed{time.v, jsonDigits}, algbw: printed{alg.v, jsonDigits}, busbw: printed{bus.v, jsonDigits}}
}

// jsonIter reads per-iteration statistics. Percentiles of too few samples are the maximum by another name and are left out.
func (p *parser) jsonIter(from *testIter, iters int) *result.IterStats {
	if from == nil || !from.P50.ok || !from.Min.ok || !from.Max.ok {
		return nil
	}
	n := len(from.Times)
	if n == 0 {
		n = iters - int(from.Skipped.whole())
	}
	s := &result.IterStats{N: n, MinUS: result.Micros(from.Min.v), P50US: result.Micros(from.P50.v), MaxUS: result.Micros(from.Max.v),
		MeanUS: result.Micros(from.Avg.v), StdevUS: result.Micros(from.Stdev.v)}
	if from.P95.ok && n >= 20 {
		v := result.Micros(from.P95.v)
		s.P95US = &v
	}
	if from.P99.ok && n >= 100 {
		v := result.Micros(from.P99.v)
		s.P99US = &v
	} else if from.P99.ok {
		p.tally("p99-few-samples", Info, p.line, "", func(int, []string) string {
			return "the 99th percentile of fewer than 100 iterations is their maximum: left out"
		})
	}
	return s
}

func (p *parser) testFooter(run *ReadRun, d *testDocument) {
	average := d.Average
	if average == nil && d.Average1 != nil {
		average = d.Average1
		p.tally("json-misspelt", Info, p.line, "", func(int, []string) string { return "the footer's keys are misspelt, as nccl-tests up to 2.17.8 did" })
	}
	if d.Bounds != nil || average != nil || d.End != nil {
		run.Footer = &Footer{Concluded: d.End != nil}
	}
	if d.Bounds != nil && d.Bounds.Count.ok {
		n := d.Bounds.Count.whole()
		run.Footer.OutOfBounds = &n
		run.Footer.Failed = n > 0 || d.Bounds.Okay != nil && !d.Bounds.Okay.yes()
	}
	if average != nil {
		v := average.Bandwidth
		if !v.ok {
			v = average.Bandwidth1
		}
		if v.ok {
			run.Footer.AvgBusBW = &v.v
		}
		run.Footer.BelowMinBW = strings.TrimSpace(string(average.Okay)) == "false"
	}
	for _, e := range d.Errors {
		if e != "" {
			p.tally("last-error", Info, p.line, string(e), func(_ int, details []string) string {
				return "NCCL's last error of rank 0, which may be an old one: " + strings.Join(details, "; ")
			})
		}
	}
	if run.Footer == nil {
		p.tally("no-footer", Odd, p.line, "", func(int, []string) string {
			return "the document has no end: the program did not finish; the rows that are there count"
		})
	}
}

// forkJSON reads a variant of nccl-tests that has the sizes as keys.
func (p *parser) forkJSON(data []byte) bool {
	var d struct {
		Version   plainText  `json:"version"`
		Benchmark []forkRows `json:"benchmark"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		p.tally("json-field", Odd, p.line, "", func(int, []string) string { return fmt.Sprintf("a field was not read: %v", err) })
	}
	p.flushRow("a document begins")
	nccl := p.nccl
	p.nccl = ""
	run := p.begin(formatForkJSON)
	run.Run.Program = result.Program{Name: "nccl-tests"}
	if d.Version != "" {
		nccl = string(d.Version)
	}
	if nccl != "" {
		setVersion(p, run, nccl)
	}
	for _, rows := range d.Benchmark {
		for i := range rows {
			p.forkRow(run, &rows[i])
		}
	}
	return true
}

type forkRow struct {
	size  int64
	Count lenient   `json:"count"`
	Type  plainText `json:"type"`
	Op    plainText `json:"redop"`
	Root  lenient   `json:"root"`

	OutTime  lenient `json:"oop_time"`
	OutAlg   lenient `json:"oop_algbw"`
	OutBus   lenient `json:"oop_busbw"`
	OutWrong lenient `json:"oop_error"`
	InTime   lenient `json:"ip_time"`
	InAlg    lenient `json:"ip_algbw"`
	InBus    lenient `json:"ip_busbw"`
	InWrong  lenient `json:"ip_error"`
}

// forkRows keeps the order of the document and sizes that come twice.
type forkRows []forkRow

// UnmarshalJSON reads an object whose keys are sizes; other keys are left out.
func (rows *forkRows) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil
		}
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return nil
		}
		var row forkRow
		name, _ := key.(string)
		size, err := strconv.ParseInt(name, 10, 64)
		if err != nil || size < 0 || json.Unmarshal(raw, &row) != nil {
			continue
		}
		row.size = size
		*rows = append(*rows, row)
	}
	return nil
}

func (p *parser) forkRow(run *ReadRun, from *forkRow) {
	row := result.Row{Run: 1, Type: string(from.Type), Op: "none", Root: -1, Bytes: result.Bytes(from.size), Count: result.Count(from.Count.whole())}
	if from.Op != "" {
		row.Op = string(from.Op)
	}
	if from.Root.ok {
		row.Root = int(from.Root.whole())
	}
	d := rowDetail{line: p.line, exact: true}
	cut := false
	for place, f := range [][4]lenient{{from.OutTime, from.OutAlg, from.OutBus, from.OutWrong}, {from.InTime, from.InAlg, from.InBus, from.InWrong}} {
		h, detail := jsonHalf(f[0], f[1], f[2])
		if h == nil {
			cut = true
			continue
		}
		h.Unchecked = "not checked"
		if f[3].ok {
			n := f[3].whole()
			h.Wrong, h.Unchecked = &n, ""
		}
		setHalf(&row, &d, place == 1, h, detail)
	}
	if cut {
		p.tally("row-cut", Odd, p.line, FormatSize(row.Bytes), rowCutText)
	}
	if row.OutOfPlace != nil || row.InPlace != nil {
		p.addRow(run, row, d)
	}
}

// repairs is what had to be done to a document.
type repairs struct {
	truncated bool
	nonFinite int
}

// maxDepth bounds nesting; documents of results have five levels.
const maxDepth = 64

// jsonFixer copies a document and keeps it valid: what is not a value becomes null, and where it breaks off or goes wrong it is cut behind the last
// whole value and closed.
type jsonFixer struct {
	in    []byte
	at    int
	out   []byte
	good  int    // length of out behind the last whole value
	stack []byte // open brackets
	fixed repairs
}

// repairJSON makes valid JSON out of what programs write that print infinities bare and stop in the middle.
func repairJSON(in []byte) ([]byte, repairs) {
	f := &jsonFixer{in: in, out: make([]byte, 0, len(in)+64)}
	whole := f.value()
	for whole && len(f.stack) > 0 {
		whole = f.next()
	}
	if whole {
		return f.out, f.fixed
	}
	f.fixed.truncated = true
	out := f.out[:f.good]
	for i := len(f.stack) - 1; i >= 0; i-- {
		out = append(out, f.stack[i]+2) // the closing bracket of [ and { is two characters on
	}
	return out, f.fixed
}

// next takes what follows a value inside a bracket: a comma and the next value, or the closing bracket.
func (f *jsonFixer) next() bool {
	c, ok := f.peek()
	open := f.stack[len(f.stack)-1]
	switch {
	case !ok:
		return false
	case c == open+2:
		f.at++
		f.out = append(f.out, c)
		f.stack = f.stack[:len(f.stack)-1]
		f.good = len(f.out)
		return true
	case c == ',':
		f.at++
		f.out = append(f.out, c)
		return f.element(open)
	}
	return false
}

// element takes a value, in an object with its key.
func (f *jsonFixer) element(open byte) bool {
	if open == '[' {
		return f.value()
	}
	if c, ok := f.peek(); !ok || c != '"' || !f.text() {
		return false
	}
	if c, ok := f.peek(); !ok || c != ':' {
		return false
	}
	f.at++
	f.out = append(f.out, ':')
	return f.value()
}

// value takes a value; of an object or list its beginning and first element.
func (f *jsonFixer) value() bool {
	c, ok := f.peek()
	if !ok {
		return false
	}
	switch {
	case c == '{' || c == '[':
		if len(f.stack) >= maxDepth {
			return false
		}
		f.at++
		f.out = append(f.out, c)
		f.stack = append(f.stack, c)
		f.good = len(f.out)
		if next, ok := f.peek(); ok && next == c+2 {
			return true
		}
		return f.element(c)
	case c == '"':
		if !f.text() {
			return false
		}
		f.good = len(f.out)
		return true
	}
	return f.word()
}

// word takes a number, true, false or null; anything else made of such characters becomes null.
func (f *jsonFixer) word() bool {
	start := f.at
	for f.at < len(f.in) && (f.in[f.at] >= '0' && f.in[f.at] <= '9' || f.in[f.at]|0x20 >= 'a' && f.in[f.at]|0x20 <= 'z' || slices.Contains([]byte("+-._"), f.in[f.at])) {
		f.at++
	}
	if f.at == start || f.at == len(f.in) {
		return false
	}
	word := f.in[start:f.at]
	if !json.Valid(word) {
		f.fixed.nonFinite++
		word = []byte("null")
	}
	f.out = append(f.out, word...)
	f.good = len(f.out)
	return true
}

// text copies a string; control characters in it are dropped.
func (f *jsonFixer) text() bool {
	start := len(f.out)
	f.out = append(f.out, '"')
	for f.at++; f.at < len(f.in); f.at++ {
		c := f.in[f.at]
		if c < ' ' {
			continue
		}
		f.out = append(f.out, c)
		if c == '\\' && f.at+1 < len(f.in) {
			f.at++
			f.out = append(f.out, f.in[f.at])
			continue
		}
		if c == '"' {
			f.at++
			if !json.Valid(f.out[start:]) {
				f.out = append(f.out[:start], `""`...)
			}
			return true
		}
	}
	return false
}

// peek is the next character that is no white space.
func (f *jsonFixer) peek() (byte, bool) {
	for f.at < len(f.in) && (f.in[f.at] == ' ' || f.in[f.at] == '\n' || f.in[f.at] == '\t' || f.in[f.at] == '\r') {
		f.at++
	}
	if f.at == len(f.in) {
		return 0, false
	}
	return f.in[f.at], true
}
