package flight

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ringBytes is the ring that csrc's TestFlightFixture writes with -update and otherwise compares.
func ringBytes(t testing.TB) []byte {
	t.Helper()
	f, err := os.Open("testdata/ring.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestDecodeRing compares all that csrc wrote into the fixture: 26 calls, the last 16 in a ring of as many entries, some sharing a
// record, the last cut off in the middle.
func TestDecodeRing(t *testing.T) {
	got, err := DecodeRing(ringBytes(t))
	if err != nil {
		t.Fatal(err)
	}
	step := []Frame{{"main.step", "/src/main.go", 42}, {"main.main", "/src/main.go", 7}}
	other := []Frame{{"other", "other.go", 1}}
	want := &Ring{
		Rank: 3, World: 4, PID: 4242, Host: "node-1", Library: "2.28.9", WallOffsetNs: 1_700_000_000_000_000_000, HeartbeatNs: 5_000_000,
		Phase: "step 5: all_reduce", PhaseNs: 4_500_000, Appended: 26, Overwritten: 10, Torn: 1,
		Groups: []RingGroup{
			{Name: "0", Desc: "default_pg", Members: []int{0, 1, 2, 3}, CommID: 0xabcdef, Coll: RingLast{26, 20, 12}, P2P: RingLast{-1, -1, -1}},
			{Name: "17", Desc: "pipeline", Members: []int{2, 3}, Coll: RingLast{-1, -1, -1}, P2P: RingLast{4, -1, 4}},
		},
	}
	for i := uint64(10); i < 12; i++ {
		at := int64(1000 * i)
		r := RingRecord{
			ID: i + 1, Frames: step, Kind: RingAllReduce, DType: 7, TID: 7, CollSeq: i + 1, OpID: i + 1, Count: 100, InCount: 100, OutCount: 100,
			CreatedNs: at + 1000, TimeoutNs: 4_000_000_000, State: Completed, StartedNs: at + 1100, CompletedNs: at + 1500, DurationNs: 400,
		}
		if i%4 != 3 { // follows from the next record that is known to be complete
			r.Bounded, r.StartedNs, r.DurationNs, r.CompletedNs = true, 0, -1, int64(1000*(i/4*4+3)+1500)
		}
		want.Records = append(want.Records, r)
	}
	base := RingRecord{TID: 7, TimeoutNs: 4_000_000_000, State: Scheduled, DurationNs: -1}
	add := func(change func(r *RingRecord)) {
		r := base
		r.ID = uint64(len(want.Records) + 11)
		r.CreatedNs = int64(1000 * r.ID)
		change(&r)
		want.Records = append(want.Records, r)
	}
	pair := func(r *RingRecord, kind RingKind, op uint64) {
		r.Group, r.Stream, r.Kind, r.P2P, r.Coalesced, r.P2PSeq, r.OpID = 1, 1, kind, true, true, 1, op
	}
	add(func(r *RingRecord) {
		pair(r, RingSend, 1)
		r.Frames, r.DType, r.Peer, r.Count, r.InCount = other, 9, 1, 64, 64
	})
	add(func(r *RingRecord) {
		pair(r, RingRecv, 2)
		r.Frames, r.DType, r.Peer, r.Count, r.OutCount, r.Joined = other, 9, 1, 64, 64, true
	})
	add(func(r *RingRecord) {
		pair(r, RingGroupEnd, 2)
		r.DType, r.Op, r.Peer, r.Joined = -1, -1, -1, true
	})
	add(func(r *RingRecord) {
		r.Kind, r.Peer, r.Count, r.InCount, r.OutCount = RingBroadcast, 2, 1<<40, 1<<40, 1<<40
		r.CollSeq, r.P2PSeq, r.OpID, r.State, r.StartedNs = 20, 3, 30, Started, 16_500
	})
	add(func(r *RingRecord) {
		r.Group, r.Stream, r.Kind, r.DType, r.Op, r.Peer, r.Retired = -1, 2, RingGraph, -1, 4, -1, true
	})
	for k := range uint64(4) { // one record, and the call after it that failed
		add(func(r *RingRecord) {
			r.Kind, r.DType, r.Count, r.CollSeq, r.P2PSeq, r.OpID, r.CreatedNs, r.TimeoutNs, r.Bounded = RingAllReduce, 7, 10, 21+k, 3, 31+k, 18_000, 0, true
		})
	}
	add(func(r *RingRecord) {
		r.Kind, r.DType, r.Count, r.CollSeq, r.P2PSeq, r.OpID, r.CreatedNs, r.TimeoutNs, r.Bounded = RingAllReduce, 7, 10, 25, 3, 35, 18_000, 0, true
		r.Retired = true
	})
	for k := range uint64(3) {
		add(func(r *RingRecord) {
			r.Group, r.Stream, r.Kind, r.P2P, r.P2PSeq, r.OpID, r.CreatedNs, r.TimeoutNs = 1, 1, RingSend, true, 2+k, 3+k, 20_000, 0
			r.State, r.CompletedNs, r.Bounded = Completed, 21_000, k < 2
			if k == 2 {
				r.DurationNs = 7
			}
		})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestDecodeRingRuns: calls are numbered through, whether their run is over or not, and those beyond the ring's promise are left out.
func TestDecodeRingRuns(t *testing.T) {
	repeat := func(raw []byte, id, n uint64) { put64(raw, ringEntriesAt+int((id-1)%4)*ringEntryBytes+144, n) }
	for _, c := range []struct {
		name                  string
		change                func(raw []byte)
		ids                   []uint64
		appended, overwritten uint64
	}{
		{"over", func(raw []byte) { put64(raw, 72, 2); repeat(raw, 1, 1<<8|2) }, []uint64{1, 2, 3, 4}, 4, 0},
		{"open", func(raw []byte) { put32(raw, ringEntriesAt+ringEntryBytes+116, ringOpen); repeat(raw, 2, 2<<8|1) }, []uint64{1, 2, 3}, 3, 0},
		{"of another record", func(raw []byte) { repeat(raw, 2, 1<<8|2) }, []uint64{1, 2}, 2, 0},
		{"more than the ring has entries", func(raw []byte) { put64(raw, 72, 100); repeat(raw, 1, 1<<8|90); repeat(raw, 2, 2<<8|2) }, []uint64{99, 100, 101, 102}, 102, 98},
		{"more than the header says", func(raw []byte) { repeat(raw, 2, 2<<8|1) }, []uint64{1, 2, 3}, 3, 0},
	} {
		raw := emptyRing()
		put64(raw, 64, 2)
		putRecord(raw, 1, 0, 0, 0)
		putRecord(raw, 2, 0, 0, 0)
		c.change(raw)
		r, err := DecodeRing(raw)
		if err != nil {
			t.Fatal(err)
		}
		var ids []uint64
		for _, x := range r.Records {
			ids = append(ids, x.ID)
		}
		if !slices.Equal(ids, c.ids) || r.Appended != c.appended || r.Overwritten != c.overwritten {
			t.Errorf("%s: calls %d of %d, %d overwritten; want %d of %d, %d", c.name, ids, r.Appended, r.Overwritten, c.ids, c.appended, c.overwritten)
		}
	}
}

// emptyRing is a ring of four entries without any record.
func emptyRing() []byte {
	raw := make([]byte, ringEntriesAt+4*ringEntryBytes)
	copy(raw, ringMagic)
	for at, v := range map[int]uint32{8: ringVersion, 12: ringEntryBytes, 16: 4, 20: ringGroupsMax, 24: ringSitesMax, 28: ringTextBytes} {
		binary.LittleEndian.PutUint32(raw[at:], v)
	}
	return raw
}

func put32(raw []byte, at int, v uint32) { binary.LittleEndian.PutUint32(raw[at:], v) }
func put64(raw []byte, at int, v uint64) { binary.LittleEndian.PutUint64(raw[at:], v) }

// putRecord writes a whole record with nothing in it but its numbers and its state.
func putRecord(raw []byte, id uint64, stream, state, flags uint32) {
	e := raw[ringEntriesAt+int((id-1)%4)*ringEntryBytes:][:ringEntryBytes]
	clear(e)
	put64(e, 0, id)
	put64(e, 184, id)
	put32(e, 24, stream)
	put32(e, 112, state)
	put32(e, 116, flags)
	put64(e, 128, 100*id)
}

func TestDecodeRingTorn(t *testing.T) {
	type outcome struct {
		IDs                   []uint64
		Torn                  int
		Appended, Overwritten uint64
	}
	for _, c := range []struct {
		name   string
		change func(raw []byte)
		want   outcome
	}{
		{"empty", func([]byte) {}, outcome{}},
		{"not yet full", func(raw []byte) {
			put64(raw, 64, 2)
			putRecord(raw, 1, 0, 0, 0)
			putRecord(raw, 2, 0, 0, 0)
		}, outcome{[]uint64{1, 2}, 0, 2, 0}},
		{"number given, nothing written", func(raw []byte) {
			put64(raw, 64, 2)
			putRecord(raw, 1, 0, 0, 0)
		}, outcome{[]uint64{1}, 1, 2, 0}},
		{"beginning and end differ", func(raw []byte) {
			put64(raw, 64, 5)
			for id := uint64(2); id <= 5; id++ {
				putRecord(raw, id, 0, 0, 0)
			}
			put64(raw, ringEntriesAt+ringEntryBytes+184, 6)
		}, outcome{[]uint64{3, 4, 5}, 1, 5, 1}},
		{"not overwritten yet", func(raw []byte) {
			put64(raw, 64, 5)
			for id := uint64(1); id <= 4; id++ {
				putRecord(raw, id, 0, 0, 0)
			}
		}, outcome{[]uint64{2, 3, 4}, 1, 5, 1}},
		{"newer than the header", func(raw []byte) {
			put64(raw, 64, 5)
			for id := uint64(4); id <= 7; id++ {
				putRecord(raw, id, 0, 0, 0)
			}
		}, outcome{[]uint64{4, 5, 6, 7}, 0, 7, 3}},
		{"in another's place", func(raw []byte) {
			put64(raw, 64, 1)
			putRecord(raw, 2, 0, 0, 0)
			copy(raw[ringEntriesAt:], raw[ringEntriesAt+ringEntryBytes:][:ringEntryBytes])
			clear(raw[ringEntriesAt+ringEntryBytes:])
		}, outcome{nil, 1, 1, 0}},
		{"no such state", func(raw []byte) {
			put64(raw, 64, 1)
			putRecord(raw, 1, 0, 3, 0)
		}, outcome{nil, 1, 1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := emptyRing()
			c.change(raw)
			r, err := DecodeRing(raw)
			if err != nil {
				t.Fatal(err)
			}
			got := outcome{nil, r.Torn, r.Appended, r.Overwritten}
			for _, x := range r.Records {
				got.IDs = append(got.IDs, x.ID)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestDecodeRingBounded: a record without an event of its own has the state that its stream's order gives, and no other stream's.
func TestDecodeRingBounded(t *testing.T) {
	raw := emptyRing()
	put64(raw, 64, 4)
	putRecord(raw, 1, 0, 0, ringBounded)             // before 3
	putRecord(raw, 2, 1, 0, ringBounded)             // alone on its stream
	putRecord(raw, 3, 0, 2, 0)                       // complete at 300
	putRecord(raw, 4, 0, 1, ringBounded|ringRetired) // after it, and given up
	r, err := DecodeRing(raw)
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		State       State
		CompletedNs int64
		Bounded     bool
	}
	var got []outcome
	for _, x := range r.Records {
		got = append(got, outcome{x.State, x.CompletedNs, x.Bounded})
	}
	if d := cmp.Diff([]outcome{{Completed, 300, true}, {Scheduled, 0, true}, {Completed, 300, false}, {Started, 0, true}}, got); d != "" {
		t.Error(d)
	}
}

func TestDecodeRingRefuses(t *testing.T) {
	group := func(raw []byte, i int) []byte { return raw[ringGroupsAt+i*ringGroupBytes:] }
	for _, c := range []struct {
		name   string
		change func(raw []byte) []byte
		want   string
	}{
		{"nothing", func([]byte) []byte { return nil }, "0 bytes"},
		{"cut before its entries", func(raw []byte) []byte { return raw[:ringEntriesAt-1] }, "cut, or not a ring"},
		{"cut in its entries", func(raw []byte) []byte { return raw[:len(raw)-1] }, "4 entries need"},
		{"zeros", func(raw []byte) []byte { return make([]byte, len(raw)) }, "CPFLIGHT"},
		{"version", func(raw []byte) []byte { put32(raw, 8, 1); return raw }, "format version 1"},
		{"counters that no writer reaches", func(raw []byte) []byte { put64(raw, 72, 1<<60); return raw }, "more calls: damaged"},
		{"size of entries", func(raw []byte) []byte { put32(raw, 12, 64); return raw }, "64 entry bytes"},
		{"no entries", func(raw []byte) []byte { put32(raw, 16, 0); return raw }, "0 entries"},
		{"number of entries", func(raw []byte) []byte { put32(raw, 16, 3); return raw }, "not a power of two"},
		{"too many entries", func(raw []byte) []byte { put32(raw, 16, 1<<31); return raw }, "not a power of two up to"},
		{"size of tables", func(raw []byte) []byte { put32(raw, 24, 9); return raw }, "9 call sites"},
		{"groups", func(raw []byte) []byte { put32(raw, 56, 65); return raw }, "65 groups"},
		{"sites", func(raw []byte) []byte { put32(raw, 60, 1<<30); return raw }, "call sites are used"},
		{"members", func(raw []byte) []byte { put32(raw, 56, 1); put32(group(raw, 0), 28, 1<<30); return raw }, "group 0 has 1073741824 members"},
		{"name", func(raw []byte) []byte {
			put32(raw, 56, 2)
			put32(group(raw, 1), 8, ringTextBytes)
			put32(group(raw, 1), 12, 1)
			return raw
		}, "group 1: text at 262144 of 1 bytes"},
		{"name that wraps around", func(raw []byte) []byte {
			put32(raw, 56, 1)
			put32(group(raw, 0), 8, 1<<32-1)
			put32(group(raw, 0), 12, 2)
			return raw
		}, "group 0: text"},
		{"sites that share their text", func(raw []byte) []byte {
			put32(raw, 60, 2)
			put32(raw, ringSitesAt+4, ringTextBytes)
			put32(raw, ringSitesAt+12, 1)
			return raw
		}, "call site 2: text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := DecodeRing(c.change(emptyRing()))
			if err == nil || r != nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "flight ring: ") {
				t.Errorf("gives %+v and %v, want an error with %q", r, err, c.want)
			}
		})
	}
}

func TestRingPhaseBeingWritten(t *testing.T) {
	raw := ringBytes(t)
	put32(raw, 288, 5)
	r, err := DecodeRing(raw)
	if err != nil || r.Phase != "" {
		t.Errorf("phase %q, %v", r.Phase, err)
	}
}

func TestRingKindText(t *testing.T) {
	for kind, want := range map[RingKind]string{RingAllReduce: "all_reduce", RingGraph: "graph", RingScatter: "scatter", 0: "kind_0", 12: "kind_12", 1 << 31: "kind_2147483648"} {
		if kind.String() != want {
			t.Errorf("kind %d is %q, want %q", uint32(kind), kind, want)
		}
	}
}

// FuzzDecodeRing patches a real ring in up to a few places: whole inputs would be too large to explore.
func FuzzDecodeRing(f *testing.F) {
	ring := ringBytes(f)
	f.Add([]byte{}, uint32(len(ring)))
	f.Add([]byte{16, 0, 0, 0, 255, 255, 255, 255}, uint32(len(ring)))
	f.Add([]byte{0, 16, 0, 0, 8, 0, 0, 0, 12, 16, 0, 0, 255, 255, 3, 0}, uint32(len(ring)))
	f.Fuzz(func(t *testing.T, patches []byte, length uint32) {
		raw := bytes.Clone(ring)
		for ; len(patches) >= 8; patches = patches[8:] {
			at := binary.LittleEndian.Uint32(patches) % uint32(len(raw)-3)
			copy(raw[at:], patches[4:8])
		}
		raw = raw[:min(int(length), len(raw))]
		r, err := DecodeRing(raw)
		if (r == nil) == (err == nil) {
			t.Fatalf("%v and %v", r, err)
		}
		if err != nil {
			return
		}
		last := r.Overwritten
		for _, x := range r.Records {
			if x.ID <= last || x.ID > r.Appended || x.Group < -1 || x.Group >= len(r.Groups) {
				t.Fatalf("record %d of group %d after record %d", x.ID, x.Group, last)
			}
			last = x.ID
		}
		if uint64(len(r.Records)+r.Torn) != r.Appended-r.Overwritten {
			t.Fatalf("%d records and %d torn ones of %d, %d overwritten", len(r.Records), r.Torn, r.Appended, r.Overwritten)
		}
	})
}
