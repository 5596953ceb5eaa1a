package evidence

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/commprobe/commprobe/nccl/ras"
)

// maxBlock is how large a JSON document inside of a log may be.
const maxBlock = 64 << 20

// rasBlock is a RAS report as text, among other lines.
type rasBlock struct {
	text ras.TextReader
	out  *Evidence
	at   Where
}

func (b *rasBlock) line(line []byte, _ Where) bool { return b.text.Line(string(line)) }

func (b *rasBlock) end() {
	if rep := b.text.Report(); rep != nil {
		b.out.RAS = append(b.out.RAS, RASReport{b.at, rep})
	}
}

// beginsRAS is asked about every line: it looks at the first byte.
func beginsRAS(line []byte) bool {
	line = bytes.TrimLeft(line[:min(len(line), 200)], " ")
	if len(line) < 8 {
		return false
	}
	switch line[0] {
	case 'N', 'C', 'G', 'J', '#':
		return ras.Begins(string(line))
	}
	return false
}

// rasEvent takes a line of RAS's monitor, which tells of peers that it lost.
func rasEvent(line []byte, at Where, ctx *logContext) {
	if len(line) > 400 || !bytes.Contains(line, []byte("] PEER_")) {
		return
	}
	ev, ok := ras.ReadEvent(string(line))
	if !ok {
		return
	}
	kind := NCCLWarn
	switch ev.Name {
	case "PEER_DEAD", "PEER_TIMEOUT_DEAD":
		kind = PeerClosed
	case "PEER_NEW", "PEER_CONNECTING", "PEER_CONNECTED", "PEER_RECOVERED":
		return
	}
	f := newFact(kind, at, line)
	f.Time, f.PID, f.Host, f.Op, f.Detail = ev.Time, ev.PID, ev.Host, ev.Name, ev.Detail
	ctx.addOther(f)
}

// jsonBlock is a JSON document over several lines of a log. It is one only if it soon says so: its begin is nothing special.
type jsonBlock struct {
	out      *Evidence
	ctx      *logContext
	at       Where
	text     []byte
	lines    int
	depth    int
	inString bool
	escaped  bool
	known    string // "ras", "samples", "py-spy"
	done     bool
}

// jsonMarks are keys that tell what a document is.
var jsonMarks = []struct{ key, kind string }{
	{`"commprobe ras 1"`, "samples"}, {`"nccl_version"`, "ras"}, {`"communicators_count"`, "ras"}, {`"thread_id"`, "py-spy"}, {`"owns_gil"`, "py-spy"}, {`"pid"`, ""},
}

// openJSON begins a block where a document stands alone on its line, or tells at once what it is.
func openJSON(line []byte, at Where, ctx *logContext) block {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 || trimmed[0] != '{' && trimmed[0] != '[' {
		return nil
	}
	b := &jsonBlock{out: ctx.out, ctx: ctx, at: at}
	b.look(trimmed)
	alone := len(trimmed) == 1 || string(trimmed) == "[{"
	if !alone && b.known == "" {
		return nil
	}
	if b.known == "ras" && bytes.Contains(trimmed, []byte(`"entries"`)) { // a dump of the flight recorder
		return nil
	}
	return b
}

func (b *jsonBlock) look(line []byte) {
	for _, m := range jsonMarks {
		if b.known == "" && bytes.Contains(line[:min(len(line), 1000)], []byte(m.key)) {
			b.known = m.kind
		}
	}
}

func (b *jsonBlock) line(line []byte, _ Where) bool {
	if b.done || len(b.text)+len(line) > maxBlock {
		return false
	}
	b.lines++
	if b.known == "" && b.lines > 1 {
		trimmed := bytes.TrimSpace(line)
		if b.look(trimmed); b.known == "" && (b.lines > 6 || len(trimmed) == 0 || trimmed[0] != '"' && trimmed[0] != '{') {
			return false
		}
	}
	b.text = append(append(b.text, line...), '\n')
	for _, c := range line {
		switch {
		case b.escaped:
			b.escaped = false
		case b.inString:
			b.escaped = c == '\\'
			b.inString = c != '"'
		case c == '"':
			b.inString = true
		case c == '{', c == '[':
			b.depth++
		case c == '}', c == ']':
			b.depth--
		}
	}
	b.done = b.depth <= 0
	return true
}

func (b *jsonBlock) end() {
	switch b.known {
	case "ras":
		if rep, err := ras.ReadJSON(bytes.NewReader(b.text)); err == nil {
			b.out.RAS = append(b.out.RAS, RASReport{b.at, rep})
		}
	case "samples": // what this program's own question to RAS has kept
		var doc struct{ Samples []*ras.Report }
		if json.Unmarshal(b.text, &doc) != nil {
			return
		}
		for _, rep := range doc.Samples {
			if rep != nil {
				b.out.RAS = append(b.out.RAS, RASReport{b.at, rep})
			}
		}
	case "py-spy":
		for _, s := range readPySpyJSON(b.text, b.at) {
			b.ctx.addStack(s)
		}
	}
}

// openBlock begins a text of several lines where line is the first of one.
func openBlock(line []byte, at Where, ctx *logContext) block {
	i := 0
	for i < len(line) && line[i] == ' ' {
		i++
	}
	if i == len(line) {
		return nil
	}
	switch line[i] {
	case '{', '[':
		if line[i] == '[' && strings.HasPrefix(string(line[:min(len(line), 9)]), "[New LWP ") {
			return openStack(line, at, ctx)
		}
		rasEvent(line, at, ctx)
		return openJSON(line, at, ctx)
	case 'P', 'T', 'g', 'A', 'c':
		return openStack(line, at, ctx)
	case 'N', 'C', 'G', 'J', '#':
		if line[i] == '#' && bytes.HasPrefix(line[i:], []byte("#0  0x")) {
			return openStack(line, at, ctx)
		}
		if beginsRAS(line) {
			return &rasBlock{out: ctx.out, at: at}
		}
	}
	return nil
}
