// Package flight holds what a rank recorded of its NCCL calls and writes it as a dump of PyTorch's Flight Recorder, format version 2.10, so
// that PyTorch's own tools read the dumps of this program. Package evidence reads dumps, these and PyTorch's.
//
// Two models, on purpose. The types here are plain: an Entry stands alone, a writer fills it field by field, one rank holds a few thousand. A
// reader of a large job holds millions of entries of which most say the same; evidence.FlightDump shares what is equal and is a
// fraction of the size.
package flight

// Version is the format's version that WritePickle and WriteJSON produce when Dump.Version is empty.
const Version = "2.10"

// State is how far an operation had come when the dump was made. Without timing events on the stream nobody sees an operation start: then
// there is only Scheduled and Completed.
type State string

// The states of an operation.
const (
	Scheduled State = "scheduled"
	Started   State = "started"
	Completed State = "completed"
)

// Dump is what one rank knew. The format has no place for the rank itself, its host or the time: the rank is in the file's name.
type Dump struct {
	Version        string // of the format, "2.10"; "" is written as Version
	CommLibVersion string // of NCCL, e.g. "2.28.9"
	Groups         []Group
	Status         []GroupStatus
	Entries        []Entry // oldest first
}

// Group is a process group whose communicator exists on this rank.
type Group struct {
	Name  string // unique in a dump: PyTorch numbers groups ("0", "43") or hashes them
	Desc  string // e.g. "default_pg"
	Ranks []int  // global ranks of the members
}

// GroupStatus counts what a group's communicator was given and has done. Numbers are sequence numbers, -1 where there was none yet. Of a group
// that sends and receives they count those instead.
type GroupStatus struct {
	PGID          int64 // local to the process; the same number as Entry.PGID
	LastEnqueued  int64
	LastStarted   int64 // -1 for ever without timing events
	LastCompleted int64
}

// Frame is one call of a stack.
type Frame struct {
	Name string
	File string
	Line int
}

// Entry is one operation given to NCCL.
type Entry struct {
	Frames          []Frame // innermost first; only in the pickle form, nil: not recorded
	RecordID        int64   // running number within the process, no two ranks' are comparable
	PGID            int64
	GroupName       string
	GroupDesc       string
	ThreadName      string
	ThreadID        string
	CollectiveSeqID int64  // of the group; a send or receive does not raise it
	P2PSeqID        int64  // of the group; a collective does not raise it
	OpID            int64  // operations grouped together share a sequence number but not this one
	ProfilingName   string // "nccl:all_reduce", "nccl:send 0->3" (ranks within the group)
	TimeCreatedNs   int64  // wall clock when the host enqueued it
	DurationMs      *float64
	InputSizes      [][]int64 // shape of each tensor
	InputDtypes     []string  // "Float", "BFloat16"
	OutputSizes     [][]int64
	OutputDtypes    []string
	State           State

	TimeDiscoveredStartedNs   *int64 // wall clock when the watchdog noticed, nil: it did not
	TimeDiscoveredCompletedNs *int64

	Retired   bool // the watchdog follows it no more; not completed as well means it timed out or was aborted
	TimeoutMs int64
	IsP2P     bool
}
