package timeline

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden and *.golden.json")

// parseRun reads a run in short form. Times are seconds of the supervisor's clock; they are turned back into each rank's own here, so that Build
// has to find them again. The supervisor is S.
//
//	clock 1 offset=5s rtt=200us      host 0-1 node-a
//	steps 0-4 ranks 0-3 at 0.1       enter and done of each step, 10 ms apart, ranks 50 µs apart
//	9.5 0-2 watchdog comm=world      an event, of each rank 50 µs after the one before
func parseRun(t *testing.T, text string) (events []Event, clocks []Clock) {
	t.Helper()
	hosts := map[int]string{}
	add := func(rank int, at time.Duration, name string, f map[string]string) {
		e := Event{Rank: rank, Host: hosts[rank], Name: name, MonoNs: int64(at), Fields: f}
		for _, c := range clocks {
			if c.Rank == rank {
				e.MonoNs -= c.OffsetNs
			}
		}
		events = append(events, e)
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case f[0] == "clock":
			a := fieldsOf(f[2:])
			offset, _ := time.ParseDuration(a["offset"])
			rtt, _ := time.ParseDuration(a["rtt"])
			for _, r := range ranksOf(t, f[1]) {
				clocks = append(clocks, Clock{r, int64(offset), int64(rtt)})
			}
		case f[0] == "host":
			for _, r := range ranksOf(t, f[1]) {
				hosts[r] = f[2]
			}
		case f[0] == "steps":
			at := seconds(t, f[5])
			for s := range ranksOf(t, f[1]) {
				step := map[string]string{"step": strconv.Itoa(ranksOf(t, f[1])[s])}
				for i, r := range ranksOf(t, f[3]) {
					begin := at + time.Duration(s)*20*time.Millisecond + time.Duration(i)*50*time.Microsecond
					add(r, begin, Enter, step)
					add(r, begin+10*time.Millisecond, Done, step)
				}
			}
		default:
			for i, r := range ranksOf(t, f[1]) {
				add(r, seconds(t, f[0])+time.Duration(i)*50*time.Microsecond, f[2], fieldsOf(f[3:]))
			}
		}
	}
	return events, clocks
}

func seconds(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s + "s")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ranksOf(t *testing.T, s string) (out []int) {
	if s == "S" {
		return []int{Supervisor}
	}
	for part := range strings.SplitSeq(s, ",") {
		a, b, ok := strings.Cut(part, "-")
		from, err := strconv.Atoi(a)
		to := from
		if ok && err == nil {
			to, err = strconv.Atoi(b)
		}
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		for r := from; r <= to; r++ {
			out = append(out, r)
		}
	}
	return out
}

// fieldsOf reads k=v; an underscore stands for a blank.
func fieldsOf(list []string) map[string]string {
	m := map[string]string{}
	for _, f := range list {
		k, v, _ := strings.Cut(f, "=")
		if k != "comm" && k != "signal" && k != "case" {
			v = strings.ReplaceAll(v, "_", " ")
		}
		m[k] = v
	}
	return m
}

func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) < 8 {
		t.Fatalf("only %d runs in testdata", len(files))
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			in, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			events, clocks := parseRun(t, string(in))
			l := Build(events, clocks)
			var text bytes.Buffer
			if err := l.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			check(t, l)
			base := strings.TrimSuffix(f, ".txt")
			golden(t, base+".golden", text.Bytes())
			if len(l.Entries) > 100 {
				return
			}
			js, err := json.MarshalIndent(l, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, base+".golden.json", append(js, '\n'))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("%s (-file +now; -update rewrites):\n%s", name, d)
	}
}

