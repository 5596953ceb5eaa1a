package report

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
)

// saying is a line by which a program or its launcher says that something failed.
type saying struct {
	hint     string // a part that such lines have, for speed
	pattern  *regexp.Regexp
	code     string
	severity string
	detail   int    // group of the pattern that is told; 0: the whole line
	text     string // what it means, with %s for the details
	fails    bool   // the run ends with this
	perKey   int    // group that makes lines different warnings; 0: none
}

// exitMeaning is what the exit status of nccl-tests means.
var exitMeaning = map[string]string{
	"1": "internal error", "2": "CUDA error", "3": "NCCL error", "4": "time-out", "5": "not implemented, or fewer GPUs than asked for", "6": "invalid usage",
	"7": "wrong data or below the asked bandwidth", "255": "bad arguments", "137": "killed (out of memory, or the launcher's limit)", "139": "segmentation fault",
	"134": "aborted", "143": "terminated",
}

var sayings = []saying{
	{hint: "Test CUDA failure", pattern: regexp.MustCompile(`(\S+): Test CUDA failure \S+ '([^']*)('?)`), code: "cuda-failure", severity: Fault, detail: 1, perKey: 2, fails: true,
		text: "CUDA failed on %s: %k"},
	{hint: "Test NCCL failure", pattern: regexp.MustCompile(`(\S+): Test NCCL failure \S+ '([^']*)('?)`), code: "nccl-failure", severity: Fault, detail: 1, perKey: 2, fails: true,
		text: "NCCL failed on %s: %k"},
	{hint: "Test timeout", pattern: regexp.MustCompile(`(\S+): Test timeout \((\d+)s\)`), code: "time-out", severity: Fault, detail: 1, perKey: 2, fails: true,
		text: "an operation did not end within %k s on %s"},
	{hint: "Invalid number of GPUs", pattern: regexp.MustCompile(`Invalid number of GPUs: (\d+ requested but only \d+)`), code: "gpu-count", severity: Fault, detail: 1, fails: true,
		text: "more GPUs asked for than there are: %s found; check processes a node × -g × -t"},
	{hint: "invalid ", pattern: regexp.MustCompile(`^(invalid (?:sizes? (?:specified )?for '\w+'.*|option '.'.*|type .*, defaulting to .*|op .*, defaulting to .*))$`), code: "bad-argument", severity: Fault, detail: 1,
		text: "the program refuses its arguments: %s"},
	{hint: "processes than the ppr", pattern: regexp.MustCompile(`requested more processes than the ppr`), code: "launch-refused", severity: Fault, fails: true,
		text: "mpirun started nothing: more processes than its placement (ppr) has room for"},
	{hint: "not enough slots", pattern: regexp.MustCompile(`not enough slots available`), code: "launch-refused", severity: Fault, fails: true,
		text: "mpirun started nothing: fewer slots than processes"},
	{hint: "xit", pattern: regexp.MustCompile(`^(?:Exit code: +|.*\b[Ee]xited with (?:exit )?code:? )(\d+)`), code: "exit-code", severity: Fault, perKey: 1, fails: true,
		text: "a process ended with exit status %k"},
	{hint: "exited on signal", pattern: regexp.MustCompile(`exited on signal (\d+(?: \([^)]*\))?)`), code: "signal", severity: Fault, perKey: 1, fails: true,
		text: "a process was ended by signal %k"},
	{hint: "a non-zero exit code", pattern: regexp.MustCompile(`^a non-zero exit code`), code: "launcher-abort", severity: Fault, fails: true,
		text: "mpirun ended the job because a process failed"},
	{hint: "CANCELLED", pattern: regexp.MustCompile(`error: \*\*\* (?:JOB|STEP) (\S+).* CANCELLED`), code: "cancelled", severity: Fault, detail: 1, fails: true,
		text: "Slurm cancelled %s"},
	{hint: "shared libraries", pattern: regexp.MustCompile(`error while loading shared libraries: ([^:]+)`), code: "missing-library", severity: Fault, detail: 1, fails: true,
		text: "the program did not start: %s is missing"},
	{hint: "sent help message", pattern: regexp.MustCompile(`have sent help message \S+ / (\S+)`), code: "launcher-remark", severity: Info, detail: 1,
		text: "mpirun has something to say about its own settings: %s"},
	{hint: "error initializing an OpenFabrics", pattern: regexp.MustCompile(`error initializing an OpenFabrics device`), code: "launcher-remark", severity: Info,
		text: "Open MPI could not open an RDMA device for itself; NCCL does not depend on that"},
	{hint: "Incompatible NCCL versions", pattern: regexp.MustCompile(`Incompatible NCCL versions\. (.*)$`), code: "mixed-versions", severity: Fault, detail: 1, fails: true,
		text: "the program and the library do not fit: %s"},
}

