package evidence

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// newEntry makes an entry of b.fields.
func (b *builder) newEntry() (value, error) {
	if len(b.entries) == maxFlightEntries {
		return value{}, fmt.Errorf("more than %d entries: no ring is that large", maxFlightEntries)
	}
	e := FlightEntry{
		RecordID: b.int(keyRecordID), CollectiveSeqID: b.int(keyCollectiveSeqID), P2PSeqID: b.int(keyP2PSeqID), OpID: b.int(keyOpID),
		TimeCreatedNs: b.int(keyTimeCreated), TimeStartedNs: b.int(keyTimeStarted), TimeCompletedNs: b.int(keyTimeCompleted),
		DurationMs: b.duration(),
		State:      flight.State(b.texts[b.textField(keyState)]),
		Retired:    b.int(keyRetired) != 0,
		IsP2P:      b.int(keyIsP2P) != 0,
		Stack:      b.stackOf(b.field(keyFrames)),
		Origin:     b.origin(),
		Call: b.call(callKey{
			name:    b.textField(keyProfilingName),
			inSizes: b.seqField(keyInputSizes), inDtypes: b.seqField(keyInputDtypes),
			outSizes: b.seqField(keyOutputSizes), outDtypes: b.seqField(keyOutputDtypes),
		}),
	}
	if !b.has(keyCollectiveSeqID) {
		e.CollectiveSeqID = b.int(keySeqID)
	}
	b.entries = append(b.entries, e)
	return value{kindEntry, int64(len(b.entries) - 1)}, nil
}

func (b *builder) duration() float64 {
	v := b.field(keyDuration)
	switch v.kind {
	case kindFloat:
		if ms := math.Float64frombits(uint64(v.n)); ms >= 0 {
			return ms
		}
	case kindInt:
		return float64(v.n)
	case kindNone:
		return -1
	}
	b.oddValue(keyDuration)
	return -1
}

func (b *builder) origin() *FlightOrigin {
	group := b.field(keyProcessGroup)
	k := originKey{
		pgID: b.int(keyPGID), timeoutMs: b.int(keyTimeout),
		group: emptySeq, thread: b.textField(keyThreadName), threadID: b.textField(keyThreadID),
	}
	if group.kind == kindSeq {
		k.group = uint32(group.n)
	}
	if b.lastOriginIs != nil && k == b.lastOrigin {
		return b.lastOriginIs
	}
	o, ok := b.origins[k]
	if !ok {
		o = &FlightOrigin{PGID: k.pgID, TimeoutMs: k.timeoutMs, ThreadName: b.texts[k.thread], ThreadID: b.texts[k.threadID]}
		if pair := b.listOf(group); len(pair) == 2 {
			o.GroupName, o.GroupDesc = b.textOf(pair[0]), b.textOf(pair[1])
		} else if group.kind != kindNone {
			b.oddValue(keyProcessGroup)
		}
		b.origins[k] = o
	}
	b.lastOrigin, b.lastOriginIs = k, o
	return o
}

func (b *builder) newGroup() (value, error) {
	g := flight.Group{Name: b.texts[b.textField(keyName)], Desc: b.texts[b.textField(keyDesc)], Ranks: b.members()}
	b.groups = append(b.groups, g)
	return value{kindGroup, int64(len(b.groups) - 1)}, nil
}

// members reads "[0, 1, 2]", the format's own spelling, or a list of numbers.
func (b *builder) members() []int {
	v := b.field(keyRanks)
	if v.kind == kindText {
		if ranks, ok := b.ranks[uint32(v.n)]; ok {
			return ranks
		}
	}
	ranks, ok := b.parseMembers(v)
	if !ok {
		b.warn("group-ranks", "the members of group "+strconv.Quote(clip(b.texts[b.textField(keyName)]))+" cannot be read: they are taken as unknown")
		return nil
	}
	ranks = b.pool.members(ranks)
	if v.kind == kindText {
		b.ranks[uint32(v.n)] = ranks
	}
	return ranks
}

func (b *builder) parseMembers(v value) ([]int, bool) {
	var ranks []int
	if v.kind == kindSeq {
		for _, r := range b.listOf(v) {
			if r.kind != kindInt || r.n < 0 || r.n > math.MaxInt32 {
				return nil, false
			}
			ranks = append(ranks, int(r.n))
		}
		return ranks, true
	}
	text := strings.TrimSpace(b.textOf(v))
	if !strings.HasPrefix(text, "[") || !strings.HasSuffix(text, "]") || len(text) < 2 {
		return nil, false
	}
	if text = strings.TrimSpace(text[1 : len(text)-1]); text == "" {
		return nil, true
	}
	for field := range strings.SplitSeq(text, ",") {
		r, err := strconv.ParseUint(strings.TrimSpace(field), 10, 31)
		if err != nil {
			return nil, false
		}
		ranks = append(ranks, int(r))
	}
	return ranks, true
}

func (b *builder) newStatus() (value, error) {
	s := flight.GroupStatus{PGID: -1, LastEnqueued: -1, LastStarted: -1, LastCompleted: -1}
	for key, to := range map[int]*int64{keyLastEnqueued: &s.LastEnqueued, keyLastStarted: &s.LastStarted, keyLastCompleted: &s.LastCompleted} {
		if b.has(key) {
			*to = b.int(key)
		}
	}
	b.status = append(b.status, s)
	return value{kindStatus, int64(len(b.status) - 1)}, nil
}

