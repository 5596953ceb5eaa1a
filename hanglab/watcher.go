package hanglab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab/watch"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// pollEvery is how often the watchdog comes round. PyTorch's takes 100 ms; ours also dates the states of operations.
const pollEvery = 10 * time.Millisecond

// abortWait is how long aborting may take. With the wait for dumps before it, a rank has ended 4 s after an alarm at the latest.
const abortWait = 2 * time.Second

// watcher is a rank's watchdog: it feeds the machine and does what the machine says. It has a thread of its own, so that it goes on while the
// rank's thread is stuck in a call.
type watcher struct {
	*rank
	machine *watch.Machine
	inbox   chan moment
	ended   chan watch.Exit // has room for one: the first counts
	gone    atomic.Bool     // communicators are being aborted, or the process ends
	beat    atomic.Int64    // when the loop came round last

	mu    sync.Mutex
	index map[string]int // number of each communicator, by name
	comms map[int]*nccl.Comm

	heardOf map[int]bool // communicators whose error is known
}

// moment is an event and when it happened.
type moment struct {
	at    time.Duration
	event watch.Event
}

func newWatcher(r *rank) (*watcher, error) {
	m, err := watch.New(watch.Config{
		Rank: r.id, World: r.plan.World, Mode: r.plan.Mode, Init: r.plan.Init, Op: r.plan.Op, Heartbeat: r.plan.Heartbeat, AbortWait: abortWait,
	})
	if err != nil {
		return nil, err
	}
	w := &watcher{
		rank: r, machine: m, inbox: make(chan moment, 4096), ended: make(chan watch.Exit, 1),
		index: make(map[string]int), comms: make(map[int]*nccl.Comm), heardOf: make(map[int]bool),
	}
	w.beat.Store(int64(now()))
	return w, nil
}

// tell hands the machine an event of another thread. It never blocks the rank for long: the box is far larger than what one round brings.
func (w *watcher) tell(e watch.Event) { w.inbox <- moment{now(), e} }

// number is the machine's number of the communicator of that name.
func (w *watcher) number(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.index[name]
	if !ok {
		n = len(w.index)
		w.index[name] = n
	}
	return n
}

func (w *watcher) initBegin(name, desc string) {
	w.mark("init_begin", "group", name)
	w.tell(watch.InitBegun{Comm: w.number(name), Name: desc})
}

func (w *watcher) initDone(name string, c *nccl.Comm) {
	n := w.number(name)
	w.mu.Lock()
	w.comms[n] = c
	w.mu.Unlock()
	w.mark("init_done", "group", name)
	w.tell(watch.InitDone{Comm: n})
}

func (w *watcher) initFailed(name string, err error) {
	w.tell(watch.InitFailed{Comm: w.number(name), Text: err.Error()})
}

// forget says that the program is about to end a communicator itself.
func (w *watcher) forget(name string) {
	n := w.number(name)
	w.mu.Lock()
	delete(w.comms, n)
	w.mu.Unlock()
	w.tell(watch.Aborted{Comm: n})
}

// aborting tells whether streams run empty because communicators are being aborted.
func (w *watcher) aborting() bool { return w.gone.Load() }

// loop is the watchdog's life, on its own thread with the rank's device current, until ctx ends.
func (w *watcher) loop(ctx context.Context) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		if err := w.round(); err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// round is one turn: what the other threads told, what the events say, what the communicators say, then the deadlines.
func (w *watcher) round() error {
	for more := true; more; {
		select {
		case m := <-w.inbox:
			w.step(m.at, m.event)
		default:
			more = false
		}
	}
	fresh, changes, err := w.recorder.poll()
	for _, op := range fresh {
		w.step(op.created, watch.Enqueued{Comm: w.number(w.groupName(op.group)), Seq: int64(op.seq), ID: op.id, What: op.call.String(), P2P: op.call.fn.p2p()})
	}
	for _, c := range changes {
		if c.started {
			w.step(c.at, watch.Started{ID: c.op.id})
		} else {
			w.step(c.at, watch.Completed{ID: c.op.id})
		}
	}
	if err != nil {
		return err
	}
	w.askComms()
	w.step(now(), watch.Tick{})
	w.beat.Store(int64(now()))
	w.recorder.ring.Beat(int64(now()))
	return nil
}

func (w *watcher) groupName(index int32) string {
	w.recorder.mu.Lock()
	defer w.recorder.mu.Unlock()
	return w.recorder.groups[index].name
}

