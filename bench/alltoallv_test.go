package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// Without a matrix every rank sends as much as it receives, parts are multiples of 16 bytes, and all of the message is divided but for the
// remainders.
func TestSpread(t *testing.T) {
	for _, world := range []int{1, 2, 3, 4, 5, 8} {
		for _, spread := range []float64{0, 0.25, 0.5, 1} {
			tr := &traffic{spread: spread}
			sum := 0.0
			for d := range world {
				sum += tr.share(world, d)
			}
			if math.Abs(sum-1) > 1e-12 {
				t.Errorf("%d ranks, spread %g: the shares add up to %g", world, spread, sum)
			}
			for _, d := range nccl.DataTypes() {
				for _, size := range []result.Bytes{1, 100, 1000, 4096, 1<<20 + 7} {
					m := tr.at(world, size, d)
					for r := range world {
						row, column := result.Bytes(m.row(r))*result.Bytes(d.Size()), result.Bytes(m.column(r))*result.Bytes(d.Size())
						if row != column || row != result.Bytes(m.row(0))*result.Bytes(d.Size()) {
							t.Errorf("%d ranks, spread %g, %d bytes of %s: rank %d sends %d and receives %d", world, spread, size, d, r, row, column)
						}
						if row > size || row <= size-result.Bytes(world*partAlign) {
							t.Errorf("%d ranks, spread %g, %d bytes of %s: rank %d sends %d", world, spread, size, d, r, row)
						}
						for c := range world {
							if b := int64(m.count(r, c)) * int64(d.Size()); b%partAlign != 0 {
								t.Errorf("%d ranks, spread %g: a part of %d bytes", world, spread, b)
							}
						}
					}
				}
			}
		}
	}
}

func TestSpreadEnds(t *testing.T) {
	rows := func(spread float64, size result.Bytes) (out []result.Count) {
		m := (&traffic{spread: spread}).at(4, size, nccl.Int8)
		for r := range 4 {
			for c := range 4 {
				out = append(out, m.count(r, c))
			}
		}
		return out
	}
	if got := rows(0, 4096); !slices.Equal(got, slices.Repeat([]result.Count{1024}, 16)) {
		t.Errorf("spread 0: %v", got)
	}
	// By distance upwards: 0, 1, 2, 3 of 6 parts.
	want := []result.Count{0, 1024, 2048, 3072, 3072, 0, 1024, 2048, 2048, 3072, 0, 1024, 1024, 2048, 3072, 0}
	if got := rows(1, 6144); !slices.Equal(got, want) {
		t.Errorf("spread 1: %v, want %v", got, want)
	}
	// Half of both: 1/8 and d/12 of the message.
	if got := rows(0.5, 2400)[:4]; !slices.Equal(got, []result.Count{288, 496, 688, 896}) { // 300, 500, 700, 900 down to 16
		t.Errorf("spread 0.5: %v", got)
	}
}

// The size is what the busiest rank sends or receives, whatever the numbers in the file.
func TestMatrixScale(t *testing.T) {
	m := Matrix{{0, 3000, 1000}, {0, 0, 1000}, {500, 2000, 0}} // rank 1 receives 5000
	if b := m.Busiest(3); b != 5000 {
		t.Errorf("busiest %d", b)
	}
	if b := m.Busiest(2); b != 3000 {
		t.Errorf("of two ranks: %d", b)
	}
	tr := &traffic{bytes: m}
	for _, c := range []struct {
		size result.Bytes
		want []result.Count // floats
	}{
		{5000, []result.Count{0, 2992 / 4, 992 / 4, 0, 0, 992 / 4, 496 / 4, 2000 / 4, 0}},
		{80000, []result.Count{0, 48000 / 4, 16000 / 4, 0, 0, 16000 / 4, 8000 / 4, 32000 / 4, 0}},
		{40, []result.Count{0, 16 / 4, 0, 0, 0, 0, 0, 16 / 4, 0}},
		{8, make([]result.Count, 9)},
	} {
		if diff := cmp.Diff(c.want, tr.at(3, c.size, nccl.Float32).n); diff != "" {
			t.Errorf("%d bytes: %s", c.size, diff)
		}
	}
	for _, rank := range []int{0, 1, 2} {
		l := allToAllV.lay(shape{world: 3, rank: rank, traffic: tr}, 80000, nccl.Float32)
		sends, receives := []result.Count{16000, 4000, 10000}, []result.Count{2000, 20000, 8000}
		want := layout{
			count: 12000, send: sends[rank], recv: receives[rank], bytes: 80000, moved: 80000, crossing: 80000, ask: 80000, dtype: nccl.Float32,
		}
		if l != want {
			t.Errorf("rank %d: %+v, want %+v", rank, l, want)
		}
	}
	// What a rank keeps crosses nothing.
	own := &traffic{bytes: Matrix{{640, 320}, {320, 160}}}
	if l := allToAllV.lay(shape{world: 2, traffic: own}, 960, nccl.Int8); l.bytes != 960 || l.crossing != 320 || l.count != 640 {
		t.Errorf("%+v", l)
	}
}

