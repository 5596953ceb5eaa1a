package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// process is one rank's process, or one that was named.
type process struct {
	pid     int
	inner   int // its number in its own container, which its NCCL knows
	parent  int
	rank    int // -1: unknown
	job     string
	command string // its arguments
	name    string // short, as the kernel has it
	env     map[string]string
}

func (p *process) String() string {
	if p.rank >= 0 {
		return fmt.Sprintf("rank %d, process %d", p.rank, p.pid)
	}
	return fmt.Sprintf("process %d", p.pid)
}

// file is a name for something of this process. Its end is the rank, if that is known: other numbers there would be taken for one.
func (p *process) file(kind, ext string) string {
	if p.rank >= 0 {
		return fmt.Sprintf("%s_pid%d_rank_%d%s", kind, p.pid, p.rank, ext)
	}
	return fmt.Sprintf("%s_pid%d_%s", kind, p.pid, ext)
}

// launchers say who a process is, innermost first: torchrun is often started by srun or mpirun. job has what tells one job from another.
var launchers = []struct {
	name string
	rank []string
	job  []string
}{
	{"commprobe", []string{"COMMPROBE_RANKS"}, []string{"COMMPROBE_STORE"}},
	{"torchrun", []string{"RANK"}, []string{"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}},
	{"Open MPI", []string{"OMPI_COMM_WORLD_RANK"}, []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}},
	{"PMI", []string{"PMI_RANK", "PMIX_RANK"}, []string{"PMI_JOBID", "PMIX_NAMESPACE", "PMI_PORT", "MPI_LOCALNRANKS"}},
	{"Slurm", []string{"SLURM_PROCID"}, []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}},
}

// place finds a process's rank and job in its environment.
func (p *process) place() {
	for _, l := range launchers {
		for _, name := range l.rank {
			first, _, _ := strings.Cut(p.env[name], ",")
			n, err := strconv.Atoi(first)
			if err != nil || n < 0 {
				continue
			}
			p.rank, p.job = n, l.name
			for _, v := range l.job {
				if p.env[v] != "" {
					p.job += " " + v + "=" + p.env[v]
				}
			}
			return
		}
	}
}

// shells wrap a rank's program and are not it.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "env", "numactl", "taskset", "time", "timeout", "nice", "tini", "dumb-init",
	"srun", "slurmstepd", "nsys", "ncu", "gdb", "strace", "tee"}

// find resolves the targets.
func find(ctx context.Context, t Targets, opt Options) ([]*process, error) {
	if len(t.PIDs) == 0 && !t.Job {
		return nil, errors.New("no process named: give process ids, or ask for the whole job")
	}
	if !t.Job {
		var out []*process
		for _, pid := range slices.Compact(slices.Sorted(slices.Values(t.PIDs))) {
			p, err := readProcess(ctx, opt, pid)
			if err != nil {
				return nil, fmt.Errorf("process %d: %w", pid, err)
			}
			out = append(out, p)
		}
		return out, nil
	}
	all, hidden := everyProcess(ctx, opt)
	job, err := chooseJob(all, t.PIDs, hidden)
	if err != nil {
		return nil, err
	}
	return ranksOf(all, job), nil
}

// everyProcess reads the environment of all processes that may be read; hidden counts the others.
func everyProcess(ctx context.Context, opt Options) (out map[int]*process, hidden int) {
	out = make(map[int]*process)
	entries, _ := os.ReadDir(filepath.Join(opt.Root, "proc"))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := readProcess(ctx, opt, pid)
		if err != nil {
			continue // it has ended
		}
		if p.env == nil {
			hidden++
		}
		out[pid] = p
	}
	return out, hidden
}

// chooseJob is the job of the named processes, or the only one.
func chooseJob(all map[int]*process, pids []int, hidden int) (string, error) {
	jobs := make(map[string][]int)
	for _, p := range all {
		if p.job != "" {
			jobs[p.job] = append(jobs[p.job], p.pid)
		}
	}
	for _, pid := range pids {
		p := all[pid]
		switch {
		case p == nil:
			return "", fmt.Errorf("process %d: there is none", pid)
		case p.job != "":
			return p.job, nil
		case p.env == nil:
			return "", fmt.Errorf("process %d: its environment cannot be read: run as its user or as root", pid)
		}
		for _, q := range all { // a launcher: the job of its children
			if q.parent == pid && q.job != "" {
				return q.job, nil
			}
		}
		return "", fmt.Errorf("process %d is no rank and has no ranks among its children: nothing in their environment says so "+
			"(RANK, OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID)", pid)
	}
	switch len(jobs) {
	case 0:
		why := ""
		if hidden > 0 {
			why = fmt.Sprintf("; the environments of %d processes could not be read: run as the job's user or as root", hidden)
		}
		return "", fmt.Errorf("no job found on this host: no process has RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID in its environment%s", why)
	case 1:
		for job := range jobs {
			return job, nil
		}
	}
	var list []string
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		list = append(list, fmt.Sprintf("process %d (%s)", slices.Min(jobs[job]), job))
	}
	return "", fmt.Errorf("%d jobs on this host: name a process of one: %s", len(jobs), strings.Join(list, ", "))
}

// ranksOf gives one process a rank. Children have their parents' environment: shells around the program, and what it starts itself (data loaders).
// The program is the topmost that is no shell.
func ranksOf(all map[int]*process, job string) []*process {
	byRank := make(map[int]*process)
	for _, p := range all {
		if p.job != job {
			continue
		}
		old := byRank[p.rank]
		if old == nil || better(all, p, old) {
			byRank[p.rank] = p
		}
	}
	return slices.SortedFunc(maps.Values(byRank), func(a, b *process) int { return cmp.Compare(a.rank, b.rank) })
}

func better(all map[int]*process, p, old *process) bool {
	if a, b := slices.Contains(shells, p.name), slices.Contains(shells, old.name); a != b {
		return b
	}
	if a, b := depth(all, p), depth(all, old); a != b {
		return a < b
	}
	return p.pid < old.pid
}

// depth counts the parents that belong to the same rank.
func depth(all map[int]*process, p *process) int {
	n := 0
	for q := all[p.parent]; q != nil && q.job == p.job && q.rank == p.rank && n < 64; q = all[q.parent] {
		n++
	}
	return n
}
