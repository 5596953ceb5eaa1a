// Package doctor checks whether a node is set up as it should be before a job runs on it. It only reads: files below a root folder, and plain data about
// GPUs, so that a recorded tree gives the same report as the machine it was taken from. It starts no command and changes nothing.
//
// A check has four answers: ok, warn (it works, but costs or surprises), fault (jobs fail, hang or crawl), and cannot tell, with the reason. What does not
// apply to a machine is skipped, also with the reason. One file an area holds its checks (area_*.go); a new one is a row in the table there.
package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Schema names the JSON form of Report.
const Schema = "commprobe/doctor/1"

// Status is a check's answer.
type Status string

// The answers, the worst first.
const (
	Fault      Status = "fault"
	Warn       Status = "warn"
	CannotTell Status = "cannot tell"
	OK         Status = "ok"
)

var byWeight = []Status{Fault, Warn, CannotTell, OK}

func (s Status) weight() int { return slices.Index(byWeight, s) }

// Result is what one check found.
type Result struct {
	ID     string   `json:"id"`
	Area   string   `json:"area"`
	Title  string   `json:"title"`
	Status Status   `json:"status"`
	Found  []string `json:"found"`         // one fact each, what decided the status first
	Why    string   `json:"why"`           // why it matters
	Fix    []string `json:"fix,omitempty"` // commands or steps
	Source string   `json:"source"`        // where the rule comes from
}

// Skip is a check that does not apply here.
type Skip struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Report is what was found on one node.
type Report struct {
	Schema   string            `json:"schema"`
	Host     string            `json:"host"`
	Machine  string            `json:"machine"` // what it is, in a line
	Time     time.Time         `json:"time"`    // by the node's own clock
	Results  []Result          `json:"results"`
	Skipped  []Skip            `json:"skipped,omitempty"`
	Facts    map[string]string `json:"facts"`              // what should be equal on all nodes of a job; see Compare
	Warnings []string          `json:"warnings,omitempty"` // lines of input that could not be read, as file:line: text
	// Received is when the caller had the report, by the caller's clock; it lets Compare tell clocks that are apart.
	Received *time.Time `json:"received,omitempty"`
}

// Count is how many results have a status.
func (r *Report) Count(s Status) int {
	n := 0
	for _, x := range r.Results {
		if x.Status == s {
			n++
		}
	}
	return n
}

// Get finds the result of a check, or nil when it was skipped or is not known.
func (r *Report) Get(id string) *Result {
	if i := slices.IndexFunc(r.Results, func(x Result) bool { return x.ID == id }); i >= 0 {
		return &r.Results[i]
	}
	return nil
}

// check is one row of an area's table.
type check struct {
	id, title string
	why       string
	source    string
	look      func(*machine, *verdict)
}

// area is what belongs together.
type area struct {
	name   string
	checks []check
}

// areas is the registry.
func areas() []area {
	return []area{
		{"driver", driverChecks}, {"gpu", gpuChecks}, {"nvlink", nvlinkChecks}, {"rdma", rdmaChecks}, {"gdr", gdrChecks}, {"network", networkChecks},
		{"host", hostChecks}, {"limits", limitChecks}, {"container", containerChecks}, {"environment", environmentChecks},
	}
}

// Areas are the names of all areas, in the order of the report.
func Areas() []string {
	var out []string
	for _, a := range areas() {
		out = append(out, a.name)
	}
	return out
}

// Rule describes a check without running it.
type Rule struct {
	ID     string `json:"id"`
	Area   string `json:"area"`
	Title  string `json:"title"`
	Why    string `json:"why"`
	Source string `json:"source"`
}

// Rules lists all checks.
func Rules() []Rule {
	var out []Rule
	for _, a := range areas() {
		for _, c := range a.checks {
			out = append(out, Rule{c.id, a.name, c.title, c.why, c.source})
		}
	}
	return out
}

// patience is how long one check may take, and inAll how long all of them: a file system that hangs must not keep the answers of the others.
const (
	patience = 3 * time.Second
	inAll    = 9 * time.Second
)

