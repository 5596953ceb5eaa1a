package evidence

import (
	"time"

	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/nccl/ras"
)

// Evidence is everything that was read, with its place in the input: what no rule uses is still there to be shown.
type Evidence struct {
	Inputs []Input
	Dumps  []Dump
	Facts  []Fact  // in the order of inputs and lines
	Comms  []*Comm // calls from NCCL's own logs
	RAS    []RASReport
	Stacks []Stack
}

// Where is a place in an input.
type Where struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1; 0: the file as a whole
}

// Input is one file, member of an archive, or stream.
type Input struct {
	Name  string   `json:"name"`
	Kind  string   `json:"kind"` // "flight_pickle", "flight_json", "log", "ras_text", "ras_json", "pyspy", "gdb", "unknown" …
	Bytes int64    `json:"bytes"`
	Rank  int      `json:"rank"` // that all of it belongs to, from its name or its content; -1: several, or unknown
	Err   string   `json:"error,omitempty"`
	Notes []string `json:"notes,omitempty"` // what was left out of it
}

// Dump is a flight recorder dump, or what is left of one.
type Dump struct {
	Where Where
	Rank  int         // -1: the name has none
	Data  *FlightDump // nil: nothing could be read; an empty file is evidence as well
	Err   error       // ErrEmpty, a cut file, …
}

// FactKind is what a line or a few lines of a log say.
type FactKind string

// The kinds of facts.
const (
	Timeout       FactKind = "timeout"        // a watchdog's own time-out: group, seq, last enqueued/started/completed, op, numbers of elements
	DumpSignal    FactKind = "dump_signal"    // this rank heard of another's time-out: its own last enqueued/completed
	FirstToSignal FactKind = "first_signal"   // this rank was the first to ask for dumps
	HostStuck     FactKind = "heartbeat"      // the watchdog itself did not come round
	Fingerprint   FactKind = "fingerprint"    // calls compared and found different: Call, Other, OtherRank
	Running       FactKind = "running"        // a compared call, at INFO level: Call
	Desync        FactKind = "desync"         // PyTorch's old desync report: Ranks, Seq, Op; Detail says which sentence
	Ended         FactKind = "ended"          // a process has ended: Code, Signal; Detail: who says so (torchrun, agent, shell, supervisor, slurm, kubernetes)
	Launcher      FactKind = "launcher"       // a launcher's "root cause": Rank, Code
	Traceback     FactKind = "traceback"      // an exception or panic: Op has its type, Text its message, Stack
	CUDAOOM       FactKind = "cuda_oom"       // out of GPU memory
	CUDAError     FactKind = "cuda_error"     // another CUDA error: Code
	NCCLWarn      FactKind = "nccl_warn"      // an NCCL WARN that no other kind covers
	PeerClosed    FactKind = "peer_closed"    // a connection was closed by a named peer: Ranks if it is a rank, Detail: local rank, host or address
	IBError       FactKind = "ib_error"       // a work completion with an error: Code
	Mismatch      FactKind = "nccl_mismatch"  // NCCL itself speaks of a mismatch (2.4), or of a truncated message: Ranks, Detail
	Version       FactKind = "nccl_version"   // ranks with different versions of NCCL
	InitBegun     FactKind = "init_begun"     // a communicator is being made: Group (commId), Rank in it, Seq: number of ranks
	InitDone      FactKind = "init_done"      // and exists
	BarrierDevice FactKind = "barrier_device" // "using GPU 0 to perform barrier …": the device was guessed
	Xid           FactKind = "xid"            // kernel: GPU fault, Code; Detail: bus id and text
	OOMKill       FactKind = "oom_kill"       // kernel: a process was killed for memory: PID
	LinkDown      FactKind = "link_down"      // kernel or counters: a port or link went down
	Marker        FactKind = "marker"         // LAB_EVENT of a laboratory run: Op is the event, Detail its fields as written
	NaN           FactKind = "nan"            // not a number in an input, a loss or a gradient
	WrongData     FactKind = "wrong_data"     // a result was compared and is wrong
	Progress      FactKind = "progress"       // a line that shows how far a rank's program is: Seq is the step
	EnvDiffers    FactKind = "env_differs"    // a variable has different values on different ranks: Op is its name, Ranks the odd ones, Detail who has what
	GPUState      FactKind = "gpu_state"      // what the driver says of a GPU: Code is how busy it is in %, Detail the bus id and the other figures, PID who uses it
	Moving        FactKind = "moving"         // seen alive: a rank went on with its calls (rank -1: the job did) between two looks at it. Detail has the numbers
	Stopped       FactKind = "stopped"        // a process is stopped (state T), or its host code is stuck: Detail
	Late          FactKind = "late"           // an operation completed after its deadline: Group, Seq
	Silent        FactKind = "silent"         // others wait for Ranks, which say nothing: no dump, or they did not come to call Seq
	RemoteError   FactKind = "remote_error"   // ncclRemoteError, ncclSystemError or a lost connection without a name: a peer ended or the network failed
	LinkUp        FactKind = "link_up"        // a port or link that was down works again: Detail as in LinkDown
	Setup         FactKind = "setup"          // a process lacks what it needs on its host. Detail begins with what: "interface", "shared memory", "device", "memory lock", "plugin", "topology"
	Cancelled     FactKind = "cancelled"      // somebody, or a limit, ended the job: Detail is "cancelled", "time limit", "preempted", "node failure", "interrupt", "evicted"; "told to end" may follow from a rank's end elsewhere
	Restarted     FactKind = "restarted"      // a launcher starts all ranks again: what stands before is of an earlier attempt
	Finished      FactKind = "finished"       // a program, or a launcher for all ranks, says that it has come to its end as it should
	Ending        FactKind = "ending"         // a program is at its end, whether as it should or not: its interpreter takes down what was left
	Gloo          FactKind = "gloo"           // a wait of Gloo's (the host side) timed out or lost its peer: TimeoutMs, Detail
)

