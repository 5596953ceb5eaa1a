package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// dumped is what these tests look at of a dump's JSON form.
type dumped struct {
	Groups map[string]struct{ Name, Desc, Ranks string } `json:"pg_config"`
	Status map[string]struct {
		Enqueued  string `json:"last_enqueued_collective"`
		Completed string `json:"last_completed_collective"`
	} `json:"pg_status"`
	Entries []dumpedCall `json:"entries"`
}

type dumpedCall struct {
	Seq   int     `json:"collective_seq_id"`
	Name  string  `json:"profiling_name"`
	Sizes [][]int `json:"input_sizes"`
	State string  `json:"state"`
}

// open are the calls of a dump that are not complete.
func (d *dumped) open() []dumpedCall {
	return slices.DeleteFunc(slices.Clone(d.Entries), func(c dumpedCall) bool { return c.State == "completed" })
}

// readDumps reads the dumps of a folder by rank. Both forms must be there for the same ranks, and nothing else.
func readDumps(t *testing.T, dir string) map[int]*dumped {
	t.Helper()
	out := make(map[int]*dumped)
	pickles := 0
	for _, name := range folder(t, dir) {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "trace_") {
			pickles++
			if !strings.HasPrefix(string(raw), "\x80\x02") || !strings.HasSuffix(string(raw), ".") {
				t.Errorf("%s is no whole pickle", name)
			}
			continue
		}
		rank, err := strconv.Atoi(strings.TrimPrefix(name, "json_"))
		if err != nil {
			t.Fatalf("%s is no name of a dump", name)
		}
		out[rank] = new(dumped)
		if err := json.Unmarshal(raw, out[rank]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if pickles != len(out) {
		t.Errorf("%d pickles and %d JSON files in %s", pickles, len(out), dir)
	}
	return out
}

// dumpsOf are the dumps in dir, which must be those of the ranks.
func dumpsOf(t *testing.T, dir string, ranks ...int) map[int]*dumped {
	t.Helper()
	out := readDumps(t, dir)
	for _, r := range ranks {
		if out[r] == nil || len(out[r].Entries) == 0 {
			t.Fatalf("rank %d has recorded nothing; dumps: %v", r, folder(t, dir))
		}
	}
	if len(out) != len(ranks) {
		t.Errorf("dumps %v, want those of ranks %v", folder(t, dir), ranks)
	}
	return out
}

// upTo are the ranks below n.
func upTo(n int) []int {
	out := make([]int, n)
	for r := range out {
		out[r] = r
	}
	return out
}

var ringOf = regexp.MustCompile(`/(commprobe-[0-9a-f]+)-\d+\.ring( \(deleted\))?`)

// rings is the name of the files of a running job's rings, "" when it has none. They must have no name any more.
func (j *job) rings(t *testing.T) string {
	t.Helper()
	name := ""
	for _, p := range j.processes() {
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid)) // a process may end now
		for _, m := range ringOf.FindAllStringSubmatch(string(maps), -1) {
			name = m[1]
			if m[2] == "" {
				t.Errorf("rank %d: the ring has a name while rows are measured: %s", p.rank, m[0])
			}
		}
	}
	return name
}

// inSeries starts a sweep of one series that lasts for minutes, and returns when all ranks are in it as their rings tell, read as the parent has
// them open.
func inSeries(t *testing.T, engine string, ranks int, args ...string) *job {
	t.Helper()
	j := start(t, nil, sweepArgs(engine, ranks, append([]string{"-b", "16M", "-e", "16M", "-n", "800", "--iters-exact", "-w", "1", "-c", "0"}, args...)...)...)
	deep := func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", j.cmd.Process.Pid)) // the pattern is well-formed
		calls := make(map[string]uint64)
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); ringOf.MatchString(to) {
				raw, _ := os.ReadFile(fd)
				if ring, err := flight.DecodeRing(raw); err == nil {
					for _, x := range ring.Records {
						calls[ring.Groups[x.Group].Name+strconv.Itoa(ring.Rank)]++
					}
				}
			}
		}
		return len(calls) == ranks && slices.Min(slices.Collect(maps.Values(calls))) > 20
	}
	if !eventually(patience, deep) {
		t.Fatal("the ranks do not come to their series")
	}
	return j
}

