package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/rankset"
)

// joinNCCL puts together what only all inputs' NCCL lines say: communicators whose calls go on in another file, processes' ranks, local ranks,
// and versions or settings that differ. It is called once all inputs are read.
func joinNCCL(e *Evidence) {
	e.Comms = mergeComms(e.Comms)
	ranks := ncclRanks(e.Comms)
	for _, x := range e.Comms {
		if rank := ranks.of(x.Host, x.PID); rank >= 0 {
			x.Global = rank
		}
	}
	for i := range e.Facts {
		f := &e.Facts[i]
		if f.Rank < 0 && f.PID > 0 {
			f.Rank = ranks.of(f.Host, f.PID)
		}
		if f.Kind == PeerClosed && len(f.Ranks) == 0 {
			f.Ranks = closedRank(e.Comms, f)
		}
	}
	known := make(processRanks)
	for i := range e.Facts {
		if f := &e.Facts[i]; f.Rank >= 0 && f.PID > 0 {
			known.learn(f.Host, f.PID, f.Rank)
		}
	}
	for i := range e.Stacks {
		s := &e.Stacks[i]
		if s.Rank < 0 && s.PID > 0 {
			if s.Rank = max(ranks.of(s.Host, s.PID), known.of(s.Host, s.PID)); s.Rank >= 0 {
				s.RankBy = "pid"
			}
		}
	}
	orderStacks(e.Stacks)
	e.Facts = append(e.Facts, versionFacts(e.Comms, ranks)...)
	e.Facts = append(e.Facts, settingFacts(e.Comms, ranks)...)
}

// orderStacks gives processes of one input without any word about their ranks the ranks in the order of their ids, as launchers start them.
func orderStacks(stacks []Stack) {
	byFile := make(map[string][]int)
	for i := range stacks {
		if s := &stacks[i]; s.Rank >= 0 || s.PID <= 0 {
			byFile[s.Where.File] = nil
		} else if list, ok := byFile[s.Where.File]; list != nil || !ok {
			byFile[s.Where.File] = append(list, s.PID)
		}
	}
	for file, pids := range byFile {
		byFile[file] = slices.Compact(slices.Sorted(slices.Values(pids)))
	}
	for i := range stacks {
		s := &stacks[i]
		pids := byFile[s.Where.File]
		if rank, ok := slices.BinarySearch(pids, s.PID); ok && len(pids) > 1 {
			s.Rank, s.RankBy = rank, "order"
		}
	}
}

// mergeComms joins the parts of one communicator of one process that are in several files.
func mergeComms(list []*Comm) []*Comm {
	type key struct {
		host, ptr string
		pid       int
	}
	open := make(map[key]*Comm)
	out := list[:0]
	for _, x := range list {
		k := key{x.Host, x.Pointer, x.PID}
		old := open[k]
		if x.Host == "" || old == nil || old.Ended != "" || old.Where.File == x.Where.File || x.Rank >= 0 && old.Rank >= 0 {
			open[k] = x
			out = append(out, x)
			continue
		}
		if old.Left > 0 || len(old.Calls)+len(x.Calls) > 4*commCallsEnd { // calls may be left out in one place only
			old.Left += x.Left
			if keep := 2 * commCallsEnd; len(x.Calls) < keep {
				cut := max(0, len(old.Calls)-(keep-len(x.Calls)))
				old.Left += cut
				old.Calls = append(old.Calls[:len(old.Calls)-cut], x.Calls...)
			}
		} else {
			old.Calls = append(old.Calls, x.Calls...)
			old.Left = x.Left
		}
		old.HasOp = old.HasOp || x.HasOp
		old.Torn += x.Torn
		old.BusID = cmp.Or(old.BusID, x.BusID)
		old.ID, old.Version, old.Ended = cmp.Or(old.ID, x.ID), cmp.Or(old.Version, x.Version), cmp.Or(old.Ended, x.Ended)
	}
	return out
}

// processRanks are the global ranks of processes.
type processRanks map[procKey]int

// learn notes a rank. A process with two has none, and neither has a process id that two hosts use, where the host is not said.
func (r processRanks) learn(host string, pid, rank int) {
	host, _, _ = strings.Cut(host, ".")
	for _, k := range []procKey{{host, pid}, {"", pid}} {
		if old, ok := r[k]; ok && old != rank {
			r[k] = -1
			continue
		}
		r[k] = rank
	}
}

func (r processRanks) of(host string, pid int) int {
	host, _, _ = strings.Cut(host, ".")
	if rank, ok := r[procKey{host, pid}]; ok {
		return rank
	}
	return -1
}

