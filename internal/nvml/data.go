// Package nvml reads what NVIDIA's management library knows of a node's GPUs into plain data: no handle, no C type and no open library leaves it. A value that
// cannot be had is nil, and Missing says why. The library is found at run time; where there is none, Read answers a typed error.
package nvml

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Errors of Read, for errors.Is.
var (
	ErrNoLibrary = errors.New("no NVML library")         // it cannot be opened, or is something else
	ErrNoDriver  = errors.New("no NVIDIA driver loaded") // the library is there, the kernel module is not
	ErrMismatch  = errors.New("driver and library differ in version")
	ErrNoGPU     = errors.New("NVML sees no GPU")
	ErrNoAnswer  = errors.New("NVML does not answer")
)

// Options of Read.
type Options struct {
	Library string // file to open; "" is libnvidia-ml.so.1 as the loader finds it. A process keeps the first one that it opened.
}

// Node is what NVML says about one machine. Missing has, under the JSON name of each value that is nil, the reason.
type Node struct {
	Library    string            `json:"library,omitempty"`
	NVML       *string           `json:"nvml_version,omitempty"`
	Driver     *string           `json:"driver_version,omitempty"`
	CUDADriver *string           `json:"cuda_driver_version,omitempty"` // as 12.8: the newest CUDA that the driver serves
	GPUs       []GPU             `json:"gpus"`
	Pairs      []Pair            `json:"pairs,omitempty"` // i < j
	Missing    map[string]string `json:"missing,omitempty"`
}

// GPU is one device in NVML's order, which is that of the PCI bus.
type GPU struct {
	Index       int               `json:"index"`
	Name        *string           `json:"name,omitempty"`
	UUID        *string           `json:"uuid,omitempty"`
	PCI         *string           `json:"pci,omitempty"` // as sysfs writes it: 0000:0f:00.0
	Minor       *int              `json:"minor,omitempty"`
	SM          *string           `json:"sm,omitempty"` // compute capability, as 9.0
	Memory      *Space            `json:"memory,omitempty"`
	BAR1        *Space            `json:"bar1,omitempty"`
	PCIe        PCIe              `json:"pcie"`
	ECC         ECC               `json:"ecc"`
	Retired     Retired           `json:"retired_pages"`
	Rows        *Rows             `json:"remapped_rows,omitempty"`
	Clocks      *uint64           `json:"clock_event_mask,omitempty"` // what holds the clocks down; see ClockReasons
	Temperature *int              `json:"temperature_c,omitempty"`
	Power       *int              `json:"power_mw,omitempty"`
	PowerLimit  *int              `json:"power_limit_mw,omitempty"`
	Persistence *bool             `json:"persistence,omitempty"`
	ComputeMode *string           `json:"compute_mode,omitempty"` // default, exclusive-thread, prohibited, exclusive-process
	MIG         *bool             `json:"mig,omitempty"`
	Links       []Link            `json:"nvlinks,omitempty"` // those that the GPU has
	Fabric      *Fabric           `json:"fabric,omitempty"`
	Recovery    *string           `json:"recovery_action,omitempty"` // what the driver asks for: none, GPU reset, node reboot, …
	CPUs        *string           `json:"cpu_affinity,omitempty"`    // as 0-15,32-47
	Processes   []Process         `json:"processes,omitempty"`       // of compute; in a container usually none of other containers
	Missing     map[string]string `json:"missing,omitempty"`
}

// Space is a memory's size and use.
type Space struct {
	TotalBytes uint64 `json:"total_bytes"`
	UsedBytes  uint64 `json:"used_bytes"`
}

// PCIe is the GPU's own link. An idle GPU lowers its generation; Max is what GPU and slot can do together, DeviceMax the GPU alone.
type PCIe struct {
	Gen          *int `json:"generation,omitempty"`
	Width        *int `json:"width,omitempty"`
	MaxGen       *int `json:"max_generation,omitempty"`
	MaxWidth     *int `json:"max_width,omitempty"`
	DeviceMaxGen *int `json:"device_max_generation,omitempty"`
	Replays      *int `json:"replays,omitempty"` // since the driver was loaded
}

