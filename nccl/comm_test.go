package nccl_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// bufBytes is the size of a rank's buffers: room for every rank's part of the largest test.
const bufBytes = 4 << 20

// rank is one rank of a test's communicator, on a thread and a device of its own.
type rank struct {
	rank, world int
	comm        *nccl.Comm
	stream      cuda.Stream
	send, recv  cuda.DevicePtr
}

// world answers how many ranks a test can have: want, or as many as there are devices, two at least.
func world(t *testing.T, want int) int {
	t.Helper()
	devices(t, 2)
	have, err := cuda.DeviceCount()
	ok(t, err)
	return min(want, have)
}

// together runs body on a thread a rank and fails the test with what they return.
func together(t *testing.T, n int, body func(r *rank) error) {
	t.Helper()
	devices(t, n)
	id, err := nccl.NewUniqueID()
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all := &party{}
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- oneRank(ctx, id, &rank{rank: i, world: n}, all, body) }()
	}
	for i := range n {
		if err := <-errs; err != nil {
			t.Errorf("after %d of %d ranks: %v", i, n, err)
		}
	}
}

// party holds a test's communicators, so that a rank that fails ends those that wait for it.
type party struct {
	mu    sync.Mutex
	comms []*nccl.Comm
}

func (p *party) join(c *nccl.Comm) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.comms = append(p.comms, c)
}

func (p *party) abort() (errs error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.comms {
		errs = errors.Join(errs, c.Abort())
	}
	p.comms = nil
	return errs
}

func oneRank(ctx context.Context, id nccl.UniqueID, r *rank, all *party, body func(r *rank) error) error {
	th, err := cuda.NewThread(r.rank)
	if err != nil {
		return err
	}
	err = th.Do(ctx, func() error {
		err := r.open(id)
		if err == nil {
			all.join(r.comm)
			err = body(r)
		}
		if err != nil {
			err = errors.Join(fmt.Errorf("rank %d of %d: %w", r.rank, r.world, err), all.abort())
		}
		return errors.Join(err, r.close())
	})
	if ctx.Err() != nil {
		return err // the thread hangs
	}
	return errors.Join(err, th.Close(ctx))
}

func (r *rank) open(id nccl.UniqueID) error {
	var err1, err2, err3, err4 error
	r.comm, err1 = nccl.InitRank(id, r.world, r.rank, nil)
	r.stream, err2 = cuda.NewStream()
	r.send, err3 = cuda.Malloc(bufBytes)
	r.recv, err4 = cuda.Malloc(bufBytes)
	return errors.Join(err1, err2, err3, err4)
}

func (r *rank) close() error {
	errs := []error{cuda.Synchronize(), cuda.Free(r.send), cuda.Free(r.recv), r.stream.Destroy()}
	if r.comm != nil {
		errs = append(errs, r.comm.Destroy())
	}
	return errors.Join(errs...)
}

// encode writes values as elements of type t.
func encode(t nccl.DataType, v []float64) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		if t == nccl.Float32 {
			b = binary.NativeEndian.AppendUint32(b, math.Float32bits(float32(x)))
		} else {
			b = binary.NativeEndian.AppendUint32(b, uint32(int32(x)))
		}
	}
	return b
}

func decode(t nccl.DataType, b []byte) []float64 {
	v := make([]float64, 0, len(b)/4)
	for ; len(b) > 0; b = b[4:] {
		bits := binary.NativeEndian.Uint32(b)
		if t == nccl.Float32 {
			v = append(v, float64(math.Float32frombits(bits)))
		} else {
			v = append(v, float64(int32(bits)))
		}
	}
	return v
}

// input is what rank r holds: small whole numbers, so that every order of a reduction gives the same.
func input(r, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64((r+2)*(i%7+1) - 9*(i%2))
	}
	return v
}

