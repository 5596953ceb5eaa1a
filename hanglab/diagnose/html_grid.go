package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// Limits of the page: what a browser shows at once and a person can look at.
const (
	pageColumns = 96  // of one group
	pageRows    = 128 // of one group, after equal ones became one
	pageGroups  = 64
	surround    = 3 // columns around what is of interest
	lastColumns = 6 // always shown
)

// pageGroup is the calls of one group or communicator, laid out.
type pageGroup struct {
	Name, Note string
	Open       bool // of interest: ranks part here, or the verdict is about it
	Columns    []pageColumn
	Rows       []pageRow
}

type pageColumn struct {
	Label, Title string
	Folded       bool
	Here         bool // the verdict's sequence number
}

type pageRow struct {
	Label, Title string
	Odd          bool
	Cells        []pageCell
}

type pageCell struct {
	Class, Text, Title string
}

// wording is a call in words; equal calls share one.
type wording struct {
	callKey
	size string
}

// callKey is what must be equal on all ranks.
type callKey struct {
	op, dtype string
	elements  int64 // -1: they need not be, or are not known
}

// spot is one call of a rank. There are millions of them. The zero value is none.
type spot struct {
	*wording
	seq   int64
	state byte // 'C', 'S', 'Q'; 0: not known
	line  int32
	entry *evidence.FlightEntry
}

func (s *spot) none() bool { return s.wording == nil }

func (s *spot) same(t *spot) bool { return s.wording == t.wording || s.callKey == t.callKey }

// track is one rank's calls in a group, by number.
type track struct {
	rank  int
	file  string // of a log; spots have its lines
	done  int64  // last completed call by the group's counter, also of those that were not recorded; 0: unknown
	spots []spot // by number, which may leave some out
}

var nothing spot

func (t *track) at(seq int64) *spot {
	if len(t.spots) == 0 {
		return &nothing
	}
	if i := seq - t.first(); i >= 0 && i < int64(len(t.spots)) && t.spots[i].seq == seq { // nothing is left out before it, as usual
		return &t.spots[i]
	}
	if i, ok := t.find(seq); ok {
		return &t.spots[i]
	}
	return &nothing
}

func (t *track) find(seq int64) (int, bool) {
	return slices.BinarySearchFunc(t.spots, seq, func(s spot, seq int64) int { return cmp.Compare(s.seq, seq) })
}

func (t *track) first() int64 { return t.spots[0].seq }

func (t *track) last() int64 { return t.spots[len(t.spots)-1].seq }

// put keeps the last call of a number: of a coalesced group that is the one that says how far it is.
func (t *track) put(seq int64, s spot) {
	s.seq = seq
	if len(t.spots) == 0 || seq > t.last() {
		t.spots = append(t.spots, s)
		return
	}
	if i, ok := t.find(seq); ok {
		t.spots[i] = s
	} else if len(t.spots) < 1<<16 { // numbers that go down are a damaged file's; moving them up is not for millions
		t.spots = slices.Insert(t.spots, i, s)
	}
}

// field is all calls of one group.
type field struct {
	name   string
	p2p    bool
	tracks map[int]*track
	all    []*track // the same, in no order
}

func (f *field) track(rank int) *track {
	t := f.tracks[rank]
	if t == nil {
		t = &track{rank: rank}
		f.tracks[rank] = t
		f.all = append(f.all, t)
	}
	return t
}

// fields collects all groups of dumps and of NCCL's logs.
type fields struct {
	by    map[string]*field
	order []*field
	calls map[*evidence.FlightCall]*wording
}

func (fs *fields) get(key, name string, p2p bool) *field {
	f := fs.by[key]
	if f == nil {
		f = &field{name: name, p2p: p2p, tracks: map[int]*track{}}
		fs.by[key] = f
		fs.order = append(fs.order, f)
	}
	return f
}

