//go:build linux

package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// EnvParentFD names the environment variable that tells a worker the number of
// the file descriptor which [WatchParent] watches.
const EnvParentFD = "COMMPROBE_PARENT_FD"

// WatchParent returns a channel that is closed when the process that started
// this worker is gone, however it went. getenv is [os.Getenv] but for tests.
// Without a parent of that kind the channel is nil: receiving from it blocks
// for ever. It does not block, and must be called once, early in main: a worker
// that does not is an orphan when its parent is killed. It removes the variable
// from the environment.
//
// What a worker then has to do, as its store connection may be hung as well:
//
//	go func() { <-gone; launch.KillOwnGroup() }()
func WatchParent(getenv func(string) string) (<-chan struct{}, error) {
	text := getenv(EnvParentFD)
	if text == "" {
		return nil, nil
	}
	fd, err := strconv.ParseUint(text, 10, 31)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("watch parent: %s=%q is not the number of a file descriptor", EnvParentFD, text)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(fd), &st); err != nil {
		return nil, fmt.Errorf("watch parent: %s=%s: %w", EnvParentFD, text, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("watch parent: %s=%s is not a pipe: the variable was inherited from another program",
			EnvParentFD, text)
	}
	// The number means nothing to a process that this one will start.
	_ = os.Unsetenv(EnvParentFD)
	return ParentGone(uintptr(fd)), nil
}

// ParentGone returns a channel that is closed when the last write end of the
// pipe fd has been closed. It takes fd over: nobody else may use or close it,
// and processes started later do not inherit it.
func ParentGone(fd uintptr) <-chan struct{} {
	syscall.CloseOnExec(int(fd))
	gone := make(chan struct{})
	pipe := os.NewFile(fd, "parent pipe")
	if pipe == nil {
		close(gone)
		return gone
	}
	go func() {
		defer close(gone)
		defer pipe.Close()
		var b [1]byte
		for {
			// Nobody writes into the pipe; if somebody does, it means nothing.
			if _, err := pipe.Read(b[:]); err != nil && !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	}()
	return gone
}

// KillOwnGroup kills, with SIGKILL, this process and what it has started. Where
// this process does not lead its process group it kills only itself, so as not
// to take down the shell's job. It does not return.
func KillOwnGroup() {
	pid := os.Getpid()
	if syscall.Getpgrp() == pid {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	select {} // the signal is on its way
}
