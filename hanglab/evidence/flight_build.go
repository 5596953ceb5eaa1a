package evidence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// builder turns the values of a file into a dump. Both forms of a dump are read by pushing values on a stack; where a dictionary is complete its keys
// say what it is, and an entry becomes a FlightEntry at once: no map or list is ever made for it.
type builder struct {
	*tables
	src   source
	stack []value
	marks []int // where in the stack containers under construction begin

	memo  []value
	slots []value

	dicts   [][]value // key, value, key, value ...
	inDicts int       // values in all dicts
	entries []FlightEntry
	groups  []flight.Group
	status  []flight.GroupStatus

	mask   uint64 // keys of the dictionary being looked at
	fields [numKeys]value

	dump *FlightDump
}

func (b *builder) read(r io.Reader, name string) (*FlightDump, error) {
	b.src.reset(r)
	b.stack, b.marks, b.memo, b.slots = b.stack[:0], b.marks[:0], b.memo[:0], b.slots[:0]
	b.dicts, b.inDicts, b.entries, b.groups, b.status = b.dicts[:0], 0, b.entries[:0], b.groups[:0], b.status[:0]
	rank, _ := RankOfName(name)
	b.dump = &FlightDump{Name: name, Rank: rank}
	err := b.parse()
	if err == nil {
		err = b.harvest(b.stack[0])
	}
	dump := b.dump
	failure := &FlightError{Name: name, Offset: b.src.offset(), Err: err}
	b.src.r = nil
	var reading *readError
	switch {
	case err == nil:
		return dump, nil
	case dump.Form == "":
		return nil, failure
	case errors.Is(err, io.ErrUnexpectedEOF):
		failure.Err = fmt.Errorf("the file is cut off here, after %d whole entries: %w", len(b.entries), err)
	case !errors.As(err, &reading):
		return nil, failure
	}
	b.salvage()
	return dump, failure
}

// reusable tells whether the next file may find what this one left.
func (b *builder) reusable() bool {
	return !b.large() && cap(b.src.buf) == flightBuffer && cap(b.stack) <= 1<<16 && cap(b.memo) <= 1<<16 && cap(b.entries) <= 1<<16 && cap(b.dicts) <= 1<<16
}

// parse leaves the whole file's value as the only one on the stack.
func (b *builder) parse() error {
	err := b.src.fill(16)
	head := b.src.buf[:b.src.end]
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if len(head) == 0 {
		return ErrEmpty
	}
	if head[0] == opProto {
		b.dump.Form = "pickle"
		return b.pickle()
	}
	text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		b.src.pos = len(head) - len(text)
		b.dump.Form = "json"
		return b.json()
	}
	return fmt.Errorf("%w: it begins with %q, which is neither a pickle nor JSON", ErrNotFlight, head[:min(len(head), 8)])
}

func (b *builder) push(v value) { b.stack = append(b.stack, v) }

func (b *builder) resolve(v value) value {
	if v.kind == kindRef {
		return b.slots[v.n]
	}
	return v
}

// grow replaces the container at a place of the stack by what it has become.
func (b *builder) grow(at int, v value) {
	if ref := b.stack[at]; ref.kind == kindRef {
		b.slots[ref.n] = v
		return
	}
	b.stack[at] = v
}

// appendItems puts all above the stack's place at into the list there.
func (b *builder) appendItems(at int) error {
	items := b.stack[at+1:]
	for i := range items {
		items[i] = b.resolve(items[i])
	}
	list := b.resolve(b.stack[at])
	out, err := b.extend(list, items)
	if err != nil {
		return err
	}
	b.grow(at, out)
	b.stack = b.stack[:at+1]
	return nil
}

func (b *builder) extend(list value, items []value) (value, error) {
	if list.kind == kindSeq && list.n == emptySeq && len(items) > 0 && items[0].kind == kindEntry {
		list = value{kindEntries, 0}
	}
	switch list.kind {
	case kindEntries:
		for _, v := range items {
			if v.kind == kindEntry {
				list.n++
			} else {
				b.warn("foreign-item", "something in the list of entries is no entry: it is left out")
			}
		}
		return list, nil
	case kindSeq:
		if list.n != emptySeq {
			items = append(slices.Clone(b.list(uint32(list.n))), items...)
		}
		id, err := b.seq(items)
		return value{kindSeq, int64(id)}, err
	}
	return value{}, errors.New("items are put into something that is no list")
}

// setItems puts the pairs above the stack's place at into the dictionary there.
func (b *builder) setItems(at int) error {
	pairs := b.stack[at+1:]
	if len(pairs)%2 != 0 {
		return errors.New("a dictionary has a key without a value")
	}
	for i := range pairs {
		pairs[i] = b.resolve(pairs[i])
	}
	dict := b.resolve(b.stack[at])
	out, err := b.fillDict(dict, pairs)
	if err != nil {
		return err
	}
	b.grow(at, out)
	b.stack = b.stack[:at+1]
	return nil
}

