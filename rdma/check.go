package rdma

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/commprobe/commprobe/ibverbs"
)

// checker compares the data of one row. A source holds the pattern of (seed, stream, offset), the stream being the QP and the side that sends; a target
// is poisoned before. The seed changes from round to round, so data that stayed from an earlier one is seen.
type checker struct {
	l     *linkTest
	test  Test
	bytes int
	roles roles
	row   *Row
}

// stream is the pattern's number of one QP's data from one side.
func stream(qp, from int) uint32 { return uint32(qp)<<1 | uint32(from) }

// prepare fills this side's sources and poisons its targets.
func (c *checker) prepare(seed uint64) error {
	m, o := c.l.station.memory(), c.l.options
	for qp := range c.l.lanes(c.test) {
		if c.roles.sends {
			if err := m.fill(o.source(qp), c.bytes, seed, stream(qp, c.l.rank)); err != nil {
				return problem(Internal, err, "fill %s memory: %v", c.l.mySide().Memory, err)
			}
		}
		if c.roles.receives {
			if err := m.poison(o.target(qp), c.bytes); err != nil {
				return problem(Internal, err, "poison %s memory: %v", c.l.mySide().Memory, err)
			}
		}
	}
	return nil
}

// round moves one message on each QP and compares it. The last round has the planted fault, if one was asked for.
func (c *checker) round(ctx context.Context, seed uint64, i int) error {
	if err := c.prepare(seed); err != nil {
		return err
	}
	if c.l.options.InjectFault && i == c.l.options.Checks-1 && c.roles.sends && (c.l.rank == clientRank) != c.test.pull() {
		if err := c.flip(); err != nil {
			return err
		}
	}
	plain := c.test
	plain.Latency = false // a message by itself, from each side that sends
	r := c.roles
	if err := c.one(ctx, plain, r); err != nil {
		return err
	}
	return c.verify(ctx, seed, i, fmt.Sprintf("checked round %d", i+1))
}

// flip damages one byte of the first QP's source.
func (c *checker) flip() error {
	m, at := c.l.station.memory(), c.l.options.source(0)+c.bytes/2
	b, err := m.at(at)
	if err == nil {
		err = m.put(at, []byte{b ^ 0x10})
	}
	if err != nil {
		return problem(Internal, err, "plant a fault: %v", err)
	}
	return nil
}

// one runs a series of a single operation on each QP.
func (c *checker) one(ctx context.Context, t Test, r roles) error {
	w := work{op: t.Op, bytes: c.bytes, lanes: c.l.lanes(c.test)}
	if r.sends && !t.pull() || r.receives && t.pull() {
		w.send = 1
	}
	if t.Op == ibverbs.OpSend && r.receives {
		w.recv = 1
	}
	what := fmt.Sprintf("%s, %d bytes, checked round", c.test.Name, c.bytes)
	if _, err := c.l.perform(ctx, what, w, w.send+w.recv > 0); err != nil {
		return err
	}
	// Only now is it certain that what the other side posted is here.
	return c.l.meet(ctx, "end of "+what, c.l.options.longest())
}

// verify compares what arrived here, and tells the other side.
func (c *checker) verify(ctx context.Context, seed uint64, round int, name string) error {
	var mine *Fault
	if c.roles.receives {
		var err error
		if mine, err = c.compare(seed, round, name); err != nil {
			return err
		}
	}
	return c.settle(ctx, mine)
}

// settle tells the other side what was found wrong here, and learns what was there. The first fault of either ends up in the row.
func (c *checker) settle(ctx context.Context, mine *Fault) error {
	theirs, err := swap(ctx, c.l.session, "comparison of data", c.l.options.longest(), mine)
	if err != nil {
		return err
	}
	c.row.Checked++
	if c.row.Fault = mine; mine == nil {
		c.row.Fault = theirs
	}
	return nil
}

// compare looks at each target. In a timed WRITE ping-pong the last byte is the signal that both sides watch and is not compared.
func (c *checker) compare(seed uint64, round int, name string) (*Fault, error) {
	m, o := c.l.station.memory(), c.l.options
	bytes := c.bytes
	if c.test.Latency && c.test.Op == ibverbs.OpWrite && name == timedSeries {
		bytes--
	}
	for qp := range c.l.lanes(c.test) {
		from := stream(qp, 1-c.l.rank)
		wrong, first, last, err := m.check(o.target(qp), bytes, seed, from)
		if err != nil {
			return nil, problem(Internal, err, "compare %s memory: %v", c.l.mySide().Memory, err)
		}
		if wrong == 0 {
			continue
		}
		found, err := m.at(o.target(qp) + first)
		if err != nil {
			return nil, problem(Internal, err, "compare %s memory: %v", c.l.mySide().Memory, err)
		}
		f := &Fault{Test: c.test.Name, Bytes: c.bytes, QP: qp, Round: name, Host: c.l.mySide().Host, Wrong: wrong, First: first, Last: last, Found: found,
			Expected: patternByte(seed, from, first)}
		if round > 0 && wrong > 1 && found == patternByte(seed-1, from, first) {
			f.Guess = "that is the content of the round before: stale"
		}
		return f, nil
	}
	return nil, nil
}

const timedSeries = "timed series"

func patternByte(seed uint64, stream uint32, at int) byte {
	b := make([]byte, at+1)
	ibverbs.PatternInto(b, seed, stream)
	return b[at]
}

// atomics measures FETCH_AND_ADD of 1 on a counter of the server, which must end at the number of operations.
func (l *linkTest) atomics(ctx context.Context, c *checker) error {
	m, o := l.station.memory(), l.options
	const start = 1 << 40 // what was there must be added to
	if err := m.put(o.source(0), binary.NativeEndian.AppendUint64(nil, start)); err != nil {
		return problem(Internal, err, "set the counter: %v", err)
	}
	n, err := l.warmUp(ctx, c.test, atomicBytes)
	if err != nil {
		return err
	}
	before, err := counter(m, o.source(0))
	if err != nil {
		return err
	}
	if err := l.meet(ctx, "counter read", l.patience); err != nil {
		return err
	}
	if err := l.timed(ctx, c.test, atomicBytes, n, c.row); err != nil {
		return err
	}
	after, err := counter(m, o.source(0))
	if err != nil {
		return err
	}
	var mine *Fault
	if got := after - before; l.rank == serverRank && got != uint64(n) {
		mine = &Fault{Test: c.test.Name, Bytes: atomicBytes, Round: timedSeries, Host: l.mySide().Host, Wrong: atomicBytes, Last: atomicBytes - 1,
			Guess: fmt.Sprintf("the counter rose by %d, after %d additions of 1", got, n)}
	}
	return c.settle(ctx, mine)
}

func counter(m memory, at int) (uint64, error) {
	var b [atomicBytes]byte
	for i := range b {
		var err error
		if b[i], err = m.at(at + i); err != nil {
			return 0, problem(Internal, err, "read the counter: %v", err)
		}
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// mySide is this side's description.
func (l *linkTest) mySide() *Side {
	if l.rank == clientRank {
		return l.report.Client
	}
	return l.report.Server
}
