package ncclog

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// transports sums up the connections by what they go over.
func (w *writer) transports(c *Comm) {
	type sum struct {
		edges int
		chans map[int]bool
		ranks []int
		dirs  map[string]int
	}
	sums := map[string]*sum{}
	var keys []string
	for _, x := range c.Ranks {
		for _, e := range x.Edges {
			key := e.way()
			s := sums[key]
			if s == nil {
				s = &sum{chans: map[int]bool{}, dirs: map[string]int{}}
				sums[key] = s
				keys = append(keys, key)
			}
			s.edges++
			s.chans[e.Channel] = true
			s.dirs[e.Dir]++
			if len(s.ranks) == 0 || s.ranks[len(s.ranks)-1] != x.Rank {
				s.ranks = append(s.ranks, x.Rank)
			}
		}
	}
	sort.Slice(keys, func(i, j int) bool { return sums[keys[i]].edges > sums[keys[j]].edges })
	for i, k := range keys {
		s := sums[k]
		label := "transports"
		if i > 0 {
			label = ""
		}
		text := fmt.Sprintf("%-28s %s on %s", k, count(s.edges, "connection"), count(len(s.chans), "channel"))
		if s.dirs["send"]+s.dirs["receive"] > 0 {
			text += fmt.Sprintf(" (%d send, %d receive)", s.dirs["send"], s.dirs["receive"])
		}
		w.field(label, text+c.who(s.ranks))
	}
	if len(keys) == 0 && slices.ContainsFunc(c.Ranks, func(x *Rank) bool { return x.Complete != nil }) {
		w.field("transports", "none in the log: from 2.22 on connections are made at the first call")
	}
}

// way is the connection without the number of the device.
func (e Edge) way() string {
	if e.NetDev < 0 {
		return e.Via
	}
	way := e.Transport + "/" + e.Net
	if e.GDR {
		way += " GDRDMA"
	}
	if e.Shared {
		way += " shared"
	}
	if e.ProxyRank >= 0 {
		way += " PXN"
	}
	return way
}

func (w *writer) channels(c *Comm) {
	var keys []string
	ranks := map[string][]int{}
	for _, x := range c.Ranks {
		if t := x.Totals; t != nil {
			key := fmt.Sprintf("%d collectives, %d p2p, %d per peer", t.Coll, t.P2P, t.PerPeer)
			if t.NVLS >= 0 {
				key += fmt.Sprintf(", %d NVLS", t.NVLS)
			}
			if ranks[key] == nil {
				keys = append(keys, key)
			}
			ranks[key] = append(ranks[key], x.Rank)
		}
	}
	for i, k := range keys {
		keys[i] = k + c.who(ranks[k])
	}
	if len(keys) > 0 {
		w.field("channels", strings.Join(keys, "; "))
	}
	var graphs []string
	for _, x := range c.Ranks {
		for _, g := range x.Graphs {
			s := fmt.Sprintf("%s %d x %.1f GB/s over %s", patternName(g.Pattern), g.Channels, g.BWIntra, g.TypeIntra)
			if x.NNodes > 1 {
				s += fmt.Sprintf(", %.1f GB/s over %s between nodes", g.BWInter, g.TypeInter)
			}
			if g.Channels > 0 && !slices.Contains(graphs, s) && len(graphs) < 6 {
				graphs = append(graphs, s)
			}
		}
	}
	if len(graphs) > 0 {
		w.field("search", strings.Join(graphs, "; "))
	}
	for _, f := range c.Forced {
		w.field("", f.Value)
	}
}

func patternName(n int) string {
	names := []string{"", "balanced tree", "split tree", "tree", "ring", "NVLS", "CollNet"}
	if n > 0 && n < len(names) {
		return names[n]
	}
	return fmt.Sprintf("pattern %d", n)
}

