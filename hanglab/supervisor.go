package hanglab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/hanglab/watch"
	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/internal/launch"
)

// Supervisor runs one scenario: it starts the ranks, hears what they say, and ends what does not end by itself.
type Supervisor struct {
	Plan    Plan
	Program string // version, of all processes
	Token   bootstrap.Token
	// Start launches a process for each rank. Whoever implements it gives each process what is said here and nothing else.
	Start func(ctx context.Context, spec StartSpec) (*launch.Group, error)
	OnLog func(rank int, line string) // every line that a rank writes; nil: none
}

// StartSpec is what the rank processes are started with.
type StartSpec struct {
	Output io.Writer // of stdout and stderr, lines with "[rank 3] " in front
	Ranks  []StartRank
}

// StartRank is what one rank's process is told.
type StartRank struct {
	Addr    string   // where the supervisor listens
	Through []string // see launch.Worker
	Env     []string
}

// run is the state of a running scenario.
type run struct {
	*Supervisor
	scenario Scenario
	report   *Report
	server   *bootstrap.Server
	group    *launch.Group
	net      *twoNets
	claim    *claim // the folder of rings and sockets
	clocks   map[int]clockReport
	began    time.Duration // all ranks had joined
	wall     int64         // this process's wall clock minus its monotonic one, when the clocks were compared

	mu     sync.Mutex
	files  map[int]*os.File
	events []marker
	alarm  time.Duration // when the first request to dump was in the store, 0: never
	alive  map[int]bool

	dumpedBy map[int]bool // ranks whose dump the supervisor wrote
}

// Run runs the scenario and returns what happened. It honours ctx by killing the ranks; what is known then is in the report. The error is for
// what kept the run from taking place, not for what the scenario did.
func (s *Supervisor) Run(ctx context.Context) (_ *Report, err error) {
	if err := s.Plan.Validate(); err != nil {
		return nil, err
	}
	r := &run{Supervisor: s, files: make(map[int]*os.File), alive: make(map[int]bool), dumpedBy: make(map[int]bool)}
	if r.scenario, err = Find(s.Plan.Scenario); err != nil {
		return nil, err
	}
	s.Plan.Scenario = r.scenario.Name
	r.report = newReport(&s.Plan, r.scenario)
	if err := r.makeFolders(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	r.began = now()
	r.follow(ctx)
	r.collectDumps()
	r.report.Timeline = r.story()
	r.judge()
	if err := r.writeLauncher(); err != nil {
		return nil, err
	}
	if !r.report.Interrupted {
		r.diagnose()
	}
	return r.report, r.write()
}

// makeFolders makes the run's folder, without what an earlier run left there, and one for rings and sockets in memory.
func (r *run) makeFolders() error {
	dir, err := filepath.Abs(r.Plan.Dir)
	if err != nil {
		return err
	}
	r.Plan.Dir = dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{flight.PicklePrefix + "[0-9]*", flight.JSONPrefix + "[0-9]*", "rank_[0-9]*.log", launcherName, reportName, timelineName} {
		old, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range old {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("what an earlier run left in the folder: %w", err)
			}
		}
	}
	shm := "/dev/shm"
	if s, err := os.Stat(shm); err != nil || !s.IsDir() {
		shm = ""
	}
	sweepLeftovers(shm)
	if r.claim, err = newClaim(shm); err != nil {
		return err
	}
	r.Plan.Rings = r.claim.dir
	return nil
}

// start brings all ranks to the line: processes, rendezvous, clocks.
func (r *run) start(ctx context.Context) (err error) {
	listen := "127.0.0.1:0"
	if r.scenario.Network {
		listen = ":0"
		if r.net, err = newTwoNets(r.Plan.Rings); err != nil {
			return err
		}
	}
	r.server, err = bootstrap.Listen(listen, bootstrap.Config{World: r.Plan.World, Token: r.Token, Hello: bootstrap.Hello{Program: r.Program}})
	if err != nil {
		return err
	}
	if err := r.server.Set(ctx, keyPlan, encode(r.Plan)); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(r.server.Addr().String())
	if err != nil {
		return err
	}
	spec := StartSpec{Output: r}
	for rank := range r.Plan.World {
		one := StartRank{Addr: r.server.Addr().String()}
		if r.net != nil {
			one = r.net.rank(rank, r.Plan.World, port)
		}
		spec.Ranks = append(spec.Ranks, one)
		r.alive[rank] = true
	}
	if r.group, err = r.Start(ctx, spec); err != nil {
		return err
	}
	return r.join(ctx)
}

