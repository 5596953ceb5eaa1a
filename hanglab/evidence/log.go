package evidence

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/bits"
)

// maxLogLine is how much of a line is looked at. The rest is passed over: the longest line worth reading is a fingerprint or a joined traceback.
const maxLogLine = 64 << 10

// read asks the reader of a topic whether the line is its own.
func (c *logContext) read(t topic, line []byte, at Where) bool {
	switch t {
	case topicMarker:
		return c.marker(line, at)
	case topicNCCL:
		return c.nccl(line, at)
	case topicOurs:
		return c.ours(line, at)
	case topicFingerprint:
		return c.fingerprint(line, at)
	case topicSignal:
		return c.dumpSignal(line, at)
	case topicTimeout:
		return c.timeout(line, at)
	case topicHeartbeat:
		return c.heartbeat(line, at)
	case topicDesync:
		return c.desyncLine(line, at)
	case topicBarrier:
		return c.barrierDevice(line, at)
	case topicExit:
		return c.exit(line, at)
	case topicKernel:
		return c.kernel(line, at)
	case topicOOM:
		return c.outOfMemory(line, at)
	case topicCUDA:
		return c.cudaError(line, at)
	case topicRemote:
		return c.remoteError(line, at)
	case topicGloo:
		return c.gloo(line, at)
	case topicMeeting:
		return c.meeting(line, at)
	case topicEnd:
		return c.lifeCycle(line, at)
	case topicNaN:
		return c.nan(line, at)
	case topicProgress:
		return c.progress(line, at)
	}
	return false
}

