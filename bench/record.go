package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/nccl"
)

// A sweep records every NCCL call that it makes, so that one that ends badly can say what each rank was at. Each timing thread has a ring in
// memory that outlives it (csrc/flight.h). With local workers the rings are files that the coordinator opens while the job starts and that have
// no name from then on: it reads them whatever has become of the worker, and however the job ends no file stays behind. A worker that somebody
// else started has its ring to itself and writes its own dumps before it leaves.

// DefaultRecord is how many calls a rank's record holds unless the plan says otherwise; PyTorch's Flight Recorder holds about as many.
const DefaultRecord = 2048

// MaxRecord is the largest accepted number of them.
const MaxRecord = 1 << 20

const (
	recordPoll   = 100 * time.Millisecond // between two looks at the events, as PyTorch's watchdog takes
	recordEvents = 4                      // of a lane: enough to follow it, see csrc.NewFlightEvents
	ownDumpLimit = time.Second            // for a worker's own dumps
)

// recorder is the flight record of one driver. A nil recorder records nothing.
type recorder struct {
	since time.Time
	ring  *csrc.Flight
	path  string // of the ring's file until the coordinator has taken it over; "": the ring is memory of this process
	first int    // lowest rank of the driver
	stop  func() // ends the polling
	quit  <-chan struct{}

	// looking is held while events are looked at, and while graphs are captured: then CUDA may refuse the look, or break the capture.
	looking sync.Mutex
	polled  chan struct{} // closed when the polling has ended

	mu     sync.Mutex // guards ring against close
	closed bool
}

// laneRecord is where a lane's calls are recorded.
type laneRecord struct {
	group  int32        // of the ring
	events []cuda.Event // of the pool
	pool   *csrc.FlightEvents
}

// recordPath is the file of a driver's ring while a job starts.
func recordPath(job string, first int) string { return barrierPath(job, first) + ".ring" }

// newRecorder makes a ring, in a file with that name unless it is "". Where there is no room for the file the ring lies in memory of this
// process: a measurement does not fail because of its record, but the record of a process that is killed is gone then.
func newRecorder(path string, entries, first int) (*recorder, error) {
	quit, stop := context.WithCancel(context.Background())
	r := &recorder{since: time.Now(), first: first, stop: stop, quit: quit.Done(), polled: make(chan struct{})}
	file, err := recordFile(path, entries)
	if err == nil {
		r.path = path
		defer file.Close() // the mapping stays
	}
	r.ring, err = csrc.NewFlight(file, entries)
	return r, err
}

