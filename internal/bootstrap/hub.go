package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// hub is the state of the store, without any network. Its methods are safe for
// concurrent use; none of them does I/O under the lock.
type hub struct {
	cfg  Config
	done chan struct{} // closed together with the first err

	mu       sync.Mutex
	err      error
	live     map[int]*member // by rank
	joined   int             // ranks in live whose member is confirmed
	last     map[int]Hello   // the latest holder of each rank, also when gone
	changed  chan struct{}   // closed and replaced when membership changes
	values   map[string][]byte
	waiters  map[string]*keyWait
	rounds   map[roundKey]*round
	retained []*round // finished rounds kept for a late Collect, oldest first
	kept     int      // bytes in retained
	bytes    int      // bytes of values and parts
}

// member is one joined connection.
type member struct {
	hello Hello
	link  *link

	// confirmed says that the client knows it is in. Before that it holds its
	// ranks but does not count: a client that gave up just before the welcome
	// came will dial again, and must not be reported as lost.
	confirmed bool // under hub.mu
}

// keyWait wakes the Gets of one key.
type keyWait struct {
	set   chan struct{}
	users int
}

type roundKey struct {
	barrier bool
	name    string
}

func (k roundKey) phase() string {
	if k.barrier {
		return fmt.Sprintf("barrier %q", k.name)
	}
	return fmt.Sprintf("gather %q", k.name)
}

type contribution struct {
	value []byte
	host  string
}

// round is one barrier or gather.
type round struct {
	key        roundKey
	parts      map[int]contribution
	bytes      int
	users      int  // calls waiting in it
	unread     bool // has parts whose contributors do not wait: kept for Collect
	dropped    bool // no longer in the hub
	deleted    bool // dropped before it was complete
	complete   bool
	finished   chan struct{} // closed when complete or deleted
	isRetained bool
}

func newHub(cfg Config) *hub {
	return &hub{
		cfg:     cfg,
		done:    make(chan struct{}),
		live:    map[int]*member{},
		last:    map[int]Hello{},
		changed: make(chan struct{}),
		values:  map[string][]byte{},
		waiters: map[string]*keyWait{},
		rounds:  map[roundKey]*round{},
	}
}

// end sets the error that every call returns from now on. The first one wins.
// It returns the members that have to be told.
func (h *hub) end(err error) (members []*member, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, false
	}
	h.err = err
	close(h.done)
	return h.membersLocked(), true
}

func (h *hub) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *hub) members() []*member {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.membersLocked()
}

func (h *hub) membersLocked() []*member {
	var out []*member
	for _, rank := range sortedKeys(h.live) {
		if m := h.live[rank]; m.hello.Ranks[0] == rank {
			out = append(out, m)
		}
	}
	return out
}

func sortedKeys[V any](m map[int]V) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// join registers a member, or says in a *RefusedError why not.
func (h *hub) join(m *member, world int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	if reason := h.refusalLocked(m.hello, world); reason != "" {
		return &RefusedError{Reason: reason}
	}
	for _, rank := range m.hello.Ranks {
		h.live[rank] = m
	}
	return nil
}

// confirm makes a member count.
func (h *hub) confirm(m *member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.confirmed {
		return
	}
	m.confirmed = true
	h.joined += len(m.hello.Ranks)
	for _, rank := range m.hello.Ranks {
		h.last[rank] = m.hello
	}
	h.changedLocked()
}

func (h *hub) refusalLocked(hello Hello, world int) string {
	who := fmt.Sprintf("%s (pid %d)", hello.Host, hello.PID)
	if want := h.cfg.Hello.Program; want != "" && hello.Program != want {
		return fmt.Sprintf("%s runs program version %q, the coordinator %q", who, hello.Program, want)
	}
	if world != 0 && world != h.cfg.World {
		return fmt.Sprintf("%s expects a world of %d ranks, the coordinator has %d", who, world, h.cfg.World)
	}
	if len(hello.Ranks) == 0 {
		return who + " names no rank"
	}
	seen := map[int]bool{}
	for _, rank := range hello.Ranks {
		if rank < 0 || rank >= h.cfg.World {
			return fmt.Sprintf("rank %d of %s is out of range: the world has ranks 0-%d", rank, who, h.cfg.World-1)
		}
		if seen[rank] {
			return fmt.Sprintf("%s names rank %d twice", who, rank)
		}
		seen[rank] = true
		if m := h.live[rank]; m != nil {
			return fmt.Sprintf("rank %d of %s is already held by %s (pid %d)", rank, who, m.hello.Host, m.hello.PID)
		}
	}
	return ""
}

