package flight

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// Prefixes of the files of a rank's dump; the rank follows. PyTorch's fr_trace reads the pickles: fr_trace DIR -p trace_
const (
	PicklePrefix = "trace_"
	JSONPrefix   = "json_"
)

// WriteFiles writes both forms of a rank's dump into a folder, which must exist. Each file gets its name only once it is whole, and replaces what
// had the name before.
func (d *Dump) WriteFiles(dir string, rank int) error {
	for prefix, write := range map[string]func(io.Writer) error{PicklePrefix: d.WritePickle, JSONPrefix: d.WriteJSON} {
		if err := WriteWhole(filepath.Join(dir, prefix+strconv.Itoa(rank)), write); err != nil {
			return fmt.Errorf("dump of rank %d: %w", rank, err)
		}
	}
	return nil
}

// WriteWhole writes a file that gets its name only once it is whole, and replaces what had the name before.
func WriteWhole(path string, write func(io.Writer) error) error {
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