// noRings fails if files of the job are left.
func noRings(t *testing.T, name string) {
	t.Helper()
	if name == "" {
		t.Error("the job has no rings")
		return
	}
	if left, _ := filepath.Glob("/dev/shm/" + name + "*"); len(left) > 0 { // the pattern is well-formed
		t.Errorf("left in memory: %v", left)
	}
}

// A rank that is killed has its last calls in a dump all the same, and those that waited for it show what they waited for.
func TestDumpsOfKilledRank(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"process", "thread", "group"} {
		t.Run(place, func(t *testing.T) {
			sit(t)
			e, g := engine(t, 3, 2)
			victim := 0 // of all in one process
			if place == "process" {
				victim = g - 1
			}
			dir := filepath.Join(t.TempDir(), "d")
			j := inSeries(t, e, g, "--placement", place, "--dump", dir)
			name := j.rings(t)
			kill(t, j.worker(t, victim), syscall.SIGKILL)
			if code := j.exit(t, 30*time.Second); code != 5 {
				t.Errorf("exit status %d, want 5", code)
			}
			j.nothingLeft(t, 0)
			noRings(t, name)
			has(t, j.stderr.String(), "rank died: ", fmt.Sprintf("; dumps of ranks 0-%d: %s; python -m torch.distributed.flight_recorder.fr_trace %s -p trace_ reads them", g-1, dir, dir))
			members := strings.ReplaceAll(fmt.Sprint(upTo(g)), " ", ", ")
			for rank, d := range dumpsOf(t, dir, upTo(g)...) {
				if w := d.Groups["0"]; len(d.Groups) != 1 || w.Ranks != members || w.Desc != "all ranks" {
					t.Errorf("rank %d: groups %+v", rank, d.Groups)
				}
				last := d.Entries[len(d.Entries)-1]
				if place == "group" {
					last = d.Entries[len(d.Entries)-2] // before the end of the NCCL group
				}
				if last.Name != "nccl:all_reduce" || len(last.Sizes) != 1 || last.Sizes[0][0] != 16<<20/4 {
					t.Errorf("rank %d: last call %+v", rank, last)
				}
				if place == "process" && rank != victim && len(d.open()) == 0 {
					t.Errorf("rank %d waited for rank %d, and has nothing open", rank, victim)
				}
			}
		})
	}
}

func TestDumpsOfStoppedRank(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 3, 2)
	victim := g - 1
	dir := filepath.Join(t.TempDir(), "d")
	j := inSeries(t, e, g, "-T", "5", "--dump", dir)
	name := j.rings(t)
	kill(t, j.worker(t, victim), syscall.SIGSTOP)
	if code := j.exit(t, patience); code != 4 {
		t.Errorf("exit status %d, want 4", code)
	}
	j.nothingLeft(t, 0)
	noRings(t, name)
	has(t, j.stderr.String(), fmt.Sprintf("no word from rank %d", victim), fmt.Sprintf("dumps of ranks 0-%d: %s", g-1, dir))
	dumps := dumpsOf(t, dir, upTo(g)...)
	for rank, d := range dumps {
		if rank != victim && len(d.open()) == 0 {
			t.Errorf("rank %d waited, and has nothing open", rank)
		}
	}
}

