package ibverbs

// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// Device is an RDMA device that the library can name. Whether it can be opened shows in Open.
type Device struct {
	Name       string // "mlx5_0"
	NodeGUID   uint64
	NodeType   string // "channel adapter", "switch", "router", "iWARP adapter", …
	Transport  string // "InfiniBand" (RoCE as well), "iWARP", …
	UverbsPath string // "/dev/infiniband/uverbs0"
}

var nodeTypes = map[C.int]string{1: "channel adapter", 2: "switch", 3: "router", 4: "iWARP adapter", 5: "usNIC", 6: "usNIC over UDP", 7: "unspecified"}

var transports = map[C.int]string{0: "InfiniBand", 1: "iWARP", 2: "usNIC", 3: "usNIC over UDP", 4: "unspecified"}

// Devices lists the RDMA devices. None is an empty list; a kernel without RDMA support is an *Error with ENOSYS. It loads the library unless that
// was done.
//
// Implements: struct ibv_device **ibv_get_device_list(int *num_devices)
func Devices() ([]Device, error) {
	if _, err := Load(""); err != nil {
		return nil, err
	}
	var list *C.iv_device
	var n C.int
	if err := check("ibv_get_device_list", C.iv_devices(&list, &n), ""); err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(list))
	var out []Device
	for _, d := range unsafe.Slice(list, int(n)) {
		out = append(out, Device{
			Name: C.GoString(&d.name[0]), NodeGUID: uint64(d.guid), NodeType: name(nodeTypes, d.node_type), Transport: name(transports, d.transport),
			UverbsPath: "/dev/infiniband/" + C.GoString(&d.uverbs[0]),
		})
	}
	return out, nil
}

func name(of map[C.int]string, code C.int) string {
	if s, ok := of[code]; ok {
		return s
	}
	return fmt.Sprintf("unknown (%d)", int(code))
}

// Context is an opened device. Close it after everything that was made from it.
type Context struct {
	handle
	name string
}

// Open opens the device. Errors: *Error, with EACCES or ENOENT when /dev/infiniband is not there for this process.
//
// Implements: struct ibv_context *ibv_open_device(struct ibv_device *device)
func (d Device) Open() (*Context, error) {
	c := &Context{name: d.Name}
	name := C.CString(d.Name)
	defer C.free(unsafe.Pointer(name))
	err := c.open("device", func(p *unsafe.Pointer) error { return check("ibv_open_device", C.iv_open(name, p), "%s", d.Name) })
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close closes the device. Errors: *BusyError while anything made from it exists.
//
// Implements: int ibv_close_device(struct ibv_context *context)
func (c *Context) Close() error {
	return c.close(func(p unsafe.Pointer) error { return check("ibv_close_device", C.iv_close(p), "%s", c.name) })
}

// Name is the device's name.
func (c *Context) Name() string { return c.name }

// DeviceAttr is what a device is and its limits.
type DeviceAttr struct {
	FirmwareVersion              string
	NodeGUID, SysImageGUID       uint64
	VendorID, PartID, HWVersion  uint32
	MaxQP, MaxQPWR, MaxSGE       int // queue pairs, work requests of one, segments of a request
	MaxCQ, MaxCQE, MaxMR, MaxPD  int
	MaxQPRdAtom, MaxQPInitRdAtom int // outstanding READs and atomics of a queue pair as their target, and as their initiator
	Ports                        int
	MaxMRBytes                   uint64
	Atomics                      string // "none", "HCA" (atomic among this adapter's), "global" (also against processors)
}

var atomics = map[C.int]string{0: "none", 1: "HCA", 2: "global"}

// Attr asks for the device's attributes.
//
// Implements: int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr)
func (c *Context) Attr() (DeviceAttr, error) {
	p, err := c.use()
	if err != nil {
		return DeviceAttr{}, err
	}
	var a C.iv_attr
	if err := check("ibv_query_device", C.iv_query_device(p, &a), "%s", c.name); err != nil {
		return DeviceAttr{}, err
	}
	return DeviceAttr{
		FirmwareVersion: C.GoString(&a.firmware[0]), NodeGUID: uint64(a.node_guid), SysImageGUID: uint64(a.sys_image_guid),
		VendorID: uint32(a.vendor_id), PartID: uint32(a.part_id), HWVersion: uint32(a.hw_version),
		MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge), MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr),
		MaxPD: int(a.max_pd), MaxQPRdAtom: int(a.max_qp_rd_atom), MaxQPInitRdAtom: int(a.max_qp_init_rd_atom), Ports: int(a.ports),
		MaxMRBytes: uint64(a.max_mr_bytes), Atomics: name(atomics, a.atomics),
	}, nil
}

