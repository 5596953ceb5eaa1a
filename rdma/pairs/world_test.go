package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
	"github.com/commprobe/commprobe/rdma"
)

// world is hosts in memory: their agents are real ones, what they measure with is a table.
type world struct {
	t *testing.T

	mu       sync.Mutex
	hosts    map[string]*rdma.List
	program  map[string]string // where it is not "v1"
	refuse   map[string]error  // starting fails
	noHello  map[string]string // what is said instead of an agent, before it ends
	servers  map[string]ServeJob
	busy     map[string]int // jobs of a host
	most     int            // host pairs at the same time
	running  int
	tests    int
	port     int
	value    func(from, to string, try int) float64 // "hosta:m0" …
	fails    func(client, server string, try int) error
	silent   func(client, server string) bool // nothing goes over the link
	during   func(client, server string)
	tried    map[string]int
	agents   sync.WaitGroup
	cut      map[string]func()
	deadlock string // host whose agent does not answer once it measures
}

// newWorld has hosts with devices m0, m1 … of 100 Gb/s in a network for each.
func newWorld(t *testing.T, devices int, hosts ...string) *world {
	t.Helper()
	w := &world{t: t, hosts: map[string]*rdma.List{}, program: map[string]string{}, refuse: map[string]error{}, noHello: map[string]string{}, servers: map[string]ServeJob{},
		busy: map[string]int{}, tried: map[string]int{}, cut: map[string]func(){}, value: func(string, string, int) float64 { return 95 }}
	for i, h := range hosts {
		l := &rdma.List{Library: "libibverbs of " + h}
		for d := range devices {
			l.Devices = append(l.Devices, rdma.Listed{Name: fmt.Sprintf("m%d", d), PCI: "0000:17:00.0", Ports: []rdma.Side{testSide(d, i+1)}})
		}
		w.hosts[h] = l
	}
	return w
}

// testSide is an active port with address 10.(device).0.n.
func testSide(device, n int) rdma.Side {
	return rdma.Side{Protocol: rdma.Protocol, Device: fmt.Sprintf("m%d", device), Port: 1, LinkLayer: "Ethernet", State: "active", Active: true, MTU: 4096, RateGbps: 100,
		GIDs: []rdma.GID{{Index: 3, Addr: fmt.Sprintf("10.%d.0.%d", device, n), Type: "RoCE v2", Subnet: fmt.Sprintf("10.%d.0.0/24", device)}}}
}

