package links

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/commprobe/commprobe/cuda"
)

// Options of Run.
type Options struct {
	Devices     int      // how many, from the first on; 0: all
	Pairs       [][2]int // only these pairs of devices, and only the devices in them; nil: all
	Bytes       int64    // of one copy; rounded up to a multiple of 16
	Repetitions int
	Deadline    time.Duration // for each step to make progress
	Program     string        // version, for the report
	Machine     func() Machine
	Progress    func(done, total int, what string) // may be nil
}

// Default sizes: large enough for a device's whole rate, and small enough for a laptop.
const (
	DefaultBytes     = 256 << 20
	DefaultBytesHost = 8 << 20
)

const (
	vector     = 16
	smallBytes = 8
	smallCount = 64
)

// ErrUsage marks errors of what was asked for, for errors.Is.
var ErrUsage = errors.New("cannot be measured as asked")

// Run measures what Options ask for, one way after the other, on the engine that package cuda has loaded. It blocks; ctx ends it after the present sample,
// with ctx's error. The report is never nil once devices were found, and has what was measured until an error came; Judge has been applied to it.
// Errors: ErrUsage, *TimeoutError, those of package cuda.
func Run(ctx context.Context, o Options) (*Report, error) {
	r, err := describe(&o)
	if err != nil {
		return nil, err
	}
	l := &lab{opts: o}
	return r, l.run(ctx, r)
}

func (l *lab) run(ctx context.Context, r *Report) error {
	before, start := l.opts.Machine(), time.Now()
	err := l.open(r, before)
	if err == nil {
		err = l.steps(ctx, r)
	}
	after := l.opts.Machine() // while contexts are alive and links awake
	if before.NVML != nil && after.NVML != nil {
		seconds := time.Since(start).Seconds()
		r.CounterSecs = &seconds
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		g.learn(after)
		g.Moved = moved(before.counters(g.PCI), after.counters(g.PCI))
	}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		p.learn(after, r.byDevice(p.A), r.byDevice(p.B))
	}
	if after.NVMLWhy != "" {
		r.Notes = append(r.Notes, "NVML was not asked ("+after.NVMLWhy+"): NVLink states, error counters and the GPUs' own view of PCIe are unknown")
	}
	if err != nil {
		r.Ended = err.Error()
	}
	Judge(r)
	return errors.Join(err, l.close())
}

func (r *Report) byDevice(d int) *GPU {
	i := slices.IndexFunc(r.GPUs, func(g GPU) bool { return g.Device == d })
	return &r.GPUs[i]
}

// describe checks what was asked for and lists the devices.
func describe(o *Options) (*Report, error) {
	have, err := cuda.DeviceCount()
	if err != nil {
		return nil, err
	}
	if o.Devices < 0 || o.Devices > have {
		return nil, fmt.Errorf("%w: %d devices asked for, there are %d", ErrUsage, o.Devices, have)
	}
	if o.Bytes < vector || o.Repetitions < 1 || o.Deadline <= 0 {
		return nil, fmt.Errorf("%w: %d bytes, %d repetitions, %v: at least %d bytes, one repetition and some time are needed", ErrUsage, o.Bytes, o.Repetitions, o.Deadline, vector)
	}
	o.Bytes = (o.Bytes + vector - 1) / vector * vector
	if o.Devices == 0 {
		o.Devices = have
	}
	devices, err := o.choose()
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // for the report alone
	r := &Report{Schema: Schema, Program: o.Program, Host: host, Started: time.Now(), Engine: "native", Convention: Convention, Bytes: o.Bytes, Repetitions: o.Repetitions,
		Pairs: []Pair{}, Measured: []Measured{}, Model: []Model{}, Findings: []Finding{}}
	if cuda.IsHost() {
		r.Engine = hostEngine
		r.Notes = append(r.Notes, "host engine: its devices are threads and memory of this process; the figures describe copies by processors, no link")
	}
	for _, l := range cuda.Libraries() {
		r.Libraries = append(r.Libraries, l.Name+" "+l.Version+" "+l.Path)
	}
	for _, d := range devices {
		p, err := cuda.GetProperties(d)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", d, err)
		}
		r.GPUs = append(r.GPUs, GPU{ID: fmt.Sprintf("GPU%d", d), Device: d, Name: p.Name, PCI: p.PCIBusID, UUID: p.UUID, SMs: p.Multiprocessors, MemoryBytes: p.TotalBytes, MemoryGBs: memoryGBs(d)})
	}
	return r, nil
}

