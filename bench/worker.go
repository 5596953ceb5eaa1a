package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// WorkerConfig says which ranks a process is and where the coordinator listens.
type WorkerConfig struct {
	Addr        string
	Token       bootstrap.Token
	Ranks       []int // global
	Devices     []int // device ordinal of each rank on this host
	World       int
	Program     string // version, must equal the coordinator's
	JoinTimeout time.Duration
	Stop        <-chan struct{} // closed: ask the coordinator to end the run after the present size; nil: never
	ParentGone  <-chan struct{} // closed when the launching process is gone; nil: none
}

// graceful is how long a worker that is told to stop may take before its process ends without it.
const graceful = 2 * time.Second

// RunWorker joins the coordinator and is its ranks until the run ends. It returns nil after an orderly end. When the job is aborted, the
// coordinator is lost or the parent is gone, it returns within about two seconds even though a thread may hang inside a library: the caller
// must then end the process.
func RunWorker(ctx context.Context, cfg WorkerConfig) error {
	dial, cancel := context.WithTimeout(ctx, cfg.JoinTimeout)
	store, err := bootstrap.Dial(dial, cfg.Addr, bootstrap.Config{
		Token: cfg.Token, World: cfg.World, WaitTimeout: waitAsLongAsTheRun, Hello: bootstrap.Hello{Ranks: cfg.Ranks, Program: cfg.Program},
	})
	cancel()
	if err != nil {
		return fmt.Errorf("rank %d: join: %w", cfg.Ranks[0], err)
	}
	w := &worker{cfg: cfg, store: store, flag: csrc.NewFlag()}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	finished := make(chan error, 1)
	go func() { finished <- w.run(ctx) }()
	go w.askStop(ctx)
	select {
	case err = <-finished:
		if err != nil {
			w.keepRecord(err)
		}
	case <-store.Done():
		err = w.end(stop, finished, store.Err())
	case <-cfg.ParentGone:
		err = w.leave(stop, finished, errors.New("the launching process is gone"))
	case <-ctx.Done():
		err = w.leave(stop, finished, context.Cause(ctx))
	}
	return errors.Join(err, store.Close())
}

// worker is the state of one process of the job.
type worker struct {
	cfg     WorkerConfig
	store   *bootstrap.Client
	flag    *csrc.Flag
	plan    Plan
	hostKey string // see deviceReport
	drivers []*driver
	mu      sync.Mutex // guards drivers and their lanes against end, and ended
	ended   bool
	saidBye atomic.Bool // everything is released and the coordinator is being told
}

// leave is end for a reason that the coordinator does not know yet.
func (w *worker) leave(stop context.CancelCauseFunc, finished <-chan error, cause error) error {
	tell, cancel := context.WithTimeout(context.Background(), graceful/2)
	defer cancel()
	f := &Failure{Kind: FailDied, Rank: w.cfg.Ranks[0], Host: w.host(), Text: "left the job: " + cause.Error(), Process: w.cfg.Ranks}
	err := w.store.Set(tell, keyAlarm(w.cfg.Ranks[0]), encode(f))
	return errors.Join(w.end(stop, finished, cause), err)
}

// askStop passes a wish to stop on to the coordinator, which ends the run in good order for all.
func (w *worker) askStop(ctx context.Context) {
	select {
	case <-w.cfg.Stop:
		_ = w.store.Set(ctx, keyStop, nil) // a store that is gone ends the worker anyway
	case <-ctx.Done():
	}
}

// end stops the worker from outside: series leave their loops, communicators are aborted, and what still hangs is left behind.
func (w *worker) end(stop context.CancelCauseFunc, finished <-chan error, cause error) error {
	w.keepRecord(cause) // before anything is aborted: streams that run empty then look as if all had been done
	w.flag.Set()
	stop(cause)
	go w.abortComms()
	select {
	case err := <-finished:
		// A coordinator that has all goodbyes closes the store, perhaps before it has answered the last of them.
		if err == nil || w.saidBye.Load() && errors.Is(cause, bootstrap.ErrServerClosed) {
			return nil
		}
	case <-time.After(graceful):
	}
	return cause
}

