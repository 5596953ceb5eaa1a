package ibverbs_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
)

func TestFakeCloseOrder(t *testing.T) {
	if !fake(t) {
		return
	}
	list, err := ibverbs.Devices()
	ok(t, err)
	c, err := list[0].Open()
	ok(t, err)
	pd, err := c.AllocPD()
	ok(t, err)
	ch, err := c.CreateCompChannel()
	ok(t, err)
	cq, err := c.CreateCQ(4, ch)
	ok(t, err)
	qp, err := pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: cq, RecvCQ: cq, MaxSend: 1, MaxRecv: 1})
	ok(t, err)
	mem, err := ibverbs.AllocHost(4096, false)
	ok(t, err)
	mr, err := pd.RegMR(mem.Addr(), 4096, ibverbs.AccessLocalWrite)
	ok(t, err)
	ah, err := pd.CreateAH(ibverbs.Path{Port: 1, Global: true})
	ok(t, err)
	if mr.Addr() != uint64(mem.Addr()) || mr.Bytes() != 4096 || mr.LKey() == 0 || mr.RKey() == 0 {
		t.Errorf("%#x %d %d %d", mr.Addr(), mr.Bytes(), mr.LKey(), mr.RKey())
	}
	for _, c := range []struct {
		err  error
		says []string
	}{
		{c.Close(), []string{"close device", "1 × protection domain", "1 × completion queue", "1 × completion channel"}},
		{pd.Close(), []string{"close protection domain", "1 × queue pair", "1 × memory region", "1 × address handle"}},
		{cq.Close(), []string{"close completion queue", "1 × queue pair"}},
		{ch.Close(), []string{"close completion channel", "1 × completion queue"}},
	} {
		var busy *ibverbs.BusyError
		if !errors.As(c.err, &busy) {
			t.Errorf("got %v, want a *BusyError", c.err)
			continue
		}
		says(t, c.err, c.says...)
	}
	t.Setenv("FAKE_FAIL", "ibv_destroy_qp=16") // what fails to close stays open
	is(t, qp.Close(), syscall.EBUSY)
	t.Setenv("FAKE_FAIL", "")
	for _, h := range []interface{ Close() error }{qp, ah, mr, mem, cq, ch, pd, c, c, qp, mem} { // twice is once
		ok(t, h.Close())
	}
	_, err = c.AllocPD()
	is(t, err, ibverbs.ErrClosed)
	_, err = qp.State()
	is(t, err, ibverbs.ErrClosed)
	_, err = c.Attr()
	is(t, err, ibverbs.ErrClosed)
	_, err = (&ibverbs.Series{Lanes: []ibverbs.Lane{{QP: qp}}, Op: ibverbs.OpWrite, Send: 1}).Run()
	is(t, err, ibverbs.ErrClosed)
}

// call is one call of the library, on a link that works.
type call struct {
	fn  string // as the error names it
	run func(t *testing.T, l *link) error
	key string // as the stand-in knows it, when that differs
}

func discard[T any](_ T, err error) error { return err }

