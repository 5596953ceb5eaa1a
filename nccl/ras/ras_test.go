package ras

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func fixture(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func readOne(t *testing.T, text string) *Report {
	t.Helper()
	list, err := ReadText(strings.NewReader(text))
	if err != nil || len(list) != 1 {
		t.Fatalf("%d reports, %v", len(list), err)
	}
	return list[0]
}

func TestText224(t *testing.T) {
	got := readOne(t, fixture(t, "text_2.24.txt"))
	want := &Report{
		NCCLVersion: "2.24.3", CUDARuntime: 12060, CUDADriver: 12040, Nodes: 4, Processes: 32, GPUs: 32, Timeouts: 2,
		Incomplete: []Missing{{Rank: -1, Host: "192.0.2.213", PID: 48, GPU: 5, Unresponsive: true}},
		Dead:       []Missing{{Rank: -1, Host: "192.0.2.214", PID: 49, GPU: -1, Unresponsive: true, Dead: true}},
		Communicators: []Communicator{
			{Group: 0, Comms: 1, Size: 32, Status: "RUNNING", Errors: "INCOMPLETE,MISMATCH", Hash: "cf264af53edbe986", Lost: 2,
				Missing: []Missing{{Rank: 21, GPU: -1, Unresponsive: true}, {Rank: 22, GPU: -1, Unresponsive: true}},
				Counts:  map[string][]Level{"collective": {{Count: 6650, N: 24}, {Count: 6649, Ranks: []int{0, 2}, N: 6}}},
				States:  []StatusLevel{{"UNKNOWN", nil, 26}, {"FINALIZE", []int{4, 20}, 2}},
				Places: []Place{
					{Rank: 4, PID: 507289, GPU: 4, Host: "192.0.2.210"}, {Rank: 20, PID: 2405068, GPU: 4, Host: "192.0.2.213"},
					{Rank: 0, PID: 483072, GPU: 0, Host: "192.0.2.210"}, {Rank: 2, PID: 483074, GPU: 2, Host: "192.0.2.210"}}},
			{Group: 1, Comms: 6, Size: 4, Status: "RUNNING", Errors: "ERROR"},
			{Group: 1, Comms: 1, Size: 4, Status: "RUNNING", Errors: "ERROR", Hash: "00000000000000ab",
				RankErrors: []RankError{{"Remote process error", false, nil, 3}, {"Invalid usage", false, []int{1}, 1}},
				Places:     []Place{{Rank: 1, PID: 12, GPU: 4, Host: "192.0.2.9"}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestText230(t *testing.T) {
	got := readOne(t, fixture(t, "text_2.30.txt"))
	c := got.Communicators[0]
	want := map[string][]Level{
		"AllReduce": {{Count: 99, N: 29}, {Count: 98, Ranks: []int{7, 9}, N: 2}, {Count: 0, Ranks: []int{3}, N: 1}},
		"AllGather": {{Count: 0, N: 30}, {Count: 1, Ranks: []int{12, 13}, N: 2}},
	}
	if diff := cmp.Diff(want, c.Counts); diff != "" {
		t.Error(diff)
	}
	if want := []Missing{{Rank: 21, Host: "192.0.2.213", PID: 4, GPU: 5, Unresponsive: true}, {Rank: 22, GPU: -1, Unresponsive: true}}; !cmp.Equal(want, c.Missing) {
		t.Error(cmp.Diff(want, c.Missing))
	}
	if got.Nodes != 3 || got.Processes != 31 || got.GPUs != 32 || len(got.Notes) != 1 {
		t.Errorf("job of %d nodes, %d processes, %d GPUs; notes %q", got.Nodes, got.Processes, got.GPUs, got.Notes)
	}
}

// TestTextSeveral has what people paste: several answers, parts of answers, other tools' words between.
func TestTextSeveral(t *testing.T) {
	part := "#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  26 ranks have launched up to operation %d\n  6 ranks have launched up to operation %d\n"
	text := fixture(t, "text_2.24.txt") + fixture(t, "text_2.30.txt") + "ncclras: invalid option -- 'f'\nUsage: ncclras\n" +
		fmt.Sprintf(part, 10, 9) + fmt.Sprintf(part, 12, 11) + "2 s later\n" + fmt.Sprintf(part, 14, 13)
	list, err := ReadText(strings.NewReader(text))
	if err != nil || len(list) != 5 {
		t.Fatalf("%d reports, %v", len(list), err)
	}
	for i, want := range []int64{10, 12, 14} {
		c := list[2+i].Communicators[0]
		if got := c.Counts["AllReduce"][0].Count; got != want || c.Size != 32 {
			t.Errorf("part %d: count %d, size %d", i, got, c.Size)
		}
	}
}

// jsonJob writes a job's answer: counts by rank, and ranks that are missing.
func jsonJob(hash string, counts []int64, missing ...int) string {
	var ranks, lost []string
	for r, n := range counts {
		where := fmt.Sprintf(`"rank": %d, "host": "192.0.2.%d", "pid": %d, "cuda_dev": %d, "nvml_dev": %d`, r, 1+r/2, 100+r, r%2, r%2)
		if slices.Contains(missing, r) {
			lost = append(lost, "{"+where+`, "status": {"unresponsive": true, "considered_dead": false}}`)
			continue
		}
		ranks = append(ranks, "{"+where+fmt.Sprintf(`, "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false},
  "collective_counts": {"Broadcast": 0, "AllReduce": %d}}`, n))
	}
	return fmt.Sprintf(`{"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-01-02 03:04:05",
 "communicators_count": 1, "communicators": [{"hash": "%s", "secondary_hash": "0x1:0x2", "size": %d, "ranks_count": %d, "missing_ranks_count": %d,
 "ranks": [%s], "missing_ranks": [%s]}], "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}`+"\n",
		hash, len(counts), len(ranks), len(lost), strings.Join(ranks, ",\n"), strings.Join(lost, ","))
}

func TestJSONDerives(t *testing.T) {
	for _, tt := range []struct {
		name, edit, to string
		counts         []int64
		missing        []int
		status, errors string
	}{
		{"all well", "", "", []int64{5, 5, 5}, nil, "RUNNING", "OK"},
		{"counts differ", "", "", []int64{5, 4, 5}, nil, "RUNNING", "MISMATCH"},
		{"one is missing", "", "", []int64{5, 5, 5}, []int{2}, "RUNNING", "INCOMPLETE"},
		{"one is being made", `"init_state": 0`, `"init_state": 7`, []int64{0, 0}, nil, "RUNNING", "MISMATCH"},
		{"one was aborted", `"abort_flag": false`, `"abort_flag": true`, []int64{1, 1}, nil, "ABORT", "MISMATCH"},
		{"one ends", `"destroy_flag": false`, `"destroy_flag": true`, []int64{1, 1}, nil, "FINALIZE", "MISMATCH"},
		{"one failed", `"async_error": 0`, `"async_error": 6`, []int64{1, 2}, nil, "RUNNING", "ERROR,MISMATCH"},
		{"one reachable, but no member", `"unresponsive": true`, `"unresponsive": false`, []int64{1, 1}, []int{1}, "RUNNING", "MISMATCH"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rep, err := ReadJSON(strings.NewReader(strings.Replace(jsonJob("0xab", tt.counts, tt.missing...), tt.edit, tt.to, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if c := rep.Communicators[0]; c.Status != tt.status || c.Errors != tt.errors {
				t.Errorf("status %s, errors %s; want %s, %s", c.Status, c.Errors, tt.status, tt.errors)
			}
			if want := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC); !rep.Time.Equal(want) || rep.GPUs != len(tt.counts) {
				t.Errorf("time %v, %d GPUs", rep.Time, rep.GPUs)
			}
		})
	}
	for _, text := range []string{"", "{}", "[1]", `{"nccl_version": "2.28"}`, `{"communicators": []}`} {
		if rep, err := ReadJSON(strings.NewReader(text)); err == nil || rep != nil {
			t.Errorf("%q: %v, %v", text, rep, err)
		}
	}
}

func TestQuery(t *testing.T) {
	job, text := jsonJob("0xab", []int64{7, 6}), fixture(t, "text_2.30.txt")
	fast := Options{Timeout: time.Second}
	for _, tt := range []struct {
		name   string
		server fakeServer
		opt    Options
		check  func(t *testing.T, f *fakeServer, rep *Report, err error)
	}{
		{"JSON", fakeServer{reports: []string{job}}, fast, func(t *testing.T, f *fakeServer, rep *Report, err error) {
			want := []string{"CLIENT PROTOCOL 2", "SET FORMAT json", "TIMEOUT 1", "VERBOSE STATUS"}
			if err != nil || !rep.FromJSON || !slices.Equal(f.got, want) {
				t.Errorf("%v, %v, commands %q", rep, err, f.got)
			}
		}},
		{"old server: text", fakeServer{reports: []string{text}, old: true}, fast, func(t *testing.T, _ *fakeServer, rep *Report, err error) {
			if err != nil || rep.FromJSON || rep.Cut || len(rep.Communicators) != 1 {
				t.Errorf("%+v, %v", rep, err)
			}
		}},
		{"text was asked for", fakeServer{reports: []string{text}}, Options{Timeout: time.Second, Text: true}, func(t *testing.T, f *fakeServer, rep *Report, err error) {
			if err != nil || rep.FromJSON || slices.Contains(f.got, "SET FORMAT json") {
				t.Errorf("%+v, %v, commands %q", rep, err, f.got)
			}
		}},
		{"JSON that cannot be read: text", fakeServer{reports: []string{job}, text: []string{text}, badJSON: true}, fast, func(t *testing.T, _ *fakeServer, rep *Report, err error) {
			if err != nil || rep.FromJSON {
				t.Errorf("%+v, %v", rep, err)
			}
		}},
		{"slow", fakeServer{reports: []string{job}, slow: 200 * time.Millisecond}, fast, func(t *testing.T, _ *fakeServer, rep *Report, err error) {
			if err != nil {
				t.Error(err)
			}
		}},
		{"cut and silent", fakeServer{reports: []string{text}, old: true, cut: 900}, fast, func(t *testing.T, _ *fakeServer, rep *Report, err error) {
			if err != nil || !rep.Cut || len(rep.Communicators) != 1 {
				t.Errorf("%+v, %v", rep, err)
			}
		}},
		{"cut and closed", fakeServer{reports: []string{text}, old: true, drop: 900}, fast, func(t *testing.T, _ *fakeServer, rep *Report, err error) {
			if err != nil || !rep.Cut {
				t.Errorf("%+v, %v", rep, err)
			}
		}},
		{"another service", fakeServer{greeting: "SSH-2.0-OpenSSH_9.6\r\n"}, fast, wantError("another service's port")},
		{"garbage", fakeServer{greeting: "\x00\x01\xff\xfe\n"}, fast, wantError("not RAS")},
		{"a line without end", fakeServer{greeting: strings.Repeat("x", 100<<10)}, fast, wantError("not RAS")},
		{"never answers", fakeServer{silent: true}, fast, wantError("no answer")},
		{"hangs up", fakeServer{hangUp: true}, fast, wantError("RAS: ")},
		{"garbage instead of a report", fakeServer{reports: []string{"what?\n"}, old: true}, fast, wantError("not RAS")},
		{"too long", fakeServer{reports: []string{job}}, Options{Timeout: time.Second, Max: 100}, wantError("longer than 100 bytes")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tt.server
			rep, err := Query(t.Context(), f.start(t), tt.opt)
			tt.check(t, &f, rep, err)
		})
	}
}

func wantError(words string) func(*testing.T, *fakeServer, *Report, error) {
	return func(t *testing.T, _ *fakeServer, rep *Report, err error) {
		if err == nil || rep != nil || !strings.Contains(err.Error(), words) {
			t.Errorf("report %v, error %v; want %q in it", rep, err, words)
		}
	}
}

func TestQueryNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var nobody *NobodyError
	if _, err := Query(t.Context(), addr, Options{}); !errors.As(err, &nobody) || !strings.Contains(err.Error(), "NCCL_RAS_ADDR") {
		t.Errorf("%v", err)
	}
	if _, err := Query(t.Context(), "no port here", Options{}); err == nil || errors.As(err, &nobody) {
		t.Errorf("address without a port: %v", err)
	}
}

func TestQueryEnded(t *testing.T) {
	f := fakeServer{silent: true}
	addr := f.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := Query(ctx, addr, Options{Timeout: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// short is a comparison in a few words.
func short(c *Comparison) string {
	var b strings.Builder
	fmt.Fprintf(&b, "alarm %v, moving %v", c.Alarm, c.Moving)
	for _, f := range c.Findings {
		fmt.Fprintf(&b, "; %s %s behind %v/%d ahead %v/%d ranks %v", f.Kind, f.Op, f.Behind, f.BehindN, f.Ahead, f.AheadN, f.Ranks)
	}
	return b.String()
}

func TestCompare(t *testing.T) {
	frozen := fixture(t, "text_2.30.txt")
	moved := strings.NewReplacer("operation 99", "operation 199", "operation 98", "operation 198", "operation 1\n", "operation 5\n").Replace(frozen)
	for _, tt := range []struct {
		name, a, b string
		working    bool
		want       string
	}{
		{"works", jsonJob("0xa", []int64{7, 7, 7}), jsonJob("0xa", []int64{9, 9, 9}), true, "alarm false, moving true; moving AllReduce behind []/0 ahead []/0 ranks []"},
		{"one is behind for a moment", jsonJob("0xa", []int64{7, 6, 7}), jsonJob("0xa", []int64{9, 9, 8}), true, "alarm false, moving true; moving AllReduce behind []/0 ahead []/0 ranks []"},
		{"one is behind for good", jsonJob("0xa", []int64{7, 6, 7}), jsonJob("0xa", []int64{7, 6, 7}), false, "alarm true, moving false; stuck AllReduce behind [1]/1 ahead [0 2]/2 ranks []"},
		{"equal and frozen, idle perhaps", jsonJob("0xa", []int64{7, 7}), jsonJob("0xa", []int64{7, 7}), false, "alarm false, moving false; frozen  behind []/0 ahead []/0 ranks []"},
		{"equal and frozen, at work", jsonJob("0xa", []int64{7, 7}), jsonJob("0xa", []int64{7, 7}), true, "alarm true, moving false; frozen  behind []/0 ahead []/0 ranks []"},
		{"missing twice", jsonJob("0xa", []int64{7, 7, 7}, 1), jsonJob("0xa", []int64{7, 7, 7}, 1), false,
			"alarm true, moving false; lost  behind []/0 ahead []/0 ranks [1]; lost  behind []/0 ahead []/0 ranks [1]; frozen  behind []/0 ahead []/0 ranks []"},
		{"missing once", jsonJob("0xa", []int64{7, 7, 7}, 1), jsonJob("0xa", []int64{8, 8, 8}), false, "alarm false, moving true; moving AllReduce behind []/0 ahead []/0 ranks []"},
		{"one without its head, moves", "  Communicator ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 70\n  1 rank has launched up to operation 69\n",
			"#0-0 (00aa) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  2 ranks have launched up to operation 75\n  2 ranks have launched up to operation 74\n", false,
			"alarm false, moving true; moving AllReduce behind []/0 ahead []/0 ranks []"},
		{"another job", jsonJob("0xa", []int64{7, 6}), jsonJob("0xb", []int64{7, 6}), false, "alarm false, moving false"},
		{"text, frozen", frozen, frozen, false, "alarm true, moving false; lost  behind []/0 ahead []/0 ranks [21 22]; stuck AllGather behind [0 1 2 3 4 5 6 7 8 9 10 11 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]/30 ahead [12 13]/2 ranks []; " +
			"stuck AllReduce behind [3]/1 ahead [0 1 2 4 5 6 8 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]/29 ranks []"},
		{"text, moves", frozen, moved, false, "alarm true, moving true; lost  behind []/0 ahead []/0 ranks [21 22]; moving AllGather behind []/0 ahead []/0 ranks []; moving AllReduce behind []/0 ahead []/0 ranks []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func(text string) *Report {
				if text[0] == '{' {
					rep, err := ReadJSON(strings.NewReader(text))
					if err != nil {
						t.Fatal(err)
					}
					return rep
				}
				return readOne(t, text)
			}
			a, b := read(tt.a), read(tt.b)
			if got := short(Compare(a, b, tt.working)); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if again := read(tt.b); !reflect.DeepEqual(b, again) {
				t.Error("comparing changed the report")
			}
		})
	}
}

func TestWatch(t *testing.T) {
	f := fakeServer{reports: []string{jsonJob("0xa", []int64{7, 6}), jsonJob("0xa", []int64{7, 6}), jsonJob("0xa", []int64{8, 8})}}
	got, err := Watch(t.Context(), f.start(t), Options{}, 3, time.Millisecond)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d samples, %v", len(got), err)
	}
	if Compare(got[0], got[1], false).Alarm != true || Compare(got[0], got[2], false).Alarm {
		t.Error("two frozen samples are an alarm, a third that moved is none")
	}
}

// TestShared reads the answers of real jobs.
func TestShared(t *testing.T) {
	files, err := filepath.Glob("../../../shared/data/torch_nccl/*/ras.txt")
	if err != nil || len(files) == 0 {
		t.Skip("no folder with the real answers here")
	}
	want := map[string]string{
		"stuck": "alarm true, moving false; stuck AllReduce behind [1]/1 ahead [0]/1 ranks []",
		"op":    "alarm true, moving false; stuck Broadcast behind [1]/1 ahead [0]/1 ranks []",
		"size":  "alarm false, moving false", "skip": "alarm false, moving false",
		"skip_same": "alarm false, moving false; state  behind []/0 ahead []/0 ranks [1]", "control": "alarm false, moving false; state  behind []/0 ahead []/0 ranks [1]",
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		list, err := ReadText(strings.NewReader(string(raw)))
		w, answered := want[filepath.Base(filepath.Dir(name))]
		if n := map[bool]int{true: 2}[answered]; err != nil || len(list) != n {
			t.Errorf("%s: %d reports, want %d; %v", name, len(list), n, err)
			continue
		}
		if answered {
			if got := short(Compare(list[0], list[1], false)); got != w {
				t.Errorf("%s:\n got %s\nwant %s", name, got, w)
			}
		}
	}
}

func TestEvents(t *testing.T) {
	got, ok := ReadEvent("[2026-01-02 03:04:05] PEER_DEAD: Process 12 on node 192.0.2.1 managing GPU 1")
	want := Event{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "PEER_DEAD", 12, "192.0.2.1", "Process 12 on node 192.0.2.1 managing GPU 1"}
	if !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	if got, ok := ReadEvent("[2026-01-02 03:04:05] PEER_SEND_STUCK"); !ok || got.Name != "PEER_SEND_STUCK" || got.PID != 0 {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, line := range []string{"", "[x] PEER_DEAD: a", "[2026-01-02 03:04:05] peers", "[2026-01-02 03:04:05] PEER_dead"} {
		if got, ok := ReadEvent(line); ok {
			t.Errorf("%q is %+v", line, got)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, name := range []string{"text_2.24.txt", "text_2.30.txt"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	f.Fuzz(func(t *testing.T, text string) {
		ReadEvent(text)
		list, _ := ReadText(strings.NewReader(text))
		for i, rep := range list {
			Compare(list[0], rep, true)
			named := 0
			for _, c := range rep.Communicators {
				named += len(c.Missing)
				for _, levels := range c.Counts {
					for _, l := range levels {
						named += len(l.Ranks)
					}
				}
			}
			if named > len(text) {
				t.Errorf("report %d names %d ranks in %d bytes", i, named, len(text))
			}
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add(jsonJob("0xa", []int64{7, 6, 7}, 1))
	f.Add(`{"nccl_version": "", "communicators": [{"ranks": [{}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		rep, err := ReadJSON(strings.NewReader(text))
		if (rep == nil) == (err == nil) {
			t.Fatalf("%v, %v", rep, err)
		}
		if rep != nil {
			Compare(rep, rep, true)
		}
	})
}
