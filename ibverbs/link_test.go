package ibverbs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// These tests run queue pairs against each other on one device: on the stand-in everywhere, and on a real device where there is one (REQUIRE_RDMA=1 makes its absence a
// failure).

// realDevice opens the first device of this machine that has an active port, or skips the test.
func realDevice(t *testing.T) *ibverbs.Context {
	t.Helper()
	list, err := ibverbs.Devices()
	if len(list) == 0 {
		if os.Getenv("REQUIRE_RDMA") != "" {
			t.Fatal("no RDMA device: ", err)
		}
		t.Skip("no RDMA device: ", err)
	}
	c, err := list[0].Open()
	ok(t, err)
	t.Cleanup(func() { ok(t, c.Close()) })
	return c
}

// side is one end of a test link: n queue pairs with memory of their own.
type side struct {
	pd             *ibverbs.PD
	sendCQ, recvCQ *ibverbs.CQ
	qps            []*ibverbs.QP
	mem            *ibverbs.HostMemory
	mr             *ibverbs.MR
	area           int // bytes of a queue pair: the first half is sent or written from, the second one is the peer's target
}

// link is two sides on one device.
type link struct {
	c    *ibverbs.Context
	kind ibverbs.QPType
	path ibverbs.Path
	mtu  ibverbs.MTU
	a, b *side
}

const (
	sends, recvs = 64, 64
	allAccess    = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteAtomic
	qkey         = 0x11111111
)

// newSide makes a side with n queue pairs and half bytes for each direction. It is closed with the test.
func newSide(t *testing.T, c *ibverbs.Context, kind ibverbs.QPType, n, half, inline int) *side {
	t.Helper()
	s := &side{area: 2 * (half + 64)}
	var err error
	s.pd, err = c.AllocPD()
	ok(t, err)
	s.sendCQ, err = c.CreateCQ(n*sends, nil)
	ok(t, err)
	s.recvCQ, err = c.CreateCQ(n*recvs, nil)
	ok(t, err)
	s.mem, err = ibverbs.AllocHost(n*s.area, false)
	ok(t, err)
	s.mr, err = s.pd.RegMR(s.mem.Addr(), n*s.area, allAccess)
	ok(t, err)
	for range n {
		q, err := s.pd.CreateQP(ibverbs.QPConfig{Type: kind, SendCQ: s.sendCQ, RecvCQ: s.recvCQ, MaxSend: sends, MaxRecv: recvs, MaxInline: inline})
		ok(t, err)
		s.qps = append(s.qps, q)
	}
	t.Cleanup(func() {
		for _, q := range s.qps {
			ok(t, q.Close())
		}
		ok(t, s.mr.Close())
		ok(t, s.mem.Close())
		ok(t, s.recvCQ.Close())
		ok(t, s.sendCQ.Close())
		ok(t, s.pd.Close())
	})
	return s
}

// route chooses a GID of the device and says how to reach the device itself by it.
func route(t *testing.T, c *ibverbs.Context) (ibverbs.Path, ibverbs.MTU) {
	t.Helper()
	port, err := c.Port(1)
	ok(t, err)
	if port.State != ibverbs.PortActive {
		t.Fatalf("port 1 of %s is %v", c.Name(), port.State)
	}
	gids, err := c.GIDs(1)
	ok(t, err)
	p := ibverbs.Path{Port: 1, DLID: port.LID, Global: port.LinkLayer == ibverbs.LinkEthernet || port.GRHRequired}
	for i, g := range gids {
		if i == 0 || g.Type == ibverbs.GIDRoCEv2 && g.Addr().Is4() && !g.LinkLocal() {
			p.SGIDIndex, p.DGID = g.Index, g.Raw
		}
	}
	return p, port.ActiveMTU
}

func newLink(t *testing.T, c *ibverbs.Context, kind ibverbs.QPType, n, half, inline int) *link {
	t.Helper()
	l := &link{c: c, kind: kind}
	l.path, l.mtu = route(t, c)
	l.a, l.b = newSide(t, c, kind, n, half, inline), newSide(t, c, kind, n, half, inline)
	for i := range n {
		for _, s := range []*side{l.a, l.b} {
			ok(t, s.qps[i].ToInit(1, 0, allAccess, qkey))
		}
		l.connect(t, l.a.qps[i], l.b.qps[i])
		l.connect(t, l.b.qps[i], l.a.qps[i])
	}
	return l
}