func collect(e *evidence.Evidence) []*field {
	fs := &fields{by: map[string]*field{}, calls: map[*evidence.FlightCall]*wording{}}
	seen := map[int]bool{}
	for i := range e.Dumps {
		d := &e.Dumps[i]
		if d.Data == nil || d.Rank < 0 || seen[d.Rank] && len(d.Data.Entries) == 0 {
			continue
		}
		if seen[d.Rank] { // the other form of the same dump
			continue
		}
		seen[d.Rank] = true
		fs.dump(d)
	}
	for _, c := range e.Comms {
		fs.comm(c)
	}
	return fs.order
}

// dump adds a rank's calls, and its row in groups where it has none.
func (fs *fields) dump(d *evidence.Dump) {
	members, desc := map[string]string{}, map[string]string{}
	for _, g := range d.Data.Groups {
		members[g.Name], desc[g.Name] = fmt.Sprint(g.Ranks), g.Desc
		fs.get(g.Name+" "+members[g.Name], title(g.Name, g.Desc), false).track(d.Rank)
	}
	type origin struct { // entries of one group come in runs
		*evidence.FlightOrigin
		p2p bool
	}
	tracks := map[origin]*track{}
	for i := range d.Data.Entries {
		e := &d.Data.Entries[i]
		o, seq := origin{e.Origin, e.IsP2P}, e.CollectiveSeqID
		if e.IsP2P {
			seq = e.P2PSeqID
		}
		t := tracks[o]
		if t == nil {
			name := e.Origin.GroupName
			key, label := name+" "+members[name], title(name, cmp.Or(desc[name], e.Origin.GroupDesc))
			if e.IsP2P {
				key, label = "p2p "+key, label+", send and recv"
			}
			t = fs.get(key, label, e.IsP2P).track(d.Rank)
			tracks[o] = t
		}
		t.put(seq, fs.spot(e))
	}
	counted := map[int64]*track{}
	for o, t := range tracks {
		if counted[o.PGID] == nil || o.p2p { // the counter of a group that sends and receives is theirs
			counted[o.PGID] = t
		}
	}
	for _, s := range d.Data.Status {
		if t := counted[s.PGID]; t != nil {
			t.done = s.LastCompleted
		} else if name, how := d.Data.GroupName(s.PGID); how != evidence.NameUnknown {
			fs.get(name+" "+members[name], title(name, desc[name]), false).track(d.Rank).done = s.LastCompleted
		}
	}
}

func title(name, desc string) string {
	switch {
	case desc == "" || desc == "undefined" || desc == name:
		return "group " + name
	}
	return "group " + name + " (" + desc + ")"
}

func (fs *fields) spot(e *evidence.FlightEntry) spot {
	s := spot{wording: fs.calls[e.Call], entry: e, state: 'Q'}
	if s.wording == nil {
		a := askOf(e.Call)
		s.wording = &wording{callKey{a.kind, a.dtype, a.size}, sizeText(e.Call.InputSizes)}
		if a.p2p { // with its peers
			s.op = e.Call.ProfilingName[strings.IndexByte(e.Call.ProfilingName, ':')+1:]
		}
		fs.calls[e.Call] = s.wording
	}
	switch e.State {
	case "completed":
		s.state = 'C'
	case "started":
		s.state = 'S'
	}
	return s
}

func sizeText(sizes [][]int64) string {
	var parts []string
	for i, one := range sizes {
		if i == 3 {
			parts = append(parts, fmt.Sprintf("… %d tensors", len(sizes)))
			break
		}
		var dims []string
		for _, n := range one {
			dims = append(dims, strconv.FormatInt(n, 10))
		}
		parts = append(parts, strings.Join(dims, "x"))
	}
	return strings.Join(parts, "+")
}

func (fs *fields) comm(c *evidence.Comm) {
	if c.Rank < 0 || len(c.Calls) == 0 {
		return
	}
	name := cmp.Or(c.ID, c.Pointer)
	f := fs.get("comm "+name, "NCCL log, communicator "+name, false)
	t := f.track(c.Rank)
	t.file = c.Where.File
	for i, call := range c.Calls {
		seq := int64(i)
		if c.HasOp {
			seq = call.OpCount
		}
		t.put(seq, spot{wording: &wording{callKey{call.Op, call.DType, call.Count}, strconv.FormatInt(call.Count, 10)}, line: call.Line})
	}
}

