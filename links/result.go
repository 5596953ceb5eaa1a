// Package links measures what each connection of a node's GPUs gives: GPU to GPU by copy engine and by kernel, GPU to and from host memory, memory of the
// GPU itself, latency. Data is checked, and the figures are compared with what each link should give.
//
// Run measures and fills a Report, which is plain data; Judge compares and finds faults, and is a pure function of it.
package links

import "time"

// Schema names the JSON form of a Report.
const Schema = "commprobe/links/1"

// Convention says what a rate counts.
const Convention = "GB/s are 10^9 bytes a second of payload, one way; in a GPU's own memory a copy counts twice (read and written), as in NVIDIA's bandwidthTest and PyTorch"

// Kind is what lies at the ends of a measured way.
type Kind string

// The kinds of ways.
const (
	GPUToGPU  Kind = "gpu-gpu"
	HostToGPU Kind = "host-gpu"
	GPUToHost Kind = "gpu-host"
	Local     Kind = "local"
)

// Method is how data was moved.
type Method string

// The methods. A kernel that reads runs at the target, one that writes at the source.
const (
	CopyEngine  Method = "copy engine"  // cudaMemcpyAsync and cudaMemcpyPeerAsync
	KernelRead  Method = "kernel read"  // 16-byte loads from the far memory
	KernelWrite Method = "kernel write" // 16-byte stores to the far memory
	KernelCopy  Method = "kernel"       // within one GPU
	FlagPing    Method = "flag ping"    // latency: 8-byte words to and fro between two kernels, half a round trip
	SmallCopy   Method = "8-byte copy"  // latency: copies of 8 bytes queued back to back by the copy engine
)

// Report is everything that was found.
type Report struct {
	Schema      string     `json:"schema"`
	Program     string     `json:"program,omitempty"`
	Host        string     `json:"host,omitempty"`
	Started     time.Time  `json:"started"`
	Engine      string     `json:"engine"` // native or host
	Libraries   []string   `json:"libraries,omitempty"`
	Convention  string     `json:"convention"`
	Bytes       int64      `json:"bytes"` // of one copy
	Repetitions int        `json:"repetitions"`
	GPUs        []GPU      `json:"gpus"`
	Pairs       []Pair     `json:"pairs"`
	Measured    []Measured `json:"measured"`
	Model       []Model    `json:"model"`
	Findings    []Finding  `json:"findings"`
	CounterSecs *float64   `json:"counters_seconds,omitempty"` // from the first reading of the GPUs' error counters to the last; nil: not read
	Notes       []string   `json:"notes,omitempty"`
	Ended       string     `json:"ended_early,omitempty"` // why not everything was measured; empty: it was
}

// GPU is one device and its own links. What is not known is nil.
type GPU struct {
	ID          string   `json:"id"`
	Device      int      `json:"device"` // CUDA's number
	Name        string   `json:"name"`
	PCI         string   `json:"pci"`
	UUID        string   `json:"uuid,omitempty"`
	SMs         int      `json:"sms"`
	MemoryBytes int64    `json:"memory_bytes"`
	MemoryGBs   *float64 `json:"memory_gbs"` // nominal: memory clock x 2 x bus width
	NUMA        *int     `json:"numa"`
	CPUs        string   `json:"bound_to_cpus,omitempty"` // where its thread ran, which allocated the host memory; empty: not bound
	PCIe        PCIe     `json:"pcie"`
	NVLinks     *int     `json:"nvlinks"`
	NVLinksDown *int     `json:"nvlinks_down"`
	Moved       []Moved  `json:"counters_moved,omitempty"` // error counters that moved during the test
}

// PCIe is a GPU's way to its processor right after the load.
type PCIe struct {
	Gen      *int     `json:"generation"`
	Width    *int     `json:"width"`
	MaxGen   *int     `json:"max_generation"` // what GPU and slot can do together
	MaxWidth *int     `json:"max_width"`
	NowGBs   *float64 `json:"now_gbs"` // of the narrowest link up to the processor, one way, line rate
	MaxGBs   *float64 `json:"max_gbs"`
	Narrow   string   `json:"narrowest,omitempty"` // that link
}

// Pair is what connects two GPUs.
type Pair struct {
	A      int      `json:"a"` // device
	B      int      `json:"b"`
	Peer   *bool    `json:"peer_access"` // both ways; false: data is staged through host memory
	Why    string   `json:"why,omitempty"`
	Word   string   `json:"topology,omitempty"` // as nvidia-smi topo -m: NV18, PIX …
	MaxGBs *float64 `json:"max_gbs"`            // line rate one way of the narrowest hop; nil: unknown
	NowGBs *float64 `json:"now_gbs"`
}

// Measured is one direction of one way by one method. Where both directions ran at once, each has one of these.
type Measured struct {
	Kind   Kind   `json:"kind"`
	From   string `json:"from"`
	To     string `json:"to"`
	Method Method `json:"method"`
	Both   bool   `json:"both_ways,omitempty"`
	Staged bool   `json:"staged,omitempty"` // no peer access: through host memory
	Bytes  int64  `json:"bytes,omitempty"`
	Copies int    `json:"copies,omitempty"` // queued back to back, timed together

	GBs        *float64 `json:"gbs,omitempty"` // median of the samples
	MinGBs     *float64 `json:"min_gbs,omitempty"`
	MaxGBs     *float64 `json:"max_gbs,omitempty"`
	TotalGBs   *float64 `json:"total_gbs,omitempty"`  // both ways: bytes of both over the longer time
	LatencyUS  *float64 `json:"latency_us,omitempty"` // median
	MinUS      *float64 `json:"min_us,omitempty"`
	MaxUS      *float64 `json:"max_us,omitempty"`
	NominalGBs *float64 `json:"nominal_gbs,omitempty"` // line rate at best
	Efficiency *float64 `json:"efficiency,omitempty"`  // of the nominal, 0 to 1

	Samples []float64 `json:"samples_us,omitempty"` // each: all copies (or rounds) of one repetition together
	Wrong   *uint64   `json:"wrong,omitempty"`      // elements of 8 bytes that arrived wrong; nil: not checked
	Why     string    `json:"why,omitempty"`        // why there is no figure
}

// Model is one direction of one way as a line: time = alpha + bytes / beta.
type Model struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Method  Method   `json:"method"`
	AlphaUS *float64 `json:"alpha_us"`
	BetaGBs *float64 `json:"beta_gbs"`
}

// Severity of a finding.
type Severity string

// The severities.
const (
	Fault Severity = "fault" // something is broken or degraded
	Warn  Severity = "warn"  // slower than it should be, or odd
	Usual Severity = "usual" // looks like a fault and is none
)

// Finding is one thing that is wrong, where, and what to do.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`
	Where    string   `json:"where"`
	Text     string   `json:"text"`
	Fix      string   `json:"fix,omitempty"`
}

// WrongData tells whether any data arrived wrong.
func (r *Report) WrongData() bool {
	for _, m := range r.Measured {
		if m.Wrong != nil && *m.Wrong > 0 {
			return true
		}
	}
	return false
}

// Faults counts the findings that are faults.
func (r *Report) Faults() int { return r.count(Fault) }

func (r *Report) count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}
