package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/internal/rankset"
)

// Words is the class as a person would say it.
func (c Class) Words() string {
	switch c {
	case SizeMismatch:
		return "different sizes in one call"
	case DTypeMismatch:
		return "different data types in one call"
	case OpMismatch:
		return "different operations at one place"
	case OrderMismatch:
		return "the same calls in another order"
	case SkippedCollective:
		return "a rank did not come to a collective"
	case UnpairedP2P:
		return "a send or receive without its partner"
	case CrossedComms:
		return "communicators used in crossed order"
	case RankCrash:
		return "a process ended"
	case RankStuckHost:
		return "stuck in host code"
	case RankStuckGPU:
		return "stuck on the GPU"
	case LazyInit:
		return "a communicator was never completed"
	case Straggler:
		return "a slow rank"
	case Network:
		return "network or link"
	case GPUFault:
		return "GPU fault"
	case OOMHost:
		return "out of host memory"
	case OOMGPU:
		return "out of GPU memory"
	case EnvMismatch:
		return "ranks are set up differently"
	case NaNSource:
		return "NaN comes from here"
	case GPUStuckOrNetwork:
		return "launched everywhere, finished nowhere"
	case NotAHang:
		return "not a hang"
	case Undecided:
		return "cannot tell"
	}
	return strings.ReplaceAll(string(c), "_", " ")
}

// mutual tells whether the class is about ranks that disagree with each other rather than about one alone.
func (c Class) mutual() bool {
	switch c {
	case SizeMismatch, DTypeMismatch, OpMismatch, OrderMismatch, UnpairedP2P, CrossedComms, EnvMismatch:
		return true
	}
	return false
}

// sure is a confidence in words.
func sure(c float64) string {
	switch {
	case c >= 0.9:
		return "almost certain"
	case c >= 0.75:
		return "very likely"
	case c >= 0.55:
		return "likely"
	case c >= 0.35:
		return "possible"
	}
	return "weak"
}

// showRanks is "rank 3", "ranks 0-2, 4", or "no rank".
func showRanks(ranks []int) string {
	ranks = slices.Compact(slices.Sorted(slices.Values(ranks))) // one that is named twice is one
	switch len(ranks) {
	case 0:
		return "no rank"
	case 1:
		return "rank " + strconv.Itoa(ranks[0])
	}
	return "ranks " + rankset.Fold(ranks, ", ")
}

// Headline is the verdict in a few words: "different sizes in one call: rank 3".
func (v *Verdict) Headline() string {
	switch {
	case len(v.Ranks) == 0:
		return v.Class.Words()
	case len(v.Ranks) == 2 && v.Class.mutual():
		return fmt.Sprintf("%s: these two disagree, %s", v.Class.Words(), showRanks(v.Ranks))
	}
	return v.Class.Words() + ": " + showRanks(v.Ranks)
}

// call is which call it was: "group 0, sequence 7, all_reduce"; "" if that is not known.
func (v *Verdict) call() string {
	var parts []string
	if v.Group != "" {
		parts = append(parts, "group "+v.Group)
	}
	if v.Sequence >= 0 {
		kind := "sequence "
		if v.P2P {
			kind = "p2p sequence "
		}
		parts = append(parts, kind+strconv.FormatInt(v.Sequence, 10))
	}
	if v.Op != "" {
		parts = append(parts, v.Op)
	}
	return strings.Join(parts, ", ")
}

// at is a place as compilers print it.
func (i Item) at() string {
	if i.Line > 0 {
		return i.File + ":" + strconv.Itoa(i.Line)
	}
	return i.File
}

// printable takes out what a log could use to draw on the reader's terminal, and ends of lines.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r == '\uFFFD' || !strconv.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}

// upperFirst makes a sentence of what begins with "rank 3 …".
func upperFirst(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
