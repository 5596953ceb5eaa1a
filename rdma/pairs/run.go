package pairs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/rdma"
)

// Hooks let the caller follow a run. All may be nil; they come from several goroutines, one at a time.
type Hooks struct {
	Tell func(text string)                  // what a user should know: the size of the task, a host that failed
	Step func(done, total int, text string) // a measurement ended, for a terminal
}

// maxConnecting agents are started at the same time: a gateway of ssh refuses more.
const maxConnecting = 32

// maxSecond pairs are measured a second time. More of them are no accident.
const maxSecond = 64

// secondWithin is when no more of them is begun: what fails may take long.
const secondWithin = 2 * time.Minute

// runner is one run.
type runner struct {
	plan   *Plan
	start  Starter
	hooks  Hooks
	rhythm rhythm
	res    *Result
	links  []*link // of each host; nil: it takes no part
	nics   []nic
	sides  [][]rdma.Side // of each host's ports

	mu     sync.Mutex
	done   int
	total  int
	lost   []bool          // host was lost during the measurement
	silent map[int]Failure // pairs over which no packet went, though both ports are active
	found  findings
}

// Run measures all pairs and judges them. The result is there on an error as well, as far as the run came. What went wrong between two NICs, or with one host, is
// in the result; an error is what made the whole impossible. It blocks until all is measured, or until ctx is done and the agents have ended.
func Run(ctx context.Context, p Plan, start Starter, hooks Hooks) (*Result, error) {
	return run(ctx, p, start, hooks, usualRhythm)
}

func run(ctx context.Context, p Plan, start Starter, hooks Hooks, rh rhythm) (*Result, error) {
	r := &runner{plan: &p, start: start, hooks: hooks, rhythm: rh, silent: map[int]Failure{}, found: findings{}}
	r.res = &Result{Schema: Schema, Program: p.Program, Started: time.Now(), Options: &p.Options, Below: p.below(), Rails: p.Rails, Unit: "Gb/s",
		Pairs: []Pair{}, Verdict: Verdict{Status: Nothing, Classes: []Class{}, Findings: []Finding{}}}
	if err := p.check(); err != nil {
		return r.res, err
	}
	r.res.Test, r.res.Bytes = p.Options.Tests[0], p.Options.Sizes[0]
	if p.latency() {
		r.res.Unit = "us"
	}
	err := r.run(ctx)
	r.res.Interrupted, r.res.Ended = ctx.Err() != nil, time.Now()
	return r.res, err
}

func (r *runner) run(ctx context.Context) error {
	defer r.hangUp()
	if err := r.connectAll(ctx); err != nil {
		return err
	}
	todo, err := r.prepare()
	if err != nil {
		return err
	}
	r.measureAll(ctx, ctx.Done(), todo, false)
	r.settle()
	r.judge()
	if again := r.second(todo); len(again) > 0 && ctx.Err() == nil {
		r.tell("%d pairs look slow or failed: measuring %d of them again, one at a time, for %v at most", r.badPairs(), r.total, secondWithin)
		enough, cancel := context.WithTimeout(ctx, secondWithin)
		r.measureAll(ctx, enough.Done(), again, true)
		cancel()
		r.settle()
		r.judge()
	}
	return nil
}

func (r *runner) tell(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hooks.Tell != nil {
		r.hooks.Tell(fmt.Sprintf(format, args...))
	}
}

func (r *runner) hangUp() {
	var all sync.WaitGroup
	for _, l := range r.links {
		if l != nil {
			all.Go(func() { _ = l.close(nil) })
		}
	}
	all.Wait()
}