var calls = []call{
	{fn: "ibv_get_device_list", run: func(_ *testing.T, l *link) error { return discard(ibverbs.Devices()) }},
	{fn: "ibv_open_device", run: func(_ *testing.T, l *link) error { return discard(ibverbs.Device{Name: "fake0"}.Open()) }},
	{fn: "ibv_query_device", run: func(_ *testing.T, l *link) error { return discard(l.c.Attr()) }},
	{fn: "ibv_alloc_pd", run: func(_ *testing.T, l *link) error { return discard(l.c.AllocPD()) }},
	{fn: "ibv_create_comp_channel", run: func(_ *testing.T, l *link) error { return discard(l.c.CreateCompChannel()) }},
	{fn: "ibv_create_cq", run: func(_ *testing.T, l *link) error { return discard(l.c.CreateCQ(4, nil)) }},
	{fn: "ibv_reg_mr", run: func(_ *testing.T, l *link) error { return discard(l.a.pd.RegMR(l.a.mem.Addr(), 64, 0)) }},
	{fn: "ibv_reg_dmabuf_mr", run: func(_ *testing.T, l *link) error { return discard(l.a.pd.RegDMABuf(0, 0, 64, 0, 0)) }},
	{fn: "ibv_create_qp", run: func(_ *testing.T, l *link) error {
		return discard(l.a.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: l.a.sendCQ, RecvCQ: l.a.sendCQ}))
	}},
	{fn: "ibv_query_qp", run: func(_ *testing.T, l *link) error { return discard(l.a.qps[0].State()) }},
	{fn: "ibv_modify_qp to RESET", key: "ibv_modify_qp", run: func(_ *testing.T, l *link) error { return l.a.qps[0].ToReset() }},
	{fn: "ibv_modify_qp to INIT", key: "ibv_modify_qp", run: func(_ *testing.T, l *link) error { return l.a.qps[0].ToInit(1, 0, 0, 0) }},
	{fn: "ibv_modify_qp to RTR", key: "ibv_modify_qp", run: func(_ *testing.T, l *link) error { return l.a.qps[0].ToRTR(ibverbs.RTR{MTU: 1024}) }},
	{fn: "ibv_modify_qp to RTS", key: "ibv_modify_qp", run: func(_ *testing.T, l *link) error { return l.a.qps[0].ToRTS(ibverbs.RTS{}) }},
	{fn: "ibv_create_ah", run: func(_ *testing.T, l *link) error { return discard(l.a.pd.CreateAH(ibverbs.Path{})) }},
}

// posting are calls of the data path, which the library does not export.
var posting = []call{
	{fn: "ibv_req_notify_cq", key: "req_notify_cq", run: func(_ *testing.T, l *link) error { return l.a.sendCQ.Arm() }},
	{fn: "ibv_post_recv", key: "post_recv", run: func(_ *testing.T, l *link) error { return l.a.qps[0].PostEmptyReceives(1) }},
	{fn: "ibv_post_send", key: "post_send", run: func(t *testing.T, l *link) error { return runSeries(t, l, nil) }},
	{fn: "ibv_post_send", key: "post_send", run: func(t *testing.T, l *link) error { return runPingPong(t, l) }},
	{fn: "ibv_post_send", key: "post_send", run: func(t *testing.T, l *link) error { return runBatch(t, l) }},
}

func runSeries(t *testing.T, l *link, change func(s *ibverbs.Series)) error {
	s := &ibverbs.Series{Lanes: l.lanes(t, l.a, l.b), Op: ibverbs.OpWrite, Bytes: 64, Send: 10, Signal: 1, Deadline: 300 * time.Millisecond}
	if change != nil {
		change(s)
	}
	return discard(s.Run())
}

func runPingPong(t *testing.T, l *link) error {
	return discard((&ibverbs.PingPong{Lane: l.lanes(t, l.a, l.b)[0], Op: ibverbs.OpRead, Bytes: 8, Iterations: 10, Initiator: true, Deadline: 300 * time.Millisecond}).Run())
}

func runBatch(t *testing.T, l *link) error {
	e := ibverbs.BatchEntry{LocalAddr: uint64(l.a.out(0)), LKey: l.a.mr.LKey(), RemoteAddr: uint64(l.b.in(0)), RKey: l.b.mr.RKey(), Bytes: 8}
	return discard(l.a.qps[0].WriteBatch([]ibverbs.BatchEntry{e, e, e}, nil, 300*time.Millisecond, nil))
}

