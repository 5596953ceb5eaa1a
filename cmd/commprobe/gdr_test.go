package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/bench"
	"github.com/commprobe/commprobe/gdr"
	"github.com/commprobe/commprobe/ibverbs"
)

// On the host engine nothing can be accused, with a NIC or without.
func TestGDRHost(t *testing.T) {
	t.Parallel()
	env := fakeVerbs(t)
	f := ok(t, []string{env, "FAKE_DEVICES=2"}, "gdr", "--engine", "host", "--json", "-")
	var r gdr.Report
	if err := json.Unmarshal([]byte(f.stdout), &r); err != nil {
		t.Fatalf("%v\n%s", err, f.stdout)
	}
	if r.Schema != gdr.Schema || len(r.Facts.NICs) < 2 || len(r.Verdicts) != len(r.Facts.NICs) || r.Count(gdr.CannotTell) != len(r.Verdicts) {
		t.Errorf("%+v", r)
	}
	f = ok(t, []string{env}, "gdr", "--engine", "host")
	has(t, f.stdout, "could not be tested", "host memory, no GPUDirect", "libibverbs", "locked memory limit", "GPU0")
}

func TestGDRWithoutNIC(t *testing.T) {
	t.Parallel()
	f := ok(t, []string{ibverbs.LibraryEnv + "=/nonexistent/libibverbs.so.1"}, "gdr", "--engine", "host", "--quiet")
	has(t, f.stdout, "/nonexistent/libibverbs.so.1", "GPU0")
	if f.stderr != "" {
		t.Errorf("--quiet: %s", f.stderr)
	}
}

func TestGDRUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"x", "-T 0", "-T NaN", "--engine other", "--json /nonexistent/x.json"} {
		f := commprobe(t, nil, append([]string{"gdr"}, strings.Fields(args)...)...)
		if f.code != bench.ExitUsage || f.stdout != "" || f.stderr == "" {
			t.Errorf("%s: exit status %d\n%s%s", args, f.code, f.stdout, f.stderr)
		}
	}
}
