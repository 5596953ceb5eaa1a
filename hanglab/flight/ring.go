package flight

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Ring is what a rank's flight ring holds: the calls it made last, whether the rank is alive, stuck or dead. csrc/flight.h has the format and
// says who writes it. Times are the monotonic clock of the rank's host; WallOffsetNs added gives wall clock time.
type Ring struct {
	Rank, World   int // -1: not said yet
	PID           uint64
	Host, Library string // Library is NCCL's version
	WallOffsetNs  int64
	HeartbeatNs   int64  // when the rank's watchdog last came round, 0: never
	Phase         string // what the rank's thread did last
	PhaseNs       int64  // since when
	Groups        []RingGroup
	Records       []RingRecord // oldest first
	Appended      uint64       // calls ever recorded
	Overwritten   uint64       // of them, older than the ring reaches back
	Torn          int          // left out because they were being written, by a thread that may have died in it
	SitesLost     int          // call sites that the ring had no room for
}

// RingGroup is a communicator of the rank.
type RingGroup struct {
	Name, Desc string
	Members    []int // global ranks
	CommID     uint64
	Coll, P2P  RingLast
}

// RingLast has the last sequence numbers, -1 where there is none yet.
type RingLast struct{ Enqueued, Started, Completed int64 }

// RingKind is what a record's call was; its text is the call in NCCL's words.
type RingKind uint32

// The kinds that records have, with csrc's numbers. RingGroupEnd is the end of an NCCL group, where its calls are queued.
const (
	RingGroupEnd      RingKind = 1
	RingAllReduce     RingKind = 2
	RingBroadcast     RingKind = 3
	RingReduce        RingKind = 4
	RingAllGather     RingKind = 5
	RingReduceScatter RingKind = 6
	RingSend          RingKind = 7
	RingRecv          RingKind = 8
	RingAllToAll      RingKind = 9
	RingGather        RingKind = 10
	RingScatter       RingKind = 11
	RingGraph         RingKind = 13 // the launch of a graph
)

var ringKinds = [...]string{
	RingGroupEnd: "group_end", RingAllReduce: "all_reduce", RingBroadcast: "broadcast", RingReduce: "reduce", RingAllGather: "all_gather",
	RingReduceScatter: "reduce_scatter", RingSend: "send", RingRecv: "recv", RingAllToAll: "all_to_all", RingGather: "gather",
	RingScatter: "scatter", RingGraph: "graph",
}

func (k RingKind) String() string {
	if k < RingKind(len(ringKinds)) && ringKinds[k] != "" {
		return ringKinds[k]
	}
	return "kind_" + strconv.Itoa(int(k))
}

// RingRecord is one call.
type RingRecord struct {
	ID                     uint64 // running number of the call, from 1
	Group                  int    // index into Groups, -1: none that is known
	Frames                 []Frame
	Stream                 int
	Kind                   RingKind
	DType, Op              int // NCCL's numbers, -1: has none
	Peer                   int // root or peer, a rank of the group
	TID                    int
	CollSeq, P2PSeq, OpID  uint64
	Count                  uint64 // elements, as passed to NCCL
	InCount, OutCount      uint64 // elements of the whole input and output
	CreatedNs, TimeoutNs   int64  // of calls that share a record, made within a millisecond, CreatedNs is the first one's
	State                  State
	StartedNs, CompletedNs int64 // when it was noticed, 0: it was not
	DurationNs             int64 // by device events, -1: not known
	P2P                    bool  // numbered by P2PSeq
	Retired                bool
	Coalesced              bool // inside of an NCCL group, or the group's end
	Joined                 bool // coalesced, and not the first of its NCCL group: has that one's sequence number
	// Bounded: nothing told of this very record. Where State is Completed, a later record of the stream was, at CompletedNs; where it is
	// Scheduled, none was seen to be, and the record may well be complete.
	Bounded bool
}

// The format, see csrc/flight.h.
const (
	ringMagic      = "CPFLIGHT"
	ringVersion    = 2
	ringHeader     = 4096
	ringGroupBytes = 128
	ringGroupsMax  = 64
	ringSiteBytes  = 8
	ringSitesMax   = 1024
	ringTextBytes  = 256 << 10
	ringEntryBytes = 192
	ringEntriesMax = 1 << 20
	ringGroupsAt   = ringHeader
	ringSitesAt    = ringGroupsAt + ringGroupsMax*ringGroupBytes
	ringTextAt     = ringSitesAt + ringSitesMax*ringSiteBytes
	ringEntriesAt  = ringTextAt + ringTextBytes
)

