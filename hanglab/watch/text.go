package watch

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/internal/rankset"
)

// span prints a duration to the millisecond, below that to the microsecond. It cuts, so that nothing is said to have lasted longer than it has.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	default:
		return strconv.FormatFloat(float64(d.Milliseconds())/1000, 'f', -1, 64) + " s"
	}
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func seqText(seq int64) string {
	if seq < 0 {
		return "none"
	}
	return strconv.FormatInt(seq, 10)
}

func (c *comm) String() string {
	if c.name == "" {
		return fmt.Sprintf("communicator %d", c.id)
	}
	return fmt.Sprintf("communicator %d (%s)", c.id, c.name)
}

// lastText gives the counters as a reader compares them across ranks.
func (m *Machine) lastText(n Counters) string {
	s := "last enqueued " + seqText(n.Enqueued)
	if m.startsSeen {
		s += ", started " + seqText(n.Started)
	}
	return s + ", completed " + seqText(n.Completed)
}

func (p *op) String() string {
	kind := "sequence"
	if p.p2p {
		kind = "p2p sequence"
	}
	what := p.what
	if what == "" {
		what = "operation"
	}
	return fmt.Sprintf("%s, %s %d", what, kind, p.seq)
}

func (m *Machine) line(format string, args ...any) string {
	return fmt.Sprintf("rank %d: ", m.cfg.Rank) + fmt.Sprintf(format, args...)
}

// tail says what the rank's thread does, where it has said so.
func (m *Machine) tail() string {
	switch {
	case m.phase != "":
		return fmt.Sprintf("; the rank's thread is in host code: %s, for %s", m.phase, span(m.now-m.phaseSince))
	case m.finished:
		return "; the rank's program has returned"
	default:
		return ""
	}
}

func moreText(n int) string {
	if n == 0 {
		return ""
	}
	return "; " + plural(n, "more is over its deadline", "more are over their deadlines")
}

func (m *Machine) opTimeoutLine(p *op, more int) string {
	started := ", whether the device has begun with it is not known"
	switch {
	case p.started:
		started = ", the device has begun with it"
	case m.startsSeen:
		started = ", the device has not begun with it"
	}
	return m.line("time-out: %v: %v, is not complete %s after its enqueue (deadline %s)%s; %s%s%s", p.comm, p, span(m.now-p.enqueued),
		span(m.cfg.Op), started, m.lastText(*p.comm.counters(p.p2p)), moreText(more), m.tail())
}

func (m *Machine) initTimeoutLine(c *comm, more int) string {
	return m.line("time-out: %v is not created %s after this rank entered its creation (deadline %s): a member has not come or cannot be reached%s%s",
		c, span(m.now-c.begun), span(m.cfg.Init), moreText(more), m.tail())
}

func (m *Machine) extraTimeoutLine() string {
	return m.line("time-out: %s beyond the %d that are watched one by one, none known to be complete %s after the last enqueue (deadline %s)%s",
		plural(m.ops.extra, "operation", "operations"), m.cfg.MaxOpen, span(m.now-m.ops.extraSince), span(m.cfg.Op), m.tail())
}

func (m *Machine) untrackedLine() string {
	return m.line("more than %s: those beyond are counted, not watched one by one (are completions delivered?)",
		plural(m.cfg.MaxOpen, "operation is open", "operations are open"))
}

func (m *Machine) goesOn() string {
	if m.cfg.Mode == ReportOnly {
		return ""
	}
	return "; the job ends all the same, the other ranks have been told"
}

func (m *Machine) opLateLine(p *op, by time.Duration) string {
	return m.line("%v: %v completed %s after its deadline: a straggler, or the deadline of %s is too short%s", p.comm, p, span(by), span(m.cfg.Op), m.goesOn())
}

func (m *Machine) recoveredLine(by time.Duration) string {
	return m.line("all %d operations that were over their deadlines have completed, the last one %s late%s", m.lateOps, span(by), m.goesOn())
}

func (m *Machine) initLateLine(c *comm, by time.Duration) string {
	return m.line("%v was created %s after its deadline: a member came late, or the deadline of %s is too short%s", c, span(by), span(m.cfg.Init), m.goesOn())
}

func (m *Machine) initFailedLine(c *comm, text string) string {
	return m.line("%v could not be created: %s", c, text)
}

// asyncErrorLine never blames the network alone: what the library calls a remote error is a closed connection, for whatever reason.
func (m *Machine) asyncErrorLine(c *comm, e AsyncError) string {
	why := "the library does not speak of a lost peer: look at this rank's own device, host and links first"
	if e.Remote {
		why = "a peer's process ended or the network failed, this error does not tell which: look for a rank that ended first"
	}
	return m.line("asynchronous error: %v: %s: %s; %s open%s", c, e.Text, why, plural(m.ops.open(), "operation is", "operations are"), m.tail())
}

