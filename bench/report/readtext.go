package report

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/bench/result"
)

const formatText = "nccl-tests text"

// runState is what a run of text has shown so far.
type runState struct {
	banner, start, config, header, failed bool
	configText                            string
	hint                                  string // collective named by a command line
	name                                  string // collective named by the program itself
	columns                               *columns
	threads, gpus                         int // of a process
	logRanks                              int // ranks of the largest communicator that NCCL's log names
}

var (
	ansiCode    = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)
	tableEdge   = regexp.MustCompile(`(\s*\|)+\s*$`)
	frontLabel  = regexp.MustCompile(`^\s*(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4})?(?:\[[^\]<>]*\])?<std(?:out|err|diag)>:|^\s*\d{1,6}:(?:\s|$)|^\s*\[\d{1,6}\](?:\s|$)|^\s*[-*>] |^\s*\d{4}-\d\d-\d\dT[\d:.]+Z? |^\s*\[pod/[^\]]*\] `)
	midLabel    = regexp.MustCompile(`(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4})?(?:\[[^\]<>]*\])?<std(?:out|err|diag)>:|\[\d{1,6}\]`)
	ncclLog     = regexp.MustCompile(`[\w.-]+:\d+:\d+ \[-?\d+\].*?NCCL (INFO|WARN|TRACE|VERSION|CALL)\b ?(.*)$`)
	bareLog     = regexp.MustCompile(`^\s*(?:\[\d+\]\s+)?NCCL (INFO|WARN|TRACE) (.*)$`)
	glued       = regexp.MustCompile(`^(?:N/A|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)`)
	rankLine    = regexp.MustCompile(`^#?\s*Rank\s+(\d+)\s(?:\s*Group\s+(\d+)\s)?(?:\s*Pid\s+(\d+)\s)?\s*on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)$`)
	bannerText  = regexp.MustCompile(`^#?\s*nccl-tests version (\S+)(?: \([^)]*\))? nccl-headers=(\d+) nccl-library=(\d+)`)
	ownBanner   = regexp.MustCompile(`^#?\s*commprobe version (\S+) nccl-library=(\S+) engine=(\S+)(?: go=(\S+))?`)
	startText   = regexp.MustCompile(`^#?\s*Collective test starting: *(\S*)`)
	endText     = regexp.MustCompile(`^#?\s*Collective test concluded: *(\S*)`)
	configText  = regexp.MustCompile(`^#?\s*nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+(?:\.\d+)?)\((factor|bytes)\)(.*)$`)
	configField = regexp.MustCompile(`(warmup iters|agg iters|iters|validation|graph|unalign): *(-?\d+)`)
	boundsText  = regexp.MustCompile(`^#?\s*Out of bounds values *: *(\d+) *(OK|FAILED)?`)
	averageText = regexp.MustCompile(`^#?\s*Avg bus bandwidth *: *(\S+) *(OK|FAILED)?`)
	reducedText = regexp.MustCompile(`^#?\s*Reducing maxBytes to (\d+)`)
	versionText = regexp.MustCompile(`\bNCCL version (\d+\.\d+[\w.]*)`)
	buildText   = regexp.MustCompile(`^#?\s*NCCL Tests compiled with NCCL (\d+\.\d+)`)
	setByEnv    = regexp.MustCompile(`\b(NCCL_[A-Z0-9_]+) set by environment to (\S.*?)\.?$`)
	commandName = regexp.MustCompile(`(?:^|[\s/'"\x60(])([a-z_0-9]+)_perf(?:_mpi)?(?:\s|$)`)
	titleText   = regexp.MustCompile(`^(?:NCCL )?v?\d+\.\d+(?:\.\d+)*\S*:?$|^[^#\[{<].{0,60}:$`)
	initText    = regexp.MustCompile(`\bn[rR]anks (\d{1,7}) .*Init COMPLETE`)
	dotted      = regexp.MustCompile(`\d+\.\d+\.\d+`)
)

