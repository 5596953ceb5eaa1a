package pairs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kind is what a finding blames.
type Kind string

// What can be to blame. A kind that tells of one way only has the other one in order.
const (
	KindCommon      Kind = "common cause"
	KindNIC         Kind = "nic"
	KindNICSend     Kind = "nic sending"
	KindNICReceive  Kind = "nic receiving"
	KindHost        Kind = "host"
	KindHostSend    Kind = "host sending"
	KindHostReceive Kind = "host receiving"
	KindRail        Kind = "rail"              // between the NICs of one rail
	KindRailLeaf    Kind = "rail, any partner" // every pair with one end on the rail
	KindHosts       Kind = "host pair"
	KindHostsOneWay Kind = "host pair, one way"
	KindPair        Kind = "pair"
	KindPairOneWay  Kind = "pair, one way"
)

// Finding is one thing to blame and what it rests on.
type Finding struct {
	Kind   Kind    `json:"kind"`
	Name   string  `json:"name"`           // "hosta:mlx5_3", "hosta", "mlx5_3" (a rail), "hosta:mlx5_0 to hostb:mlx5_0"
	Bad    int     `json:"bad"`            // pairs that are slow or failed, of those that it is part of
	Of     int     `json:"of"`             // and that no finding before this one explains
	Worst  float64 `json:"worst"`          // smallest fraction of the expected; 0: failed
	Also   []Named `json:"also,omitempty"` // what fits the same pairs as well
	Text   string  `json:"text"`
	Advice string  `json:"advice,omitempty"`
	Cells  []int   `json:"pairs"` // the bad ones, as indexes of the result's pairs
}

// Named is a kind with its name.
type Named struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

// suspect is what could be to blame, with all pairs that it is part of.
type suspect struct {
	Named
	rank  int // more specific ones first
	hosts []string
	cells []int
}

// How sure a suspicion must be: most of its pairs are bad, and more than one. A single pair is no pattern.
const (
	blameShare = 0.75
	blameLeast = 2
	maxBlames  = 64
)

// blame explains the bad pairs: again and again what explains most, until single pairs are left.
func blame(pairs []Pair) (out []Finding) {
	suspects := suspectsOf(pairs)
	explained := make([]bool, len(pairs))
	for range maxBlames {
		best, tied := mostGuilty(pairs, suspects, explained)
		if best == nil {
			break
		}
		f := best.finding(pairs, explained, tied)
		for _, i := range best.cells {
			explained[i] = true
		}
		out = append(out, f)
	}
	return append(out, singles(pairs, explained)...)
}

// suspectsOf lists them in an order that depends on the pairs alone.
func suspectsOf(pairs []Pair) []*suspect {
	var list []*suspect
	known := map[Named]*suspect{}
	rails := map[string]bool{}
	for i := range pairs {
		p := &pairs[i]
		if !p.tried() {
			continue
		}
		rails[p.From.Rail], rails[p.To.Rail] = true, true
		for _, s := range p.suspects() {
			if known[s.Named] == nil {
				known[s.Named] = &s
				list = append(list, &s)
			}
			k := known[s.Named]
			if n := len(k.cells); n == 0 || k.cells[n-1] != i { // both ends may be on one rail
				k.cells = append(k.cells, i)
			}
		}
	}
	return slices.DeleteFunc(list, func(s *suspect) bool {
		if s.Kind != KindRail && s.Kind != KindRailLeaf {
			return false
		}
		// Two hosts cannot tell a rail from the path between them, nor can a single rail be told from all there is.
		var hosts []string
		for _, i := range s.cells {
			hosts = append(hosts, pairs[i].From.Host, pairs[i].To.Host)
		}
		slices.Sort(hosts)
		return len(slices.Compact(hosts)) < 3 || len(rails) < 2
	})
}

