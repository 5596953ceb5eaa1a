package rdma

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b)) }

// peakByAll looks at all windows.
func peakByAll(posted, completed []int64, done []int32) (best float64) {
	for j, n := range done {
		for i := range int(n) {
			if dt := completed[j] - posted[i]; dt > 0 {
				best = max(best, float64(int(n)-i)/float64(dt))
			}
		}
	}
	return best
}

func TestPeak(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	for range 3000 {
		n, depth, signal := 1+r.IntN(60), 1+r.IntN(12), 1+r.IntN(5)
		var posted, completed []int64
		var done []int32
		at, finished := int64(1), 0
		for i := range n {
			if i-finished >= depth {
				at += int64(r.IntN(50))
			}
			at += int64(r.IntN(10))
			posted = append(posted, at)
			if (i+1)%signal == 0 || i == n-1 {
				at += 1 + int64(r.IntN(30))
				completed, done, finished = append(completed, at), append(done, int32(i+1)), i+1
			}
		}
		if got, want := peak(posted, completed, done), peakByAll(posted, completed, done); !near(got, want) {
			t.Fatalf("seed %d: %v, want %v\nposted %v\ncompleted %v\ndone %v", seed, got, want, posted, completed, done)
		}
	}
	if p := peak(nil, nil, nil); p != 0 {
		t.Errorf("nothing gives %v", p)
	}
}

func TestBandwidth(t *testing.T) {
	t.Parallel()
	// Ten operations of 1 MiB, the last complete 10 ms after the first post; five of them within 2.5 ms.
	r := &ibverbs.SeriesResult{First: 0, Last: 10e6, Ops: 10, Posted: []int64{0, 0, 0, 0, 0, 1e6, 1e6, 1e6, 1e6, 1e6}, Completed: []int64{25e5, 10e6}, CompletedOps: []int32{5, 10}}
	b := newBandwidth(r, 1<<20)
	if !near(b.AverageMiB, 1000) || !near(b.AverageGbps, 10*8*1.048576/10) || !near(b.Mops, 0.001) || b.PeakMiB == nil || !near(*b.PeakMiB, 2000) || b.Bytes != 10<<20 {
		t.Errorf("%+v, peak %v", b, *b.PeakMiB)
	}
	by := newBandwidth(&ibverbs.SeriesResult{First: 0, Last: 5e9, Ops: 100, Sampled: 4 * time.Second, SampledOps: 40}, 1<<20)
	if !near(by.AverageMiB, 10) || by.PeakMiB != nil || by.Operations != 40 {
		t.Errorf("by duration: %+v", by)
	}
	if none := newBandwidth(&ibverbs.SeriesResult{}, 8); none.AverageMiB != 0 || none.PeakMiB != nil {
		t.Errorf("nothing: %+v", none)
	}
	two := addBandwidth(b, b)
	if !near(two.AverageMiB, 2000) || !near(*two.PeakMiB, 4000) || addBandwidth(b, by).PeakMiB != nil || two.Seconds != b.Seconds {
		t.Errorf("both: %+v", two)
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	stamps := []int64{0}
	for i := range 1000 {
		step := int64(2000)
		if i == 500 {
			step = 100_000 // one outlier, which stays
		}
		stamps = append(stamps, stamps[i]+step)
	}
	l := newLatency(stamps, true)
	if l.Samples != 1000 || l.MinUS != 1 || l.MedianUS != 1 || l.MaxUS != 50 || !near(l.MeanUS, 1.049) || *l.P99US != 1 || *l.P999US != 1 {
		t.Errorf("%+v", l)
	}
	if want := 49 / math.Sqrt(1000); !near(l.StdevUS, want) { // one of 1000 is off by 49: s² = 49²·(1/n)
		t.Errorf("deviation %v, want %v", l.StdevUS, want)
	}
	whole := newLatency(stamps[:51], false)
	if whole.MedianUS != 2 || whole.P99US != nil || whole.P999US != nil || whole.StdevUS != 0 {
		t.Errorf("%+v", whole)
	}
	if newLatency([]int64{5}, true) != nil {
		t.Error("one stamp is no sample")
	}
}

func TestCountFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want, trial time.Duration
		ops, n      int
	}{{time.Second, 10 * time.Millisecond, 100, 10000}, {time.Second, time.Minute, 10, 2}, {time.Hour, time.Nanosecond, 1000, maxIterations}, {time.Second, 0, 7, 7}} {
		if n := countFor(c.want, c.trial, c.ops); n != c.n {
			t.Errorf("%+v: %d", c, n)
		}
	}
}
