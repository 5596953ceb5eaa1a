package ibverbs

import "fmt"

// wcTexts is indexed by the completion status.
var wcTexts = []string{
	"success", "local length error", "local queue pair operation error", "local EE context operation error", "local protection error",
	"work request flushed", "memory window bind error", "bad response", "local access error", "remote invalid request", "remote access error",
	"remote operation error", "transport retry counter exceeded", "receiver-not-ready retry counter exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state", "fatal error", "response timeout",
	"general error", "tag matching error", "tag matching rendezvous incomplete",
}

// wcFlushed is the status of what was outstanding when its queue pair broke.
const wcFlushed = 5

// wcCauses says for each status what is likely.
var wcCauses = map[int]string{
	1:  "a message is longer than the receive that it met, than the MTU (UD), or than the device allows",
	2:  "the queue pair or the work request is inconsistent: a fault of the program, or a local resource went away",
	4:  "the local key does not cover the buffer, or the adapter could not reach it. With GPU memory: PCIe access control (ACS) or the IOMMU turns the adapter's accesses away; host memory passes then. Turn ACS off on the path, iommu=pt",
	5:  "the queue pair was broken before this operation: the first failing completion of either side tells why",
	6:  "the memory window could not be bound: access rights",
	7:  "the peer's adapter answered what does not fit",
	8:  "the receive buffer is not covered by its local key or may not be written",
	9:  "the peer refuses the request: no receive long enough, or the operation is not enabled on its queue pair",
	10: "the peer's region does not cover the address, its remote key is another or was closed, or the right (remote write, read, atomic) is missing on the region or the queue pair",
	11: "the peer's adapter could not do it: its queue pair broke meanwhile, see the peer's message",
	12: "the peer does not answer: wrong GID pair or type, VLAN, firewall for UDP 4791, link cut, peer process gone. At once, with nothing moved: try another GID index; after traffic: loss, MTU on the path, cable",
	13: "the peer has posted no receive for too long: it is slower to start than this side, or stuck",
	15: "the peer allows fewer outstanding reads and atomics",
	16: "the peer gave the operation up",
	19: "the adapter broke: see the kernel's log",
	20: "the peer's answer took too long",
	21: "the driver tells no more: see the kernel's log",
}

// WCText names a completion status.
func WCText(status int) string {
	if status >= 0 && status < len(wcTexts) {
		return wcTexts[status]
	}
	return fmt.Sprintf("unknown status %d", status)
}

// vendorCauses adds what an adapter's own number tells beyond the status. Numbers are mlx5's.
var vendorCauses = map[[2]uint32]string{
	{4, 0x51}:  "vendor error 0x51 with GPU memory is what ACS or an IOMMU on the path between GPU and adapter brings",
	{12, 0x81}: "vendor error 0x81: no acknowledgement came back at all",
}

// WCCause says in plain words what a failed completion most likely means, "" for a good one and for what nothing is known about.
func WCCause(status int, vendor uint32) string {
	s := wcCauses[status]
	if v := vendorCauses[[2]uint32{uint32(status), vendor}]; v != "" {
		s += "; " + v
	}
	return s
}
