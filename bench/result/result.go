// Package result holds the plain data of a measurement: what was asked, where it ran, every sample, and how it ended.
//
// Units are in the types and in the names (…US microseconds, …S seconds). Absent is nil or an empty slice, never 0. No live handle is ever
// in here, so that writers, readers and analysis work on any machine.
package result

import "time"

// Schema names the JSON form of Run; the number grows when a reader of the old form would misread the new one.
const Schema = "commprobe/sweep/1"

// Bytes is an amount of memory or message data, in bytes.
type Bytes int64

// Count is a number of elements of a collective's data type.
type Count int64

// Micros is a duration in microseconds.
type Micros float64

// GBps is a bandwidth in 10^9 bytes a second, as nccl-tests prints it.
type GBps float64

// Run is one invocation of sweep: the question, the place, the rows, the end.
type Run struct {
	Schema      string        `json:"schema"`
	Program     Program       `json:"program"`
	Command     []string      `json:"command"`
	Started     time.Time     `json:"started"`
	Ended       time.Time     `json:"ended"`
	Config      Config        `json:"config"`
	Environment Environment   `json:"environment"`
	Ranks       []Rank        `json:"ranks"`
	Rows        []Row         `json:"rows"`
	Skipped     []Skipped     `json:"skipped,omitempty"` // asked for, but not possible here, each with its reason
	Notes       []Note        `json:"notes,omitempty"`
	Modes       []Modes       `json:"modes,omitempty"`       // only with Config.Runs > 1
	Cycles      []Cycles      `json:"cycles,omitempty"`      // only with more than one cycle
	Consistency []Consistency `json:"consistency,omitempty"` // only with Config.Consistency
	Outcome     Outcome       `json:"outcome"`
}

// Program identifies the binary that measured.
type Program struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Go      string `json:"go"`
}

// Config is what was asked for, after defaults and limits were applied.
type Config struct {
	Collectives []string `json:"collectives"`
	Types       []string `json:"types"`
	Ops         []string `json:"ops"`
	Engine      string   `json:"engine"`    // "native" or "host"
	Placement   string   `json:"placement"` // "process", "thread" or "group"
	World       int      `json:"world"`     // ranks in all
	MinBytes    Bytes    `json:"min_bytes"`
	MaxBytes    Bytes    `json:"max_bytes"`
	StepFactor  float64  `json:"step_factor,omitempty"` // > 1, or 0 when StepBytes is used
	StepBytes   Bytes    `json:"step_bytes,omitempty"`
	QuietCores  bool     `json:"quiet_cores"` // ranks looked for a processor with a quiet neighbour before each timed series
	Iters       int      `json:"iters"`
	ItersExact  bool     `json:"iters_exact"` // false: small sizes run more than Iters; Row.Iters has the number
	Warmup      int      `json:"warmup"`
	Check       int      `json:"check"` // verified iterations a row half, 0 = not checked
	TimeoutS    float64  `json:"timeout_s"`
	Runs        int      `json:"runs"`             // fresh sets of processes
	Algos       []string `json:"algos,omitempty"`  // NCCL_ALGO of fresh sets of processes, each with each of Protos; nil: NCCL's own choice
	Protos      []string `json:"protos,omitempty"` // and NCCL_PROTO
	Consistency bool     `json:"consistency,omitempty"`
	Modes       Options  `json:"modes"`  // how the operations are called
	Parity      Parity   `json:"parity"` // what makes the figures comparable with nccl-tests
}

