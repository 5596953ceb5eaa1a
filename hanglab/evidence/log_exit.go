package evidence

import (
	"bytes"
	"strings"
)

// signalNumbers has the signals that end processes, as shells and launchers name them.
var signalNumbers = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11,
	"SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15, "SIGXCPU": 24,
}

// signalTexts is what the C library calls them, the longest first where one begins with another.
var signalTexts = []struct {
	text   string
	signal int
}{
	{"Killed", 9}, {"Segmentation fault", 11}, {"Bus error", 7}, {"Aborted", 6}, {"Terminated", 15}, {"Floating point exception", 8}, {"Illegal instruction", 4},
	{"Out Of Memory", 9}, {"OOM Killed", 9}, {"Trace/breakpoint trap", 5}, {"Hangup", 1}, {"Interrupt", 2},
}

// exitReader remembers whom a report of several lines is about.
type exitReader struct {
	mpiRank, mpiPID int // of the "Process name" or "RANK" line; rank + 1
	mpiLeft         int // lines in which its exit code may come
	mpiHost         string
	pod             string // of kubectl describe
}

func (r *exitReader) inside() bool { return r.mpiLeft > 0 }

// setExit puts an exit status as launchers write it: -9 and 137 are both SIGKILL.
func (f *Fact) setExit(code int) {
	switch {
	case code < 0 && code > -65:
		f.Signal = -code
	case code > 128 && code < 128+65:
		f.Code, f.Signal = code, code-128
	default:
		f.Code = code
	}
}

// take takes lines of reports that go over several lines.
func (r *exitReader) take(c *logContext, found uint32, at Where) bool {
	text := bytes.TrimSpace(c.prefix.text)
	if found&(1<<topicPod) != 0 {
		if name, ok := bytes.CutPrefix(text, []byte("Name:  ")); ok {
			r.pod = cutText(bytes.TrimSpace(name), 100)
		}
	}
	if found&(1<<topicMPI) != 0 && r.mpiBegins(text) {
		return true
	}
	if r.mpiLeft == 0 {
		return false
	}
	r.mpiLeft--
	text = bytes.TrimLeft(text, "= ")
	if i := bytes.Index(text, []byte("Exit code:")); i > 0 {
		text = text[i:]
	}
	low := bytes.ToLower(text[:min(len(text), 40)])
	code, ok := numberBehind(low, "exit code:", "exit code ", "killed by signal: ")
	if !ok {
		return false
	}
	f := newFact(Ended, at, c.prefix.text)
	f.Rank, f.PID, f.Host, f.Detail = r.mpiRank-1, r.mpiPID, r.mpiHost, "mpirun"
	if f.setExit(code); bytes.Contains(low, []byte("signal")) || code > 0 && code < 32 && bytes.Contains(text, []byte("KILLED")) {
		f.Code, f.Signal = -1, code
	}
	r.mpiLeft = 0
	c.addOther(f)
	return true
}

// mpiBegins takes "Process name: [[36404,1],2]", "Process name: [prterun-host-1@1,2]" and "=   RANK 3 PID 123 RUNNING AT node03".
func (r *exitReader) mpiBegins(text []byte) bool {
	if rest, ok := bytes.CutPrefix(text, []byte("Process name: [")); ok {
		name, _, _ := bytes.Cut(rest, []byte("] "))
		n, ok := mpiTag(bytes.TrimRight(name, "] "))
		if ok {
			*r = exitReader{mpiRank: n + 1, mpiLeft: 4, pod: r.pod}
		}
		return ok && len(name) == len(rest) // the later form has the exit code on the same line
	}
	i := bytes.Index(text, []byte("RUNNING AT "))
	if i < 0 {
		return false
	}
	*r = exitReader{mpiLeft: 4, pod: r.pod, mpiHost: cutText(bytes.TrimSpace(text[i+len("RUNNING AT "):]), 100)}
	if n, ok := numberBehind(text, "RANK "); ok {
		r.mpiRank = n + 1
	}
	if n, ok := numberBehind(text, "PID "); ok {
		r.mpiPID = n
	}
	return true
}

// exitForms are the one-line forms, each asked in turn.
var exitForms = []func(c *logContext, line []byte, at Where) bool{
	(*logContext).agentExit, (*logContext).signalReport, (*logContext).slurmExit, (*logContext).mpiExit, (*logContext).spawnExit, (*logContext).podExit, (*logContext).shellExit,
}

// exit takes what launchers, agents, and shells say of processes that have ended.
func (c *logContext) exit(line []byte, at Where) bool {
	for _, form := range exitForms {
		if form(c, line, at) {
			return true
		}
	}
	return false
}

