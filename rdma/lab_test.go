package rdma

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// needsDevice skips where there is no RDMA device; with REQUIRE_RDMA that is a failure, so that a laboratory cannot pass by skipping.
func needsDevice(t *testing.T) {
	t.Helper()
	if _, err := findDevices(""); err == nil {
		return
	} else if os.Getenv("REQUIRE_RDMA") != "" {
		t.Fatal(err)
	}
	t.Skip("no RDMA device here")
}

// overFake runs the test in a process whose libibverbs is a stand-in: its devices are loopbacks within the process. More settings of it go to env.
func overFake(t *testing.T, env ...string) bool {
	t.Helper()
	return bindtest.Isolated(t, func(dir string) []string {
		lib := filepath.Join(dir, "libibverbs.so.1")
		bindtest.PutVerbs(t, lib)
		return append(env, ibverbs.LibraryEnv+"="+lib)
	})
}

// pairOfQPs connects two QPs of one port with each other; the receiver's receives have a queue of their own.
type pairOfQPs struct {
	pd   *ibverbs.PD
	a, b *ibverbs.QP
}

func connectedPair(t *testing.T) pairOfQPs {
	t.Helper()
	dev, err := openVerbs(Want{CPU: -1})
	must(t, err)
	d := dev.(*verbsDevice)
	t.Cleanup(func() { must(t, d.close()) })
	var p pairOfQPs
	p.pd, err = d.context.AllocPD()
	must(t, err)
	t.Cleanup(func() { must(t, p.pd.Close()) })
	pairs, _, err := pairGIDs(d.about.GIDs, d.about.GIDs, anyGID, anyGID)
	must(t, err)
	o, a := Defaults(), &Agreement{MTU: d.about.MTU, Reads: 1, Pairs: pairs}
	s := &verbsStation{device: d, options: &o, agreement: a}
	path, err := s.path(pairs[0])
	must(t, err)
	make := func() *ibverbs.QP {
		send, err := d.context.CreateCQ(128, nil)
		must(t, err)
		t.Cleanup(func() { must(t, send.Close()) })
		recv, err := d.context.CreateCQ(128, nil)
		must(t, err)
		t.Cleanup(func() { must(t, recv.Close()) })
		q, err := p.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: send, RecvCQ: recv, MaxSend: 128, MaxRecv: 64})
		must(t, err)
		t.Cleanup(func() { must(t, q.Close()) })
		return q
	}
	p.a, p.b = make(), make()
	must(t, s.connectOne(p.a, path, 11, queue{p.b.Num(), 22}))
	must(t, s.connectOne(p.b, path, 22, queue{p.a.Num(), 11}))
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Layers of scattered blocks arrive whole, in order, where they were sent, and nowhere else.
func TestBlocksArrive(t *testing.T) {
	needsDevice(t)
	blocksArrive(t)
}

func TestBlocksArriveOverFake(t *testing.T) {
	if overFake(t) {
		blocksArrive(t)
	}
}

