package timeline

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/commprobe/commprobe/internal/rankset"
)

// describe puts an event in words.
func describe(e Event) string {
	f := e.Fields
	s := ""
	switch e.Name {
	case Healthy:
		s = "healthy"
	case Enter, Done, Skip:
		s = e.Name + " step " + f["step"]
	case Inject:
		s = "fault planted: " + f["case"] + with(" at step ", f["step"])
	case Exit:
		s = "program exits with code " + f["code"]
	case Panic:
		s = "exception"
	case Signal, ProcessEnd:
		s = "process ended" + with(" by ", f["signal"])
		if f["signal"] == "" {
			s += with(" with code ", f["code"])
		}
	case InitBegin:
		s = "creation begins" + with(": ", f["comm"])
	case InitDone:
		s = "created" + with(": ", f["comm"])
	case Enqueue:
		s = "enqueued" + operation(f)
	case Watchdog:
		s = "time-out" + operation(f)
	case Heard:
		s = "hears the request to dump" + with(" of rank ", f["from"])
	case Dump:
		s = "dump written"
	case AsyncError:
		s = "error of a communicator" + with(" ", f["comm"])
		if f["remote"] == "true" {
			s += ", a peer or link lost"
		}
	case Mismatch:
		s = "call check" + operation(f)
	case Abort:
		s = "aborts" + with(" ", f["comm"])
	case WrongData:
		s = "wrong data" + with(" at step ", f["step"]) + with(", element ", f["element"])
	case Killed:
		s = "ended by the supervisor" + with(" with ", f["signal"])
	case Fuse:
		s = "the planted hang's time limit ends it"
	case Summary:
		s = "launcher's summary"
	default:
		return unknown(e)
	}
	if e.Rank == Supervisor && f["rank"] != "" {
		s = "rank " + f["rank"] + ": " + s
	}
	return s + with(": ", f["text"]) + with(": ", f["path"])
}

func with(before, text string) string {
	if text == "" {
		return ""
	}
	return before + text
}

func operation(f map[string]string) string {
	if f["comm"] == "" {
		return with(": sequence ", f["seq"])
	}
	return ": " + f["comm"] + with(", sequence ", f["seq"])
}

func unknown(e Event) string {
	s := e.Name
	for _, k := range slices.Sorted(maps.Keys(e.Fields)) {
		s += " " + k + "=" + e.Fields[k]
	}
	return s
}

// foldGap is how far apart events of one kind may be to share a row.
const foldGap = int64(time.Second)

// row is one line of the text form: a single entry, or several that need not be told one by one.
type row struct {
	entries []int
}

// rows folds runs of normal entries, and entries of one kind with one role that follow each other within a second. Causes stand alone.
func (l *Line) rows() (rows []row, of []int) {
	of = make([]int, len(l.Entries)) // entry → row
	open := map[string]int{}         // row of that kind that may still grow
	normal := -1
	for i := range l.Entries {
		e := &l.Entries[i]
		at := -1
		kind := string(e.Role) + e.Name + "\x00" + foldText(e)
		switch {
		case e.Role == Normal:
			at = normal
		case e.Role == Consequence || e.Role == Observation:
			if r, ok := open[kind]; ok && e.TNs-l.Entries[last(rows[r].entries)].TNs <= foldGap {
				at = r
			}
		}
		if at < 0 {
			at = len(rows)
			rows = append(rows, row{})
		}
		rows[at].entries = append(rows[at].entries, i)
		of[i] = at
		if e.Role == Normal {
			normal = at
		} else {
			normal, open[kind] = -1, at
		}
	}
	return rows, of
}

func last(list []int) int { return list[len(list)-1] }

// foldText is the text without what differs from rank to rank.
func foldText(e *Entry) string {
	switch e.Name {
	case Dump, Heard, Killed, Signal, ProcessEnd:
		return e.Fields["code"] + e.Fields["signal"]
	case Watchdog:
		return e.Fields["comm"] + e.Fields["seq"]
	default:
		return e.Text
	}
}

