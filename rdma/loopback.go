package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// LoopbackStep is how far a loopback test came.
type LoopbackStep string

// The steps, in their order.
const (
	LoopOpen     LoopbackStep = "open"     // the device, its protection domain and queue
	LoopMemory   LoopbackStep = "memory"   // allocate it
	LoopRegister LoopbackStep = "register" // with the device
	LoopPort     LoopbackStep = "port"     // is it active, has it an address
	LoopConnect  LoopbackStep = "connect"  // a QP to itself
	LoopMove     LoopbackStep = "move"     // data by WRITE, and a READ behind it
	LoopCheck    LoopbackStep = "check"    // what arrived
	LoopDone     LoopbackStep = "done"     // everything was right
)

// Loopback is what a test of one device with itself found.
type Loopback struct {
	Step  LoopbackStep // the one that failed, or LoopDone
	Port  int
	Bytes int64 // that arrived right
	Wrong int   // bytes that did not
}

// loopSizes are the messages that are written. Some faults begin at one byte above a page of the GPU (perftest issue 394).
var loopSizes = []int{1 << 10, 4 << 10, gpuPage, gpuPage + 1, 1 << 20}

const loopHalf = 2 << 20 // sources lie in the first half, targets in the second

// TryLoopback moves data within memory of a kind (host, gpu:N, dmabuf:N) through one device, which is its own peer, and compares what arrives. It locks a
// thread of its own and blocks; wait bounds each transfer. The result tells the step that an error belongs to.
func TryLoopback(device, memory string, wait time.Duration) (Loopback, error) {
	type answer struct {
		l   Loopback
		err error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has become a user of the GPU
		l := loop{device: device, memory: memory, wait: wait}
		err := l.run()
		done <- answer{l.result, errors.Join(err, l.close())}
	}()
	a := <-done
	return a.l, a.err
}

type loop struct {
	device, memory string
	wait           time.Duration
	result         Loopback

	verbs  *verbsDevice
	pd     *ibverbs.PD
	cq     *ibverbs.CQ
	buffer buffer
	mr     *ibverbs.MR
	qp     *ibverbs.QP
}

func (l *loop) run() error {
	for _, s := range []struct {
		step LoopbackStep
		f    func() error
	}{{LoopOpen, l.open}, {LoopMemory, l.allocate}, {LoopRegister, l.register}, {LoopPort, l.port}, {LoopConnect, l.connect}, {LoopMove, l.transfer}} {
		l.result.Step = s.step
		if err := s.f(); err != nil {
			return err
		}
	}
	l.result.Step = LoopDone
	return nil
}

func (l *loop) open() error {
	d, err := openVerbs(Want{Device: l.device, CPU: -1})
	if err != nil {
		return err
	}
	l.verbs = d.(*verbsDevice)
	l.result.Port = l.verbs.about.Port
	if l.pd, err = l.verbs.context.AllocPD(); err != nil {
		return err
	}
	l.cq, err = l.verbs.context.CreateCQ(64, nil)
	return err
}

func (l *loop) allocate() (err error) {
	l.buffer, err = newBuffer(l.memory, 2*loopHalf, false)
	return err
}

const loopAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

func (l *loop) register() (err error) {
	l.mr, err = l.buffer.register(l.pd, loopAccess)
	return err
}

func (l *loop) port() error {
	a := l.verbs.about
	if !a.Active {
		return problem(Unusable, nil, "port %d of %s is %s (physical state %d): no data can be moved", a.Port, a.Device, a.State, a.PhysState)
	}
	if _, ok := l.address(); !ok && a.LinkLayer == ibverbs.LinkEthernet.String() {
		return problem(Unusable, nil, "port %d of %s has no GID: no data can be moved; give its network interface an address", a.Port, a.Device)
	}
	return nil
}

