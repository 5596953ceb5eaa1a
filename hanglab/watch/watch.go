// Package watch decides what a rank's watchdog does. It has no clock, no goroutine and no input or output: a Machine is told what happens,
// each time with the moment, and answers with what is to be done. The caller polls CUDA events, speaks to the store, writes dumps, aborts
// communicators and ends the process; it delivers the result of each as an event.
//
// Five deadlines stand behind each other, because each leaves a gap that the next one closes: an operation's does not see the creation of a
// communicator, in which a lazy first collective blocks before any operation exists (Init); neither sees a watchdog that itself is stuck in a
// call (Heartbeat, watched by a Monitor on a thread of its own); and what is done about it must not hang either (DumpWait, AbortWait).
//
// The caller's loop: deliver what has happened since the last round (Started, Completed, AsyncError, what the store says), then Tick. A
// completion that is seen in the same round as its deadline therefore counts as completed. Times come from one monotonic clock with any
// origin; the machine never goes back, so events of several threads may arrive slightly out of order. A Machine is not safe for use by
// several goroutines at once.
package watch

import (
	"fmt"
	"time"
)

// Mode is what follows once the dumps are written. The numbers are those of PyTorch's error handling.
//
//	mode            process            communicators and memory                       peers
//	ReportOnly      stays, as it was   stay; kernels go on spinning and may complete  learn of it by their own watchdogs and the request to dump
//	AbortAndExit    ends with a code   aborted first, so that no kernel spins on      see a closed connection while they are still aborting
//	AbortOnly       stays              gone; buffers stay allocated and their         see a closed connection; all must create new communicators
//	                                   contents are undefined                         together
//	ExitAtOnce      ends with a code   left to the driver, which reclaims them when   see a closed connection
//	                                   the process is gone; that can take seconds
//
// An abort that hangs leaves its communicator, and perhaps its kernel, behind: AbortAndExit then ends unclean, AbortOnly says which. A Monitor
// whose watchdog is stuck ends the process in AbortOnly as well: nobody is left who could abort.
type Mode int

// The modes.
const (
	ReportOnly Mode = iota
	AbortAndExit
	AbortOnly
	ExitAtOnce
)

func (m Mode) String() string {
	if m < ReportOnly || m > ExitAtOnce {
		return fmt.Sprintf("mode %d", int(m))
	}
	return [...]string{"report only", "abort and exit", "abort only", "exit at once"}[m]
}

// Waits that are never off, because a watchdog that waits without end is no watchdog.
const (
	DefaultDumpWait  = 2 * time.Second
	DefaultAbortWait = 3 * time.Second
	DefaultMaxOpen   = 16384
)

// Exit codes, as the program's: a time-out (own, of a creation, or heard of), a peer that was lost, an error of this rank's own library.
const (
	ExitFault   = 1
	ExitTimeout = 4
	ExitPeer    = 5
)

// Config says how long anything may take. Durations of 0 mean: Init, Op and Heartbeat off; DumpWait and AbortWait their defaults.
type Config struct {
	Rank, World int
	Mode        Mode

	Init      time.Duration // creation of a communicator, also one made at its first collective
	Op        time.Duration // an operation from its enqueue on, with the wait for all that is queued before it
	Heartbeat time.Duration // the watchdog's own round
	DumpWait  time.Duration // all ranks' dumps, this rank's own among them, from the alarm on
	AbortWait time.Duration // the abort of all communicators of this rank
	MaxOpen   int           // operations watched one by one; what goes beyond is only counted. 0: DefaultMaxOpen
}

func (c Config) withDefaults() (Config, error) {
	if c.World < 1 || c.Rank < 0 || c.Rank >= c.World {
		return c, fmt.Errorf("watchdog: rank %d of %d ranks: the rank must be in 0..%d", c.Rank, c.World, c.World-1)
	}
	if c.Mode < ReportOnly || c.Mode > ExitAtOnce {
		return c, fmt.Errorf("watchdog: %v: use 0 (report only), 1 (abort and exit), 2 (abort only) or 3 (exit at once)", c.Mode)
	}
	if min(c.Init, c.Op, c.Heartbeat, c.DumpWait, c.AbortWait) < 0 || c.MaxOpen < 0 {
		return c, fmt.Errorf("watchdog: a negative duration or limit: use 0 for off or the default")
	}
	if c.DumpWait == 0 {
		c.DumpWait = DefaultDumpWait
	}
	if c.AbortWait == 0 {
		c.AbortWait = DefaultAbortWait
	}
	if c.MaxOpen == 0 {
		c.MaxOpen = DefaultMaxOpen
	}
	return c, nil
}

// Event is something that has happened on this rank or in the job: one of the types below.
type Event interface{ event() }

