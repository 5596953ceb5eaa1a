package pairs

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/commprobe/commprobe/bench/stat"
)

// Fractions below which a pair is slow, unless the user says another.
const (
	// BelowBandwidth leaves room for what headers take of a port's rate (a quarter at the smallest MTU, 2 to 7 % at the usual ones) and for neighbours on a shared
	// fabric. Faults worth a cable change cost more: a PCIe link at half its width or speed, one of two bonded ports, retransmissions.
	BelowBandwidth = 0.8
	// BelowLatency is wider, since one more tier of switches is a microsecond that is no fault.
	BelowLatency = 0.5
)

// Judging says how.
type Judging struct {
	Below    float64
	Latency  bool // less is better, and a port's rate says nothing
	Software bool // all NICs are soft-RoCE
}

// Verdict is what the figures of all pairs mean.
type Verdict struct {
	Status   string    `json:"status"` // "good", "bad" or "nothing measured"
	Classes  []Class   `json:"classes"`
	Findings []Finding `json:"findings"` // what is to blame, the one that explains most first
}

// The statuses of a verdict.
const (
	Good    = "good"
	Bad     = "bad"
	Nothing = "nothing measured"
)

// Class is the pairs that should be alike: one link layer, and the same smaller port rate.
type Class struct {
	LinkLayer string   `json:"link_layer"`
	PortGbps  *float64 `json:"port_gbps"` // null: unknown
	Pairs     int      `json:"pairs"`
	Min       float64  `json:"min"`
	Median    float64  `json:"median"`
	Max       float64  `json:"max"`
	Like      float64  `json:"like"`             // a fifth of them reach or beat this
	Common    bool     `json:"common,omitempty"` // nearly all are below what the ports could do: that has one cause, which is in no pair
}

// The better fifth is what the others are held against, not the median: one bad NIC of three hosts with one each touches four of six pairs, and the median
// would be its own. It is not the best one either, which may be a glitch of a clock.
const betterPercent = 80

// commonShare is how many of a class must be below the port rate for a common cause. With fewer than 20 pairs it is all.
const commonShare = 0.95

// Judge marks the pairs that are slow and finds out what they have in common. Pure: equal pairs give equal verdicts.
func Judge(pairs []Pair, j Judging) Verdict {
	v := Verdict{Status: Nothing, Classes: []Class{}, Findings: []Finding{}}
	for _, members := range classes(pairs) {
		v.Classes = append(v.Classes, judgeClass(pairs, members, j))
	}
	tried := slices.ContainsFunc(pairs, func(p Pair) bool { return p.tried() })
	if !tried {
		return v
	}
	v.Status = Good
	for _, c := range v.Classes {
		if c.Common {
			v.Findings = append(v.Findings, commonCause(c, pairs, j))
		}
	}
	v.Findings = append(v.Findings, blame(pairs)...)
	if len(v.Findings) > 0 {
		v.Status = Bad
	}
	return v
}

type classKey struct {
	layer string
	gbps  float64 // 0: unknown
}

// classes lists the measured pairs of each class, in a fixed order.
func classes(pairs []Pair) [][]int {
	byKey := map[classKey][]int{}
	var keys []classKey
	for i := range pairs {
		p := &pairs[i]
		p.Slow, p.Unsteady, p.OfPort, p.Like, p.OfLike = false, false, nil, nil, nil
		if p.Status != Measured || p.Value == nil {
			continue
		}
		k := classKey{layer: p.LinkLayer}
		if p.PortGbps != nil {
			k.gbps = *p.PortGbps
		}
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], i)
	}
	slices.SortFunc(keys, func(a, b classKey) int { return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(b.gbps, a.gbps)) })
	var out [][]int
	for _, k := range keys {
		out = append(out, byKey[k])
	}
	return out
}