// agentExit takes torchrun's agent and DeepSpeed's launcher.
func (c *logContext) agentExit(line []byte, at Where) bool {
	f := newFact(Ended, at, line)
	if code, ok := numberBehind(line, "failed (exitcode: "); ok {
		f.setExit(code)
		f.Detail = "agent"
		if n, ok := numberBehind(line, "(pid: "); ok {
			f.PID = n
		}
		if n, ok := numberBehind(line, "local_rank: "); ok {
			f.LocalRank = n
		}
		if _, binary, ok := bytes.Cut(line, []byte("of binary: ")); ok {
			f.Program = programName(binary)
		}
		s := c.addOther(f)
		s.label = "agent" // the report that follows may know the process
		return true
	}
	if i := bytes.Index(line, []byte(" closing signal SIG")); i > 0 {
		f.Detail, f.Consequence = "agent", true
		if n, ok := numberBehind(line, "Sending process "); ok {
			f.PID = n
		}
		f.Signal = signalNamed(line[i+len(" closing signal "):])
		c.addOther(f)
		return true
	}
	if code, ok := numberBehind(line, "exits with return code = "); ok {
		f.setExit(code)
		f.Detail = "deepspeed"
		c.addOther(f)
		return true
	}
	return false
}

// signalNamed reads "SIGKILL" or "9" at the beginning of b.
func signalNamed(b []byte) int {
	i := 0
	for i < len(b) && (b[i]-'0' < 10 || b[i] >= 'A' && b[i] <= 'Z') {
		i++
	}
	if n := shortNumber(b[:i]); n > 0 && n < 65 {
		return n
	}
	return signalNumbers[string(b[:i])]
}

// signalText finds the C library's name of a signal at the beginning of b.
func signalText(b []byte) int {
	for _, s := range signalTexts {
		if bytes.HasPrefix(b, []byte(s.text)) {
			return s.signal
		}
	}
	return 0
}

// slurmExit takes "srun: error: node03: task 3: Exited with exit code 1", "… tasks 0-2,4: Killed", and slurmstepd's word on memory.
func (c *logContext) slurmExit(line []byte, at Where) bool {
	if i := bytes.Index(line, []byte("slurmstepd: error: ")); i >= 0 {
		if bytes.Contains(line, []byte("oom_kill event")) || bytes.Contains(line, []byte("oom-kill event")) || bytes.Contains(line, []byte("OOM Killed")) {
			f := newFact(OOMKill, at, line)
			f.Detail = "slurm"
			c.addOther(f)
			return true
		}
		return false // "CANCELLED AT" is about the job as a whole
	}
	i := bytes.Index(line, []byte("srun: error: "))
	if i < 0 {
		return false
	}
	host, rest, ok := bytes.Cut(line[i+len("srun: error: "):], []byte(": task"))
	if !ok {
		return false
	}
	list, what, ok := bytes.Cut(bytes.TrimLeft(rest, "s "), []byte(": "))
	if !ok {
		return false
	}
	f := newFact(Ended, at, line)
	f.Host, f.Detail = cutText(host, 100), "slurm"
	if code, ok := numberBehind(what, "xit code "); ok {
		f.setExit(code)
	} else if f.Signal = signalText(what); f.Signal == 0 {
		return false
	}
	if bytes.HasPrefix(what, []byte("Out Of Memory")) {
		f.Kind, f.Signal = OOMKill, 9
	}
	f.Consequence = f.Signal == 15
	c.addEach(f, ranksIn(list))
	return true
}

// signalReport takes what crash handlers print: "[node03:1234] Signal: Segmentation fault (11)", "*** SIGSEGV (@0x10) received by PID 1234 (TID 0x7f) ***".
func (c *logContext) signalReport(line []byte, at Where) bool {
	f := newFact(Ended, at, line)
	f.Detail = "crash handler"
	if before, rest, ok := bytes.Cut(line, []byte("] Signal: ")); ok {
		i := bytes.LastIndexByte(rest, '(')
		if i < 0 {
			return false
		}
		f.Signal = signalNamed(rest[i+1:])
		f.PID = max(trailingNumber(before), 0)
	} else if _, rest, ok := bytes.Cut(line, []byte("*** SIG")); ok {
		f.Signal = signalNamed(append([]byte("SIG"), rest[:min(len(rest), 10)]...))
		if n, ok := numberBehind(rest, "received by PID "); ok {
			f.PID = n
		}
	}
	if f.Signal == 0 {
		return false
	}
	c.add(f)
	return true
}

// addEach adds a fact for each of a few ranks, one with a list for many.
func (c *logContext) addEach(f Fact, ranks []int) {
	if len(ranks) == 0 || len(ranks) > 256 {
		f.Ranks = ranks
		c.addOther(f)
		return
	}
	for _, r := range ranks {
		f.Rank = r
		c.addOther(f)
	}
}

