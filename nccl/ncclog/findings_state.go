package ncclog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// initialised says whether every rank that began to initialise finished; no where none is in the log.
func (f *finder) initialised() bool {
	any, all := false, true
	f.ranks(func(_ *Comm, r *Rank) {
		any = true
		all = all && passed(r)
	})
	return any && all
}

// pcieP2P are edges by which GPUs write to each other over PCIe: the log shows P2P and a topology without NVLink.
func (f *finder) pcieP2P() (lines []Line, path string) {
	if f.hasNVLink() != no {
		return nil, ""
	}
	f.ranks(func(_ *Comm, r *Rank) {
		for _, g := range r.Graphs {
			if g.Pattern == 4 {
				path = g.TypeIntra
			}
		}
		for _, e := range r.Edges {
			if e.Transport == "P2P" && !strings.Contains(e.Via, "direct pointer") {
				lines = append(lines, edgeLine(e))
				return
			}
		}
	})
	return lines, path
}

const acsFix = "ACS off on the bridges above the GPUs (BIOS, setpci, pci=noacs where the kernel has it), iommu=pt or off"

// afterInit: the communicators came up, and then nothing finished.
func (f *finder) afterInit() {
	if !f.initialised() {
		return
	}
	var dogs []Line
	for _, x := range f.log.Failures {
		if x.Kind == "watchdog" {
			dogs = append(dogs, x.At)
		}
	}
	pcie, path := f.pcieP2P()
	if len(dogs) == 0 {
		f.quietAfterInit(pcie, path)
		return
	}
	x := Finding{Severity: Fault, ID: "hang-after-init", Evidence: append(dogs[:1:1], append(pcie, dogs[1:]...)...),
		Title: "A call never finished: the program's watchdog gave up on " + firstOf(workText(dogs), "it") + ", although every rank in the log came through initialisation" + f.quiet(),
		Cost:  "the job stands still until the watchdog ends it",
		Next:  "the sequence numbers of all ranks (are some a call behind? then those are stuck or skipped one); COLL lines; `ncclras` while it hangs; dmesg for Xid; port counters",
		Fix:   "unknown from this log alone: either the ranks are out of step, or one is stuck, or the fabric lost data"}
	if len(pcie) > 0 {
		x.Title += ". The GPUs write to each other over PCIe" + pathText(path) + ": with ACS or an IOMMU on, such writes may never arrive"
		x.Next = "NCCL_P2P_DISABLE=1: if it then runs, that is it; p2pBandwidthLatencyTest. " + x.Next
		x.Fix = acsFix + ". If P2P is not to blame: " + x.Fix
	}
	f.add(tierState, f.has("coll-mismatch") || f.has("coll-behind"), x)
}

var work = rx(`SeqNum=(\d+), OpType=(\w+)`)

// workText names the calls on which a watchdog gave up.
func workText(lines []Line) string {
	var out []string
	for _, l := range lines {
		if m := work.FindStringSubmatch(l.Text); m != nil {
			out = append(out, m[2]+" number "+m[1])
		}
	}
	return names(3, out)
}

// quiet says that NCCL gave no warning, where that is so.
func (f *finder) quiet() string {
	if len(f.log.Warnings) == 0 {
		return " and NCCL warned of nothing"
	}
	return ""
}

// cutText is what follows a mark, at most n bytes of it.
func cutText(s, mark string, n int) string {
	if _, after, ok := strings.Cut(s, mark); ok {
		s = mark + after
	}
	if len(s) > n {
		s = s[:n] + "…"
	}
	return s
}

func pathText(p string) string {
	if p == "" {
		return ""
	}
	return " (" + p + ")"
}

// quietAfterInit: nothing shows that a call ever finished. That is what a hang looks like, and also a log that was copied early.
func (f *finder) quietAfterInit(pcie []Line, path string) {
	ended := false
	f.ranks(func(_ *Comm, r *Rank) { ended = ended || r.End != nil })
	if ended || len(pcie) == 0 {
		return
	}
	f.add(tierState, false, Finding{Severity: Info, ID: "p2p-over-pcie", Evidence: pcie,
		Title: "All ranks finished Init COMPLETE, and the GPUs write to each other over PCIe" + pathText(path) + ". If no call completes now, these writes do not arrive: ACS or IOMMU",
		Next:  "only if it hangs: NCCL_P2P_DISABLE=1 proves it, p2pBandwidthLatencyTest shows it without NCCL", Fix: acsFix})
}

