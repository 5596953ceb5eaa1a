package evidence

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// FlightPool reads the dumps of one job so that they share what is equal. It may be used from several goroutines at once.
type FlightPool struct {
	mu     sync.Mutex
	texts  map[string]string
	calls  map[string]*FlightCall
	stacks map[string]*FlightStack
	ranks  map[string][]int
	idle   []*builder
}

// NewFlightPool makes an empty pool.
func NewFlightPool() *FlightPool {
	return &FlightPool{texts: map[string]string{}, calls: map[string]*FlightCall{}, stacks: map[string]*FlightStack{}, ranks: map[string][]int{}}
}

// Read is ReadFlight for one of many dumps.
func (p *FlightPool) Read(r io.Reader, name string) (*FlightDump, error) {
	b := p.borrow()
	defer p.giveBack(b)
	return b.read(r, name)
}

func (p *FlightPool) borrow() *builder {
	p.mu.Lock()
	n := len(p.idle)
	if n == 0 {
		p.mu.Unlock() // making tables asks the pool for texts
		return &builder{tables: newTables(p)}
	}
	defer p.mu.Unlock()
	b := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return b
}

func (p *FlightPool) giveBack(b *builder) {
	if !b.reusable() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, b)
}

// The methods below are asked once for each different thing a builder meets.

func (p *FlightPool) text(s string) string { return shared(p, p.texts, s, s) }

func (p *FlightPool) call(c *FlightCall) *FlightCall {
	key := appendText(nil, c.ProfilingName)
	key = appendSizes(key, c.InputSizes)
	key = appendTexts(key, c.InputDtypes)
	key = appendSizes(key, c.OutputSizes)
	key = appendTexts(key, c.OutputDtypes)
	return shared(p, p.calls, string(key), c)
}

func (p *FlightPool) stack(frames []flight.Frame) *FlightStack {
	var key []byte
	for _, f := range frames {
		key = appendText(key, f.Name)
		key = appendText(key, f.File)
		key = binary.AppendVarint(key, int64(f.Line))
	}
	return shared(p, p.stacks, string(key), &FlightStack{frames})
}

// members keeps one list for all ranks of a group: 4,096 dumps that each spell out 4,096 ranks are the largest thing in some jobs.
func (p *FlightPool) members(ranks []int) []int {
	var key []byte
	for _, r := range ranks {
		key = binary.AppendVarint(key, int64(r))
	}
	return shared(p, p.ranks, string(key), ranks)
}

func shared[T any](p *FlightPool, have map[string]T, key string, made T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := have[key]; ok {
		return old
	}
	have[key] = made
	return made
}

func appendText(key []byte, s string) []byte {
	key = binary.AppendUvarint(key, uint64(len(s)))
	return append(key, s...)
}

func appendTexts(key []byte, list []string) []byte {
	key = binary.AppendUvarint(key, uint64(len(list)))
	for _, s := range list {
		key = appendText(key, s)
	}
	return key
}

func appendSizes(key []byte, sizes [][]int64) []byte {
	key = binary.AppendUvarint(key, uint64(len(sizes)))
	for _, shape := range sizes {
		key = binary.AppendUvarint(key, uint64(len(shape)))
		for _, n := range shape {
			key = binary.AppendVarint(key, n)
		}
	}
	return key
}
