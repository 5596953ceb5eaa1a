package doctor

import (
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/nvml"
)

// shm is the size of /dev/shm: as the file system says, or by its mount options. Without a reason it is not mounted.
func (m *machine) shm() (*nvml.Space, string) {
	if m.Shm != nil {
		return m.Shm, ""
	}
	mounts, err := m.read("proc/self/mounts")
	if err != nil {
		return nil, "/proc/self/mounts: " + why(err)
	}
	options, found := "", false
	for line := range strings.Lines(mounts) {
		if f := strings.Fields(line); len(f) >= 4 && f[1] == "/dev/shm" {
			options, found = f[3], true
		}
	}
	if !found {
		return nil, ""
	}
	total := m.memTotal("proc/meminfo")
	size := total / 2 // the default of a tmpfs
	for o := range strings.SplitSeq(options, ",") {
		if s, ok := strings.CutPrefix(o, "size="); ok {
			size = mountSize(s, total)
		}
	}
	if size == 0 {
		return nil, "mounted, but neither its size nor the machine's memory can be read"
	}
	return &nvml.Space{TotalBytes: size}, ""
}

// mountSize reads 65536k, 16g, 50% or plain bytes; 0: not understood.
func mountSize(s string, total uint64) uint64 {
	unit := uint64(1)
	if p, ok := strings.CutSuffix(s, "%"); ok {
		s, unit = p, total/100
	}
	if i := strings.IndexAny(s, "kKmMgG"); i >= 0 && i == len(s)-1 {
		unit = 1 << map[byte]uint{'k': 10, 'm': 20, 'g': 30}[s[i]|0x20]
		s = s[:i]
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || unit != 0 && n > unlimited/max(unit, 1) {
		return 0
	}
	return n * unit
}
