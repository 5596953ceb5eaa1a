package bootstrap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	protocolVersion  uint16 = 1
	preambleBytes           = 10
	maxPreAuthBytes         = 4 << 10
	frameHeaderBytes        = 4
	trustedAlloc            = 64 << 10  // a length below this is allocated before the bytes are there
	writeChunk              = 256 << 10 // the write deadline is renewed for each chunk
)

var magic = [8]byte{'C', 'M', 'P', 'R', 'O', 'B', 'E', '\n'}

type opcode byte

const (
	opHello opcode = iota + 1
	opWelcome
	opReject
	opSet
	opGet
	opTryGet
	opDelete
	opGather
	opCancel
	opReply
	opAbort
	opPing
	opPong
	opClock
	opGoodbye
	opLast = opGoodbye
)

// Values of message.flag for opGather.
const (
	modeBarrier byte = iota + 1
	modeGather
	modeContribute
	modeCollect
)

// Values of message.flag for opReply.
const (
	replyOK byte = iota + 1
	replyAbsent
	replyError
)

// message is the one shape of everything that travels after authentication.
type message struct {
	op    opcode
	flag  byte
	id    uint64 // pairs a reply or a cancel with its request
	key   string
	value []byte
	parts map[int][]byte // by rank
}

const messageFixedBytes = 1 + 1 + 8 + 2 + 4 + 4

func (m *message) size() int {
	n := messageFixedBytes + len(m.key) + len(m.value)
	for _, p := range m.parts {
		n += 8 + len(p)
	}
	return n
}

// frame returns the message with its length in front.
func (m *message) frame() []byte {
	n := m.size()
	b := make([]byte, 0, frameHeaderBytes+n)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, byte(m.op), m.flag)
	b = binary.BigEndian.AppendUint64(b, m.id)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.key)))
	b = append(b, m.key...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.value)))
	b = append(b, m.value...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.parts)))
	for rank, p := range m.parts {
		b = binary.BigEndian.AppendUint32(b, uint32(rank))
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

var errMalformed = errors.New("malformed message")

// cursor reads fields off a frame and remembers whether it ran short.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.rest) {
		c.bad = true
		return nil
	}
	out := c.rest[:n:n]
	c.rest = c.rest[n:]
	return out
}

func (c *cursor) uint(n int) uint64 {
	var v uint64
	for _, x := range c.take(n) {
		v = v<<8 | uint64(x)
	}
	return v
}

// decodeMessage parses the body of a frame. The message's slices alias body.
func decodeMessage(body []byte) (message, error) {
	c := cursor{rest: body}
	var m message
	m.op = opcode(c.uint(1))
	m.flag = byte(c.uint(1))
	m.id = c.uint(8)
	m.key = string(c.take(int(c.uint(2))))
	m.value = c.take(int(c.uint(4)))
	count := int(c.uint(4))
	if c.bad || m.op == 0 || m.op > opLast || len(m.key) > maxKeyBytes || count > len(c.rest)/8 || count > maxWorld {
		return message{}, errMalformed
	}
	if count > 0 {
		m.parts = make(map[int][]byte, count)
	}
	for range count {
		rank := int(c.uint(4))
		p := c.take(int(c.uint(4)))
		if _, twice := m.parts[rank]; twice || rank >= maxWorld {
			return message{}, errMalformed
		}
		m.parts[rank] = p
	}
	if c.bad || len(c.rest) != 0 {
		return message{}, errMalformed
	}
	return m, nil
}

// readFrame reads one length-prefixed frame of at most limit bytes. It does
// not believe a large length before the bytes have come.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [frameHeaderBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n == 0 || n > limit {
		return nil, fmt.Errorf("frame of %d bytes is outside the limit of %d", n, limit)
	}
	if n <= trustedAlloc {
		body := make([]byte, n)
		_, err := io.ReadFull(r, body)
		return body, shortRead(err)
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, int64(n)); err != nil {
		return nil, shortRead(err)
	}
	return buf.Bytes(), nil
}

// shortRead turns an end inside a frame into what it is.
func shortRead(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// link is one connection with its buffer, its write lock and its deadlines.
type link struct {
	conn net.Conn
	br   *bufio.Reader
	idle time.Duration // silence allowed once established; 0 during the handshake

	wmu sync.Mutex
}

func newLink(conn net.Conn) *link {
	l := &link{conn: conn}
	l.br = bufio.NewReaderSize(l, 4096)
	return l
}

// Read implements io.Reader below the buffer: any byte that arrives renews the
// deadline, so that a large frame on a slow wire is not taken for silence.
func (l *link) Read(p []byte) (int, error) {
	if l.idle > 0 {
		if err := l.conn.SetReadDeadline(time.Now().Add(l.idle)); err != nil {
			return 0, err
		}
	}
	return l.conn.Read(p)
}

// establish ends the handshake: from here on silence is what is limited. It
// must be called by the only reader, before any other goroutine writes.
func (l *link) establish(idle time.Duration) error {
	l.idle = idle
	return l.conn.SetDeadline(time.Time{})
}

func (l *link) read(limit int) (message, error) {
	body, err := readFrame(l.br, limit)
	if err != nil {
		return message{}, err
	}
	return decodeMessage(body)
}

// send writes one message. It is safe for concurrent use and returns at the
// latest when the peer has taken nothing for the idle time.
func (l *link) send(m *message) error {
	b := m.frame()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	for len(b) > 0 {
		if l.idle > 0 {
			if err := l.conn.SetWriteDeadline(time.Now().Add(l.idle)); err != nil {
				return err
			}
		}
		n, err := l.conn.Write(b[:min(len(b), writeChunk)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (l *link) sendJSON(op opcode, flag byte, id uint64, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.send(&message{op: op, flag: flag, id: id, value: value})
}

// closeWrite tells the peer that nothing more will come, while its last
// messages can still be read: a plain close with unread data makes the kernel
// send a reset, which may destroy our own last message on its way.
func (l *link) closeWrite() {
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	_ = l.conn.Close()
}
