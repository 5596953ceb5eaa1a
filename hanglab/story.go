package hanglab

import (
	"maps"
	"os"
	"strings"

	"github.com/commprobe/commprobe/hanglab/timeline"
)

// names are the time line's words for markers of another name.
var names = map[string]string{"check_calls": timeline.Mismatch, "init_failed": timeline.AsyncError, "cut": timeline.Inject}

// story puts the run's events, on the clocks that they were taken on, into one order. Called before judge, which moves them to one clock.
func (r *run) story() *timeline.Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	here, _ := os.Hostname() // all ranks are on this host
	var events []timeline.Event
	for _, m := range r.events {
		e := timeline.Event{Rank: m.Rank, Host: here, Name: m.Name, MonoNs: int64(m.At), Fields: maps.Clone(m.Fields)}
		if name, ok := names[m.Name]; ok {
			e.Name = name
		}
		switch m.Name {
		case "phase", "check_cost", "exit_ok":
			continue
		case "inject":
			e.Fields["case"] = r.Plan.Scenario
		}
		if t, ok := e.Fields["text"]; ok {
			e.Fields["text"] = gist(t)
		}
		if g, ok := e.Fields["group"]; ok {
			e.Fields["comm"] = g
			delete(e.Fields, "group")
		}
		events = append(events, e)
	}
	var clocks []timeline.Clock
	for rank := range r.clocks {
		offset, within := r.clockOffset(rank)
		clocks = append(clocks, timeline.Clock{Rank: rank, OffsetNs: int64(offset), RTTNs: 2 * int64(within)})
	}
	return timeline.Build(events, clocks)
}

// gist is the first statement of a watchdog's line, without who says it: the whole line is in the log and in run.json. Of a line about another
// rank's alarm it is what the rank says about itself.
func gist(text string) string {
	if _, own, ok := strings.Cut(text, " | this rank: "); ok {
		text = own
	}
	if who, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(who, "rank ") {
		text = rest
	}
	for _, kind := range []string{"time-out: ", "asynchronous error: "} {
		text = strings.TrimPrefix(text, kind)
	}
	text, _, _ = strings.Cut(text, "; ")
	return cut(text, 160)
}
