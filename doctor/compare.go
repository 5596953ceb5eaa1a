package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Difference is something in which nodes are not alike.
type Difference struct {
	What   string  `json:"what"`   // a fact, "check ID", or "clock"
	Groups []Group `json:"groups"` // the most frequent value first
}

// Group is the nodes that have a value.
type Group struct {
	Value string   `json:"value"` // "": not known there
	Hosts []string `json:"hosts"`
}

// skewLimit is from where clocks that are apart make logs of nodes hard to put in order; a report takes some of it to arrive.
const skewLimit = 2 * time.Second

// Compare shows only what differs between nodes: facts such as versions, rates and settings, answers of checks, and clocks that are apart, where each report
// has Received. Names of nodes that are equal are numbered.
func Compare(reports []Report) []Difference {
	hosts := names(reports)
	var out []Difference
	for _, key := range allFacts(reports) {
		values := make([]string, len(reports))
		for i, r := range reports {
			values[i] = r.Facts[key]
		}
		out = appendDifference(out, key, hosts, values)
	}
	for _, rule := range Rules() {
		values := make([]string, len(reports))
		told := false
		for i, r := range reports {
			if x := r.Get(rule.ID); x != nil {
				values[i] = string(x.Status)
				told = told || x.Status == Fault || x.Status == Warn
				if x.Status == Fault || x.Status == Warn {
					values[i] += ": " + strings.Join(x.Found, "; ")
				}
			}
		}
		if told { // ok here and cannot tell there is no difference of the nodes
			out = appendDifference(out, "check "+rule.ID, hosts, values)
		}
	}
	return append(out, clocks(reports, hosts)...)
}

func names(reports []Report) []string {
	count, out := map[string]int{}, make([]string, len(reports))
	for _, r := range reports {
		count[r.Host]++
	}
	seen := map[string]int{}
	for i, r := range reports {
		out[i] = r.Host
		if count[r.Host] > 1 {
			seen[r.Host]++
			out[i] = fmt.Sprintf("%s#%d", r.Host, seen[r.Host])
		}
	}
	return out
}

func allFacts(reports []Report) []string {
	keys := map[string]bool{}
	for _, r := range reports {
		for k := range r.Facts {
			keys[k] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

func appendDifference(out []Difference, what string, hosts, values []string) []Difference {
	by := map[string][]string{}
	for i, v := range values {
		by[v] = append(by[v], hosts[i])
	}
	if len(by) < 2 {
		return out
	}
	d := Difference{What: what}
	for v, list := range by {
		d.Groups = append(d.Groups, Group{v, list})
	}
	slices.SortFunc(d.Groups, func(a, b Group) int { return cmp.Or(len(b.Hosts)-len(a.Hosts), cmp.Compare(a.Value, b.Value)) })
	return append(out, d)
}

// clocks compares each node's clock with the caller's; the median stands for the time that reports need to arrive.
func clocks(reports []Report, hosts []string) []Difference {
	var skews []time.Duration
	for _, r := range reports {
		if r.Received == nil || r.Time.IsZero() {
			return nil
		}
		skews = append(skews, r.Time.Sub(*r.Received))
	}
	if len(skews) < 2 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(skews))
	median := sorted[(len(sorted)-1)/2]
	apart := slices.ContainsFunc(skews, func(d time.Duration) bool { return (d - median).Abs() > skewLimit })
	if !apart {
		return nil
	}
	values := make([]string, len(skews))
	for i, d := range skews {
		values[i] = "in step"
		if d -= median; d.Abs() > skewLimit {
			values[i] = fmt.Sprintf("%+.1f s", d.Seconds())
		}
	}
	return appendDifference(nil, "clock", hosts, values)
}
