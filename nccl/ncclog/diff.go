package ncclog

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Difference is something that was decided in one way in one log and in another way in the other.
type Difference struct {
	Comm  string `json:"comm"`            // communicator in the old log, "" for the log as a whole
	Ranks []int  `json:"ranks,omitempty"` // empty: the communicator as a whole
	What  string `json:"what"`            // "setting NCCL_IB_HCA", "transports", "AllReduce 1 MiB"
	Old   string `json:"old"`             // "" where the old log does not say
	New   string `json:"new"`
	OldAt *Line  `json:"oldAt,omitempty"`
	NewAt *Line  `json:"newAt,omitempty"`
}

// Diff says what was decided differently. Communicators are aligned by size and order, ranks by number; what is equal is not in the result, nor is
// what is new in every run (addresses, ids, process numbers).
func Diff(a, b *Log) []Difference {
	d := &differ{}
	taken := map[int]bool{}
	for _, x := range a.Comms {
		y := partner(x, a, b, taken)
		if y == nil {
			d.add(Difference{Comm: x.Name(), What: "communicator", Old: count(x.size(), "rank"), New: ""})
			continue
		}
		taken[y.Index] = true
		d.comms(x, y)
	}
	for _, y := range b.Comms {
		if !taken[y.Index] {
			d.add(Difference{Comm: y.Name(), What: "communicator", New: count(y.size(), "rank")})
		}
	}
	if len(a.Comms) == 0 || len(b.Comms) == 0 {
		d.processes(a, b)
	}
	d.findings(a, b)
	return d.list
}

// partner is the communicator of b that x is compared with: the same size and the same place among those of that size.
func partner(x *Comm, a, b *Log, taken map[int]bool) *Comm {
	for _, y := range b.Comms {
		if !taken[y.Index] && y.NRanks == x.NRanks && (x.Parent < 0) == (y.Parent < 0) {
			return y
		}
	}
	if len(a.Comms) == 1 && len(b.Comms) == 1 { // other sizes: still worth comparing
		return b.Comms[0]
	}
	return nil
}

type differ struct{ list []Difference }

func (d *differ) add(x Difference) { d.list = append(d.list, x) }

// fact is a decision in words, with its evidence.
type fact struct {
	value string
	at    *Line
}

// facts is the decisions of one rank, in the order of the report.
type facts struct {
	names []string
	by    map[string]fact
}

func (f *facts) set(name, value string, at *Line) {
	if value == "" {
		return
	}
	if _, ok := f.by[name]; !ok {
		f.names = append(f.names, name)
	}
	f.by[name] = fact{value, at}
}

// factsOf is what a process decided.
func factsOf(p *Process) *facts {
	f := &facts{by: map[string]fact{}}
	if p.Version != nil {
		f.set("version", p.Version.Value+" (CUDA "+p.CUDABuild+")", &p.Version.At)
	}
	if p.Driver != nil {
		f.set("driver", p.Driver.Value, &p.Driver.At)
	}
	for i := range p.Env {
		s := &p.Env[i]
		if old, ok := f.by["setting "+s.Name]; s.From == FromEcho && ok && old.value == s.Value {
			continue
		}
		f.set("setting "+s.Name, s.Value, &s.At)
	}
	for _, l := range p.Libraries {
		f.set("library for "+l.Name, l.Path, &l.At)
	}
	if p.Bootstrap != nil {
		f.set("bootstrap interface", p.Bootstrap.Interface, &p.Bootstrap.At)
	}
	if len(p.NICs) > 0 {
		f.set("NICs", p.nicText(), &p.NICs[0].At)
	}
	if len(p.NoIB) > 0 {
		f.set("no IB", joinFacts(p.NoIB), &p.NoIB[0].At)
	}
	if len(p.SocketIfs) > 0 {
		var names []string
		for _, a := range p.SocketIfs {
			names = append(names, a.Interface)
		}
		f.set("socket interfaces", strings.Join(names, " "), &p.SocketIfs[0].At)
	}
	if len(p.Plugins) > 0 {
		f.set("plugins", p.pluginText(), &p.Plugins[0].At)
	}
	for i := range p.NICGDR {
		g := &p.NICGDR[i]
		f.set("GDR of "+g.NIC, offered(g.Enabled), &g.At)
	}
	for i := range p.Multicast {
		m := &p.Multicast[i]
		f.set(fmt.Sprintf("NVLS multicast on GPU %d", m.Dev), map[bool]string{true: "available", false: "not available"}[m.Available], &m.At)
	}
	if p.System != nil {
		f.set("topology", fmt.Sprintf("max %.1f total %.1f GB/s", p.System.MaxBW, p.System.TotalBW), &p.System.At)
	}
	return f
}

func offered(on bool) string {
	if on {
		return "offered"
	}
	return "not offered"
}