// check holds what is true of every line.
func check(t *testing.T, l *Line) {
	t.Helper()
	if !slices.IsSortedFunc(l.Entries, func(a, b Entry) int { return int(a.TNs - b.TNs) }) {
		t.Error("entries are not in order")
	}
	if len(l.Entries) > 0 && l.Entries[0].TNs != 0 {
		t.Errorf("the first entry is at %d", l.Entries[0].TNs)
	}
	causes := 0
	b := newBuilder(l)
	for i, e := range l.Entries {
		isCause := e.Role == Cause || e.Role == Simultaneous
		if isCause {
			causes++
		}
		if isCause != slices.Contains(l.Causes, i) || isCause && e.Of >= 0 || e.Role == Normal && e.Of >= 0 || e.Role == Consequence && e.Of < 0 {
			t.Errorf("entry %d: %s of %d, causes %v", i, e.Role, e.Of, l.Causes)
		}
		if e.Role == Simultaneous != (isCause && len(l.Causes) > 1) {
			t.Errorf("entry %d: %s with %d causes", i, e.Role, len(l.Causes))
		}
		if e.Role == Consequence && b.certainlyBefore(i, e.Of) {
			t.Errorf("entry %d is a consequence of %d, which is certainly later", i, e.Of)
		}
		for n, at := i, 0; n >= 0; n = l.Entries[n].Of { // every chain ends
			if at++; at > len(l.Entries) {
				t.Fatalf("entry %d: its chain of consequences is a circle", i)
			}
		}
	}
	if (l.Layer < 0) != (causes == 0) {
		t.Errorf("layer %d with %d causes", l.Layer, causes)
	}
	rows, _ := l.rows()
	seen := map[int]bool{}
	for _, r := range rows {
		for _, i := range r.entries {
			if slices.Contains(l.Causes, i) && len(r.entries) > 1 {
				t.Errorf("cause %d shares a row with %v", i, r.entries)
			}
			if seen[i] {
				t.Errorf("entry %d is in two rows", i)
			}
			seen[i] = true
		}
	}
	if len(seen) != len(l.Entries) {
		t.Errorf("%d of %d entries have a row", len(seen), len(l.Entries))
	}
}

