package ncclog

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
)

// jobLog writes the log of a job with ranks of 8 GPUs a node, as one stream in which the lines of all ranks stand mixed: what one rank prints
// is next to what the others print at that time.
type jobLog struct {
	bytes.Buffer
	ranks int
}

func (j *jobLog) all(format string, args func(rank int) []any) {
	for rank := range j.ranks {
		fmt.Fprintf(j, "node%03d:%d:%d [%d] NCCL INFO ", rank/8, 4000+rank, 5000+rank, rank%8)
		fmt.Fprintf(j, format, args(rank)...)
		j.WriteByte('\n')
	}
}

func (j *jobLog) comm(rank int) string { return fmt.Sprintf("0x55d0%04x0000", rank) }

// start writes an initialisation with the channels of rings and trees.
func (j *jobLog) start(channels int) {
	n := j.ranks
	none := func(int) []any { return nil }
	j.all("NCCL version 2.21.5+cuda12.4", none)
	j.all("cudaDriverVersion 12040", none)
	j.all("NCCL_IB_HCA set by environment to mlx5", none)
	j.all("NCCL_IB_GID_INDEX set by environment to 3.", none)
	j.all("Bootstrap : Using eth0:10.0.0.%d<0>", func(r int) []any { return []any{r/8 + 1} })
	j.all("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_2:1/RoCE [3]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.%d<0>", func(r int) []any { return []any{r/8 + 1} })
	j.all("Using network IB", none)
	j.all("ncclCommInitRank comm %s rank %d nranks %d cudaDev %d nvmlDev %d busId %x000 commId 0xd56a6d94baffab36 - Init START",
		func(r int) []any { return []any{j.comm(r), r, n, r % 8, r % 8, 16 + r%8} })
	j.all("Setting affinity for GPU %d to ffff,ffffffff", func(r int) []any { return []any{r % 8} })
	j.all("NVLS multicast support is available on dev %d", func(r int) []any { return []any{r % 8} })
	j.all("comm %s rank %d nRanks %d nNodes %d localRanks 8 localRank %d MNNVL 0", func(r int) []any { return []any{j.comm(r), r, n, n / 8, r % 8} })
	for c := range channels {
		fmt.Fprintf(j, "node000:4000:5000 [0] NCCL INFO Channel %02d/%02d :", c, channels)
		for r := range n {
			fmt.Fprintf(j, " %3d", r)
		}
		j.WriteByte('\n')
	}
	tree := ""
	for c := range channels {
		tree += fmt.Sprintf(" [%d] %%[2]d/-1/-1->%%[1]d->%%[3]d", c)
	}
	j.all("Trees"+tree, func(r int) []any {
		down := r + 1
		if down == n {
			down = -1
		}
		return []any{r, down, r - 1}
	})
	j.all("P2P Chunksize set to 131072", none)
	for c := range channels {
		j.all("Channel %02d/0 : %d[%d] -> %d[%d] %s", func(r int) []any {
			to := (r + 1) % n
			if r%8 == 7 {
				return []any{c, r, r % 8, to, to % 8, "[send] via NET/IB/" + fmt.Sprint(c%4) + "/GDRDMA"}
			}
			return []any{c, r, r % 8, to, to % 8, "via P2P/CUMEM"}
		})
	}
	j.all("Connected all rings", none)
	j.all("Connected all trees", none)
	j.all("threadThresholds 8/8/64 | 512/8/64 | 512 | 512", none)
	j.all("%d coll channels, %d collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer", func(int) []any { return []any{channels, channels} })
	j.all("ncclCommInitRank comm %s rank %d nranks %d cudaDev %d nvmlDev %d busId %x000 commId 0xd56a6d94baffab36 - Init COMPLETE",
		func(r int) []any { return []any{j.comm(r), r, n, r % 8, r % 8, 16 + r%8} })
}

// calls writes COLL lines of count steps.
func (j *jobLog) calls(count int) {
	for i := range count {
		j.all("AllReduce: opCount %x sendbuff 0x7f8c%08x recvbuff 0x7fbb%08x count %d datatype 7 op 0 root 0 comm %s [nranks=%d] stream 0x55d0aa00",
			func(r int) []any { return []any{i, r << 20, r << 21, 1 << (10 + i%16), j.comm(r), j.ranks} })
	}
}

func benchmarkRead(b *testing.B, log []byte) {
	b.SetBytes(int64(len(log)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(bytes.NewReader(log), "job.log"); err != nil {
			b.Fatal(err)
		}
	}
}

// The lines of an initialisation are facts that are kept; those of calls are counted. A log of INIT alone is the worst case.
func BenchmarkReadInit64Ranks(b *testing.B) {
	j := &jobLog{ranks: 64}
	j.start(16)
	benchmarkRead(b, j.Bytes())
}

func BenchmarkReadCalls64Ranks(b *testing.B) {
	j := &jobLog{ranks: 64}
	j.start(16)
	j.calls(2000)
	benchmarkRead(b, j.Bytes())
}

// A log that goes on must not take more memory.
func TestMemoryBounded(t *testing.T) {
	held := func(steps int) uint64 {
		j := &jobLog{ranks: 64}
		j.start(4)
		r := NewReader()
		if err := r.Add(bytes.NewReader(j.Bytes()), "job.log"); err != nil {
			t.Fatal(err)
		}
		for range steps / 100 {
			j.Reset()
			j.calls(100)
			if err := r.Add(bytes.NewReader(j.Bytes()), "job.log"); err != nil {
				t.Fatal(err)
			}
		}
		j.Buffer = bytes.Buffer{}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if got := r.Finish().Comms[0].Ranks[63].Calls.Collectives; got != steps {
			t.Fatalf("%d calls, want %d", got, steps)
		}
		return m.HeapAlloc
	}
	few, many := held(100), held(5000)
	// one entry a place of the sequence is kept to compare ranks with, 48 bytes up to 1<<18 places
	if limit := few + 5000*64 + 1<<20; many > limit {
		t.Errorf("%d bytes after 320,000 lines, %d after 6,400", many, few)
	}
}

// The same lines again, as when a job's stdout and NCCL_DEBUG_FILE are both given, are no new facts.
func TestRepeatedLinesTakeNoMemory(t *testing.T) {
	j := &jobLog{ranks: 16}
	j.start(4)
	r := NewReader()
	for range 3 {
		if err := r.Add(bytes.NewReader(j.Bytes()), "job.log"); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range r.list {
		if len(p.ranks) != 1 {
			t.Fatalf("%d ranks of one process", len(p.ranks))
		}
	}
	l := r.Finish()
	equal(t, "communicators", len(l.Comms), 1)
	equal(t, "ranks", len(l.Comms[0].Ranks), 16)
	equal(t, "connections of a rank", len(l.Comms[0].Ranks[3].Edges), 4)
}

func BenchmarkReadRepeated64Ranks(b *testing.B) {
	j := &jobLog{ranks: 64}
	j.start(16)
	benchmarkRead(b, bytes.Repeat(j.Bytes(), 50))
}
