//go:build linux

package launch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
)

// leader is one worker process, the leader of its process group.
//
// Signals go to groups by number, and a number may be reused once the process
// that gave it has been reaped. Hence this order at a leader's end:
//
//  1. wait for its exit without reaping it (waitid with WNOWAIT): it stays a
//     zombie, and as long as it does, neither its pid nor its group id can
//     belong to anybody else;
//  2. kill the group, which by now can only hold what the worker left behind;
//  3. reap it and note that, under the lock that signalling takes as well.
type leader struct {
	proc *os.Process

	mu     sync.Mutex
	reaped bool
}

// Values of waitid(2) that package syscall does not name.
const (
	waitPID    = 1 // P_PID
	waitExited = syscall.WEXITED
	waitNoReap = syscall.WNOWAIT
)

// signal sends sig to the whole group, unless the leader has been reaped.
func (l *leader) signal(sig syscall.Signal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reaped {
		return os.ErrProcessDone
	}
	if err := syscall.Kill(-l.proc.Pid, sig); err != nil {
		return fmt.Errorf("signal %s to process group %d: %w", SignalName(sig), l.proc.Pid, err)
	}
	return nil
}

// reap blocks until the leader has ended, kills what is left of its group, and
// returns the leader's status.
func (l *leader) reap() (*os.ProcessState, error) {
	err := waitNoReaping(l.proc.Pid)
	if errors.Is(err, syscall.ECHILD) {
		// Somebody else has reaped our child: its number is no longer ours.
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reaped = true
		return nil, err
	}
	if err != nil {
		// Should a sandbox forbid waitid, the process is still running. Keep it
		// killable meanwhile, at the price of a short moment after its end in
		// which a signal could go astray.
		state, werr := l.proc.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reaped = true
		return state, werr
	}
	_ = l.signal(syscall.SIGKILL)
	l.mu.Lock()
	defer l.mu.Unlock()
	state, err := l.proc.Wait() // at once: it is a zombie
	l.reaped = true
	return state, err
}

// waitNoReaping blocks until the child has ended and leaves it a zombie. It
// holds one thread of the system for each child, which is as many as there are
// ranks on a host.
func waitNoReaping(pid int) error {
	for {
		// The kernel allows no siginfo (infop == NULL); the status is read when
		// the process is reaped.
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, waitPID, uintptr(pid), 0, waitExited|waitNoReap, 0, 0)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
			continue
		}
		return fmt.Errorf("wait for process %d: %w", pid, errno)
	}
}

// SignalName returns the name of a signal as in kill -l, "SIGKILL", or
// "signal 42" where there is none.
func SignalName(sig syscall.Signal) string {
	if name, ok := signalNames[sig]; ok {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

var signalNames = map[syscall.Signal]string{
	syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL",
	syscall.SIGTRAP: "SIGTRAP", syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
	syscall.SIGKILL: "SIGKILL", syscall.SIGUSR1: "SIGUSR1", syscall.SIGSEGV: "SIGSEGV", syscall.SIGUSR2: "SIGUSR2",
	syscall.SIGPIPE: "SIGPIPE", syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM", syscall.SIGCHLD: "SIGCHLD",
	syscall.SIGCONT: "SIGCONT", syscall.SIGSTOP: "SIGSTOP", syscall.SIGTSTP: "SIGTSTP", syscall.SIGXCPU: "SIGXCPU",
	syscall.SIGXFSZ: "SIGXFSZ", syscall.SIGSYS: "SIGSYS",
}