// connectAll starts all agents and hears what devices there are. A host that fails is told of and left out; fewer than two is an error.
func (r *runner) connectAll(ctx context.Context) error {
	token, err := bootstrap.NewToken()
	if err != nil {
		return err
	}
	greeting := hello{Protocol: Protocol, Program: r.plan.Program, Token: token.String()}
	n := len(r.plan.Hosts)
	r.links, r.sides, r.lost, r.res.Hosts = make([]*link, n), make([][]rdma.Side, n), make([]bool, n), make([]HostReport, n)
	seats := make(chan struct{}, maxConnecting)
	var all sync.WaitGroup
	for i, h := range r.plan.Hosts {
		r.res.Hosts[i] = HostReport{Host: h, Ports: []Port{}}
		all.Go(func() {
			seats <- struct{}{}
			defer func() { <-seats }()
			if err := r.connectOne(ctx, i, greeting); err != nil {
				r.failed(i, err)
			}
		})
	}
	all.Wait()
	good := 0
	for _, h := range r.res.Hosts {
		if h.Error == nil {
			good++
		}
	}
	switch {
	case ctx.Err() != nil:
		return &Failure{rdma.Interrupted, "interrupted before anything was measured"}
	case good < 2:
		return &Failure{rdma.Died, fmt.Sprintf("%d of %d hosts can take part: a pair takes two", good, n)}
	}
	return nil
}

func (r *runner) failed(host int, err error) {
	var e *HostError
	if !errors.As(err, &e) {
		e = &HostError{r.plan.Hosts[host].Name, phaseMeasure, rdma.KindOf(err), err.Error()}
	}
	r.mu.Lock()
	first := r.res.Hosts[host].Error == nil
	if first {
		r.res.Hosts[host].Error = e
	}
	r.mu.Unlock()
	if first {
		r.tell("%v; going on without it", e)
	}
}

func (r *runner) connectOne(ctx context.Context, i int, greeting hello) error {
	h := r.plan.Hosts[i]
	noise := func(line string) {
		if len(line) > 0 {
			r.tell("%s says: %.200s", h.Name, line)
		}
	}
	l, first, err := connect(ctx, h, r.start, greeting, r.rhythm, noise)
	if err != nil {
		return err
	}
	r.links[i] = l
	rep := &r.res.Hosts[i]
	rep.Hostname = first.Host
	a, err := l.begin(&request{Do: doList, Limit: r.rhythm.start}, "list devices").await(ctx, r.rhythm.start+r.rhythm.dead)
	if err == nil && a.Error != nil {
		err = a.Error
	}
	if err == nil && a.List == nil {
		err = errors.New("the agent answered without a list")
	}
	if err != nil {
		return &HostError{h.Name, phaseList, failure(err).Kind, err.Error()}
	}
	rep.Library = a.List.Library
	rep.Ports, r.sides[i] = portsOf(a.List, r.plan.Devices)
	if !slices.ContainsFunc(rep.Ports, func(p Port) bool { return p.Used }) {
		var why []string
		for _, p := range rep.Ports {
			why = append(why, portName(p.Device, p.Port)+": "+p.Why)
		}
		return &HostError{h.Name, phaseList, rdma.Unusable, fmt.Sprintf("no port to measure with: %v", why)}
	}
	return nil
}

// prepare lays out the pairs, and says how much there is to do.
func (r *runner) prepare() ([]work, error) {
	for i, h := range r.res.Hosts {
		if h.Error != nil {
			continue
		}
		for k, p := range h.Ports {
			if p.Used {
				r.nics = append(r.nics, nic{NIC: NIC{Host: h.Name, Device: p.Device, Port: p.Port}, host: i, side: r.sides[i][k]})
			}
		}
	}
	r.res.RailsBy = assignRails(r.nics)
	for _, n := range r.nics {
		for k, p := range r.res.Hosts[n.host].Ports {
			if p.Device == n.Device && p.Port == n.Port {
				r.res.Hosts[n.host].Ports[k].Rail = n.Rail
			}
		}
	}
	var todo []work
	var err error
	if r.res.Pairs, todo, err = r.plan.lay(len(r.plan.Hosts), r.nics); err != nil {
		return nil, err
	}
	atOnce, took := r.atOnce(todo), time.Duration(0)
	for _, w := range todo {
		for _, j := range w.jobs {
			r.total++
			took += r.plan.expect(min(r.nics[j.client].side.RateGbps, r.nics[j.server].side.RateGbps))
		}
	}
	r.res.Concurrent = atOnce
	r.tell("%d measurements (%s, %d bytes) between %d NICs of %d hosts, %d host pairs at a time: about %v", r.total, r.res.Test, r.res.Bytes, len(r.nics),
		hostsIn(r.nics), atOnce, (took / time.Duration(max(atOnce, 1))).Round(time.Second))
	return todo, nil
}

