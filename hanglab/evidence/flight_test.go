package evidence

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/commprobe/commprobe/hanglab/flight"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func pickled(t testing.TB, d *flight.Dump) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := d.WritePickle(&w); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func jsoned(t testing.TB, d *flight.Dump) []byte {
	t.Helper()
	var w bytes.Buffer
	if err := d.WriteJSON(&w); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func read(t testing.TB, file []byte) *FlightDump {
	t.Helper()
	d, err := ReadFlight(bytes.NewReader(file), "trace_0")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// odd has what synthetic has not: every width of integer, missing and empty things, text to be escaped.
func odd() *flight.Dump {
	d := synthetic(40, true)
	d.Version = "2.10"
	d.Status = append(d.Status, flight.GroupStatus{PGID: 12, LastEnqueued: -1, LastStarted: -1, LastCompleted: -1})
	d.Entries[3].InputSizes = [][]int64{{}, {1 << 40, math.MaxInt64}, {math.MinInt64, -1}}
	d.Entries[3].InputDtypes = []string{"Float", "Float", "Byte"}
	d.Entries[4].InputSizes, d.Entries[4].InputDtypes = [][]int64{}, []string{}
	d.Entries[5].DurationMs = new(0.0)
	d.Entries[6].DurationMs = new(1e-7)
	d.Entries[7].ThreadName = "Fäden \"\\\n\t\x01 <&> \U0001F600"
	d.Entries[8].State, d.Entries[8].TimeDiscoveredStartedNs, d.Entries[8].TimeDiscoveredCompletedNs = flight.Started, new(int64(5)), nil
	d.Entries[9].ProfilingName, d.Entries[9].IsP2P, d.Entries[9].P2PSeqID = "nccl:send 0->3", true, 70000
	d.Entries[10].Frames = []flight.Frame{}
	d.Entries[11].Frames = nil
	d.Entries[12].TimeoutMs = -1
	return d
}

func TestRoundTrip(t *testing.T) {
	for name, want := range map[string]*flight.Dump{"synthetic": synthetic(300, true), "odd": odd(), "empty": {Version: "2.10"}} {
		t.Run(name, func(t *testing.T) {
			want.Version = "2.10"
			got := read(t, pickled(t, want))
			if got.Form != "pickle" || got.Rank != 0 || len(got.Warnings) > 0 || got.Cut || got.CommLibKey != "comm_lib_version" {
				t.Errorf("form %q, rank %d, warnings %v, cut %t, key %q", got.Form, got.Rank, got.Warnings, got.Cut, got.CommLibKey)
			}
			if diff := cmp.Diff(want, got.Dump(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("pickle (-wrote +read):\n%s", diff)
			}
			got = read(t, jsoned(t, want))
			if got.Form != "json" || len(got.Warnings) > 0 || got.Cut {
				t.Errorf("form %q, warnings %v, cut %t", got.Form, got.Warnings, got.Cut)
			}
			noFrames := cmpopts.IgnoreFields(flight.Entry{}, "Frames")
			if diff := cmp.Diff(want, got.Dump(), cmpopts.EquateEmpty(), noFrames, cmpopts.SortSlices(byName)); diff != "" {
				t.Errorf("json (-wrote +read):\n%s", diff)
			}
		})
	}
}

func byName(a, b flight.GroupStatus) bool { return a.PGID < b.PGID }

// TestReadInPieces: what is read must not depend on where the reader's buffer ends.
func TestReadInPieces(t *testing.T) {
	d := odd()
	for name, file := range map[string][]byte{"pickle": pickled(t, d), "json": jsoned(t, d)} {
		want := read(t, file).Dump()
		for pieces, r := range map[string]io.Reader{"bytes": iotest.OneByteReader(bytes.NewReader(file)), "data with EOF": iotest.DataErrReader(bytes.NewReader(file))} {
			got, err := ReadFlight(r, "trace_0")
			if err != nil {
				t.Fatalf("%s in %s: %v", name, pieces, err)
			}
			if diff := cmp.Diff(want, got.Dump()); diff != "" {
				t.Errorf("%s in %s (-whole +pieces):\n%s", name, pieces, diff)
			}
		}
	}
}

// TestCut cuts a dump at every byte: what comes back is a beginning of the entries, the counters and groups as far as they are whole, and an error.
func TestCut(t *testing.T) {
	for _, form := range []struct {
		name string
		file []byte
	}{{"pickle", pickled(t, synthetic(6, true))}, {"json", jsoned(t, synthetic(6, false))}} {
		whole := read(t, form.file)
		most, pool := 0, NewFlightPool()
		for n := 1; n < len(form.file); n++ {
			got, err := pool.Read(bytes.NewReader(form.file[:n]), "trace_3")
			var where *FlightError
			if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &where) || where.Offset > int64(n) || got == nil || !got.Cut || got.Rank != 3 {
				t.Fatalf("%s cut at %d: dump %+v, error %v", form.name, n, got, err)
			}
			if diff := cmp.Diff(whole.Entries[:len(got.Entries)], got.Entries, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%s cut at %d (-whole +cut):\n%s", form.name, n, diff)
			}
			if len(got.Entries) < most || !cmp.Equal(got.Groups, whole.Groups[:len(got.Groups)], cmpopts.EquateEmpty()) ||
				!slices.Equal(got.Status, whole.Status[:len(got.Status)]) {
				t.Fatalf("%s cut at %d: %d entries after %d, groups %v, status %v", form.name, n, len(got.Entries), most, got.Groups, got.Status)
			}
			most = len(got.Entries)
		}
		if most != len(whole.Entries) {
			t.Errorf("%s: only %d of %d entries in the longest piece", form.name, most, len(whole.Entries))
		}
	}
}

// TestCutKeepsCounters: a rank killed while it wrote its entries has said before how far its groups were.
func TestCutKeepsCounters(t *testing.T) {
	file := pickled(t, synthetic(2000, false))
	got, err := ReadFlight(bytes.NewReader(file[:len(file)/2]), "trace_0")
	if err == nil || len(got.Entries) < 900 || len(got.Groups) != 2 || len(got.Status) != 2 || got.CommLibVersion != "2.28.9" || got.Version != "2.10" {
		t.Errorf("error %v, %d entries, groups %v, status %v, version %q", err, len(got.Entries), got.Groups, got.Status, got.Version)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("cut off here, after %d whole entries", len(got.Entries))) {
		t.Errorf("the error does not say how much there is: %v", err)
	}
	if name, by := got.GroupName(1); name != "1" || by != NameByEntries {
		t.Errorf("group of pg_id 1 is %q by %v", name, by)
	}
}

func TestReaderFails(t *testing.T) {
	broken := errors.New("input/output error")
	file := pickled(t, synthetic(2000, false))
	got, err := ReadFlight(io.MultiReader(bytes.NewReader(file[:len(file)/2]), iotest.ErrReader(broken)), "trace_0")
	if !errors.Is(err, broken) || got == nil || len(got.Entries) < 900 {
		t.Errorf("error %v, dump %v", err, got != nil)
	}
	if got, err := ReadFlight(iotest.ErrReader(broken), "trace_0"); !errors.Is(err, broken) || got != nil {
		t.Errorf("error %v, dump %v", err, got)
	}
}

// item is a pickle put together by hand.
func item(parts ...any) []byte {
	out := []byte{opProto, 2}
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			out = append(out, byte(p))
		case rune:
			out = append(out, byte(p))
		case string: // as text
			out = append(out, opBinUnicode)
			out = binary.LittleEndian.AppendUint32(out, uint32(len(p)))
			out = append(out, p...)
		case []byte:
			out = append(out, p...)
		}
	}
	return append(out, opStop)
}

