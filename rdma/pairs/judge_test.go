package pairs

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var seed = flag.Uint64("seed", 1, "of the planted faults")

// matrix is all pairs of hosts h0, h1 … with NICs m0, m1 … of so many Gb/s (0: unknown); value says what each has.
func matrix(hosts, nics int, gbps float64, value func(f, t NIC) float64) (out []Pair) {
	var all []NIC
	for h := range hosts {
		for n := range nics {
			all = append(all, NIC{fmt.Sprintf("h%d", h), fmt.Sprintf("m%d", n), 1, fmt.Sprintf("m%d", n)})
		}
	}
	for _, f := range all {
		for _, t := range all {
			if f.Host == t.Host {
				continue
			}
			p := Pair{From: f, To: t, LinkLayer: "Ethernet", Status: Measured}
			v := value(f, t)
			p.Value, p.Values = &v, []float64{v}
			if gbps > 0 {
				p.PortGbps = &gbps
			}
			out = append(out, p)
		}
	}
	return out
}

func railsOnly(list []Pair) []Pair {
	return slices.DeleteFunc(list, func(p Pair) bool { return p.From.Rail != p.To.Rail })
}

func with(n NIC, p *Pair) bool { return p.From == n || p.To == n }

// fits says that a finding, or what fits as well, is this.
func (f *Finding) fits(kind Kind, name string) bool {
	return slices.Contains(append([]Named{{f.Kind, f.Name}}, f.Also...), Named{kind, name})
}

func TestJudge(t *testing.T) {
	m0 := func(h string) NIC { return NIC{h, "m0", 1, "m0"} }
	slowIf := func(bad bool) float64 {
		if bad {
			return 45
		}
		return 93
	}
	for _, c := range []struct {
		name  string
		pairs []Pair
		want  []string // kind: name, of each finding in order
		also  []string // what the first fits as well
	}{
		{"all is well", matrix(3, 2, 100, func(NIC, NIC) float64 { return 93 }), nil, nil},
		{"well, though no rate is known", matrix(3, 2, 0, func(NIC, NIC) float64 { return 93 }), nil, nil},
		{"one NIC of three hosts, a minority that is well", matrix(3, 1, 100, func(f, t NIC) float64 { return slowIf(f.Host == "h0" || t.Host == "h0") }),
			[]string{"nic: h0:m0"}, []string{"host: h0"}},
		{"the same without rates", matrix(3, 1, 0, func(f, t NIC) float64 { return slowIf(f.Host == "h0" || t.Host == "h0") }), []string{"nic: h0:m0"}, []string{"host: h0"}},
		{"a NIC that sends slowly", matrix(4, 2, 100, func(f, t NIC) float64 { return slowIf(f == m0("h1")) }), []string{"nic sending: h1:m0"}, nil},
		{"a NIC that receives slowly", matrix(4, 2, 100, func(f, t NIC) float64 { return slowIf(t == m0("h1")) }), []string{"nic receiving: h1:m0"}, nil},
		{"a host", matrix(3, 2, 100, func(f, t NIC) float64 { return slowIf(f.Host == "h1" || t.Host == "h1") }), []string{"host: h1"}, nil},
		{"a rail", matrix(3, 2, 100, func(f, t NIC) float64 { return slowIf(f.Rail == "m1" && t.Rail == "m1") }), []string{"rail: m1"}, nil},
		{"a rail's switch for whoever comes", matrix(3, 2, 100, func(f, t NIC) float64 { return slowIf(f.Rail == "m1" || t.Rail == "m1") }), []string{"rail, any partner: m1"}, nil},
		{"two hosts between each other", matrix(4, 2, 100, func(f, t NIC) float64 { return slowIf(f.Host+t.Host == "h0h2" || f.Host+t.Host == "h2h0") }), []string{"host pair: h0 and h2"}, nil},
		{"two NICs between each other", matrix(3, 2, 100, func(f, t NIC) float64 {
			return slowIf(f == m0("h0") && t == m0("h2") || f == m0("h2") && t == m0("h0"))
		}), []string{"pair: h0:m0 and h2:m0"}, nil},
		{"one way between two NICs", matrix(3, 2, 100, func(f, t NIC) float64 { return slowIf(f == m0("h0") && t == m0("h2")) }), []string{"pair, one way: h0:m0 to h2:m0"}, nil},
		{"two hosts, one way", matrix(2, 2, 100, func(f, t NIC) float64 { return slowIf(f.Host == "h0") }), []string{"host pair, one way: h0 to h1"}, []string{"host sending: h0", "host receiving: h1"}},
		{"two hosts, one rail", railsOnly(matrix(2, 4, 100, func(f, t NIC) float64 { return slowIf(f.Rail == "m2") })), []string{"pair: h0:m2 and h1:m2"}, []string{"nic: h0:m2", "nic: h1:m2"}},
		{"rails only, one of them", railsOnly(matrix(3, 4, 100, func(f, t NIC) float64 { return slowIf(f.Rail == "m2") })), []string{"rail: m2"}, nil},
		{"all alike at half the rate", matrix(3, 2, 200, func(NIC, NIC) float64 { return 93 }), []string{"common cause: all pairs"}, nil},
		{"all at half the rate, one NIC worse", matrix(3, 2, 200, func(f, t NIC) float64 { return slowIf(f == m0("h1")) }), []string{"common cause: all pairs", "nic sending: h1:m0"}, nil},
		{"two of three pairs of a NIC are no pattern yet", matrix(4, 1, 100, func(f, t NIC) float64 { return slowIf(f.Host == "h0" && t.Host != "h3") }),
			[]string{"pair, one way: h0:m0 to h1:m0", "pair, one way: h0:m0 to h2:m0"}, nil},
		{"two things at once", matrix(4, 2, 100, func(f, t NIC) float64 {
			return slowIf(f == m0("h1") || t == m0("h1") || f.Host+t.Host == "h2h3" || f.Host+t.Host == "h3h2")
		}), []string{"nic: h1:m0", "host pair: h2 and h3"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Judge(c.pairs, Judging{Below: BelowBandwidth})
			var got []string
			for _, f := range v.Findings {
				got = append(got, fmt.Sprintf("%s: %s", f.Kind, f.Name))
				if f.Text == "" || f.Advice == "" || strings.Contains(f.Text, "%!") {
					t.Errorf("%+v", f)
				}
			}
			if !slices.Equal(got, c.want) || (v.Status == Good) != (c.want == nil) {
				t.Errorf("%s: %q, want %q", v.Status, got, c.want)
			}
			var also []string
			for _, f := range v.Findings[:min(1, len(v.Findings))] {
				for _, a := range f.Also {
					also = append(also, fmt.Sprintf("%s: %s", a.Kind, a.Name))
				}
			}
			if !slices.Equal(also, c.also) {
				t.Errorf("also %q, want %q", also, c.also)
			}
		})
	}
}

