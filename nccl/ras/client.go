package ras

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// DefaultAddr is where NCCL listens unless NCCL_RAS_ADDR says otherwise.
const DefaultAddr = "localhost:28028"

// The protocol's version, which no server has asked about so far.
const protocol = 2

// Options of a query. The zero value is good.
type Options struct {
	Dial    time.Duration // for the connection; 0: 1 s
	Timeout time.Duration // that NCCL waits for the job's other processes, in whole seconds; 0: 5 s
	Text    bool          // ask for the text form even where JSON is to be had: it has the outliers only, but NCCL's own words
	Max     int64         // bytes of an answer; 0: 256 MiB
}

func (o Options) withDefaults() Options {
	if o.Dial <= 0 {
		o.Dial = time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Max <= 0 {
		o.Max = maxJSON
	}
	return o
}

// NobodyError means that nothing listens at the address.
type NobodyError struct {
	Addr string
	Err  error
}

func (e *NobodyError) Error() string {
	return fmt.Sprintf("RAS: nobody answers at %s (%v): no NCCL job runs on that host, its NCCL is older than 2.24, RAS is off (NCCL_RAS_ENABLE=0), "+
		"or it listens elsewhere (NCCL_RAS_ADDR of the job)", e.Addr, e.Err)
}

func (e *NobodyError) Unwrap() error { return e.Err }

// ProtocolError means that somebody listens at the address who does not speak RAS, or does not speak at all.
type ProtocolError struct {
	Addr, Step string
	Got        string // what came instead; "" nothing
	Err        error
}

func (e *ProtocolError) Error() string {
	switch {
	case e.Got != "":
		return fmt.Sprintf("RAS: %s: %s: answered %q, which is not RAS: is it another service's port?", e.Addr, e.Step, e.Got)
	case errors.Is(e.Err, io.EOF):
		return fmt.Sprintf("RAS: %s: %s: the connection was closed without an answer: the process that listens may be ending; ask again", e.Addr, e.Step)
	}
	return fmt.Sprintf("RAS: %s: %s: no answer (%v): the process that listens is stopped or its RAS thread is stuck, or it is another service's port",
		e.Addr, e.Step, e.Err)
}

func (e *ProtocolError) Unwrap() error { return e.Err }

// Query asks the job whose process listens at addr ("" is DefaultAddr) for its state. One process answers for the whole job. It blocks until the answer is
// complete, at most for the time in opt and a few seconds; ctx ends it sooner. An answer that breaks off is given as far as it came, with Cut
// set. It changes nothing in the job.
func Query(ctx context.Context, addr string, opt Options) (*Report, error) {
	opt = opt.withDefaults()
	if addr == "" {
		addr = DefaultAddr
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("RAS: address %q: %w: write HOST:PORT", addr, err)
	}
	rep, err := query(ctx, addr, opt)
	var bad *formError
	if errors.As(err, &bad) && !opt.Text { // JSON that cannot be read: the text form may do
		opt.Text = true
		return query(ctx, addr, opt)
	}
	return rep, err
}

// formError is an answer in a form that was asked for and cannot be read.
type formError struct{ err error }

func (e *formError) Error() string { return e.err.Error() }
func (e *formError) Unwrap() error { return e.err }

func query(ctx context.Context, addr string, opt Options) (*Report, error) {
	limit := 2*opt.Timeout + opt.Dial + time.Second // the server's two waits, and its own work
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: opt.Dial}).DialContext(ctx, "tcp", addr)
	if err != nil {
		if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
			return nil, ctx.Err()
		}
		return nil, &NobodyError{addr, err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	s := &session{addr: addr, conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	isJSON, err := s.handshake(opt)
	if err != nil {
		return nil, interrupted(ctx, err)
	}
	rep, err := s.status(opt, isJSON)
	return rep, interrupted(ctx, err)
}

// interrupted gives the caller's reason where it was the caller who ended it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return err
}

// session is one connection.
type session struct {
	addr string
	conn net.Conn
	in   *bufio.Reader
}