// rankFacts is what a rank decided, with its process' decisions.
func rankFacts(x *Rank) *facts {
	f := factsOf(x.Process)
	for i := range x.Config {
		s := &x.Config[i]
		f.set("config "+s.Name, s.Value, &s.At)
	}
	if x.Network != nil {
		f.set("network", x.Network.Value, &x.Network.At)
	}
	if x.Placed != nil {
		f.set("place", fmt.Sprintf("%s, %d of %d ranks on its node, MNNVL %d", count(x.NNodes, "node"), x.LocalRank, x.LocalRanks, x.MNNVL), x.Placed)
	}
	for i := range x.GDR {
		g := &x.GDR[i]
		f.set(fmt.Sprintf("GDR of GPU %s and NIC %s", g.GPU, g.NIC), fmt.Sprintf("%s, distance %s", map[bool]string{true: "on", false: "off"}[g.Enabled], nameOr(g.Path, g.Distance)), &g.At)
	}
	if len(x.Edges) > 0 {
		at := x.Edges[0].At
		f.set("transports", x.ways(), &at)
		f.set("NICs used", strings.Join(x.NICs(), " "), &at)
	}
	for i := range x.Graphs {
		g := &x.Graphs[i]
		f.set("search for "+patternName(g.Pattern), fmt.Sprintf("%d x %.1f/%.1f GB/s over %s/%s", g.Channels, g.BWIntra, g.BWInter, g.TypeIntra, g.TypeInter), &g.At)
	}
	if t := x.Totals; t != nil {
		f.set("channels", fmt.Sprintf("%d collectives, %d NVLS, %d p2p, %d per peer", t.Coll, max(0, t.NVLS), t.P2P, t.PerPeer), &t.At)
	}
	if x.P2PChunk != nil {
		f.set("p2p chunk", sizeName(int64(x.P2PChunk.Value)), &x.P2PChunk.At)
	}
	if x.NVLS != nil {
		f.set("NVLS", fmt.Sprintf("%d heads, buffer %s", x.NVLS.Heads, sizeName(x.NVLS.BuffSize)), &x.NVLS.At)
	}
	f.set("state", x.State(), x.stateAt())
	return f
}

func (x *Rank) stateAt() *Line {
	switch {
	case x.End != nil:
		return &x.End.At
	case x.Complete != nil:
		return x.Complete
	}
	return x.Start
}

// ways sums up the connections of a rank.
func (x *Rank) ways() string {
	counts := map[string]int{}
	var keys []string
	for _, e := range x.Edges {
		key := e.way()
		if e.Dir != "" {
			key += " " + e.Dir
		}
		if counts[key] == 0 {
			keys = append(keys, key)
		}
		counts[key]++
	}
	slices.Sort(keys)
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d %s", counts[k], k)
	}
	return strings.Join(keys, ", ")
}

func (d *differ) comms(x, y *Comm) {
	if x.NRanks != y.NRanks {
		d.add(Difference{Comm: x.Name(), What: "ranks", Old: fmt.Sprint(x.NRanks), New: fmt.Sprint(y.NRanks)})
	}
	other := map[int][]*Rank{} // a broken log may have a number twice
	for _, r := range y.Ranks {
		other[r.Rank] = append(other[r.Rank], r)
	}
	var only, missing []int
	pairs := &pairing{name: x.Name()}
	for _, r := range x.Ranks {
		s := other[r.Rank]
		if len(s) == 0 {
			only = append(only, r.Rank)
			continue
		}
		other[r.Rank] = s[1:]
		pairs.compare(r.Rank, rankFacts(r), rankFacts(s[0]))
	}
	for n, rest := range other {
		if len(rest) > 0 {
			missing = append(missing, n)
		}
	}
	if len(only) > 0 {
		d.add(Difference{Comm: x.Name(), Ranks: only, What: "in the log", Old: "yes", New: "no"})
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		d.add(Difference{Comm: x.Name(), Ranks: missing, What: "in the log", Old: "no", New: "yes"})
	}
	slices.SortStableFunc(pairs.list, func(a, b Difference) int { return class(a.What) - class(b.What) })
	d.list = append(d.list, pairs.list...)
	d.pictures(x, y)
	d.choices(x, y)
	d.estimates(x, y)
}

// pairing collects differences of ranks: those with equal words become one.
type pairing struct {
	name string
	list []Difference
	at   map[string]int
}

