package evidence

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// readText reads a log as if it were a file of that name.
func readText(t testing.TB, name string, text []byte) (*Evidence, *Input) {
	t.Helper()
	out, in := &Evidence{}, &Input{Name: name}
	c := newLogContext(out, name, -1, 2026)
	if err := c.readLog(bufio.NewReaderSize(bytes.NewReader(text), inputBuffer), in); err != nil {
		t.Fatal(err)
	}
	return out, in
}

// factLine prints what a fact says, and leaves out what it does not say.
func factLine(f *Fact) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3d %s", f.Where.Line, f.Kind)
	number := func(name string, n int64) {
		if n != -1 {
			fmt.Fprintf(&b, " %s=%d", name, n)
		}
	}
	text := func(name, s string) {
		if s != "" {
			fmt.Fprintf(&b, " %s=%q", name, s)
		}
	}
	number("rank", int64(f.Rank))
	number("group_rank", int64(f.GroupRank))
	text("group", f.Group)
	text("desc", f.GroupDesc)
	number("seq", f.Seq)
	number("enqueued", f.LastEnqueued)
	number("started", f.LastStarted)
	number("completed", f.LastCompleted)
	text("op", f.Op)
	if f.P2P {
		b.WriteString(" p2p")
	}
	number("peer", int64(f.Peer))
	number("in", f.NumelIn)
	number("out", f.NumelOut)
	text("dtype", f.DType)
	number("timeout", f.TimeoutMs)
	number("ran", f.RanMs)
	number("code", int64(f.Code))
	if f.Signal != 0 {
		number("signal", int64(f.Signal))
	}
	if f.PID != 0 {
		number("pid", int64(f.PID))
	}
	text("host", f.Host)
	number("other", int64(f.OtherRank))
	if f.Ranks != nil {
		fmt.Fprintf(&b, " ranks=%v", f.Ranks)
	}
	if f.Call != nil {
		fmt.Fprintf(&b, " call=%v", *f.Call)
	}
	if f.Other != nil {
		fmt.Fprintf(&b, " but=%v", *f.Other)
	}
	for _, s := range f.Stack {
		fmt.Fprintf(&b, " at=%s@%s:%d", s.Name, s.File, s.Line)
	}
	text("detail", f.Detail)
	text("phase", f.Phase)
	if f.MonoNs != 0 {
		number("mono", f.MonoNs)
	}
	number("local_rank", int64(f.LocalRank))
	if f.Kind != InitBegun && f.Kind != InitDone {
		number("group_size", int64(f.GroupSize))
	}
	text("bus", f.BusID)
	text("program", f.Program)
	for _, x := range []struct {
		is   bool
		word string
	}{{f.Consequence, " consequence"}, {f.PIDOutside, " pid_outside"}, {f.Mild, " mild"}} {
		if x.is {
			b.WriteString(x.word)
		}
	}
	if !f.Time.IsZero() {
		b.WriteString(" " + f.Time.Format("2006-01-02T15:04:05.999999999"))
	}
	if f.Kind == Traceback {
		text("text", f.Text)
	}
	return b.String() + "\n"
}

// TestLogForms reads lines of every form and era. Beside each input is what it says.
func TestLogForms(t *testing.T) {
	files, err := filepath.Glob("testdata/log/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no inputs", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			e, _ := readText(t, file, text)
			joinProcesses(e)
			var b strings.Builder
			for i := range e.Facts {
				b.WriteString(factLine(&e.Facts[i]))
			}
			golden := strings.TrimSuffix(file, ".txt") + ".facts"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", golden, diff)
			}
		})
	}
}
