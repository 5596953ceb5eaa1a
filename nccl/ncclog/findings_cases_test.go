package ncclog_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/nccl/ncclog"
)

// answer is what the findings must say about a log: the first of them, others, and words that stand somewhere in their texts.
type answer struct {
	first   string   // id of the first finding; "" none at all
	also    []string // ids
	words   []string // in title, cost, next or fix of the first
	effects []string // ids that must be marked as consequences
	faults  bool     // whether there may be faults
}

// publicAnswers are what was wrong in logs that users brought to public threads, by what the threads found out. The logs are not ours to copy:
// the test reads them where they lie.
var publicAnswers = map[string]answer{
	"bootstrap_bad_iface_2.22.3.txt":              {"bootstrap-no-interface", nil, []string{"nonexistent0", "ip -br addr"}, []string{"program-failed"}, true},
	"bootstrap_linklocal_ib_2.18.txt":             {"connect-link-local", nil, []string{"fe80::", "NCCL_SOCKET_IFNAME", "AF_INET"}, nil, true},
	"coll_mismatch_ib_2.14.txt":                   {"message-size-mismatch", nil, []string{"496640", "65536", "10.207.82.220"}, nil, true},
	"duplicate_gpu_mpirun.txt":                    {"duplicate-gpu", nil, []string{"rank 2 and rank 0", "local rank"}, nil, true},
	"efa_plugin_no_provider_socket_2.27.3.txt":    {"ofi-no-provider", []string{"plugin-failed", "socket-fallback", "slow-init"}, []string{"fi_info -p efa"}, nil, false},
	"gcp_tcpx_dmabuf_fail.txt":                    {"tcpx-regmr", nil, []string{"plugin version"}, []string{"proxy-failed"}, true},
	"graph_dump_h200_vm.txt":                      {"pci-narrow", nil, []string{"0.2 GB/s", "node_2", "NCCL_TOPO_FILE", "ATS", "ACS", "one lane"}, nil, false},
	"graph_multi_nic_socket_2.8.txt":              {"slow-plan", nil, []string{"4 channels of 1.2 GB/s", "SYS"}, nil, false},
	"h100_8gpu_torn_lines_2.29.x.txt":             {"nvls-excluded", []string{"env-leftover"}, []string{"ring,tree"}, nil, false},
	"hang_after_init_start_2.23plus.txt":          {"hang-bootstrap", nil, []string{"ranks 4, 12 of 16", "0-3, 5-11, 13-15"}, nil, true},
	"hang_bootstrap_efa_2.9.txt":                  {"hang-bootstrap", nil, []string{"compute-7", "71837"}, nil, false},
	"hpcx_no_ib_device_2.18.txt":                  {"ib-no-device", nil, []string{"/dev/infiniband"}, nil, false},
	"ib_async_fatal_qp_2.25.1.txt":                {"ib-async-fatal", nil, []string{"mlx5_1", "node-0"}, nil, true},
	"ib_err4_acs_2.18.txt":                        {"ib-local-protection", nil, []string{"ACS", "vendor error 81", "NCCL_NET_GDR_LEVEL=LOC", "H100-2"}, nil, true},
	"ib_opa_a100_4nodes_2.10.3.txt":               {"gdr-off", []string{"nic-idle", "few-channels"}, []string{"hfi1", "does not say why"}, nil, false},
	"ib_port_flap_2.18.txt":                       {"ib-port-error", nil, []string{"node48", "4 processes", "cable", "ibqueryerrors", "not a setting"}, []string{"ib-retry-exceeded"}, true},
	"ibext_ignores_ib_disable_2.20.txt":           {"p2p-disabled", []string{"ib-disable-ignored"}, []string{"NCCL_P2P_LEVEL=LOC"}, nil, false},
	"libibverbs_missing_2.28.9.txt":               {"hang-bootstrap", []string{"libibverbs-missing", "socket-fallback"}, nil, nil, false}, // the log is cut after Init START
	"no_algorithm_2.18.txt":                       {"no-algorithm", nil, []string{"NCCL_ALGO", "NCCL_PROTO", "unset"}, nil, true},
	"nvls_bind_fail_2.21.5.txt":                   {"nvls-bind-failed", nil, []string{"node2", "nvls.cc", "Fabric Manager", "reset", "NCCL_NVLS_ENABLE=0"}, nil, true},
	"opcount_mismatch.txt":                        {"coll-mismatch", nil, []string{"0x28c", "AllReduce (9984512 x float)", "AllGather (59205120", "0x28b", "program is out of step"}, nil, true},
	"pcie_2gpu_shm_consumer_2.27.5.txt":           {"p2p-shm", nil, []string{"host memory"}, nil, false},
	"roce_err12_ibext_2.2x.txt":                   {"ib-retry-exceeded", nil, []string{"172.36.95.104", "vendor error 129", "ib_write_bw"}, []string{"ib-flush"}, true},
	"roce_gdr_disabled_2.20.txt":                  {"gdr-off", nil, []string{"mlx5_0", "nvidia_peermem", "DMA-BUF"}, nil, false},
	"rtx5090_2.25.1.txt":                          {"max-shared-mem", nil, []string{"newer NCCL"}, nil, false},
	"sharp_tree_lock_fail.txt":                    {"sharp-tree-lock", nil, []string{"-18", "another job"}, nil, false},
	"shm_full_2.18.3.txt":                         {"shm-full", nil, []string{"ubuntu", "5.7 MiB", "--shm-size", "64 MB", "NCCL_SHM_DISABLE"}, nil, true},
	"slingshot_ofi_cxi_then_crash_2.20.5.txt":     {"hang-after-init", nil, []string{"BROADCAST number 5", "unknown"}, []string{"program-failed"}, true},
	"socket_connect_abort_2.18.3.txt":             {"connect-failed", nil, []string{"10.181.178.147", "NCCL_SOCKET_IFNAME"}, []string{"peer-closed", "proxy-failed", "proxy-lost"}, true},
	"socket_shm_rankprefix_2.18.txt":              {"socket-fallback", []string{"p2p-shm"}, nil, nil, false},
	"topo_file_fault_2ch_2.27.7.txt":              {"nvlink-asymmetric", []string{"few-channels"}, []string{"topo_fail.xml", "20 GB/s", "240"}, nil, false},
	"truncated_socket_2.10.3.txt":                 {"message-size-mismatch", nil, []string{"192.168.32.146", "expected 65536", "got 1048576", "NCCL_PROTO=Simple", "COLL"}, nil, true},
	"tuning_table_algo_tree_2.19.txt":             {"algorithm-excluded", nil, []string{"Broadcast", "NCCL_ALGO=Tree"}, nil, false},
	"vm_modify_qp_timeout_2.14.txt":               {"ib-modify-qp", nil, []string{"vm-133", "timed out", "GID"}, []string{"peer-closed", "proxy-failed"}, true},
	"a100_pcie_nvlink_pair_all_subsys_2.27.7.txt": {"gdr-off", nil, []string{"one node"}, nil, false},
	"efa_p4d_16gpu_2.8.3_mpirun.txt":              {},
	"efa_p5_16gpu_wrong_version_2.20.3.txt":       {"env-leftover", nil, []string{"NCCL_BUFFSIZE"}, nil, false},
	"percall_tuning_2.20_22.txt":                  {},
}

