package rdma

import (
	"context"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// device is a port that was opened and can describe itself. Implemented over verbs, and over memory by the tests.
type device interface {
	side() *Side
	// build makes the QPs and registers the memory.
	build(o *Options, a *Agreement) (station, error)
	// events tells what the device reports until ctx ends.
	events(ctx context.Context, tell func(text string))
	// counters reads what says why a link is slow; nil where the device has none.
	counters() map[string]int64
	close() error
}

// station is one side's end of the link.
type station interface {
	endpoints() endpoints
	// renew replaces the QPs by new ones.
	renew() error
	// connect takes the new QPs to where they can send.
	connect(p Pair, remote endpoints) error
	// ready posts the receives of a series; what it returns runs it, once.
	ready(w work) (run func() (outcome, error), err error)
	memory() memory
	// halt ends a series that runs, and all later ones.
	halt()
	close() error
}

// endpoints are what the peer must know to reach this side's QPs and memory.
type endpoints struct {
	QPs  []queue `json:"qps"`
	Addr uint64  `json:"addr"`
	RKey uint32  `json:"rkey"`
}

type queue struct {
	Num uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
}

// work is one side's part in a series.
type work struct {
	op       ibverbs.Op
	bytes    int
	lanes    int
	send     int           // operations to post, a lane
	recv     int           // receives to expect, a lane
	duration time.Duration // instead of send
	pingPong bool
	first    bool          // of a ping-pong: this side begins
	deadline time.Duration // instead of the options', where it is less
}

// outcome is what a series gave: result of many outstanding operations, stamps of a ping-pong.
type outcome struct {
	result *ibverbs.SeriesResult
	stamps []int64
}

// memory is the registered buffer of one side. Offsets are from its beginning. None of its calls runs while a series does.
type memory interface {
	fill(offset, bytes int, seed uint64, stream uint32) error
	poison(offset, bytes int) error
	// check compares with the pattern; wrong is 0 where all is well.
	check(offset, bytes int, seed uint64, stream uint32) (wrong, first, last int, err error)
	// at reads one byte.
	at(offset int) (byte, error)
	// put writes bytes.
	put(offset int, b []byte) error
	// polled says that a processor can wait for data by looking at it.
	polled() bool
}