func (l *link) connect(t *testing.T, q, to *ibverbs.QP) {
	t.Helper()
	ok(t, q.ToRTR(ibverbs.RTR{Path: l.path, MTU: l.mtu, RemoteQP: to.Num(), RemotePSN: 7, MaxDestRdAtomic: 4, MinRNRTimer: 12}))
	ok(t, q.ToRTS(ibverbs.RTS{PSN: 7, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 4}))
}

// out is where queue pair i's own data lies, in where the peer's arrives.
func (s *side) out(i int) uintptr { return s.mem.Addr() + uintptr(i*s.area) }
func (s *side) in(i int) uintptr  { return s.out(i) + uintptr(s.area/2) }

// lanes are the parts of from's queue pairs in a series toward to.
func (l *link) lanes(t *testing.T, from, to *side) []ibverbs.Lane {
	t.Helper()
	var out []ibverbs.Lane
	for i, q := range from.qps {
		lane := ibverbs.Lane{QP: q, LocalAddr: uint64(from.out(i)), LKey: from.mr.LKey(), RemoteAddr: uint64(to.in(i)), RKey: to.mr.RKey(), RecvAddr: uint64(from.in(i)),
			RecvLKey: from.mr.LKey()}
		if l.kind == ibverbs.UD {
			ah, err := from.pd.CreateAH(l.path)
			ok(t, err)
			t.Cleanup(func() { ok(t, ah.Close()) })
			lane.AH, lane.RemoteQP, lane.RemoteQKey = ah, to.qps[i].Num(), qkey
		}
		out = append(out, lane)
	}
	return out
}

// both runs two ends at the same time.
func both(t *testing.T, a, b func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- b() }()
	errA := a()
	errB := <-done
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
}

// fillOut gives each queue pair of s its own content and poisons where to receives it.
func fillOut(s, to *side, bytes int, seed uint64) {
	for i := range s.qps {
		ibverbs.Fill(s.out(i), bytes, seed, uint32(i))
		ibverbs.Poison(to.in(i), to.area/2)
	}
}

// checkIn says whether exactly bytes have arrived from the peer, skip bytes into the target.
func checkIn(t *testing.T, s *side, skip, bytes int, seed uint64) {
	t.Helper()
	for i := range s.qps {
		checkAt(t, s.in(i)+uintptr(skip), bytes, seed, uint32(i))
		if end := s.mem.Bytes()[i*s.area+s.area/2+skip+bytes]; end != 0xa5 {
			t.Fatalf("queue pair %d: the byte behind the message is %#x", i, end)
		}
	}
}

func checkAt(t *testing.T, addr uintptr, bytes int, seed uint64, stream uint32) {
	t.Helper()
	if wrong, first, last := ibverbs.Check(addr, bytes, seed, stream); wrong != 0 {
		t.Fatalf("queue pair %d: %d of %d bytes wrong, from %d to %d", stream, wrong, bytes, first, last)
	}
}