// ncclRanks gives each process its rank in the largest communicator of all: a rank in a smaller one is no global rank. A process that drives several ranks has none.
func ncclRanks(comms []*Comm) processRanks {
	world := 0
	for _, x := range comms {
		if x.Rank >= 0 {
			world = max(world, x.NRanks)
		}
	}
	out := make(processRanks)
	for _, x := range comms {
		if x.Rank < 0 || x.NRanks != world || x.PID <= 0 {
			continue
		}
		out.learn(x.Host, x.PID, x.Rank)
	}
	return out
}

// closedRank finds the rank of "localRank 2" on a fact's host, where the communicators' lines say it.
func closedRank(comms []*Comm, f *Fact) []int {
	text, ok := strings.CutPrefix(f.Detail, "localRank ")
	local, err := strconv.Atoi(text)
	if !ok || err != nil {
		return nil
	}
	world := 0
	for _, x := range comms {
		world = max(world, x.NRanks)
	}
	for _, x := range comms {
		if x.NRanks != world || x.Host != f.Host {
			continue
		}
		if x.LocalRank == local && x.Rank >= 0 {
			return []int{x.Rank}
		}
		if x.Nodes == 1 {
			return []int{local}
		}
		if x.Rank >= 0 && x.LocalRank >= 0 && x.PID == f.PID && x.Nodes > 1 { // ranks of a host follow each other, as all launchers place them
			return []int{x.Rank - x.LocalRank + local}
		}
	}
	return nil
}

// versionFacts says where processes of one job have different versions of NCCL.
func versionFacts(comms []*Comm, ranks processRanks) []Fact {
	seen := make(map[string]spread)
	for _, x := range comms {
		if x.Version != "" && x.Rank >= 0 {
			add(seen, x.Version, x, ranks)
		}
	}
	if len(seen) < 2 {
		return nil
	}
	return []Fact{differFact(Version, "NCCL", seen)}
}

// decisive are the variables of which different values on different ranks make them do different things with the same call.
var decisive = []string{"NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
	"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_P2P_NET_CHUNKSIZE",
	"NCCL_CHECKS_DISABLE", "NCCL_MNNVL_ENABLE", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_PXN_DISABLE", "NCCL_TUNER_PLUGIN"}

// settingFacts says which variables have different values on different ranks. One that only some ranks print says nothing: they are read late.
func settingFacts(comms []*Comm, ranks processRanks) []Fact {
	byName := make(map[string]map[string]spread)
	for _, x := range comms {
		if x.Rank < 0 {
			continue
		}
		for _, s := range x.Settings {
			if !slices.Contains(decisive, s.Name) {
				continue
			}
			if byName[s.Name] == nil {
				byName[s.Name] = make(map[string]spread)
			}
			add(byName[s.Name], s.Value, x, ranks)
		}
	}
	var out []Fact
	for _, name := range decisive {
		if len(byName[name]) > 1 {
			out = append(out, differFact(EnvDiffers, name, byName[name]))
		}
	}
	return out
}

// spread is who has one of several values, and where the first of them was seen.
type spread struct {
	ranks []int
	first *Comm
}

func add(seen map[string]spread, value string, x *Comm, ranks processRanks) {
	s, ok := seen[value]
	if !ok {
		s.first = x
	}
	if rank := ranks.of(x.Host, x.PID); rank >= 0 && !slices.Contains(s.ranks, rank) {
		s.ranks = append(s.ranks, rank)
	}
	seen[value] = s
}

// differFact names the ranks that have another value than most. Where no value has a majority, it names all.
func differFact(kind FactKind, name string, seen map[string]spread) Fact {
	values := make([]string, 0, len(seen))
	for v := range seen {
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(seen[b].ranks), len(seen[a].ranks)), strings.Compare(a, b))
	})
	f := newFact(kind, Where{File: seen[values[1]].first.Where.File}, nil)
	f.Op = name
	var parts []string
	for i, v := range values {
		who := slices.Sorted(slices.Values(seen[v].ranks))
		parts = append(parts, fmt.Sprintf("%s: ranks %s", v, rankset.Fold(who, ",")))
		if i > 0 || len(seen[values[0]].ranks) == len(seen[values[1]].ranks) {
			f.Ranks = append(f.Ranks, who...)
		}
	}
	slices.Sort(f.Ranks)
	f.Detail = strings.Join(parts, "; ")
	f.Text = name + " differs between ranks: " + f.Detail
	return f
}