func (w *worker) abortComms() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	for _, d := range w.drivers {
		for _, l := range d.lanes {
			if c := l.comm.Load(); c != nil && c.Handle() != 0 {
				go func() { _ = c.Abort() }() // the process ends anyway; a hanging abort must not hold the others up
			}
		}
	}
}

// run is the worker's whole life. A failure is told to the coordinator first and then returned.
func (w *worker) run(ctx context.Context) error {
	err := w.work(ctx)
	if err == nil || errors.Is(err, errStopped) || ctx.Err() != nil || w.store.Err() != nil {
		return err
	}
	f := w.failure(err)
	f.Process = w.cfg.Ranks
	tell, cancel := context.WithTimeout(ctx, graceful)
	defer cancel()
	if err := w.store.Set(tell, keyAlarm(w.cfg.Ranks[0]), encode(f)); err != nil {
		return errors.Join(f, err)
	}
	<-ctx.Done() // the coordinator hears the other ranks too and then ends the job
	return f
}

// failure classes an error for the coordinator.
func (w *worker) failure(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		f.Host = w.host()
		return f
	}
	f = &Failure{Kind: FailInternal, Rank: w.cfg.Ranks[0], Host: w.host(), Text: err.Error()}
	var lib *csrc.LibraryError
	var none *cuda.NoDeviceError
	switch {
	case errors.As(err, &lib) || errors.As(err, &none):
		f.Kind = FailNoDevice
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind = FailTimeout
	case errors.Is(err, nccl.ErrRemote):
		f.Kind = FailRemote
	}
	return f
}

func (w *worker) host() string { return w.store.Hello().Host }

// in runs f with the plan's time-out and puts the phase's name in front of its error.
func (w *worker) in(ctx context.Context, phase string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.plan.Timeout, context.DeadlineExceeded)
	defer cancel()
	err := f(ctx)
	if err == nil {
		return nil
	}
	var have *Failure
	if errors.As(err, &have) || errors.Is(err, errStopped) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Failure{Kind: FailTimeout, Rank: w.cfg.Ranks[0], Phase: phase, Text: fmt.Sprintf("not done within %v", w.plan.Timeout)}
	}
	c := w.failure(err)
	c.Phase = phase
	return c
}

func (w *worker) work(ctx context.Context) error {
	raw, err := w.store.Get(ctx, keyPlan)
	if err != nil {
		return fmt.Errorf("get the plan: %w", err)
	}
	if w.plan, err = decode[Plan](raw); err != nil {
		return err
	}
	if err := w.in(ctx, "finding the devices", w.devices); err != nil {
		return err
	}
	raw, err = w.store.Get(ctx, keyFinal)
	if err != nil {
		return fmt.Errorf("get the final plan: %w", err)
	}
	final, err := decode[finalMsg](raw)
	if err != nil {
		return err
	}
	w.plan = final.Plan
	if err := w.in(ctx, "communicator initialisation", func(ctx context.Context) error { return w.init(ctx, final) }); err != nil {
		return err
	}
	if err := w.loop(ctx); err != nil {
		return err
	}
	return w.in(ctx, "shutdown", w.shutdown)
}

// devices chooses the engine and reports what each rank has.
func (w *worker) devices(ctx context.Context) error {
	if err := UseEngine(w.plan.Engine, w.plan.CUDARTPath, w.plan.NCCLPath, slices.Max(w.cfg.Devices)+1); err != nil {
		return err
	}
	have, err := cuda.DeviceCount()
	if err != nil {
		return err
	}
	for i, d := range w.cfg.Devices {
		if d >= have {
			return &Failure{
				Kind: FailUsage, Rank: w.cfg.Ranks[i], Phase: "finding the devices",
				Text: fmt.Sprintf("needs device %d, but this host shows %d (CUDA_VISIBLE_DEVICES=%q); start at most one rank a device", d, have, os.Getenv("CUDA_VISIBLE_DEVICES")),
			}
		}
	}
	drivers, err := newDrivers(w.plan.Placement, w.cfg.Ranks, w.cfg.Devices, w.flag, w.plan.Timeout)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.drivers = drivers
	w.mu.Unlock()
	host := HostFacts("")
	w.hostKey = hostKey(host.Name)
	parts := make(map[int][]byte)
	for _, d := range w.drivers {
		err := d.each(ctx, func(l *lane) error {
			r, err := describe(l, host, w.hostKey)
			if l.rank == w.cfg.Ranks[0] {
				r.Drivers = len(w.drivers)
			}
			parts[l.rank] = encode(r)
			return err
		})
		if err != nil {
			return err
		}
	}
	return w.store.Contribute(ctx, gatherDevice, parts)
}

