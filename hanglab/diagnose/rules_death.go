package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// echoes are exceptions that tell of another's failure: whoever raises one of these has noticed it, not caused it.
var echoes = []string{
	"DistBackendError", "DistNetworkError", "DistStoreError", "communicator was aborted", "Connection closed by", "Connection reset by peer", "Broken pipe", "Timed out waiting",
	"Detected mismatch between collectives", "ncclRemoteError", "ncclSystemError", "ncclInternalError", "NCCL error", "Watchdog caught", "SignalException", "ChildFailedError", "KeyboardInterrupt",
	"TCPStore", "Socket Timeout", "store->get", "ProcessExitedException", "ProcessRaisedException", "monitoredBarrier", "wait timeout", "CalledProcessError", "got signal: 15",
	"ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError", "RendezvousConnectionError", "collective operation timeout", "NCCL timeout", "BarrierTimeout",
}

func echo(text string) bool {
	return slices.ContainsFunc(echoes, func(s string) bool { return strings.Contains(text, s) })
}

// deaths reports processes that ended by themselves, not because others did.
func (j *job) deaths() (out []*finding) {
	out = append(out, j.hostMemory()...)
	out = append(out, j.deviceMemory()...)
	out = append(out, j.tracebacks()...)
	out = append(out, j.exits()...)
	return out
}

// troubled tells that a rank had told of a failure elsewhere before a fact: then its end follows from that.
func (j *job) troubled(f *evidence.Fact) bool {
	p := j.logs.progs[f.Rank]
	if p == nil {
		return false
	}
	return slices.ContainsFunc(p.trouble, func(t *evidence.Fact) bool { return !after(t, f) })
}

// after tells whether a is known to be later than b, by their times or their places in one file.
func after(a, b *evidence.Fact) bool {
	switch {
	case a.MonoNs > 0 && b.MonoNs > 0 && a.Rank == b.Rank:
		return a.MonoNs > b.MonoNs
	case a.Where.File == b.Where.File:
		return a.Where.Line > b.Where.Line
	case !a.Time.IsZero() && !b.Time.IsZero():
		return since(b.Time, a.Time) > 0
	}
	return false
}

// hostMemory: the kernel, or who watches over the job, has killed a process for memory.
func (j *job) hostMemory() (out []*finding) {
	var own, other []*evidence.Fact
	f := newFinding(OOMHost, explicit, stated)
	f.Confidence = direction
	for _, k := range j.logs.by[evidence.OOMKill] {
		e, sure := j.killed(k)
		switch {
		case e != nil:
			own = append(own, k)
			f.Confidence = max(f.Confidence, sure)
			f.Ranks = union(f.Ranks, []int{e.Rank})
			f.fact(k, "the host ran out of memory and ended this process")
			f.fact(e, fmt.Sprintf("rank %d was ended by SIGKILL%s", e.Rank, map[bool]string{true: "; its process id here is another one than the kernel's"}[e.PID > 0 && k.PID > 0 && e.PID != k.PID]))
		case k.Rank >= 0:
			own = append(own, k)
			f.Confidence = stated
			f.Ranks = union(f.Ranks, []int{k.Rank})
			f.fact(k, fmt.Sprintf("rank %d was ended for memory", k.Rank))
		case j.jobProgram(k) && j.failed() && j.inWindow(k.Time):
			other = append(other, k)
		}
	}
	switch {
	case len(own) > 0:
		f.when = own[0].Time
		j.forMemory = f.Ranks
		f.say("the host ran out of memory, and %s was ended by SIGKILL; the others waited for it", showRanks(f.Ranks))
	case len(other) > 0:
		f.Confidence, f.when = probable, other[0].Time
		f.fact(other[0], "the host ran out of memory and ended this process")
		f.say("the host ran out of memory and the kernel ended a process (%s): which rank it was is not said", other[0].Text)
		f.Next = append(f.Next, "the launcher's output, to join the process id with a rank")
	default:
		return nil
	}
	return []*finding{f}
}

// killed is the end of a rank that a kill for memory explains: by its process id, or, from inside of a container, by its time.
func (j *job) killed(k *evidence.Fact) (e *evidence.Fact, confidence float64) {
	ends := slices.DeleteFunc(slices.Concat(j.logs.by[evidence.Ended], j.logs.by[evidence.Launcher]), func(e *evidence.Fact) bool {
		return e.Rank < 0 || e.Signal != 9 || k.Host != "" && e.Host != "" && k.Host != e.Host
	})
	for _, e := range ends {
		if k.PID > 0 && e.PID == k.PID && !k.PIDOutside {
			return e, stated
		}
	}
	if !j.jobProgram(k) {
		return nil, 0
	}
	for _, e := range ends { // whoever watches over a process looks at it every few seconds
		if !k.Time.IsZero() && !e.Time.IsZero() && soon(k.Time, e.Time) {
			return e, stated
		}
	}
	for _, e := range ends {
		if k.PID <= 0 || e.PID <= 0 {
			return e, stated
		}
	}
	if len(ends) > 0 && j.inWindow(k.Time) && len(ranksOf(ends)) == 1 {
		return ends[0], inferred
	}
	return nil, 0
}