// resultText decodes the words that frameworks print for a result of NCCL.
var resultText = []struct{ part, meaning string }{
	{"unhandled cuda error", "NCCL result 1: a CUDA call failed inside NCCL"},
	{"unhandled system error", "NCCL result 2: a call to the operating system or the network library failed"},
	{"internal error", "NCCL result 3: a check inside NCCL failed; often a wrong setting or a version that does not fit"},
	{"invalid argument", "NCCL result 4: an argument of the call is wrong"},
	{"invalid usage", "NCCL result 5: the call is not allowed there, or ranks disagree"},
	{"remote process exited", "NCCL result 6: the peer ended or the network failed; it does not say which"},
}

// failures are what the program or launcher says. They come last in the chain: what stands above them is nearer to the cause.
func (f *finder) failures() {
	var killed, oom, other, finger []Line
	var meaning []string
	for _, x := range f.log.Failures {
		low := strings.ToLower(x.At.Text)
		switch {
		case strings.Contains(low, "cuda out of memory"), x.Kind == "watchdog" && f.initialised():
			continue
		case strings.Contains(low, "oom-kill"), strings.Contains(low, "oom_kill"), strings.Contains(low, "out of memory: killed"):
			oom = append(oom, x.At)
			continue
		case strings.Contains(low, "exitcode: -9"), strings.Contains(low, "signal 9"), strings.Contains(low, "sigkill"):
			killed = append(killed, x.At)
			continue
		case strings.Contains(low, "detected mismatch between collectives"):
			finger = append(finger, x.At)
			continue
		}
		for _, r := range resultText {
			if strings.Contains(low, r.part) {
				meaning = append(meaning, r.meaning)
			}
		}
		other = append(other, x.At)
	}
	if len(finger) > 0 {
		f.add(tierCause, false, Finding{Severity: Fault, ID: "coll-mismatch-detected", Title: "The program found that its ranks do not make the same call: " + cutText(finger[0].Text, "Detected mismatch", 300), Evidence: finger,
			Next: "the code path of the rank that differs", Fix: "the same sequence of calls with the same sizes on all ranks"})
	}
	if len(oom) > 0 {
		f.add(tierCause, false, Finding{Severity: Fault, ID: "host-oom", Title: "The memory of the host or container ran out, and the kernel killed a process", Evidence: append(oom, killed...),
			Cost: "its peers wait for it or lose their connections", Next: "`dmesg -T | grep -i oom`, the memory limit of the container, data-loader workers", Fix: "more memory, or fewer workers"})
		killed = nil
	}
	if len(killed) > 0 {
		f.add(tierState, true, Finding{Severity: Fault, ID: "process-killed", Title: "A process was killed by signal 9. Usually that is the host's memory running out, or the launcher clearing up after another failure", Evidence: killed,
			Cost: "its peers wait for it or lose their connections", Next: "`dmesg -T | grep -i oom` and the memory limit of the container", Fix: "more memory, fewer data-loader workers; or see the failure before it"})
	}
	if len(other) == 0 {
		return
	}
	title := "The program failed"
	if m := names(2, meaning); m != "" {
		title += " (" + m + ")"
	} else if w := workText(other); w != "" {
		title += ": its watchdog gave up on " + w
	} else {
		title += ": " + cutText(other[0].Text, "failed (exitcode", 120)
	}
	next := "the first fault of this list"
	if len(f.log.Warnings) == 0 {
		title += "; the log has no WARN line of NCCL that says why"
		next = "run again with NCCL_DEBUG=INFO and keep the logs of all ranks: the cause is a WARN line of the rank that failed first"
	}
	f.add(tierLoose, true, Finding{Severity: Fault, ID: "program-failed", Title: title, Evidence: other, Next: next})
}

