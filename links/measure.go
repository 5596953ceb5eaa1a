package links

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// place is memory, and the device whose kernels fill, poison and check it.
type place struct {
	owner *gpu
	addr  uint64
}

// lane is one stream of copies.
type lane struct {
	gpu      *gpu // whose thread queues and whose stream runs it
	stream   int
	src, dst place
	bytes    int64
	move     func(s cuda.Stream) error // queues one copy
}

// series is what a lane gave.
type series struct {
	copies  int
	samples []time.Duration
	wrong   uint64
}

// How long a sample should take, so that its ends do not matter, and how many copies it has at most.
const (
	sampleTime     = 4 * time.Millisecond
	sampleTimeHost = 2 * time.Millisecond
	fewestCopies   = 4
	mostCopies     = 64
)

// prepare gives the lanes fresh data, and poisons where it goes.
func (l *lab) prepare(lanes []lane) error {
	l.seed++
	for i, x := range lanes {
		seed := l.laneSeed(i)
		err := l.do(x.src.owner, func() error { return x.src.owner.fill(x.src.addr, x.bytes, seed) })
		if err == nil {
			err = l.do(x.dst.owner, func() error { return x.dst.owner.poison(x.dst.addr, x.bytes) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) laneSeed(i int) uint64 { return l.seed*streams + uint64(i) }

// verify counts what did not arrive as it was prepared last.
func (l *lab) verify(lanes []lane, out []series) error {
	for i, x := range lanes {
		seed := l.laneSeed(i)
		err := l.do(x.dst.owner, func() (err error) {
			if l.spoil {
				if err := x.dst.owner.kernel["cp_corrupt"].Launch(1, 1, x.dst.owner.stream[0], x.dst.addr, 0, typeUint64); err != nil {
					return err
				}
			}
			out[i].wrong, err = x.dst.owner.check(x.dst.addr, x.bytes, seed)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// measure times lanes that run at once. copies 0 chooses how many are queued back to back from what a first sample takes. gated holds the streams until
// everything is queued, so that lanes begin together and queueing is not timed; it cannot be had where a copy is staged by the host. The last
// sample moves fresh data onto poison, and is what is checked.
func (l *lab) measure(lanes []lane, copies int, gated bool) ([]series, error) {
	if err := l.prepare(lanes); err != nil {
		return nil, err
	}
	// Not gated: what the driver loads or maps at first use may wait for running kernels, the gate among them.
	if _, err := l.sample(lanes, 1, false); err != nil {
		return nil, err
	}
	if copies == 0 {
		first, err := l.sample(lanes, 2, gated)
		if err != nil {
			return nil, err
		}
		copies = l.choose(first)
	}
	out := make([]series, len(lanes))
	for rep := range l.opts.Repetitions {
		if rep == l.opts.Repetitions-1 {
			if err := l.prepare(lanes); err != nil {
				return nil, err
			}
		}
		took, err := l.sample(lanes, copies, gated)
		if err != nil {
			return nil, err
		}
		for i := range lanes {
			out[i].copies, out[i].samples = copies, append(out[i].samples, took[i])
		}
	}
	return out, l.verify(lanes, out)
}

// choose makes a sample long enough. took is of two copies.
func (l *lab) choose(took []time.Duration) int {
	want, fewest := sampleTime, fewestCopies
	if cuda.IsHost() {
		want, fewest = sampleTimeHost, 1
	}
	longest := time.Duration(1)
	for _, t := range took {
		longest = max(longest, t)
	}
	n := math.Ceil(float64(want) / (float64(longest) / 2))
	return max(fewest, int(min(n, mostCopies)))
}

// sample queues copies on every lane, lets them go, and waits for them. It answers the time of each lane by the device's clock.
func (l *lab) sample(lanes []lane, copies int, gated bool) ([]time.Duration, error) {
	csrc.SetStop(uintptr(l.gate), false)
	errs := make([]error, len(lanes))
	var queued sync.WaitGroup
	for i, x := range lanes {
		queued.Go(func() { errs[i] = l.do(x.gpu, func() error { return l.queue(x, copies, gated) }) })
	}
	queued.Wait()
	csrc.SetStop(uintptr(l.gate), true)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(lanes))
	for i, x := range lanes {
		err := l.do(x.gpu, func() (err error) {
			if err := l.await(x.gpu.end[x.stream]); err != nil {
				return err
			}
			took[i], err = x.gpu.end[x.stream].Since(x.gpu.start[x.stream])
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

func (l *lab) queue(x lane, copies int, gated bool) error {
	s := x.gpu.stream[x.stream]
	if gated {
		if err := x.gpu.kernel["cp_busy"].Launch(1, 1, s, uint64(l.gate), uint64(gateFuse)); err != nil {
			return err
		}
	}
	if err := x.gpu.start[x.stream].Record(s); err != nil {
		return err
	}
	for range copies {
		if err := x.move(s); err != nil {
			return err
		}
	}
	return x.gpu.end[x.stream].Record(s)
}

// await polls, since a wait in the library has no limit.
func (l *lab) await(e cuda.Event) error {
	for until := time.Now().Add(l.opts.Deadline); ; {
		done, err := e.Done()
		if done || err != nil {
			return err
		}
		if time.Now().After(until) {
			return &TimeoutError{What: l.what, After: l.opts.Deadline}
		}
		time.Sleep(pollStep)
	}
}

// pinged are the results of a ping-pong between two devices.
type pinged struct {
	rounds  int
	samples []time.Duration // all timed rounds of one repetition
	wrong   uint64
}

const (
	pingWarm       = 16
	pingRounds     = 1000
	pingRoundsHost = 200
)

// ping times words that two kernels write into each other's memory. a begins. Both must map the other's memory.
func (l *lab) ping(a, b *gpu) (pinged, error) {
	out := pinged{rounds: pingRounds}
	if cuda.IsHost() {
		out.rounds = pingRoundsHost
	}
	fuse := min(l.opts.Deadline/2, gateFuse)
	for range l.opts.Repetitions {
		for _, g := range []*gpu{a, b} {
			clear := func() error { return errors.Join(cuda.Memset(g.small, 0, foundAt), cuda.Synchronize()) }
			if err := l.do(g, clear); err != nil {
				return out, err
			}
		}
		for _, side := range []struct {
			me, other *gpu
			first     uint64
		}{{b, a, 0}, {a, b, 1}} {
			me, mine := side.me, uint64(side.me.small)
			if l.deaf && side.first == 0 {
				mine += pingedAt / 2
			}
			err := l.do(me, func() error {
				return errors.Join(me.kernel["cp_link_ping"].Launch(1, 1, me.stream[0], mine, uint64(side.other.small), pingWarm, uint64(out.rounds), side.first, uint64(fuse),
					uint64(me.small.Add(pingedAt))), me.end[0].Record(me.stream[0]))
			})
			if err != nil {
				return out, err
			}
		}
		for _, g := range []*gpu{a, b} {
			got, err := l.pingResult(g)
			if err != nil {
				return out, err
			}
			if int(got.Rounds) < pingWarm+out.rounds {
				return out, fmt.Errorf("%s: %s: words stopped arriving after %d of %d rounds", g.about.ID, l.what, got.Rounds, pingWarm+out.rounds)
			}
			out.wrong += got.Wrong
			if g == a {
				out.samples = append(out.samples, time.Duration(got.NS))
			}
		}
	}
	return out, nil
}

func (l *lab) pingResult(g *gpu) (got csrc.LinkPinged, err error) {
	raw := make([]byte, binary.Size(got))
	err = l.do(g, func() error {
		if err := l.await(g.end[0]); err != nil {
			return err
		}
		return cuda.CopyOut(raw, g.small.Add(pingedAt))
	})
	if err == nil {
		err = binary.Read(bytes.NewReader(raw), binary.NativeEndian, &got)
	}
	return got, err
}
