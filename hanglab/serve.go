package hanglab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/commprobe/commprobe/hanglab/watch"
)

// guard watches the watchdog: if that does not come round, the rank still tells its story from the ring, which needs no device, and ends.
func (w *watcher) guard(ctx context.Context) {
	if w.plan.Heartbeat <= 0 {
		return
	}
	m, err := watch.NewMonitor(watch.Config{Rank: w.id, World: w.plan.World, Mode: w.plan.Mode, Heartbeat: w.plan.Heartbeat})
	if err != nil {
		w.log("heartbeat monitor: %v", err)
		return
	}
	t := time.NewTicker(min(250*time.Millisecond, w.plan.Heartbeat/4))
	defer t.Stop()
	m.Step(now(), watch.Tick{})
	last := w.beat.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var acts []watch.Action
		if b := w.beat.Load(); b != last {
			last = b
			acts = m.Step(time.Duration(b), watch.Beat{})
		}
		for _, a := range append(acts, m.Step(now(), watch.Tick{})...) {
			w.guardDoes(m, a)
		}
	}
}

// guardDoes carries out what the monitor wants. Its dump is made here and now: there is nobody else.
func (w *watcher) guardDoes(m *watch.Monitor, a watch.Action) {
	d, ok := a.(watch.Dump)
	if !ok {
		w.do(a)
		return
	}
	e := watch.Event(watch.DumpDone{})
	if err := w.dump(string(d.Reason.Kind)); err != nil {
		e = watch.DumpFailed{Text: err.Error()}
	}
	for _, next := range m.Step(now(), e) {
		w.do(next)
	}
}

func socketPath(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank_%d.sock", rank))
}

// serve answers requests on a Unix socket while the job goes on: a line "dump" is answered with the dump as JSON, "status" with what the rank does.
func (r *rank) serve(ctx context.Context) error {
	l, err := net.Listen("unix", socketPath(r.plan.Rings, r.id))
	if err != nil {
		return fmt.Errorf("dump socket: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		go r.reply(c)
	}
}

func (r *rank) reply(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(storeWait)) // a client that hangs is left
	line, err := bufio.NewReader(io.LimitReader(c, 64)).ReadString('\n')
	if err != nil {
		return
	}
	switch request := strings.TrimSpace(line); request {
	case "dump":
		d, _, err := r.snapshot()
		if err == nil {
			err = d.WriteJSON(c)
		}
		if err != nil {
			fmt.Fprintf(c, "{\"error\":%q}\n", err)
		}
	case "status":
		_, ring, err := r.snapshot()
		if err != nil {
			fmt.Fprintf(c, "{\"error\":%q}\n", err)
			return
		}
		_ = json.NewEncoder(c).Encode(map[string]any{"rank": r.id, "pid": os.Getpid(), "phase": ring.Phase, "open": r.recorder.openCount()})
	default:
		fmt.Fprintf(c, "{\"error\":\"unknown request %q: use dump or status\"}\n", request)
	}
}