func TestFakeCallFails(t *testing.T) {
	if !fake(t) {
		return
	}
	l := newLink(t, device(t), ibverbs.RC, 1, 4096, 0)
	for _, c := range append(calls, posting...) {
		for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL, syscall.EACCES, syscall.ENODEV, syscall.EFAULT, syscall.EOPNOTSUPP} {
			key := c.key
			if key == "" {
				key = c.fn
			}
			t.Setenv("FAKE_FAIL", fmt.Sprintf("%s=%d", key, int(errno)))
			err := c.run(t, l)
			var e *ibverbs.Error
			if !errors.As(err, &e) || e.Func != c.fn || e.Errno != errno || !errors.Is(err, errno) || e.Hint != ibverbs.Hint(c.fn, errno) {
				t.Errorf("%s with %v: %v", c.fn, errno, err)
				continue
			}
			says(t, err, c.fn, errno.Error(), fmt.Sprintf("(errno %d)", int(errno)), e.Hint)
		}
	}
	t.Setenv("FAKE_FAIL", "poll_cq=1")
	for _, run := range []func() error{func() error { return runSeries(t, l, nil) }, func() error { return discard(l.a.sendCQ.Poll(1)) }} {
		err := run()
		is(t, err, syscall.EIO)
		says(t, err, "ibv_poll_cq")
	}
}

// Every function may be lacking: the call then says so, and nothing crashes.
func TestFakeMissing(t *testing.T) {
	var hidden []string
	for name := range ibverbs.Functions() {
		if name != "ibv_get_device_list" {
			hidden = append(hidden, name)
		}
	}
	for _, at := range []string{"all", "some"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			names := hidden
			if at == "some" { // a device opens, but nothing can be made
				names = nil
				for _, n := range hidden {
					if n != "ibv_open_device" && n != "ibv_close_device" && n != "ibv_free_device_list" {
						names = append(names, n)
					}
				}
			}
			if !fake(t, bindtest.Lacking(t, names...)...) {
				return
			}
			missing := func(err error, fn string) {
				t.Helper()
				var lacking *csrc.MissingSymbolError
				if !errors.As(err, &lacking) || lacking.Func != fn || lacking.Library != "libibverbs" {
					t.Errorf("%s: %v", fn, err)
				}
			}
			list, err := ibverbs.Devices()
			ok(t, err)
			c, err := list[0].Open()
			if at == "all" {
				missing(err, "ibv_open_device")
				return
			}
			ok(t, err)
			missing(discard(c.Attr()), "ibv_query_device")
			missing(discard(c.GIDs(1)), "ibv_query_gid")
			missing(discard(c.AllocPD()), "ibv_alloc_pd")
			missing(discard(c.CreateCompChannel()), "ibv_create_comp_channel")
			missing(discard(c.CreateCQ(1, nil)), "ibv_create_cq")
			ok(t, c.Close())
		})
	}
}

// What needs a handle is tried with a library that lacks one function at a time.
func TestFakeMissingOne(t *testing.T) {
	for fn, run := range map[string]func(t *testing.T, l *link) error{
		"ibv_reg_mr":    func(_ *testing.T, l *link) error { return discard(l.a.pd.RegMR(l.a.mem.Addr(), 64, 0)) },
		"ibv_query_qp":  func(_ *testing.T, l *link) error { return discard(l.a.qps[0].State()) },
		"ibv_create_ah": func(_ *testing.T, l *link) error { return discard(l.a.pd.CreateAH(ibverbs.Path{})) },
	} {
		t.Run(fn, func(t *testing.T) {
			t.Parallel()
			if !fake(t, bindtest.Lacking(t, fn)...) {
				return
			}
			if fn == "ibv_reg_mr" { // no link without it
				pd, err := device(t).AllocPD()
				ok(t, err)
				says(t, discard(pd.RegMR(1, 64, 0)), "ibv_reg_mr: not in the loaded libibverbs library 44.0")
				ok(t, pd.Close())
				return
			}
			says(t, run(t, newLink(t, device(t), ibverbs.RC, 1, 64, 0)), fn+": not in the loaded libibverbs library 44.0")
		})
	}
}