// sizes are the message sizes: LINK_MAX limits them where links are slow.
func sizes() []int {
	limit := fromEnv("LINK_MAX", 4<<20)
	var out []int
	for _, n := range []int{1, 2, 64, 1023, 4096, 8192, 64 << 10, 64<<10 + 1, 1 << 20, 4 << 20} {
		if n <= limit {
			out = append(out, n)
		}
	}
	return out
}

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// exercise runs everything that a link can do.
func exercise(t *testing.T, open func(t *testing.T) *ibverbs.Context) {
	c := open(t)
	for _, n := range []int{1, 4} {
		for _, op := range []ibverbs.Op{ibverbs.OpWrite, ibverbs.OpRead, ibverbs.OpSend, ibverbs.OpWriteImm} {
			t.Run(fmt.Sprintf("RC %v %d", op, n), func(t *testing.T) {
				half := sizes()[len(sizes())-1]
				l := newLink(t, c, ibverbs.RC, n, half, 0)
				for _, bytes := range sizes() {
					series(t, l, op, bytes, 1+100/(1+bytes>>12), false)
				}
			})
		}
	}
	t.Run("UC", func(t *testing.T) {
		l := newLink(t, c, ibverbs.UC, 2, 4096, 0)
		series(t, l, ibverbs.OpWrite, 4096, 20, false)
	})
	t.Run("UD", func(t *testing.T) {
		l := newLink(t, c, ibverbs.UD, 2, 4096, 0)
		series(t, l, ibverbs.OpSend, 1000, 20, false)
	})
	t.Run("inline", func(t *testing.T) {
		l := newLink(t, c, ibverbs.RC, 2, 4096, 64)
		if got := l.a.qps[0].MaxInline(); got < 64 {
			t.Fatalf("%d bytes inline granted, asked for 64", got)
		}
		series(t, l, ibverbs.OpWrite, 64, 200, true)
		series(t, l, ibverbs.OpSend, 64, 200, true)
	})
	t.Run("atomics", func(t *testing.T) { atomics(t, newLink(t, c, ibverbs.RC, 2, 4096, 0)) })
	t.Run("bidirectional", func(t *testing.T) { bidirectional(t, newLink(t, c, ibverbs.RC, 2, 4096, 0)) })
	t.Run("duration", func(t *testing.T) { duration(t, newLink(t, c, ibverbs.RC, 2, 4096, 0)) })
	t.Run("ping-pong", func(t *testing.T) { pingpongs(t, newLink(t, c, ibverbs.RC, 1, 4096, 64)) })
	t.Run("ping-pong UD", func(t *testing.T) {
		pingpong(t, newLink(t, c, ibverbs.UD, 1, 4096, 0), ibverbs.PingPong{Op: ibverbs.OpSend, Bytes: 512, Iterations: 20})
	})
	t.Run("batch", func(t *testing.T) { batch(t, newLink(t, c, ibverbs.RC, 1, 64<<10, 0)) })
	t.Run("cycles", func(t *testing.T) { cycles(t, c) })
	t.Run("channel", func(t *testing.T) { channel(t, c) })
}

// series runs one from a to b, and checks counts, stamps and data.
func series(t *testing.T, l *link, op ibverbs.Op, bytes, count int, inline bool) {
	t.Helper()
	seed, from, to := uint64(bytes)<<8|uint64(op), l.a, l.b
	s := &ibverbs.Series{Lanes: l.lanes(t, l.a, l.b), Op: op, Bytes: bytes, Send: count, Depth: 32, Inline: inline}
	if op == ibverbs.OpRead { // the data comes from the peer's target
		for i := range from.qps {
			ibverbs.Fill(to.in(i), bytes, seed, uint32(i))
			ibverbs.Poison(from.out(i), from.area/2)
		}
	} else {
		fillOut(from, to, bytes, seed)
	}
	r := &ibverbs.Series{Lanes: l.lanes(t, l.b, l.a), Op: op, Bytes: bytes, Recv: count}
	receives, skip := op == ibverbs.OpSend || op == ibverbs.OpWriteImm, 0
	if l.kind == ibverbs.UD {
		skip = 40
	}
	if receives {
		ok(t, r.PostReceives())
	}
	var res *ibverbs.SeriesResult
	both(t, func() (err error) { res, err = s.Run(); return err }, func() error {
		if !receives {
			return nil
		}
		got, err := r.Run()
		if err == nil && (got.Received != int64(count*len(from.qps)) || got.First > got.Last || got.First == 0) {
			err = fmt.Errorf("received %+v", got)
		}
		return err
	})
	stamps(t, res, count*len(from.qps), bytes, len(from.qps))
	if op == ibverbs.OpRead {
		for i := range from.qps {
			checkAt(t, from.out(i), bytes, seed, uint32(i))
		}
		return
	}
	if l.kind != ibverbs.RC {
		settle(t, to, skip, bytes, seed)
	}
	checkIn(t, to, skip, bytes, seed)
}

