package hanglab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// Laboratory sizes: step s works on (s+1) * unit floats, so that every step's size is its own; with constant sizes all have one unit.
const (
	DefaultUnit  = 64 << 10
	DefaultSteps = 8
)

// ExitError ends a rank's process with a status of its own.
type ExitError struct {
	Code   int
	Text   string
	Abrupt bool // at once: nothing is released, nobody is told
}

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d: %s", e.Code, e.Text) }

// labComm is a communicator of the laboratory with its stream.
type labComm struct {
	*nccl.Comm
	group  *group
	stream cuda.Stream
}

// pending is a call whose result has not been looked at.
type pending struct {
	comm *labComm
	call call
}

// lab is the program of one rank: what a training script would be. All of it runs on one thread.
type lab struct {
	*rank
	comm, second *labComm
	send, recv   cuda.DevicePtr
	elements     int
	host         []byte // a copy of the input or of a result
	step         int
	queue        []pending
	free         []func() error
}

func (l *lab) odd() bool { return l.id == l.plan.Rank }

// count is the number of floats of step s.
func (l *lab) count(s int) int {
	if l.plan.Constant || l.scenario.Constant {
		return l.plan.Unit
	}
	return (s + 1) * l.plan.Unit
}

// run is the rank's whole program. It returns when everything is done, or with what kept it from that.
func (l *lab) run() error {
	if err := l.setUp(); err != nil {
		return err
	}
	for l.step = 0; l.step < l.plan.Steps; l.step++ {
		l.mark("enter", "step", l.step)
		l.phase("step %d", l.step)
		if err := l.fill(max(2*l.count(l.step)+1024, l.scenario.elements(l.world))); err != nil {
			return fmt.Errorf("step %d: %w", l.step, err)
		}
		if err := l.one(l.step); err != nil {
			return fmt.Errorf("step %d: %w", l.step, err)
		}
		l.mark("done", "step", l.step)
	}
	if l.scenario.AtEnd != nil {
		if err := l.scenario.AtEnd(l); err != nil {
			return err
		}
	}
	return l.tearDown()
}

// one does a step: the scenario's fault, the scenario's own step, or the usual all_reduce.
func (l *lab) one(s int) error {
	switch {
	case s == l.plan.Step && l.scenario.Fault != nil:
		return l.scenario.Fault(l, s, l.odd())
	case l.scenario.Always != nil:
		return l.scenario.Always(l, s)
	}
	return l.allReduce(l.count(s))
}

// setUp makes buffers and communicators and shows that they work, unless the scenario makes them later.
func (l *lab) setUp() error {
	l.phase("allocating buffers")
	// The widest call is an all_gather of a step's size, or what the scenario needs.
	l.elements = max(2*l.plan.Steps*l.plan.Unit+1024, l.scenario.elements(l.world))
	for _, p := range []*cuda.DevicePtr{&l.send, &l.recv} {
		var err error
		if *p, err = cuda.Malloc(int64(l.elements) * 4); err != nil {
			return fmt.Errorf("buffer of %d bytes: %w", l.elements*4, err)
		}
		l.free = append(l.free, func() error { return cuda.Free(*p) })
	}
	l.step = -1
	if err := l.fill(1); err != nil {
		return err
	}
	if l.scenario.Lazy {
		return nil
	}
	var err error
	if l.comm, err = l.makeComm("0", "default_pg"); err != nil {
		return err
	}
	if l.scenario.Seconds {
		if l.second, err = l.makeComm("1", "second"); err != nil {
			return err
		}
	}
	l.phase("warm-up")
	if err := l.allReduce(1); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	if l.second != nil { // its connections are made now and not in the experiment
		if err := l.call(l.second, call{fn: fnAllReduce, count: 1}); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	l.mark("healthy")
	return nil
}

// makeComm creates a communicator over all ranks. Its first rank makes the unique id and hands it on through the store.
func (l *lab) makeComm(name, desc string) (*labComm, error) {
	l.phase("creating communicator %s", name)
	l.watcher.initBegin(name, desc)
	id, err := l.uniqueID(name)
	if err != nil {
		return nil, l.initFailed(name, err)
	}
	c, err := nccl.InitRank(id, l.world, l.id, nil)
	if err != nil {
		return nil, l.initFailed(name, err)
	}
	l.watcher.initDone(name, c)
	s, err := cuda.NewStream()
	if err != nil {
		return nil, err
	}
	l.free = append(l.free, s.Destroy)
	members := make([]int, l.world)
	for i := range members {
		members[i] = i
	}
	return &labComm{Comm: c, group: l.recorder.addGroup(name, desc, members), stream: s}, nil
}

func (l *lab) initFailed(name string, err error) error {
	l.mark("init_failed", "group", name, "error", err)
	l.watcher.initFailed(name, err)
	return fmt.Errorf("communicator %s: %w", name, err)
}

func (l *lab) uniqueID(name string) (id nccl.UniqueID, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.plan.Fuse)
	defer cancel()
	if l.id == 0 {
		if id, err = nccl.NewUniqueID(); err != nil {
			return id, err
		}
		return id, l.store.Set(ctx, keyID(name), id[:])
	}
	raw, err := l.store.Get(ctx, keyID(name))
	if err == nil && copy(id[:], raw) != len(id) {
		err = fmt.Errorf("unique id of %d bytes instead of %d", len(raw), len(id))
	}
	return id, err
}