// Run looks at a node; only names areas, none is all. It takes as long as reading does, a second more where error counters are sampled twice, and never
// more than ten: a check that does not come back is answered with cannot tell, and its goroutine is lost.
func Run(n Node, only ...string) *Report {
	m := newMachine(n)
	end := time.Now().Add(inAll)
	r := &Report{Schema: Schema, Host: m.host(), Machine: m.describe(), Time: n.Now, Results: []Result{}, Facts: map[string]string{}}
	for _, a := range areas() {
		if len(only) > 0 && !slices.Contains(only, a.name) {
			continue
		}
		for _, c := range a.checks {
			v, late := c.within(m, min(cmp.Or(n.Patience, patience), time.Until(end)))
			if late {
				r.Warnings = append(r.Warnings, m.warned()...)
				m = newMachine(n) // the lost goroutine still has the other one
			}
			maps.Copy(r.Facts, v.facts)
			if v.skipped != "" {
				r.Skipped = append(r.Skipped, Skip{c.id, v.skipped})
				continue
			}
			r.Results = append(r.Results, v.result(a.name, c))
		}
	}
	r.Warnings = append(r.Warnings, m.warned()...)
	return r
}

// within runs a check and waits for it; late tells that it did not come back in time.
func (c check) within(m *machine, d time.Duration) (v *verdict, late bool) {
	done := make(chan *verdict, 1)
	go func() {
		v := &verdict{facts: map[string]string{}}
		c.run(m, v)
		done <- v
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-done:
		return v, false
	case <-timer.C:
		v := &verdict{facts: map[string]string{}}
		v.unknown("look for a file system or device that hangs: ps -eo pid,stat,wchan:30,comm | grep ' D'", "not done within %v", max(d, 0).Round(time.Millisecond))
		return v, true
	}
}

// run keeps a defect of one check from costing the answers of all others.
func (c check) run(m *machine, v *verdict) {
	defer func() {
		if p := recover(); p != nil {
			v.unknown("", "the check itself failed: %v", p)
		}
	}()
	c.look(m, v)
	if len(v.notes) == 0 && v.skipped == "" {
		v.unknown("", "nothing was found to judge by")
	}
}

// note is one fact with what it means.
type note struct {
	status Status
	text   string
	fix    string
}

// verdict collects what a check finds; the worst note decides.
type verdict struct {
	notes   []note
	skipped string
	facts   map[string]string
}

func (v *verdict) add(s Status, fix, format string, args []any) {
	v.notes = append(v.notes, note{s, fmt.Sprintf(format, args...), fix})
}

func (v *verdict) ok(format string, args ...any)           { v.add(OK, "", format, args) }
func (v *verdict) warn(fix, format string, args ...any)    { v.add(Warn, fix, format, args) }
func (v *verdict) fault(fix, format string, args ...any)   { v.add(Fault, fix, format, args) }
func (v *verdict) unknown(fix, format string, args ...any) { v.add(CannotTell, fix, format, args) }

// skip says why the check does not apply; it counts only when nothing was found.
func (v *verdict) skip(format string, args ...any) {
	if len(v.notes) == 0 {
		v.skipped = fmt.Sprintf(format, args...)
	}
}

// bad tells whether anything was found that is not ok.
func (v *verdict) bad() bool {
	return slices.ContainsFunc(v.notes, func(n note) bool { return n.status != OK })
}

// fact records what is compared between nodes.
func (v *verdict) fact(name, value string) {
	if value != "" {
		v.facts[name] = value
	}
}

func (v *verdict) result(area string, c check) Result {
	slices.SortStableFunc(v.notes, func(a, b note) int { return cmp.Compare(a.status.weight(), b.status.weight()) })
	r := Result{ID: c.id, Area: area, Title: c.title, Status: v.notes[0].status, Why: c.why, Source: c.source}
	for _, n := range v.notes {
		r.Found = append(r.Found, n.text)
		if n.fix != "" && !slices.Contains(r.Fix, n.fix) {
			r.Fix = append(r.Fix, n.fix)
		}
	}
	return r
}

// groups joins what is equal: "4096 (a, b); 1500 (c)", the most frequent first, or "4096 (all of 8)".
func groups(byName map[string]string) string {
	names := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		names[byName[name]] = append(names[byName[name]], name)
	}
	var out []string
	for _, v := range mostFrequent(names) {
		if len(names) == 1 && len(byName) > 2 {
			return fmt.Sprintf("%s (all of %d)", v, len(byName))
		}
		out = append(out, fmt.Sprintf("%s (%s)", v, shorten(names[v], 8)))
	}
	return strings.Join(out, "; ")
}

// mostFrequent orders values by how many have them.
func mostFrequent(names map[string][]string) []string {
	values := slices.Sorted(maps.Keys(names))
	slices.SortStableFunc(values, func(a, b string) int { return len(names[b]) - len(names[a]) })
	return values
}

// count says "1 GPU", "2 GPUs".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// shorten joins names and leaves out those beyond a limit.
func shorten(names []string, limit int) string {
	if len(names) <= limit {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:limit], ", "), len(names)-limit)
}