// Call is what one rank was about to call, as far as a line says it.
type Call struct {
	Seq   int64   `json:"seq"`            // -1: not said
	Op    string  `json:"op"`             // as Fact.Op
	Name  string  `json:"name,omitempty"` // the operation as written: ALLGATHER and _ALLGATHER_BASE are one Op
	Shape []int64 `json:"shape,omitempty"`
	DType string  `json:"dtype,omitempty"`
}

// Fact is one thing that a log says. Numbers that it does not say are -1, texts are empty, times zero.
type Fact struct {
	Kind  FactKind
	Where Where
	Text  string // the line, or the first of them, cut to 400 bytes
	Time  time.Time

	Rank      int // global, of whom it tells: the line's own prefix, else the input's
	GroupRank int // when only the rank in a group is known
	Host      string
	PID       int
	Group     string // name of a process group or communicator, as written: "0", "default_pg", "0x3fa2…"
	GroupDesc string // what it is for, as written: "default_pg"

	Seq, LastEnqueued, LastStarted, LastCompleted int64
	P2P                                           bool
	Op                                            string // "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send", "recv", "barrier", "gather", "scatter", or as written
	Peer                                          int
	NumelIn, NumelOut                             int64
	DType                                         string // as written: "float", "Float"
	TimeoutMs, RanMs                              int64

	Code        int // exit status, CUDA or NCCL or IB or Xid number; -1: not said
	Signal      int // that ended a process; 0: none
	Call, Other *Call
	OtherRank   int
	Ranks       []int
	Stack       []flight.Frame // innermost first
	Detail      string
	Phase       string // what the rank's program says its thread does in host code
	MonoNs      int64  // on the rank's monotonic clock, 0: not said
	Consequence bool   // the line says itself that it follows from something else ("caused by previous Xid", SIGTERM from the agent …)

	LocalRank  int    // on its host, of whom it tells, where the line says no more than that: then Rank is from elsewhere, or -1
	GroupSize  int    // ranks of the group, as sizes of input and output or NCCL's line imply; -1
	BusID      string // of the GPU, as the kernel writes it in full: "0000:c3:00.0"
	Program    string // name of the program, as the kernel, a launcher or the process has it: "python3.10"
	PIDOutside bool   // PID is the host's own, and the process was in a container: its own lines have another one
	Mild       bool   // the line says itself that it was not fatal, or that the program goes on
}

// Comm is one rank's communicator as NCCL's COLL log lines and Init lines show it. Calls are bounded: the first and the last few thousand.
type Comm struct {
	Where    Where // of its first line
	Host     string
	PID      int
	Pointer  string // "0x7f…", local to the process
	ID       string // commId, equal on all ranks; "" where no Init line is there
	Rank     int    // in the communicator, -1: unknown
	NRanks   int
	Calls    []CommCall // in the order of the log
	Left     int        // calls left out between the first and the last ones
	HasOp    bool       // opCount rises; if not, calls are aligned by their order
	InitOnly bool       // Init START without COMPLETE

	Global    int           // the process's rank in the job: from the lines' prefix, the input, or its largest communicator; -1: unknown
	Device    int           // CUDA device in the prefix of its lines: often the local rank, and no more than that; -1
	LocalRank int           // on its host, -1: not said
	BusID     string        // of its GPU: "0000:c3:00.0"
	Nodes     int           // hosts of the communicator, 0: not said
	Parent    string        // address of the communicator that it was split from
	Ended     string        // "destroyed", "aborted" in the end, "" neither was logged
	EndedLine int           // where
	Torn      int           // lines of this process that were cut before they named their communicator
	Version   string        // of NCCL in that process
	Settings  []CommSetting // NCCL_… variables that the process says it read
}

// CommSetting is one variable of NCCL that a process was given.
type CommSetting struct{ Name, Value string }

// CommCall is one COLL line.
type CommCall struct {
	Line    int32
	Op      string // as Fact.Op
	OpCount int64
	Count   int64  // elements; -1: the line is torn
	DType   string // NCCL's names: "float", "bfloat16"
	RedOp   string
	Root    int // or the peer of a send or recv
}

// RASReport is one answer of NCCL's RAS.
type RASReport struct {
	Where  Where
	Report *ras.Report
}

// Stack is what the threads of one process do, by py-spy, gdb, or /proc.
type Stack struct {
	Where   Where
	Tool    string // "py-spy", "gdb", "proc", "go"
	Rank    int    // -1: unknown
	RankBy  string // where Rank is from: "input", "name" (of the program), "pid" (of its NCCL lines), "local" (its number on its host, which fits), "order" (a guess: processes by their ids)
	PID     int
	Host    string
	Name    string // command line
	State   string // of the process, as /proc has it ("R", "S", "D", "T"); "" unknown
	Threads []Thread
}

// Thread is one thread's frames, innermost first.
type Thread struct {
	ID     string
	Name   string
	Active bool // running or holding the interpreter lock
	GIL    bool
	Frames []flight.Frame
}
