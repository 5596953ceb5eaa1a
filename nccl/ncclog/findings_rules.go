package ncclog

import (
	"regexp"
	"slices"
	"strings"
)

// msgRule turns one form of message into a finding. All messages of a form become one finding that names the hosts and what differs between them.
type msgRule struct {
	id       string
	severity string
	tier     tier
	weak     bool           // a consequence where the logs hold a cause
	effect   bool           // always a consequence
	re       *regexp.Regexp // of the text; the first group that matched, or what says, is the subject
	what     string         // template of the subject; "" the first group
	title    string         // {on}: " on host, host"; {what}: the subjects; {=NAME}: " (NAME=value)" where the log has it
	cost     string
	next     string
	fix      string
}

func rx(s string) *regexp.Regexp { return regexp.MustCompile(s) }

// bootstrapRules are about finding each other.
var bootstrapRules = []msgRule{
	{id: "bootstrap-no-interface", severity: Fault, re: rx(`(?i)^Bootstrap ?: no socket interface found`),
		title: "No network interface to find the other ranks by{on}: none fits the names or the address family that were asked for{=NCCL_SOCKET_IFNAME}{=NCCL_SOCKET_FAMILY}",
		cost:  "initialisation fails on these hosts; all other ranks wait for them",
		next:  "`ip -br addr` on each of these hosts: is there an interface of that name, up, with an address of the wanted family?",
		fix:   "name an interface that exists on every host, or unset NCCL_SOCKET_IFNAME; `eth` matches every name that begins so, `=eth0` only that one, `^docker` excludes"},
	{id: "socket-no-interface", severity: Fault, re: rx(`NET/Socket ?: no interface found`),
		title: "No network interface for data over sockets{on}{=NCCL_SOCKET_IFNAME}",
		next:  "`ip -br addr` on these hosts", fix: "name an interface that exists on every host in NCCL_SOCKET_IFNAME"},
	{id: "comm-id-invalid", severity: Fault, re: rx(`Invalid NCCL_COMM_ID`),
		title: "NCCL_COMM_ID is not of the form address:port{on}{=NCCL_COMM_ID}",
		fix:   "write it as <ipv4>:<port>, [<ipv6>]:<port> or <host name>:<port>"},
	{id: "socket-foreign", severity: Fault, tier: tierLink, re: rx(`(?:wrong type|wrong magic|wrong socket type|socket magic mismatch)(.*)`), what: " ",
		title: "A connection arrived that is not of this job, or at the wrong socket{on}",
		cost:  "up to NCCL 2.26 it ends the initialisation; from 2.27.3 a foreign connection is dropped",
		next:  "do the hosts have several networks, so that addresses cross? Does a port scanner or another job reach these ports?",
		fix:   "set NCCL_SOCKET_IFNAME to one network that all hosts share; keep scanners off; NCCL 2.27.3 or newer"},
	{id: "socket-empty-address", severity: Fault, re: rx(`connecting to address (\S*) ?with family \d+ is neither AF_INET`), what: " ",
		title: "NCCL has no address to connect to{on}",
		next:  "are P2P and SHM both switched off within one node, or is NCCL_COMM_ID set?{=NCCL_P2P_DISABLE}{=NCCL_SHM_DISABLE}{=NCCL_COMM_ID}",
		fix:   "undo NCCL_P2P_DISABLE and NCCL_SHM_DISABLE; unset NCCL_COMM_ID"},
	{id: "bootstrap-truncated", severity: Fault, re: rx(`Message truncated : received (\d+) bytes instead of (\d+)`), what: "$1 instead of $2 bytes",
		title: "The ranks exchange start-up messages of different size{on} ({what})",
		cost:  "initialisation fails", next: "the `NCCL version` lines of all ranks: are they the same library?",
		fix: "one libnccl for all ranks; if they are equal, try another version (such failures were reported with 2.19.3 and 2.20.5)"},
	{id: "bootstrap-rank-count", severity: Fault, re: rx(`Bootstrap Root : mismatch in (rank count|info) from procs`),
		title: "The ranks do not agree on who takes part{on}: different number of ranks, or an id that was used before",
		next:  "does the launcher give every process the same world size, and each a rank of its own? Is an old job still alive at that address?",
		fix:   "correct world size and ranks; make a new unique id for every communicator"},
	{id: "version-mismatch", severity: Fault, re: rx(`Mismatched NCCL version detected ?: (.*)`),
		title: "Ranks of one job load different NCCL versions{on}: {what}", cost: "initialisation fails",
		next: "`NCCL version` in every log; LD_LIBRARY_PATH, LD_PRELOAD and the nvidia-nccl wheel on every host", fix: "one libnccl.so.2 for all ranks"},
	{id: "ras-version-mismatch", severity: Odd, re: rx(`NCCL version mismatch with remote peer`),
		title: "NCCL's RAS network met a peer of another NCCL version{on}", next: "is it another job on these hosts, or do the ranks of this one differ?",
		fix: "one NCCL version a job; NCCL_RAS_ADDR keeps jobs on one host apart"},
}