// ECC is whether memory is corrected, and how often it was: volatile since the driver was loaded, aggregate in the GPU's life.
type ECC struct {
	On                   *bool   `json:"on,omitempty"`
	Pending              *bool   `json:"pending,omitempty"` // what it will be after the next reset
	VolatileCorrected    *uint64 `json:"volatile_corrected,omitempty"`
	VolatileUncorrected  *uint64 `json:"volatile_uncorrected,omitempty"`
	AggregateCorrected   *uint64 `json:"aggregate_corrected,omitempty"`
	AggregateUncorrected *uint64 `json:"aggregate_uncorrected,omitempty"`
}

// Retired counts memory pages taken out of use (before Ampere).
type Retired struct {
	SingleBit *int  `json:"single_bit,omitempty"`
	DoubleBit *int  `json:"double_bit,omitempty"`
	Pending   *bool `json:"pending,omitempty"` // until the next reset
}

// Rows counts memory rows replaced by spare ones (from Ampere on).
type Rows struct {
	Corrected   int  `json:"corrected"`
	Uncorrected int  `json:"uncorrected"`
	Pending     bool `json:"pending"`
	Failure     bool `json:"failure"`
}

// Link is one NVLink.
type Link struct {
	Link       int               `json:"link"`
	Active     *bool             `json:"active,omitempty"`
	Version    *string           `json:"version,omitempty"`     // as 4.0
	RemotePCI  *string           `json:"remote_pci,omitempty"`  // nil where the other end is hidden, as in virtual machines
	RemoteType *string           `json:"remote_type,omitempty"` // gpu, switch, cpu, unknown
	Replays    *uint64           `json:"replays,omitempty"`
	Recoveries *uint64           `json:"recoveries,omitempty"`
	CRCFlit    *uint64           `json:"crc_flit,omitempty"`
	CRCData    *uint64           `json:"crc_data,omitempty"`
	Missing    map[string]string `json:"missing,omitempty"`
}

// Fabric is the GPU's registration with the NVLink fabric, which the fabric manager (or, across nodes, the switches' manager) completes.
type Fabric struct {
	State   string  `json:"state"`        // not supported, not started, in progress, completed
	Status  uint32  `json:"status"`       // an NVML code, of a completed registration; 0 is success
	Cluster string  `json:"cluster_uuid"` // zeros on a node that is no part of a larger NVLink domain
	Clique  uint32  `json:"clique"`
	Health  *uint32 `json:"health_mask,omitempty"` // see FabricTroubles
}

// Process has memory on the GPU.
type Process struct {
	PID       uint32  `json:"pid"`
	UsedBytes *uint64 `json:"used_bytes,omitempty"`
}

// Pair is what two GPUs are to each other.
type Pair struct {
	A        int               `json:"a"`
	B        int               `json:"b"`
	Ancestor *string           `json:"common_ancestor,omitempty"` // of the PCI trees, in nvidia-smi's words: internal, PIX, PXB, PHB, NODE, SYS
	P2P      map[string]string `json:"p2p,omitempty"`             // read, write, nvlink, atomics, pci: OK, CNS, GNS, TNS, DR, NS or U as nvidia-smi topo -p2p writes
	Missing  map[string]string `json:"missing,omitempty"`
}

// clockReasons are bits of nvmlClocksEventReasons (nvml.h).
var clockReasons = []struct {
	bit  uint64
	name string
}{
	{0x1, "idle"}, {0x2, "application clocks"}, {0x4, "software power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"},
	{0x20, "software thermal slowdown"}, {0x40, "hardware thermal slowdown"}, {0x80, "power brake"}, {0x100, "display clocks"},
	{0x200, "board limit"}, {0x400, "reliability policy"},
}

