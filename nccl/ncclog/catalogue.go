package ncclog

import "strings"

// entry is what a WARN line means.
type entry struct {
	id      string
	words   []string // all of them stand in the line
	place   string   // part of the source file's name; "" any
	meaning string
	next    string
	effect  bool // it follows from something earlier
}

// catalogue has the special before the general: the first entry that fits is taken.
var catalogue = []entry{
	{"bootstrap-no-interface", []string{"Bootstrap", "no socket interface found"}, "", "no network interface fits NCCL_SOCKET_IFNAME or the address family", "ip -br addr on that host; correct or unset NCCL_SOCKET_IFNAME", false},
	{"socket-no-interface", []string{"no interface found"}, "", "no interface for data over sockets fits the filter", "ip -br addr; NCCL_SOCKET_IFNAME", false},
	{"bad-comm-id", []string{"Invalid NCCL_COMM_ID"}, "", "NCCL_COMM_ID is not host:port", "correct it", false},
	{"connect-link-local", []string{"onnect to fe80::"}, "", "a link-local IPv6 address was chosen, which other hosts cannot reach", "set NCCL_SOCKET_IFNAME to the right interface, or NCCL_SOCKET_FAMILY=AF_INET", false},
	{"connect-failed", []string{"onnect to ", "failed"}, "", "the peer's port cannot be reached: wrong interface, firewall, or the peer is gone", "nc from this host to the address; log of the peer; NCCL_SOCKET_IFNAME", false},
	{"connect-failed", []string{"onnect to ", "returned"}, "", "the peer's port cannot be reached: wrong interface, firewall, or the peer is gone", "nc from this host to the address; log of the peer; NCCL_SOCKET_IFNAME", false},
	{"peer-closed", []string{"onnection closed by remote peer"}, "", "the process at the other end went away", "the log of that host: its first warning is the cause", true},
	{"bad-magic", []string{"wrong magic"}, "", "a connection that is not from this job, or crossing addresses of two interfaces", "NCCL_SOCKET_IFNAME; port scanners; NCCL 2.27.3 drops such connections", false},
	{"bad-magic", []string{"magic mismatch"}, "", "a connection that is not from this job", "port scanners on the network", false},
	{"bad-socket-type", []string{"socketFinalizeAccept", "wrong type"}, "", "a connection that is not from this job, or crossing addresses of two interfaces", "NCCL_SOCKET_IFNAME", false},
	{"empty-address", []string{"neither AF_INET"}, "", "a peer has no address: P2P and SHM are both off on one node, or NCCL_COMM_ID is wrong", "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE", false},
	{"truncated", []string{"essage truncated"}, "bootstrap", "ranks of different NCCL versions, or a fault of 2.19.3 and 2.20.5", "compare the version lines of all ranks", false},
	{"truncated", []string{"essage truncated"}, "", "the two ends exchange different amounts: the ranks call different collectives or sizes, or run with different settings", "compare the COLL lines and the environment of the ranks", false},
	{"size-mismatch", []string{"collective mismatch"}, "", "the two ends of a connection work on different sizes: different calls, or different settings", "compare the COLL lines and the environment of the ranks", false},
	{"size-mismatch", []string{"mismatch in collective sizes"}, "", "the two ends of a connection work on different sizes", "compare the COLL lines and the environment of the ranks", false},
	{"rank-count", []string{"mismatch in rank count"}, "", "processes disagree on the number of ranks, or the unique id was used twice", "the launcher's world size", false},
	{"rank-count", []string{"mismatch in info from procs"}, "", "processes disagree on the number of ranks, or the unique id was used twice", "the launcher's world size", false},
	{"version-mismatch", []string{"Mismatched NCCL version"}, "", "two versions of libnccl in one job", "LD_LIBRARY_PATH and the image of every host", false},
	{"version-mismatch", []string{"NCCL version mismatch with remote peer"}, "", "another job's RAS, or two versions of libnccl in one job", "the version lines of all hosts", false},
	{"size-mismatch", []string{"Mismatched collective detected"}, "", "a rank called another collective, or another size", "compare the COLL lines of the ranks", false},
	{"libibverbs-missing", []string{"Failed to open libibverbs"}, "", "libibverbs is not installed: NET/IB cannot be used", "install rdma-core in the image", false},
	{"duplicate-gpu", []string{"Duplicate GPU detected"}, "", "two ranks opened the same GPU", "cudaSetDevice(local rank), CUDA_VISIBLE_DEVICES", false},
	{"duplicate-gpu", []string{"Multiple Ranks are using the same GPU"}, "", "two ranks opened the same GPU", "cudaSetDevice(local rank), CUDA_VISIBLE_DEVICES", false},
	{"ib-gid-changed", []string{"GID table changed"}, "", "addresses of the NIC changed during the run", "stop the network manager from touching that interface", false},
	{"ib-port-event", []string{"NET/IB", "event", "port error"}, "", "the link of a NIC went down", "cable, switch port, ibqueryerrors, mlxlink", false},
	{"ib-fatal-event", []string{"async fatal event"}, "", "the NIC reported a fatal error", "firmware, dmesg", false},
	{"ib-event", []string{"sync event"}, "", "the NIC reported an event", "link state, ibqueryerrors", false},
	{"ib-event", []string{"sync error event"}, "", "the NIC reported an event", "link state, ibqueryerrors", false},
	{"modify-qp", []string{"ibv_modify_qp", "failed"}, "", "the connection could not be set up: with RoCE the peer's address was not resolved", "GID index, ping between the NICs' addresses, NCCL_IB_GID_INDEX", false},
	{"reg-mr", []string{"ibv_reg_", "failed"}, "", "memory could not be registered: memlock limit, or no nvidia_peermem or DMA-BUF", "ulimit -l; lsmod | grep nvidia_peermem", false},
	{"create-qp", []string{"ibv_create_", "failed"}, "", "a queue could not be made: memlock limit, or the NIC's limit", "ulimit -l", false},
	{"no-algorithm", []string{"no algorithm/protocol available"}, "", "NCCL_ALGO and NCCL_PROTO leave nothing for this operation", "unset NCCL_ALGO and NCCL_PROTO", false},
	{"sharp-lock", []string{"SHARP group create"}, "", "SHARP could not set up its tree, often because another job holds it; NCCL goes on without", "SHARP reservation, sharp_am", false},
	{"collnet-off", []string{"CollNet"}, "", "CollNet could not be set up; NCCL goes on without", "NCCL_COLLNET_ENABLE, sharp_am", false},
	{"shm-full", []string{"failed to extend /dev/shm"}, "", "/dev/shm is too small or full", "df /dev/shm; --shm-size=1g or an emptyDir of medium Memory; old /dev/shm/nccl-* files", false},
	{"shm-failed", []string{"shared memory segment"}, "", "shared memory could not be used", "df /dev/shm; earlier warning", true},
	{"nvls-failed", []string{"Cuda failure"}, "nvls", "NVLink multicast could not be set up: usually the Fabric Manager was restarted without a reset of the GPUs", "nvidia-smi -q (Fabric); reset the GPUs; NCCL_NVLS_ENABLE=0 to go on", false},
	{"nvls-failed", []string{"NVLink SHARP (NVLS)"}, "", "NVLink multicast could not be set up: usually the Fabric Manager was restarted without a reset of the GPUs", "nvidia-smi -q (Fabric); reset the GPUs; NCCL_NVLS_ENABLE=0 to go on", false},
	{"cuda-memory", []string{"Cuda failure", "out of memory"}, "", "GPU memory was used up before NCCL had its buffers", "leave room; fewer communicators or channels, smaller NCCL_BUFFSIZE", false},
	{"cuda-fork", []string{"Cuda failure", "initialization error"}, "", "CUDA was used before fork()", "start processes by spawn", false},
	{"cuda-failed", []string{"Cuda failure"}, "", "a CUDA call failed; it may report an error of an earlier kernel", "dmesg for Xid; the program's own CUDA errors", false},
	{"p2p-nvlink-off", []string{"P2P is disabled between NVLINK"}, "", "two GPUs with NVLink cannot use it", "nvidia-smi topo -p2p r; dmesg for Xid; IOMMU", false},
	{"imex", []string{"MNNVL", "not working"}, "", "multi-node NVLink is there but does not work", "nvidia-imex-ctl -N; /dev/nvidia-caps-imex-channels", false},
	{"topology-file", []string{"XML topology"}, "", "the topology file could not be read", "unset NCCL_TOPO_FILE", false},
	{"topology-file", []string{"XML Topology has wrong version"}, "", "the topology file is of another version", "unset NCCL_TOPO_FILE", false},
	{"no-path-for-pattern", []string{"Could not find a path for pattern"}, "", "no good channels fit this topology; a simple order is used", "the System dump (NCCL_DEBUG_SUBSYS=GRAPH)", false},
	{"no-local-nic", []string{"Could not find NIC for rank"}, "", "a GPU has no path to a NIC", "topology file, NCCL_IB_HCA", false},
	{"no-local-nic", []string{"Could not find any local path"}, "", "a GPU has no path to a NIC", "topology file, NCCL_IB_HCA", false},
	{"proxy-failed", []string{"Failed to execute operation"}, "", "the proxy could not connect or set up for that rank", "earlier warnings of this host and of that rank's", true},
	{"proxy-failed", []string{"Proxy Call to rank"}, "", "the proxy of that rank failed", "earlier warnings of that rank's host", true},
	{"proxy-failed", []string{"Error encountered progressing operation"}, "", "the proxy could not connect or set up", "earlier warnings of this host", true},
	{"proxy-gone", []string{"Socket recv failed while polling"}, "", "the proxy thread ended", "earlier warnings of this host", true},
	{"accept-failed", []string{"Accept failed"}, "", "too many open files, or the end of the process", "ulimit -n", true},
	{"too-many-peers", []string{"Too many connections"}, "", "more peers than this version can serve", "a newer NCCL", false},
	{"wrong-device", []string{"allocated on device", "mismatchs"}, "", "a buffer is not on the communicator's GPU", "the program's current device", false},
	{"driver-old", []string{"CUDA Driver version found"}, "", "the driver is too old", "newer driver or the compat package", false},
	{"mixed-nics", []string{"Detected mixed local Net device"}, "", "nodes have different numbers of NICs", "the NIC that is missing on some node", false},
	{"ofi-no-provider", []string{"NET/OFI", "Unable to find a protocol"}, "", "libfabric has no usable provider: no EFA device in the container, or the wrong libfabric", "fi_info -p efa; the pod's resource request vpc.amazonaws.com/efa", false},
	{"ofi-init", []string{"NET/OFI", "nitializ"}, "", "the plugin for libfabric could not start", "the plugin's earlier warning", true},
	{"tcpx", []string{"gpu_tx_reg_mr failed"}, "", "the plugin is older than the driver's interface", "the matching version of the plugin", false},
	{"tcpx", []string{"p2pdma api"}, "", "GPU memory could not be registered without DMA-BUF", "the matching version of the plugin", true},
	{"fastsocket", []string{"Cannot get incoming CPU"}, "", "harmless", "", true},
	{"library-old", []string{"NCCL library is too old"}, "", "the program was built for a newer NCCL", "which libnccl is loaded", false},
	{"config", []string{"Attribute", "not found"}, "", "the topology file is incomplete", "unset NCCL_TOPO_FILE", false},
}