// join waits until every rank has told its clock, or one has ended before.
func (r *run) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Plan.Join)
	defer cancel()
	type answer struct {
		parts map[int][]byte
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		parts, err := r.server.Collect(ctx, gatherClock)
		got <- answer{parts, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return fmt.Errorf("rendezvous: %w", a.err)
		}
		r.wall = time.Now().UnixNano() - csrc.NowNs()
		r.clocks = make(map[int]clockReport, len(a.parts))
		for rank, raw := range a.parts {
			c, err := decode[clockReport](raw)
			if err != nil {
				return err
			}
			r.clocks[rank] = c
		}
		return nil
	case e := <-r.group.Exits():
		text := e.String()
		if e.LastStderr != "" {
			text += ": " + e.LastStderr
		}
		return &StartError{Text: text, Code: e.Code}
	}
}

// StartError means that a rank's process ended before the experiment began.
type StartError struct {
	Text string
	Code int // its exit status, -1 for a signal
}

func (e *StartError) Error() string { return "start: " + e.Text }

// follow waits until all ranks have ended, and sees to it that they do.
func (r *run) follow(ctx context.Context) {
	fuse := time.NewTimer(r.Plan.Fuse)
	defer fuse.Stop()
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	alarms := make(chan struct{}, 1)
	go r.awaitAlarm(watching, alarms)
	if r.net != nil {
		go r.cutWhenAsked(watching)
	}
	// Ranks that end by themselves do so within these waits; whoever is left then does not listen: it is stopped, or its process is stuck.
	var late <-chan time.Time
	for {
		select {
		case e, ok := <-r.group.Exits():
			if !ok {
				return
			}
			r.ended(e)
			if r.onlySilent() {
				r.kill("does not answer")
			}
		case <-alarms:
			if m := r.Plan.Mode; m == watch.AbortAndExit || m == watch.ExitAtOnce {
				late = time.After(watch.DefaultDumpWait + abortWait + time.Second/2)
			}
		case <-late:
			r.kill("does not answer")
		case <-fuse.C:
			r.report.Fused = true
			r.kill("the fuse")
		case <-ctx.Done():
			r.report.Interrupted = true
			r.kill("interrupted")
			r.drain()
			return
		}
	}
}

// onlySilent tells whether the ranks that are still there are stopped and did not answer a request to dump: nothing more will come of them. Others
// may only be slow and get the time that they are due.
func (r *run) onlySilent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	some := false
	for rank, ok := range r.alive {
		if ok && (!r.dumpedBy[rank] || !stopped(r.group.PID(rank))) {
			return false
		}
		some = some || ok
	}
	return some
}

// stopped tells whether a process is stopped by a signal.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := bytes.LastIndexByte(stat, ')') // behind the name, which may have any character
	return i >= 0 && i+2 < len(stat) && (stat[i+2] == 'T' || stat[i+2] == 't')
}

func (r *run) drain() {
	for e := range r.group.Exits() {
		r.ended(e)
	}
}

// awaitAlarm notes when the first rank asked all to dump.
func (r *run) awaitAlarm(ctx context.Context, tell chan<- struct{}) {
	ctx, cancel := context.WithTimeout(ctx, r.Plan.Fuse)
	defer cancel()
	raw, err := r.server.Get(ctx, keyDump)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.alarm = now()
	r.mu.Unlock()
	if reason, err := decode[watch.Reason](raw); err == nil {
		r.report.Alarm = &reason
	}
	tell <- struct{}{}
	r.dumpForSilent(ctx)
}

// dumpForSilent writes the dumps of ranks that do not within half the time that the others wait for them: stopped ones, say.
func (r *run) dumpForSilent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watch.DefaultDumpWait/2)
	defer cancel()
	_, err := r.server.Collect(ctx, gatherDumps)
	var missing *bootstrap.MissingRanksError
	if !errors.As(err, &missing) {
		return
	}
	for _, rank := range missing.Missing {
		r.dumpFor(rank)
	}
}

