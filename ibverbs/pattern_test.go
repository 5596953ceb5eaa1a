package ibverbs_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/commprobe/commprobe/ibverbs"
)

func hostMemory(t *testing.T, n int) *ibverbs.HostMemory {
	t.Helper()
	h, err := ibverbs.AllocHost(n, false)
	ok(t, err)
	t.Cleanup(func() { ok(t, h.Close()) })
	return h
}

func TestPatternFindsEveryByte(t *testing.T) {
	h := hostMemory(t, 200)
	for skip := range 9 {
		for _, n := range []int{0, 1, 2, 7, 8, 9, 64, 100} {
			at := h.Addr() + uintptr(skip)
			ibverbs.Poison(h.Addr(), 200)
			ibverbs.Fill(at, n, 42, 3)
			if wrong, first, last := ibverbs.Check(at, n, 42, 3); wrong != 0 || first != -1 || last != -1 {
				t.Fatal(n, wrong, first, last)
			}
			if before, after := h.Bytes()[:skip], h.Bytes()[skip+n]; bytes.Trim(before, "\xa5") != nil && len(bytes.Trim(before, "\xa5")) > 0 || after != 0xa5 {
				t.Fatal("filled outside")
			}
			b := make([]byte, n)
			ibverbs.PatternInto(b, 42, 3)
			if !bytes.Equal(b, h.Bytes()[skip:skip+n]) {
				t.Fatal("PatternInto differs from Fill")
			}
			for i := range n {
				h.Bytes()[skip+i] ^= 0x10
				h.Bytes()[skip+n-1] ^= 0x01
				wrong, first, last := ibverbs.Check(at, n, 42, 3)
				want := 2
				if i == n-1 {
					want = 1
				}
				if wrong != want || first != i || last != n-1 {
					t.Fatalf("%d bytes, byte %d and the last one wrong: %d, %d to %d", n, i, wrong, first, last)
				}
				h.Bytes()[skip+i] ^= 0x10
				h.Bytes()[skip+n-1] ^= 0x01
			}
		}
	}
}

// Words differ by seed, stream and offset, and no byte is the poison's.
func TestPatternIsItsOwn(t *testing.T) {
	const n = 1 << 16
	seen := make(map[uint64]bool)
	b := make([]byte, n)
	for _, k := range []struct {
		seed   uint64
		stream uint32
	}{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {1 << 63, 0}, {0, 1 << 31}} {
		ibverbs.PatternInto(b, k.seed, k.stream)
		if i := bytes.IndexByte(b, 0xa5); i >= 0 {
			t.Errorf("%+v: byte %d is the poison's", k, i)
		}
		for i := 0; i < n; i += 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			if seen[w] {
				t.Fatalf("%+v: the word at %d was there before", k, i)
			}
			seen[w] = true
		}
	}
	h := hostMemory(t, 1000)
	ibverbs.Poison(h.Addr(), 1000)
	if wrong, first, last := ibverbs.Check(h.Addr(), 1000, 5, 5); wrong != 1000 || first != 0 || last != 999 {
		t.Error("poison passes as data:", wrong, first, last)
	}
}

func BenchmarkPattern(b *testing.B) {
	h, err := ibverbs.AllocHost(1<<20, false)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	b.SetBytes(1 << 20)
	b.Run("fill", func(b *testing.B) {
		b.SetBytes(1 << 20)
		for b.Loop() {
			ibverbs.Fill(h.Addr(), 1<<20, 1, 1)
		}
	})
	b.Run("check", func(b *testing.B) {
		b.SetBytes(1 << 20)
		ibverbs.Fill(h.Addr(), 1<<20, 1, 1)
		for b.Loop() {
			if wrong, _, _ := ibverbs.Check(h.Addr(), 1<<20, 1, 1); wrong != 0 {
				b.Fatal(wrong)
			}
		}
	})
}
