package ncclog

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	shmExtend  = rx(`(?:failed to extend|Error while creating shared memory segment) (/dev/shm/\S+?)(?: to (\d+) bytes| \(size (\d+)\))(?:,? error: (.*?))?\.?$`)
	shmError   = rx(`Error while (creating|attaching to|attaching) shared memory segment (\S+) \(size (\d+)\)(?:,? error: (.*?))?\.?$`)
	cudaFail   = rx(`(?i)(?:Cuda failure|CUDA error|Unhandled CUDA)(?: (\d+))?:? ?'([^']*)'`)
	connFail   = rx(`(?:Connect to (\S+) failed ?:? ?(.*)|socketPollConnect:? (?:Connect )?to (\S+) (?:returned|failed with error) ?(.*)|[Cc]onnect to (\S+) returned (.*?)(?:,.*)?)$`)
	truncated  = rx(`(?:peer (\S+) )?message truncated ?: ?(?:receiving (\d+) bytes instead of (\d+))?`)
	sizes      = rx(`(?:expected|local) (\d+), (?:got|remote) (\d+)`)
	collSizes  = rx(`(?:peer (\S+) )?collective mismatch error,? local size (\d+) remote size (\d+)|may be a mismatch in collective`)
	ibReg      = rx(`Call to (ibv_reg_(?:dmabuf_)?mr\w*) failed(?: with error)? ?(.*)`)
	ibMake     = rx(`Call to (ibv_create_(?:qp|cq)\w*|ibv_alloc_pd|ibv_open_device) failed(?: with error)? ?(.*)`)
	ibModify   = rx(`Call to (ibv_modify_qp)\w* failed(?: with error)? ?(.*)`)
	completion = rx(`Got completion (?:from peer|with)`)
	asyncEvent = rx(`(?i)(?:got (?:non-fatal )?async (?:error )?event|async fatal event)`)
	tooMany    = rx(`(?i)too many open files|EMFILE`)
	acceptFail = rx(`\[Service thread\] Accept failed ?(.*)`)
	proxyMany  = rx(`\[Proxy service\] Too many connections`)
)

// handled are the forms of warnings that some function of this file turns into a finding.
var handled = []*regexp.Regexp{shmExtend, shmError, cudaFail, connFail, truncated, collSizes, ibReg, ibMake, ibModify, completion, asyncEvent, tooMany, acceptFail, proxyMany}

// group gathers messages of one finding.
type group struct {
	hosts, what []string
	lines       []Line
}

func (g *group) take(host, what string, at Line) {
	g.hosts, g.what, g.lines = append(g.hosts, host), append(g.what, what), append(g.lines, at)
}

