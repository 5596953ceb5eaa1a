package hanglab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// twoNets is two network namespaces. Each reaches the supervisor's store by a link of its own, and the other by a direct link, which carries the
// ranks' data and can be taken away alone:
//
//	store ---- a ===direct=== b ---- store
type twoNets struct {
	tag    string // of this run's names: two runs do not meet
	a, b   string
	made   []string // namespaces
	subnet [2]byte
}

// NetworkError means that namespaces cannot be made here.
type NetworkError struct{ Text string }

func (e *NetworkError) Error() string {
	return "two network namespaces are needed, as root or with CAP_NET_ADMIN and iproute2's ip: " + e.Text
}

// newTwoNets makes both. Their names are kept in the folder, for whoever has to clean up.
func newTwoNets(dir string) (*twoNets, error) {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	n := &twoNets{tag: hex.EncodeToString(b[:3]), subnet: [2]byte{18 + b[0]&1, b[3]}}
	n.a, n.b = "cp"+n.tag+"a", "cp"+n.tag+"b"
	if err := os.WriteFile(filepath.Join(dir, netsName), []byte(n.a+" "+n.b+"\n"), 0o600); err != nil {
		return nil, err
	}
	if err := n.make(); err != nil {
		return nil, &NetworkError{errors.Join(err, n.close()).Error()}
	}
	return n, nil
}

// addr is host h of link l; the addresses are of the block for benchmarks (RFC 2544), a /30 a link.
func (n *twoNets) addr(l, h int) string {
	return fmt.Sprintf("198.%d.%d.%d", n.subnet[0], n.subnet[1], 4*l+h)
}

func (n *twoNets) make() error {
	for _, ns := range []string{n.a, n.b} {
		if err := ip("netns", "add", ns); err != nil {
			return err
		}
		n.made = append(n.made, ns)
		if err := ip("-n", ns, "link", "set", "lo", "up"); err != nil {
			return err
		}
	}
	for l, ns := range []string{n.a, n.b} {
		here := "v" + ns
		for _, args := range [][]string{
			{"link", "add", here, "type", "veth", "peer", "name", "store", "netns", ns},
			{"addr", "add", n.addr(l, 1) + "/30", "dev", here},
			{"link", "set", here, "up"},
			{"-n", ns, "addr", "add", n.addr(l, 2) + "/30", "dev", "store"},
			{"-n", ns, "link", "set", "store", "up"},
		} {
			if err := ip(args...); err != nil {
				return err
			}
		}
	}
	for _, args := range [][]string{
		{"-n", n.a, "link", "add", "direct", "type", "veth", "peer", "name", "direct", "netns", n.b},
		{"-n", n.a, "addr", "add", n.addr(2, 1) + "/30", "dev", "direct"},
		{"-n", n.b, "addr", "add", n.addr(2, 2) + "/30", "dev", "direct"},
		{"-n", n.a, "link", "set", "direct", "up"},
		{"-n", n.b, "link", "set", "direct", "up"},
	} {
		if err := ip(args...); err != nil {
			return err
		}
	}
	return nil
}

// rank is how a rank's process is started: the upper half of the ranks lives in the second namespace.
func (n *twoNets) rank(rank, world int, port string) StartRank {
	l, ns := 0, n.a
	if rank >= world/2 {
		l, ns = 1, n.b
	}
	return StartRank{
		Addr:    n.addr(l, 1) + ":" + port,
		Through: []string{"ip", "netns", "exec", ns},
		Env:     []string{"COMMPROBE_HOST_ADDR=" + n.addr(2, l+1)},
	}
}

// cut takes the direct link down, at one end; what is sent on it is lost without a word.
func (n *twoNets) cut() error { return ip("-n", n.a, "link", "set", "direct", "down") }

// close removes everything; the links go with their namespaces.
func (n *twoNets) close() error {
	var errs []error
	for _, ns := range n.made {
		errs = append(errs, ip("netns", "del", ns))
	}
	n.made = nil
	return errors.Join(errs...)
}

func ip(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// cutWhenAsked takes the link away once every rank has come to the barrier.
func (r *run) cutWhenAsked(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.Plan.Fuse)
	defer cancel()
	if err := r.server.Barrier(ctx, barrierCut, nil); err != nil {
		return // the run ended before
	}
	fields := map[string]string{"text": "the link between the two network namespaces is down"}
	if err := r.net.cut(); err != nil {
		fields["text"] = err.Error()
	}
	r.note(r.Plan.Rank, "inject", fields)
	if err := r.server.Set(ctx, keyCutDone, nil); err != nil {
		r.note(r.Plan.Rank, "note", map[string]string{"text": err.Error()})
	}
}
