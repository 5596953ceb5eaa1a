package rdma

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// Test is one kind of measurement.
type Test struct {
	Name    string     // "write", "read latency" …
	Op      ibverbs.Op // what is posted
	Latency bool       // one at a time, there and back; else as many as possible
}

// tests are all there are, by name.
var tests = []Test{
	{"write", ibverbs.OpWrite, false},
	{"read", ibverbs.OpRead, false},
	{"send", ibverbs.OpSend, false},
	{"write latency", ibverbs.OpWrite, true},
	{"read latency", ibverbs.OpRead, true},
	{"send latency", ibverbs.OpSend, true},
	{"atomic latency", ibverbs.OpFetchAdd, true},
}

// FindTest returns the test of a name.
func FindTest(name string) (Test, error) {
	i := slices.IndexFunc(tests, func(t Test) bool { return t.Name == name })
	if i < 0 {
		var names []string
		for _, t := range tests {
			names = append(names, t.Name)
		}
		return Test{}, problem(Usage, nil, "test %q: there are %s", name, strings.Join(names, ", "))
	}
	return tests[i], nil
}

// pull says that data comes to the side that asks (READ, atomics) instead of going from it.
func (t Test) pull() bool { return t.Op == ibverbs.OpRead || t.Op == ibverbs.OpFetchAdd }

// answers says that the passive side takes part in the series: it posts receives, or answers a ping.
func (t Test) answers() bool { return t.Op == ibverbs.OpSend || t.Latency && !t.pull() }

// atomicBytes is what an RDMA atomic works on.
const atomicBytes = 8

// AllSizes are the powers of two from 2 B to 8 MiB, and 64 KiB + 1: there is a class of faults that begins just above 64 KiB.
func AllSizes() []int {
	var out []int
	for b := 2; b <= 8<<20; b *= 2 {
		out = append(out, b)
		if b == 64<<10 {
			out = append(out, b+1)
		}
	}
	return out
}

// Options say what to measure. The client's rule both sides.
type Options struct {
	Tests         []string      `json:"tests"`
	Sizes         []int         `json:"sizes_bytes"`
	Iterations    int           `json:"iterations"`    // a QP; not with Duration
	Duration      time.Duration `json:"duration_ns"`   // of each series; 0: by Iterations
	Margin        time.Duration `json:"margin_ns"`     // left out at both ends of a series by Duration
	Warmup        int           `json:"warmup"`        // operations a QP before each series
	Checks        int           `json:"checks"`        // checked rounds a size whose content changes from one to the next, at least 2
	QPs           int           `json:"qps"`           // of a bandwidth series
	Depth         int           `json:"depth"`         // operations outstanding, a QP
	Reads         int           `json:"reads"`         // outstanding READs and atomics, a QP; 0: as many as both devices can
	Signal        int           `json:"signal"`        // a completion every so many operations; 0: the binding's choice
	Inline        int           `json:"inline_bytes"`  // up to this size data travels in the work request; −1: where it helps
	Bidirectional bool          `json:"bidirectional"` // both sides post at the same time
	MTU           int           `json:"mtu_bytes"`     // 0: the smaller of the active MTUs
	ClientGID     int           `json:"client_gid"`    // −1: any
	ServerGID     int           `json:"server_gid"`    // −1: any
	ServiceLevel  int           `json:"service_level"` // 0–7 on Ethernet, 0–15 on InfiniBand
	TrafficClass  int           `json:"traffic_class"` // DSCP and ECN bits of RoCE v2
	HopLimit      int           `json:"hop_limit"`     //
	FlowLabel     int           `json:"flow_label"`    //
	PKeyIndex     int           `json:"pkey_index"`    //
	AckTimeout    int           `json:"ack_timeout"`   // 4.096 µs × 2^n until a packet is sent again
	Retries       int           `json:"retries"`       // 0–7
	RNRRetries    int           `json:"rnr_retries"`   // 0–7, 7: for ever
	Memory        string        `json:"memory"`        // "host", "gpu:N", "dmabuf:N"
	HugePages     bool          `json:"huge_pages"`    //
	CPU           int           `json:"cpu"`           // that the client's measuring thread is bound to; −1: those near the device
	Deadline      time.Duration `json:"deadline_ns"`   // without progress
	InjectFault   bool          `json:"inject_fault"`  // one byte of the source is wrong in the last checked round
	Seed          uint64        `json:"seed"`          // of the data; the client draws it
}

