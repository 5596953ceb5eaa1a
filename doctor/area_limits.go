package doctor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

var limitChecks = []check{
	{"limit-memlock", "locked memory", "registering memory for RDMA pins it; too little ends as ibv_reg_mr or ibv_create_cq: cannot allocate memory", "getrlimit RLIMIT_MEMLOCK; NCCL troubleshooting guide", limitMemlock},
	{"limit-nofile", "open files", "each peer costs sockets and files; too few end as: too many open files", "getrlimit RLIMIT_NOFILE", limitNofile},
	{"limit-nproc", "processes and threads", "NCCL, the framework and its data loaders start hundreds of threads a GPU", "getrlimit RLIMIT_NPROC", limitNproc},
	{"limit-shm", "/dev/shm", "ranks of a node talk through it; when it is full NCCL fails to start or a rank dies of a bus error", "NCCL troubleshooting guide, shared memory", limitShm},
	{"limit-memory", "control group: memory", "a job that outgrows it is killed, and the other ranks hang", "Linux cgroup memory.max, memory.limit_in_bytes", limitMemory},
	{"limit-cpu", "control group: processors", "a quota stops all threads of a job for the rest of each period; too few processors starve NCCL's proxy threads", "Linux cgroup cpu.max, cpuset", limitCPU},
	{"limit-pids", "control group: processes and threads", "threads cannot be started: resource temporarily unavailable", "Linux cgroup pids.max", limitPids},
}

const unlimited = ^uint64(0)

// limit reads a soft limit of this process from /proc/self/limits; nil: not told.
func (m *machine) limit(name string) *uint64 {
	for line := range strings.Lines(m.text("proc/self/limits")) {
		rest, ok := strings.CutPrefix(line, name)
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		if f[0] == "unlimited" {
			n := unlimited
			return &n
		}
		if n, err := strconv.ParseUint(f[0], 10, 64); err == nil {
			return &n
		}
	}
	return nil
}

// capable tells whether the process has a capability, from the effective set.
func (m *machine) capable(bit uint) bool {
	for line := range strings.Lines(m.text("proc/self/status")) {
		if set, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return err == nil && n>>bit&1 == 1
		}
	}
	return false
}

// ipcLock is the capability to lock memory beyond the limit (linux/capability.h).
const ipcLock = 14

// littleLocked is what no job with RDMA gets by with.
const littleLocked = 64 << 20

func limitMemlock(m *machine, v *verdict) {
	n := m.limit("Max locked memory")
	const fix = "ulimit -l unlimited; /etc/security/limits.d: * - memlock unlimited; systemd: LimitMEMLOCK=infinity; Slurm: PropagateResourceLimitsExcept=MEMLOCK; docker: --ulimit memlock=-1; Kubernetes: IPC_LOCK"
	switch {
	case n == nil:
		v.unknown("ulimit -l", "/proc/self/limits cannot be read")
	case *n == unlimited:
		v.ok("unlimited")
	case m.capable(ipcLock):
		v.ok("%s, which does not bind this process (CAP_IPC_LOCK); a job of another user has it", sizeText(*n))
	case len(m.ports()) == 0:
		v.ok("%s; there is no RDMA device that needs more", sizeText(*n))
	case *n < littleLocked:
		v.fault(fix, "%s, and there are RDMA devices", sizeText(*n))
	default:
		v.warn(fix, "%s; RDMA jobs pin as much as they transfer from", sizeText(*n))
	}
}

// enoughFiles serves a job of some hundred ranks.
const enoughFiles = 4096

func limitNofile(m *machine, v *verdict) {
	n := m.limit("Max open files")
	switch {
	case n == nil:
		v.unknown("ulimit -n", "/proc/self/limits cannot be read")
	case *n < enoughFiles && len(m.gpus())+m.gpuDevices() > 0:
		v.warn("ulimit -n 65536; /etc/security/limits.d: * - nofile 65536; systemd: LimitNOFILE=65536", "%d", *n)
	default:
		v.ok("%s", limitText(*n))
	}
}

