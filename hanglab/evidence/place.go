package evidence

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Launchers and NCCL often know a process by its number on its host only. That is the rank in the job where the job has one host, and an innocent's
// elsewhere, so it becomes a rank only where the rest of the evidence leaves one answer.

// localPlace is where a number on a host was said.
type localPlace struct{ host, file string }

// placement is what the evidence says of which ranks are on which hosts.
type placement struct {
	bases map[localPlace]map[int]bool // rank of a host's first process, as pairs of both numbers say
	seen  map[localPlace][]int        // ranks that are spoken of there
	all   []int
	hosts map[string]bool
	twice map[localPlace]bool // one number on a host stands for several processes
}

// newPlacement gathers pairs and ranks.
func newPlacement(e *Evidence) *placement {
	p := &placement{bases: map[localPlace]map[int]bool{}, seen: map[localPlace][]int{}, hosts: map[string]bool{}, twice: map[localPlace]bool{}}
	pids := map[localPlace]map[int]int{}
	for i := range e.Facts {
		f := &e.Facts[i]
		p.note(shortHost(f.Host), f.Where.File, f.Rank, f.LocalRank)
		if f.LocalRank >= 0 && f.Rank < 0 && f.PID > 0 {
			at := localPlace{file: f.Where.File}
			if pids[at] == nil {
				pids[at] = map[int]int{}
			}
			if old, ok := pids[at][f.LocalRank]; ok && old != f.PID {
				p.twice[at] = true
			}
			pids[at][f.LocalRank] = f.PID
		}
	}
	for _, x := range e.Comms {
		p.note(shortHost(x.Host), x.Where.File, x.Global, x.LocalRank)
	}
	for i := range e.Dumps {
		p.note("", e.Dumps[i].Where.File, e.Dumps[i].Rank, -1)
	}
	for at, list := range p.seen {
		slices.Sort(list)
		p.seen[at] = slices.Compact(list)
	}
	slices.Sort(p.all)
	p.all = slices.Compact(p.all)
	return p
}

func (p *placement) note(host, file string, rank, local int) {
	if host != "" {
		p.hosts[host] = true
	}
	if rank < 0 {
		return
	}
	p.all = append(p.all, rank)
	for _, at := range []localPlace{{host: host}, {file: file}} {
		if at == (localPlace{}) {
			continue
		}
		p.seen[at] = append(p.seen[at], rank)
		if local < 0 || local > rank {
			continue
		}
		if p.bases[at] == nil {
			p.bases[at] = map[int]bool{}
		}
		p.bases[at][rank-local] = true
	}
}

// rank is the rank of a process that is known by its number on a host, -1 where there are several answers.
func (p *placement) rank(host, file string, local int) int {
	if local < 0 {
		return -1
	}
	places := []localPlace{{host: shortHost(host)}, {file: file}}
	if places[0].host != "" && len(p.hosts) > 1 { // what is said of other hosts does not help
		if len(p.bases[places[0]]) == 0 && len(p.seen[places[0]]) == 0 {
			return -1
		}
		places[1] = localPlace{}
	}
	for _, at := range places {
		if at == (localPlace{}) || len(p.bases[at]) == 0 {
			continue
		}
		if len(p.bases[at]) > 1 {
			return -1
		}
		for base := range p.bases[at] {
			return base + local
		}
	}
	if p.twice[places[1]] {
		return -1
	}
	for _, at := range places {
		if list := p.seen[at]; at != (localPlace{}) && len(list) > 0 {
			return fitLocal(local, list[0], list[len(list)-1])
		}
	}
	if len(p.all) > 0 {
		return fitLocal(local, p.all[0], p.all[len(p.all)-1])
	}
	if len(p.hosts) > 1 {
		return -1
	}
	return local
}

// fitLocal finds the rank of a host's process where ranks lo to hi are all on that host, with as many processes as hosts have. -1: no answer, or several.
func fitLocal(local, lo, hi int) int {
	rank := -1
	for _, size := range []int{4, 8, 16} {
		base := lo / size * size
		if local >= size || hi >= base+size || size == 16 && local < 8 {
			continue
		}
		if rank >= 0 && rank != base+local {
			return -1
		}
		rank = base + local
	}
	return rank
}

