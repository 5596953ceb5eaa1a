package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// json reads the text form into the same stack that pickle uses. encoding/json would make a map of every entry.
func (b *builder) json() error {
	if err := b.jsonValue(); err != nil {
		return err
	}
	switch _, err := b.peek(); {
	case err == nil:
		b.warn("trailing-bytes", "there is more in the file after the dump's end: it is not looked at")
	case !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return nil
}

// peek gives the next byte that is no white space, without taking it.
func (b *builder) peek() (byte, error) {
	for {
		for ; b.src.pos < b.src.end; b.src.pos++ {
			if c := b.src.buf[b.src.pos]; c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				return c, nil
			}
		}
		if err := b.src.fill(1); err != nil {
			return 0, err
		}
	}
}

func (b *builder) jsonValue() error {
	c, err := b.peek()
	if err != nil {
		return err
	}
	if len(b.stack) > maxFlightStack {
		return fmt.Errorf("more than %d values under construction: no dump has that many", maxFlightStack)
	}
	switch {
	case c == '{':
		return b.jsonObject()
	case c == '[':
		return b.jsonArray()
	case c == '"':
		return b.jsonString()
	case c == '-' || c >= '0' && c <= '9':
		return b.jsonNumber()
	case c == 't':
		return b.literal("true", value{kindBool, 1})
	case c == 'f':
		return b.literal("false", value{kindBool, 0})
	case c == 'n':
		return b.literal("null", value{})
	case c == 'N':
		return b.literal("NaN", value{}) // Python writes it
	}
	return fmt.Errorf("%q where a JSON value begins", c)
}

func (b *builder) literal(word string, v value) error {
	got, err := b.src.take(len(word))
	if err != nil {
		return err
	}
	if string(got) != word {
		return fmt.Errorf("%q is no JSON value", got)
	}
	b.push(v)
	return nil
}

func (b *builder) jsonObject() error {
	b.src.pos++
	b.push(value{kindEmptyDict, 0})
	if err := b.mark1(); err != nil {
		return err
	}
	for first := true; ; first = false {
		done, err := b.separator(first, '}')
		if err != nil {
			return err
		}
		if done {
			return b.close(b.setItems)
		}
		if err := b.member(); err != nil {
			return err
		}
	}
}

func (b *builder) member() error {
	c, err := b.peek()
	if err != nil {
		return err
	}
	if c != '"' {
		return fmt.Errorf("%q where a key begins", c)
	}
	if err := b.jsonString(); err != nil {
		return err
	}
	if c, err = b.peek(); err != nil {
		return err
	}
	if c != ':' {
		return fmt.Errorf("%q after a key, where a colon belongs", c)
	}
	b.src.pos++
	return b.jsonValue()
}

func (b *builder) jsonArray() error {
	b.src.pos++
	b.push(value{kindSeq, emptySeq})
	if err := b.mark1(); err != nil {
		return err
	}
	for first := true; ; first = false {
		done, err := b.separator(first, ']')
		if err != nil {
			return err
		}
		if done {
			return b.close(b.appendItems)
		}
		if err := b.jsonValue(); err != nil {
			return err
		}
	}
}

// separator takes the comma before an element that is not the first, or the end of the container.
func (b *builder) separator(first bool, end byte) (done bool, err error) {
	c, err := b.peek()
	switch {
	case err != nil:
		return false, err
	case c == end:
		b.src.pos++
		return true, nil
	case first:
		return false, nil
	case c != ',':
		return false, fmt.Errorf("%q where a comma or %q belongs", c, end)
	}
	b.src.pos++
	return false, nil
}

// jsonString reads a string where it lies and decodes it only if it has to.
func (b *builder) jsonString() error {
	plain := true
	for i := 1; ; i++ {
		if b.src.pos+i >= b.src.end {
			if i > maxFlightText {
				return fmt.Errorf("a string of more than %d MiB: no dump has that", maxFlightText>>20)
			}
			if err := b.src.fill(i + 1); err != nil {
				return err
			}
		}
		switch c := b.src.buf[b.src.pos+i]; {
		case c == '"':
			return b.endString(i+1, plain)
		case c == '\\':
			plain = false
			i++ // whatever follows, a quote among it, is not the end
		case c < ' ':
			plain = false
		}
	}
}

func (b *builder) endString(n int, plain bool) error {
	raw, err := b.src.take(n)
	if err != nil {
		return err
	}
	text := raw[1 : n-1]
	if !plain {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("a string that is not valid JSON: %w", err)
		}
		text = []byte(s)
	}
	b.push(value{kindText, int64(b.text(text))})
	return nil
}

func (b *builder) jsonNumber() error {
	n := 0
	for ; ; n++ {
		if b.src.pos+n >= b.src.end {
			if err := b.src.fill(n + 1); errors.Is(err, io.ErrUnexpectedEOF) {
				return err // a dump never ends in a number
			} else if err != nil {
				return err
			}
		}
		if c := b.src.buf[b.src.pos+n]; (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		if n > 64 {
			return errors.New("a number of more than 64 characters: no dump has that")
		}
	}
	text, err := b.src.take(n)
	if err != nil {
		return err
	}
	if i, ok := digits(text); ok {
		b.push(value{kindInt, i})
		return nil
	}
	if i, err := strconv.ParseInt(string(text), 10, 64); err == nil { // the one that digits leaves out, -2^63
		b.push(value{kindInt, i})
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("%q is no number", text)
	}
	b.push(value{kindFloat, int64(math.Float64bits(f))})
	return nil
}

// digits reads an integer that fits into 64 bits. A time in nanoseconds has 19 digits, which a float would round.
func digits(text []byte) (int64, bool) {
	sign := int64(1)
	if len(text) > 0 && text[0] == '-' {
		sign, text = -1, text[1:]
	}
	if len(text) == 0 || len(text) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0') // 19 digits fit
	}
	return sign * int64(n), n <= math.MaxInt64
}