// hangs compares the dumps of a sweep of 8 bytes in which the last rank left out the last of the timed operations.
func hangs(t *testing.T, dumps map[int]*dumped, ranks int) {
	t.Helper()
	const before = 5 + 1 // to warm up, and the untimed one
	const hung = before + 20
	for rank, d := range dumps {
		want := hung
		if rank == ranks-1 {
			want--
		}
		last := d.Entries[len(d.Entries)-1]
		if last.Seq != want || last.Name != "nccl:all_reduce" || len(last.Sizes) != 1 || last.Sizes[0][0] != 2 {
			t.Errorf("rank %d: last call %+v, want number %d", rank, last, want)
		}
		if d.Status["0"].Enqueued != strconv.Itoa(want) {
			t.Errorf("rank %d: status %+v, want %d enqueued", rank, d.Status, want)
		}
		if rank < ranks-1 && last.State != "scheduled" {
			t.Errorf("rank %d: the operation that hangs is %s", rank, last.State)
		}
		if before, complete := len(d.Entries)-len(d.open()), d.Entries[:len(d.Entries)-len(d.open())]; slices.ContainsFunc(complete, func(c dumpedCall) bool { return c.State != "completed" }) {
			t.Errorf("rank %d: of %d calls, %d are complete, and not the first ones", rank, len(d.Entries), before)
		}
	}
}

// hangArgs is a sweep in which the last rank leaves out an operation of the first size.
func hangArgs(engine string, ranks int, args ...string) []string {
	return sweepArgs(engine, ranks, append([]string{"-b", "8", "-e", "8", "-n", "20", "--iters-exact", "-T", "2", "--inject-hang"}, args...)...)
}

func TestDumpsOfPlantedHang(t *testing.T) {
	t.Parallel()
	e, g := engine(t, 3, 2)
	for _, place := range []string{"process", "thread"} {
		t.Run(place, func(t *testing.T) {
			sit(t)
			dir := filepath.Join(t.TempDir(), "d")
			f := commprobe(t, nil, hangArgs(e, g, "--placement", place, "--dump", dir)...)
			if f.code != 4 {
				t.Errorf("exit status %d, want 4", f.code)
			}
			has(t, f.stderr, "time-out: ", fmt.Sprintf("dumps of ranks 0-%d: %s", g-1, dir))
			hangs(t, dumpsOf(t, dir, upTo(g)...), g)
		})
	}
	t.Run("no record", func(t *testing.T) {
		sit(t)
		dir := filepath.Join(t.TempDir(), "d")
		j := start(t, nil, hangArgs(e, g, "--record", "0", "--dump", dir)...)
		j.sees(t, j.stdout, "#wrong", patience)
		if name := j.rings(t); name != "" {
			t.Errorf("--record 0 and rings %s", name)
		}
		if code := j.exit(t, patience); code != 4 {
			t.Errorf("exit status %d, want 4", code)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) || strings.Contains(j.stderr.String(), "dump") {
			t.Errorf("dumps without a record: %v, %s", err, j.stderr)
		}
	})
}

// Launches of a graph are recorded too.
func TestDumpsOfGraph(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 2)
	dir := filepath.Join(t.TempDir(), "d")
	if f := commprobe(t, nil, hangArgs(e, g, "-G", "3", "--dump", dir)...); f.code != 4 {
		t.Errorf("exit status %d, want 4", f.code)
	}
	for rank, d := range dumpsOf(t, dir, upTo(g)...) {
		launches := 0
		for _, c := range d.Entries {
			if c.Name == "nccl:graph" {
				launches++
			}
		}
		if want := []int{3, 2}[rank]; launches != want {
			t.Errorf("rank %d: %d launches recorded, want %d", rank, launches, want)
		}
	}
}

