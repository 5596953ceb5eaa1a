package rdma

import (
	"cmp"
	"fmt"
	"slices"
)

// Agreement is what both sides compute from the two descriptions and the client's options, each for itself and with the same outcome.
type Agreement struct {
	LinkLayer string     `json:"link_layer"`
	MTU       int        `json:"mtu_bytes"`
	Pairs     []Pair     `json:"pairs"`              // in the order in which they are tried
	Rejected  []Rejected `json:"rejected,omitempty"` // GIDs that are in no pair
	Chosen    int        `json:"chosen"`             // index of the pair that works; −1 until one does
	Reads     int        `json:"reads"`              // outstanding READs and atomics, a QP
	Polled    bool       `json:"polled"`             // a WRITE ping-pong is seen by looking at the memory; else, with GPUs, by completions
	Notes     []string   `json:"notes,omitempty"`    // what a user should know about the choice

	rank      int    // of the side that holds this copy
	remoteLID uint16 // of the other
}

// Names of link layers and of the memory that processors can look at.
const (
	hostMemory = "host"
	ethernet   = "Ethernet"
	infiniband = "InfiniBand"
)

// agree decides how the sides connect, or says why they cannot.
func agree(client, server *Side, o *Options) (*Agreement, error) {
	if client.Protocol != server.Protocol {
		return nil, problem(Usage, nil, "version skew: %s speaks version %d of the test's protocol (commprobe %s), %s version %d (commprobe %s): install the same commprobe on both hosts",
			client.Host, client.Protocol, client.Program, server.Host, server.Protocol, server.Program)
	}
	for _, s := range []*Side{client, server} {
		if !s.Active {
			return nil, portDown(s)
		}
	}
	if client.LinkLayer != server.LinkLayer {
		return nil, problem(Unusable, nil, "wrong link layer: %s is %s, %s is %s; the two cannot talk to each other: choose ports of one kind with -d and -i on both sides (commprobe rdma list)",
			client.name(), client.LinkLayer, server.name(), server.LinkLayer)
	}
	a := &Agreement{LinkLayer: client.LinkLayer, Chosen: -1, Polled: client.Memory == hostMemory && server.Memory == hostMemory}
	if err := a.agreeMTU(client, server, o); err != nil {
		return nil, err
	}
	if err := fits(client, o); err != nil {
		return nil, err
	}
	if err := fits(server, o); err != nil {
		return nil, err
	}
	a.Reads = min(client.MaxReadsOut, server.MaxReads)
	if o.Bidirectional {
		a.Reads = min(a.Reads, server.MaxReadsOut, client.MaxReads)
	}
	if o.Reads > 0 {
		a.Reads = min(a.Reads, o.Reads)
	}
	if a.Reads < 1 && wantsReads(o) {
		return nil, problem(Unusable, nil, "%s may have %d READs outstanding and %s answers %d: READ and atomics are not possible between them; use write or send",
			client.name(), client.MaxReadsOut, server.name(), server.MaxReads)
	}
	return a, a.agreePath(client, server, o)
}

func wantsReads(o *Options) bool {
	return slices.ContainsFunc(o.Tests, func(name string) bool {
		t, err := FindTest(name)
		return err == nil && t.pull()
	})
}

func (a *Agreement) agreeMTU(client, server *Side, o *Options) error {
	a.MTU = min(client.MTU, server.MTU)
	if client.MTU != server.MTU {
		a.Notes = append(a.Notes, fmt.Sprintf("the MTUs differ: %s has %d, %s has %d; both use %d. A RoCE MTU follows from that of the network device: set both alike, with room for the headers (ip link set DEV mtu 4200 for 4096)",
			client.name(), client.MTU, server.name(), server.MTU, a.MTU))
	}
	switch {
	case o.MTU > a.MTU:
		return problem(Usage, nil, "MTU mismatch: -m %d is more than both ports carry (%s: %d, %s: %d): at most %d, or raise the MTU of the network devices first",
			o.MTU, client.name(), client.MTU, server.name(), server.MTU, a.MTU)
	case o.MTU != 0:
		a.MTU = o.MTU
	}
	return nil
}

// agreePath chooses GID pairs on Ethernet; on InfiniBand LIDs lead, and a GRH is added where a port demands it or the subnets differ.
func (a *Agreement) agreePath(client, server *Side, o *Options) (err error) {
	if a.LinkLayer != infiniband {
		a.Pairs, a.Rejected, err = pairGIDs(client.GIDs, server.GIDs, o.ClientGID, o.ServerGID)
		return err
	}
	if client.LID == 0 || server.LID == 0 {
		return problem(Unusable, nil, "no LID: %s has %d, %s has %d; the subnet manager has not seen the port: check that one runs (sminfo)", client.name(), client.LID, server.name(), server.LID)
	}
	p := Pair{Why: fmt.Sprintf("InfiniBand, LID %d to LID %d", client.LID, server.LID)}
	c, err := only("client", client.GIDs, max(o.ClientGID, 0))
	if err != nil {
		return err
	}
	s, err := only("server", server.GIDs, max(o.ServerGID, 0))
	if err != nil {
		return err
	}
	p.Client, p.Server = c[0], s[0]
	p.Global = client.GRHRequired || server.GRHRequired || o.ClientGID != anyGID || o.ServerGID != anyGID
	if p.Global {
		p.Why += ", with a global header"
	}
	a.Pairs = []Pair{p}
	return nil
}

// fits compares the options with the device's limits.
func fits(s *Side, o *Options) error {
	for _, l := range []struct {
		what         string
		asked, limit int
		flag         string
	}{
		{"QPs", o.QPs, s.MaxQPs, "-q"},
		{"outstanding operations a QP", o.Depth, s.MaxDepth, "-t"},
		{"completions", o.QPs * o.Depth, s.MaxCQE, "-q or -t"},
	} {
		if l.limit > 0 && l.asked > l.limit {
			return problem(Usage, nil, "%s: %d %s are needed, the device can have %d: lower %s", s.name(), l.asked, l.what, l.limit, l.flag)
		}
	}
	return nil
}

// portDown says what state a port is in and what that usually means.
func portDown(s *Side) error {
	cause, next := "no link", "check the cable, the switch port, and ip link show of its network device; or choose another port with -d and -i (commprobe rdma list)"
	switch {
	case s.State == "init" || s.State == "armed":
		cause, next = "the link is there, but no subnet manager has set the port up", "start one (opensm), or check with sminfo that it reaches this port"
	case s.LinkLayer == ethernet && s.PhysState == physDisabled:
		cause, next = "its network device is down", "ip link set DEV up (rdma link shows which), or choose another port with -d and -i (commprobe rdma list)"
	case s.PhysState == physPolling:
		cause = "the port looks for a partner and finds none: cable out, or the other end is off"
	}
	return problem(Unusable, nil, "port down: %s is %s (%s): %s; %s", s.name(), cmp.Or(s.State, "in an unknown state"), physText(s.PhysState), cause, next)
}

// Physical states of a port, as the InfiniBand specification numbers them.
const (
	physPolling  = 2
	physDisabled = 3
)

func physText(state int) string {
	names := map[int]string{1: "sleep", physPolling: "polling", physDisabled: "disabled", 4: "port configuration training", 5: "link up", 6: "link error recovery", 7: "phy test"}
	if n, ok := names[state]; ok {
		return "physical state " + n
	}
	return fmt.Sprintf("physical state %d", state)
}