// leave frees the member's ranks and tells whether the member had counted.
// After a goodbye they are not among the lost ones.
func (h *hub) leave(m *member, clean bool) (confirmed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rank := range m.hello.Ranks {
		delete(h.live, rank)
		if clean {
			delete(h.last, rank)
		}
	}
	if m.confirmed {
		h.joined -= len(m.hello.Ranks)
		h.changedLocked()
	}
	return m.confirmed
}

func (h *hub) changedLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) waitJoined(ctx context.Context) error {
	start := time.Now()
	for {
		h.mu.Lock()
		err, changed, missing := h.err, h.changed, h.cfg.World-h.joined
		h.mu.Unlock()
		if err != nil {
			return err
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-h.done:
		case <-ctx.Done():
			present := map[int]string{}
			h.mu.Lock()
			defer h.mu.Unlock()
			for rank, m := range h.live {
				if m.confirmed {
					present[rank] = m.hello.Host
				}
			}
			return h.missingLocked(joinPhase, present, start, ctx.Err())
		}
	}
}

// missingLocked describes who has not come, given who has (rank to host).
func (h *hub) missingLocked(phase string, present map[int]string, start time.Time, cause error) error {
	e := &MissingRanksError{
		Phase: phase, World: h.cfg.World, Present: map[string][]int{},
		Waited: time.Since(start), Err: cause,
	}
	for rank := range h.cfg.World {
		if host, ok := present[rank]; ok {
			e.Present[host] = append(e.Present[host], rank)
			continue
		}
		e.Missing = append(e.Missing, rank)
		if hello, ok := h.last[rank]; ok {
			if e.MissingOn == nil {
				e.MissingOn = map[string][]int{}
			}
			e.MissingOn[hello.Host] = append(e.MissingOn[hello.Host], rank)
			if h.live[rank] == nil {
				e.Lost = append(e.Lost, rank)
			}
		}
	}
	return e
}

func checkKey(key string) error {
	if key == "" {
		return errors.New("empty key")
	}
	if len(key) > maxKeyBytes {
		return fmt.Errorf("key of %d bytes is longer than %d", len(key), maxKeyBytes)
	}
	return nil
}

// roomLocked checks the limits before something of n bytes is added.
func (h *hub) roomLocked(n int, isNew bool) error {
	if h.bytes+n > h.cfg.MaxStoreBytes {
		return fmt.Errorf("store full: %d bytes held, %d more asked, limit %d", h.bytes, n, h.cfg.MaxStoreBytes)
	}
	if isNew && len(h.values)+len(h.rounds) >= h.cfg.MaxKeys {
		return fmt.Errorf("store full: %d keys and gathers", h.cfg.MaxKeys)
	}
	return nil
}

func (h *hub) set(key string, value []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	old, exists := h.values[key]
	if err := h.roomLocked(len(value)-len(old), !exists); err != nil {
		return err
	}
	h.bytes += len(value) - len(old)
	h.values[key] = value
	if w := h.waiters[key]; w != nil {
		close(w.set)
		delete(h.waiters, key)
	}
	return nil
}

func (h *hub) tryGet(key string) ([]byte, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, false, h.err
	}
	v, ok := h.values[key]
	return v, ok, nil
}

