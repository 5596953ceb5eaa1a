package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// Confidence has steps, each with a meaning of its own. A finding takes the step that its weakest necessary piece of evidence allows.
//
//	0.97 sources of different kinds say the same (added by the choice among findings)
//	0.92 said outright by who must know: a kernel's OOM kill, a launcher's signal, all ranks' records with a clear majority
//	0.80 all ranks' records, and one inference: it never came to the call, and its program says what it does instead
//	0.65 all ranks' records, and what the rank does instead is a guess; or two ranks that disagree, with nothing to tell which is wrong
//	0.50 what is missing is the evidence: the only rank that left nothing; a pattern that fits but is not proved
//	0.35 one rank's view of others, one sample of something that moves
//	0.15 no more than a direction in which to look
const (
	certain    = 0.97
	stated     = 0.92
	inferred   = 0.80
	probable   = 0.65
	byAbsence  = 0.50
	oneView    = 0.35
	direction  = 0.15
	mostItems  = 10 // of evidence in a verdict
	mostSizes  = 6
	rankFrames = 3
)

// layer orders findings by how near they are to the first independent cause.
type layer int

const (
	explicit    layer = iota // an exit, a signal, an exception, the kernel
	fingerprint              // calls that were compared
	unfinished               // the first work that does not finish
	transport                // what the communication library says of its peers and links
	summary                  // what a launcher makes of it
	observation              // nothing that accuses
)

// finding is what one rule concludes.
type finding struct {
	Verdict
	layer layer
	when  time.Time // of the event itself, zero if it is not known
	kinds []string  // sources that say so: "dump", "log"
	of    *group    // whose call it is about, where ranks were laid side by side
	root  *mismatch // that it is
	leans bool      // on what other sources have as well: that they agree says nothing more
}

func newFinding(class Class, l layer, confidence float64, ranks ...int) *finding {
	f := &finding{layer: l}
	f.Class, f.Confidence, f.Sequence = class, confidence, -1
	f.Ranks = slices.Compact(slices.Sorted(slices.Values(ranks)))
	return f
}

func (f *finding) item(w evidence.Where, text, says string) {
	said := slices.ContainsFunc(f.Evidence, func(x Item) bool { return x.Where == w && x.Text == text })
	if len(f.Evidence) < mostItems && !said {
		f.Evidence = append(f.Evidence, Item{w, text, says})
	}
}

func (f *finding) fact(x *evidence.Fact, says string) { f.item(x.Where, x.Text, says) }

func (f *finding) against(w evidence.Where, text, says string) {
	f.Against = append(f.Against, Item{w, text, says})
}

func (f *finding) alternative(class Class, confidence float64, ranks ...int) {
	f.Alternatives = append(f.Alternatives, Alternative{class, slices.Compact(slices.Sorted(slices.Values(ranks))), confidence})
}

func (f *finding) say(format string, args ...any) *finding {
	f.Summary = fmt.Sprintf(format, args...)
	return f
}

// about sets which call it is about.
func (f *finding) about(g *group, seq int64, a *ask) {
	f.Group, f.Sequence, f.of = g.title(), seq, g
	if a != nil {
		f.Op = a.op
		f.P2P = a.p2p
	}
}

func (f *finding) side(ranks []int, a *ask) {
	if len(f.Sizes) < mostSizes {
		f.Sizes = append(f.Sizes, showRanks(ranks)+": "+a.String())
	}
}

// location is the innermost frame that is the user's own program: what libraries do is the same on all ranks.
func location(c *issued) string {
	if c == nil || c.entry == nil || c.entry.Stack == nil {
		return ""
	}
	frames := c.entry.Stack.Frames
	for _, fr := range frames {
		if !library(fr.File) {
			return fr.File + ":" + strconv.Itoa(fr.Line)
		}
	}
	if len(frames) > 0 {
		return frames[0].File + ":" + strconv.Itoa(frames[0].Line)
	}
	return ""
}

// library tells code of frameworks and of the language from a user's program.
func library(file string) bool {
	for _, part := range []string{"site-packages/", "dist-packages/", "torch/distributed/", "torch/nn/", "torch/autograd/", "/lib/python", "threading.py", "queue.py",
		"selectors.py", "multiprocessing/", "concurrent/", "<frozen", "/usr/local/go/", "runtime/"} {
		if strings.Contains(file, part) {
			return true
		}
	}
	return file == "" || !strings.Contains(file, "/") && strings.HasPrefix(file, "<")
}

// state is how far a member came with a call, in the format's word.
func (m *member) state(seq int64) string {
	switch {
	case seq <= m.done:
		return "completed"
	case m.starts && seq <= m.begun:
		return "started"
	case seq <= m.enq:
		return "enqueued"
	}
	return "never called"
}

// line is a call as one line of evidence.
func (m *member) line(g *group, seq int64) string {
	c := m.at(seq)
	if c == nil {
		return fmt.Sprintf("rank %d, group %s: last enqueued %d, last completed %d", m.rank, g.title(), m.enq, m.done)
	}
	return fmt.Sprintf("rank %d, group %s, sequence %d: %s, %s", m.rank, g.title(), seq, c.ask, m.state(seq))
}

// place is where a member's call is recorded.
func (m *member) placeOf(seq int64) evidence.Where {
	w := m.where
	if c := m.at(seq); c != nil && c.entry == nil && c.pos > 0 {
		w.Line = int(c.pos)
	}
	return w
}
