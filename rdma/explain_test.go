package rdma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	const hint = "what is likely and what to do"
	call := func(fn string, errno syscall.Errno) error {
		return fmt.Errorf("wrapped: %w", &ibverbs.Error{Func: fn, Errno: errno, What: "8192 bytes", Hint: hint})
	}
	for _, c := range []struct {
		name  string
		err   error
		kind  Kind
		again bool
		says  []string
	}{
		{"memlock", call("ibv_reg_mr", syscall.ENOMEM), Unusable, false, []string{"ibv_reg_mr", "8192 bytes", hint}},
		{"GPU memory refused", call("ibv_reg_mr", syscall.EFAULT), Unusable, false, []string{hint}},
		{"no permission", call("ibv_open_device", syscall.EACCES), Unusable, false, []string{hint}},
		{"no kernel", call("ibv_get_device_list", syscall.ENOSYS), Unusable, false, []string{hint}},
		{"no RC", call("ibv_create_qp", syscall.EOPNOTSUPP), Unusable, false, []string{hint}},
		{"GID not resolved", call("ibv_modify_qp to RTR", syscall.ETIMEDOUT), Died, true, []string{hint}},
		{"GID of another type", call("ibv_modify_qp to RTR", syscall.EINVAL), Internal, true, []string{hint}},
		{"GID's interface gone", call("ibv_modify_qp to RTR", syscall.ENODEV), Unusable, true, []string{hint}},
		{"retries", &ibverbs.WCError{Status: 12, Text: "transport retry counter exceeded", Vendor: 129, QPNum: 17, Op: "write", Cause: hint}, Died, true, []string{"GID 1 (10.0.0.1) to 3 (10.0.0.2)", "transport retry counter exceeded", hint}},
		{"protection", &ibverbs.WCError{Status: 4, Text: "local protection error", Cause: hint}, Internal, false, []string{"local protection error", hint}},
		{"receiver not ready", &ibverbs.WCError{Status: 13, Text: "RNR retry counter exceeded"}, Died, false, []string{"RNR"}},
		{"nothing comes", &ibverbs.TimeoutError{What: "write", After: time.Second, Done: 5, Of: 10}, TimedOut, true, []string{"(towards hostb)"}},
		{"stopped", fmt.Errorf("x: %w", ibverbs.ErrStopped), Interrupted, false, []string{"stopped"}},
		{"library", &csrc.LibraryError{Library: "libibverbs", Names: []string{"libibverbs.so.1"}}, Unusable, false, []string{"no libibverbs"}},
		{"else", errors.New("odd"), Internal, false, []string{"odd"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := explain(c.err, "write, 64 bytes", "GID 1 (10.0.0.1) to 3 (10.0.0.2)", "hostb")
			says(t, err, c.kind, append(c.says, "write, 64 bytes")...)
			if anotherPairMayWork(err) != c.again {
				t.Errorf("another pair may work: %v, want %v", !c.again, c.again)
			}
			if again := explain(err, "x", "y", "z"); again.Error() != err.Error() {
				t.Errorf("explained twice: %v", again)
			}
		})
	}
}

func TestRefusedGPU(t *testing.T) {
	t.Parallel()
	err := refusedGPU(&ibverbs.Error{Func: "ibv_reg_mr", Errno: syscall.EFAULT, Hint: ibverbs.Hint("ibv_reg_mr", syscall.EFAULT)}, 3)
	says(t, err, Unusable, "GPU memory registration refused, gpu:3", "nvidia_peermem", "--memory host")
}

func TestWithGPUs(t *testing.T) {
	t.Parallel()
	err := problem(Unusable, nil, "no RDMA device here")
	if got := withGPUs(err, nil); got != error(err) {
		t.Errorf("without GPUs: %v", got)
	}
	says(t, withGPUs(err, []string{"gpu:0: memory can be exported as DMA-BUF", "gpu:1: no"}), Unusable, "no RDMA device here. GPUs: gpu:0: memory can be exported as DMA-BUF; gpu:1: no")
}

func TestDialProblem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind Kind
		says string
	}{
		{bootstrap.ErrWrongToken, Usage, "COMMPROBE_TOKEN"},
		{bootstrap.ErrNotStore, Usage, "something else answers"},
		{&bootstrap.VersionError{Local: 1, Remote: 2}, Usage, "ours is 1, the peer's is 2"},
		{&bootstrap.RefusedError{Reason: "rank 1 of x is already held by y (pid 7)"}, Usage, "one client at a time"},
		{&bootstrap.DialError{Addr: "h:1", Attempts: 3, Waited: time.Second, Last: syscall.ECONNREFUSED, Ctx: context.DeadlineExceeded}, Died, "TCP, not RDMA"},
		{&bootstrap.AbortedError{Cause: bootstrap.Cause{Reason: farewell{WrongData, "byte 3"}.encode()}}, WrongData, "try again"},
		{errors.New("odd"), Internal, "control connection to h:1: odd"},
	} {
		says(t, dialProblem(c.err, "h:1"), c.kind, c.says)
	}
}

// What a side says as it leaves arrives whole, or cut where it is too long for the store.
func TestFarewell(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä<>", 5000)
	for _, f := range []farewell{{Died, "gone"}, {WrongData, ""}, {TimedOut, long}} {
		text := f.encode()
		got, ok := parseFarewell(text)
		if !ok || got.Kind != f.Kind || !strings.HasPrefix(f.Text, strings.TrimSuffix(got.Text, "…")) || len(text) > 4096 {
			t.Errorf("%d bytes: %v %.40q", len(text), got.Kind, got.Text)
		}
	}
	for _, text := range []string{"", "text", "{}", `{"kind":1}`} {
		if _, ok := parseFarewell(text); ok {
			t.Errorf("%q is a farewell", text)
		}
	}
}

// Each way in which the store can end is told with the peer's name and what it was doing.
func TestLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind Kind
		says []string
	}{
		{&bootstrap.AbortedError{Cause: bootstrap.Cause{Rank: 1, Phase: lostPhase, Reason: farewell{Died, "hosta (pid 7): silent for 10 s"}.encode()}}, Died, []string{"peer died: hosta is gone", "silent for 10 s"}},
		{&bootstrap.AbortedError{Cause: bootstrap.Cause{Rank: 1, Phase: "figures", Reason: farewell{TimedOut, "no completion"}.encode()}}, TimedOut, []string{"hosta ended the test (phase figures): no completion"}},
		{&bootstrap.AbortedError{Cause: bootstrap.Cause{Rank: 1, Reason: farewell{Interrupted, "interrupted"}.encode()}}, Died, []string{"hosta ended the test"}},
		{&bootstrap.AbortedError{Cause: bootstrap.Cause{Rank: 1, Reason: "plain"}}, Died, []string{"hosta", "plain"}},
		{&bootstrap.LostError{Addr: "h:1", Err: syscall.ECONNRESET}, Died, []string{"peer died: the connection to hosta broke during \"figures\"", "connection reset"}},
		{bootstrap.ErrServerClosed, Died, []string{"hosta ended the test"}},
		{&bootstrap.MissingRanksError{Waited: 25 * time.Second, Err: context.DeadlineExceeded}, TimedOut, []string{"hosta did not come to \"figures\" within 25s"}},
		{context.DeadlineExceeded, TimedOut, []string{"no answer from hosta"}},
		{context.Canceled, Interrupted, []string{"interrupted"}},
		{nil, Internal, []string{"without a reason"}},
		{errors.New("odd"), Internal, []string{"odd"}},
	} {
		s := &session{peer: "hosta", phase: "figures"}
		says(t, s.lost(c.err), c.kind, c.says...)
	}
}
