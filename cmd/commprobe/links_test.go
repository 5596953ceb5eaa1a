package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/links"
)

// hostLinks are arguments for a short run on the host engine.
func hostLinks(more ...string) []string {
	return append([]string{"links", "--engine", "host", "--size", "256K", "-n", "2"}, more...)
}

func TestLinksText(t *testing.T) {
	t.Parallel()
	f := ok(t, nil, hostLinks()...)
	has(t, f.stdout, "2 GPUs, engine host, copies of 262144 bytes, median of 2 repetitions", "copy engine, one way", "kernel writes far memory", "latency between kernels", "GPU1",
		"data: right in all of", "host engine: its devices are threads")
	if f.stderr != "" {
		t.Errorf("progress where there is no terminal: %s", f.stderr)
	}
}

func TestLinksJSON(t *testing.T) {
	t.Parallel()
	f := ok(t, nil, hostLinks("-g", "3", "--pairs", "0-2", "--json", "-", "--quiet")...)
	var r links.Report
	if err := json.Unmarshal([]byte(f.stdout), &r); err != nil {
		t.Fatalf("%v\n%s", err, f.stdout)
	}
	if r.Schema != links.Schema || r.Bytes != 256<<10 || len(r.GPUs) != 2 || len(r.Pairs) != 1 || len(r.Model) == 0 || r.Ended != "" {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(t.TempDir(), "links.json")
	if f = ok(t, nil, hostLinks("--json", file)...); f.stdout == "" {
		t.Error("no text beside the file")
	}
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &r) != nil {
		t.Errorf("%v\n%s", err, text)
	}
	if f := commprobe(t, nil, hostLinks("--json", file)...); f.code != bench.ExitUsage || f.stdout != "" {
		t.Errorf("a file that exists: exit status %d, %s", f.code, f.stdout)
	}
}

func TestLinksUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"x", "-g -1", "-n 0", "-T 0", "-T NaN", "--size 8", "--size x", "--size 2T", "--pairs 0", "--pairs 1-1", "--pairs 0-x", "--pairs -1-0", "-g 2 --pairs 0-5", "--engine other"} {
		f := commprobe(t, nil, append([]string{"links", "--engine", "host"}, strings.Fields(args)...)...)
		if f.code != bench.ExitUsage || f.stdout != "" || f.stderr == "" {
			t.Errorf("%s: exit status %d\n%s%s", args, f.code, f.stdout, f.stderr)
		}
	}
}

// TestLinksStatus: the gravest thing decides.
func TestLinksStatus(t *testing.T) {
	t.Parallel()
	one := uint64(1)
	fine := &links.Report{}
	faulty := &links.Report{Findings: []links.Finding{{Severity: links.Warn}, {Severity: links.Fault}}}
	warned := &links.Report{Findings: []links.Finding{{Severity: links.Warn}}}
	wrong := &links.Report{Measured: []links.Measured{{Wrong: &one}}, Findings: faulty.Findings}
	for _, c := range []struct {
		name string
		r    *links.Report
		err  error
		want int
	}{
		{"good", fine, nil, 0}, {"warning", warned, nil, 0}, {"fault", faulty, nil, bench.ExitFindings}, {"wrong data", wrong, nil, bench.ExitWrongData},
		{"wrong data and an error", wrong, errors.New("x"), bench.ExitWrongData}, {"usage", nil, fmt.Errorf("x: %w", links.ErrUsage), bench.ExitUsage},
		{"time-out", fine, fmt.Errorf("x: %w", &links.TimeoutError{}), bench.ExitTimeout}, {"failed call", fine, errors.New("x"), bench.ExitInternal},
	} {
		err := linksStatus(t.Context(), c.r, c.err)
		var e *exitError
		got := 0
		if errors.As(err, &e) {
			got = e.status
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d: %v", c.name, got, c.want, err)
		}
	}
}

// FuzzLinksPairs: any text is refused, or gives pairs of two different GPUs.
func FuzzLinksPairs(f *testing.F) {
	for _, s := range []string{"", "0-1", "0-1,2-3", "1-1", "-1-0", "0-1,", "9999999999999999999-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := linksPairs(s)
		if (err == nil) == (got == nil) && s != "" {
			t.Errorf("%q: %v, %v", s, got, err)
		}
		for _, p := range got {
			if p[0] < 0 || p[1] < 0 || p[0] == p[1] {
				t.Errorf("%q: %v", s, got)
			}
		}
	})
}
