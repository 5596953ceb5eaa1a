//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/internal/bootstrap"
)

const (
	defaultGrace = 5 * time.Second
	// drainWait is how long output is waited for once a worker and its group
	// are gone: only a process that left the group can still hold the pipe.
	drainWait = 2 * time.Second
	// killWait is how long a killed process may take to end. One that hangs in
	// the kernel (state D) may take for ever.
	killWait = 10 * time.Second
	// parentFD is the number of the first extra file in a child.
	parentFD = 3
)

// Worker is one child process and the ranks that live in it.
type Worker struct {
	Ranks []int
	Env   []string // "KEY=value", on top of Spec.Env

	// Through is a command that becomes the worker by exec, keeping its process id and open files, such as nsenter with its flags; nil: none.
	Through []string
}

// Spec says what [Start] starts.
type Spec struct {
	Path    string   // executable
	Args    []string // without the program's name
	Env     []string // complete environment; nil means the parent's
	Workers []Worker

	// Stdout and Stderr receive the workers' output, one line a Write. Nil
	// discards. They may be the same. A Write that blocks holds up the output
	// of all workers.
	Stdout, Stderr io.Writer
	Prefix         bool // put "[rank 3] " in front of each line

	// Grace is the time between SIGTERM and SIGKILL when the context of Start
	// ends; 5 s if 0, none if negative.
	Grace time.Duration
}

// Exit tells how one worker ended.
type Exit struct {
	Worker     int // index in Spec.Workers
	Ranks      []int
	PID        int
	Code       int            // exit status, -1 if killed by a signal
	Signal     syscall.Signal // 0 if it exited by itself
	CoreDump   bool
	LastStderr string // last lines of its stderr: at most 20, each at most 512 bytes
	Err        error  // waiting for the process failed; the fields above are unknown
}

// OK tells whether the worker exited with status 0.
func (e Exit) OK() bool { return e.Err == nil && e.Signal == 0 && e.Code == 0 }

// String prints, for example, "rank 3 (pid 4711) was killed by signal 9 (SIGKILL)".
func (e Exit) String() string {
	who := fmt.Sprintf("%s (pid %d)", bootstrap.NameRanks(e.Ranks), e.PID)
	switch {
	case e.Err != nil:
		return fmt.Sprintf("%s: %v", who, e.Err)
	case e.Signal != 0 && e.CoreDump:
		return fmt.Sprintf("%s was killed by signal %d (%s, core dumped)", who, int(e.Signal), SignalName(e.Signal))
	case e.Signal != 0:
		return fmt.Sprintf("%s was killed by signal %d (%s)", who, int(e.Signal), SignalName(e.Signal))
	}
	return fmt.Sprintf("%s exited with status %d", who, e.Code)
}

// Group is the running workers of one [Start].
type Group struct {
	children []*child
	lock     lineWriter
	exits    chan Exit
	done     chan struct{} // closed after exits
	term     sync.Once     // the first Shutdown sends SIGTERM
}

// child is one worker process.
type child struct {
	index   int
	worker  Worker
	leader  leader
	readers sync.WaitGroup // of its output
	pipes   []*os.File     // our read ends
	tail    tail
	ended   chan struct{} // closed when reaped and its output has been copied
}

// Start starts all workers, or none: if one cannot be started, those already
// running are killed and reaped, and the error names its ranks. It does not
// wait for the workers. When ctx ends, the group is shut down with spec.Grace.
//
// stdin of a worker is /dev/null. COMMPROBE_PARENT_FD is set in its environment
// for [WatchParent].
func Start(ctx context.Context, spec Spec) (*Group, error) {
	if len(spec.Workers) == 0 {
		return nil, errors.New("start workers: none given")
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start workers: %w", err)
	}
	// The write end is closed on exec, as all files of Go are, so that it lives
	// in this process only and closes when this process ends.
	aliveR, aliveW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start workers: parent pipe: %w", err)
	}
	defer aliveR.Close()
	g := &Group{exits: make(chan Exit, len(spec.Workers)), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal of a child is sent when the *thread* that
		// started it ends. So that thread is kept as long as the children live.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- g.startChildren(spec, aliveR)
		<-g.done
	}()
	startErr := <-started
	if startErr != nil {
		g.Signal(syscall.SIGKILL)
	}
	var all sync.WaitGroup
	for _, c := range g.children {
		all.Go(func() { g.exits <- c.watch() })
	}
	go func() {
		all.Wait()
		close(g.exits)
		close(g.done)
		_ = aliveW.Close()
	}()
	if startErr != nil {
		return nil, errors.Join(startErr, g.waitDone(killWait))
	}
	go func() {
		select {
		case <-g.done:
		case <-ctx.Done():
			grace := spec.Grace
			if grace == 0 {
				grace = defaultGrace
			}
			_ = g.Shutdown(grace) // who is interested calls it as well
		}
	}()
	return g, nil
}

func (g *Group) startChildren(spec Spec, alive *os.File) error {
	for i, w := range spec.Workers {
		c, err := g.startChild(spec, i, alive)
		if err != nil {
			return fmt.Errorf("%s: start %s: %w", bootstrap.NameRanks(w.Ranks), spec.Path, err)
		}
		g.children = append(g.children, c)
	}
	return nil
}