// dumpFor writes a rank's dump from its ring, and says so to those who wait for it.
func (r *run) dumpFor(rank int) {
	d, _, err := readRing(ringPath(r.Plan.Rings, rank))
	if err == nil {
		err = d.WriteFiles(r.Plan.Dir, rank)
	}
	if err != nil {
		r.note(rank, "note", map[string]string{"text": err.Error()})
		return
	}
	r.note(rank, "dump", map[string]string{"reason": "read from the ring by the supervisor", "entries": strconv.Itoa(len(d.Entries))})
	r.mu.Lock()
	r.dumpedBy[rank] = true
	r.mu.Unlock()
	if err := r.server.Contribute(context.Background(), gatherDumps, map[int][]byte{rank: nil}); err != nil {
		r.note(rank, "note", map[string]string{"text": err.Error()})
	}
}

// kill reads the rings of the ranks that are still there, so that they too tell their story, and ends them.
func (r *run) kill(why string) {
	r.mu.Lock()
	var left []int
	for rank, ok := range r.alive {
		if ok {
			left = append(left, rank)
		}
	}
	r.mu.Unlock()
	for _, rank := range left {
		r.note(rank, "killed_by_supervisor", map[string]string{"why": why})
	}
	if err := r.group.Shutdown(0); err != nil {
		r.report.Notes = append(r.report.Notes, err.Error())
	}
}

// note is an event of the supervisor's own about a rank.
func (r *run) note(rank int, name string, fields map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fields == nil {
		fields = make(map[string]string)
	}
	fields["rank"] = strconv.Itoa(rank)
	r.events = append(r.events, marker{Rank: -1, At: now(), Name: name, Fields: fields})
}

func (r *run) ended(e launch.Exit) {
	rank := e.Ranks[0]
	r.mu.Lock()
	r.alive[rank] = false
	r.mu.Unlock()
	fields := map[string]string{"code": strconv.Itoa(e.Code)}
	if e.Signal != 0 {
		fields["signal"] = launch.SignalName(syscall.Signal(e.Signal))
	}
	r.note(rank, "process_end", fields)
	r.report.ended(rank, e)
	if !r.hasDump(rank) { // it died before it could: nobody needs to wait for it
		r.dumpFor(rank)
	}
}

// Write takes a line of a rank's output: into its file, and if it is a marker into the list of events.
func (r *run) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rank, text, ok := splitPrefix(string(line))
	if !ok || rank < 0 || rank >= r.Plan.World {
		return len(line), nil
	}
	f := r.files[rank]
	if f == nil {
		var err error
		if f, err = os.OpenFile(filepath.Join(r.Plan.Dir, fmt.Sprintf("rank_%d.log", rank)), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644); err != nil {
			return 0, err
		}
		r.files[rank] = f
	}
	if _, err := f.WriteString(text); err != nil {
		return 0, err
	}
	if m, ok := parseMarker(text); ok && m.Rank == rank {
		r.events = append(r.events, m)
	}
	if r.OnLog != nil {
		r.OnLog(rank, text)
	}
	return len(line), nil
}

// collectDumps sees to it that every rank has a dump, and notes who wrote it.
func (r *run) collectDumps() {
	for rank := range r.Plan.World {
		if !r.hasDump(rank) {
			r.dumpFor(rank)
		}
		rr := &r.report.Ranks[rank]
		if r.hasDump(rank) {
			rr.DumpBy = "rank"
		}
		if r.dumpedBy[rank] {
			rr.DumpBy = "supervisor"
		}
		if _, ring, err := readRing(ringPath(r.Plan.Rings, rank)); err == nil {
			rr.Phase = ring.Phase
		} else {
			r.report.Notes = append(r.report.Notes, fmt.Sprintf("rank %d: ring: %v", rank, err))
		}
	}
}

func (r *run) hasDump(rank int) bool {
	_, err := os.Stat(filepath.Join(r.Plan.Dir, flight.PicklePrefix+strconv.Itoa(rank)))
	return err == nil
}

// close releases everything, whatever state it is in.
func (r *run) close() error {
	var errs []error
	if r.group != nil {
		errs = append(errs, r.group.Shutdown(0))
	}
	if r.server != nil {
		errs = append(errs, r.server.Close())
	}
	if r.net != nil {
		errs = append(errs, r.net.close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(append(errs, r.claim.release())...)
}

// clockOffset is what to add to a rank's monotonic clock for the supervisor's, and how far off that may be.
func (r *run) clockOffset(rank int) (offset, within time.Duration) {
	c, ok := r.clocks[rank]
	if !ok {
		return 0, 0
	}
	return time.Duration(c.OffsetNs - r.wall), time.Duration(c.RTTNs / 2)
}
