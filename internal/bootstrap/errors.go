package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commprobe/commprobe/internal/rankset"
)

var (
	// ErrWrongToken means that the two sides do not hold the same token.
	ErrWrongToken = errors.New("wrong token: this process and the store belong to different jobs")
	// ErrNotStore means that something else than a commprobe store answered.
	ErrNotStore = errors.New("the peer does not speak the commprobe protocol")
	// ErrClosed is returned after Close of the same client or server.
	ErrClosed = errors.New("store closed")
	// ErrServerClosed means that the coordinator closed the store in good order.
	ErrServerClosed = errors.New("the coordinator closed the store")
	// ErrDeleted means that a barrier or gather was deleted while waited for.
	ErrDeleted = errors.New("deleted while waiting")
)

// VersionError means that the two sides speak different protocol versions.
type VersionError struct {
	Local, Remote uint16
}

// Error names both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("protocol version differs: ours is %d, the peer's is %d; use the same commprobe everywhere",
		e.Local, e.Remote)
}

// RefusedError is the server's reason not to let a worker join.
type RefusedError struct {
	Reason string
}

// Error gives the server's own words.
func (e *RefusedError) Error() string { return "join refused: " + e.Reason }

// LostError means that the connection to the server ended without a goodbye.
type LostError struct {
	Addr string // address of the server
	Err  error  // what the connection ended with
}

// Error names the address and what happened.
func (e *LostError) Error() string {
	return fmt.Sprintf("lost the store at %s: %v", e.Addr, e.Err)
}

// Unwrap returns what the connection ended with.
func (e *LostError) Unwrap() error { return e.Err }

// DialError means that no store could be joined in time.
type DialError struct {
	Addr     string
	Attempts int
	Waited   time.Duration
	Last     error // what the last attempt failed with
	Ctx      error // why it gave up: the context's error
}

// Error names the address, how long was tried, and the last failure.
func (e *DialError) Error() string {
	return fmt.Sprintf("no store answered at %s within %s (%d attempts): %v",
		e.Addr, formatSeconds(e.Waited), e.Attempts, e.Last)
}

// Unwrap returns the last failure and the context's error.
func (e *DialError) Unwrap() []error { return []error{e.Last, e.Ctx} }

// Cause says who ended the job, where, in which phase and why.
type Cause struct {
	Rank   int // -1 for the coordinator
	Host   string
	Phase  string
	Reason string
}

// String prints the cause as one line.
func (c Cause) String() string {
	var b strings.Builder
	if c.Rank < 0 {
		b.WriteString("coordinator")
	} else {
		fmt.Fprintf(&b, "rank %d", c.Rank)
	}
	if c.Host != "" {
		b.WriteString(" on " + c.Host)
	}
	if c.Phase != "" {
		b.WriteString(", phase " + c.Phase)
	}
	if c.Reason != "" {
		b.WriteString(": " + c.Reason)
	}
	return b.String()
}

// clipped bounds the texts, so that a cause always fits into a frame.
func (c Cause) clipped() Cause {
	const limit = 4 << 10
	for _, s := range []*string{&c.Host, &c.Phase, &c.Reason} {
		if len(*s) > limit {
			*s = (*s)[:limit] + "..."
		}
	}
	return c
}

// AbortedError is what every call returns once the job has been aborted.
type AbortedError struct {
	Cause Cause
}

// Error names the first cause.
func (e *AbortedError) Error() string { return "job aborted by " + e.Cause.String() }

// MissingRanksError means that a wait for all ranks ended before all had come.
type MissingRanksError struct {
	Phase     string           // "join", `barrier "x"` or `gather "x"`
	World     int              // ranks of the job
	Missing   []int            // ranks that did not come, ascending
	MissingOn map[string][]int // host to missing ranks, for those that had joined
	Lost      []int            // missing ranks that had joined and whose connection was lost
	Present   map[string][]int // host to ranks that came
	Waited    time.Duration    // how long the caller waited
	Err       error            `json:"-"` // context.DeadlineExceeded or context.Canceled
}

