package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// splitter is how the ranks are divided into groups that sweep at the same time: nccl-tests' NCCL_TESTS_SPLIT, and two ways that need the hosts.
type splitter struct {
	by string // "node", "local", "and", "or", "mod", "div"
	n  int64
}

// ParseSplit checks a --split: "node" (each host a group), "local" (the ranks with the same place on their hosts: rails), or mod, div, and, or
// with a number ("mod:2", "%2", "/4", "&0x7", "|3", in nccl-tests' way also "MOD 2"), applied to the rank.
func ParseSplit(text string) error {
	_, err := parseSplit(text)
	return err
}

func parseSplit(text string) (splitter, error) {
	bad := fmt.Errorf("--split %q: use node, local, mod:N, div:N, and:N or or:N", text)
	s := strings.ToLower(strings.TrimSpace(text))
	if s == "node" || s == "local" {
		return splitter{by: s}, nil
	}
	for sign, name := range map[string]string{"%": "mod", "/": "div", "&": "and", "|": "or"} {
		if rest, ok := strings.CutPrefix(s, sign); ok {
			s = name + ":" + strings.TrimSpace(rest)
		}
	}
	by, number, found := strings.Cut(strings.ReplaceAll(s, " ", ":"), ":")
	n, err := strconv.ParseInt(strings.Trim(number, ":"), 0, 32)
	switch {
	case !found || err != nil || n < 0:
		return splitter{}, bad
	case (by == "mod" || by == "div") && n == 0:
		return splitter{}, fmt.Errorf("--split %s: the number must be 1 or more", text)
	case !slices.Contains([]string{"mod", "div", "and", "or"}, by):
		return splitter{}, bad
	}
	return splitter{by: by, n: n}, nil
}

// color is the same for ranks that belong together. local is the rank's place on its host, host the number of the host.
func (s splitter) color(rank, local, host int) int64 {
	r := int64(rank)
	switch s.by {
	case "node":
		return int64(host)
	case "local":
		return int64(local)
	case "and":
		return r & s.n
	case "or":
		return r | s.n
	case "mod":
		return r % s.n
	}
	return r / s.n
}

// divide numbers the groups from 0 in the order of their colors. hosts has each rank's host.
func (s splitter) divide(hosts []string) []int {
	var names []string
	onHost := make(map[string]int)
	colors := make([]int64, len(hosts))
	for r, h := range hosts {
		if !slices.Contains(names, h) {
			names = append(names, h)
		}
		colors[r] = s.color(r, onHost[h], slices.Index(names, h))
		onHost[h]++
	}
	order := slices.Clone(colors)
	slices.Sort(order)
	order = slices.Compact(order)
	out := make([]int, len(hosts))
	for r, c := range colors {
		out[r] = slices.Index(order, c)
	}
	return out
}

// groups settles which group each rank sweeps in; nil when there is one.
func (o *oneRun) groups() ([]int, error) {
	if o.plan.Modes.Split == "" {
		return nil, nil
	}
	s, err := parseSplit(o.plan.Modes.Split)
	if err != nil {
		return nil, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: err.Error()}
	}
	hosts := make([]string, len(o.reports))
	for r, rep := range o.reports {
		hosts[r] = rep.HostKey
	}
	groups := s.divide(hosts)
	if least := slices.Min((&Plan{Groups: groups}).worlds()); o.plan.Root >= least {
		return nil, &Failure{Kind: FailUsage, Rank: -1, Phase: "plan", Text: fmt.Sprintf("-r %d with --split %s: the smallest group has %d ranks", o.plan.Root, o.plan.Modes.Split, least)}
	}
	return groups, nil
}