func limitText(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func limitNproc(m *machine, v *verdict) {
	n := m.limit("Max processes")
	switch {
	case n == nil:
		v.unknown("ulimit -u", "/proc/self/limits cannot be read")
	case *n < enoughFiles && len(m.gpus())+m.gpuDevices() > 0:
		v.warn("ulimit -u unlimited; /etc/security/limits.d: * - nproc unlimited", "%d", *n)
	default:
		v.ok("%s", limitText(*n))
	}
}

// NCCL takes some 10 to 40 MiB of /dev/shm for each pair of ranks of a node that talk through it, and data loaders take more.
const (
	dockerShm   = 64 << 20 // what Docker gives unless asked
	littleShm   = 1 << 30
	fullPercent = 90
)

func limitShm(m *machine, v *verdict) {
	const fix = "docker: --ipc=host or --shm-size=16g; Kubernetes: an emptyDir of medium Memory at /dev/shm; host: mount -o remount,size=50% /dev/shm"
	space, why := m.shm()
	many := len(m.gpus())+m.gpuDevices() > 0
	switch {
	case space == nil && why == "":
		v.fault("mount -t tmpfs tmpfs /dev/shm; a container needs it, too", "it is not mounted")
	case space == nil:
		v.unknown("df -h /dev/shm", "%s", why)
	case space.TotalBytes <= dockerShm && many:
		v.fault(fix, "%s: what Docker gives unless asked", sizeText(space.TotalBytes))
	case space.TotalBytes < littleShm:
		v.warn(fix, "%s", sizeText(space.TotalBytes))
	case space.UsedBytes/100 > space.TotalBytes/10000*fullPercent:
		v.warn("ls -la /dev/shm; files of jobs that died stay: remove nccl-* and torch_* of nobody", "%s of %s are in use", sizeText(space.UsedBytes), sizeText(space.TotalBytes))
	default:
		v.ok("%s", sizeText(space.TotalBytes))
	}
}

func limitMemory(m *machine, v *verdict) {
	total := m.memTotal("proc/meminfo")
	n, from := m.group("memory", "memory.max", "memory.limit_in_bytes")
	gpuMemory := uint64(0)
	for _, g := range m.gpus() {
		if g.Memory != nil {
			gpuMemory += g.Memory.TotalBytes
		}
	}
	switch {
	case from == "":
		v.unknown("", "the control group of this process cannot be seen here")
	case n == unlimited || total > 0 && n >= total:
		v.ok("no limit")
	case gpuMemory > 0 && n < gpuMemory/4:
		v.warn("ask for more memory: docker --memory, resources.limits.memory in Kubernetes, --mem in Slurm", "%s (%s), and the GPUs have %s: checkpoints and loaders will not fit", sizeText(n), from, sizeText(gpuMemory))
	default:
		v.ok("%s (%s)", sizeText(n), from)
	}
}

// processorsPerGPU are what a rank needs at least: its own thread, NCCL's proxies, and something for the rest.
const processorsPerGPU = 4

func limitCPU(m *machine, v *verdict) {
	gpus := len(m.gpus())
	quota, from := m.quota()
	if quota > 0 {
		text := fmt.Sprintf("a quota of %.3g processors (%s)", quota, from)
		if gpus > 0 {
			v.warn("give whole processors (cpuset, static CPU manager) instead of a quota, or none", "%s: all threads of a rank stop when it is used up", text)
		} else {
			v.ok("%s", text)
		}
	}
	mine := map[int]bool{}
	for line := range strings.Lines(m.text("proc/self/status")) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			mine = members(list)
		}
	}
	allowed := len(mine)
	for _, node := range m.farNodes(mine) {
		v.warn("start from a shell that is not bound, or let the launcher bind each rank near its GPU", "GPUs are on %s, and no processor of it may be used", node)
	}
	switch {
	case allowed == 0 && quota == 0:
		v.unknown("taskset -p $$", "/proc/self/status cannot be read")
	case gpus > 0 && allowed > 0 && allowed < gpus*processorsPerGPU:
		v.warn("start from a shell that is not bound, or ask for more processors: --cpus-per-task in Slurm, resources.limits.cpu in Kubernetes", "%d processors may be used, for %d GPUs", allowed, gpus)
	case allowed > 0:
		v.ok("%d processors may be used", allowed)
	}
}

