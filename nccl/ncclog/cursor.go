package ncclog

import (
	"bytes"
	"strconv"
)

// cursor walks over the bytes of a message without allocating. After a step that does not fit, bad is set and all later steps do nothing.
type cursor struct {
	b   []byte
	bad bool
}

func at(b []byte) *cursor { return &cursor{b: b} }

// lit steps over s.
func (c *cursor) lit(s string) bool {
	if c.bad || len(c.b) < len(s) || string(c.b[:len(s)]) != s {
		c.bad = true
		return false
	}
	c.b = c.b[len(s):]
	return true
}

// try steps over s where it stands there, and is no error where it does not.
func (c *cursor) try(s string) bool {
	if c.bad || len(c.b) < len(s) || string(c.b[:len(s)]) != s {
		return false
	}
	c.b = c.b[len(s):]
	return true
}

// num reads a decimal number with blanks before it.
func (c *cursor) num() int {
	c.blanks()
	i, neg := 0, false
	if len(c.b) > 0 && c.b[0] == '-' {
		i, neg = 1, true
	}
	start, n := i, 0
	for ; i < len(c.b) && c.b[i]-'0' < 10; i++ {
		if n < 1<<58 {
			n = n*10 + int(c.b[i]-'0')
		}
	}
	if c.bad || i == start {
		c.bad = true
		return 0
	}
	c.b = c.b[i:]
	if neg {
		return -n
	}
	return n
}

// hex reads a hexadecimal number with or without 0x.
func (c *cursor) hex() uint64 {
	c.try("0x")
	var n uint64
	i := 0
	for ; i < len(c.b); i++ {
		d := unhex(c.b[i])
		if d > 15 {
			break
		}
		n = n<<4 | uint64(d)
	}
	if c.bad || i == 0 {
		c.bad = true
		return 0
	}
	c.b = c.b[i:]
	return n
}

func unhex(b byte) byte {
	switch {
	case b-'0' < 10:
		return b - '0'
	case b-'a' < 6:
		return b - 'a' + 10
	case b-'A' < 6:
		return b - 'A' + 10
	}
	return 255
}

// float reads a decimal fraction with blanks before it.
func (c *cursor) float() float64 {
	c.blanks()
	i := 0
	for i < len(c.b) && (c.b[i]-'0' < 10 || c.b[i] == '.' || c.b[i] == '-' || c.b[i] == '+' || c.b[i] == 'e') {
		i++
	}
	f, err := strconv.ParseFloat(string(c.b[:i]), 64)
	if c.bad || err != nil {
		c.bad = true
		return 0
	}
	c.b = c.b[i:]
	return f
}

// word reads up to the next blank or the end.
func (c *cursor) word() []byte {
	c.blanks()
	i := bytes.IndexByte(c.b, ' ')
	if i < 0 {
		i = len(c.b)
	}
	if c.bad || i == 0 {
		c.bad = true
		return nil
	}
	w := c.b[:i]
	c.b = c.b[i:]
	return w
}

// skip steps over what is not blank.
func (c *cursor) skip() {
	i := 0
	for i < len(c.b) && c.b[i] != ' ' {
		i++
	}
	c.b = c.b[i:]
}

// until reads up to s and steps over it.
func (c *cursor) until(s string) []byte {
	i := bytes.Index(c.b, []byte(s))
	if c.bad || i < 0 {
		c.bad = true
		return nil
	}
	w := c.b[:i]
	c.b = c.b[i+len(s):]
	return w
}

// find steps to behind the next s, and is no error where there is none.
func (c *cursor) find(s string) bool {
	i := bytes.Index(c.b, []byte(s))
	if c.bad || i < 0 {
		return false
	}
	c.b = c.b[i+len(s):]
	return true
}

func (c *cursor) blanks() {
	i := 0
	for i < len(c.b) && c.b[i] == ' ' {
		i++
	}
	c.b = c.b[i:]
}

func hasPrefix(b []byte, s string) bool { return len(b) >= len(s) && string(b[:len(s)]) == s }
func hasSuffix(b []byte, s string) bool { return len(b) >= len(s) && string(b[len(b)-len(s):]) == s }
func contains(b []byte, s string) bool  { return bytes.Contains(b, []byte(s)) }

// after is what follows the first s in b, nil where there is none.
func after(b []byte, s string) []byte {
	if i := bytes.Index(b, []byte(s)); i >= 0 {
		return b[i+len(s):]
	}
	return nil
}

// cutAt is b up to the first s, all of it where there is none.
func cutAt(b []byte, s string) []byte {
	if i := bytes.Index(b, []byte(s)); i >= 0 {
		return b[:i]
	}
	return b
}
