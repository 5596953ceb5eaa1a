package diagnose

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/commprobe/commprobe/hanglab/evidence"
)

// FuzzDiagnose: whatever files say, there is a verdict, and it holds together.
func FuzzDiagnose(f *testing.F) {
	for _, pattern := range []string{"testdata/lab/*/rank_[03].log", "testdata/lab/*/json_[03]"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text, text)
		}
	}
	f.Add([]byte(threeWait), []byte(signal(3, 49, 49)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		fs := fstest.MapFS{"json_0": {Data: a}, "json_1": {Data: b}, "rank_2.log": {Data: bytes.Join([][]byte{a, b}, []byte("\n"))}}
		e, err := evidence.Read([]string{"json_0", "json_1", "rank_2.log"}, evidence.Options{FS: fs})
		if err != nil {
			t.Skip(err)
		}
		checkVerdict(t, "fuzz", Diagnose(e))
	})
}
