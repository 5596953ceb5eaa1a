package evidence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The opcodes of the pickles that hold dumps: PyTorch's C++ pickler (protocol 2), and Python's (2 to 5) for dumps that a script rewrote.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opBinFloat        = 'G'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opReduce          = 'R'
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppend          = 'a'
	opGlobal          = 'c'
	opAppends         = 'e'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opTuple           = 't'
	opSetItems        = 'u'
	opEmptyDict       = '}'
	opEmptyTuple      = ')'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opMemoize         = 0x94
	opFrame           = 0x95
)

var (
	errFlightDepth = fmt.Errorf("containers nested more than %d deep: no dump is", maxFlightMarks)
	errNoMark      = errors.New("the end of a container that was not begun")
	errNoValue     = errors.New("an operation on more values than there are")
)

// pickle is a machine for data only: it has lists, dictionaries, tuples and scalars, and no way to call anything.
func (b *builder) pickle() error {
	for {
		b.run()
		op, err := b.src.take(1)
		if err != nil {
			return err
		}
		if op[0] == opStop {
			return b.endPickle()
		}
		if err := b.step(op[0]); err != nil {
			return err
		}
		if len(b.stack) > maxFlightStack {
			return fmt.Errorf("more than %d values under construction: no dump has that many", maxFlightStack)
		}
	}
}

func (b *builder) endPickle() error {
	if len(b.stack) != 1 || len(b.marks) != 0 {
		return errors.New("the pickle ends with containers open")
	}
	if _, err := b.src.take(1); !errors.Is(err, io.ErrUnexpectedEOF) {
		b.warn("trailing-bytes", "there is more in the file after the dump's end: it is not looked at")
	}
	return nil
}

// run pushes values for as long as it is as simple as that and lies whole in the window, and leaves everything else to step, which knows these
// operations too. Two thirds of a dump's operations are done here, which saves about a tenth of the time.
func (b *builder) run() {
	const longest = 10 // bytes, of an operation
	w, stack := b.src.buf[b.src.pos:b.src.end], b.stack
	i := 0
loop:
	for i+longest <= len(w) && len(stack) < maxFlightStack {
		arg := w[i+1 : i+longest]
		switch w[i] {
		case opBinGet:
			at := int(arg[0])
			if at >= len(b.memo) || b.memo[at].kind == kindUnset {
				break loop
			}
			stack = append(stack, b.memo[at])
			i += 2
		case opBinInt1:
			stack = append(stack, value{kindInt, int64(arg[0])})
			i += 2
		case opBinInt:
			stack = append(stack, value{kindInt, int64(int32(binary.LittleEndian.Uint32(arg)))})
			i += 5
		case opBinInt2:
			stack = append(stack, value{kindInt, int64(binary.LittleEndian.Uint16(arg))})
			i += 3
		case opLong1:
			if arg[0] != 8 {
				break loop
			}
			stack = append(stack, value{kindInt, int64(binary.LittleEndian.Uint64(arg[1:]))})
			i += 10
		case opNone:
			stack = append(stack, value{})
			i++
		case opNewTrue, opNewFalse:
			stack = append(stack, value{kindBool, int64(opNewFalse - w[i])})
			i++
		default:
			break loop
		}
	}
	b.src.pos += i
	b.stack = stack
}

// step does the operations that make up nearly all of a dump.
func (b *builder) step(op byte) error {
	switch op {
	case opBinGet:
		arg, err := b.src.take(1)
		if err != nil {
			return err
		}
		return b.get(uint32(arg[0]))
	case opBinInt1:
		arg, err := b.src.take(1)
		if err != nil {
			return err
		}
		b.push(value{kindInt, int64(arg[0])})
	case opBinInt2:
		arg, err := b.src.take(2)
		if err != nil {
			return err
		}
		b.push(value{kindInt, int64(binary.LittleEndian.Uint16(arg))})
	case opBinInt:
		arg, err := b.src.take(4)
		if err != nil {
			return err
		}
		b.push(value{kindInt, int64(int32(binary.LittleEndian.Uint32(arg)))})
	case opLong1:
		return b.long()
	case opMark:
		return b.mark1()
	case opEmptyList:
		b.push(value{kindSeq, emptySeq})
	case opEmptyDict:
		b.push(value{kindEmptyDict, 0})
	case opAppends:
		return b.close(b.appendItems)
	case opSetItems:
		return b.close(b.setItems)
	case opTuple2:
		return b.tuple(2)
	case opNone:
		b.push(value{})
	case opNewTrue:
		b.push(value{kindBool, 1})
	case opNewFalse:
		b.push(value{kindBool, 0})
	case opBinPut:
		arg, err := b.src.take(1)
		if err != nil {
			return err
		}
		return b.put(uint32(arg[0]))
	case opLongBinGet, opLongBinPut:
		arg, err := b.src.take(4)
		if err != nil {
			return err
		}
		if op == opLongBinGet {
			return b.get(binary.LittleEndian.Uint32(arg))
		}
		return b.put(binary.LittleEndian.Uint32(arg))
	default:
		return b.rareStep(op)
	}
	return nil
}

