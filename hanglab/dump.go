package hanglab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// Prefixes of a rank's dumps in the run's folder; the rank follows. PyTorch's fr_trace reads the pickles: fr_trace DIR -p trace_
const (
	picklePrefix = "trace_"
	jsonPrefix   = "json_"
)

// dump writes what the rank has recorded, in both forms. Safe from any goroutine; the newest counts.
func (r *rank) dump(reason string) error {
	d, _, err := r.snapshot()
	if err != nil {
		return err
	}
	if err := writeDump(r.plan.Dir, r.id, d); err != nil {
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

// writeDump writes both forms of a dump, each under its name only once it is whole.
func writeDump(dir string, rank int, d *flight.Dump) error {
	for prefix, write := range map[string]func(io.Writer) error{picklePrefix: d.WritePickle, jsonPrefix: d.WriteJSON} {
		if err := writeWhole(filepath.Join(dir, prefix+strconv.Itoa(rank)), write); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
	}
	return nil
}

func writeWhole(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	err = errors.Join(write(b), b.Flush(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
