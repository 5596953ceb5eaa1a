package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

// Table writes nccl-tests' text table, to the column, while rows come in: Start, Row …, Finish. Programs that read nccl-tests' output read this
// one; what commprobe adds are lines that begin with '#'.
//
// Each collective is a section of its own with header and footer, as if its nccl-tests program had run. With Config.Runs > 1 a line is
// the median over runs: it appears when the last run has measured it, or at Finish for the rows that some runs lack.
// Each row goes out in one Write, so that the output of other processes cannot cut it. Not for concurrent use. Errors of the writer stay:
// all later calls return the first one.
type Table struct {
	w    io.Writer
	opts Options
	err  error

	head    *result.Run // what Start was given
	section section
	columns tableColumns
	cycle   int          // of the last row
	variant string       // of the last row: what its processes had in NCCL_ALGO and NCCL_PROTO
	printed []result.Row // as printed: medians where there are several runs
	waiting []sizeRows   // rows of sizes that not all runs have measured
}

// section is what the footer of one collective needs.
type section struct {
	collective string
	rows       int
	halves     int
	busbw      float64 // sum over halves
	failed     int     // halves with wrong elements
}

// NewTable returns a table that writes to w. Options.Percentiles adds columns at the right.
func NewTable(w io.Writer, opts Options) *Table { return &Table{w: w, opts: opts} }

// WriteTable writes a whole run as a table: Start, all rows, Finish.
func WriteTable(w io.Writer, run *result.Run, opts Options) error {
	t := NewTable(w, opts)
	if err := t.Start(run); err != nil {
		return err
	}
	for _, row := range run.Rows {
		if err := t.Row(row); err != nil {
			return err
		}
	}
	return t.Finish(run)
}

// Start writes the header of the first collective. It needs Program, Config, Environment and Ranks of run; Rows are not looked at. It keeps
// run until Finish.
func (t *Table) Start(run *result.Run) error {
	if t.head != nil {
		return errors.New("table: started twice")
	}
	t.head = run
	t.columns = tableColumns{percentiles: t.opts.Percentiles, cpuTime: run.Config.Modes.CPUTime, stamps: run.Config.Modes.Timestamps}
	for i := range run.Ranks {
		t.columns.groups = t.columns.groups || run.Ranks[i].Group > 0
	}
	first := ""
	if len(run.Config.Collectives) > 0 {
		first = run.Config.Collectives[0]
	}
	t.print(bannerLine(run) + t.openSection(first))
	return t.err
}

// Row writes a row, or keeps it until all runs have it. A row of another collective ends the section and begins a new one.
func (t *Table) Row(row result.Row) error {
	if t.head == nil {
		return errors.New("table: row before start")
	}
	if t.head.Config.Runs <= 1 {
		return t.emit([]result.Row{row})
	}
	at := -1
	for i := range t.waiting {
		if first := &t.waiting[i].rows[0]; keyOf(first) == keyOf(&row) && first.Bytes == row.Bytes {
			at = i
		}
	}
	if at < 0 {
		at = len(t.waiting)
		t.waiting = append(t.waiting, sizeRows{bytes: row.Bytes})
	}
	t.waiting[at].rows = append(t.waiting[at].rows, row)
	if len(t.waiting[at].rows) < t.head.Config.Runs {
		return t.err
	}
	rows := t.waiting[at].rows
	t.waiting = append(t.waiting[:at], t.waiting[at+1:]...)
	return t.emit(rows)
}

// emit writes one line for the rows of one size.
func (t *Table) emit(rows []result.Row) error {
	text := ""
	if rows[0].Collective != t.section.collective {
		text = t.closeSection(true) + t.openSection(rows[0].Collective)
	}
	row := medianRow(rows)
	if row.Cycle != t.cycle {
		t.cycle = row.Cycle
		text += fmt.Sprintf("# Cycle %d\n", row.Cycle)
	}
	if v := variantText(&row); v != t.variant && len(t.head.Config.Algos)+len(t.head.Config.Protos) > 0 {
		t.variant = v
		text += "#" + v + "\n"
	}
	text += t.columns.line(&row) + "\n"
	for i := range rows {
		text += faultLines(&rows[i], t.head.Config.Runs > 1)
		for _, inPlace := range []bool{false, true} {
			if h := halfOf(&rows[i], inPlace); h != nil && h.Wrong != nil && *h.Wrong > 0 {
				t.section.failed++
			}
		}
	}
	t.section.rows++
	for _, inPlace := range []bool{false, true} {
		if h := halfOf(&row, inPlace); h != nil {
			t.section.halves++
			t.section.busbw += float64(h.BusBW)
		}
	}
	if row.Cycle <= 1 { // one cycle stands for all in the remarks; a run until stopped may have millions
		t.printed = append(t.printed, row)
	}
	t.print(text)
	return t.err
}