// rareStep does the others.
func (b *builder) rareStep(op byte) error {
	switch op {
	case opBinUnicode:
		return b.unicode(4)
	case opShortBinUnicode:
		return b.unicode(1)
	case opBinUnicode8:
		return b.unicode(8)
	case opMemoize:
		return b.put(uint32(len(b.memo)))
	case opBinFloat:
		arg, err := b.src.take(8)
		if err != nil {
			return err
		}
		b.push(value{kindFloat, int64(binary.BigEndian.Uint64(arg))})
	case opFrame: // a hint for readers that buffer
		_, err := b.src.take(8)
		return err
	case opProto:
		arg, err := b.src.take(1)
		if err == nil && (arg[0] < 2 || arg[0] > 5) {
			err = fmt.Errorf("pickle protocol %d: dumps have 2 to 5", arg[0])
		}
		return err
	case opAppend:
		return b.closeLast(1, b.appendItems)
	case opSetItem:
		return b.closeLast(2, b.setItems)
	case opEmptyTuple:
		b.push(value{kindSeq, emptySeq})
	case opTuple1:
		return b.tuple(1)
	case opTuple3:
		return b.tuple(3)
	case opTuple:
		return b.tupleFromMark()
	case opPop:
		return b.drop(1)
	case opPopMark:
		at, err := b.popMark()
		if err != nil {
			return err
		}
		b.stack = b.stack[:at]
	case opGlobal:
		return b.global()
	case opReduce:
		return b.reduce()
	default:
		return fmt.Errorf("pickle opcode 0x%02x: no dump has it, and nothing but data is read here", op)
	}
	return nil
}

func (b *builder) mark1() error {
	if len(b.marks) == maxFlightMarks {
		return errFlightDepth
	}
	b.marks = append(b.marks, len(b.stack))
	return nil
}

func (b *builder) popMark() (int, error) {
	if len(b.marks) == 0 {
		return 0, errNoMark
	}
	at := b.marks[len(b.marks)-1]
	b.marks = b.marks[:len(b.marks)-1]
	return at, nil
}

// floor is where the innermost open container begins: nothing may take values from below.
func (b *builder) floor() int {
	if len(b.marks) == 0 {
		return 0
	}
	return b.marks[len(b.marks)-1]
}

// close ends a container: its items lie above the last mark, itself below.
func (b *builder) close(fill func(at int) error) error {
	at, err := b.popMark()
	if err != nil {
		return err
	}
	if at-1 < b.floor() {
		return errNoValue
	}
	return fill(at - 1)
}

// closeLast does so for the last n values.
func (b *builder) closeLast(n int, fill func(at int) error) error {
	at := len(b.stack) - n - 1
	if at < b.floor() {
		return errNoValue
	}
	return fill(at)
}

func (b *builder) drop(n int) error {
	if len(b.stack)-n < b.floor() {
		return errNoValue
	}
	b.stack = b.stack[:len(b.stack)-n]
	return nil
}

func (b *builder) tupleFromMark() error {
	at, err := b.popMark()
	if err != nil {
		return err
	}
	return b.tuple(len(b.stack) - at)
}

// tuple makes one list of the last n values.
func (b *builder) tuple(n int) error {
	at := len(b.stack) - n
	if at < b.floor() {
		return errNoValue
	}
	items := b.stack[at:]
	for i := range items {
		items[i] = b.resolve(items[i])
	}
	id, err := b.seq(items)
	b.stack = append(b.stack[:at], value{kindSeq, int64(id)})
	return err
}