func describe(l *lane, host result.Host, hostKey string) (deviceReport, error) {
	p, err := cuda.GetProperties(l.device)
	if err != nil {
		return deviceReport{}, err
	}
	l.pci = p.PCIBusID
	if p.ComputeMode == 2 {
		return deviceReport{}, fmt.Errorf("device %d is in compute mode PROHIBITED (nvidia-smi -c 0 allows use again)", l.device)
	}
	free, _, err := cuda.MemInfo()
	if err != nil {
		return deviceReport{}, err
	}
	r := deviceReport{
		Host: host, HostKey: hostKey, NCCL: int(nccl.LibraryVersion()), Compute: p.Major*10 + p.Minor, Free: free,
		Rank: result.Rank{
			Rank: l.rank, Host: host.Name, PID: os.Getpid(), Device: l.device, DeviceName: p.Name, PCIBusID: p.PCIBusID, UUID: p.UUID,
			MemTotal: result.Bytes(p.TotalBytes), CPUs: allowedCPUs(),
		},
	}
	if p.Major > 0 {
		r.Rank.Compute = fmt.Sprintf("%d.%d", p.Major, p.Minor)
	}
	for _, lib := range append(cuda.Libraries(), nccl.Library()) {
		r.Libraries = append(r.Libraries, result.Library(lib))
	}
	return r, nil
}

// UseEngine loads the libraries of an engine, "native" or "host". hostDevices is the number of virtual devices of the host engine.
func UseEngine(engine, cudart, ncclLib string, hostDevices int) error {
	if engine == "host" {
		cuda.UseHost(max(1, hostDevices))
		return nccl.UseHost()
	}
	if err := cuda.Load(cuda.Options{RuntimePath: cudart}); err != nil {
		return err
	}
	return nccl.Load(ncclLib)
}

// init makes the barrier, the communicators and the buffers.
func (w *worker) init(ctx context.Context, final finalMsg) error {
	w.mu.Lock() // an end from outside goes through the lanes
	for _, d := range w.drivers {
		d.spread(&w.plan)
	}
	w.mu.Unlock()
	if err := w.makeBarrier(ctx, final); err != nil {
		return err
	}
	ids, err := w.uniqueIDs(ctx)
	if err != nil {
		return err
	}
	if err := w.record(final, ids); err != nil {
		return err
	}
	seconds := make(map[*driver]float64)
	var mu sync.Mutex
	err = w.eachDriver(func(d *driver) error {
		if err := w.weigh(ctx, d, 0); err != nil {
			return err
		}
		start := time.Now()
		err := d.init(ctx, ids, &w.plan.Modes)
		mu.Lock()
		defer mu.Unlock()
		seconds[d] = time.Since(start).Seconds()
		return err
	})
	if err != nil {
		return err
	}
	if err := w.eachDriver(func(d *driver) error { return w.buffers(ctx, d) }); err != nil {
		return err
	}
	if err := w.eachDriver(func(d *driver) error { return d.follow(ctx) }); err != nil {
		return err
	}
	parts := make(map[int][]byte)
	for _, d := range w.drivers {
		for _, l := range d.lanes {
			if l.index == 0 {
				parts[l.rank] = encode(readyReport{InitS: seconds[d], Free: l.free})
			}
		}
	}
	return w.store.Contribute(ctx, gatherReady, parts)
}

// buffers makes the streams and buffers of a driver's lanes and registers them.
func (w *worker) buffers(ctx context.Context, d *driver) error {
	if err := w.weigh(ctx, d, 1); err != nil {
		return err
	}
	size := (int64(w.plan.MaxBytes) + int64(w.plan.Modes.Unalign)*largestElement + 511) &^ 511
	if err := d.each(ctx, func(l *lane) error { return l.alloc(size, &w.plan) }); err != nil {
		return err
	}
	if how := w.plan.Modes.Register; how > 0 {
		if err := d.grouped(ctx, func(l *lane) error { return l.register(how) }); err != nil {
			return err
		}
	}
	return w.weigh(ctx, d, 2)
}

