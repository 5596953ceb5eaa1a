package hanglab

import (
	"bytes"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/hanglab/diagnose"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		scenario string
		world    int
		outcome  Outcome
		class    diagnose.Class
		ranks    []int
		want     Judged
	}{
		{"control", 4, Finished, diagnose.NotAHang, nil, VerdictRight},
		{"control", 4, Finished, diagnose.Undecided, nil, VerdictBroader},
		{"control", 4, Finished, diagnose.RankCrash, []int{1}, VerdictWrong},
		{"size", 4, Hung, diagnose.SizeMismatch, []int{3}, VerdictRight},
		{"size", 4, Hung, diagnose.SizeMismatch, []int{2}, VerdictWrong},
		{"size", 4, Hung, diagnose.SizeMismatch, []int{2, 3}, VerdictWrong},
		{"size", 2, Hung, diagnose.SizeMismatch, []int{0, 1}, VerdictRight}, // two that disagree
		{"size", 4, Hung, diagnose.SizeMismatch, nil, VerdictBroader},
		{"size", 4, Hung, diagnose.DTypeMismatch, []int{3}, VerdictWrong},
		{"size", 4, Hung, diagnose.GPUStuckOrNetwork, nil, VerdictBroader},
		{"size", 4, Hung, diagnose.NotAHang, nil, VerdictWrong},
		{"size", 4, Finished, diagnose.NotAHang, nil, VerdictRight}, // a mismatch that did no harm
		{"skip_stop", 4, Hung, diagnose.RankStuckHost, []int{3}, VerdictRight},
		{"sendrecv_large", 4, Hung, diagnose.UnpairedP2P, []int{2, 3}, VerdictRight},
		{"sendrecv_large", 4, Hung, diagnose.UnpairedP2P, []int{0, 1}, VerdictWrong},
		{"netcut", 4, Hung, diagnose.Network, nil, VerdictRight},
		{"race", 4, WrongData, diagnose.NotAHang, nil, VerdictBroader},
		{"nan", 4, WrongData, diagnose.NotAHang, nil, VerdictWrong},
	} {
		sc, err := Find(c.scenario)
		if err != nil {
			t.Fatal(err)
		}
		r := &Report{Scenario: sc.Name, Class: sc.Class, World: c.world, Rank: c.world - 1, Outcome: c.outcome}
		if got := r.judge(&diagnose.Verdict{Class: c.class, Ranks: c.ranks}); got != c.want {
			t.Errorf("%s with %d ranks, %s: %s %v is %s, want %s", c.scenario, c.world, c.outcome, c.class, c.ranks, got, c.want)
		}
	}
}

func TestTableHasVerdict(t *testing.T) {
	var b bytes.Buffer
	table := NewTable(&b, &Plan{Engine: "host", World: 4})
	r := &Report{Scenario: "size", Outcome: Hung, Text: "rank 1 waits", Verdict: &diagnose.Verdict{Class: diagnose.SizeMismatch, Ranks: []int{3}}, Judged: VerdictRight}
	for _, res := range []Result{{Report: r}, {Report: &Report{Scenario: "skip", Outcome: Interrupted}}} {
		if err := table.Row(res); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{" verdict ", "size_mismatch 3 (right)", " -  "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}
