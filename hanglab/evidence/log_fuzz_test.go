package evidence

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

// FuzzLog: no panic, facts within their bounds and in the order of lines, and reading in other pieces gives the same.
func FuzzLog(f *testing.F) {
	for _, folder := range []string{"testdata/log/*.txt", "../../../shared/data/*/*/out.txt", "../../../shared/data/*/*/ras.txt", "../../../shared/data/hang_samples/*.txt"} {
		files, _ := filepath.Glob(folder)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
			for line := range bytes.SplitSeq(text, []byte("\n")) {
				f.Add(line)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, _ := readText(t, "x", text)
		again := &Evidence{}
		c := newLogContext(again, "x", -1, 2026)
		if err := c.readLog(bufio.NewReaderSize(&slowReader{text}, inputBuffer), &Input{}); err != nil {
			t.Fatal(err)
		}
		if len(e.Facts) != len(again.Facts) || len(e.Stacks) != len(again.Stacks) || len(e.RAS) != len(again.RAS) || len(e.Comms) != len(again.Comms) {
			t.Fatalf("%d facts, then %d", len(e.Facts), len(again.Facts))
		}
		lines := bytes.Count(text, []byte("\n")) + 1
		last := 0
		for i := range e.Facts {
			fact := &e.Facts[i]
			if fact.Where.Line < last || fact.Where.Line > lines {
				t.Fatalf("fact %d is of line %d, after one of line %d, of %d", i, fact.Where.Line, last, lines)
			}
			last = fact.Where.Line
			if fact.Rank < -1 || len(fact.Text) > 2*factBytes || len(fact.Detail) > 64<<10 || len(fact.Ranks) > maxRankSet {
				t.Fatalf("fact %d is out of bounds: %+v", i, fact)
			}
			_ = factLine(fact)
		}
		finishEvidence(e)
	})
}

// slowReader gives a few bytes at a time.
type slowReader struct{ b []byte }

func (s *slowReader) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), 7)], s.b)
	s.b = s.b[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// FuzzRead: whatever the bytes are, Read names every input and ends.
func FuzzRead(f *testing.F) {
	pickle, err := os.ReadFile("../flight/testdata/sample_0.pickle")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pickle)
	f.Add([]byte(oomLine))
	f.Add(gzOf(f, []byte(killLine)))
	f.Add(tarOf(f, member{name: "trace_3", data: pickle}, member{name: "../x", data: []byte(killLine)}))
	f.Add(gzOf(f, tarOf(f, member{name: "a.log", data: []byte(oomLine)})))
	f.Add(zipOf(f, member{name: "a/rank_1.log", data: []byte(killLine)}, member{name: "b.gz", data: gzOf(f, []byte(oomLine))}))
	f.Add([]byte("BZh91AY&SY\x00\x00"))
	f.Add([]byte(`{"version":"2.10","entries":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Read([]string{"trace_5"}, Options{FS: fstest.MapFS{"trace_5": {Data: data}}, Workers: 1, MaxFiles: 200, MaxFileBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Inputs) == 0 && len(data) > 0 && sniff(data) != "tar" && sniff(data) != "zip" {
			t.Fatal("an input is not told of")
		}
		for _, in := range e.Inputs {
			if in.Kind == "" || in.Name == "" {
				t.Fatalf("%+v", in)
			}
		}
	})
}