// Defaults are perftest's where it has them.
func Defaults() Options {
	return Options{
		Tests: []string{"write"}, Sizes: []int{64 << 10}, Iterations: 1000, Margin: 500 * time.Millisecond, Warmup: 100, Checks: 3, QPs: 1, Depth: 128,
		Inline: -1, ClientGID: anyGID, ServerGID: anyGID, HopLimit: 255, AckTimeout: 14, Retries: 7, RNRRetries: 7, Memory: "host", CPU: -1,
		Deadline: 10 * time.Second,
	}
}

// limits of the numbers, both for typing errors and for what a peer sends.
const (
	maxBytes      = 1 << 30
	maxIterations = 100_000_000
	maxQPs        = 1024
	maxDepth      = 8192
	maxDuration   = 24 * time.Hour
	maxBuffer     = 64 << 30 // of one side
)

// key is an option that is set by name, with its bounds.
type key struct {
	name     string
	at       func(*Options) *int
	min, max int
	help     string
}

var keys = []key{
	{"warmup", func(o *Options) *int { return &o.Warmup }, 0, 1 << 20, "operations before each series"},
	{"checks", func(o *Options) *int { return &o.Checks }, 2, 1 << 16, "checked rounds a size, each with other content"},
	{"signal", func(o *Options) *int { return &o.Signal }, 0, maxDepth, "a completion every N operations, 0: chosen by size"},
	{"inline", func(o *Options) *int { return &o.Inline }, -1, 4096, "bytes that travel in the work request, -1: chosen by test"},
	{"reads", func(o *Options) *int { return &o.Reads }, 0, 255, "READs and atomics outstanding on a QP, 0: what both devices can"},
	{"sl", func(o *Options) *int { return &o.ServiceLevel }, 0, 15, "service level"},
	{"tclass", func(o *Options) *int { return &o.TrafficClass }, 0, 255, "traffic class (DSCP × 4 + ECN on RoCE v2)"},
	{"flow-label", func(o *Options) *int { return &o.FlowLabel }, 0, 1<<20 - 1, "IPv6 flow label"},
	{"hop-limit", func(o *Options) *int { return &o.HopLimit }, 1, 255, "hop limit"},
	{"pkey-index", func(o *Options) *int { return &o.PKeyIndex }, 0, 1<<16 - 1, "partition key"},
	{"ack-timeout", func(o *Options) *int { return &o.AckTimeout }, 1, 31, "4.096 µs × 2^N until a packet is sent again"},
	{"retries", func(o *Options) *int { return &o.Retries }, 0, 7, "how often, before the QP fails; soft-RoCE takes 7 for no limit"},
	{"rnr-retries", func(o *Options) *int { return &o.RNRRetries }, 0, 7, "the same for a receiver that is not ready, 7: for ever"},
	{"cpu", func(o *Options) *int { return &o.CPU }, -1, 1 << 16, "processor of the client's measuring thread, -1: those near the device"},
}

// Keys describes the options that Set takes, a line each.
func Keys() []string {
	o := Defaults()
	var out []string
	for _, k := range keys {
		out = append(out, fmt.Sprintf("%-12s %5d  %s", k.name, *k.at(&o), k.help))
	}
	return append(out, fmt.Sprintf("%-12s %5v  %s", "margin", o.Margin.Seconds(), "seconds left out at both ends of a series with -D"))
}

// Set takes one "key=value" of those that are rarely changed.
func (o *Options) Set(assignment string) error {
	name, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return problem(Usage, nil, "%q: write key=value", assignment)
	}
	if name == "margin" {
		s, err := strconv.ParseFloat(value, 64)
		if err != nil || !(s >= 0 && s < 3600) {
			return problem(Usage, err, "margin=%s: write seconds, 0 to 3600", value)
		}
		o.Margin = time.Duration(s * float64(time.Second))
		return nil
	}
	var names []string
	for _, k := range keys {
		if names = append(names, k.name); k.name != name {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < k.min || n > k.max {
			return problem(Usage, err, "%s=%s: write a number from %d to %d", name, value, k.min, k.max)
		}
		*k.at(o) = n
		return nil
	}
	return problem(Usage, nil, "%s: no such key; there are %s, margin", name, strings.Join(names, ", "))
}