func TestReadMatrix(t *testing.T) {
	for _, c := range []struct {
		name, text string
		world      int
		want       Matrix
		says       string
	}{
		{"good", "0 16\n32 0\n", 2, Matrix{{0, 16}, {32, 0}}, ""},
		{"no newline at the end", "0 16\n32 0", 2, Matrix{{0, 16}, {32, 0}}, ""},
		{"comments, blank lines, tabs", "# from to\n\n0\t16 # first\r\n   \n 32   0\n#end", 2, Matrix{{0, 16}, {32, 0}}, ""},
		{"fractions and exponents", "0 1e3\n16.9 0\n", 2, Matrix{{0, 1000}, {16, 0}}, ""},
		{"more ranks than needed", "0 16 7\n32 0 7\n1 2 3\n", 2, Matrix{{0, 16, 7}, {32, 0, 7}, {1, 2, 3}}, ""},
		{"one rank", "16", 1, Matrix{{16}}, ""},
		{"ragged", "0 16\n32\n", 2, nil, "f:2: 1 numbers, but the lines before have 2"},
		{"not square", "0 16 1\n32 0 1\n", 2, nil, "not a square matrix of bytes: 2 lines"},
		{"too many lines", "0 16\n32 0\n1 1\n", 2, nil, "not a square matrix of bytes: 3 lines"},
		{"negative", "0 16\n-32 0\n", 2, nil, `f:2: "-32" is no number of bytes`},
		{"not a number", "0 nan\n32 0\n", 2, nil, `f:1: "nan" is no number`},
		{"infinite", "0 16\n32 inf\n", 2, nil, `f:2: "inf" is no number`},
		{"too large a number", "0 16\n32 1e16\n", 2, nil, `"1e16" is no number`},
		{"words", "from to\n", 2, nil, `f:1: "from" is no number`},
		{"commas", "0, 16\n32, 0\n", 2, nil, `f:1: "0," is no number`},
		{"fewer ranks than needed", "0 16\n32 0\n", 3, nil, "a matrix of 2 ranks, but there are 3"},
		{"empty", "", 2, nil, "not a square matrix of bytes: 0 lines"},
		{"only a comment", "# nothing\n", 2, nil, "0 lines"},
		{"nothing to send", "0 0\n0 0\n", 2, nil, "no part of 16 bytes or more"},
		{"too little to send", "0 15\n3 0\n", 2, nil, "no part of 16 bytes or more among the first 2"},
		{"nothing among the ranks that are used", "0 0 99\n0 0 99\n99 99 0\n", 2, nil, "no part of 16 bytes or more"},
		{"a line too long", strings.Repeat("1 ", 1<<20), 2, nil, "too long"},
		{"too many", strings.Repeat("1\n", maxMatrix+1), 1, nil, "more than 4096 lines"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadMatrix(strings.NewReader(c.text), "f", c.world)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want %q", err, c.says)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzReadMatrix(f *testing.F) {
	for _, s := range []string{"0 16\n32 0\n", "# x\n16", "1 2 3\n4 5 60\n7 8 9", "0 -1\n1 0", "1e15 0\n0 1", "0 nan\n", "0x10 0\n0 0x1p5\n", "9 9\n9"} {
		f.Add(s, 2)
	}
	f.Fuzz(func(t *testing.T, text string, world int) {
		world = 1 + (world%8+8)%8
		m, err := ReadMatrix(strings.NewReader(text), "f", world)
		if (err == nil) == (m == nil) {
			t.Fatalf("matrix %v and error %v", m, err)
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%q does not name the file", err)
			}
			return
		}
		var again strings.Builder
		for _, row := range m {
			if len(row) != len(m) {
				t.Fatalf("a row of %d numbers in a matrix of %d", len(row), len(m))
			}
			for _, b := range row {
				if b < 0 {
					t.Fatalf("%d bytes", b)
				}
				fmt.Fprint(&again, b, " ")
			}
			again.WriteString("\n")
		}
		m2, err := ReadMatrix(strings.NewReader(again.String()), "f", world)
		if diff := cmp.Diff(m, m2); diff != "" || err != nil {
			t.Errorf("written and read again: %v %s", err, diff)
		}
		if b := m.Busiest(world); len(m) < world || b < partAlign {
			t.Errorf("%d ranks of %d, busiest %d", len(m), world, b)
		}
		tr := &traffic{bytes: m}
		for rank := range world {
			l := allToAllV.lay(shape{world: world, rank: rank, traffic: tr}, 1<<20, nccl.Int8)
			if l.send < 0 || l.recv < 0 || l.bytes > 1<<20 || max(l.send, l.recv) > 1<<20 || l.crossing > l.bytes {
				t.Errorf("rank %d: %+v", rank, l)
			}
		}
	})
}