// suspects are all that a pair could be bad because of.
func (p *Pair) suspects() []suspect {
	f, t := p.From, p.To
	lo, hi := min(f.Host, t.Host), max(f.Host, t.Host)
	out := []suspect{
		{Named: Named{KindNIC, f.String()}, rank: 1, hosts: []string{f.Host}},
		{Named: Named{KindNIC, t.String()}, rank: 1, hosts: []string{t.Host}},
		{Named: Named{KindNICSend, f.String()}, rank: 2, hosts: []string{f.Host}},
		{Named: Named{KindNICReceive, t.String()}, rank: 2, hosts: []string{t.Host}},
		{Named: Named{KindHost, f.Host}, rank: 3, hosts: []string{f.Host}},
		{Named: Named{KindHost, t.Host}, rank: 3, hosts: []string{t.Host}},
		{Named: Named{KindHostSend, f.Host}, rank: 4, hosts: []string{f.Host}},
		{Named: Named{KindHostReceive, t.Host}, rank: 4, hosts: []string{t.Host}},
		{Named: Named{KindPair, bothWays(f, t)}, rank: 5},
		{Named: Named{KindHosts, lo + " and " + hi}, rank: 6},
		{Named: Named{KindHostsOneWay, f.Host + " to " + t.Host}, rank: 7},
	}
	if f.Rail != "" && f.Rail == t.Rail {
		out = append(out, suspect{Named: Named{KindRail, f.Rail}, rank: 8})
	}
	for _, r := range []string{f.Rail, t.Rail} {
		if r != "" {
			out = append(out, suspect{Named: Named{KindRailLeaf, r}, rank: 9})
		}
	}
	return out
}

// bothWays names two NICs, whichever comes first.
func bothWays(a, b NIC) string {
	return min(a.String(), b.String()) + " and " + max(a.String(), b.String())
}

// weigh counts what of a suspect's pairs is not explained yet.
func (s *suspect) weigh(pairs []Pair, explained []bool) (bad, of int) {
	for _, i := range s.cells {
		if explained[i] {
			continue
		}
		of++
		if pairs[i].bad() {
			bad++
		}
	}
	return bad, of
}

// mostGuilty is the suspect that explains most bad pairs and has fewest good ones, with those that the same pairs fit as well.
func mostGuilty(pairs []Pair, suspects []*suspect, explained []bool) (best *suspect, tied []*suspect) {
	score, bestOf := 0, 0
	for _, s := range suspects {
		bad, of := s.weigh(pairs, explained)
		if bad < blameLeast || float64(bad) < blameShare*float64(of) {
			continue
		}
		switch n := 2*bad - of; {
		case n > score:
			best, score, bestOf, tied = s, n, of, nil
		case n == score && of == bestOf && s.sameAs(best, explained):
			tied = append(tied, s)
		}
	}
	if best == nil {
		return nil, nil
	}
	tied = append([]*suspect{best}, tied...)
	// Where what fits lies on different hosts, nobody can tell them apart, and what lies between is named first.
	between := len(placesOf(tied)) > 1
	slices.SortStableFunc(tied, func(a, b *suspect) int {
		if between {
			return cmp.Or(cmp.Compare(len(a.hosts), len(b.hosts)), cmp.Compare(a.rank, b.rank))
		}
		return cmp.Compare(a.rank, b.rank)
	})
	return tied[0], tied[1:]
}

