package bootstrap

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	nonceBytes = 32
	proofBytes = sha256.Size

	roleClient = "client"
	roleServer = "server"
)

// Kinds of the frames before authentication; the first byte of each.
const (
	authChallenge byte = iota + 1
	authResponse
	authProof
	authReject
)

func preamble(version uint16) []byte {
	return binary.BigEndian.AppendUint16(magic[:], version)
}

// readPreamble returns ErrNotStore for foreign bytes and a *VersionError for a
// foreign version.
func readPreamble(l *link) error {
	var b [preambleBytes]byte
	n, err := io.ReadFull(l.br, b[:])
	if err != nil {
		if n > 0 && string(b[:min(n, len(magic))]) != string(magic[:min(n, len(magic))]) {
			return fmt.Errorf("%w (it sent %q)", ErrNotStore, b[:n])
		}
		return err
	}
	if [8]byte(b[:8]) != magic {
		return fmt.Errorf("%w (it sent %q)", ErrNotStore, b[:])
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != protocolVersion {
		return &VersionError{Local: protocolVersion, Remote: v}
	}
	return nil
}

func writeAuth(l *link, kind byte, payload ...[]byte) error {
	body := []byte{kind}
	for _, p := range payload {
		body = append(body, p...)
	}
	_, err := l.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// readAuth reads one frame of the given kind with a payload of size bytes.
func readAuth(l *link, kind byte, size int) ([]byte, error) {
	body, err := readFrame(l.br, maxPreAuthBytes)
	if err != nil {
		return nil, err
	}
	switch {
	case body[0] == authReject:
		return nil, ErrWrongToken
	case body[0] != kind || len(body) != 1+size:
		return nil, errMalformed
	}
	return body[1:], nil
}

func newNonce() ([]byte, error) {
	n := make([]byte, nonceBytes)
	_, err := rand.Read(n)
	return n, err
}

// acceptAuth is the server's side of the handshake, up to and including the
// proof of the token. The caller has set a deadline on the connection.
func acceptAuth(l *link, token Token) error {
	err := readPreamble(l)
	var version *VersionError
	if err != nil && !errors.As(err, &version) {
		return err
	}
	// Ours goes out even on a mismatch, so that the client can name both.
	if _, werr := l.conn.Write(preamble(protocolVersion)); werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	serverNonce, err := newNonce()
	if err != nil {
		return err
	}
	if err := writeAuth(l, authChallenge, serverNonce); err != nil {
		return err
	}
	answer, err := readAuth(l, authResponse, nonceBytes+proofBytes)
	if err != nil {
		return err
	}
	clientNonce, proof := answer[:nonceBytes], answer[nonceBytes:]
	if !token.checkProof(proof, roleClient, serverNonce, clientNonce) {
		_ = writeAuth(l, authReject)
		return ErrWrongToken
	}
	return writeAuth(l, authProof, token.prove(roleServer, serverNonce, clientNonce))
}

// openAuth is the client's side.
func openAuth(l *link, token Token) error {
	if _, err := l.conn.Write(preamble(protocolVersion)); err != nil {
		return err
	}
	if err := readPreamble(l); err != nil {
		return err
	}
	serverNonce, err := readAuth(l, authChallenge, nonceBytes)
	if err != nil {
		return err
	}
	clientNonce, err := newNonce()
	if err != nil {
		return err
	}
	proof := token.prove(roleClient, serverNonce, clientNonce)
	if err := writeAuth(l, authResponse, clientNonce, proof); err != nil {
		return err
	}
	answer, err := readAuth(l, authProof, proofBytes)
	if err != nil {
		return err
	}
	if !token.checkProof(answer, roleServer, serverNonce, clientNonce) {
		return fmt.Errorf("%w (the server could not prove that it holds ours)", ErrWrongToken)
	}
	return nil
}

// handshakeReason puts the end of an unfinished handshake in words.
func handshakeReason(err error, limit time.Duration) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("handshake not finished within %s: %w", formatSeconds(limit), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("closed before the handshake was finished: %w", err)
	case errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("reset before the handshake was finished: %w", err)
	}
	return err
}

// lossReason puts the end of a joined connection in words.
func lossReason(err error, limit time.Duration) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing heard for %s: %w", formatSeconds(limit), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("connection closed without a goodbye: %w", err)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("connection reset without a goodbye: %w", err)
	}
	return err
}
