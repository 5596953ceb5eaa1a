package bootstrap

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

const (
	tokenBytes    = 32
	redactedToken = "[token redacted]"
)

// Token is the secret that all processes of one job share. The zero Token is
// not valid. Tokens can be compared with ==.
//
// Every fmt verb and log/slog print it redacted; only an explicit call of
// [Token.String] gives it away.
type Token struct {
	key [tokenBytes]byte
}

// NewToken returns a fresh token of 32 random bytes.
func NewToken() (Token, error) {
	var t Token
	if _, err := rand.Read(t.key[:]); err != nil {
		return Token{}, fmt.Errorf("make token: %w", err)
	}
	return t, nil
}

// ParseToken reads the 64 hex digits that [Token.String] wrote. The error
// never repeats the text, because the text may be a nearly correct secret.
func ParseToken(text string) (Token, error) {
	var t Token
	if len(text) != hex.EncodedLen(tokenBytes) {
		return Token{}, fmt.Errorf("parse token: want %d hex digits, got %d characters",
			hex.EncodedLen(tokenBytes), len(text))
	}
	if _, err := hex.Decode(t.key[:], []byte(text)); err != nil {
		return Token{}, errors.New("parse token: not hexadecimal")
	}
	if t.IsZero() {
		return Token{}, errors.New("parse token: all zero")
	}
	return t, nil
}

// String returns the token as 64 hex digits, to hand it to a child process.
// fmt does not use it: see [Token.Format].
func (t Token) String() string { return hex.EncodeToString(t.key[:]) }

// IsZero tells whether t is the zero Token, which no store accepts.
func (t Token) IsZero() bool { return t == Token{} }

// Format implements fmt.Formatter: each verb prints a placeholder, so that a
// token cannot slip into a log by way of %v of a struct that holds it.
func (t Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redactedToken) }

// GoString returns the placeholder that stands for a token in logs.
func (t Token) GoString() string { return redactedToken }

// LogValue implements slog.LogValuer with the same placeholder.
func (t Token) LogValue() slog.Value { return slog.StringValue(redactedToken) }

// MarshalText implements encoding.TextMarshaler with the same placeholder, so
// that JSON does not carry the secret either.
func (t Token) MarshalText() ([]byte, error) { return []byte(redactedToken), nil }

// prove computes one side's answer to the challenge.
func (t Token) prove(role string, serverNonce, clientNonce []byte) []byte {
	mac := hmac.New(sha256.New, t.key[:])
	mac.Write([]byte("commprobe bootstrap " + role + "\x00"))
	mac.Write(serverNonce)
	mac.Write(clientNonce)
	return mac.Sum(nil)
}

// checkProof compares in constant time.
func (t Token) checkProof(proof []byte, role string, serverNonce, clientNonce []byte) bool {
	return hmac.Equal(proof, t.prove(role, serverNonce, clientNonce))
}
