package cuda_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commprobe/commprobe/cuda"
)

// busyOn runs f with a stream and the busy kernel on device 0, and closes both.
func busyOn(t *testing.T, f func(b *cuda.Busy, s cuda.Stream) error) {
	t.Helper()
	onDevice(t, 0, func() error {
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		b, err := cuda.NewBusy()
		if err != nil {
			return errors.Join(err, s.Destroy())
		}
		err = f(b, s)
		b.Stop()
		return errors.Join(err, s.Synchronize(), b.Close(), s.Destroy())
	})
}

// TestBusyStops: the stream and what is queued behind the kernel wait until it is stopped; after that a kernel ends at once.
func TestBusyStops(t *testing.T) {
	busyOn(t, func(b *cuda.Busy, s cuda.Stream) error {
		behind, err := cuda.NewEvent(0)
		if err != nil {
			return err
		}
		const fuse = time.Minute
		started := time.Now()
		err = errors.Join(b.Start(s, fuse), behind.Record(s))
		for range 20 {
			time.Sleep(5 * time.Millisecond)
			idle, err1 := s.Done()
			done, err2 := behind.Done()
			if err = errors.Join(err, err1, err2); idle || done {
				err = errors.Join(err, fmt.Errorf("the stream is done: %t, the event behind the kernel: %t", idle, done))
			}
		}
		b.Stop()
		err = errors.Join(err, s.Synchronize(), b.Start(s, fuse), s.Synchronize(), behind.Destroy())
		if took := time.Since(started); took >= fuse {
			err = errors.Join(err, fmt.Errorf("only the fuse ended it, after %v", took))
		}
		return err
	})
}

func TestBusyFuse(t *testing.T) {
	busyOn(t, func(b *cuda.Busy, s cuda.Stream) error {
		const fuse = 50 * time.Millisecond
		started := time.Now()
		err := errors.Join(b.Start(s, fuse), s.Synchronize())
		if took := time.Since(started); took < fuse-time.Millisecond { // the device's clock is another one, and coarse
			err = errors.Join(err, fmt.Errorf("ended after %v, before its fuse of %v", took, fuse))
		}
		if b.Start(s, 0) == nil {
			err = errors.Join(err, errors.New("a fuse of nothing was accepted"))
		}
		return err
	})
}
