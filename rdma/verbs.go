package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// sysRoot is where devices, processors and modules are looked up. A variable for tests.
var sysRoot = "/sys"

// verbsDevice is a port opened through libibverbs.
type verbsDevice struct {
	context *ibverbs.Context
	attr    ibverbs.DeviceAttr
	about   *Side
	gids    []ibverbs.GID
	cpus    []int // to bind to; nil: leave the thread alone
}

// openVerbs opens the port that is wanted.
func openVerbs(w Want) (device, error) {
	devices, err := findDevices(w.Library)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(devices, w)
	if err != nil {
		return nil, err
	}
	c, err := chosen.device.Open()
	if err != nil {
		return nil, openProblem(chosen.device, err)
	}
	d := &verbsDevice{context: c}
	if err := d.describe(w, chosen); err != nil {
		return nil, errors.Join(explain(err, "ask "+chosen.device.Name, "", ""), c.Close())
	}
	return d, nil
}

// candidate is one port of one device, as far as it could be asked.
type candidate struct {
	device ibverbs.Device
	port   int
	attr   ibverbs.PortAttr
	err    error // opening or asking failed
}

// listDevices loads the library and lists all devices. None at all is an error that says what would be needed.
func listDevices(library string) (ibverbs.Library, []ibverbs.Device, error) {
	lib, err := ibverbs.Load(library)
	if err != nil {
		return lib, nil, noDevice(err)
	}
	devices, err := ibverbs.Devices()
	if err != nil || len(devices) == 0 {
		return lib, nil, noDevice(err)
	}
	return lib, devices, nil
}

// findDevices lists all ports of all devices.
func findDevices(library string) ([]candidate, error) {
	_, devices, err := listDevices(library)
	if err != nil {
		return nil, err
	}
	var out []candidate
	for _, d := range devices {
		out = append(out, portsOf(d)...)
	}
	return out, nil
}

func portsOf(d ibverbs.Device) []candidate {
	c, err := d.Open()
	if err != nil {
		return []candidate{{device: d, err: err}}
	}
	defer c.Close()
	a, err := c.Attr()
	if err != nil {
		return []candidate{{device: d, err: err}}
	}
	var out []candidate
	for n := 1; n <= a.Ports; n++ {
		p, err := c.Port(n)
		out = append(out, candidate{d, n, p, err})
	}
	return out
}

// choose picks what was named, else the first active port, of the link layer that is wanted where there is one.
func choose(all []candidate, w Want) (candidate, error) {
	var names []string
	best, rank := candidate{}, -1
	for _, c := range all {
		names = append(names, fmt.Sprintf("%s port %d (%s)", c.device.Name, c.port, cmp.Or(portText(c), "?")))
		if w.Device != "" && c.device.Name != w.Device || w.Port != 0 && c.err == nil && c.port != w.Port {
			continue
		}
		score := 0
		if c.err == nil {
			score = 1
			if c.attr.State == ibverbs.PortActive {
				score += 4
			}
			if w.LinkLayer == "" || c.attr.LinkLayer.String() == w.LinkLayer {
				score += 2
			}
		}
		if score > rank {
			best, rank = c, score
		}
	}
	switch {
	case rank < 0:
		return best, problem(Usage, nil, "-d %s -i %d: there is no such device and port here; there are %s", cmp.Or(w.Device, "(any)"), w.Port, strings.Join(names, ", "))
	case best.err != nil:
		return best, openProblem(best.device, best.err)
	}
	return best, nil
}

// openProblem looks at the device's file itself: libibverbs says that there is no such file when it may not open the one that is there.
func openProblem(d ibverbs.Device, err error) error {
	f, ferr := os.OpenFile(d.UverbsPath, os.O_RDWR, 0)
	if ferr == nil {
		f.Close()
	}
	return openVerdict(d, err, ferr)
}

func openVerdict(d ibverbs.Device, err, file error) error {
	if errors.Is(file, fs.ErrPermission) {
		return problem(Unusable, err, "open %s: no permission for %s: %s", d.Name, d.UverbsPath, ibverbs.Hint("ibv_open_device", syscall.EACCES))
	}
	return explain(err, "open "+d.Name, "", "")
}

func portText(c candidate) string {
	if c.err != nil {
		return c.err.Error()
	}
	return strings.ToLower(c.attr.State.String()) + ", " + c.attr.LinkLayer.String()
}