// reduced is what all ranks' inputs give.
func reduced(op nccl.RedOp, dt nccl.DataType, world, n int) []float64 {
	out := input(0, n)
	for r := 1; r < world; r++ {
		for i, x := range input(r, n) {
			switch op {
			case nccl.Prod:
				out[i] *= x
			case nccl.Max:
				out[i] = max(out[i], x)
			case nccl.Min:
				out[i] = min(out[i], x)
			default:
				out[i] += x
			}
		}
	}
	for i := range out {
		if op == nccl.Avg {
			if out[i] /= float64(world); dt != nccl.Float32 {
				out[i] = math.Trunc(out[i])
			}
		}
	}
	return out
}

// near compares with a tolerance that matters only where an average is not whole.
func near(got, want []float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	for i := range want {
		if d := math.Abs(got[i] - want[i]); d > 1e-6*math.Abs(want[i]) {
			return fmt.Errorf("element %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
	return nil
}

// op is one collective as a test runs it: recv holds after what the test wants there, nil for a rank that receives nothing.
type op struct {
	name string
	call func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error
	in   func(r *rank, n int) []float64                  // this rank's input
	want func(r *rank, n int, t nccl.DataType) []float64 // this rank's result
	// Places of the input and of the result in one buffer, in elements; nil: the operation has no form in place.
	inPlace func(r *rank, n int) (send, recv int)
}

func own(r *rank, n int) []float64  { return input(r.rank, n) }
func wide(r *rank, n int) []float64 { return input(r.rank, n*r.world) }

// part is the share that rank r has of v.
func part(v []float64, r, n int) []float64 { return v[r*n : (r+1)*n] }

func gathered(world, n int) (out []float64) {
	for r := range world {
		out = append(out, input(r, n)...)
	}
	return out
}

// onlyAt limits a result to one rank.
func onlyAt(root int, f func(r *rank, n int, t nccl.DataType) []float64) func(r *rank, n int, t nccl.DataType) []float64 {
	return func(r *rank, n int, t nccl.DataType) []float64 {
		if r.rank != root {
			return nil
		}
		return f(r, n, t)
	}
}

const root = 1

func reductions() (out []op) {
	for _, o := range nccl.RedOps() {
		sum := func(r *rank, n int, t nccl.DataType) []float64 { return reduced(o, t, r.world, n) }
		out = append(out,
			op{"AllReduce " + o.String(), func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
				return r.comm.AllReduce(send, recv, nccl.Count(n), t, o, r.stream)
			}, own, sum, func(*rank, int) (int, int) { return 0, 0 }},
			op{"Reduce " + o.String(), func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
				return r.comm.Reduce(send, recv, nccl.Count(n), t, o, root, r.stream)
			}, own, onlyAt(root, sum), func(*rank, int) (int, int) { return 0, 0 }},
			op{"ReduceScatter " + o.String(), func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
				return r.comm.ReduceScatter(send, recv, nccl.Count(n), t, o, r.stream)
			}, wide, func(r *rank, n int, t nccl.DataType) []float64 {
				return part(reduced(o, t, r.world, n*r.world), r.rank, n)
			}, func(r *rank, n int) (int, int) { return 0, r.rank * n }})
	}
	return out
}

