package hanglab

import (
	"fmt"

	"github.com/commprobe/commprobe/cuda"
)

// busy queues a kernel that does not end by itself before the next call of the first communicator. Its fuse is the run's: an endless kernel that
// outlives its process would keep a GPU.
func (l *lab) busy() error {
	k, err := cuda.NewBusy()
	if err != nil {
		return fmt.Errorf("busy kernel: %w", err)
	}
	return k.Start(l.comm.stream, l.plan.Fuse)
}