func (b *builder) fillDict(dict value, pairs []value) (value, error) {
	switch dict.kind {
	case kindEmptyDict:
		if len(pairs) == 0 {
			return dict, nil
		}
		return b.newDict(pairs)
	case kindDict:
		return dict, b.addPairs(int(dict.n), pairs)
	case kindEntry, kindFrame, kindGroup, kindStatus:
		b.warn("late-key", "a dictionary was added to after it was complete: the addition is left out")
		return dict, nil
	}
	return value{}, errors.New("keys are put into something that is no dictionary")
}

// newDict finds out what a dictionary is by its keys. A group may be called "ranks" or "name", so a key whose value is a dictionary says nothing.
func (b *builder) newDict(pairs []value) (value, error) {
	b.mask = 0
	known := 0
	for i := 0; i < len(pairs); i += 2 {
		key, v := pairs[i], pairs[i+1]
		if key.kind != kindText || key.n >= numKeys || v.kind >= kindEmptyDict && v.kind <= kindStatus {
			continue
		}
		b.mask |= 1 << key.n
		b.fields[key.n] = v
		known++
	}
	switch {
	case b.has(keyProfilingName) || b.has(keyCollectiveSeqID) || b.has(keySeqID):
		if known < len(pairs)/2 {
			b.unknownKeys("an entry", pairs)
		}
		return b.newEntry()
	case b.has(keyFilename):
		id, err := b.seq([]value{b.field(keyName), b.field(keyFilename), {kindInt, b.int(keyLine)}})
		return value{kindFrame, int64(id)}, err
	case b.has(keyRanks) || b.has(keyDesc):
		return b.newGroup()
	case b.has(keyLastEnqueued) || b.has(keyLastCompleted):
		return b.newStatus()
	}
	b.dicts = append(b.dicts, nil)
	return value{kindDict, int64(len(b.dicts) - 1)}, b.addPairs(len(b.dicts)-1, pairs)
}

func (b *builder) has(key int) bool { return b.mask>>key&1 != 0 }

func (b *builder) unknownKeys(where string, pairs []value) {
	for i := 0; i < len(pairs); i += 2 {
		key := pairs[i]
		if key.kind == kindText && key.n < numKeys {
			continue
		}
		b.warn("unknown-key", where+" has a key "+strconv.Quote(clip(b.textOf(key)))+" that no version of the format known here has: it is left out")
	}
}

// clip keeps messages short.
func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "..."
	}
	return s
}

func (b *builder) addPairs(dict int, pairs []value) error {
	b.inDicts += len(pairs)
	if b.inDicts > maxFlightValues {
		return errors.New("too many keys in dictionaries that are no entries: no dump has that many")
	}
	b.dicts[dict] = append(b.dicts[dict], pairs...)
	return nil
}

// field is the value of a key, kindNone where there is none.
func (b *builder) field(key int) value {
	if !b.has(key) {
		return value{}
	}
	return b.fields[key]
}

func (b *builder) int(key int) int64 {
	v := b.field(key)
	if v.kind == kindInt {
		return v.n
	}
	n, ok := b.number(v)
	if !ok {
		b.oddValue(key)
	}
	return n
}

// number is lenient: JSON has a group's counters as strings.
func (b *builder) number(v value) (int64, bool) {
	switch v.kind {
	case kindInt, kindBool:
		return v.n, true
	case kindNone:
		return 0, true
	case kindFloat:
		f := math.Float64frombits(uint64(v.n))
		if math.Abs(f) < 1<<62 {
			return int64(f), true
		}
	case kindText:
		n, err := strconv.ParseInt(b.texts[v.n], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// textField gives a text's index; a number is taken as its digits.
func (b *builder) textField(key int) uint32 {
	v := b.field(key)
	switch v.kind {
	case kindText:
		return uint32(v.n)
	case kindInt:
		return b.text(strconv.AppendInt(nil, v.n, 10))
	case kindNone:
	default:
		b.oddValue(key)
	}
	return b.text(nil)
}

func (b *builder) seqField(key int) uint32 {
	v := b.field(key)
	if v.kind == kindSeq {
		return uint32(v.n)
	}
	if v.kind != kindNone {
		b.oddValue(key)
	}
	return emptySeq
}

func (b *builder) oddValue(key int) {
	b.warn("odd-value", "the value of "+keyTexts[key]+" is not of the type it should have: it is taken as unknown")
}

func (b *builder) warn(code, text string) { b.dump.warn(code, text) }
