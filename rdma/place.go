package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/commprobe/commprobe/internal/rankset"
)

// place is where a device sits.
type place struct {
	pci   string
	node  int   // NUMA node, −1 unknown
	local []int // processors near it, nil unknown
}

// placeOf reads it below root, /sys but for tests. A device without hardware (soft-RoCE) has no place.
func placeOf(root, device string) place {
	p := place{node: -1}
	dir := filepath.Join(root, "class/infiniband", device, "device")
	if target, err := filepath.EvalSymlinks(dir); err == nil && strings.Count(filepath.Base(target), ":") == 2 {
		p.pci = filepath.Base(target)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "numa_node")); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			p.node = n
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "local_cpulist")); err == nil {
		p.local = rankset.Parse(strings.TrimSpace(string(b)))
	}
	return p
}

// chooseCPUs says where the measuring thread shall run, and why: the processor that was named, or those near the device that the process may use. nil
// leaves it where it is.
func chooseCPUs(p place, allowed []int, named int) (cpus []int, why string) {
	if named >= 0 {
		return []int{named}, fmt.Sprintf("CPU %d as asked", named)
	}
	if p.node < 0 || p.local == nil {
		return nil, "CPU not bound: the device has no NUMA node"
	}
	for _, n := range p.local {
		if slices.Contains(allowed, n) {
			cpus = append(cpus, n)
		}
	}
	if cpus == nil {
		return nil, fmt.Sprintf("CPU not bound: none of NUMA node %d (%s), where the device is, may be used by this process", p.node, rankset.Fold(p.local, ","))
	}
	return cpus, fmt.Sprintf("CPU %s (NUMA node %d, the device's)", rankset.Fold(cpus, ","), p.node)
}

// allowedCPUs are those that the process may use.
func allowedCPUs() (out []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for n := range 8 * len(set) * 8 {
		if set.IsSet(n) {
			out = append(out, n)
		}
	}
	return out
}

// bind restricts the calling thread, which must be locked.
func bind(cpus []int) error {
	if cpus == nil {
		return nil
	}
	var set unix.CPUSet
	for _, n := range cpus {
		set.Set(n)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("the measuring thread could not be bound to CPU %s: %w", rankset.Fold(cpus, ","), err)
	}
	return nil
}
