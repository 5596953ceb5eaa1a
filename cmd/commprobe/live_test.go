package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/live"
)

// TestLiveCollect looks at a job of four ranks that hangs while it hangs: rank 3 sleeps, and rank 1 is stopped as well. It must stay as it was.
func TestLiveCollect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sit(t)
	j := start(t, nil, "hang", "run", "stuck", "--mode", "0", "--engine", "host", "-g", "4", "-T", "20", "--out", dir)
	reached := func(rank string) bool {
		text, err := os.ReadFile(filepath.Join(dir, "rank_"+rank+".log"))
		return err == nil && strings.Contains(string(text), "step=5")
	}
	if !eventually(patience, func() bool { return reached("0") && reached("1") && reached("2") && reached("3") }) {
		t.Fatal("step 5 was not reached")
	}
	stopped := j.worker(t, 1).pid
	// What a rank noticed of its calls comes with its watchdog's next round.
	complete := func() bool {
		e, err := live.Collect(t.Context(), live.Targets{PIDs: []int{stopped}, Job: true}, live.Options{RASAddr: "-"})
		return err == nil && len(e.Dumps) == 4 && lastCalls(e) == [4]int64{7, 7, 7, 6}
	}
	if !eventually(patience, complete) {
		t.Fatal("the ranks' rings never showed three ranks in the call that rank 3 does not make")
	}
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	e, err := live.Collect(t.Context(), live.Targets{PIDs: []int{j.worker(t, 0).pid}, Job: true}, live.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := lastCalls(e); got != [4]int64{7, 7, 7, 6} {
		t.Errorf("last calls %v", got)
	}
	states := make(map[int]string)
	for _, s := range e.Stacks {
		states[s.Rank] = s.State
	}
	if len(states) != 4 || states[1] != "T" || states[3] == "T" || states[0] == "T" {
		t.Errorf("states %v", states)
	}
	if !slices.ContainsFunc(e.Facts, func(f evidence.Fact) bool { return f.Kind == evidence.Stopped && f.Rank == 1 && f.PID == stopped }) {
		t.Error("no fact about the stopped rank")
	}
	if !slices.ContainsFunc(e.Inputs, func(in evidence.Input) bool {
		return in.Kind == live.NotCollected && strings.Contains(in.Name, "RAS")
	}) {
		t.Error("nothing said about RAS, which the host engine does not have")
	}
	if len(j.processes()) < 5 {
		t.Error("a process is gone")
	}
	for _, signal := range []struct {
		pid int
		sig syscall.Signal
	}{{stopped, syscall.SIGCONT}, {j.cmd.Process.Pid, syscall.SIGINT}} {
		if err := syscall.Kill(signal.pid, signal.sig); err != nil {
			t.Fatal(err)
		}
	}
	j.exit(t, patience)
	j.nothingLeft(t, 10*time.Second)
}

// lastCalls are the sequence numbers that four ranks enqueued last.
func lastCalls(e *evidence.Evidence) (out [4]int64) {
	for _, d := range e.Dumps {
		if d.Data != nil && d.Rank >= 0 && d.Rank < 4 && len(d.Data.Status) > 0 {
			out[d.Rank] = d.Data.Status[0].LastEnqueued
		}
	}
	return out
}
