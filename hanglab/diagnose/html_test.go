package diagnose

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/hanglab/evidence"
	"github.com/commprobe/commprobe/hanglab/flight"
)

// dumpsOf makes evidence of a job in which one rank's call has another size.
func dumpsOf(t testing.TB, ranks, calls, odd int) *evidence.Evidence {
	t.Helper()
	e := &evidence.Evidence{}
	pool := evidence.NewFlightPool()
	members := make([]int, ranks)
	for i := range members {
		members[i] = i
	}
	for r := range ranks {
		d := &flight.Dump{CommLibVersion: "2.28.9", Groups: []flight.Group{{Name: "0", Desc: "default_pg", Ranks: members}}}
		for c := range calls {
			size, state := int64(65536*(c+1)), flight.Completed
			if c == calls-1 {
				state = flight.Started
				if r == odd {
					size += 1024
				}
			}
			d.Entries = append(d.Entries, flight.Entry{
				GroupName: "0", GroupDesc: "default_pg", CollectiveSeqID: int64(c + 1), OpID: int64(c + 1), ProfilingName: "nccl:all_reduce",
				TimeCreatedNs: 1, InputSizes: [][]int64{{size}}, OutputSizes: [][]int64{{size}}, InputDtypes: []string{"Float"}, OutputDtypes: []string{"Float"},
				State: state, Frames: []flight.Frame{{Name: "<module>", File: "train.py", Line: 7}},
			})
		}
		var b bytes.Buffer
		if err := d.WritePickle(&b); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("trace_%d", r)
		data, err := pool.Read(&b, name)
		if err != nil {
			t.Fatal(err)
		}
		e.Dumps = append(e.Dumps, evidence.Dump{Where: evidence.Where{File: name}, Rank: r, Data: data})
		e.Inputs = append(e.Inputs, evidence.Input{Name: name, Kind: "flight_pickle", Rank: r})
	}
	return e
}

func htmlOf(t testing.TB, v *Verdict, e *evidence.Evidence) string {
	t.Helper()
	var b bytes.Buffer
	if err := v.WriteHTML(&b, e, "commprobe devel"); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The page loads nothing, its elements close, and what comes from evidence is text.
func TestHTMLStandsAlone(t *testing.T) {
	for name, v := range verdicts() {
		v.Evidence = append(v.Evidence, at(`<script>alert(1)</script>`, 3, `"><img src=x onerror=alert(1)>`, "javascript:alert(1)"))
		page := htmlOf(t, v, nil)
		for _, bad := range []string{"<script", "<img", "<link", "http:", "https:", "url(", "@import", "<iframe"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s: the page has %s", name, bad)
			}
		}
		if !strings.Contains(page, "&lt;script&gt;alert(1)") {
			t.Errorf("%s: the file's name is not there as text", name)
		}
		body := page[strings.Index(page, "<body"):strings.Index(page, "</html>")]
		d := xml.NewDecoder(strings.NewReader(strings.ReplaceAll(body, "<details open>", `<details open="">`)))
		d.Strict = true
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

// At 1,024 ranks rows that look the same are one, and columns where nothing happened are left out.
func TestHTMLFolds(t *testing.T) {
	v := &Verdict{Class: SizeMismatch, Ranks: []int{777}, Group: "0 (default_pg)", Sequence: 300, Op: "all_reduce", Confidence: 0.95}
	page := htmlOf(t, v, dumpsOf(t, 1024, 300, 777))
	if n := strings.Count(page, "<tr"); n != 1+2+1024 { // head, two rows, inputs
		t.Errorf("%d rows", n)
	}
	for _, want := range []string{
		`title="ranks 0-776, 778-1023"`, `title="rank 777"`, "calls 1 to 293, left out", "AR 19660800 S", "AR 19661824 S", "all_reduce 19661824 float, started",
		`class="run odd"`, "1024 ranks, calls 1 to 300", "train.py:7", `<th class="here">300</th>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	if len(page) > 300<<10 {
		t.Errorf("%d bytes", len(page))
	}
	first := regexp.MustCompile(`<tr[^>]*><th class="rank" title="([^"]+)`).FindStringSubmatch(page)
	if first == nil || first[1] != "rank 777" {
		t.Errorf("the accused rank is not the first row: %q", first)
	}
}

// A healthy group is closed, its end is there; a rank without calls is a row of its own; what a ring has lost is no missing call.
func TestHTMLRows(t *testing.T) {
	e := dumpsOf(t, 4, 30, -1)
	for i := range e.Dumps {
		d := e.Dumps[i].Data
		d.Entries[29].State = flight.Completed
	}
	v := &Verdict{Class: NotAHang, Sequence: -1}
	page := htmlOf(t, v, e)
	if strings.Contains(page, "<details open") || !strings.Contains(page, "all equal and complete") {
		t.Error("a healthy group is shown as one of interest")
	}
	e.Dumps[2].Data.Entries = nil
	e.Dumps[3].Data.Entries = slices.Delete(e.Dumps[3].Data.Entries, 27, 28)
	e.Dumps[3].Data.Status = []flight.GroupStatus{{LastCompleted: 30}}
	e.Dumps[1].Data.Entries = e.Dumps[1].Data.Entries[27:]
	page = htmlOf(t, v, e)
	for _, want := range []string{"rank 2 made no call 30", "rank 1&#39;s record begins after call 24", "rank 3 has completed call 28 by its counter", "<details open"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
}

// Calls of NCCL's own log make a grid as well.
func TestHTMLComms(t *testing.T) {
	e := &evidence.Evidence{}
	for r, n := range []int{3, 2} {
		c := &evidence.Comm{Where: evidence.Where{File: fmt.Sprintf("nccl.%d.log", r), Line: 1}, ID: "0xabc", Rank: r, NRanks: 2, HasOp: true}
		for i := range n {
			c.Calls = append(c.Calls, evidence.CommCall{Line: int32(10 + i), Op: "all_reduce", OpCount: int64(0x28a + i), Count: 100, DType: "float"})
		}
		e.Comms = append(e.Comms, c)
	}
	page := htmlOf(t, &Verdict{Class: SkippedCollective, Ranks: []int{1}, Group: "0xabc", Sequence: 652}, e)
	for _, want := range []string{"communicator 0xabc", "2 ranks, calls 650 to 652", "nccl.0.log:12", "rank 1 made no call 652"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
}

func BenchmarkHTML(b *testing.B) {
	e := dumpsOf(b, 1024, 2000, 777)
	v := &Verdict{Class: SizeMismatch, Ranks: []int{777}, Group: "0 (default_pg)", Sequence: 2000}
	for b.Loop() {
		if err := v.WriteHTML(io.Discard, e, ""); err != nil {
			b.Fatal(err)
		}
	}
}