// Finish writes rows that are still waiting, the footer, then what there is of skipped items, notes, launch-bound rows, modes and the outcome
// of run. A run that did not come to its end gets no "concluded" line and no average, as nccl-tests' output would have none.
func (t *Table) Finish(run *result.Run) error {
	if t.head == nil {
		return errors.New("table: finish before start")
	}
	waiting := t.waiting
	t.waiting = nil
	for _, w := range waiting {
		if err := t.emit(w.rows); err != nil {
			return err
		}
	}
	complete := run.Outcome.Status == "" || run.Outcome.Status == "ok" || run.Outcome.Status == "wrong data"
	t.print(t.closeSection(complete) + remarks(run, t.printed) + outcomeLine(&run.Outcome) + "\n")
	return t.err
}

func (t *Table) print(text string) {
	if t.err != nil || text == "" {
		return
	}
	if _, err := io.WriteString(t.w, text); err != nil {
		t.err = fmt.Errorf("table: %w", err)
	}
}

func (t *Table) openSection(collective string) string {
	t.section = section{collective: collective}
	var b strings.Builder
	fmt.Fprintf(&b, "# Collective test starting: %s\n", collective)
	b.WriteString(configLines(t.head))
	b.WriteString("#\n# Using devices\n")
	for i := range t.head.Ranks {
		b.WriteString(deviceLine(&t.head.Ranks[i]))
	}
	b.WriteString(t.columns.titles())
	return b.String()
}

func (t *Table) closeSection(complete bool) string {
	s := t.section
	if s.rows == 0 && complete {
		return "#\n" // nothing was measured; an average of nothing would look like a result
	}
	verdict := "OK"
	if s.failed > 0 {
		verdict = "FAILED"
	}
	text := fmt.Sprintf("# %-20s : %d %s\n", "Out of bounds values", s.failed, verdict)
	if complete {
		text += fmt.Sprintf("# %-20s : %.6g \n", "Avg bus bandwidth", s.busbw/float64(max(s.halves, 1)))
		text += "#\n# Collective test concluded: " + s.collective + "\n" + memoryLines(t.head.Ranks)
	}
	return text + "#\n"
}

