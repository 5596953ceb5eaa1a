package pairs

import (
	"fmt"
	"time"

	"github.com/commprobe/commprobe/rdma"
)

// Schema names the JSON form of Result.
const Schema = "commprobe/rdma-pairs/1"

// Result is what was measured between all pairs, and what it means.
type Result struct {
	Schema      string        `json:"schema"`
	Program     string        `json:"program"`
	Started     time.Time     `json:"started"`
	Ended       time.Time     `json:"ended"`
	Interrupted bool          `json:"interrupted"`
	Test        string        `json:"test"`
	Bytes       int           `json:"bytes"`
	Unit        string        `json:"unit"` // of all values: "Gb/s" or "us"
	Below       float64       `json:"below"`
	Options     *rdma.Options `json:"options"`
	Rails       bool          `json:"rails"`      // only NICs of the same rail were paired
	RailsBy     string        `json:"rails_by"`   // what makes a rail: "device name", or "position" where the names differ from host to host
	Concurrent  int           `json:"concurrent"` // host pairs that were measured at a time, at most
	Hosts       []HostReport  `json:"hosts"`
	Pairs       []Pair        `json:"pairs"`
	Verdict     Verdict       `json:"verdict"`
}

// HostReport is one host that was asked to take part.
type HostReport struct {
	Host
	Hostname string     `json:"hostname,omitempty"` // what it calls itself
	Library  string     `json:"library,omitempty"`
	Ports    []Port     `json:"ports"`
	Error    *HostError `json:"error,omitempty"` // why it took no part, or not to the end
}

// Port is one port of one host.
type Port struct {
	Device    string  `json:"device"`
	Port      int     `json:"port"`
	Rail      string  `json:"rail,omitempty"`
	LinkLayer string  `json:"link_layer"`
	State     string  `json:"state"`
	RateGbps  float64 `json:"rate_gbps,omitempty"` // 0: unknown
	MTU       int     `json:"mtu_bytes"`
	PCI       string  `json:"pci,omitempty"`
	NUMANode  int     `json:"numa_node"` // −1: unknown
	Used      bool    `json:"used"`
	Why       string  `json:"why,omitempty"` // it is not used
}

// NIC is one end of a pair.
type NIC struct {
	Host   string `json:"host"`
	Device string `json:"device"`
	Port   int    `json:"port"`
	Rail   string `json:"rail,omitempty"`
}

// String is HOST:DEVICE, with the port where it is not the first.
func (n NIC) String() string { return n.Host + ":" + portName(n.Device, n.Port) }

func portName(device string, port int) string {
	if port > 1 {
		return fmt.Sprintf("%s/%d", device, port)
	}
	return device
}

// Status is what became of a pair.
type Status string

// The statuses of a pair.
const (
	Measured    Status = "measured"
	Failed      Status = "failed"       // it should have worked
	WrongData   Status = "wrong data"   //
	NoPath      Status = "no path"      // the two cannot reach each other, by the way they are connected
	NotMeasured Status = "not measured" // a host was lost, or the run was interrupted
)

// Pair is one direction between two NICs: data goes from From to To.
type Pair struct {
	From         NIC          `json:"from"`
	To           NIC          `json:"to"`
	LinkLayer    string       `json:"link_layer,omitempty"`
	Status       Status       `json:"status"`
	Reason       string       `json:"reason,omitempty"`    // of what is not measured
	Value        *float64     `json:"value,omitempty"`     // the better one of Values
	Values       []float64    `json:"values,omitempty"`    // in the order in which they were measured: a second one where the first looked slow
	PortGbps     *float64     `json:"port_gbps,omitempty"` // the smaller one of the two ports' rates, where both are known
	OfPort       *float64     `json:"of_port,omitempty"`   // Value as a fraction of that (bandwidth)
	Like         *float64     `json:"like,omitempty"`      // what a fifth of the pairs with the same port rate reach or beat
	OfLike       *float64     `json:"of_like,omitempty"`   // Value as a fraction of that; of latency the inverse, so that less is worse
	Slow         bool         `json:"slow"`
	Unsteady     bool         `json:"unsteady,omitempty"`      // slow or failed at first, good when measured again by itself
	FirstFailure string       `json:"first_failure,omitempty"` // of a pair that was measured at the second attempt
	GIDs         string       `json:"gids,omitempty"`          // the path
	Counters     []rdma.Moved `json:"counters,omitempty"`      // that moved and should not
}

// bad is what a verdict has to explain.
func (p *Pair) bad() bool { return p.Slow || p.Status == Failed || p.Status == WrongData }

// tried says that the pair tells something about its NICs.
func (p *Pair) tried() bool {
	return p.Status == Measured || p.Status == Failed || p.Status == WrongData
}

// Count is how many pairs have a status.
func (r *Result) Count(s Status) (n int) {
	for i := range r.Pairs {
		if r.Pairs[i].Status == s {
			n++
		}
	}
	return n
}

// HostFailed says that a host took no part, or not to the end.
func (r *Result) HostFailed() bool {
	for _, h := range r.Hosts {
		if h.Error != nil {
			return true
		}
	}
	return false
}
