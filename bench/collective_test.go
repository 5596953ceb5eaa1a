package bench

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

func TestFindCollective(t *testing.T) {
	for name, want := range map[string]string{
		"all_reduce": "all_reduce", "allreduce": "all_reduce", "all_reduce_perf": "all_reduce", "AllReduce": "all_reduce", "all-gather": "all_gather",
		"allgather_perf": "all_gather", "ReduceScatter": "reduce_scatter", "alltoall_perf": "alltoall", "all_to_all": "alltoall", "alltoallv_perf": "alltoallv",
		"sendrecv_perf": "sendrecv", "send_recv": "sendrecv", "hypercube_perf": "hypercube", "PingPong": "pingpong", "": "", "_perf": "", "all": "", "none": "",
	} {
		got, err := ParseCollective(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", name, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "use all_reduce, all_gather, ") {
			t.Errorf("%q: %q does not say what there is", name, err)
		}
	}
	names := CollectiveNames()
	lines := strings.Split(strings.TrimSuffix(DescribeCollectives(), "\n"), "\n")
	if len(names) != 14 || len(lines) != len(names) {
		t.Fatalf("%d names, %d lines", len(names), len(lines))
	}
	for i, name := range names {
		if c, err := findCollective(name); err != nil || c != collectives[i] {
			t.Errorf("%s: %v", name, err)
		}
		if f := strings.Fields(lines[i]); len(f) < 4 || f[0] != name {
			t.Errorf("line %q of %s", lines[i], name)
		}
	}
}

// amounts are a layout in elements; bytes and moved follow from it.
type amounts struct{ count, send, recv, sendAt, recvAt, bytes, moved int64 }

// nccltests has, for each collective, what nccl-tests' documentation says of a message of count elements on n ranks, base of them for each
// rank. The last three are not nccl-tests'; they are like its sendrecv and alltoall.
var nccltests = map[string]func(n, rank, root, count, base int64) amounts{
	"all_reduce": func(_, _, _, count, _ int64) amounts {
		return amounts{count: count, send: count, recv: count, bytes: count}
	},
	"broadcast": func(_, rank, root, count, _ int64) amounts {
		return amounts{count: count, send: only(rank == root, count), recv: count, bytes: count}
	},
	"reduce": func(_, rank, root, count, _ int64) amounts {
		return amounts{count: count, send: count, recv: only(rank == root, count), bytes: count}
	},
	"all_gather": func(n, rank, _, _, base int64) amounts {
		return amounts{count: base, send: base, recv: base * n, sendAt: rank * base, bytes: base * n}
	},
	"hypercube": func(n, rank, _, _, base int64) amounts {
		return amounts{count: base, send: base, recv: base * n, sendAt: rank * base, bytes: base * n, moved: base * (n - 1)}
	},
	"gather": func(n, rank, root, _, base int64) amounts {
		return amounts{count: base, send: base, recv: only(rank == root, base*n), sendAt: rank * base, bytes: base * n}
	},
	"reduce_scatter": func(n, rank, _, _, base int64) amounts {
		return amounts{count: base, send: base * n, recv: base, recvAt: rank * base, bytes: base * n}
	},
	"scatter": func(n, rank, root, _, base int64) amounts {
		return amounts{count: base, send: only(rank == root, base*n), recv: base, recvAt: rank * base, bytes: base * n}
	},
	"alltoall": func(n, _, _, _, base int64) amounts {
		return amounts{count: base, send: base * n, recv: base * n, bytes: base * n}
	},
	"sendrecv": func(_, _, _, count, _ int64) amounts {
		return amounts{count: count, send: count, recv: count, bytes: count}
	},
	"alltoallv": func(n, _, _, _, base int64) amounts { // with --spread 0
		return amounts{count: base, send: base * n, recv: base * n, bytes: base * n}
	},
	"pairwise": func(n, _, _, _, base int64) amounts {
		return amounts{count: base, send: base * n, recv: base * n, bytes: base * n}
	},
	"bisection": func(_, _, _, count, _ int64) amounts {
		return amounts{count: count, send: count, recv: count, bytes: count}
	},
	"pingpong": func(_, rank, root, count, _ int64) amounts {
		return amounts{count: count, send: only(rank == root, count), recv: count, bytes: count}
	},
}

func only(yes bool, n int64) int64 {
	if yes {
		return n
	}
	return 0
}

func TestLayouts(t *testing.T) {
	for _, c := range collectives {
		want, ok := nccltests[c.name]
		if !ok {
			t.Errorf("%s is in no table", c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int64{1, 2, 3, 4, 5, 8} {
				for _, size := range []int64{1, 2, 7, 8, 15, 16, 17, 31, 32, 47, 48, 63, 64, 79, 80, 127, 128, 1000, 1003, 4096, 4097, 1<<20 + 13} {
					for _, d := range nccl.DataTypes() {
						elt := int64(d.Size())
						count := size / elt
						base := count / n
						base -= base % (16 / elt)
						for rank := range n {
							root := n / 2
							w := want(n, rank, root, count, base)
							got := c.lay(shape{world: int(n), rank: int(rank), root: int(root), traffic: &traffic{}}, result.Bytes(size), d)
							have := amounts{int64(got.count), int64(got.send), int64(got.recv), int64(got.sendAt), int64(got.recvAt), int64(got.bytes), int64(got.moved)}
							w.bytes *= elt
							if w.moved *= elt; c.name != "hypercube" {
								w.moved = w.bytes
							} else if n == 1 {
								w.moved = have.moved // nothing moves on one rank; algbw there means nothing
							}
							if have != w {
								t.Fatalf("%d bytes of %s, rank %d of %d, root %d: %+v, want %+v", size, d, rank, n, root, have, w)
							}
							if got.ask != result.Bytes(size) || got.dtype != d {
								t.Fatalf("made for %d bytes of %s: %+v", size, d, got)
							}
						}
					}
				}
			}
		})
	}
}