// recordFile makes a file that has room for the ring. To write to a mapping for which a full tmpfs has none is no error but a SIGBUS.
func recordFile(path string, entries int) (*os.File, error) {
	if path == "" {
		return nil, os.ErrNotExist
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, flight.RingBytes(entries)); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// record gives each driver its recorder.
func (w *worker) record(final finalMsg, ids map[commKey]nccl.UniqueID) error {
	if w.plan.Record == 0 {
		return nil
	}
	for _, d := range w.drivers {
		path := ""
		if final.TakesRings {
			path = recordPath(final.Job, d.lanes[0].rank)
		}
		rec, err := newRecorder(path, min(w.plan.Record*len(d.lanes), MaxRecord), d.lanes[0].rank)
		if err != nil {
			return err
		}
		rec.ring.SetRank(rec.first, w.plan.World, w.host(), strings.TrimPrefix(nccl.LibraryVersion().String(), "v"))
		rec.addGroups(d, &w.plan, ids)
		w.mu.Lock()
		d.rec = rec
		w.mu.Unlock()
	}
	return nil
}

// addGroups makes the driver's communicators known, before they exist: that one did not come about is worth knowing too. The ring of a driver with
// several ranks has a group for each rank, "2/0" for rank 2's part in communicator "0".
func (r *recorder) addGroups(d *driver, p *Plan, ids map[commKey]nccl.UniqueID) {
	several := len(d.sets()[0]) > 1
	for _, l := range d.lanes {
		name, desc := p.commName(l.group, l.index)
		if several {
			name = strconv.Itoa(l.rank) + "/" + name
		}
		g := r.ring.AddGroup(name, desc, p.members(l.group))
		r.ring.SetComm(g, commID(ids[commKey{l.group, l.index}]))
		l.record.group = int32(g)
	}
}

// commName is what the record calls a communicator: a number that no other of the job has, and what it is in words.
func (p *Plan) commName(group, index int) (name, desc string) {
	comms := max(1, p.Modes.Comms)
	var parts []string
	if p.Groups != nil {
		parts = append(parts, fmt.Sprintf("split %s, group %d", p.Modes.Split, group))
	}
	if comms > 1 {
		parts = append(parts, fmt.Sprintf("communicator %d of %d", index+1, comms))
	}
	if desc = strings.Join(parts, ", "); desc == "" {
		desc = "all ranks"
	}
	return strconv.Itoa(group*comms + index), desc
}

// members are the ranks of a group in the order of their ranks there.
func (p *Plan) members(group int) []int {
	var out []int
	for r := range p.World {
		if g, _, _ := p.place(r); g == group {
			out = append(out, r)
		}
	}
	return out
}

func commID(id nccl.UniqueID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(id[:]) // never fails (hash)
	return h.Sum64()
}

// needRecordEvents makes the events by which the lane's record is followed.
func (l *lane) needRecordEvents(ring *csrc.Flight) error {
	var handles []uintptr
	for range recordEvents {
		e, err := cuda.NewEvent(cuda.EventNoTiming)
		if err != nil {
			return err
		}
		l.record.events = append(l.record.events, e)
		handles = append(handles, e.Handle())
	}
	var err error
	l.record.pool, err = csrc.NewFlightEvents(ring, handles)
	return err
}

// follow starts the thread that keeps the states in the record up to date while the driver's own is stuck in a call.
func (d *driver) follow(ctx context.Context) error {
	if d.rec == nil {
		return nil
	}
	if err := d.each(ctx, func(l *lane) error { return l.needRecordEvents(d.rec.ring) }); err != nil {
		return err
	}
	t, err := cuda.NewThread(d.lanes[0].device)
	if err != nil {
		return err
	}
	var pools []*csrc.FlightEvents
	for _, l := range d.lanes {
		pools = append(pools, l.record.pool)
	}
	go func() {
		defer close(d.rec.polled)
		_ = t.Do(context.Background(), func() error { return d.rec.poll(pools) }) // has no error to tell
		_ = t.Close(context.Background())
	}()
	return nil
}

func (r *recorder) poll(pools []*csrc.FlightEvents) error {
	tick := time.NewTicker(recordPoll)
	defer tick.Stop()
	for {
		select {
		case <-r.quit:
			return nil
		case <-tick.C:
		}
		if !r.looking.TryLock() {
			continue
		}
		for _, p := range pools {
			p.Poll()
		}
		r.looking.Unlock()
		r.ring.Beat(csrc.NowNs())
	}
}

// capturing keeps the polls away until the returned function is called.
func (r *recorder) capturing() (done func()) {
	if r == nil {
		return func() {}
	}
	r.looking.Lock()
	return r.looking.Unlock
}

// begin notes in the series what of it is recorded where; doing is what a reader sees that the driver's thread does.
func (d *driver) begin(s *csrc.Series, doing string) {
	if d.rec == nil {
		return
	}
	s.Flight = d.rec.ring
	for i := range s.Lanes {
		s.Lanes[i].FlightStream, s.Lanes[i].FlightEvents = i, d.lanes[i].record.pool
	}
	d.rec.ring.SetPhase(doing)
}

// run is the driver's, with records that tell the line that it is called from.
func (h *half) run(s *csrc.Series, doing string) (csrc.SeriesResult, error) {
	if h.rec != nil {
		pc, _, _, _ := runtime.Caller(1)
		h.template(s, int32(h.rec.ring.AddSite(h.t.coll.site(h.inPlace)+frameOf(pc))))
	}
	return h.driver.run(s, doing)
}

// template fills in what a series cannot know about the records of its steps.
func (h *half) template(s *csrc.Series, site int32) {
	of := func(lane int) csrc.FlightTemplate {
		return csrc.FlightTemplate{Group: h.lanes[lane].record.group, Site: site, TimeoutNs: int64(h.timeout)}
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		step.Flight = of(step.Lane)
		step.Flight.InCount, step.Flight.OutCount = elements(step, h.lanes[step.Lane].world)
	}
	for i := range s.Lanes {
		s.Lanes[i].FlightGraph = of(i)
	}
}

// elements are the numbers of elements that a call reads and writes on a rank.
func elements(s *csrc.Step, world int) (in, out uint64) {
	all := s.Count * uint64(world)
	switch s.Kind {
	case csrc.StepAllGather, csrc.StepGather:
		return s.Count, all
	case csrc.StepReduceScatter, csrc.StepScatter:
		return all, s.Count
	case csrc.StepAllToAll:
		return all, all
	case csrc.StepSend:
		return s.Count, 0
	case csrc.StepRecv:
		return 0, s.Count
	}
	return s.Count, s.Count
}

// site is the frame of a call site that says what was called: the collective, where its calls are made.
func (c *collective) site(inPlace bool) string {
	where := "out-of-place"
	if inPlace {
		where = "in-place"
	}
	file, line := runtime.FuncForPC(reflect.ValueOf(c.rounds).Pointer()).FileLine(reflect.ValueOf(c.rounds).Pointer())
	return frame(c.name+", "+where, file, line)
}

func frameOf(pc uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{pc + 1}).Next() // as if it were from Callers, which has return addresses
	return frame(f.Function[strings.LastIndexByte(f.Function, '/')+1:], f.File, f.Line)
}