// Options are the ways of calling an operation, by nccl-tests' letters. The zero value is the plain way.
type Options struct {
	Root         string  `json:"root,omitempty"`          // -r: a rank or "all"; only collectives with a root have one
	Graph        int     `json:"graph,omitempty"`         // -G: launches of a CUDA graph that holds all iterations, 0 = no graph
	Aggregate    int     `json:"aggregate,omitempty"`     // -m: operations in one group, 0 and 1 = one
	Register     int     `json:"register,omitempty"`      // -R: 0 no, 1 ncclCommRegister, 2 symmetric window
	CTAPolicy    *int    `json:"cta_policy,omitempty"`    // -x: 0 default, 1 efficiency, 2 zero CTA; nil = not set
	Blocking     int     `json:"blocking,omitempty"`      // -z: 1 wait and barrier after each operation, 2 wait only, 3 as 1 without the barrier's time
	Cycles       int     `json:"cycles"`                  // -N: how often the whole table was asked for, 0 = until stopped
	CPUTime      bool    `json:"cpu_time,omitempty"`      // -C: the time column shows queueing by the processor
	Timestamps   bool    `json:"timestamps,omitempty"`    // -S
	Memory       bool    `json:"memory,omitempty"`        // -M
	Unalign      int     `json:"unalign,omitempty"`       // -u: elements that both buffers are shifted by
	NullStream   bool    `json:"null_stream,omitempty"`   // -y
	ParallelInit bool    `json:"parallel_init,omitempty"` // -p
	Split        string  `json:"split,omitempty"`         // how the ranks are split into groups that sweep at the same time; "" = one group
	Comms        int     `json:"comms,omitempty"`         // communicators over the same GPUs that work at the same time, 0 and 1 = one
	Spread       float64 `json:"spread,omitempty"`        // alltoallv: 0 = uniform … 1 = by distance
	Matrix       string  `json:"matrix,omitempty"`        // alltoallv: file with the bytes from each rank to each
}

// Parity says which of nccl-tests' conditions held.
type Parity struct {
	NCCLMemAlloc       bool   `json:"nccl_mem_alloc"`       // buffers from ncclMemAlloc
	NVLinkCentricSched bool   `json:"nvlink_centric_sched"` // communicator config nvlinkCentricSched=1 (NCCL 2.28 and later)
	OffsetRotation     bool   `json:"offset_rotation"`      // each iteration uses the next part of the buffer, as far as MaxBytes reaches
	Average            string `json:"average"`              // over ranks: "mean"
}

// Environment is where it ran.
type Environment struct {
	Hosts     []Host            `json:"hosts"`
	Libraries []Library         `json:"libraries"`
	Env       map[string]string `json:"env"` // NCCL_* only
}

// Host is one machine.
type Host struct {
	Name       string `json:"name"`
	Kernel     string `json:"kernel"`
	CPUModel   string `json:"cpu_model"`
	CPUs       int    `json:"cpus"` // online logical processors
	NUMANodes  int    `json:"numa_nodes"`
	MemTotal   Bytes  `json:"mem_total"`
	Driver     string `json:"driver,omitempty"`     // NVIDIA kernel driver, e.g. "580.159.04"
	Hypervisor bool   `json:"hypervisor,omitempty"` // the processor says it is virtual
}

// Library is one loaded library. The host engine is one too, with the path of the program itself.
type Library struct {
	Name    string `json:"name"` // "nccl", "cudart", "cuda driver", "host engine"
	Path    string `json:"path"`
	Version string `json:"version"`
}

// Rank is one member of the communicator.
type Rank struct {
	Rank       int     `json:"rank"`
	Host       string  `json:"host"`
	PID        int     `json:"pid"`
	Device     int     `json:"device"`
	DeviceName string  `json:"device_name"`
	PCIBusID   string  `json:"pci_bus_id"`
	UUID       string  `json:"uuid,omitempty"`
	Compute    string  `json:"compute_capability,omitempty"` // "9.0"
	MemTotal   Bytes   `json:"mem_total"`
	CPUs       string  `json:"cpus"`             // processors this rank may run on, as a list such as "0-15"
	Group      int     `json:"group"`            // of those that sweep at the same time, 0 when there is one
	InitS      float64 `json:"init_s,omitempty"` // seconds that initialising its communicators took
	Memory     *Memory `json:"memory,omitempty"` // only with Options.Memory
}

// Memory is what a rank's device lost of its free memory, step by step. Other programs on the device disturb it.
type Memory struct {
	Init       Bytes `json:"init"`       // communicators
	User       Bytes `json:"user"`       // message buffers
	Collective Bytes `json:"collective"` // what operations allocated while they ran
	Total      Bytes `json:"total"`
}