// bareTraces: results on their way up without the line that began it.
func (f *finder) bareTraces() {
	if len(f.log.Warnings) > 0 {
		return
	}
	var g group
	for _, p := range f.log.Processes {
		for _, t := range p.Traces {
			if t.Result != 0 && t.Result != 7 && len(p.Networks) == 0 { // a process that went on had only tried something
				g.take(p.Host, fmt.Sprintf("%s returned %d", t.Place, t.Result), t.At)
			}
		}
	}
	if len(g.lines) == 0 || f.initialised() {
		return
	}
	f.add(tierLoose, true, Finding{Severity: Odd, ID: "error-without-warning", Title: "Functions of NCCL returned errors" + on(g.hosts) + " (" + names(3, g.what) + "), and no WARN line of these logs says why", Evidence: g.lines,
		Next: "a plugin or device that was tried and given up leaves such lines too; if the job failed, look for the WARN line in the other logs, or run with NCCL_DEBUG=INFO"})
}

// slowInit names the phase and, for the bootstrap, who was waited for.
func (f *finder) slowInit() {
	const slow = 10.0 // seconds; a thousand ranks need a few
	for _, c := range f.log.Comms {
		var worst *Rank
		var first *Rank // with the shortest wait: it came last
		for _, r := range c.Ranks {
			if t := initTotal(r); t > slow+0.01*float64(c.NRanks) && (worst == nil || t > initTotal(worst)) {
				worst = r
			}
			if r.Bootstrap != nil && (first == nil || r.Bootstrap.Total < first.Bootstrap.Total) {
				first = r
			}
		}
		if worst == nil {
			continue
		}
		phase, secs, at := slowPhase(worst)
		title := fmt.Sprintf("%s: initialisation took %.0f s on %s%s, %.0f of them %s", commName(c), initTotal(worst), rankName(worst.Rank), on([]string{hostAt(worst.Process)}), secs, phaseText[phase])
		next := phaseNext[phase]
		if phase == "bootstrap" {
			if b := worst.Bootstrap; b != nil && b.Recv > secs/2 {
				title += fmt.Sprintf(" (%.1f s until the others were there)", b.Recv)
			}
			switch {
			case len(c.Ranks) < 2 || !hasAll(c):
				title += ". Which rank was late cannot be told: not all ranks are in the log"
			case first != nil && first != worst && first.Bootstrap.Total < initTotal(worst)/2:
				title += fmt.Sprintf(". The last to come was %s%s", rankName(first.Rank), on([]string{hostAt(first.Process)}))
			}
		}
		f.add(tierState, false, Finding{Severity: Odd, ID: "slow-init", Title: title, Evidence: at, Cost: "time at each start and for each communicator", Next: next})
		return
	}
}

func initTotal(r *Rank) float64 {
	if r.Init != nil {
		return r.Init.Total
	}
	if r.Bootstrap != nil {
		return r.Bootstrap.Total
	}
	return 0
}

var phaseText = map[string]string{"bootstrap": "in the bootstrap, waiting for other ranks", "kernels": "loading kernels", "alloc": "allocating memory", "allgathers": "in exchanges between the ranks",
	"topo": "detecting the topology", "graphs": "searching for channels", "connections": "making connections", "rest": "elsewhere"}

var phaseNext = map[string]string{"bootstrap": "start-up of the slowest process: imports, images, file systems; the same start for all", "kernels": "CUDA_MODULE_LOADING=LAZY; a slow file system under libnccl; persistence mode of the driver",
	"alloc": "GPU memory pressure, cuMem, persistence mode of the driver", "allgathers": "the network of the bootstrap interface", "topo": "slow sysfs or NVML (broken GPU?), a network plugin that looks for devices",
	"graphs": "odd topologies make the search long: NCCL_TOPO_FILE, a VM", "connections": "the fabric: retries, subnet manager, address resolution; IB counters", "rest": ""}

// slowPhase is the longest part of an initialisation.
func slowPhase(r *Rank) (phase string, secs float64, at []Line) {
	i := r.Init
	if i == nil {
		return "bootstrap", r.Bootstrap.Total, []Line{r.Bootstrap.At}
	}
	at = []Line{i.At}
	if r.Bootstrap != nil {
		at = append(at, r.Bootstrap.At)
	}
	for _, p := range []struct {
		name string
		t    float64
	}{{"rest", i.Rest}, {"bootstrap", i.Bootstrap}, {"kernels", i.Kernels}, {"alloc", i.Alloc}, {"allgathers", i.AllGathers}, {"topo", i.Topo}, {"graphs", i.Graphs}, {"connections", i.Connections}} {
		if p.t > secs {
			phase, secs = p.name, p.t
		}
	}
	return firstOf(phase, "rest"), secs, at
}

