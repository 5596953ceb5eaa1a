package ncclog

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/rankset"
)

// maxEvidence is how many lines a finding quotes; a job of a thousand ranks repeats itself.
const maxEvidence = 8

// tier orders findings of one severity: what names its own cause comes before what may follow from it.
type tier int

const (
	tierCause tier = iota // the line itself says what is wrong
	tierLink              // a connection or a device failed, or data takes a slow way; why may be one step further
	tierState             // worked out: hangs, ranks that are behind, what is less than it could be
	tierLoose             // an error without a cause in sight, and what is only a hint
)

// candidate is a Finding on its way: what is needed to put it in its place.
type candidate struct {
	Finding
	tier tier
	weak bool // a consequence as soon as the logs hold a fault that is not weak
}

// finder collects the findings of one Log.
type finder struct {
	log   *Log
	found []candidate
	said  []message         // all texts that rules look at
	home  map[string]string // address without port -> host that owns it
	file  map[string]int    // name -> place in Log.Files
}

// Findings says what is wrong in a log and what is merely slow, the most important first: faults before warnings before information, and
// causes before what follows from them. Each finding rests on lines that are in the log, unless its Title says that lines are missing.
// A log without findings is not proof of health: NCCL prints only what NCCL_DEBUG and NCCL_DEBUG_SUBSYS let it.
func (l *Log) Findings() []Finding {
	f := newFinder(l)
	for _, look := range []func(){
		f.environmentDiffers, f.ruleTable, f.sharedMemory, f.cudaErrors, f.connections, f.sizeMismatch, f.ibCompletions, f.ibEvents, f.rasEvents, f.deviceLimits,
		f.versions, f.callMismatch, f.callsBehind, f.unfinished, f.processesBehind, f.afterInit, f.failures, f.bareTraces,
		f.socketFallback, f.missingIB, f.pluginFailed, f.mixedNICs, f.nicCounts, f.idleNICs, f.sharedNICs, f.gdrOff, f.gdrDistance, f.externalPlugin, f.gidIndex,
		f.bootstrapInterface, f.socketInterfaces, f.oneSubnet, f.retries,
		f.p2pOff, f.p2pShared, f.hostSplit, f.channels, f.ll128, f.nvls, f.nvlsExcluded, f.noAlgorithmFor, f.mnnvl, f.collnet, f.pxn,
		f.narrowPCI, f.unevenLinks, f.slowPlan, f.slowInit, f.proxyCores, f.affinity,
		f.leftovers, f.refusedValues, f.misleadingValues, f.otherWarnings, f.coverage,
	} {
		look()
	}
	return f.result()
}

func newFinder(l *Log) *finder {
	f := &finder{log: l, home: map[string]string{}, file: map[string]int{}}
	for i, file := range l.Files {
		f.file[file.Name] = i
	}
	for _, p := range l.Processes {
		for _, a := range []*Address{p.Bootstrap, p.OOB} {
			f.owns(p, a)
		}
		for i := range p.SocketIfs {
			f.owns(p, &p.SocketIfs[i])
		}
	}
	f.said = l.messages()
	return f
}

// owns notes whose address a is. Addresses that several hosts have (link-local, docker bridges) say nothing.
func (f *finder) owns(p *Process, a *Address) {
	if a == nil || p.Host == "" || a.Addr == "" {
		return
	}
	if h, ok := f.home[a.Addr]; ok && h != p.Host {
		f.home[a.Addr] = ""
		return
	}
	f.home[a.Addr] = p.Host
}

func (f *finder) add(t tier, weak bool, x Finding) {
	x.Evidence = clip(x.Evidence)
	f.found = append(f.found, candidate{Finding: x, tier: t, weak: weak})
}

// ofNetwork are findings that cost nothing as long as the job has one node.
var ofNetwork = []string{"plugin-failed", "ofi-no-provider", "nic-mixed-links", "nic-mixed-speed", "net-count-mismatch"}