// deviceRules are about GPUs and the node.
var deviceRules = []msgRule{
	{id: "duplicate-gpu", severity: Fault, re: rx(`Duplicate GPU detected ?: (rank \d+ and rank \d+ both on CUDA device \w+)`),
		title: "Two ranks use the same GPU{on}: {what}", cost: "initialisation fails",
		next: "the device each process chose, CUDA_VISIBLE_DEVICES, and whether the ranks a host really differ",
		fix:  "choose the device by local rank before the first CUDA or NCCL call (torch.cuda.set_device, cudaSetDevice)"},
	{id: "duplicate-gpu", severity: Fault, re: rx(`Multiple Ranks are using the same GPU`),
		title: "Two ranks use the same GPU or MIG partition{on}", cost: "initialisation fails",
		next: "the device each process chose, CUDA_VISIBLE_DEVICES, and whether the ranks a host really differ",
		fix:  "choose the device by local rank before the first CUDA or NCCL call; NCCL_MULTI_RANK_GPU_ENABLE=1 only if sharing is meant"},
	{id: "nvls-bind-failed", severity: Fault, re: rx(`Failed to bind NVLink SHARP \(NVLS\) Multicast memory.*?(?:CUDA error (\d+ '[^']*'))?\.?$`),
		title: "NVLink SHARP (NVLS) multicast cannot be set up{on}", cost: "2.29 and newer stop here; 2.27 and 2.28 go on without NVLS, slower",
		next: nvlsNext, fix: nvlsFix},
	{id: "p2p-nvlink-off", severity: Odd, re: rx(`P2P is disabled between NVLINK connected GPUs (\d+ and \d+)`),
		title: "GPUs {what} are connected by NVLink and yet cannot reach each other's memory{on}",
		cost:  "their data goes through host memory: about a tenth of the bandwidth of NVLink",
		next:  "`nvidia-smi topo -p2p r`, `nvidia-smi nvlink -s`, Xid messages in dmesg, the state of the Fabric Manager",
		fix:   "mend driver, Fabric Manager or IOMMU; reset the GPUs; NCCL_IGNORE_DISABLED_P2P=1 only silences the message"},
	{id: "mnnvl-imex", severity: Fault, re: rx(`MNNVL \(cliqueSize (\d+)\) is available but not working`),
		title: "Multi-node NVLink is there but does not work{on} (clique of {what} GPUs)", cost: "initialisation fails, or the data goes over the network",
		next: "`nvidia-imex-ctl -N` on all nodes of the clique; is there a /dev/nvidia-caps-imex-channels/channel0 in the container?",
		fix:  "start IMEX on every node with the same node list and give the container the channel; NCCL_MNNVL_ENABLE=0 goes by the network meanwhile"},
	{id: "max-shared-mem", severity: Odd, re: rx(`ncclMaxSharedMem (\d+) exceeds device/fn maxSharedMem (\d+)`), what: "$1 of $2 bytes",
		title: "NCCL's kernels want more shared memory than this GPU has{on} ({what})", cost: "kernels of NCCL may fail to launch",
		next: "is the GPU newer than this NCCL?", fix: "a newer NCCL (seen with 2.25.1 on new GeForce cards)"},
	{id: "topo-file-bad", severity: Odd,
		re:    rx(`(?:Could not open XML topology file (\S+)|XML Topology has wrong version|Attribute \S+ of node \S+ not found)`),
		title: "The topology file cannot be read{on}{=NCCL_TOPO_FILE}", next: "the file: path, version, all attributes",
		fix: "unset NCCL_TOPO_FILE, or write the file anew from a dump (NCCL_TOPO_DUMP_FILE)"},
	{id: "topo-pattern", severity: Odd, re: rx(`Could not find a path for pattern (\d+), falling back to simple order`),
		title: "NCCL found no good order of the GPUs{on} and takes the plain one", cost: "one channel, without regard to the topology: slow",
		next: "the `=== System` dump (NCCL_DEBUG_SUBSYS=GRAPH): is a GPU without a path to its peers or to a NIC?", fix: "mend the topology file or what hides devices"},
	{id: "nic-path-missing", severity: Odd, re: rx(`(Could not find NIC for rank \d+ in NVLS graph|Could not find any local path from gpu \d+ to net)`),
		title: "A GPU has no path to a NIC{on}: {what}", next: "NCCL_IB_HCA, the topology of the VM, `nvidia-smi topo -m`", fix: "give it a NIC, or a topology file that shows the true one"},
	{id: "pointer-device", severity: Fault, re: rx(`(\S+) : (\S+) allocated on device (\d+) mismatchs? with NCCL device (\d+)`), what: "$1, buffer $2: device $3, communicator on $4",
		title: "A buffer lies on another GPU than its communicator{on} ({what})", next: "the current device where the buffer is made", fix: "set the device before allocating"},
	{id: "driver-too-old", severity: Fault, re: rx(`CUDA Driver version found is (\d+)\. Minimum requirement is (\d+)`), what: "$1, needed $2",
		title: "The NVIDIA driver is too old for this NCCL{on} ({what})", fix: "newer driver, the cuda-compat package, or an NCCL built with an older CUDA"},
	{id: "cumem-host-fallback", severity: Info, re: rx(`cuMem host allocations do not appear to be working`),
		title: "NCCL cannot allocate host memory through CUDA{on} and uses /dev/shm", next: "does the container forbid NUMA calls, and is /dev/shm large enough?",
		fix: "docker --cap-add SYS_NICE, or NCCL_CUMEM_HOST_ENABLE=0 to say so"},
	{id: "library-too-old", severity: Fault, re: rx(`NCCL library is too old\. This application was compiled with (.*)`),
		title: "The program needs a newer NCCL than the one loaded{on}", next: "the `NCCL version` line", fix: "load the NCCL that the program was compiled with, or newer"},
	{id: "no-algorithm", severity: Fault, re: rx(`Error : no algorithm/protocol available(?: for function (\S+)(?: with datatype (\w+))?)?`), what: " for $1",
		title: "NCCL_ALGO or NCCL_PROTO leaves no algorithm and protocol{what}{on}{=NCCL_ALGO}{=NCCL_PROTO}", cost: "every such call fails, after a good initialisation",
		next: "which variables are set; not every function has every algorithm: Tree and NVLS have no Broadcast, for example",
		fix:  "unset both; from 2.24 they may be given for one function only: \"ring;allreduce:tree\""},
	{id: "coll-mismatch-detected", severity: Fault, re: rx(`Mismatched collective detected.*?(?:around rank (\d+)|$)`), what: "$1",
		title: "NCCL itself found that the ranks do not make the same call{on}, around rank {what}", cost: "the job stops or hangs",
		next: "COLL lines of that rank and its neighbours", fix: "the same sequence of calls with the same sizes on all ranks"},
	{id: "net-count-mismatch", severity: Odd, re: rx(`Detected mixed local Net device counts across ranks \(min (\d+), max (\d+)\)`), what: "$1 to $2",
		title: "The ranks do not have the same number of NICs ({what})", cost: "channels are planned for the poorest node",
		next: "`Rank N: M Net devices` lines: which host lacks one? `ibv_devinfo` there", fix: "bring the missing NIC up, or choose the same ones everywhere with NCCL_IB_HCA"},
	{id: "collnet-off", severity: Odd, re: rx(`(?:CollNet is not supported or fails to initialize|Cannot initialize CollNet, using point-to-point network instead)`),
		title: "CollNet (SHARP) could not be set up{on}; NCCL goes on without it", cost: "no reduction in the switches",
		next: "is the SHARP plugin loaded, does sharp_am run, are there free resources?", fix: "mend SHARP, or take NCCL_COLLNET_ENABLE away"},
	{id: "sharp-tree-lock", severity: Odd, re: rx(`SHARP group create: Streaming Tree lock failed \((-?\d+)\)`),
		title: "The switches' streaming aggregation tree is held by another job{on} (code {what})", cost: "CollNet falls back for this group",
		next: "which jobs use SHARP now?", fix: "free it or reserve trees for a job in sharp_am"},
	{id: "ofi-no-provider", severity: Odd, tier: tierCause, re: rx(`NET/OFI (?:Unable to find a protocol that worked|aws-ofi-nccl initialization failed|Initializing plugin failed|No eligible providers were found)`),
		title: "aws-ofi-nccl found no network of its own{on}", cost: "NCCL goes on with what is left, mostly sockets, a tenth of the bandwidth or less",
		next: "`fi_info -p efa` inside the container; are the EFA devices in the pod (vpc.amazonaws.com/efa), /dev/infiniband, FI_PROVIDER?",
		fix:  "request the EFA devices for the pod and allow them in the security group"},
	{id: "ofi-request-failed", severity: Fault, tier: tierLink, re: rx(`NET/OFI (?:Request .*completed with error.*?(?:Error: (.*))?$|.*[Cc]ompletion.*error(.*))`),
		title: "A request of the libfabric plugin failed{on}: {what}", cost: "the connection is lost, and with it the communicator",
		next: "is the process at the other end alive (its log first)? dmesg, EFA or NIC counters, security group", fix: "mend the peer or the device; a newer aws-ofi-nccl and libfabric"},
	{id: "tcpx-regmr", severity: Fault, re: rx(`gpu_tx_reg_mr failed|ioctl get dma_buf frags: Inappropriate ioctl`),
		title: "GPUDirect-TCPX cannot register GPU memory{on}: the plugin does not fit the kernel driver", cost: "connections fail",
		next: "versions of the TCPX plugin, the kernel module and the node image", fix: "take the plugin version that belongs to the node image; NCCL's own DMA-BUF switches do not reach the plugin, it reads NCCL_USE_DMA_BUF"},
	{id: "window-registration", severity: Odd, re: rx(`(Window registration .*)`), title: "A memory window could not be registered{on}: {what}",
		next: "NCCL version of program and library; cuMem support", fix: "see the message; symmetric memory needs NCCL_CUMEM_ENABLE"},
}