func (p *pairing) compare(rank int, a, b *facts) {
	names := slices.Clone(a.names)
	for _, n := range b.names {
		if _, ok := a.by[n]; !ok {
			names = append(names, n)
		}
	}
	for _, n := range names {
		o, w := a.by[n], b.by[n]
		if o.value == w.value || (o.value == "" || w.value == "") && optional(n) {
			continue
		}
		key := n + "|" + o.value + "|" + w.value
		i, ok := p.at[key]
		if !ok {
			if p.at == nil {
				p.at = map[string]int{}
			}
			i = len(p.list)
			p.at[key] = i
			p.list = append(p.list, Difference{Comm: p.name, What: n, Old: o.value, New: w.value, OldAt: o.at, NewAt: w.at})
		}
		if rank >= 0 {
			p.list[i].Ranks = append(p.list[i].Ranks, rank)
		}
	}
}

// optional facts stand in a log only with some subsystems, or on some ranks: without them nothing is known.
func optional(name string) bool {
	for _, prefix := range []string{"topology", "search ", "GDR ", "place", "bootstrap ", "driver", "version", "socket ", "transports", "NICs", "channels", "p2p chunk", "library "} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// classes is the order in which differences are told: causes before effects.
var classes = []string{"communicator", "ranks", "in the log", "version", "driver", "library", "setting", "config", "plugins", "no IB", "NICs", "network", "bootstrap", "socket",
	"GDR", "NVLS", "topology", "place", "search", "transports", "channels", "p2p chunk"}

func class(what string) int {
	for i, c := range classes {
		if strings.HasPrefix(what, c) && what != "NICs used" {
			return i
		}
	}
	return len(classes)
}

// pictures compares rings and trees channel by channel.
func (d *differ) pictures(x, y *Comm) {
	texts := func(c *Comm) (rings, trees map[int]string, at map[int]*Line) {
		rings, trees, at = map[int]string{}, map[int]string{}, map[int]*Line{}
		for i := range c.Rings {
			rings[c.Rings[i].Channel] = ringText(c.Rings[i].Order, nil, c.Rings[i].Cut)
			at[c.Rings[i].Channel] = &c.Rings[i].At
		}
		for i := range c.Trees {
			trees[c.Trees[i].Channel] = strings.ReplaceAll(c.Trees[i].text(nil), "\n", " / ")
		}
		return rings, trees, at
	}
	ar, at, aAt := texts(x)
	br, bt, bAt := texts(y)
	d.byChannel(x.Name(), "ring", ar, br, aAt, bAt)
	d.byChannel(x.Name(), "tree", at, bt, nil, nil)
}

func (d *differ) byChannel(name, what string, a, b map[int]string, aAt, bAt map[int]*Line) {
	if len(a) == 0 || len(b) == 0 { // one log does not show them: nothing is known
		return
	}
	type pair struct{ old, new string }
	channels := map[pair][]int{}
	var order []pair
	common := make([]int, 0, len(a))
	for ch := range a {
		if b[ch] != "" {
			common = append(common, ch)
		}
	}
	slices.Sort(common)
	if len(a) != len(b) {
		d.add(Difference{Comm: name, What: "number of " + what + "s", Old: fmt.Sprint(len(a)), New: fmt.Sprint(len(b))})
	}
	for _, ch := range common {
		p := pair{a[ch], b[ch]}
		if p.old == p.new {
			continue
		}
		if channels[p] == nil {
			order = append(order, p)
		}
		channels[p] = append(channels[p], ch)
	}
	for _, p := range order {
		ch := channels[p]
		d.add(Difference{Comm: name, What: fmt.Sprintf("%s of %s %s", what, plural("channel", len(ch)), ranksText(ch)), Old: p.old, New: p.new, OldAt: aAt[ch[0]], NewAt: bAt[ch[0]]})
	}
}

// choices compares what was chosen for each operation and size.
func (d *differ) choices(x, y *Comm) {
	type key struct {
		fn    string
		bytes int64
	}
	by := func(c *Comm) map[key]*Selection {
		out := map[key]*Selection{}
		for _, s := range c.Selections {
			if k := (key{s.Func, s.Bytes}); out[k] == nil {
				out[k] = s
			}
		}
		return out
	}
	a, b := by(x), by(y)
	var keys []key
	for k := range a {
		if b[k] != nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(p, q key) int { return cmp.Or(cmp.Compare(p.fn, q.fn), cmp.Compare(p.bytes, q.bytes)) })
	words := func(s *Selection) string {
		if s.Channels > 0 {
			return fmt.Sprintf("%s, %s", s.choice(), count(s.Channels, "channel"))
		}
		return s.choice()
	}
	for i := 0; i < len(keys); {
		o, w := a[keys[i]], b[keys[i]]
		j := i
		for j+1 < len(keys) && keys[j+1].fn == keys[i].fn && words(a[keys[j+1]]) == words(o) && words(b[keys[j+1]]) == words(w) {
			j++
		}
		if words(o) != words(w) {
			what := strings.TrimSpace(o.Func + " " + sizeName(keys[i].bytes))
			if j > i {
				what += " to " + sizeName(keys[j].bytes)
			}
			d.add(Difference{Comm: x.Name(), What: what, Old: words(o), New: words(w), OldAt: &o.At, NewAt: &w.At})
		}
		i = j + 1
	}
}

// estimates compares NCCL's own model: a cell that is on in one log and off in the other, or differs by more than 2 %.
func (d *differ) estimates(x, y *Comm) {
	b := map[tuneKey]TuningCell{}
	for _, c := range y.Tuning {
		b[tuneKey{c.Func, c.Algo, c.Proto}] = c
	}
	for _, o := range x.Tuning {
		n, ok := b[tuneKey{o.Func, o.Algo, o.Proto}]
		if !ok || near(o.BWGBs, n.BWGBs) && (o.BWGBs == 0 || near(o.LatencyUS, n.LatencyUS)) {
			continue
		}
		d.add(Difference{Comm: x.Name(), What: fmt.Sprintf("estimate %s %s %s", o.Func, o.Algo, o.Proto), Old: o.words(), New: n.words(), OldAt: &o.At, NewAt: &n.At})
	}
}

func near(a, b float64) bool { return max(a, b)-min(a, b) <= 0.02*max(a, b) }

func (c TuningCell) words() string {
	if c.BWGBs == 0 {
		return "not used"
	}
	return fmt.Sprintf("%.1f us, %.1f GB/s", c.LatencyUS, c.BWGBs)
}

// processes compares logs without communicators, process by process in order of appearance.
func (d *differ) processes(a, b *Log) {
	pairs := &pairing{}
	for i := range min(len(a.Processes), len(b.Processes)) {
		pairs.compare(-1, factsOf(a.Processes[i]), factsOf(b.Processes[i]))
	}
	d.list = append(d.list, pairs.list...)
}

// findings compares the conclusions by their id.
func (d *differ) findings(a, b *Log) {
	by := func(l *Log) map[string]Finding {
		out := map[string]Finding{}
		for _, f := range l.Findings() {
			if _, ok := out[f.ID]; !ok {
				out[f.ID] = f
			}
		}
		return out
	}
	old, fresh := by(a), by(b)
	ids := map[string]bool{}
	for id := range old {
		ids[id] = true
	}
	for id := range fresh {
		ids[id] = true
	}
	sorted := make([]string, 0, len(ids))
	for id := range ids {
		sorted = append(sorted, id)
	}
	slices.Sort(sorted)
	for _, id := range sorted {
		o, inOld := old[id]
		n, inNew := fresh[id]
		if inOld != inNew {
			d.add(Difference{What: "finding " + id, Old: o.Title, New: n.Title, OldAt: firstEvidence(o), NewAt: firstEvidence(n)})
		}
	}
}

func firstEvidence(f Finding) *Line {
	if len(f.Evidence) == 0 {
		return nil
	}
	return &f.Evidence[0]
}

// WriteDiff writes differences for a person: old above new.
func WriteDiff(out io.Writer, list []Difference, oldName, newName string) error {
	w := &writer{out: out}
	w.printf("old: %s\nnew: %s\n", oldName, newName)
	if len(list) == 0 {
		w.printf("\nnothing was decided differently, as far as these logs say\n")
		return w.err
	}
	comm := "\x00"
	estimates := 0
	for _, x := range list {
		if x.Comm != comm {
			w.more(estimates - mostEstimates)
			comm, estimates = x.Comm, 0
			if comm == "" {
				w.printf("\nBOTH LOGS AS A WHOLE\n")
			} else {
				w.printf("\nCOMMUNICATOR %s\n", comm)
			}
		}
		if strings.HasPrefix(x.What, "estimate ") {
			if estimates++; estimates > mostEstimates {
				continue
			}
		}
		what := x.What
		if len(x.Ranks) > 0 {
			what += fmt.Sprintf("  (%s %s)", plural("rank", len(x.Ranks)), shorten(ranksText(x.Ranks), 60))
		}
		w.printf("  %s\n", what)
		w.columns("    ", 5, "old", shorten(orNone(x.Old), 600)+where(x.OldAt))
		w.columns("    ", 5, "new", shorten(orNone(x.New), 600)+where(x.NewAt))
	}
	w.more(estimates - mostEstimates)
	return w.err
}

// mostEstimates are shown of a communicator: they follow from the topology and the channels, which stand above them.
const mostEstimates = 4

func (w *writer) more(n int) {
	if n > 0 {
		w.printf("  ... %d more estimates, see --json\n", n)
	}
}

func orNone(s string) string {
	if s == "" {
		return "(not there)"
	}
	return s
}

func where(l *Line) string {
	if l == nil || l.N == 0 {
		return ""
	}
	return "  [" + l.String() + "]"
}