func moves() []op {
	return []op{
		{"Broadcast", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return r.comm.Broadcast(send, recv, nccl.Count(n), t, root, r.stream)
		}, own, func(_ *rank, n int, _ nccl.DataType) []float64 { return input(root, n) }, func(*rank, int) (int, int) { return 0, 0 }},
		{"AllGather", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return r.comm.AllGather(send, recv, nccl.Count(n), t, r.stream)
		}, own, func(r *rank, n int, _ nccl.DataType) []float64 { return gathered(r.world, n) }, func(r *rank, n int) (int, int) { return r.rank * n, 0 }},
		{"AlltoAll", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return r.comm.AlltoAll(send, recv, nccl.Count(n), t, r.stream)
		}, wide, func(r *rank, n int, _ nccl.DataType) (out []float64) {
			for from := range r.world {
				out = append(out, part(input(from, n*r.world), r.rank, n)...)
			}
			return out
		}, nil},
		{"Gather", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return r.comm.Gather(send, recv, nccl.Count(n), t, root, r.stream)
		}, own, onlyAt(root, func(r *rank, n int, _ nccl.DataType) []float64 { return gathered(r.world, n) }), nil},
		{"Scatter", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return r.comm.Scatter(send, recv, nccl.Count(n), t, root, r.stream)
		}, wide, func(r *rank, n int, _ nccl.DataType) []float64 {
			return part(input(root, n*r.world), r.rank, n)
		}, nil},
		{"Send and Recv around", func(r *rank, send, recv cuda.DevicePtr, n int, t nccl.DataType) error {
			return nccl.Group(func() error {
				return errors.Join(
					r.comm.Send(send, nccl.Count(n), t, (r.rank+1)%r.world, r.stream),
					r.comm.Recv(recv, nccl.Count(n), t, (r.rank+r.world-1)%r.world, r.stream))
			})
		}, own, func(r *rank, n int, _ nccl.DataType) []float64 { return input((r.rank+r.world-1)%r.world, n) }, nil},
	}
}

// run runs o once and compares.
func (r *rank) run(o op, n int, t nccl.DataType, inPlace bool) error {
	send, recv, at := r.send, r.recv, 0
	if inPlace {
		s, d := o.inPlace(r, n)
		send, recv, at = r.recv.Add(4*int64(s)), r.recv.Add(4*int64(d)), d
	}
	err := errors.Join(cuda.Memset(r.recv, 0xee, bufBytes), cuda.CopyIn(send, encode(t, o.in(r, n))), cuda.Synchronize(), o.call(r, send, recv, n, t), r.stream.Synchronize())
	want := o.want(r, n, t)
	if err != nil || want == nil {
		return err
	}
	got := make([]byte, 4*(len(want)+1))
	if err := cuda.CopyOut(got, recv); err != nil {
		return err
	}
	if beyond := got[4*len(want):]; at == 0 && !inPlace && !slices.Equal(beyond, []byte{0xee, 0xee, 0xee, 0xee}) {
		return fmt.Errorf("the element behind the result was written: % x", beyond)
	}
	return near(decode(t, got[:4*len(want)]), want)
}

// TestCollectives compares every collective between threads of one process with what plain Go computes.
func TestCollectives(t *testing.T) {
	together(t, world(t, 3), func(r *rank) error {
		for _, o := range append(reductions(), moves()...) {
			name, _, _ := strings.Cut(o.name, " ")
			if !nccl.Has("nccl" + name) {
				var e *csrc.MissingSymbolError
				if err := o.call(r, r.send, r.recv, 1, nccl.Int32); !errors.As(err, &e) {
					return fmt.Errorf("%s, which the library lacks: %w", o.name, err)
				}
				continue
			}
			if err := r.runAll(o); err != nil {
				return fmt.Errorf("%s of %w", o.name, err)
			}
		}
		return nil
	})
}

func (r *rank) runAll(o op) error {
	for _, dt := range []nccl.DataType{nccl.Float32, nccl.Int32} {
		for _, count := range []int{1, 7, 40001} {
			if err := r.run(o, count, dt, false); err != nil {
				return fmt.Errorf("%d %v: %w", count, dt, err)
			}
			if o.inPlace == nil {
				continue
			}
			if err := r.run(o, count, dt, true); err != nil {
				return fmt.Errorf("%d %v in place: %w", count, dt, err)
			}
		}
	}
	return nil
}

// sum runs the plainest operation; most tests want to know whether it still works.
func (r *rank) sum() error { return r.run(reductions()[0], 1000, nccl.Float32, false) }