// completions are failed completions of a NIC by status.
var completions = []struct {
	status int
	entry  entry
}{
	{4, entry{id: "ib-local-protection", meaning: "the NIC may not touch the memory: with GPU memory usually PCIe ACS", next: "lspci -vvv | grep ACSCtl; NCCL_NET_GDR_LEVEL=LOC as a test"}},
	{5, entry{id: "ib-flush", meaning: "work thrown away after an earlier error of this connection", next: "the earlier error, here or on the peer", effect: true}},
	{9, entry{id: "ib-remote-request", meaning: "the peer's NIC refused the request: registration or memory mapping", next: "driver; DMA-BUF against nvidia_peermem"}},
	{10, entry{id: "ib-remote-access", meaning: "the peer's NIC refused access to memory", next: "driver; DMA-BUF against nvidia_peermem"}},
	{11, entry{id: "ib-remote-operation", meaning: "the peer's NIC could not do the operation", next: "the peer's log"}},
	{12, entry{id: "ib-retry", meaning: "no answer from the peer's NIC: GID or VLAN, cable, subnet, MTU, PFC, other rail, or the peer died", next: "ib_write_bw between exactly these two NICs; NCCL_IB_GID_INDEX; the peer's log"}},
	{13, entry{id: "ib-rnr", meaning: "the receiver was too slow or is dead", next: "the peer's log"}},
}

// lookUp finds what a warning means; nil: not in the catalogue.
func lookUp(place, text string) *entry {
	if strings.Contains(text, "Got completion") {
		var e IBError
		e.completion([]byte(text))
		for i := range completions {
			if completions[i].status == e.Status {
				return &completions[i].entry
			}
		}
		return &entry{id: "ib-completion", meaning: "the NIC could not finish a transfer", next: "the status word; the peer's log"}
	}
	for i := range catalogue {
		e := &catalogue[i]
		if !strings.Contains(place, e.place) {
			continue
		}
		fits := true
		for _, w := range e.words {
			fits = fits && strings.Contains(text, w)
		}
		if fits {
			return e
		}
	}
	return nil
}