func (g *Group) startChild(spec Spec, i int, alive *os.File) (*child, error) {
	w := spec.Workers[i]
	c := &child{index: i, worker: w, ended: make(chan struct{})}
	argv := slices.Concat(w.Through, []string{spec.Path}, spec.Args)
	cmd := exec.Command(argv[0], argv[1:]...)
	env := spec.Env
	if env == nil {
		env = os.Environ()
	}
	// Later ones win; exec drops the earlier duplicates.
	cmd.Env = append(append(append([]string{}, env...), w.Env...), EnvParentFD+"="+strconv.Itoa(parentFD))
	// SIGCONT rather than SIGKILL on the parent's death: a worker that runs does
	// not notice it, one that is stopped wakes up, and either ends its whole
	// group, which a SIGKILL of the leader alone would leave behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
	cmd.ExtraFiles = []*os.File{alive}

	// Pipes of our own: with those of exec, Wait would wait for the output, and
	// a worker's descendants may hold it open.
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		_ = outR.Close()
		return nil, err
	}
	defer errW.Close()
	cmd.Stdout, cmd.Stderr = outW, errW
	if err := cmd.Start(); err != nil {
		_ = outR.Close()
		_ = errR.Close()
		return nil, err
	}
	c.leader.proc = cmd.Process
	c.pipes = []*os.File{outR, errR}
	var prefix []byte
	if spec.Prefix {
		prefix = []byte("[" + bootstrap.NameRanks(w.Ranks) + "] ")
	}
	for _, s := range []struct {
		from *os.File
		to   io.Writer
		tail *tail
	}{{outR, spec.Stdout, nil}, {errR, spec.Stderr, &c.tail}} {
		copier := &stream{lock: &g.lock, out: s.to, prefix: prefix, tail: s.tail}
		c.readers.Go(func() { copier.copyFrom(s.from) })
	}
	return c, nil
}

// watch waits for the end of one worker and describes it.
func (c *child) watch() Exit {
	defer close(c.ended)
	state, err := c.leader.reap()
	c.drain()
	e := Exit{
		Worker: c.index, Ranks: c.worker.Ranks, PID: c.leader.proc.Pid,
		Code: -1, LastStderr: c.tail.String(),
	}
	if err != nil {
		e.Err = err
		return e
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		e.Code = state.ExitCode()
	case status.Signaled():
		e.Signal, e.CoreDump = status.Signal(), status.CoreDump()
	default:
		e.Code = status.ExitStatus()
	}
	return e
}

// drain waits for the rest of the output, but not for ever.
func (c *child) drain() {
	copied := make(chan struct{})
	go func() {
		c.readers.Wait()
		for _, p := range c.pipes {
			_ = p.Close()
		}
		close(copied)
	}()
	for _, p := range c.pipes {
		_ = p.SetReadDeadline(time.Now().Add(drainWait))
	}
	// A reader that hangs in a Write of Spec.Stdout is left behind.
	timer := time.NewTimer(drainWait + time.Second)
	defer timer.Stop()
	select {
	case <-copied:
	case <-timer.C:
	}
}

// Exits returns the channel on which the end of each worker is told, in the
// order in which they end, after their output has been copied. It is closed
// when all have been reaped. It has room for all of them: not reading it holds
// up nothing.
func (g *Group) Exits() <-chan Exit { return g.exits }

// Done is closed when all workers have been reaped.
func (g *Group) Done() <-chan struct{} { return g.done }

// PID returns the process id of a worker, which is also its process group's.
// After the worker has been reaped the number may belong to another process:
// print it, but signal with [Group.SignalWorker].
func (g *Group) PID(worker int) int { return g.children[worker].leader.proc.Pid }

// Signal sends sig to the process groups of all workers that are not reaped.
func (g *Group) Signal(sig syscall.Signal) {
	for _, c := range g.children {
		_ = c.leader.signal(sig)
	}
}

// SignalWorker sends sig to the process group of one worker. It returns
// [os.ErrProcessDone] if the worker has been reaped.
func (g *Group) SignalWorker(worker int, sig syscall.Signal) error {
	if worker < 0 || worker >= len(g.children) {
		return fmt.Errorf("signal worker %d of %d: no such worker", worker, len(g.children))
	}
	return g.children[worker].leader.signal(sig)
}

// Shutdown ends all workers: SIGTERM to their groups, SIGKILL to those left
// after grace. It returns when all have been reaped, or, with an error that
// names the ranks, when some have not ended 10 s after SIGKILL. It may be
// called several times and concurrently; each call keeps to its own grace. A
// grace of 0 kills at once.
func (g *Group) Shutdown(grace time.Duration) error {
	if grace > 0 {
		g.term.Do(func() {
			g.Signal(syscall.SIGTERM)
			g.Signal(syscall.SIGCONT) // a stopped process would not see SIGTERM
		})
		if g.waitDone(grace) == nil {
			return nil
		}
	}
	g.Signal(syscall.SIGKILL)
	return g.waitDone(killWait + drainWait + time.Second)
}

// waitDone waits until all are reaped, or says who is not.
func (g *Group) waitDone(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-g.done:
		return nil
	case <-timer.C:
	}
	var left []string
	for _, c := range g.children {
		select {
		case <-c.ended:
		default:
			left = append(left, fmt.Sprintf("%s (pid %d)", bootstrap.NameRanks(c.worker.Ranks), c.leader.proc.Pid))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("not ended within %v: %s", limit, strings.Join(left, ", "))
}
