package diagnose

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

var (
	scaleDir     = flag.String("scale.dir", "", "folder of synthetic dumps: written if it is not there, then read and diagnosed")
	scaleRanks   = flag.Int("scale.ranks", 1024, "ranks to write")
	scaleEntries = flag.Int("scale.entries", 2000, "entries of each")
	scaleWrite   = flag.Bool("scale.write", false, "write only, so that reading is measured in a process of its own")
)

// synthetic is one rank's dump of a job with a group of all, one of eight neighbours, and one across: a ring that has wrapped, whose last call differs in size
// on one rank.
func synthetic(rank, ranks, entries, odd int) *flight.Dump {
	d := &flight.Dump{CommLibVersion: "2.28.9"}
	members := [][]int{make([]int, 0, ranks), nil, nil}
	for r := range ranks {
		members[0] = append(members[0], r)
		if r/8 == rank/8 {
			members[1] = append(members[1], r)
		}
		if r%8 == rank%8 {
			members[2] = append(members[2], r)
		}
	}
	names := []string{"0", strconv.Itoa(1 + rank/8), strconv.Itoa(1 + ranks/8 + rank%8)}
	descs := []string{"default_pg", "tensor", "data"}
	for g := range 3 {
		d.Groups = append(d.Groups, flight.Group{Name: names[g], Desc: descs[g], Ranks: members[g]})
	}
	ops := []string{"nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base"}
	const dropped = 1000 // of each group, overwritten
	var seq [3]int64
	base := int64(1795971724858295832) + int64(rank/8)*3600_000_000_000 // hosts' clocks an hour apart
	for i := range entries {
		g := []int{1, 1, 2, 1, 1, 2, 0}[i%7]
		if i == entries-1 {
			g = 0
		}
		seq[g]++
		n := int64(i%60+1) * 8192
		last := i == entries-1
		if last && rank == odd {
			n += 1024
		}
		in, out := n, n
		switch k := i % 3; {
		case last:
		case k == 1:
			out = n * int64(len(members[g]))
		case k == 2:
			in = n * int64(len(members[g]))
		}
		op := ops[i%3]
		e := flight.Entry{
			RecordID: int64(1000 + i), // fr_trace throws away what is older than the youngest first record of any rank
			PGID:     int64(g), GroupName: names[g], GroupDesc: descs[g], ThreadName: "python", ThreadID: "139692793372992",
			CollectiveSeqID: dropped + seq[g], OpID: dropped + seq[g], ProfilingName: op, TimeCreatedNs: base + int64(i)*1_000_003 + int64(rank%13)*1000,
			InputSizes: [][]int64{{in}}, InputDtypes: []string{"BFloat16"}, OutputSizes: [][]int64{{out}}, OutputDtypes: []string{"BFloat16"},
			State: flight.Completed, Retired: true, TimeoutMs: 600000,
			Frames: []flight.Frame{{Name: "all_reduce", File: "torch/distributed/distributed_c10d.py", Line: 3068}, {Name: "step", File: "train.py", Line: 100 + i%20}},
		}
		if last {
			e.ProfilingName, e.State, e.Retired = ops[0], flight.Scheduled, false
		} else {
			e.TimeDiscoveredCompletedNs = new(e.TimeCreatedNs + 500_000)
		}
		d.Entries = append(d.Entries, e)
	}
	for g := range 3 {
		s := flight.GroupStatus{PGID: int64(g), LastEnqueued: dropped + seq[g], LastStarted: -1, LastCompleted: dropped + seq[g]}
		if g == 0 {
			s.LastCompleted--
		}
		d.Status = append(d.Status, s)
	}
	return d
}

func writeSynthetic(t testing.TB, dir string, ranks, entries, odd int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, ranks)
	parallel(ranks, func(r int) {
		f, err := os.Create(filepath.Join(dir, "trace_"+strconv.Itoa(r)))
		if err != nil {
			errs[r] = err
			return
		}
		w := bufio.NewWriterSize(f, 1<<20)
		if errs[r] = synthetic(r, ranks, entries, odd).WritePickle(w); errs[r] == nil {
			errs[r] = w.Flush()
		}
		f.Close()
	})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestScale diagnoses a small job of the same form, always; with -scale.dir it is the measurement of make bench-diagnose.
func TestScale(t *testing.T) {
	dir, ranks, entries := *scaleDir, *scaleRanks, *scaleEntries
	if dir == "" {
		dir, ranks, entries = filepath.Join(t.TempDir(), "dumps"), 32, 200
	}
	odd := ranks / 3
	if _, err := os.Stat(dir); err != nil {
		writeSynthetic(t, dir, ranks, entries, odd)
	}
	if *scaleWrite {
		return
	}
	start, cpu := time.Now(), processorTime(syscall.RUSAGE_SELF)
	e, err := evidence.Read([]string{dir}, evidence.Options{})
	if err != nil {
		t.Fatal(err)
	}
	read := time.Since(start)
	v := Diagnose(e)
	took, cpu := time.Since(start), processorTime(syscall.RUSAGE_SELF)-cpu
	if len(e.Dumps) != ranks || v.Class != SizeMismatch || len(v.Ranks) != 1 || v.Ranks[0] != odd {
		t.Errorf("%d dumps: %s %v, rank %d has another size: %s", len(e.Dumps), v.Class, v.Ranks, odd, v.Summary)
	}
	if *scaleDir == "" {
		return
	}
	fmt.Printf("%d ranks x %d entries: %.2f s (reading %.2f s; %.2f s of processor time, of which there are %d), at most %d MiB\nverdict: %s\n", ranks, entries,
		took.Seconds(), read.Seconds(), cpu.Seconds(), runtime.GOMAXPROCS(0), peakMiB(), v.Headline())
	compareFRTrace(t, dir, took, cpu)
}

// peakMiB is the most memory that the process has ever held.
func peakMiB() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		var s debug.GCStats
		debug.ReadGCStats(&s)
		return -1
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kB, _ := strconv.Atoi(strings.Fields(rest)[0])
	return kB / 1024
}

// compareFRTrace times PyTorch's analyser on the same files where FR_TRACE names a command for it, less what it takes to start.
func compareFRTrace(t *testing.T, dir string, ours, oursCPU time.Duration) {
	command := os.Getenv("FR_TRACE")
	if command == "" {
		fmt.Println("FR_TRACE names no command for PyTorch's fr_trace: no comparison")
		return
	}
	timed := func(args string) (wall, cpu time.Duration) {
		start, before := time.Now(), processorTime(syscall.RUSAGE_CHILDREN)
		out, err := exec.Command("sh", "-c", command+" "+args).CombinedOutput()
		if err != nil {
			t.Errorf("fr_trace: %v\n%s", err, out[max(0, len(out)-500):])
		}
		return time.Since(start), processorTime(syscall.RUSAGE_CHILDREN) - before
	}
	idle, idleCPU := timed("--help")
	wall, cpu := timed("'" + dir + "' -p trace_")
	wall, cpu = wall-idle, cpu-idleCPU
	fmt.Printf("fr_trace: %.2f s, %.2f s of processor time, without its start (%.2f s): %.0f times as long, %.0f times the processor time\n", wall.Seconds(), cpu.Seconds(),
		idle.Seconds(), wall.Seconds()/ours.Seconds(), cpu.Seconds()/oursCPU.Seconds())
}

func processorTime(who int) time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(who, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