// settle waits for what an unreliable connection has sent but not yet delivered.
func settle(t *testing.T, to *side, skip, bytes int, seed uint64) {
	t.Helper()
	end := time.Now().Add(10 * time.Second)
	for i := range to.qps {
		for time.Now().Before(end) {
			if wrong, _, _ := ibverbs.Check(to.in(i)+uintptr(skip), bytes, seed, uint32(i)); wrong == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func stamps(t *testing.T, r *ibverbs.SeriesResult, ops, bytes, lanes int) {
	t.Helper()
	signals := ops
	if bytes <= 8192 {
		each := ops / lanes
		signals = lanes * ((each-1)/32 + 1) // depth 32 limits the 100
	}
	if r.Ops != int64(ops) || len(r.Posted) != ops || len(r.Completed) != signals || len(r.CompletedOps) != signals {
		t.Fatalf("%d operations, %d posted, %d completions; want %d, %d, %d", r.Ops, len(r.Posted), len(r.Completed), ops, ops, signals)
	}
	for i := 1; i < len(r.Posted); i++ {
		if r.Posted[i] < r.Posted[i-1] {
			t.Fatal("posting stamps go back at", i)
		}
	}
	for i, at := range r.Completed {
		if i > 0 && (at < r.Completed[i-1] || r.CompletedOps[i] <= r.CompletedOps[i-1]) || at < r.Posted[0] {
			t.Fatal("completion stamps go back at", i)
		}
	}
	if last := len(r.Completed) - 1; r.First != r.Posted[0] || r.Last != r.Completed[last] || int(r.CompletedOps[last]) != ops {
		t.Fatalf("first %d, last %d, %d completed", r.First, r.Last, r.CompletedOps[last])
	}
}

func atomics(t *testing.T, l *link) {
	const count = 50
	word := func(s *side, addr uintptr) *[8]byte { return (*[8]byte)(s.mem.Bytes()[addr-s.mem.Addr():]) }
	for i := range l.a.qps {
		*word(l.b, l.b.in(i)) = [8]byte{5}
	}
	run := func(op ibverbs.Op, compare, swap uint64) {
		s := &ibverbs.Series{Lanes: l.lanes(t, l.a, l.b), Op: op, Send: count, Depth: 8, CompareAdd: compare, Swap: swap}
		_, err := s.Run()
		ok(t, err)
	}
	run(ibverbs.OpFetchAdd, 3, 0)
	for i := range l.a.qps {
		if got, old := *word(l.b, l.b.in(i)), *word(l.a, l.a.out(i)); got != [8]byte{5 + 3*count} || old != [8]byte{5 + 3*(count-1)} {
			t.Fatalf("queue pair %d: %v, before the last %v", i, got, old)
		}
	}
	run(ibverbs.OpCmpSwap, 5+3*count, 9)
	for i := range l.a.qps {
		if got, old := *word(l.b, l.b.in(i)), *word(l.a, l.a.out(i)); got != [8]byte{9} || old != [8]byte{9} {
			t.Fatalf("queue pair %d: %v, before the last %v", i, got, old)
		}
	}
}

// bidirectional has both sides send and receive in one loop.
func bidirectional(t *testing.T, l *link) {
	const count, bytes = 300, 1000
	fillOut(l.a, l.b, bytes, 1)
	fillOut(l.b, l.a, bytes, 2)
	make1 := func(from, to *side) *ibverbs.Series {
		s := &ibverbs.Series{Lanes: l.lanes(t, from, to), Op: ibverbs.OpSend, Bytes: bytes, Send: count, Recv: count}
		ok(t, s.PostReceives())
		return s
	}
	a, b := make1(l.a, l.b), make1(l.b, l.a)
	run := func(s *ibverbs.Series) func() error {
		return func() error {
			r, err := s.Run()
			if err == nil && (r.Ops != 2*count || r.Received != 2*count) {
				err = fmt.Errorf("%d sent, %d received", r.Ops, r.Received)
			}
			return err
		}
	}
	both(t, run(a), run(b))
	checkIn(t, l.b, 0, bytes, 1)
	checkIn(t, l.a, 0, bytes, 2)
}

// duration posts for a time; the receiver ends when it is told that this was all.
func duration(t *testing.T, l *link) {
	const bytes = 2048
	fillOut(l.a, l.b, bytes, 3)
	flag := ibverbs.NewFlag()
	defer flag.Close()
	s := &ibverbs.Series{Lanes: l.lanes(t, l.a, l.b), Op: ibverbs.OpSend, Bytes: bytes, For: 300 * time.Millisecond, Margin: 50 * time.Millisecond}
	r := &ibverbs.Series{Lanes: l.lanes(t, l.b, l.a), Op: ibverbs.OpSend, Bytes: bytes, Recv: -1, Stop: flag}
	ok(t, r.PostReceives())
	var sent, got *ibverbs.SeriesResult
	both(t, func() (err error) {
		sent, err = s.Run()
		flag.Finish()
		return err
	}, func() (err error) { got, err = r.Run(); return err })
	if sent.Ops == 0 || sent.Ops != got.Received || len(sent.Posted) != 0 {
		t.Errorf("%d sent, %d received, %d stamps", sent.Ops, got.Received, len(sent.Posted))
	}
	if d := sent.Last - sent.First; d < int64(s.For)*9/10 || sent.Sampled <= 0 || int64(sent.Sampled) > int64(s.For-2*s.Margin) || sent.SampledOps <= 0 || sent.SampledOps > sent.Ops {
		t.Errorf("%v in all, sampled %v with %d of %d operations", time.Duration(d), sent.Sampled, sent.SampledOps, sent.Ops)
	}
	checkIn(t, l.b, 0, bytes, 3)
}

func pingpongs(t *testing.T, l *link) {
	for _, p := range []ibverbs.PingPong{
		{Op: ibverbs.OpWrite, Bytes: 1, Iterations: 600}, // the byte that is polled comes round twice
		{Op: ibverbs.OpWrite, Bytes: 64, Iterations: 20, Inline: true},
		{Op: ibverbs.OpWrite, Bytes: 2000, Iterations: 20},
		{Op: ibverbs.OpWrite, Bytes: 2000, Iterations: 200, CQE: true},
		{Op: ibverbs.OpSend, Bytes: 2, Iterations: 200},
		{Op: ibverbs.OpSend, Bytes: 64, Iterations: 20, Inline: true},
		{Op: ibverbs.OpRead, Bytes: 2000, Iterations: 20},
		{Op: ibverbs.OpFetchAdd, Iterations: 20, CompareAdd: 1},
		{Op: ibverbs.OpCmpSwap, Iterations: 20},
	} {
		pingpong(t, l, p)
	}
}

func pingpong(t *testing.T, l *link, p ibverbs.PingPong) {
	t.Helper()
	a, b := p, p
	a.Lane, b.Lane, a.Initiator = l.lanes(t, l.a, l.b)[0], l.lanes(t, l.b, l.a)[0], true
	ok(t, a.PostReceives())
	oneSided := p.Op != ibverbs.OpWrite && p.Op != ibverbs.OpSend
	if !oneSided {
		ok(t, b.PostReceives())
	}
	run := func(p *ibverbs.PingPong) func() error {
		return func() error {
			got, err := p.Run()
			if err == nil && len(got) != p.Iterations+1 {
				err = fmt.Errorf("%d stamps", len(got))
			}
			for i := 1; err == nil && i < len(got); i++ {
				if got[i] < got[i-1] || got[0] == 0 {
					err = fmt.Errorf("stamps go back at %d", i)
				}
			}
			return err
		}
	}
	if oneSided {
		ok(t, run(&a)())
		return
	}
	both(t, run(&a), run(&b))
}

// batch writes pieces that lie backwards at the target, with one immediate a batch.
func batch(t *testing.T, l *link) {
	const pieces, piece, rounds = 150, 400, 3
	fillOut(l.a, l.b, pieces*piece, 9)
	ok(t, l.b.qps[0].PostEmptyReceives(rounds))
	var entries []ibverbs.BatchEntry
	for i := range pieces {
		entries = append(entries, ibverbs.BatchEntry{LocalAddr: uint64(l.a.out(0)) + uint64(i*piece), LKey: l.a.mr.LKey(),
			RemoteAddr: uint64(l.b.in(0)) + uint64((pieces-1-i)*piece), RKey: l.b.mr.RKey(), Bytes: piece})
	}
	var got []ibverbs.ImmEvent
	both(t, func() error {
		for imm := range uint32(rounds) {
			r, err := l.a.qps[0].WriteBatch(entries, &imm, 0, nil)
			if err == nil && r.Done <= r.Posted {
				err = fmt.Errorf("%+v", r)
			}
			if err != nil {
				return err
			}
		}
		_, err := l.a.qps[0].WriteBatch(entries[:1], nil, 0, nil)
		return err
	}, func() (err error) { got, err = l.b.qps[0].WaitImm(rounds, 0, nil); return err })
	for i, e := range got {
		if int(e.Imm) != i || e.At == 0 {
			t.Errorf("immediate %d: %+v", i, e)
		}
	}
	want := make([]byte, pieces*piece)
	ibverbs.PatternInto(want, 9, 0)
	for i := range pieces {
		at := l.b.area/2 + (pieces-1-i)*piece
		if string(l.b.mem.Bytes()[at:at+piece]) != string(want[i*piece:(i+1)*piece]) {
			t.Fatal("piece", i, "is wrong")
		}
	}
}

// cycles makes, connects and destroys queue pairs; afterwards the kernel counts what it did before. LINK_CYCLES says how often.
func cycles(t *testing.T, c *ibverbs.Context) {
	s := newSide(t, c, ibverbs.RC, 0+1, 64, 0)
	l := &link{c: c, kind: ibverbs.RC}
	l.path, l.mtu = route(t, c)
	before := resources(t, c.Name())
	n := fromEnv("LINK_CYCLES", 200)
	for range n {
		var q [2]*ibverbs.QP
		for i := range q {
			var err error
			q[i], err = s.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: s.sendCQ, RecvCQ: s.recvCQ, MaxSend: 4, MaxRecv: 4})
			ok(t, err)
			ok(t, q[i].ToInit(1, 0, allAccess, 0))
		}
		l.connect(t, q[0], q[1])
		l.connect(t, q[1], q[0])
		for _, q := range q {
			ok(t, q.Close())
		}
	}
	after := resources(t, c.Name())
	t.Logf("%d cycles; resources %v, then %v", n, before, after)
	if before != after {
		t.Errorf("%d cycles: resources %v, before %v", n, after, before)
	}
}

// channel waits for a completion event instead of polling.
func channel(t *testing.T, c *ibverbs.Context) {
	ch, err := c.CreateCompChannel()
	ok(t, err)
	q, err := c.CreateCQ(8, ch)
	ok(t, err)
	defer func() { ok(t, q.Close()); ok(t, ch.Close()) }()
	s := newSide(t, c, ibverbs.RC, 1, 64, 0)
	qp, err := s.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: q, RecvCQ: q, MaxSend: 4, MaxRecv: 4})
	ok(t, err)
	defer func() { ok(t, qp.Close()) }()
	ok(t, qp.ToInit(1, 0, allAccess, 0))
	ok(t, q.Arm())
	short, cancel := context.WithTimeout(context.Background(), 60*time.Millisecond)
	defer cancel()
	if _, err := ch.Wait(short); err == nil {
		t.Error("an event without a completion")
	}
	ok(t, qp.PostEmptyReceives(1))
	ok(t, qp.ToErr()) // which completes the receive
	got, err := ch.Wait(soon(t))
	ok(t, err)
	if got != q {
		t.Error("the event is of another queue")
	}
	list, err := q.Poll(10)
	ok(t, err)
	if len(list) != 1 || list[0].Status != 5 || list[0].QPNum != qp.Num() {
		t.Errorf("%+v", list)
	}
	if state, err := qp.State(); state != ibverbs.StateErr || err != nil {
		t.Error(state, err)
	}
}

func TestFakeLink(t *testing.T) {
	if fake(t) {
		exercise(t, device)
	}
}

func TestLink(t *testing.T) {
	exercise(t, realDevice)
}

// counted is what the kernel counts of a device's objects, -1 where it does not tell.
type counted struct{ qps, cqs, mrs, pds int }

// resources asks `rdma resource show` of iproute2, whose numbers come from the kernel.
func resources(t *testing.T, device string) counted {
	t.Helper()
	out := counted{-1, -1, -1, -1}
	text, err := rdmaResource()
	if err != nil {
		if _, real := os.Stat(filepath.Join("/sys/class/infiniband", device)); real == nil && os.Getenv("REQUIRE_RDMA") != "" {
			t.Fatal(err)
		}
		return out
	}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, " "+device+":") {
			continue
		}
		f := strings.Fields(line)
		for i := range len(f) - 1 {
			n, _ := strconv.Atoi(f[i+1])
			switch f[i] {
			case "qp":
				out.qps = n
			case "cq":
				out.cqs = n
			case "mr":
				out.mrs = n
			case "pd":
				out.pds = n
			}
		}
	}
	return out
}