// handshake agrees on the form of the answer: JSON where the server has it.
func (s *session) handshake(opt Options) (isJSON bool, err error) {
	answer, err := s.ask(fmt.Sprintf("CLIENT PROTOCOL %d", protocol))
	if err != nil {
		return false, err
	}
	if version, ok := strings.CutPrefix(answer, "SERVER PROTOCOL "); !ok {
		return false, &ProtocolError{Addr: s.addr, Step: "handshake", Got: answer}
	} else if _, err := strconv.Atoi(version); err != nil {
		return false, &ProtocolError{Addr: s.addr, Step: "handshake", Got: answer}
	}
	if !opt.Text {
		if answer, err = s.ask("SET FORMAT json"); err != nil {
			return false, err
		}
		isJSON = answer == "OK" // before 2.28.7: "ERROR: Unknown command …"
		if !isJSON && !strings.HasPrefix(answer, "ERROR") {
			return false, &ProtocolError{Addr: s.addr, Step: "choice of form", Got: answer}
		}
	}
	seconds := max(1, int((opt.Timeout+time.Second-1)/time.Second))
	answer, err = s.ask("TIMEOUT " + strconv.Itoa(seconds))
	if err == nil && answer != "OK" {
		err = &ProtocolError{Addr: s.addr, Step: "time-out", Got: answer}
	}
	return isJSON, err
}

// ask sends a command and reads the line that answers it.
func (s *session) ask(command string) (string, error) {
	if _, err := io.WriteString(s.conn, command+"\n"); err != nil {
		return "", &ProtocolError{Addr: s.addr, Step: command, Err: err}
	}
	line, err := s.in.ReadSlice('\n')
	text := strings.ToValidUTF8(strings.TrimRight(string(line[:min(len(line), 200)]), "\r\n"), "?")
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) || text != "" {
			return "", &ProtocolError{Addr: s.addr, Step: command, Got: text, Err: err}
		}
		return "", &ProtocolError{Addr: s.addr, Step: command, Err: err}
	}
	return text, nil
}

// status asks for the report and reads it to the end of the connection.
func (s *session) status(opt Options, isJSON bool) (*Report, error) {
	const command = "VERBOSE STATUS"
	if _, err := io.WriteString(s.conn, command+"\n"); err != nil {
		return nil, &ProtocolError{Addr: s.addr, Step: command, Err: err}
	}
	var buf bytes.Buffer
	_, err := io.Copy(&buf, io.LimitReader(s.in, opt.Max+1))
	if int64(buf.Len()) > opt.Max {
		return nil, fmt.Errorf("RAS: %s: the answer is longer than %d bytes: not read", s.addr, opt.Max)
	}
	if buf.Len() == 0 {
		if err == nil {
			err = io.EOF
		}
		return nil, &ProtocolError{Addr: s.addr, Step: command, Err: err}
	}
	if isJSON {
		rep, jsonErr := ReadJSON(bytes.NewReader(buf.Bytes()))
		if jsonErr == nil {
			rep.Raw = buf.Bytes()
			return rep, nil
		}
		return nil, &formError{fmt.Errorf("RAS: %s: %w", s.addr, errors.Join(err, jsonErr))}
	}
	reports, textErr := ReadText(bytes.NewReader(buf.Bytes()))
	if len(reports) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(buf.String()[:min(buf.Len(), 200)]), "\n")
		return nil, &ProtocolError{Addr: s.addr, Step: command, Got: strings.ToValidUTF8(first, "?"), Err: errors.Join(err, textErr)}
	}
	rep := reports[0]
	rep.Verbose, rep.Raw = true, buf.Bytes()
	// The last part of a whole answer is headed Warnings, even where there are none.
	whole := bytes.Contains(buf.Bytes(), []byte("Warnings\n========")) || bytes.Contains(buf.Bytes(), []byte("No communicator data"))
	rep.Cut = err != nil || !whole || !bytes.HasSuffix(buf.Bytes(), []byte("\n"))
	return rep, nil
}