// result marks consequences and sorts.
func (f *finder) result() []Finding {
	if f.multiNode() == no {
		for i := range f.found {
			if c := &f.found[i]; c.Severity == Odd && slices.Contains(ofNetwork, c.ID) {
				c.Severity, c.Cost = Info, "none in this log: the job has one node"
			}
		}
	}
	cause := ""
	for _, c := range f.found {
		if c.Severity == Fault && !c.weak && !c.Effect {
			cause = c.ID
			break
		}
	}
	timed := true
	for _, c := range f.found {
		timed = timed && (c.Severity != Fault || len(c.Evidence) > 0 && c.Evidence[0].Time != "")
	}
	slices.SortStableFunc(f.found, func(a, b candidate) int {
		return cmp.Or(order(a.Severity, Fault, Odd, Info)-order(b.Severity, Fault, Odd, Info),
			truth(a.Effect || a.weak)-truth(b.Effect || b.weak), int(a.tier)-int(b.tier), f.before(a, b, timed))
	})
	if cause != "" { // the first of the sorted list, not the first found
		cause = f.found[0].ID
	}
	out := make([]Finding, 0, len(f.found))
	for _, c := range f.found {
		if cause != "" && c.Severity == Fault && c.weak {
			c.Effect = true
		}
		if c.Effect && c.Of == "" && c.ID != cause {
			c.Of = cause
		}
		out = append(out, c.Finding)
	}
	return out
}

// before compares by time where every fault has one, else by place; the clocks of hosts are trusted only that far.
func (f *finder) before(a, b candidate, timed bool) int {
	if len(a.Evidence) == 0 || len(b.Evidence) == 0 {
		return 0
	}
	x, y := a.Evidence[0], b.Evidence[0]
	if timed && a.Severity == Fault {
		if c := strings.Compare(x.Time, y.Time); c != 0 {
			return c
		}
	}
	return cmp.Or(f.file[x.File]-f.file[y.File], x.N-y.N)
}

func order(s string, of ...string) int { return slices.Index(of, s) }

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// clip keeps the first lines, each once.
func clip(in []Line) []Line {
	out := make([]Line, 0, min(len(in), maxEvidence))
	seen := map[string]bool{}
	for _, l := range in {
		key := l.File + ":" + strconv.Itoa(l.N)
		if l.N == 0 || seen[key] || len(out) == maxEvidence {
			continue
		}
		seen[key] = true
		out = append(out, l)
	}
	return out
}

