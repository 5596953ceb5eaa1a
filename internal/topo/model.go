// Package topo describes one node as a graph of GPUs, NICs, NUMA nodes and the PCIe, NVLink and C2C links between them. It reads the graph from a machine's
// /sys, from NCCL's topology XML and from lspci; it reads the matrices that nvidia-smi prints, and computes the same matrices from a graph, in nvidia-smi's
// words and in NCCL's. What an input does not say is nil, empty or a Note, never a guess.
package topo

import "encoding/json"

// Graph is the topology of one node.
type Graph struct {
	Source string `json:"source"` // what it was read from, for people
	// Form says how many of the bridges there are: all of them (sysfs, lspci), or one a switch, as in NCCL's XML, which leaves root ports and downstream ports out.
	Form       Form       `json:"form"`
	Host       Host       `json:"host"`
	GPUs       []GPU      `json:"gpus"`
	NICs       []NIC      `json:"nics"`
	CPUs       []CPU      `json:"cpus"`
	NVSwitches []NVSwitch `json:"nvswitches,omitempty"`
	PCI        []Function `json:"pci"` // GPUs, NICs, NVSwitches and every bridge above them; a bridge stands before what is below it
	Links      []PeerLink `json:"pci_peer_links,omitempty"`
	Notes      []Note     `json:"notes,omitempty"`
}

// Form is how much of the PCIe tree a graph has.
type Form string

// The forms of a PCIe tree.
const (
	FormFull Form = "full" // every bridge and the host bridges
	FormNCCL Form = "nccl" // a bridge a switch, no host bridges
)

// Note is something odd or unknown, in words for people.
type Note struct {
	Code  string `json:"code"`            // stable, for tests and scripts: "no-numa", "row-short" …
	Where string `json:"where,omitempty"` // "topo.txt:12", "0000:07:00.0", "/sys/class/infiniband"
	Text  string `json:"text"`
}

// Host is what is known about the machine as a whole. Empty is unknown.
type Host struct {
	Virtual   *bool  `json:"virtual,omitempty"`   // nil: cannot tell
	Product   string `json:"product,omitempty"`   // "NVIDIA DGXH100", "QEMU Standard PC (Q35 + ICH9, 2009)"
	Container *bool  `json:"container,omitempty"` // nil: cannot tell
}

// GPU is one graphics processor.
type GPU struct {
	ID      string `json:"id"`               // "GPU0", as nvidia-smi numbers them
	Index   *int   `json:"index"`            // NVML's index; nil: only the order on the bus is known
	BusID   string `json:"busid,omitempty"`  // "0000:0f:00.0"; empty: unknown
	Name    string `json:"name,omitempty"`   // "NVIDIA H100 80GB HBM3"
	UUID    string `json:"uuid,omitempty"`   // "GPU-…"
	SM      *int   `json:"sm"`               // compute capability times ten: 90
	NUMA    *int   `json:"numa"`             // of the PCI function; -1: the kernel says there is none
	CPUs    string `json:"cpus,omitempty"`   // cores near it, "0-31,64-95"
	MemNUMA *int   `json:"memory_numa"`      // NUMA node of its memory (Grace); nil: none or unknown
	MIG     *bool  `json:"mig"`              // nil: unknown
	GDR     *bool  `json:"gdr"`              // GPUDirect RDMA, as NVML or an XML says; nil: unknown
	Rank    *int   `json:"rank,omitempty"`   // NCCL's rank in an XML dump
	Driver  string `json:"driver,omitempty"` // kernel driver: "nvidia", "vfio-pci"
	// NVLinks are its links by peer. nil: unknown; empty: it has none.
	NVLinks     []NVLink          `json:"nvlinks"`
	NVLinksDown *int              `json:"nvlinks_down,omitempty"` // links that exist and do not work; nil: unknown
	C2C         *C2C              `json:"c2c,omitempty"`          // links to the CPU (Grace); nil: none or unknown
	Attrs       map[string]string `json:"attrs,omitempty"`        // attributes of an XML that have no field here
}

// Peer is what a link of a GPU ends at.
type Peer string

// The kinds of peers.
const (
	PeerGPU     Peer = "gpu"
	PeerSwitch  Peer = "nvswitch"
	PeerCPU     Peer = "cpu" // NVLink to the processor (POWER)
	PeerUnknown Peer = ""
)

// HiddenTarget stands in a topology for the far end of an NVLink that the driver does not tell, as in virtual machines; NCCL takes it for an NVSwitch.
const HiddenTarget = "fffffff:ff:ff.0"

// NVLink is all links of a GPU to one peer.
type NVLink struct {
	Peer   Peer              `json:"peer"`
	Target string            `json:"target,omitempty"` // bus id of the peer, HiddenTarget, or empty: unknown
	Count  int               `json:"count"`            // working links
	GBs    *float64          `json:"gbs"`              // one link, one way; nil: unknown
	Attrs  map[string]string `json:"attrs,omitempty"`
}