func TestComm(t *testing.T) {
	together(t, world(t, 3), func(r *rank) error {
		size, err1 := r.comm.Size()
		me, err2 := r.comm.Rank()
		device, err3 := r.comm.Device()
		if size != r.world || me != r.rank || device != r.rank || r.comm.Handle() == 0 {
			return fmt.Errorf("rank %d of %d on device %d", me, size, device)
		}
		if n := nccl.Live(); n < 1 || n > int64(r.world) {
			return fmt.Errorf("%d communicators are alive", n)
		}
		return errors.Join(err1, err2, err3, r.comm.AsyncError(), r.sum(), r.comm.AsyncError())
	})
}

// TestOneRank works with a single device.
func TestOneRank(t *testing.T) {
	together(t, 1, func(r *rank) error {
		return errors.Join(r.sum(), r.run(moves()[1], 1000, nccl.Int32, false))
	})
}

// TestEnd: a communicator ends once.
func TestEnd(t *testing.T) {
	for name, c := range map[string]struct{ first, then func(c *nccl.Comm) error }{
		"destroy twice":       {(*nccl.Comm).Destroy, (*nccl.Comm).Destroy},
		"abort twice":         {(*nccl.Comm).Abort, (*nccl.Comm).Abort},
		"abort then destroy":  {(*nccl.Comm).Abort, (*nccl.Comm).Destroy},
		"destroy then abort":  {(*nccl.Comm).Destroy, (*nccl.Comm).Abort},
		"finalize in between": {func(c *nccl.Comm) error { return errors.Join(c.Finalize(), c.Destroy()) }, (*nccl.Comm).Destroy},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, 1, func(r *rank) error {
				comm := r.comm
				r.comm = nil
				if err := comm.AsyncError(); err != nil {
					return err
				}
				if err := c.first(comm); err != nil {
					return err
				}
				if err := c.then(comm); err == nil || !strings.Contains(err.Error(), "already destroyed or aborted") {
					return fmt.Errorf("the second end gives %w", err)
				}
				if n := nccl.Live(); n != 0 {
					return fmt.Errorf("%d communicators are alive", n)
				}
				return nil
			})
		})
	}
}

// TestInitAll drives the communicators of several devices from one thread, in groups.
func TestInitAll(t *testing.T) {
	n := world(t, 3)
	th, err := cuda.NewThread(0)
	ok(t, err)
	ok(t, th.Do(soon(t), func() error {
		list := make([]int, n)
		for i := range list {
			list[i] = n - 1 - i // the result is in the list's order
		}
		comms, err := nccl.InitAll(list)
		if err != nil {
			return err
		}
		ranks := make([]*rank, n)
		for i, c := range comms {
			ranks[i] = &rank{rank: i, world: n, comm: c}
			d, err1 := c.Device()
			me, err2 := c.Rank()
			if d != list[i] || me != i {
				return fmt.Errorf("communicator %d is rank %d on device %d: %w", i, me, d, errors.Join(err1, err2))
			}
			if err := ranks[i].buffers(list[i]); err != nil {
				return err
			}
		}
		err = nccl.Group(func() error {
			return each(ranks, func(r *rank) error {
				return r.comm.AllReduce(r.send, r.recv, 1000, nccl.Int32, nccl.Sum, r.stream)
			})
		})
		return errors.Join(err, each(ranks, func(r *rank) error {
			got := make([]byte, 4000)
			err := errors.Join(cuda.SetDevice(list[r.rank]), r.stream.Synchronize(), cuda.CopyOut(got, r.recv))
			return errors.Join(err, near(decode(nccl.Int32, got), reduced(nccl.Sum, nccl.Int32, n, 1000)), r.close())
		}))
	}))
	ok(t, th.Close(soon(t)))
	_, err = nccl.InitAll([]int{0, 1000})
	if err == nil {
		t.Error("a communicator on a device that does not exist")
	}
}

func (r *rank) buffers(device int) error {
	var err1, err2, err3 error
	if err := cuda.SetDevice(device); err != nil {
		return err
	}
	r.stream, err1 = cuda.NewStream()
	r.send, err2 = cuda.Malloc(bufBytes)
	r.recv, err3 = cuda.Malloc(bufBytes)
	return errors.Join(err1, err2, err3, cuda.CopyIn(r.send, encode(nccl.Int32, input(r.rank, 1000))), cuda.Synchronize())
}