// bannerLine names the program and the library, as nccl-tests' first line does.
func bannerLine(run *result.Run) string {
	text := "# commprobe version " + orNone(run.Program.Version) + " nccl-library="
	nccl := library(&run.Environment, "nccl")
	if nccl != nil {
		text += versionCode(nccl.Version)
	} else {
		text += "none"
	}
	text += " engine=" + orNone(run.Config.Engine)
	if run.Program.Go != "" {
		text += " go=" + run.Program.Go
	}
	if nccl != nil && nccl.Path != "" {
		text += " library-path=" + nccl.Path
	}
	return text + "\n"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

var dottedVersion = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)$`)

// versionCode is NCCL_VERSION_CODE of a dotted version: 2.28.9 is 22809; up to 2.8 the minor number had two digits less. Anything else is
// left as it is.
func versionCode(version string) string {
	m := dottedVersion.FindStringSubmatch(version)
	if m == nil {
		return orNone(version)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	patch, _ := strconv.Atoi(m[3])
	if major < 2 || major == 2 && minor <= 8 {
		return strconv.Itoa(1000*major + 100*minor + patch)
	}
	return strconv.Itoa(10000*major + 100*minor + patch)
}

// configLines are nccl-tests' line of options and ours on what makes figures comparable.
func configLines(run *result.Run) string {
	c := &run.Config
	threads, gpus := 1, 1
	switch c.Placement {
	case "thread":
		threads = max(c.World, 1)
	case "group":
		gpus = max(c.World, 1)
	}
	step := strconv.FormatFloat(c.StepFactor, 'g', -1, 64) + "(factor)"
	if c.StepFactor == 0 {
		step = strconv.FormatInt(int64(c.StepBytes), 10) + "(bytes)"
	}
	text := fmt.Sprintf("# nThread %d nGpus %d minBytes %d maxBytes %d step: %s warmup iters: %d iters: %d agg iters: %d validation: %d graph: %d unalign: %d\n",
		threads, gpus, c.MinBytes, c.MaxBytes, step, c.Warmup, c.Iters, max(1, c.Modes.Aggregate), c.Check, c.Modes.Graph, c.Modes.Unalign)
	text += "# Parity: " + strings.Join(conditions(c), ", ") + "\n"
	if c.Runs > 1 {
		text += fmt.Sprintf("# Runs: %d fresh sets of processes; each row is the median over runs (#wrong: the sum)\n", c.Runs)
	}
	return text
}

func conditions(c *result.Config) []string {
	list := []string{"engine " + orNone(c.Engine), "placement " + orNone(c.Placement)}
	switch {
	case c.Parity.NCCLMemAlloc:
		list = append(list, "buffers ncclMemAlloc")
	case c.Engine == "host":
		list = append(list, "buffers process memory")
	default:
		list = append(list, "buffers cudaMalloc")
	}
	if c.Parity.NVLinkCentricSched {
		list = append(list, "comm config nvlinkCentricSched=1")
	} else {
		list = append(list, "comm config default")
	}
	if c.Parity.OffsetRotation {
		list = append(list, "offset rotation on")
	} else {
		list = append(list, "offset rotation off")
	}
	list = append(list, "time "+orNone(c.Parity.Average)+" over ranks", "host clock")
	if c.QuietCores {
		list = append(list, "quiet cores")
	}
	list = append(list, modeWords(&c.Modes)...)
	if !c.ItersExact {
		list = append(list, "more iterations at small sizes")
	}
	return list
}

func variantText(row *result.Row) string {
	text := ""
	if row.Algo != "" {
		text += " NCCL_ALGO=" + row.Algo
	}
	if row.Proto != "" {
		text += " NCCL_PROTO=" + row.Proto
	}
	if text == "" {
		return " NCCL_ALGO and NCCL_PROTO as in the environment"
	}
	return text
}

// modeWords names the ways of calling that differ from the plain one.
func modeWords(m *result.Options) []string {
	var out []string
	add := func(on bool, format string, args ...any) {
		if on {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(m.Graph > 0, "%d launches of a CUDA graph of all iterations", m.Graph)
	add(m.Register == 1, "buffers registered")
	add(m.Register == 2, "symmetric windows")
	if m.CTAPolicy != nil {
		out = append(out, "CTA policy "+[]string{"default", "efficiency", "zero"}[min(max(*m.CTAPolicy, 0), 2)])
	}
	add(m.Blocking == 1, "wait and barrier after each iteration")
	add(m.Blocking == 2, "wait after each iteration")
	add(m.Blocking == 3, "wait and barrier after each iteration, without the barrier's time")
	add(m.NullStream, "NULL stream")
	add(m.ParallelInit, "parallel initialisation")
	add(m.Split != "", "split %s", m.Split)
	add(m.Comms > 1, "%d communicators at once over the same GPUs: time is of all %d, bandwidth of each", m.Comms, m.Comms)
	return out
}

// memoryLines are nccl-tests' footer of -M, for each rank; nothing without it.
func memoryLines(ranks []result.Rank) string {
	var b strings.Builder
	for i := range ranks {
		if m := ranks[i].Memory; m != nil {
			fmt.Fprintf(&b, "# %-20s : Initialization %s | User-Allocated %s | Collective %s | Total %s (rank %d)\n", "GPU memory usage",
				FormatSize(m.Init), FormatSize(m.User), FormatSize(m.Collective), FormatSize(m.Total), ranks[i].Rank)
		}
	}
	return b.String()
}

func deviceLine(r *result.Rank) string {
	return fmt.Sprintf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", r.Rank, r.Group, r.PID, r.Host, r.Device, busID(r.PCIBusID), r.DeviceName)
}

var pciAddress = regexp.MustCompile(`^([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(\.[0-7])?$`)

// busID brings a PCI address to nccl-tests' form: four digits of domain, no function.
func busID(id string) string {
	m := pciAddress.FindStringSubmatch(id)
	if m == nil {
		return orNone(id)
	}
	domain := m[1]
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return strings.ToLower(domain + ":" + m[2] + ":" + m[3])
}

// tableColumns are those that nccl-tests' table does not always have.
type tableColumns struct{ percentiles, cpuTime, stamps, groups bool }

func (c tableColumns) titles() string {
	prefix := func(a, b, c, d, e string) string { return fmt.Sprintf("# %10s  %12s  %8s  %6s  %6s", a, b, c, d, e) }
	half := func(a, b, c, d string) string { return fmt.Sprintf("  %7s  %6s  %6s  %6s", a, b, c, d) }
	time := "time"
	if c.cpuTime {
		time = "cputime"
	}
	first := prefix("", "", "", "", "") + "           out-of-place                       in-place          "
	second := prefix("size", "count", "type", "redop", "root") + strings.Repeat(half(time, "algbw", "busbw", "#wrong"), 2)
	third := prefix("(B)", "(elements)", "", "", "") + strings.Repeat(half("(us)", "(GB/s)", "(GB/s)", ""), 2)
	if c.percentiles {
		first += "    out-of-place, iterations       in-place, iterations"
		second += strings.Repeat(fmt.Sprintf("  %7s  %7s  %7s", "p50", "p99", "max"), 2)
		third += strings.Repeat(fmt.Sprintf("  %7s  %7s  %7s", "(us)", "(us)", "(us)"), 2)
	}
	if c.groups {
		second, third = second+"   group", third+"        "
	}
	if c.stamps {
		second, third = second+"  "+fmt.Sprintf("%-*s", len(stampForm), "timestamp"), third+"  "+strings.Repeat(" ", len(stampForm))
	}
	if c == (tableColumns{cpuTime: c.cpuTime}) {
		// nccl-tests ends these two in a blank.
		second, third = second+" ", third+" "
	}
	return "#\n" + first + "\n" + second + "\n" + third + "\n"
}

// stampForm is the form of the column that -S adds, local time as in nccl-tests.
const stampForm = "2006-01-02 15:04:05"

func (c tableColumns) line(row *result.Row) string {
	text := fmt.Sprintf("%12d  %12d  %8s  %6s  %6d", row.Bytes, row.Count, row.Type, row.Op, row.Root)
	text += c.half(row.OutOfPlace) + c.half(row.InPlace)
	if c != (tableColumns{cpuTime: c.cpuTime}) {
		text = fmt.Sprintf("%-*s", standardWidth, text)
	}
	if c.percentiles {
		text += percentileText(row.OutOfPlace) + percentileText(row.InPlace)
	}
	if c.groups {
		text += fmt.Sprintf("  %6d", row.Group)
	}
	if c.stamps {
		text += "  " + row.Time.Local().Format(stampForm)
	}
	return text
}

// notChecked stands for the #wrong column. It is one character narrower than the column, in nccl-tests as here.
const notChecked = "    N/A"

// standardWidth is the width of a row before the percentile columns.
const standardWidth = 118

// halfText is one placement; one that was not measured is N/A in all columns, so that every row has the same number of them.
func (c tableColumns) half(h *result.Half) string {
	if h == nil {
		return fmt.Sprintf("  %7s  %6s  %6s", "N/A", "N/A", "N/A") + notChecked
	}
	wrong := notChecked
	if h.Wrong != nil {
		wrong = fmt.Sprintf("  %6s", fmt.Sprintf("%.6g", float64(*h.Wrong)))
	}
	time := h.TimeUS
	if c.cpuTime {
		time = h.CPUTimeUS
	}
	return fmt.Sprintf("  %7s  %6s  %6s", fixedWidth(float64(time), 7), fixedWidth(float64(h.AlgBW), 6), fixedWidth(float64(h.BusBW), 6)) + wrong
}

func percentileText(h *result.Half) string {
	if h == nil || h.Iter == nil {
		return fmt.Sprintf("  %7s  %7s  %7s", "-", "-", "-")
	}
	p99 := "-"
	if h.Iter.P99US != nil {
		p99 = fixedWidth(float64(*h.Iter.P99US), 7)
	}
	return fmt.Sprintf("  %7s  %7s  %7s", fixedWidth(float64(h.Iter.P50US), 7), p99, fixedWidth(float64(h.Iter.MaxUS), 7))
}

// fixedWidth writes a figure in at most width characters by nccl-tests' rule (since 2.17.3): as many of two decimals as fit, else e-notation
// with one digit after the point from width 7 on and none below.
func fixedWidth(v float64, width int) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 0):
		return strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "+"))
	}
	for decimals := 2; decimals >= 0; decimals-- {
		if s := strconv.FormatFloat(v, 'f', decimals, 64); len(s) <= width {
			return s
		}
	}
	if width >= 7 {
		return strconv.FormatFloat(v, 'e', 1, 64)
	}
	return strconv.FormatFloat(v, 'e', 0, 64)
}