// bounds are the first and the last number of a group.
func (f *field) bounds() (first, last int64) {
	first, last = 0, -1
	for _, t := range f.all { // what only a counter tells is no reason for more columns
		if len(t.spots) == 0 {
			continue
		}
		if last < 0 || t.first() < first {
			first = t.first()
		}
		last = max(last, t.last())
	}
	return max(first, last-1<<20), last // a damaged number is no reason to look at all those below it
}

// plain tells whether all ranks made the same call at that number and finished it. Numbers that a rank's ring has lost do not count.
func (f *field) plain(seq int64) bool {
	var one *spot
	for _, t := range f.all {
		s := t.at(seq)
		if s.none() {
			if len(t.spots) > 0 && seq < t.first() || f.p2p || seq <= t.done {
				continue
			}
			return false
		}
		if s.state != 'C' && s.state != 0 {
			return false
		}
		if one != nil && !f.p2p && !s.same(one) {
			return false
		}
		one = s
	}
	return true
}

// columns chooses what is shown: where ranks part, what surrounds it, and the end.
func (f *field) columns(here int64) (show []int64, odd bool) {
	first, last := f.bounds()
	keep := map[int64]bool{}
	around := func(seq int64, n int64) {
		for s := max(first, seq-n); s <= min(last, seq+n); s++ {
			keep[s] = true
		}
	}
	for s := first; s <= last && len(keep) < pageColumns; s++ {
		if !f.plain(s) {
			odd = true
			around(s, surround)
		}
	}
	if here >= first && here <= last {
		around(here, surround)
	}
	around(last, lastColumns)
	return slices.Sorted(maps.Keys(keep)), odd
}

