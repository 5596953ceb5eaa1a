package rdma

import (
	"context"
	"fmt"
	"time"
)

// Hooks let the caller follow a test. All may be nil.
type Hooks struct {
	Header func(*Report)       // the link stands, the rows begin
	Row    func(*Report, *Row) // one more
	Step   func(text string)   // what is going on now, for a terminal
	Tell   func(text string)   // what a user should know: a GID pair that does not work, an event of the device; may come from another goroutine
}

// linkTest is one test on one side, from the description to the last row.
type linkTest struct {
	*session
	options   *Options
	agreement *Agreement
	station   station
	counters  func() map[string]int64
	remote    endpoints
	report    *Report
	hooks     Hooks
}

func (l *linkTest) tell(format string, args ...any) {
	if l.hooks.Tell != nil {
		l.hooks.Tell(fmt.Sprintf(format, args...))
	}
}

func (l *linkTest) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.agreement.Notes = append(l.agreement.Notes, text)
}

// run measures everything between two opened devices that have described themselves. The report has what there is by then, also on an error.
func (l *linkTest) run(ctx context.Context, dev device) (err error) {
	l.enter("agreement")
	r := l.report
	if l.agreement, err = agree(r.Client, r.Server, l.options); err != nil {
		return err // the other side comes to the same end by itself
	}
	r.Agreement = l.agreement
	l.agreement.rank, l.agreement.remoteLID = l.rank, r.Server.LID
	if l.rank == serverRank {
		l.agreement.remoteLID = r.Client.LID
	}
	if l.station, err = dev.build(l.options, l.agreement); err != nil {
		return l.explain(err, "make QPs and register memory", dev.side().name())
	}
	l.counters = dev.counters
	l.use(l.station)
	defer func() {
		l.use(nil)
		if cerr := l.station.close(); err == nil && cerr != nil {
			err = problem(Internal, cerr, "release QPs and memory: %v", cerr)
		}
	}()
	if err := l.connect(ctx); err != nil {
		return err
	}
	if l.hooks.Header != nil {
		l.hooks.Header(r)
	}
	return l.rows(ctx)
}

func (l *linkTest) rows(ctx context.Context) error {
	for _, name := range l.options.Tests {
		t, err := FindTest(name)
		if err != nil {
			return err
		}
		for _, bytes := range l.sizes(t) {
			if l.hooks.Step != nil {
				l.hooks.Step(fmt.Sprintf("%s, %d bytes", t.Name, bytes))
			}
			row, err := l.row(ctx, t, bytes, len(l.report.Rows))
			if err != nil {
				return err
			}
			l.report.Rows = append(l.report.Rows, *row)
			if l.hooks.Row != nil {
				l.hooks.Row(l.report, row)
			}
			if row.Fault != nil {
				return problem(WrongData, nil, "%s", row.Fault)
			}
		}
	}
	return l.meet(ctx, "end", l.patience)
}

// sizes of a test: atomics have one only.
func (l *linkTest) sizes(t Test) []int {
	if t.Name == "atomic latency" {
		return []int{atomicBytes}
	}
	return l.options.Sizes
}

// roles of this side in one row.
type roles struct {
	posts    bool // starts operations
	sends    bool // data goes from here
	receives bool // and arrives here
}

func (l *linkTest) roles(t Test) roles {
	posts := l.rank == clientRank || l.options.Bidirectional && !t.Latency
	other := l.rank == serverRank || l.options.Bidirectional && !t.Latency
	r := roles{posts: posts, sends: posts, receives: other}
	if t.pull() {
		r.sends, r.receives = other, posts
	}
	if t.Latency && !t.pull() { // there and back
		r.sends, r.receives = true, true
	}
	return r
}

// lanes of a test: a ping-pong has one.
func (l *linkTest) lanes(t Test) int {
	if t.Latency {
		return 1
	}
	return l.options.QPs
}

// row measures one test at one size: rounds whose content is compared each, a warm-up, the timed series, and a comparison of what that left.
func (l *linkTest) row(ctx context.Context, t Test, bytes, number int) (*Row, error) {
	row := &Row{Test: t.Name, Bytes: bytes, QPs: l.lanes(t)}
	seed := l.options.Seed + uint64(number)<<20
	c := &checker{l: l, test: t, bytes: bytes, roles: l.roles(t), row: row}
	if t.Name == "atomic latency" {
		return row, l.atomics(ctx, c)
	}
	for i := range l.options.Checks {
		if err := c.round(ctx, seed+uint64(i), i); err != nil {
			return nil, err
		}
		if row.Fault != nil {
			return row, nil
		}
	}
	n, err := l.warmUp(ctx, t, bytes)
	if err != nil {
		return nil, err
	}
	if err := c.prepare(seed + uint64(l.options.Checks)); err != nil {
		return nil, err
	}
	if err := l.timed(ctx, t, bytes, n, row); err != nil {
		return nil, err
	}
	return row, c.verify(ctx, seed+uint64(l.options.Checks), 0, timedSeries)
}

// maxWarmUpBytes keeps the warm-up of large messages short.
const maxWarmUpBytes = 16 << 20

