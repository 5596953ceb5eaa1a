// Package timeline puts what happened in a run, on all ranks, into one order and says which event is the first independent cause.
//
// Ranks have clocks of their own. Each is brought to the supervisor's by an offset that is known only to half a round trip, so the order of two
// events on different clocks is known only where they lie further apart than that; within one clock it is exact.
//
// Evidence has layers: a planted fault, an exception, an exit or a signal (0) says more than a finding of the call or data check (1), that more
// than the first unfinished operation (2), that more than an error of a communicator (3), that more than a launcher's summary (4). A higher
// layer wins, unless a lower one is earlier than everything above it by more than the clocks' uncertainty. What is known to be an echo is
// never a candidate: the exit of a rank whose watchdog has spoken, SIGABRT after anything else, an end by the supervisor's signal.
package timeline

import (
	"cmp"
	"slices"
	"strconv"
)

// Supervisor is the rank of what the parent of the rank processes has seen.
const Supervisor = -1

// reapSlackNs is how much later than it happened the end of a process may be noticed: peers can see a closed connection before that. An event
// with the field slack_ns says it for itself.
const reapSlackNs = 100_000_000

// keepEnqueues is how many enqueued operations of a rank stay on the line: the last ones show where it stopped.
const keepEnqueues = 3

// Names of events. Others are kept and shown as observations.
const (
	Healthy    = "healthy"              // warm-up done: communicator and data path worked until here
	Enter      = "enter"                // field step
	Done       = "done"                 // field step
	Inject     = "inject"               // a fault was planted: case, step; case control is none
	Skip       = "skip"                 // a call was left out: step
	Exit       = "exit"                 // the program exits by itself: code
	Panic      = "panic"                // an exception: text
	Signal     = "signal"               // a process was ended by a signal: signal
	ProcessEnd = "process_end"          // a process has ended: code, signal
	InitBegin  = "init_begin"           // comm
	InitDone   = "init_done"            // comm
	Enqueue    = "enqueue"              // comm, seq, text
	Watchdog   = "watchdog"             // a rank's own time-out: comm, seq, text
	Heard      = "heard"                // another rank asks for dumps: from
	Dump       = "dump"                 // path
	AsyncError = "async_error"          // comm, text, remote=true
	Mismatch   = "mismatch"             // the call check: comm, seq, text
	Abort      = "abort"                // comm
	WrongData  = "wrong_data"           // step, element, text
	Killed     = "killed_by_supervisor" // signal
	Fuse       = "fuse"                 // a planted hang was ended by its own time limit
	Summary    = "summary"              // a launcher's account of it: text
)

// Event is something that happened. Fields hold its facts under the names given above; an event of the supervisor about a rank has field rank.
type Event struct {
	Rank   int               `json:"rank"` // Supervisor: the parent
	Host   string            `json:"host,omitempty"`
	Name   string            `json:"name"`
	MonoNs int64             `json:"mono_ns"` // on that rank's clock
	Fields map[string]string `json:"fields,omitempty"`
}

// Clock relates a rank's clock to the supervisor's: mono + OffsetNs is the supervisor's time, to half of RTTNs either way. A rank without one
// shares the supervisor's clock if it has the supervisor's host, or if there is one host only. Otherwise the events of its host begin with
// the run, and their uncertainty is unknown: they are ordered among themselves only.
type Clock struct {
	Rank     int   `json:"rank"`
	OffsetNs int64 `json:"offset_ns"`
	RTTNs    int64 `json:"rtt_ns"`
}

// Role is what an entry is in the story.
type Role string

// The roles.
const (
	Normal       Role = "normal"
	Cause        Role = "cause"
	Simultaneous Role = "cause_or_simultaneous" // one of several that the clocks cannot order
	Consequence  Role = "consequence"
	Observation  Role = "observation"
)

// Entry is one event in the common order.
type Entry struct {
	TNs           int64             `json:"t_ns"`           // since the run's first event, on the supervisor's clock
	UncertaintyNs int64             `json:"uncertainty_ns"` // either way; -1: unknown
	Rank          int               `json:"rank"`
	About         int               `json:"about"` // the rank it tells of: Rank, or what the supervisor names
	Host          string            `json:"host,omitempty"`
	Name          string            `json:"name"`
	Text          string            `json:"text"`
	Fields        map[string]string `json:"fields,omitempty"`
	Role          Role              `json:"role"`
	Of            int               `json:"of"` // index of the entry that it follows from, or that shows the same; -1: none
}