// proxyCores: many proxy threads of a host on one core.
func (f *finder) proxyCores() {
	cores, lines, count := map[string]map[int]bool{}, map[string][]Line{}, map[string]int{}
	for _, p := range f.log.Processes {
		for _, c := range p.ProxyCores {
			if p.Host == "" || c.Core < 0 {
				continue
			}
			if cores[p.Host] == nil {
				cores[p.Host] = map[int]bool{}
			}
			cores[p.Host][c.Core] = true
			count[p.Host]++
			lines[p.Host] = append(lines[p.Host], c.At)
		}
	}
	var g group
	for _, h := range sortedKeys(cores) {
		if count[h] >= 4 && len(cores[h]) == 1 {
			g.take(h, fmt.Sprintf("%d threads", count[h]), lines[h][0])
			g.lines = append(g.lines, lines[h]...)
		}
	}
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "proxy-one-core", Title: "All proxy threads share one CPU core" + on(g.hosts) + " (" + names(2, g.what) + ")", Evidence: g.lines,
			Cost: "the network starves: the proxies take turns", Next: "the CPU set of the job: `taskset -pc <pid>`, cpus-per-task of Slurm, CPU limits of the pod", Fix: "give each rank several cores (--cpus-per-task, --bind-to none)"})
	}
}

// affinity: the CPU set of the process has none of the cores near its GPU.
func (f *finder) affinity() {
	var g group
	for _, p := range f.log.Processes {
		for _, a := range p.Affinity {
			if strings.Contains(a.At.Text, "is empty") || strings.Contains(a.Value, "empty") {
				g.take(p.Host, "", a.At)
			}
		}
		for _, n := range p.Notices {
			if strings.Contains(n.At.Text, "Affinity for GPU") && strings.Contains(n.At.Text, "is empty") {
				g.take(p.Host, "", n.At)
			}
		}
	}
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Info, ID: "affinity-empty", Title: "NCCL found no CPU cores near a GPU" + on(g.hosts) + " and leaves the threads where they are", Evidence: g.lines,
			Cost: "on machines with several sockets, memory traffic across them; in a VM without NUMA information, none", Next: "`nvidia-smi topo -m` (CPU affinity) and the CPU set of the job", Fix: "bind each rank to the socket of its GPU"})
	}
}

// leftover is a variable that belongs to a search for errors, not into production.
type leftover struct{ name, cost string }

var leftoverNames = []leftover{
	{"NCCL_ALGO", "forces an algorithm for all sizes and functions"},
	{"NCCL_PROTO", "forces a protocol for all sizes"},
	{"NCCL_P2P_DISABLE", "data within a node through host memory"},
	{"NCCL_P2P_LEVEL", "moves the limit of direct access between GPUs"},
	{"NCCL_SHM_DISABLE", "data within a node through the network"},
	{"NCCL_NET_GDR_LEVEL", "moves the limit of GPUDirect RDMA"},
	{"NCCL_IB_DISABLE", "no InfiniBand or RoCE"},
	{"NCCL_NVLS_ENABLE", "a value other than the automatic one"},
	{"NCCL_PXN_DISABLE", "no way through a neighbour's NIC"},
	{"NCCL_MIN_NCHANNELS", "more channels than planned take the compute's SMs"},
	{"NCCL_MAX_NCHANNELS", "fewer channels than planned"},
	{"NCCL_MIN_CTAS", "more channels than planned take the compute's SMs"},
	{"NCCL_MAX_CTAS", "fewer channels than planned"},
	{"NCCL_BUFFSIZE", "memory and pipelining of every channel"},
	{"NCCL_NTHREADS", "threads of every kernel"},
	{"NCCL_TOPO_FILE", "NCCL plans by this file instead of the machine"},
	{"NCCL_GRAPH_FILE", "NCCL takes its channels from this file"},
	{"NCCL_CUMEM_ENABLE", "memory without the newer way of sharing it"},
	{"NCCL_CHECK_POINTERS", "checks every pointer of every call"},
	{"NCCL_LAUNCH_MODE", "another way to launch kernels"},
	{"NCCL_IB_TIMEOUT", "how long a lost connection goes unnoticed"},
	{"NCCL_NET", "forces a network"},
	{"CUDA_LAUNCH_BLOCKING", "every kernel waits for the one before it"},
}