// Validate refuses what cannot be measured. The server asks it too, since options come from the peer.
func (o *Options) Validate() error {
	for _, k := range keys {
		if n := *k.at(o); n < k.min || n > k.max {
			return problem(Usage, nil, "%s=%d: must be from %d to %d", k.name, n, k.min, k.max)
		}
	}
	switch {
	case len(o.Tests) == 0 || len(o.Tests) > 64:
		return problem(Usage, nil, "%d tests: name 1 to 64", len(o.Tests))
	case len(o.Sizes) == 0 || len(o.Sizes) > 1000:
		return problem(Usage, nil, "%d sizes: name 1 to 1000", len(o.Sizes))
	case o.Duration == 0 && (o.Iterations < 2 || o.Iterations > maxIterations):
		return problem(Usage, nil, "-n %d: must be from 2 to %d", o.Iterations, maxIterations)
	case o.Duration != 0 && (o.Duration < 10*time.Millisecond || o.Duration > maxDuration):
		return problem(Usage, nil, "-D %v: must be from 10ms to %v", o.Duration, maxDuration)
	case o.Duration != 0 && 2*o.Margin >= o.Duration:
		return problem(Usage, nil, "-D %v leaves nothing between two margins of %v: take longer, or --set margin=SECONDS", o.Duration, o.Margin)
	case o.QPs < 1 || o.QPs > maxQPs:
		return problem(Usage, nil, "-q %d: must be from 1 to %d", o.QPs, maxQPs)
	case o.Depth < 1 || o.Depth > maxDepth:
		return problem(Usage, nil, "-t %d: must be from 1 to %d", o.Depth, maxDepth)
	case o.Signal > o.Depth:
		return problem(Usage, nil, "signal=%d: with -t %d the queue would fill before a completion comes; at most -t", o.Signal, o.Depth)
	case o.MTU != 0 && !slices.Contains([]int{256, 512, 1024, 2048, 4096}, o.MTU):
		return problem(Usage, nil, "-m %d: an MTU is 256, 512, 1024, 2048 or 4096", o.MTU)
	case o.ClientGID < anyGID || o.ServerGID < anyGID:
		return problem(Usage, nil, "-x %d:%d: a GID index is 0 or more", o.ClientGID, o.ServerGID)
	case o.Deadline < 100*time.Millisecond || o.Deadline > maxDuration:
		return problem(Usage, nil, "-T %v: must be from 0.1 s to %v", o.Deadline, maxDuration)
	}
	if _, _, err := parseMemory(o.Memory); err != nil {
		return err
	}
	for _, name := range o.Tests {
		if _, err := FindTest(name); err != nil {
			return err
		}
	}
	for _, b := range o.Sizes {
		if b < 1 || b > maxBytes {
			return problem(Usage, nil, "-s %d: must be from 1 to %d bytes", b, maxBytes)
		}
	}
	if n := o.buffer(); n > maxBuffer {
		return problem(Usage, nil, "-q %d with sizes up to %d bytes needs %d GiB on each side: fewer QPs or smaller sizes", o.QPs, slices.Max(o.Sizes), n>>30)
	}
	return nil
}

// parseMemory reads "host", "gpu:N" or "dmabuf:N".
func parseMemory(text string) (kind string, device int, err error) {
	kind, number, numbered := strings.Cut(text, ":")
	switch {
	case text == "host":
		return text, 0, nil
	case (kind == "gpu" || kind == "dmabuf") && numbered:
		if device, err = strconv.Atoi(number); err == nil && device >= 0 && device < 1024 {
			return kind, device, nil
		}
	}
	return "", 0, problem(Usage, nil, "--memory %q: write host, gpu:N or dmabuf:N with the number of a CUDA device", text)
}

// probeBytes is the smallest buffer: the first hand-over sends two packets of the largest MTU.
const probeBytes = 8192

// stride is the room of one buffer: whole pages, so that neighbours share none.
func (o *Options) stride() int {
	const page = 4096
	return (max(slices.Max(o.Sizes), probeBytes) + page - 1) / page * page
}

// buffer is the memory of one side: a source and a target for each QP.
func (o *Options) buffer() int { return 2 * o.QPs * o.stride() }

// The place of a QP's source and target within the memory.
func (o *Options) source(qp int) int { return 2 * qp * o.stride() }
func (o *Options) target(qp int) int { return (2*qp + 1) * o.stride() }
