package hanglab

import (
	"errors"
	"testing"
	"time"

	"github.com/commprobe/commprobe/cuda"
)

// BenchmarkRecord is what recording a call costs the rank's thread, two events included.
func BenchmarkRecord(b *testing.B) {
	thread, err := cuda.NewThread(0)
	if err != nil {
		b.Fatal(err)
	}
	err = thread.Do(b.Context(), func() error {
		r, err := newRecorder(nil, 2048, &Plan{World: 2}, 0)
		if err != nil {
			return err
		}
		g := r.addGroup("0", "default_pg", []int{0, 1})
		s, err := cuda.NewStream()
		if err != nil {
			return err
		}
		for i := 0; b.Loop(); i++ {
			op, err := r.begin(g, call{fn: fnAllReduce, count: 2}, 2, s, time.Second)
			if err := errors.Join(err, r.end(g, op, s)); err != nil {
				return err
			}
			if i%100 == 99 { // as the watchdog does, elsewhere
				b.StopTimer()
				err := s.Synchronize()
				_, _, pollErr := r.poll()
				if err := errors.Join(err, pollErr); err != nil {
					return err
				}
				b.StartTimer()
			}
		}
		return errors.Join(s.Synchronize(), s.Destroy(), r.close())
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := thread.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
