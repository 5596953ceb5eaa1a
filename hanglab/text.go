package hanglab

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

// Result is one of several scenarios' runs. Err: it did not take place.
type Result struct {
	Scenario Scenario
	Report   *Report
	Err      error
}

// MarshalJSON writes the scenario's name, and the report or why there is none.
func (r Result) MarshalJSON() ([]byte, error) {
	v := struct {
		Scenario string  `json:"scenario"`
		Report   *Report `json:"report,omitempty"`
		Error    string  `json:"error,omitempty"`
	}{Scenario: r.Scenario.Name, Report: r.Report}
	if r.Err != nil {
		v.Error = r.Err.Error()
	}
	return json.Marshal(v)
}

// Good tells whether the laboratory did its part: the scenario ran, and what it caused was caught or ended by itself.
func (r Result) Good() bool {
	return r.Err == nil && r.Report.Outcome != NotCaught && r.Report.Outcome != Failed && r.Report.Outcome != Interrupted
}

// Table shows several runs, a line each.
type Table struct {
	w io.Writer
}

const tableForm = "%-15s %-11s %7s %7s %7s  %-38s %s\n"

// NewTable writes the head: what was run and the columns.
func NewTable(w io.Writer, p *Plan) *Table {
	sizes := "growing"
	if p.Constant {
		sizes = "constant"
	}
	fmt.Fprintf(w, "%s engine, %d ranks, rank %d odd in step %d of %d, %s sizes from %d floats, deadline %v (making a communicator %v), mode %d (%v)\n\n",
		p.Engine, p.World, p.Rank, p.Step, p.Steps, sizes, p.Unit, p.Op, p.Init, p.Mode, p.Mode)
	fmt.Fprintf(w, tableForm, "scenario", "outcome", "caught", "dumped", "ended", "verdict", "what happened")
	fmt.Fprintf(w, tableForm, "", "", "after s", "after s", "after s", "", "")
	return &Table{w}
}

// Row writes one scenario's line.
func (t *Table) Row(r Result) error {
	if r.Err != nil {
		_, err := fmt.Fprintf(t.w, tableForm, r.Scenario.Name, "not run", "-", "-", "-", "-", r.Err)
		return err
	}
	p := r.Report
	_, err := fmt.Fprintf(t.w, tableForm, p.Scenario, p.Outcome, secs(p.DetectedS), secs(p.DumpsS), secs(p.EndedS), p.verdictCell(), cut(p.Text, 150))
	return err
}

// Close writes what the columns mean, and where to read on.
func (t *Table) Close(all []Result) error {
	late, where := -1.0, ""
	for _, r := range all {
		if r.Err == nil {
			late, where = max(late, r.Report.LateS), r.Report.Dir
		}
	}
	fmt.Fprintf(t.w, "\ncaught: the first alarm, from the call it is about; dumped, ended: the last rank's dump and process, from the first alarm.\n")
	fmt.Fprintf(t.w, "verdict: what commprobe diagnose makes of dumps and logs, without knowing the fault; right, wrong, or broader (true, but it says less).\n")
	if late >= 0 {
		fmt.Fprintf(t.w, "The latest watchdog spoke %.3f s after its deadline.\n", late)
	}
	_, err := fmt.Fprintf(t.w, "Dumps, logs and time lines: one folder a scenario, such as %s\n", where)
	return err
}

func secs(s float64) string {
	if s < 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", s)
}

func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// WriteText writes a report for people: what happened, how soon it was seen, what each rank did.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	sizes := "growing sizes"
	if r.Constant {
		sizes = "constant sizes"
	}
	fmt.Fprintf(&b, "%s on the %s engine (%s), %d ranks, rank %d odd in step %d, %s, deadline %gs\n\n", r.Scenario, r.Engine, r.Library, r.World, r.Rank, r.Step, sizes, r.OpS)
	fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(string(r.Outcome)), r.Text)
	if r.DetectedS >= 0 {
		fmt.Fprintf(&b, "Caught %.3f s after the call; dumps %s s, last process %s s after the alarm.\n", r.DetectedS, secs(r.DumpsS), secs(r.EndedS))
	}
	if c := r.CheckCost; c != nil {
		fmt.Fprintf(&b, "Comparing calls cost %.0f us a call (%d calls a rank).\n", c.EachUS, c.Calls)
	}
	fmt.Fprintf(&b, "\n%5s  %5s  %-22s %-10s %s\n", "rank", "steps", "end", "dump", "last doing / own watchdog")
	for _, g := range foldRanks(r.Ranks) {
		fmt.Fprintf(&b, "%5s  %5d  %-22s %-10s %s\n", g.ranks, g.StepsDone, g.End, orDash(g.DumpBy), g.what())
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	fmt.Fprintf(&b, "\nWhat happened, in order\n\n")
	if err := r.Timeline.WriteText(&b); err != nil {
		return err
	}
	if err := r.writeVerdict(&b); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nFiles in %s: trace_N, json_N, rank_N.log, %s, %s, %s\n", r.Dir, launcherName, timelineName, reportName)
	_, err := io.WriteString(w, b.String())
	return err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// folded is ranks that did the same.
type folded struct {
	RankReport
	ranks string
	list  []int
}

func (f *folded) what() string {
	text := f.Phase
	if f.Heard && f.Waited == "" {
		text += "; heard of another rank's alarm"
	}
	for _, x := range f.WrongData {
		text += fmt.Sprintf("; wrong data in step %d (%s: %d of %d elements, element %d is %s instead of %s)", x.Step, x.Call, x.Bad, x.Of, x.First, x.Got, x.Want)
		break
	}
	return text
}

// foldRanks puts ranks with equal stories into one line, in the order of their first ranks.
func foldRanks(ranks []RankReport) []*folded {
	var out []*folded
	for _, r := range ranks {
		f := &folded{RankReport: r}
		i := 0
		for ; i < len(out); i++ {
			o := out[i]
			if o.StepsDone == f.StepsDone && o.End == f.End && o.DumpBy == f.DumpBy && o.what() == f.what() {
				break
			}
		}
		if i == len(out) {
			out = append(out, f)
		}
		out[i].list = append(out[i].list, r.Rank)
		out[i].ranks = bootstrap.FormatRanks(out[i].list)
	}
	return out
}