// lay turns a group into rows and columns.
func (f *field) lay(v *Verdict, about bool) pageGroup {
	here := int64(-1)
	if about && v.P2P == f.p2p {
		here = v.Sequence
	}
	show, odd := f.columns(here)
	g := pageGroup{Name: f.name, Open: odd || here >= 0}
	first, last := f.bounds()
	g.Note = fmt.Sprintf("%d ranks, calls %d to %d", len(f.tracks), first, last)
	if last < first {
		g.Note = fmt.Sprintf("%d ranks, no calls", len(f.tracks))
	}
	if !odd {
		g.Note += ", all equal and complete"
	}
	g.Columns = head(show, first, last, here)
	usual, dtype := f.usual(show), f.dtype(show)
	if dtype != "" {
		g.Note += ", " + dtype
	}
	rows := map[string]*pageRow{}
	var order []string
	ranks := map[string][]int{}
	for _, rank := range slices.Sorted(maps.Keys(f.tracks)) {
		row := f.row(f.tracks[rank], show, g.Columns, usual, dtype)
		row.Odd = slices.Contains(v.Ranks, rank)
		key := row.key()
		if rows[key] == nil {
			rows[key] = &row
			order = append(order, key)
		}
		ranks[key] = append(ranks[key], rank)
	}
	slices.SortStableFunc(order, func(a, b string) int { // who is accused comes first, and is not among those left out
		return cmp.Compare(yes(rows[b].Odd), yes(rows[a].Odd))
	})
	for i, key := range order {
		if i == pageRows {
			g.Note += fmt.Sprintf("; %d more rows are left out", len(order)-i)
			break
		}
		r := rows[key]
		r.Title = showRanks(ranks[key])
		r.Label = cutText(r.Title, 28)
		g.Rows = append(g.Rows, *r)
	}
	return g
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

// head are the columns, with one for each run that is left out.
func head(show []int64, first, last, here int64) (out []pageColumn) {
	next := first
	skip := func(to int64) {
		if n := to - next; n > 0 {
			out = append(out, pageColumn{Label: "…", Title: fmt.Sprintf("calls %d to %d, left out", next, to-1), Folded: true})
		}
	}
	for _, s := range show {
		skip(s)
		out = append(out, pageColumn{Label: strconv.FormatInt(s, 10), Here: s == here})
		next = s + 1
	}
	skip(last + 1)
	return out
}

// usual is the commonest call of each number; in a tie none is.
func (f *field) usual(show []int64) map[int64]callKey {
	out := map[int64]callKey{}
	if f.p2p {
		return out
	}
	for _, seq := range show {
		n := map[callKey]int{}
		for _, t := range f.all {
			if s := t.at(seq); !s.none() {
				n[s.callKey]++
			}
		}
		if len(n) < 2 {
			continue
		}
		best, tie := callKey{}, false
		for k, m := range n {
			switch {
			case m > n[best]:
				best, tie = k, false
			case m == n[best] && k != best:
				tie = true
			}
		}
		if tie { // nobody is usual
			best = callKey{}
		}
		out[seq] = best
	}
	return out
}

// dtype is the only type of the calls shown; "" if there are several.
func (f *field) dtype(show []int64) string {
	one := ""
	for _, seq := range show {
		for _, t := range f.all {
			s := t.at(seq)
			switch {
			case s.none() || s.dtype == "" || s.dtype == one:
			case one != "":
				return ""
			default:
				one = s.dtype
			}
		}
	}
	return one
}

func (f *field) row(t *track, show []int64, columns []pageColumn, usual map[int64]callKey, dtype string) pageRow {
	var r pageRow
	i := 0
	for _, c := range columns {
		if c.Folded {
			r.Cells = append(r.Cells, pageCell{Class: "fold"})
			continue
		}
		seq := show[i]
		i++
		s := t.at(seq)
		cell := pageCell{Class: "none", Text: "·", Title: fmt.Sprintf("rank %d made no call %d", t.rank, seq)}
		switch {
		case s.none() && seq <= t.done:
			cell.Class, cell.Text, cell.Title = "done", "C", fmt.Sprintf("rank %d has completed call %d by its counter; the call itself is not in its record", t.rank, seq)
		case s.none() && len(t.spots) > 0 && seq < t.first():
			cell.Class, cell.Text, cell.Title = "lost", "", fmt.Sprintf("rank %d's record begins after call %d", t.rank, seq)
		case !s.none():
			cell = t.cell(s, seq, dtype)
			if u, several := usual[seq]; several && u != s.callKey {
				cell.Class += " odd"
			}
		}
		r.Cells = append(r.Cells, cell)
	}
	return r
}

func (t *track) cell(s *spot, seq int64, dtype string) pageCell {
	op, size := s.op, s.size
	if short, ok := shortOps[op]; ok {
		op = short
	}
	if s.dtype != dtype {
		size += " " + s.dtype
	}
	c := pageCell{Class: map[byte]string{'C': "done", 'S': "run", 'Q': "queue"}[s.state], Text: cutText(strings.TrimSpace(op+" "+size), 24)}
	if s.state != 0 {
		c.Text += " " + string(s.state)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d, call %d: %s %s %s", t.rank, seq, s.op, s.size, s.dtype)
	if s.line > 0 {
		fmt.Fprintf(&b, "\n%s:%d", t.file, s.line)
	}
	if e := s.entry; e != nil {
		fmt.Fprintf(&b, ", %s", e.State)
		if out := sizeText(e.Call.OutputSizes); out != "" {
			b.WriteString("\noutput " + out)
		}
		if e.TimeCreatedNs > 0 {
			b.WriteString("\ncalled " + time.Unix(0, e.TimeCreatedNs).UTC().Format("2006-01-02 15:04:05.000000 UTC"))
		}
		if e.DurationMs >= 0 {
			fmt.Fprintf(&b, "\ntook %.3f ms on the device", e.DurationMs)
		}
		if e.Stack != nil {
			for i, fr := range e.Stack.Frames {
				if i == 6 {
					break
				}
				fmt.Fprintf(&b, "\n%s %s:%d", fr.Name, fr.File, fr.Line)
			}
		}
	}
	c.Title = b.String()
	return c
}

// key is equal for rows that look the same.
func (r *pageRow) key() string {
	var b strings.Builder
	b.WriteString(strconv.FormatBool(r.Odd))
	for _, c := range r.Cells {
		b.WriteString("|" + c.Class + "," + c.Text)
	}
	return b.String()
}