func TestFakeDMABufProbe(t *testing.T) {
	if !fake(t) {
		return
	}
	pd, err := device(t).AllocPD()
	ok(t, err)
	defer func() { ok(t, pd.Close()) }()
	for errno, want := range map[syscall.Errno]bool{0: true, syscall.EBADF: true, syscall.EOPNOTSUPP: false, syscall.EPROTONOSUPPORT: false} {
		t.Setenv("FAKE_FAIL", fmt.Sprintf("ibv_reg_dmabuf_mr=%d", int(errno)))
		if can, err := ibverbs.DMABufProbe(pd); can != want || err != nil {
			t.Errorf("%v: %v, %v", errno, can, err)
		}
	}
	t.Setenv("FAKE_FAIL", "ibv_reg_dmabuf_mr=5")
	can, err := ibverbs.DMABufProbe(pd)
	is(t, err, syscall.EIO)
	if can {
		t.Error("can")
	}
	says(t, err, "cannot tell")
	t.Setenv("FAKE_FAIL", "")
	mr, err := pd.RegDMABuf(3, 4096, 8192, 0x10000, ibverbs.AccessLocalWrite)
	ok(t, err)
	if mr.Addr() != 0x10000 || mr.Bytes() != 8192 {
		t.Error(mr.Addr(), mr.Bytes())
	}
	ok(t, mr.Close())
}

// Every status of a completion comes out as a WCError, from each kind of run, and no flush that follows hides it.
func TestFakeCompletionFails(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	for status := 1; status <= ibverbs.LastStatus; status++ {
		for name, run := range map[string]func(t *testing.T, l *link) error{
			"write": func(t *testing.T, l *link) error { return runSeries(t, l, nil) }, "read": runPingPong,
		} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				l := newLink(t, c, ibverbs.RC, 1, 4096, 0)
				t.Setenv("FAKE_WC", fmt.Sprintf("3:%d:%d:%s", status, 200+status, name)) // the stand-in counts anew when the text changes
				err := run(t, l)
				var wc *ibverbs.WCError
				if !errors.As(err, &wc) {
					t.Fatalf("got %v, want a *WCError", err)
				}
				want := ibverbs.WCError{Status: status, Text: ibverbs.WCText(status), Vendor: uint32(200 + status), QPNum: l.a.qps[0].Num(), Op: name, Index: 3,
					Cause: ibverbs.WCCause(status, uint32(200+status))}
				if *wc != want {
					t.Errorf("%+v, want %+v", *wc, want)
				}
				says(t, err, fmt.Sprintf("completion status %d (%s), vendor error %#x", status, wc.Text, wc.Vendor), wc.Cause)
			})
		}
	}
	t.Run("batch", func(t *testing.T) {
		l := newLink(t, c, ibverbs.RC, 1, 4096, 0)
		t.Setenv("FAKE_WC", "1:12:129")
		says(t, runBatch(t, l), "write 1 on queue pair", "status 12", "UDP 4791")
	})
}

// Faults that come from what was set up, not planted.
func TestFakeWrongKeys(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	for name, x := range map[string]struct {
		change func(l *link, s *ibverbs.Series)
		status int
	}{
		"local key":    {func(_ *link, s *ibverbs.Series) { s.Lanes[1].LKey = 4000 }, 4},
		"remote key":   {func(_ *link, s *ibverbs.Series) { s.Lanes[1].RKey = 4000 << 8 }, 10},
		"range":        {func(_ *link, s *ibverbs.Series) { s.Lanes[1].RemoteAddr += 1 << 20 }, 10},
		"nobody there": {func(l *link, s *ibverbs.Series) { _ = l.b.qps[1].ToReset() }, 12},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, c, ibverbs.RC, 2, 4096, 0)
			err := runSeries(t, l, func(s *ibverbs.Series) { x.change(l, s) })
			var wc *ibverbs.WCError
			if !errors.As(err, &wc) || wc.Status != x.status || wc.Lane != 1 || wc.QPNum != l.a.qps[1].Num() {
				t.Errorf("%v, want status %d of lane 1", err, x.status)
			}
		})
	}
	t.Run("the peer's side", func(t *testing.T) { // whose queue pair is broken by the faulty access: it only sees the flush
		l := newLink(t, c, ibverbs.RC, 1, 4096, 0)
		r := &ibverbs.Series{Lanes: l.lanes(t, l.b, l.a), Op: ibverbs.OpWriteImm, Bytes: 64, Recv: 10, Deadline: time.Second}
		ok(t, r.PostReceives())
		if err := runSeries(t, l, func(s *ibverbs.Series) { s.Op, s.Lanes[0].RKey = ibverbs.OpWriteImm, 1 }); err == nil {
			t.Error("a wrong key went unseen")
		}
		_, err := r.Run()
		says(t, err, "receive 0 on queue pair", "work request flushed", "either side tells why")
	})
}

