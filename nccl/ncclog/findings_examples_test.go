package ncclog_test

import (
	"fmt"
	"strings"
)

// warn is a job of two nodes in which rank 0 warns after initialisation.
func warn(place, text string) string { return pair(only(0, late("WARN "+place+" "+text))) }

// info is the same with a line of the level INFO.
func info(text string) string { return pair(only(0, late(text))) }

func warnExamples() []example {
	return []example{
		{"bootstrap-no-interface", fault, pair(only(0, both(early("NCCL_SOCKET_IFNAME set to ib7", "WARN bootstrap.cc:48 Bootstrap : no socket interface found"), func(r *rankLog) { r.noInit = true }))),
			[]string{"node-a", "NCCL_SOCKET_IFNAME=ib7"}, info("NCCL_SOCKET_IFNAME set to ib7")},
		{"socket-no-interface", fault, warn("transport/net_socket.cc:60", "NET/Socket : no interface found"), []string{"node-a"}, info("NET/Socket : Using [0]eth0:10.0.0.1<0>")},
		{"comm-id-invalid", fault, warn("bootstrap.cc:70", "Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>"), nil, info("NCCL_COMM_ID set by environment to 10.0.0.1:4242")},
		{"socket-foreign", fault, warn("misc/socket.cc:700", "socketFinalizeAccept: wrong type 4 != 3"), nil,
			info("socketFinalizeAccept from 10.9.9.9<4242>: socket closed before magic handshake")},
		{"socket-empty-address", fault, warn("misc/socket.cc:500", "ncclSocketInit: connecting to address <> with family 0 is neither AF_INET(2) nor AF_INET6(10)"), nil,
			warn("misc/socket.cc:500", "socketStartConnect: Connect to 10.0.0.9<4242> failed : Connection refused")},
		{"bootstrap-truncated", fault, warn("bootstrap.cc:99", "Message truncated : received 1024 bytes instead of 256"), []string{"1024 instead of 256"},
			warn("transport/net_socket.cc:424", "NET/Socket : peer 10.0.0.9<4242> message truncated : receiving 1048576 bytes instead of 65536")},
		{"bootstrap-rank-count", fault, warn("bootstrap.cc:240", "Bootstrap Root : mismatch in rank count from procs 8 : 16"), nil, info("Bootstrap : nothing of interest")},
		{"version-mismatch", fault, warn("init.cc:900", "Mismatched NCCL version detected : rank 0 version 22707 rank 1 version 22609"), []string{"22707", "22609"}, pair(nil)},
		{"ras-version-mismatch", odd, warn("ras/peers.cc:5", "NCCL version mismatch with remote peer 10.0.0.8<28028> (local: 22707, remote 22609)"), nil, pair(nil)},
		{"duplicate-gpu", fault, node(only(1, both(mid("WARN init.cc:1 Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"), func(r *rankLog) { r.noEnd = true }))),
			[]string{"rank 1 and rank 0", "1000", "node-a"}, node(nil)},
		{"nvls-bind-failed", fault, node(only(1, mid("WARN transport/nvls.cc:158 Cuda failure 1 'invalid argument'"))), []string{"node-a", "nvls.cc"},
			node(only(1, mid("WARN transport/net.cc:158 Cuda failure 1 'invalid argument'")))},
		{"p2p-nvlink-off", odd, node(only(1, mid("WARN graph/paths.cc:300 P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case given their connectivity, and is probably due to a hardware issue."))),
			[]string{"0 and 1"}, node(only(1, mid("P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.")))},
		{"mnnvl-imex", fault, warn("mnnvl.cc:60", "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels)."), []string{"8 GPUs"}, pair(nil)},
		{"max-shared-mem", odd, info("ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"), []string{"82240 of 79856"}, pair(nil)},
		{"topo-file-bad", odd, warn("graph/xml.cc:400", "Could not open XML topology file /etc/none.xml : No such file or directory"), nil, info("Loading topology file /etc/good.xml")},
		{"topo-pattern", odd, warn("graph/search.cc:1000", "Could not find a path for pattern 4, falling back to simple order"), nil, pair(nil)},
		{"nic-path-missing", odd, warn("graph/search.cc:1000", "Could not find any local path from gpu 3 to net."), []string{"gpu 3"}, pair(nil)},
		{"pointer-device", fault, warn("misc/argcheck.cc:40", "AllReduce : sendbuff allocated on device 0 mismatchs with NCCL device 1"), []string{"sendbuff", "device 0", "on 1"}, pair(nil)},
		{"driver-too-old", fault, warn("misc/cudawrap.cc:90", "CUDA Driver version found is 11040. Minimum requirement is 12000"), []string{"11040", "12000"}, pair(nil)},
		{"cumem-host-fallback", note, info("cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation. This could be due to the container runtime disabling NUMA support."), nil, pair(nil)},
		{"library-too-old", fault, warn("init.cc:9", "NCCL library is too old. This application was compiled with NCCL 2.30 but loaded NCCL 2.29"), nil, pair(nil)},
		{"no-algorithm", fault, pair(late("NCCL_ALGO set by environment to Tree", "WARN enqueue.cc:1182 Error : no algorithm/protocol available for function Broadcast with datatype ncclFloat32.")),
			[]string{"for Broadcast", "NCCL_ALGO=Tree"}, pair(nil)},
		{"coll-mismatch-detected", fault, warn("enqueue.cc:7", "Mismatched collective detected, please check your collective calls at and around rank 39."), []string{"39"}, pair(nil)},
		{"net-count-mismatch", odd, warn("graph/topo.cc:7", "Detected mixed local Net device counts across ranks (min 3, max 4). Set NCCL_IGNORE_NET_MISMATCH=1 to ignore"), []string{"3 to 4"}, info("Rank 0: 4 Net devices")},
		{"collnet-off", odd, info("Cannot initialize CollNet, using point-to-point network instead"), nil, pair(nil)},
		{"sharp-tree-lock", odd, warn("sharp_plugin.c:354", "SHARP group create: Streaming Tree lock failed (-18)"), []string{"-18"}, pair(nil)},
		{"ofi-no-provider", odd, pair(only(0, early("WARN int:259 NET/OFI Unable to find a protocol that worked. Failing initialization."))), []string{"node-a"}, pair(only(0, early("NET/OFI Selected Provider is efa (found 32 nics)")))},
		{"ofi-request-failed", fault, warn("int:9", "NET/OFI Request 0x7f completed with error. RC: 21. Error: unreachable remote"), []string{"unreachable remote"}, pair(early("NET/OFI Selected Provider is efa (found 32 nics)"))},
		{"tcpx-regmr", fault, warn("net_tcpx.cc:3", "gpu_tx_reg_mr failed -5"), nil, pair(nil)},
		{"window-registration", odd, warn("dev_runtime.cc:3", "Window registration requires symmetric memory support"), nil, pair(nil)},
		{"proxy-failed", fault, warn("proxy.cc:1519", "[Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"), []string{"Connect"}, pair(nil)},
		{"proxy-lost", fault, warn("proxy.cc:1143", "Socket recv failed while polling for opId=0x7f89521407b4"), nil, pair(nil)},
		{"peer-closed", fault, warn("misc/socket.cc:49", "socketProgress: Connection closed by remote peer 10.0.0.108<57557>"), []string{"10.0.0.108<57557> (node-b)"},
			info("[Service thread] Connection closed by localRank 1")},
		{"shm-full", fault, warn("misc/shmutils.cc:71", "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, error: No space left on device (28)"), []string{"node-a", "9.2 MiB", "No space left"},
			warn("misc/shmutils.cc:71", "Error while attaching to shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), error: No such file or directory (2)")},
		{"shm-attach", fault, warn("misc/shmutils.cc:71", "Error while attaching to shared memory segment /dev/shm/nccl-AbCdEf (size 9637888), error: No such file or directory (2)"), []string{"No such file"},
			warn("misc/shmutils.cc:71", "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, error: No space left on device (28)")},
		cuda("cuda-oom", "2 'out of memory'"), cuda("cuda-invalid-device", "101 'invalid device ordinal'"), cuda("cuda-peer-access", "217 'peer access is not supported between these two devices'"),
		cuda("cuda-system-not-ready", "802 'system not yet initialized'"), cuda("cuda-driver-mismatch", "35 'CUDA driver version is insufficient for CUDA runtime version'"),
		cuda("cuda-no-kernel", "209 'no kernel image is available for execution on the device'"), cuda("cuda-fork", "3 'initialization error'"), cuda("cuda-sticky", "700 'an illegal memory access was encountered'"),
		cuda("cuda-hardware", "214 'uncorrectable ECC error encountered'"), cuda("cuda-failure", "400 'invalid resource handle'"),
		{"cuda-ipc", fault, warn("transport/p2p.cc:275", "Cuda failure 1 'invalid argument'"), []string{"p2p.cc"}, warn("transport/net.cc:275", "Cuda failure 1 'invalid argument'")},
		{"connect-link-local", fault, warn("misc/socket.cc:483", "socketStartConnect: Connect to fe80::1:2%ib1<17943> failed : Software caused connection abort"), []string{"fe80::1:2%ib1"},
			warn("misc/socket.cc:483", "socketStartConnect: Connect to 10.0.0.9<17943> failed : Software caused connection abort")},
		{"connect-failed", fault, warn("misc/socket.cc:483", "socketStartConnect: Connect to 10.0.0.108<17943> failed : Connection refused"), []string{"10.0.0.108<17943> (node-b)", "Connection refused"},
			info("socketPollConnect: connect to 10.0.0.108<17943> returned Connection refused, retrying (1/34) after sleep for 100 msec")},
		{"message-size-mismatch", fault, warn("transport/net_ib.cc:1038", "NET/IB : req 0/1 tag 0 peer 10.0.0.108<58683> collective mismatch error, local size 496640 remote size 65536"),
			[]string{"496640", "65536", "node-b"}, pair(nil)},
		{"fd-exhausted", fault, warn("misc/socket.cc:5", "Call to socket failed: Too many open files"), []string{"node-a"}, warn("misc/socket.cc:5", "Call to socket failed: Permission denied")},
		{"ib-reg-mr", fault, warn("misc/ibvwrap.cc:5", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"), []string{"Cannot allocate memory"}, pair(nil)},
		{"ib-create", fault, warn("misc/ibvwrap.cc:5", "Call to ibv_create_qp failed with error Cannot allocate memory"), []string{"ibv_create_qp"}, pair(nil)},
		{"ib-modify-qp", fault, warn("misc/ibvwrap.cc:5", "Call to ibv_modify_qp failed with 110 Connection timed out"), []string{"timed out"}, pair(nil)},
		{"accept-failed", fault, warn("proxy.cc:5", "[Service thread] Accept failed Resource temporarily unavailable"), nil, pair(nil)},
		{"proxy-connections", fault, warn("proxy.cc:5", "[Proxy service] Too many connections (512 max)"), nil, pair(nil)},
		{"other-warning", odd, warn("strange.cc:5", "The flux capacitor is out of tune"), []string{"flux capacitor"}, pair(nil)},
		{"other-consequence", odd, warn("transport/net_tcpx.cc:5", "p2pdma api won't work with only RegMr, due to alignment issue"), nil, pair(nil)},
		{"plugin-failed", odd, pair(only(0, both(early("WARN int:166 NET/OFI Initializing plugin failed"), func(r *rankLog) { r.net = "Socket" }))), []string{"Socket instead"},
			pair(early("NET/Plugin: Could not find: libnccl-net.so", "NET/Plugin: Failed to find ncclNetPlugin_v9 symbol."))},
	}
}

// cuda is an example of a CUDA failure by its text; the near miss is a failure of another kind.
func cuda(id, text string) example {
	other := "999 'unknown error'"
	if id == "cuda-failure" {
		other = "2 'out of memory'"
	}
	return example{id, fault, warn("init.cc:5", "Cuda failure "+text), []string{"node-a", text}, warn("init.cc:5", "Cuda failure "+other)}
}

func completionOf(status, vendor int) string {
	return warn("transport/net_ib.cc:1295", fmt.Sprintf("NET/IB: Got completion from peer 10.0.0.108<54862> with status=%d opcode=0 len=0 vendor err %d (Recv) hca mlx5_3", status, vendor))
}

func ibExamples() []example {
	c := func(id string, status int, words ...string) example {
		near := 12
		if status == 12 {
			near = 13
		}
		return example{id, fault, completionOf(status, 129), append(words, "node-a", "10.0.0.108<54862> (node-b)", "mlx5_3", fmt.Sprintf("status %d", status)), completionOf(near, 129)}
	}
	event := func(text string) string { return warn("transport/net_ib.cc:93", text) }
	return []example{
		c("ib-local-length", 1), c("ib-flush", 5), c("ib-remote-access", 10), c("ib-remote-operation", 11), c("ib-retry-exceeded", 12, "vendor error 129"), c("ib-rnr", 13), c("ib-completion", 14),
		{"ib-local-protection", fault, completionOf(4, 81), []string{"ACS"}, completionOf(12, 129)},
		{"ib-port-error", fault, event("NET/IB : mlx5_0:1 Got async event : port error"), []string{"node-a", "mlx5_0"}, event("NET/IB : mlx5_0:1 Got async event : GID table change")},
		{"ib-async-fatal", fault, event("NET/IB : mlx5_1:1 async fatal event on QP (0x5efcd37eb7c3): local catastrophic error"), []string{"mlx5_1"}, event("NET/IB : mlx5_1:1 Got non-fatal async event: LID change(17)")},
		{"ib-gid-changed", odd, event("NET/IB : mlx5_1:1 Got non-fatal async event: GID table change(18)"), []string{"node-a"}, event("NET/IB : mlx5_1:1 Got async event : port error")},
		{"ib-async-event", odd, event("NET/IB : mlx5_1:1 Got non-fatal async event: LID change(17)"), []string{"LID"}, event("NET/IB : mlx5_1:1 Got async event : port error")},
		{"roce-gid-zero", odd, pair(func(r *rankLog) {
			r.version, r.nic = "2.18.5", "Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
			r.late = []string{"NET/IB: Dev 0 Port 1 qpn 4242 mtu 3 GID 0 (80FE/0) "}
		}), []string{"GID index 0"}, pair(func(r *rankLog) {
			r.version, r.nic = "2.18.5", "Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
			r.late = []string{"NET/IB: Dev 0 Port 1 qpn 4242 mtu 3 GID 3 (80FE/0) "}
		})},
	}
}

func callOf(host string, pid, rank int, op string, opCount, count int) string {
	return fmt.Sprintf("%s:%d:%d [0] NCCL INFO %s: opCount %x sendbuff 0x1 recvbuff 0x2 count %d datatype 7 op 0 root 0 comm 0x55%04x [nranks=2] stream 0x9\n", host, pid, pid, op, opCount, count, rank)
}

func jobExamples() []example {
	return []example{
		{"versions-differ", fault, pair(only(1, func(r *rankLog) { r.version = "2.26.2" })), []string{"2.26.2 on node-b", "2.27.7 on node-a", "one communicator"}, pair(nil)},
		{"drivers-differ", odd, pair(only(1, func(r *rankLog) { r.driver = 12020 })), []string{"12.2 on node-b"}, pair(nil)},
		{"env-differs", odd, pair(both(only(0, late("NCCL_PROTO set by environment to Simple")), only(1, late("NCCL_PROTO set by environment to LL")))), []string{"NCCL_PROTO", "Simple on node-a", "LL on node-b"},
			pair(both(only(0, late("NCCL_DEBUG_FILE set by environment to a.log", "NCCL_PROTO set by environment to LL")), only(1, late("NCCL_DEBUG_FILE set by environment to b.log", "NCCL_PROTO set by environment to LL"))))},
		{"coll-mismatch", fault, pair(nil) + callOf("node-a", 1000, 0, "AllReduce", 1, 64) + callOf("node-b", 1001, 1, "AllReduce", 1, 64) + callOf("node-a", 1000, 0, "AllReduce", 2, 64) + callOf("node-b", 1001, 1, "AllGather", 2, 8),
			[]string{"abc123", "0x2", "AllReduce (64 x float)", "AllGather (8 x float)", "0x1", "rank 0", "rank 1"},
			pair(nil) + callOf("node-a", 1000, 0, "AllReduce", 1, 64) + callOf("node-b", 1001, 1, "AllReduce", 1, 64) + callOf("node-a", 1000, 0, "AllGather", 2, 8) + callOf("node-b", 1001, 1, "AllGather", 2, 8)},
		{"coll-behind", odd, pair(nil) + callOf("node-a", 1000, 0, "AllReduce", 1, 64) + callOf("node-b", 1001, 1, "AllReduce", 1, 64) + callOf("node-a", 1000, 0, "AllReduce", 2, 64),
			[]string{"rank 1 made 1", "others made 2"}, pair(nil) + callOf("node-a", 1000, 0, "AllReduce", 1, 64) + callOf("node-b", 1001, 1, "AllReduce", 1, 64)},
		{"hang-bootstrap", fault, fourOf(func(r *rankLog) { r.noBoot = true }), []string{"ranks 0-1 of 4", "ranks 2-3", "bootstrap"}, pair(nil)},
		{"init-incomplete", fault, pair(only(1, func(r *rankLog) { r.noEnd = true })), []string{"rank 1 of 2", "node-b"}, pair(nil)},
		{"process-behind", note, pair(nil) + rankLog{host: "node-c", rank: 7, noInit: true}.String(), []string{"node-c"}, pair(nil)},
		{"log-ends-early", note, rankLog{host: "node-c", rank: 7, noInit: true}.String(), []string{"node-c"}, pair(nil)},
		{"ranks-missing", note, rankLog{host: "node-a", of: 2, nodes: 2, local: 1}.String(), []string{"rank 1"}, pair(nil)},
		{"slow-init", odd, pair(only(1, both(late("Init timings - ncclCommInitRank: rank 1 nranks 2 total 45.00 (kernels 0.10, alloc 0.10, bootstrap 44.00, allgathers 0.10, topo 0.10, graphs 0.10, connections 0.10, rest 0.00)"),
			func(r *rankLog) { r.waited = 44 }))), []string{"45 s", "rank 1", "44.0 s until", "bootstrap", "last to come was rank 0 on node-a"},
			pair(late("Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.90 (kernels 0.10, alloc 0.00, bootstrap 0.70, allgathers 0.00, topo 0.10, graphs 0.00, connections 0.00, rest 0.00)"))},
		{"env-leftover", odd, pair(late("NCCL_PROTO set by environment to LL")), []string{"NCCL_PROTO=LL"}, pair(late("NCCL_IB_HCA set by environment to mlx5_0", "NCCL_P2P_DISABLE set by environment to 0", "NCCL_IB_TIMEOUT set by environment to 22."))},
		{"value-refused", odd, pair(late("Invalid value 99999999999999999999999 for NCCL_IB_TC, using default -1.")), []string{"NCCL_IB_TC"}, pair(late("NCCL_IB_TC set by environment to 106."))},
		{"value-misleading", odd, pair(late("NCCL_IB_TIMEOUT set by environment to 2.")), []string{"NCCL_IB_TIMEOUT=2"}, pair(late("NCCL_IB_TIMEOUT set by environment to 20."))},
		{"affinity-empty", note, node(mid("ncclTopoGetCpuAffinity: Affinity for GPU 0 is empty, ignoring. (GPU affinity = ; CPU affinity = 0-31).")), nil, node(mid("ncclTopoGetCpuAffinity: Affinity for GPU 0 is 0-31. (GPU affinity = 0-31; CPU affinity = 0-63)."))},
		{"proxy-one-core", odd, node(late("[Proxy Service] Device 0 CPU core 7", "[Proxy Progress] Device 0 CPU core 7")), []string{"4 threads"}, node(func(r *rankLog) {
			r.late = []string{fmt.Sprintf("[Proxy Service] Device 0 CPU core %d", 7+r.rank), "[Proxy Progress] Device 0 CPU core 9"}
		})},
		{"ras-peer-dead", fault, info("RAS declaring peer 10.0.0.108<28028> as DEAD; excluding connection"), nil, info("RAS client listening socket at 127.0.0.1<28028>")},
		{"ras-timeout", odd, info("RAS connect timeout warning (60s) on socket connection with 10.0.0.108<28028>"), nil, info("RAS client listening socket at 127.0.0.1<28028>")},
	}
}

// fourOf is a job of four ranks of which two have logs.
func fourOf(edit func(*rankLog)) string {
	var b strings.Builder
	for i, h := range []string{"node-a", "node-b"} {
		r := rankLog{host: h, rank: i, of: 4, nodes: 4, local: 1}
		edit(&r)
		b.WriteString(r.String())
	}
	return b.String()
}
