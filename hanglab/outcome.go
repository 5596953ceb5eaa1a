package hanglab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/hanglab/diagnose"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/hanglab/timeline"
	"github.com/commprobe/commprobe/hanglab/watch"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
	"github.com/commprobe/commprobe/internal/rankset"
)

// Files of a run's folder beside dumps and logs.
const (
	reportName   = "run.json"
	timelineName = "timeline.txt"
)

// Outcome is what really happened, as recorded: a mismatch may do any of these.
type Outcome string

// The outcomes.
const (
	Finished    Outcome = "finished"    // every rank ran to its end with right data
	WrongData   Outcome = "wrong data"  // every rank ran to its end, and a result was wrong
	Hung        Outcome = "hung"        // operations or the making of a communicator did not end, and the watchdog caught it
	Died        Outcome = "rank died"   // a rank's process ended by itself before its program's end
	Named       Outcome = "named"       // --check-calls named the fault before anything hung
	Refused     Outcome = "refused"     // NCCL itself refused
	Failed      Outcome = "failed"      // a rank's program ended with an error of another kind
	NotCaught   Outcome = "not caught"  // the fuse ended it: no watchdog had spoken
	Interrupted Outcome = "interrupted" // by the user
)

// Exit is the program's exit status for an outcome.
func (o Outcome) Exit() int {
	switch o {
	case Finished:
		return bench.ExitOK
	case WrongData:
		return bench.ExitWrongData
	case Hung:
		return bench.ExitTimeout
	case Died:
		return bench.ExitDied
	case Named, Refused:
		return bench.ExitFindings
	case Interrupted:
		return bench.ExitInterrupted
	}
	return bench.ExitInternal
}

// Report is what a run did. Times are seconds; -1 where there is no such time.
type Report struct {
	Scenario string   `json:"scenario"`
	Class    string   `json:"class"` // the verdict that the planted fault deserves
	Engine   string   `json:"engine"`
	Library  string   `json:"library"`
	World    int      `json:"world"`
	Rank     int      `json:"rank"`
	Step     int      `json:"step"`
	Unit     int      `json:"unit"` // elements of step 0
	Constant bool     `json:"constant"`
	Checks   bool     `json:"check_calls"`
	Mode     int      `json:"mode"`
	OpS      float64  `json:"op_timeout_s"`
	InitS    float64  `json:"init_timeout_s"`
	Dir      string   `json:"dir"`
	Env      []string `json:"env,omitempty"` // NCCL's variables that were set

	Outcome Outcome `json:"outcome"`
	Exit    int     `json:"exit"`
	Text    string  `json:"text"`            // one sentence
	Named   []int   `json:"named,omitempty"` // ranks that --check-calls named

	DetectedS float64 `json:"detected_after_s"` // the first alarm, from the call that it is about
	LateS     float64 `json:"late_s"`           // the latest of the ranks' own time-outs, past its deadline
	DumpsS    float64 `json:"dumps_after_s"`    // the last dump that a rank wrote itself, from the first alarm
	EndedS    float64 `json:"ended_after_s"`    // the last process's end, from the first alarm
	TookS     float64 `json:"took_s"`           // all of it, from when all ranks had joined

	Alarm       *watch.Reason `json:"alarm,omitempty"`
	Fused       bool          `json:"fused,omitempty"`
	Interrupted bool          `json:"interrupted,omitempty"`
	Ranks       []RankReport  `json:"ranks"`
	Notes       []string      `json:"notes,omitempty"`

	CheckCost *CheckCost     `json:"check_calls_cost,omitempty"`
	Timeline  *timeline.Line `json:"timeline"`

	Verdict *diagnose.Verdict `json:"verdict,omitempty"`        // from the dumps and logs alone
	Judged  Judged            `json:"verdict_judged,omitempty"` // against what was planted
}

// RankReport is what one rank did.
type RankReport struct {
	Rank      int     `json:"rank"`
	PID       int     `json:"pid"`
	Host      string  `json:"host"`
	Device    string  `json:"device"`
	StepsDone int     `json:"steps_done"`
	WrongData []Wrong `json:"wrong_data,omitempty"`
	Waited    string  `json:"waited,omitempty"` // the line of its own watchdog
	Heard     bool    `json:"heard,omitempty"`  // of another rank's alarm
	DumpBy    string  `json:"dump_by"`          // "rank", "supervisor"; empty: none
	Phase     string  `json:"phase"`            // the last thing that its thread did
	End       string  `json:"end"`
	ByItself  bool    `json:"ended_by_itself"` // before its program's end, and not through its watchdog
}