func each(ranks []*rank, f func(r *rank) error) error {
	for _, r := range ranks {
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// TestGroupedInit makes the communicators of one thread in a group: their handles are there when it has ended.
func TestGroupedInit(t *testing.T) {
	n := world(t, 2)
	id, err := nccl.NewUniqueID()
	ok(t, err)
	th, err := cuda.NewThread(0)
	ok(t, err)
	comms := make([]*nccl.Comm, n)
	ok(t, th.Do(soon(t), func() error {
		return nccl.Group(func() (err error) {
			for i := range comms {
				if err = cuda.SetDevice(i); err != nil {
					return err
				}
				if comms[i], err = nccl.InitRank(id, n, i, nil); err != nil {
					return err
				}
			}
			return nil
		})
	}))
	for i, c := range comms {
		me, err := c.Rank()
		if me != i || err != nil || c.Handle() == 0 {
			t.Errorf("communicator %d is rank %d: %v", i, me, err)
		}
	}
	ok(t, th.Do(soon(t), func() error {
		return nccl.Group(func() error { return errors.Join(comms[0].Finalize(), comms[1].Finalize()) })
	}))
	for _, c := range comms {
		ok(t, c.Destroy())
	}
	ok(t, th.Close(soon(t)))
}

// TestSplit makes a communicator of the same ranks in the opposite order, and one without rank 0.
func TestSplit(t *testing.T) {
	together(t, world(t, 4), func(r *rank) error {
		c, err := r.comm.Split(7, -r.rank, nil)
		if err != nil {
			return err
		}
		size, err1 := c.Size()
		me, err2 := c.Rank()
		if size != r.world || me != r.world-1-r.rank {
			return fmt.Errorf("rank %d of %d after the split", me, size)
		}
		all := r.comm
		r.comm, r.rank = c, me
		err3 := r.sum()
		r.comm, r.rank = all, r.world-1-me
		color := 1
		if r.rank == 0 {
			color = nccl.NoColor
		}
		some, err4 := all.Split(color, r.rank, nccl.NewConfig())
		if (some == nil) != (r.rank == 0) {
			return fmt.Errorf("split without rank 0: %v, %w", some, err4)
		}
		var err5 error
		if some != nil {
			if size, err5 = some.Size(); size != r.world-1 {
				return fmt.Errorf("%d ranks without rank 0", size)
			}
			err5 = errors.Join(err5, some.Destroy())
		}
		return errors.Join(err1, err2, err3, err4, err5, c.Destroy(), r.sum())
	})
}

// TestGroupFails: whatever happens in a group, the thread's next operation is not in it.
func TestGroupFails(t *testing.T) {
	mine := errors.New("mine")
	together(t, world(t, 2), func(r *rank) error {
		for name, c := range map[string]struct {
			f    func() error
			want error
		}{
			"own error": {func() error { return mine }, mine},
			"bad call": {func() error {
				return r.comm.AllReduce(r.send, r.recv, 1, nccl.DataType(99), nccl.Sum, r.stream)
			}, nccl.ErrInvalidArgument},
			"inner group": {func() error { return nccl.Group(func() error { return mine }) }, mine},
		} {
			if err := nccl.Group(c.f); !errors.Is(err, c.want) {
				return fmt.Errorf("%s: got %w", name, err)
			}
			// If the group were still open, this would not start.
			if err := r.sum(); err != nil {
				return fmt.Errorf("after %s: %w", name, err)
			}
		}
		return nil
	})
}

// TestArguments: what the library refuses is a typed error, and the communicator works on.
func TestArguments(t *testing.T) {
	together(t, world(t, 2), func(r *rank) error {
		for name, err := range map[string]error{
			"data type": r.comm.AllReduce(r.send, r.recv, 1, nccl.DataType(99), nccl.Sum, r.stream),
			"operator":  r.comm.AllReduce(r.send, r.recv, 1, nccl.Int32, nccl.RedOp(1000), r.stream),
			"root":      r.comm.Broadcast(r.send, r.recv, 1, nccl.Int32, r.world, r.stream),
			"peer":      r.comm.Send(r.send, 1, nccl.Int32, r.world, r.stream),
		} {
			var e *nccl.Error
			if !errors.Is(err, nccl.ErrInvalidArgument) || !errors.As(err, &e) || e.Text == "" {
				return fmt.Errorf("%s: got %w", name, err)
			}
		}
		return r.sum()
	})
}

func TestInitErrors(t *testing.T) {
	devices(t, 1)
	id, err := nccl.NewUniqueID()
	ok(t, err)
	other, err := nccl.NewUniqueID()
	ok(t, err)
	if id == other || id == (nccl.UniqueID{}) {
		t.Error("two ids are alike, or nothing")
	}
	for name, c := range map[string]struct{ world, rank int }{"rank beyond": {2, 2}, "negative rank": {2, -1}, "nobody": {0, 0}} {
		if c, err := nccl.InitRank(id, c.world, c.rank, nil); c != nil || !errors.Is(err, nccl.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
	if n := nccl.Live(); n != 0 {
		t.Errorf("%d communicators are alive", n)
	}
}

// TestPreMulSum multiplies by a power of two before it adds.
func TestPreMulSum(t *testing.T) {
	together(t, world(t, 3), func(r *rank) error {
		const n = 1000
		var half [8]byte
		binary.NativeEndian.PutUint32(half[:], math.Float32bits(0.5))
		o, err := r.comm.NewPreMulSum(half, nccl.Float32)
		if err != nil {
			return err
		}
		got := make([]byte, 4*n)
		want := reduced(nccl.Sum, nccl.Float32, r.world, n)
		for i := range want {
			want[i] /= 2
		}
		err = errors.Join(
			cuda.CopyIn(r.send, encode(nccl.Float32, input(r.rank, n))), cuda.Synchronize(),
			r.comm.AllReduce(r.send, r.recv, n, nccl.Float32, o, r.stream), r.stream.Synchronize(), cuda.CopyOut(got, r.recv),
			r.comm.DestroyOp(o))
		if again := r.comm.DestroyOp(o); !errors.Is(again, nccl.ErrInvalidArgument) {
			return fmt.Errorf("destroying an operator twice gives %w", again)
		}
		return errors.Join(err, near(decode(nccl.Float32, got), want))
	})
}

// TestMemAlloc registers NCCL's own memory in both ways and uses it.
func TestMemAlloc(t *testing.T) {
	if _, err := nccl.MemAlloc(-1); err == nil {
		t.Error("negative size")
	}
	together(t, world(t, 2), func(r *rank) error {
		if nccl.LibraryVersion() < nccl.Since219 {
			return nil // the functions are missing; TestOldLibrary has that
		}
		p, err := nccl.MemAlloc(bufBytes)
		if err != nil {
			return err
		}
		reg, err := r.comm.Register(p, bufBytes)
		if err != nil {
			return err
		}
		plain := r.recv
		r.recv = p
		err = errors.Join(r.sum(), reg.Deregister(), r.window(p), r.sum())
		r.recv = plain
		return errors.Join(err, nccl.MemFree(p))
	})
}

// window registers p as a window, uses it and ends that.
func (r *rank) window(p cuda.DevicePtr) error {
	if !nccl.Has("ncclCommWindowRegister") {
		return nil
	}
	w, err := r.comm.RegisterWindow(p, bufBytes, cuda.IsHost()) // symmetric memory may need what a virtual machine's GPU lacks
	if err != nil {
		return err
	}
	return errors.Join(r.sum(), w.Deregister())
}

// TestGraph records a collective and launches it twice.
func TestGraph(t *testing.T) {
	together(t, world(t, 2), func(r *rank) error {
		const n = 1000
		if err := r.sum(); err != nil { // connects
			return err
		}
		err := errors.Join(cuda.Memset(r.recv, 0, bufBytes), cuda.Synchronize(), r.stream.BeginCapture(cuda.CaptureThreadLocal))
		err = errors.Join(err, r.comm.AllReduce(r.send, r.recv, n, nccl.Int32, nccl.Sum, r.stream))
		g, end := r.stream.EndCapture()
		if err = errors.Join(err, end); err != nil {
			return err
		}
		x, err := g.Instantiate()
		got := make([]byte, 4*n)
		err = errors.Join(err, cuda.CopyOut(got, r.recv), near(decode(nccl.Int32, got), make([]float64, n)))
		for i := range 2 {
			in := input(r.rank+i, n)
			want := make([]float64, n)
			for k := range r.world {
				for j, v := range input(k+i, n) {
					want[j] += v
				}
			}
			err = errors.Join(err, cuda.CopyIn(r.send, encode(nccl.Int32, in)), cuda.Synchronize(), x.Launch(r.stream), r.stream.Synchronize(),
				cuda.CopyOut(got, r.recv), near(decode(nccl.Int32, got), want))
		}
		return errors.Join(err, x.Destroy(), g.Destroy())
	})
}

// TestNonBlocking initialises without waiting: AsyncError tells when it is done.
func TestNonBlocking(t *testing.T) {
	n := world(t, 2)
	id, err := nccl.NewUniqueID()
	ok(t, err)
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- nonBlocking(id, n, i) }()
	}
	for range n {
		ok(t, <-errs)
	}
}

func nonBlocking(id nccl.UniqueID, world, rank int) error {
	th, err := cuda.NewThread(rank)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = th.Do(ctx, func() error {
		c := nccl.NewConfig()
		if err := c.SetBlocking(false); err != nil {
			return err
		}
		comm, err := nccl.InitRank(id, world, rank, c)
		if err != nil {
			return err
		}
		if err := settled(ctx, comm); err != nil {
			return err
		}
		if size, err := comm.Size(); size != world || err != nil {
			return fmt.Errorf("%d ranks: %w", size, err)
		}
		return errors.Join(comm.Finalize(), settled(ctx, comm), comm.Destroy())
	})
	return errors.Join(err, th.Close(ctx))
}

func settled(ctx context.Context, c *nccl.Comm) error {
	for ctx.Err() == nil {
		if err := c.AsyncError(); !errors.Is(err, nccl.ErrInProgress) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// hanging queues a sum in which rank 1 does not take part, and gives the communicator to the caller.
func hanging(r *rank) (*nccl.Comm, error) {
	if err := r.sum(); err != nil { // connects, for that blocks in the call
		return nil, err
	}
	c := r.comm
	r.comm = nil
	if r.rank != 0 {
		return c, nil
	}
	return c, c.AllReduce(r.send, r.recv, 1000, nccl.Float32, nccl.Sum, r.stream)
}

// TestAbort ends an operation that hangs from another goroutine; the stream is free then.
func TestAbort(t *testing.T) {
	queued, over := make(chan *nccl.Comm), make(chan error, 1)
	go func() {
		c := <-queued
		time.Sleep(100 * time.Millisecond)
		over <- c.Abort()
	}()
	together(t, world(t, 2), func(r *rank) error {
		c, err := hanging(r)
		if err != nil {
			return err
		}
		if r.rank != 0 {
			return errors.Join(<-over, c.Abort())
		}
		if done, err := r.stream.Done(); done || err != nil {
			return fmt.Errorf("the operation without rank 1 is done: %v, %w", done, err)
		}
		queued <- c
		return r.stream.Synchronize()
	})
}

// TestPeerDies: the death of a peer shows in AsyncError.
func TestPeerDies(t *testing.T) {
	hostOnly(t, "between GPUs of one process nothing notices it")
	queued, over := make(chan bool), make(chan bool)
	together(t, 2, func(r *rank) error {
		c, err := hanging(r)
		if err != nil {
			return err
		}
		if r.rank == 1 {
			<-queued
			defer close(over)
			return c.Abort()
		}
		if err := c.AsyncError(); err != nil {
			return fmt.Errorf("before: %w", err)
		}
		close(queued)
		<-over
		for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
			err = c.AsyncError()
		}
		var e *nccl.Error
		if !errors.Is(err, nccl.ErrRemote) || !errors.As(err, &e) || e.Func != "asynchronous error" {
			return errors.Join(fmt.Errorf("got %w, want ncclRemoteError", err), c.Abort())
		}
		return errors.Join(c.Abort(), r.stream.Synchronize())
	})
}

func TestLibrary(t *testing.T) {
	devices(t, 1)
	l, v := nccl.Library(), nccl.LibraryVersion()
	if !strings.HasPrefix(l.Path, "/") || v < 21800 {
		t.Errorf("%+v, version %v", l, v)
	}
	if host := l.Version == "host engine"; host == native() {
		t.Errorf("%+v", l)
	}
}

// TestNothingAfterTheEnd: an ended communicator refuses every call by itself; the library would look into freed memory.
func TestNothingAfterTheEnd(t *testing.T) {
	for _, end := range []string{"destroy", "abort"} {
		together(t, world(t, 2), func(r *rank) error {
			c, err := r.comm.Split(0, r.rank, nil)
			if err != nil {
				return err
			}
			buf, err := cuda.Malloc(1 << 12)
			if err != nil {
				return err
			}
			reg, err := c.Register(buf, 1<<12)
			if err != nil {
				return err
			}
			op, err := c.NewPreMulSum([8]byte{}, nccl.Float32)
			if err != nil {
				return err
			}
			if err := errors.Join(c.DestroyOp(op), reg.Deregister()); err != nil {
				return err
			}
			if end == "destroy" {
				err = c.Destroy()
			} else {
				err = c.Abort()
			}
			if err != nil {
				return err
			}
			var none cuda.Stream
			_, sizeErr := c.Size()
			_, rankErr := c.Rank()
			_, deviceErr := c.Device()
			_, splitErr := c.Split(0, 0, nil)
			_, opErr := c.NewPreMulSum([8]byte{}, nccl.Float32)
			_, regErr := c.Register(buf, 1<<12)
			_, winErr := c.RegisterWindow(buf, 1<<12, false)
			for name, err := range map[string]error{
				"all_reduce": c.AllReduce(buf, buf, 1, nccl.Float32, nccl.Sum, none), "broadcast": c.Broadcast(buf, buf, 1, nccl.Float32, 0, none),
				"reduce": c.Reduce(buf, buf, 1, nccl.Float32, nccl.Sum, 0, none), "all_gather": c.AllGather(buf, buf, 1, nccl.Float32, none),
				"reduce_scatter": c.ReduceScatter(buf, buf, 1, nccl.Float32, nccl.Sum, none), "send": c.Send(buf, 1, nccl.Float32, 0, none),
				"recv": c.Recv(buf, 1, nccl.Float32, 0, none), "alltoall": c.AlltoAll(buf, buf, 1, nccl.Float32, none),
				"gather": c.Gather(buf, buf, 1, nccl.Float32, 0, none), "scatter": c.Scatter(buf, buf, 1, nccl.Float32, 0, none),
				"size": sizeErr, "rank": rankErr, "device": deviceErr, "split": splitErr, "new op": opErr, "destroy op": c.DestroyOp(op),
				"register": regErr, "deregister": reg.Deregister(), "window": winErr, "asynchronous error": c.AsyncError(),
				"finalize": c.Finalize(), "destroy": c.Destroy(), "abort": c.Abort(),
			} {
				if !errors.Is(err, nccl.ErrGone) {
					return fmt.Errorf("%s after %s: %v", name, end, err)
				}
			}
			return cuda.Free(buf)
		})
	}
}