func hostsIn(nics []nic) int {
	seen := map[int]bool{}
	for _, n := range nics {
		seen[n.host] = true
	}
	return len(seen)
}

// atOnce is how many host pairs can be measured at the same time.
func (r *runner) atOnce(todo []work) int {
	if r.plan.OneAtATime {
		return min(1, len(todo))
	}
	return min(hostsIn(r.nics)/2, len(todo))
}

// measureAll does all the work, or what is begun until stop closes; alone, one host pair at a time.
func (r *runner) measureAll(ctx context.Context, stop <-chan struct{}, todo []work, alone bool) {
	hosts := make([][2]int, len(todo))
	for i, w := range todo {
		hosts[i] = w.hosts
	}
	atOnce := r.atOnce(todo)
	if alone {
		atOnce = 1
	}
	dispatch(stop, hosts, max(atOnce, 1), func(i int) {
		for _, j := range todo[i].jobs {
			r.one(ctx, j, alone)
		}
	})
	if ctx.Err() == nil {
		return
	}
	for i := range r.res.Pairs {
		if p := &r.res.Pairs[i]; p.Status == NotMeasured && p.Reason == "" {
			p.Reason = "interrupted"
		}
	}
}

// second lists what to measure again: the bad pairs, at most maxSecond of them, taken evenly from all. Wrong data stays what it is.
func (r *runner) second(todo []work) (again []work) {
	if r.plan.NoSecond {
		return nil
	}
	var jobs []work
	for _, w := range todo {
		for _, j := range w.jobs {
			if slices.ContainsFunc(j.pairs[:], func(i int) bool {
				return i >= 0 && (r.res.Pairs[i].Slow || r.res.Pairs[i].Status == Failed)
			}) && !r.lost[w.hosts[0]] && !r.lost[w.hosts[1]] {
				jobs = append(jobs, work{w.hosts, []job{j}})
			}
		}
	}
	step := max(1, (len(jobs)+maxSecond-1)/maxSecond)
	for i := 0; i < len(jobs); i += step {
		again = append(again, jobs[i])
	}
	r.done, r.total = 0, len(again)
	return again
}

func (r *runner) badPairs() (n int) {
	for i := range r.res.Pairs {
		if r.res.Pairs[i].bad() {
			n++
		}
	}
	return n
}

// judge asks for the verdict.
func (r *runner) judge() {
	software := !slices.ContainsFunc(r.res.Hosts, func(h HostReport) bool {
		return slices.ContainsFunc(h.Ports, func(p Port) bool { return p.Used && p.PCI != "" })
	})
	r.res.Verdict = Judge(r.res.Pairs, Judging{Below: r.res.Below, Latency: r.plan.latency(), Software: software})
}

// one measures and fills in what came of it. The second time it is tried even where the first made it look vain.
func (r *runner) one(ctx context.Context, j job, second bool) {
	c, s := &r.nics[j.client], &r.nics[j.server]
	if ctx.Err() != nil {
		return
	}
	if status, reason := r.pointless(c, s, second); reason != "" {
		r.fill(j, status, reason, nil)
		return
	}
	report, err := r.measure(ctx, c, s)
	switch {
	case err == nil:
		r.mu.Lock()
		r.found.works(c, s)
		r.mu.Unlock()
		r.fill(j, Measured, "", report)
	case ctx.Err() != nil:
	case errors.As(err, new(*lostError)):
		r.fill(j, NotMeasured, err.Error(), nil)
	default:
		r.fault(j, report, failure(err))
	}
}