// get waits until key is set.
func (h *hub) get(ctx context.Context, key string) ([]byte, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	start := time.Now()
	for {
		h.mu.Lock()
		if h.err != nil {
			defer h.mu.Unlock()
			return nil, h.err
		}
		if v, ok := h.values[key]; ok {
			h.mu.Unlock()
			return v, nil
		}
		w := h.waiters[key]
		if w == nil {
			w = &keyWait{set: make(chan struct{})}
			h.waiters[key] = w
		}
		w.users++
		h.mu.Unlock()

		var err error
		select {
		case <-w.set:
		case <-h.done:
		case <-ctx.Done():
			err = fmt.Errorf("nobody set key %q within %s: %w", key, formatSeconds(time.Since(start)), ctx.Err())
		}
		h.mu.Lock()
		w.users--
		if w.users == 0 && h.waiters[key] == w {
			delete(h.waiters, key)
		}
		h.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

func (h *hub) remove(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	h.bytes -= len(h.values[key])
	delete(h.values, key)
	for _, barrier := range []bool{false, true} {
		r := h.rounds[roundKey{barrier, key}]
		if r == nil {
			continue
		}
		h.dropLocked(r)
		if !r.complete {
			r.deleted = true
			close(r.finished)
		}
	}
	return nil
}

// enter adds parts to the current round of key and returns that round; with no
// parts the caller only watches. unread says that the contributor does not
// wait for the result. The caller must call wait or exit.
func (h *hub) enter(key roundKey, parts map[int]contribution, unread bool) (*round, error) {
	if err := checkKey(key.name); err != nil {
		return nil, err
	}
	added := 0
	for rank, p := range parts {
		if rank < 0 || rank >= h.cfg.World {
			return nil, fmt.Errorf("%s: rank %d is out of range: the world has %d ranks", key.phase(), rank, h.cfg.World)
		}
		added += len(p.value)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	r := h.rounds[key]
	isNew := r == nil || (r.complete && len(parts) > 0)
	if isNew && r != nil && r.unread {
		return nil, fmt.Errorf("%s is complete but not collected yet: use another name", key.phase())
	}
	if err := h.roomLocked(added, isNew); err != nil {
		return nil, fmt.Errorf("%s: %w", key.phase(), err)
	}
	if isNew {
		if r != nil {
			h.dropLocked(r)
		}
		r = &round{key: key, parts: map[int]contribution{}, finished: make(chan struct{})}
		h.rounds[key] = r
	}
	for rank := range parts {
		if _, twice := r.parts[rank]; twice {
			return nil, fmt.Errorf("%s: rank %d has already contributed", key.phase(), rank)
		}
	}
	for rank, p := range parts {
		r.parts[rank] = p
	}
	r.bytes += added
	h.bytes += added
	r.unread = r.unread || unread
	r.users++
	if !r.complete && len(r.parts) == h.cfg.World {
		r.complete = true
		close(r.finished)
		if !r.unread {
			h.retainLocked(r)
		}
	}
	return r, nil
}

// retainLocked keeps a finished round for a while, for a Collect that comes
// after the last contributor, and drops the oldest ones.
func (h *hub) retainLocked(r *round) {
	r.isRetained = true
	h.retained = append(h.retained, r)
	h.kept += r.bytes
	for len(h.retained) > 1 && (len(h.retained) > retainedRounds || h.kept > retainedBytes) {
		h.dropLocked(h.retained[0])
	}
}

func (h *hub) dropLocked(r *round) {
	if r.dropped {
		return
	}
	r.dropped = true
	h.bytes -= r.bytes
	if h.rounds[r.key] == r {
		delete(h.rounds, r.key)
	}
	if r.isRetained {
		h.kept -= r.bytes
		h.retained = slices.DeleteFunc(h.retained, func(x *round) bool { return x == r })
	}
}

// exit ends a call's stay in r. A round that was only watched and that nobody
// has contributed to leaves no trace.
func (h *hub) exitLocked(r *round) {
	r.users--
	if r.users == 0 && len(r.parts) == 0 {
		h.dropLocked(r)
	}
}

// wait waits until r is complete and returns its parts. Otherwise it returns
// the parts that are there and a *MissingRanksError (or why the store ended).
// consume releases the round of a Collect.
func (h *hub) wait(ctx context.Context, r *round, consume bool) (map[int][]byte, error) {
	start := time.Now()
	select {
	case <-r.finished: // has precedence over a context that is done as well
	default:
		select {
		case <-r.finished:
		case <-h.done:
		case <-ctx.Done():
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.exitLocked(r)
	parts := make(map[int][]byte, len(r.parts))
	hosts := make(map[int]string, len(r.parts))
	for rank, p := range r.parts {
		parts[rank] = p.value
		hosts[rank] = p.host
	}
	switch {
	case r.deleted:
		return parts, fmt.Errorf("%s: %w", r.key.phase(), ErrDeleted)
	case r.complete:
		if consume {
			h.dropLocked(r)
		}
		return parts, nil
	case h.err != nil:
		return parts, h.err
	}
	return parts, h.missingLocked(r.key.phase(), hosts, start, ctx.Err())
}

// gatherEnter is the first half of every gather: it contributes parts from
// host, without copying them. Unless the mode is modeContribute the caller
// must wait in the round.
func (h *hub) gatherEnter(mode byte, name string, parts map[int][]byte, host string) (*round, error) {
	given := make(map[int]contribution, len(parts))
	for rank, p := range parts {
		given[rank] = contribution{value: p, host: host}
	}
	r, err := h.enter(roundKey{mode == modeBarrier, name}, given, mode == modeContribute)
	if err != nil {
		return nil, err
	}
	if mode == modeContribute {
		h.mu.Lock()
		h.exitLocked(r)
		h.mu.Unlock()
	}
	return r, nil
}

// cloneParts protects values of the store from their reader.
func cloneParts(parts map[int][]byte) map[int][]byte {
	out := make(map[int][]byte, len(parts))
	for rank, p := range parts {
		out[rank] = bytes.Clone(p)
	}
	return out
}
