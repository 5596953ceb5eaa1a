package ncclenv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine is a host with many devices of similar names.
func machine() *Machine {
	return &Machine{Interfaces: []string{"docker0", "eth0", "eth1", "eth10", "lo"}, HCAs: []string{"mlx5_0", "mlx5_1", "mlx5_10", "mlx5_11"},
		Exists: func(path string) bool { return strings.HasPrefix(path, "/exists/") }}
}

// list is what was found, one a line: severity id name.
func list(found []Finding) string {
	var out []string
	for _, f := range found {
		out = append(out, strings.TrimSpace(f.Severity+" "+f.ID+" "+f.Name))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// sorted is a list in the order of list.
func sorted(s string) string {
	var out []string
	for _, l := range strings.Split(s, ";") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func checkEnv(t *testing.T, env []string, version string, m *Machine) []Finding {
	t.Helper()
	v, _ := ParseVersion(version)
	found := Check(FromEnvironment(env, Place{Root: t.TempDir(), Machine: m}, v), v)
	for _, f := range found {
		if f.Text == "" || strings.HasSuffix(f.Text, ".") || f.Severity == Fault && f.Advice == "" {
			t.Errorf("%s %s: text %q, advice %q: a fault says what is wrong and what to do, without a full stop", f.ID, f.Name, f.Text, f.Advice)
		}
	}
	return found
}

// planted are environments with errors: each is found with its id, and nothing else is. A - in front of the version is the machine above.
var planted = []struct{ env, version, want string }{
	// names
	{"NCCL_DEBUGG=INFO", "", "fault unknown-name NCCL_DEBUGG"},
	{"NCCL_SOCKET_IFNAMES=eth0", "", "fault unknown-name NCCL_SOCKET_IFNAMES"},
	{"NCCL_IB_HCAS==mlx5_0", "", "fault unknown-name NCCL_IB_HCAS"},
	{"NCCL_IB_DISABEL=1", "", "fault unknown-name NCCL_IB_DISABEL"},
	{"NCCL_DISABLE_P2P=1", "", "fault unknown-name NCCL_DISABLE_P2P"},
	{"NCLL_DEBUG=INFO", "", "fault unknown-name NCLL_DEBUG"},
	{"NCCL_IFNAME=eth0", "", "fault unknown-name NCCL_IFNAME"},
	{"TORCH_NCCL_ASYNC_ERROR_HANDLNG=1", "", "fault unknown-name TORCH_NCCL_ASYNC_ERROR_HANDLNG"},
	{"TORCH_FR_BUFER_SIZE=1", "", "fault unknown-name TORCH_FR_BUFER_SIZE"},
	{"NCCL_MAGIC_CARPET=1", "", "warning unknown-name NCCL_MAGIC_CARPET"},
	{"nccl_debug=INFO", "", "fault case-name nccl_debug"},
	{"NCCL_TIMEOUT=1800", "", "fault not-nccl NCCL_TIMEOUT"},
	{"TORCH_NCCL_TIMEOUT=1800", "", "fault not-nccl TORCH_NCCL_TIMEOUT"},
	{"NCCL_NET_DISABLE=1", "", "fault not-nccl NCCL_NET_DISABLE"},
	{"NCCL_EXCLUDE_IB_HCA=mlx5_2", "", "fault not-nccl NCCL_EXCLUDE_IB_HCA"},
	{"NCCL_SOCKET_NSOCKS=4", "", "fault not-nccl NCCL_SOCKET_NSOCKS"},
	{"NCCL_GPUDIRECTTCPX_USE_DMABUF=1", "", "fault not-nccl NCCL_GPUDIRECTTCPX_USE_DMABUF"},
	{"NCCL_ASYNC_ERROR_HANDLING=1", "", "warning renamed NCCL_ASYNC_ERROR_HANDLING"},
	{"NCCL_TREE_THRESHOLD=0", "", "fault removed NCCL_TREE_THRESHOLD"},
	{"NCCL_IB_CUDA_SUPPORT=1", "", "fault removed NCCL_IB_CUDA_SUPPORT"},
	{"NCCL_CHECKS_DISABLE=1", "", "fault removed NCCL_CHECKS_DISABLE"},
	{"NCCL_SHM_USE_CUDA_MEMCPY=1", "", "warning removed NCCL_SHM_USE_CUDA_MEMCPY"},
	{"NCCL_SHM_USE_CUDA_MEMCPY=1", "2.30.7", "fault removed NCCL_SHM_USE_CUDA_MEMCPY"},
	{"NCCL_GROUP_CUDA_STREAM=1", "", "warning unread NCCL_GROUP_CUDA_STREAM"},
	{"NCCL_MAX_NCHANNELS=16", "", "note renamed NCCL_MAX_NCHANNELS"},
	{"TORCH_NCCL_TRACE_BUFFER_SIZE=2000", "", "note renamed TORCH_NCCL_TRACE_BUFFER_SIZE"},
	{"NCCL_RAS_ENABLE=1", "2.21.5", "fault too-new NCCL_RAS_ENABLE"},
	{"NCCL_CHECK_MODE=DEFAULT", "2.28.3", "fault too-new NCCL_CHECK_MODE"},
	{"NCCL_ALGO=allreduce:ring", "2.21.5", "fault too-new NCCL_ALGO"},
	{"NCCL_ALGO=ring,pat", "2.20.3", "fault too-new NCCL_ALGO"},
	// numbers
	{"NCCL_BUFFSIZE=4M", "", "fault unit NCCL_BUFFSIZE"},
	{"NCCL_BUFFSIZE=8 MiB", "", "fault unit NCCL_BUFFSIZE"},
	{"NCCL_SOCKET_RETRY_SLEEP_MSEC=100ms", "", "fault unit NCCL_SOCKET_RETRY_SLEEP_MSEC"},
	{"NCCL_IB_TIMEOUT=22s", "", "fault unit NCCL_IB_TIMEOUT"},
	{"NCCL_IB_DISABLE=true", "", "fault bool-word NCCL_IB_DISABLE"},
	{"NCCL_P2P_DISABLE=Yes", "", "fault bool-word NCCL_P2P_DISABLE"},
	{"NCCL_SHM_DISABLE=on", "", "fault bool-word NCCL_SHM_DISABLE"},
	{"NCCL_IB_DISABLE=false", "", "warning bool-word NCCL_IB_DISABLE"},
	{"NCCL_CROSS_NIC=auto", "", "fault number NCCL_CROSS_NIC"},
	{"NCCL_IB_QPS_PER_CONNECTION=2,4", "", "fault number NCCL_IB_QPS_PER_CONNECTION"},
	{"NCCL_BUFFSIZE=1.5", "", "fault number NCCL_BUFFSIZE"},
	{"NCCL_IB_TC=0106", "", "fault octal NCCL_IB_TC"},
	{"NCCL_BUFFSIZE=99999999999999999999", "", "fault range NCCL_BUFFSIZE"},
	{"NCCL_BUFFSIZE=4", "", "fault range NCCL_BUFFSIZE"},
	{"NCCL_IB_TIMEOUT=2", "", "fault range NCCL_IB_TIMEOUT"},
	{"NCCL_IB_TIMEOUT=0", "", "fault range NCCL_IB_TIMEOUT"},
	{"NCCL_IB_TIMEOUT=120", "", "fault range NCCL_IB_TIMEOUT"},
	{"NCCL_IB_TIMEOUT=28", "", "warning range NCCL_IB_TIMEOUT; note rare NCCL_IB_TIMEOUT"},
	{"NCCL_IB_RETRY_CNT=10", "", "fault range NCCL_IB_RETRY_CNT"},
	{"NCCL_IB_TC=256", "", "fault range NCCL_IB_TC"},
	{"NCCL_IB_SL=16", "", "fault range NCCL_IB_SL"},
	{"NCCL_CROSS_NIC=3", "", "fault range NCCL_CROSS_NIC"},
	{"NCCL_MIN_CTAS=128", "", "fault range NCCL_MIN_CTAS"},
	{"NCCL_NTHREADS=100", "", "fault range NCCL_NTHREADS"},
	{"NCCL_NTHREADS=1024", "", "fault range NCCL_NTHREADS"},
	{"NCCL_IB_MERGE_NICS=2", "", "warning range NCCL_IB_MERGE_NICS; note rare NCCL_IB_MERGE_NICS"},
	{"NCCL_SET_THREAD_NAME=yes", "", "fault bool-word NCCL_SET_THREAD_NAME"},
	{"NCCL_SET_THREAD_NAME=true", "", "warning bool-word NCCL_SET_THREAD_NAME"},
	{"NCCL_SET_THREAD_NAME=true", "2.27.3", "fault bool-word NCCL_SET_THREAD_NAME"},
	// how it is written
	{`NCCL_DEBUG="WARN"`, "", "fault quotes NCCL_DEBUG"},
	{`NCCL_SOCKET_IFNAME='=eth0'`, "", "fault quotes NCCL_SOCKET_IFNAME"},
	{"NCCL_SOCKET_IFNAME==eth0 ", "", "fault blank NCCL_SOCKET_IFNAME"},
	{"NCCL_IB_TC=106\r", "", "warning blank NCCL_IB_TC"},
	{"NCCL_NET=IB # rdma", "", "fault comment NCCL_NET"},
	{"NCCL_IB_TC=106 # dscp 26", "", "warning comment NCCL_IB_TC"},
	{"NCCL_SOCKET_IFNAME=$IFACE", "", "fault unexpanded NCCL_SOCKET_IFNAME"},
	{"NCCL_IB_GID_INDEX=", "", "note empty NCCL_IB_GID_INDEX"},
	{"NCCL_DEBUG_FILE=~/nccl.%h.%p;NCCL_DEBUG=WARN", "", "fault tilde NCCL_DEBUG_FILE"},
	{"NCCL_DEBUG_FILE=/tmp/nccl.log;NCCL_DEBUG=WARN", "", "warning shared-file NCCL_DEBUG_FILE"},
	{"NCCL_TOPO_FILE=/nowhere/topo.xml", "-", "fault missing-file NCCL_TOPO_FILE"},
	// words
	{"NCCL_DEBUG=debug", "", "fault value NCCL_DEBUG"},
	{"NCCL_DEBUG=1", "", "fault value NCCL_DEBUG"},
	{"NCCL_DEBUG=INFO;NCCL_DEBUG_SUBSYS=INIT,NETWORK", "", "fault value NCCL_DEBUG_SUBSYS; note left-over NCCL_DEBUG"},
	{"NCCL_DEBUG=INFO;NCCL_DEBUG_SUBSYS=INIT|NET", "", "fault value NCCL_DEBUG_SUBSYS; note left-over NCCL_DEBUG"},
	{"NCCL_DEBUG=INFO;NCCL_DEBUG_SUBSYS=ALL,^COLL", "", "fault value NCCL_DEBUG_SUBSYS; note left-over NCCL_DEBUG"},
	{"NCCL_P2P_LEVEL=sys", "", "fault case-value NCCL_P2P_LEVEL"},
	{"NCCL_P2P_LEVEL=NODE", "", "fault value NCCL_P2P_LEVEL"},
	{"NCCL_NET_GDR_LEVEL=NVLINK", "", "fault value NCCL_NET_GDR_LEVEL"},
	{"NCCL_NET_GDR_LEVEL=5", "", "warning legacy-digit NCCL_NET_GDR_LEVEL; warning left-over NCCL_NET_GDR_LEVEL"},
	{"NCCL_SOCKET_FAMILY=af_inet", "", "fault case-value NCCL_SOCKET_FAMILY"},
	{"NCCL_SOCKET_FAMILY=IPv4", "", "fault value NCCL_SOCKET_FAMILY"},
	{"NCCL_NET=TCP", "", "fault value NCCL_NET"},
	{"NCCL_NET=Sockets", "", "fault value NCCL_NET"},
	{"NCCL_NET=mlx5_0", "", "fault wrong-kind NCCL_NET"},
	{"NCCL_NETDEVS_POLICY=MAX", "", "fault value NCCL_NETDEVS_POLICY"},
	{"NCCL_CTA_POLICY=FAST", "", "fault value NCCL_CTA_POLICY"},
	{"NCCL_IB_ADDR_RANGE=10.1.0.0", "", "fault value NCCL_IB_ADDR_RANGE"},
	{"NCCL_COMM_ID=10.1.0.1", "", "fault value NCCL_COMM_ID"},
	{"NCCL_RAS_ADDR=::1:28028", "", "fault value NCCL_RAS_ADDR"},
	{"NCCL_PROXY_CPUSET=0..3", "", "fault value NCCL_PROXY_CPUSET"},
	{"NCCL_THREAD_THRESHOLDS=64,64,64", "", "fault value NCCL_THREAD_THRESHOLDS"},
	{"NCCL_SOCKET_MAGIC=job42", "", "fault value NCCL_SOCKET_MAGIC"},
	{"NCCL_NET_FORCE_MERGE=^mlx5_0", "", "fault value NCCL_NET_FORCE_MERGE"},
	{"NCCL_LAUNCH_MODE=SERIAL", "", "fault value NCCL_LAUNCH_MODE; note renamed NCCL_LAUNCH_MODE"},
	// NCCL_ALGO and NCCL_PROTO
	{"NCCL_ALGO=rings", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=ring;tree", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=all_reduce:ring", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=alltoall:ring", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=ring, tree", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=ring,^tree", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=collnet", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=allreduce", "", "fault grammar NCCL_ALGO"},
	{"NCCL_ALGO=Tree", "", "warning no-algorithm NCCL_ALGO; warning left-over NCCL_ALGO"},
	{"NCCL_PROTO=LL64", "", "fault grammar NCCL_PROTO"},
	{"NCCL_PROTO=Simple:LL", "", "fault grammar NCCL_PROTO"},
	{"NCCL_PROTO=LL,LL128,Simple", "", "warning forced-ll128 NCCL_PROTO; warning left-over NCCL_PROTO"},
	// devices
	{"NCCL_IB_HCA=mlx5_1", "", "warning prefix-match NCCL_IB_HCA"},
	{"NCCL_IB_HCA=^mlx5_1", "", "warning prefix-match NCCL_IB_HCA"},
	{"NCCL_IB_HCA=mlx5_0:1,mlx5_1:1", "-", "warning prefix-match NCCL_IB_HCA"},
	{"NCCL_SOCKET_IFNAME=eth1", "-", "warning prefix-match NCCL_SOCKET_IFNAME"},
	{"NCCL_SOCKET_IFNAME=eth", "", "note prefix-match NCCL_SOCKET_IFNAME"},
	{"NCCL_SOCKET_IFNAME==ens9", "-", "fault no-match NCCL_SOCKET_IFNAME"},
	{"NCCL_IB_HCA==mlx5_0,mlx5_7", "-", "warning no-match NCCL_IB_HCA"},
	{"NCCL_IB_HCA=^mlx5", "-", "fault no-match NCCL_IB_HCA"},
	{"NCCL_IB_HCA=mlx5_0, mlx5_2", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA==mlx5_0,=mlx5_1", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA==^mlx5_0", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA=mlx5_*", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA==mlx5_0;mlx5_1", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA==mlx5_0:one", "", "fault pattern NCCL_IB_HCA"},
	{"NCCL_IB_HCA==ib0", "", "fault wrong-kind NCCL_IB_HCA"},
	{"NCCL_SOCKET_IFNAME==mlx5_0", "", "fault wrong-kind NCCL_SOCKET_IFNAME"},
	{"NCCL_SOCKET_IFNAME=e", "", "fault pattern NCCL_SOCKET_IFNAME"},
	{"NCCL_SOCKET_IFNAME=lo", "", "warning loopback NCCL_SOCKET_IFNAME"},
	// contradictions
	{"NCCL_IB_DISABLE=1;NCCL_IB_HCA==mlx5_0", "", "fault conflict-ib NCCL_IB_HCA; warning left-over NCCL_IB_DISABLE"},
	{"NCCL_NET=Socket;NCCL_IB_TC=106", "", "fault conflict-net NCCL_IB_TC"},
	{"NCCL_NET=IB;NCCL_IB_DISABLE=1", "", "fault conflict-net NCCL_NET; warning left-over NCCL_IB_DISABLE"},
	{"NCCL_NET=AWS Libfabric;NCCL_NET_PLUGIN=none", "", "fault conflict-plugin NCCL_NET; fault value NCCL_NET"},
	{"NCCL_NET=libfabric;NCCL_NET_PLUGIN=none", "", "fault conflict-plugin NCCL_NET"},
	{"NCCL_IB_GID_INDEX=3;NCCL_IB_ROCE_VERSION_NUM=1", "", "warning conflict-gid NCCL_IB_ROCE_VERSION_NUM; note rare NCCL_IB_ROCE_VERSION_NUM"},
	{"NCCL_IB_SPLIT_DATA_ON_QPS=1", "", "warning conflict-qps NCCL_IB_SPLIT_DATA_ON_QPS; warning left-over NCCL_IB_SPLIT_DATA_ON_QPS"},
	{"NCCL_SOCKET_NTHREADS=16;NCCL_NSOCKS_PERTHREAD=8", "", "fault conflict-sockets NCCL_NSOCKS_PERTHREAD; note rare NCCL_NSOCKS_PERTHREAD; note rare NCCL_SOCKET_NTHREADS"},
	{"NCCL_P2P_DISABLE=1;NCCL_P2P_LEVEL=NVL", "", "fault conflict-p2p NCCL_P2P_LEVEL; warning left-over NCCL_P2P_LEVEL; warning left-over NCCL_P2P_DISABLE"},
	{"NCCL_P2P_DISABLE=1;NCCL_SHM_DISABLE=1", "", "warning conflict-shm NCCL_SHM_DISABLE; warning left-over NCCL_SHM_DISABLE; warning left-over NCCL_P2P_DISABLE"},
	{"NCCL_NVLS_ENABLE=0;NCCL_ALGO=allreduce:NVLS", "", "fault conflict-nvls NCCL_ALGO; warning left-over NCCL_ALGO; warning left-over NCCL_NVLS_ENABLE"},
	{"NCCL_ALGO=allreduce:collnetdirect", "", "fault conflict-collnet NCCL_ALGO; warning left-over NCCL_ALGO"},
	{"NCCL_MIN_NCHANNELS=32;NCCL_MAX_NCHANNELS=8", "", "fault conflict-channels NCCL_MIN_NCHANNELS; note renamed NCCL_MIN_NCHANNELS; note renamed NCCL_MAX_NCHANNELS"},
	{"NCCL_MNNVL_ENABLE=1;NCCL_CUMEM_ENABLE=0", "", "fault conflict-mnnvl NCCL_MNNVL_ENABLE; warning left-over NCCL_MNNVL_ENABLE; note rare NCCL_CUMEM_ENABLE"},
	{"NCCL_OOB_NET_IFNAME==mlx5_0", "", "warning conflict-oob NCCL_OOB_NET_IFNAME; note rare NCCL_OOB_NET_IFNAME"},
	{"NCCL_DEBUG=WARN;NCCL_DEBUG_SUBSYS=NET", "", "warning conflict-debug NCCL_DEBUG_SUBSYS; warning left-over NCCL_DEBUG_SUBSYS"},
	{"NCCL_DEBUG_FILE=/tmp/n.%h.%p", "", "warning conflict-debug NCCL_DEBUG_FILE"},
	{"NCCL_GRAPH_STREAM_ORDERING=0;NCCL_GRAPH_MIXING_SUPPORT=1", "", "fault conflict-order NCCL_GRAPH_STREAM_ORDERING; note rare NCCL_GRAPH_STREAM_ORDERING; note rare NCCL_GRAPH_MIXING_SUPPORT"},
	{"CUDA_LAUNCH_BLOCKING=1", "", "warning conflict-blocking CUDA_LAUNCH_BLOCKING; warning left-over CUDA_LAUNCH_BLOCKING"},
	{"NCCL_IB_ADAPTIVE_ROUTING=1;NCCL_IB_AR_THRESHOLD=16777216", "", "warning conflict-adaptive NCCL_IB_AR_THRESHOLD; note rare NCCL_IB_ADAPTIVE_ROUTING; note rare NCCL_IB_AR_THRESHOLD"},
	{"NCCL_CHECK_MODE=DEFAULT;NCCL_CHECK_POINTERS=1", "", "warning conflict-check NCCL_CHECK_POINTERS; note renamed NCCL_CHECK_POINTERS"},
	{"NCCL_COMM_ID=10.0.0.1:4000;NCCL_SOCKET_IFNAME==eth0", "", "warning conflict-commid NCCL_COMM_ID"},
	{"NCCL_TOPO_DUMP_FILE_RANK=1", "", "warning conflict-dump NCCL_TOPO_DUMP_FILE_RANK; note rare NCCL_TOPO_DUMP_FILE_RANK"},
	{"NCCL_NET_GDR_LEVEL=LOC;NCCL_NET_GDR_READ=1", "", "warning conflict-gdr NCCL_NET_GDR_READ; warning left-over NCCL_NET_GDR_LEVEL; warning left-over NCCL_NET_GDR_READ"},
	{"NCCL_GDRCOPY_FLUSH_ENABLE=1", "", "warning conflict-gdrcopy NCCL_GDRCOPY_FLUSH_ENABLE; note rare NCCL_GDRCOPY_FLUSH_ENABLE"},
	{"NCCL_PXN_DISABLE=1;NCCL_P2P_PXN_LEVEL=1", "", "warning conflict-pxn NCCL_P2P_PXN_LEVEL; warning left-over NCCL_PXN_DISABLE; note rare NCCL_P2P_PXN_LEVEL"},
	{"NCCL_MULTI_RANK_GPU_ENABLE=1;NCCL_NVLS_ENABLE=1", "", "fault conflict-ranks NCCL_NVLS_ENABLE; warning left-over NCCL_NVLS_ENABLE; note rare NCCL_MULTI_RANK_GPU_ENABLE"},
	{"NCCL_RAS_ENABLE=0;NCCL_RAS_ADDR=localhost:28029", "", "warning conflict-ras NCCL_RAS_ADDR; note rare NCCL_RAS_ENABLE"},
	{"NCCL_CUMEM_ENABLE=0;NCCL_WIN_ENABLE=1", "", "warning conflict-register NCCL_WIN_ENABLE; note rare NCCL_CUMEM_ENABLE"},
	{"NCCL_GRAPH_FILE=/x.xml;NCCL_CROSS_NIC=1", "", "warning conflict-topology NCCL_CROSS_NIC; warning left-over NCCL_CROSS_NIC; note rare NCCL_GRAPH_FILE"},
	{"NCCL_NET=IB;NCCL_NSOCKS_PERTHREAD=4", "", "warning conflict-net NCCL_NSOCKS_PERTHREAD; note rare NCCL_NSOCKS_PERTHREAD"},
	{"NCCL_CUMEM_ENABLE=0;NCCL_NVLS_ENABLE=1", "", "warning conflict-nvls NCCL_NVLS_ENABLE; warning left-over NCCL_NVLS_ENABLE; note rare NCCL_CUMEM_ENABLE"},
	{"NCCL_NVLS_ENABLE=0;NCCL_NVLS_NCHANNELS=8", "", "warning conflict-nvls NCCL_NVLS_NCHANNELS; warning left-over NCCL_NVLS_ENABLE; note rare NCCL_NVLS_NCHANNELS"},
	{"NCCL_MIN_CTAS=16;NCCL_MAX_CTAS=4", "", "fault conflict-channels NCCL_MIN_CTAS; note rare NCCL_MIN_CTAS; note rare NCCL_MAX_CTAS"},
	{"NCCL_MAX_NRINGS=4;NCCL_MAX_NCHANNELS=8", "", "warning two-names NCCL_MAX_NRINGS; note renamed NCCL_MAX_NRINGS; note renamed NCCL_MAX_NCHANNELS"},
	{"NCCL_LAUNCH_RACE_FATAL=0", "", "warning conflict-order NCCL_LAUNCH_RACE_FATAL; note rare NCCL_LAUNCH_RACE_FATAL"},
	{"NCCL_CTA_POLICY=ZERO|EFFICIENCY", "", "fault value NCCL_CTA_POLICY"},
	{"NCCL_CTA_POLICY=3", "", "fault value NCCL_CTA_POLICY"},
	{"NCCL_RMA_PROXY_QUEUE_SIZE=100", "", "warning range NCCL_RMA_PROXY_QUEUE_SIZE; note rare NCCL_RMA_PROXY_QUEUE_SIZE"},
	{"TORCH_NCCL_ENABLE_MONITORING=0;TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600", "", "fault torch-monitor TORCH_NCCL_ENABLE_MONITORING"},
	{"TORCH_NCCL_TRACE_BUFFER_SIZE=", "", "fault value TORCH_NCCL_TRACE_BUFFER_SIZE; note renamed TORCH_NCCL_TRACE_BUFFER_SIZE"},
	{"NCCL_ENV_PLUGIN=site", "", "note env-plugin NCCL_ENV_PLUGIN; note rare NCCL_ENV_PLUGIN"},
	// PyTorch
	{"TORCH_NCCL_DUMP_ON_TIMEOUT=on", "", "fault value TORCH_NCCL_DUMP_ON_TIMEOUT"},
	{"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=ten", "", "fault value TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"},
	{"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600s", "", "warning unit TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"},
	{"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=20", "", "warning torch-heartbeat TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"},
	{"TORCH_NCCL_ASYNC_ERROR_HANDLING=4", "", "fault range TORCH_NCCL_ASYNC_ERROR_HANDLING"},
	{"TORCH_DISTRIBUTED_DEBUG=FULL", "", "fault value TORCH_DISTRIBUTED_DEBUG"},
	{"TORCH_DISTRIBUTED_DEBUG=DETAIL", "", "warning left-over TORCH_DISTRIBUTED_DEBUG"},
	{"TORCH_NCCL_USE_COMM_NONBLOCKING=true", "", "fault value TORCH_NCCL_USE_COMM_NONBLOCKING"},
	{"TORCH_NCCL_BLOCKING_WAIT=1;TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "", "warning torch-wait TORCH_NCCL_BLOCKING_WAIT; warning left-over TORCH_NCCL_BLOCKING_WAIT"},
	{"TORCH_NCCL_DUMP_ON_TIMEOUT=1;TORCH_FR_BUFFER_SIZE=0", "", "fault torch-dump TORCH_FR_BUFFER_SIZE"},
	{"TORCH_NCCL_DUMP_ON_TIMEOUT=1;TORCH_NCCL_ENABLE_MONITORING=0", "", "fault torch-monitor TORCH_NCCL_ENABLE_MONITORING"},
	{"TORCH_NCCL_DESYNC_DEBUG=1;TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "", "warning torch-desync TORCH_NCCL_DESYNC_DEBUG; warning left-over TORCH_NCCL_DESYNC_DEBUG; warning torch-nobody TORCH_NCCL_ASYNC_ERROR_HANDLING"},
	{"TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "", "note torch-abort TORCH_NCCL_ASYNC_ERROR_HANDLING"},
	{"TORCH_FR_BUFFER_SIZE=2000;TORCH_NCCL_TRACE_BUFFER_SIZE=100", "", "warning two-names TORCH_NCCL_TRACE_BUFFER_SIZE; note renamed TORCH_NCCL_TRACE_BUFFER_SIZE"},
	{"TORCH_NCCL_DUMP_ON_TIMEOUT=0;TORCH_FR_DUMP_TEMP_FILE=/x/rank_", "", "warning torch-file TORCH_FR_DUMP_TEMP_FILE"},
	// left from an experiment, or against the machine
	{"NCCL_DEBUG=INFO", "", "note left-over NCCL_DEBUG"},
	{"NCCL_CROSS_NIC=0", "", "warning left-over NCCL_CROSS_NIC"},
	{"NCCL_BUFFSIZE=8388608", "", "note rare NCCL_BUFFSIZE"},
}

func TestPlanted(t *testing.T) {
	for _, tt := range planted {
		t.Run(tt.env+" "+tt.version, func(t *testing.T) {
			var m *Machine
			version, with := strings.CutPrefix(tt.version, "-")
			if with {
				m = machine()
			}
			found := checkEnv(t, splitEnv(tt.env), version, m)
			if got, want := list(found), sorted(tt.want); got != want {
				t.Errorf("found\n%s\nwant\n%s", got, want)
				for _, f := range found {
					t.Logf("%s: %s → %s", f.ID, f.Text, f.Advice)
				}
			}
		})
	}
	if len(planted) < 40 {
		t.Errorf("only %d planted errors", len(planted))
	}
}

// splitEnv cuts at semicolons that a new variable follows, because values have some, too.
func splitEnv(s string) []string {
	var out []string
	for _, part := range strings.Split(s, ";") {
		name, _, ok := strings.Cut(part, "=")
		if len(out) > 0 && !(ok && namePattern.MatchString(name) && strings.Contains(name, "_")) {
			out[len(out)-1] += ";" + part
			continue
		}
		out = append(out, part)
	}
	return out
}

// Environments in which nothing is wrong.
func TestCleanEnvironments(t *testing.T) {
	for _, tt := range []struct{ env, version string }{
		{"PATH=/bin;HOME=/root;AWS_SECRET_ACCESS_KEY=x", ""},
		{"NCCL_DEBUG=WARN", ""},
		{"NCCL_DEBUG=warn", ""},
		{"NCCL_DEBUG=VERSION", ""},
		{"NCCL_DEBUG=NONE", ""},
		{"NCCL_DEBUG=WARN;NCCL_DEBUG_FILE=/var/log/nccl-%h-%p.log;NCCL_SOCKET_IFNAME==eth0;NCCL_IB_HCA==mlx5_0,mlx5_1;NCCL_IB_TC=106;NCCL_IB_SL=1", ""},
		{"NCCL_DEBUG=WARN;NCCL_DEBUG_FILE=/dev/stderr", "2.30.7"},
		{"NCCL_SOCKET_IFNAME=eth0", ""},
		{"NCCL_SOCKET_IFNAME==eth0,eth10", "-"},
		{"NCCL_SOCKET_IFNAME=^lo,docker", ""},
		{"NCCL_SOCKET_IFNAME=^=docker0", "-"},
		{"NCCL_SOCKET_IFNAME=bond0", ""},
		{"NCCL_IB_HCA=mlx5", ""},
		{"NCCL_IB_HCA==mlx5_1:1,mlx5_10:1", "-"},
		{"NCCL_IB_HCA=^=mlx5_1", "-"},
		{"NCCL_IB_HCA==mlx5_0::0:1,mlx5_1:1:0:0", ""},
		{"NCCL_IB_HCA==ibp41s0,roceo1", ""},
		{"NCCL_IB_HCA=mlx5_0,mlx5_12", ""},
		{"NCCL_IB_GID_INDEX=3;NCCL_IB_TC=0x6a", ""},
		{"NCCL_IB_DISABLE=0;NCCL_P2P_DISABLE=0;NCCL_SHM_DISABLE=0;NCCL_NVLS_ENABLE=2;NCCL_CROSS_NIC=2", ""},
		{"NCCL_IB_TIMEOUT=20;NCCL_IB_RETRY_CNT=7;NCCL_BUFFSIZE=-2;NCCL_IB_QPS_PER_CONNECTION=1", ""},
		{"NCCL_NET=IB;NCCL_IB_HCA==mlx5_0", ""},
		{"NCCL_NET=AWS_Libfabric;NCCL_NET_PLUGIN=ofi;NCCL_TUNER_PLUGIN=ofi", ""},
		{"NCCL_NET=Socket;NCCL_SOCKET_IFNAME==eth0", ""},
		{"NCCL_NET_PLUGIN=none;NCCL_NET=IB", ""},
		{"NCCL_COLLNET_ENABLE=1", ""},
		{"NCCL_COMM_ID=[fe80::1]:4321", ""},
		{"NCCL_RAS_ADDR=localhost:28029", "2.28.9"},
		{"NCCL_SOCKET_FAMILY=AF_INET6", ""},
		{"NCCL_SET_THREAD_NAME=1", "2.18.1"},
		{"NCCL_SET_THREAD_NAME=TRUE", "2.30.7"},
		{"NCCL_LAUNCH_ORDER_IMPLICIT=1", "2.28.3"},
		{"NCCL_DEBUG=WARN;NCCL_DEBUG_TIMESTAMP_LEVELS=WARN,INFO;NCCL_DEBUG_TIMESTAMP_FORMAT=[%F_%T.%3f]_", "2.27.3"},
		{"NCCL_DEBUG=WARN;NCCL_DEBUG_TIMESTAMP_FORMAT=", ""},
		{"TORCH_NCCL_ASYNC_ERROR_HANDLING=3;TORCH_NCCL_DUMP_ON_TIMEOUT=true;TORCH_NCCL_ENABLE_MONITORING=YES;TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600;TORCH_FR_BUFFER_SIZE=2000", ""},
		{"TORCH_DISTRIBUTED_DEBUG=off", ""},
		{"TORCH_DISTRIBUTED_DEBUG=OFF;TORCH_NCCL_BLOCKING_WAIT=0", "2.26.2"},
		{"NCCL_FASTRAK_IFNAME=eth1,eth2;NCCL_FASTRAK_CTRL_DEV=eth0;NCCL_FASTRAK_USE_SNAP=1;NCCL_GPUDIRECTTCPX_FORCE_ACK=0;NCCL_USE_DMA_BUF=1", ""},
		{"NCCL_VERSION=2.27.3;NCCL_HOME=/usr;NCCL_ROOT=/usr", "2.27.3"},
		{"NCCL_IBEXT_DISABLE=1;RCCL_MSCCL_ENABLE=0;HCCL_COMM_ID=x;CCL_ATL=y;UCX_TLS=rc", ""},
		{"CUDA_VISIBLE_DEVICES=0,1;CUDA_DEVICE_ORDER=PCI_BUS_ID;CUDA_DEVICE_MAX_CONNECTIONS=1;LD_LIBRARY_PATH=/a:/b", ""},
		{"NCCL_CONF_FILE=", "2.20.5"},
	} {
		t.Run(tt.env, func(t *testing.T) {
			var m *Machine
			version, with := strings.CutPrefix(tt.version, "-")
			if with {
				m = machine()
			}
			found := checkEnv(t, splitEnv(tt.env), version, m)
			found = slices.DeleteFunc(found, func(f Finding) bool { return f.ID == "empty" })
			for _, f := range found {
				t.Errorf("%s %s %s: %s", f.Severity, f.ID, f.Name, f.Text)
			}
		})
	}
}

// The profiles that we hand out must bear their own check.
func TestProfilesAreClean(t *testing.T) {
	for _, name := range Profiles {
		text, err := Profile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources, err := Read(strings.NewReader(text), name+".sh")
		if err != nil || len(sources) != 1 || len(sources[0].Settings) < 6 {
			t.Fatalf("%s: %v, %d settings", name, err, len(sources[0].Settings))
		}
		for _, f := range Check(sources[0], Version{}) {
			if name == "prod" || f.Severity == Fault || f.ID != "left-over" {
				t.Errorf("%s: %s %s %s: %s", name, f.Severity, f.ID, f.Name, f.Text)
			}
		}
		// What is commented out is there to be used: it must be right as well.
		on := strings.ReplaceAll(text, "\n#export", "\nexport")
		sources, _ = Read(strings.NewReader(on), name+".sh")
		for _, f := range Check(sources[0], Version{}) {
			if f.Severity == Fault && !strings.HasPrefix(f.ID, "conflict") {
				t.Errorf("%s with everything on: %s %s: %s", name, f.ID, f.Name, f.Text)
			}
		}
		for _, s := range sources[0].Settings {
			if Lookup(s.Name) == nil {
				t.Errorf("%s sets %s, which is not in the catalogue", name, s.Name)
			}
		}
	}
	if _, err := Profile("nope"); err == nil {
		t.Error("a profile that does not exist")
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
