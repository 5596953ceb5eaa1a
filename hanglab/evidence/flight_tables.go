package evidence

import (
	"errors"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// kind says what value.n means.
type kind uint8

const (
	kindNone      kind = iota
	kindBool           // 0, 1
	kindInt            // itself
	kindFloat          // its bits
	kindOdd            // nothing: something a dump has no use for, such as a number beyond 64 bits
	kindText           // index in tables.texts
	kindSeq            // index in tables.seqs: a list or a tuple
	kindEntries        // how many entries the list has
	kindEmptyDict      // nothing
	kindDict           // index in builder.dicts
	kindEntry          // index in builder.entries
	kindFrame          // index in tables.seqs: name, file, line
	kindGroup          // index in builder.groups
	kindStatus         // index in builder.status
	kindRef            // index in builder.slots: a container that the memo knows and that may still grow
	kindGlobal         // 0
	kindUnset          // a place of the memo that nothing was put in
)

// value is anything a file holds, in 16 bytes. Equal lists have equal indices, so that a list is compared, hashed and passed on as one number
// and a file cannot make a small thing large by repeating it.
type value struct {
	kind kind
	n    int64
}

// Indices in tables.texts of the keys of the format.
const (
	keyFrames = iota
	keyRecordID
	keyPGID
	keyProcessGroup
	keyThreadName
	keyThreadID
	keyCollectiveSeqID
	keySeqID
	keyP2PSeqID
	keyOpID
	keyProfilingName
	keyTimeCreated
	keyDuration
	keyInputSizes
	keyInputDtypes
	keyOutputSizes
	keyOutputDtypes
	keyState
	keyTimeStarted
	keyTimeCompleted
	keyRetired
	keyTimeout
	keyIsP2P
	keyName
	keyFilename
	keyLine
	keyDesc
	keyRanks
	keyLastEnqueued
	keyLastStarted
	keyLastCompleted
	keyVersion
	keyPGConfig
	keyPGStatus
	keyEntries
	numKeys
)

var keyTexts = [numKeys]string{
	"frames", "record_id", "pg_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "seq_id", "p2p_seq_id", "op_id",
	"profiling_name", "time_created_ns", "duration_ms", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state",
	"time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p",
	"name", "filename", "line", "desc", "ranks",
	"last_enqueued_collective", "last_started_collective", "last_completed_collective",
	"version", "pg_config", "pg_status", "entries",
}

const emptySeq = 0 // index of the empty list

var errFlightValues = errors.New("too many different lists: no dump has that many")

// span is a list's place in tables.elems.
type span struct {
	from, to uint32
	hash     uint64
}

// tables holds every text, list, call and stack once. They outlive a file: the ranks of a job say much the same.
type tables struct {
	pool   *FlightPool
	texts  []string
	textID map[string]uint32

	elems []value
	seqs  []span
	seqAt []uint32 // open hash table of indices in seqs, 0 free; every entry asks it some nine times, which is why it is no map
	seed  uint64   // so that nobody can choose lists of one hash

	shapes  map[uint32][]int64
	sizes   map[uint32][][]int64
	dtypes  map[uint32][]string
	stacks  map[uint32]*FlightStack
	calls   map[callKey]*FlightCall
	origins map[originKey]*FlightOrigin
	ranks   map[uint32][]int // by text

	lastCall     callKey // neighbours are often alike
	lastCallIs   *FlightCall
	lastOrigin   originKey
	lastOriginIs *FlightOrigin
}

type callKey struct{ name, inSizes, inDtypes, outSizes, outDtypes uint32 }

type originKey struct {
	pgID, timeoutMs         int64
	group, thread, threadID uint32
}

func newTables(pool *FlightPool) *tables {
	t := &tables{
		pool: pool, textID: map[string]uint32{}, seqAt: make([]uint32, 1<<10), seed: rand.Uint64(), seqs: []span{{}},
		shapes: map[uint32][]int64{}, sizes: map[uint32][][]int64{}, dtypes: map[uint32][]string{}, stacks: map[uint32]*FlightStack{},
		calls: map[callKey]*FlightCall{}, origins: map[originKey]*FlightOrigin{}, ranks: map[uint32][]int{},
	}
	for _, key := range keyTexts {
		t.text([]byte(key))
	}
	return t
}

// large tells that the next file had better start anew.
func (t *tables) large() bool {
	return len(t.texts) > 1<<16 || len(t.elems) > 1<<18 || len(t.origins) > 1<<14
}

// text gives a string's index.
func (t *tables) text(b []byte) uint32 {
	if id, ok := t.textID[string(b)]; ok {
		return id
	}
	s := strings.Clone(string(b))
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	s = t.pool.text(s)
	id := uint32(len(t.texts))
	t.texts = append(t.texts, s)
	t.textID[string(b)] = id
	return id
}

// seq gives a list's index. No element may be a kindRef.
func (t *tables) seq(elems []value) (uint32, error) {
	if len(elems) == 0 {
		return emptySeq, nil
	}
	h := t.seed
	for _, v := range elems {
		h = (h ^ uint64(v.n) ^ uint64(v.kind)<<58) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	for at := t.home(h); ; at = (at + 1) & (len(t.seqAt) - 1) {
		id := t.seqAt[at]
		if id == 0 {
			return t.newSeq(at, h, elems)
		}
		if t.seqs[id].hash == h && same(t.list(id), elems) {
			return id, nil
		}
	}
}

// home is where a hash belongs; the upper bits are the better mixed ones.
func (t *tables) home(h uint64) int { return int(h>>32) & (len(t.seqAt) - 1) }

func (t *tables) newSeq(at int, h uint64, elems []value) (uint32, error) {
	if len(t.elems)+len(elems) > maxFlightValues {
		return 0, errFlightValues
	}
	id := uint32(len(t.seqs))
	from := len(t.elems)
	t.elems = append(t.elems, elems...)
	t.seqs = append(t.seqs, span{uint32(from), uint32(len(t.elems)), h})
	t.seqAt[at] = id
	if len(t.seqs) > len(t.seqAt)/2 {
		t.widen()
	}
	return id, nil
}

// widen doubles the hash table.
func (t *tables) widen() {
	t.seqAt = make([]uint32, 2*len(t.seqAt))
	for id := 1; id < len(t.seqs); id++ {
		at := t.home(t.seqs[id].hash)
		for t.seqAt[at] != 0 {
			at = (at + 1) & (len(t.seqAt) - 1)
		}
		t.seqAt[at] = uint32(id)
	}
}

func same(a, b []value) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (t *tables) list(id uint32) []value {
	s := t.seqs[id]
	return t.elems[s.from:s.to:s.to]
}

// listOf is empty for what is no list.
func (t *tables) listOf(v value) []value {
	if v.kind != kindSeq {
		return nil
	}
	return t.list(uint32(v.n))
}

func (t *tables) textOf(v value) string {
	if v.kind != kindText {
		return ""
	}
	return t.texts[v.n]
}

// shape, sizesOf, dtypesOf and stackOf make each list once and hand out the same one ever after.
func (t *tables) shape(v value) []int64 {
	if v.kind != kindSeq {
		return []int64{}
	}
	id := uint32(v.n)
	out, ok := t.shapes[id]
	if ok {
		return out
	}
	out = make([]int64, 0, len(t.list(id)))
	for _, n := range t.list(id) {
		if n.kind != kindInt {
			n.n = -1 // no tensor has that, and leaving it out would make another shape
		}
		out = append(out, n.n)
	}
	t.shapes[id] = out
	return out
}

func (t *tables) sizesOf(id uint32) [][]int64 {
	out, ok := t.sizes[id]
	if ok {
		return out
	}
	out = make([][]int64, 0, len(t.list(id)))
	for _, v := range t.list(id) {
		out = append(out, t.shape(v))
	}
	t.sizes[id] = out
	return out
}

func (t *tables) dtypesOf(id uint32) []string {
	out, ok := t.dtypes[id]
	if ok {
		return out
	}
	out = make([]string, 0, len(t.list(id)))
	for _, v := range t.list(id) {
		out = append(out, t.textOf(v))
	}
	t.dtypes[id] = out
	return out
}

func (t *tables) stackOf(v value) *FlightStack {
	if v.kind != kindSeq {
		return nil
	}
	id := uint32(v.n)
	out, ok := t.stacks[id]
	if ok {
		return out
	}
	frames := make([]flight.Frame, 0, len(t.list(id)))
	for _, f := range t.list(id) {
		if f.kind == kindFrame {
			p := t.list(uint32(f.n))
			frames = append(frames, flight.Frame{Name: t.textOf(p[0]), File: t.textOf(p[1]), Line: int(p[2].n)})
		}
	}
	out = t.pool.stack(frames)
	t.stacks[id] = out
	return out
}

func (t *tables) call(k callKey) *FlightCall {
	if t.lastCallIs != nil && k == t.lastCall {
		return t.lastCallIs
	}
	c, ok := t.calls[k]
	if !ok {
		c = t.pool.call(&FlightCall{
			ProfilingName: t.texts[k.name],
			InputSizes:    t.sizesOf(k.inSizes), InputDtypes: t.dtypesOf(k.inDtypes),
			OutputSizes: t.sizesOf(k.outSizes), OutputDtypes: t.dtypesOf(k.outDtypes),
		})
		t.calls[k] = c
	}
	t.lastCall, t.lastCallIs = k, c
	return c
}