// cleanLine takes out what terminals and web pages put into a line.
func cleanLine(raw []byte) string {
	s := string(raw)
	if strings.IndexByte(s, 0x1b) >= 0 {
		s = ansiCode.ReplaceAllString(s, "")
	}
	s = strings.Map(func(r rune) rune {
		if r == '\r' || r == 0 || r == '\u00a0' {
			return ' '
		}
		return r
	}, s)
	if strings.HasSuffix(strings.TrimRight(s, " \t"), "|") {
		s = tableEdge.ReplaceAllString(s, "")
	}
	return strings.TrimRight(s, " \t")
}

// stripLabels removes what launchers and lists put before a line, several times over where several of them did.
func stripLabels(s string) string {
	for range 4 {
		at := frontLabel.FindStringIndex(s)
		if at == nil {
			break
		}
		s = s[at[1]:]
	}
	return s
}

func startsObject(s string) bool {
	s = strings.TrimLeft(s, " \t")
	if !strings.HasPrefix(s, "{") {
		return false
	}
	s = strings.TrimLeft(s[1:], " \t")
	return s == "" || s[0] == '"'
}

// text takes one line that is no JSON.
func (p *parser) text(line string) {
	before, isLog := p.cutLog(line)
	if isLog && strings.TrimSpace(before) == "" {
		return
	}
	body := stripLabels(before)
	trimmed := strings.TrimSpace(body)
	if trimmed == "" || trimmed == "[" || trimmed == "]" {
		return
	}
	if p.csvLine(trimmed) {
		return
	}
	if !strings.HasPrefix(trimmed, "#") && p.rowLine(body, isLog) {
		return
	}
	if p.placement(trimmed) || p.header(trimmed) || strings.Trim(trimmed, "# ") == "" {
		return
	}
	if p.meta(trimmed) || p.ownLine(trimmed) {
		p.title = ""
		return
	}
	if p.failure(trimmed) {
		return
	}
	if m := commandName.FindStringSubmatch(trimmed); m != nil && collectiveName(m[1]) != "" {
		p.hint = collectiveName(m[1])
	}
	if p.title = ""; titleText.MatchString(trimmed) {
		p.title = excerpt(strings.TrimSuffix(trimmed, ":"), 80)
	} else if !strings.HasPrefix(trimmed, "#") && p.cur != nil {
		p.tally("other-text", Info, p.line, "", func(n int, _ []string) string {
			return fmt.Sprintf("%s of other text mixed in", plural(n, "line"))
		})
	}
}

// cutLog takes a line of NCCL's log out and returns what stood before it: a piece of a row, or nothing.
func (p *parser) cutLog(line string) (before string, isLog bool) {
	if !strings.Contains(line, "NCCL ") {
		return line, false
	}
	at := ncclLog.FindStringSubmatchIndex(line)
	if at == nil {
		if at = bareLog.FindStringSubmatchIndex(line); at == nil {
			return line, false
		}
	}
	start := strings.LastIndexAny(line[:at[0]], " \t]") + 1
	before = line[:start]
	// The name of the host may be glued to the last figure of a piece: "-1node-01:40:40 [0] NCCL INFO". Behind a label it is not.
	token, _, _ := strings.Cut(line[start:], ":")
	if strings.TrimSpace(stripLabels(before)) != "" && !strings.HasSuffix(strings.TrimRight(before, " \t"), "]") {
		before += p.unglue(token)
	} else if len(p.hosts) < maxHosts && len(token) < 256 {
		p.hosts[token] = true
	}
	p.log(line[at[2]:at[3]], line[at[4]:at[5]])
	return before, true
}

// maxHosts bounds the names that unglue knows.
const maxHosts = 4096

// unglue takes the name of a host off the end of a token. Names known from other lines come first: "-1" and "8gpu" make "-18gpu".
func (p *parser) unglue(token string) string {
	for cut := 1; cut < min(len(token), 16); cut++ {
		if p.hosts[token[cut:]] && glued.FindString(token[:cut]) == token[:cut] {
			return token[:cut]
		}
	}
	return glued.FindString(token)
}