// A pair of slower ports is held against their own rate; of latency less is better, and the best ones are the measure.
func TestJudgeClasses(t *testing.T) {
	p := matrix(3, 1, 100, func(NIC, NIC) float64 { return 93 })
	rate := 25.0
	for i := range p {
		if p[i].From.Host == "h0" || p[i].To.Host == "h0" {
			p[i].PortGbps, *p[i].Value = &rate, 24
		}
	}
	if v := Judge(p, Judging{Below: BelowBandwidth}); v.Status != Good || len(v.Classes) != 2 || v.Classes[0].Pairs != 2 || *v.Classes[1].PortGbps != 25 {
		t.Errorf("%+v", v)
	}
	p = matrix(4, 1, 100, func(f, t NIC) float64 {
		switch {
		case f.Host == "h2":
			return 9
		case f.Host == "h3" || t.Host == "h3": // one more switch
			return 3
		}
		return 2
	})
	v := Judge(p, Judging{Below: BelowLatency, Latency: true})
	if len(v.Findings) != 1 || !v.Findings[0].fits(KindNICSend, "h2:m0") || p[0].OfPort != nil {
		t.Errorf("%+v", v.Findings)
	}
	none := []Pair{{Status: NoPath}, {Status: NotMeasured}}
	if v := Judge(none, Judging{Below: 0.8}); v.Status != Nothing {
		t.Errorf("%+v", v)
	}
}

// fault is something planted, and what it should be called.
type fault struct {
	kind Kind
	name string
	hits func(p *Pair) bool
}