// placeLocals gives ranks to facts about processes that are known by their number on a host.
func placeLocals(e *Evidence) {
	var p *placement
	for i := range e.Facts {
		f := &e.Facts[i]
		closed := -1
		if text, ok := strings.CutPrefix(f.Detail, "localRank "); ok && f.Kind == PeerClosed && len(f.Ranks) == 0 {
			if n, err := strconv.Atoi(text); err == nil {
				closed = n
			}
		}
		if closed < 0 && (f.LocalRank < 0 || f.Rank >= 0) {
			continue
		}
		if p == nil {
			p = newPlacement(e)
		}
		if closed >= 0 {
			if rank := p.rank(f.Host, f.Where.File, closed); rank >= 0 {
				f.Ranks = []int{rank}
			}
			continue
		}
		f.Rank = p.rank(f.Host, f.Where.File, f.LocalRank)
	}
}

// placeStacks does the same for stacks of processes that were started with their number on their host.
func placeStacks(e *Evidence) {
	var p *placement
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if s.RankBy != "local" {
			continue
		}
		if p == nil {
			p = newPlacement(e)
		}
		if s.Rank = p.rank(s.Host, s.Where.File, s.Rank); s.Rank < 0 {
			s.RankBy = ""
		}
	}
}

// dropProcessIDs takes the rank from inputs whose number is that of a process: tools name files by process ids, which no job has as many ranks as.
func dropProcessIDs(e *Evidence) {
	pids := map[string]map[int]bool{}
	learn := func(file string, pid int) {
		if pid <= 0 {
			return
		}
		if pids[file] == nil {
			pids[file] = map[int]bool{}
		}
		pids[file][pid] = true
	}
	for i := range e.Stacks {
		learn(e.Stacks[i].Where.File, e.Stacks[i].PID)
	}
	for _, x := range e.Comms {
		learn(x.Where.File, x.PID)
	}
	for i := range e.Facts {
		learn(e.Facts[i].Where.File, e.Facts[i].PID)
	}
	least, named := -1, 0
	for i := range e.Inputs {
		if in := &e.Inputs[i]; in.Rank >= 0 && !saysRank(in.Name) {
			named++
			if least < 0 || in.Rank < least {
				least = in.Rank
			}
		}
	}
	sparse := least >= 1000 && named*8 < least
	wrong := map[string]int{}
	for i := range e.Inputs {
		in := &e.Inputs[i]
		if in.Rank < 0 || strings.HasPrefix(in.Kind, "flight") {
			continue
		}
		from := 100 // a container's first processes have small numbers, as ranks have
		if saysRank(in.Name) {
			from = 1000
		}
		if in.Rank >= from && pids[in.Name][in.Rank] || sparse && !saysRank(in.Name) {
			wrong[in.Name] = in.Rank
			in.Notes = append(in.Notes, "the number in its name is that of a process, not a rank")
			in.Rank = -1
		}
	}
	if len(wrong) > 0 {
		forgetRanks(e, wrong)
	}
}

func saysRank(name string) bool { return strings.Contains(strings.ToLower(memberBase(name)), "rank") }

// forgetRanks takes a rank from all that has it from its file.
func forgetRanks(e *Evidence, wrong map[string]int) {
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if rank, ok := wrong[s.Where.File]; ok && s.Rank == rank && s.RankBy == "input" {
			s.Rank, s.RankBy = -1, ""
		}
	}
	for i := range e.Facts {
		if rank, ok := wrong[e.Facts[i].Where.File]; ok && e.Facts[i].Rank == rank {
			e.Facts[i].Rank = -1
		}
	}
	for _, x := range e.Comms {
		if rank, ok := wrong[x.Where.File]; ok && x.Global == rank {
			x.Global = -1
		}
	}
}

