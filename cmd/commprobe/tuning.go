package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl/ncclog"
)

// tuningEnv makes NCCL write what it chooses for each operation into files of their own.
func tuningEnv(dir string) []string {
	return []string{"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=TUNING", "NCCL_DEBUG_FILE=" + filepath.Join(dir, "nccl.%h.%p.log")}
}

// tuningPass runs every row once more with NCCL's TUNING log and notes in each row of run what NCCL chose. It comes after the measurement, in
// processes of its own, so that no log line disturbs a figure.
func (s *sweepRun) tuningPass(ctx context.Context, measured *bench.Sweep, run *result.Run) error {
	dir, err := os.MkdirTemp("", "commprobe-tuning-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sw := &bench.Sweep{
		Plan: tuningPlan(measured.Plan), Runs: 1, Command: measured.Command, Program: measured.Program, Listen: bench.ListenAddr,
		Token: measured.Token, Log: measured.Log, Stop: measured.Stop,
		Start: func(ctx context.Context, addr string, env []string) (bench.Workers, error) {
			return s.start(ctx, addr, append(slices.Clip(env), tuningEnv(dir)...), measured.Token)
		},
	}
	s.say("once more, to read from NCCL's log what it chooses for each size")
	if o := sw.Run(ctx).Outcome; o.Exit != bench.ExitOK {
		return errors.New(ending(&o))
	}
	log, err := ncclog.Open([]string{dir}, nil)
	if err != nil {
		return fmt.Errorf("NCCL's log: %w", err)
	}
	noteChoices(run, log)
	return nil
}

// tuningPlan is the plan with the fewest operations that have the same choices.
func tuningPlan(p bench.Plan) bench.Plan {
	p.Iters, p.ItersExact, p.Warmup, p.Check = 1, true, 0, 0
	p.QuietCores, p.Consistency, p.NaNCheck, p.Inject = false, false, false, bench.Inject{}
	p.Modes.Cycles, p.Modes.Graph, p.Modes.Blocking, p.Modes.Memory = 1, 0, 0, false
	return p
}

// loggedAs are NCCL's names of the functions that have a choice of algorithm; sends and receives have none.
var loggedAs = map[string]string{
	"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast", "reduce": "Reduce",
}

// noteChoices gives each row the choices that the log has for its function and size. Rows of several types share a size's choices.
func noteChoices(run *result.Run, log *ncclog.Log) {
	type key struct {
		function string
		bytes    int64
	}
	choices := make(map[key][]result.Choice)
	for _, c := range log.Comms {
		for _, sel := range c.Selections {
			choice := result.Choice{Kind: sel.Kind, Algo: sel.Algo, Proto: sel.Proto, Kernel: sel.Kernel, Channels: sel.Channels}
			if sel.ChannelLo >= 0 && sel.ChannelHi >= sel.ChannelLo {
				choice.ChannelLo, choice.ChannelHi = sel.ChannelLo, sel.ChannelHi
				choice.Channels = sel.ChannelHi - sel.ChannelLo + 1
			}
			k := key{sel.Func, sel.Bytes}
			if !slices.Contains(choices[k], choice) {
				choices[k] = append(choices[k], choice)
			}
		}
	}
	known := 0
	for i := range run.Rows {
		row := &run.Rows[i]
		if name := loggedAs[row.Collective]; name != "" {
			row.Choices = choices[key{name, int64(row.Bytes)}]
		}
		if len(row.Choices) > 0 {
			known++
		}
	}
	if known == 0 {
		run.Notes = append(run.Notes, result.Note{Severity: "info", Text: "--tuning: NCCL's log has no choice for any row (before 2.20 NCCL does not print them, and sends and receives have none)"})
	}
}