// plant draws a fault in a cluster.
func plant(r *rand.Rand, hosts, nics int) fault {
	h, k := r.IntN(hosts), r.IntN(nics)
	g := (h + 1 + r.IntN(hosts-1)) % hosts
	host, other, rail := fmt.Sprintf("h%d", h), fmt.Sprintf("h%d", g), fmt.Sprintf("m%d", k)
	n, o := NIC{host, rail, 1, rail}, NIC{other, rail, 1, rail}
	all := []fault{
		{KindNIC, n.String(), func(p *Pair) bool { return with(n, p) }},
		{KindNICSend, n.String(), func(p *Pair) bool { return p.From == n }},
		{KindNICReceive, n.String(), func(p *Pair) bool { return p.To == n }},
		{KindHost, host, func(p *Pair) bool { return p.From.Host == host || p.To.Host == host }},
		{KindHostSend, host, func(p *Pair) bool { return p.From.Host == host }},
		{KindHostReceive, host, func(p *Pair) bool { return p.To.Host == host }},
		{KindPair, bothWays(n, o), func(p *Pair) bool { return with(n, p) && with(o, p) }},
		{KindPairOneWay, n.String() + " to " + o.String(), func(p *Pair) bool { return p.From == n && p.To == o }},
		{KindHosts, min(host, other) + " and " + max(host, other), func(p *Pair) bool {
			return p.From.Host == host && p.To.Host == other || p.From.Host == other && p.To.Host == host
		}},
	}
	if nics > 1 {
		all = append(all, fault{KindRail, rail, func(p *Pair) bool { return p.From.Rail == rail && p.To.Rail == rail }},
			fault{KindRailLeaf, rail, func(p *Pair) bool { return p.From.Rail == rail || p.To.Rail == rail }})
	}
	return all[r.IntN(len(all))]
}

// Whatever is planted in a noisy cluster is named, and nothing else; without a fault nothing is.
func TestPlantedFaults(t *testing.T) {
	for run := range 1000 {
		r := rand.New(rand.NewPCG(*seed, uint64(run)))
		hosts, nics := 3+r.IntN(6), 1+r.IntN(4)
		gbps := []float64{0, 100, 400}[r.IntN(3)]
		healthy := max(gbps, 100) * (0.9 + 0.05*r.Float64())
		noise := func() float64 { return min(healthy*(1+0.03*min(max(r.NormFloat64(), -3), 3)), max(gbps, 100)) }
		pairs := matrix(hosts, nics, gbps, func(NIC, NIC) float64 { return noise() })
		rails := r.IntN(3) == 0
		if rails {
			pairs = railsOnly(pairs)
		}
		if v := Judge(pairs, Judging{Below: BelowBandwidth}); v.Status != Good {
			t.Fatalf("seed %d run %d: %d hosts, %d NICs, nothing planted: %+v", *seed, run, hosts, nics, v.Findings)
		}
		f := plant(r, hosts, nics)
		if rails && f.kind == KindRailLeaf { // where only rails are paired the two are one
			f.kind = KindRail
		}
		severity, failed := 0.1+0.5*r.Float64(), r.IntN(5) == 0
		n := 0
		for i := range pairs {
			if p := &pairs[i]; f.hits(p) {
				n++
				*p.Value *= severity * (0.95 + 0.1*r.Float64())
				if failed && r.IntN(2) == 0 {
					p.Status, p.Value, p.Values = Failed, nil, nil
				}
			}
		}
		if n == 0 {
			continue
		}
		v := Judge(pairs, Judging{Below: BelowBandwidth})
		if len(v.Findings) != 1 || !v.Findings[0].fits(f.kind, f.name) || v.Findings[0].Bad != n {
			t.Fatalf("seed %d run %d: %d hosts, %d NICs, %g Gb/s; planted %s %s in %d of %d pairs, found %+v", *seed, run, hosts, nics, gbps, f.kind, f.name, n, len(pairs), v.Findings)
		}
	}
}

// Two NICs of different hosts that are bad at the same time are both named.
func TestTwoPlantedFaults(t *testing.T) {
	for run := range 300 {
		r := rand.New(rand.NewPCG(*seed, uint64(run)))
		hosts, nics := 5+r.IntN(4), 2+r.IntN(3)
		a, b := NIC{"h1", "m0", 1, "m0"}, NIC{"h3", "m1", 1, "m1"}
		pairs := matrix(hosts, nics, 100, func(f, t NIC) float64 {
			if f == a || t == a || f == b {
				return 30
			}
			return 93 + r.NormFloat64()
		})
		v := Judge(pairs, Judging{Below: BelowBandwidth})
		if len(v.Findings) != 2 || !v.Findings[0].fits(KindNIC, a.String()) || !v.Findings[1].fits(KindNICSend, b.String()) {
			t.Fatalf("seed %d run %d: %+v", *seed, run, v.Findings)
		}
	}
}
