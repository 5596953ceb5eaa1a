package rdma

import (
	"testing"

	"github.com/commprobe/commprobe/cuda"
)

// What cannot be written is refused before anything is posted.
func TestBlocksRefused(t *testing.T) {
	t.Parallel()
	mine := &Pool{blockBytes: 64, blocks: 4}
	for _, c := range []struct {
		name   string
		remote RemotePool
		blocks []Blocks
		says   string
	}{
		{"none", RemotePool{Blocks: 4, BlockBytes: 64}, nil, "no blocks"},
		{"other block size", RemotePool{Blocks: 4, BlockBytes: 128}, []Blocks{{0, 0}}, "blocks of 64 bytes here and of 128 there"},
		{"outside here", RemotePool{Blocks: 9, BlockBytes: 64}, []Blocks{{4, 0}}, "block 4: the pool has 0 to 3"},
		{"outside there", RemotePool{Blocks: 2, BlockBytes: 64}, []Blocks{{0, 2}}, "block 2 of the other side: its pool has 0 to 1"},
		{"negative", RemotePool{Blocks: 2, BlockBytes: 64}, []Blocks{{0, -1}}, "block -1 of the other side"},
	} {
		s := Sender{Pool: mine, Remote: c.remote}
		_, err := s.WriteBlocks(0, c.blocks)
		says(t, err, Usage, c.says)
	}
	for _, bad := range [][2]int{{0, 64}, {4, 0}, {1 << 40, 1 << 20}} {
		_, err := NewPool(nil, hostMemory, bad[0], bad[1])
		says(t, err, Usage, "a pool of")
	}
}

// Memory that cannot be had is told with what would help; where it can be had, it works.
func TestBuffers(t *testing.T) {
	t.Parallel()
	b, err := newBuffer(hostMemory, 10000, true)
	if err != nil {
		says(t, err, Unusable, "huge pages", "vm.nr_hugepages")
		if b, err = newBuffer(hostMemory, 10000, false); err != nil {
			t.Fatal(err)
		}
	}
	defer b.Close()
	for _, step := range []error{b.fill(4096, 100, 7, 1), b.put(4100, []byte{0}), b.poison(4196, 1)} {
		if step != nil {
			t.Fatal(step)
		}
	}
	wrong, first, last, err := b.check(4096, 101, 7, 1)
	if found, _ := b.at(4100); err != nil || found != 0 || wrong < 1 || wrong > 2 || last != 100 {
		t.Errorf("%d wrong from %d to %d, %v", wrong, first, last, err)
	}
	if cuda.Load(cuda.Options{}) == nil {
		return // with a GPU these would work
	}
	for _, kind := range []string{"gpu:0", "dmabuf:0"} {
		b, err := newBuffer(kind, 4096, false)
		if b != nil {
			t.Errorf("%s: a buffer without a GPU", kind)
		}
		says(t, err, Unusable, "gpu:0", "NVIDIA driver")
	}
}