func blocksArrive(t *testing.T) {
	p := connectedPair(t)
	const layers, blocks, blockBytes = 3, 150, 4096 + 8
	from, err := NewPool(p.pd, hostMemory, blocks, blockBytes)
	must(t, err)
	defer func() { must(t, from.Close()) }()
	to, err := NewPool(p.pd, hostMemory, 2*blocks, blockBytes)
	must(t, err)
	defer func() { must(t, to.Close()) }()
	receiver := Receiver{QP: p.b, Deadline: 10 * time.Second}
	must(t, receiver.Ready(layers))
	sender := Sender{QP: p.a, Pool: from, Remote: to.Remote(), Deadline: 10 * time.Second}
	for layer := range uint32(layers) {
		var list []Blocks
		for i := range 2 * blocks {
			must(t, to.Poison(i))
		}
		for i := range blocks - int(layer) { // more than one list of work requests, and an odd number
			must(t, from.Fill(i, uint64(layer), uint32(i)))
			list = append(list, Blocks{i, (i*7 + int(layer)) % (2 * blocks)})
		}
		r, err := sender.WriteBlocks(layer, list)
		must(t, err)
		events, err := receiver.WaitLayers(1)
		must(t, err)
		if len(events) != 1 || events[0].Imm != layer || r.Done <= r.Posted {
			t.Errorf("layer %d: %+v, %+v", layer, events, r)
		}
		for _, b := range list {
			if err := to.Check(b.To, uint64(layer), uint32(b.From)); err != nil {
				t.Errorf("layer %d: %v", layer, err)
			}
		}
		for i := range 2 * blocks {
			if !slices.ContainsFunc(list, func(b Blocks) bool { return b.To == i }) && to.Check(i, uint64(layer), uint32(i)) == nil {
				t.Errorf("layer %d: block %d was written", layer, i)
			}
		}
	}
	receiver.Deadline = 200 * time.Millisecond
	if _, err := receiver.WaitLayers(1); KindOf(err) != TimedOut {
		t.Errorf("a layer that nobody sends: %v", err)
	}
}

// The whole test over one port with itself: every operation, sizes from 2 B to 4 MiB, 1 and 4 QPs, one and both directions.
func TestLinkToItself(t *testing.T) {
	needsDevice(t)
	linkToItself(t)
}

func TestLinkToItselfOverFake(t *testing.T) {
	if overFake(t) {
		linkToItself(t)
	}
}

func linkToItself(t *testing.T) {
	for _, c := range []struct {
		qps   int
		both  bool
		sizes []int
		tests []string
	}{
		{1, false, []int{2, 4096, 65536, 65537, 4 << 20}, []string{"write", "read", "send", "write latency", "read latency", "send latency", "atomic latency"}},
		{4, false, []int{2, 65537, 4 << 20}, []string{"write", "read", "send"}},
		{4, true, []int{2, 65537, 1 << 20}, []string{"write", "read", "send"}},
	} {
		token, err := bootstrap.NewToken()
		must(t, err)
		o := Defaults()
		o.QPs, o.Bidirectional, o.Sizes, o.Tests, o.Iterations, o.Warmup = c.qps, c.both, c.sizes, c.tests, 5, 2
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		listening, served := make(chan string, 1), make(chan error, 1)
		s := Server{Addr: "127.0.0.1:0", Token: token, Want: Want{Program: "test", CPU: -1}, GID: anyGID, Once: true, Listening: func(a string) { listening <- a }}
		go func() { served <- s.Run(ctx) }()
		client := Client{Addr: <-listening, Token: token, Want: Want{Program: "test"}, Options: o}
		r, err := client.Run(ctx)
		if err != nil || len(r.Rows) == 0 {
			t.Errorf("%+v: %v", c, err)
		}
		if err := <-served; err != nil {
			t.Errorf("%+v: server: %v", c, err)
		}
	}
	if live := ibverbs.Live(); len(live) > 0 {
		t.Errorf("handles are left: %v", live)
	}
}

