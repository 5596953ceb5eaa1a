package diagnose

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

func inputsOf(kind, form string, ranks ...int) (out []evidence.Input) {
	for _, r := range ranks {
		out = append(out, evidence.Input{Name: fmt.Sprintf(form, r), Kind: kind, Rank: r})
	}
	return out
}

func TestNotes(t *testing.T) {
	fact := func(kind evidence.FactKind, detail string, line int) evidence.Fact {
		return evidence.Fact{Kind: kind, Detail: detail, Rank: -1, Where: evidence.Where{File: "job.out", Line: line}}
	}
	limit := fact(evidence.Cancelled, "time limit", 9)
	limit.Time = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	stopped := fact(evidence.Traceback, "", 5)
	stopped.Op = "KeyboardInterrupt"
	two := append(inputsOf("flight_pickle", "a/trace_%d", 0, 1), inputsOf("flight_pickle", "b/trace_%d", 0, 1)...)
	twins := append(inputsOf("flight_pickle", "dump/trace_%d", 0, 1), inputsOf("flight_json", "json/trace_%d", 0, 1)...)
	for name, tt := range map[string]struct {
		e         evidence.Evidence
		want, ask []string
	}{
		"nothing": {e: evidence.Evidence{Inputs: inputsOf("log", "rank_%d.log", 0, 1, 2, 3)}},
		"a gap": {e: evidence.Evidence{Inputs: inputsOf("log", "rank_%d.log", 0, 1, 2, 3, 5)},
			want: []string{"there is no log of rank 4, and 5 of ranks 0-5"}, ask: []string{"the log of rank 4: the only one that is missing"}},
		"few files":      {e: evidence.Evidence{Inputs: inputsOf("log", "rank_%d.log", 0, 2, 3)}},
		"a part of them": {e: evidence.Evidence{Inputs: inputsOf("log", "rank_%d.log", 8, 9, 10, 11)}},
		"one without":    {e: evidence.Evidence{Inputs: append(inputsOf("log", "rank_%d.log", 0, 1, 2, 3, 5), evidence.Input{Name: "x.log", Kind: "log", Rank: -1})}},
		"two folders":    {e: evidence.Evidence{Inputs: two}, want: []string{"ranks 0-1 have a dump in each of a, b: these are two jobs, or two moments of one, and a verdict can be of one only; name one folder at a time"}},
		"a dump's forms": {e: evidence.Evidence{Inputs: twins}},
		"limit":          {e: evidence.Evidence{Facts: []evidence.Fact{fact(evidence.Cancelled, "cancelled", 3), limit}}, want: []string{"the job came to its time limit (job.out:9) at 04:05:06: ends and lost connections after that follow from it"}},
		"interrupt":      {e: evidence.Evidence{Facts: []evidence.Fact{stopped}}, want: []string{"somebody interrupted the program (Ctrl-C): its tracebacks show where each rank was then, and are no failures"}},
		"started again":  {e: evidence.Evidence{Facts: []evidence.Fact{fact(evidence.Restarted, "torchrun", 7)}}, want: []string{"the launcher started all ranks again (job.out:7): what stands before that is of an earlier attempt, which failed too"}},
		"names say none": {e: evidence.Evidence{Inputs: []evidence.Input{{Name: "1", Kind: "log", Rank: -1}, {Name: "2", Kind: "log", Rank: -1}, {Name: "3", Kind: "log", Rank: -1}, {Name: "4", Kind: "log", Rank: -1}},
			Facts: []evidence.Fact{{Rank: 0, Where: evidence.Where{File: "1"}}, {Rank: 1, Where: evidence.Where{File: "2"}}, {Rank: 2, Where: evidence.Where{File: "3"}}, {Rank: 4, Where: evidence.Where{File: "4"}}}},
			want: []string{"there is no log of rank 3, and 4 of ranks 0-4"}, ask: []string{"the log of rank 3: the only one that is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ask := notes(&tt.e)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.ask, ask); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Alternatives never have more than the verdict leaves, in any of the three forms; the verdict's own numbers stay.
func TestAlternativesFit(t *testing.T) {
	v := &Verdict{Class: RankCrash, Ranks: []int{2}, Confidence: 0.92, Sequence: -1, Alternatives: []Alternative{{Network, nil, 0.8}, {OOMHost, []int{2}, 0.05}}, Notes: []string{"a remark"}}
	var text, doc, page strings.Builder
	for _, err := range []error{v.WriteText(&text, TextOptions{}), v.WriteJSON(&doc), v.WriteHTML(&page, nil, "x")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range map[string]string{"text": text.String(), "page": page.String()} {
		if !strings.Contains(s, "(0.08)") || strings.Contains(s, "0.80") || !strings.Contains(s, "a remark") {
			t.Errorf("%s:\n%s", name, s)
		}
	}
	if !strings.Contains(doc.String(), `"confidence": 0.08`) || !strings.Contains(doc.String(), `"confidence": 0.05`) || v.Alternatives[0].Confidence != 0.8 {
		t.Error(doc.String())
	}
}

func TestCountInputs(t *testing.T) {
	in := []evidence.Input{{Kind: "gdb"}, {Kind: "pyspy"}, {Kind: "log"}, {Kind: "empty"}, {Kind: "empty"}}
	if got, want := countInputs(in), "2 empty files, 1 log, 2 reports of stacks"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
