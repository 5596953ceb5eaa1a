package ncclog

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// reportWidth is where the report breaks its lines.
const reportWidth = 118

// writer is the report on its way out. The first error of the output stays.
type writer struct {
	out io.Writer
	err error

	short map[string]string // names of files as the report writes them
	told  map[int]bool      // processes whose settings and networks stand above
}

// place is a line's place in as few words as are clear: "line 12" of the only file, else the file's own name where no two are equal.
func (w *writer) place(l Line) string {
	if short, ok := w.short[l.File]; ok {
		return fmt.Sprintf("%s%d", short, l.N)
	}
	return l.String()
}

func shortNames(files []File) map[string]string {
	out := map[string]string{}
	if len(files) == 1 {
		out[files[0].Name] = "line "
		return out
	}
	times := map[string]int{}
	for _, f := range files {
		times[filepath.Base(f.Name)]++
	}
	for _, f := range files {
		if base := filepath.Base(f.Name); times[base] == 1 {
			out[f.Name] = base + ":"
		}
	}
	return out
}

func (w *writer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

// field writes "  name      text", broken at blanks where it is too wide.
func (w *writer) field(name, text string) { w.columns("  ", 13, name, text) }

func (w *writer) columns(indent string, width int, name, text string) {
	label := indent + fmt.Sprintf("%-*s", width, name)
	room := reportWidth - len(label)
	for len(text) > room {
		i := strings.LastIndexByte(text[:room], ' ')
		if i <= 0 {
			i = strings.IndexByte(text, ' ')
		}
		if i <= 0 {
			break
		}
		w.printf("%s%s\n", label, strings.TrimRight(text[:i], " "))
		text, label = strings.TrimLeft(text[i:], " "), strings.Repeat(" ", len(label))
	}
	w.printf("%s%s\n", label, text)
}

// WriteReport writes what a person wants to know: findings first, then each communicator, then the WARN lines with their meaning.
func WriteReport(out io.Writer, l *Log, findings []Finding) error {
	w := &writer{out: out, short: shortNames(l.Files), told: map[int]bool{}}
	w.head(l)
	w.findings(l, findings)
	for i, c := range l.Comms {
		if i == maxComplete && len(l.Comms) > maxComplete+1 {
			w.otherComms(l, l.Comms[i:])
			break
		}
		w.comm(l, c)
	}
	w.processesWithout(l)
	w.warnings(l)
	w.failures(l)
	w.gaps(l)
	return w.err
}

func (w *writer) head(l *Log) {
	ranks := 0
	for _, c := range l.Comms {
		ranks = max(ranks, len(c.Ranks))
	}
	var hosts, versions []string
	for _, p := range l.Processes {
		if p.Host != "" {
			hosts = append(hosts, p.Host)
		}
	}
	for _, v := range l.Versions {
		s := v.NCCL
		if v.CUDA != "" {
			s += " (CUDA " + v.CUDA + ")"
		}
		if len(v.Processes) > 0 && len(l.Versions) > 1 {
			s += fmt.Sprintf(" in %d processes", len(v.Processes))
		}
		versions = append(versions, s)
	}
	version := "NCCL " + strings.Join(versions, ", ")
	if len(versions) == 0 {
		version = "no version line"
		if form := commonForm(l.Processes); form != "" {
			version += " (the form of the lines is that of " + form + ")"
		}
	}
	slices.Sort(hosts)
	n := len(slices.Compact(hosts))
	w.printf("%s; %s, %s, %s; %s, %s, %d of NCCL\n", version, count(len(l.Comms), "communicator"), count(len(l.Processes), "process"), count(n, "host"),
		count(len(l.Files), "file"), count(l.Counts.Lines, "line"), l.Counts.NCCL)
}

// commonForm is the range of versions that the lines of all processes allow; what they contradict each other in is left to the JSON.
func commonForm(list []*Process) string {
	lo, hi := 10, 99
	for _, p := range list {
		if p.lo > 0 || p.hi > 0 {
			lo, hi = max(lo, p.lo), min(hi, p.hi)
		}
	}
	return formText(lo, hi)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (w *writer) findings(l *Log, findings []Finding) {
	w.printf("\nFINDINGS\n")
	if len(findings) == 0 {
		w.printf("  nothing odd in these lines\n")
	}
	for _, f := range findings {
		w.columns("  ", 9, strings.ToUpper(f.Severity), f.Title)
		for i, e := range f.Evidence {
			if i == 3 && len(f.Evidence) > 4 {
				w.printf("           ... %d more lines, see --json\n", len(f.Evidence)-i)
				break
			}
			w.printf("           %s: %s\n", w.place(e), shorten(e.Text, reportWidth-13-len(w.place(e))))
		}
		for _, part := range [...]struct{ name, text string }{{"cost:", f.Cost}, {"check:", f.Next}, {"fix:", f.Fix}} {
			if part.text != "" {
				w.columns("           ", 7, part.name, part.text)
			}
		}
	}
}

func shorten(s string, n int) string {
	if n = max(n, 40); len(s) > n {
		return strings.ToValidUTF8(s[:n-3], "") + "..."
	}
	return s
}

func (w *writer) comm(l *Log, c *Comm) {
	title := fmt.Sprintf("\nCOMMUNICATOR %s  %s", c.Name(), count(c.size(), "rank"))
	if c.NRanks == 0 {
		title = fmt.Sprintf("\nCOMMUNICATOR not named in these lines  %s", count(len(c.Ranks), "rank"))
	} else if len(c.Ranks) < c.NRanks {
		title += fmt.Sprintf(", %d in the log", len(c.Ranks))
	}
	if c.API != "" {
		title += "  " + c.API
	}
	if c.Parent >= 0 {
		title += "  split from " + l.Comms[c.Parent].Name()
		if c.Color != nil {
			title += fmt.Sprintf(" (color %d)", *c.Color)
		}
	}
	w.printf("%s\n", title)
	w.ranks(c)
	if slices.ContainsFunc(c.Ranks, func(x *Rank) bool { return !w.told[x.Proc] }) {
		w.versions(l, c)
		w.env(c)
		w.network(c)
	} else {
		w.field("processes", "settings and networks as above")
	}
	for _, x := range c.Ranks {
		w.told[x.Proc] = true
	}
	w.gdrDecisions(c)
	w.transports(c)
	w.channels(c)
	w.nvls(c)
	w.drawings(c)
	w.selections(c)
	w.tuning(c)
	w.initTime(c)
	w.calls(c)
}

// maxComplete communicators are written in full; a framework may make dozens that are alike.
const maxComplete = 5

// otherComms writes a row for each of the rest.
func (w *writer) otherComms(l *Log, list []*Comm) {
	w.printf("\n%s MORE\n", strings.ToUpper(count(len(list), "communicator")))
	rows := [][]string{{"id", "ranks", "in the log", "of", "network", "transports", "channels", "init", "state"}}
	for i, c := range list {
		if i == 40 {
			break
		}
		parent, network, channels, init := "", "", "", ""
		if c.Parent >= 0 {
			parent = l.Comms[c.Parent].Name()
		}
		states, ways := map[string]bool{}, map[string]bool{}
		slowest := -1.0
		for _, x := range c.Ranks {
			states[x.State()] = true
			for _, e := range x.Edges {
				ways[e.way()] = true
			}
			if x.Network != nil {
				network = x.Network.Value
			}
			if x.Totals != nil {
				channels = fmt.Sprint(x.Totals.Coll)
			}
			if x.Init != nil && x.Init.Total > slowest {
				slowest = x.Init.Total
				init = fmt.Sprintf("%.2f s", slowest)
			}
		}
		rows = append(rows, []string{c.Name(), fmt.Sprint(c.NRanks), shorten(ranksText(numbers(c)), 40), orDash(parent), orDash(network), orDash(keyList(ways)), orDash(channels),
			orDash(init), orDash(keyList(states))})
	}
	w.table("  ", rows)
	if len(list) > 40 {
		w.printf("  ... %d more, see --json\n", len(list)-40)
	}
}

func numbers(c *Comm) []int {
	var out []int
	for _, x := range c.Ranks {
		out = append(out, x.Rank)
	}
	return out
}

func keyList(set map[string]bool) string {
	var out []string
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return shorten(strings.Join(out, ", "), 50)
}

// rankRow is one row of the table: a rank, or many that are equal.
type rankRow struct {
	ranks, gpus []int
	hosts       []string
	bus         string
	nics        []string
	network     string
	gdr, state  string
	guessed     bool
}

func (r *rankRow) key() string {
	return strings.Join([]string{strings.Join(r.nics, ","), r.network, r.gdr, r.state}, "|")
}

// rankRows: one a rank as long as these are few, else one a host, and equal hosts in one.
func (c *Comm) rankRows() []*rankRow {
	var rows []*rankRow
	for _, x := range c.Ranks {
		row := &rankRow{ranks: []int{x.Rank}, gpus: []int{x.gpu()}, hosts: []string{x.Process.Host}, bus: x.BusID, nics: x.NICs(), gdr: x.GDRUse(), state: x.State(),
			guessed: x.Guessed}
		if x.Network != nil {
			row.network = x.Network.Value
		}
		rows = append(rows, row)
	}
	if len(rows) <= 16 {
		return rows
	}
	byHost := fold(rows, func(r *rankRow) string { return r.hosts[0] + "|" + r.network + "|" + r.gdr + "|" + r.state })
	return fold(byHost, func(r *rankRow) string { return ranksText(r.gpus) + "|" + r.key() })
}

// fold puts rows of the same key together.
func fold(rows []*rankRow, key func(*rankRow) string) []*rankRow {
	var out []*rankRow
	at := map[string]int{}
	for _, r := range rows {
		k := key(r)
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, r)
			continue
		}
		o := out[i]
		o.ranks, o.hosts, o.gpus = append(o.ranks, r.ranks...), append(o.hosts, r.hosts...), append(o.gpus, r.gpus...)
		o.bus = ""
		for _, n := range r.nics {
			if !slices.Contains(o.nics, n) {
				o.nics = append(o.nics, n)
			}
		}
		slices.Sort(o.nics)
	}
	return out
}

