package hanglab

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/commprobe/commprobe/hanglab/watch"
)

// Plan is what a run of one scenario does. It is plain data: the supervisor hands it to all ranks.
type Plan struct {
	Scenario   string
	Engine     string // "native" or "host"
	NCCLPath   string // "" searches
	CUDARTPath string
	World      int
	Rank       int // the odd one
	Step       int // the step of the fault
	Steps      int
	Unit       int  // elements of step 0
	Constant   bool // all steps have one size
	CheckCalls bool // fingerprints are compared before each collective
	Mode       watch.Mode

	// The layered deadlines. Op counts from the call; Init covers the making of a communicator, which no operation's deadline does; Join is the
	// rendezvous; Heartbeat watches the watchdog; Fuse ends the whole run whatever happens, counted from when all ranks have joined.
	Op, Init, Join, Heartbeat, Fuse time.Duration

	Entries int    // of each rank's ring
	Rings   string // folder of the rings and sockets, on this host
	Dir     string // folder of the dumps
}

// Validate refuses what cannot be run, in words that say what to do.
func (p *Plan) Validate() error {
	sc, err := Find(p.Scenario)
	if err != nil {
		return err
	}
	switch {
	case p.World < 2 || p.World > 1024:
		return fmt.Errorf("-g %d: %s needs 2 to 1024 ranks", p.World, sc.Name)
	case p.Rank < 0 || p.Rank >= p.World:
		return fmt.Errorf("--rank %d: there are ranks 0 to %d", p.Rank, p.World-1)
	case p.Steps < 2 || p.Steps > 64:
		return fmt.Errorf("--steps %d: use 2 to 64", p.Steps)
	case p.Step < 0 || p.Step >= p.Steps:
		return fmt.Errorf("--step %d: there are steps 0 to %d", p.Step, p.Steps-1)
	case p.Unit < 16 || p.Unit > 64<<20:
		return fmt.Errorf("--unit %d: use 16 to 67108864 elements", p.Unit)
	case p.Op < 100*time.Millisecond:
		return fmt.Errorf("-T %v: a deadline below 0.1 s ends healthy runs too", p.Op)
	case p.Op > time.Hour:
		return fmt.Errorf("-T %v: at most an hour", p.Op)
	case sc.HostOnly && p.Engine != "host":
		return fmt.Errorf("%s needs the host engine (--engine host): network namespaces have no GPUs of their own", sc.Name)
	case p.Entries < 16 || p.Entries > 1<<20:
		return fmt.Errorf("--entries %d: use 16 to 1048576", p.Entries)
	case sc.Name == "sendrecv_small" || sc.Name == "sendrecv_large":
		if p.Rank == 0 {
			return fmt.Errorf("--rank 0: in %s the odd rank leaves out a receive, and rank 0 receives nothing", sc.Name)
		}
	}
	return nil
}

// Keys of the store.
const (
	keyPlan     = "hang/plan"
	keyDump     = "hang/dump" // set by the first watchdog that wants everybody's dump; the value says who and why
	keyCutDone  = "hang/cut"
	barrierCut  = "hang/at the cut"
	gatherClock = "hang/clock"
	gatherDumps = "hang/dumped"
)

func keyID(name string) string { return "hang/id/" + name }

// clockReport is what a rank tells about itself before its program starts.
type clockReport struct {
	OffsetNs, RTTNs int64 // the supervisor's monotonic clock minus the rank's, and the round trip of that estimate
	PID             int
	Host            string
	Library         string // NCCL's version
	Device          string
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only plain data is sent
	}
	return b
}

func decode[T any](raw []byte) (v T, err error) {
	if err = json.Unmarshal(raw, &v); err != nil {
		err = fmt.Errorf("message from the store: %w", err)
	}
	return v, err
}