// warmUp runs some operations untimed and says how many the timed series has, a lane; 0: by duration.
func (l *linkTest) warmUp(ctx context.Context, t Test, bytes int) (int, error) {
	n := l.options.Iterations
	if l.options.Duration > 0 {
		n = l.options.Warmup // also the trial from which a number is computed
	}
	warm := min(l.options.Warmup, n, max(maxWarmUpBytes/bytes, 2))
	// A ping-pong runs by number, and where the passive side posts receives it must know how many.
	byCount := l.options.Duration > 0 && (t.answers() || t.Latency)
	if byCount {
		warm = max(warm, 20)
	}
	var trial outcome
	if warm >= 2 {
		var err error
		if trial, err = l.series(ctx, "warm-up", t, bytes, warm, 0); err != nil {
			return 0, err
		}
		if err := l.meet(ctx, "end of the warm-up", l.options.longest()); err != nil {
			return 0, err
		}
	}
	switch {
	case l.options.Duration == 0:
		return n, nil
	case !byCount:
		return 0, nil
	}
	mine := countFor(l.options.Duration, trial.took(), warm)
	count, err := swap(ctx, l.session, "number of operations", l.patience, mine)
	if err != nil {
		return 0, err
	}
	if l.rank == clientRank {
		return mine, nil
	}
	if count < 2 || count > maxIterations {
		return 0, problem(Internal, nil, "%s asks for %d operations", l.named(), count)
	}
	return count, nil
}

// took is how long a series lasted on the side that ran it.
func (o outcome) took() time.Duration {
	if n := len(o.stamps); n > 1 {
		return time.Duration(o.stamps[n-1] - o.stamps[0])
	}
	if o.result != nil {
		return time.Duration(o.result.Last - o.result.First)
	}
	return 0
}

// figures are what one side measured.
type figures struct {
	Bandwidth  *Bandwidth
	Latency    *Latency
	Operations int64
	Moved      []Moved
}

// timed runs the series that counts, and exchanges what both sides measured.
func (l *linkTest) timed(ctx context.Context, t Test, bytes, n int, row *Row) error {
	var duration time.Duration
	if n == 0 {
		duration = l.options.Duration
	}
	before := l.counters()
	out, err := l.series(ctx, "timed series", t, bytes, n, duration)
	if err != nil {
		return err
	}
	mine := figures{Moved: moved(l.role(), before, l.counters())}
	switch {
	case !l.roles(t).posts:
	case t.Latency:
		mine.Latency = newLatency(out.stamps, !t.pull())
		mine.Operations = int64(max(len(out.stamps)-1, 0))
	case out.result != nil:
		b := newBandwidth(out.result, bytes)
		mine.Bandwidth, mine.Operations = &b, out.result.Ops
	}
	theirs, err := swap(ctx, l.session, "figures", l.options.longest(), mine)
	if err != nil {
		return err
	}
	client, server := mine, theirs
	if l.rank == serverRank {
		client, server = theirs, mine
	}
	row.Counters = append(client.Moved, server.Moved...)
	row.Latency, row.Bandwidth, row.Iterations = client.Latency, client.Bandwidth, client.Operations
	if t.Latency && row.Latency == nil || !t.Latency && row.Bandwidth == nil {
		return problem(Internal, nil, "%s at %d bytes: the client has no figures", t.Name, bytes)
	}
	if server.Bandwidth != nil && client.Bandwidth != nil {
		sum := addBandwidth(*client.Bandwidth, *server.Bandwidth)
		row.Bandwidth = &sum
		row.Directions = []Direction{{"client", *client.Bandwidth}, {"server", *server.Bandwidth}}
	}
	return nil
}

// series runs n operations a lane, or for a duration, on whichever sides take part, after both are ready. It does not wait for the other side's end.
func (l *linkTest) series(ctx context.Context, phase string, t Test, bytes, n int, duration time.Duration) (outcome, error) {
	w := work{op: t.Op, bytes: bytes, lanes: l.lanes(t), duration: duration, pingPong: t.Latency, first: l.rank == clientRank}
	r := l.roles(t)
	if r.posts || t.Latency {
		w.send = n
	}
	if t.answers() && r.receives {
		w.recv = n
	}
	what := fmt.Sprintf("%s, %d bytes, %s", t.Name, bytes, phase)
	return l.perform(ctx, what, w, r.posts || t.answers())
}

// perform runs a series, if this side takes part, once both sides are ready for it.
func (l *linkTest) perform(ctx context.Context, what string, w work, takesPart bool) (outcome, error) {
	run := func() (outcome, error) { return outcome{}, nil }
	if takesPart {
		var err error
		if run, err = l.station.ready(w); err != nil {
			return outcome{}, l.explain(err, what, l.path())
		}
	}
	if err := l.meet(ctx, "start of "+what, l.patience); err != nil {
		return outcome{}, err
	}
	l.enter(what)
	out, err := run()
	if err == nil {
		err = l.stopped()
	}
	return out, l.explain(err, what, l.path())
}

// role is how reports call this side.
func (l *linkTest) role() string {
	if l.rank == clientRank {
		return "client"
	}
	return "server"
}

func (l *linkTest) path() string {
	p, _ := l.agreement.pair()
	return p.String()
}
