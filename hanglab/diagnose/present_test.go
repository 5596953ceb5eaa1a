package diagnose

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

var update = flag.Bool("update", false, "rewrite golden files")

func at(file string, line int, text, says string) Item {
	return Item{Where: evidence.Where{File: file, Line: line}, Text: text, Says: says}
}

func cells(text ...string) (out []PictureCell) {
	for _, s := range text {
		s, odd := strings.CutSuffix(s, "!")
		f := strings.Split(s, "/")
		if len(f) == 3 {
			out = append(out, PictureCell{Op: f[0], Size: f[1], State: f[2], Odd: odd})
		} else {
			out = append(out, PictureCell{Odd: odd})
		}
	}
	return out
}

// verdicts are made by hand: one of each shape that a screen must hold.
func verdicts() map[string]*Verdict {
	const ar = "all_reduce/"
	usual := cells(ar+"262144/C", ar+"327680/C", ar+"393216/S", "", "")
	skipped := cells(ar+"262144/C", ar+"327680/C", ar+"458752/S!", "", "")
	skip := &Verdict{
		Class: SkippedCollective, Ranks: []int{3}, Group: "0 (default_pg)", Sequence: 7, Op: "all_reduce", Confidence: 0.93,
		Summary: "Rank 3 left out the all_reduce of 393216 float that the others made as sequence 7, and went on with the next one.",
		Sizes:   []string{"rank 3: 458752 float", "ranks 0-2: 393216 float"}, Location: "hanglab/scenario_skip.go:15 (skip)",
		Alternatives: []Alternative{{SizeMismatch, []int{3}, 0.05}},
		Evidence: []Item{
			at("run/trace_3", 0, "all_reduce [458752] started", "its call 7 is the others' next one"),
			at("run/trace_0", 0, "all_reduce [393216] started", "three of four ranks agree on call 7"),
			at("run/rank_0.log", 19, "rank 0: time-out: communicator 0 (default_pg): all_reduce of 393216 float, sequence 7, is not complete 2 s after its enqueue", "rank 0 waits in call 7"),
		},
		Against: []Item{at("run/rank_2.log", 18, "event=done step=5", "rank 2 says that step 5 is done")},
		Next:    []string{"TORCH_DISTRIBUTED_DEBUG=DETAIL on a small run: it names the call before it hangs"},
		Fix:     "Make every rank take the same branch around this call: look for a condition that depends on the rank or on its data just before hanglab/scenario_skip.go:15.",
		Picture: &Picture{Group: "0", First: 5, Rows: []PictureRow{{0, false, usual}, {1, false, usual}, {2, false, usual}, {3, true, skipped}}},
	}
	mixed := &Verdict{
		Class: OrderMismatch, Ranks: []int{17, 903}, Group: "12 (data_parallel)", Sequence: 1999, Op: "all_gather", Confidence: 0.6,
		Summary: "Ranks 17 and 903 disagree about the order of two calls.",
		Sizes:   []string{"rank 17: all_gather", "rank 903: all_reduce"},
		Picture: &Picture{Group: "12", First: 1995, Left: []int{1, 2, 3, 900}},
	}
	for r, odd := range map[int]bool{17: false, 903: true} {
		row := PictureRow{Rank: r, Odd: odd}
		for range 4 {
			row.Cells = append(row.Cells, cells("reduce_scatter/16777216/C")...)
		}
		if odd {
			row.Cells = append(row.Cells, cells("all_reduce/16777216/Q!", "all_gather/16777216/Q!")...)
		} else {
			row.Cells = append(row.Cells, cells("all_gather/16777216/Q", "all_reduce/16777216/Q")...)
		}
		mixed.Picture.Rows = append(mixed.Picture.Rows, row)
	}
	long := &Verdict{
		Class: GPUStuckOrNetwork, Sequence: 808, Group: "default_pg", Op: "all_reduce", Confidence: 0.5,
		Summary: strings.Repeat("All ranks have launched the same call and none has finished it. ", 9),
		Fix:     strings.Repeat("Look at the links. ", 40),
	}
	for i := range 60 {
		long.Evidence = append(long.Evidence, at("rank.log", i+1, "\x1b[31mLast enqueued 808\x1b[0m, last completed 807", fmt.Sprintf("rank %d has enqueued 808 and completed 807", i)))
		long.Against = append(long.Against, at("ras.txt", i+1, "OK", fmt.Sprintf("RAS sees nothing on rank %d", i)))
		long.Next = append(long.Next, "stacks of all ranks (py-spy dump --pid N)")
		long.Sizes = append(long.Sizes, "rank "+strings.Repeat("9", 200))
	}
	return map[string]*Verdict{
		"skip": skip, "order": mixed, "long": long,
		"healthy":   {Class: NotAHang, Sequence: -1, Confidence: 0.9, Summary: "Every rank ran to its end."},
		"undecided": {Class: Undecided, Sequence: -1, Summary: "The input holds nothing about a hang.", Next: []string{"flight recorder dumps", "logs of all ranks"}},
	}
}