// What the library refuses reaches the user with what it means, from each call that a test makes.
func TestCallsRefused(t *testing.T) {
	for _, c := range []struct {
		name, env string
		kind      Kind
		says      []string
	}{
		{"no kernel support", "FAKE_FAIL=ibv_get_device_list=38", Unusable, []string{"no RDMA device here", "libibverbs is there"}},
		{"no device", "FAKE_DEVICES=0", Unusable, []string{"no RDMA device here", "/sys/class/infiniband"}},
		{"no permission", "FAKE_FAIL=ibv_open_device=13", Unusable, []string{"open ", "/dev/infiniband"}},
		{"memlock", "FAKE_FAIL=ibv_reg_mr=12", Unusable, []string{"make QPs and register memory", "RLIMIT_MEMLOCK"}},
		{"no RC", "FAKE_FAIL=ibv_create_qp=95", Unusable, []string{"ibv_create_qp"}},
		{"peer's GID not resolved", "FAKE_FAIL=ibv_modify_qp=110", Died, []string{"peer unreachable", "GID"}},
		{"port down", "FAKE_STATE=1", Unusable, []string{"port down", "is down"}},
		{"retries exceeded later", "FAKE_WC=9:12:129", Died, []string{"write", "transport retry counter exceeded"}},
		{"nothing completes", "FAKE_SILENT=1", Died, []string{"peer unreachable", "no completion for 300ms", "the same"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !overFake(t, c.env) {
				return
			}
			token, err := bootstrap.NewToken()
			must(t, err)
			o := Defaults()
			o.Iterations, o.Deadline = 20, 300*time.Millisecond
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			listening, served := make(chan string, 1), make(chan error, 1)
			s := Server{Addr: "127.0.0.1:0", Token: token, Want: Want{Program: "test", CPU: -1}, GID: anyGID, Once: true, Listening: func(a string) { listening <- a }}
			go func() { served <- s.Run(ctx) }()
			select {
			case err := <-served: // it could not even begin
				says(t, err, c.kind, c.says...)
			case addr := <-listening:
				client := Client{Addr: addr, Token: token, Want: Want{Program: "test"}, Options: o}
				_, err := client.Run(ctx)
				says(t, err, c.kind, c.says...)
				says(t, <-served, c.kind)
			}
			if live := ibverbs.Live(); len(live) > 0 {
				t.Errorf("handles are left: %v", live)
			}
		})
	}
}

// GPU memory is filled, poisoned and compared through copies. The host engine stands in for the GPU, so its addresses can be registered like any other.
func TestGPUMemoryByCopies(t *testing.T) {
	if !overFake(t) {
		return
	}
	cuda.UseHost(1)
	must(t, cuda.SetDevice(0))
	p, err := cuda.Malloc(2 * gpuPage)
	must(t, err)
	g := &gpuBuffer{bytes: gpuPage, allocated: p, ptr: (p + gpuPage - 1) / gpuPage * gpuPage}
	defer func() { must(t, g.Close()) }()
	const at, n = 4096, 1001
	must(t, g.poison(0, gpuPage))
	must(t, g.fill(at, n, 7, 3))
	if wrong, _, _, err := g.check(at, n, 7, 3); err != nil || wrong != 0 {
		t.Errorf("%d wrong, %v", wrong, err)
	}
	b, err := g.at(at + 500)
	must(t, err)
	must(t, g.put(at+500, []byte{b ^ 1}))
	if wrong, first, last, err := g.check(at, n, 7, 3); err != nil || wrong != 1 || first != 500 || last != 500 {
		t.Errorf("%d wrong, %d to %d, %v", wrong, first, last, err)
	}
	if b, err := g.at(at + n); err != nil || b != gpuPoison {
		t.Errorf("behind the data: %#x, %v", b, err)
	}
	if wrong, first, _, err := g.check(at, n, 7, 2); err != nil || wrong < n/2 || first > 8 {
		t.Errorf("another stream: %d wrong from %d, %v", wrong, first, err)
	}
	dev, err := openVerbs(Want{CPU: -1})
	must(t, err)
	defer func() { must(t, dev.close()) }()
	pd, err := dev.(*verbsDevice).context.AllocPD()
	must(t, err)
	defer func() { must(t, pd.Close()) }()
	mr, err := g.register(pd, ibverbs.AccessLocalWrite)
	must(t, err)
	defer func() { must(t, mr.Close()) }()
	if mr.Addr() != uint64(g.ptr) || mr.Bytes() != gpuPage {
		t.Errorf("%#x, %d bytes", mr.Addr(), mr.Bytes())
	}
	t.Setenv("FAKE_FAIL", "ibv_reg_mr=14")
	_, err = g.register(pd, ibverbs.AccessLocalWrite)
	says(t, err, Unusable, "GPU memory registration refused, gpu:0", "nvidia_peermem")
}
