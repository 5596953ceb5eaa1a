package live

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/commprobe/commprobe/nccl/ras"
)

// maxOutput is how much of a program's output is kept.
const maxOutput = 64 << 20

func lookPath(name string) (string, error) { return exec.LookPath(name) }

// command runs a program to its end or to the deadline and gives its output. Its error is in words that say what to do where that is known.
func (c *collector) command(ctx context.Context, name string, args ...string) ([]byte, error) {
	path, err := c.opt.tools(name)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(ctx, c.opt.Step)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &keep{buf: &out, left: maxOutput}, &keep{buf: &errs, left: 64 << 10}
	err = cmd.Run()
	if ctx.Err() != nil {
		return out.Bytes(), fmt.Errorf("%s: %w (%v)", name, errSlow, c.opt.Step)
	}
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n")
		return out.Bytes(), fmt.Errorf("%s: %w: %s", name, err, strings.ToValidUTF8(first, "?"))
	}
	return out.Bytes(), nil
}

// keep takes all that is written and keeps the beginning.
type keep struct {
	buf  *bytes.Buffer
	left int
}

func (k *keep) Write(b []byte) (int, error) {
	n := min(len(b), k.left)
	k.buf.Write(b[:n])
	k.left -= n
	return len(b), nil
}

// pySpy saves the Python stacks of a process. --nonblocking: it is read while it runs, not stopped.
func (c *collector) pySpy(ctx context.Context, p *process) {
	if !strings.Contains(p.command+p.name, "python") && !c.hasPython(ctx, p) {
		return
	}
	out, err := c.command(ctx, "py-spy", "dump", "--nonblocking", "--pid", fmt.Sprint(p.pid))
	if err != nil {
		switch {
		case strings.Contains(err.Error(), "not installed"):
			err = errors.New("py-spy is not installed: pip install py-spy")
		case strings.Contains(strings.ToLower(err.Error()), "permission"):
			err = fmt.Errorf("%w: run as root, or allow it (CAP_SYS_PTRACE)", err)
		}
		c.fail("Python stacks of "+p.String(), p.rank, err)
	}
	if bytes.Contains(out, []byte("Thread ")) {
		c.save(p.file("pyspy", ".txt"), out)
	}
}

// hasPython tells whether a process with another name runs Python: it gave itself a title.
func (c *collector) hasPython(ctx context.Context, p *process) bool {
	found, err := within(ctx, c.opt.Step, func() (bool, error) {
		raw, err := readProc(filepath.Join(c.opt.Root, "proc", fmt.Sprint(p.pid), "maps"))
		return bytes.Contains(raw, []byte("libpython")) || bytes.Contains(raw, []byte("/python3")), err
	})
	return err == nil && found
}

// kernelLog saves the kernel's messages: GPU faults, ended processes, links that went down.
func (c *collector) kernelLog(ctx context.Context) {
	out, err := c.command(ctx, "dmesg", "--time-format=iso")
	if err != nil || len(out) == 0 {
		if again, err2 := c.command(ctx, "dmesg"); err2 == nil && len(again) > 0 { // busybox knows no formats
			out, err = again, nil
		}
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "not permitted"):
		c.fail("kernel log", -1, errors.New("dmesg is for root only on this host: sudo dmesg > dmesg.txt and give it with the rest"))
	case err != nil:
		c.fail("kernel log", -1, err)
	case len(bytes.TrimSpace(out)) == 0:
		c.fail("kernel log", -1, errors.New("empty: a container shows none; take dmesg of the host"))
	default:
		c.save("dmesg.txt", out)
	}
}

// askRAS puts the question twice, to each address that the processes name.
func (c *collector) askRAS(ctx context.Context) {
	if c.opt.RASAddr == "-" {
		return
	}
	var addrs []string
	off := 0
	for _, p := range c.procs {
		if p.env["NCCL_RAS_ENABLE"] == "0" {
			off++
			continue
		}
		addr := cmp.Or(c.opt.RASAddr, p.env["NCCL_RAS_ADDR"], ras.DefaultAddr)
		if !slices.Contains(addrs, addr) && len(addrs) < 8 {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 && off > 0 {
		c.fail("NCCL RAS", -1, errors.New("off in this job (NCCL_RAS_ENABLE=0)"))
	}
	for i, addr := range addrs {
		samples, err := ras.Watch(ctx, addr, ras.Options{Timeout: min(5*time.Second, c.opt.Step)}, 2, c.opt.Interval)
		if err != nil {
			c.fail("NCCL RAS at "+addr, -1, err)
		}
		if len(samples) == 2 && c.ours(samples[0]) && c.ours(samples[1]) {
			if seen := ras.Compare(samples[0], samples[1], false); seen.Moving && !seen.Alarm {
				c.mu.Lock()
				c.moving[-1] = fmt.Sprintf("NCCL's RAS: counts rose within %v", c.opt.Interval)
				c.mu.Unlock()
			}
		}
		for n, rep := range samples {
			if !c.ours(rep) {
				c.fail("NCCL RAS at "+addr, -1, errors.New("the answer is of another job on this host: give each job its own NCCL_RAS_ADDR"))
				break
			}
			c.save(fmt.Sprintf("ras_%c_sample_%c.txt", 'a'+i, 'a'+n), rep.Raw)
		}
	}
}

// ours tells whether a report is of the job that is looked at: none of its processes is known where it names several.
func (c *collector) ours(rep *ras.Report) bool {
	named := 0
	for _, x := range rep.Communicators {
		for _, place := range x.Places {
			named++
			for _, p := range c.procs {
				if p.inner == place.PID || p.pid == place.PID {
					return true
				}
			}
		}
	}
	return named == 0 || !rep.FromJSON // the text names outliers only
}
