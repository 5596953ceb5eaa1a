// Package diagnose says from evidence who is to blame for a hang, which call it was, and why. Pure functions: no clock, no files.
package diagnose

import "github.com/commprobe/commprobe/hanglab/evidence"

// Class is what kind of fault it was.
type Class string

// The classes. A class that accuses names ranks; GPUStuckOrNetwork, NotAHang and Undecided name none.
const (
	SizeMismatch      Class = "size_mismatch"
	DTypeMismatch     Class = "dtype_mismatch"
	OpMismatch        Class = "op_mismatch"
	OrderMismatch     Class = "order_mismatch"
	SkippedCollective Class = "skipped_collective"
	UnpairedP2P       Class = "unpaired_p2p"
	CrossedComms      Class = "crossed_comms"
	RankCrash         Class = "rank_crash"
	RankStuckHost     Class = "rank_stuck_host"
	RankStuckGPU      Class = "rank_stuck_gpu"
	LazyInit          Class = "lazy_init"
	Straggler         Class = "straggler"
	Network           Class = "network"
	GPUFault          Class = "gpu_fault"
	OOMHost           Class = "oom_host"
	OOMGPU            Class = "oom_gpu"
	EnvMismatch       Class = "env_mismatch"
	NaNSource         Class = "nan_source"
	GPUStuckOrNetwork Class = "gpu_stuck_or_network" // launched everywhere, finished nowhere
	NotAHang          Class = "not_a_hang"
	Undecided         Class = "undecided"
)

// Verdict is the answer, with what it rests on. Its JSON form is the command's.
type Verdict struct {
	Class        Class         `json:"class"`
	Ranks        []int         `json:"ranks"` // whom it accuses; empty when no rank may honestly be named. Two that disagree are both named
	Group        string        `json:"group"`
	Sequence     int64         `json:"sequence"` // -1: none
	P2P          bool          `json:"p2p,omitempty"`
	Op           string        `json:"op"`
	Sizes        []string      `json:"sizes"` // per side: "rank 3: 394240 float", "ranks 0-2: 393216 float"
	Location     string        `json:"location"`
	Confidence   float64       `json:"confidence"` // 0 to 1; see docs for what the steps mean
	Summary      string        `json:"summary"`    // one sentence
	Alternatives []Alternative `json:"alternatives"`
	Evidence     []Item        `json:"evidence"`
	Against      []Item        `json:"against"` // what contradicts it
	Next         []string      `json:"next"`    // what to collect next
	Fix          string        `json:"fix"`
	Notes        []string      `json:"notes,omitempty"` // about the evidence as a whole: who ended the job, whose files are missing
	Picture      *Picture      `json:"picture,omitempty"`
}

// Alternative is another reading of the same evidence.
type Alternative struct {
	Class      Class   `json:"class"`
	Ranks      []int   `json:"ranks"`
	Confidence float64 `json:"confidence"`
}

// Item is one piece of evidence: where, what is written there, and what it says.
type Item struct {
	evidence.Where
	Text string `json:"text"`
	Says string `json:"says"`
}

// Picture is the grid of one group around the place where ranks part: a row a rank, a column a sequence number.
type Picture struct {
	Group string       `json:"group"`
	First int64        `json:"first"` // sequence number of the first column
	Rows  []PictureRow `json:"rows"`
	Left  []int        `json:"left_out,omitempty"` // ranks with the same row as one that is shown
}

// PictureRow is one rank's calls.
type PictureRow struct {
	Rank  int           `json:"rank"`
	Odd   bool          `json:"odd"`
	Cells []PictureCell `json:"cells"`
}

// PictureCell is one call; the zero value is none.
type PictureCell struct {
	Op    string `json:"op,omitempty"`
	Size  string `json:"size,omitempty"`
	State string `json:"state,omitempty"` // "C" completed, "S" started, "Q" queued
	Odd   bool   `json:"odd,omitempty"`
}

// Accuses tells whether somebody or something is to blame: the exit status of the command depends on it.
func (v *Verdict) Accuses() bool { return v.Class != NotAHang && v.Class != Undecided }

// Diagnose weighs the evidence. It never fails: what cannot be told is Undecided, with what to collect next.
func Diagnose(e *evidence.Evidence) *Verdict {
	if e == nil {
		e = &evidence.Evidence{}
	}
	j := newJob(e)
	j.add(j.align(j.groups, "dump")...)
	j.add(j.align(j.groupsOfLogs(), "watchdog")...)
	j.add(j.align(j.groupsOfRunning(), "fingerprint")...)
	calls := j.groupsOfCalls()
	j.add(j.align(calls, "calls")...)
	j.add(j.oneSided(calls)...)
	j.add(j.deaths()...)
	j.add(j.fingerprints()...)
	j.add(j.desync()...)
	j.add(j.gpuFaults()...)
	j.add(j.cudaErrors()...)
	j.add(j.network()...)
	j.add(j.peers()...)
	j.add(j.libraryWord()...)
	j.add(j.cancelled()...)
	j.add(j.environment()...)
	j.add(j.lazyPairs()...)
	j.add(j.hostStuck()...)
	j.add(j.quiet()...)
	j.add(j.oldMessage()...)
	j.add(j.stacks()...)
	j.add(j.rasCounts()...)
	j.add(j.notANumber()...)
	j.add(j.survivals()...)
	j.consequences()
	return j.choose().annotate(e)
}
