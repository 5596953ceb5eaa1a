package evidence

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzReadFlight: no input panics or takes much memory for its size, a dump and an error come together only for a cut file, and what was read
// can be written and read again.
func FuzzReadFlight(f *testing.F) {
	small := odd()
	small.Entries = small.Entries[3:10] // large seeds are slow to mutate
	f.Add(pickled(f, small))
	small.Entries = small.Entries[:2]
	f.Add(jsoned(f, small))
	f.Add(pickled(f, synthetic(2, true)))
	f.Add(item(']', '(', '}', '(', "seq_id", 'K', 1, "input_sizes", 'c', []byte("torch.jit._pickle\nbuild_intlist\n"), ']', opTuple1, 'R', 'u', 'e'))
	f.Add(item(opFrame, make([]byte, 8), '}', opMemoize, "version", opMemoize, opShortBinUnicode, 1, []byte("3"), 's', ')', '0', '(', 't', '0'))
	f.Add([]byte(`[{"seq_id": -1.5e3, "frames": [{"name": "a", "filename": "\u00e9", "line": 3}], "x": [true, false, null, NaN]}]`))
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := ReadFlight(bytes.NewReader(file), "trace_0")
		if (got == nil) != (err != nil && !errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Fatalf("dump %v, error %v", got != nil, err)
		}
		if got == nil {
			return
		}
		if got.Cut != (err != nil) || len(got.Entries) > len(file) || len(got.Warnings) > maxFlightWarnings {
			t.Fatalf("cut %t, error %v, %d entries, %d warnings", got.Cut, err, len(got.Entries), len(got.Warnings))
		}
		plain := got.Dump()
		var w bytes.Buffer
		if plain.WritePickle(&w) != nil {
			return // two groups of one name, which a broken file may have
		}
		again, err := ReadFlight(&w, "trace_0")
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if plain.Version == "" {
			plain.Version = flight.Version
		}
		if diff := cmp.Diff(plain, again.Dump(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}