// readLog reads a log to its end. The error is the reader's own; what came before it is kept.
func (c *logContext) readLog(r *bufio.Reader, in *Input) error {
	n, long, inLine := 0, 0, false
	var carry []byte // of a line that goes on
	var err error
	for err == nil {
		var line []byte
		line, err = r.ReadSlice('\n')
		if len(line) == 0 && len(carry) == 0 {
			break
		}
		if !inLine {
			n++
		}
		if len(carry) > 0 {
			line = append(carry, line...)
			carry = nil
		}
		full := errors.Is(err, bufio.ErrBufferFull)
		if i := bytes.LastIndexByte(line, '\r'); full && i >= 0 { // a progress bar: each turn of it is a line
			carry = append(carry, line[i+1:]...)
			line, inLine, err = line[:i], true, nil
			c.takeTurns(line, Where{c.file, n})
			continue
		}
		inLine = false
		if full {
			if long++; long == 1 {
				in.Notes = append(in.Notes, longLineNote(n))
			}
			line = append([]byte(nil), line[:min(len(line), maxLogLine)]...)
			err = skipLine(r)
		}
		c.takeTurns(line, Where{c.file, n})
	}
	c.finish(in)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// takeTurns takes a line, or the several of which each was to overwrite the one before on a terminal.
func (c *logContext) takeTurns(line []byte, at Where) {
	for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n-- {
		line = line[:n-1]
	}
	for {
		i := bytes.IndexByte(line, '\r')
		if i < 0 {
			c.take(line, at)
			return
		}
		if i > 0 {
			c.take(line[:i], at)
		}
		line = line[i+1:]
	}
}

func skipLine(r *bufio.Reader) error {
	for {
		_, err := r.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// take looks at a line once, byte by byte; only lines that have something in them, or that may go on with what has begun, cost more.
func (c *logContext) take(line []byte, at Where) {
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = plainText(line)
	}
	found := lineWords.scan(line)
	if c.block == nil && found&^(1<<topicRankTag) == 0 && !c.inside() {
		if !c.open(line, at) && found != 0 && !bytes.HasPrefix(line, []byte("[rank")) { // whose label it is
			c.prefix = parsePrefix(line, c.year)
			c.learn()
		}
		return
	}
	if c.block != nil {
		if c.block.line(line, at) {
			return
		}
		c.block.end()
		c.block = nil
	}
	if len(line) > 1 && line[0] == '#' && line[1] == ' ' {
		return // a remark of whoever saved the file
	}
	if c.open(line, at) {
		return
	}
	if c.isPast(found, line) {
		return
	}
	if found&(1<<topicRankTag) != 0 {
		for {
			cut := nextWriter(line)
			if cut < 0 {
				break
			}
			c.segment(line[:cut], lineWords.scan(line[:cut]), at)
			line = line[cut:]
		}
		found = lineWords.scan(line)
	}
	c.segment(line, found, at)
}

// inside tells whether lines that have no words of their own may belong to something that has begun.
func (c *logContext) inside() bool {
	return c.past || len(c.traces.open) > 0 || c.elastic.open || c.timeouts.stackOf != nil || c.exits.inside() || c.desync.left > 0
}

func (c *logContext) open(line []byte, at Where) bool {
	if len(c.traces.open) > 0 { // a panic's goroutines are its own
		return false
	}
	if !mayOpen(line) {
		return false
	}
	b := openBlock(line, at, c)
	if b == nil {
		return false
	}
	if !b.line(line, at) {
		return false
	}
	c.block = b
	return true
}

// blockStarts has what lines begin with that may open a block, by their first byte.
var blockStarts = map[byte][]string{
	'P': {"Process "}, 'T': {"Thread "}, 'g': {"goroutine "}, 'A': {"Attaching to "}, 'c': {"commprobe process "},
}

// mayOpen is a first look, without cost for most lines.
func mayOpen(line []byte) bool {
	i := 0
	for i < len(line) && line[i] == ' ' {
		i++
	}
	if i == len(line) {
		return false
	}
	switch line[i] {
	case 'P', 'T', 'g', 'A', 'c':
		for _, s := range blockStarts[line[i]] {
			if bytes.HasPrefix(line[i:], []byte(s)) {
				return true
			}
		}
		return false
	case '{', '[':
		return mayBeJSON(line[i:])
	case 'N', 'C', 'G', 'J', '#':
		return true
	}
	return false
}

// mayBeJSON tells a document, or "[New LWP 12]" of a debugger, from what launchers put in brackets, and from a log that has JSON on each line.
func mayBeJSON(b []byte) bool {
	if len(b) == 1 {
		return true
	}
	if b[0] == '[' {
		return b[1] == '{' || b[1] == 'N' || b[1] == ' '
	}
	return b[1] == '"' && !bytes.HasPrefix(b, []byte(`{"log":`)) || b[1] == ' '
}

// isPast passes over what a laboratory run prints about itself: it holds the answer, and says everything twice.
func (c *logContext) isPast(found uint32, line []byte) bool {
	if found&(1<<topicPast) != 0 {
		c.past = true
	}
	if c.past && bytes.HasPrefix(line, []byte("Files in ")) {
		c.past = false
		return true
	}
	return c.past
}

// nextWriter finds the second "[rankN]:" of a line, where another process's line begins. -1: there is none.
func nextWriter(line []byte) int {
	seen := false
	for from := 0; ; {
		i := bytes.Index(line[from:], []byte("[rank"))
		if i < 0 {
			return -1
		}
		i += from
		j := i + len("[rank")
		for j < len(line) && line[j]-'0' < 10 {
			j++
		}
		if j > i+5 && j+1 < len(line) && line[j] == ']' && line[j+1] == ':' {
			if seen || i > 0 && !quietBefore(line[:i]) {
				return i
			}
			seen = true
		}
		from = j
	}
}

// quietBefore tells that only labels of launchers stand before the first "[rankN]:", so that it is not another writer's.
func quietBefore(b []byte) bool {
	if len(b) > 120 {
		return false
	}
	b = bytes.TrimRight(b, " ")
	if len(b) == 0 {
		return true
	}
	switch b[len(b)-1] {
	case ':', ']', ')', '>', '|', 'Z', 'F':
		return true
	}
	return bytes.IndexByte(b, ' ') < 0 || stampLen(b) > 0
}

// segment takes one writer's line.
func (c *logContext) segment(line []byte, found uint32, at Where) {
	c.prefix = parsePrefix(line, c.year)
	c.learn()
	if c.timeouts.stackLine(c) || c.elastic.take(c, found, at) || c.traces.take(c, line, found, at) || c.exits.take(c, found, at) ||
		c.desync.take(c, line, at) {
		return
	}
	for rest := found & (1<<topicRankTag - 1); rest != 0; rest &= rest - 1 {
		if c.read(topic(bits.TrailingZeros32(rest)), line, at) {
			return
		}
	}
}

func (c *logContext) nccl(line []byte, at Where) bool { return c.coll.line(line, at) }

// plainText is a line without colours and other escape sequences.
func plainText(line []byte) []byte {
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		if line[i] != 0x1b {
			out = append(out, line[i])
			continue
		}
		if i+1 < len(line) && line[i+1] == '[' {
			for i += 2; i < len(line) && (line[i] < 0x40 || line[i] > 0x7e); i++ {
			}
		}
	}
	return out
}