// nvls says whether NVLink SHARP is there and used, and the other decisions of one word.
func (w *writer) nvls(c *Comm) {
	yes, no, used := 0, 0, 0
	seen := map[*Process]bool{}
	for _, x := range c.Ranks {
		if x.NVLS != nil {
			used++
		}
		if seen[x.Process] {
			continue
		}
		seen[x.Process] = true
		for _, m := range x.Process.Multicast {
			if m.Available {
				yes++
			} else {
				no++
			}
		}
	}
	var parts []string
	if yes > 0 {
		parts = append(parts, fmt.Sprintf("multicast available on %s", count(yes, "GPU")))
	}
	if no > 0 {
		parts = append(parts, fmt.Sprintf("multicast not available on %s", count(no, "GPU")))
	}
	if used > 0 {
		parts = append(parts, fmt.Sprintf("set up by %s", count(used, "rank")))
	}
	for _, x := range c.Ranks {
		if x.NVLS != nil {
			parts = append(parts, fmt.Sprintf("%d heads, buffer %s", x.NVLS.Heads, sizeName(x.NVLS.BuffSize)))
			break
		}
	}
	if len(parts) > 0 {
		w.field("NVLS", strings.Join(parts, ", "))
	}
	var other []string
	for _, x := range c.Ranks {
		if x.Placed != nil {
			other = append(other, fmt.Sprintf("%s as NCCL counts them, multi-node NVLink %s", count(x.NNodes, "node"), map[bool]string{true: "on", false: "off"}[x.MNNVL > 0]))
			break
		}
	}
	if c.CC != nil && c.CC.Value {
		other = append(other, "confidential computing on")
	}
	pxn := 0
	for _, x := range c.Ranks {
		if slices.ContainsFunc(x.Edges, func(e Edge) bool { return e.ProxyRank >= 0 && e.ProxyRank != x.Rank }) {
			pxn++
		}
	}
	if pxn > 0 {
		other = append(other, fmt.Sprintf("PXN used by %s", count(pxn, "rank")))
	}
	if len(other) > 0 {
		w.field("nodes", strings.Join(other, ", "))
	}
}

func (w *writer) drawings(c *Comm) {
	lines := c.ringLines()
	for i, s := range lines {
		label := "rings"
		if i > 0 {
			label = ""
		}
		w.columns("  ", 13, label, s)
	}
	treeLines := c.treeLines()
	for i, s := range treeLines {
		label := "trees"
		if i > 0 {
			label = ""
		}
		w.printf("  %-13s%s\n", label, s)
	}
	all := strings.Join(lines, "") + strings.Join(treeLines, "")
	if strings.Contains(all, "=> ") {
		w.printf("  %-13s(=> goes to another host)\n", "")
	}
}

// selections writes what was chosen by size: neighbours with the same choice in one row.
func (w *writer) selections(c *Comm) {
	if len(c.Selections) == 0 {
		return
	}
	sorted := slices.Clone(c.Selections)
	slices.SortStableFunc(sorted, func(a, b *Selection) int {
		if a.Func+a.Kind != b.Func+b.Kind {
			return strings.Compare(a.Func+a.Kind, b.Func+b.Kind)
		}
		return int(max(-1, min(1, a.Bytes-b.Bytes)))
	})
	rows := [][]string{{"operation", "from", "to", "choice", "channels", "calls"}}
	for i := 0; i < len(sorted); {
		s := sorted[i]
		j, calls := i, 0
		for j < len(sorted) && sorted[j].choice() == s.choice() && sorted[j].Func == s.Func {
			calls += sorted[j].Count
			j++
		}
		rows = append(rows, []string{orDash(s.Func), sizeName(s.Bytes), sizeName(sorted[j-1].Bytes), s.choice(), channelSpan(sorted[i:j]), fmt.Sprint(calls)})
		i = j
	}
	w.printf("  chosen for each size\n")
	const most = 24
	if len(rows) > most+1 {
		w.table("    ", rows[:most])
		w.printf("    ... %d more rows, see --json\n", len(rows)-most)
		return
	}
	w.table("    ", rows)
}

func (s *Selection) choice() string {
	if s.Kind != "" {
		return strings.TrimSpace(s.Kind + " " + s.Kernel)
	}
	return s.Algo + " " + s.Proto
}

