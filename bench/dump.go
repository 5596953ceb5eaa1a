package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// allDumpsLimit is how long the coordinator may take to write the dumps of all ranks, after these have ended.
const allDumpsLimit = 10 * time.Second

// takeRings opens the rings of local workers and takes their names away.
func (o *oneRun) takeRings() {
	if o.workers == nil || o.plan.Record == 0 {
		return
	}
	for r := range o.plan.World {
		path := recordPath(o.job, r)
		f, err := os.Open(path)
		if err != nil {
			continue // not the lowest rank of a driver, a ring without a file, or none yet
		}
		_ = os.Remove(path) // once more at the end of the run
		if o.rings[r] != nil {
			o.rings[r].Close()
		}
		o.rings[r] = f
	}
}

// lastRecords are the rings of a run that ended badly, read before the ranks are told of it: what they abort would look complete. nil where dumps
// tell nothing.
func (o *oneRun) lastRecords(ctx context.Context, err error) []*flight.Ring {
	if err == nil || !o.explains(err) || errors.Is(err, errInterrupted) && ctx.Err() == nil { // the latter: in good order
		return nil
	}
	o.takeRings()
	if len(o.rings) == 0 {
		return nil
	}
	time.Sleep(2 * recordPoll) // what is done has been seen to be
	var out []*flight.Ring
	for r := range o.plan.World {
		if f := o.rings[r]; f != nil {
			if ring, err := readRing(f); err == nil { // the error is of a worker that ended before its ring was made
				out = append(out, ring)
			}
		}
	}
	if errors.Is(err, errInterrupted) && !stuck(out) {
		return nil
	}
	return out
}

// explains tells whether what the ranks have recorded belongs to the end of the run. A variant that NCCL refuses is left out, and its
// processes have nothing to explain.
func (o *oneRun) explains(err error) bool {
	var f *Failure
	if !errors.As(err, &f) {
		return true
	}
	refused := f.Kind == FailInternal && len(Variants(o.s.Algos, o.s.Protos)) > 1
	return f.Kind != FailUsage && f.Kind != FailNoDevice && !refused
}

func readRing(f *os.File) (*flight.Ring, error) {
	raw, err := io.ReadAll(io.NewSectionReader(f, 0, flight.RingBytes(MaxRecord)))
	if err != nil {
		return nil, err
	}
	return flight.DecodeRing(raw)
}

// dump writes what lastRecords has read and says in err where.
func (o *oneRun) dump(err error, rings []*flight.Ring) error {
	dir := o.plan.Dump
	if o.workers == nil {
		if err == nil || o.plan.Record == 0 || !o.steps.Load() || errors.Is(err, errInterrupted) || !o.explains(err) {
			return err
		}
		return say(err, fmt.Sprintf("each rank that lives dumps what it recorded into %s on its host; %s", dir, howToRead(dir)))
	}
	type wrote struct {
		ranks []int
		err   error
	}
	done := make(chan wrote, 1)
	go func() {
		ranks, err := writeDumps(dir, rings, o.began)
		done <- wrote{ranks, err}
	}()
	select {
	case w := <-done:
		if w.err != nil {
			err = say(err, fmt.Sprintf("dumps: %v", w.err))
		}
		if len(w.ranks) > 0 {
			err = say(err, fmt.Sprintf("dumps of %s: %s; %s", bootstrap.NameRanks(w.ranks), dir, howToRead(dir)))
		}
	case <-time.After(allDumpsLimit):
		err = say(err, fmt.Sprintf("dumps: not written to %s within %v", dir, allDumpsLimit))
	}
	return err
}

func howToRead(dir string) string {
	return "python -m torch.distributed.flight_recorder.fr_trace " + dir + " -p " + flight.PicklePrefix + " reads them"
}

// say adds text to what is said of an end.
func say(err error, text string) error {
	var f *Failure
	if errors.As(err, &f) {
		told := *f
		told.Text += "; " + text
		return &told
	}
	return fmt.Errorf("%w; %s", err, text)
}
