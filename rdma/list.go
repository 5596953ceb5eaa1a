package rdma

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/commprobe/commprobe/ibverbs"
)

// ListSchema names the JSON form of List.
const ListSchema = "commprobe/rdma-list/1"

// List is what `rdma list` found on this machine.
type List struct {
	Schema  string   `json:"schema"`
	Library string   `json:"library"` // version and path of libibverbs
	Devices []Listed `json:"devices"`
	GPUs    []string `json:"gpus,omitempty"` // of each GPU whether its memory can be exported as DMA-BUF
}

// Listed is one device.
type Listed struct {
	Name      string `json:"name"`
	NodeType  string `json:"node_type"`
	Transport string `json:"transport"`
	Firmware  string `json:"firmware,omitempty"`
	PCI       string `json:"pci,omitempty"`
	NUMANode  int    `json:"numa_node"` // −1: unknown
	Uverbs    string `json:"uverbs"`
	DMABuf    string `json:"dmabuf"`          // whether kernel and provider take DMA-BUF memory: "yes", "no", or why it could not be told
	Error     string `json:"error,omitempty"` // why it could not be asked
	Ports     []Side `json:"ports"`           // with the fields of a port only
}

// Devices lists all devices with their ports and GIDs. A device that cannot be opened is listed with the reason. None at all is a Problem that says what
// would be needed.
func Devices(library string) (*List, error) {
	lib, devices, err := listDevices(library)
	gpus := exports()
	if err != nil {
		return nil, withGPUs(err, gpus)
	}
	l := &List{Schema: ListSchema, Library: strings.TrimSpace(lib.Version + " " + lib.Path), GPUs: gpus}
	for _, d := range devices {
		l.Devices = append(l.Devices, listOne(d))
	}
	return l, nil
}

// withGPUs adds what was found of the GPUs to the error of a machine without RDMA devices.
func withGPUs(err error, gpus []string) error {
	if len(gpus) == 0 {
		return err
	}
	return problem(KindOf(err), err, "%v. GPUs: %s", err, strings.Join(gpus, "; "))
}

func listOne(d ibverbs.Device) Listed {
	p := placeOf(sysRoot, d.Name)
	out := Listed{Name: d.Name, NodeType: d.NodeType, Transport: d.Transport, PCI: p.pci, NUMANode: p.node, Uverbs: d.UverbsPath, Ports: []Side{}}
	c, err := d.Open()
	if err != nil {
		out.Error = openProblem(d, err).Error()
		return out
	}
	defer c.Close()
	a, err := c.Attr()
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Firmware, out.DMABuf = a.FirmwareVersion, dmabufText(c)
	for n := 1; n <= a.Ports; n++ {
		port, err := c.Port(n)
		if err != nil {
			out.Error = err.Error()
			continue
		}
		v := &verbsDevice{context: c}
		if err := v.describe(Want{CPU: -1}, candidate{device: d, port: n, attr: port}); err != nil {
			out.Error = err.Error()
			continue
		}
		out.Ports = append(out.Ports, *v.about)
	}
	return out
}

// dmabufText asks without any GPU: a DMA-BUF that does not exist is complained about only by those who could take one.
func dmabufText(c *ibverbs.Context) string {
	pd, err := c.AllocPD()
	if err != nil {
		return err.Error()
	}
	defer pd.Close()
	switch ok, err := ibverbs.DMABufProbe(pd); {
	case err != nil:
		return err.Error()
	case ok:
		return "yes"
	}
	return "no"
}

// WriteText prints a line a port and a line a GID.
func (l *List) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "libibverbs %s\n", l.Library)
	fmt.Fprintf(&b, "%-12s %4s  %-8s %-11s %10s %6s  %-5s %s\n", "device", "port", "state", "link layer", "rate Gb/s", "MTU", "NUMA", "PCI")
	for _, d := range l.Devices {
		if d.Error != "" {
			fmt.Fprintf(&b, "%-12s    -  cannot be asked: %s\n", d.Name, d.Error)
		}
		for _, p := range d.Ports {
			node, rate := "-", "-"
			if d.NUMANode >= 0 {
				node = fmt.Sprint(d.NUMANode)
			}
			if p.RateGbps > 0 {
				rate = fmt.Sprintf("%g", p.RateGbps)
			}
			fmt.Fprintf(&b, "%-12s %4d  %-8s %-11s %10s %6d  %-5s %s\n", d.Name, p.Port, p.State, p.LinkLayer, rate, p.MTU, node, cmp.Or(d.PCI, "-"))
			for _, g := range p.GIDs {
				fmt.Fprintf(&b, "    GID %3d  %-40s %-11s %s\n", g.Index, g.Addr, cmp.Or(g.Type, "type ?"), g.NetDev)
			}
		}
		fmt.Fprintf(&b, "    DMA-BUF memory: %s\n", cmp.Or(d.DMABuf, "not asked"))
	}
	for _, g := range l.GPUs {
		fmt.Fprintf(&b, "%s\n", g)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