func repeat(n int, parts ...any) []byte {
	one := item(parts...)
	return bytes.Repeat(one[2:len(one)-1], n)
}

// TestRefused has what no dump has: each must end in an error that names the matter, with no dump.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "the file is empty"},
		{"text", []byte("Traceback (most recent call last):\n"), "not a flight recorder dump"},
		{"zeros", make([]byte, 4096), "not a flight recorder dump"},
		{"white space", []byte(" \n"), "not a flight recorder dump"},
		{"a RAS report", []byte(`{"nccl_version": "2.30.7", "communicators_count": 0, "communicators": []}`), "none of the keys of a dump"},
		{"JSON of something", []byte(`{"version": "3", "results": []}`), "none of the keys of a dump"},
		{"JSON list", []byte(`[1, 2, 3]`), "not of entries"},
		{"JSON scalar in a list", []byte(`["a"]`), "not of entries"},
		{"broken JSON", []byte(`{"version" "2.10"}`), "where a colon belongs"},
		{"unquoted key", []byte(`{version: "2.10"}`), "where a key begins"},
		{"missing comma", []byte(`{"version": "2.10" "entries": []}`), "where a comma"},
		{"bad word", []byte(`{"version": nuLL}`), "no JSON value"},
		{"bad escape", []byte(`{"version": "\x"}`), "not valid JSON"},
		{"bad number", []byte(`{"version": 1-2}`), "is no number"},
		{"long number", []byte(`{"version": ` + strings.Repeat("1", 100) + `}`), "number of more than 64"},
		{"deep JSON", []byte(strings.Repeat("[", 100)), "nested more than"},
		{"command", item('c', []byte("os\nsystem\n"), "rm -rf /", opTuple1, 'R'), `"os"."system" to be called: refused`},
		{"near miss", item('c', []byte("torch.jit._pickle\nrestore_type_tags\n")), "refused"},
		{"long name", item('c', bytes.Repeat([]byte("a"), 300)), "name of a function"},
		{"call of data", item("x", "y", opTuple1, 'R'), "refused"},
		{"object", item('}', 'b'), "opcode 0x62"},
		{"stack global", item("os", "system", 0x93), "opcode 0x93"},
		{"persistent id", item("x", 'Q'), "opcode 0x51"},
		{"protocol", []byte{opProto, 9, '.'}, "protocol 9"},
		{"long string", item('X', []byte{0, 0, 0, 0x40}), "a string of 1073741824 bytes"},
		{"longer string", item(opBinUnicode8, bytes.Repeat([]byte{0xff}, 8)), "a string of 18446744073709551615 bytes"},
		{"no mark", item('}', 'u'), "was not begun"},
		{"no list", item('(', 'K', 1, 'e'), "more values than there are"},
		{"item for a number", item('K', 1, 'K', 2, 'a'), "no list"},
		{"key for a number", item('K', 1, "a", "b", 's'), "no dictionary"},
		{"half a pair", item('}', '(', "version", 'u'), "a key without a value"},
		{"memo from nowhere", item('h', 7), "place 7 of the memo"},
		{"memo gap", item("x", 'r', []byte{0, 0, 0, 0xff}), "no dump's memo"},
		{"memo gap used", item("x", 'q', 9, 'h', 8), "place 8 of the memo"},
		{"nothing to remember", item('q', 0), "more values than there are"},
		{"below the mark", item("x", '(', 0x85), "more values than there are"},
		{"pop below the mark", item("x", '(', '0'), "more values than there are"},
		{"left open", item('}', '('), "containers open"},
		{"nothing", item(), "containers open"},
		{"a number", item('K', 1), "not a flight recorder dump"},
		{"a list of numbers", item(']', '(', 'K', 1, 'e'), "not a flight recorder dump"},
		{"deep", item(repeat(100, ']', '(')), "nested more than"},
		{"wide", item(repeat(maxFlightStack+2, 'N')), "under construction"},
		{"many containers remembered", item(repeat(maxFlightMemo/2+1, '}', 'q', 0, '0', '}', 'q', 1, '0')), "containers in the memo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadFlight(bytes.NewReader(c.file), "trace_0")
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "trace_0: at byte ") || got != nil {
				t.Errorf("dump %v, error %v, want one with %q", got != nil, err, c.want)
			}
		})
	}
	if _, err := ReadFlight(strings.NewReader(""), "x"); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty file is not ErrEmpty: %v", err)
	}
	if _, err := ReadFlight(strings.NewReader("no"), "x"); !errors.Is(err, ErrNotFlight) {
		t.Errorf("a text is not ErrNotFlight: %v", err)
	}
}

