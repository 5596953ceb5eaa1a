package flight

import (
	"strconv"
	"time"
)

// dtypes are PyTorch's names of NCCL's data types, in NCCL's order.
var dtypes = [...]string{"Char", "Byte", "Int", "UInt32", "Long", "UInt64", "Half", "Float", "Double", "BFloat16", "Float8_e4m3fn", "Float8_e5m2"}

func dtypeName(t int) []string {
	if t < 0 || t >= len(dtypes) {
		return nil
	}
	return []string{dtypes[t]}
}

// profiling are PyTorch's names of the calls. What it has no name for keeps NCCL's.
var profiling = map[RingKind]string{
	RingAllReduce: "nccl:all_reduce", RingBroadcast: "nccl:broadcast", RingReduce: "nccl:reduce", RingAllGather: "nccl:_all_gather_base",
	RingReduceScatter: "nccl:_reduce_scatter_base", RingAllToAll: "nccl:all_to_all", RingGather: "nccl:gather", RingScatter: "nccl:scatter",
	RingGroupEnd: "nccl:coalesced",
}

// Dump is the ring in the form of PyTorch's Flight Recorder. Records that belong to no known group are left out: there is no place for them there.
func (r *Ring) Dump() *Dump {
	d := &Dump{CommLibVersion: r.Library}
	for i, g := range r.Groups {
		d.Groups = append(d.Groups, Group{Name: g.Name, Desc: g.Desc, Ranks: g.Members})
		last := g.Coll
		if last.Enqueued < 0 { // as in PyTorch, where the counter of a group that only sends and receives counts that
			last = g.P2P
		}
		d.Status = append(d.Status, GroupStatus{PGID: int64(i), LastEnqueued: last.Enqueued, LastStarted: last.Started, LastCompleted: last.Completed})
	}
	for i := range r.Records {
		if x := &r.Records[i]; x.Group >= 0 {
			d.Entries = append(d.Entries, r.entry(x))
		}
	}
	return d
}

func (r *Ring) entry(x *RingRecord) Entry {
	g := &r.Groups[x.Group]
	e := Entry{
		Frames: x.Frames, RecordID: int64(x.ID) - 1, PGID: int64(x.Group), GroupName: g.Name, GroupDesc: g.Desc,
		ThreadName: "rank", ThreadID: strconv.Itoa(x.TID), CollectiveSeqID: int64(x.CollSeq), P2PSeqID: int64(x.P2PSeq), OpID: int64(x.OpID),
		ProfilingName: x.name(me(g, r.Rank)), TimeCreatedNs: r.wall(x.CreatedNs), State: x.State,
		Retired: x.Retired || x.State == Completed, TimeoutMs: time.Duration(x.TimeoutNs).Milliseconds(), IsP2P: x.P2P,
	}
	shape := func(n uint64) [][]int64 { return [][]int64{{int64(n)}} }
	if x.Kind != RingGroupEnd && x.Kind != RingGraph {
		in, out := x.InCount, x.OutCount
		if x.P2P { // one tensor, on both sides, as PyTorch writes it
			in, out = x.Count, x.Count
		}
		e.InputSizes, e.OutputSizes = shape(in), shape(out)
		e.InputDtypes, e.OutputDtypes = dtypeName(x.DType), dtypeName(x.DType)
	}
	if x.DurationNs >= 0 {
		ms := float64(x.DurationNs) / 1e6
		e.DurationMs = &ms
	}
	e.TimeDiscoveredStartedNs, e.TimeDiscoveredCompletedNs = r.noticed(x.StartedNs), r.noticed(x.CompletedNs)
	return e
}

// me is a global rank's place in a group, -1 if it has none.
func me(g *RingGroup, rank int) int {
	for i, m := range g.Members {
		if m == rank {
			return i
		}
	}
	return -1
}

func (r *Ring) wall(monoNs int64) int64 { return monoNs + r.WallOffsetNs }

func (r *Ring) noticed(monoNs int64) *int64 {
	if monoNs == 0 {
		return nil
	}
	ns := r.wall(monoNs)
	return &ns
}

// name is what PyTorch calls the operation; ranks in it are the group's.
func (x *RingRecord) name(self int) string {
	switch x.Kind {
	case RingSend:
		return "nccl:send " + strconv.Itoa(self) + "->" + strconv.Itoa(x.Peer)
	case RingRecv:
		return "nccl:recv " + strconv.Itoa(self) + "<-" + strconv.Itoa(x.Peer)
	}
	if name, ok := profiling[x.Kind]; ok {
		return name
	}
	return "nccl:" + x.Kind.String()
}