// Every log of the folder, whatever is wrong with it, must give findings that rest on its lines, with the cause first.
func TestFindingsPublic(t *testing.T) {
	dir := filepath.Join(sharedData(t), "nccllog_public")
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs in nccllog_public (%v)", err)
	}
	met := 0
	for _, name := range files {
		base := filepath.Base(name)
		t.Run(base, func(t *testing.T) {
			all := findingsOf(t, name)
			if len(all) > 0 && all[0].Effect {
				t.Errorf("a consequence stands first:\n%s", list(all))
			}
			for _, x := range all {
				if len(x.Evidence) == 0 {
					t.Errorf("%s rests on no line", x.ID)
				}
				if strings.Contains(x.Title, "%!") || strings.Contains(x.Title, "{") {
					t.Errorf("%s: %s", x.ID, x.Title)
				}
			}
			if want, ok := publicAnswers[base]; ok {
				met++
				checkAnswer(t, all, want)
			}
		})
	}
	if met < len(publicAnswers) {
		t.Errorf("only %d of %d known logs are in the folder", met, len(publicAnswers))
	}
}

func checkAnswer(t *testing.T, all []ncclog.Finding, want answer) {
	t.Helper()
	if want.first == "" {
		if len(all) > 0 {
			t.Errorf("want no finding:\n%s", list(all))
		}
		return
	}
	if len(all) == 0 || all[0].ID != want.first {
		t.Fatalf("want %s first:\n%s", want.first, list(all))
	}
	x := all[0]
	text := strings.Join([]string{x.Title, x.Cost, x.Next, x.Fix}, "\n")
	for _, w := range want.words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q:\n%s", x.ID, w, text)
		}
	}
	for _, id := range want.also {
		if get(all, id) == nil {
			t.Errorf("no %s:\n%s", id, list(all))
		}
	}
	for _, id := range want.effects {
		if e := get(all, id); e == nil || !e.Effect || e.Of != want.first {
			t.Errorf("%s is not marked as a consequence of %s:\n%s", id, want.first, list(all))
		}
	}
	for _, x := range all {
		if x.Severity == fault && !want.faults {
			t.Errorf("fault in a log that has none: %s: %s", x.ID, x.Title)
		}
	}
}

