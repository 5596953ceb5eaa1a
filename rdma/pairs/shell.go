package pairs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultShell reaches a host without ever asking for a password, and notices within 15 s that a host is gone.
const DefaultShell = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"

// AgentCommand is the hidden command that is an agent.
const AgentCommand = "rdma-agent"

// Shell starts agents through a remote shell, and the one of this host directly.
type Shell struct {
	Command string // of the remote shell, as a line for sh; host and command are appended. "": DefaultShell
	Binary  string // commprobe on the other hosts
	Self    string // commprobe on this host; "": even this host is reached through the remote shell
	Stderr  func(host, line string)
}

// How long an agent may take to end once its stdin is closed, and what of its last lines an error shows.
const (
	endGrace  = 3 * time.Second
	drain     = time.Second // to read what it said last
	lastLines = 5
	maxStderr = 1000 // bytes of one line
)

// Start is a Starter.
func (s *Shell) Start(_ context.Context, h Host) (*Remote, error) {
	var cmd *exec.Cmd
	if s.Self != "" && isHere(h.Name) {
		cmd = exec.Command(s.Self, AgentCommand)
	} else {
		line := s.Command
		if line == "" {
			line = DefaultShell
		}
		// The shell takes its options apart; the host and the command pass through it untouched.
		cmd = exec.Command("/bin/sh", "-c", "exec "+line+` "$@"`, "sh", h.Name, "exec "+Quote(s.Binary)+" "+AgentCommand)
	}
	// A group of its own: an interrupt from the keyboard is for the orchestrator, who then ends its agents in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err1 := cmd.StdinPipe()
	r, w, err2 := os.Pipe() // those of exec would be closed by Wait before all was read
	p := &process{cmd: cmd, stdout: r, gone: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = w, &stderrLines{tell: func(line string) { p.said(line); s.tell(h.Name, line) }}
	cmd.WaitDelay = time.Second // for a descendant that keeps stderr open
	err := errors.Join(err1, err2)
	if err == nil {
		err = cmd.Start()
	}
	if w != nil {
		_ = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", cmd.Path, err)
	}
	go p.wait()
	return &Remote{Stdin: in, Stdout: r, End: p.end}, nil
}

func (s *Shell) tell(host, line string) {
	if s.Stderr != nil {
		s.Stderr(host, line)
	}
}

// isHere says that a name of a host is this one's.
func isHere(name string) bool {
	if name == "localhost" {
		return true
	}
	own, err := os.Hostname()
	short, _, _ := strings.Cut(own, ".")
	return err == nil && name != "" && (name == own || name == short)
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Quote makes a word that sh takes as it is.
func Quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// process is a running remote shell, or an agent of this host.
type process struct {
	cmd    *exec.Cmd
	stdout *os.File
	gone   chan struct{} // closed when it was waited for
	once   sync.Once

	mu     sync.Mutex
	reaped bool
	killed bool
	err    error
	last   []string // lines of stderr
}

func (p *process) wait() {
	err := p.cmd.Wait()
	// A descendant may hold the other end of stdout: what is there by now is all that counts.
	_ = p.stdout.SetReadDeadline(time.Now().Add(drain))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped, p.err = true, err
	close(p.gone)
}

func (p *process) said(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last = append(p.last, line); len(p.last) > lastLines {
		p.last = slices.Delete(p.last, 0, 1)
	}
}

// end waits for the end, or brings it about.
func (p *process) end() error {
	p.once.Do(func() {
		timer := time.NewTimer(endGrace)
		defer timer.Stop()
		select {
		case <-p.gone:
		case <-timer.C:
			p.kill()
			<-p.gone
		}
		_ = p.stdout.Close() // should a descendant hold the other end
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	tail := ""
	if len(p.last) > 0 {
		tail = ": " + strings.Join(p.last, " / ")
	}
	var exit *exec.ExitError
	switch {
	case p.killed:
		return fmt.Errorf("it did not end within %v and was killed%s", endGrace, tail)
	case errors.As(p.err, &exit) && exit.ExitCode() == 127:
		return fmt.Errorf("exit status 127%s: the program was not found there; --remote-binary names it", tail)
	case errors.As(p.err, &exit) && exit.ExitCode() == 255:
		return fmt.Errorf("exit status 255%s: ssh ends so when it cannot reach or enter the host; try its command by hand, or name another with --rsh", tail)
	case errors.As(p.err, &exit):
		return fmt.Errorf("agent or remote shell ended: %v%s", exit, tail)
	}
	return nil
}

// kill ends the group, while its number is certainly still its own.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.killed = true
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// stderrLines hands on whole lines.
type stderrLines struct {
	tell func(line string)
	part []byte
}

func (s *stderrLines) Write(b []byte) (int, error) {
	for _, c := range b {
		if c != '\n' && len(s.part) < maxStderr {
			s.part = append(s.part, c)
			continue
		}
		if line := strings.TrimRight(string(s.part), "\r"); line != "" {
			s.tell(strings.ToValidUTF8(line, "?"))
		}
		s.part = s.part[:0]
		if c != '\n' {
			s.part = append(s.part, c)
		}
	}
	return len(b), nil
}
