package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

var markerWord = []byte("LAB_EVENT ")

// marker takes the machine-readable lines of a laboratory run. Several may share a line. What a mark says of planted faults stays a Marker, which
// the diagnosis does not look at; what a real program's log would say as well is a fact of its own kind.
func (c *logContext) marker(line []byte, at Where) bool {
	i := bytes.Index(line, markerWord)
	if i < 0 {
		return false
	}
	if before := line[:i]; len(bytes.TrimSpace(before)) > 0 {
		if found := lineWords.scan(before) &^ (1 << topicMarker); found != 0 {
			c.segment(before, found, at)
		}
	}
	for i >= 0 {
		one := line[i:]
		next := nextMarker(one[len(markerWord):])
		rest := one
		if next >= 0 {
			one = one[:next+len(markerWord)]
			rest = rest[next+len(markerWord):]
		}
		c.oneMarker(one, at)
		if i = next; i >= 0 {
			line, i = rest, 0
		}
	}
	return true
}

// nextMarker finds the next marker outside quotes, -1: none.
func nextMarker(b []byte) int {
	for from := 0; from < len(b); {
		i := bytes.Index(b[from:], markerWord)
		if i < 0 {
			return -1
		}
		i += from
		if (bytes.Count(b[:i], []byte{'"'})-bytes.Count(b[:i], []byte(`\"`)))%2 == 0 {
			return i
		}
		from = i + 1
	}
	return -1
}

// markerFields reads name=value, with quotes where a value has blanks. A value that another writer cut into ends there.
func markerFields(b []byte) (names, values []string) {
	for len(names) < 64 {
		b = bytes.TrimLeft(b, " ")
		eq := bytes.IndexByte(b, '=')
		if eq <= 0 || bytes.IndexByte(b[:eq], ' ') >= 0 {
			return names, values
		}
		name := string(b[:eq])
		b = b[eq+1:]
		var value string
		if len(b) > 0 && b[0] == '"' {
			quoted, err := strconv.QuotedPrefix(string(b))
			if err != nil {
				return append(names, name), append(values, cutText(b[1:], 4096))
			}
			value, _ = strconv.Unquote(quoted)
			b = b[len(quoted):]
		} else {
			word, rest, _ := bytes.Cut(b, []byte(" "))
			value, b = string(word), rest
		}
		names, values = append(names, name), append(values, value)
	}
	return names, values
}

// markerEvent is a marker taken apart.
type markerEvent struct {
	rank, step int
	seq        int64
	mono       int64
	name       string
	group      string
	text       string
	fields     map[string]string
	detail     string // the fields as written, without what would tell the answer
}

func parseMarker(one []byte) (m markerEvent, ok bool) {
	m = markerEvent{rank: -1, step: -1, seq: -1, fields: map[string]string{}}
	names, values := markerFields(one[len(markerWord):])
	var rest []string
	for i, name := range names {
		v := values[i]
		switch name {
		case "rank":
			m.rank = atoiOr(v, -1)
		case "event":
			m.name = v
		case "mono_ns":
			m.mono, _ = strconv.ParseInt(v, 10, 64)
		case "case": // it is the answer
			continue
		default:
			m.fields[name] = v
			if strings.ContainsAny(v, " \"") || v == "" {
				v = strconv.Quote(v)
			}
			rest = append(rest, name+"="+v)
		}
	}
	m.step, m.seq = atoiOr(m.fields["step"], -1), int64(atoiOr(m.fields["seq"], -1))
	m.group, m.text = m.fields["group"], m.fields["text"]
	m.detail = strings.Join(rest, " ")
	return m, m.name != "" && m.rank >= -1
}

func atoiOr(s string, or int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return or
	}
	return n
}

// oneMarker keeps a marker, and what it says about itself.
func (c *logContext) oneMarker(one []byte, at Where) {
	m, ok := parseMarker(one)
	if !ok {
		return
	}
	f := newFact(Marker, at, one)
	f.Rank, f.MonoNs, f.Op, f.Detail, f.Group, f.Seq = m.rank, m.mono, m.name, m.detail, m.group, m.seq
	if m.step >= 0 && m.seq < 0 {
		f.Seq = int64(m.step)
	}
	c.addOther(f)
	switch m.name {
	case "init_begin":
		f.Kind = InitBegun
	case "init_done":
		f.Kind = InitDone
	case "wrong_data":
		f.Kind = WrongData
	case "nan_input":
		f.Kind = NaN
	case "watchdog", "heard", "async_error":
		if text := []byte(m.text); len(text) > 0 {
			c.oursOf(text, at, &m)
		}
		return
	case "check_calls":
		c.callCheck([]byte(m.text), at, &m)
		return
	case "exit", "process_end":
		f.Kind, f.Detail = Ended, "program"
		if m.name == "process_end" {
			f.Detail = "supervisor"
		}
		f.Seq = -1
		f.setExit(atoiOr(m.fields["code"], -1000))
		if f.Code == -1000 {
			f.Code = -1
		}
		if s := m.fields["signal"]; s != "" {
			f.Signal = signalNamed([]byte(s))
		}
		if f.Op = ""; f.Code < 0 && f.Signal == 0 {
			return
		}
	default:
		return
	}
	c.addOther(f)
}