// agentTasks: where a launcher's task is torchrun's agent, which starts a host's ranks, the task's number is that of a host, and its end follows from a rank's.
func agentTasks(e *Evidence) {
	if !slices.ContainsFunc(e.Facts, func(f Fact) bool {
		return f.Detail == "agent" || f.Detail == "torchrun" || f.Detail == "deepspeed"
	}) {
		return
	}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.Rank < 0 || f.Kind != Ended && f.Kind != OOMKill || f.Detail != "slurm" && f.Detail != "mpirun" {
			continue
		}
		f.Detail += ", task " + strconv.Itoa(f.Rank) + " is an agent"
		f.Rank = -1
		f.Consequence = f.Consequence || f.Kind == Ended && f.Signal != 9
	}
}

// attemptRanks: torchrun has a folder for each rank on a host. Where those of several hosts were put together, their numbers are no ranks.
func attemptRanks(e *Evidence) {
	roots := map[string]bool{}
	for i := range e.Inputs {
		if root, _, ok := attemptFolder(e.Inputs[i].Name); ok {
			roots[root] = true
		}
	}
	if len(roots) < 2 {
		return
	}
	said := map[string]int{} // what lines of a file name themselves
	for i := range e.Facts {
		f := &e.Facts[i]
		if _, local, ok := attemptFolder(f.Where.File); ok && f.Rank >= 0 && f.Rank != local {
			if old, ok := said[f.Where.File]; ok && old != f.Rank {
				said[f.Where.File] = -1
				continue
			}
			said[f.Where.File] = f.Rank
		}
	}
	bases := map[string]map[int]bool{} // by launcher's run
	for file, rank := range said {
		if root, local, _ := attemptFolder(file); rank >= local {
			if bases[root] == nil {
				bases[root] = map[int]bool{}
			}
			bases[root][rank-local] = true
		}
	}
	place := func(name string) int {
		root, local, _ := attemptFolder(name)
		if len(bases[root]) == 1 {
			for base := range bases[root] {
				return base + local
			}
		}
		return -1
	}
	for i := range e.Facts {
		f := &e.Facts[i]
		if _, local, ok := attemptFolder(f.Where.File); ok && f.Rank == local {
			f.Rank = place(f.Where.File)
		}
	}
	for i := range e.Inputs {
		if _, _, ok := attemptFolder(e.Inputs[i].Name); ok {
			e.Inputs[i].Rank = place(e.Inputs[i].Name)
		}
	}
}

// attemptFolder takes "node-a/none_x/attempt_0/3/stderr.log" apart: the folder of the launcher's run, without the number of the attempt, and the rank on the host.
func attemptFolder(name string) (root string, local int, ok bool) {
	dir := path.Dir(strings.ReplaceAll(name, "\\", "/"))
	attempt := path.Dir(dir)
	if !strings.HasPrefix(path.Base(attempt), "attempt_") {
		return "", -1, false
	}
	local, ok = rankNumber(path.Base(dir))
	return path.Dir(attempt), local, ok
}

// orderFiles gives processes of which each has a file of its own, named alike but for its number, ranks in the order of their ids, as launchers start them.
// It is a guess, and none where there are several such series: then there are several hosts.
func orderFiles(e *Evidence) {
	series := map[string][]*Stack{}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if s.Rank >= 0 || s.PID <= 0 {
			return
		}
		name := strings.ReplaceAll(s.Where.File, strconv.Itoa(s.PID), "*")
		if name == s.Where.File {
			return
		}
		series[name] = append(series[name], s)
	}
	if len(series) != 1 {
		return
	}
	for _, list := range series {
		slices.SortFunc(list, func(a, b *Stack) int { return cmp.Compare(a.PID, b.PID) })
		rank := 0
		for i, s := range list {
			if i > 0 && list[i-1].PID != s.PID {
				rank++
			}
			s.Rank, s.RankBy = rank, "order"
		}
		if rank == 0 {
			list[0].Rank, list[0].RankBy = -1, ""
		}
	}
}
