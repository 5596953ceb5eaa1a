package evidence

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// synthetic is a dump as a training job leaves it: a full ring, two groups, a few sizes that come back, stacks of four frames where asked for.
func synthetic(entries int, stacks bool) *flight.Dump {
	d := &flight.Dump{
		CommLibVersion: "2.28.9",
		Groups:         []flight.Group{{Name: "0", Desc: "default_pg", Ranks: []int{0, 1, 2, 3}}, {Name: "1", Desc: "tp", Ranks: []int{2, 3}}},
		Status: []flight.GroupStatus{
			{PGID: 0, LastEnqueued: 1500, LastStarted: -1, LastCompleted: 1499}, {PGID: 1, LastEnqueued: 500, LastStarted: -1, LastCompleted: 500},
		},
	}
	for i := range entries {
		at := int64(1795971724858295832) + int64(i)*1_000_003
		n := int64(i%60+1) * 65536
		e := flight.Entry{
			RecordID: int64(i), PGID: int64(i % 2), GroupName: d.Groups[i%2].Name, GroupDesc: d.Groups[i%2].Desc,
			ThreadName: "python", ThreadID: "139692793372992",
			CollectiveSeqID: int64(i + 1), OpID: int64(i + 1), ProfilingName: "nccl:all_reduce", TimeCreatedNs: at,
			InputSizes: [][]int64{{n}}, InputDtypes: []string{"BFloat16"}, OutputSizes: [][]int64{{n}}, OutputDtypes: []string{"BFloat16"},
			State: flight.Completed, TimeDiscoveredCompletedNs: new(at + 500_000), Retired: true, TimeoutMs: 600000,
		}
		if stacks {
			e.Frames = []flight.Frame{
				{Name: "all_reduce", File: "torch/distributed/distributed_c10d.py", Line: 3068}, {Name: "wrapper", File: "torch/distributed/c10d_logger.py", Line: 83},
				{Name: "step", File: "train.py", Line: 100 + i%20}, {Name: "<module>", File: "train.py", Line: 500},
			}
		}
		d.Entries = append(d.Entries, e)
	}
	return d
}

func BenchmarkReadFlight(b *testing.B) {
	for _, stacks := range []bool{false, true} {
		d := synthetic(2000, stacks)
		for _, form := range []struct {
			name  string
			write func(*bytes.Buffer) error
		}{{"pickle", func(w *bytes.Buffer) error { return d.WritePickle(w) }}, {"json", func(w *bytes.Buffer) error { return d.WriteJSON(w) }}} {
			b.Run(fmt.Sprintf("%s/stacks=%t", form.name, stacks), func(b *testing.B) {
				var file bytes.Buffer
				if err := form.write(&file); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(file.Len()))
				b.ReportAllocs()
				pool := NewFlightPool()
				for b.Loop() {
					got, err := pool.Read(bytes.NewReader(file.Bytes()), "trace_0")
					if err != nil || len(got.Entries) != len(d.Entries) {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(d.Entries)*b.N)/b.Elapsed().Seconds(), "entries/s")
			})
		}
	}
}
