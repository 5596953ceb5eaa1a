package watch

import (
	"fmt"
	"time"
)

// Monitor watches the watchdog, from a thread of its own that makes no call which could block: no CUDA, no NCCL, no store. The caller gives it a
// Beat for each round of the watchdog and Ticks of its own, at least eight in a Heartbeat, and carries out what it returns: the dump here
// comes from the memory that the recorder shares, so it needs neither the watchdog nor the device.
//
// If the monitor itself was not running for half a Heartbeat, the whole process was stopped or starved. The watchdog then gets one more
// Heartbeat: what stood still together is not a stuck watchdog.
type Monitor struct {
	cfg      Config
	now      time.Duration
	begun    bool
	lastTick time.Duration
	since    time.Duration // of the last beat, or of the reprieve
	reprieve bool          // given since the last beat
	lastBeat time.Duration
	dumping  bool
	dumpOver bool
	until    time.Duration
	reason   Reason
	ended    bool
}

// NewMonitor returns a monitor. With Heartbeat 0 it never does anything.
func NewMonitor(c Config) (*Monitor, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Monitor{cfg: c}, nil
}

// Step takes Beat, Tick, DumpDone, DumpFailed (of the monitor's own dump) and Finished (the watchdog has ended in good order, or its Machine
// has); other events mean nothing to it.
func (m *Monitor) Step(at time.Duration, e Event) []Action {
	if m.ended || m.cfg.Heartbeat == 0 {
		return nil
	}
	m.now = max(m.now, at)
	if !m.begun {
		m.begun, m.lastTick, m.since, m.lastBeat = true, m.now, m.now, m.now
	}
	switch e := e.(type) {
	case Beat:
		return m.beat()
	case Tick:
		return m.tick()
	case DumpDone:
		return m.dumped()
	case DumpFailed:
		line := fmt.Sprintf("rank %d: heartbeat monitor: the dump could not be written: %s", m.cfg.Rank, e.Text)
		return append([]Action{Report{Kind: DumpError, Line: line, Comm: -1, Seq: -1}}, m.dumped()...)
	case Finished:
		m.ended = true
	}
	return nil
}

func (m *Monitor) beat() []Action {
	gap := m.now - m.lastBeat
	m.since, m.lastBeat, m.reprieve = m.now, m.now, false
	if !m.dumping {
		return nil
	}
	m.dumping, m.dumpOver = false, false
	line := fmt.Sprintf("rank %d: heartbeat monitor: the watchdog came round again after %s; it goes on", m.cfg.Rank, span(gap))
	return []Action{Report{Kind: RoundLate, Line: line, Comm: -1, Seq: -1, For: gap}}
}

func (m *Monitor) tick() []Action {
	gap := m.now - m.lastTick
	m.lastTick = m.now
	if m.dumping {
		if m.now >= m.until && !m.dumpOver {
			line := fmt.Sprintf("rank %d: heartbeat monitor: the dump is not finished after %s; going on without", m.cfg.Rank, span(m.cfg.DumpWait))
			return append([]Action{Report{Kind: DumpsMissing, Line: line, Comm: -1, Seq: -1}}, m.dumped()...)
		}
		return nil
	}
	if gap >= m.cfg.Heartbeat/2 && !m.reprieve {
		m.reprieve, m.since = true, m.now
		return nil
	}
	if m.now-m.since < m.cfg.Heartbeat {
		return nil
	}
	m.dumping, m.until = true, m.now+m.cfg.DumpWait
	silent := m.now - m.lastBeat
	line := fmt.Sprintf("rank %d: heartbeat monitor: the watchdog has not come round for %s (limit %s): it is stuck in a call of CUDA or NCCL, "+
		"or this host is; this rank's own state is the first suspect", m.cfg.Rank, span(silent), span(m.cfg.Heartbeat))
	m.reason = Reason{Kind: ReasonWatchdog, Rank: m.cfg.Rank, Seq: -1, Text: line}
	return []Action{Report{Kind: Stuck, Line: line, Comm: -1, Seq: -1, For: silent}, Dump{m.reason}}
}

// dumped ends the process, except in ReportOnly, where the job goes on and the monitor stays with its one report until a beat comes.
func (m *Monitor) dumped() []Action {
	if !m.dumping || m.dumpOver {
		return nil
	}
	m.dumpOver = true
	if m.cfg.Mode == ReportOnly {
		return nil
	}
	m.ended = true
	return []Action{Exit{Code: ExitTimeout, Reason: m.reason}}
}
