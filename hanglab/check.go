package hanglab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// fingerprint is what all ranks of a collective must agree on. Sequence numbers are each rank's own count.
type fingerprint struct {
	Seq   uint64 `json:"seq"`
	Op    string `json:"op"`
	Count int    `json:"count"`
	DType string `json:"dtype"`
	Root  int    `json:"root"`
	RedOp string `json:"redop"`
	Where string `json:"where"` // call site, only shown
}

// checker compares calls before they are made. NCCL does not: there are no headers on its wires.
type checker struct {
	calls int
	spent time.Duration
}

// compare exchanges this call's fingerprint with all ranks through the store and refuses the call when they differ. A rank that does not come is
// named as well. It costs a round trip through the store for each call, which is why it is asked for with --check-calls.
func (l *lab) compare(c *labComm, x call) error {
	if !l.plan.CheckCalls || x.fn.p2p() {
		return nil
	}
	began := time.Now()
	mine := fingerprint{Seq: c.group.coll + 1, Op: x.fn.String(), Count: x.count, DType: x.dtype().String(), Root: x.peer, RedOp: "sum", Where: caller()}
	l.phase("step %d: comparing calls before %s", l.step, x)
	// The name counts the rank's calls of this communicator, so that ranks meet at their n-th calls whatever these are.
	name := fmt.Sprintf("hang/call/%s/%d", c.group.name, mine.Seq)
	ctx, cancel := context.WithTimeout(l.ctx, l.plan.Op)
	defer cancel()
	parts, err := l.store.Gather(ctx, name, map[int][]byte{l.id: encode(mine)})
	l.checks.calls++
	l.checks.spent += time.Since(began)
	var missing *bootstrap.MissingRanksError
	if errors.As(err, &missing) {
		text := fmt.Sprintf("%s did not come to call %d of communicator %s (%s) within %v", bootstrap.NameRanks(missing.Missing), mine.Seq, c.group.name, x, l.plan.Op)
		l.mark("check_calls", "group", c.group.name, "seq", mine.Seq, "missing", bootstrap.FormatRanks(missing.Missing), "text", text)
		return &ExitError{Code: bench.ExitFindings, Text: text}
	}
	if err != nil {
		return fmt.Errorf("comparing calls: %w", err)
	}
	all := make(map[int]fingerprint, len(parts))
	for r, raw := range parts {
		if all[r], err = decode[fingerprint](raw); err != nil {
			return err
		}
	}
	odd, text := disagreement(all)
	if text == "" {
		return nil
	}
	text = fmt.Sprintf("call %d of communicator %s: %s", mine.Seq, c.group.name, text)
	l.mark("check_calls", "group", c.group.name, "seq", mine.Seq, "ranks", bootstrap.FormatRanks(odd), "text", text)
	return &ExitError{Code: bench.ExitFindings, Text: text}
}

// disagreement compares fingerprints. The odd ranks are those that differ from a majority; in a tie nobody is odd and the text names both sides.
// An empty text means that all agree.
func disagreement(all map[int]fingerprint) (odd []int, text string) {
	sides := make(map[fingerprint][]int)
	for r, f := range all {
		f.Where = ""
		sides[f] = append(sides[f], r)
	}
	if len(sides) < 2 {
		return nil, ""
	}
	kinds := make([]fingerprint, 0, len(sides))
	for f, ranks := range sides {
		slices.Sort(ranks)
		kinds = append(kinds, f)
	}
	slices.SortFunc(kinds, func(a, b fingerprint) int {
		if d := len(sides[b]) - len(sides[a]); d != 0 {
			return d
		}
		return sides[a][0] - sides[b][0]
	})
	most := kinds[0]
	if len(sides[kinds[1]]) == len(sides[most]) {
		var lines []string
		for _, k := range kinds {
			lines = append(lines, fmt.Sprintf("%s: %s at %s", bootstrap.NameRanks(sides[k]), k.text(), all[sides[k][0]].Where))
		}
		return nil, "these disagree, without a majority: " + strings.Join(lines, "; ")
	}
	var lines []string
	for _, k := range kinds[1:] {
		odd = append(odd, sides[k]...)
		lines = append(lines, fmt.Sprintf("%s differs in %s: %s at %s", bootstrap.NameRanks(sides[k]), k.differs(most), k.text(), all[sides[k][0]].Where))
	}
	slices.Sort(odd)
	return odd, fmt.Sprintf("%s; %s of %d: %s at %s", strings.Join(lines, "; "), bootstrap.NameRanks(sides[most]), len(all), most.text(), all[sides[most][0]].Where)
}

func (f fingerprint) text() string {
	return fmt.Sprintf("%s of %d %s (sequence %d, root %d, %s)", f.Op, f.Count, f.DType, f.Seq, f.Root, f.RedOp)
}

// differs lists in what f differs from g.
func (f fingerprint) differs(g fingerprint) string {
	var what []string
	for _, d := range []struct {
		name string
		is   bool
	}{
		{"sequence", f.Seq != g.Seq}, {"op", f.Op != g.Op}, {"dtype", f.DType != g.DType}, {"count", f.Count != g.Count},
		{"root", f.Root != g.Root}, {"reduction", f.RedOp != g.RedOp},
	} {
		if d.is {
			what = append(what, d.name)
		}
	}
	return strings.Join(what, ", ")
}

// caller is the line of the laboratory's program that makes the call: the innermost one in a scenario, if there is one.
func caller() string {
	var pcs [siteDepth]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	where := ""
	for {
		f, more := frames.Next()
		file := filepath.Base(f.File)
		if where == "" || strings.HasPrefix(file, "scenario_") {
			where = fmt.Sprintf("%s:%d", file, f.Line)
		}
		if !more || strings.HasPrefix(file, "scenario_") {
			return where
		}
	}
}