func (d *verbsDevice) describe(w Want, c candidate) (err error) {
	if d.attr, err = d.context.Attr(); err != nil {
		return err
	}
	if d.gids, err = d.context.GIDs(c.port); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lib, err := ibverbs.Load("")
	if err != nil {
		return err
	}
	place := placeOf(sysRoot, c.device.Name)
	p := c.attr
	d.about = &Side{
		Protocol: Protocol, Program: w.Program, Host: host, PID: os.Getpid(), Library: strings.TrimSpace(lib.Version + " " + lib.Path),
		Device: c.device.Name, Firmware: d.attr.FirmwareVersion, Port: c.port, LinkLayer: p.LinkLayer.String(), State: strings.ToLower(p.State.String()),
		Active: p.State == ibverbs.PortActive, PhysState: p.PhysState, MTU: int(p.ActiveMTU), MaxMTU: int(p.MaxMTU), LID: p.LID, RateGbps: p.RateGbps,
		GRHRequired: p.GRHRequired, GIDs: describeGIDs(d.gids, subnetOf), MaxReads: d.attr.MaxQPRdAtom, MaxReadsOut: d.attr.MaxQPInitRdAtom,
		MaxQPs: d.attr.MaxQP, MaxDepth: d.attr.MaxQPWR, MaxCQE: d.attr.MaxCQE, NUMANode: place.node, PCI: place.pci,
	}
	d.cpus, d.about.CPUs = chooseCPUs(place, allowedCPUs(), w.CPU)
	return nil
}

// describeGIDs makes the form that goes to the other side.
func describeGIDs(gids []ibverbs.GID, subnet func(dev string, a netip.Addr) string) []GID {
	out := []GID{}
	for _, g := range gids {
		one := GID{Index: g.Index, Addr: g.Addr().String(), NetDev: g.NetDev}
		if g.Type != ibverbs.GIDUnknown {
			one.Type = g.Type.String()
		}
		if g.NetDev != "" {
			one.Subnet = subnet(g.NetDev, g.Addr())
		}
		out = append(out, one)
	}
	return out
}

// subnetOf finds the prefix of an address at a network device; "" when the device is not seen from here.
func subnetOf(dev string, a netip.Addr) string {
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return ""
	}
	addrs, err := i.Addrs()
	if err != nil {
		return ""
	}
	for _, x := range addrs {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr() == a {
			return p.Masked().String()
		}
	}
	return ""
}

func (d *verbsDevice) side() *Side { return d.about }

func (d *verbsDevice) close() error { return d.context.Close() }

// events runs until ctx ends or the device has no more to tell.
func (d *verbsDevice) events(ctx context.Context, tell func(string)) {
	for {
		e, err := d.context.NextEvent(ctx)
		if err != nil {
			return
		}
		tell(d.about.name() + ": " + e.String())
	}
}

func (d *verbsDevice) counters() map[string]int64 {
	return readCounters(sysRoot, d.about.Device, d.about.Port)
}

// verbsStation holds the QPs and the memory of one test.
type verbsStation struct {
	device         *verbsDevice
	options        *Options
	agreement      *Agreement
	pd             *ibverbs.PD
	sendCQ, recvCQ *ibverbs.CQ
	buffer         buffer
	mr             *ibverbs.MR
	qps            []*ibverbs.QP
	psns           []uint32
	recvDepth      int
	remote         endpoints
	stop           *ibverbs.Flag
}