func TestCause(t *testing.T) {
	const twoHosts = "clock 0-1 offset=7s rtt=2ms\nclock 2-3 offset=-3s rtt=2ms\n"
	tests := []struct {
		name, run string
		want      string // rank, name and role of each cause
		layer     int
	}{
		{"nothing", "", "", -1},
		{"healthy", "0 0-3 healthy\nsteps 0-3 ranks 0-3 at 1\n2 S process_end rank=0 code=0", "", -1},
		{"control is no fault", "0 3 inject case=control\n1 0 exit code=0", "", -1},
		{"planted fault before its echoes", "1 3 inject case=size\n5 0-2 watchdog comm=w seq=7", "3 inject cause", 0},
		{"own death of the planted fault", "1 3 inject case=kill\n1.1 S process_end rank=3 signal=SIGKILL\n1.2 0 async_error remote=true", "3 inject cause", 0},
		{"killed from outside", "1 0 enter step=1\n2 S process_end rank=1 signal=SIGKILL\n6 0 watchdog comm=w seq=3", "-1 process_end cause", 0},
		{"killed by the supervisor", "5 0 watchdog comm=w seq=3\n6 S killed_by_supervisor rank=1 signal=SIGKILL\n6 S process_end rank=1 signal=SIGKILL",
			"0 watchdog cause", 2},
		{"the supervisor's signal without an event of its own", "5 0 watchdog comm=w seq=3\n4 S process_end rank=1 signal=SIGTERM by=supervisor", "0 watchdog cause", 2},
		{"killed from outside, and signalled once more in the clean-up", "5 0 enter step=1\n5 S process_end rank=1 signal=SIGKILL\n6 S killed_by_supervisor rank=1 signal=SIGKILL",
			"-1 process_end cause", 0},
		{"two ranks of a host whose clock is unknown", "host S node-a\nhost 0-1 node-b\n0 S summary\n5 1 watchdog comm=a seq=3\n5.1 0 watchdog comm=b seq=3", "1 watchdog cause", 2},
		{"abort is an echo", "5 0 watchdog comm=w seq=3\n6 S process_end rank=1 signal=SIGABRT", "0 watchdog cause", 2},
		{"abort before all else is not", "4 S process_end rank=1 signal=SIGABRT\n5 0 watchdog comm=w seq=3", "-1 process_end cause", 0},
		{"exit of the watchdog", "5 0 watchdog comm=w seq=3\n6 0 exit code=4\n6.1 S process_end rank=0 code=4", "0 watchdog cause", 2},
		{"exit after hearing, which is noticed before", "5 0 watchdog comm=w seq=3\n5.9 S process_end rank=1 code=4\n5.95 1 heard from=0", "0 watchdog cause", 2},
		{"exit of its own", "3 2 exit code=42\n3.1 S process_end rank=2 code=42\n7 0 watchdog comm=w seq=3", "2 exit cause", 0},
		{"exception", "3 2 panic text=index\n3.1 S process_end rank=2 code=2\n7 0 watchdog comm=w seq=3", "2 panic cause", 0},
		{"a death long after the time-out", "5 0 watchdog comm=w seq=3\n20 S process_end rank=1 signal=SIGKILL", "0 watchdog cause", 2},
		{"a remote error just before the death is noticed", "5 0 async_error remote=true\n5.05 S process_end rank=1 signal=SIGSEGV", "-1 process_end cause", 0},
		{"a remote error long before", "5 0 async_error remote=true\n5.5 S process_end rank=1 signal=SIGSEGV", "0 async_error cause", 3},
		{"a longer notice", "5 0 async_error remote=true\n5.5 S process_end rank=1 signal=SIGSEGV slack_ns=1000000000", "-1 process_end cause", 0},
		{"the call check before the time-out", "5 0-2 mismatch comm=w seq=3\n9 0 watchdog comm=w seq=3", "0 mismatch cause", 1},
		{"a time-out before the call check", "5 0 watchdog comm=w seq=3\n9 0-2 mismatch comm=w seq=3", "0 watchdog cause", 2},
		{"one operation on all ranks", "5 0-3 watchdog comm=w seq=3", "0 watchdog cause", 2},
		{"crossed communicators within the clocks' doubt", twoHosts + "5 0 watchdog comm=a seq=3\n5.001 2 watchdog comm=b seq=3", "0 watchdog cause_or_simultaneous, 2 watchdog cause_or_simultaneous", 2},
		{"an exit that follows its own time-out at once", twoHosts + "5 0 watchdog comm=a seq=3\n5 2 watchdog comm=a seq=3\n5.0005 2 exit code=4", "0 watchdog cause", 2},
		{"beyond it", twoHosts + "5 0 watchdog comm=a seq=3\n5.0021 2 watchdog comm=b seq=3", "0 watchdog cause", 2},
		{"exactly at it", twoHosts + "5 0 watchdog comm=a seq=3\n5.002 2 watchdog comm=b seq=3", "0 watchdog cause_or_simultaneous, 2 watchdog cause_or_simultaneous", 2},
		{"a lower layer within the doubt", twoHosts + "5 0 watchdog comm=a seq=3\n5.001 2 panic text=x", "2 panic cause", 0},
		{"two deaths at once", "5 S process_end rank=1 signal=SIGKILL\n5.01 S process_end rank=2 signal=SIGKILL", "-1 process_end cause_or_simultaneous, -1 process_end cause_or_simultaneous", 0},
		{"two deaths in a row", "5 S process_end rank=1 signal=SIGKILL\n5.2 S process_end rank=2 signal=SIGKILL", "-1 process_end cause", 0},
		{"one death told twice", "5 1 signal signal=SIGSEGV\n5.001 S process_end rank=1 signal=SIGSEGV", "1 signal cause", 0},
		{"only a summary", "5 S summary text=failed", "-1 summary cause", 4},
		{"a clock that is unknown orders nothing", "host S node-a\nhost 0 node-a\nhost 1 node-b\n5 0 watchdog comm=a seq=3\n6 1 watchdog comm=b seq=1",
			"0 watchdog cause_or_simultaneous, 1 watchdog cause_or_simultaneous", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(tt.run, "host") && !strings.Contains(tt.run, "clock") {
				tt.run = "host S node-a\nhost 0-9 node-a\n" + tt.run
			}
			l := Build(parseRun(t, tt.run))
			check(t, l)
			var got []string
			for _, i := range l.Causes {
				got = append(got, fmt.Sprintf("%d %s %s", l.Entries[i].Rank, l.Entries[i].Name, l.Entries[i].Role))
			}
			if s := strings.Join(got, ", "); s != tt.want || l.Layer != tt.layer {
				t.Errorf("causes %q in layer %d, want %q in %d", s, l.Layer, tt.want, tt.layer)
			}
		})
	}
}