// firstOf is the first group that is not empty.
func firstOf(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

func (f *finder) sharedMemory() {
	var full, attach group
	for _, m := range f.said {
		if g := shmExtend.FindStringSubmatch(m.text); g != nil {
			n, _ := strconv.ParseInt(firstOf(g[2], g[3]), 10, 64)
			full.take(hostAt(m.proc), firstOf(g[4], "no reason given")+", "+bytesText(n)+" wanted", m.at)
		} else if g := shmError.FindStringSubmatch(m.text); g != nil {
			attach.take(hostAt(m.proc), firstOf(g[4], "no reason given"), m.at)
		}
	}
	if len(full.lines) > 0 {
		title := "/dev/shm has no room" + on(full.hosts)
		if s := strings.Join(full.what, " "); !strings.Contains(s, "No space") && strings.Contains(s, "no reason given") {
			title = "NCCL could not make its file in /dev/shm" + on(full.hosts) + "; this version gives no reason, a full /dev/shm is the usual one"
		} else if !strings.Contains(s, "No space") {
			title = "NCCL could not make its file in /dev/shm" + on(full.hosts)
		}
		f.add(tierCause, false, Finding{Severity: Fault, ID: "shm-full", Title: title + " (" + names(3, full.what) + ")", Evidence: full.lines,
			Cost: "initialisation, or the first call, fails; NCCL needs about that much for every channel and pair of ranks that go through host memory",
			Next: "`df -h /dev/shm` in the container while the job starts, and old files of dead jobs: `ls -l /dev/shm/nccl-*`",
			Fix:  "docker --shm-size=1g or more, in Kubernetes an emptyDir of medium Memory on /dev/shm (containers start with 64 MB); remove old files. NCCL_SHM_DISABLE=1 also runs, but slower"})
	}
	if len(attach.lines) > 0 {
		f.add(tierCause, len(full.lines) > 0, Finding{Severity: Fault, ID: "shm-attach", Evidence: attach.lines,
			Title: "A rank cannot open the shared memory of its neighbour" + on(attach.hosts) + " (" + names(3, attach.what) + ")",
			Cost:  "initialisation fails", Next: "do the ranks of this node run in different containers with a /dev/shm each? Does the other rank report that /dev/shm is full? RemoveIPC in logind.conf?",
			Fix: "one /dev/shm for all ranks of a node (--ipc=host or a shared volume); RemoveIPC=no"})
	}
}

// cudaKind is what a failure of CUDA inside NCCL mostly means.
type cudaKind struct {
	id, title, next, fix string
	weak                 bool
}

// cudaKinds are looked up by a part of the text; CUDA's numbers are printed by some versions only.
var cudaKinds = []struct {
	part string
	cudaKind
}{
	{"out of memory", cudaKind{"cuda-oom", "GPU memory ran out before NCCL had its buffers", "`nvidia-smi` while the job starts: does another process hold the GPU? How much has the program taken before the first call?",
		"leave NCCL about 1 to 2 GB a communicator set; fewer channels (NCCL_MAX_CTAS), fewer communicators, smaller NCCL_BUFFSIZE", false}},
	{"invalid device ordinal", cudaKind{"cuda-invalid-device", "A rank asks for a GPU that it cannot see", "CUDA_VISIBLE_DEVICES and the device each rank chooses; GPUs given to the container",
		"choose the device by local rank, below the number of visible GPUs", false}},
	{"peer access", cudaKind{"cuda-peer-access", "CUDA refuses peer access between two GPUs", "`nvidia-smi topo -p2p r`; different CUDA_VISIBLE_DEVICES in containers of one node; IOMMU, MIG",
		"mend P2P; NCCL_P2P_DISABLE=1 tells whether it is only that", false}},
	{"system not yet initialized", cudaKind{"cuda-system-not-ready", "The NVSwitch fabric of the machine is not ready for CUDA", "`systemctl status nvidia-fabricmanager`, `nvidia-smi -q | grep -A4 Fabric`; versions of driver and Fabric Manager must be equal",
		"start the Fabric Manager that belongs to the driver", false}},
	{"unsupported display driver", cudaKind{"cuda-driver-mismatch", "The driver is too old for the CUDA runtime, or the parts of the driver differ", "`nvidia-smi`; a compat library in the container", "update the driver or use a library built with an older CUDA", false}},
	{"driver version is insufficient", cudaKind{"cuda-driver-mismatch", "The driver is too old for the CUDA runtime", "`nvidia-smi`; a compat library in the container", "update the driver or use a library built with an older CUDA", false}},
	{"no kernel image", cudaKind{"cuda-no-kernel", "This NCCL has no code for this GPU", "the GPU's compute capability and the CUDA version in the `NCCL version` line", "an NCCL built for this GPU (newer, or with another CUDA)", false}},
	{"initialization error", cudaKind{"cuda-fork", "CUDA could not be initialised in this process", "does the program fork after its first use of CUDA? CUDA does not survive a fork", "start workers by spawn, or fork before any CUDA call", false}},
	{"no cuda-capable device", cudaKind{"cuda-invalid-device", "The process sees no GPU", "CUDA_VISIBLE_DEVICES, the container's GPUs, `nvidia-smi`", "give the container its GPUs", false}},
	{"illegal memory access", cudaKind{"cuda-sticky", "An earlier kernel on this GPU failed; NCCL only met the error", "the program's own kernels: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; Xid in dmesg", "mend that kernel", true}},
	{"launch failure", cudaKind{"cuda-sticky", "A kernel on this GPU failed", "the program's own kernels: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; Xid in dmesg", "mend that kernel, or the GPU", true}},
	{"uncorrectable", cudaKind{"cuda-hardware", "The GPU reports an uncorrectable error", "Xid in dmesg, `nvidia-smi -q -d ECC`", "take the GPU out of service", false}},
}

func (f *finder) cudaErrors() {
	groups := map[string]*group{}
	kinds := map[string]cudaKind{}
	var ids []string
	for _, w := range f.log.Warnings {
		g := cudaFail.FindStringSubmatch(w.Text)
		if g == nil || nvlsBind.MatchString(w.Text) {
			continue
		}
		k := cudaKindOf(w.Place, g[2])
		if groups[k.id] == nil {
			groups[k.id], kinds[k.id] = &group{}, k
			ids = append(ids, k.id)
		}
		groups[k.id].take(hostAt(w.Process), strings.TrimSpace(g[1]+" '"+g[2]+"' in "+placeFile(w.Place)), w.At)
	}
	for _, x := range f.log.Failures {
		if strings.Contains(x.At.Text, "CUDA out of memory") {
			if groups["cuda-oom"] == nil {
				groups["cuda-oom"], kinds["cuda-oom"] = &group{}, cudaKinds[0].cudaKind
				ids = append(ids, "cuda-oom")
			}
			groups["cuda-oom"].take("", "the program ran out of it itself", x.At)
		}
	}
	for _, id := range ids {
		k, g := kinds[id], groups[id]
		t := tierCause
		if k.weak {
			t = tierLoose
		}
		f.add(t, k.weak, Finding{Severity: Fault, ID: id, Title: k.title + on(g.hosts) + " (" + names(3, g.what) + ")", Evidence: g.lines,
			Cost: "the rank fails, and all its peers after it", Next: k.next, Fix: k.fix})
	}
}

var nvlsBind = rx(`Multicast memory`)

// placeFile is the file of a place, without the line: lines move from version to version.
func placeFile(place string) string {
	file, _, _ := strings.Cut(place, ":")
	return firstOf(file, "an unnamed place")
}

// cudaKindOf reads a failure by where it happened, then by its text.
func cudaKindOf(place, text string) cudaKind {
	low := strings.ToLower(text)
	if strings.Contains(place, "nvls.cc") && !strings.Contains(low, "out of memory") {
		return cudaKind{"nvls-bind-failed", "NVLink SHARP (NVLS) multicast cannot be set up", nvlsNext, nvlsFix, false}
	}
	for _, k := range cudaKinds {
		if strings.Contains(low, k.part) {
			return k.cudaKind
		}
	}
	if strings.Contains(place, "p2p.cc") || strings.Contains(low, "mapping of buffer") {
		return cudaKind{"cuda-ipc", "A GPU's memory cannot be shared with its neighbour", "do the ranks of this node run in containers that see different GPUs or have no common /dev/shm and IPC name space?",
			"--ipc=host and all GPUs visible in each container; NCCL_P2P_DISABLE=1 tells whether it is only that", false}
	}
	return cudaKind{"cuda-failure", "A CUDA call inside NCCL failed", "Xid in dmesg of that host; with CUDA_LAUNCH_BLOCKING=1 it shows whether an earlier kernel failed", "", true}
}

// connections are sockets that could not be opened: refused means that nobody listens, a time-out that nobody answers.
func (f *finder) connections() {
	var local, other group
	why := map[string]bool{}
	for _, w := range f.log.Warnings {
		g := connFail.FindStringSubmatch(w.Text)
		if g == nil {
			continue
		}
		peer, reason := firstOf(g[1], g[3], g[5]), firstOf(g[2], g[4], g[6])
		why[strings.ToLower(reason)] = true
		if strings.HasPrefix(peer, "fe80") {
			local.take(hostAt(w.Process), peer, w.At)
			continue
		}
		other.take(hostAt(w.Process), f.peerName(peer)+reasonText(reason), w.At)
	}
	if len(local.lines) > 0 {
		f.add(tierCause, false, Finding{Severity: Fault, ID: "connect-link-local", Evidence: local.lines,
			Title: "NCCL tries to reach peers by link-local addresses" + on(local.hosts) + ": " + names(3, local.what),
			Cost:  "the ranks cannot find each other",
			Next:  "which interface do the Bootstrap lines name? An IPoIB port without an IPv4 address wins by its name (ib*)",
			Fix:   "set NCCL_SOCKET_IFNAME to an interface with a routed address on all hosts, or NCCL_SOCKET_FAMILY=AF_INET"})
	}
	if len(other.lines) == 0 {
		return
	}
	next := "from that host: `nc -vz <address> <port>` and `ip route get <address>`; is it the interface that you meant (Bootstrap and NET/Socket lines)? Is the process at the other end alive?"
	if len(why) == 1 && why["connection refused"] {
		next = "refused means that the host was reached and nobody listens: is the process at the other end alive? Look at its log first"
	}
	f.add(tierLink, false, Finding{Severity: Fault, ID: "connect-failed", Evidence: other.lines,
		Title: "Connections" + on(other.hosts) + " to a peer fail: " + names(4, other.what), Cost: "initialisation fails or hangs; messages of the proxy after it are consequences",
		Next: next, Fix: "one network that all hosts share in NCCL_SOCKET_IFNAME; open all ports between the hosts; before 2.24 connections are tried only a few times, so ranks that start late fail"})
}

func reasonText(r string) string {
	r = strings.Trim(r, " .:")
	if r == "" {
		return ""
	}
	return ": " + r
}

// sizeMismatch is what a transport notices when two ranks do not run the same call in the same way.
func (f *finder) sizeMismatch() {
	var g group
	for _, w := range f.log.Warnings {
		if m := truncated.FindStringSubmatch(w.Text); m != nil && !strings.Contains(w.Text, "Message truncated") {
			what := "sizes not printed"
			if m[2] != "" {
				what = "expected " + m[3] + ", got " + m[2] + " bytes"
			}
			if m[1] != "" {
				what += " from " + f.peerName(m[1])
			}
			g.take(hostAt(w.Process), what, w.At)
		} else if m := collSizes.FindStringSubmatch(w.Text); m != nil {
			what := "sizes not printed"
			if m[2] != "" {
				what = "local " + m[2] + ", remote " + m[3] + " bytes"
			}
			if m[1] != "" {
				what += ", peer " + f.peerName(m[1])
			}
			g.take(hostAt(w.Process), what, w.At)
		}
	}
	if len(g.lines) == 0 {
		return
	}
	env := "nothing in these logs tells the environments of the two ranks apart"
	for _, c := range f.found {
		if c.ID == "env-differs" {
			env = "the environment differs: see env-differs"
		}
	}
	title := "Two ranks do not send and expect the same amount" + on(g.hosts) + ": " + names(3, g.what) + ". They run different calls, or the same call with different settings"
	if m := sizes.FindStringSubmatch(g.what[0]); m != nil && len(m[1]) > 4 && len(m[2]) > 4 && m[1] != m[2] {
		a, _ := strconv.ParseInt(m[1], 10, 64)
		b, _ := strconv.ParseInt(m[2], 10, 64)
		if a%65536 == 0 && b%65536 == 0 {
			title += ". Both are multiples of 64 KiB, as the chunks of different protocols are"
		}
	}
	f.add(tierCause, false, Finding{Severity: Fault, ID: "message-size-mismatch", Evidence: g.lines, Title: title,
		Cost: "the job stops here; without the check it would hang or give wrong results",
		Next: "the environment of all ranks (" + env + "); COLL lines of both ranks (NCCL_DEBUG_SUBSYS=COLL); whether all ranks have the same NCCL",
		Fix:  "if it runs with NCCL_PROTO=Simple on all ranks the settings or versions differ; otherwise the program calls with different sizes or in another order"})
}

// deviceLimits are resources of the host: locked memory, queue pairs, file descriptors.
func (f *finder) deviceLimits() {
	var reg, mk, mod, files, accept, proxy group
	for _, w := range f.log.Warnings {
		h := hostAt(w.Process)
		switch {
		case tooMany.MatchString(w.Text):
			files.take(h, "", w.At)
		case ibReg.MatchString(w.Text):
			m := ibReg.FindStringSubmatch(w.Text)
			reg.take(h, m[1]+reasonText(m[2]), w.At)
		case ibMake.MatchString(w.Text):
			m := ibMake.FindStringSubmatch(w.Text)
			mk.take(h, m[1]+reasonText(m[2]), w.At)
		case ibModify.MatchString(w.Text):
			m := ibModify.FindStringSubmatch(w.Text)
			mod.take(h, strings.Trim(m[2], " :"), w.At)
		case acceptFail.MatchString(w.Text):
			accept.take(h, acceptFail.FindStringSubmatch(w.Text)[1], w.At)
		case proxyMany.MatchString(w.Text):
			proxy.take(h, "", w.At)
		}
	}
	for _, p := range f.log.Processes {
		for _, t := range p.Traces {
			if tooMany.MatchString(t.At.Text) {
				files.take(p.Host, "", t.At)
			}
		}
	}
	f.limit(files, tierCause, false, Finding{ID: "fd-exhausted", Title: "The process has no file descriptors left{on}", Cost: "connections of NCCL fail, also of healthy peers",
		Next: "`ulimit -n` in the job; `ls /proc/<pid>/fd | wc -l`", Fix: "raise nofile (65536 or more; LimitNOFILE= for services, --ulimit nofile= for docker)"})
	regNext := "`ulimit -l` in the job, for Bad address `lsmod | grep nvidia_peermem` or whether the driver offers DMA-BUF"
	f.limit(reg, tierCause, false, Finding{ID: "ib-reg-mr", Title: "Memory cannot be registered with the NIC{on} ({what})", Cost: "connections fail",
		Next: regNext, Fix: "`Cannot allocate memory`: memlock unlimited (limits.conf, LimitMEMLOCK=, docker --ulimit memlock=-1). `Bad address`, `Invalid argument` on GPU memory: load nvidia_peermem or use DMA-BUF"})
	f.limit(mk, tierCause, false, Finding{ID: "ib-create", Title: "The NIC's resources cannot be made{on} ({what})", Cost: "connections fail",
		Next: "`ulimit -l`, devices in /dev/infiniband and their rights, `rdma resource`", Fix: "memlock unlimited; give the container /dev/infiniband; fewer queue pairs (NCCL_IB_QPS_PER_CONNECTION)"})
	f.limit(mod, tierCause, false, Finding{ID: "ib-modify-qp", Title: "A queue pair cannot be connected{on} ({what})" + f.gidWords(), Cost: "this NIC reaches no peer; proxy and socket messages after it are consequences",
		Next: "`show_gids` on both hosts; `ping -I <netdev of the NIC>` between the addresses of the NICs; `ib_write_bw -d <hca> -x <gid index>` between exactly these",
		Fix:  "RoCE: a routed GID of the same version on both sides (NCCL_IB_GID_INDEX, often 3 = RoCE v2, is automatic from 2.21), same VLAN and subnet; leave broken NICs out with NCCL_IB_HCA"})
	f.limit(accept, tierLoose, true, Finding{ID: "accept-failed", Title: "NCCL's service thread cannot take connections{on} ({what})", Next: "`ulimit -n`; at the end of a process the line is harmless"})
	f.limit(proxy, tierCause, false, Finding{ID: "proxy-connections", Title: "More peers than the proxy has places for{on}", Next: "number of ranks and communicators a node", Fix: "a newer NCCL; fewer communicators"})
}

// limit adds x for a group that is not empty.
func (f *finder) limit(g group, t tier, weak bool, x Finding) {
	if len(g.lines) == 0 {
		return
	}
	x.Severity, x.Evidence = Fault, g.lines
	x.Title = strings.ReplaceAll(f.fill(x.Title, g.hosts, g.what), " ()", "")
	f.add(t, weak, x)
}

func (f *finder) rasEvents() {
	var dead, other group
	for _, p := range f.log.Processes {
		for _, e := range p.RASEvents {
			switch low := strings.ToLower(e.At.Text); {
			case strings.Contains(low, "dead"):
				dead.take(p.Host, e.Value, e.At)
			case strings.Contains(low, "timeout"), strings.Contains(low, "timed out"):
				other.take(p.Host, e.Value, e.At)
			}
		}
	}
	f.limit(dead, tierState, true, Finding{ID: "ras-peer-dead", Title: "NCCL's RAS network gave up on a process ({what}, seen{on})", Cost: "its ranks will not answer any more",
		Next: "the log of that process; is the host up?"})
	if len(other.lines) > 0 {
		f.add(tierState, true, Finding{Severity: Odd, ID: "ras-timeout", Title: fmt.Sprintf("NCCL's RAS network waits for an answer%s (%s)", on(other.hosts), names(3, other.what)), Evidence: other.lines,
			Next: "is that peer alive, stopped in a debugger, or overloaded? `ncclras -v` on one of the hosts"})
	}
}