// start is a Starter.
func (w *world) start(ctx context.Context, h Host) (*Remote, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.refuse[h.Name]; err != nil {
		return nil, err
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	program := w.program[h.Name]
	if program == "" {
		program = "v1"
	}
	instead := w.noHello[h.Name]
	ctx, cancel := context.WithCancel(context.Background())
	w.cut[h.Name] = cancel
	w.agents.Go(func() {
		var err error
		if instead != "" {
			_, _ = io.WriteString(outW, instead)
		} else {
			_, _ = io.WriteString(outW, "Welcome to "+h.Name+"\n") // as a shell's profile may print
			a := Agent{Program: program, Bench: &memoryBench{w, h.Name}}
			err = a.Run(ctx, inR, outW)
		}
		_ = inR.CloseWithError(io.ErrClosedPipe)
		_ = outW.Close()
		done <- err
	})
	var once sync.Once
	var ended error
	return &Remote{Stdin: inW, Stdout: outR, End: func() error {
		once.Do(func() {
			select {
			case ended = <-done:
			case <-time.After(5 * time.Second):
				ended = errors.New("the agent did not end")
			}
		})
		return ended
	}}, nil
}

// memoryBench is a Bench.
type memoryBench struct {
	world *world
	host  string
}

func (b *memoryBench) Devices() (*rdma.List, error) {
	l := b.world.hosts[b.host]
	if l == nil {
		return nil, &rdma.Problem{Kind: rdma.Unusable, Text: "no RDMA device here"}
	}
	return l, nil
}

// take notes that a host has something to do; none may have two things.
func (b *memoryBench) take(n int) {
	w := b.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[b.host] += n; w.busy[b.host] > 1 {
		w.t.Errorf("%s is in %d measurements at once", b.host, w.busy[b.host])
	}
}

func (b *memoryBench) Serve(ctx context.Context, token bootstrap.Token, j ServeJob, listening func(string)) error {
	w := b.world
	if token.IsZero() {
		return errors.New("no token")
	}
	b.take(1)
	defer b.take(-1)
	w.mu.Lock()
	w.port++
	port := fmt.Sprint(w.port)
	addr := net.JoinHostPort(j.Bind, port)
	w.servers[addr] = j
	hang := w.deadlock == b.host
	w.mu.Unlock()
	if hang {
		select {} // as a call into a driver may
	}
	listening("[::]:" + port)
	for ctx.Err() == nil {
		w.mu.Lock()
		_, waiting := w.servers[addr]
		w.mu.Unlock()
		if !waiting {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

func (b *memoryBench) Test(ctx context.Context, _ bootstrap.Token, j TestJob) (*rdma.Report, error) {
	w := b.world
	b.take(1)
	defer b.take(-1)
	w.mu.Lock()
	server, ok := w.servers[j.Addr]
	w.tests++
	w.running++
	w.most = max(w.most, w.running)
	from, to := b.host+":"+j.Device, server.Bind+":"+server.Device
	w.tried[from+" "+to]++
	try := w.tried[from+" "+to]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
		delete(w.servers, j.Addr)
	}()
	if !ok {
		return nil, &rdma.Problem{Kind: rdma.Died, Text: "nobody listens at " + j.Addr}
	}
	if w.during != nil {
		w.during(from, to)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return w.report(from, to, try, &j.Options)
}

func (w *world) report(client, server string, try int, o *rdma.Options) (*rdma.Report, error) {
	r := &rdma.Report{Agreement: &rdma.Agreement{Chosen: -1, Pairs: []rdma.Pair{{}}}}
	if w.silent != nil && w.silent(client, server) {
		return r, &rdma.Problem{Kind: rdma.Died, Text: "peer unreachable over RDMA"}
	}
	r.Agreement.Chosen = 0
	if w.fails != nil {
		if err := w.fails(client, server, try); err != nil {
			return r, err
		}
	}
	test, err := rdma.FindTest(o.Tests[0])
	if err != nil {
		return nil, err
	}
	from, to := client, server
	if test.Name == "read" {
		from, to = to, from
	}
	row := rdma.Row{Test: o.Tests[0]}
	forth := rdma.Bandwidth{AverageGbps: w.value(from, to, try)}
	switch {
	case test.Latency:
		row.Latency = &rdma.Latency{MedianUS: forth.AverageGbps}
	case o.Bidirectional:
		back := rdma.Bandwidth{AverageGbps: w.value(to, from, try)}
		row.Bandwidth = &rdma.Bandwidth{AverageGbps: forth.AverageGbps + back.AverageGbps}
		row.Directions = []rdma.Direction{{Side: "client", Bandwidth: forth}, {Side: "server", Bandwidth: back}}
	default:
		row.Bandwidth = &forth
	}
	r.Rows = []rdma.Row{row}
	return r, nil
}

func (w *world) plan(hosts ...string) Plan {
	p := Plan{Program: "v1", Options: rdma.Defaults()}
	for _, h := range hosts {
		p.Hosts = append(p.Hosts, Host{h, h})
	}
	return p
}

// quick is a rhythm for tests.
var quick = rhythm{ping: 50 * time.Millisecond, dead: 3 * time.Second, start: 5 * time.Second, serve: 2 * time.Second, leave: 2 * time.Second}

// run goes through a plan, and sees that no agent is left.
func (w *world) run(ctx context.Context, p Plan) (*Result, []string, error) {
	w.t.Helper()
	var mu sync.Mutex
	var told []string
	r, err := run(ctx, p, w.start, Hooks{Tell: func(s string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, s)
	}}, quick)
	ended := make(chan struct{})
	go func() {
		w.agents.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		w.t.Error("agents are left")
	}
	mu.Lock()
	defer mu.Unlock()
	return r, told, err
}

// find is the pair between two NICs.
func find(t *testing.T, r *Result, from, to string) *Pair {
	t.Helper()
	for i := range r.Pairs {
		if r.Pairs[i].From.String() == from && r.Pairs[i].To.String() == to {
			return &r.Pairs[i]
		}
	}
	t.Fatalf("no pair %s to %s", from, to)
	return nil
}