// TestBomb: each level refers to the one before twice. 40 levels are 10^12 sizes if someone spells them out.
func TestBomb(t *testing.T) {
	parts := []any{'}', '(', "profiling_name", "nccl:all_reduce", "input_sizes", ']', '(', 'K', 1, 'K', 2, 'e', 'q', 0}
	for level := range 40 {
		parts = append(parts, '0', ']', '(', 'h', level, 'h', level, 'e', 'q', level+1)
	}
	parts = append(parts, 'u', 'q', 200)
	entry := item(parts...)
	got := read(t, item(']', '(', entry[2:len(entry)-1], 'e'))
	if len(got.Entries) != 1 || len(got.Entries[0].Call.InputSizes) != 2 {
		t.Errorf("%+v", got.Entries)
	}
}

// TestOldForms: format none (a bare list), 1.x with one sequence number, wrapped lists of very old PyTorch, other libraries' keys.
func TestOldForms(t *testing.T) {
	entry := func(seq int) []byte {
		one := item('}', '(', "pg_id", 'K', 0, "seq_id", 'K', seq, "profiling_name", "nccl:all_reduce", "input_sizes",
			'c', []byte("torch.jit._pickle\nbuild_intlist\n"), ']', '(', 'K', 5, 'e', opTuple1, 'R', 0x85, "state", "scheduled", 'u')
		return one[2 : len(one)-1]
	}
	tagged := item('c', []byte("torch.jit._pickle\nrestore_type_tag\n"), 'q', 0, ']', '(', entry(3), entry(4), 'e', "List[Any]", opTuple2, 'R')
	for name, file := range map[string][]byte{"bare": item(']', '(', entry(3), entry(4), 'e'), "tagged": tagged} {
		got := read(t, file)
		if len(got.Entries) != 2 || got.Entries[1].CollectiveSeqID != 4 || got.Version != "" || got.AtLeast(0, 0) || len(got.Warnings) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if diff := cmp.Diff([][]int64{{5}}, got.Entries[0].Call.InputSizes); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	got := read(t, item('}', '(', "version", "1.4", "hccl_version", "8.0", "entries", ']', '(', entry(9), 'e', "hccl_comm_state",
		'}', '(', "0xab", '}', '(', "rank", "3", "opCount", 'K', 9, 'u', 'u', "flavour", 'N', 'u'))
	if got.Entries[0].CollectiveSeqID != 9 || got.CommLibKey != "hccl_version" || got.CommLibVersion != "8.0" || !got.AtLeast(1, 4) || got.AtLeast(1, 5) {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(map[string]map[string]string{"0xab": {"rank": "3", "opCount": "9"}}, got.CommState); diff != "" {
		t.Error(diff)
	}
	if len(got.Warnings) != 1 || got.Warnings[0].Code != "unknown-key" || !strings.Contains(got.Warnings[0].Text, `"flavour"`) {
		t.Errorf("warnings %v", got.Warnings)
	}
	if list := read(t, item(']')); list.Entries != nil || read(t, []byte("[]")).Cut {
		t.Errorf("an empty bare list: %+v", list)
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name, code string
		file       []byte
	}{
		{"after a pickle", "trailing-bytes", append(pickled(t, synthetic(1, false)), "\x80\x02}."...)},
		{"after JSON", "trailing-bytes", append(jsoned(t, synthetic(1, false)), "{}"...)},
		{"new key", "unknown-key", []byte(`[{"profiling_name": "nccl:x", "temperature": 3}]`)},
		{"no number", "odd-value", []byte(`[{"profiling_name": "nccl:x", "op_id": "many"}]`)},
		{"huge number", "odd-value", item(']', '(', '}', '(', "profiling_name", "nccl:x", "op_id", opLong1, 9, make([]byte, 8), 1, 'u', 'e')},
		{"no duration", "odd-value", []byte(`[{"profiling_name": "nccl:x", "duration_ms": -3.5}]`)},
		{"no sizes", "odd-value", []byte(`[{"profiling_name": "nccl:x", "input_sizes": 3}]`)},
		{"no pair", "odd-value", []byte(`[{"profiling_name": "nccl:x", "process_group": ["0"]}]`)},
		{"no list", "odd-value", []byte(`{"entries": "none"}`)},
		{"no entry", "foreign-item", []byte(`{"entries": [{"profiling_name": "nccl:x"}, 3]}`)},
		{"members", "group-ranks", []byte(`{"pg_config": {"0": {"name": "0", "desc": "d", "ranks": "[0, x]"}}}`)},
		{"no group", "odd-value", []byte(`{"pg_config": {"0": 3}}`)},
		{"no counters", "odd-value", []byte(`{"pg_status": {"0": 3}}`)},
		{"two names", "two-names", []byte(`[{"profiling_name": "nccl:x", "process_group": ["0", ""]}, {"profiling_name": "nccl:x", "process_group": ["1", ""]}]`)},
		{"late key", "late-key", item(']', '(', '}', '(', "profiling_name", "nccl:x", 'u', "op_id", 'K', 1, 's', 'e')},
	} {
		got := read(t, c.file)
		if len(got.Warnings) != 1 || got.Warnings[0].Code != c.code {
			t.Errorf("%s: %v, want one of %s", c.name, got.Warnings, c.code)
		}
	}
}

func TestGroupName(t *testing.T) {
	entries := func(names ...string) string {
		var out []string
		for id, name := range names {
			if name != "-" {
				out = append(out, fmt.Sprintf(`{"pg_id": %d, "process_group": [%q, "d"], "profiling_name": "nccl:x"}`, id, name))
			}
		}
		return strings.Join(out, ",")
	}
	keys := func(format string, names ...string) string {
		var out []string
		for _, name := range names {
			out = append(out, fmt.Sprintf(format, name))
		}
		return strings.Join(out, ",")
	}
	for _, c := range []struct {
		name           string
		entries        string
		groups, status []string
		want           []string     // of pg_id 0, 1, 2
		by             []NameSource // 0 unknown, 1 by order, 2 by entries
	}{
		{"entries", entries("a", "b"), nil, nil, []string{"a", "b", ""}, []NameSource{2, 2, 0}},
		{"order is numeric", "", []string{"10", "9", "2"}, []string{"0", "1", "2"}, []string{"2", "9", "10"}, []NameSource{1, 1, 1}},
		{"entries first", entries("-", "9"), []string{"2", "9", "10"}, []string{"0", "1", "2"}, []string{"2", "9", "10"}, []NameSource{1, 2, 1}},
		{"counts differ", entries("-", "9"), []string{"2", "9"}, []string{"0", "1", "2"}, []string{"", "9", ""}, []NameSource{0, 2, 0}},
		{"hashed name", "", []string{"2", "9", "ab12"}, []string{"0", "1", "2"}, []string{"", "", ""}, []NameSource{0, 0, 0}},
		{"entry against", entries("-", "10"), []string{"2", "9", "10"}, []string{"0", "1", "2"}, []string{"", "10", ""}, []NameSource{0, 2, 0}},
	} {
		got := read(t, []byte(fmt.Sprintf(`{"entries": [%s], "pg_config": {%s}, "pg_status": {%s}}`, c.entries,
			keys(`"%[1]s": {"name": "%[1]s", "desc": "d", "ranks": "[0]"}`, c.groups...), keys(`"%s": {"last_enqueued_collective": "3"}`, c.status...))))
		for id := range 3 {
			if name, by := got.GroupName(int64(id)); name != c.want[id] || by != c.by[id] {
				t.Errorf("%s: pg_id %d is %q by %d, want %q by %d", c.name, id, name, by, c.want[id], c.by[id])
			}
		}
	}
}

func TestRankOfName(t *testing.T) {
	for name, want := range map[string]int{
		"/tmp/nccl_trace_rank_node02_5": 5, "trace_0": 0, "_dump_15": 15, "rank_12.json": 12, "a/b3/rank_7.pickle": 7, "comm_lib_trace_rank_1023": 1023,
		"trace": -1, "torchcomms_fr_trace_1724779239.txt": -1, "": -1, "dump.json": -1, "v2.10": 10, "007": 7,
	} {
		got, ok := RankOfName(name)
		if got != want || ok != (want >= 0) {
			t.Errorf("%q: %d, %t, want %d", name, got, ok, want)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for version, want := range map[string]bool{"2.10": true, "2.9": true, "2.8": false, "3.0": true, "3": true, "1.99": false, "": false, "x": false, "2": false} {
		if got := (&FlightDump{Version: version}).AtLeast(2, 9); got != want {
			t.Errorf("%q at least 2.9: %t", version, got)
		}
	}
}

// TestShared: through a pool, ranks that did the same point to the same call, stack and member list.
func TestShared(t *testing.T) {
	pool := NewFlightPool()
	var dumps []*FlightDump
	for _, file := range [][]byte{pickled(t, synthetic(50, true)), pickled(t, synthetic(60, true)), jsoned(t, synthetic(50, false))} {
		d, err := pool.Read(bytes.NewReader(file), "trace_0")
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
	for i := range 50 {
		a, b, c := dumps[0].Entries[i], dumps[1].Entries[i], dumps[2].Entries[i]
		if a.Call != b.Call || a.Call != c.Call || a.Stack != b.Stack || c.Stack != nil || a.Call == dumps[0].Entries[(i+1)%50].Call {
			t.Fatalf("entry %d is not shared as it should be", i)
		}
	}
	if &dumps[0].Groups[0].Ranks[0] != &dumps[2].Groups[0].Ranks[0] {
		t.Error("the members of a group are not shared")
	}
}

// TestPoolAtOnce is for the race detector, and for one file's leftovers in the next.
func TestPoolAtOnce(t *testing.T) {
	pool := NewFlightPool()
	files := [][]byte{pickled(t, odd()), jsoned(t, synthetic(30, false)), pickled(t, synthetic(300, true)), []byte("nothing"), pickled(t, odd())[:3000]}
	failed := make(chan error)
	for worker := range 4 {
		go func() {
			var first error
			for i := range 50 {
				n := (worker + i) % len(files)
				d, err := pool.Read(bytes.NewReader(files[n]), "trace_0")
				if (err != nil) != (n > 2) {
					first = fmt.Errorf("file %d: %w", n, err)
				} else if n < 3 && len(d.Entries) != []int{40, 30, 300}[n] {
					first = fmt.Errorf("file %d has %d entries", n, len(d.Entries))
				}
			}
			failed <- first
		}()
	}
	for range 4 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}