// failure reads a line by which somebody says that something failed.
func (p *parser) failure(s string) bool {
	for i := range sayings {
		f := &sayings[i]
		if !strings.Contains(s, f.hint) {
			continue
		}
		if m := f.pattern.FindStringSubmatch(s); m != nil {
			p.fail(f, m)
			return true
		}
	}
	return p.failureChain(s)
}

func (p *parser) fail(f *saying, m []string) {
	p.flushRow("the run failed")
	detail, key := m[0], ""
	if f.detail > 0 {
		detail = m[f.detail]
	}
	detail = excerpt(detail, maxDetail)
	if f.perKey > 0 {
		key = excerpt(strings.TrimSuffix(strings.TrimSpace(m[f.perKey]), " /"), maxDetail)
	}
	meaning := key
	if len(m) > 3 && m[3] == "" {
		meaning += " … (the message is cut)"
	}
	if f.code == "exit-code" && exitMeaning[key] != "" {
		meaning += " (of nccl-tests: " + exitMeaning[key] + ")"
	}
	say := func(n int, details []string) string {
		text := strings.ReplaceAll(strings.ReplaceAll(f.text, "%s", strings.Join(details, ", ")), "%k", meaning)
		if n > len(details) || n > maxDetails {
			text += fmt.Sprintf(" (said %s)", times(n))
		}
		return text
	}
	p.tallyKey(f.code, key, f.severity, p.line, detail, say)
	if p.cur == nil || !f.fails {
		return
	}
	p.cur.state.failed = true
	if p.cur.Run.Outcome.Status == "" {
		status := "failed"
		if f.code == "time-out" {
			status = "time-out"
		}
		p.cur.Run.Outcome = result.Outcome{Status: status, Message: say(1, []string{detail})}
	}
}

var (
	chainText   = regexp.MustCompile(`^\.\. (\S+) pid \d+: Test failure (\S+)`)
	launchExtra = regexp.MustCompile(`^(App|Number of procs|PPR): +(.*)$`)
)

// failureChain reads lines that follow a failure; they tell nothing new but where.
func (p *parser) failureChain(s string) bool {
	if m := chainText.FindStringSubmatch(s); m != nil {
		if p.cur != nil {
			p.cur.state.failed = true
		}
		p.tally("failure-trace", Info, p.line, m[1], func(n int, details []string) string {
			return fmt.Sprintf("%s of a failed test from %s", plural(n, "line"), strings.Join(details, ", "))
		})
		return true
	}
	if m := launchExtra.FindStringSubmatch(s); m != nil && len(p.tallies) > 0 {
		if t := p.tallies[len(p.tallies)-1]; t.code == "launch-refused" {
			if before := t.text; len(t.details) < maxDetails {
				t.text = func(n int, d []string) string { return before(n, d) + "; " + m[1] + " " + excerpt(m[2], maxDetail) }
				t.details = append(t.details, m[0])
				if n := commandName.FindStringSubmatch(m[2]); n != nil && collectiveName(n[1]) != "" {
					p.hint = collectiveName(n[1])
				}
			}
			return true
		}
	}
	return false
}