// C2C is the NVLink-C2C connection of a GPU to its CPU.
type C2C struct {
	Count int      `json:"count"`
	GBs   *float64 `json:"gbs"` // one link, one way; nil: unknown
}

// NIC is one RDMA device, or one network interface without RDMA. Two ports of one card are often two devices with one GUID.
type NIC struct {
	ID      string            `json:"id"`                // "NIC0", as nvidia-smi numbers RDMA devices
	Name    string            `json:"name,omitempty"`    // "mlx5_0", "eth0"; empty: unknown
	RDMA    *bool             `json:"rdma"`              // an RDMA device; nil: unknown
	BusID   string            `json:"busid,omitempty"`   // empty: unknown, or a software device
	NUMA    *int              `json:"numa"`              // -1: the kernel says there is none
	CPUs    string            `json:"cpus,omitempty"`    // cores near it
	GUID    string            `json:"guid,omitempty"`    // "a088:c203:00ab:1234" (sysfs) or "0x…" (XML)
	Netdevs []string          `json:"netdevs,omitempty"` // interfaces on it
	Bond    string            `json:"bond,omitempty"`    // bond that its interfaces belong to
	PF      string            `json:"pf,omitempty"`      // bus id of the physical function: this is a virtual one
	VFs     *int              `json:"vfs,omitempty"`     // virtual functions that are switched on
	Ports   []Port            `json:"ports,omitempty"`
	GDR     *bool             `json:"gdr"` // GPUDirect RDMA, as an XML says; nil: unknown
	Index   *int              `json:"dev,omitempty"`
	Driver  string            `json:"driver,omitempty"`
	Attrs   map[string]string `json:"attrs,omitempty"`
}

// Port is one port of a NIC.
type Port struct {
	Num       *int     `json:"num"`
	LinkLayer string   `json:"link_layer,omitempty"` // "InfiniBand", "Ethernet"; empty: unknown
	State     string   `json:"state,omitempty"`      // "ACTIVE", "DOWN", "INIT", "ARMED"; empty: unknown
	Phys      string   `json:"phys_state,omitempty"` // "LinkUp", "Polling", "Disabled"
	Gbps      *float64 `json:"gbps"`                 // nil: unknown
	Rate      string   `json:"rate,omitempty"`       // as printed: "400 Gb/sec (4X NDR)"
	GIDs      []GID    `json:"gids,omitempty"`       // those that are set
}

// GID is one entry of a port's address table.
type GID struct {
	Index  int    `json:"index"`
	Value  string `json:"gid"`
	Type   string `json:"type,omitempty"` // "IB/RoCE v1", "RoCE v2"; empty: cannot be read
	Netdev string `json:"netdev,omitempty"`
}

// CPU is one NUMA node, which is what NCCL calls a CPU.
type CPU struct {
	ID       string            `json:"id"`                 // "CPU0"
	NUMA     int               `json:"numa"`               // -1: the kernel says there is none
	CPUs     string            `json:"cpus,omitempty"`     // "0-31,64-95"; empty: it has none, or unknown
	Socket   *int              `json:"socket,omitempty"`   // nil: unknown
	Distance []int             `json:"distance,omitempty"` // to each NUMA node, 10 is itself
	Arch     string            `json:"arch,omitempty"`     // "x86_64", "arm64", "ppc64"
	Vendor   string            `json:"vendor,omitempty"`   // "GenuineIntel", "AuthenticAMD"
	Family   *int              `json:"family,omitempty"`   // as the CPU says it: 6, 23, 25
	Model    *int              `json:"model,omitempty"`
	HostHash string            `json:"host_hash,omitempty"` // in an XML: which node
	Attrs    map[string]string `json:"attrs,omitempty"`
}

// NVSwitch is one NVLink switch of this node that is seen on PCIe.
type NVSwitch struct {
	BusID string `json:"busid"`
}

// Function is a PCI function: a device, or a bridge.
type Function struct {
	BusID      string            `json:"busid"`
	Parent     string            `json:"parent,omitempty"` // bus id of the bridge above; empty: it is right below the host bridge
	Root       string            `json:"root,omitempty"`   // host bridge: "pci0000:00"; empty: unknown
	Role       Role              `json:"role"`
	Class      string            `json:"class,omitempty"` // "0x060400"
	Vendor     string            `json:"vendor,omitempty"`
	Device     string            `json:"device,omitempty"`
	SubVendor  string            `json:"subsystem_vendor,omitempty"`
	SubDevice  string            `json:"subsystem_device,omitempty"`
	Label      string            `json:"label,omitempty"` // name in words, where the input has one
	NUMA       *int              `json:"numa"`            // -1: the kernel says there is none
	Link       PCILink           `json:"link"`            // to the bridge above
	PhysFn     string            `json:"physfn,omitempty"`
	IOMMUGroup *int              `json:"iommu_group,omitempty"`
	ACS        ACS               `json:"acs,omitzero"`
	MaxReadReq *int              `json:"max_read_req,omitempty"` // bytes; nil: cannot tell
	Relaxed    *bool             `json:"relaxed_ordering,omitempty"`
	Attrs      map[string]string `json:"attrs,omitempty"`
}

