package hanglab

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/commprobe/commprobe/hanglab/diagnose"
	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// launcherName has what any launcher prints of its processes' ends. The fault itself is not in it.
const launcherName = "launcher.log"

// writeLauncher writes how the ranks' processes ended, and which of them were killed because they no longer answered.
func (r *run) writeLauncher() error {
	return flight.WriteWhole(filepath.Join(r.Plan.Dir, launcherName), func(w io.Writer) error {
		for _, m := range r.events {
			if m.Rank >= 0 || m.Name != "process_end" && m.Name != "killed_by_supervisor" {
				continue
			}
			line := fmt.Sprintf("%srank=%s event=%s mono_ns=%d", markerWord, m.Fields["rank"], m.Name, int64(m.At))
			for _, name := range []string{"code", "signal", "why"} {
				if v := m.Fields[name]; v != "" {
					line += " " + name + "=" + strconv.Quote(v)
				}
			}
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
		return nil
	})
}

// diagnose says what the run's folder would tell a stranger: dumps and logs, without the supervisor's own knowledge.
func (r *run) diagnose() {
	var paths []string
	for rank := range r.Plan.World {
		for _, name := range []string{flight.PicklePrefix + strconv.Itoa(rank), fmt.Sprintf("rank_%d.log", rank)} {
			paths = append(paths, filepath.Join(r.Plan.Dir, name))
		}
	}
	paths = append(paths, filepath.Join(r.Plan.Dir, launcherName))
	paths = slices.DeleteFunc(paths, func(p string) bool {
		_, err := os.Stat(p)
		return err != nil
	})
	e, err := evidence.Read(paths, evidence.Options{})
	if err != nil {
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("no verdict: %v", err))
		return
	}
	r.report.Verdict = diagnose.Diagnose(e)
	r.report.Judged = r.report.judge(r.report.Verdict)
}

// Judged is how a verdict compares with what was planted.
type Judged string

// What a verdict may be.
const (
	VerdictRight   Judged = "right"
	VerdictBroader Judged = "broader" // true, but it says less: no rank, or a wider class
	VerdictWrong   Judged = "wrong"
)

// also are classes that are right as well, since the evidence is the same.
var also = map[string][]diagnose.Class{
	"skip_stop": {diagnose.RankStuckHost}, // a rank that does not come: only its program knows whether it ever would have
	"straggler": {diagnose.NotAHang},      // it ended well
	"cold_comm": {diagnose.CrossedComms},
}

// judge compares a verdict with what was planted, in the run that really happened.
func (r *Report) judge(v *diagnose.Verdict) Judged {
	classes := append([]diagnose.Class{diagnose.Class(r.Class)}, also[r.Scenario]...)
	if r.Class == "" || r.Outcome == Finished { // nothing was to be seen
		classes = append(classes, diagnose.NotAHang)
	}
	right := slices.Contains(classes, v.Class)
	switch {
	case right && (v.Class == diagnose.NotAHang || v.Class == diagnose.Network) && len(v.Ranks) == 0, right && r.names(v.Ranks):
		return VerdictRight
	case len(v.Ranks) == 0 && (right || v.Class == diagnose.GPUStuckOrNetwork || v.Class == diagnose.Undecided),
		r.Scenario == "race" && v.Class == diagnose.NotAHang: // true as it is; no evidence but the data shows the race
		return VerdictBroader
	}
	return VerdictWrong
}

// names tells whether ranks are the odd one, or the odd one and its partner where no majority can tell who is right.
func (r *Report) names(ranks []int) bool {
	if !slices.Contains(ranks, r.Rank) {
		return false
	}
	pair := r.World == 2 || r.Class == string(diagnose.UnpairedP2P) || r.Class == string(diagnose.EnvMismatch)
	return len(ranks) == 1 || len(ranks) == 2 && pair || r.Class == string(diagnose.Network)
}

// verdictCell is a verdict in a table's column: class, ranks, and whether that is right.
func (r *Report) verdictCell() string {
	if r.Verdict == nil {
		return "-"
	}
	s := string(r.Verdict.Class)
	if len(r.Verdict.Ranks) > 0 {
		s += " " + cut(bootstrap.FormatRanks(r.Verdict.Ranks), 12)
	}
	return fmt.Sprintf("%s (%s)", s, r.Judged)
}

// writeVerdict writes what the evidence says, and how that compares.
func (r *Report) writeVerdict(w io.Writer) error {
	if r.Verdict == nil {
		return nil
	}
	if _, err := fmt.Fprintf(w, "\nVerdict from dumps and logs alone (%s)\n\n", r.Judged); err != nil {
		return err
	}
	return r.Verdict.WriteText(w, diagnose.TextOptions{})
}