// linkVersions are those of nvmlNvLinkVersion_t (nvml.h).
var linkVersions = []string{1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

func linkVersion(code uint32) string {
	if int(code) < len(linkVersions) && linkVersions[code] != "" {
		return linkVersions[code]
	}
	return fmt.Sprint("code ", code)
}

// ClockReasons names the bits of a clock event mask.
func ClockReasons(mask uint64) []string {
	var out []string
	for _, r := range clockReasons {
		if mask&r.bit != 0 {
			out = append(out, r.name)
			mask &^= r.bit
		}
	}
	if mask != 0 {
		out = append(out, fmt.Sprintf("unknown (%#x)", mask))
	}
	return out
}

// configTroubles are the values of the four bits from 8 on of a fabric's health mask (nvml.h, INCORRECT_CONFIGURATION).
var configTroubles = []string{2: "wrong system GUID", 3: "wrong chassis serial number", 4: "no partition", 5: "too few NVLinks", 6: "incompatible GPU firmware", 7: "invalid location", 8: "invalid GPU state"}

// FabricTroubles says what a fabric's health mask complains about.
func FabricTroubles(mask uint32) []string {
	var out []string
	for i, name := range []string{"bandwidth is degraded", "a route is being recovered", "a route is unhealthy", "recovering from an access time-out"} {
		if mask>>(2*i)&3 == 1 {
			out = append(out, name)
		}
	}
	if c := int(mask >> 8 & 0xf); c < len(configTroubles) && configTroubles[c] != "" {
		out = append(out, "configuration: "+configTroubles[c])
	}
	return out
}

// NormalPCI turns NVML's bus id (00000000:0F:00.0) into that of sysfs (0000:0f:00.0); a domain that needs more than four digits keeps them. "" is no bus id.
func NormalPCI(id string) string {
	id = strings.ToLower(strings.TrimSpace(id))
	parts := strings.FieldsFunc(id, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) == 3 {
		parts = slices.Insert(parts, 0, "0")
	}
	if len(parts) != 4 {
		return ""
	}
	var n [4]uint64
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, []int{32, 8, 8, 8}[i])
		if err != nil {
			return ""
		}
		n[i] = v
	}
	if n[2] > 0x1f || n[3] > 7 { // the sentinel ffffffff:ffff:ff.f of a hidden device among them
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])
}

// cpuList writes a CPU mask as ranges.
func cpuList(words []uint) string {
	var out []string
	start := -1
	on := func(i int) bool { return i < len(words)*64 && words[i/64]>>(i%64)&1 == 1 }
	for i := 0; i <= len(words)*64; i++ {
		switch {
		case on(i) && start < 0:
			start = i
		case !on(i) && start == i-1 && start >= 0:
			out = append(out, strconv.Itoa(start))
			start = -1
		case !on(i) && start >= 0:
			out = append(out, fmt.Sprintf("%d-%d", start, i-1))
			start = -1
		}
	}
	return strings.Join(out, ",")
}

// codeNames are NVML's return codes (nvml.h). The library's own nvmlErrorString is not asked: its texts are longer and change with the driver.
var codeNames = map[int]string{
	1: "not initialised", 2: "invalid argument", 3: "not supported", 4: "no permission", 5: "already initialised", 6: "not found", 7: "size too small", 8: "power cable missing", 9: "driver not loaded",
	10: "time-out", 11: "interrupt trouble", 12: "library not found", 13: "function not in the driver", 14: "InfoROM is damaged", 15: "the GPU has fallen off the bus", 16: "the GPU needs a reset",
	17: "blocked by the operating system or cgroup", 18: "driver and library differ in version", 19: "in use", 20: "out of memory", 21: "no data", 22: "ECC is not offered to this virtual GPU",
	23: "out of resources", 24: "this frequency is not supported", 25: "version of an argument is not known", 26: "deprecated", 27: "not ready", 28: "GPU not found", 29: "invalid state", 30: "this kind of reset is not supported", 999: "unknown error",
}

func codeText(code int) string {
	if s := codeNames[code]; s != "" {
		return s
	}
	return fmt.Sprintf("NVML code %d", code)
}