// largestElement is the size of the largest data type.
const largestElement = 8

// weigh notes how much memory the lanes' devices have free at one of the points of lane.free.
func (w *worker) weigh(ctx context.Context, d *driver, point int) error {
	if !w.plan.Modes.Memory {
		return nil
	}
	return d.each(ctx, func(l *lane) (err error) {
		l.free[point], _, err = cuda.MemInfo()
		return err
	})
}

// eachDriver runs f for all drivers at once and waits for all.
func (w *worker) eachDriver(f func(*driver) error) error {
	errs := make([]error, len(w.drivers))
	var wg sync.WaitGroup
	for i, d := range w.drivers {
		wg.Go(func() { errs[i] = f(d) })
	}
	wg.Wait()
	return worst(errs)
}

// worst picks the error that says most: a failure of the gravest kind before those that only follow from it.
func worst(errs []error) error {
	var best error
	rank := func(err error) int {
		var f *Failure
		switch {
		case errors.As(err, &f):
			return f.severity()
		case errors.Is(err, errStopped):
			return len(failOrder) + 1
		}
		return 2
	}
	for _, err := range errs {
		if err != nil && (best == nil || rank(err) < rank(best)) {
			best = err
		}
	}
	return best
}

// uniqueIDs has the id of each communicator that the process's ranks are in. The worker of its rank 0 makes it.
func (w *worker) uniqueIDs(ctx context.Context) (map[commKey]nccl.UniqueID, error) {
	ids := make(map[commKey]nccl.UniqueID)
	for _, d := range w.drivers {
		for _, l := range d.lanes {
			if l.at != 0 {
				continue
			}
			made := make(chan nccl.UniqueID, 1)
			err := d.thread.Do(ctx, func() error {
				id, err := nccl.NewUniqueID()
				made <- id
				return err
			})
			if err != nil {
				return nil, err
			}
			id := <-made
			ids[commKey{l.group, l.index}] = id
			if err := w.store.Set(ctx, keyID(l.group, l.index), id[:]); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range w.drivers {
		for _, l := range d.lanes {
			key := commKey{l.group, l.index}
			if _, ok := ids[key]; ok {
				continue
			}
			raw, err := w.store.Get(ctx, keyID(l.group, l.index))
			if err != nil {
				return nil, err
			}
			var id nccl.UniqueID
			if len(raw) != len(id) {
				return nil, fmt.Errorf("unique id of %d bytes instead of %d", len(raw), len(id))
			}
			copy(id[:], raw)
			ids[key] = id
		}
	}
	return ids, nil
}

// makeBarrier gives the timing threads of this host their common barrier: private memory when they are all in this process, otherwise a
// file that the host's lowest rank makes and removes again once all have it.
func (w *worker) makeBarrier(ctx context.Context, final finalMsg) error {
	key := w.hostKey
	parties := final.Drivers[key]
	use := func(b *csrc.Barrier) {
		for _, d := range w.drivers {
			d.barrier, d.parties = b, parties
		}
	}
	if w.plan.QuietCores {
		for i, d := range w.drivers {
			local := w.cfg.Devices[0] + i // devices of one host's ranks differ, and so do these
			d.quiet = &quiet{cpus: share(nearCPUs("", d.lanes[0].pci), local%parties, parties)}
		}
	}
	if parties == len(w.drivers) {
		use(csrc.NewBarrier())
		return nil
	}
	path := barrierPath(final.Job, final.First[key])
	first := slices.Contains(w.cfg.Ranks, final.First[key])
	if first {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("barrier: %w", err)
		}
		defer os.Remove(path)
		err = f.Truncate(csrc.BarrierBytes)
		b, mapErr := csrc.MapBarrier(f)
		if err := errors.Join(err, mapErr, f.Close()); err != nil {
			return fmt.Errorf("barrier: %w", err)
		}
		use(b)
		if err := w.store.Set(ctx, keyBarrier(key), nil); err != nil {
			return err
		}
	} else {
		if _, err := w.store.Get(ctx, keyBarrier(key)); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("barrier: the ranks of host %s do not share memory (different containers?): %w", w.host(), err)
		}
		b, mapErr := csrc.MapBarrier(f)
		if err := errors.Join(mapErr, f.Close()); err != nil {
			return err
		}
		use(b)
	}
	return w.store.Barrier(ctx, "barriers mapped", w.cfg.Ranks)
}

