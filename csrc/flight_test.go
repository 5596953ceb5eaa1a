package csrc

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var updateFlight = flag.Bool("update", false, "rewrite the fixture of the flight ring that package hanglab/flight reads")

// The tests below look at the ring's bytes by the offsets of flight.h; package hanglab/flight, which this one must not import, reads whole rings.
const (
	flightEntriesAt  = 282624
	flightEntryBytes = 192
)

func newFlight(t testing.TB, entries int) *Flight {
	t.Helper()
	f, err := NewFlight(nil, entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

type rawEntry []byte

func (f *Flight) entry(raw []byte, id uint64) rawEntry {
	n := uint64(len(raw)-flightEntriesAt) / flightEntryBytes
	return raw[flightEntriesAt+(id-1)%n*flightEntryBytes:][:flightEntryBytes]
}

func (e rawEntry) u64(at int) uint64 { return binary.LittleEndian.Uint64(e[at:]) }
func (e rawEntry) u32(at int) uint32 { return binary.LittleEndian.Uint32(e[at:]) }

// whole is the id of a record that is not torn.
func (e rawEntry) whole() uint64 {
	if e.u64(0) != e.u64(184) {
		return 0
	}
	return e.u64(0)
}

// fixtureRing makes a ring with something in every field, also such that is left over and lost.
func fixtureRing(t *testing.T) []byte {
	f := newFlight(t, 16)
	f.SetRank(3, 4, "node-1", "2.28.9")
	f.SetPhase("step 4: a phase that another replaces")
	f.SetPhase("step 5: all_reduce")
	f.Beat(5_000_000)
	world, pair := f.AddGroup("0", "default_pg", []int{0, 1, 2, 3}), f.AddGroup("17", "pipeline", []int{2, 3})
	f.SetComm(world, 0xabcdef)
	site := f.AddSite("main.step\t/src/main.go\t42\nmain.main\t/src/main.go\t7\n")
	if world != 0 || pair != 1 || site != 1 || f.AddSite("main.step\t/src/main.go\t42\nmain.main\t/src/main.go\t7\n") != 1 || f.AddSite("other\tother.go\t1\n") != 2 {
		t.Fatalf("groups %d and %d, site %d", world, pair, site)
	}
	record := func(i int, r FlightRecord) uint64 {
		r.CreatedNs, r.TimeoutNs = int64(1000*i), 4_000_000_000
		return f.Append(r)
	}
	for i := range 12 { // as many as are overwritten, and some more
		id := record(i+1, FlightRecord{Group: 0, Site: 1, Kind: StepAllReduce, DType: 7, Count: 100, InCount: 100, OutCount: 100, Bounded: i%4 != 3})
		if i%4 == 3 {
			f.Start(id, int64(1000*i+1100))
			f.Complete(id, int64(1000*i+1500), 400)
		}
	}
	send := FlightRecord{Group: 1, Site: 2, Stream: 1, Kind: StepSend, DType: 9, Peer: 1, P2P: true, Count: 64, InCount: 64, Coalesced: true}
	record(13, send)
	send.Kind, send.Joined, send.InCount, send.OutCount = StepRecv, true, 0, 64
	record(14, send)
	record(15, FlightRecord{Group: 1, Stream: 1, Kind: StepGroupEnd, DType: -1, Op: -1, Peer: -1, P2P: true, Coalesced: true, Joined: true})
	record(16, FlightRecord{Group: 0, Kind: StepBroadcast, DType: 0, Peer: 2, Count: 1 << 40, InCount: 1 << 40, OutCount: 1 << 40, CollSeq: 20, P2PSeq: 3, OpID: 30})
	f.Start(16, 16_500)
	f.Retire(record(17, FlightRecord{Group: -1, Kind: StepGraph, DType: -1, Op: 4, Peer: -1, Stream: 2}))
	f.runOf(FlightRecord{Kind: StepAllReduce, DType: 7, Count: 10, CreatedNs: 18_000, Bounded: true}, 4, true, true)
	f.Complete(f.runOf(FlightRecord{Group: 1, Stream: 1, Kind: StepSend, P2P: true, CreatedNs: 20_000, Bounded: true}, 3, false, false), 21_000, 7)
	record(21, FlightRecord{Group: 0, Kind: StepReduce, DType: 7, Op: 3, Count: 5})
	raw := f.Snapshot()
	clear(f.entry(raw, 21)[:8]) // a writer was stopped in the midst of it
	return raw
}

// runOf records n calls that are the same, as a series does, and one more that fails. The run stays open unless it is to end. Answers the last record.
func (f *Flight) runOf(r FlightRecord, n int, fail, end bool) uint64 {
	run := f.newRun(r)
	for range n - 1 {
		if !run.repeat() {
			f.endRun(run)
			run = f.newRun(r)
		}
	}
	last := run.id
	if fail && run.repeat() && run.takeBack() {
		f.endRun(run)
		f.Retire(f.Append(r))
	}
	if end {
		f.endRun(run)
	}
	return last
}

// steady replaces what differs from run to run: the process, its thread, the clocks.
func steady(raw []byte) []byte {
	le := binary.LittleEndian
	le.PutUint64(raw[40:], 4242)
	le.PutUint64(raw[48:], 1_700_000_000_000_000_000)
	le.PutUint64(raw[296:], 4_500_000)
	for at := flightEntriesAt; at < len(raw); at += flightEntryBytes {
		if le.Uint64(raw[at+184:]) != 0 {
			le.PutUint32(raw[at+44:], 7)
		}
	}
	return raw
}

// TestFlightFixture keeps writer and reader together: hanglab/flight has a test that reads this file and compares all values.
func TestFlightFixture(t *testing.T) {
	path := filepath.Join("..", "hanglab", "flight", "testdata", "ring.gz")
	got := steady(fixtureRing(t))
	if *updateFlight {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(got)
		_ = z.Close()
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(want, got) {
		return
	}
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			t.Fatalf("the ring differs from %s from byte %d on (entry %d, offset %d): if the format has changed, so must its version; -update rewrites the file",
				path, i, (i-flightEntriesAt)/flightEntryBytes, (i-flightEntriesAt)%flightEntryBytes)
		}
	}
	t.Fatalf("the ring has %d bytes, %s has %d", len(got), path, len(want))
}

// TestFlightFile: what another process would read from the file is what was recorded, without any call at the end.
func TestFlightFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xff}, 400_000), 0o600); err != nil { // left by an earlier rank
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFlight(file, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	f.Append(FlightRecord{Kind: StepAllGather, Count: 77})
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) != flightEntriesAt+4*flightEntryBytes || string(raw[:8]) != "CPFLIGHT" {
		t.Fatalf("%d bytes, beginning with %q", len(raw), raw[:8])
	}
	if e := f.entry(raw, 1); e.whole() != 1 || e.u64(72) != 77 || f.entry(raw, 2).whole() != 0 {
		t.Errorf("the file's first entry is %x", []byte(e))
	}
}