func channelSpan(list []*Selection) string {
	lo, hi := -1, -1
	for _, s := range list {
		if s.Channels == 0 {
			continue
		}
		if lo < 0 || s.Channels < lo {
			lo = s.Channels
		}
		hi = max(hi, s.Channels)
	}
	switch {
	case lo < 0:
		return "-"
	case lo == hi:
		return fmt.Sprint(lo)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

// tuning writes NCCL's own estimates for the commonest operation; the rest is in the JSON.
func (w *writer) tuning(c *Comm) {
	var parts []string
	for _, cell := range c.Tuning {
		if cell.Func == "AllReduce" && cell.BWGBs > 0 {
			parts = append(parts, fmt.Sprintf("%s %s %.1f us %.1f GB/s", cell.Algo, cell.Proto, cell.LatencyUS, cell.BWGBs))
		}
	}
	if len(parts) > 0 {
		w.field("estimates", "AllReduce: "+strings.Join(parts, ", "))
	} else if len(c.Tuning) > 0 {
		w.field("estimates", fmt.Sprintf("%d in the table, see --json", len(c.Tuning)))
	}
	if len(c.Matrix) > 0 {
		var off []string
		for _, m := range c.Matrix {
			if m.State == 0 && m.Func == "AllReduce" {
				off = append(off, strings.TrimSpace(m.Algo+" "+m.Proto))
			}
		}
		if len(off) > 0 {
			w.field("switched off", "for AllReduce: "+strings.Join(off, ", "))
		}
	}
}

// initTime says how long the slowest rank took and which part differs among ranks.
func (w *writer) initTime(c *Comm) {
	var slow *Rank
	n := 0
	for _, x := range c.Ranks {
		if x.Init != nil {
			n++
			if slow == nil || x.Init.Total > slow.Init.Total {
				slow = x
			}
		}
	}
	if slow != nil {
		t := slow.Init
		text := fmt.Sprintf("%.2f s on rank %d, the slowest of %d: kernels %.2f", t.Total, slow.Rank, n, t.Kernels)
		if t.Alloc >= 0 {
			text += fmt.Sprintf(", alloc %.2f", t.Alloc)
		}
		w.field("init", text+fmt.Sprintf(", bootstrap %.2f, allgathers %.2f, topology %.2f, graphs %.2f, connections %.2f, rest %.2f", t.Bootstrap, t.AllGathers, t.Topo,
			t.Graphs, t.Connections, t.Rest))
	}
	var last, first *Rank
	for _, x := range c.Ranks {
		if x.Bootstrap == nil {
			continue
		}
		if last == nil || x.Bootstrap.Recv < last.Bootstrap.Recv {
			last = x
		}
		if first == nil || x.Bootstrap.Recv > first.Bootstrap.Recv {
			first = x
		}
	}
	if first != nil && first != last && first.Bootstrap.Recv > 1 {
		w.field("", fmt.Sprintf("rank %d waited %.1f s for others to come; rank %d waited least (%.1f s)", first.Rank, first.Bootstrap.Recv, last.Rank, last.Bootstrap.Recv))
	}
}

func (w *writer) calls(c *Comm) {
	var keys []string
	ranks := map[string][]int{}
	for _, x := range c.Ranks {
		if x.Calls == nil {
			continue
		}
		key := count(x.Calls.Collectives, "collective")
		if x.Calls.P2P > 0 {
			key += fmt.Sprintf(", %d of send and receive", x.Calls.P2P)
		}
		if x.Calls.LastOf != nil {
			key += ", the last is " + x.Calls.LastOf.String()
		}
		if ranks[key] == nil {
			keys = append(keys, key)
		}
		ranks[key] = append(ranks[key], x.Rank)
	}
	for i, k := range keys {
		label := "calls"
		if i > 0 {
			label = ""
		}
		if i == 8 && len(keys) > 9 {
			w.field("", fmt.Sprintf("... %d more groups, see --json", len(keys)-i))
			break
		}
		w.field(label, k+c.who(ranks[k]))
	}
	for i, m := range c.Mismatches {
		if i == 8 {
			break
		}
		w.field("differs", fmt.Sprintf("call %d: rank %d calls %s (%s), rank %d calls %s (%s)", m.N, m.Rank, m.Call, w.place(m.Call.At), m.Ref, m.Want, w.place(m.Want.At)))
	}
}

// processesWithout lists processes that are in no communicator: they may be the ones that hang.
func (w *writer) processesWithout(l *Log) {
	in := map[int]bool{}
	for _, c := range l.Comms {
		for _, x := range c.Ranks {
			in[x.Proc] = true
		}
	}
	rows := [][]string{{"host", "pid", "bootstrap", "network", "settings", "last line"}}
	prefixed := slices.ContainsFunc(l.Processes, func(p *Process) bool { return p.Host != "" })
	for _, p := range l.Processes {
		if p.Host == "" && prefixed { // torn lines of the others
			continue
		}
		if in[p.Index] || p.Bootstrap == nil && p.Version == nil && len(p.Networks)+len(p.Env)+len(p.Plugins)+len(p.NICs)+len(p.IBErrors)+len(p.Traces) == 0 {
			continue
		}
		boot := ""
		if p.Bootstrap != nil {
			boot = p.Bootstrap.Interface + " " + p.Bootstrap.Addr
		}
		var env []string
		for _, s := range p.Env {
			env = append(env, s.Name+"="+s.Value)
		}
		pid := ""
		if p.PID > 0 {
			pid = fmt.Sprint(p.PID)
		}
		rows = append(rows, []string{orDash(p.Host), orDash(pid), orDash(boot), orDash(joinFacts(p.Networks)), orDash(shorten(strings.Join(env, " "), 60)), w.place(p.Last)})
	}
	if len(rows) == 1 {
		return
	}
	w.printf("\nPROCESSES IN NO COMMUNICATOR\n")
	const most = 20
	if len(rows) > most {
		w.table("  ", rows[:most])
		w.printf("  ... %d more\n", len(rows)-most)
		return
	}
	w.table("  ", rows)
}

// warnings writes each kind once: where, how often, what it means.
func (w *writer) warnings(l *Log) {
	if len(l.Warnings) == 0 {
		return
	}
	type kind struct {
		first *Warning
		count int
		procs map[int]bool
		hosts []string
	}
	var kinds []*kind
	at := map[string]*kind{}
	for _, x := range l.Warnings {
		key := x.Place + "|" + string(withoutDigits([]byte(x.Text)))
		k := at[key]
		if k == nil {
			k = &kind{first: x, procs: map[int]bool{}}
			at[key] = k
			kinds = append(kinds, k)
		}
		k.count += x.Count
		k.procs[x.Proc] = true
		if x.Process != nil && x.Process.Host != "" {
			k.hosts = append(k.hosts, x.Process.Host)
		}
	}
	w.printf("\nWARN LINES, in order of appearance\n")
	for i, k := range kinds {
		if i == 30 {
			w.printf("  ... %d more kinds, see --json\n", len(kinds)-i)
			break
		}
		x := k.first
		head := fmt.Sprintf("%s: %s %s", w.place(x.At), x.Place, shorten(x.Text, 300))
		w.columns("  ", 5, fmt.Sprintf("%dx", k.count), head)
		where := count(len(k.procs), "process")
		if len(k.hosts) > 0 {
			where += " on " + shorten(hostList(k.hosts), 60)
		}
		if x.At.Time != "" {
			where += ", first at " + x.At.Time
		}
		w.printf("       %s\n", where)
		if x.Meaning != "" {
			meaning := x.Meaning
			if x.Effect {
				meaning += " (a consequence)"
			}
			w.columns("       ", 8, "means:", meaning)
		}
		if x.Next != "" {
			w.columns("       ", 8, "check:", x.Next)
		}
	}
}

func (w *writer) failures(l *Log) {
	if len(l.Failures) == 0 {
		return
	}
	w.printf("\nWHAT THE PROGRAM AND THE LAUNCHER SAY\n")
	for i, f := range l.Failures {
		if i == 8 && len(l.Failures) > 9 {
			w.printf("  ... %d more, see --json\n", len(l.Failures)-i)
			break
		}
		w.columns("  ", 5, fmt.Sprintf("%dx", f.Count), fmt.Sprintf("%s: %s", w.place(f.At), shorten(f.At.Text, 240)))
	}
}

// gaps says what cannot be known from this log, so that nobody takes silence for health.
func (w *writer) gaps(l *Log) {
	var say []string
	env, tuning, ready := false, false, false
	for _, p := range l.Processes {
		env = env || len(p.Env) > 0
	}
	for _, c := range l.Comms {
		tuning = tuning || len(c.Selections) > 0 || len(c.Tuning) > 0
		ready = ready || slices.ContainsFunc(c.Ranks, func(x *Rank) bool { return x.Complete != nil })
	}
	if ready && !env {
		say = append(say, "no variable is shown: none was set, or NCCL_DEBUG_SUBSYS lacks ENV")
	}
	if ready && !tuning {
		say = append(say, "which algorithm was chosen is not in the log: add TUNING to NCCL_DEBUG_SUBSYS")
	}
	for _, f := range l.Files {
		if f.Error != "" {
			say = append(say, f.Name+": "+f.Error)
		} else if f.Cut && f.NCCL > 0 {
			say = append(say, f.Name+" ends in mid-line")
		}
	}
	if n := l.Counts.Torn; n > 0 {
		say = append(say, fmt.Sprintf("%s torn: several processes wrote into one pipe", count(n, "record")))
	}
	unknown := 0
	for _, u := range l.Counts.Unknown {
		unknown += u.Count
	}
	if unknown > 0 {
		say = append(say, fmt.Sprintf("%s of NCCL not understood, e.g. %s: %s", count(unknown, "line"), w.place(l.Counts.Unknown[0].First), shorten(l.Counts.Unknown[0].First.Text, 80)))
	}
	if l.Counts.NCCL == 0 {
		say = append(say, "there is no line of NCCL in this: set NCCL_DEBUG=INFO for the program")
	}
	for list, n := range l.Counts.Dropped {
		say = append(say, fmt.Sprintf("%d %s left out", n, list))
	}
	if len(say) == 0 {
		return
	}
	slices.Sort(say)
	w.printf("\nNOT IN THE LOG, OR NOT CERTAIN\n")
	for _, s := range say {
		w.columns("  ", 2, "-", s)
	}
}
