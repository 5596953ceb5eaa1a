package rdma

import (
	"context"
	"fmt"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// maxPairs bounds the attempts: each one that fails takes the time of all retries.
const maxPairs = 8

// attempt is how one side fared with one step of one pair.
type attempt struct {
	OK    bool   `json:"ok"`
	Again bool   `json:"again"` // another pair may do
	Kind  Kind   `json:"kind,omitempty"`
	Text  string `json:"text,omitempty"`
}

func newAttempt(err error) attempt {
	if err == nil {
		return attempt{OK: true}
	}
	return attempt{Again: anotherPairMayWork(err), Kind: KindOf(err), Text: err.Error()}
}

// connect tries the pairs in their order until a message of two packets has gone from the client to the server and was acknowledged, which needs both
// directions. It leaves the pair that works in Agreement.Chosen.
func (l *linkTest) connect(ctx context.Context) error {
	var reasons []string
	for i, p := range l.agreement.Pairs[:min(len(l.agreement.Pairs), maxPairs)] {
		failed, err := l.tryPair(ctx, i, p)
		if err != nil {
			return err
		}
		if failed == "" {
			l.agreement.Chosen = i
			if i > 0 {
				l.note("%s works; before it: %s", p, reasons[len(reasons)-1])
			}
			return nil
		}
		l.tell("%s does not work: %s", p, failed)
		reasons = append(reasons, failed)
	}
	return unreachable(l.agreement, reasons)
}

// exchange tells the other side the QPs, and learns of its own.
func (l *linkTest) exchange(ctx context.Context) error {
	mine := l.station.endpoints()
	theirs, err := swap(ctx, l.session, "exchange of QPs", l.patience, mine)
	if err != nil {
		return err
	}
	if len(theirs.QPs) != len(mine.QPs) {
		return problem(Internal, nil, "%s has %d QPs, this side %d", l.named(), len(theirs.QPs), len(mine.QPs))
	}
	l.remote = theirs
	return nil
}

// tryPair says why a pair does not work, "" where it does. An error ends the test.
func (l *linkTest) tryPair(ctx context.Context, i int, p Pair) (failed string, err error) {
	if i > 0 {
		// Fresh ones: a QP of soft-RoCE keeps the route of its first connection, whatever states it goes through.
		if err := l.station.renew(); err != nil {
			return "", l.explain(err, "make QPs", "")
		}
	}
	if err := l.exchange(ctx); err != nil {
		return "", err
	}
	failed, err = l.bothDo(ctx, fmt.Sprintf("connecting by pair %d", i), "connect QPs", func() error { return l.station.connect(p, l.remote) })
	if err != nil || failed != "" {
		return failed, err
	}
	small, large := 8, 2*l.agreement.MTU
	failed, err = l.bothDo(ctx, fmt.Sprintf("first message by pair %d", i), "first message", func() error { return l.probe(small) })
	if err != nil || failed != "" {
		return failed, err
	}
	failed, err = l.bothDo(ctx, fmt.Sprintf("first packets of full size by pair %d", i), "first packets of full size", func() error { return l.probe(large) })
	if failed != "" {
		failed += fmt.Sprintf(" (a message of %d bytes passed: packets of the MTU %d are lost, so something on the path carries less: try -m %d)", small, l.agreement.MTU, max(l.agreement.MTU/2, 256))
	}
	return failed, err
}

// bothDo runs f on both sides and compares notes.
func (l *linkTest) bothDo(ctx context.Context, phase, what string, f func() error) (failed string, err error) {
	mine := newAttempt(l.explain(f(), what, "")) // whoever reads it knows the pair
	if cause := l.stopped(); cause != nil {
		return "", cause
	}
	theirs, err := swap(ctx, l.session, phase, l.patience, mine)
	if err != nil {
		return "", err
	}
	for _, one := range []struct {
		attempt
		where string
	}{{mine, ""}, {theirs, l.named() + ": "}} {
		switch {
		case one.OK:
		case one.Again:
			return one.where + one.Text, nil
		default:
			return "", problem(one.Kind, nil, "%s%s", one.where, one.Text)
		}
	}
	return "", nil
}

// probeDeadline is time enough for one message on any link that is worth a test.
const probeDeadline = 5 * time.Second

// probe sends one message on each QP from the client; the server only lends its memory.
func (l *linkTest) probe(bytes int) error {
	if l.rank != clientRank {
		return nil
	}
	run, err := l.station.ready(work{op: ibverbs.OpWrite, bytes: bytes, lanes: l.options.QPs, send: 1, deadline: min(probeDeadline, l.options.Deadline)})
	if err != nil {
		return err
	}
	_, err = run()
	return err
}
