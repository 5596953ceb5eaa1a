package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// fabric joins stations by copies within this process, and fails where a test wants it.
type fabric struct {
	mu       sync.Mutex
	stations map[uint32]*fakeStation // by rkey
	built    int
	closed   int
	renewed  int

	buildErr   map[int]error                // by rank
	connectErr func(rank int, p Pair) error // nil: all pairs connect
	failure    func(rank int, w work) error // nil: all series work; errHang: it stands still until it is halted
	corrupt    func(w work, arrived []byte) // changes what arrives
	readings   atomic.Int64                 // of the counters
	events     chan string                  // of both devices
}

// errHang makes a series stand still.
var errHang = errors.New("hang")

type fakeDevice struct {
	fabric *fabric
	about  *Side
	rank   int
}

func (d *fakeDevice) side() *Side  { return d.about }
func (d *fakeDevice) close() error { return nil }

func (d *fakeDevice) events(ctx context.Context, tell func(string)) {
	for {
		select {
		case e := <-d.fabric.events:
			tell(e)
		case <-ctx.Done():
			return
		}
	}
}

// counters move by one with every reading, on the server's side only.
func (d *fakeDevice) counters() map[string]int64 {
	if d.rank == clientRank {
		return nil
	}
	return map[string]int64{"out_of_sequence": d.fabric.readings.Add(1)}
}

func (d *fakeDevice) build(o *Options, a *Agreement) (station, error) {
	f := d.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.buildErr[d.rank]; err != nil {
		return nil, err
	}
	f.built++
	s := &fakeStation{fabric: f, rank: d.rank, options: o, mem: make([]byte, o.buffer()), key: uint32(1000 + f.built), stop: make(chan struct{}), arrived: make(chan int, 1<<16)}
	f.stations[s.key] = s
	return s, nil
}

type fakeStation struct {
	fabric  *fabric
	rank    int
	options *Options
	mem     []byte
	key     uint32
	remote  uint32
	arrived chan int // a message of a SEND or a ping-pong, with its lane
	once    sync.Once
	stop    chan struct{}
}

func (s *fakeStation) endpoints() endpoints {
	e := endpoints{RKey: s.key}
	for i := range s.options.QPs {
		e.QPs = append(e.QPs, queue{uint32(i), uint32(i)})
	}
	return e
}

func (s *fakeStation) renew() error {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	s.fabric.renewed++
	return nil
}

func (s *fakeStation) connect(p Pair, remote endpoints) error {
	s.remote = remote.RKey
	if s.fabric.connectErr != nil {
		return s.fabric.connectErr(s.rank, p)
	}
	return nil
}

// peer must be called with the fabric locked.
func (s *fakeStation) peer() *fakeStation { return s.fabric.stations[s.remote] }

func (s *fakeStation) ready(w work) (func() (outcome, error), error) {
	return func() (outcome, error) {
		if s.fabric.failure != nil {
			switch err := s.fabric.failure(s.rank, w); {
			case errors.Is(err, errHang):
				<-s.stop
				return outcome{}, fmt.Errorf("fake: %w", ibverbs.ErrStopped)
			case err != nil:
				return outcome{}, err
			}
		}
		if w.pingPong {
			return s.pingPong(w)
		}
		return s.many(w)
	}, nil
}

// move copies one message of each lane.
func (s *fakeStation) move(w work, lane int) {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	o, from, to := s.options, s, s.peer()
	if w.op == ibverbs.OpRead {
		from, to = to, from
	}
	target := to.mem[o.target(lane) : o.target(lane)+w.bytes]
	copy(target, from.mem[o.source(lane):])
	if s.fabric.corrupt != nil {
		s.fabric.corrupt(w, target)
	}
	if w.op == ibverbs.OpSend || w.pingPong && w.op == ibverbs.OpWrite {
		to.arrived <- lane
	}
}

// many posts at 1 µs and completes 2 µs later, operation after operation.
func (s *fakeStation) many(w work) (outcome, error) {
	r := &ibverbs.SeriesResult{First: 1}
	sends := w.send
	if w.duration > 0 {
		sends = 10
		r.Sampled, r.SampledOps = w.duration, int64(sends*w.lanes)
	}
	for i := range sends * w.lanes {
		s.move(w, i%w.lanes)
		at := int64(i)*1000 + 1
		r.Posted, r.Completed, r.CompletedOps = append(r.Posted, at), append(r.Completed, at+2000), append(r.CompletedOps, int32(i+1))
		r.Last, r.Ops = at+2000, r.Ops+1
	}
	return outcome{result: r}, s.take(w.recv * w.lanes)
}

func (s *fakeStation) take(n int) error {
	for range n {
		select {
		case <-s.arrived:
		case <-s.stop:
			return ibverbs.ErrStopped
		case <-time.After(s.options.Deadline):
			return &ibverbs.TimeoutError{What: "fake receive", After: s.options.Deadline}
		}
	}
	return nil
}

