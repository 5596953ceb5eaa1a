package evidence

import (
	"errors"
	"fmt"
	"io"
)

// Limits keep a hostile or broken dump from taking the memory of the machine. A ring has 2,000 entries unless someone set it larger; the text of a
// group's members is the longest there is, some 700 kB for 100,000 ranks.
const (
	maxFlightBytes    = 1 << 30 // of one file
	maxFlightText     = 4 << 20 // bytes of one string
	maxFlightStack    = 1 << 21 // values under construction
	maxFlightMemo     = 1 << 22
	maxFlightMemoGap  = 1 << 10 // places a file may leave out
	maxFlightMarks    = 64      // depth; dumps have 7
	maxFlightEntries  = 1 << 20
	maxFlightValues   = 1 << 22 // of different lists, and as many of dictionaries
	maxFlightWarnings = 20
	flightBuffer      = 64 << 10
)

var errFlightSize = fmt.Errorf("more than %d MiB: no dump is that large", maxFlightBytes>>20)

// source is a window on the input: bytes are looked at where they lie.
type source struct {
	r        io.Reader
	buf      []byte
	pos, end int   // the window
	base     int64 // offset of buf[0] in the file
}

func (s *source) reset(r io.Reader) {
	if cap(s.buf) != flightBuffer { // grown by a long string
		s.buf = make([]byte, flightBuffer)
	}
	s.r, s.pos, s.end, s.base = r, 0, 0, 0
}

func (s *source) offset() int64 { return s.base + int64(s.pos) }

// take gives the next n bytes, valid until the next call. Less than n left is io.ErrUnexpectedEOF and takes nothing. It is short enough for the
// compiler to inline: a dump is mostly takes of one byte.
func (s *source) take(n int) ([]byte, error) {
	if s.end-s.pos < n {
		return s.takeMore(n)
	}
	s.pos += n
	return s.buf[s.pos-n : s.pos], nil
}

func (s *source) takeMore(n int) ([]byte, error) {
	if err := s.fill(n); err != nil {
		return nil, err
	}
	s.pos = n // fill moved the window to the front
	return s.buf[:n], nil
}

// fill makes the window at least n bytes wide. The buffer grows only as bytes arrive: a length that lies costs nothing.
func (s *source) fill(n int) error {
	s.base += int64(s.pos)
	s.end = copy(s.buf, s.buf[s.pos:s.end])
	s.pos = 0
	for tries := 0; s.end < n; {
		if s.base+int64(s.end) > maxFlightBytes {
			return errFlightSize
		}
		if s.end == len(s.buf) {
			s.buf = append(s.buf, make([]byte, len(s.buf))...)
		}
		got, err := s.r.Read(s.buf[s.end:])
		s.end += got
		if s.end >= n {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return &readError{err}
		}
		if got > 0 {
			tries = 0
		} else if tries++; tries > 100 {
			return &readError{io.ErrNoProgress}
		}
	}
	return nil
}

// readError is the reader's own failure, as opposed to something wrong in what it gave.
type readError struct{ err error }

func (e *readError) Error() string { return "reading failed: " + e.err.Error() }
func (e *readError) Unwrap() error { return e.err }