// Row is one size of one collective, type and op: an out-of-place and an in-place half.
type Row struct {
	Run        int       `json:"run"`             // 1 … Config.Runs
	Cycle      int       `json:"cycle,omitempty"` // 1 … Options.Cycles, 0 when there is one
	Algo       string    `json:"algo,omitempty"`  // NCCL_ALGO that was set for it
	Proto      string    `json:"proto,omitempty"` // NCCL_PROTO
	Group      int       `json:"group,omitempty"` // which of the groups that sweep at the same time
	Time       time.Time `json:"time,omitzero"`   // when it was done
	Collective string    `json:"collective"`
	Type       string    `json:"type"`
	Op         string    `json:"op"`   // "none" where the collective has none
	Root       int       `json:"root"` // -1 where the collective has none
	Bytes      Bytes     `json:"bytes"`
	Count      Count     `json:"count"`             // elements as nccl-tests prints them
	Choices    []Choice  `json:"choices,omitempty"` // what NCCL chose for it, from a pass of its own with the TUNING log
	OutOfPlace *Half     `json:"out_of_place,omitempty"`
	InPlace    *Half     `json:"in_place,omitempty"`
}

// Choice is what NCCL decided for one operation.
type Choice struct {
	Kind      string `json:"kind,omitempty"`       // "" usually; "Symmetric", "Copy Engine" …
	Algo      string `json:"algo,omitempty"`       // "Ring"
	Proto     string `json:"proto,omitempty"`      // "LL128"
	Kernel    string `json:"kernel,omitempty"`     // of symmetric kernels
	ChannelLo int    `json:"channel_lo,omitempty"` //
	ChannelHi int    `json:"channel_hi,omitempty"`
	Channels  int    `json:"channels,omitempty"` // 0: not told
}

// Half is one placement of one row. TimeUS is the figure that nccl-tests prints: host clock from a barrier to the end of all queued
// operations, divided by their number, mean over ranks.
type Half struct {
	Iters       int          `json:"iters"`
	TimeUS      Micros       `json:"time_us"`
	CPUTimeUS   Micros       `json:"cpu_time_us"` // to queue one operation, over all of the series
	AlgBW       GBps         `json:"algbw_gbps"`
	BusBW       GBps         `json:"busbw_gbps"`
	Wrong       *int64       `json:"wrong,omitempty"`     // wrong elements over all ranks; nil = not checked
	Unchecked   string       `json:"unchecked,omitempty"` // why Wrong is nil although checks were asked for
	Faults      []Fault      `json:"faults,omitempty"`
	Together    string       `json:"faults_together,omitempty"` // what the ranks' faults have in common and where to look first
	Ranks       []RankTime   `json:"ranks"`
	Iter        *IterStats   `json:"iter,omitempty"`         // each iteration's slowest rank, from a separate series with events
	SlowestRank *int         `json:"slowest_rank,omitempty"` // by median event time, when it stands out
	LaunchBound *LaunchBound `json:"launch_bound,omitempty"`
}

// RankTime is one rank's view of a half.
type RankTime struct {
	Rank      int       `json:"rank"`
	TimeUS    Micros    `json:"time_us"`              // host clock, an operation
	EnqueueUS Micros    `json:"enqueue_us"`           // host time to queue one of the first operations, while the launch queue has room
	QueuedUS  Micros    `json:"queued_us"`            // host time to queue one operation, over all of the series
	EventUS   []float64 `json:"event_us,omitempty"`   // every iteration of the event series, microseconds
	BatchUS   Micros    `json:"event_mean_us"`        // first to last event of that series, an operation
	CPU       int       `json:"cpu"`                  // processor the series ended on, -1 unknown
	IssueRate float64   `json:"issue_rate,omitempty"` // independent additions a nanosecond on its core, the lower of before and after the timed series
	CoreShare *float64  `json:"core_share,omitempty"` // IssueRate over the best seen on this host: well below 1 means that the core's other hardware thread was busy
	Hashes    []string  `json:"hashes,omitempty"`     // fingerprints of the result of the same operation on the same data, one a repeat
	Switches  int64     `json:"involuntary_switches"` // involuntary context switches of the rank's thread during the timed series
}