// address is the GID that the QP uses towards itself: RoCE v2 over an address that is not of the link alone, where there is one.
func (l *loop) address() (best ibverbs.GID, ok bool) {
	score := -1
	for _, g := range l.verbs.gids {
		s := 0
		if g.Type == ibverbs.GIDRoCEv2 {
			s += 2
		}
		if !g.LinkLocal() {
			s++
		}
		if s > score {
			best, score = g, s
		}
	}
	return best, score >= 0
}

func (l *loop) connect() (err error) {
	a := l.verbs.about
	if l.qp, err = l.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.RC, SendCQ: l.cq, RecvCQ: l.cq, MaxSend: 16, MaxRecv: 1}); err != nil {
		return err
	}
	path := ibverbs.Path{Port: a.Port, DLID: a.LID, Global: a.GRHRequired || a.LinkLayer == ibverbs.LinkEthernet.String()}
	if gid, ok := l.address(); ok {
		path.SGIDIndex, path.DGID = gid.Index, gid.Raw
	}
	if err = l.qp.ToInit(a.Port, 0, loopAccess, 0); err != nil {
		return err
	}
	const psn, reads, timeout, retries = 0x1000, 1, 14, 7
	rtr := ibverbs.RTR{Path: path, MTU: ibverbs.MTU(a.MTU), RemoteQP: l.qp.Num(), RemotePSN: psn, MaxDestRdAtomic: reads, MinRNRTimer: minRNRTimer}
	if err = l.qp.ToRTR(rtr); err != nil {
		return err
	}
	return l.qp.ToRTS(ibverbs.RTS{PSN: psn, Timeout: timeout, RetryCount: retries, RNRRetry: retries, MaxRdAtomic: reads})
}

// transfer writes each size with data of its own onto poison.
func (l *loop) transfer() error {
	for i, n := range loopSizes {
		l.result.Step = LoopMove
		seed := uint64(i + 1)
		// Poison comes second: it waits for the device, and so for the fill as well.
		if err := errors.Join(l.buffer.fill(0, n, seed, 0), l.buffer.poison(loopHalf, n)); err != nil {
			return err
		}
		if err := l.move(ibverbs.OpWrite, 0, loopHalf, n); err != nil {
			return err
		}
		// A GPU before Hopper may show old data after the completion, unless a READ was pushed behind it (NCCL's flush).
		if err := l.move(ibverbs.OpRead, loopHalf-1, loopHalf, 1); err != nil {
			return err
		}
		l.result.Step = LoopCheck
		wrong, first, last, err := l.buffer.check(loopHalf, n, seed, 0)
		if err != nil {
			return err
		}
		l.result.Bytes += int64(n - wrong)
		if wrong > 0 {
			l.result.Wrong = wrong
			return problem(WrongData, nil, "%d of %d bytes arrived wrong or never, from byte %d to %d", wrong, n, first, last)
		}
	}
	return nil
}

// move runs one operation between two places of the memory: local is this side's, remote that of the peer, which is this side again.
func (l *loop) move(op ibverbs.Op, local, remote, n int) error {
	s := ibverbs.Series{
		Lanes: []ibverbs.Lane{{QP: l.qp, LocalAddr: l.mr.Addr() + uint64(local), LKey: l.mr.LKey(), RemoteAddr: l.mr.Addr() + uint64(remote), RKey: l.mr.RKey()}},
		Op:    op, Bytes: n, Send: 1, Deadline: l.wait,
	}
	if _, err := s.Run(); err != nil {
		return fmt.Errorf("%s of %d bytes: %w", op, n, err)
	}
	return nil
}

// close undoes what was done, children first.
func (l *loop) close() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	if l.mr != nil {
		errs = append(errs, l.mr.Close())
	}
	if l.buffer != nil {
		errs = append(errs, l.buffer.Close())
	}
	if l.cq != nil {
		errs = append(errs, l.cq.Close())
	}
	if l.pd != nil {
		errs = append(errs, l.pd.Close())
	}
	if l.verbs != nil {
		errs = append(errs, l.verbs.close())
	}
	return errors.Join(errs...)
}
