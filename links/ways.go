package links

import (
	"errors"
	"slices"
	"time"

	"github.com/commprobe/commprobe/cuda"
)

// way is one direction by one method.
type way struct {
	kind     Kind
	from, to string
	method   Method
	lane     lane
	staged   bool
}

// one measures ways that run at once, and turns them into results.
func (l *lab) one(ways ...way) ([]Measured, error) {
	var lanes []lane
	for _, w := range ways {
		lanes = append(lanes, w.lane)
	}
	got, err := l.measure(lanes, 0, !ways[0].staged)
	if err != nil {
		return nil, err
	}
	var out []Measured
	for i, w := range ways {
		counted := w.lane.bytes
		if w.kind == Local {
			counted *= 2 // read and written
		}
		m := Measured{Kind: w.kind, From: w.from, To: w.to, Method: w.method, Both: len(ways) > 1, Staged: w.staged, Bytes: w.lane.bytes, Copies: got[i].copies, Wrong: &got[i].wrong}
		m.rates(counted*int64(got[i].copies), got[i].samples)
		if len(ways) > 1 {
			m.TotalGBs = total(got, lanes)
		}
		out = append(out, m)
	}
	return out, nil
}

func us(samples []time.Duration) (out []float64) {
	for _, s := range samples {
		out = append(out, float64(s)/1e3)
	}
	return out
}

// rates fills the figures of samples that moved so many bytes each. Samples of no time, which a coarse clock gives, have no rate.
func (m *Measured) rates(moved int64, samples []time.Duration) {
	m.Samples = us(samples)
	if slices.Min(samples) <= 0 {
		m.Why = "a sample took no time by the device's clock: make --size larger"
		return
	}
	gbs := func(us float64) *float64 { v := float64(moved) / us / 1e3; return &v }
	m.GBs, m.MinGBs, m.MaxGBs = gbs(median(m.Samples)), gbs(slices.Max(m.Samples)), gbs(slices.Min(m.Samples))
}

// total is the median over the samples of all bytes over the longest time.
func total(got []series, lanes []lane) *float64 {
	var rates []float64
	for s := range got[0].samples {
		bytes, longest := 0.0, time.Duration(0)
		for i := range got {
			bytes += float64(lanes[i].bytes) * float64(got[i].copies)
			longest = max(longest, got[i].samples[s])
		}
		if longest > 0 {
			rates = append(rates, bytes/float64(longest))
		}
	}
	if len(rates) == 0 {
		return nil
	}
	v := median(rates)
	return &v
}

// latency fills the figures of samples of so many events each.
func (m *Measured) latency(samples []time.Duration, events int) {
	m.Samples = us(samples)
	each := func(us float64) *float64 { v := us / float64(events); return &v }
	m.LatencyUS, m.MinUS, m.MaxUS = each(median(m.Samples)), each(slices.Min(m.Samples)), each(slices.Max(m.Samples))
}

// small measures a way with copies of 8 bytes.
func (l *lab) small(w way) ([]Measured, error) {
	got, err := l.measure([]lane{w.lane}, smallCount, !w.staged)
	if err != nil {
		return nil, err
	}
	m := Measured{Kind: w.kind, From: w.from, To: w.to, Method: SmallCopy, Staged: w.staged, Bytes: smallBytes, Copies: smallCount, Wrong: &got[0].wrong}
	m.latency(got[0].samples, smallCount)
	return []Measured{m}, nil
}

func (l *lab) localSteps(g *gpu) []step {
	n, id := l.opts.Bytes, g.about.ID
	local := func(method Method, move func(s cuda.Stream) error) step {
		w := way{kind: Local, from: id, to: id, method: method, lane: lane{gpu: g, src: place{g, uint64(g.src)}, dst: place{g, uint64(g.dst)}, bytes: n, move: move}}
		return step{id + "'s own memory by " + string(method), func() ([]Measured, error) { return l.one(w) }}
	}
	return []step{
		local(CopyEngine, func(s cuda.Stream) error { return cuda.CopyAsync(g.dst, g.src, n, s) }),
		local(KernelCopy, func(s cuda.Stream) error { return g.copy(uint64(g.dst), uint64(g.src), n, s) }),
	}
}

// copy queues the copy kernel on this device.
func (g *gpu) copy(dst, src uint64, n int64, s cuda.Stream) error {
	return g.kernel["cp_link_copy"].Launch(g.grid(), blockThreads, s, dst, src, uint64(n))
}

