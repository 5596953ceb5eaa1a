package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl/ncclog"
)

// tuningLog is what NCCL 2.28.9 writes under NCCL_DEBUG_SUBSYS=TUNING.
const tuningLog = `vm:1816:1816 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
vm:1816:1816 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
vm:1816:1816 [0] NCCL INFO AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
vm:1816:1816 [0] NCCL INFO AllGather: 4194304 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
`

func TestNoteChoices(t *testing.T) {
	log, err := ncclog.Read(strings.NewReader(tuningLog), "log")
	if err != nil {
		t.Fatal(err)
	}
	row := func(collective string, bytes result.Bytes) result.Row {
		return result.Row{Collective: collective, Bytes: bytes}
	}
	run := &result.Run{Rows: []result.Row{row("all_reduce", 8), row("all_reduce", 16), row("all_reduce", 4<<20), row("all_gather", 4<<20), row("sendrecv", 8)}}
	noteChoices(run, log)
	want := [][]result.Choice{
		{{Algo: "Ring", Proto: "LL", Channels: 1}}, nil, {{Algo: "Ring", Proto: "Simple", ChannelHi: 23, Channels: 24}},
		{{Algo: "Ring", Proto: "LL128", ChannelHi: 15, Channels: 16}}, nil,
	}
	for i, w := range want {
		if d := cmp.Diff(w, run.Rows[i].Choices); d != "" {
			t.Errorf("%s %d bytes:\n%s", run.Rows[i].Collective, run.Rows[i].Bytes, d)
		}
	}
	if len(run.Notes) != 0 {
		t.Errorf("notes %v", run.Notes)
	}
	none := &result.Run{Rows: []result.Row{row("sendrecv", 8)}}
	if noteChoices(none, log); len(none.Notes) != 1 {
		t.Errorf("no choice for any row, and the notes are %v", none.Notes)
	}
}

// TestTuningPlan: the pass has the same rows and as few operations as can be.
func TestTuningPlan(t *testing.T) {
	p := bench.Plan{Iters: 50, Warmup: 10, Check: 3, QuietCores: true, Consistency: true, Inject: bench.Inject{Element: true}, MinBytes: 8, MaxBytes: 64, StepFactor: 2}
	p.Modes.Cycles, p.Modes.Graph, p.Modes.Register = 0, 5, 2
	q := tuningPlan(p)
	if q.Iters != 1 || q.Warmup != 0 || q.Check != 0 || q.Consistency || q.Inject != (bench.Inject{}) || q.Modes.Cycles != 1 || q.Modes.Graph != 0 {
		t.Errorf("%+v", q)
	}
	if q.Modes.Register != 2 || q.MaxBytes != 64 || q.StepFactor != 2 {
		t.Errorf("what decides the choice was changed: %+v", q)
	}
}
