package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const maxCPUs = 1 << 16 // of a list or mask: more is not a machine but a damaged file

// parseCPUList reads "0-31,64-95" as the kernel and nvidia-smi write it.
func parseCPUList(s string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(strings.TrimSpace(first))
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(strings.TrimSpace(last))
		}
		if err != nil || a < 0 || b < a || b >= maxCPUs {
			return nil, fmt.Errorf("%q is not a list of CPUs such as 0-31,64-95", s)
		}
		for c := a; c <= b; c++ {
			cpus = append(cpus, c)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// formatCPUList writes sorted CPUs as ranges.
func formatCPUList(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(cpus[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", cpus[i], cpus[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// parseCPUMask reads "000000ff,ffff0000": groups of 32 bits, the last has the lowest CPUs.
func parseCPUMask(s string) ([]int, error) {
	groups := strings.Split(strings.TrimSpace(s), ",")
	if len(groups)*32 > maxCPUs {
		return nil, fmt.Errorf("mask of %d groups is longer than any machine's", len(groups))
	}
	var cpus []int
	for i := range groups {
		g := groups[len(groups)-1-i]
		v, err := strconv.ParseUint(g, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a mask of CPUs: groups of up to 8 hex digits with commas", s)
		}
		for bit := range 32 {
			if v&(1<<bit) != 0 {
				cpus = append(cpus, i*32+bit)
			}
		}
	}
	return cpus, nil
}

// formatCPUMask writes CPUs as /sys/devices/system/node/nodeN/cpumap does.
func formatCPUMask(cpus []int) string {
	words := 1
	if len(cpus) > 0 {
		words = slices.Max(cpus)/32 + 1
	}
	groups := make([]uint32, words)
	for _, c := range cpus {
		groups[words-1-c/32] |= 1 << (c % 32)
	}
	var b strings.Builder
	for i, g := range groups {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%08x", g)
	}
	return b.String()
}