// cold is a call on a communicator that is made now.
func (l *lab) cold(c call) error {
	var err error
	if l.second, err = l.makeComm("1", "second"); err != nil {
		return err
	}
	return l.call(l.second, c)
}

// allReduce is the usual call: all_reduce of n floats on the first communicator, waited for and checked.
func (l *lab) allReduce(n int) error { return l.call(l.comm, call{fn: fnAllReduce, count: n}) }

// call makes one call, waits for it and checks its result.
func (l *lab) call(c *labComm, x call) error {
	if err := l.enqueue(c, x); err != nil {
		return err
	}
	return l.settle()
}

// calls makes several on the first communicator without waiting in between.
func (l *lab) calls(list ...call) error {
	for _, x := range list {
		if err := l.enqueue(l.comm, x); err != nil {
			return err
		}
	}
	return l.settle()
}

// enqueue records a call and makes it. A communicator that is not there yet is made first.
func (l *lab) enqueue(c *labComm, x call) error {
	if c == nil {
		var err error
		if l.comm, err = l.makeComm("0", "default_pg"); err != nil {
			return err
		}
		c = l.comm
	}
	if err := l.compare(c, x); err != nil {
		return err
	}
	l.phase("step %d: %s", l.step, x)
	op, err := l.recorder.begin(c.group, x, l.world, c.stream, l.plan.Op)
	if err != nil {
		return err
	}
	if err := x.issue(c.Comm, l.send, l.recv, c.stream); err != nil {
		return fmt.Errorf("%s: %w", x, err)
	}
	l.queue = append(l.queue, pending{c, x})
	return l.recorder.end(c.group, op, c.stream)
}

// settle waits for what was queued, in C and without a limit as programs do, and looks at the results.
func (l *lab) settle() error {
	for len(l.queue) > 0 {
		p := l.queue[0]
		l.queue = l.queue[1:]
		l.phase("step %d: waiting for %s", l.step, p.call)
		if err := p.comm.stream.Synchronize(); err != nil {
			return fmt.Errorf("%s: %w", p.call, err)
		}
		if l.watcher.aborting() { // the stream ran empty because of that
			return errAborted
		}
		if err := l.recorder.refresh(); err != nil { // a dump of this process, also of a stopped or dead one, says that it is complete
			return err
		}
		if err := l.verify(p); err != nil {
			return err
		}
	}
	return nil
}

// errAborted is why a rank's program ends after its communicators were aborted.
var errAborted = errors.New("the communicator was aborted")

// value is what rank r sends in step s, the same in all elements. Sums over ranks are exact, and what is left from another step is seen.
func value(r, s int) float32 { return float32(r + 1 + 1000*(s+1)) }

