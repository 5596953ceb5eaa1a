package launch

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	maxLineBytes = 64 << 10 // a longer line is broken
	tailLines    = 20       // lines of stderr kept for Exit.LastStderr
	tailLine     = 512      // bytes kept of each
)

// lineWriter is the lock under which all workers of a group write: stdout and
// stderr are often the same terminal.
type lineWriter struct {
	mu sync.Mutex
}

// stream copies one output of one worker line by line.
type stream struct {
	lock   *lineWriter
	out    io.Writer // nil discards
	prefix []byte
	tail   *tail // nil for stdout
	buf    []byte
	broken bool // out failed; what follows is read and dropped
}

// copyFrom copies until r ends. It keeps reading when out fails, because a
// worker must not block on a full pipe, or die of SIGPIPE, for that.
func (s *stream) copyFrom(r io.Reader) {
	chunk := make([]byte, 16<<10)
	for {
		n, err := r.Read(chunk)
		s.add(chunk[:n])
		if err != nil {
			if len(s.buf) > 0 {
				s.emit(s.buf)
			}
			return
		}
	}
}

func (s *stream) add(data []byte) {
	for {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			break
		}
		s.buf = append(s.buf, data[:i]...)
		s.flushLong()
		s.emit(s.buf)
		s.buf = s.buf[:0]
		data = data[i+1:]
	}
	s.buf = append(s.buf, data...)
	s.flushLong()
}

// flushLong breaks what is longer than a line may be.
func (s *stream) flushLong() {
	for len(s.buf) > maxLineBytes {
		s.emit(s.buf[:maxLineBytes])
		s.buf = append(s.buf[:0], s.buf[maxLineBytes:]...)
	}
}

// emit writes one line, given without its end, in one Write.
func (s *stream) emit(line []byte) {
	if s.tail != nil {
		s.tail.add(line)
	}
	if s.out == nil || s.broken {
		return
	}
	full := make([]byte, 0, len(s.prefix)+len(line)+1)
	full = append(append(append(full, s.prefix...), line...), '\n')
	s.lock.mu.Lock()
	defer s.lock.mu.Unlock()
	if _, err := s.out.Write(full); err != nil {
		s.broken = true
	}
}

// tail keeps the last lines.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (t *tail) add(line []byte) {
	text := string(line[:min(len(line), tailLine)])
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, text)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}