type (
	// InitBegun: this rank has entered the creation of a communicator. Comm is this rank's own number for it; Name is the same on all ranks.
	InitBegun struct {
		Comm int
		Name string
	}
	// InitDone: the communicator exists.
	InitDone struct{ Comm int }
	// InitFailed: its creation returned an error. It is reported and starts nothing: the rank's own thread has the error and acts on it.
	InitFailed struct {
		Comm int
		Text string
	}
	// Enqueued: an operation was handed to the library. Seq counts from 0 or 1 within the communicator, collectives and p2p apart; ID is unique
	// on this rank and grows; What is the operation in words ("all_reduce of 393,216 float").
	Enqueued struct {
		Comm int
		Seq  int64
		ID   uint64
		What string
		P2P  bool
	}
	// Started: the device has begun with it. Callers without start events never send it.
	Started struct{ ID uint64 }
	// Completed: the device has finished it.
	Completed struct{ ID uint64 }
	// AsyncError: a communicator reports an error outside any call. Remote: the library says that a peer is lost (ncclRemoteError).
	AsyncError struct {
		Comm   int
		Text   string
		Remote bool
	}
	// DumpRequested: the store holds another rank's request that all dump.
	DumpRequested struct {
		From   int
		Reason Reason
	}
	// Dumped: the store says that this rank's dump is written.
	Dumped struct{ Rank int }
	// DumpDone: the own dump is written. The caller tells the other ranks through the store.
	DumpDone struct{}
	// DumpFailed: the own dump could not be written.
	DumpFailed struct{ Text string }
	// Aborted: the communicator is gone, by Abort or because the program itself ended it.
	Aborted struct{ Comm int }
	// AllAborted: none is left.
	AllAborted struct{}
	// Phase is what the rank's thread does in host code ("save checkpoint"); empty when it is back.
	Phase struct{ Text string }
	// Tick: the caller's round is over. Deadlines are looked at here and nowhere else.
	Tick struct{}
	// Finished: the rank's program has returned. Open operations are watched on, and requests to dump are answered, until the process ends.
	Finished struct{}
	// Beat: the watchdog has come round (for a Monitor).
	Beat struct{}
)

func (InitBegun) event()     {}
func (InitDone) event()      {}
func (InitFailed) event()    {}
func (Enqueued) event()      {}
func (Started) event()       {}
func (Completed) event()     {}
func (AsyncError) event()    {}
func (DumpRequested) event() {}
func (Dumped) event()        {}
func (DumpDone) event()      {}
func (DumpFailed) event()    {}
func (Aborted) event()       {}
func (AllAborted) event()    {}
func (Phase) event()         {}
func (Tick) event()          {}
func (Finished) event()      {}
func (Beat) event()          {}

// Action is something that the caller has to do: one of the types below, in the order in which they are returned.
type Action interface{ action() }

type (
	// Report is a line for the log, with its facts for programs.
	Report struct {
		Kind ReportKind
		Line string
		Comm int           // this rank's number of the communicator; -1: none in particular
		Seq  int64         // -1: no operation
		Op   uint64        // the operation's ID; meaningful with Seq >= 0
		For  time.Duration // how long it has taken so far, or too long (OpLate, InitLate)
	}
	// RequestDump: write the key that makes every rank dump. Only a rank that has not heard of one asks.
	RequestDump struct{ Reason Reason }
	// Dump: write this rank's dump; answer with DumpDone or DumpFailed.
	Dump struct{ Reason Reason }
	// Abort: abort these communicators, each answered with Aborted, or all with AllAborted.
	Abort struct{ Comms []int }
	// Exit: end the process. Clean: its communicators were aborted before.
	Exit struct {
		Code   int
		Clean  bool
		Reason Reason
	}
)

func (Report) action()      {}
func (RequestDump) action() {}
func (Dump) action()        {}
func (Abort) action()       {}
func (Exit) action()        {}

// ReportKind classes the lines of a watchdog.
type ReportKind string

// The kinds of lines.
const (
	OpTimeout    ReportKind = "op_timeout"    // an operation's deadline has passed
	InitTimeout  ReportKind = "init_timeout"  // a creation's deadline has passed
	CommError    ReportKind = "async_error"   // a communicator reported an error
	InitError    ReportKind = "init_error"    // a creation returned an error
	Heard        ReportKind = "heard"         // another rank asks for dumps
	OpLate       ReportKind = "op_late"       // an operation completed after its time-out was reported
	InitLate     ReportKind = "init_late"     // a communicator came into being after its time-out was reported
	DumpsMissing ReportKind = "dumps_missing" // not all dumps came in time
	DumpError    ReportKind = "dump_error"    // the own dump failed
	AbortHangs   ReportKind = "abort_hangs"   // the abort did not return in time
	OpenAtEnd    ReportKind = "open_at_end"   // the program returned with operations open
	Untracked    ReportKind = "untracked"     // more operations are open than are watched one by one
	RoundLate    ReportKind = "round_late"    // the watchdog itself was not running
	Stuck        ReportKind = "watchdog_hang" // the monitor: the watchdog does not come round
)

// ReasonKind is what an alarm is about.
type ReasonKind string

// The reasons for an alarm.
const (
	ReasonOp       ReasonKind = "op"       // an operation did not complete in time
	ReasonInit     ReasonKind = "init"     // a communicator did not come into being in time
	ReasonRemote   ReasonKind = "remote"   // a communicator says that a peer is lost
	ReasonError    ReasonKind = "error"    // a communicator reports another error
	ReasonWatchdog ReasonKind = "watchdog" // the watchdog is stuck
)

// Reason is why ranks dump. It travels through the store, so that those who hear of it can say how they stand to it.
type Reason struct {
	Kind ReasonKind `json:"kind"`
	Rank int        `json:"rank"` // whose alarm it is
	Comm string     `json:"comm"` // the communicator's name; empty: none or not named
	Seq  int64      `json:"seq"`  // -1: no operation
	P2P  bool       `json:"p2p,omitempty"`
	Text string     `json:"text"` // the line that rank has written
}

func (r Reason) exitCode() int {
	switch r.Kind {
	case ReasonRemote:
		return ExitPeer
	case ReasonError:
		return ExitFault
	default:
		return ExitTimeout
	}
}
