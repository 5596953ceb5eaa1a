package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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
		p.local = parseCPUs(strings.TrimSpace(string(b)))
	}
	return p
}

// parseCPUs reads "0-3,8"; nil where it is malformed.
func parseCPUs(text string) (out []int) {
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || a < 0 || b < a || b > 1<<16 {
			return nil
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	return out
}

// foldCPUs is the inverse of parseCPUs.
func foldCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
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
		return nil, fmt.Sprintf("CPU not bound: none of NUMA node %d (%s), where the device is, may be used by this process", p.node, foldCPUs(p.local))
	}
	return cpus, fmt.Sprintf("CPU %s (NUMA node %d, the device's)", foldCPUs(cpus), p.node)
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
		return fmt.Errorf("the measuring thread could not be bound to CPU %s: %w", foldCPUs(cpus), err)
	}
	return nil
}
