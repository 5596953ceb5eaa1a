package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// Which rank a fault is planted on: the highest that has a result, or that gives data.
func TestVictim(t *testing.T) {
	for _, c := range []struct {
		coll           string
		world, root    int
		giving, result int
		traffic        Matrix
	}{
		{"all_reduce", 4, 0, 3, 3, nil},
		{"all_gather", 4, 0, 3, 3, nil},
		{"reduce_scatter", 4, 0, 3, 3, nil},
		{"broadcast", 4, 1, 1, 3, nil},
		{"reduce", 4, 1, 3, 1, nil},
		{"gather", 4, 1, 3, 1, nil},
		{"scatter", 4, 1, 1, 3, nil},
		{"alltoall", 4, 0, 3, 3, nil},
		{"alltoallv", 4, 0, 3, 3, nil},
		{"alltoallv", 4, 0, 2, 1, Matrix{{0, 99, 0, 0}, {0, 0, 0, 0}, {99, 0, 0, 0}, {0, 0, 0, 0}}},
		{"sendrecv", 4, 0, 3, 3, nil},
		{"hypercube", 4, 0, 3, 3, nil},
		{"pairwise", 5, 0, 4, 4, nil},
		{"bisection", 4, 0, 3, 3, nil},
		{"bisection", 5, 0, 3, 3, nil}, // rank 4 rests
		{"pingpong", 4, 1, 1, 2, nil},
		{"pingpong", 4, 3, 3, 3, nil}, // 3 and 0 play
		{"all_reduce", 1, 0, 0, 0, nil},
	} {
		coll, err := findCollective(c.coll)
		if err != nil {
			t.Fatal(err)
		}
		p := goodPlan()
		p.World, p.Traffic = c.world, c.traffic
		tk := &task{plan: &p, step: step{cell: cell{coll: coll, dtype: nccl.Float32, root: c.root}, ask: 4096}}
		if giving, has := tk.victim(c.world, true), tk.victim(c.world, false); giving != c.giving || has != c.result {
			t.Errorf("%s on %d ranks, root %d: rank %d gives and %d has a result, want %d and %d", c.coll, c.world, c.root, giving, has, c.giving, c.result)
		}
	}
	p := goodPlan()
	p.Traffic = Matrix{{0, 0}, {0, 0}}
	tk := &task{plan: &p, step: step{cell: cell{coll: &allToAllV, dtype: nccl.Float32}, ask: 64}}
	if v := tk.victim(2, true); v != -1 {
		t.Errorf("nobody has anything to give, and rank %d is chosen", v)
	}
}

// value is an element as a number: floats exactly, integers as they are.
func value(t nccl.DataType, b uint64) (f float64, i int64, u uint64, kind byte) {
	switch t {
	case nccl.Int8:
		return 0, int64(int8(b)), 0, 'i'
	case nccl.Int32:
		return 0, int64(int32(b)), 0, 'i'
	case nccl.Int64:
		return 0, int64(b), 0, 'i'
	case nccl.Uint8, nccl.Uint32, nccl.Uint64:
		return 0, 0, b, 'u'
	case nccl.Float32:
		return float64(math.Float32frombits(uint32(b))), 0, 0, 'f'
	case nccl.Float64:
		return math.Float64frombits(b), 0, 0, 'f'
	case nccl.Bfloat16:
		return float64(math.Float32frombits(uint32(b) << 16)), 0, 0, 'f'
	case nccl.Float16:
		return smallFloat(b, 5, 10, true), 0, 0, 'f'
	case nccl.Float8E5M2:
		return smallFloat(b, 5, 2, true), 0, 0, 'f'
	}
	return smallFloat(b, 4, 3, false), 0, 0, 'f'
}

type number interface{ ~float64 | ~int64 | ~uint64 }

func combine[T number](op nccl.RedOp, a, b T) T {
	switch op {
	case nccl.Prod:
		return a * b
	case nccl.Max:
		return max(a, b)
	case nccl.Min:
		return min(a, b)
	}
	return a + b // sum, and what avg and mulsum do before and after their factors
}