// harmless are values that only repeat the default.
func harmless(name, value string) bool {
	switch name {
	case "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_PXN_DISABLE", "NCCL_CHECK_POINTERS", "CUDA_LAUNCH_BLOCKING":
		return value == "0"
	case "NCCL_NVLS_ENABLE":
		return value == "1" || value == "2"
	case "NCCL_CUMEM_ENABLE":
		return value == "1" || value == "-2"
	case "NCCL_IB_TIMEOUT":
		n, err := strconv.Atoi(value)
		return err == nil && n >= 14 && n <= 23 // outside: see misleadingValues
	case "NCCL_NET":
		return !strings.EqualFold(value, "Socket")
	}
	return false
}

// leftovers lists variables that find a culprit and hurt when they stay.
func (f *finder) leftovers() {
	var text []string
	var lines []Line
	said := true // some other finding speaks of each
	for _, l := range leftoverNames {
		for _, s := range f.settings(l.name) {
			v := strings.TrimSuffix(s.Value, ".")
			if s.From != FromEnvironment && s.From != FromEcho && s.From != FromOverride || harmless(l.name, v) {
				continue
			}
			if strings.Contains(v, "aws-ofi-nccl") || slices.ContainsFunc(s.proc.Env, func(o Setting) bool { return o.Name == l.name && o.From == FromPlugin }) {
				continue // the plugin set it, as it should
			}
			text = append(text, fmt.Sprintf("%s=%s (%s)", l.name, v, l.cost))
			lines = append(lines, s.At)
			said = said && f.quoted(s.At)
			break
		}
	}
	for _, s := range f.settings("NCCL_DEBUG") {
		if strings.EqualFold(s.Value, "TRACE") {
			text, lines, said = append(text, "NCCL_DEBUG=TRACE (a line for every step)"), append(lines, s.At), false
			break
		}
	}
	if len(text) == 0 {
		return
	}
	sev := Odd
	if said {
		sev = Info
	}
	f.add(tierLoose, false, Finding{Severity: sev, ID: "env-leftover", Title: "Variables for the search for errors are set: " + strings.Join(text, ", "), Evidence: lines,
		Cost: "they help one size or one fault and hurt the rest", Next: "is this a test, or production? Also /etc/nccl.conf and ~/.nccl.conf: NCCL prints their values in the same way", Fix: "unset them; keep one only where two whole curves, with and without, speak for it"})
}

// refusedValues: NCCL did not accept a value.
func (f *finder) refusedValues() {
	var g group
	for _, p := range f.log.Processes {
		for _, s := range p.Env {
			if s.From == FromRefused {
				g.take(p.Host, s.Name+"="+s.Value, s.At)
			}
		}
		for _, n := range p.Notices {
			if strings.HasPrefix(n.At.Text, "Invalid value ") || strings.HasPrefix(n.At.Text, "Unknown CTA policy") {
				g.take(p.Host, n.At.Text, n.At)
			}
		}
	}
	f.ranks(func(_ *Comm, r *Rank) {
		for _, s := range r.Config {
			if s.From == FromRefused {
				g.take(hostAt(r.Process), s.Name+"="+s.Value, s.At)
			}
		}
	})
	if len(g.lines) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "value-refused", Title: "NCCL did not accept a setting and went on with its own" + on(g.hosts) + ": " + names(4, g.what), Evidence: g.lines, Fix: "correct the value or take it away"})
	}
}

