package gdr

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/rdma"
)

// Live tries on this machine. Wait bounds every single step; a driver call that never returns keeps its thread, and the answer says so.
type Live struct{ Wait time.Duration }

// pageBytes is a page of GPU memory, and a multiple of any host's page.
const pageBytes = 64 << 10

// Export allocates memory on a device and exports it as DMA-BUF.
func (l Live) Export(device int) Outcome {
	return l.bounded(fmt.Sprintf("GPU%d: export", device), func() Outcome {
		t, err := cuda.NewThread(device)
		if err != nil {
			return Outcome{Text: err.Error()}
		}
		var out Outcome
		err = t.Do(context.Background(), func() error {
			out = exportOnce()
			return nil
		})
		if err = errors.Join(err, t.Close(context.Background())); err != nil {
			out.Text += "; " + err.Error()
		}
		return out
	})
}

func exportOnce() Outcome {
	p, err := cuda.Malloc(2 * pageBytes)
	if err != nil {
		return Outcome{Text: "no GPU memory to try with: " + err.Error()}
	}
	out := Outcome{State: Works}
	fd, err := cuda.ExportDMABuf((p+pageBytes-1)/pageBytes*pageBytes, pageBytes)
	if err != nil {
		out = Outcome{Fails, "memory cannot be exported: " + err.Error()}
	} else if err := syscall.Close(fd); err != nil {
		out.Text = "closing the descriptor: " + err.Error()
	}
	if err := cuda.Free(p); err != nil {
		out.Text += "; freeing the memory: " + err.Error()
	}
	return out
}

// Loopback registers memory of a device with a NIC, and moves data within it through the NIC.
func (l Live) Loopback(device int, nic string, m Method) Trial {
	kind := fmt.Sprintf("gpu:%d", device)
	if m == DMABuf {
		kind = fmt.Sprintf("dmabuf:%d", device)
	}
	return l.loopback(kind, nic, m)
}

func (l Live) loopback(kind, nic string, m Method) Trial {
	t := Trial{Method: m}
	late := l.bounded(nic+": "+kind, func() Outcome {
		got, err := rdma.TryLoopback(nic, kind, l.Wait)
		t = trialOf(m, got, err)
		return Outcome{State: Works}
	})
	if late.State != Works {
		return Trial{Method: m, Register: late} // t may still be written
	}
	return t
}

// trialOf says of each part whether it worked, by the step that failed.
func trialOf(m Method, got rdma.Loopback, err error) Trial {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t := Trial{Method: m}
	switch got.Step {
	case rdma.LoopOpen, rdma.LoopMemory:
		t.Register.Text = text
	case rdma.LoopRegister:
		t.Register = Outcome{Fails, text}
	case rdma.LoopPort:
		t.Register, t.Move.Text = Outcome{State: Works}, text
	case rdma.LoopConnect:
		// The QP is of the NIC alone: that it cannot be connected says nothing of GPU memory.
		t.Register, t.Move.Text = Outcome{State: Works}, "the NIC cannot be connected with itself: "+text
	case rdma.LoopDone:
		t.Register, t.Move = Outcome{State: Works}, Outcome{Works, text}
	default:
		t.Register, t.Move = Outcome{State: Works}, Outcome{Fails, text}
	}
	return t
}

// steps of a loopback that may each take as long as Wait.
const steps = 12

// bounded gives a call up that does not return: its thread is lost, and the process should end soon.
func (l Live) bounded(what string, f func() Outcome) Outcome {
	done := make(chan Outcome, 1)
	go func() { done <- f() }()
	select {
	case o := <-done:
		return o
	case <-time.After(steps * l.Wait):
		return Outcome{Text: fmt.Sprintf("%s: no answer after %v: a driver hangs, see dmesg", what, steps*l.Wait)}
	}
}
