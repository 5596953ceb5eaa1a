package pairs

import "fmt"

// findings is what the measurements so far say of those to come. An attempt over a path that carries nothing takes seconds to tens of seconds, and one host that
// is cut off, or rails that are fabrics of their own, would make hours of them.
type findings map[topic]*outcomes

// topic is what could be without a path: two subnets, two rails, two hosts.
type topic struct{ what, a, b string }

type outcomes struct{ yes, no int }

// How many vain attempts are enough.
const (
	enoughPath = 2 // between two subnets or rails, of NICs that can talk to others
	enoughNIC  = 4 // of a NIC with partners that can
	enoughHost = 6 // between two hosts, whatever the NIC
)

const (
	topicSubnets = "subnets"
	topicRails   = "rails"
	topicHosts   = "hosts"
)

func topicOf(what, a, b string) topic { return topic{what, min(a, b), max(a, b)} }

// topics are those of two NICs, but for their hosts.
func topics(c, s *nic) (out []topic) {
	if key, _ := subnetKey(c, s); key != "" {
		out = append(out, topic{what: topicSubnets, a: key})
	}
	if c.Rail != s.Rail && c.side.LinkLayer == infiniband {
		out = append(out, topicOf(topicRails, c.Rail, s.Rail))
	}
	return out
}

// infiniband is the link layer whose rails may be fabrics of their own though they have one subnet prefix.
const infiniband = "InfiniBand"

func (f findings) at(t topic) *outcomes {
	if f[t] == nil {
		f[t] = &outcomes{}
	}
	return f[t]
}

func hostsTopic(c, s *nic) topic { return topicOf(topicHosts, c.Host, s.Host) }

// works notes that a pair was measured.
func (f findings) works(c, s *nic) {
	c.ok, s.ok = true, true
	for _, t := range append(topics(c, s), hostsTopic(c, s)) {
		f.at(t).yes++
	}
}

// fails notes that no packet went between two NICs. It tells of the path only where both are known to talk to others.
func (f findings) fails(c, s *nic) {
	f.at(hostsTopic(c, s)).no++
	switch {
	case c.ok && s.ok:
		for _, t := range topics(c, s) {
			f.at(t).no++
		}
	case c.ok:
		s.mute++
	case s.ok:
		c.mute++
	}
}

// vain says why it is no use to try a pair; "" where it may be.
func (f findings) vain(c, s *nic) (Status, string) {
	for _, t := range topics(c, s) {
		n := f.at(t)
		if n.yes > 0 || n.no < enoughPath {
			continue
		}
		if _, text := subnetKey(c, s); t.what == topicSubnets {
			return NoPath, fmt.Sprintf("not tried: different subnets (%s), between which %d other attempts found no path, of NICs that reach others", text, n.no)
		}
		return NoPath, fmt.Sprintf("not tried: rails %s and %s, between which %d other attempts found no path, of NICs that reach others: separate fabrics?", t.a, t.b, n.no)
	}
	for _, n := range []*nic{c, s} {
		if !n.ok && n.mute >= enoughNIC {
			return NotMeasured, fmt.Sprintf("not tried: %s has reached nobody in %d attempts with partners that reach others", n, n.mute)
		}
	}
	if n := f.at(hostsTopic(c, s)); n.yes == 0 && n.no >= enoughHost {
		return NotMeasured, fmt.Sprintf("not tried: no packet went between %s and %s in %d attempts", c.Host, s.Host, n.no)
	}
	return "", ""
}

// subnetKey names the subnets of two NICs that share none; key is "" where they do, or where that is not known.
func subnetKey(c, s *nic) (key, text string) {
	yes, known, text := shared(&c.side, &s.side)
	if yes || !known {
		return "", text
	}
	_, _, back := shared(&s.side, &c.side)
	return min(text, back), text
}