// misleadingValues are accepted by NCCL and mostly not what was meant.
func (f *finder) misleadingValues() {
	var text []string
	var lines []Line
	note := func(s set, words string) {
		text, lines = append(text, s.Name+"="+strings.TrimSuffix(s.Value, ".")+": "+words), append(lines, s.At)
	}
	if s, ok := f.value("NCCL_IB_TIMEOUT"); ok {
		if n, isN := s.number(); isN && (n < 14 || n > 24) {
			note(s, fmt.Sprintf("the time is 4.096 us x 2^%d; 20 to 22 are usual, 0 means for ever", n))
		}
	}
	for _, name := range []string{"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"} {
		if s, ok := f.value(name); ok {
			if n, isN := s.number(); isN && n >= 0 {
				note(s, "digits are the old scale (0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and 5 SYS), not the distances of the log; write the word")
			}
		}
	}
	if s, ok := f.value("NCCL_SOCKET_IFNAME"); ok && f.multiNode() == yes {
		if v := strings.TrimPrefix(s.Value, "="); v == "lo" || strings.HasPrefix(v, "docker") {
			note(s, "leads to no other host")
		}
	}
	if s, ok := f.value("NCCL_SHM_DISABLE"); ok {
		if p, isP := f.isOn("NCCL_P2P_DISABLE"); isP && !harmless(s.Name, strings.TrimSuffix(s.Value, ".")) {
			note(s, "together with NCCL_P2P_DISABLE ranks of one node have only the network left")
			lines = append(lines, p.At)
		}
	}
	if len(text) > 0 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "value-misleading", Title: "A setting probably does not mean what was meant. " + strings.Join(text, ". "), Evidence: lines, Fix: "correct the value or take it away"})
	}
}

// otherWarnings are WARN lines of which this package knows no more than the text, or only the reader's catalogue does.
func (f *finder) otherWarnings() {
	var plain, effect group
	next, meaning := "", ""
	for _, w := range f.log.Warnings {
		if isKnown(w.Text) || f.quoted(w.At) || strings.Contains(w.Text, "Cannot get incoming CPU") { // the last is Google's fastsocket: harmless
			continue
		}
		if w.Effect {
			effect.take(hostAt(w.Process), firstOf(w.Meaning, w.Text), w.At)
			continue
		}
		plain.take(hostAt(w.Process), firstOf(w.Meaning, w.Text), w.At)
		next, meaning = firstOf(next, w.Next), firstOf(meaning, w.Meaning)
	}
	if len(plain.lines) > 0 {
		f.add(tierLoose, true, Finding{Severity: Odd, ID: "other-warning", Title: "NCCL or a plugin warns" + on(plain.hosts) + ": " + names(3, plain.what), Evidence: plain.lines,
			Next: firstOf(next, "the lines around it; its own text in NCCL's or the plugin's source")})
	}
	if len(effect.lines) > 0 {
		f.add(tierLoose, true, Finding{Severity: Odd, ID: "other-consequence", Title: "Warnings that follow from something earlier" + on(effect.hosts) + ": " + names(3, effect.what), Evidence: effect.lines, Effect: true, Next: "the first WARN line of these hosts and of their peers"})
	}
}

// quoted says whether some finding rests on a line already.
func (f *finder) quoted(at Line) bool {
	return slices.ContainsFunc(f.found, func(c candidate) bool {
		return slices.ContainsFunc(c.Evidence, func(l Line) bool { return l.File == at.File && l.N == at.N })
	})
}

// coverage says what the logs cannot show.
func (f *finder) coverage() {
	for _, c := range f.log.Comms {
		absent := absentRanks(c)
		if absent == "" || len(c.Ranks) == 0 || f.has("hang-bootstrap") || f.has("init-incomplete") {
			continue
		}
		r := c.Ranks[0]
		at := firstLine(r)
		if at.N == 0 {
			continue
		}
		f.add(tierState, false, Finding{Severity: Info, ID: "ranks-missing", Title: fmt.Sprintf("%s has %d ranks, and the logs have no line of %s: nothing can be said about that", commName(c), c.NRanks, absent), Evidence: []Line{at},
			Next: "add their logs (NCCL_DEBUG_FILE=<path>.%h.%p writes one a process)"})
		return
	}
}

// has says whether a finding is there already.
func (f *finder) has(id string) bool {
	return slices.ContainsFunc(f.found, func(c candidate) bool { return c.ID == id })
}

// firstLine is a line that places a rank in its communicator.
func firstLine(r *Rank) Line {
	for _, l := range []*Line{r.Start, r.Complete, r.Placed} {
		if l != nil {
			return *l
		}
	}
	return Line{}
}
