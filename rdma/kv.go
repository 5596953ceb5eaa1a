package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// Pool is registered memory cut into blocks of equal size, as a paged KV cache keeps its keys and values: a layer of a request is a list of blocks that lie
// anywhere. Blocks are numbered from 0.
type Pool struct {
	buffer     buffer
	mr         *ibverbs.MR
	blockBytes int
	blocks     int
}

// NewPool allocates and registers blocks of blockBytes each; memory is "host" or "gpu:N". The caller closes the pool, after the links that use it.
func NewPool(pd *ibverbs.PD, memory string, blocks, blockBytes int) (*Pool, error) {
	if blocks < 1 || blockBytes < 1 || blocks > maxBuffer/blockBytes {
		return nil, problem(Usage, nil, "a pool of %d blocks of %d bytes: both must be 1 or more, and %d bytes in all at most", blocks, blockBytes, maxBuffer)
	}
	b, err := newBuffer(memory, blocks*blockBytes, false)
	if err != nil {
		return nil, err
	}
	mr, err := b.register(pd, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return nil, errors.Join(explain(err, "register the pool", "", ""), b.Close())
	}
	return &Pool{b, mr, blockBytes, blocks}, nil
}

// Close ends the registration and frees the memory.
func (p *Pool) Close() error { return errors.Join(p.mr.Close(), p.buffer.Close()) }

// Remote is what the other side must know to write into the pool; it travels as JSON.
func (p *Pool) Remote() RemotePool {
	return RemotePool{Addr: p.mr.Addr(), RKey: p.mr.RKey(), Blocks: p.blocks, BlockBytes: p.blockBytes}
}

// Fill writes the pattern of (seed, stream) into a block, Poison what no pattern contains.
func (p *Pool) Fill(block int, seed uint64, stream uint32) error {
	if err := p.has(block); err != nil {
		return err
	}
	return p.buffer.fill(block*p.blockBytes, p.blockBytes, seed, stream)
}

// Poison makes a block such that any byte that did not arrive is seen by Check.
func (p *Pool) Poison(block int) error {
	if err := p.has(block); err != nil {
		return err
	}
	return p.buffer.poison(block*p.blockBytes, p.blockBytes)
}

// Check compares a block with the pattern. Errors: a Problem of kind WrongData that names the first wrong byte.
func (p *Pool) Check(block int, seed uint64, stream uint32) error {
	if err := p.has(block); err != nil {
		return err
	}
	wrong, first, _, err := p.buffer.check(block*p.blockBytes, p.blockBytes, seed, stream)
	if err != nil || wrong == 0 {
		return err
	}
	found, err := p.buffer.at(block*p.blockBytes + first)
	if err != nil {
		return err
	}
	return problem(WrongData, nil, "block %d: %d of %d bytes are wrong, the first at offset %d: expected 0x%02x, found 0x%02x",
		block, wrong, p.blockBytes, first, patternByte(seed, stream, first), found)
}

func (p *Pool) has(block int) error {
	if block < 0 || block >= p.blocks {
		return problem(Usage, nil, "block %d: the pool has 0 to %d", block, p.blocks-1)
	}
	return nil
}

// RemotePool is the other side's pool.
type RemotePool struct {
	Addr       uint64 `json:"addr"`
	RKey       uint32 `json:"rkey"`
	Blocks     int    `json:"blocks"`
	BlockBytes int    `json:"block_bytes"`
}

// Blocks pairs a block of this side with the one of the other side that it goes to.
type Blocks struct{ From, To int }

// Sender writes blocks of a pool into another one, over a QP that is connected and has nothing else to do.
type Sender struct {
	QP       *ibverbs.QP
	Pool     *Pool
	Remote   RemotePool
	Deadline time.Duration // without progress
	Stop     *ibverbs.Flag // ends a call from another goroutine; may be nil
	entries  []ibverbs.BatchEntry
}

// WriteBlocks writes the blocks of one layer and blocks until all have arrived. The last write carries the layer's number as its immediate, and the other side's
// Receiver hears of it after all data of the layer is in its memory. The other side must have receives posted. Errors: a Problem; those of the link as of a
// bandwidth series.
func (s *Sender) WriteBlocks(layer uint32, blocks []Blocks) (ibverbs.BatchResult, error) {
	if err := s.prepare(blocks); err != nil {
		return ibverbs.BatchResult{}, err
	}
	r, err := s.QP.WriteBatch(s.entries, &layer, s.Deadline, s.Stop)
	if err != nil {
		return r, explain(err, fmt.Sprintf("write %d blocks of layer %d", len(blocks), layer), fmt.Sprintf("queue pair %d", s.QP.Num()), "the peer")
	}
	return r, nil
}

// prepare checks the pairs and makes their entries, in the order that was given.
func (s *Sender) prepare(blocks []Blocks) error {
	if len(blocks) == 0 {
		return problem(Usage, nil, "no blocks to write")
	}
	if s.Remote.BlockBytes != s.Pool.blockBytes {
		return problem(Usage, nil, "blocks of %d bytes here and of %d there: both pools must have the same", s.Pool.blockBytes, s.Remote.BlockBytes)
	}
	s.entries = s.entries[:0]
	n := uint64(s.Pool.blockBytes)
	for _, b := range blocks {
		if err := s.Pool.has(b.From); err != nil {
			return err
		}
		if b.To < 0 || b.To >= s.Remote.Blocks {
			return problem(Usage, nil, "block %d of the other side: its pool has 0 to %d", b.To, s.Remote.Blocks-1)
		}
		from, to := s.Pool.mr.Addr()+uint64(b.From)*n, s.Remote.Addr+uint64(b.To)*n
		s.entries = append(s.entries, ibverbs.BatchEntry{LocalAddr: from, LKey: s.Pool.mr.LKey(), RemoteAddr: to, RKey: s.Remote.RKey, Bytes: uint32(n)})
	}
	return nil
}

// kvLink is the path that errors name: a Receiver knows no more.
const kvLink = "KV link"

// Receiver learns which layers have arrived. Its QP's receive queue has a completion queue of its own.
type Receiver struct {
	QP       *ibverbs.QP
	Deadline time.Duration
	Stop     *ibverbs.Flag
}

// Ready posts receives for as many layers as may arrive before the next WaitLayers; that call replaces the ones that it used.
func (r *Receiver) Ready(layers int) error {
	return explain(r.QP.PostEmptyReceives(layers), "post receives for layers", kvLink, "the peer")
}

// WaitLayers blocks until n layers have arrived and returns their numbers with the times, in the order of arrival.
func (r *Receiver) WaitLayers(n int) ([]ibverbs.ImmEvent, error) {
	events, err := r.QP.WaitImm(n, r.Deadline, r.Stop)
	return events, explain(err, fmt.Sprintf("wait for layers, %d of %d have come", len(events), n), kvLink, "the peer")
}