// choose lists the devices that take part.
func (o *Options) choose() (devices []int, err error) {
	if o.Pairs == nil {
		for d := range o.Devices {
			devices = append(devices, d)
		}
		return devices, nil
	}
	for i, p := range o.Pairs {
		if p[0] == p[1] || min(p[0], p[1]) < 0 || max(p[0], p[1]) >= o.Devices {
			return nil, fmt.Errorf("%w: pair %d-%d: two different devices of 0 to %d make a pair", ErrUsage, p[0], p[1], o.Devices-1)
		}
		if p[0] > p[1] {
			o.Pairs[i] = [2]int{p[1], p[0]}
		}
		devices = append(devices, p[0], p[1])
	}
	slices.Sort(devices)
	return slices.Compact(devices), nil
}

// Attributes of the runtime that the nominal memory rate follows from.
const (
	attrMemoryClockKHz = 36
	attrMemoryBusBits  = 37
)

// memoryGBs is the memory's nominal rate: two transfers a clock over the whole bus. nil where the driver does not say.
func memoryGBs(device int) *float64 {
	clock, err1 := cuda.Attribute(attrMemoryClockKHz, device)
	bits, err2 := cuda.Attribute(attrMemoryBusBits, device)
	if err1 != nil || err2 != nil || clock <= 0 || bits <= 0 {
		return nil
	}
	v := 2 * float64(clock) * 1e3 * float64(bits) / 8 / 1e9
	return &v
}

// step is one thing to measure.
type step struct {
	what string
	run  func() ([]Measured, error)
}

func (l *lab) steps(ctx context.Context, r *Report) error {
	var steps []step
	for _, g := range l.gpus {
		steps = append(steps, l.localSteps(g)...)
		steps = append(steps, l.hostSteps(g)...)
	}
	for i, a := range l.gpus {
		for _, b := range l.gpus[i+1:] {
			if l.opts.Pairs != nil && !slices.Contains(l.opts.Pairs, [2]int{a.device, b.device}) {
				continue
			}
			l.what = "asking for peer access"
			p, err := l.connect(a, b)
			if err != nil {
				return err
			}
			r.Pairs = append(r.Pairs, p)
			steps = append(steps, l.pairSteps(a, b, *p.Peer)...)
		}
	}
	if err := l.warm(); err != nil {
		return err
	}
	for i, s := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.what = s.what
		if l.opts.Progress != nil {
			l.opts.Progress(i, len(steps), s.what)
		}
		got, err := s.run()
		if err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		r.Measured = append(r.Measured, got...)
	}
	return nil
}

// warmTime is how long a GPU works before the first figure: its clocks rise and its links wake.
const warmTime = 200 * time.Millisecond

func (l *lab) warm() error {
	if cuda.IsHost() {
		return nil
	}
	l.what = "warming up"
	for _, g := range l.gpus {
		n := l.opts.Bytes
		x := lane{gpu: g, bytes: n, move: func(s cuda.Stream) error { return cuda.CopyAsync(g.dst, g.src, n, s) }}
		for until := time.Now().Add(warmTime); time.Now().Before(until); {
			if _, err := l.sample([]lane{x}, fewestCopies, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// connect maps the devices' memory into each other, where that can be.
func (l *lab) connect(a, b *gpu) (Pair, error) {
	no := false
	p := Pair{A: a.device, B: b.device, Peer: &no}
	for _, w := range [][2]*gpu{{a, b}, {b, a}} {
		can, err := cuda.CanAccessPeer(w[0].device, w[1].device)
		if err != nil {
			return p, err
		}
		if !can {
			p.Why = fmt.Sprintf("the driver says that %s cannot map the memory of %s", w[0].about.ID, w[1].about.ID)
			return p, nil
		}
	}
	for _, w := range [][2]*gpu{{a, b}, {b, a}} {
		if slices.Contains(w[0].peers, w[1].device) {
			continue
		}
		if err := l.do(w[0], func() error { return cuda.EnablePeerAccess(w[1].device) }); err != nil {
			p.Why = err.Error()
			return p, nil
		}
		w[0].peers = append(w[0].peers, w[1].device)
	}
	yes := true
	p.Peer = &yes
	return p, nil
}