// IterStats summarises per-iteration times. P95 needs 20 samples and P99 100; below that they are nil.
type IterStats struct {
	N       int     `json:"n"`
	MinUS   Micros  `json:"min_us"`
	P50US   Micros  `json:"p50_us"`
	P95US   *Micros `json:"p95_us,omitempty"`
	P99US   *Micros `json:"p99_us,omitempty"`
	MaxUS   Micros  `json:"max_us"`
	MeanUS  Micros  `json:"mean_us"`
	StdevUS Micros  `json:"stdev_us"`
	// Lacks names fields, as in JSON, that the file this was read from does not have; they are 0.
	Lacks []string `json:"lacks,omitempty"`
}

// LaunchBound says that the operation takes what its queueing by one rank takes: the GPU waits for the CPU.
type LaunchBound struct {
	Rank      int      `json:"rank"`
	EnqueueUS Micros   `json:"enqueue_us"`
	CoreShare *float64 `json:"core_share,omitempty"` // that rank's RankTime.CoreShare
}

// Fault is what verification found wrong on one rank.
type Fault struct {
	Rank     int      `json:"rank"`
	Wrong    int64    `json:"wrong"`            // elements
	First    int64    `json:"first"`            // lowest wrong element index
	Last     int64    `json:"last"`             // highest wrong element index
	Ranges   []Range  `json:"ranges,omitempty"` // runs of wrong elements, at most MaxRanges; the last one may then hold right ones too
	Samples  []Sample `json:"samples,omitempty"`
	Analysis string   `json:"analysis,omitempty"` // in words, e.g. whose contribution is missing
	Kind     string   `json:"kind,omitempty"`     // "" or one of the kinds below
	Blamed   *int     `json:"blamed,omitempty"`   // rank, in the communicator, whose data is missing, doubled or wrong here; nil: none, several, unknown
}

// FaultInput is the kind of a fault that lies in the rank's input, before the operation.
const FaultInput = "input"

// The kinds of wrong results. All but the last two are meant of nearly all sampled wrong elements.
const (
	FaultUnwritten  = "never written"         // the pattern from before the operation is still there
	FaultZero       = "zeros"                 // all bits zero
	FaultMissing    = "contribution missing"  // that of one rank, Blamed, or of several
	FaultNotReduced = "not reduced"           // only one rank's input is there
	FaultDoubled    = "contribution doubled"  // rank Blamed counts twice
	FaultReplaced   = "contribution replaced" // rank Blamed is missing, another one counts twice
	FaultStale      = "stale"                 // from an earlier operation: all of it, or what rank Blamed gave
	FaultShifted    = "shifted"               // from another place of the buffer: all of it, or what rank Blamed gave
	FaultOtherRank  = "other rank's data"     // moved data that is another rank's than Blamed's
	FaultUnscaled   = "not scaled"            // an average not divided, or a factor not applied
	FaultBits       = "bits differ"           // one bit in each element, or the same ones everywhere
	FaultMixed      = "several causes"        // see Analysis
	FaultUnknown    = "unexplained"           // no contribution explains it
)

// MaxRanges bounds Fault.Ranges.
const MaxRanges = 16

// Range is neighbouring wrong elements of one rank's result.
type Range struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Wrong int64 `json:"wrong"` // Last − First + 1, or fewer where ranges were joined
}

// Sample is one wrong element, in the notation of its type.
type Sample struct {
	Index    int64  `json:"index"`
	Got      string `json:"got"`
	Expected string `json:"expected"`
}

// Skipped is something asked for that this library, GPU or machine lacks.
type Skipped struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Note is a remark on the whole run or some rows, in plain words.
type Note struct {
	Severity string `json:"severity"` // "info", "warning" or "fault"
	Text     string `json:"text"`
}