func TestFlightRefuses(t *testing.T) {
	for _, n := range []int{-1, 0, 1<<20 + 1} {
		if f, err := NewFlight(nil, n); err == nil || f != nil {
			t.Errorf("%d entries: %v", n, err)
		}
	}
	read, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := NewFlight(read, 10); err == nil {
		t.Error("a ring in a file that cannot be written")
	}
	f := newFlight(t, 1)
	for _, n := range []int{0, FlightEventsMax + 1} {
		if _, err := NewFlightEvents(f, make([]uintptr, n)); err == nil {
			t.Errorf("%d events were accepted", n)
		}
	}
}

// TestFlightTablesFull: what does not fit is told, and nothing else is hurt by it.
func TestFlightTablesFull(t *testing.T) {
	f := newFlight(t, 4)
	if n := f.AddGroup("big", "", make([]int, 1<<17)); n != -1 {
		t.Errorf("members that do not fit give group %d", n)
	}
	for i := range 64 {
		if n := f.AddGroup("g", "d", []int{i}); n != i {
			t.Fatalf("group %d has index %d", i, n)
		}
	}
	if n := f.AddGroup("one more", "", nil); n != -1 {
		t.Errorf("one group too many has index %d", n)
	}
	if n := f.AddSite(strings.Repeat("x", 300_000)); n != 0 {
		t.Errorf("a site that does not fit has number %d", n)
	}
	for i := range 1024 {
		if n := f.AddSite(strconv.Itoa(i)); n != i+1 {
			t.Fatalf("site %d has number %d", i+1, n)
		}
	}
	if n := f.AddSite("one more"); n != 0 {
		t.Errorf("one site too many has number %d", n)
	}
	if n := f.AddSite("77"); n != 78 {
		t.Errorf("a known site has number %d once the table is full", n)
	}
	raw := f.Snapshot()
	if lost := binary.LittleEndian.Uint32(raw[144:]); lost != 2 {
		t.Errorf("%d lost sites were counted instead of 2", lost)
	}
	f.Append(FlightRecord{Group: 64}) // no such group: recorded without numbers
	if e := f.entry(f.Snapshot(), 1); e.whole() != 1 || e.u64(48) != 0 {
		t.Errorf("the record of an unknown group is %x", []byte(e))
	}
}