// harvest fills the dump from the file's whole value.
func (b *builder) harvest(whole value) error {
	whole = b.resolve(whole)
	switch {
	case whole.kind == kindDict && b.topLevel(b.dicts[whole.n]):
	case whole.kind == kindEntries || whole == value{kindSeq, emptySeq}: // the oldest dumps are nothing but entries
	case b.dump.Form == "json" && whole.kind == kindSeq:
		return fmt.Errorf("%w: a list, but not of entries", ErrNotFlight)
	default:
		return fmt.Errorf("%w: it has none of the keys of a dump", ErrNotFlight)
	}
	b.finish()
	return nil
}

// salvage closes the containers that a cut file left open and does what harvest does. Whatever was half made two levels down, an entry or a
// group's counters, is dropped first; an entry one level down (a list of one that Python wrote) is taken back.
func (b *builder) salvage() {
	b.dump.Cut = true
	whole := len(b.entries)
	if len(b.marks) > 2 {
		b.stack, b.marks = b.stack[:max(b.marks[2]-1, b.marks[1])], b.marks[:2]
	}
	for i := len(b.marks) - 1; i >= 0; i-- {
		b.closeOpen(b.marks[i] - 1)
	}
	b.entries = b.entries[:whole]
	if len(b.stack) > 0 {
		b.topLevel(b.pairs(b.resolve(b.stack[0])))
	}
	b.finish()
}

// closeOpen ignores errors: what does not fit is not part of the dump.
func (b *builder) closeOpen(at int) {
	if at < 0 {
		return
	}
	switch b.resolve(b.stack[at]).kind {
	case kindEmptyDict, kindDict:
		n := len(b.stack) - at - 1
		b.stack = b.stack[:len(b.stack)-n%2]
		_ = b.setItems(at)
	case kindSeq, kindEntries:
		_ = b.appendItems(at)
	}
}

func (b *builder) finish() {
	b.dump.Entries = slices.Clone(b.entries)
	b.dump.nameGroups()
}

// topLevel takes the pairs of the outermost dictionary. It is false where nothing in them is a dump's.
func (b *builder) topLevel(pairs []value) bool {
	known := false
	for i := 0; i < len(pairs); i += 2 {
		key, v := b.textOf(pairs[i]), pairs[i+1]
		switch {
		case key == keyTexts[keyVersion]:
			b.dump.Version = b.scalar(v)
			continue // many things have a version
		case key == keyTexts[keyPGConfig]:
			b.topGroups(v)
		case key == keyTexts[keyPGStatus]:
			b.topStatus(v)
		case key == keyTexts[keyEntries]:
			b.topEntries(v)
		case strings.HasSuffix(key, "_version"):
			b.dump.CommLibKey, b.dump.CommLibVersion = key, b.scalar(v)
			continue // as NCCL's RAS reports have, among others
		case strings.HasSuffix(key, "_comm_state"):
			b.commState(v)
			continue
		default:
			b.unknownKeys("the dump", pairs[i:i+2])
			continue
		}
		known = true
	}
	return known
}

func (b *builder) scalar(v value) string {
	switch v.kind {
	case kindInt:
		return strconv.FormatInt(v.n, 10)
	case kindFloat:
		return strconv.FormatFloat(math.Float64frombits(uint64(v.n)), 'f', -1, 64)
	}
	return b.textOf(v)
}

func (b *builder) pairs(v value) []value {
	if v.kind != kindDict {
		return nil
	}
	return b.dicts[v.n]
}

func (b *builder) topEntries(v value) {
	if v.kind == kindSeq && v.n != emptySeq || v.kind != kindSeq && v.kind != kindEntries {
		b.warn("odd-value", "the value of entries is no list of entries: it is left out")
	}
}

func (b *builder) topGroups(v value) {
	pairs := b.pairs(v)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1].kind != kindGroup {
			b.warn("odd-value", "a value in pg_config is no group: it is left out")
			continue
		}
		g := b.groups[pairs[i+1].n]
		if g.Name == "" {
			g.Name = b.textOf(pairs[i])
		}
		b.dump.Groups = append(b.dump.Groups, g)
	}
}

func (b *builder) topStatus(v value) {
	pairs := b.pairs(v)
	for i := 0; i < len(pairs); i += 2 {
		id, ok := b.number(pairs[i])
		if pairs[i+1].kind != kindStatus || !ok {
			b.warn("odd-value", "something in pg_status is no group's counters: it is left out")
			continue
		}
		s := b.status[pairs[i+1].n]
		s.PGID = id
		b.dump.Status = append(b.dump.Status, s)
	}
}

// commState keeps what is text; each communicator's map is made once however often the file refers to it.
func (b *builder) commState(v value) {
	b.dump.CommState = map[string]map[string]string{}
	made := map[int64]map[string]string{}
	pairs := b.pairs(v)
	for i := 0; i < len(pairs); i += 2 {
		inner := pairs[i+1]
		state, ok := made[inner.n]
		if !ok || inner.kind != kindDict {
			state = map[string]string{}
			fields := b.pairs(inner)
			for f := 0; f < len(fields); f += 2 {
				state[b.textOf(fields[f])] = b.scalar(fields[f+1])
			}
			made[inner.n] = state
		}
		b.dump.CommState[b.textOf(pairs[i])] = state
	}
}
