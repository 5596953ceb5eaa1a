package rdma

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bootstrap"
)

// Statuses of a work completion that say something about the path.
const (
	wcFlushed         = 5
	wcRetriesExceeded = 12
	wcRNRExceeded     = 13
)

// explain turns an error of the binding, if there is one, into a Problem: what was done, on which path, what that error means.
func explain(err error, what, path, peer string) error {
	var p *Problem
	if err == nil || errors.As(err, &p) {
		return err
	}
	var wc *ibverbs.WCError
	var late *ibverbs.TimeoutError
	var call *ibverbs.Error
	where := what
	if path != "" {
		where += ", " + path
	}
	switch {
	case errors.As(err, &wc):
		kind := Internal
		if wc.Status == wcRetriesExceeded || wc.Status == wcRNRExceeded || wc.Status == wcFlushed {
			kind = Died
		}
		return problem(kind, err, "%s: %v", where, err)
	case errors.As(err, &late):
		return problem(TimedOut, err, "%s: %v (towards %s)", where, err, peer)
	case errors.As(err, &call):
		return problem(callKind(call), err, "%s: %v", what, err)
	case errors.Is(err, ibverbs.ErrStopped):
		return problem(Interrupted, err, "%s: stopped", what)
	}
	if _, lib := csrc.IsLibrary(err); lib {
		return problem(Unusable, err, "%s: %v", what, err)
	}
	return problem(Internal, err, "%s: %v", what, err)
}

// callKind tells what the machine lacks from what went wrong.
func callKind(e *ibverbs.Error) Kind {
	switch {
	case errors.Is(e, syscall.EACCES), errors.Is(e, syscall.EPERM), errors.Is(e, syscall.ENOSYS), errors.Is(e, syscall.ENODEV), errors.Is(e, syscall.ENOENT):
		return Unusable
	case e.Func == "ibv_reg_mr" || e.Func == "ibv_reg_dmabuf_mr":
		return Unusable
	case errors.Is(e, syscall.ENOMEM), errors.Is(e, syscall.EOPNOTSUPP), errors.Is(e, syscall.EPROTONOSUPPORT):
		return Unusable
	case errors.Is(e, syscall.ETIMEDOUT):
		return Died
	}
	return Internal
}

// anotherPairMayWork says that a failed connection or first message depends on the GID pair.
func anotherPairMayWork(err error) bool {
	var wc *ibverbs.WCError
	var late *ibverbs.TimeoutError
	if errors.As(err, &wc) {
		return wc.Status == wcRetriesExceeded
	}
	if errors.As(err, &late) { // soft-RoCE takes 7 retries for no limit
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EINVAL, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENODEV, syscall.ENODATA} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// unreachable is the verdict when no pair works: the error of each, equal ones once.
func unreachable(a *Agreement, reasons []string) error {
	s := "peer unreachable over RDMA, though the control connection works"
	for i, r := range reasons {
		if first := slices.Index(reasons, r); first < i {
			s += fmt.Sprintf("; %s: the same", a.Pairs[i])
			continue
		}
		s += fmt.Sprintf("; %s: %s", a.Pairs[i], r)
	}
	if n := len(a.Pairs) - len(reasons); n > 0 {
		s += fmt.Sprintf("; %d more pairs were not tried", n)
	}
	next := "check that UDP port 4791 passes between the hosts (firewall, VLAN, routing of the network devices that own the GIDs), or name a pair with -x CLIENT:SERVER"
	if a.LinkLayer == infiniband {
		next = "check the fabric between the two LIDs (ibtracert) and that both ports are in one partition"
	}
	return problem(Died, nil, "%s; %s", s, next)
}

// dialProblem tells a failure of the control connection from one of the link.
func dialProblem(err error, addr string) error {
	var version *bootstrap.VersionError
	var refused *bootstrap.RefusedError
	var dial *bootstrap.DialError
	var aborted *bootstrap.AbortedError
	switch {
	case errors.Is(err, bootstrap.ErrWrongToken):
		return problem(Usage, err, "%s refused the token: set COMMPROBE_TOKEN to the one that `commprobe rdma serve` printed there", addr)
	case errors.Is(err, bootstrap.ErrNotStore):
		return problem(Usage, err, "%s is not `commprobe rdma serve`: something else answers at that port", addr)
	case errors.As(err, &version):
		return problem(Usage, err, "version skew with %s: %v", addr, version)
	case errors.As(err, &refused):
		return problem(Usage, err, "%s does not let this client in: %s; a server takes one client at a time, of its own program version: wait until the other is done, or install the same commprobe on both hosts", addr, refused.Reason)
	case errors.As(err, &dial):
		return problem(Died, err, "no control connection to %s (TCP, not RDMA) within %v: %v; start `commprobe rdma serve` there, and check address, port and firewall", addr, dial.Waited.Round(100*time.Millisecond), dial.Last)
	case errors.As(err, &aborted):
		if f, ok := parseFarewell(aborted.Cause.Reason); ok {
			return problem(f.Kind, err, "%s is just ending a test: %s; try again", addr, f.Text)
		}
	}
	return problem(Internal, err, "control connection to %s: %v", addr, err)
}