// barrierPath is the file by which the processes of one host share a barrier while a job starts; first is the host's lowest rank.
func barrierPath(job string, first int) string {
	dir := "/dev/shm"
	if s, err := os.Stat(dir); err != nil || !s.IsDir() {
		dir = os.TempDir()
	}
	return filepath.Join(dir, fmt.Sprintf("commprobe-%s-%d", job, first))
}

// loop runs the steps that the coordinator asks for until it says stop.
func (w *worker) loop(ctx context.Context) error {
	steps, err := w.plan.steps()
	if err != nil {
		return err
	}
	if w.plan.Engine == "native" { // CPU ranks may outnumber the processors
		for _, d := range w.drivers {
			d.thread.StayAwake(true)
			defer d.thread.StayAwake(false)
		}
	}
	for k := 0; ; k++ {
		raw, err := w.store.Get(ctx, keyStep(k))
		if err != nil {
			return fmt.Errorf("wait for the next step: %w", err)
		}
		msg, err := decode[stepMsg](raw)
		if err != nil {
			return err
		}
		if msg.Stop {
			return nil
		}
		if msg.Step < 0 || msg.Step >= len(steps) {
			return fmt.Errorf("step %d of %d asked for", msg.Step, len(steps))
		}
		if err := w.step(ctx, k, steps[msg.Step], msg); err != nil {
			return err
		}
	}
}

func (w *worker) step(ctx context.Context, k int, st step, msg stepMsg) error {
	t := &task{step: st, plan: &w.plan, iters: msg.Iters, eventIters: msg.EventIters, number: msg.Step}
	parts := make(map[int][]byte)
	var mu sync.Mutex
	err := w.eachDriver(func(d *driver) error {
		var rows []rankRow
		// The series inside have the time-out; this context only ends the wait for a thread that will never answer.
		err := d.thread.Do(ctx, func() (err error) {
			rows, err = d.measure(t)
			return err
		})
		if err != nil {
			return err // and the thread may still be at it: rows are its own
		}
		mu.Lock()
		defer mu.Unlock()
		for i, r := range rows {
			parts[d.lanes[i].rank] = encode(r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return w.store.Contribute(ctx, gatherRow(k), parts)
}

// shutdown ends everything in order and says goodbye.
func (w *worker) shutdown(ctx context.Context) error {
	parts := make(map[int][]byte)
	for _, d := range w.drivers {
		err := d.each(ctx, func(l *lane) error {
			if l.index > 0 || !w.plan.Modes.Memory {
				return nil
			}
			free, _, err := cuda.MemInfo()
			parts[l.rank] = encode(goodbye{Free: free})
			return err
		})
		if err != nil {
			return err
		}
		for _, l := range d.lanes {
			if parts[l.rank] == nil {
				parts[l.rank] = encode(goodbye{})
			}
		}
	}
	if err := w.eachDriver(func(d *driver) error { return d.rec.unfollow(ctx) }); err != nil {
		return err
	}
	// What is registered with a communicator, symmetric windows by all ranks together, goes before the memory.
	if err := w.eachDriver(func(d *driver) error { return d.grouped(ctx, (*lane).release) }); err != nil {
		return err
	}
	if err := w.eachDriver(func(d *driver) error { return d.each(ctx, (*lane).close) }); err != nil {
		return err
	}
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	if err := w.eachDriver(func(d *driver) error { return d.destroy(ctx) }); err != nil {
		return err
	}
	for _, d := range w.drivers {
		if err := errors.Join(d.thread.Close(ctx), d.rec.close()); err != nil {
			return err
		}
	}
	if left := cuda.Live(); len(left) > 0 || nccl.Live() > 0 {
		return fmt.Errorf("leaked handles: %v, communicators: %d", left, nccl.Live())
	}
	w.saidBye.Store(true)
	return w.store.Contribute(ctx, gatherBye, parts)
}