// build binds the calling goroutine's thread to processors near the device: the series of the test must run on this goroutine.
func (d *verbsDevice) build(o *Options, a *Agreement) (station, error) {
	runtime.LockOSThread() // never unlocked: the thread ends with its goroutine, since its processors are no longer everyone's
	if err := bind(d.cpus); err != nil {
		a.Notes = append(a.Notes, fmt.Sprintf("%s: %v", d.about.Host, err))
	}
	s := &verbsStation{device: d, options: o, agreement: a, stop: ibverbs.NewFlag()}
	s.recvDepth = min(512, max(d.about.MaxDepth, 1), max(d.about.MaxCQE/o.QPs, 1))
	if err := s.make(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *verbsStation) make() (err error) {
	d, o := s.device, s.options
	if s.pd, err = d.context.AllocPD(); err != nil {
		return err
	}
	if s.sendCQ, err = d.context.CreateCQ(o.QPs*o.Depth, nil); err != nil {
		return err
	}
	if s.recvCQ, err = d.context.CreateCQ(o.QPs*s.recvDepth, nil); err != nil {
		return err
	}
	if s.buffer, err = newBuffer(d.about.Memory, o.buffer(), o.HugePages); err != nil {
		return err
	}
	if s.mr, err = s.buffer.register(s.pd, s.access()); err != nil {
		return err
	}
	return s.makeQPs()
}

func (s *verbsStation) makeQPs() error {
	for range s.options.QPs {
		q, err := s.newQP()
		if err != nil {
			return err
		}
		s.qps = append(s.qps, q)
		s.psns = append(s.psns, rand.Uint32N(1<<24))
	}
	return nil
}

func (s *verbsStation) renew() error {
	for len(s.qps) > 0 {
		last := len(s.qps) - 1
		if err := s.qps[last].Close(); err != nil {
			return err
		}
		s.qps, s.psns = s.qps[:last], s.psns[:last]
	}
	// What the old ones have left would be taken for completions of the next series.
	if err := errors.Join(drain(s.sendCQ), drain(s.recvCQ)); err != nil {
		return err
	}
	return s.makeQPs()
}

func (s *verbsStation) access() ibverbs.Access {
	a := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead
	if s.device.attr.Atomics != "none" {
		a |= ibverbs.AccessRemoteAtomic
	}
	return a
}

// Sizes up to which latency tests send data in the work request, perftest's.
const (
	inlineWrite = 220
	inlineSend  = 236
)

// inlineRoom is what the QPs are asked for; only latency tests gain by it.
func inlineRoom(o *Options) int {
	if o.Inline >= 0 {
		return o.Inline
	}
	for _, name := range o.Tests {
		if t, err := FindTest(name); err == nil && t.Latency && !t.pull() {
			return inlineSend
		}
	}
	return 0
}

// newQP tries without inline data where the device refuses it.
func (s *verbsStation) newQP() (*ibverbs.QP, error) {
	c := ibverbs.QPConfig{
		Type: ibverbs.RC, SendCQ: s.sendCQ, RecvCQ: s.recvCQ, MaxSend: s.options.Depth, MaxRecv: s.recvDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inlineRoom(s.options),
	}
	q, err := s.pd.CreateQP(c)
	if errors.Is(err, syscall.EINVAL) && c.MaxInline > 0 && s.options.Inline < 0 {
		c.MaxInline = 0
		q, err = s.pd.CreateQP(c)
	}
	return q, err
}

func (s *verbsStation) endpoints() endpoints {
	e := endpoints{Addr: s.mr.Addr(), RKey: s.mr.RKey()}
	for i, q := range s.qps {
		e.QPs = append(e.QPs, queue{q.Num(), s.psns[i]})
	}
	return e
}

func (s *verbsStation) connect(p Pair, remote endpoints) error {
	s.remote = remote
	path, err := s.path(p)
	if err != nil {
		return err
	}
	for i, q := range s.qps {
		if err := s.connectOne(q, path, s.psns[i], remote.QPs[i]); err != nil {
			return err
		}
	}
	return nil
}

func drain(q *ibverbs.CQ) error {
	for {
		if c, err := q.Poll(64); err != nil || len(c) == 0 {
			return err
		}
	}
}

// path leads from this side's GID of the pair to the other's.
func (s *verbsStation) path(p Pair) (ibverbs.Path, error) {
	o, mine, theirs := s.options, p.Client, p.Server
	if s.agreement.rank == serverRank {
		mine, theirs = theirs, mine
	}
	a, err := netip.ParseAddr(theirs.Addr)
	if err != nil {
		return ibverbs.Path{}, problem(Internal, err, "GID %d of the other side: %v", theirs.Index, err)
	}
	return ibverbs.Path{
		Port: s.device.about.Port, SGIDIndex: mine.Index, DGID: a.As16(), DLID: s.agreement.remoteLID, Global: p.Global, ServiceLevel: o.ServiceLevel,
		TrafficClass: o.TrafficClass, HopLimit: o.HopLimit, FlowLabel: uint32(o.FlowLabel),
	}, nil
}

// minRNRTimer is 0.64 ms, perftest's 12.
const minRNRTimer = 12

func (s *verbsStation) connectOne(q *ibverbs.QP, path ibverbs.Path, psn uint32, remote queue) error {
	o, a := s.options, s.agreement
	if err := q.ToInit(s.device.about.Port, o.PKeyIndex, s.access(), 0); err != nil {
		return err
	}
	rtr := ibverbs.RTR{Path: path, MTU: ibverbs.MTU(a.MTU), RemoteQP: remote.Num, RemotePSN: remote.PSN, MaxDestRdAtomic: a.Reads, MinRNRTimer: minRNRTimer}
	if err := q.ToRTR(rtr); err != nil {
		return err
	}
	return q.ToRTS(ibverbs.RTS{PSN: psn, Timeout: o.AckTimeout, RetryCount: o.Retries, RNRRetry: o.RNRRetries, MaxRdAtomic: a.Reads})
}

// lane is one QP's part: data goes from the source to the other side's target, or by READ from its source to the target here.
func (s *verbsStation) lane(i int, op ibverbs.Op) ibverbs.Lane {
	o, base, there := s.options, s.mr.Addr(), s.remote.Addr
	l := ibverbs.Lane{QP: s.qps[i], LKey: s.mr.LKey(), RKey: s.remote.RKey, RecvLKey: s.mr.LKey(), RecvAddr: base + uint64(o.target(i)),
		LocalAddr: base + uint64(o.source(i)), RemoteAddr: there + uint64(o.target(i))}
	if op == ibverbs.OpRead || op == ibverbs.OpFetchAdd || op == ibverbs.OpCmpSwap {
		l.LocalAddr, l.RemoteAddr = base+uint64(o.target(i)), there+uint64(o.source(i))
	}
	return l
}

func (s *verbsStation) ready(w work) (func() (outcome, error), error) {
	if w.pingPong {
		return s.readyPing(w)
	}
	o := s.options
	series := &ibverbs.Series{Op: w.op, Bytes: w.bytes, Send: w.send, Recv: w.recv, For: w.duration, Margin: o.Margin, Depth: o.Depth, RecvDepth: s.recvDepth,
		Signal: o.Signal, Inline: o.Inline > 0 && w.bytes <= o.Inline, Deadline: cmp.Or(w.deadline, o.Deadline), Stop: s.stop}
	if w.duration > 0 {
		series.Send = 0
	}
	for i := range w.lanes {
		series.Lanes = append(series.Lanes, s.lane(i, w.op))
	}
	if w.recv > 0 {
		if err := series.PostReceives(); err != nil {
			return nil, err
		}
	}
	return func() (outcome, error) {
		r, err := series.Run()
		return outcome{result: r}, err
	}, nil
}

func (s *verbsStation) readyPing(w work) (func() (outcome, error), error) {
	limit := map[ibverbs.Op]int{ibverbs.OpWrite: inlineWrite, ibverbs.OpSend: inlineSend}[w.op]
	if s.options.Inline >= 0 {
		limit = s.options.Inline
	}
	p := &ibverbs.PingPong{
		Lane: s.lane(0, w.op), Op: w.op, Bytes: w.bytes, Iterations: w.send, Initiator: w.first, CQE: w.op == ibverbs.OpWrite && !s.agreement.Polled,
		Inline: w.bytes <= min(limit, s.qps[0].MaxInline()), CompareAdd: 1, Deadline: s.options.Deadline, Stop: s.stop,
	}
	if err := p.PostReceives(); err != nil { // of a polled WRITE: clears the byte that is looked at
		return nil, err
	}
	return func() (outcome, error) {
		stamps, err := p.Run()
		return outcome{stamps: stamps}, err
	}, nil
}

func (s *verbsStation) memory() memory { return s.buffer }

func (s *verbsStation) halt() { s.stop.Set() }

// close releases in the order in which things hold each other. A QP that the device refuses to give back does not keep the rest.
func (s *verbsStation) close() error {
	var errs []error
	release := func(c interface{ Close() error }) { errs = append(errs, c.Close()) }
	for _, q := range s.qps {
		release(q)
	}
	if s.mr != nil {
		release(s.mr)
	}
	if s.buffer != nil {
		release(s.buffer)
	}
	if s.sendCQ != nil {
		release(s.sendCQ)
	}
	if s.recvCQ != nil {
		release(s.recvCQ)
	}
	if s.pd != nil {
		release(s.pd)
	}
	s.stop.Close()
	return errors.Join(errs...)
}

// newSeed is drawn by the client for each test, so that no two leave the same data.
func newSeed() uint64 { return uint64(time.Now().UnixNano()) << 8 }