// fill writes this step's value to the first n elements of the input.
func (l *lab) fill(n int) error {
	n = min(n, l.elements) * 4
	if len(l.host) < n {
		l.host = make([]byte, n)
	}
	binary.LittleEndian.PutUint32(l.host, math.Float32bits(value(l.id, l.step)))
	for done := 4; done < n; done *= 2 {
		copy(l.host[done:n], l.host[:done])
	}
	return cuda.CopyIn(l.send, l.host[:n])
}

// poison puts a value into one element of the input.
func (l *lab) poison(i int, v float32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], math.Float32bits(v))
	if err := cuda.CopyIn(l.send.Add(int64(i)*4), b[:]); err != nil {
		l.log("poisoning element %d: %v", i, err)
	}
}

// overwrite changes the input while a call that reads it may be running.
func (l *lab) overwrite(n int) error {
	s, err := cuda.NewStream()
	if err != nil {
		return err
	}
	err = cuda.MemsetAsync(l.send, 0, int64(n)*4, s)
	return errors.Join(err, s.Synchronize(), s.Destroy())
}

// expected is what element i of a call's result must be, and whether the rank has a result.
func (l *lab) expected(c call) (want func(i int) float32, n int) {
	_, n = c.elements(l.world)
	switch c.fn {
	case fnAllReduce, fnReduceScatter:
		sum := float32(l.world*(l.world+1)/2 + 1000*(l.step+1)*l.world)
		return func(int) float32 { return sum }, n
	case fnBroadcast, fnRecv:
		return func(int) float32 { return value(c.peer, l.step) }, n
	case fnAllGather:
		return func(i int) float32 { return value(i/c.count, l.step) }, n
	}
	return nil, 0
}

// verify compares a result with what it should be. Wrong data is recorded; it does not end the program, as in real ones.
func (l *lab) verify(p pending) error {
	want, n := l.expected(p.call)
	if n == 0 || p.call.unchecked {
		return nil
	}
	if len(l.host) < n*4 {
		l.host = make([]byte, n*4)
	}
	if err := cuda.CopyOut(l.host[:n*4], l.recv); err != nil {
		return fmt.Errorf("reading the result: %w", err)
	}
	bad, first := 0, -1
	var got float32
	for i := range n {
		v := math.Float32frombits(binary.LittleEndian.Uint32(l.host[i*4:]))
		if v != want(i) {
			if bad == 0 {
				first, got = i, v
			}
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	l.mark("wrong_data", "step", l.step, "group", p.comm.group.name, "call", p.call.fn, "elements", bad, "of", n, "first", first, "want", want(first), "got", got)
	if l.scenario.NaNs {
		return l.searchNaN(n)
	}
	return nil
}

// searchNaN looks for NaN in the rank's own input: afterwards every result has one, but only one input.
func (l *lab) searchNaN(n int) error {
	buf := make([]byte, n*4)
	if err := cuda.CopyOut(buf, l.send); err != nil {
		return err
	}
	for i := range n {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(buf[i*4:])); v != v {
			l.mark("nan_input", "step", l.step, "element", i)
			return nil
		}
	}
	return nil
}

// sleep is host code that takes its time.
func (l *lab) sleep(what string, d time.Duration) error {
	l.phase("step %d: %s", l.step, what)
	select {
	case <-time.After(d):
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// cut has the supervisor take the link between the two network namespaces away, once every rank has come here.
func (l *lab) cut(odd bool) error {
	ctx, cancel := context.WithTimeout(l.ctx, l.plan.Fuse)
	defer cancel()
	if odd {
		l.inject("the link between the namespaces goes down")
	}
	if err := l.store.Barrier(ctx, barrierCut, []int{l.id}); err != nil {
		return err
	}
	_, err := l.store.Get(ctx, keyCutDone)
	return err
}

// tearDown ends everything in order.
func (l *lab) tearDown() error {
	l.phase("ending")
	var errs []error
	for _, c := range []*labComm{l.second, l.comm} {
		if c != nil {
			l.watcher.forget(c.group.name)
			errs = append(errs, c.Destroy())
		}
	}
	for i := len(l.free) - 1; i >= 0; i-- {
		errs = append(errs, l.free[i]())
	}
	return errors.Join(errs...)
}
