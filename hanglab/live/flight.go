package live

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/hanglab/flight"
)

// maxDump is how large a dump or a ring may be.
const maxDump = 1 << 30

// flightPipe asks PyTorch for a dump of its flight recorder: any byte in its pipe does that, and the job goes on.
func (c *collector) flightPipe(ctx context.Context, p *process) {
	stem := p.env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
	what := "flight recorder of " + p.String()
	switch {
	case p.env == nil:
		c.fail(what, p.rank, errors.New("the environment of the process cannot be read: run as its user or as root"))
		return
	case stem == "" && p.env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "" && !strings.Contains(p.command+p.name, "python"):
		return // no PyTorch
	case stem == "":
		c.fail(what, p.rank, errors.New("no pipe to ask for a dump: set TORCH_NCCL_DEBUG_INFO_PIPE_FILE next time; a time-out writes one anyway"))
		return
	case p.rank < 0:
		c.fail(what, p.rank, errors.New("its rank is not known, and the pipe has it in its name"))
		return
	}
	raw, err := within(ctx, 2*c.opt.Step, func() ([]byte, error) { return c.askDump(ctx, p, stem+strconv.Itoa(p.rank)+".pipe") })
	if err != nil {
		c.fail(what, p.rank, err)
		return
	}
	c.dump(p.rank, raw)
}

// dumpFiles are where PyTorch writes: by new and old variables, or their defaults.
func dumpFiles(p *process) []string {
	rank := strconv.Itoa(p.rank)
	var out []string
	for _, name := range []string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} {
		if v := p.env[name]; v != "" {
			out = append(out, v+rank)
		}
	}
	if len(out) == 0 {
		cache := p.env["XDG_CACHE_HOME"]
		if cache == "" && p.env["HOME"] != "" {
			cache = p.env["HOME"] + "/.cache"
		}
		if cache != "" {
			out = append(out, cache+"/torch/comm_lib_trace_rank_"+rank)
		}
		out = append(out, "/tmp/nccl_trace_rank_"+rank)
	}
	return out
}

// inside is a path as the process sees it, which may be in a container.
func (c *collector) inside(p *process, path string) string {
	own := filepath.Join(c.opt.Root, "proc", strconv.Itoa(p.pid), "root", path)
	if _, err := os.Lstat(own); err == nil {
		return own
	}
	if _, err := os.Stat(filepath.Join(c.opt.Root, "proc", strconv.Itoa(p.pid), "root")); err == nil {
		return own
	}
	return filepath.Join(c.opt.Root, path)
}

func (c *collector) askDump(ctx context.Context, p *process, pipe string) ([]byte, error) {
	type seen struct {
		size int64
		at   time.Time
	}
	before := make(map[string]seen)
	for _, name := range dumpFiles(p) {
		if s, err := os.Stat(c.inside(p, name)); err == nil {
			before[name] = seen{s.Size(), s.ModTime()}
		}
	}
	if err := knock(c.inside(p, pipe)); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(c.opt.Step)
	last := make(map[string]int64) // size at the last look: a file that grows is not whole
	for time.Now().Before(deadline) && ctx.Err() == nil {
		for _, name := range dumpFiles(p) {
			path := c.inside(p, name)
			s, err := os.Stat(path)
			if err != nil || s.Size() == 0 || s.Size() > maxDump || before[name] == (seen{s.Size(), s.ModTime()}) {
				continue
			}
			if last[name] == s.Size() {
				return os.ReadFile(path)
			}
			last[name] = s.Size()
		}
		time.Sleep(300 * time.Millisecond)
	}
	return nil, fmt.Errorf("%w: asked through %s, and no new dump in %s within %v: the thread that writes it may be stuck as well, or stopped", errSlow, pipe,
		strings.Join(dumpFiles(p), " or "), c.opt.Step)
}

// knock writes one byte into a pipe, if it is one and somebody reads it.
func knock(pipe string) error {
	s, err := os.Lstat(pipe)
	switch {
	case err != nil:
		return fmt.Errorf("dump pipe: %w", err)
	case s.Mode()&os.ModeNamedPipe == 0:
		return fmt.Errorf("dump pipe: %s is no pipe: nothing was written", pipe)
	}
	f, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.ENXIO) {
			err = errors.New("nobody reads it: PyTorch's monitor thread has ended, or monitoring is off (TORCH_NCCL_ENABLE_MONITORING)")
		}
		return fmt.Errorf("dump pipe %s: %w", pipe, err)
	}
	_ = f.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = f.Write([]byte("1"))
	return cmp.Or(err, f.Close())
}

// rings reads the flight rings of this program's own laboratory, which lie in memory and need nobody's help to be read: also that of a stopped rank.
// It reads them twice, to see whether the ranks go on.
func (c *collector) rings(ctx context.Context) {
	first := c.readRings(ctx)
	if len(first) == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(c.opt.Interval):
	}
	for name, ring := range c.readRings(ctx) {
		p := c.byPID(int(ring.PID))
		if old := first[name]; old != nil && p != nil {
			c.saveRing(p, old, ring)
		}
	}
}

// readRings gives the rings of the processes that are looked at, by file. Others are of runs that ended, or that begin.
func (c *collector) readRings(ctx context.Context) map[string]*flight.Ring {
	out := make(map[string]*flight.Ring)
	for _, pattern := range []string{"dev/shm/commprobe-hang-*/ring_*", "tmp/commprobe-hang-*/ring_*"} {
		files, _ := filepath.Glob(filepath.Join(c.opt.Root, pattern))
		for _, name := range files {
			ring, err := within(ctx, c.opt.Step, func() (*flight.Ring, error) { return readRing(name) })
			if err == nil && c.byPID(int(ring.PID)) != nil {
				out[name] = ring
			}
		}
	}
	return out
}

func (c *collector) byPID(pid int) *process {
	for _, p := range c.procs {
		if p.pid == pid || p.inner == pid {
			return p
		}
	}
	return nil
}

func readRing(name string) (*flight.Ring, error) {
	if s, err := os.Stat(name); err != nil || s.Size() > maxDump {
		return nil, errors.Join(err, errors.New("too large"))
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return flight.DecodeRing(raw)
}

func (c *collector) saveRing(p *process, old, ring *flight.Ring) {
	rank := ring.Rank
	if rank < 0 {
		rank = p.rank
	}
	var buf bytes.Buffer
	if err := ring.Dump().WritePickle(&buf); err != nil {
		c.fail("flight ring of "+p.String(), rank, err)
		return
	}
	c.dump(rank, buf.Bytes())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looked[rank] = true
	if ring.Appended > old.Appended {
		c.moving[rank] = fmt.Sprintf("rank %d made %d calls within %v", rank, ring.Appended-old.Appended, c.opt.Interval)
	}
}