// A user who ends a job that hangs learns why; one who ends a job that works leaves no folder behind.
func TestDumpsOfInterrupt(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 2)
	dir := filepath.Join(t.TempDir(), "d")
	j := start(t, nil, hangArgs(e, g, "-T", "600", "--dump", dir)...)
	j.sees(t, j.stdout, "#wrong", patience)
	name := j.rings(t)
	time.Sleep(3 * time.Second)
	parent := process{pid: j.cmd.Process.Pid}
	kill(t, parent, syscall.SIGINT)
	j.sees(t, j.stderr, "interrupt once more", patience)
	kill(t, parent, syscall.SIGINT)
	if code := j.exit(t, 30*time.Second); code != 130 {
		t.Errorf("exit status %d, want 130", code)
	}
	j.nothingLeft(t, 0)
	noRings(t, name)
	has(t, j.stderr.String(), "interrupted: stopped on request; 0 rows measured before are kept; dumps of ranks 0-1: "+dir)
	hangs(t, dumpsOf(t, dir, 0, 1), 2)

	dir = filepath.Join(t.TempDir(), "d")
	j = running(t, nil, sweepArgs(e, g, "-b", "8", "-e", "2K", "-i", "8", "-n", "20", "--iters-exact", "--dump", dir)...)
	kill(t, process{pid: j.cmd.Process.Pid}, syscall.SIGINT)
	j.exit(t, 30*time.Second)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("a job that worked: %v", folder(t, dir))
	}
}

// Under a foreign launcher each rank writes its own dump; a killed one cannot.
func TestDumpsUnderTorchrun(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "hung"} {
		t.Run(how, func(t *testing.T) {
			sit(t)
			e, _ := engine(t, 2, 2)
			port, dir := freePort(t), filepath.Join(t.TempDir(), "d")
			args := []string{"sweep", "--engine", e, "-b", "8", "-e", "8", "-n", "20", "--iters-exact", "-T", "2", "--dump", dir}
			if how == "hung" {
				args = append(args, "--inject-hang")
			} else {
				args = append(args, "-N", "100000")
			}
			jobs := []*job{start(t, torchrun(t, 0, 2, port), args...), start(t, torchrun(t, 1, 2, port), args...)}
			want := 4
			if how == "killed" {
				jobs[0].sees(t, jobs[0].stdout, rowPattern, patience)
				kill(t, process{pid: jobs[1].cmd.Process.Pid}, syscall.SIGKILL)
				want = 5
			}
			if code := jobs[0].exit(t, patience); code != want {
				t.Errorf("exit status %d, want %d", code, want)
			}
			jobs[1].exit(t, 15*time.Second)
			has(t, jobs[0].stderr.String(), "; each rank that lives dumps what it recorded into "+dir+" on its host; python -m")
			if how == "killed" {
				dumpsOf(t, dir, 0)
				return
			}
			for rank, d := range dumpsOf(t, dir, 0, 1) {
				if last := d.Entries[len(d.Entries)-1]; last.Seq != []int{26, 25}[rank] || last.Name != "nccl:all_reduce" {
					t.Errorf("rank %d: last call %+v", rank, last)
				}
			}
		})
	}
}

// A parent that is killed leaves no rings behind, and a later run's dumps replace those of an earlier, larger one.
func TestDumpsFolder(t *testing.T) {
	t.Parallel()
	sit(t)
	e, g := engine(t, 2, 1)
	j := running(t, nil, longSweep(e, g)...)
	name := j.rings(t)
	kill(t, process{pid: j.cmd.Process.Pid}, syscall.SIGKILL)
	j.exit(t, 10*time.Second)
	j.nothingLeft(t, 8*time.Second)
	noRings(t, name)

	dir := t.TempDir()
	for _, name := range []string{"trace_7", "json_7", "trace_x"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, g = engine(t, 2, 2)
	commprobe(t, nil, hangArgs(e, g, "--dump", dir)...)
	if names := folder(t, dir); !slices.Equal(names, []string{"json_0", "json_1", "trace_0", "trace_1", "trace_x"}) {
		t.Errorf("the folder has %v", names)
	}
	file := filepath.Join(dir, "trace_x")
	if f := commprobe(t, nil, sweepArgs(e, g, "--dump", file)...); f.code != 2 || !strings.Contains(f.stderr, "name a folder") {
		t.Errorf("a file as folder: exit status %d, %s", f.code, f.stderr)
	}
}