func (m *Machine) dumpFailedLine(text string) string {
	return m.line("the dump could not be written: %s", text)
}

func (m *Machine) dumpsMissingLine() string {
	var parts []string
	if !m.ownDump {
		parts = append(parts, "this rank's own dump is not finished")
	}
	if miss := m.missingDumps(); len(miss) > 0 {
		word := "ranks"
		if len(miss) == 1 {
			word = "rank"
		}
		parts = append(parts, fmt.Sprintf("no dump from %s %s (ended, stopped, or out of the store's reach)", word, rankset.Fold(miss, ", ")))
	}
	return m.line("%s after the alarm: %s; going on without", span(m.cfg.DumpWait), strings.Join(parts, "; "))
}

func (m *Machine) abortHangsLine() string {
	var names []string
	for _, id := range m.toAbort {
		names = append(names, m.known(id).String())
	}
	then := "ending without it"
	if m.cfg.Mode == AbortOnly {
		then = "left behind, and a kernel may keep the device busy"
	}
	return m.line("the abort of %s has not returned after %s: %s", strings.Join(names, ", "), span(m.cfg.AbortWait), then)
}

func (m *Machine) openAtEndLine(n int) string {
	s := m.line("the program has returned with %s open", plural(n, "operation", "operations"))
	if p := m.ops.oldest; p != nil {
		s += fmt.Sprintf("; the oldest: %v: %v, enqueued %s ago", p.comm, p, span(m.now-p.enqueued))
	}
	return s
}

func (m *Machine) roundLateLine(gap time.Duration) string {
	return m.line("the watchdog itself came round after %s only (limit %s): the process was stopped or starved, or a call of the watchdog blocked",
		span(gap), span(m.cfg.Heartbeat))
}

func (m *Machine) heardLine(e DumpRequested) string {
	return m.line("heard from rank %d: time-out or error there, not here: %s | this rank: %s%s", e.From, e.Reason.Text, m.stand(e.Reason), m.tail())
}

// stand says how this rank stands to what another rank complains about: with it in the same wait, past it, or never there.
func (m *Machine) stand(r Reason) string {
	var parts []string
	var about *comm
	if r.Comm != "" && (r.Kind == ReasonOp || r.Kind == ReasonInit) {
		for _, c := range m.sortedComms() {
			if c.name == r.Comm {
				about = c
			}
		}
		parts = append(parts, m.standTo(about, r))
	}
	waits := m.ops.extra > 0
	for _, c := range m.sortedComms() {
		if c.making {
			waits = true
			parts = append(parts, fmt.Sprintf("waits in the creation of %v for %s", c, span(m.now-c.begun)))
		} else if p := m.ops.oldestOf(c); p != nil {
			waits = true
			parts = append(parts, fmt.Sprintf("%v: waits for %v, for %s; %s", c, p, span(m.now-p.enqueued), m.lastText(*c.counters(p.p2p))))
		} else if c != about && c.coll != noneYet {
			parts = append(parts, fmt.Sprintf("%v: %s: it has not joined any later one that others wait for", c, m.level(c.coll)))
		}
	}
	if !waits {
		parts = append(parts, "waits for nothing")
	}
	return strings.Join(parts, "; ")
}

// level shows at a glance that everything enqueued has completed.
func (m *Machine) level(n Counters) string {
	if n.Enqueued == n.Completed {
		return "last enqueued == last completed == " + seqText(n.Enqueued)
	}
	return m.lastText(n)
}

func (m *Machine) standTo(c *comm, r Reason) string {
	switch {
	case c == nil:
		return fmt.Sprintf("has no communicator %q: not a member, never began its creation, or has ended it", r.Comm)
	case r.Kind == ReasonInit && c.making:
		return fmt.Sprintf("is in the creation of %v as well", c)
	case r.Kind == ReasonInit:
		return fmt.Sprintf("has created %v", c)
	}
	n := *c.counters(r.P2P)
	switch {
	case r.Seq < 0:
		return fmt.Sprintf("%v: %s", c, m.level(n))
	case r.P2P: // p2p sequences of different ranks do not count the same operations
		return fmt.Sprintf("%v, p2p: %s", c, m.level(n))
	case n.Enqueued < r.Seq:
		return fmt.Sprintf("never joined sequence %d of %v: %s", r.Seq, c, m.level(n))
	case n.Completed < r.Seq:
		return fmt.Sprintf("waits in sequence %d of %v as well", r.Seq, c)
	default:
		return fmt.Sprintf("has completed sequence %d of %v", r.Seq, c)
	}
}