// Wrong is a result that was not what it should be.
type Wrong struct {
	Step  int    `json:"step"`
	Call  string `json:"call"`
	Bad   int    `json:"elements"`
	Of    int    `json:"of"`
	First int    `json:"first"`
	Want  string `json:"want"`
	Got   string `json:"got"`
}

// CheckCost is what comparing calls cost, mean over ranks.
type CheckCost struct {
	Calls  int     `json:"calls"`
	EachUS float64 `json:"each_us"`
}

func newReport(p *Plan, sc Scenario) *Report {
	r := &Report{
		Scenario: sc.Name, Class: sc.Class, Engine: p.Engine, World: p.World, Rank: p.Rank, Step: p.Step, Unit: p.Unit, Constant: p.Constant || sc.Constant,
		Checks: p.CheckCalls, Mode: int(p.Mode), OpS: p.Op.Seconds(), InitS: p.Init.Seconds(), Dir: p.Dir, DetectedS: -1, LateS: -1, DumpsS: -1, EndedS: -1,
		Ranks: make([]RankReport, p.World),
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "NCCL_") {
			r.Env = append(r.Env, kv)
		}
	}
	for i := range r.Ranks {
		r.Ranks[i].Rank = i
	}
	return r
}

// ended notes how a rank's process ended.
func (r *Report) ended(rank int, e launch.Exit) {
	rr := &r.Ranks[rank]
	rr.PID = e.PID
	switch {
	case e.Err != nil:
		rr.End = e.Err.Error()
	case e.Signal != 0:
		rr.End = "killed by " + launch.SignalName(e.Signal)
	default:
		rr.End = fmt.Sprintf("exit status %d", e.Code)
	}
}

// judge works out from the recorded events what happened.
func (r *run) judge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.events {
		if m := &r.events[i]; m.Rank >= 0 {
			offset, _ := r.clockOffset(m.Rank)
			m.At += offset
		}
	}
	slices.SortStableFunc(r.events, func(a, b marker) int { return int(a.At - b.At) })
	p := r.report
	for rank, c := range r.clocks {
		p.Ranks[rank].Host, p.Ranks[rank].Device, p.Library = c.Host, c.Device, c.Library
	}
	t := newTally(r)
	for _, m := range r.events {
		t.add(m)
	}
	t.finish()
	p.TookS = (now() - r.began).Seconds()
	p.Outcome, p.Text = t.outcome()
	p.Exit = p.Outcome.Exit()
}

// tally goes through the events of a run once.
type tally struct {
	r *run

	own, named, refused, failed    []marker     // time-outs and errors of the ranks' own watchdogs, and so on
	inOrder, killed, wrong, dumped map[int]bool // by rank
	lastDump, lastEnd              time.Duration

	checkRanks, checkCalls int
	checkUS                float64
}

func newTally(r *run) *tally {
	return &tally{r: r, inOrder: make(map[int]bool), killed: make(map[int]bool), wrong: make(map[int]bool), dumped: make(map[int]bool)}
}

func (t *tally) add(m marker) {
	about := m.Rank
	if about < 0 {
		about = m.number("rank")
	}
	if about < 0 {
		return
	}
	rr := &t.r.report.Ranks[about]
	switch m.Name {
	case "done":
		rr.StepsDone = m.number("step") + 1
	case "wrong_data":
		t.wrong[about] = true
		rr.WrongData = append(rr.WrongData, Wrong{
			Step: m.number("step"), Call: m.Fields["call"], Bad: m.number("elements"), Of: m.number("of"), First: m.number("first"),
			Want: m.Fields["want"], Got: m.Fields["got"],
		})
	case "watchdog", "async_error":
		t.watchdog(m, rr)
	case "heard":
		rr.Heard = true
	case "dump":
		if t.r.alarm != 0 && m.At >= t.r.alarm && !t.dumped[about] {
			t.lastDump, t.dumped[about] = m.At, true
		}
	case "check_calls":
		t.named = append(t.named, m)
		t.r.report.Named = rankset.Unfold(m.Fields["ranks"] + m.Fields["missing"])
	case "check_cost":
		t.checkRanks++
		t.checkCalls = max(t.checkCalls, m.number("calls"))
		t.checkUS += float64(m.number("each_ns")) / 1e3
	case "init_failed":
		t.refused = append(t.refused, m)
	case "failed":
		t.failed = append(t.failed, m)
	case "exit", "exit_ok":
		t.inOrder[about] = true
	case "killed_by_supervisor":
		t.killed[about] = true
	case "process_end":
		t.lastEnd = m.At
	}
}