// WriteText prints the line in columns, with a legend.
func (l *Line) WriteText(w io.Writer) error {
	rows, of := l.rows()
	if err := l.writeHead(w, of); err != nil {
		return err
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	hosts := l.hosts() > 1
	head := "#\ttime\t±\trank\t"
	if hosts {
		head += "host\t"
	}
	fmt.Fprintln(tab, head+"role\tevent")
	for n, r := range rows {
		first := &l.Entries[r.entries[0]]
		fmt.Fprintf(tab, "%d\t%11.6f s\t%s\t%s\t", n+1, float64(first.TNs)/1e9, l.uncertainty(r), l.who(r))
		if hosts {
			fmt.Fprintf(tab, "%s\t", l.host(r))
		}
		fmt.Fprintf(tab, "%s\t%s\n", l.roleText(r, of), l.text(r))
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	return l.writeLegend(w)
}

func (l *Line) writeHead(w io.Writer, of []int) error {
	var s string
	switch len(l.Causes) {
	case 0:
		s = "nothing went wrong"
	case 1:
		e := &l.Entries[l.Causes[0]]
		s = fmt.Sprintf("first independent cause: #%d, %s: %s\nevidence: %s", of[l.Causes[0]]+1, who(e.Rank), e.Text, l.Evidence)
	default:
		s = "first independent cause: one of these, or all at once; the clocks do not tell which was first"
		for _, i := range l.Causes {
			s += fmt.Sprintf("\n  #%d, %s: %s", of[i]+1, who(l.Entries[i].Rank), l.Entries[i].Text)
		}
		s += "\nevidence: " + l.Evidence
	}
	_, err := fmt.Fprintln(w, s+"\n")
	return err
}

func (l *Line) writeLegend(w io.Writer) error {
	s := "\ntime: since the run's first event, on the supervisor's clock; ±: how far that rank's clock may be off either way\n" +
		"role: CAUSE the first event that no other explains; CAUSE? several that the clocks cannot order; follows #n a consequence of row n;\n" +
		"      same as #n another rank's word on the same; seen an observation; nothing: normal"
	if l.Dropped > 0 {
		s += fmt.Sprintf("\n%d enqueued operations are left out; the last %d of each rank are shown", l.Dropped, keepEnqueues)
	}
	_, err := fmt.Fprintln(w, s)
	return err
}

func who(rank int) string {
	if rank == Supervisor {
		return "supervisor"
	}
	return "rank " + strconv.Itoa(rank)
}

func (l *Line) who(r row) string {
	var ranks []int
	supervisor := false
	for _, i := range r.entries {
		if x := l.Entries[i].Rank; x == Supervisor {
			supervisor = true
		} else {
			ranks = append(ranks, x)
		}
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	var parts []string
	switch {
	case len(ranks) > 1 && len(ranks) == l.Ranks:
		parts = append(parts, "all ranks")
	case len(ranks) > 0:
		parts = append(parts, rankset.Fold(ranks, ", "))
	}
	if supervisor {
		parts = append(parts, "supervisor")
	}
	return strings.Join(parts, ", ")
}

func (l *Line) hosts() int {
	all := map[string]bool{}
	for _, e := range l.Entries {
		if e.Host != "" {
			all[e.Host] = true
		}
	}
	return len(all)
}

func (l *Line) host(r row) string {
	all := map[string]bool{}
	for _, i := range r.entries {
		all[l.Entries[i].Host] = true
	}
	if len(all) > 1 {
		return fmt.Sprintf("%d hosts", len(all))
	}
	return l.Entries[r.entries[0]].Host
}

// uncertainty is the row's largest.
func (l *Line) uncertainty(r row) string {
	var most int64
	for _, i := range r.entries {
		u := l.Entries[i].UncertaintyNs
		if u < 0 {
			return "?"
		}
		most = max(most, u)
	}
	return span(most)
}

func span(ns int64) string {
	switch {
	case ns == 0:
		return "0"
	case ns < 1e6:
		return strconv.FormatInt((ns+999)/1000, 10) + " µs"
	case ns < 1e9:
		return strconv.FormatInt((ns+999_999)/1e6, 10) + " ms"
	default:
		return strconv.FormatFloat(float64((ns+999_999)/1e6)/1000, 'f', -1, 64) + " s"
	}
}

func (l *Line) roleText(r row, of []int) string {
	first := &l.Entries[r.entries[0]]
	switch first.Role {
	case Cause:
		return "CAUSE"
	case Simultaneous:
		return "CAUSE?"
	case Normal:
		return ""
	}
	var parents []int
	for _, i := range r.entries {
		if p := l.Entries[i].Of; p >= 0 && of[p] != of[i] {
			parents = append(parents, of[p]+1)
		}
	}
	slices.Sort(parents)
	parents = slices.Compact(parents)
	switch {
	case len(parents) == 0:
		return "seen"
	case first.Role == Observation:
		return "same as #" + rankset.Fold(parents, ", ")
	default:
		return "follows #" + rankset.Fold(parents, ", ")
	}
}

// text is that of a single entry; of several the first and the last, or what they have in common, and how many there are.
func (l *Line) text(r row) string {
	first, end := &l.Entries[r.entries[0]], &l.Entries[last(r.entries)]
	if len(r.entries) == 1 {
		return first.Text
	}
	s := first.Text
	if first.Role != Normal {
		s = l.common(r)
	} else if end.Text != first.Text {
		s += " … " + end.Text
	}
	if end.TNs == first.TNs {
		return fmt.Sprintf("%s (%d events)", s, len(r.entries))
	}
	return fmt.Sprintf("%s (%d events in %s)", s, len(r.entries), span(end.TNs-first.TNs))
}

// common is the text if all have the same, otherwise the text without what differs.
func (l *Line) common(r row) string {
	first := &l.Entries[r.entries[0]]
	if !slices.ContainsFunc(r.entries, func(i int) bool { return l.Entries[i].Text != first.Text }) {
		return first.Text
	}
	e := Event{Rank: first.Rank, Name: first.Name, Fields: map[string]string{}}
	for k, v := range first.Fields {
		if k != "rank" && !slices.ContainsFunc(r.entries, func(i int) bool { return l.Entries[i].Fields[k] != v }) {
			e.Fields[k] = v
		}
	}
	s := describe(e)
	if first.Rank == Supervisor {
		var about []int
		for _, i := range r.entries {
			about = append(about, l.Entries[i].About)
		}
		slices.Sort(about)
		s = "ranks " + rankset.Fold(about, ", ") + ": " + s
	}
	return s
}