func TestFakeSilence(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	t.Setenv("FAKE_SILENT", "1")
	l := newLink(t, c, ibverbs.RC, 2, 4096, 0)
	fresh := func() *link { return newLink(t, c, ibverbs.RC, 1, 4096, 0) } // what is posted stays in the queue
	pp := func(op ibverbs.Op, initiator bool) error {
		p := &ibverbs.PingPong{Lane: l.lanes(t, l.a, l.b)[1], Op: op, Bytes: 8, Iterations: 5, Initiator: initiator, Deadline: 50 * time.Millisecond}
		ok(t, p.PostReceives())
		return discard(p.Run())
	}
	deadline := func(s *ibverbs.Series) { s.Deadline = 50 * time.Millisecond }
	for name, err := range map[string]error{
		"series":        runSeries(t, l, deadline),
		"duration":      runSeries(t, fresh(), func(s *ibverbs.Series) { deadline(s); s.Send, s.For = 0, time.Millisecond }),
		"receives":      runSeries(t, l, func(s *ibverbs.Series) { deadline(s); s.Op, s.Send, s.Recv = ibverbs.OpSend, 0, 3 }),
		"batch":         runBatch(t, fresh()),
		"immediates":    discard(l.a.qps[0].WaitImm(1, 50*time.Millisecond, nil)),
		"polled answer": pp(ibverbs.OpWrite, false),
		"send":          pp(ibverbs.OpSend, true),
		"answer":        pp(ibverbs.OpSend, false),
	} {
		var late *ibverbs.TimeoutError
		if !errors.As(err, &late) || late.Done != 0 || late.After <= 0 || !late.Timeout() {
			t.Errorf("%s: got %v, want a *TimeoutError", name, err)
			continue
		}
		says(t, err, "no completion for "+late.After.String(), "the peer has stopped")
	}
}

func TestFakeStop(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	t.Setenv("FAKE_SILENT", "1")
	flag := ibverbs.NewFlag()
	l := newLink(t, c, ibverbs.RC, 1, 4096, 0)
	const long = time.Minute
	time.AfterFunc(20*time.Millisecond, flag.Set)
	is(t, runSeries(t, l, func(s *ibverbs.Series) { s.Deadline, s.Stop = long, flag }), ibverbs.ErrStopped)
	// A flag that is set stops whatever looks at it; finishing does not undo that.
	flag.Finish()
	is(t, runSeries(t, l, func(s *ibverbs.Series) { s.Op, s.Send, s.Recv, s.Stop = ibverbs.OpSend, 0, -1, flag }), ibverbs.ErrStopped)
	_, err := l.a.qps[0].WaitImm(1, long, flag)
	is(t, err, ibverbs.ErrStopped)
	_, err = (&ibverbs.PingPong{Lane: l.lanes(t, l.a, l.b)[0], Op: ibverbs.OpWrite, Bytes: 8, Iterations: 5, Deadline: long, Stop: flag}).Run()
	is(t, err, ibverbs.ErrStopped)
	flag.Close()
	flag.Set() // too late, and harmless
	flag.Close()
}