// Line is the whole story.
type Line struct {
	Entries  []Entry `json:"entries"`
	Causes   []int   `json:"causes"` // indices; several only if the clocks cannot order them; empty: nothing went wrong
	Layer    int     `json:"layer"`  // of the causes; -1: none
	Evidence string  `json:"evidence,omitempty"`
	Dropped  int     `json:"enqueues_left_out"`
	Ranks    int     `json:"ranks"` // distinct ranks seen
}

var evidence = [...]string{
	"the fault itself",
	"a finding of the call or data check: shows what differed, not who is wrong",
	"the first unfinished operation: shows where, not why",
	"an error of a communicator: a peer or a link was lost, it does not tell which and why",
	"a launcher's summary only: an echo, the cause is not among the events",
}

// Build orders the events and gives each its role.
func Build(events []Event, clocks []Clock) *Line {
	l := &Line{Layer: -1}
	l.place(events, clocks)
	b := newBuilder(l)
	b.assignCauses()
	for i := range l.Entries {
		b.assignRole(i)
	}
	if len(l.Causes) > 0 {
		b.markUnfinished()
	}
	return l
}

// place brings all events to the supervisor's clock and drops what only fills the list.
func (l *Line) place(events []Event, clocks []Clock) {
	kept, dropped := lastEnqueues(events)
	l.Dropped = dropped
	at := offsets(kept, clocks)
	ranks := map[int]bool{}
	for _, e := range kept {
		c := at[e.Rank]
		x := Entry{TNs: e.MonoNs + c.OffsetNs, UncertaintyNs: (c.RTTNs + 1) / 2, Rank: e.Rank, About: e.Rank, Host: e.Host, Name: e.Name,
			Text: describe(e), Fields: e.Fields, Role: Normal, Of: -1}
		if c.RTTNs < 0 {
			x.UncertaintyNs = -1
		}
		if r, err := strconv.Atoi(e.Fields["rank"]); err == nil && e.Rank == Supervisor {
			x.About = r
		}
		if x.About >= 0 {
			ranks[x.About] = true
		}
		l.Entries = append(l.Entries, x)
	}
	l.Ranks = len(ranks)
	slices.SortStableFunc(l.Entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.TNs, b.TNs), cmp.Compare(a.Rank, b.Rank)) })
	if len(l.Entries) > 0 {
		first := l.Entries[0].TNs
		for i := range l.Entries {
			l.Entries[i].TNs -= first
		}
	}
}

func lastEnqueues(events []Event) (kept []Event, dropped int) {
	left := map[int]int{} // enqueues still to come, by rank
	for _, e := range events {
		if e.Name == Enqueue {
			left[e.Rank]++
		}
	}
	for _, e := range events {
		if e.Name == Enqueue {
			if left[e.Rank]--; left[e.Rank] >= keepEnqueues {
				dropped++
				continue
			}
		}
		kept = append(kept, e)
	}
	return kept, dropped
}

// domain is what shares a clock that nothing is known of: a host, or a rank whose host is not told.
type domain struct {
	host string
	rank int
}

func domainOf(e Event) domain {
	if e.Host != "" {
		return domain{host: e.Host}
	}
	return domain{rank: e.Rank}
}

// offsets finds a clock for every rank; RTTNs -1 stands for unknown.
func offsets(events []Event, clocks []Clock) map[int]Clock {
	at := map[int]Clock{Supervisor: {Rank: Supervisor}}
	for _, c := range clocks {
		if c.Rank != Supervisor {
			at[c.Rank] = Clock{c.Rank, c.OffsetNs, max(c.RTTNs, 0)}
		}
	}
	home := homeHost(events)
	first, known := int64(0), false
	unknown := map[domain]int64{} // first time on a clock that nothing is known of
	for _, e := range events {
		c, ok := at[e.Rank]
		if !ok && home != "" && e.Host == home {
			c, ok = Clock{Rank: e.Rank}, true
			at[e.Rank] = c
		}
		d := domainOf(e)
		if !ok {
			if t, seen := unknown[d]; !seen || e.MonoNs < t {
				unknown[d] = e.MonoNs
			}
		} else if t := e.MonoNs + c.OffsetNs; !known || t < first {
			first, known = t, true
		}
	}
	for _, e := range events {
		if _, ok := at[e.Rank]; !ok {
			at[e.Rank] = Clock{e.Rank, first - unknown[domainOf(e)], -1}
		}
	}
	return at
}

// homeHost is the supervisor's host; if it has told nothing, the only host there is.
func homeHost(events []Event) string {
	hosts := map[string]bool{}
	for _, e := range events {
		if e.Rank == Supervisor && e.Host != "" {
			return e.Host
		}
		hosts[e.Host] = true
	}
	if len(hosts) == 1 {
		return events[0].Host
	}
	return ""
}