// log looks at one entry of NCCL's log.
func (p *parser) log(level, text string) {
	p.tally("nccl-log", Info, p.line, "", func(n int, _ []string) string {
		return fmt.Sprintf("%s of NCCL's log mixed in", plural(n, "line"))
	})
	if m := versionText.FindStringSubmatch(text); m != nil {
		p.version(m[1])
	}
	if m := initText.FindStringSubmatch(text); m != nil {
		if n := int(integer(m[1])); p.cur == nil || p.closed() {
			p.logRanks = max(p.logRanks, n)
		} else {
			p.cur.state.logRanks = max(p.cur.state.logRanks, n)
		}
	}
	if m := setByEnv.FindStringSubmatch(text); m != nil && p.cur != nil {
		env := &p.cur.Run.Environment
		if env.Env == nil {
			env.Env = map[string]string{}
		}
		if len(env.Env) < 1000 {
			env.Env[m[1]] = m[2]
		}
	}
	if level == "WARN" {
		p.tally("nccl-warn", Odd, p.line, text, func(n int, details []string) string {
			return fmt.Sprintf("NCCL warned %s: %s", times(n), strings.Join(details, "; "))
		})
	}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// version notes the library's version; another one than before means that ranks, or runs of one table, did not have the same.
func (p *parser) version(v string) {
	if p.cur == nil {
		p.nccl = v
		return
	}
	setVersion(p, p.cur, v)
}

func setVersion(p *parser, run *ReadRun, v string) {
	number := dotted.FindString(v)
	if number == "" {
		number = v
	}
	lib := library(&run.Run.Environment, "nccl")
	if lib == nil {
		run.Run.Environment.Libraries = append(run.Run.Environment.Libraries, result.Library{Name: "nccl", Version: number})
		return
	}
	if lib.Version != number {
		p.tally("mixed-versions", Odd, p.line, lib.Version+" and "+number, func(_ int, details []string) string {
			return fmt.Sprintf("NCCL %s in one run: ranks or programs with different libraries", strings.Join(details, ", "))
		})
	}
}

// meta reads the lines around a table.
func (p *parser) meta(s string) bool {
	switch {
	case strings.Contains(s, " version "):
		return p.banner(s)
	case strings.Contains(s, "Collective test "):
		return p.startOrEnd(s)
	case strings.Contains(s, "nThread "):
		return p.config(s)
	case strings.Contains(s, "Using devices"):
		p.ready()
		return true
	case strings.Contains(s, "Rank ") && strings.Contains(s, " device "):
		return p.rank(s)
	case strings.Contains(s, "Out of bounds values"), strings.Contains(s, "Avg bus bandwidth"):
		return p.footer(s)
	case strings.Contains(s, "Reducing maxBytes"):
		return p.reduced(s)
	case strings.Contains(s, "compiled with NCCL"):
		if m := buildText.FindStringSubmatch(s); m != nil {
			p.ready()
			if p.nccl == "" && library(&p.cur.Run.Environment, "nccl") == nil {
				p.cur.Run.Notes = append(p.cur.Run.Notes, result.Note{Severity: Info, Text: "compiled with NCCL " + m[1]})
			}
			return true
		}
	case strings.HasPrefix(s, "#") && strings.Contains(s, "Enabled:"):
		return p.enabled(s)
	}
	return false
}

// ready makes sure that there is a run which lines before a table may belong to.
func (p *parser) ready() {
	if p.cur == nil || p.closed() {
		p.flushRow("another run begins")
		p.begin(formatText)
		p.adopt()
	}
}

// closed says that the present run has had its table, so that what belongs before a table belongs to the next one.
func (p *parser) closed() bool {
	return p.cur.Format != formatText || len(p.cur.Run.Rows) > 0 || p.cur.Footer != nil || p.cur.state.failed || p.pending != nil
}

// adopt gives a run what was said before it began.
func (p *parser) adopt() {
	if p.nccl != "" {
		setVersion(p, p.cur, p.nccl)
		p.nccl = ""
	}
	if p.ownNCCL != "" {
		setVersion(p, p.cur, p.ownNCCL)
	}
	p.cur.state.logRanks, p.logRanks = p.logRanks, 0
	if p.program.Name != "" {
		p.cur.Run.Program = p.program
		p.cur.Run.Config.Engine = p.engine
	}
}

// again begins a run for a line that each program prints once. The same line twice before the table is not a new run but a second copy of
// the program that writes into the same output.
func (p *parser) again(seen func(*runState) *bool, same bool) {
	p.ready()
	flag := seen(&p.cur.state)
	if *flag {
		if same && (!p.cur.state.header || flag == &p.cur.state.header) {
			p.singletons("the same banner")
		} else {
			p.flushRow("a new table begins")
			p.begin(formatText)
			p.adopt()
			flag = seen(&p.cur.state)
		}
	}
	*flag = true
}

func (p *parser) singletons(what string) {
	p.tally("singletons", Fault, p.line, what, func(_ int, details []string) string {
		return strings.Join(details, ", ") + " twice: several programs that did not join wrote here, each for itself. Was it built without MPI, or with another MPI than the launcher's? The figures are not those of all ranks together"
	})
}

func (p *parser) banner(s string) bool {
	if m := ownBanner.FindStringSubmatch(s); m != nil {
		p.again(func(st *runState) *bool { return &st.banner }, true)
		p.program = result.Program{Name: "commprobe", Version: m[1], Go: m[4]}
		p.engine, p.ownNCCL, p.variant = m[3], "", result.Row{}
		if p.engine == "none" {
			p.engine = ""
		}
		if m[2] != "none" {
			p.ownNCCL = codeVersion(m[2])
		}
		p.adopt()
		return true
	}
	m := bannerText.FindStringSubmatch(s)
	if m == nil {
		if m := versionText.FindStringSubmatch(s); m != nil && !strings.HasPrefix(s, "#") {
			if p.cur != nil && p.closed() {
				p.nccl = m[1]
			} else {
				p.version(m[1])
			}
			return true
		}
		return false
	}
	p.again(func(st *runState) *bool { return &st.banner }, true)
	p.program, p.engine, p.ownNCCL, p.variant = result.Program{}, "", "", result.Row{}
	p.cur.Run.Program = result.Program{Name: "nccl-tests", Version: m[1]}
	setVersion(p, p.cur, codeVersion(m[3]))
	if m[2] != m[3] {
		p.tally("built-for-other", Info, p.line, "", func(int, []string) string {
			return fmt.Sprintf("built for NCCL %s, ran with %s", codeVersion(m[2]), codeVersion(m[3]))
		})
	}
	return true
}

// codeVersion turns NCCL_VERSION_CODE into a dotted version, the inverse of versionCode.
func codeVersion(code string) string {
	n, err := strconv.Atoi(code)
	switch {
	case err != nil || n <= 0:
		return code
	case n < 10000:
		return fmt.Sprintf("%d.%d.%d", n/1000, n/100%10, n%100)
	}
	return fmt.Sprintf("%d.%d.%d", n/10000, n/100%100, n%100)
}

func (p *parser) startOrEnd(s string) bool {
	if m := startText.FindStringSubmatch(s); m != nil {
		p.again(func(st *runState) *bool { return &st.start }, true)
		p.cur.state.name = collectiveName(m[1])
		return true
	}
	if endText.MatchString(s) && p.cur != nil {
		p.flushRow("the run ends")
		if p.cur.Footer == nil {
			p.cur.Footer = &Footer{}
		}
		p.cur.Footer.Concluded = true
		return true
	}
	return false
}

func (p *parser) config(s string) bool {
	m := configText.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	p.ready()
	same := p.cur.state.configText == m[0] && len(p.cur.Run.Rows) == 0
	p.again(func(st *runState) *bool { return &st.config }, same)
	p.cur.state.configText = m[0]
	c := &p.cur.Run.Config
	p.cur.state.threads, _ = strconv.Atoi(m[1])
	p.cur.state.gpus, _ = strconv.Atoi(m[2])
	c.MinBytes, c.MaxBytes = result.Bytes(integer(m[3])), result.Bytes(integer(m[4]))
	if m[6] == "factor" {
		c.StepFactor, _ = strconv.ParseFloat(m[5], 64)
	} else {
		c.StepBytes = result.Bytes(integer(m[5]))
	}
	for _, f := range configField.FindAllStringSubmatch(m[7], -1) {
		v, _ := strconv.Atoi(f[2])
		switch f[1] {
		case "warmup iters":
			c.Warmup = v
		case "iters":
			c.Iters = v
		case "agg iters":
			c.Modes.Aggregate = v
		case "validation":
			c.Check = v
		case "graph":
			c.Modes.Graph = v
		case "unalign":
			c.Modes.Unalign = v
		}
	}
	c.ItersExact = p.cur.Run.Program.Name != "commprobe"
	c.Placement = placementOf(p.cur.state.threads, p.cur.state.gpus)
	return true
}

// placementOf is the word for -t and -g; none fits a process with several threads of several GPUs.
func placementOf(threads, gpus int) string {
	switch {
	case threads == 1 && gpus == 1:
		return "process"
	case gpus == 1:
		return "thread"
	case threads == 1:
		return "group"
	}
	return ""
}

func integer(s string) int64 {
	v, _ := strconv.ParseInt(s, 10, 64)
	return v
}

func (p *parser) rank(s string) bool {
	m := rankLine.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	// In an old output the devices of the later ranks stand between the header and the first row.
	if p.cur == nil || p.closed() {
		p.ready()
	}
	r := result.Rank{Host: excerpt(m[4], 256), PCIBusID: excerpt(m[6], 32), DeviceName: excerpt(strings.TrimSpace(m[7]), 256)}
	r.Rank, _ = strconv.Atoi(m[1])
	r.Group, _ = strconv.Atoi(m[2])
	r.PID, _ = strconv.Atoi(m[3])
	r.Device, _ = strconv.Atoi(m[5])
	for i := range p.cur.Run.Ranks {
		if old := &p.cur.Run.Ranks[i]; old.Rank == r.Rank {
			if old.PID != r.PID || old.Host != r.Host {
				p.singletons(fmt.Sprintf("rank %d", r.Rank))
			}
			return true
		}
	}
	if len(p.cur.Run.Ranks) < maxRankList {
		p.cur.Run.Ranks = append(p.cur.Run.Ranks, r)
	}
	return true
}

func (p *parser) footer(s string) bool {
	bounds, average := boundsText.FindStringSubmatch(s), averageText.FindStringSubmatch(s)
	if bounds == nil && average == nil {
		return false
	}
	p.flushRow("the footer comes")
	if p.cur == nil || p.cur.Format != formatText {
		p.begin(formatText)
	}
	f := p.cur.Footer
	if f == nil {
		f = &Footer{}
		p.cur.Footer = f
	}
	if bounds != nil {
		if f.OutOfBounds != nil {
			p.singletons("the footer")
		}
		n := integer(bounds[1])
		f.OutOfBounds, f.Failed = &n, bounds[2] == "FAILED"
		return true
	}
	if v, err := strconv.ParseFloat(average[1], 64); err == nil {
		f.AvgBusBW = &v
	}
	f.BelowMinBW = average[2] == "FAILED"
	return true
}

func (p *parser) reduced(s string) bool {
	m := reducedText.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	p.tally("reduced-max-bytes", Info, p.line, "", func(int, []string) string {
		return fmt.Sprintf("the largest size was reduced to %s B because of the GPUs' memory", m[1])
	})
	return true
}

func (p *parser) enabled(s string) bool {
	if p.cur == nil {
		return true
	}
	m := &p.cur.Run.Config.Modes
	switch {
	case strings.Contains(s, "Blocking Enabled: wait after"):
		m.Blocking = 2
	case strings.Contains(s, "Blocking Enabled") && strings.Contains(s, "outer"):
		m.Blocking = 3
	case strings.Contains(s, "Blocking Enabled"):
		m.Blocking = 1
	case strings.Contains(s, "Parallel Init"):
		m.ParallelInit = true
	}
	return true
}

var (
	ownFault   = regexp.MustCompile(`^#\s+(?:run \d+, )?rank (\d+): (\d+) wrong elements? in \[(\d+), (\d+)\](?:; first: index (\d+) got (\S+) expected (\S+))? \((in-place|out-of-place)\)(?:; (.*))?$`)
	ownOutcome = regexp.MustCompile(`^# error: ([a-z][a-z -]*) \(exit status (\d+)\)(?:, rank (\d+))?(?:, host (\S+?))?(?:, in ([^:]+))?(?:: (.*))?$`)
	lastError  = regexp.MustCompile(`^# error: (.*)$`)
	ownNote    = regexp.MustCompile(`^#   (info|warning|fault): (.*)$`)
	ownSkipped = regexp.MustCompile(`^#   (.+?): (.*)$`)
	ownCycle   = regexp.MustCompile(`^# Cycle (\d+)$`)
	ownVariant = regexp.MustCompile(`^#(?: NCCL_ALGO=(\S+))?(?: NCCL_PROTO=(\S+))?$`)
	ownParity  = regexp.MustCompile(`^# Parity: .*\bplacement (\w+)`)
)

// ownLine reads the lines that only this program's table has, and the last error of nccl-tests.
func (p *parser) ownLine(s string) bool {
	if p.cur == nil || !strings.HasPrefix(s, "#") {
		return false
	}
	run := p.cur.Run
	if m := ownOutcome.FindStringSubmatch(s); m != nil {
		p.flushRow("the run ends")
		run.Outcome = result.Outcome{Status: m[1], Exit: int(integer(m[2])), Host: m[4], Phase: m[5], Message: m[6]}
		if m[3] != "" {
			rank := int(integer(m[3]))
			run.Outcome.Rank = &rank
		}
		return true
	}
	if m := lastError.FindStringSubmatch(s); m != nil {
		p.tally("last-error", Info, p.line, m[1], func(_ int, details []string) string {
			return "NCCL's last error of rank 0, which may be an old one: " + strings.Join(details, "; ")
		})
		return true
	}
	if p.cur.Run.Program.Name != "commprobe" {
		return false
	}
	if m := ownFault.FindStringSubmatch(s); m != nil {
		addFault(run, m)
		return true
	}
	if m := ownParity.FindStringSubmatch(s); m != nil {
		run.Config.Placement = m[1]
		return true
	}
	if m := ownCycle.FindStringSubmatch(s); m != nil {
		p.variant.Cycle = int(integer(m[1]))
		return true
	}
	if m := ownVariant.FindStringSubmatch(s); m != nil {
		p.variant.Algo, p.variant.Proto = m[1], m[2]
		return true
	}
	switch s {
	case "# Skipped:", "# Notes:":
		p.section = s
		return true
	}
	if m := ownNote.FindStringSubmatch(s); m != nil && p.section == "# Notes:" {
		run.Notes = append(run.Notes, result.Note{Severity: m[1], Text: m[2]})
		return true
	}
	if m := ownSkipped.FindStringSubmatch(s); m != nil && p.section == "# Skipped:" {
		run.Skipped = append(run.Skipped, result.Skipped{What: m[1], Why: m[2]})
		return true
	}
	return strings.HasPrefix(s, "# Runs:")
}

// addFault puts a line below a row into that row.
func addFault(run *result.Run, m []string) {
	if len(run.Rows) == 0 {
		return
	}
	half := halfOf(&run.Rows[len(run.Rows)-1], m[8] == "in-place")
	if half == nil || len(half.Faults) >= maxWarnings {
		return
	}
	f := result.Fault{Rank: int(integer(m[1])), Wrong: integer(m[2]), First: integer(m[3]), Last: integer(m[4]), Analysis: m[9]}
	if m[5] != "" {
		f.Samples = []result.Sample{{Index: integer(m[5]), Got: m[6], Expected: m[7]}}
	}
	half.Faults = append(half.Faults, f)
}

// parseStamp reads the time of -S and of JSON. It carries no zone and is taken for a local one.
func parseStamp(s string) time.Time {
	t, err := time.ParseInLocation(stampForm, s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}