// The cases with an answer whose logs are not in the folder, in our own words.
func TestFindingsCases(t *testing.T) {
	roce := func(r *rankLog) {
		r.version, r.nic = "2.18.5", "Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
		r.late = append(r.late, ringTo(r, "P2P/CUMEM"))
	}
	far := func(r *rankLog) {
		r.version = "2.20.5"
		r.mid = []string{"NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "GPU Direct RDMA Disabled for GPU ca000 / HCA 0 (distance 7 > 4), read 0"}
	}
	tests := []struct {
		name, text string
		want       answer
	}{
		{"GPU and NIC on different sockets", pair(both(far, netEdges(""))), answer{first: "gdr-distance",
			words: []string{"GPU ca000", "SYS", "limit is PXB", "different CPU sockets", "host memory", "NIC on the GPU's side", "NCCL_NET_GDR_LEVEL=SYS", "may not be faster", "Not a fault of the driver"}}},
		{"RoCE without a GID index before 2.21", pair(both(roce, only(0, late("WARN transport/net_ib.cc:1295 NET/IB : Got completion from peer 10.0.0.108<4242> with error 12, opcode 0, len 0, vendor err 129")))),
			answer{first: "ib-retry-exceeded", faults: true, words: []string{"node-a", "10.0.0.108<4242> (node-b)", "129", "index 0", "try 3", "RoCE v2", "ib_write_bw"}}},
		{"local protection with GPUDirect", pair(both(netEdges("/GDRDMA"), func(r *rankLog) {
			r.late = append(r.late, "WARN transport/net_ib.cc:1295 NET/IB : Got completion from peer 10.0.0.108<4242> with status=4 opcode=0 len=0 vendor err 81 (Send)")
		})), answer{first: "ib-local-protection", faults: true, words: []string{"GPUDirect RDMA is on", "ACS", "NCCL_NET_GDR_LEVEL=LOC", "bridges above"}}},
		{"/dev/shm with the errno text", pair(only(0, late("WARN misc/shmutils.cc:71 Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, error: No space left on device (28)"))),
			answer{first: "shm-full", faults: true, words: []string{"node-a", "9.2 MiB", "64 MB", "--shm-size=1g", "medium Memory"}}},
		{"PCIe writes that do not arrive", node(both(mid(pcieOnly...), ring("P2P/CUMEM"))), answer{first: "p2p-over-pcie", words: []string{"Init COMPLETE", "PCIe", "ACS", "IOMMU", "NCCL_P2P_DISABLE=1", "setpci", "iommu=pt"}}},
		{"message truncated", pair(both(only(0, late("NCCL_PROTO set by environment to LL", "WARN transport/net_socket.cc:424 NET/Socket : peer 10.0.0.108<5> message truncated : receiving 1048576 bytes instead of 65536")), only(1, late("NCCL_PROTO set by environment to Simple")))),
			answer{first: "message-size-mismatch", also: []string{"env-differs"}, faults: true, words: []string{"expected 65536", "got 1048576", "chunks of different protocols", "env-differs", "COLL lines", "NCCL_PROTO=Simple"}}},
		{"message truncated, line broken in two", "transport/net_socket.cc:424 NCCL WARN NET/Socket : peer 10.0.0.108<5> message truncated :\nreceiving 1048576 bytes instead of 65536\n",
			answer{first: "message-size-mismatch", faults: true, words: []string{"expected 65536", "got 1048576"}}},
		{"bandwidth without GPUDirect", pair(netEdges("")), answer{first: "gdr-off", words: []string{"24 GB/s", "nvidia_peermem", "ACS"}}},
		{"the wording of 2.29", pair(only(0, late("WARN transport/net_ib/p2p.cc:5 NET/IB: Got completion from peer 10.0.0.108<4242> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid ::ffff:10.0.0.107 remoteGids::ffff:10.0.0.108 hca mlx5_3"))),
			answer{first: "ib-retry-exceeded", faults: true, words: []string{"mlx5_3", "status 12", "vendor error 129"}}},
		{"a variable on one host only", pair(both(early("NCCL_SOCKET_IFNAME set by environment to eth0"), only(0, late("NCCL_PROTO set by environment to LL")))),
			answer{first: "env-differs", words: []string{"NCCL_PROTO is set only on node-a"}}},
		{"debugging variables", pair(late("NCCL_DEBUG set by environment to TRACE", "NCCL_ALGO set by environment to Ring", "NCCL_P2P_DISABLE set by environment to 1")),
			answer{first: "p2p-disabled", also: []string{"env-leftover"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkAnswer(t, findingsIn(t, tt.text), tt.want) })
	}
}