func (w *writer) ranks(c *Comm) {
	table := [][]string{{"rank", "host", "GPU", "bus", "network", "NIC", "GDR", "state"}}
	guessed := false
	for _, r := range c.rankRows() {
		nics := hostList(r.nics)
		rank := shorten(ranksText(r.ranks), 40)
		if r.guessed {
			rank += "*"
			guessed = true
		}
		table = append(table, []string{rank, orDash(hostList(r.hosts)), ranksText(r.gpus), orDash(r.bus), orDash(r.network), orDash(shorten(nics, 40)), orDash(r.gdr), r.state})
	}
	w.table("  ", table)
	if guessed {
		w.printf("  * number worked out: no line of these processes says it\n")
	}
	var missing []int
	there := c.hostOf()
	for n := 0; n < c.NRanks && len(c.Ranks) > 0; n++ {
		if _, ok := there[n]; !ok {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		w.field("not in log", "ranks "+shorten(ranksText(missing), 200))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// table writes columns as wide as they need; a column with nothing but dashes is left out.
func (w *writer) table(indent string, rows [][]string) {
	var keep []int
	width := make([]int, len(rows[0]))
	for col := range rows[0] {
		empty := true
		for i, r := range rows {
			width[col] = max(width[col], len(r[col]))
			empty = empty && (i == 0 || r[col] == "-" || r[col] == "?")
		}
		if !empty {
			keep = append(keep, col)
		}
	}
	for _, r := range rows {
		line := indent
		for _, col := range keep {
			line += fmt.Sprintf("%-*s  ", width[col], r[col])
		}
		w.printf("%s\n", strings.TrimRight(line, " "))
	}
}

// byValue groups the processes of a communicator by what value says; "" is not counted.
func (c *Comm) byValue(value func(*Process) string) (values []string, ranks map[string][]int) {
	ranks = map[string][]int{}
	for _, x := range c.Ranks {
		v := value(x.Process)
		if v == "" {
			continue
		}
		if ranks[v] == nil {
			values = append(values, v)
		}
		ranks[v] = append(ranks[v], x.Rank)
	}
	return values, ranks
}

// who says which ranks, where it is not all of them.
func (c *Comm) who(ranks []int) string {
	if len(ranks) == len(c.Ranks) {
		return ""
	}
	text := ranksText(ranks)
	if len(text) > 30 {
		return fmt.Sprintf(" (%d of %d ranks)", len(ranks), len(c.Ranks))
	}
	return " (" + plural("rank", len(ranks)) + " " + text + ")"
}

func plural(what string, n int) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

func (w *writer) versions(l *Log, c *Comm) {
	list := func(value func(*Process) string) string {
		values, ranks := c.byValue(value)
		for i, v := range values {
			if len(values) > 1 {
				values[i] = v + c.who(ranks[v])
			}
		}
		return strings.Join(values, ", ")
	}
	text := list(func(p *Process) string {
		if p.Version == nil {
			return ""
		}
		return p.Version.Value + " (built for CUDA " + p.CUDABuild + ")"
	})
	if text == "" {
		var procs []*Process
		for _, x := range c.Ranks {
			procs = append(procs, x.Process)
		}
		text = "not printed by a process"
		if len(l.Versions) == 1 {
			text = fmt.Sprintf("%s (built for CUDA %s), as printed by one rank", l.Versions[0].NCCL, l.Versions[0].CUDA)
		}
		if form := commonForm(procs); form != "" {
			text += "; the form of the lines is that of " + form
		}
	}
	if driver := list(func(p *Process) string {
		if p.Driver == nil {
			return ""
		}
		return p.Driver.Value
	}); driver != "" {
		text += "; driver for CUDA " + driver
	}
	w.field("version", text)
}

// envRow is a setting and the ranks that have it.
type envRow struct {
	name, value, from string
	ranks             []int
	at                Line
}

// envRows are the settings of a communicator's processes; an echo of one that is there anyway is left out.
func (c *Comm) envRows() []*envRow {
	var rows []*envRow
	at := map[string]*envRow{}
	add := func(x *Rank, s Setting) {
		key := s.Name + "=" + s.Value
		row := at[key]
		from := s.From
		if s.Plugin != "" {
			from = s.Plugin
		}
		if row == nil {
			row = &envRow{name: s.Name, value: s.Value, from: from, at: s.At}
			at[key] = row
			rows = append(rows, row)
		} else if row.from == FromEcho {
			row.from = from
		}
		if !slices.Contains(row.ranks, x.Rank) {
			row.ranks = append(row.ranks, x.Rank)
		}
	}
	for _, x := range c.Ranks {
		for _, s := range x.Process.Env {
			add(x, s)
		}
		for _, s := range x.Config {
			add(x, s)
		}
	}
	slices.SortStableFunc(rows, func(a, b *envRow) int { return cmp.Compare(a.name, b.name) })
	return rows
}

func (w *writer) env(c *Comm) {
	for i, r := range c.envRows() {
		label := "settings"
		if i > 0 {
			label = ""
		}
		w.field(label, fmt.Sprintf("%s=%s  [%s]%s", r.name, r.value, r.from, c.who(r.ranks)))
	}
}

func (w *writer) network(c *Comm) {
	list := func(label string, value func(*Process) string) {
		values, ranks := c.byValue(value)
		for i, v := range values {
			if i == 4 && len(values) > 5 {
				w.field("", fmt.Sprintf("... %d more, see --json", len(values)-i))
				return
			}
			name := label
			if i > 0 {
				name = ""
			}
			w.field(name, shorten(v, 400)+c.who(ranks[v]))
		}
	}
	list("bootstrap", func(p *Process) string {
		if p.Bootstrap == nil {
			return ""
		}
		if len(c.Ranks) > 16 {
			return p.Bootstrap.Interface
		}
		return p.Bootstrap.Interface + " " + p.Bootstrap.Addr
	})
	list("NICs", (*Process).nicText)
	list("no IB", func(p *Process) string { return joinFacts(p.NoIB) })
	list("sockets", func(p *Process) string {
		if !slices.ContainsFunc(p.Networks, func(f Fact[string]) bool { return f.Value == "Socket" }) {
			return ""
		}
		var names []string
		for _, a := range p.SocketIfs {
			names = append(names, a.Interface)
		}
		return strings.Join(names, " ")
	})
	list("plugins", (*Process).pluginText)
	list("NIC GDR", func(p *Process) string {
		var on, off []string
		for _, g := range p.NICGDR {
			if g.Enabled {
				on = append(on, g.NIC)
			} else {
				off = append(off, g.NIC)
			}
		}
		return strings.TrimSpace(onOff("offered by ", on) + " " + onOff("not offered by ", off))
	})
}

func onOff(words string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return words + hostList(slices.Compact(names))
}

func joinFacts(facts []Fact[string]) string {
	var out []string
	for _, f := range facts {
		out = append(out, f.Value)
	}
	return strings.Join(out, ", ")
}

// nicText lists the devices: equal ones in one word.
func (p *Process) nicText() string {
	var keys []string
	names := map[string][]string{}
	for _, n := range p.NICs {
		key := n.Link
		if n.SpeedMbps > 0 {
			key += fmt.Sprintf(" %d Gb/s", n.SpeedMbps/1000)
		}
		if n.SHARP {
			key += " SHARP"
		}
		if names[key] == nil {
			keys = append(keys, key)
		}
		names[key] = append(names[key], n.Name)
	}
	for i, k := range keys {
		keys[i] = hostList(names[k]) + " (" + strings.TrimSpace(k) + ")"
	}
	text := strings.Join(keys, ", ")
	if p.OOB != nil && text != "" {
		text += "; handshakes over " + p.OOB.Interface
	}
	return text
}

// pluginText leaves out what says nothing: probes of old interfaces, and plugins that nobody asked for.
func (p *Process) pluginText() string {
	var out []string
	for _, x := range p.Plugins {
		if x.Outcome == PluginProbe || x.Outcome == PluginMissing || x.Outcome == PluginInternal || x.Outcome == PluginReady {
			continue
		}
		if x.Outcome == PluginUsed && (x.Name == "IB" || x.Name == "Socket") || x.Outcome == PluginFailed && x.Name == "IB" && len(p.NoIB) > 0 {
			continue
		}
		out = append(out, strings.TrimSpace(x.Kind+" "+x.Name+" "+x.Outcome))
	}
	return strings.Join(out, ", ")
}

// gdrDecisions sums up the lines "GPU Direct RDMA Enabled for GPU …".
func (w *writer) gdrDecisions(c *Comm) {
	counts := map[string]int{}
	var keys []string
	for _, x := range c.Ranks {
		for _, g := range x.GDR {
			key := fmt.Sprintf("%s at distance %s (limit %s)", map[bool]string{true: "on", false: "off"}[g.Enabled], nameOr(g.Path, g.Distance), nameOr(g.LimitIs, g.Limit))
			if counts[key] == 0 {
				keys = append(keys, key)
			}
			counts[key]++
		}
	}
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%s: %d GPU-NIC pairs", k, counts[k])
	}
	if len(keys) > 0 {
		w.field("GDR", strings.Join(keys, "; "))
	}
}

func nameOr(name string, n int) string {
	if name == "" {
		return fmt.Sprint(n)
	}
	return name
}