// TestFlightNumbers: the ring numbers calls per group, apart for collectives and p2p, and follows numbers that are given.
func TestFlightNumbers(t *testing.T) {
	f := newFlight(t, 64)
	f.AddGroup("0", "", []int{0})
	f.AddGroup("1", "", []int{0})
	sum, send := FlightRecord{Kind: StepAllReduce}, FlightRecord{Kind: StepSend, P2P: true}
	joined := FlightRecord{Kind: StepRecv, P2P: true, Coalesced: true, Joined: true}
	given := FlightRecord{Kind: StepAllReduce, CollSeq: 9, P2PSeq: 2, OpID: 20}
	other := FlightRecord{Kind: StepAllReduce, Group: 1}
	end := FlightRecord{Kind: StepGroupEnd, P2P: true, Coalesced: true, Joined: true}
	for i, c := range []struct {
		r             FlightRecord
		coll, p2p, op uint64
	}{{sum, 1, 0, 1}, {send, 1, 1, 2}, {joined, 1, 1, 3}, {end, 1, 1, 3}, {other, 1, 0, 1}, {sum, 2, 1, 4}, {send, 2, 2, 5}, {given, 9, 2, 20}, {sum, 10, 2, 21}, {send, 10, 3, 22}} {
		id := f.Append(c.r)
		e := f.entry(f.Snapshot(), id)
		if e.whole() != uint64(i+1) || e.u64(48) != c.coll || e.u64(56) != c.p2p || e.u64(64) != c.op {
			t.Errorf("record %d has id %d, numbers %d, %d, %d, want %d, %d, %d", i+1, e.whole(), e.u64(48), e.u64(56), e.u64(64), c.coll, c.p2p, c.op)
		}
	}
	f.Start(6, 1)
	f.Complete(6, 2, -1)
	f.Complete(1, 3, -1) // late news of an earlier one does not turn a counter back
	f.Complete(2, 3, -1)
	raw := f.Snapshot()
	for k, want := range []int64{10, 2, 2, 3, -1, 1} { // collectives enqueued, started, completed, then p2p
		if got := int64(binary.LittleEndian.Uint64(raw[4096+64+8*k:])); got != want {
			t.Errorf("counter %d is %d, want %d", k, got, want)
		}
	}
}

// TestFlightRuns: a record counts no more calls than it may, none once its group had another or its run has ended, and none of a later record's.
func TestFlightRuns(t *testing.T) {
	f := newFlight(t, 4)
	f.AddGroup("0", "", []int{0})
	repeats := func(id uint64) uint64 { return f.entry(f.Snapshot(), id).u64(144) }
	sum := FlightRecord{Kind: StepAllReduce}
	if last := f.runOf(sum, 130, false, true); last != 2 || repeats(1) != 1<<8|127 || repeats(2) != 2<<8|1 {
		t.Errorf("130 calls: the last record is %d, repeats %#x and %#x", last, repeats(1), repeats(2))
	}
	raw := f.Snapshot()
	if n, op := binary.LittleEndian.Uint64(raw[72:]), f.entry(raw, 2).u64(64); n != 128 || op != 129 {
		t.Errorf("%d calls beyond the records, the second record begins with call %d", n, op)
	}
	f.Append(sum)
	if e := f.entry(f.Snapshot(), 3); e.u64(64) != 131 || e.u64(48) != 131 || e.u64(144) != 0 {
		t.Errorf("after the run: %x", []byte(e))
	}
	run := f.newRun(sum)
	for range 4 {
		f.Append(FlightRecord{Group: -1, Kind: StepGraph}) // a round of the ring
	}
	if !run.repeat() {
		t.Error("the writer does not look whether its record is still there")
	}
	if e := f.entry(f.Snapshot(), 4); e.whole() != 8 || e.u64(144)>>8 == 8 {
		t.Errorf("a record that was overwritten gave its calls to the one in its place: %x", []byte(e))
	}
}

