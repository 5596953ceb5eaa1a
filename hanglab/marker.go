package hanglab

import (
	"strconv"
	"strings"
	"time"
)

// marker is one machine-readable line of a rank: LAB_EVENT rank=3 case=size event=enter mono_ns=123 step=5. The supervisor's own have rank -1.
type marker struct {
	Rank   int
	At     time.Duration // on the rank's own monotonic clock
	Name   string
	Fields map[string]string
}

const markerWord = "LAB_EVENT "

// parseMarker reads a marker; anything else is no marker.
func parseMarker(line string) (m marker, ok bool) {
	i := strings.Index(line, markerWord)
	if i < 0 {
		return m, false
	}
	m.Fields = make(map[string]string)
	rest := strings.TrimSpace(line[i+len(markerWord):])
	for rest != "" {
		eq := strings.IndexByte(rest, '=')
		if eq < 0 {
			return m, false
		}
		name := rest[:eq]
		rest = rest[eq+1:]
		var value string
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			if value, err = strconv.Unquote(quoted); err != nil {
				return m, false
			}
			rest = rest[len(quoted):]
		} else {
			value, rest, _ = strings.Cut(rest, " ")
			rest = " " + rest
		}
		rest = strings.TrimLeft(rest, " ")
		m.Fields[name] = value
	}
	var err error
	if m.Rank, err = strconv.Atoi(m.Fields["rank"]); err != nil {
		return m, false
	}
	ns, err := strconv.ParseInt(m.Fields["mono_ns"], 10, 64)
	if err != nil {
		return m, false
	}
	m.At, m.Name = time.Duration(ns), m.Fields["event"]
	for _, known := range []string{"rank", "mono_ns", "event", "case"} {
		delete(m.Fields, known)
	}
	return m, m.Name != ""
}

// number is a field that is a number, or -1.
func (m marker) number(name string) int {
	n, err := strconv.Atoi(m.Fields[name])
	if err != nil {
		return -1
	}
	return n
}

// splitPrefix takes "[rank 3] " off a line.
func splitPrefix(line string) (rank int, text string, ok bool) {
	rest, ok := strings.CutPrefix(line, "[rank ")
	if !ok {
		return 0, line, false
	}
	number, text, ok := strings.Cut(rest, "] ")
	if !ok {
		return 0, line, false
	}
	rank, err := strconv.Atoi(number)
	return rank, text, err == nil
}
