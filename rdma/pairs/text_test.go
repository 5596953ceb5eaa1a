package pairs

import (
	"errors"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/rdma"
)

// The whole text of a run in which everything occurs.
func TestText(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	a, b, c := NIC{"a", "m0", 1, "m0"}, NIC{"b", "m0", 1, "m0"}, NIC{"c", "m0", 2, "m0"}
	port := func(n int) []Port {
		return []Port{{Device: "m0", Port: n, Rail: "m0", LinkLayer: "Ethernet", RateGbps: 100, MTU: 4096, Used: true}, {Device: "m1", Port: 1, Why: "port is down"}}
	}
	o := rdma.Defaults()
	pair := func(from, to NIC, status Status, reason string, values ...float64) Pair {
		p := Pair{From: from, To: to, LinkLayer: "Ethernet", Status: status, Reason: reason, PortGbps: f(100), Values: values}
		if len(values) > 0 {
			p.Value = f(better(values, false))
		}
		return p
	}
	r := Result{Test: "write", Bytes: 65536, Unit: "Gb/s", Below: 0.8, Options: &o, Concurrent: 1,
		Hosts: []HostReport{{Host: Host{"a", "a"}, Hostname: "a", Ports: port(1)}, {Host: Host{"b", "10.0.0.2"}, Hostname: "node7", Ports: port(1)}, {Host: Host{"c", "c"}, Ports: port(2)},
			{Host: Host{"d", "d"}, Error: &HostError{"d", phaseHello, rdma.Died, "exit status 255"}}},
		Pairs: []Pair{pair(a, b, Measured, "", 40, 41), pair(b, a, Measured, "", 30, 92.34), pair(a, c, WrongData, "wrong data: 1 byte"), pair(c, a, NoPath, "another planet"),
			pair(b, c, Measured, "", 93), pair(c, b, NotMeasured, "interrupted")},
	}
	r.Pairs[0].Counters = []rdma.Moved{{Side: "client", Name: "out_of_sequence", By: 7, Means: "loss"}}
	r.Verdict = Judge(r.Pairs, Judging{Below: 0.8})
	var got strings.Builder
	if err := r.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	const want = `# write, 65536 bytes, bandwidth in Gb/s, 1 QPs, depth 128, 1 host pairs at a time
# a: m0 (Ethernet, 100 Gb/s, MTU 4096), m1 (not used: port is down)
# b (node7): m0 (Ethernet, 100 Gb/s, MTU 4096), m1 (not used: port is down)
# c: m0/2 (Ethernet, 100 Gb/s, MTU 4096), m1 (not used: port is down)
# d: FAILED (first words): exit status 255
from \ to       a:m0       b:m0     c:m0/2
a:m0              .       41.0*     WRONG 
b:m0           92.3~         .       93.0 
c:m0/2            -          ?          . 
# * slow   ~ slow or failed at first, good when measured again   - no path   ? not measured   FAIL, WRONG: see below   . not paired
a:m0 to c:m0/2: wrong data: 1 byte
a:m0 to b:m0: slow: 41.0 Gb/s, 41 % of the ports' 100 Gb/s; like pairs have 93.0; twice measured; out_of_sequence of the client moved by 7 (loss)
# no path: c:m0/2 to a:m0: another planet
# not measured: c:m0/2 to b:m0: interrupted
# measured 3 of 6 pairs, failed 0, wrong data 1, no path 1; a pair is slow below 0.8 of the smaller port rate, or of what a fifth of the like pairs reach
# Ethernet, 100 Gb/s ports: 3 pairs, min 41.0, median 92.3, max 93.0 Gb/s
# unsteady 1: slow or failed at first, good when measured again alone: other traffic, or this test's own (--one-at-a-time tells)
VERDICT: NIC a:m0: bad when it sends, whoever receives; 1 with wrong data, 1 slow of 2 pairs, down to 41 % of what to expect; the same pairs fit host sending a
   ` + adviceWrong + "\n"
	if got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", &got, want)
	}
	if err := r.WriteText(failing{}); err == nil {
		t.Error("an error of writing was swallowed")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestClip(t *testing.T) {
	if s := clip(strings.Repeat("ü", maxReason)); strings.Contains(s, "JSON") {
		t.Error(s)
	}
	if s := clip(strings.Repeat("ü", maxReason+1)); !strings.HasSuffix(s, "ü … (all of it in the JSON)") {
		t.Error(s)
	}
}
