package watch

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestNonsense: events in no order that makes sense, of ranks and communicators that do not exist, with very few operations watched one by one.
// The machine must not panic, must keep its books straight and must not do anything twice.
func TestNonsense(t *testing.T) {
	ended := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := Config{Rank: rng.IntN(3), World: 3, Mode: Mode(rng.IntN(4)), Op: time.Second, Init: 2 * time.Second, Heartbeat: time.Second,
			DumpWait: time.Second, AbortWait: time.Second, MaxOpen: 1 + rng.IntN(6)}
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		b := books{t: t, m: m}
		at := time.Duration(0)
		for id := uint64(1); id < 200; id++ {
			at += time.Duration(rng.IntN(100)-10) * time.Millisecond
			b.step(at, nonsense(rng, id))
			if t.Failed() {
				t.Fatalf("seed %d, event %d", seed, id)
			}
		}
		if m.Stage() == Ended {
			ended++
		}
	}
	if ended < 100 {
		t.Errorf("only %d of 2000 runs came to an end: the events are too tame", ended)
	}
}

func nonsense(rng *rand.Rand, id uint64) Event {
	comm := rng.IntN(4)
	some := id - uint64(rng.IntN(int(min(id, 12))))
	switch rng.IntN(36) {
	case 0:
		return InitBegun{comm, "world"}
	case 1:
		return InitDone{comm}
	case 2:
		return InitFailed{comm, "x"}
	case 3:
		return AsyncError{comm, "x", comm == 0}
	case 4:
		return DumpRequested{comm, Reason{Kind: ReasonOp, Comm: "world", Seq: int64(comm)}}
	case 5, 6:
		return Dumped{comm - 1}
	case 7:
		return DumpDone{}
	case 8:
		return DumpFailed{}
	case 9, 10:
		return Aborted{comm}
	case 11:
		return AllAborted{}
	case 12:
		return Phase{"x"}
	case 13:
		return Finished{}
	case 14:
		return Beat{}
	case 15, 16, 17:
		return Started{some}
	case 18, 19, 20, 21, 22, 23:
		return Completed{some}
	case 24, 25, 26:
		return Tick{}
	default:
		return Enqueued{comm, int64(id), id, "x", rng.IntN(4) == 0}
	}
}

type books struct {
	t               *testing.T
	m               *Machine
	dumps, requests int
}

func (b *books) step(at time.Duration, e Event) {
	was := b.m.stage
	for _, a := range b.m.Step(at, e) {
		switch a := a.(type) {
		case Report:
			if a.Line == "" || a.Kind == "" {
				b.t.Errorf("a report without words: %+v", a)
			}
		case Dump:
			b.dumps++
		case RequestDump:
			b.requests++
		}
		if was == Ended {
			b.t.Errorf("after the end: %+v", a)
		}
	}
	if b.dumps > 1 || b.requests > b.dumps {
		b.t.Errorf("%d dumps, %d requests", b.dumps, b.requests)
	}
	if b.m.stage < was && b.m.cfg.Mode != ReportOnly {
		b.t.Errorf("from %v back to %v", was, b.m.stage)
	}
	o := &b.m.ops
	n, overdue := 0, map[*comm]int{}
	var last *op
	for p := o.oldest; p != nil; p = p.next {
		if n++; o.byID[p.id] != p || p.prev != last || last != nil && p.enqueued < last.enqueued || b.m.comms[p.comm.id] != p.comm {
			b.t.Errorf("%T: the list of open operations is torn at %v", e, p)
		}
		if p.overdue {
			overdue[p.comm]++
		}
		last = p
	}
	if n != len(o.byID) || n > o.max || o.newest != last || o.extra < 0 {
		b.t.Errorf("%T: %d in the list, %d by number, at most %d, counted %d", e, n, len(o.byID), o.max, o.extra)
	}
	for _, c := range b.m.comms {
		if c.overdueOpen != overdue[c] {
			b.t.Errorf("%T: %v has %d operations over their deadline, counts %d", e, c, overdue[c], c.overdueOpen)
		}
		for _, k := range []Counters{c.coll, c.p2p} {
			if k.Completed > k.Enqueued || k.Started > k.Enqueued {
				b.t.Errorf("%T: %v: more has completed than was enqueued: %+v", e, c, k)
			}
		}
	}
}

// BenchmarkStream is one operation from its enqueue to its completion, with 64 of them open.
func BenchmarkStream(b *testing.B) {
	m, err := New(Config{World: 2, Op: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for id := uint64(1); b.Loop(); id++ {
		at := time.Duration(id) * time.Microsecond
		m.Step(at, Enqueued{0, int64(id), id, "all_reduce of 4 float", false})
		if id > 64 {
			m.Step(at, Completed{id - 64})
		}
	}
}