func placesOf(list []*suspect) (hosts []string) {
	for _, s := range list {
		for _, h := range s.hosts {
			if !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	return hosts
}

// sameAs says that two suspects have the same pairs left to explain.
func (s *suspect) sameAs(o *suspect, explained []bool) bool {
	left := func(cells []int) []int {
		return slices.DeleteFunc(slices.Clone(cells), func(i int) bool { return explained[i] })
	}
	return slices.Equal(left(s.cells), left(o.cells))
}

// finding puts a suspect in words.
func (s *suspect) finding(pairs []Pair, explained []bool, tied []*suspect) Finding {
	f := Finding{Kind: s.Kind, Name: s.Name}
	f.Bad, f.Of = s.weigh(pairs, explained)
	for _, i := range s.cells {
		if !explained[i] && pairs[i].bad() {
			f.Cells = append(f.Cells, i)
		}
	}
	for _, t := range tied {
		if s.Kind != KindRail || t.Kind != KindRailLeaf { // where only rails are paired the two are one
			f.Also = append(f.Also, t.Named)
		}
	}
	f.Worst = worst(pairs, f.Cells)
	what := map[Kind]string{
		KindNIC: "NIC %s: bad with all its partners, sending and receiving", KindNICSend: "NIC %s: bad when it sends, whoever receives",
		KindNICReceive: "NIC %s: bad when it receives, whoever sends", KindHost: "host %s: bad through all its NICs, sending and receiving",
		KindHostSend: "host %s: bad when it sends, through all its NICs", KindHostReceive: "host %s: bad when it receives, through all its NICs",
		KindRail: "rail %s: bad between the NICs of this rail, whichever the hosts", KindRailLeaf: "rail %s: bad for every pair with an end on this rail",
		KindHosts: "hosts %s: bad through all NICs, while both are good with others", KindHostsOneWay: "from host %s: bad through all NICs, in this direction only",
		KindPair: "path between %s: bad in both directions",
	}[s.Kind]
	f.Text = fmt.Sprintf(what, s.Name) + "; " + tally(pairs, f)
	if len(f.Also) > 0 {
		f.Text += "; the same pairs fit " + names(f.Also)
	}
	f.Advice = adviceFor(pairs, &f)
	if len(placesOf(append(tied, s))) > 1 {
		f.Text = strings.Replace(f.Text, ", while both are good with others", "", 1)
		f.Advice += "; more hosts in the test would tell these apart"
	}
	return f
}

func names(list []Named) string {
	var out []string
	for _, n := range list {
		out = append(out, fmt.Sprintf("%s %s", n.Kind, n.Name))
	}
	return strings.Join(out, ", ")
}

// tally counts the pairs of a finding by what is wrong with them.
func tally(pairs []Pair, f Finding) string {
	var slow, failed, wrong int
	for _, i := range f.Cells {
		switch p := &pairs[i]; p.Status {
		case WrongData:
			wrong++
		case Failed:
			failed++
		default:
			slow++
		}
	}
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{wrong, "with wrong data"}, {failed, "failed"}, {slow, "slow"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	text := fmt.Sprintf("%s of %d pairs", strings.Join(parts, ", "), f.Of)
	if slow > 0 {
		if w := worst(pairs, slices.DeleteFunc(slices.Clone(f.Cells), func(i int) bool { return pairs[i].Status != Measured })); w > 0 {
			text += fmt.Sprintf(", down to %.0f %% of what to expect", 100*w)
		}
	}
	return text
}

const (
	adviceNIC  = "look at that NIC: its PCIe link (lspci -vv: LnkSta against LnkCap), cable and transceiver (error counters, mlxlink), the switch port, NUMA place, firmware"
	adviceHost = "look at what its NICs share: PCIe switch and root, IOMMU and ACS, the processors' power settings, memory, another job that runs there; and its uplink"
	adviceRail = "look at the switch of that rail: its ports' speed and errors, PFC and ECN settings, its uplinks"
	advicePath = "look at what lies between: which uplink the flows hash to (ECMP; another QP number or -q 4 takes another), errors on the links between the two switches"
)

const (
	adviceWrong  = "take what is named out of use until this is understood: data was damaged in a NIC, in memory or on the way; look at ECC and PCIe (AER) errors in the kernel logs of both ends, and the NICs' firmware"
	adviceFailed = "the reasons stand above; see that both ends can reach each other at all: link, addresses, VLAN, routing, a firewall for UDP port 4791, the subnet manager's partitions"
)

var adviceOf = map[Kind]string{
	KindNIC: adviceNIC, KindNICSend: adviceNIC, KindNICReceive: adviceNIC, KindHost: adviceHost, KindHostSend: adviceHost, KindHostReceive: adviceHost,
	KindRail: adviceRail, KindRailLeaf: adviceRail, KindHosts: advicePath, KindHostsOneWay: advicePath, KindPair: advicePath, KindPairOneWay: advicePath,
}

// adviceFor goes by what is wrong with the pairs first: damaged data needs other steps than a low rate.
func adviceFor(pairs []Pair, f *Finding) string {
	failed := true
	for _, i := range f.Cells {
		if pairs[i].Status == WrongData {
			return adviceWrong
		}
		failed = failed && pairs[i].Status == Failed
	}
	if failed {
		return adviceFailed
	}
	return adviceOf[f.Kind]
}

// singles are the bad directions that nothing else explains.
func singles(pairs []Pair, explained []bool) (out []Finding) {
	for i := range pairs {
		p := &pairs[i]
		if explained[i] || !p.bad() {
			continue
		}
		f := Finding{Kind: KindPairOneWay, Name: fmt.Sprintf("%s to %s", p.From, p.To), Bad: 1, Of: 1, Cells: []int{i}}
		f.Advice = adviceFor(pairs, &f)
		f.Worst = worst(pairs, f.Cells)
		f.Text = fmt.Sprintf("path from %s, in this direction only; %s", f.Name, tally(pairs, f))
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Worst, b.Worst) })
	return out
}