// hostWays are both directions between a device and host memory of n bytes, which must be allocated.
func (g *gpu) hostWays(n int64) (in, out way) {
	in = way{kind: HostToGPU, from: "host", to: g.about.ID, method: CopyEngine, lane: lane{gpu: g, stream: 0, bytes: n, src: place{g, uint64(g.hostSrc)}, dst: place{g, uint64(g.dst)},
		move: func(s cuda.Stream) error { return cuda.CopyPinnedAsync(g.dst, g.hostSrc, n, s) }}}
	out = way{kind: GPUToHost, from: g.about.ID, to: "host", method: CopyEngine, lane: lane{gpu: g, stream: 1, bytes: n, src: place{g, uint64(g.src)}, dst: place{g, uint64(g.hostDst)},
		move: func(s cuda.Stream) error { return cuda.CopyPinnedAsync(g.hostDst, g.src, n, s) }}}
	return in, out
}

// hostSteps is one step, since page-locked memory is dear: it is there for this step only.
func (l *lab) hostSteps(g *gpu) []step {
	return []step{{g.about.ID + " and host memory", func() (all []Measured, err error) {
		if err := l.do(g, func() error { return g.allocHost(l.opts.Bytes) }); err != nil {
			return nil, errors.Join(err, l.do(g, g.freeHost))
		}
		in, out := g.hostWays(l.opts.Bytes)
		smallIn, smallOut := g.hostWays(smallBytes)
		for _, f := range []func() ([]Measured, error){
			func() ([]Measured, error) { return l.one(in) },
			func() ([]Measured, error) { return l.one(out) },
			func() ([]Measured, error) { return l.one(in, out) },
			func() ([]Measured, error) { return l.small(smallIn) },
			func() ([]Measured, error) { return l.small(smallOut) },
		} {
			got, err := f()
			all = append(all, got...)
			if err != nil {
				return all, err // close frees the memory
			}
		}
		return all, l.do(g, g.freeHost)
	}}}
}

// between is the way from a to b, n bytes.
func between(a, b *gpu, method Method, n int64, staged bool) way {
	w := way{kind: GPUToGPU, from: a.about.ID, to: b.about.ID, method: method, staged: staged, lane: lane{gpu: a, bytes: n, src: place{a, uint64(a.src)}, dst: place{b, uint64(b.dst)}}}
	w.lane.move = func(s cuda.Stream) error { return a.copy(uint64(b.dst), uint64(a.src), n, s) }
	switch method {
	case CopyEngine:
		w.lane.move = func(s cuda.Stream) error { return cuda.CopyPeerAsync(b.dst, b.device, a.src, a.device, n, s) }
	case KernelRead:
		w.lane.gpu = b
		w.lane.move = func(s cuda.Stream) error { return b.copy(uint64(b.dst), uint64(a.src), n, s) }
	}
	return w
}

func (l *lab) pairSteps(a, b *gpu, direct bool) (out []step) {
	n := l.opts.Bytes
	methods := []Method{CopyEngine}
	if direct {
		methods = append(methods, KernelRead, KernelWrite)
	}
	there, back := a.about.ID+" to "+b.about.ID, b.about.ID+" to "+a.about.ID
	for _, method := range methods {
		to, from := between(a, b, method, n, !direct), between(b, a, method, n, !direct)
		out = append(out,
			step{there + " by " + string(method), func() ([]Measured, error) { return l.one(to) }},
			step{back + " by " + string(method), func() ([]Measured, error) { return l.one(from) }},
			step{there + " and back at once by " + string(method), func() ([]Measured, error) { return l.one(to, from) }})
	}
	for _, w := range [][2]*gpu{{a, b}, {b, a}} {
		x := between(w[0], w[1], CopyEngine, smallBytes, !direct)
		out = append(out, step{x.from + " to " + x.to + ", latency of 8-byte copies", func() ([]Measured, error) { return l.small(x) }})
		if direct {
			out = append(out, step{x.from + " to " + x.to + ", latency by kernels", func() ([]Measured, error) { return l.pingPair(w[0], w[1]) }})
		}
	}
	return out
}

// pingPair gives the time of one word from a to b: half of there and back, with a's clock.
func (l *lab) pingPair(a, b *gpu) ([]Measured, error) {
	got, err := l.ping(a, b)
	if err != nil {
		return nil, err
	}
	m := Measured{Kind: GPUToGPU, From: a.about.ID, To: b.about.ID, Method: FlagPing, Bytes: smallBytes, Copies: got.rounds, Wrong: &got.wrong}
	m.latency(got.samples, 2*got.rounds)
	return []Measured{m}, nil
}