// TestParents: consequences hang on what is nearest to them.
func TestParents(t *testing.T) {
	run := "host S,0-3 node-a\n" + `
1 3 inject case=stuck step=5
5 0 watchdog comm=w seq=7
5.1 1-3 heard from=0
5.2 0-3 dump path=x
6 0-3 abort comm=w
6.1 0-3 exit code=4
6.2 S process_end rank=0 code=4
6.3 1 async_error remote=true
7 S fuse
8 S something
`
	run = strings.Replace(run, "host S,0-3 node-a", "host S node-a\nhost 0-3 node-a", 1)
	l := Build(parseRun(t, run))
	check(t, l)
	var got []string
	for _, e := range l.Entries {
		of := "-"
		if e.Of >= 0 {
			of = fmt.Sprintf("%d %s", l.Entries[e.Of].Rank, l.Entries[e.Of].Name)
		}
		got = append(got, fmt.Sprintf("%d %s: %s of %s", e.Rank, e.Name, e.Role, of))
	}
	for _, want := range []string{
		"3 inject: cause of -", "0 watchdog: consequence of 3 inject", "2 heard: consequence of 0 watchdog", "0 dump: consequence of 0 watchdog",
		"2 dump: consequence of 2 heard", "2 abort: consequence of 2 dump", "2 exit: consequence of 2 abort", "-1 process_end: consequence of 0 exit",
		"1 async_error: consequence of 0 abort", "-1 fuse: consequence of 3 inject", "-1 something: observation of -",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, strings.Join(got, "\n"))
		}
	}
}

// TestRandomRuns: whatever the events, the line is whole, in order, and its roles fit together; the order in which events are given within
// one rank apart, it does not depend on the order of ranks.
func TestRandomRuns(t *testing.T) {
	names := []string{Healthy, Enter, Done, Inject, Skip, Exit, Panic, Signal, ProcessEnd, InitBegin, InitDone, Enqueue, Watchdog, Heard, Dump,
		AsyncError, Mismatch, Abort, WrongData, Killed, Fuse, Summary, "other"}
	values := map[string][]string{"step": {"1", "2"}, "code": {"0", "4", "42", ""}, "signal": {"", "SIGABRT", "SIGKILL"}, "comm": {"a", "b"},
		"seq": {"1", "2"}, "from": {"0", "1", "x"}, "rank": {"0", "1", "nine"}, "remote": {"true", "false"}, "case": {"size", "control"}}
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var events []Event
		var clocks []Clock
		n := 1 + rng.IntN(4)
		for r := range n {
			if rng.IntN(4) > 0 {
				clocks = append(clocks, Clock{r, rng.Int64N(1e10) - 5e9, rng.Int64N(1e7)})
			}
		}
		for range rng.IntN(40) {
			e := Event{Rank: rng.IntN(n+1) - 1, Name: names[rng.IntN(len(names))], MonoNs: rng.Int64N(1e10), Fields: map[string]string{}}
			for k, v := range values {
				if rng.IntN(2) == 0 {
					e.Fields[k] = v[rng.IntN(len(v))]
				}
			}
			events = append(events, e)
		}
		l := Build(events, clocks)
		check(t, l)
		var text bytes.Buffer
		if err := l.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(events, func(a, b Event) int { return b.Rank - a.Rank })
		if d := cmp.Diff(len(l.Causes), len(Build(events, clocks).Causes)); d != "" {
			t.Errorf("causes depend on the order of ranks: %s", d)
		}
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, &text)
		}
	}
}

// TestManyRanks: the work grows with the events, not with their square.
func TestManyRanks(t *testing.T) {
	run := "host S node-a\nhost 0-4095 node-a\nsteps 0-2 ranks 0-4095 at 0\n1 17 inject case=stuck\n" +
		"5 0-4095 watchdog comm=w seq=3\n6 0-4095 heard from=0\n7 0-4095 dump\n8 0-4095 exit code=4\n9 1-4095 async_error remote=true\n"
	l := Build(parseRun(t, run))
	check(t, l)
	if rows, _ := l.rows(); len(l.Causes) != 1 || l.Entries[l.Causes[0]].Rank != 17 || len(rows) > 12 {
		t.Errorf("causes %v, %d rows", l.Causes, len(rows))
	}
}