// farNodes are NUMA nodes with GPUs of which no processor may be used.
func (m *machine) farNodes(mine map[int]bool) []string {
	var out []string
	for _, d := range m.topology().GPUs {
		cpu := m.topology().CPU(d.NUMA)
		if cpu == nil || len(mine) == 0 || len(m.gpus()) == 0 {
			continue
		}
		node, theirs := fmt.Sprint("node", cpu.NUMA), members(cpu.CPUs)
		near := len(theirs) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(theirs)), func(c int) bool { return mine[c] })
		if !near && !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	return out
}

// quota is what cpu.max or cpu.cfs_quota_us allows, in processors; 0: no quota, or not known.
func (m *machine) quota() (float64, string) {
	for _, dir := range m.groupDirs("cpu") {
		var used, period int64
		if n, _ := fmt.Sscanf(m.text(dir+"/cpu.max"), "%d %d", &used, &period); n == 2 && period > 0 {
			return float64(used) / float64(period), "/" + dir + "/cpu.max"
		}
		q, p := m.number(dir+"/cpu.cfs_quota_us"), m.number(dir+"/cpu.cfs_period_us")
		if q != nil && p != nil && *q > 0 && *p > 0 {
			return float64(*q) / float64(*p), "/" + dir + "/cpu.cfs_quota_us"
		}
	}
	return 0, ""
}

// fewThreads is less than eight ranks start.
const fewThreads = 4096

func limitPids(m *machine, v *verdict) {
	n, from := m.group("pids", "pids.max", "pids.max")
	switch {
	case from == "":
		v.unknown("", "the control group of this process cannot be seen here")
	case n == unlimited:
		v.ok("no limit")
	case n < fewThreads && len(m.gpus()) > 0:
		v.warn("docker --pids-limit -1; Kubernetes: podPidsLimit of the kubelet; systemd: TasksMax=infinity", "%d (%s)", n, from)
	default:
		v.ok("%d (%s)", n, from)
	}
}

// groupDirs are this process's control group of a controller and those above it, innermost first; version 2 has one tree, version 1 one a controller.
func (m *machine) groupDirs(controller string) []string {
	root, at := "sys/fs/cgroup", ""
	for line := range strings.Lines(m.text("proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if name == controller {
				root, at = "sys/fs/cgroup/"+controller, f[2]
			}
		}
		if f[0] == "0" && f[1] == "" && at == "" {
			at = f[2]
		}
	}
	if at == "" {
		return nil
	}
	var out []string
	for p := path.Clean("/" + at); ; p = path.Dir(p) {
		out = append(out, strings.TrimSuffix(root+p, "/"))
		if p == "/" {
			return out
		}
	}
}

// group is the tightest value of a limit in this process's control groups; from is "" when none of them can be seen.
func (m *machine) group(controller, v2, v1 string) (n uint64, from string) {
	n = unlimited
	for _, dir := range m.groupDirs(controller) {
		for _, name := range []string{v2, v1} {
			text := m.text(dir + "/" + name)
			if text == "" {
				continue
			}
			if from == "" {
				from = "/" + dir + "/" + name
			}
			x, err := strconv.ParseUint(text, 10, 64)
			if err == nil && x < n && x < 1<<62 { // version 1 says unlimited with a number near 2^63
				n, from = x, "/"+dir+"/"+name
			}
		}
	}
	if from == "" && m.exists("sys/fs/cgroup/cgroup.controllers") {
		from = "/sys/fs/cgroup" // the root group has no limits and no such files
	}
	return n, from
}