const (
	nvlsNext = "`nvidia-smi -q | grep -A4 Fabric` on that host: State and Status; was the Fabric Manager restarted while the GPUs were not reset? Is it a partition of a VM?"
	nvlsFix  = "reset the GPUs (nvidia-smi --gpu-reset) or reboot after a restart of the Fabric Manager; NCCL_NVLS_ENABLE=0 runs meanwhile, slower"
)

// effectRules are messages that always, or nearly always, follow from something else.
var effectRules = []msgRule{
	{id: "proxy-failed", severity: Fault, tier: tierLoose, effect: true,
		re:    rx(`(?:\[Proxy Service ?\d*\] Failed to execute operation (\w+)|Proxy Call to rank \d+ failed \((\w+)\)|\[Service thread\] Error encountered progressing operation=(\w+))`),
		title: "The proxy thread could not finish what it was asked for{on} ({what})", next: "the WARN lines before it on the same host: they name the cause"},
	{id: "proxy-lost", severity: Fault, tier: tierLoose, effect: true, re: rx(`Socket recv failed while polling for opId`),
		title: "A rank lost its proxy thread{on}", next: "the WARN lines before it on the same host: they name the cause"},
	{id: "peer-closed", severity: Fault, tier: tierLink, weak: true, re: rx(`Connection closed by remote peer (\S+)`),
		title: "The process behind {what} ended or closed its connection (seen{on})", cost: "the ranks that talk to it fail after it",
		next: "the log of that peer first: its earliest WARN, an exception, the OOM killer, an Xid",
		fix:  "mend what ended the peer; during the bootstrap of NCCL before 2.27.3 a port scanner can cause the same line"},
}