func TestFakeRefused(t *testing.T) {
	if !fake(t) {
		return
	}
	c := device(t)
	l, other := newLink(t, c, ibverbs.RC, 1, 4096, 0), newLink(t, c, ibverbs.RC, 1, 4096, 0)
	for want, change := range map[string]func(s *ibverbs.Series){
		"0 lanes":                            func(s *ibverbs.Series) { s.Lanes = nil },
		"lane 1: no queue pair":              func(s *ibverbs.Series) { s.Lanes = append(s.Lanes, ibverbs.Lane{}) },
		"other completion queues":            func(s *ibverbs.Series) { s.Lanes = append(s.Lanes, ibverbs.Lane{QP: other.a.qps[0]}) },
		"invalid argument":                   func(s *ibverbs.Series) { s.Bytes = -1 },
		"exclude each other":                 func(s *ibverbs.Series) { s.For = 1 },
		"nothing is received by write":       func(s *ibverbs.Series) { s.Recv = 1 },
		"needs a Flag":                       func(s *ibverbs.Series) { s.Op, s.Recv = ibverbs.OpSend, -1 },
		"do not fit the send queue":          func(s *ibverbs.Series) { s.Depth = sends + 1 },
		"do not fit the receive queue":       func(s *ibverbs.Series) { s.Op, s.Recv, s.RecvDepth = ibverbs.OpSend, 1, recvs+1 },
		"64 bytes of write cannot go inline": func(s *ibverbs.Series) { s.Inline = true },
	} {
		says(t, runSeries(t, l, change), want)
	}
	for want, p := range map[string]ibverbs.PingPong{
		"invalid argument":   {Op: ibverbs.OpSend, Bytes: 8},
		"no bytes":           {Op: ibverbs.OpWrite, Iterations: 1},
		"only the initiator": {Op: ibverbs.OpRead, Iterations: 1},
		"cannot go inline":   {Op: ibverbs.OpSend, Bytes: 8, Iterations: 1, Inline: true},
	} {
		p.Lane = l.lanes(t, l.a, l.b)[0]
		says(t, discard(p.Run()), want)
		says(t, p.PostReceives(), want)
	}
	says(t, discard(l.a.qps[0].WriteBatch(nil, nil, 0, nil)), "no entries")
	_, err := l.a.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC})
	says(t, err, "completion queue")
	says(t, l.a.qps[0].ToRTR(ibverbs.RTR{MTU: 1500}), "MTU of 1500 bytes")
	q, err := l.a.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: l.a.sendCQ, RecvCQ: l.a.sendCQ, MaxSend: 1, MaxRecv: 1})
	ok(t, err)
	says(t, discard(q.WaitImm(1, 0, nil)), "completion queue of their own")
	ok(t, q.Close())
	// The receive queue is as full as it can be: the next one is refused.
	ok(t, l.a.qps[0].PostEmptyReceives(recvs))
	says(t, l.a.qps[0].PostEmptyReceives(1), "ibv_post_recv", "the receive queue is full")
}

func TestHostMemory(t *testing.T) {
	h, err := ibverbs.AllocHost(5000, false)
	ok(t, err)
	if int(h.Addr())%os.Getpagesize() != 0 || len(h.Bytes()) != 5000 || strings.Trim(string(h.Bytes()), "\x00") != "" {
		t.Errorf("%#x, %d bytes", h.Addr(), len(h.Bytes()))
	}
	ok(t, h.Close())
	_, err = ibverbs.AllocHost(0, false)
	is(t, err, syscall.EINVAL)
	_, err = ibverbs.AllocHost(1<<62, false)
	is(t, err, syscall.ENOMEM)
	huge, err := ibverbs.AllocHost(3<<20, true)
	if err != nil {
		says(t, err, "huge pages", "vm.nr_hugepages=2")
		return
	}
	if huge.Addr()%(2<<20) != 0 {
		t.Errorf("%#x", huge.Addr())
	}
	ok(t, huge.Close())
}