// soon tells that b is within some seconds after a; the two clocks may be in different time zones.
func soon(a, b time.Time) bool { return within(since(a, b), 30*time.Second) }

// services are programs that run beside a job, and are none of it.
var services = []string{"postgres", "mysqld", "java", "mongod", "redis", "nginx", "httpd", "apache", "chrome", "firefox", "node", "containerd", "dockerd", "kubelet", "sshd", "systemd",
	"prometheus", "grafana", "elastic", "clickhouse", "influxd", "telegraf", "etcd", "journald", "rsyslogd", "snapd", "gnome-shell", "Xorg"}

// jobProgram tells that a killed process may be one of the job's: by the names that others give its processes, else by what is known to run beside one.
func (j *job) jobProgram(k *evidence.Fact) bool {
	name := orText(k.Program, k.Op)
	if name == "" {
		return true
	}
	if programs := j.e.Programs(); len(programs) > 0 {
		return slices.ContainsFunc(programs, func(p string) bool { return evidence.SameProgram(p, name) })
	}
	return !slices.ContainsFunc(services, func(s string) bool { return strings.HasPrefix(strings.ToLower(name), s) })
}

// deviceMemory: a rank ran out of GPU memory and left; the others wait until their deadlines.
func (j *job) deviceMemory() (out []*finding) {
	list, doubt := j.caught(j.logs.by[evidence.CUDAOOM])
	if len(list) == 0 {
		return nil
	}
	if len(ranksOf(list)) == 0 && !j.failed() {
		f := newFinding(Undecided, explicit, direction)
		f.fact(list[0], "it speaks of GPU memory, and nothing shows that a program ended by it")
		f.alternative(OOMGPU, direction)
		return []*finding{f.say("a line speaks of GPU memory that ran out; nothing here shows that a rank of a job ended by it")}
	}
	f := newFinding(OOMGPU, explicit, stated, ranksOf(list)...)
	for _, x := range list[:min(4, len(list))] {
		f.fact(x, fmt.Sprintf("%s ran out of GPU memory", whose(x)))
		f.Location = orText(f.Location, userFrame(x))
	}
	f.when = list[0].Time
	for _, x := range j.logs.by[evidence.PeerClosed] {
		if intersects(x.Ranks, f.Ranks) {
			f.fact(x, fmt.Sprintf("a peer saw %s close its connection", showRanks(x.Ranks)))
		}
	}
	if len(f.Ranks) == 0 {
		f.Confidence = inferred
		for _, x := range j.logs.by[evidence.PeerClosed] {
			f.Ranks = union(f.Ranks, x.Ranks)
		}
	}
	f.doubted(doubt)
	f.say("%s ran out of GPU memory; the others waited for it", orText(rankText(f.Ranks), "a rank"))
	return []*finding{f}
}

func rankText(ranks []int) string {
	if len(ranks) == 0 {
		return ""
	}
	return showRanks(ranks)
}