// Role is what a PCI function is here.
type Role string

// The roles of PCI functions.
const (
	RoleRootPort   Role = "root port"
	RoleUpstream   Role = "upstream port"   // of a switch, towards the CPU
	RoleDownstream Role = "downstream port" // of a switch, towards a device
	RoleBridge     Role = "bridge"          // which of them cannot be told
	RoleGPU        Role = "gpu"
	RoleNIC        Role = "nic"
	RoleNVSwitch   Role = "nvswitch"
	RoleOther      Role = "other"
)

// PCILink is a PCIe link. A field that is nil is unknown.
type PCILink struct {
	Speed    *float64 `json:"gts"`       // now, GT/s a lane; an idle GPU lowers it
	Width    *int     `json:"width"`     // now, lanes
	MaxSpeed *float64 `json:"max_gts"`   // what both ends can, as far as known
	MaxWidth *int     `json:"max_width"` // likewise
}

// ACS is PCIe's Access Control Services of a bridge: redirection sends traffic between two devices below one switch up through the CPU.
type ACS struct {
	State   string   `json:"state,omitempty"`   // "on", "off", "absent", "cannot tell"; empty: not a bridge, or not looked at
	Enabled []string `json:"enabled,omitempty"` // "SV", "RR", "CR", "UF", "EC" …
	Why     string   `json:"why,omitempty"`     // for "cannot tell"
}

// PeerLink is a direct link between two PCIe switches (an XML's pcilink).
type PeerLink struct {
	A string `json:"a"`
	B string `json:"b"`
}

// EdgeKind is the kind of a connection between two things of a graph.
type EdgeKind string

// The kinds of edges.
const (
	EdgePCI    EdgeKind = "pci"
	EdgeNVLink EdgeKind = "nvlink"
	EdgeC2C    EdgeKind = "c2c"
	EdgeHost   EdgeKind = "host bridge" // a host bridge or device to its NUMA node
	EdgeNUMA   EdgeKind = "numa"        // between NUMA nodes
)

// Edge is one connection of the graph, with its bandwidth one way. Ends are ids (GPU0, CPU1) or bus ids.
type Edge struct {
	A      string   `json:"a"`
	B      string   `json:"b"`
	Kind   EdgeKind `json:"kind"`
	Text   string   `json:"text,omitempty"` // "gen5 x16", "18 links"
	Gen    *int     `json:"gen,omitempty"`  // PCIe generation now
	MaxGen *int     `json:"max_gen,omitempty"`
	Width  *int     `json:"width,omitempty"`
	MaxW   *int     `json:"max_width,omitempty"`
	GBs    *float64 `json:"gbs"`     // now; nil: unknown
	MaxGBs *float64 `json:"max_gbs"` // nil: unknown
}

// Path is the way between two endpoints (GPUs and NICs).
type Path struct {
	A   string `json:"a"`
	B   string `json:"b"`
	SMI string `json:"smi"` // as nvidia-smi topo -m prints it; SMIUnknown: cannot tell, Why says why
	// NCCL is the distance as NCCL (rules of NCCLRules) computes it, which NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL are compared with; empty: cannot tell.
	NCCL string `json:"nccl"`
	// GBs is the bandwidth of the narrowest hop one way at its best speed, in GB/s, from PCIe and NVLink line rates; nil: unknown. What the hop inside or between
	// CPUs gives is not known: Unknown names such hops, and between NUMA nodes GBs is nil.
	GBs     *float64 `json:"gbs"`
	NowGBs  *float64 `json:"gbs_now"`           // the same with the links' present speed
	NCCLGBs *float64 `json:"nccl_gbs"`          // what NCCL reckons with, from its own constants
	Narrow  string   `json:"narrow,omitempty"`  // the narrowest hop, in words
	Relay   string   `json:"relay,omitempty"`   // GPU through which NCCL would send instead (PXN), where GPUDirect RDMA works
	Unknown []string `json:"unknown,omitempty"` // hops whose bandwidth is not known
	Why     string   `json:"why,omitempty"`     // why something cannot be told
	PCI     string   `json:"pci"`               // the word without NVLink, as nvidia-smi topo -mp prints it
	Hops    []string `json:"hops,omitempty"`    // bus ids on the way, ends included
}

// MarshalJSON adds edges and paths, which follow from the rest.
func (g Graph) MarshalJSON() ([]byte, error) {
	type plain Graph // without this method
	p := plain(g)
	p.GPUs, p.NICs, p.CPUs, p.PCI = orEmpty(p.GPUs), orEmpty(p.NICs), orEmpty(p.CPUs), orEmpty(p.PCI)
	return json.Marshal(struct {
		plain
		Edges []Edge `json:"edges"`
		Paths []Path `json:"paths"`
	}{p, orEmpty(g.Edges()), orEmpty(g.Paths())})
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func (g *Graph) note(code, where, text string) {
	g.Notes = append(g.Notes, Note{Code: code, Where: where, Text: text})
}