func (t *tally) watchdog(m marker, rr *RankReport) {
	switch watch.ReportKind(m.Fields["kind"]) {
	case watch.OpTimeout, watch.InitTimeout, watch.CommError, watch.Stuck:
	default:
		return
	}
	if rr.Waited == "" {
		rr.Waited = m.Fields["text"]
	}
	t.own = append(t.own, m)
	deadline := t.r.Plan.Op
	switch watch.ReportKind(m.Fields["kind"]) {
	case watch.InitTimeout:
		deadline = t.r.Plan.Init
	case watch.CommError, watch.Stuck:
		return
	}
	took := time.Duration(m.number("for_ms")) * time.Millisecond
	t.r.report.LateS = max(t.r.report.LateS, (took - deadline).Seconds())
}

func (t *tally) finish() {
	p := t.r.report
	if len(t.own) > 0 {
		first := t.own[0]
		p.DetectedS = float64(first.number("for_ms")) / 1e3
		if watch.ReportKind(first.Fields["kind"]) == watch.CommError {
			p.DetectedS = (first.At - t.faultAt()).Seconds()
		}
	}
	if alarm := t.r.alarm; alarm != 0 {
		p.DumpsS, p.EndedS = max(0, (t.lastDump-alarm).Seconds()), (t.lastEnd - alarm).Seconds()
	}
	for i := range p.Ranks {
		rr := &p.Ranks[i]
		rr.ByItself = !t.inOrder[i] && !t.killed[i] && rr.End != "exit status 0"
	}
	if t.checkRanks > 0 {
		p.CheckCost = &CheckCost{Calls: t.checkCalls, EachUS: t.checkUS / float64(t.checkRanks)}
	}
}

// faultAt is when the fault was planted, or when the run began.
func (t *tally) faultAt() time.Duration {
	for _, m := range t.r.events {
		if m.Name == "inject" {
			return m.At
		}
	}
	return t.r.began
}

// outcome is the class of what happened and a sentence about it. The planted fault has no part in it.
func (t *tally) outcome() (Outcome, string) {
	p := t.r.report
	var died []string
	for _, rr := range p.Ranks {
		if rr.ByItself && !t.hasFailed(rr.Rank) {
			died = append(died, fmt.Sprintf("rank %d: %s", rr.Rank, rr.End))
		}
	}
	hung := ""
	if len(t.own) > 0 {
		hung = t.own[0].Fields["text"]
	}
	switch {
	case p.Interrupted:
		return Interrupted, "stopped by the user"
	case len(t.named) > 0:
		return Named, t.named[0].Fields["text"]
	case len(died) > 0 && hung != "":
		return Died, strings.Join(died, ", ") + "; then " + hung
	case len(died) > 0:
		return Died, strings.Join(died, ", ")
	case len(t.refused) > 0 && hung == "":
		return Refused, t.refused[0].Fields["error"]
	case hung != "":
		return Hung, hung
	case p.Fused:
		return NotCaught, "the fuse ended the run: no watchdog had spoken"
	case len(t.failed) > 0:
		return Failed, fmt.Sprintf("rank %d: %s", t.failed[0].Rank, t.failed[0].Fields["error"])
	case len(t.wrong) > 0:
		return WrongData, t.wrongText()
	}
	return Finished, "every rank ran to its end with right data"
}

func (t *tally) hasFailed(rank int) bool {
	return slices.ContainsFunc(t.failed, func(m marker) bool { return m.Rank == rank })
}

func (t *tally) wrongText() string {
	var ranks []int
	first := Wrong{Step: 1 << 30}
	on := -1
	for _, rr := range t.r.report.Ranks {
		if len(rr.WrongData) > 0 {
			ranks = append(ranks, rr.Rank)
			if rr.WrongData[0].Step < first.Step {
				first, on = rr.WrongData[0], rr.Rank
			}
		}
	}
	text := fmt.Sprintf("every rank ran to its end, but data is wrong on %s, first in step %d: rank %d's %s has %d of %d elements wrong, element %d is %s instead of %s",
		bootstrap.NameRanks(ranks), first.Step, on, first.Call, first.Bad, first.Of, first.First, first.Got, first.Want)
	for _, m := range t.r.events {
		if m.Name == "nan_input" {
			return fmt.Sprintf("NaN from rank %d's input, element %s: %s", m.Rank, m.Fields["element"], text)
		}
	}
	return text
}

// write writes the report and the time line into the run's folder.
func (r *run) write() error {
	if err := flight.WriteWhole(filepath.Join(r.Plan.Dir, timelineName), r.report.Timeline.WriteText); err != nil {
		return err
	}
	return flight.WriteWhole(filepath.Join(r.Plan.Dir, reportName), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(r.report)
	})
}
