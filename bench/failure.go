package bench

import "fmt"

// FailKind classes what ended a run; it decides the exit status.
type FailKind string

// The kinds of failure, worst evidence first: when several ranks report, the earliest in this list is the cause.
const (
	FailDied     FailKind = "rank died"    // a process ended that should not have
	FailNoDevice FailKind = "no device"    // device or library missing
	FailUsage    FailKind = "usage"        // asked for something that cannot be
	FailInternal FailKind = "failed"       // a call failed
	FailTimeout  FailKind = "time-out"     // a deadline passed
	FailRemote   FailKind = "remote error" // a communicator says that a peer is gone: rarely the cause
)

var failOrder = []FailKind{FailDied, FailNoDevice, FailUsage, FailInternal, FailTimeout, FailRemote}

// Failure is what ended a run: who, where, in which phase.
type Failure struct {
	Kind  FailKind
	Rank  int // -1: no rank in particular
	Host  string
	Phase string
	Text  string

	Process []int // all ranks of the process that reports: one report speaks for them
}

func (f *Failure) Error() string {
	s := f.Text
	if f.Phase != "" {
		s = f.Phase + ": " + s
	}
	if f.Rank >= 0 {
		who := fmt.Sprintf("rank %d", f.Rank)
		if f.Host != "" {
			who += " on " + f.Host
		}
		s = who + ": " + s
	}
	return s
}

func (f *Failure) severity() int {
	for i, k := range failOrder {
		if k == f.Kind {
			return i
		}
	}
	return len(failOrder)
}