// frame is one line of a call site; the file is named by its package's folder, not by where this program was built.
func frame(name, file string, line int) string {
	short := filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
	return name + "\t" + short + "\t" + strconv.Itoa(line) + "\n"
}

// snapshot reads the ring as it is now; nil when there is none any more.
func (r *recorder) snapshot() (*flight.Ring, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil
	}
	return flight.DecodeRing(r.ring.Snapshot())
}

// halt ends the polling: what completes from now on, because communicators are aborted, was not done.
func (r *recorder) halt() {
	if r != nil {
		r.stop()
	}
}

// unfollow ends the polling and waits for it, so that the events can go.
func (r *recorder) unfollow(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.halt()
	select {
	case <-r.polled:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close releases the ring, which nothing uses any more.
func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.ring.Close()
}

// keepRecord is what a worker does with its record before it leaves a run that did not come to its end: it writes dumps of what nobody else can
// read. It takes a second at most.
func (w *worker) keepRecord(cause error) {
	var a *bootstrap.AbortedError
	aborted := errors.As(cause, &a) || errors.As(w.store.Err(), &a)
	w.mu.Lock()
	var all []*recorder
	for _, d := range w.drivers {
		if d.rec != nil {
			d.rec.halt()
			all = append(all, d.rec)
		}
	}
	w.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var rings []*flight.Ring
		for _, r := range all {
			if r.path != "" {
				_ = os.Remove(r.path) // there only if the coordinator went before it had taken it
				continue
			}
			if ring, err := r.snapshot(); err == nil && ring != nil {
				rings = append(rings, ring)
			}
		}
		if len(rings) > 0 && (aborted || stuck(rings)) {
			_, _ = writeDumps(w.plan.Dump, rings, all[0].since) // there is nobody left to tell
		}
	}()
	select {
	case <-done:
	case <-time.After(ownDumpLimit):
	}
}

// stuck tells whether the rings are those of a job that makes no progress: something is not complete, and nothing was seen to be for a while.
// The events that tell of it are apart, so a job with very long operations may seem stuck.
func stuck(rings []*flight.Ring) bool {
	open, last := false, int64(0)
	for _, ring := range rings {
		for i := range ring.Records {
			x := &ring.Records[i]
			open = open || x.State != flight.Completed && !x.Retired
			last = max(last, x.CompletedNs)
		}
	}
	return open && last < csrc.NowNs()-int64(time.Second)
}