// PortState is the logical state of a port.
type PortState int

// The port states. Only an active port carries data.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	return pick([]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}, int(s))
}

// LinkLayer is what a port speaks.
type LinkLayer int

// The link layers.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string {
	return pick([]string{"unspecified", "InfiniBand", "Ethernet"}, int(l))
}

func pick(names []string, i int) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return "unknown (" + strconv.Itoa(i) + ")"
}

// MTU is the largest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096.
type MTU int

// mtuOf decodes the interface's code, 0 for one that it does not have.
func mtuOf(code C.int) MTU {
	if code < 1 || code > 5 {
		return 0
	}
	return MTU(128) << uint(code)
}

// code is the interface's, 0 when m is none of the sizes.
func (m MTU) code() C.int {
	for c := C.int(1); c <= 5; c++ {
		if mtuOf(c) == m {
			return c
		}
	}
	return 0
}

// PortAttr is the state of a port.
type PortAttr struct {
	State              PortState
	PhysState          int // 2 polling, 3 disabled, 5 link up
	LinkLayer          LinkLayer
	MaxMTU, ActiveMTU  MTU
	LID, SMLID         uint16  // 0 on Ethernet
	GIDs, PKeys        int     // slots in the tables
	GRHRequired        bool    // the port is reached by global routes only
	Width              int     // lanes, 0 unknown
	LaneGbps, RateGbps float64 // 10^9 bits a second; 0 unknown
}

var laneCounts = map[C.int]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}

// laneGbps is the rate of a lane by the interface's code: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
var laneGbps = map[C.int]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}

// Port asks for the state of a port. Ports count from 1.
//
// Implements: int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *port_attr)
func (c *Context) Port(n int) (PortAttr, error) {
	p, err := c.use()
	if err != nil {
		return PortAttr{}, err
	}
	var a C.iv_port
	if err := check("ibv_query_port", C.iv_query_port(p, C.int(n), &a), "%s, port %d", c.name, n); err != nil {
		return PortAttr{}, err
	}
	out := PortAttr{
		State: PortState(a.state), PhysState: int(a.phys_state), LinkLayer: LinkLayer(a.link_layer), MaxMTU: mtuOf(a.max_mtu), ActiveMTU: mtuOf(a.active_mtu),
		LID: uint16(a.lid), SMLID: uint16(a.sm_lid), GIDs: int(a.gids), PKeys: int(a.pkeys), GRHRequired: a.grh_required != 0,
		Width: laneCounts[a.width], LaneGbps: laneGbps[a.speed],
	}
	if out.RateGbps = float64(out.Width) * out.LaneGbps; out.RateGbps == 0 {
		// Rates from XDR on do not fit the interface's eight bits; the kernel's text has them.
		out.RateGbps = sysRate(c.portFile(n, "rate"))
	}
	return out, nil
}

// sysRoot is where the kernel shows RDMA devices. A variable for tests.
var sysRoot = "/sys/class/infiniband"

func (c *Context) portFile(port int, name string) string {
	return fmt.Sprintf("%s/%s/ports/%d/%s", sysRoot, c.name, port, name)
}

// sysRate reads "400 Gb/sec (4X NDR)", 0 when it cannot.
func sysRate(path string) float64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	number, _, ok := strings.Cut(string(b), " Gb/sec")
	rate, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil {
		return 0
	}
	return rate
}