// Modes describes how fresh runs of one row half fall into groups.
type Modes struct {
	Collective string `json:"collective"`
	Type       string `json:"type"`
	Op         string `json:"op"`
	Algo       string `json:"algo,omitempty"`
	Proto      string `json:"proto,omitempty"`
	Root       int    `json:"root"`
	Group      int    `json:"group,omitempty"`
	Bytes      Bytes  `json:"bytes"`
	InPlace    bool   `json:"in_place"`
	Runs       int    `json:"runs"`
	MedianUS   Micros `json:"median_us"`
	MinUS      Micros `json:"min_us"`
	MaxUS      Micros `json:"max_us"`
	Groups     []Mode `json:"groups"` // one entry: no clear groups
	// Runs outside the fastest group, or without groups those 15 % slower than the fastest; and how many of them were launch-bound on a
	// rank whose core was shared (core share below SharedCore).
	SlowRuns       int `json:"slow_runs,omitempty"`
	SlowSharedCore int `json:"slow_runs_on_shared_core,omitempty"`
}

// Cycles describes how one row half behaved over many cycles of the same processes.
type Cycles struct {
	Collective string `json:"collective"`
	Type       string `json:"type"`
	Op         string `json:"op"`
	Root       int    `json:"root"`
	Group      int    `json:"group,omitempty"`
	Bytes      Bytes  `json:"bytes"`
	InPlace    bool   `json:"in_place"`
	N          int    `json:"n"` // cycles measured
	MedianUS   Micros `json:"median_us"`
	MinUS      Micros `json:"min_us"`
	MaxUS      Micros `json:"max_us"`
	MaxCycle   int    `json:"max_cycle"` // the cycle that was slowest
	FirstUS    Micros `json:"first_us"`  // median of the first tenth of the cycles
	LastUS     Micros `json:"last_us"`   // and of the last tenth: drift
	Wrong      int64  `json:"wrong"`     // wrong elements over all cycles
}

// Consistency compares the results of one operation on the same data between ranks, repeats, fresh runs and algorithms. The data shows the
// order of a floating-point sum.
type Consistency struct {
	Collective     string        `json:"collective"`
	Type           string        `json:"type"`
	Op             string        `json:"op"`
	Root           int           `json:"root"`
	Group          int           `json:"group,omitempty"`
	Bytes          Bytes         `json:"bytes"`
	Runs           int           `json:"runs"`                     // fresh runs compared, over all variants
	Ranks          []int         `json:"odd_ranks,omitempty"`      // differ from the others where all must agree
	Unsteady       []int         `json:"unsteady_ranks,omitempty"` // their repeats differ
	RunsDiffer     bool          `json:"runs_differ"`
	VariantsDiffer bool          `json:"variants_differ"`
	Variants       []Fingerprint `json:"variants"`
	Fault          bool          `json:"fault"` // not to be explained by an order of summation
	Verdict        string        `json:"verdict"`
}

// Fingerprint is what the runs with one algorithm and protocol got: one entry when they all agree.
type Fingerprint struct {
	Algo   string   `json:"algo,omitempty"`
	Proto  string   `json:"proto,omitempty"`
	Hashes []string `json:"hashes"`
}

// SharedCore is the core share below which a core's other hardware thread counts as busy.
const SharedCore = 0.85

// Mode is one group of runs.
type Mode struct {
	MedianUS Micros  `json:"median_us"`
	Runs     int     `json:"runs"`
	Share    float64 `json:"share"` // of all runs, 0 … 1
}

// Outcome is how the run ended.
type Outcome struct {
	Status  string `json:"status"` // "ok", "wrong data", "time-out", "rank died", "interrupted", "failed"
	Exit    int    `json:"exit"`   // the program's exit status
	Message string `json:"message,omitempty"`
	Rank    *int   `json:"rank,omitempty"`
	Host    string `json:"host,omitempty"`
	Phase   string `json:"phase,omitempty"`
}