// pointless says why a pair need not be tried; "" where it must.
func (r *runner) pointless(c, s *nic, second bool) (Status, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range []*nic{c, s} {
		if r.lost[n.host] {
			return NotMeasured, r.plan.Hosts[n.host].Name + " was lost before"
		}
	}
	if second {
		return "", ""
	}
	return r.found.vain(c, s)
}

// fault sorts a failed measurement: wrong data, no path, or something that should have worked.
func (r *runner) fault(j job, report *rdma.Report, f *Failure) {
	c, s := &r.nics[j.client], &r.nics[j.server]
	if f.Kind == rdma.WrongData {
		r.fill(j, WrongData, f.Text, report)
		return
	}
	// The sides agreed on how to connect, and then no packet went through.
	silent := report != nil && report.Agreement != nil && report.Agreement.Chosen < 0 && (f.Kind == rdma.Died || f.Kind == rdma.TimedOut)
	if silent {
		r.mu.Lock()
		r.found.fails(c, s)
		for _, i := range j.pairs {
			if i >= 0 {
				r.silent[i] = *f
			}
		}
		r.mu.Unlock()
	}
	r.fill(j, Failed, f.Text, report)
}

// settle tells a path that is not meant to be from one that is broken. Over NICs of different rails it is none where no pair of these two rails has one, and their
// subnets differ, or they are InfiniBand ports, whose rails often are fabrics of their own. Within a rail, or within a subnet, silence is a failure.
func (r *runner) settle() {
	type rails struct{ a, b string }
	works := map[rails]bool{}
	key := func(p *Pair) rails { return rails{min(p.From.Rail, p.To.Rail), max(p.From.Rail, p.To.Rail)} }
	for i := range r.res.Pairs {
		if p := &r.res.Pairs[i]; p.Status == Measured {
			works[key(p)] = true
		}
	}
	byName := map[NIC]*nic{}
	for i := range r.nics {
		byName[r.nics[i].NIC] = &r.nics[i]
	}
	for i, f := range r.silent {
		p := &r.res.Pairs[i]
		if p.Status != Failed {
			continue
		}
		subnets, text := subnetKey(byName[p.From], byName[p.To])
		switch {
		case works[key(p)]:
		case subnets != "":
			p.Status, p.Reason = NoPath, fmt.Sprintf("different subnets (%s), and no packet went through: %s", text, f.Text)
		case p.From.Rail != p.To.Rail && p.LinkLayer == infiniband:
			p.Status, p.Reason = NoPath, fmt.Sprintf("no pair of rails %s and %s has a path: separate fabrics? %s", p.From.Rail, p.To.Rail, f.Text)
		}
	}
}

// fill puts an outcome into its pairs.
func (r *runner) fill(j job, status Status, reason string, report *rdma.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, i := range j.pairs {
		if i < 0 {
			continue
		}
		p := &r.res.Pairs[i]
		v := figure(report, k, r.plan)
		if status == Measured && v == nil {
			status, reason = Failed, "the test ended without a figure"
		}
		if status != Measured && len(p.Values) > 0 && status != WrongData {
			continue // the second time it failed: the first figure stays what is known
		}
		if status == Measured && p.Status == Failed {
			p.FirstFailure = p.Reason
		}
		p.Status, p.Reason = status, reason
		if status == Measured {
			p.Values = append(p.Values, *v)
			best := better(p.Values, r.plan.latency())
			p.Value = &best
		}
		p.describe(report)
	}
	r.done++
	if r.hooks.Step != nil {
		r.hooks.Step(r.done, r.total, fmt.Sprintf("%s to %s", r.nics[j.client], r.nics[j.server]))
	}
}

// describe keeps of a report what explains a figure.
func (p *Pair) describe(report *rdma.Report) {
	if report == nil {
		return
	}
	if a := report.Agreement; a != nil && a.Chosen >= 0 && a.Chosen < len(a.Pairs) {
		p.GIDs = a.Pairs[a.Chosen].String()
	}
	p.Counters = nil
	for _, row := range report.Rows {
		p.Counters = append(p.Counters, row.Counters...)
	}
}

