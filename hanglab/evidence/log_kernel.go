package evidence

import (
	"bytes"
	"strings"
)

// kernel takes lines of the kernel's log, as dmesg, journalctl, and syslog print it.
func (c *logContext) kernel(line []byte, at Where) bool {
	return c.xid(line, at) || c.oomKill(line, at) || c.blocked(line, at) || c.linkUp(line, at) || c.linkDown(line, at) || c.busError(line, at)
}

// blocked takes "INFO: task python3:4100 blocked for more than 120 seconds." and a file server that does not answer: host code is stuck in the kernel.
func (c *logContext) blocked(line []byte, at Where) bool {
	f := newFact(Stopped, at, line)
	if before, rest, ok := bytes.Cut(line, []byte(" blocked for more than ")); ok {
		_, task, ok := bytes.Cut(before, []byte("task "))
		if !ok {
			return false
		}
		f.PID = max(trailingNumber(task), 0)
		if n, _, ok := leadingNumber(rest); ok {
			f.RanMs = int64(n) * 1000
		}
		f.Detail = "blocked in the kernel"
	} else if bytes.Contains(line, []byte("nfs: server ")) && bytes.Contains(line, []byte("not responding")) {
		f.Detail = "the file server does not answer"
	} else {
		return false
	}
	c.addKernel(f)
	return true
}

// xid takes "NVRM: Xid (PCI:0000:dc:00): 45, pid=18990, name=python3, …" and the switch's SXid. Some have no pid, and old ones no comma.
func (c *logContext) xid(line []byte, at Where) bool {
	i := bytes.Index(line, []byte("Xid ("))
	if i < 0 {
		return false
	}
	bus, rest, ok := bytes.Cut(line[i+len("Xid ("):], []byte(")"))
	if !ok {
		return false
	}
	n, rest, ok := leadingNumber(bytes.TrimLeft(rest, ": "))
	if !ok || n <= 0 || n > 1<<20 {
		return false
	}
	f := newFact(Xid, at, line)
	f.Code = n
	what := ""
	if i > 0 && line[i-1] == 'S' { // of a switch, which is no rank's
		what = "SXid "
	} else {
		f.BusID = kernelBus(bus)
	}
	f.Mild = containsAny(rest, "Nonfatal", "Non-fatal", "nonfatal", "non-fatal")
	f.Detail = what + cutText(bytes.TrimPrefix(bus, []byte("PCI:")), 40) + " " + cutText(bytes.TrimLeft(rest, ", "), 200)
	if pid, ok := numberBehind(rest, "pid="); ok && pid > 0 {
		f.PID = pid
	}
	if _, name, ok := bytes.Cut(rest, []byte("name=")); ok {
		name, _, _ = bytes.Cut(name, []byte(","))
		f.Program = programName(name)
	}
	f.Consequence = n == 45 && bytes.Contains(rest, []byte("revious Xid")) || bytes.Contains(rest, []byte("caused by previous"))
	c.addKernel(f)
	return true
}

// addKernel keeps a fact of a host: no rank's prefix applies.
func (c *logContext) addKernel(f Fact) {
	f.Host = c.prefix.Host
	c.addOther(f)
}

// oomKill takes the line that names the victim; the lines around it say the same. The pid is the host's, which a container's log does not have.
func (c *logContext) oomKill(line []byte, at Where) bool {
	i := bytes.Index(line, []byte("Killed process "))
	if i < 0 {
		if bytes.Contains(line, []byte("invoked oom-killer")) {
			return true
		}
		i = bytes.Index(line, []byte("oom-kill:constraint="))
		if i < 0 {
			return false
		}
		pid, ok := numberBehind(line[i:], ",pid=")
		if ok {
			f := newFact(OOMKill, at, line)
			f.PID, f.Signal, f.Detail = pid, 9, "kernel"
			f.Program = programName(fieldBehind(line[i:], ",task="))
			f.cgroup(fieldBehind(line[i:], ",task_memcg="))
			f.Op = f.Program
			c.addKernel(f)
		}
		return true
	}
	pid, rest, ok := leadingNumber(line[i+len("Killed process "):])
	if !ok {
		return false
	}
	name := ""
	if bytes.HasPrefix(rest, []byte(" (")) {
		in, _, _ := bytes.Cut(rest[2:], []byte(")"))
		name = programName(in)
	} else if _, in, ok := bytes.Cut(rest, []byte(" (")); ok { // "Killed process 123, UID 0, (python)" of old kernels
		in, _, _ = bytes.Cut(in, []byte(")"))
		name = programName(in)
	}
	if list := c.facts[OOMKill]; list != nil && len(list.last) == 0 { // the line before, of the same event
		if last := list.first[len(list.first)-1]; last.PID == pid && at.Line-last.Where.Line < 8 {
			last.Where, last.Text = at, factText(line)
			if last.Program == "" {
				last.Program, last.Op = name, name
			}
			return true
		}
	}
	f := newFact(OOMKill, at, line)
	f.PID, f.Signal, f.Detail, f.Program, f.Op = pid, 9, "kernel", name, name
	c.addKernel(f)
	return true
}