// A few worked out by hand, so that the table above is not its own judge.
func TestLayoutExamples(t *testing.T) {
	for _, c := range []struct {
		coll       string
		world      int
		rank, root int
		size       result.Bytes
		d          nccl.DataType
		want       amounts
	}{
		{"all_reduce", 5, 2, 0, 1003, nccl.Float32, amounts{250, 250, 250, 0, 0, 1000, 1000}},
		// 1003 bytes are 250 floats, 50 for each of 5 ranks, of which 48 are a multiple of 16 bytes.
		{"all_gather", 5, 3, 0, 1003, nccl.Float32, amounts{48, 48, 240, 144, 0, 960, 960}},
		{"reduce_scatter", 5, 4, 0, 1003, nccl.Float32, amounts{48, 240, 48, 0, 192, 960, 960}},
		{"gather", 5, 1, 1, 1003, nccl.Float32, amounts{48, 48, 240, 48, 0, 960, 960}},
		{"gather", 5, 0, 1, 1003, nccl.Float32, amounts{48, 48, 0, 0, 0, 960, 960}},
		{"scatter", 5, 0, 1, 1003, nccl.Float32, amounts{48, 0, 48, 0, 0, 960, 960}},
		{"alltoall", 2, 1, 0, 64, nccl.Float64, amounts{4, 8, 8, 0, 0, 64, 64}},
		{"alltoall", 4, 1, 0, 63, nccl.Int8, amounts{0, 0, 0, 0, 0, 0, 0}}, // below 16 bytes a rank
		{"hypercube", 4, 3, 0, 1000, nccl.Float16, amounts{120, 120, 480, 360, 0, 960, 720}},
		{"broadcast", 3, 2, 1, 7, nccl.Float32, amounts{1, 0, 1, 0, 0, 4, 4}},
		{"reduce", 3, 2, 1, 7, nccl.Float32, amounts{1, 1, 0, 0, 0, 4, 4}},
		{"sendrecv", 3, 2, 0, 3, nccl.Float32, amounts{}},
	} {
		coll, err := findCollective(c.coll)
		if err != nil {
			t.Fatal(err)
		}
		l := coll.lay(shape{world: c.world, rank: c.rank, root: c.root, traffic: &traffic{}}, c.size, c.d)
		have := amounts{int64(l.count), int64(l.send), int64(l.recv), int64(l.sendAt), int64(l.recvAt), int64(l.bytes), int64(l.moved)}
		if diff := cmp.Diff(c.want, have, cmp.AllowUnexported(amounts{})); diff != "" {
			t.Errorf("%s, rank %d of %d: %s", c.coll, c.rank, c.world, diff)
		}
	}
}

// nccl-tests' factors of busbw; for 8 ranks also as numbers.
func TestFactors(t *testing.T) {
	others := func(n float64) float64 { return (n - 1) / n }
	one := func(float64) float64 { return 1 }
	for name, want := range map[string]func(n float64) float64{
		"all_reduce": func(n float64) float64 { return 2 * (n - 1) / n }, "all_gather": others, "reduce_scatter": others, "broadcast": one, "reduce": one,
		"gather": others, "scatter": others, "alltoall": others, "alltoallv": others, "sendrecv": one, "hypercube": one, "pairwise": others,
		"bisection": one, "pingpong": one,
	} {
		c, err := findCollective(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 2, 3, 4, 8, 72} {
			if got := c.factor(n); math.Abs(got-want(float64(n))) > 1e-12 {
				t.Errorf("%s on %d ranks: %g, want %g", name, n, got, want(float64(n)))
			}
		}
	}
	if a, g := allReduce.factor(8), allGather.factor(8); a != 1.75 || g != 0.875 {
		t.Errorf("on 8 ranks: all_reduce %g, all_gather %g", a, g)
	}
}

func TestFits(t *testing.T) {
	for _, c := range collectives {
		var good []int
		for n := 1; n <= 9; n++ {
			if c.fits == nil || c.fits(n) == "" {
				good = append(good, n)
			}
		}
		want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
		switch c {
		case &hypercube:
			want = []int{1, 2, 4, 8}
		case &bisection, &pingPong:
			want = want[1:]
		}
		if !slices.Equal(good, want) {
			t.Errorf("%s fits %v, want %v", c.name, good, want)
		}
	}
	if why := hypercube.fits(6); !strings.Contains(why, "power of two") || !strings.Contains(why, "6") {
		t.Errorf("hypercube: %q", why)
	}
}

// What nccl-tests prints and what the calls need: who has an operator, who a root, who exchanges.
func TestKinds(t *testing.T) {
	var reduces, rooted, exchange, slowest, trips []string
	for _, c := range collectives {
		for list, is := range map[*[]string]bool{&reduces: c.reduces, &rooted: c.rooted, &exchange: c.exchange, &slowest: c.slowest, &trips: c.trips > 1} {
			if is {
				*list = append(*list, c.name)
			}
		}
	}
	for name, diff := range map[string]string{
		"reduces":  cmp.Diff([]string{"all_reduce", "reduce_scatter", "reduce"}, reduces),
		"rooted":   cmp.Diff([]string{"broadcast", "reduce", "gather", "scatter", "pingpong"}, rooted),
		"exchange": cmp.Diff([]string{"alltoall", "alltoallv", "sendrecv", "pairwise", "bisection"}, exchange),
		"slowest":  cmp.Diff([]string{"alltoallv"}, slowest),
		"trips":    cmp.Diff([]string{"pingpong"}, trips),
	} {
		if diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