// golden compares with a file beside the test, or rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "present", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (-update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-update rewrites it):\n%s", path, diff)
	}
}

func TestWriteText(t *testing.T) {
	inputs := []evidence.Input{{Name: "run/trace_3", Kind: "flight_pickle", Bytes: 812, Rank: 3}, {Name: "run/x.zip", Kind: "unknown", Rank: -1, Err: "a zip bomb"}}
	for name, v := range verdicts() {
		for form, o := range map[string]TextOptions{
			"": {Inputs: inputs}, "_narrow": {Width: 72, Inputs: inputs}, "_all": {All: true, Inputs: inputs}, "_color": {Color: true},
		} {
			if name == "long" && o.All || name != "skip" && o.Color { // nothing new in them
				continue
			}
			t.Run(name+form, func(t *testing.T) {
				var b bytes.Buffer
				if err := v.WriteText(&b, o); err != nil {
					t.Fatal(err)
				}
				golden(t, name+form+".txt", b.String())
				lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
				if !o.All && len(lines) > textHeight {
					t.Errorf("%d lines, the screen has %d", len(lines), textHeight)
				}
				for _, line := range lines {
					width := max(o.Width, textWidth)
					if o.Width > 0 {
						width = o.Width
					}
					if n := utf8.RuneCountInString(line); n > width && !o.Color && !o.All {
						t.Errorf("%d columns: %s", n, line)
					}
					if strings.HasSuffix(line, " ") {
						t.Errorf("a space at the end of %q", line)
					}
				}
				if !o.Color && strings.Contains(b.String(), "\x1b") {
					t.Error("escape sequences where no colours were asked for")
				}
			})
		}
	}
}

// The document has the keys that scripts rely on, and no null.
func TestWriteJSON(t *testing.T) {
	for name, v := range verdicts() {
		var b bytes.Buffer
		if err := v.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"class", "ranks", "group", "sequence", "op", "sizes", "location", "confidence", "alternatives", "evidence", "against", "next", "fix"} {
			if value, ok := doc[key]; !ok || string(value) == "null" {
				t.Errorf("%s: %s is %q", name, key, value)
			}
		}
		if strings.Contains(b.String(), "null") {
			t.Errorf("%s has null:\n%s", name, &b)
		}
		var back Verdict
		if err := json.Unmarshal(b.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if back.Class != v.Class || len(back.Evidence) != len(v.Evidence) || back.Ranks == nil {
			t.Errorf("%s came back as %+v", name, back)
		}
		if name == "skip" {
			golden(t, "skip.json", b.String())
		}
	}
}

func TestHeadline(t *testing.T) {
	for want, v := range map[string]Verdict{
		"a rank did not come to a collective: rank 3":                {Class: SkippedCollective, Ranks: []int{3}},
		"a process ended: rank 4":                                    {Class: RankCrash, Ranks: []int{4, 4}},
		"different sizes in one call: these two disagree, ranks 0-1": {Class: SizeMismatch, Ranks: []int{1, 0}},
		"launched everywhere, finished nowhere":                      {Class: GPUStuckOrNetwork},
		"stuck in host code: ranks 0, 2-4":                           {Class: RankStuckHost, Ranks: []int{4, 0, 2, 3, 3}},
	} {
		if got := v.Headline(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
