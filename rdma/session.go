package rdma

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// The two ranks of a test.
const (
	serverRank = 0
	clientRank = 1
)

// session is the conversation of one side with the other, over the store.
type session struct {
	store    bootstrap.Store
	rank     int
	patience time.Duration // for a step that takes the peer no more than its own deadline
	step     int

	mu      sync.Mutex
	peer    string  // how messages call the other side
	phase   string  // what is going on
	station station // halted when the conversation ends
	cause   error   // why this side wants to stop: interrupt, fatal event
}

// patience is two deadlines, of a series and of what surrounds it, and the time to fill and compare the memory even on an emulated processor.
func (o *Options) patience() time.Duration {
	const slowest = 20e6 // bytes a second
	return 2*o.Deadline + 5*time.Second + time.Duration(float64(o.buffer())/slowest*float64(time.Second))
}

// longest is the wait for a peer that runs a series. That it lives is seen by the store's heartbeat, and that its series moves by its own deadline.
func (o *Options) longest() time.Duration { return max(time.Hour, 2*o.Duration) }

// swap hands mine to the other side and returns what it hands over. Both must come to the same step.
func swap[T any](ctx context.Context, s *session, phase string, limit time.Duration, mine T) (theirs T, err error) {
	s.step++
	s.enter(phase)
	text, err := json.Marshal(mine)
	if err != nil {
		return theirs, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	parts, err := s.store.Gather(ctx, fmt.Sprintf("%d %s", s.step, phase), map[int][]byte{s.rank: text})
	if err != nil {
		return theirs, s.lost(err)
	}
	if err := json.Unmarshal(parts[1-s.rank], &theirs); err != nil {
		return theirs, problem(Internal, err, "%s: %s answered something else than was asked: %v", phase, s.named(), err)
	}
	return theirs, nil
}

// meet is a swap of nothing: both sides go on together.
func (s *session) meet(ctx context.Context, phase string, limit time.Duration) error {
	_, err := swap(ctx, s, phase, limit, struct{}{})
	return err
}

// use makes st the station that an end of the conversation halts.
func (s *session) use(st station) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.station = st
	if st != nil && (s.cause != nil || s.store.Err() != nil) {
		st.halt()
	}
}

// stop ends this side because of err.
func (s *session) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		s.cause = err
	}
	if s.station != nil {
		s.station.halt()
	}
}

func (s *session) stopped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// enter says what is going on from now on, and name what the peer is called.
func (s *session) enter(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = phase
}

func (s *session) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase
}

func (s *session) name(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = peer
}

func (s *session) named() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// watch halts a running series when the store ends or ctx is done. The function that it returns ends the watch.
func (s *session) watch(ctx context.Context) (end func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-quit:
		case <-s.store.Done():
			s.stop(s.lost(s.store.Err()))
		case <-ctx.Done():
			s.stop(problem(Interrupted, ctx.Err(), "interrupted"))
		}
	}()
	return func() { close(quit); <-gone }
}

// lost makes an error of the store one that names the peer and what became of it.
func (s *session) lost(err error) error {
	if cause := s.stopped(); cause != nil {
		return cause
	}
	peer, phase := s.named(), s.where()
	var aborted *bootstrap.AbortedError
	var missing *bootstrap.MissingRanksError
	var gone *bootstrap.LostError
	switch {
	case errors.As(err, &aborted):
		return s.bidden(aborted.Cause)
	case errors.As(err, &gone):
		return problem(Died, err, "peer died: the connection to %s broke during %q (%v); see what became of commprobe and of the host there", peer, phase, gone.Err)
	case errors.Is(err, bootstrap.ErrServerClosed):
		return problem(Died, err, "%s ended the test during %q", peer, phase)
	case errors.Is(err, context.Canceled):
		return problem(Interrupted, err, "interrupted")
	case errors.As(err, &missing):
		return problem(TimedOut, err, "%s did not come to %q within %v: it lives (its heartbeat comes) but is stuck before that step; see its own output", peer, phase, missing.Waited.Round(time.Millisecond))
	case errors.Is(err, context.DeadlineExceeded):
		return problem(TimedOut, err, "no answer from %s to %q in time", peer, phase)
	case err == nil:
		return problem(Internal, nil, "the store ended without a reason")
	}
	return problem(Internal, err, "control connection, phase %q: %v", phase, err)
}

// bidden is the error on this side when the other, or the store on its behalf, ended the test.
func (s *session) bidden(c bootstrap.Cause) error {
	peer := s.named()
	f, ok := parseFarewell(c.Reason)
	if !ok {
		return problem(Died, nil, "peer died: %s: %s", peer, c)
	}
	if f.Kind == Died && c.Phase == lostPhase {
		return problem(Died, nil, "peer died: %s is gone: %s", peer, f.Text)
	}
	kind := f.Kind
	if kind == Interrupted {
		kind = Died // for this side
	}
	return problem(kind, nil, "%s ended the test (phase %s): %s", peer, c.Phase, f.Text)
}

// lostPhase marks an abort by the store because a connection broke.
const lostPhase = "connection lost"

// abort tells the other side why this one ends.
func (s *session) abort(err error) {
	host, herr := os.Hostname()
	if herr != nil {
		host = "?"
	}
	s.store.Abort(bootstrap.Cause{Rank: s.rank, Host: host, Phase: s.where(), Reason: farewell{KindOf(err), err.Error()}.encode()})
}

// explain makes an error of a series or a verbs call one that says what it means for this link.
func (s *session) explain(err error, what string, path string) error {
	if cause := s.stopped(); cause != nil && errors.Is(err, ibverbs.ErrStopped) {
		return cause
	}
	return explain(err, what, path, s.named())
}