func (b *builder) get(at uint32) error {
	if int64(at) >= int64(len(b.memo)) || b.memo[at].kind == kindUnset {
		return fmt.Errorf("a reference to place %d of the memo, where nothing was put yet", at)
	}
	b.push(b.memo[at])
	return nil
}

// put remembers the last value. A container that is still empty will be filled after this, so what is remembered is where it will be.
func (b *builder) put(at uint32) error {
	if at >= maxFlightMemo || int(at) > len(b.memo)+maxFlightMemoGap {
		return fmt.Errorf("place %d of a memo that has %d: no dump's memo is like that", at, len(b.memo))
	}
	top := len(b.stack) - 1
	if top < b.floor() {
		return errNoValue
	}
	v := b.stack[top]
	if v.kind == kindEmptyDict || v.kind == kindSeq && v.n == emptySeq {
		b.slots = append(b.slots, v)
		v = value{kindRef, int64(len(b.slots) - 1)}
		b.stack[top] = v
	}
	if len(b.slots) > maxFlightMemo {
		return fmt.Errorf("more than %d containers in the memo: no dump has that many", maxFlightMemo)
	}
	for int(at) >= len(b.memo) {
		b.memo = append(b.memo, value{kindUnset, 0})
	}
	b.memo[at] = v
	return nil
}

// unicode reads a string whose length has the given number of bytes.
func (b *builder) unicode(lengthBytes int) error {
	arg, err := b.src.take(lengthBytes)
	if err != nil {
		return err
	}
	n := littleEndian(arg)
	if n > maxFlightText {
		return fmt.Errorf("a string of %d bytes: dumps have none over %d MiB", n, maxFlightText>>20)
	}
	text, err := b.src.take(int(n))
	if err != nil {
		return err
	}
	b.push(value{kindText, int64(b.text(text))})
	return nil
}

func littleEndian(b []byte) uint64 {
	var n uint64
	for i, digit := range b {
		n |= uint64(digit) << (8 * i)
	}
	return n
}

// long reads an integer of any length up to 255 bytes, in two's complement. One that does not fit into 64 bits is nothing a dump has.
func (b *builder) long() error {
	arg, err := b.src.take(1)
	if err != nil {
		return err
	}
	n := int(arg[0])
	digits, err := b.src.take(n)
	if err != nil {
		return err
	}
	if n > 8 {
		b.push(value{kindOdd, 0})
		return nil
	}
	v := int64(littleEndian(digits))
	if n > 0 && n < 8 {
		shift := 64 - 8*n
		v = v << shift >> shift // the sign
	}
	b.push(value{kindInt, v})
	return nil
}

// global accepts the two functions that very old versions of PyTorch wrap lists in. Both give back what they are given, and that is all
// that happens here. Any other name is a program that wants to be run.
func (b *builder) global() error {
	module, err := b.line()
	if err != nil {
		return err
	}
	name, err := b.line()
	if err != nil {
		return err
	}
	if module != "torch.jit._pickle" || name != "restore_type_tag" && name != "build_intlist" {
		return fmt.Errorf("the pickle asks for %.100q.%.100q to be called: refused, a dump is only data", module, name)
	}
	b.push(value{kindGlobal, 0})
	return nil
}

func (b *builder) line() (string, error) {
	var out []byte
	for len(out) < 256 {
		c, err := b.src.take(1)
		if err != nil {
			return "", err
		}
		if c[0] == '\n' {
			return string(out), nil
		}
		out = append(out, c[0])
	}
	return "", errors.New("the name of a function of more than 256 bytes: no dump has that")
}

// reduce replaces one of those functions and its arguments by the first argument.
func (b *builder) reduce() error {
	at := len(b.stack) - 2
	if at < b.floor() {
		return errNoValue
	}
	args := b.listOf(b.resolve(b.stack[at+1]))
	if b.stack[at].kind != kindGlobal || len(args) == 0 {
		return errors.New("the pickle asks for something to be called: refused, a dump is only data")
	}
	b.stack = append(b.stack[:at], args[0])
	return nil
}
