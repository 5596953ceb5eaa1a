package evidence

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// FlightDump is one rank's Flight Recorder dump, as PyTorch (every version of the format) and this program write it.
//
// It is made for millions of entries: what entries have in common (the call, its group and thread, the stack) is held once and pointed to.
// Everything behind those pointers is shared, within the dump and with the other dumps of a FlightPool: read it, never change it. Within one
// pool equal calls have equal pointers, so comparing two ranks' calls is comparing two pointers.
type FlightDump struct {
	Name           string // of the file
	Rank           int    // trailing number of the file's name, -1 where it has none: the dump itself does not say
	Form           string // "pickle" or "json"
	Version        string // of the format; "" for the oldest, a bare list
	CommLibKey     string // what the version of the communication library was called: "comm_lib_version", "nccl_version", "hccl_version"
	CommLibVersion string
	Groups         []flight.Group // in the file's order
	Status         []flight.GroupStatus
	Entries        []FlightEntry                // in the file's order, oldest first
	CommState      map[string]map[string]string // by communicator, from libraries that dump their own state
	Cut            bool                         // the file ends in the middle; Entries has the whole ones before that
	Warnings       []FlightWarning              // what is odd in the file

	names map[int64]groupName
}

// FlightEntry is one operation. A time of 0 is unknown: the JSON form has no other way to say so.
type FlightEntry struct {
	RecordID        int64 // running number within the process, no two ranks' are comparable
	CollectiveSeqID int64 // of the group; format 1.x had one number for both kinds, which is here
	P2PSeqID        int64
	OpID            int64
	TimeCreatedNs   int64 // wall clock of that host
	TimeStartedNs   int64 // when the watchdog noticed, not when it happened
	TimeCompletedNs int64
	DurationMs      float64 // -1: not measured
	Call            *FlightCall
	Origin          *FlightOrigin
	Stack           *FlightStack // nil: not recorded
	State           flight.State
	Retired         bool
	IsP2P           bool
}

// FlightCall is what was asked of the library. It does not say by whom or when.
type FlightCall struct {
	ProfilingName string // "nccl:all_reduce", "nccl:send 0->3" (ranks within the group)
	InputSizes    [][]int64
	InputDtypes   []string
	OutputSizes   [][]int64
	OutputDtypes  []string
}

// FlightOrigin is what an operation shares with most others of its rank.
type FlightOrigin struct {
	PGID       int64 // local to the process
	GroupName  string
	GroupDesc  string
	ThreadName string
	ThreadID   string
	TimeoutMs  int64
}

// FlightStack is where in the program the call came from, innermost first.
type FlightStack struct {
	Frames []flight.Frame
}

// FlightWarning is something odd in a dump that did not keep it from being read.
type FlightWarning struct {
	Code string // short and stable, e.g. "unknown-key"
	Text string
}

// ErrEmpty is a file of no bytes. PyTorch leaves one when the process is killed before its dump is written, so it is evidence in itself.
var ErrEmpty = errors.New("the file is empty: the process was ended before it could write its dump")

// ErrNotFlight is a file that is something else.
var ErrNotFlight = errors.New("not a flight recorder dump")

// FlightError is a file that cannot be read, or not to its end. A cut file unwraps to io.ErrUnexpectedEOF.
type FlightError struct {
	Name   string
	Offset int64 // bytes
	Err    error
}

func (e *FlightError) Error() string {
	return fmt.Sprintf("%s: at byte %d: %v", e.Name, e.Offset, e.Err)
}

func (e *FlightError) Unwrap() error { return e.Err }

// ReadFlight reads one dump, pickle or JSON. Nothing in a pickle is ever executed. Either the dump or the error is nil, except for a file that is
// cut off or a reader that fails: then the dump holds what came before and the error says where it stopped. Reading many dumps of one job goes
// through a FlightPool.
func ReadFlight(r io.Reader, name string) (*FlightDump, error) {
	return NewFlightPool().Read(r, name)
}

// RankOfName is the trailing number of a file's name, as in "nccl_trace_rank_node02_5" or "rank_12.json". A number of more than seven digits is
// a time stamp, not a rank.
func RankOfName(name string) (int, bool) {
	base := filepath.Base(name)
	if ext := filepath.Ext(base); strings.Trim(ext, ".0123456789") != "" {
		base = strings.TrimSuffix(base, ext)
	}
	digits := base[len(strings.TrimRight(base, "0123456789")):]
	if digits == "" || len(digits) > 7 {
		return -1, false
	}
	rank, err := strconv.Atoi(digits)
	return rank, err == nil
}

// AtLeast compares the format's version. 2.10 is later than 2.9; a dump without one is earlier than all.
func (d *FlightDump) AtLeast(major, minor int) bool {
	first, second, _ := strings.Cut(d.Version, ".")
	gotMajor, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	gotMinor, _ := strconv.Atoi(second) // "2" is 2.0
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// Dump is the same in the model that can be written. It shares sizes and stacks with d.
func (d *FlightDump) Dump() *flight.Dump {
	out := &flight.Dump{Version: d.Version, CommLibVersion: d.CommLibVersion, Groups: d.Groups, Status: d.Status}
	for i := range d.Entries {
		out.Entries = append(out.Entries, d.Entries[i].plain())
	}
	return out
}

func (e *FlightEntry) plain() flight.Entry {
	out := flight.Entry{
		RecordID: e.RecordID, PGID: e.Origin.PGID, GroupName: e.Origin.GroupName, GroupDesc: e.Origin.GroupDesc,
		ThreadName: e.Origin.ThreadName, ThreadID: e.Origin.ThreadID,
		CollectiveSeqID: e.CollectiveSeqID, P2PSeqID: e.P2PSeqID, OpID: e.OpID,
		ProfilingName: e.Call.ProfilingName, TimeCreatedNs: e.TimeCreatedNs,
		InputSizes: e.Call.InputSizes, InputDtypes: e.Call.InputDtypes,
		OutputSizes: e.Call.OutputSizes, OutputDtypes: e.Call.OutputDtypes,
		State: e.State, Retired: e.Retired, TimeoutMs: e.Origin.TimeoutMs, IsP2P: e.IsP2P,
	}
	if e.Stack != nil {
		out.Frames = e.Stack.Frames
	}
	if e.DurationMs >= 0 {
		out.DurationMs = new(e.DurationMs)
	}
	if e.TimeStartedNs != 0 {
		out.TimeDiscoveredStartedNs = new(e.TimeStartedNs)
	}
	if e.TimeCompletedNs != 0 {
		out.TimeDiscoveredCompletedNs = new(e.TimeCompletedNs)
	}
	return out
}