// judgeClass marks the slow ones of a class.
func judgeClass(pairs []Pair, members []int, j Judging) Class {
	first := &pairs[members[0]]
	c := Class{LinkLayer: first.LinkLayer, PortGbps: first.PortGbps, Pairs: len(members)}
	var values []float64
	below := 0
	for _, i := range members {
		p := &pairs[i]
		values = append(values, *p.Value)
		if j.Latency || p.PortGbps == nil {
			continue
		}
		of := *p.Value / *p.PortGbps
		p.OfPort = &of
		if of < j.Below {
			below++
		}
	}
	c.Min, c.Median, c.Max = slices.Min(values), stat.Median(values), slices.Max(values)
	percent := float64(betterPercent)
	if j.Latency {
		percent = 100 - betterPercent
	}
	c.Like = stat.Percentile(values, percent)
	c.Common = below > 0 && float64(below) >= commonShare*float64(len(values))
	for _, i := range members {
		pairs[i].judge(c, j)
	}
	return c
}

// judge is one pair's part in its class. Where the whole class stays below the ports' rate, only the comparison with each other tells pairs apart.
func (p *Pair) judge(c Class, j Judging) {
	like := c.Like
	p.Like = &like
	slow := func(v float64) bool {
		of := ratio(v, like, j.Latency)
		return of < j.Below || !c.Common && p.OfPort != nil && v / *p.PortGbps < j.Below
	}
	of := ratio(*p.Value, like, j.Latency)
	p.OfLike = &of
	p.Slow = slow(*p.Value)
	p.Unsteady = !p.Slow && (p.FirstFailure != "" || len(p.Values) > 1 && slow(p.Values[0]))
}

// ratio is how well a value does, 1 being as well as the other.
func ratio(v, like float64, latency bool) float64 {
	if latency {
		v, like = like, v
	}
	if like <= 0 {
		return 1
	}
	return v / like
}

// better is the one of two measurements that counts: what disturbs a measurement makes it worse, hardly ever better.
func better(values []float64, latency bool) float64 {
	if latency {
		return slices.Min(values)
	}
	return slices.Max(values)
}

// commonCause tells that nearly all pairs of a class fall short alike.
func commonCause(c Class, pairs []Pair, j Judging) Finding {
	percent := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v / *c.PortGbps) }
	f := Finding{Kind: KindCommon, Name: "all pairs", Bad: c.Pairs, Of: c.Pairs, Worst: c.Min}
	reach := percent(c.Min) + " to " + percent(c.Max)
	if percent(c.Min) == percent(c.Max) {
		reach = percent(c.Max)
	}
	f.Text = fmt.Sprintf("all %d pairs of %g Gb/s ports reach %s of that rate: nearly all fall short, so the cause is common to them, not in a pair", c.Pairs, *c.PortGbps, reach)
	switch {
	case j.Software:
		f.Advice = "these are software devices (soft-RoCE): the processors set the pace, and a port's rate means nothing"
	default:
		f.Advice = "look at what all have alike: the PCIe link of the NICs (lspci -vv: LnkSta against LnkCap), message size and QPs of this test (try -s 1M -q 4), MTU, the processors' power settings, IOMMU, a rate limit or oversubscription of the fabric (try --one-at-a-time)"
	}
	if hosts := hostsOf(pairs); len(hosts) == 2 {
		f.Advice += "; with two hosts it may also be one of them: a third would tell"
	}
	return f
}

func hostsOf(pairs []Pair) []string {
	var out []string
	seen := map[string]bool{}
	for i := range pairs {
		for _, n := range []NIC{pairs[i].From, pairs[i].To} {
			if pairs[i].tried() && !seen[n.Host] {
				seen[n.Host] = true
				out = append(out, n.Host)
			}
		}
	}
	return out
}

// worst is the smallest fraction among cells: 0 where one has failed.
func worst(pairs []Pair, cells []int) float64 {
	out := math.Inf(1)
	for _, i := range cells {
		switch p := &pairs[i]; {
		case !p.bad():
		case p.Status != Measured:
			out = 0
		case p.OfPort != nil:
			out = min(out, *p.OfPort, *p.OfLike)
		default:
			out = min(out, *p.OfLike)
		}
	}
	return out
}
