package hanglab

import (
	"fmt"
	"os"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// dump writes what the rank has recorded, in both forms. Safe from any goroutine; the newest counts.
func (r *rank) dump(reason string) error {
	d, _, err := r.snapshot()
	if err != nil {
		return err
	}
	if err := d.WriteFiles(r.plan.Dir, r.id); err != nil {
		return err
	}
	r.mark("dump", "reason", reason, "entries", len(d.Entries))
	return nil
}

// snapshot reads the ring as it is now, from its file, as the supervisor does when the rank cannot.
func (r *rank) snapshot() (*flight.Dump, *flight.Ring, error) {
	return readRing(ringPath(r.plan.Rings, r.id))
}

func readRing(path string) (*flight.Dump, *flight.Ring, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	ring, err := flight.DecodeRing(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return ring.Dump(), ring, nil
}