// askComms asks each communicator for its asynchronous error, and does not ask again one that has answered with an error.
func (w *watcher) askComms() {
	if w.gone.Load() {
		return
	}
	var found []watch.AsyncError
	w.mu.Lock()
	for n, c := range w.comms {
		if w.heardOf[n] {
			continue
		}
		err := c.AsyncError()
		if err == nil || errors.Is(err, nccl.ErrInProgress) {
			continue
		}
		w.heardOf[n] = true
		found = append(found, watch.AsyncError{Comm: n, Text: err.Error(), Remote: errors.Is(err, nccl.ErrRemote)})
	}
	w.mu.Unlock()
	for _, e := range found {
		w.step(now(), e)
	}
}

// step gives the machine an event and does what it answers. None of that blocks.
func (w *watcher) step(at time.Duration, e watch.Event) {
	for _, a := range w.machine.Step(at, e) {
		w.do(a)
	}
}

func (w *watcher) do(a watch.Action) {
	switch a := a.(type) {
	case watch.Report:
		w.report(a)
	case watch.RequestDump:
		go func() {
			ctx, cancel := context.WithTimeout(w.ctx, storeWait)
			defer cancel()
			if err := w.store.Set(ctx, keyDump, encode(a.Reason)); err != nil {
				w.log("asking all ranks to dump: %v", err)
			}
		}()
	case watch.Dump:
		go w.dumpAndTell(string(a.Reason.Kind))
	case watch.Abort:
		w.abort(a.Comms)
	case watch.Exit:
		w.gone.Store(true)
		select {
		case w.ended <- a:
		default:
		}
	}
}

// storeWait bounds what is told to the store while a job is being ended.
const storeWait = 2 * time.Second

func (w *watcher) report(a watch.Report) {
	fields := []any{"kind", a.Kind, "for_ms", a.For.Milliseconds()}
	if a.Comm >= 0 {
		fields = append(fields, "group", w.nameOf(a.Comm))
	}
	if a.Seq >= 0 {
		fields = append(fields, "seq", a.Seq)
	}
	event := "watchdog"
	switch a.Kind {
	case watch.Heard:
		event = "heard"
	case watch.CommError:
		event = "async_error"
	}
	w.mark(event, append(fields, "text", a.Line)...)
	w.log("%s", a.Line)
}

func (w *watcher) nameOf(comm int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, n := range w.index {
		if n == comm {
			return name
		}
	}
	return ""
}

// dumpAndTell writes the rank's dump, says so in the store, and hears who else has written one.
func (w *watcher) dumpAndTell(reason string) {
	if err := w.dump(reason); err != nil {
		w.tell(watch.DumpFailed{Text: err.Error()})
		return
	}
	w.tell(watch.DumpDone{})
	w.told.Store(true)
	ctx, cancel := context.WithTimeout(w.ctx, watch.DefaultDumpWait)
	defer cancel()
	all, err := w.store.Gather(ctx, gatherDumps, map[int][]byte{w.id: nil})
	for r := range all {
		w.tell(watch.Dumped{Rank: r})
	}
	var missing *bootstrap.MissingRanksError
	if errors.As(err, &missing) {
		for _, ranks := range missing.Present {
			for _, r := range ranks {
				w.tell(watch.Dumped{Rank: r})
			}
		}
	}
}

// abort aborts communicators, each on a thread of its own, since an abort may hang.
func (w *watcher) abort(which []int) {
	w.gone.Store(true)
	w.recorder.retire()
	w.mark("abort")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range which {
		c := w.comms[n]
		if c == nil { // still being made: there is no handle, and the end of the process is all there is
			go w.tell(watch.Aborted{Comm: n})
			continue
		}
		go func() {
			t, err := cuda.NewThread(w.device)
			if err == nil {
				err = t.Do(w.ctx, c.Abort)
			}
			if err != nil {
				w.log("abort of communicator %s: %v", w.nameOf(n), err)
				return
			}
			w.tell(watch.Aborted{Comm: n})
		}()
	}
}

// hear waits for another rank's request to dump.
func (w *watcher) hear(ctx context.Context) {
	raw, err := w.store.Get(ctx, keyDump)
	if err != nil {
		return // the store is gone or the rank ends
	}
	reason, err := decode[watch.Reason](raw)
	if err != nil {
		w.log("request to dump: %v", err)
		return
	}
	if reason.Rank != w.id {
		w.tell(watch.DumpRequested{From: reason.Rank, Reason: reason})
	}
}
