package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/rankset"
)

// Keys in the job's store. The coordinator writes plan, final and step/K; the worker of a communicator's rank 0 writes id/GROUP/INDEX; a worker that fails writes alarm/RANK.
const (
	keyPlan  = "plan"
	keyFinal = "final"
	keyStop  = "stop" // a worker was asked to stop
)

func keyID(group, index int) string { return fmt.Sprintf("id/%d/%d", group, index) }
func keyStep(k int) string          { return "step/" + strconv.Itoa(k) }
func keyAlarm(rank int) string      { return "alarm/" + strconv.Itoa(rank) }
func gatherRow(k int) string        { return "row/" + strconv.Itoa(k) }
func keyBarrier(h string) string    { return "barrier/" + h }

const (
	gatherDevice = "device"
	gatherReady  = "ready"
	gatherBye    = "bye"
)

// deviceReport is what a rank tells before communicators exist.
type deviceReport struct {
	Rank      result.Rank
	Host      result.Host
	HostKey   string // equal for ranks that can share memory
	Libraries []result.Library
	NCCL      int   // version code
	Compute   int   // 90 for 9.0, 0 for the host engine
	Free      int64 // bytes of device memory
	Drivers   int   // threads that time in this rank's process, on its first rank only
}

// finalMsg is the plan after the limits of all ranks are known.
type finalMsg struct {
	Plan    Plan
	Drivers map[string]int // host key to timing threads on that host
	First   map[string]int // host key to its lowest rank
	Job     string         // a name for files of this job
	// TakesRings: the coordinator is on this host, opens the files of the ranks' flight rings by their names, and removes these.
	TakesRings bool
}

// readyReport is what a rank tells when its communicators and buffers are there.
type readyReport struct {
	InitS float64
	Free  [3]int64 // see lane.free
}

// goodbye is the last that a rank tells.
type goodbye struct{ Free int64 } // bytes free on its device before anything was released; 0: not asked for

// stepMsg starts a step, or ends the run.
type stepMsg struct {
	Stop       bool
	Step       int // index into the plan's steps
	Iters      int
	EventIters int
}

// rankRow is what one rank measured in one step: out-of-place, in-place.
type rankRow struct{ Halves [2]rankHalf }

type rankHalf struct {
	Idle      bool    // the rank has no part in it
	TimeNS    float64 // an operation
	EnqueueNS float64 // to queue one of the first operations; 0: queueing waits for the operations
	QueuedNS  float64 // to queue one, over all
	EventUS   []float64
	CPU       int
	Switches  int64
	IssueRate float64
	Checked   bool
	Unchecked string // why the timed operations' result could not be checked
	Faults    []result.Fault
	Hashes    []uint64
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("message %T cannot be encoded: %v", v, err)) // plain data of our own types only
	}
	return b
}

func decode[T any](b []byte) (T, error) {
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("message from another process: %w", err)
	}
	return v, nil
}

// HostFacts reads what is worth recording of the machine whose file system begins at root ("" for this one).
func HostFacts(root string) result.Host {
	h := result.Host{CPUs: runtime.NumCPU(), Driver: cuda.KernelDriver(root)}
	if name, err := os.Hostname(); err == nil {
		h.Name = name
	}
	h.Kernel = firstLine(root + "/proc/sys/kernel/osrelease")
	if b, err := os.ReadFile(root + "/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(b), "\n") {
			key, value, _ := strings.Cut(line, ":")
			switch strings.TrimSpace(key) {
			case "model name":
				h.CPUModel = strings.TrimSpace(value)
			case "flags":
				h.Hypervisor = strings.Contains(" "+value+" ", " hypervisor ")
			}
			if key == "" && h.CPUModel != "" {
				break // the first processor stands for all
			}
		}
	}
	nodes, err := filepath.Glob(root + "/sys/devices/system/node/node[0-9]*")
	if err == nil {
		h.NUMANodes = len(nodes)
	}
	h.MemTotal = result.Bytes(meminfo(root, "MemTotal"))
	return h
}

// meminfo reads one line of /proc/meminfo in bytes, 0 when it is not there.
func meminfo(root, key string) int64 {
	b, err := os.ReadFile(root + "/proc/meminfo")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kb * 1024
		}
	}
	return 0
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// allowedCPUs is the list of processors that this process may run on, as the kernel prints it.
func allowedCPUs() string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// nearCPUs are the processors that this process may use and that are local to the PCI device, as sysfs below root says; all that it may use
// when there are none of that kind (a device that has no place, a process bound elsewhere).
func nearCPUs(root, pci string) []int32 {
	allowed := cpuList(allowedCPUs())
	local := cpuList(firstLine(root + "/sys/bus/pci/devices/" + pci + "/local_cpulist"))
	var near []int32
	for _, c := range allowed {
		if slices.Contains(local, c) {
			near = append(near, c)
		}
	}
	if len(near) == 0 {
		return allowed
	}
	return near
}

// cpuList reads a list such as "0-3,8", nil when it is none.
func cpuList(text string) []int32 {
	var out []int32
	for _, c := range rankset.Parse(text) {
		out = append(out, int32(c))
	}
	return out
}

// share is every parts-th of the processors from the index-th on; all of them when there are too few to share out.
func share(cpus []int32, index, parts int) []int32 {
	if len(cpus) < 2*parts {
		return cpus
	}
	var out []int32
	for i := index; i < len(cpus); i += parts {
		out = append(out, cpus[i])
	}
	return out
}

// hostKey is equal for processes that share a kernel and a host name, and so its shared memory.
func hostKey(host string) string { return host + "/" + firstLine("/proc/sys/kernel/random/boot_id") }

// ncclEnv is the part of the environment that steers NCCL. Nothing else of it is ever recorded.
func ncclEnv() map[string]string {
	out := make(map[string]string)
	for _, kv := range os.Environ() {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, "NCCL_") {
			out[k] = v
		}
	}
	return out
}
