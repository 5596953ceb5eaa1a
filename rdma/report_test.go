package rdma

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func sampleReport() *Report {
	o := Defaults()
	o.Tests, o.QPs, o.Bidirectional = []string{"write", "read latency"}, 2, true
	client, server := goodSide("hosta", 1), goodSide("hostb", 2)
	server.MTU, server.RateGbps = 4096, 100
	a, err := agree(client, server, &o)
	if err != nil {
		panic(err)
	}
	a.Chosen = 0
	peak, p99 := 1234567.891, 3.25
	half := Bandwidth{Bytes: 1 << 20, Operations: 16, Seconds: 1, AverageMiB: 11000, AverageGbps: 92.2747, Mops: 0.176, PeakMiB: &peak}
	sum := addBandwidth(half, half)
	return &Report{Schema: Schema, Role: "client", Client: client, Server: server, Options: &o, Agreement: a, Events: []string{"rxe0 port 1 of hosta: port 1: port down"}, Rows: []Row{
		{Test: "write", Bytes: 65536, Iterations: 2000, QPs: 2, Bandwidth: &sum, Directions: []Direction{{"client", half}, {"server", half}}, Checked: 4, Counters: []Moved{{"server", "duplicate_request", 12, meansAgain}}},
		{Test: "write", Bytes: 8 << 20, Iterations: 2000, QPs: 2, Bandwidth: &half, Checked: 1, Fault: &Fault{Test: "write", Bytes: 8 << 20, QP: 1, Round: "checked round 1", Host: "hostb", Wrong: 3, First: 7, Last: 99, Expected: 0x3a, Found: 0xa5}},
		{Test: "read latency", Bytes: 2, Iterations: 1000, QPs: 1, Latency: &Latency{Samples: 500, MinUS: 1.5, MedianUS: 2, MeanUS: 2.1, P99US: &p99, MaxUS: 123456.78, StdevUS: 0.25}, Checked: 4},
	}}
}

// Columns stand under their headings, whatever the figures.
func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	r, table := sampleReport(), NewTable(&b)
	table.Header(r)
	for i := range r.Rows {
		table.Row(&r.Rows[i])
	}
	table.Footer(r)
	text := b.String()
	for _, s := range []string{
		"# client hosta: rxe0 port 1, Ethernet, rate unknown, MTU 1024, host memory, CPU not bound\n", "# server hostb: rxe0 port 1, Ethernet, 100 Gb/s, MTU 4096",
		"# path: GID 1 (10.77.0.1) to 1 (10.77.0.2): RoCE v2, IPv4, same subnet 10.77.0.0/24; MTU 1024\n", "#   other: GID 0 (fe80::1) to 0 (fe80::2)", "# note: the MTUs differ",
		"# RC, 2 QPs, depth 128, 1000 iterations a QP, both directions, rates added, 3 checked rounds a size\n", "posted by server: 11000.00 MiB/s", "#    duplicate_request of the server moved by 12: packets came a second time", "WRONG",
		"QP 1, checked round 1, found on hostb: 3 of 8388608 bytes are wrong, the first at offset 7: expected 0x3a, found 0xa5, the last at 99", "# device event: ", "No sample is left out",
	} {
		if !strings.Contains(text, s) {
			t.Errorf("%q is not in\n%s", s, text)
		}
	}
	var heading string
	rows := 0
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "#  test"):
			heading = line
		case strings.HasPrefix(line, "   "):
			rows++
			aligned(t, heading, line)
		}
	}
	if rows != len(r.Rows) || table.Err() != nil {
		t.Errorf("%d rows, %v:\n%s", rows, table.Err(), text)
	}
}

// aligned wants each right-aligned column to end where its heading ends. Headings have single blanks within, two or more between.
func aligned(t *testing.T, heading, row string) {
	t.Helper()
	for i := 2; i < len(heading)-2; i++ {
		end := heading[i] != ' ' && heading[i+1] == ' ' && heading[i+2] == ' '
		if name := strings.Fields(heading[:i+1]); end && name[len(name)-1] != "test" && (row[i] == ' ' || row[i+1] != ' ') {
			t.Errorf("no column ends at %d:\n%s%s", i, heading, row)
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestTableWriteError(t *testing.T) {
	t.Parallel()
	table := NewTable(fullDisk{})
	table.Row(&sampleReport().Rows[0])
	if table.Err() == nil {
		t.Error("a failed write is not told")
	}
}

// The report survives JSON.
func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := sampleReport()
	r.Started, r.Ended = time.Unix(1, 0).UTC(), time.Unix(2, 0).UTC()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	for i := range r.Agreement.Pairs {
		r.Agreement.Pairs[i].score = 0 // only for sorting
	}
	if !reflect.DeepEqual(&back, r) {
		t.Errorf("\n%+v\n%+v", back, r)
	}
}