// joint are the calls that no rank completes before all have begun them.
var joint = []flight.RingKind{flight.RingAllReduce, flight.RingAllGather, flight.RingReduceScatter, flight.RingAllToAll}

// settle gives records without events of their own the state that follows from the other ranks, which may have noticed more: a rank that has
// completed a joint call has met all others in it, so their streams are through with what came before. The ranks must be of one host, whose clock
// their times have.
func settle(ranks []*flight.Ring) {
	type seen struct {
		seq uint64
		at  int64
	}
	newest := make(map[string]seen) // by communicator
	for _, r := range ranks {
		for i := range r.Records {
			x := &r.Records[i]
			name := r.Groups[x.Group].Name
			if x.State == flight.Completed && slices.Contains(joint, x.Kind) && x.CollSeq > newest[name].seq {
				newest[name] = seen{x.CollSeq, x.CompletedNs}
			}
		}
	}
	for _, r := range ranks {
		for i := range r.Records {
			x := &r.Records[i]
			g := &r.Groups[x.Group]
			if n := newest[g.Name]; x.Bounded && !x.Retired && !x.P2P && x.State != flight.Completed && x.CollSeq < n.seq {
				x.State, x.CompletedNs = flight.Completed, n.at
				g.Coll.Completed = max(g.Coll.Completed, int64(x.CollSeq))
			}
		}
	}
}

// byRank takes the ring of a driver apart into one a rank. The name of a group "2/0" says that it is rank 2's communicator "0"; without a rank
// it is the ring's own.
func byRank(ring *flight.Ring) []*flight.Ring {
	parts := make(map[int]*flight.Ring)
	place := make([][2]int, len(ring.Groups)) // rank, index there
	var order []int
	for i, g := range ring.Groups {
		rank := ring.Rank
		if text, name, ok := strings.Cut(g.Name, "/"); ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				continue // no name of ours
			}
			rank, g.Name = n, name
		}
		one := parts[rank]
		if one == nil {
			whole := *ring
			one = &whole
			one.Rank, one.Groups, one.Records = rank, nil, nil
			parts[rank] = one
			order = append(order, rank)
		}
		place[i] = [2]int{rank, len(one.Groups)}
		one.Groups = append(one.Groups, g)
	}
	for _, x := range ring.Records {
		if x.Group < 0 {
			continue
		}
		at := place[x.Group]
		x.Group = at[1]
		parts[at[0]].Records = append(parts[at[0]].Records, x)
	}
	slices.Sort(order)
	out := make([]*flight.Ring, len(order))
	for i, r := range order {
		out[i] = parts[r]
	}
	return out
}

// writeDumps writes the dump of each rank in the rings into dir and returns the ranks. Dumps from before since, which belong to an earlier job,
// are removed. Without a recorded call there is nothing to write, and no folder is made.
func writeDumps(dir string, rings []*flight.Ring, since time.Time) ([]int, error) {
	if !slices.ContainsFunc(rings, func(r *flight.Ring) bool { return len(r.Records) > 0 }) {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	errs := []error{removeDumps(dir, since)}
	var all []*flight.Ring
	for _, ring := range rings {
		all = append(all, byRank(ring)...)
	}
	settle(all)
	failed := make([]error, len(all))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, one := range all {
		slots <- struct{}{}
		wg.Go(func() {
			failed[i] = one.Dump().WriteFiles(dir, one.Rank)
			<-slots
		})
	}
	wg.Wait()
	var ranks []int
	for i, err := range failed {
		if err == nil {
			ranks = append(ranks, all[i].Rank)
		}
	}
	return ranks, errors.Join(append(errs, failed...)...)
}

var dumpName = regexp.MustCompile(`^(` + flight.PicklePrefix + `|` + flight.JSONPrefix + `)\d+$`)

func removeDumps(dir string, before time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		s, err := e.Info()
		if err == nil && s.Mode().IsRegular() && dumpName.MatchString(e.Name()) && s.ModTime().Before(before) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