// TestFlightRunsManyThreads: threads that append to one small ring while it is read lose no call, and none takes another's.
func TestFlightRunsManyThreads(t *testing.T) {
	const threads, calls = 4, 20000
	f := newFlight(t, 8)
	for g := range threads {
		f.AddGroup(strconv.Itoa(g), "", []int{0})
	}
	var wg sync.WaitGroup
	for g := range threads {
		wg.Go(func() {
			r := FlightRecord{Group: int32(g), Stream: int32(g), Kind: StepAllReduce, Count: uint64(g)}
			run := f.newRun(r)
			for range calls - 1 {
				if !run.repeat() {
					f.endRun(run)
					run = f.newRun(r)
				}
			}
			f.endRun(run)
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		raw := f.Snapshot()
		for id := uint64(1); id <= 8; id++ {
			e := f.entry(raw, id)
			if e.whole() != 0 && (uint64(e.u32(16)) != e.u64(72) || e.u32(24) != e.u32(16) || e.u64(48) != e.u64(64) || e.u64(144)&255 > 127) {
				t.Fatalf("mixed: %x", []byte(e))
			}
		}
	}
	raw := f.Snapshot()
	le := binary.LittleEndian
	if n := le.Uint64(raw[64:]) + le.Uint64(raw[72:]); n != threads*calls {
		t.Errorf("%d calls are counted, %d were made", n, threads*calls)
	}
	for g := range threads {
		if n := le.Uint64(raw[4096+128*g+48:]); n != calls {
			t.Errorf("group %d has %d operations, %d were made", g, n, calls)
		}
	}
}

// TestFlightLateNews: a record that has left the ring cannot be changed, nor the one in its place.
func TestFlightLateNews(t *testing.T) {
	f := newFlight(t, 2)
	for range 3 {
		f.Append(FlightRecord{Kind: StepReduce})
	}
	before := f.Snapshot()
	f.Start(1, 5)
	f.Complete(1, 6, 7)
	f.Retire(1)
	f.Complete(0, 6, 7)
	f.Complete(99, 6, 7)
	if !bytes.Equal(before, f.Snapshot()) {
		t.Error("news of records that are not there changed the ring")
	}
	f.Complete(3, 6, 7)
	f.Start(3, 8) // seen late: it has been complete for a while
	if e := f.entry(f.Snapshot(), 3); e.u32(112) != 2 || e.u64(128) != 6 || e.u64(136) != 7 {
		t.Errorf("the record is %x", []byte(e))
	}
}

func TestFlightHeartbeatAndPhase(t *testing.T) {
	f := newFlight(t, 1)
	if f.Heartbeat() != 0 {
		t.Error("a heart beats before the first beat")
	}
	f.Beat(123)
	f.SetPhase(strings.Repeat("p", 500))
	raw := f.Snapshot()
	if f.Heartbeat() != 123 || binary.LittleEndian.Uint32(raw[292:]) != 128 || string(raw[320:448]) != strings.Repeat("p", 128) {
		t.Errorf("heartbeat %d, phase of %d bytes", f.Heartbeat(), binary.LittleEndian.Uint32(raw[292:]))
	}
	f.SetPhase("")
	if n := binary.LittleEndian.Uint32(f.Snapshot()[292:]); n != 0 {
		t.Errorf("no phase has %d bytes", n)
	}
}

// TestFlightTorn: appenders that lap each other in a ring of two, and a reader. Every record that it takes for whole says the same thing in all its
// fields, and the last two are there in the end.
func TestFlightTorn(t *testing.T) {
	const threads, each, capacity = 4, 100_000, 2
	f := newFlight(t, capacity)
	f.AddGroup("0", "", []int{0})
	var writers sync.WaitGroup
	for w := range threads {
		c := uint64(w + 1)
		writers.Go(func() {
			f.appendMany(FlightRecord{Kind: StepKind(c), Op: int32(c), Count: c, InCount: c, OutCount: c, CreatedNs: int64(c), TimeoutNs: int64(c)}, each)
		})
	}
	finished := make(chan struct{})
	go func() {
		writers.Wait()
		close(finished)
	}()
	mixed, taken := 0, 0
	for done := false; !done; {
		select {
		case <-finished:
			done = true // once more
		default:
		}
		raw := f.Snapshot()
		for i := range uint64(capacity) {
			e := f.entry(raw, i+1)
			if e.whole() == 0 {
				if done {
					t.Error("an entry is torn although nobody writes")
				}
				continue
			}
			taken++
			c := e.u64(72)
			if uint64(e.u32(28)) != c || uint64(e.u32(36)) != c || e.u64(80) != c || e.u64(88) != c || e.u64(96) != c || e.u64(104) != c || (e.whole()-1)%capacity != i {
				mixed++
			}
			if done && e.whole() != threads*each-capacity+1+i {
				t.Errorf("at the end the ring has record %d in entry %d", e.whole(), i)
			}
		}
	}
	if mixed > 0 {
		t.Errorf("%d of %d records are mixed from several", mixed, taken)
	}
}

// TestFlightHeldUp: what a writer meets that was held up, or whose entry another thread holds. The claim words are set as that other would.
func TestFlightHeldUp(t *testing.T) {
	f := newFlight(t, 2)
	claim := func(id, v uint64) { binary.LittleEndian.PutUint64(f.entry(f.bytes, id)[8:], v) }
	claim(1, 3<<1) // record 3 is there already
	f.Append(FlightRecord{Count: 1})
	if e := f.entry(f.Snapshot(), 1); e.whole() != 0 || e.u64(72) != 0 {
		t.Errorf("record 1 was written over record 3: %x", []byte(e))
	}
	claim(2, 0<<1|1) // a writer is in it
	done := make(chan bool)
	go func() {
		f.Append(FlightRecord{Count: 2})
		f.Complete(2, 9, -1)
		done <- true
	}()
	select {
	case <-done:
		t.Error("did not wait for the other writer")
	case <-time.After(30 * time.Millisecond):
	}
	if e := f.entry(f.Snapshot(), 2); e.u64(72) != 0 {
		t.Error("wrote into an entry that another writer holds")
	}
	claim(2, 0)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("hangs although the other writer has gone")
	}
	if e := f.entry(f.Snapshot(), 2); e.whole() != 2 || e.u64(72) != 2 || e.u32(112) != 2 {
		t.Errorf("record 2 is %x", []byte(e))
	}
	clear(f.entry(f.bytes, 2)[184:]) // a writer that died in the midst
	if e := f.entry(f.Snapshot(), 2); e.u64(0) != 0 {
		t.Errorf("a torn entry has id %d in the snapshot", e.u64(0))
	}
}

// TestFlightManyThreads: calls are appended and complete on several threads at the same time.
func TestFlightManyThreads(t *testing.T) {
	const threads, each = 4, 5000
	f := newFlight(t, 8)
	for i := range threads {
		f.AddGroup(strconv.Itoa(i), "", []int{0})
	}
	var writers sync.WaitGroup
	for i := range threads {
		writers.Go(func() {
			for range each {
				id := f.Append(FlightRecord{Kind: StepReduce, Group: int32(i)})
				f.Start(id, 1)
				f.Complete(id, int64(1000+id), -1)
				f.SetPhase("at work")
			}
		})
	}
	writers.Wait()
	raw := f.Snapshot()
	if n := binary.LittleEndian.Uint64(raw[64:]); n != threads*each {
		t.Errorf("%d records were counted", n)
	}
	for id := uint64(threads*each - 7); id <= threads*each; id++ {
		e := f.entry(raw, id)
		if e.whole() != id || e.u32(112) != 2 || e.u64(128) != 1000+id {
			t.Errorf("in the place of record %d is record %d, state %d, complete at %d", id, e.whole(), e.u32(112), e.u64(128))
		}
	}
	for i := range threads {
		for k, name := range []string{"enqueued", "started", "completed"} {
			if got := binary.LittleEndian.Uint64(raw[4096+128*i+64+8*k:]); got != each {
				t.Errorf("group %d: %s is %d, want %d", i, name, got, each)
			}
		}
	}
}

func TestFlightDoesNotAllocate(t *testing.T) {
	f := newFlight(t, 64)
	r := FlightRecord{Kind: StepAllReduce, Count: 2}
	for what, call := range map[string]func(){
		"Append": func() { f.Append(r) }, "Start": func() { f.Start(1, 1) }, "Complete": func() { f.Complete(1, 1, 1) }, "Retire": func() { f.Retire(1) },
		"SetPhase": func() { f.SetPhase("step 5") }, "Beat": func() { f.Beat(f.Heartbeat()) },
	} {
		if n := testing.AllocsPerRun(100, call); n != 0 {
			t.Errorf("%s allocates %g times", what, n)
		}
	}
}

func BenchmarkFlightAppend(b *testing.B) {
	r := FlightRecord{Kind: StepAllReduce, DType: 7, Count: 2, InCount: 2, OutCount: 2}
	b.Run("Go", func(b *testing.B) {
		f := newFlight(b, 2048)
		f.AddGroup("0", "", []int{0})
		for b.Loop() {
			f.Append(r)
		}
	})
	b.Run("C", func(b *testing.B) { // a record of a series
		f := newFlight(b, 2048)
		f.AddGroup("0", "", []int{0})
		b.ResetTimer()
		f.appendMany(r, b.N)
	})
	b.Run("Complete", func(b *testing.B) {
		f := newFlight(b, 2048)
		id := f.Append(r)
		for b.Loop() {
			f.Complete(id, 1, -1)
		}
	})
}