// ruleTable runs all rules over the warnings and notices.
func (f *finder) ruleTable() {
	for _, set := range [][]msgRule{bootstrapRules, deviceRules, effectRules} {
		for _, r := range set {
			f.apply(r)
		}
	}
}

// message is a WARN line or another line of interest.
type message struct {
	text string
	proc *Process
	at   Line
}

// messages are all texts that a rule may know. NCCL turned WARN into INFO and back over the versions, so both are read.
func (l *Log) messages() (out []message) {
	for _, w := range l.Warnings {
		out = append(out, message{w.Text, w.Process, w.At})
	}
	for _, p := range l.Processes {
		for _, n := range p.Notices {
			out = append(out, message{n.At.Text, p, n.At})
		}
		for _, pl := range p.Plugins {
			if pl.Outcome == PluginFailed {
				out = append(out, message{pl.At.Text, p, pl.At})
			}
		}
	}
	return out
}

func (f *finder) apply(r msgRule) {
	var hosts, what []string
	var seen []Line
	for _, m := range f.said {
		g := r.re.FindStringSubmatchIndex(m.text)
		if g == nil {
			continue
		}
		hosts = append(hosts, hostAt(m.proc))
		what = append(what, r.subject(m.text, g))
		seen = append(seen, m.at)
	}
	if len(seen) == 0 {
		return
	}
	for i, w := range what {
		if r.id == "peer-closed" {
			what[i] = f.peerName(w)
		}
	}
	f.add(r.tier, r.weak, Finding{Severity: r.severity, ID: r.id, Title: f.fill(r.title, hosts, what), Evidence: seen, Cost: r.cost,
		Next: f.fill(r.next, hosts, what), Fix: f.fill(r.fix, hosts, what), Effect: r.effect})
}

