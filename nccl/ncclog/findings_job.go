package ncclog

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// versions compares what the processes loaded.
func (f *finder) versions() {
	nccl, driver := map[string]*group{}, map[string]*group{}
	for _, p := range f.log.Processes {
		if p.Version != nil {
			takeBy(nccl, p.Version.Value, p.Host, p.Version.At)
		}
		if p.Driver != nil {
			takeBy(driver, p.Driver.Value, p.Host, p.Driver.At)
		}
	}
	if len(nccl) > 1 {
		sev, what := Odd, "Processes in these logs load different NCCL versions: "
		if f.sameCommDiffers() {
			sev, what = Fault, "Ranks of one communicator load different NCCL versions: "
		}
		f.add(tierCause, false, Finding{Severity: sev, ID: "versions-differ", Title: what + describe(nccl), Evidence: linesOf(nccl),
			Cost: "from 2.23 initialisation stops with a message; before that it hangs, or messages do not fit",
			Next: "LD_LIBRARY_PATH, LD_PRELOAD, images and the nvidia-nccl wheel on every host", Fix: "one libnccl.so.2 for all ranks"})
	}
	if len(driver) > 1 {
		f.add(tierState, false, Finding{Severity: Odd, ID: "drivers-differ", Title: "The hosts have different NVIDIA drivers (newest CUDA they support): " + describe(driver), Evidence: linesOf(driver),
			Cost: "mostly none, but P2P, NVLS and DMA-BUF may work on some hosts only", Next: "`nvidia-smi` on each", Fix: "one driver for all nodes of a job"})
	}
}

// sameCommDiffers says whether two ranks of one communicator print different versions.
func (f *finder) sameCommDiffers() bool {
	for _, c := range f.log.Comms {
		seen := map[string]bool{}
		for _, r := range c.Ranks {
			if r.Process != nil && r.Process.Version != nil {
				seen[r.Process.Version.Value] = true
			}
		}
		if len(seen) > 1 {
			return true
		}
	}
	return false
}

func takeBy(m map[string]*group, key, host string, at Line) {
	if m[key] == nil {
		m[key] = &group{}
	}
	m[key].take(host, key, at)
}

// describe is "2.27.3 on a, b; 2.27.7 on c".
func describe(m map[string]*group) string {
	var out []string
	for _, k := range sortedKeys(m) {
		out = append(out, firstOf(k, "not set")+on(m[k].hosts))
	}
	return strings.Join(out, "; ")
}