// mpiExit takes "mpirun noticed that process rank 3 with PID 0 on node x exited on signal 9 (Killed)." and "MPI_ABORT was invoked on rank 1".
func (c *logContext) mpiExit(line []byte, at Where) bool {
	f := newFact(Ended, at, line)
	f.Detail = "mpirun"
	if n, ok := numberBehind(line, "noticed that process rank "); ok {
		f.Rank = n
		if pid, ok := numberBehind(line, "with PID "); ok {
			f.PID = pid
		}
		if _, rest, ok := bytes.Cut(line, []byte(" on node ")); ok {
			host, _, _ := bytes.Cut(rest, []byte(" "))
			f.Host = cutText(host, 100)
		}
		if s, ok := numberBehind(line, "exited on signal "); ok {
			f.Signal = s
		}
		c.addOther(f)
		return true
	}
	if n, ok := numberBehind(line, "MPI_ABORT was invoked on rank "); ok {
		f.Rank = n
		c.addOther(f)
		return true
	}
	return false
}

// spawnExit takes "process 1 terminated with signal SIGKILL" and "… with exit code 1" of torch.multiprocessing.
func (c *logContext) spawnExit(line []byte, at Where) bool {
	i := bytes.Index(line, []byte(" terminated with "))
	if i < 0 {
		return false
	}
	before := line[:i]
	j := bytes.LastIndex(before, []byte("rocess "))
	if j < 0 {
		return false
	}
	n, rest, ok := leadingNumber(before[j+len("rocess "):])
	if !ok || len(rest) > 0 {
		return false
	}
	f := newFact(Ended, at, line)
	f.Rank, f.Detail = n, "spawn"
	what := line[i+len(" terminated with "):]
	if rest, ok := bytes.CutPrefix(what, []byte("signal ")); ok {
		f.Signal = signalNamed(rest)
	} else if code, ok := numberBehind(what, "exit code "); ok {
		f.setExit(code)
	} else {
		return false
	}
	c.addOther(f)
	return true
}

// podExit takes Kubernetes' "Reason: OOMKilled", "OOMKilled" in its tables, and exit codes of commands in containers.
func (c *logContext) podExit(line []byte, at Where) bool {
	if bytes.Contains(line, []byte("OOMKilled")) {
		f := newFact(OOMKill, at, line)
		f.Detail, f.Signal, f.Host = "kubernetes", 9, c.exits.pod
		if fields := bytes.Fields(line); len(fields) > 2 && bytes.Contains(fields[1], []byte("/")) {
			f.Host = cutText(fields[0], 100)
		}
		c.addOther(f)
		return true
	}
	code, ok := numberBehind(line, "command terminated with exit code ", "terminated with exit code ", "Exit Code:", "exitCode: ", `"exitCode":`)
	if !ok || code == 0 {
		return false
	}
	f := newFact(Ended, at, line)
	if f.Detail = "kubernetes"; bytes.Contains(line, []byte("Exit Code:")) {
		f.Host = c.exits.pod
	}
	f.setExit(code)
	c.addOther(f)
	return true
}

// shellExit takes what a shell prints when a program was ended by a signal: "Killed" alone, or "run.sh: line 5: 123 Killed   python train.py".
func (c *logContext) shellExit(line []byte, at Where) bool {
	text := bytes.TrimSpace(c.prefix.text)
	if len(text) > 4 && text[0] == '[' && text[2] == ']' { // of a job in the background: "[1]+  Killed  python train.py"
		rest := bytes.TrimLeft(text[3:], "+- ")
		for _, s := range signalTexts {
			if bytes.HasPrefix(rest, []byte(s.text+" ")) {
				text = []byte(s.text)
			}
		}
	}
	f := newFact(Ended, at, line)
	f.Detail = "shell"
	if f.Signal = signalText(text); f.Signal > 0 {
		rest := string(text)
		for _, s := range signalTexts {
			rest = strings.TrimPrefix(rest, s.text)
		}
		if rest != "" && rest != " (core dumped)" {
			return false
		}
		c.add(f)
		return true
	}
	_, rest, ok := bytes.Cut(text, []byte(": line "))
	if !ok {
		return false
	}
	_, rest, ok = leadingColonNumber(rest)
	if !ok {
		return false
	}
	pid, rest, ok := leadingNumber(rest)
	if f.Signal = signalText(bytes.TrimLeft(rest, " ")); !ok || f.Signal == 0 {
		return false
	}
	f.PID = pid
	c.add(f)
	return true
}

// leadingColonNumber reads "5: ".
func leadingColonNumber(b []byte) (int, []byte, bool) {
	n, rest, ok := leadingNumber(b)
	rest, colon := bytes.CutPrefix(rest, []byte(":"))
	return n, rest, ok && colon
}