// fieldBehind is what follows a word up to the next comma.
func fieldBehind(b []byte, word string) []byte {
	_, rest, _ := bytes.Cut(b, []byte(word))
	rest, _, _ = bytes.Cut(rest, []byte(","))
	return rest
}

// programName is a program's name without its folder. The kernel cuts names at 15 bytes. "" if it is not said.
func programName(b []byte) string {
	b = bytes.Trim(b, "'\" ")
	b = b[bytes.LastIndexByte(b, '/')+1:]
	if bytes.Contains(b, []byte("unknown")) {
		return ""
	}
	return cutText(b, 60)
}

// cgroup notes where the process lived. In a container it has another process id than the kernel's.
func (f *Fact) cgroup(path []byte) {
	if len(path) == 0 {
		return
	}
	f.Detail += ", cgroup " + cutText(path, 120)
	f.PIDOutside = containsAny(path, "kubepods", "docker", "containerd", "cri-", "crio", "libpod", "lxc", "garden", "enroot", "podman")
}

// linkWords are what drivers print when a link or its card goes away; all words of one must be there.
var linkWords = [][2]string{
	{"mlx5_", "ink down"}, {"mlx5_", "port_state"}, {"mlx5_", "health compromised"}, {"mlx5_", "device's health"}, {"mlx5_", "assert_var"}, {"mlx5_", "Fatal error"},
	{"mlx5_", "cable error"}, {"mlx5_", "Cable error"}, {"mlx5_", "emporarily"}, {"mlx5_", "ealth recovery"}, {"mlx5_", "state DOWN"},
	{"Link is Down", ""}, {"link is not ready", ""}, {"NVLink", "rror"}, {"NVLink", "ink is down"}, {"NVLink", "inactive"}, {"fabric manager", "rror"},
	{"Lost carrier", ""}, {"link down", ""}, {"Link down", ""}, {"link is down", ""},
}

// linkNoise is in lines about interfaces that carry no job, and of links that are being set up.
var linkNoise = []string{"NETDEV_UP", "NETDEV_CHANGE", "veth", "docker", "virbr", "cali", "cni", "flannel", "vnet", " lo: ", "tap", "wlan", " br-", "usb"}

// linkUp takes the words that a link or card is back.
func (c *logContext) linkUp(line []byte, at Where) bool {
	up := bytes.Contains(line, []byte("mlx5_")) && containsAny(line, "ink up", "ealth recovery succe", "state ACTIVE", "ecovered") || containsAny(line, "link becomes ready", "Link is Up", "Link is up", "NIC Link is Up")
	if !up || containsAny(line, linkNoise...) || containsAny(line, "NCCL INFO") {
		return false
	}
	f := newFact(LinkUp, at, line)
	f.Detail = cutText(bytes.TrimSpace(c.prefix.text), 200)
	c.addKernel(f)
	return true
}

func (c *logContext) linkDown(line []byte, at Where) bool {
	for _, w := range linkWords {
		if !bytes.Contains(line, []byte(w[0])) || !bytes.Contains(line, []byte(w[1])) {
			continue
		}
		if containsAny(line, "CUDA error", "NCCL INFO") { // a program's own word
			return false
		}
		if containsAny(line, linkNoise...) {
			return true
		}
		f := newFact(LinkDown, at, line)
		f.Detail = cutText(bytes.TrimSpace(c.prefix.text), 200)
		c.addKernel(f)
		return true
	}
	return false
}

// busError takes PCIe errors that were not corrected, and a GPU that is gone.
func (c *logContext) busError(line []byte, at Where) bool {
	gone := bytes.Contains(line, []byte("fallen off the bus"))
	aer := bytes.Contains(line, []byte("AER: ")) || bytes.Contains(line, []byte("PCIe Bus Error"))
	if !gone && (!aer || bytes.Contains(line, []byte("orrected")) && !bytes.Contains(line, []byte("ncorrected"))) {
		return false
	}
	mild := containsAny(line, "Non-Fatal", "Nonfatal", "non-fatal", "NonFatal")
	f := newFact(Xid, at, line)
	from := c.prefix.text
	if _, device, ok := bytes.Cut(from, []byte("eceived: ")); ok && busIn(device) != "" { // the port says whose error it was
		from = device
	} else if _, device, ok := bytes.Cut(from, []byte("eceived from ")); ok && busIn(device) != "" {
		from = device
	}
	f.BusID, f.Mild = busIn(from), mild
	f.Detail = strings.TrimSpace(f.BusID + " " + cutText(bytes.TrimSpace(c.prefix.text), 200))
	if gone {
		f.Code = 79
	} else if !bytes.Contains(line, []byte("rror")) {
		return false
	}
	c.addKernel(f)
	return true
}
