package rdma

import (
	"sort"
	"time"

	"github.com/commprobe/commprobe/bench/stat"
	"github.com/commprobe/commprobe/ibverbs"
)

// Bandwidth is what one series of many outstanding operations came to, of all QPs together.
type Bandwidth struct {
	Bytes       int64    `json:"bytes"`      // of the part that counts
	Operations  int64    `json:"operations"` // in it
	Seconds     float64  `json:"seconds"`    // from the first post to the last completion, or between the margins
	AverageMiB  float64  `json:"average_mib_s"`
	AverageGbps float64  `json:"average_gbps"`
	PeakMiB     *float64 `json:"peak_mib_s"` // best window between a post and a later completion; null in a series by duration
	Mops        float64  `json:"mops"`       // million operations a second
}

const mebi = 1 << 20

// newBandwidth computes the figures of a series. Average is data over the time from the first post to the last completion (perftest's definition), in a
// series by duration that between the margins.
func newBandwidth(r *ibverbs.SeriesResult, bytes int) Bandwidth {
	b := Bandwidth{Operations: r.Ops, Seconds: float64(r.Last-r.First) / 1e9}
	if r.Sampled > 0 {
		b.Operations, b.Seconds = r.SampledOps, r.Sampled.Seconds()
	}
	b.Bytes = b.Operations * int64(bytes)
	if b.Seconds > 0 {
		b.rates()
	}
	if w := peak(r.Posted, r.Completed, r.CompletedOps); w > 0 {
		p := w * float64(bytes) * 1e9 / mebi
		b.PeakMiB = &p
	}
	return b
}

func (b *Bandwidth) rates() {
	b.AverageMiB = float64(b.Bytes) / b.Seconds / mebi
	b.AverageGbps = float64(b.Bytes) * 8 / b.Seconds / 1e9
	b.Mops = float64(b.Operations) / b.Seconds / 1e6
}

// addBandwidth is both directions together: rates add, as each side measured its own.
func addBandwidth(a, b Bandwidth) Bandwidth {
	out := Bandwidth{
		Bytes: a.Bytes + b.Bytes, Operations: a.Operations + b.Operations, Seconds: max(a.Seconds, b.Seconds),
		AverageMiB: a.AverageMiB + b.AverageMiB, AverageGbps: a.AverageGbps + b.AverageGbps, Mops: a.Mops + b.Mops,
	}
	if a.PeakMiB != nil && b.PeakMiB != nil {
		p := *a.PeakMiB + *b.PeakMiB
		out.PeakMiB = &p
	}
	return out
}

// peak is the highest rate, in operations a nanosecond, over all windows from the post of one operation to the completion of a later one: of points
// (post time, operations before it) and (completion time, operations done) the steepest pair. For each completion the best post lies on the lower
// convex hull of the earlier ones, where the slope rises and then falls: a search by halves, so the whole takes n log n.
func peak(posted, completed []int64, done []int32) float64 {
	var hull []int // indexes into posted, whose point is (posted[i], i)
	best, next := 0.0, 0
	for j, n := range done {
		if j >= len(completed) {
			break
		}
		for ; next < int(n) && next < len(posted); next++ {
			for len(hull) >= 2 && !turnsUp(posted, hull[len(hull)-2], hull[len(hull)-1], next) {
				hull = hull[:len(hull)-1]
			}
			hull = append(hull, next)
		}
		slope := func(k int) float64 {
			dt := completed[j] - posted[hull[k]]
			if dt <= 0 {
				return 0
			}
			return float64(int(n)-hull[k]) / float64(dt)
		}
		k := sort.Search(len(hull)-1, func(k int) bool {
			dx := posted[hull[k+1]] - posted[hull[k]]
			return float64(hull[k+1]-hull[k]) >= slope(k)*float64(dx)
		})
		if len(hull) > 0 {
			best = max(best, slope(k))
		}
	}
	return best
}

// turnsUp says that b lies below the line from a to c, so that it is on the lower hull.
func turnsUp(posted []int64, a, b, c int) bool {
	return float64(b-a)*float64(posted[c]-posted[b]) < float64(c-b)*float64(posted[b]-posted[a])
}

// Latency is the distribution of single operations in microseconds. A percentile that the sample is too small for is null.
type Latency struct {
	Samples  int      `json:"samples"`
	HalfTrip bool     `json:"half_round_trip"` // a sample is half of a round trip (write, send), else a whole operation (read, atomic)
	MinUS    float64  `json:"min_us"`
	MedianUS float64  `json:"median_us"`
	MeanUS   float64  `json:"mean_us"`
	P99US    *float64 `json:"p99_us"`  // from 100 samples on
	P999US   *float64 `json:"p999_us"` // from 1000 samples on
	MaxUS    float64  `json:"max_us"`
	StdevUS  float64  `json:"stdev_us"` // sample standard deviation
}

const minSamplesP999 = 1000

// newLatency takes the stamps of a ping-pong, one at each post and one at the end. No sample is left out.
func newLatency(stamps []int64, half bool) *Latency {
	if len(stamps) < 2 {
		return nil
	}
	us := make([]float64, len(stamps)-1)
	for i := range us {
		us[i] = float64(stamps[i+1]-stamps[i]) / 1e3
		if half {
			us[i] /= 2
		}
	}
	l := &Latency{
		Samples: len(us), HalfTrip: half, MinUS: stat.Percentile(us, 1e-9), MedianUS: stat.Median(us), MeanUS: stat.Mean(us), MaxUS: stat.Percentile(us, 100),
	}
	if len(us) > 1 {
		l.StdevUS = stat.SampleStdev(us)
	}
	if len(us) >= stat.MinSamplesP99 {
		p := stat.Percentile(us, 99)
		l.P99US = &p
	}
	if len(us) >= minSamplesP999 {
		p := stat.Percentile(us, 99.9)
		l.P999US = &p
	}
	return l
}

// countFor is how many operations fill a duration at the rate of a trial of ops operations.
func countFor(want, trial time.Duration, ops int) int {
	if trial <= 0 {
		return ops
	}
	n := float64(want) / float64(trial) * float64(ops)
	return int(min(max(n, 2), maxIterations))
}
