package ncclenv

import (
	"fmt"
	"slices"
	"strings"
)

// ibSettings act only on NCCL's own InfiniBand and RoCE transport.
var ibSettings = []string{"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_PKEY",
	"NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_MERGE_NICS",
	"NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_FIFO_TC", "NCCL_IB_AR_THRESHOLD", "NCCL_IB_ECE_ENABLE"}

// rules are all conflicts that are looked for, network first.
var rules = slices.Concat(networkRules, nodeRules, tuningRules, debugRules, torchRules)

var networkRules = []rule{
	{"conflict-ib", Fault, "remove NCCL_IB_DISABLE to use RDMA, or the others to use sockets", func(w view) (string, string) {
		if w.number("NCCL_IB_DISABLE", 0) == 0 {
			return "", ""
		}
		return together(w, "NCCL_IB_DISABLE turns NCCL's RDMA transport off", ibSettings...)
	}},
	{"conflict-net", Fault, "remove NCCL_NET to use RDMA, or the others to use sockets", func(w view) (string, string) {
		if !strings.EqualFold(w.value("NCCL_NET"), "Socket") {
			return "", ""
		}
		return together(w, "NCCL_NET=Socket sends everything over TCP", slices.Concat(ibSettings, []string{"NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"})...)
	}},
	{"conflict-net", Fault, "remove one of the two: a communicator cannot be created so", func(w view) (string, string) {
		if !strings.EqualFold(w.value("NCCL_NET"), "IB") || w.number("NCCL_IB_DISABLE", 0) == 0 {
			return "", ""
		}
		return "NCCL_NET", "NCCL_NET=IB demands what NCCL_IB_DISABLE turns off"
	}},
	{"conflict-net", Odd, "remove those for sockets", func(w view) (string, string) {
		if !strings.EqualFold(w.value("NCCL_NET"), "IB") {
			return "", ""
		}
		return together(w, "NCCL_NET=IB leaves sockets nothing but the start", "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
	}},
	{"conflict-plugin", Fault, "remove NCCL_NET_PLUGIN=none, or name IB or Socket", func(w view) (string, string) {
		net := strings.ToUpper(w.value("NCCL_NET"))
		if !strings.EqualFold(w.value("NCCL_NET_PLUGIN"), "none") || net == "" || net == "IB" || net == "SOCKET" {
			return "", ""
		}
		return "NCCL_NET", "NCCL_NET names the network of a plugin, and NCCL_NET_PLUGIN=none loads none"
	}},
	{"conflict-gid", Odd, "leave NCCL_IB_GID_INDEX out to let NCCL choose by the others", func(w view) (string, string) {
		if w.number("NCCL_IB_GID_INDEX", -1) < 0 {
			return "", ""
		}
		return together(w, "they guide the choice of an address that NCCL_IB_GID_INDEX fixes", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
	}},
	{"conflict-qps", Odd, "set NCCL_IB_QPS_PER_CONNECTION, or remove the other", func(w view) (string, string) {
		if w.number("NCCL_IB_SPLIT_DATA_ON_QPS", 0) == 0 || w.number("NCCL_IB_QPS_PER_CONNECTION", 1) > 1 {
			return "", ""
		}
		return "NCCL_IB_SPLIT_DATA_ON_QPS", "there is one queue pair a connection, so nothing can be split over several"
	}},
	{"conflict-adaptive", Odd, "set NCCL_IB_AR_THRESHOLD below NCCL_BUFFSIZE", func(w view) (string, string) {
		buffer := w.number("NCCL_BUFFSIZE", 4<<20)
		if buffer < 0 {
			buffer = 4 << 20
		}
		if w.number("NCCL_IB_ADAPTIVE_ROUTING", 0) != 1 || w.number("NCCL_IB_AR_THRESHOLD", 0) <= buffer {
			return "", ""
		}
		return "NCCL_IB_AR_THRESHOLD", "above NCCL_BUFFSIZE it turns off what NCCL_IB_ADAPTIVE_ROUTING=1 asks for"
	}},
	{"conflict-sockets", Fault, "keep the product at 64 or less", func(w view) (string, string) {
		n := w.number("NCCL_SOCKET_NTHREADS", 1) * w.number("NCCL_NSOCKS_PERTHREAD", 1)
		if n <= 64 {
			return "", ""
		}
		name := append(w.these("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"), "")[0]
		return name, fmt.Sprintf("NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD is %d, more than 64 sockets a connection", n)
	}},
	{"conflict-pxn", Odd, "remove one of the two", func(w view) (string, string) {
		if w.number("NCCL_PXN_DISABLE", 0) == 0 {
			return "", ""
		}
		return together(w, "NCCL_PXN_DISABLE turns routes through other GPUs off", "NCCL_P2P_PXN_LEVEL", "NCCL_PXN_C2C")
	}},
	{"conflict-oob", Odd, "set NCCL_OOB_NET_ENABLE=1, or remove it", func(w view) (string, string) {
		if !w.set("NCCL_OOB_NET_IFNAME") || w.number("NCCL_OOB_NET_ENABLE", 0) != 0 {
			return "", ""
		}
		return "NCCL_OOB_NET_IFNAME", "it counts only with NCCL_OOB_NET_ENABLE=1; without, start-up goes by NCCL_SOCKET_IFNAME"
	}},
	{"loopback", Odd, "name the interface that reaches the other hosts", func(w view) (string, string) {
		v := strings.TrimPrefix(w.value("NCCL_SOCKET_IFNAME"), "=")
		if v != "lo" && !strings.HasPrefix(v, "docker") {
			return "", ""
		}
		return "NCCL_SOCKET_IFNAME", show(v) + " reaches no other host: a job on several nodes hangs or fails at its start"
	}},
	{"conflict-commid", Odd, "remove NCCL_SOCKET_IFNAME, or let the program hand round the id", func(w view) (string, string) {
		if !w.set("NCCL_COMM_ID") || !w.set("NCCL_SOCKET_IFNAME") {
			return "", ""
		}
		return "NCCL_COMM_ID", "with it start-up takes the interface in the subnet of this address, whatever NCCL_SOCKET_IFNAME says"
	}},
}

var nodeRules = []rule{
	{"conflict-p2p", Fault, "remove one of the two", func(w view) (string, string) {
		if w.number("NCCL_P2P_DISABLE", 0) != 1 {
			return "", ""
		}
		return together(w, "NCCL_P2P_DISABLE=1 goes before", "NCCL_P2P_LEVEL", "NCCL_P2P_READ_ENABLE", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_P2P_DIRECT_DISABLE")
	}},
	{"conflict-shm", Odd, "allow one of them, at least outside an experiment", func(w view) (string, string) {
		level := w.value("NCCL_P2P_LEVEL")
		if w.number("NCCL_SHM_DISABLE", 0) == 0 || w.number("NCCL_P2P_DISABLE", 0) != 1 && level != "LOC" && level != "0" {
			return "", ""
		}
		return "NCCL_SHM_DISABLE", "with P2P off as well, GPUs of one node talk over the network"
	}},
	{"conflict-nvls", Fault, "set NCCL_NVLS_ENABLE=2, or choose another algorithm", func(w view) (string, string) {
		only := onlyAlgorithms(w.value("NCCL_ALGO"), "nvls", "nvlstree")
		if !w.is("NCCL_NVLS_ENABLE", 0) || !only {
			return "", ""
		}
		return "NCCL_ALGO", "NCCL_NVLS_ENABLE=0 leaves none of these algorithms, so calls fail"
	}},
	{"conflict-nvls", Odd, "remove NCCL_CUMEM_ENABLE=0", func(w view) (string, string) {
		if !w.is("NCCL_CUMEM_ENABLE", 0) || w.number("NCCL_NVLS_ENABLE", 2) != 1 {
			return "", ""
		}
		return "NCCL_NVLS_ENABLE", "NVLS needs the memory calls that NCCL_CUMEM_ENABLE=0 turns off"
	}},
	{"conflict-nvls", Odd, "remove those", func(w view) (string, string) {
		if !w.is("NCCL_NVLS_ENABLE", 0) {
			return "", ""
		}
		return together(w, "NCCL_NVLS_ENABLE=0", "NCCL_NVLS_NCHANNELS", "NCCL_NVLS_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE")
	}},
	{"conflict-collnet", Fault, "set NCCL_COLLNET_ENABLE=1 and see that the plugin is there, or choose another algorithm", func(w view) (string, string) {
		if w.number("NCCL_COLLNET_ENABLE", 0) == 1 || !onlyAlgorithms(w.value("NCCL_ALGO"), "collnetdirect", "collnetchain") {
			return "", ""
		}
		if !w.set("NCCL_COLLNET_ENABLE") {
			return "NCCL_ALGO", "only CollNet is allowed, and without NCCL_COLLNET_ENABLE=1 (or the program's config) there is none"
		}
		return "NCCL_ALGO", "only CollNet is allowed, and NCCL_COLLNET_ENABLE turns it off"
	}},
	{"conflict-mnnvl", Fault, "remove NCCL_CUMEM_ENABLE=0, or do not demand NVLink between nodes", func(w view) (string, string) {
		if !w.is("NCCL_MNNVL_ENABLE", 1) || !w.is("NCCL_CUMEM_ENABLE", 0) {
			return "", ""
		}
		return "NCCL_MNNVL_ENABLE", "NVLink between nodes needs the memory calls that NCCL_CUMEM_ENABLE=0 turns off: creation fails"
	}},
	{"conflict-ranks", Fault, "set NCCL_NVLS_ENABLE=2 or 0", func(w view) (string, string) {
		if w.number("NCCL_MULTI_RANK_GPU_ENABLE", 0) != 1 || !w.is("NCCL_NVLS_ENABLE", 1) {
			return "", ""
		}
		return "NCCL_NVLS_ENABLE", "several ranks a GPU and NVLS demanded exclude each other: creation fails"
	}},
	{"conflict-gdr", Odd, "remove one of the two", func(w view) (string, string) {
		if l := w.value("NCCL_NET_GDR_LEVEL"); l != "LOC" && l != "0" {
			return "", ""
		}
		return together(w, "this NCCL_NET_GDR_LEVEL turns GPUDirect RDMA off", "NCCL_NET_GDR_READ", "NCCL_NET_FORCE_FLUSH", "NCCL_GDRCOPY_FLUSH_ENABLE")
	}},
	{"conflict-gdrcopy", Odd, "set NCCL_GDRCOPY_ENABLE=1, or remove those", func(w view) (string, string) {
		if w.number("NCCL_GDRCOPY_ENABLE", 0) != 0 {
			return "", ""
		}
		return together(w, "NCCL_GDRCOPY_ENABLE=1 is missing", "NCCL_GDRCOPY_FLUSH_ENABLE", "NCCL_GDRCOPY_SYNC_ENABLE", "NCCL_GDRCOPY_FIFO_ENABLE")
	}},
	{"conflict-register", Odd, "remove one of the two", func(w view) (string, string) {
		if !w.is("NCCL_CUMEM_ENABLE", 0) {
			return "", ""
		}
		return together(w, "windows need the memory calls that NCCL_CUMEM_ENABLE=0 turns off", "NCCL_WIN_ENABLE", "NCCL_WIN_STRIDE", "NCCL_SYM_KERNEL", "NCCL_CUMEM_HOST_ENABLE")
	}},
}

// onlyAlgorithms tells whether a value of NCCL_ALGO allows, for some function, nothing but these.
func onlyAlgorithms(value string, these ...string) bool {
	return slices.ContainsFunc(parseChoices(value), func(ch choice) bool {
		return !ch.not && len(ch.words) > 0 && !slices.ContainsFunc(ch.words, func(w string) bool { return !slices.Contains(these, w) })
	})
}

// more tells that the lower bound of a pair lies above the upper one.
func more(low, high string) func(w view) (string, string) {
	return func(w view) (string, string) {
		if !w.set(low) || !w.set(high) || w.number(low, 0) <= w.number(high, 0) || w.number(high, 0) < 1 {
			return "", ""
		}
		return low, fmt.Sprintf("%s=%d is more than %s=%d", low, w.number(low, 0), high, w.number(high, 0))
	}
}

// old tells that an older name loses against a newer one of another value.
func old(was, is string) func(w view) (string, string) {
	return func(w view) (string, string) {
		if !w.set(was) || !w.set(is) || w.value(was) == w.value(is) {
			return "", ""
		}
		return was, fmt.Sprintf("%s is the newer name and goes before: %s", is, show(w.value(is)))
	}
}

const makeFit = "make the lower bound no more than the upper one"

var tuningRules = []rule{
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")},
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")},
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_NCHANNELS", "NCCL_MAX_CTAS")},
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_CTAS", "NCCL_MAX_NCHANNELS")},
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS")},
	{"conflict-channels", Fault, makeFit, more("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS")},
	{"two-names", Odd, "remove the old name", old("NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS")},
	{"two-names", Odd, "remove the old name", old("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS")},
	{"conflict-topology", Odd, "remove one of the two", func(w view) (string, string) {
		if !w.set("NCCL_GRAPH_FILE") {
			return "", ""
		}
		return together(w, "NCCL_GRAPH_FILE fixes the graphs", "NCCL_CROSS_NIC", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
	}},
	{"conflict-order", Fault, "leave NCCL_GRAPH_STREAM_ORDERING at 1, or set NCCL_GRAPH_MIXING_SUPPORT=0", func(w view) (string, string) {
		if !w.is("NCCL_GRAPH_STREAM_ORDERING", 0) || !w.is("NCCL_GRAPH_MIXING_SUPPORT", 1) {
			return "", ""
		}
		return "NCCL_GRAPH_STREAM_ORDERING", "mixing of graphs and ordinary launches needs NCCL's ordering"
	}},
	{"conflict-order", Odd, "set NCCL_LAUNCH_ORDER_IMPLICIT=1, or remove it", func(w view) (string, string) {
		if !w.set("NCCL_LAUNCH_RACE_FATAL") || w.number("NCCL_LAUNCH_RACE_FATAL", 1) != 0 || w.number("NCCL_LAUNCH_ORDER_IMPLICIT", 0) != 0 {
			return "", ""
		}
		return "NCCL_LAUNCH_RACE_FATAL", "it counts only with NCCL_LAUNCH_ORDER_IMPLICIT=1"
	}},
	{"conflict-blocking", Odd, "remove CUDA_LAUNCH_BLOCKING", func(w view) (string, string) {
		if w.number("CUDA_LAUNCH_BLOCKING", 0) == 0 {
			return "", ""
		}
		return "CUDA_LAUNCH_BLOCKING", "every launch waits: nothing overlaps, and one process with several GPUs can block itself in a collective"
	}},
}

var debugRules = []rule{
	{"env-plugin", Note, "NCCL_ENV_PLUGIN=none turns it off", func(w view) (string, string) {
		if v := w.value("NCCL_ENV_PLUGIN"); v == "" || strings.EqualFold(v, "none") {
			return "", ""
		}
		return "NCCL_ENV_PLUGIN", "from 2.28 on this library answers in place of the environment: what it says cannot be seen here"
	}},
	{"conflict-debug", Odd, "set NCCL_DEBUG=INFO, or remove it", func(w view) (string, string) {
		if level := strings.ToUpper(w.value("NCCL_DEBUG")); level == "INFO" || level == "TRACE" || level == "ABORT" || w.src.Get("NCCL_DEBUG") != nil && level == "" || w.src.Partial ||
			truth(w.value("NCCL_WARN_ENABLE_DEBUG_INFO")) {
			return "", ""
		}
		return together(w, "only NCCL_DEBUG=INFO and above go by subsystems", "NCCL_DEBUG_SUBSYS")
	}},
	{"conflict-debug", Odd, "set NCCL_DEBUG=WARN or INFO", func(w view) (string, string) {
		if level := strings.ToUpper(w.value("NCCL_DEBUG")); level != "" && level != "VERSION" && level != "NONE" || w.src.Get("NCCL_DEBUG") != nil && level == "" || w.src.Partial {
			return "", ""
		}
		return together(w, "without NCCL_DEBUG=WARN or above there is no log", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS", "NCCL_WARN_ENABLE_DEBUG_INFO")
	}},
	{"conflict-check", Odd, "remove NCCL_CHECK_POINTERS", func(w view) (string, string) {
		if !strings.EqualFold(w.value("NCCL_CHECK_MODE"), "DEFAULT") || w.number("NCCL_CHECK_POINTERS", 0) != 1 {
			return "", ""
		}
		return "NCCL_CHECK_POINTERS", "it still turns checks on, although NCCL_CHECK_MODE=DEFAULT"
	}},
	{"conflict-ras", Odd, "remove one of the two", func(w view) (string, string) {
		if !w.is("NCCL_RAS_ENABLE", 0) {
			return "", ""
		}
		return together(w, "NCCL_RAS_ENABLE=0", "NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR")
	}},
	{"conflict-dump", Odd, "set the file, or remove it", func(w view) (string, string) {
		for _, file := range []string{"NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"} {
			if rank := file + "_RANK"; w.set(rank) && w.src.Get(file) == nil {
				return rank, "no file is written without " + file
			}
		}
		return "", ""
	}},
}

var torchRules = []rule{
	{"torch-wait", Odd, "remove TORCH_NCCL_BLOCKING_WAIT", func(w view) (string, string) {
		name := append(w.these("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"), "")[0]
		if name == "" || !truth(w.value(name)) {
			return "", ""
		}
		text := "the watchdog's error handling is off while wait() blocks"
		if these := w.these("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DESYNC_DEBUG"); len(these) > 0 {
			text += ": " + strings.Join(these, ", ") + " no longer count"
		}
		return name, text
	}},
	{"torch-dump", Fault, "give the buffer 2000 entries, or do not ask for a dump", func(w view) (string, string) {
		size := "TORCH_FR_BUFFER_SIZE"
		if !w.set(size) {
			size = "TORCH_NCCL_TRACE_BUFFER_SIZE"
		}
		if !w.is(size, 0) || !w.set("TORCH_NCCL_DUMP_ON_TIMEOUT") || !w.torch("TORCH_NCCL_DUMP_ON_TIMEOUT", true) {
			return "", ""
		}
		return size, "the flight recorder is off, so TORCH_NCCL_DUMP_ON_TIMEOUT has nothing to write"
	}},
	{"torch-monitor", Fault, "set TORCH_NCCL_ENABLE_MONITORING=1", func(w view) (string, string) {
		if w.torch("TORCH_NCCL_ENABLE_MONITORING", true) {
			return "", ""
		}
		if w.set("TORCH_NCCL_DUMP_ON_TIMEOUT") && w.torch("TORCH_NCCL_DUMP_ON_TIMEOUT", true) {
			return "TORCH_NCCL_ENABLE_MONITORING", "the monitor thread writes the dumps: with 0 TORCH_NCCL_DUMP_ON_TIMEOUT has no effect"
		}
		_, text := together(w, "the monitor thread is off", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_COORD_CHECK_MILSEC")
		return "TORCH_NCCL_ENABLE_MONITORING", text
	}},
	{"torch-file", Odd, "set TORCH_NCCL_DUMP_ON_TIMEOUT=1", func(w view) (string, string) {
		if w.torch("TORCH_NCCL_DUMP_ON_TIMEOUT", true) {
			return "", ""
		}
		return together(w, "TORCH_NCCL_DUMP_ON_TIMEOUT is off", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
	}},
	{"torch-desync", Odd, "leave TORCH_NCCL_ASYNC_ERROR_HANDLING at 3", func(w view) (string, string) {
		if !w.torch("TORCH_NCCL_DESYNC_DEBUG", false) || !w.is("TORCH_NCCL_ASYNC_ERROR_HANDLING", 0) {
			return "", ""
		}
		return "TORCH_NCCL_DESYNC_DEBUG", "its report is part of the error handling, which is 0"
	}},
	{"torch-abort", Note, "use 3, the default", func(w view) (string, string) {
		if !w.is("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1) {
			return "", ""
		}
		return "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1 aborts the communicator first; where the abort hangs, the dump is lost and the process stays"
	}},
	{"torch-nobody", Odd, "leave it at 3", func(w view) (string, string) {
		if !w.is("TORCH_NCCL_ASYNC_ERROR_HANDLING", 0) {
			return "", ""
		}
		return "TORCH_NCCL_ASYNC_ERROR_HANDLING", "nobody ends a job after an error or time-out: it hangs until somebody looks"
	}},
	{"torch-heartbeat", Odd, "use 300 or more", func(w view) (string, string) {
		if n := w.number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480); n < 1 || n >= 60 {
			return "", ""
		}
		return "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "less than a minute: loading of modules or a slow allocation looks like a stuck watchdog, and the process is ended"
	}},
	{"two-names", Odd, "remove the old name", old("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")},
	{"two-names", Odd, "remove the old name", old("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")},
	{"two-names", Odd, "remove the old name", old("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")},
	{"two-names", Odd, "remove the old name", old("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")},
}