// pingPong takes 10 µs a round trip.
func (s *fakeStation) pingPong(w work) (outcome, error) {
	out := outcome{stamps: []int64{1}}
	for i := range w.send {
		if w.op == ibverbs.OpFetchAdd {
			s.fabric.mu.Lock()
			s.peer().mem[s.options.source(0)]++ // fewer than 256 in these tests
			s.fabric.mu.Unlock()
		} else {
			s.move(w, 0)
			if w.op != ibverbs.OpRead {
				if err := s.take(1); err != nil {
					return out, err
				}
			}
		}
		out.stamps = append(out.stamps, 1+int64(i+1)*10_000)
	}
	return out, nil
}

func (s *fakeStation) memory() memory { return s }
func (s *fakeStation) halt()          { s.once.Do(func() { close(s.stop) }) }

func (s *fakeStation) close() error {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	s.fabric.closed++
	return nil
}

func (s *fakeStation) polled() bool { return true }

func (s *fakeStation) part(offset, bytes int, f func(b []byte)) error {
	s.fabric.mu.Lock()
	defer s.fabric.mu.Unlock()
	f(s.mem[offset : offset+bytes])
	return nil
}

func (s *fakeStation) fill(offset, bytes int, seed uint64, stream uint32) error {
	return s.part(offset, bytes, func(b []byte) { ibverbs.PatternInto(b, seed, stream) })
}

func (s *fakeStation) poison(offset, bytes int) error {
	return s.part(offset, bytes, func(b []byte) {
		for i := range b {
			b[i] = gpuPoison
		}
	})
}

func (s *fakeStation) check(offset, bytes int, seed uint64, stream uint32) (wrong, first, last int, err error) {
	err = s.part(offset, bytes, func(b []byte) { wrong, first, last = ibverbs.CheckIn(b, seed, stream) })
	return wrong, first, last, err
}

func (s *fakeStation) at(offset int) (b byte, err error) {
	err = s.part(offset, 1, func(p []byte) { b = p[0] })
	return b, err
}

func (s *fakeStation) put(offset int, b []byte) error {
	return s.part(offset, len(b), func(p []byte) { copy(p, b) })
}

// rig is a server and a client over one fabric, with what may be changed before they start.
type rig struct {
	fabric *fabric
	client Client
	server Server
	sides  [2]*Side // of server and client
	open   [2]error // what opening the device fails with
}

func newRig(t *testing.T) *rig {
	t.Helper()
	token, err := bootstrap.NewToken()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{fabric: &fabric{stations: map[uint32]*fakeStation{}, buildErr: map[int]error{}, events: make(chan string, 4)}}
	o := Defaults()
	o.Iterations, o.Warmup, o.Deadline, o.Sizes = 20, 4, 5*time.Second, []int{1, 64}
	for rank := range r.sides {
		r.sides[rank] = goodSide([]string{"hostb", "hosta"}[rank], 2-rank)
	}
	r.client = Client{Token: token, Options: o, Want: Want{Program: "v1"}, open: r.opener(clientRank)}
	r.server = Server{Addr: "127.0.0.1:0", Token: token, Want: Want{Program: "v1"}, GID: anyGID, Once: true, Deadline: 5 * time.Second, open: r.opener(serverRank)}
	return r
}

func (r *rig) opener(rank int) func(Want) (device, error) {
	return func(Want) (device, error) {
		if err := r.open[rank]; err != nil {
			return nil, err
		}
		about := *r.sides[rank]
		return &fakeDevice{r.fabric, &about, rank}, nil
	}
}

// goodSide is a soft-RoCE port with address 10.77.0.n.
func goodSide(host string, n int) *Side {
	return &Side{
		Protocol: Protocol, Program: "v1", Host: host, PID: 100 + n, Device: "rxe0", Port: 1, LinkLayer: ethernet, State: "active", Active: true, PhysState: 5, MTU: 1024, MaxMTU: 4096,
		GIDs:     []GID{{0, fmt.Sprintf("fe80::%d", n), typeRoCE2, "eth0", "fe80::/64"}, {1, fmt.Sprintf("10.77.0.%d", n), typeRoCE2, "eth0", "10.77.0.0/24"}},
		MaxReads: 16, MaxReadsOut: 16, MaxQPs: 100, MaxDepth: 1024, MaxCQE: 65536, Memory: hostMemory, NUMANode: -1, CPUs: "CPU not bound",
	}
}

// ended is how a test went on both sides.
type ended struct {
	client, server       *Report
	clientErr, serverErr error
}

// run takes client and server through a test. during, where not nil, acts meanwhile.
func (r *rig) run(t *testing.T, during func(ctx context.Context, endClient context.CancelFunc)) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var e ended
	listening, done := make(chan string, 1), make(chan struct{})
	r.server.Listening = func(addr string) { listening <- addr }
	r.server.Done = func(rep *Report, err error) { e.server = rep }
	go func() {
		defer close(done)
		e.serverErr = r.server.Run(ctx)
		select {
		case listening <- "": // it never listened
		default:
		}
	}()
	r.client.Addr = <-listening
	mine, end := context.WithCancel(ctx)
	defer end()
	if during != nil {
		go during(ctx, end)
	}
	e.client, e.clientErr = r.client.Run(mine)
	if !r.server.Once {
		cancel()
	}
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("the server does not end; the client: %v", e.clientErr)
	}
	return e
}