// figure is what a report says of one direction: the client's (0) or the server's (1).
func figure(report *rdma.Report, direction int, p *Plan) *float64 {
	if report == nil || len(report.Rows) != 1 {
		return nil
	}
	row := &report.Rows[0]
	switch {
	case p.latency() && row.Latency != nil:
		return &row.Latency.MedianUS
	case p.Options.Bidirectional && len(row.Directions) == 2:
		return &row.Directions[direction].Bandwidth.AverageGbps
	case !p.latency() && !p.Options.Bidirectional && row.Bandwidth != nil:
		return &row.Bandwidth.AverageGbps
	}
	return nil
}

// lostError is the end of a host during the measurement.
type lostError struct{ error }

// loses notes that the conversation with a host has ended.
func (r *runner) loses(host int, err error) error {
	r.mu.Lock()
	r.lost[host] = true
	r.mu.Unlock()
	r.failed(host, &HostError{r.plan.Hosts[host].Name, phaseMeasure, rdma.Died, err.Error()})
	return &lostError{fmt.Errorf("%s was lost: %w", r.plan.Hosts[host].Name, err)}
}

// measure has one agent serve and the other test. Errors: a lostError where a host is gone; else what the test says.
func (r *runner) measure(ctx context.Context, c, s *nic) (*rdma.Report, error) {
	client, server := r.links[c.host], r.links[s.host]
	o, limit := r.plan.Options, r.plan.limit()
	addr := r.plan.Hosts[s.host].Addr
	serve := server.begin(&request{Do: doServe, Limit: limit + r.rhythm.serve, Serve: &ServeJob{
		Device: s.Device, Port: s.Port, Bind: addr, TCPPort: r.plan.TCPPort, Memory: o.Memory, Deadline: o.Deadline,
	}}, fmt.Sprintf("serve on %s", s))
	a, err := serve.await(ctx, r.rhythm.serve)
	switch {
	case err != nil && ctx.Err() != nil:
		_ = r.leave(serve, 0)
		return nil, err
	case err != nil:
		return nil, r.loses(s.host, err)
	case a.Done && a.Error != nil:
		return nil, &Failure{a.Error.Kind, fmt.Sprintf("%s: %s", s, a.Error.Text)}
	case a.Done:
		return nil, &Failure{rdma.Internal, fmt.Sprintf("%s ended before it served", s)}
	}
	_, port, err := net.SplitHostPort(a.Listening)
	if err != nil {
		_ = r.leave(serve, 0)
		return nil, &Failure{rdma.Internal, fmt.Sprintf("%s listens at %q, which is no address", s, a.Listening)}
	}
	test := client.begin(&request{Do: doTest, Limit: limit, Test: &TestJob{Addr: net.JoinHostPort(addr, port), Device: c.Device, Port: c.Port, Options: o}},
		fmt.Sprintf("test from %s", c))
	a, err = test.await(ctx, limit+r.rhythm.dead)
	if err != nil {
		if ctx.Err() != nil {
			_ = r.leave(test, 0)
		} else {
			err = r.loses(c.host, err)
		}
		_ = r.leave(serve, 0)
		return nil, err
	}
	patience := 5 * time.Second // until it has said goodbye to its client
	if a.Error != nil {
		patience = 2 * time.Second // it may wait for one that never came
	}
	if lost := r.leave(serve, patience); lost != nil {
		return nil, r.loses(s.host, lost)
	}
	if a.Error == nil {
		return a.Report, nil
	}
	return a.Report, &Failure{a.Error.Kind, cmp.Or(a.Error.Text, "it failed without a word")}
}

// leave waits for the end of a job that has nothing to do any more, and brings it about. An agent that cannot is lost.
func (r *runner) leave(c *call, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if a, err := c.await(ctx, r.rhythm.leave); err == nil && a.Done {
			return nil
		} else if err != nil && ctx.Err() == nil {
			return err
		}
	}
	c.stop()
	for {
		if a, err := c.await(context.Background(), r.rhythm.leave); err != nil || a.Done {
			return err
		}
	}
}