// linesOf takes a line of each group, so that each side of a difference is shown, then more.
func linesOf(m map[string]*group) (out []Line) {
	for i := range 3 {
		for _, k := range sortedKeys(m) {
			if i < len(m[k].lines) {
				out = append(out, m[k].lines[i])
			}
		}
	}
	return out
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// perProcess are variables that may differ between processes without harm: names of files, and what only one rank reads.
var perProcess = []string{"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_HOSTID", "NCCL_PROXY_CPUSET", "NCCL_RAS_ADDR", "NCCL_CONF_FILE", "NCCL_MNNVL_CLIQUE_ID"}

// wire are variables that change what ranks say to each other: with different values they cannot understand one another.
var wire = []string{"NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
	"NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CHUNK_SIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE",
	"NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE",
	"NCCL_MAX_P2P_NCHANNELS", "NCCL_MIN_P2P_NCHANNELS", "NCCL_THREAD_THRESHOLDS", "NCCL_WIN_ENABLE", "NCCL_PAT_ENABLE", "NCCL_RUNTIME_CONNECT"}

// environmentDiffers compares values. That a process does not print a variable proves little, as NCCL prints one only when it first reads it; so a missing one
// counts only where no process of a host has it, all of them came through initialisation, and another host has it everywhere.
func (f *finder) environmentDiffers() {
	values := map[string]map[string]*group{} // variable -> value -> who
	for _, p := range f.log.Processes {
		for _, s := range p.Env {
			if s.From != FromEnvironment && s.From != FromEcho || slices.Contains(perProcess, s.Name) || strings.Contains(s.Name, "_DUMP_") {
				continue
			}
			if values[s.Name] == nil {
				values[s.Name] = map[string]*group{}
			}
			takeBy(values[s.Name], strings.TrimSuffix(s.Value, "."), firstOf(p.Host, "process "+strconv.Itoa(p.PID)), s.At)
		}
	}
	var hard, soft []string
	var lines []Line
	for _, name := range sortedKeys(values) {
		by := values[name]
		if len(by) < 2 && !f.wholeHostLacks(name, by) {
			continue
		}
		if len(by) < 2 {
			soft = append(soft, name+" is set only"+on(by[sortedKeys(by)[0]].hosts))
		} else {
			text := name + ": " + describe(by)
			if slices.Contains(wire, name) {
				hard = append(hard, text)
			} else {
				soft = append(soft, text)
			}
		}
		lines = append(lines, linesOf(by)...)
	}
	if len(hard)+len(soft) == 0 {
		return
	}
	cost := "the ranks choose differently: slower on some, or networks that do not meet"
	if len(hard) > 0 {
		cost = "ranks that decide differently about algorithm, protocol, channels or transport hang, break off with size mismatches, or compute nonsense"
	}
	f.add(tierCause, false, Finding{Severity: Odd, ID: "env-differs", Title: "The environment differs between ranks. " + strings.Join(slices.Concat(hard, soft), ". "), Evidence: lines, Cost: cost,
		Next: "how the launcher hands on the environment (mpirun -x, srun --export, ssh), and /etc/nccl.conf and ~/.nccl.conf of every host: NCCL prints their values in the same way",
		Fix:  "the same values for all ranks"})
}

// wholeHostLacks says whether a variable that others print is missing from all processes of some host that came through initialisation.
func (f *finder) wholeHostLacks(name string, by map[string]*group) bool {
	have := map[string]bool{}
	for _, g := range by {
		for _, h := range g.hosts {
			have[h] = true
		}
	}
	lacks := map[string]bool{}
	done := map[*Process]bool{}
	f.ranks(func(_ *Comm, r *Rank) {
		if r.Complete != nil {
			done[r.Process] = true
		}
	})
	for _, p := range f.log.Processes {
		if p.Host == "" || have[p.Host] {
			continue
		}
		prints := slices.ContainsFunc(p.Env, func(s Setting) bool { return s.From == FromEnvironment })
		if !done[p] || !prints { // without any such line the ENV subsystem may be off
			return false
		}
		lacks[p.Host] = true
	}
	return len(lacks) > 0 && !strings.Contains(name, "FILE")
}

// commLimit is for how many communicators the same finding is made: a training job has hundreds that all hang in the same way.
const commLimit = 4

// count says how often a finding is there.
func (f *finder) count(id string) (n int) {
	for _, c := range f.found {
		n += truth(c.ID == id)
	}
	return n
}

var typeNames = []string{"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8 e4m3", "fp8 e5m2"}

func callText(c Call) string {
	t := "type " + strconv.Itoa(c.Type)
	if c.Type >= 0 && c.Type < len(typeNames) {
		t = typeNames[c.Type]
	}
	return fmt.Sprintf("%s (%d x %s)", c.Op, c.Count, t)
}

func callAt(c Call) Line {
	l := c.At
	if l.Text == "" {
		l.Text = fmt.Sprintf("%s: opCount %x count %d datatype %d op %d root %d", c.Op, c.OpCount, c.Count, c.Type, c.RedOp, c.Root)
	}
	return l
}

// callMismatch reports the first place where the ranks of a communicator do not make the same call.
func (f *finder) callMismatch() {
	for _, c := range f.log.Comms {
		if len(c.Mismatches) == 0 || f.count("coll-mismatch") == commLimit {
			continue
		}
		m := slices.MinFunc(c.Mismatches, func(a, b Mismatch) int { return a.N - b.N })
		var odd []int
		lines := []Line{callAt(m.Want), callAt(m.Call)}
		for _, x := range c.Mismatches {
			odd = append(odd, x.Rank)
			lines = append(lines, callAt(x.Call))
		}
		place := fmt.Sprintf("at its collective number %d", m.N+1)
		if m.Call.OpCount != 0 {
			place = fmt.Sprintf("at call 0x%x", m.Call.OpCount)
		}
		title := fmt.Sprintf("%s: %s %s does %s while %s does %s", commName(c), place, rankName(m.Rank), callText(m.Call), rankName(m.Ref), callText(m.Want))
		switch {
		case m.Call.OpCount > 0 && firstCall(c) < m.Call.OpCount:
			title += fmt.Sprintf(". Last call on which they agree: 0x%x", m.Call.OpCount-1)
		case m.Call.OpCount > 0:
			title += fmt.Sprintf(". Both have counted the same calls before it; those, up to 0x%x, are not in the log", m.Call.OpCount-1)
		case m.N > 0:
			title += fmt.Sprintf(". They agree up to number %d", m.N)
		}
		if len(m.Same) < 2 {
			title += ". Which of the two is wrong cannot be told from two opinions"
		} else {
			title += fmt.Sprintf(". %s of %d agree", strconv.Itoa(len(m.Same)), len(m.Same)+len(odd))
		}
		if c.ID == "" && !slices.ContainsFunc(c.Ranks, func(r *Rank) bool { return firstLine(r).N > 0 }) {
			title += ". The log has no line of the initialisation, so that these lines belong to one communicator is an assumption"
		}
		f.add(tierCause, false, Finding{Severity: Fault, ID: "coll-mismatch", Title: title, Evidence: lines,
			Cost: "the ranks wait for each other for ever, or the results are wrong; NCCL is not at fault, the program is out of step",
			Next: "the code path of " + rankList(odd) + " before that call: a branch on rank, on data or on an exception; uneven batches or shards",
			Fix:  "the same sequence of calls with the same sizes on all ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL compares them in PyTorch)"})
	}
}

// firstCall is the smallest opCount that the logs show.
func firstCall(c *Comm) uint64 {
	low := ^uint64(0)
	for _, r := range c.Ranks {
		if r.Calls != nil {
			low = min(low, r.Calls.First.OpCount)
		}
	}
	return low
}

func rankName(r int) string {
	if r < 0 {
		return "a rank without a number in the log"
	}
	return "rank " + strconv.Itoa(r)
}

func commName(c *Comm) string {
	if c.ID != "" {
		return "Communicator " + c.ID
	}
	if c.NRanks > 0 {
		return fmt.Sprintf("A communicator of %d ranks", c.NRanks)
	}
	return "A communicator"
}

// callsBehind finds ranks that made fewer calls than the others of their communicator.
func (f *finder) callsBehind() {
	failed := len(f.log.Failures) > 0
	for _, c := range f.log.Comms {
		if len(c.Mismatches) > 0 || c.NRanks < 2 || f.count("coll-behind") == commLimit {
			continue
		}
		most, least := 0, 1<<62
		for _, r := range c.Ranks {
			if r.Calls != nil {
				most, least = max(most, r.Calls.Collectives), min(least, r.Calls.Collectives)
			}
		}
		if most == 0 || least == 1<<62 || least == most {
			continue
		}
		var behind []int
		var lines []Line
		for _, r := range c.Ranks {
			if r.Calls == nil || r.Calls.LastOf == nil {
				continue
			}
			if r.Calls.Collectives < most {
				behind = append(behind, r.Rank)
				lines = append(lines, callAt(*r.Calls.LastOf))
			}
		}
		for _, r := range c.Ranks {
			if r.Calls != nil && r.Calls.Collectives == most && r.Calls.LastOf != nil {
				lines = append(lines, callAt(*r.Calls.LastOf))
				break
			}
		}
		sev := Odd
		if failed {
			sev = Fault
		}
		f.add(tierState, false, Finding{Severity: sev, ID: "coll-behind", Evidence: lines,
			Title: fmt.Sprintf("%s: %s made %s where others made %d", commName(c), rankList(behind), amount(least, "collective call", "s"), most),
			Cost:  "the others wait for it in their next call. A log that was copied while the job ran looks the same",
			Next:  "what that rank does: its Python stack (py-spy), its own log, whether the process lives", Fix: "see the first fault of that rank, if there is one"})
	}
}

// passed says whether a rank shows signs of life from after its initialisation.
func passed(r *Rank) bool {
	return r.Complete != nil || r.Init != nil || r.End != nil || r.Calls != nil
}

// unfinished are ranks that began to initialise and never said that they were done.
func (f *finder) unfinished() {
	for _, c := range f.log.Comms {
		var wait, done []int
		var lines []Line
		var where []string
		stage := map[string][]int{}
		inBootstrap := true
		for _, r := range c.Ranks {
			switch {
			case passed(r):
				done = append(done, r.Rank)
			case r.Start != nil:
				wait = append(wait, r.Rank)
				lines = append(lines, *r.Start)
				last := "start"
				if n := len(r.Milestones); n > 0 {
					last = r.Milestones[n-1].Value
					lines = append(lines, r.Milestones[n-1].At)
				}
				inBootstrap = inBootstrap && (last == "start" || last == "network") && r.Bootstrap == nil
				stage[last] = append(stage[last], r.Rank)
				where = append(where, hostAt(r.Process))
			}
		}
		if len(wait) == 0 || f.count("init-incomplete")+f.count("hang-bootstrap") == commLimit {
			continue
		}
		f.reportUnfinished(c, wait, done, lines, where, stage, inBootstrap)
	}
}

// stageText says in words how far a rank came.
var stageText = map[string]string{"network": "after it chose its network", "start": "right after Init START", "bootstrap": "after the bootstrap", "topology": "after the topology exchange",
	"channels": "after the channels were planned", "rings": "after the rings were connected", "trees": "after the trees were connected"}

func (f *finder) reportUnfinished(c *Comm, wait, done []int, lines []Line, where []string, stage map[string][]int, inBootstrap bool) {
	absent := absentRanks(c)
	sev := Odd
	if len(wait) > 1 || len(done) > 0 {
		sev = Fault
	}
	var stops []string
	for _, s := range sortedKeys(stage) {
		stops = append(stops, firstOf(stageText[s], "after \""+s+"\"")+" for "+rankList(stage[s]))
	}
	title := fmt.Sprintf("%s: %s of %d%s never reached Init COMPLETE in this log, which stops %s", commName(c), rankList(wait), c.NRanks, on(where), strings.Join(stops, ", "))
	id, next := "init-incomplete", "the first WARN of any rank; py-spy or gdb on a waiting rank; whether the log was copied too early"
	v := f.versionOf(nil)
	for _, r := range c.Ranks {
		v = f.versionOf(r.Process)
	}
	if inBootstrap && v.hi >= 22304 && len(done) == 0 {
		id = "hang-bootstrap"
		title += ". From 2.23 on Init START comes before the ranks have found each other, so they wait in the bootstrap"
		if v.lo < 22304 {
			title += " (if this is 2.23 or newer; the log does not say)"
		}
		next = "the absent ranks first: are their processes started, on which host, did they fail earlier? Then the interface in the Bootstrap lines of all hosts, and firewalls"
	}
	if absent != "" {
		title += fmt.Sprintf(". No line of %s: never started, or the log is not here", absent)
	}
	f.add(tierState, true, Finding{Severity: sev, ID: id, Title: title, Evidence: lines, Cost: "all ranks of the communicator wait for the last one", Next: next,
		Fix: "see the absent or failing rank; a log that simply ends here proves nothing more than that"})
}

// absentRanks names the ranks that have no line in the logs, though the communicator's size says that they exist; "" for none. It goes by
// gaps, as the size is only a number in a log and may be any.
func absentRanks(c *Comm) string {
	var seen []int
	for _, r := range c.Ranks {
		if r.Rank >= 0 && r.Rank < c.NRanks {
			seen = append(seen, r.Rank)
		}
	}
	slices.Sort(seen)
	var gaps []string
	n, next := 0, 0
	for _, r := range append(seen, c.NRanks) {
		switch {
		case r == next+1:
			gaps = append(gaps, strconv.Itoa(next))
		case r > next:
			gaps = append(gaps, fmt.Sprintf("%d-%d", next, r-1))
		}
		n += max(0, r-next)
		next = max(next, r+1)
	}
	switch {
	case n == 0:
		return ""
	case n == 1:
		return "rank " + gaps[0]
	}
	return "ranks " + names(16, gaps)
}

// processStage is how far a process without a rank came: 1 interface chosen, 2 network devices found, 3 network chosen.
func processStage(p *Process) int {
	switch {
	case len(p.Networks) > 0:
		return 3
	case len(p.NICs) > 0 || len(p.SocketIfs) > 0 || len(p.Plugins) > 0:
		return 2
	case p.Bootstrap != nil:
		return 1
	}
	return 0
}

// processesBehind looks at processes that never got as far as a rank: up to 2.22 Init START comes after the bootstrap, before 2.18 there is no such line.
func (f *finder) processesBehind() {
	has := map[*Process]bool{}
	done := false
	f.ranks(func(_ *Comm, r *Rank) {
		has[r.Process] = true
		done = done || passed(r)
	})
	best, low := 0, 4
	var idle []*Process
	for _, p := range f.log.Processes {
		s := processStage(p)
		if has[p] {
			s = 4
		}
		best = max(best, s)
		if s > 0 && s < 4 && p.PID != 0 {
			idle, low = append(idle, p), min(low, s)
		}
	}
	if len(idle) == 0 || len(f.log.Warnings) > 0 && !done {
		return // after a warning it is no riddle why a process stops
	}
	words := []string{"", "chose its interface for the bootstrap", "looked for its network devices", "chose its network"}
	var text []string
	var lines []Line
	for _, p := range idle {
		if processStage(p) > low {
			continue
		}
		text = append(text, fmt.Sprintf("%s process %d", cmp.Or(p.Host, "?"), p.PID))
		last := p.First
		if p.Bootstrap != nil {
			last = p.Bootstrap.At
		}
		lines = append(lines, last)
	}
	x := Finding{Severity: Odd, ID: "hang-bootstrap", Evidence: lines, Title: fmt.Sprintf("%s %s and then printed nothing more, while others came further", names(4, text), words[low]),
		Cost: "if the job hangs in initialisation, these are the ones that the others wait for",
		Next: "these processes: py-spy or gdb; can they reach the address of rank 0? Do the Bootstrap lines of all hosts name networks that meet?",
		Fix:  "NCCL_SOCKET_IFNAME of a common network; a log that simply ends here proves nothing"}
	if done || best-low < 2 || f.has("hang-bootstrap") || f.has("init-incomplete") {
		x.Severity, x.ID = Info, "process-behind"
	}
	if best == low {
		x.Severity, x.ID = Info, "log-ends-early"
		x.Title = fmt.Sprintf("No process of this log came as far as a communicator: the last that %s say is that each %s", names(4, text), words[low])
		x.Cost = ""
	}
	f.add(tierState, true, x)
}
