package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Kind says what an error means for whoever started the test; the command makes its exit status of it.
type Kind string

// The kinds of a Problem.
const (
	Internal    Kind = "internal"    // a call failed that should not
	Usage       Kind = "usage"       // options that cannot work on these devices
	Unusable    Kind = "unusable"    // no device, a port that is down, a library or permission that is missing
	TimedOut    Kind = "time-out"    // nothing moved within the deadline
	Died        Kind = "died"        // the peer is gone, or cannot be reached over the link any more
	WrongData   Kind = "wrong data"  // the data that arrived is not what was sent
	Interrupted Kind = "interrupted" // on request
)

// Problem is an error that says what happened, where, and what to do next.
type Problem struct {
	Kind Kind
	Text string
	Err  error // what it came from; nil where the text is all
}

func (p *Problem) Error() string { return p.Text }

func (p *Problem) Unwrap() error { return p.Err }

// problem makes one; err is kept for errors.As and must be in the text already.
func problem(kind Kind, err error, format string, args ...any) *Problem {
	return &Problem{Kind: kind, Text: fmt.Sprintf(format, args...), Err: err}
}

// KindOf is the kind of an error of this package; Internal for others.
func KindOf(err error) Kind {
	var p *Problem
	if errors.As(err, &p) {
		return p.Kind
	}
	return Internal
}

// farewell is the reason that one side gives the store when it ends the test; the other takes it apart again.
type farewell struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
}

// encode stays below the 4 KiB at which the store clips a reason: half a document is none.
func (f farewell) encode() string {
	const most = 4000
	for {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(f); err != nil {
			return f.Text
		}
		if b.Len() <= most {
			return b.String()
		}
		f.Text = strings.ToValidUTF8(f.Text[:len(f.Text)*most/b.Len()-8], "") + "…"
	}
}

func parseFarewell(reason string) (f farewell, ok bool) {
	err := json.Unmarshal([]byte(reason), &f)
	return f, err == nil && f.Kind != ""
}