// Flags and states of records.
const (
	ringP2P       = 1
	ringRetired   = 2
	ringCoalesced = 4
	ringBounded   = 8
	ringJoined    = 16
	ringOpen      = 32
)

var ringStates = [...]State{Scheduled, Started, Completed}

// ringReader reads fields at fixed offsets of bytes whose length was checked.
type ringReader []byte

func (b ringReader) u32(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func (b ringReader) u64(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
func (b ringReader) i32(at int) int    { return int(int32(b.u32(at))) }
func (b ringReader) i64(at int) int64  { return int64(b.u64(at)) }

// text is NUL-terminated text in a field of n bytes.
func (b ringReader) text(at, n int) string {
	field, _, _ := bytes.Cut(b[at:at+n], []byte{0})
	return strings.ToValidUTF8(string(field), "\ufffd")
}

// RingBytes is the size of the file of a ring that is made for so many entries, whose number is rounded up to a power of two.
func RingBytes(entries int) int64 {
	return ringEntriesAt + ringEntryBytes<<bits.Len(uint(max(1, entries)-1))
}

// DecodeRing reads a ring as it was copied at any moment, for one from the file of a rank that is writing it. Records that were just being
// written are left out and counted. Errors say what is wrong with bytes that are no ring.
func DecodeRing(raw []byte) (*Ring, error) {
	b := ringReader(raw)
	if err := b.check(); err != nil {
		return nil, err
	}
	r := &Ring{
		Rank: b.i32(32), World: b.i32(36), PID: b.u64(40), WallOffsetNs: b.i64(48), Appended: b.u64(64), HeartbeatNs: b.i64(128),
		SitesLost: int(b.u32(144)), Host: b.text(192, 64), Library: b.text(256, 32), PhaseNs: b.i64(296),
	}
	r.Phase = b.text(320, min(int(b.u32(292)), 128))
	if b.u32(288)&1 != 0 {
		r.Phase = "" // it was just being changed
	}
	text := b[ringTextAt:ringEntriesAt]
	var err error
	if r.Groups, err = b.groups(text); err != nil {
		return nil, err
	}
	sites, err := b.sites(text)
	if err != nil {
		return nil, err
	}
	b.records(r, sites)
	r.settle()
	return r, nil
}

// check makes sure that this is a ring of this version and that all its parts lie within the bytes.
func (b ringReader) check() error {
	if len(b) < ringEntriesAt {
		return fmt.Errorf("flight ring: %d bytes, a ring has %d and its entries: cut, or not a ring", len(b), ringEntriesAt)
	}
	if string(b[:8]) != ringMagic {
		return errors.New("flight ring: does not begin with " + ringMagic + ": not a ring, or its process ended before it had made it")
	}
	if v := b.u32(8); v != ringVersion {
		return fmt.Errorf("flight ring: format version %d, this program reads %d: use the program that wrote it", v, ringVersion)
	}
	for _, f := range []struct {
		what string
		at   int
		want uint32
	}{{"entry bytes", 12, ringEntryBytes}, {"groups", 20, ringGroupsMax}, {"call sites", 24, ringSitesMax}, {"text bytes", 28, ringTextBytes}} {
		if got := b.u32(f.at); got != f.want {
			return fmt.Errorf("flight ring: header says %d %s, version %d has %d: damaged", got, f.what, ringVersion, f.want)
		}
	}
	capacity := b.u32(16)
	if bits.OnesCount32(capacity) != 1 || capacity > ringEntriesMax {
		return fmt.Errorf("flight ring: header says %d entries, not a power of two up to %d: damaged", capacity, ringEntriesMax)
	}
	if need := ringEntriesAt + int(capacity)*ringEntryBytes; len(b) < need {
		return fmt.Errorf("flight ring: %d bytes, %d entries need %d: cut", len(b), capacity, need)
	}
	if next, repeated := b.u64(64), b.u64(72); next > ringMost || repeated > ringMost {
		return fmt.Errorf("flight ring: header says %d records and %d more calls: damaged", next, repeated)
	}
	if g, s := b.u32(56), b.u32(60); g > ringGroupsMax || s > ringSitesMax {
		return fmt.Errorf("flight ring: header says that %d groups and %d call sites are used: damaged", g, s)
	}
	return nil
}

// ringText hands out pieces of the text area. All pieces together are no longer than the area, since a writer never gives a byte away twice; so
// damaged input cannot make a reader hold much more than the input.
type ringText struct {
	text []byte
	left int
}

func (s *ringText) take(at, n uint32) ([]byte, error) {
	if uint64(at)+uint64(n) > uint64(len(s.text)) || int(n) > s.left {
		return nil, fmt.Errorf("text at %d of %d bytes lies outside of the text area: damaged", at, n)
	}
	s.left -= int(n)
	return s.text[at : at+n], nil
}

func (b ringReader) groups(text []byte) ([]RingGroup, error) {
	s := ringText{text, len(text)}
	groups := make([]RingGroup, b.u32(56))
	for i := range groups {
		g := b[ringGroupsAt+i*ringGroupBytes:][:ringGroupBytes]
		count := g.u32(28)
		if count > ringTextBytes/4 {
			return nil, fmt.Errorf("flight ring: group %d has %d members: damaged", i, count)
		}
		name, err := s.take(g.u32(8), g.u32(12))
		desc, err2 := s.take(g.u32(16), g.u32(20))
		members, err3 := s.take(g.u32(24), 4*count)
		if err := cmp.Or(err, err2, err3); err != nil {
			return nil, fmt.Errorf("flight ring: group %d: %w", i, err)
		}
		groups[i] = RingGroup{
			Name: strings.ToValidUTF8(string(name), "\ufffd"), Desc: strings.ToValidUTF8(string(desc), "\ufffd"), CommID: g.u64(0),
			Members: make([]int, count),
			Coll:    RingLast{g.i64(64), g.i64(72), g.i64(80)}, P2P: RingLast{g.i64(88), g.i64(96), g.i64(104)},
		}
		for m := range groups[i].Members {
			groups[i].Members[m] = ringReader(members).i32(4 * m)
		}
	}
	return groups, nil
}

// sites reads the call sites; number 0 is the one that is not known.
func (b ringReader) sites(text []byte) ([][]Frame, error) {
	s := ringText{text, len(text)}
	sites := make([][]Frame, 1, 1+b.u32(60))
	for i := range int(b.u32(60)) {
		at := ringSitesAt + i*ringSiteBytes
		frames, err := s.take(b.u32(at), b.u32(at+4))
		if err != nil {
			return nil, fmt.Errorf("flight ring: call site %d: %w", i+1, err)
		}
		sites = append(sites, parseFrames(strings.ToValidUTF8(string(frames), "\ufffd")))
	}
	return sites, nil
}

// parseFrames reads "function\tfile\tline\n" for each frame; what is missing stays empty.
func parseFrames(text string) []Frame {
	var frames []Frame
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		file, number, _ := strings.Cut(rest, "\t")
		n, _ := strconv.Atoi(number) // 0: not known
		frames = append(frames, Frame{Name: name, File: file, Line: n})
	}
	return frames
}

// ringMost is more than any number that a writer can give away, and small enough for sums of a few.
const ringMost = 1 << 56

// repeats is how many more calls than one a record stands for.
func (b ringReader) repeats() int {
	if v := b.u64(144); v>>8 == b.u64(0) {
		return int(v & 255)
	}
	return 0
}

// entry is the i-th of the ring.
func (b ringReader) entry(i uint64) ringReader {
	return b[ringEntriesAt+int(i)*ringEntryBytes:][:ringEntryBytes]
}

// whole says whether the i-th entry has a record that is not torn, and which.
func (b ringReader) whole(i, capacity uint64) (id uint64, ok bool) {
	e := b.entry(i)
	id = e.u64(0)
	return id, id != 0 && id == e.u64(184) && (id-1)%capacity == i && e.u32(112) < uint32(len(ringStates))
}

// records reads what lies between the newest record and one round of the ring before it: as many of the last calls as the ring has entries.
func (b ringReader) records(r *Ring, sites [][]Frame) {
	capacity := uint64(b.u32(16))
	newest := r.Appended
	// Entries may be newer than the header, which was copied first.
	for i := range capacity {
		if id, ok := b.whole(i, capacity); ok && id-r.Appended <= capacity { // a difference that is huge where it is older
			newest = max(newest, id)
		}
	}
	oldest := newest - min(newest, capacity) + 1
	var calls, open uint64 // that are in the ring, and of them those that the header does not count
	for id := oldest; id <= newest; id++ {
		calls++
		if got, ok := b.whole((id-1)%capacity, capacity); ok && got == id {
			n := uint64(b.entry((id - 1) % capacity).repeats())
			calls += n
			if b.entry((id-1)%capacity).u32(116)&ringOpen != 0 {
				open += n
				r.enqueued(b.entry((id-1)%capacity), int64(n))
			}
		}
	}
	r.Appended = max(newest+b.u64(72)+open, calls)
	skip := calls - min(calls, capacity) // older than the ring promises to reach back
	r.Overwritten = r.Appended - calls + skip
	r.Records = make([]RingRecord, 0, calls-skip)
	at := r.Appended - calls // running number of the call before
	for id := oldest; id <= newest; id++ {
		i := (id - 1) % capacity
		got, ok := b.whole(i, capacity)
		if !ok || got != id {
			if at++; at > r.Overwritten {
				r.Torn++
			}
			continue
		}
		n := b.entry(i).repeats()
		for k := range n + 1 {
			if at++; at > r.Overwritten {
				x := b.entry(i).record(len(r.Groups), sites, k, n)
				x.ID = at
				r.Records = append(r.Records, x)
			}
		}
	}
}

// enqueued counts the calls of a run that may still grow in its group, whose own counter follows only at the end of it.
func (r *Ring) enqueued(e ringReader, n int64) {
	g := e.i32(16)
	if g < 0 || g >= len(r.Groups) || n == 0 {
		return
	}
	if last := &r.Groups[g].Coll; e.u32(116)&ringP2P == 0 {
		last.Enqueued = max(last.Enqueued, e.i64(48)+n)
	} else {
		last = &r.Groups[g].P2P
		last.Enqueued = max(last.Enqueued, e.i64(56)+n)
	}
}

// record is the k-th call, from 0, of a record that n more calls than one share. What is known of its state is known of the last.
func (b ringReader) record(groups int, sites [][]Frame, k, n int) RingRecord {
	flags := b.u32(116)
	r := RingRecord{
		Group: b.i32(16), Stream: b.i32(24), Kind: RingKind(b.u32(28)), DType: b.i32(32), Op: b.i32(36), Peer: b.i32(40), TID: b.i32(44),
		CollSeq: b.u64(48), P2PSeq: b.u64(56), OpID: b.u64(64), Count: b.u64(72), InCount: b.u64(80), OutCount: b.u64(88),
		CreatedNs: b.i64(96), TimeoutNs: b.i64(104), State: ringStates[b.u32(112)],
		P2P: flags&ringP2P != 0, Retired: flags&ringRetired != 0, Coalesced: flags&ringCoalesced != 0, Bounded: flags&ringBounded != 0, Joined: flags&ringJoined != 0,
		StartedNs: b.i64(120), CompletedNs: b.i64(128), DurationNs: b.i64(136),
	}
	if r.Group >= 0 && k > 0 {
		r.OpID += uint64(k)
		if r.P2P {
			r.P2PSeq += uint64(k)
		} else {
			r.CollSeq += uint64(k)
		}
	}
	if k < n {
		r.Bounded, r.State = true, Scheduled
	}
	if r.Group < 0 || r.Group >= groups { // added after the table was copied, for one
		r.Group = -1
	}
	if site := b.u32(20); uint64(site) < uint64(len(sites)) {
		r.Frames = sites[site]
	}
	if r.State != Completed { // times are written before the state that they belong to
		r.CompletedNs, r.DurationNs = 0, -1
	}
	if r.State == Scheduled {
		r.StartedNs = 0
	}
	return r
}

// settle gives bounded records the state that follows from their stream's order: what lies before something complete is complete.
func (r *Ring) settle() {
	done := make(map[int]int64) // by stream: when the next complete record was seen to be
	for i := range slices.Backward(r.Records) {
		x := &r.Records[i]
		at, ok := done[x.Stream]
		if x.Bounded && ok && x.State != Completed && !x.Retired {
			x.State, x.CompletedNs = Completed, at
		}
		if x.State == Completed {
			done[x.Stream] = x.CompletedNs
		}
	}
}