// names joins different names in the order given, at most n of them.
func names(n int, in []string) string {
	var out []string
	for _, s := range in {
		if s != "" && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if len(out) > n {
		return strings.Join(out[:n], ", ") + fmt.Sprintf(" and %d more", len(out)-n)
	}
	return strings.Join(out, ", ")
}

// rankList is "rank 3" or "ranks 0-3, 7".
func rankList(in []int) string {
	in = slices.Compact(slices.Sorted(slices.Values(in)))
	if len(in) == 1 {
		return "rank " + strconv.Itoa(in[0])
	}
	return "ranks " + rankset.Fold(in, ", ")
}

// on is " on a, b", or "" where no host is known.
func on(hosts []string) string {
	if s := names(4, hosts); s != "" {
		return " on " + s
	}
	return ""
}

// hostAt is the host of a process, "" where it is not known.
func hostAt(p *Process) string {
	if p == nil {
		return ""
	}
	return p.Host
}

// peerName adds the host to an address where the logs tell who has it: "10.0.0.2<4242>" -> "10.0.0.2<4242> (node-b)".
func (f *finder) peerName(peer string) string {
	if h := f.peerHost(peer); h != "" && !strings.HasPrefix(peer, h) {
		return peer + " (" + h + ")"
	}
	return peer
}

// peerHost is the host behind a peer address or name, "" if it is not in the logs.
func (f *finder) peerHost(peer string) string {
	addr, _, _ := strings.Cut(peer, "<")
	if h := f.home[addr]; h != "" {
		return h
	}
	for _, p := range f.log.Processes {
		if p.Host != "" && p.Host == addr {
			return p.Host
		}
	}
	return ""
}

// answer is yes, no, or could not tell.
type answer int

const (
	unknown answer = iota
	no
	yes
)

// nodes is the number of nodes of a communicator, 0 where the log does not say. NCCL's own count wins: containers of one machine may count as
// several, and that is how data travels then.
func nodes(c *Comm) int {
	n := 0
	for _, r := range c.Ranks {
		n = max(n, r.NNodes)
	}
	if n > 0 {
		return n
	}
	hosts := map[string]bool{}
	for _, r := range c.Ranks {
		if h := hostAt(r.Process); h != "" {
			hosts[h] = true
		}
	}
	if len(hosts) > 1 || hasAll(c) && len(hosts) == 1 {
		return len(hosts)
	}
	return 0
}

// hasAll says whether the log has lines of every rank of c.
func hasAll(c *Comm) bool {
	seen := map[int]bool{}
	for _, r := range c.Ranks {
		if r.Rank >= 0 {
			seen[r.Rank] = true
		}
	}
	return c.NRanks > 0 && len(seen) == c.NRanks
}

// multiNode says whether the job spans nodes.
func (f *finder) multiNode() answer {
	a := unknown
	for _, c := range f.log.Comms {
		switch n := nodes(c); {
		case n > 1:
			return yes
		case n == 1:
			a = no
		}
	}
	if a == no {
		return no // several hosts in one log may be several jobs
	}
	hosts := map[string]bool{}
	for _, p := range f.log.Processes {
		if p.Host != "" {
			hosts[p.Host] = true
		}
	}
	if len(hosts) > 1 {
		return yes
	}
	for _, c := range f.log.Comms {
		for _, r := range c.Ranks {
			if slices.ContainsFunc(r.Edges, func(e Edge) bool { return e.Transport == "NET" }) {
				return yes // within a node NCCL takes NET only where it is told to
			}
		}
	}
	return unknown
}

// ranks calls do for every rank of every communicator.
func (f *finder) ranks(do func(c *Comm, r *Rank)) {
	for _, c := range f.log.Comms {
		for _, r := range c.Ranks {
			do(c, r)
		}
	}
}

// ranksOf are the ranks that a process drives in its first communicator.
func (f *finder) ranksOf(p *Process) (out []*Rank) {
	for _, c := range f.log.Comms {
		for _, r := range c.Ranks {
			if r.Process == p {
				out = append(out, r)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// set is one setting and the process that has it.
type set struct {
	Setting
	proc *Process
}

// settings are the values of an environment variable in all processes.
func (f *finder) settings(name string) (out []set) {
	for _, p := range f.log.Processes {
		for _, s := range p.Env {
			if s.Name == name && s.From != FromRefused && s.From != FromProgram {
				out = append(out, set{s, p})
			}
		}
	}
	return out
}

// value is the value of a variable in the first process that has it.
func (f *finder) value(name string) (set, bool) {
	for _, s := range f.settings(name) {
		return s, true
	}
	return set{}, false
}

// number reads an integer setting; NCCL prints it with a full stop in some versions.
func (s set) number() (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(s.Value), "."), 0, 64)
	return n, err == nil
}

// isOn says whether a switch is set to something other than 0.
func (f *finder) isOn(name string) (set, bool) {
	for _, s := range f.settings(name) {
		if n, ok := s.number(); ok && n != 0 {
			return s, true
		}
	}
	return set{}, false
}

// isOff says whether a switch is set to 0.
func (f *finder) isOff(name string) (set, bool) {
	for _, s := range f.settings(name) {
		if n, ok := s.number(); ok && n == 0 {
			return s, true
		}
	}
	return set{}, false
}

// span is what is known of a version, as 10000*major+100*minor+patch.
type span struct{ lo, hi int }

// versionOf is the version of a process: printed, else the only one in the log, else what the form of its lines allows.
func (f *finder) versionOf(p *Process) span {
	if p != nil && p.Version != nil {
		if v, ok := versionCode(p.Version.Value); ok {
			return span{v, v}
		}
	}
	if len(f.log.Versions) == 1 {
		if v, ok := versionCode(f.log.Versions[0].NCCL); ok {
			return span{v, v}
		}
	}
	s := span{0, 1 << 30}
	if p == nil || p.Form == "" {
		return s
	}
	lo, hi, two := strings.Cut(strings.TrimSuffix(p.Form, "+"), "-")
	if v, ok := versionCode(lo); ok {
		s.lo = v
	}
	if two {
		if v, ok := versionCode(hi); ok {
			s.hi = v + 99
		}
	}
	return s
}

// versionCode turns "2.27.7" into 22707.
func versionCode(s string) (int, bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return 0, false
	}
	code := 0
	for i, scale := range []int{10000, 100, 1} {
		if i == len(parts) {
			break
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return 0, false
		}
		code += n * scale
	}
	return code, true
}

// amount is "1 host" or "2 hosts".
func amount(n int, word, ending string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + ending
}

// bytesText writes a size for people.
func bytesText(n int64) string {
	switch {
	case n < 0:
		return "?"
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// edgeLine is the evidence of an edge; its line is kept without text, so the words are ours.
func edgeLine(e Edge) Line {
	l := e.At
	if l.Text == "" {
		l.Text = fmt.Sprintf("channel %d: %d -> %d %s via %s", e.Channel, e.From, e.To, e.Dir, e.Via)
		l.Text = strings.ReplaceAll(l.Text, "  ", " ")
	}
	return l
}