func orText(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func intersects(a, b []int) bool {
	return slices.ContainsFunc(a, func(x int) bool { return slices.Contains(b, x) })
}

func union(a, b []int) []int {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func whose(f *evidence.Fact) string {
	switch {
	case f.Rank >= 0:
		return fmt.Sprintf("rank %d", f.Rank)
	case f.GroupRank >= 0:
		return fmt.Sprintf("rank %d of its group", f.GroupRank)
	case f.PID > 0:
		return fmt.Sprintf("process %d", f.PID)
	}
	return "a process"
}

// userFrame is the innermost frame of a traceback that is not a library's.
func userFrame(f *evidence.Fact) string {
	for _, fr := range f.Stack {
		if !library(fr.File) {
			return fmt.Sprintf("%s:%d", fr.File, fr.Line)
		}
	}
	return ""
}

// tracebacks: a rank's program failed by an exception of its own.
func (j *job) tracebacks() (out []*finding) {
	var own []*evidence.Fact
	for _, t := range j.logs.by[evidence.Traceback] {
		if !j.aboutNaN(t) && !t.Consequence && !echo(t.Text) && !echo(t.Op) && !j.troubled(t) && !strings.Contains(t.Text, "OutOfMemory") && !strings.Contains(strings.ToLower(t.Text), "out of memory") {
			own = append(own, t)
		}
	}
	own, doubt := j.caught(own)
	if len(own) == 0 {
		return nil
	}
	ranks := ranksOf(own)
	if len(ranks) > 1 { // the earliest, where times tell
		slices.SortStableFunc(own, func(a, b *evidence.Fact) int {
			if after(b, a) {
				return -1
			}
			return 0
		})
	}
	own = slices.DeleteFunc(own, func(t *evidence.Fact) bool { // those that came clearly later follow from the first
		return !t.Time.IsZero() && !own[0].Time.IsZero() && since(own[0].Time, t.Time) > clearly
	})
	ranks = ranksOf(own)
	f := newFinding(RankCrash, explicit, stated, ranks...)
	for _, t := range own[:min(4, len(own))] {
		f.fact(t, fmt.Sprintf("%s failed by its own exception", whose(t)))
		f.Location = orText(f.Location, userFrame(t))
	}
	f.when = own[0].Time
	if len(ranks) == 0 {
		f.Ranks, f.Confidence = j.exitedRanks(), inferred
		f.kinds = nil
	}
	f.doubted(doubt)
	f.say("%s ended by an exception of its own program (%s); the others waited for it", orText(rankText(f.Ranks), "a rank"), own[0].Text)
	return []*finding{f}
}

// failed tells that something in the logs shows a program that ended, or a job that waits.
func (j *job) failed() bool {
	if j.hangs() {
		return true
	}
	for _, k := range failures {
		if k != evidence.Finished && k != evidence.CUDAOOM && len(j.logs.by[k]) > 0 {
			return true
		}
	}
	return len(j.e.Dumps) > 0
}

// exitedRanks are those whose end is no echo.
func (j *job) exitedRanks() (ranks []int) {
	for _, e := range slices.Concat(j.logs.by[evidence.Ended], j.logs.by[evidence.Launcher]) {
		if e.Rank >= 0 && !j.echoExit(e) {
			ranks = append(ranks, e.Rank)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// echoExit tells an end that follows from another's: aborted by its own watchdog (6), ended by the launcher (15), or after it had told of trouble.
func (j *job) echoExit(e *evidence.Fact) bool {
	switch {
	case e.Consequence || e.Signal == 6 || e.Signal == 15 || e.Signal == 2:
		return true
	case e.Signal == 9 && (slices.Contains(j.forMemory, e.Rank) || j.cancelledBefore(e)):
		return true
	case e.Code == 0 && e.Signal == 0, e.Code < 0 && e.Signal == 0:
		return true
	}
	p := j.logs.progs[e.Rank]
	if p == nil || e.Rank < 0 {
		return false
	}
	for _, k := range []evidence.FactKind{evidence.Traceback, evidence.Fingerprint} {
		for _, t := range j.logs.by[k] {
			if t.Rank == e.Rank && (k == evidence.Fingerprint || t.Consequence || echo(t.Text)) {
				return true
			}
		}
	}
	hard := e.Signal == 9 || e.Signal == 11 || e.Signal == 7 || e.Signal == 4 || e.Signal == 8
	return !hard && len(p.trouble) > 0
}

// exits: a process ended with a status or by a signal, and nothing before it says that others had.
func (j *job) exits() (out []*finding) {
	bySignal := func(e *evidence.Fact) int { // which ends weigh more
		switch e.Signal {
		case 9, 7, 11:
			return 0
		case 0:
			return 1
		}
		return 2
	}
	var own []*evidence.Fact
	for _, e := range slices.Concat(j.logs.by[evidence.Ended], j.logs.by[evidence.Launcher]) {
		if !j.echoExit(e) && !j.killedByWatch(e) {
			own = append(own, e)
		}
	}
	if len(own) == 0 {
		return nil
	}
	slices.SortStableFunc(own, func(a, b *evidence.Fact) int { return bySignal(a) - bySignal(b) })
	best := bySignal(own[0])
	own = slices.DeleteFunc(own, func(e *evidence.Fact) bool { return bySignal(e) != best })
	f := newFinding(RankCrash, explicit, stated, ranksOf(own)...)
	for _, e := range own[:min(4, len(own))] {
		f.fact(e, fmt.Sprintf("%s ended %s, which no watchdog and no launcher did to it", whose(e), howEnded(e)))
	}
	f.when = own[0].Time
	if len(f.Ranks) == 0 {
		f.Confidence = probable
	}
	if all := len(j.logs.ranks); own[0].Signal == 0 && all > 1 && len(f.Ranks) == all { // it has one reason, which is none of these ends
		f.Confidence, f.layer = byAbsence, summary
	}
	f.say("%s ended %s; the others waited for it", orText(rankText(f.Ranks), whose(own[0])), howEnded(own[0]))
	switch own[0].Signal {
	case 9:
		f.alternative(OOMHost, oneView, f.Ranks...)
		f.Next = append(f.Next, "the kernel log of that host: dmesg -T | grep -i -e oom -e 'killed process'")
	case 7:
		f.Next = append(f.Next, "df -h /dev/shm on that host: SIGBUS often means that shared memory is full")
	}
	return []*finding{f}
}

// killedByWatch tells an end by whoever watches over the job, which came after the trouble.
func (j *job) killedByWatch(e *evidence.Fact) bool {
	for _, m := range j.logs.by[evidence.Marker] {
		if m.Op == "killed_by_supervisor" && m.Rank == e.Rank {
			return true
		}
	}
	return false
}

func howEnded(e *evidence.Fact) string {
	names := map[int]string{9: "SIGKILL", 11: "SIGSEGV", 7: "SIGBUS", 6: "SIGABRT", 15: "SIGTERM", 4: "SIGILL", 8: "SIGFPE"}
	switch {
	case e.Signal > 0 && names[e.Signal] != "":
		return "by " + names[e.Signal]
	case e.Signal > 0:
		return fmt.Sprintf("by signal %d", e.Signal)
	}
	return fmt.Sprintf("with exit status %d", e.Code)
}