// Error prints, for example,
//
//	ranks 3, 7 of 8 did not join within 60 s; present: host-a has ranks 0-2, 4; host-b has 5-6
func (e *MissingRanksError) Error() string {
	var b strings.Builder
	verb := "reach " + e.Phase
	if e.Phase == joinPhase {
		verb = "join"
	}
	fmt.Fprintf(&b, "%s of %d did not %s within %s", NameRanks(e.Missing), e.World, verb, formatSeconds(e.Waited))
	if errors.Is(e.Err, context.Canceled) {
		b.WriteString(" (wait cancelled)")
	}
	if len(e.MissingOn) > 0 {
		b.WriteString("; missing: " + formatHosts(e.MissingOn))
	}
	if len(e.Lost) > 0 {
		b.WriteString("; connection lost: " + NameRanks(e.Lost))
	}
	b.WriteString("; present: " + formatHosts(e.Present))
	return b.String()
}

// Unwrap returns the context's error.
func (e *MissingRanksError) Unwrap() error { return e.Err }

const joinPhase = "join"

// FormatRanks prints ranks in ascending order, without duplicates and with
// runs folded: "0-2, 4, 6-7". No ranks give "none".
func FormatRanks(ranks []int) string {
	if len(ranks) == 0 {
		return "none"
	}
	return rankset.Fold(ranks, ", ")
}

// NameRanks is FormatRanks with the word in front: "rank 3", "ranks 0-2, 4".
func NameRanks(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + FormatRanks(ranks)
	}
	return "ranks " + FormatRanks(ranks)
}

// maxHostsNamed keeps a message about a thousand hosts readable.
const maxHostsNamed = 16

func formatHosts(byHost map[string][]int) string {
	if len(byHost) == 0 {
		return "none"
	}
	hosts := slices.SortedFunc(maps.Keys(byHost), func(a, b string) int {
		return cmp.Or(slices.Compare(byHost[a], byHost[b]), cmp.Compare(a, b))
	})
	var parts []string
	for i, h := range hosts {
		if i == maxHostsNamed {
			parts = append(parts, fmt.Sprintf("and %d more hosts", len(hosts)-i))
			break
		}
		text := FormatRanks(byHost[h])
		if i == 0 {
			text = NameRanks(byHost[h])
		}
		parts = append(parts, h+" has "+text)
	}
	return strings.Join(parts, "; ")
}

// formatSeconds prints a duration in the unit in which people set it.
func formatSeconds(d time.Duration) string {
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// wireError is an error on its way from the server to a client.
type wireError struct {
	Code    string
	Text    string
	Cause   *Cause             `json:",omitempty"`
	Missing *MissingRanksError `json:",omitempty"`
}

const (
	codeRefused = "refused"
	codeAborted = "aborted"
	codeClosed  = "closed"
	codeMissing = "missing"
	codeDeleted = "deleted"
	codeFailed  = "failed"
)

func toWire(err error) wireError {
	w := wireError{Code: codeFailed, Text: err.Error()}
	var refused *RefusedError
	var aborted *AbortedError
	var missing *MissingRanksError
	switch {
	case errors.As(err, &refused):
		w.Code, w.Text = codeRefused, refused.Reason
	case errors.As(err, &aborted):
		w.Code, w.Cause = codeAborted, &aborted.Cause
	case errors.As(err, &missing):
		w.Code, w.Missing = codeMissing, missing
	case errors.Is(err, ErrDeleted):
		w.Code = codeDeleted
	case errors.Is(err, ErrClosed):
		w.Code = codeClosed
	}
	return w
}

func (w wireError) err() error {
	switch {
	case w.Code == codeRefused:
		return &RefusedError{Reason: w.Text}
	case w.Code == codeAborted && w.Cause != nil:
		return &AbortedError{Cause: *w.Cause}
	case w.Code == codeMissing && w.Missing != nil:
		return w.Missing
	case w.Code == codeDeleted:
		return ErrDeleted
	case w.Code == codeClosed:
		return ErrServerClosed
	}
	return errors.New(w.Text)
}