// Reducing with the neutral element changes nothing, for the inputs that checks are made with and for the extremes of each type.
func TestNeutral(t *testing.T) {
	for _, d := range nccl.DataTypes() {
		for _, op := range append(nccl.RedOps(), mulSum) {
			bits := []uint64{0, 1, 1<<(8*d.Size()-1) - 1, 1 << (8*d.Size() - 1), ^uint64(0) >> (64 - 8*d.Size())}
			for rank := range 3 {
				for i := range uint64(200) {
					bits = append(bits, csrc.VerifyInputBits(int(d), int(op), rank, 3, 5, i))
				}
			}
			n := neutral(op, d)
			if n > ^uint64(0)>>(64-8*d.Size()) {
				t.Errorf("%s %s: %#x has more bits than the type", opName(op), d, n)
			}
			nf, ni, nu, kind := value(d, n)
			if math.IsNaN(nf) || math.IsInf(nf, 0) {
				t.Errorf("%s %s: %g", opName(op), d, nf)
			}
			for _, b := range bits {
				f, i, u, _ := value(d, b)
				switch kind {
				case 'i':
					if got := combine(op, ni, i); got != i {
						t.Errorf("%s %s: %d with %d is %d", opName(op), d, i, ni, got)
					}
				case 'u':
					if got := combine(op, nu, u); got != u {
						t.Errorf("%s %s: %d with %d is %d", opName(op), d, u, nu, got)
					}
				default:
					if got := combine(op, nf, f); got != f && !math.IsNaN(f) && !math.IsInf(f, 0) {
						t.Errorf("%s %s: %g with %g is %g", opName(op), d, f, nf, got)
					}
				}
			}
		}
	}
}

// A pattern longer than what is copied in at once.
func TestRepeat(t *testing.T) {
	engine, _ := testEngine(t, 1)
	if err := UseEngine(engine, "", "", 1); err != nil {
		t.Fatal(err)
	}
	thread, err := cuda.NewThread(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := thread.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, size := range []int64{1, 2, 4, 8} {
		for _, count := range []int64{0, 1, 7, 1<<16 - 1, 1 << 16, 1<<16 + 1, 3<<16 + 5} {
			err := thread.Do(t.Context(), func() (err error) {
				p, err := cuda.Malloc((count + 1) * size)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, cuda.Free(p)) }()
				got := make([]byte, (count+1)*size)
				l := &lane{}
				const bits = 0x8877665544332211
				if err := errors.Join(cuda.CopyIn(p, got), l.repeat(p, bits, size, count), l.stream.Synchronize(), cuda.CopyOut(got, p)); err != nil {
					return err
				}
				var one [8]byte
				binary.LittleEndian.PutUint64(one[:], bits)
				for i, b := range got {
					want := one[int64(i)%size]
					if int64(i) >= count*size {
						want = 0
					}
					if b != want {
						return fmt.Errorf("byte %d is %#x, want %#x", i, b, want)
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("%d elements of %d bytes: %v", count, size, err)
			}
		}
	}
}

// With all contributions but one made neutral, or one not given at all, checks see it wherever it is: every operator, in all placements.
func TestInjectedDrop(t *testing.T) {
	w := newCouple(t, PlaceGroup, 3)
	p := &w.sweep.Plan
	if p.World < 2 {
		t.Skip("one GPU")
	}
	p.Inject.Drop = true
	p.Ops, p.Types, p.MinBytes, p.MaxBytes, p.Iters = Ops(), []string{"int8", "half"}, 1<<17, 1<<17, 1
	w.run(t, t.Context())
	w.outcome(t, "wrong data", ExitWrongData)
	if len(w.result.Rows) != 6*2 {
		t.Errorf("%d rows", len(w.result.Rows))
	}
	for _, r := range w.result.Rows {
		for _, h := range []*result.Half{r.OutOfPlace, r.InPlace} {
			if len(h.Faults) != p.World {
				t.Errorf("%s %s: %d faults, want one on each rank", r.Type, r.Op, len(h.Faults))
			}
			for _, f := range h.Faults {
				if f.Blamed == nil || *f.Blamed != p.World-1 || f.Kind != result.FaultMissing {
					t.Errorf("%s %s: %s, rank %v is blamed: %s", r.Type, r.Op, f.Kind, f.Blamed, f.Analysis)
				}
			}
		}
	}
}