// subject is what differs between messages of one form.
func (r msgRule) subject(text string, g []int) string {
	if r.what != "" {
		s := string(r.re.ExpandString(nil, r.what, text, g))
		if strings.TrimSpace(s) == "for" { // the version that does not name the function
			return ""
		}
		return strings.TrimRight(s, " ")
	}
	for i := 2; i+1 < len(g); i += 2 {
		if g[i] >= 0 && g[i+1] > g[i] {
			return text[g[i]:g[i+1]]
		}
	}
	return ""
}

var holder = rx(`\{=(\w+)\}`)

// fill puts hosts, subjects and settings into a template.
func (f *finder) fill(s string, hosts, what []string) string {
	s = strings.ReplaceAll(s, "{on}", on(hosts))
	s = strings.ReplaceAll(s, "{what}", names(4, what))
	return holder.ReplaceAllStringFunc(s, func(m string) string {
		name := holder.FindStringSubmatch(m)[1]
		var vals []string
		for _, v := range f.settings(name) {
			vals = append(vals, v.Value)
		}
		if len(vals) == 0 {
			return ""
		}
		return " (" + name + "=" + names(3, vals) + ")"
	})
}

// isKnown says whether some finding of this package speaks of a warning's text.
func isKnown(text string) bool {
	for _, set := range [][]msgRule{bootstrapRules, deviceRules, effectRules} {
		if slices.ContainsFunc(set, func(r msgRule) bool { return r.re.MatchString(text) }) {
			return true
		}
	}
	return slices.ContainsFunc(handled, func(re *regexp.Regexp) bool { return re.MatchString(text) })
}
