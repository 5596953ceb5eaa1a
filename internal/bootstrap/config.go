package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	maxWorld         = 1 << 16
	maxKeyBytes      = 1024
	maxCallsPerConn  = 256
	retainedRounds   = 64
	retainedBytes    = 16 << 20
	cancelReplyWait  = 2 * time.Second
	abortEchoWait    = 2 * time.Second
	closeDrainWait   = 500 * time.Millisecond
	minMaxFrameBytes = 64 << 10
	maxMaxFrameBytes = 1 << 30
)

// Hello is how a worker presents itself when it joins.
type Hello struct {
	Ranks   []int  // ranks that live in this process
	Host    string // host name, for messages
	PID     int    // process id on that host
	Program string // program version; all processes of a job must agree
}

// Config configures both [Listen] and [Dial]. The zero value of every limit
// means its default.
type Config struct {
	World int   // number of ranks of the job. Needed by Listen; Dial checks it when it is not 0
	Token Token // secret of the job; needed

	// Hello is what Dial presents. Host and PID default to this process's.
	// For Listen only Program and Host matter: the version which it demands
	// (no demand if empty), and the host named for the coordinator itself.
	Hello Hello

	// Log receives one line for each connection that the server refuses, with
	// remote address and reason. At most 100 lines in 10 s are written. Nil
	// discards them. It must be safe for concurrent use.
	Log func(format string, args ...any)

	// OnLost is called by the server, in a goroutine of its own, when a joined
	// connection ends without a goodbye. The server does nothing else about
	// it: whether to abort is the caller's choice. It may call any method of
	// the Server.
	OnLost func(Hello, error)

	HandshakeTimeout time.Duration // limit of one connect plus handshake; 5 s
	Heartbeat        time.Duration // interval of the client's pings; 2 s
	DeadAfter        time.Duration // silence that counts as death; 10 s, at least twice Heartbeat
	WaitTimeout      time.Duration // deadline of a call whose context has none; 10 min

	MaxFrameBytes int // one message after authentication; 16 MiB (64 KiB to 1 GiB). Before it: 4 KiB
	MaxPending    int // connections that have not joined yet; 64 + World
	MaxKeys       int // keys plus unfinished gathers; 65,536
	MaxStoreBytes int // bytes of values held by the server; 1 GiB
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// withDefaults fills in defaults and rejects what cannot work.
func (c Config) withDefaults() (Config, error) {
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.Heartbeat, 2*time.Second)
	setDefault(&c.DeadAfter, 10*time.Second)
	setDefault(&c.WaitTimeout, 10*time.Minute)
	setDefault(&c.MaxFrameBytes, 16<<20)
	setDefault(&c.MaxPending, 64+c.World)
	setDefault(&c.MaxKeys, 65536)
	setDefault(&c.MaxStoreBytes, 1<<30)
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	switch {
	case c.Token.IsZero():
		return c, errors.New("config: no token")
	case c.World < 0 || c.World > maxWorld:
		return c, fmt.Errorf("config: world size %d is not between 1 and %d", c.World, maxWorld)
	case min(c.HandshakeTimeout, c.Heartbeat, c.DeadAfter, c.WaitTimeout) < 0:
		return c, errors.New("config: negative duration")
	case c.DeadAfter < 2*c.Heartbeat:
		return c, fmt.Errorf("config: dead-after %v is less than twice the heartbeat %v", c.DeadAfter, c.Heartbeat)
	case c.MaxFrameBytes < minMaxFrameBytes || c.MaxFrameBytes > maxMaxFrameBytes:
		return c, fmt.Errorf("config: frame limit of %d bytes is not between %d and %d",
			c.MaxFrameBytes, minMaxFrameBytes, maxMaxFrameBytes)
	case min(c.MaxPending, c.MaxKeys, c.MaxStoreBytes) < 0:
		return c, errors.New("config: negative limit")
	}
	return c, nil
}

// bounded gives ctx a deadline if it has none, so that nothing waits for ever.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// Store is the view of the job's store that clients and the coordinator share.
// All methods are safe for concurrent use. Values that are passed in and out
// belong to the caller.
//
// Methods that take a context honour it; a context without a deadline gets
// Config.WaitTimeout. A client may return up to 2 s after its context is done,
// because it asks the server who is missing (and up to Config.DeadAfter later
// if the server takes no data).
//
// After an abort all methods return the same *[AbortedError], after the loss of
// the connection a *[LostError], after an orderly end [ErrServerClosed] or
// [ErrClosed].
type Store interface {
	// Set stores value under key, replacing an earlier one.
	Set(ctx context.Context, key string, value []byte) error
	// Get returns the value of key, waiting until some process has set it.
	Get(ctx context.Context, key string) ([]byte, error)
	// TryGet returns the value of key, or false if it is not set.
	TryGet(ctx context.Context, key string) ([]byte, bool, error)
	// Delete drops the value of key, and the barrier and the gather of that
	// name with all their parts. Whoever waits in them gets [ErrDeleted].
	Delete(ctx context.Context, key string) error

	// Barrier reports ranks as arrived and waits until all ranks of the job
	// have arrived. Without ranks it only waits, as the coordinator does. Past
	// the deadline it returns a *[MissingRanksError].
	//
	// Give each barrier and gather its own name ("step/17"). A name may be used
	// again once its round is complete, but who only watches (Collect, Barrier
	// without ranks) may then be shown the previous round.
	Barrier(ctx context.Context, name string, ranks []int) error
	// Gather contributes parts (rank to value) and waits for the parts of all
	// ranks of the job. Past the deadline it returns a *[MissingRanksError];
	// the contribution stays.
	Gather(ctx context.Context, name string, parts map[int][]byte) (map[int][]byte, error)
	// Contribute adds parts to a gather without waiting for the other ranks.
	// They are kept until a Collect of all ranks' parts, or Delete.
	Contribute(ctx context.Context, name string, parts map[int][]byte) error
	// Collect waits for the parts of all ranks without contributing, and
	// releases the gather. Past the deadline, or when ctx is cancelled, it
	// returns the parts that are there together with a *[MissingRanksError];
	// they stay until a later Collect, or Delete.
	// After an abort or the loss of the store it returns that error; the
	// server's own view adds the parts that are there then too.
	Collect(ctx context.Context, name string) (map[int][]byte, error)

	// Abort ends the job: the cause reaches every connected process at once and
	// every pending and later call returns it. The first cause wins. On a
	// client it blocks until the server has confirmed, at most 2 s.
	Abort(cause Cause)
	// Done is closed upon an abort, upon the loss of the server, and by Close.
	Done() <-chan struct{}
	// Err tells why Done is closed; nil while it is open.
	Err() error
}

var (
	_ Store = (*Client)(nil)
	_ Store = (*Server)(nil)
)
