// Package live collects evidence from processes that hang now: what the kernel says of them, their stacks, NCCL's own view, their flight recorders.
// It looks and asks, and changes nothing: no signal, no tracing of its own, no byte written but the one that PyTorch's dump pipe waits for. Every
// step has a deadline, since whatever is asked may hang as well; what could not be had is said with the reason.
package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// NotCollected is the kind of an input that could not be had; its Err says why.
const NotCollected = "not_collected"

// Targets are the processes to look at.
type Targets struct {
	PIDs []int
	Job  bool // all ranks on this host of the job that the PIDs belong to; without PIDs of the only job there is
}

// Options of a collection. The zero value is good.
type Options struct {
	Dir      string            // where to keep what was collected, as files that can be read again; "" keeps nothing
	Step     time.Duration     // deadline of each step; 0: 15 s
	Interval time.Duration     // between the two questions to RAS; 0: 2 s
	RASAddr  string            // "": NCCL_RAS_ADDR of the processes, or NCCL's default; "-": do not ask
	Progress func(text string) // called from several goroutines

	Root  string // of the file system with proc and dev, for tests; "": /
	tools func(name string) (path string, err error)
}

func (o *Options) fill() {
	if o.Step <= 0 {
		o.Step = 15 * time.Second
	}
	if o.Interval <= 0 {
		o.Interval = 2 * time.Second
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.tools == nil {
		o.tools = lookPath
	}
}

// Collect looks at the processes and reads what it got. It blocks for a few seconds, longer where something does not answer, and ends soon after ctx.
// The error is for targets that are none; everything that fails later is an Input of kind NotCollected.
func Collect(ctx context.Context, t Targets, opt Options) (*evidence.Evidence, error) {
	opt.fill()
	procs, err := find(ctx, t, opt)
	if err != nil {
		return nil, err
	}
	dir, shown := opt.Dir, opt.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "commprobe-live-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		shown = "live"
	} else if err := newFolder(dir); err != nil {
		return nil, err
	}
	c := &collector{opt: opt, dir: dir, procs: procs, dumps: map[int][]byte{}, moving: map[int]string{}, looked: map[int]bool{}}
	c.all(ctx)
	return c.read(shown)
}

// newFolder makes the folder. One with files in it is refused: they would become evidence.
func newFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty: what lies there would be taken for evidence; name a new folder", dir)
	}
	return err
}

// collector is one collection.
type collector struct {
	opt   Options
	dir   string
	procs []*process

	mu     sync.Mutex
	failed []evidence.Input
	facts  []evidence.Fact // that no reader of files finds
	saved  int
	dumps  map[int][]byte // by rank, until it is clear whether the job hangs
	moving map[int]string // ranks whose calls went on between two looks, and how; -1: NCCL's RAS says so of the job
	looked map[int]bool   // ranks that were looked at twice
}

// all runs the steps, those of different processes at the same time.
func (c *collector) all(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.askRAS(ctx) })
	wg.Go(func() { c.nvidiaSMI(ctx) })
	wg.Go(func() { c.kernelLog(ctx) })
	wg.Go(func() { c.rings(ctx) })
	atOnce := make(chan struct{}, 8)
	for _, p := range c.procs {
		wg.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			c.opt.Progress(p.String())
			c.kernelState(ctx, p)
			c.pySpy(ctx, p)
			c.flightPipe(ctx, p)
		})
	}
	wg.Wait()
	c.keepDumps()
}

// keepDumps saves the dumps, if the job hangs as far as anybody saw. The dumps of one that works are taken at different moments, and would make whoever
// happened to be behind look guilty.
func (c *collector) keepDumps() {
	_, job := c.moving[-1]
	all := len(c.looked) > 0 && len(c.moving) >= len(c.looked)
	for _, rank := range slices.Sorted(maps.Keys(c.moving)) {
		f := newFact(evidence.Moving, evidence.Where{File: c.dir})
		f.Rank, f.Detail, f.Text = rank, c.moving[rank], c.moving[rank]
		c.facts = append(c.facts, f)
	}
	for _, rank := range slices.Sorted(maps.Keys(c.dumps)) {
		if job || all {
			c.fail(fmt.Sprintf("dump of rank %d", rank), rank, errors.New("left out: the job makes progress, and dumps of different moments cannot be compared"))
			continue
		}
		c.save(fmt.Sprintf("trace_%d", rank), c.dumps[rank])
	}
}

// newFact is a fact that says nothing yet.
func newFact(kind evidence.FactKind, at evidence.Where) evidence.Fact {
	return evidence.Fact{
		Kind: kind, Where: at, Rank: -1, GroupRank: -1, Seq: -1, LastEnqueued: -1, LastStarted: -1, LastCompleted: -1, Peer: -1,
		NumelIn: -1, NumelOut: -1, TimeoutMs: -1, RanMs: -1, Code: -1, OtherRank: -1, LocalRank: -1, GroupSize: -1,
	}
}

// dump keeps a rank's dump until the end.
func (c *collector) dump(rank int, raw []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dumps[rank] = raw
}

// save keeps what a step got.
func (c *collector) save(name string, raw []byte) {
	err := os.WriteFile(filepath.Join(c.dir, name), raw, 0o600)
	if err != nil {
		c.fail(name, -1, err)
		return
	}
	c.mu.Lock()
	c.saved++
	c.mu.Unlock()
}

// fail notes what could not be had.
func (c *collector) fail(what string, rank int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, evidence.Input{Name: what, Kind: NotCollected, Rank: rank, Err: err.Error()})
}

// read makes evidence of the files. Their places are shown below a name that outlives the folder.
func (c *collector) read(shown string) (*evidence.Evidence, error) {
	e := &evidence.Evidence{} // without files there is nothing to read
	if c.saved > 0 {
		var err error
		if e, err = evidence.Read([]string{c.dir}, evidence.Options{}); err != nil {
			return nil, err
		}
	}
	e.Facts = append(e.Facts, c.facts...)
	slices.SortFunc(c.failed, func(a, b evidence.Input) int { return strings.Compare(a.Name, b.Name) })
	e.Inputs = append(e.Inputs, c.failed...)
	if shown != c.dir {
		rename(e, c.dir, shown)
	}
	return e, nil
}

// rename puts another name in front of all places.
func rename(e *evidence.Evidence, from, to string) {
	fix := func(name *string) {
		if rest, ok := strings.CutPrefix(*name, from); ok {
			*name = to + rest
		}
	}
	for i := range e.Inputs {
		fix(&e.Inputs[i].Name)
	}
	for i := range e.Dumps {
		fix(&e.Dumps[i].Where.File)
	}
	for i := range e.Facts {
		fix(&e.Facts[i].Where.File)
	}
	for _, x := range e.Comms {
		fix(&x.Where.File)
	}
	for i := range e.RAS {
		fix(&e.RAS[i].Where.File)
	}
	for i := range e.Stacks {
		fix(&e.Stacks[i].Where.File)
	}
}

// errSlow is a step that did not end in time.
var errSlow = errors.New("no answer in time")

// within runs f with a deadline. Reading from /proc can block for ever when the process holds a lock in the kernel; then f's goroutine is lost, and its
// result with it.
func within[T any](ctx context.Context, d time.Duration, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	var none T
	select {
	case r := <-done:
		return r.v, r.err
	case <-t.C:
		return none, fmt.Errorf("%w (%v)", errSlow, d)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
