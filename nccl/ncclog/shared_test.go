package ncclog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// logsData has logs of all kinds from public reports, and our own runs. What is expected of them was found with grep and by hand.
const logsData = "../../../shared/data"

// expectation is what a log says. Zero ranks: no communicator.
type expectation struct {
	comms, ranks, size int // communicators, ranks of the first, its nranks
	procs              int
	versions           string
	warns              int // WARN lines
	check              func(l *Log) string
}

func TestSharedLogs(t *testing.T) {
	if _, err := os.Stat(logsData); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; in CI it must be there", logsData)
		}
		t.Skipf("%s is not here", logsData)
	}
	files, err := filepath.Glob(logsData + "/nccllog_public/*.txt")
	if err != nil || len(files) < len(sharedLogs)-2 {
		t.Fatalf("%d logs: %v", len(files), err)
	}
	files = append(files, logsData+"/nccltests_h200x2/ar_info.txt", logsData+"/nccltests_h200x2/ar_shm.txt")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			want, ok := sharedLogs[name]
			if !ok {
				t.Fatal("no expectation; add one, found by hand")
			}
			checkShared(t, open(t, file), want)
		})
	}
}

func checkShared(t *testing.T, l *Log, want expectation) {
	t.Helper()
	for _, u := range l.Counts.Unknown {
		t.Errorf("%d x not understood: %s: %s", u.Count, u.First, u.First.Text)
	}
	for list, n := range l.Counts.Dropped {
		t.Errorf("%d %s dropped", n, list)
	}
	equal(t, "communicators", len(l.Comms), want.comms)
	equal(t, "processes", len(l.Processes), want.procs)
	if len(l.Comms) > 0 {
		equal(t, "ranks in the log", len(l.Comms[0].Ranks), want.ranks)
		equal(t, "nranks", l.Comms[0].NRanks, want.size)
	}
	var versions []string
	for _, v := range l.Versions {
		versions = append(versions, v.NCCL+"+"+v.CUDA)
	}
	equal(t, "versions", strings.Join(versions, " "), want.versions)
	warns := 0
	for _, w := range l.Warnings {
		warns += w.Count
		if w.ID == "" {
			t.Errorf("%s: %q is not in the catalogue", w.At, w.Text)
		}
	}
	equal(t, "WARN lines", warns, want.warns)
	if want.check != nil {
		if msg := want.check(l); msg != "" {
			t.Error(msg)
		}
	}
}

// says compares what a log says with what it should, as text.
func says(want string, got func(l *Log) []any) func(*Log) string {
	return func(l *Log) string {
		if text := strings.TrimSuffix(fmt.Sprintln(got(l)...), "\n"); text != want {
			return fmt.Sprintf("got  %s\nwant %s", text, want)
		}
		return ""
	}
}

func ids(l *Log) string {
	var out []string
	for _, w := range l.Warnings {
		if !slices.Contains(out, w.ID) {
			out = append(out, w.ID)
		}
	}
	return strings.Join(out, " ")
}

func warned(want string) func(*Log) string {
	return says(want, func(l *Log) []any { return []any{ids(l)} })
}

// edges counts connections by what they go over, receiving ends apart.
func edges(l *Log) string {
	counts := map[string]int{}
	for _, r := range l.Comms[0].Ranks {
		for _, e := range r.Edges {
			way := e.way()
			if e.Dir == "receive" {
				way = "from " + way
			}
			counts[way]++
		}
	}
	return strings.Trim(fmt.Sprint(counts), "map[]")
}

func first(l *Log) *Process { return l.Processes[0] }

var sharedLogs = map[string]expectation{
	"a100_pcie_nvlink_pair_all_subsys_2.27.7": {1, 2, 2, 1, "2.27.7+13.0", 0, says("P2P/direct pointer/read:9 24 24 105 24 8589934592 [{IB 0 mlx5_0 false} {IB 1 mlx5_1 false} {IB 2 mlx5_0+mlx5_1 false}] 240",
		func(l *Log) []any {
			c := l.Comms[0]
			var gdr []string
			for _, g := range first(l).NICGDR {
				gdr = append(gdr, fmt.Sprintf("{%s %d %s %v}", g.Net, g.Index, g.NIC, g.Enabled))
			}
			return []any{edges(l), len(c.Rings), len(c.Trees), len(c.Tuning), c.Ranks[0].Totals.Coll, c.Selections[0].Bytes, gdr, first(l).System.MaxBW}
		})},
	"bootstrap_bad_iface_2.22.3": {0, 0, 0, 1, "", 1, says("bootstrap-no-interface NCCL_SOCKET_IFNAME=nonexistent0 (echo) 2", func(l *Log) []any {
		return []any{ids(l), settings(first(l).Env), len(first(l).Traces)}
	})},
	"bootstrap_linklocal_ib_2.18": {0, 0, 0, 2, "", 1, says("connect-link-local fe80::aaaa:bb03:a2:11f0%ib1<17943>", func(l *Log) []any { return []any{ids(l), l.Warnings[0].Peer} })},
	"coll_mismatch_ib_2.14":       {0, 0, 0, 1, "", 1, says("size-mismatch 10.20.30.10:", func(l *Log) []any { return []any{ids(l), first(l).Label} })},
	"duplicate_gpu_mpirun":        {0, 0, 0, 4, "", 4, says("duplicate-gpu [1,2]<stdout>:", func(l *Log) []any { return []any{ids(l), first(l).Label} })},
	"efa_p4d_16gpu_2.8.3_mpirun": {1, 16, 16, 16, "2.9.9+11.2", 0, says("NET/AWS Libfabric GDRDMA:32 P2P/IPC/read:256 from NET/AWS Libfabric GDRDMA:32 8 16 AWS Libfabric", func(l *Log) []any {
		return []any{edges(l), len(l.Comms[0].Rings), len(l.Comms[0].Rings[0].Order), l.Comms[0].Ranks[7].Network.Value}
	})},
	"efa_p5_16gpu_wrong_version_2.20.3": {1, 16, 16, 16, "2.20.3+12.2", 0, says("NET/AWS Libfabric GDRDMA:256 P2P/CUMEM:464 from NET/AWS Libfabric GDRDMA:256 16 [2 8 7] true 2.20 8", func(l *Log) []any {
		r := l.Comms[0].Ranks[15]
		return []any{edges(l), len(l.Comms[0].Trees), []int{r.NNodes, r.LocalRanks, r.LocalRank}, r.Process.Multicast[0].Available, r.Process.Form, r.NVLS.Heads}
	})},
	"efa_plugin_no_provider_socket_2.27.3": {2, 1, 4, 1, "2.27.3+12.9", 3, says("ofi-no-provider ofi-init 0 2003953581 Socket 2025-12-28 16:04:25", func(l *Log) []any {
		return []any{ids(l), l.Comms[1].Parent, *l.Comms[1].Color, l.Comms[1].Ranks[0].Network.Value, l.Warnings[0].At.Time}
	})},
	"fallback_parse_2.21.5_two_nodes": {0, 0, 0, 2, "", 0, says("10.29.6.251 10.29.6.51 12.4", func(l *Log) []any {
		return []any{first(l).Bootstrap.Addr, l.Processes[1].Bootstrap.Addr, l.Processes[1].Driver.Value}
	})},
	"gcp_tcpx_dmabuf_fail": {0, 0, 0, 1, "", 4, warned("tcpx proxy-failed")},
	"graph_dump_h200_vm": {0, 0, 0, 1, "", 0, says("6 0.2 PCI/0-65000 NVS/0-0", func(l *Log) []any {
		s := first(l).System
		return []any{len(s.Links), s.Links[1].BW, s.Links[1].To, s.Links[5].To}
	})},
	"graph_multi_nic_socket_2.8": {1, 1, 0, 1, "", 0, says("4 4 1.2 SYS", func(l *Log) []any {
		g := l.Comms[0].Ranks[0].Graphs[0]
		return []any{g.Pattern, g.Channels, g.BWIntra, g.TypeInter}
	})},
	"h100_8gpu_torn_lines_2.29.x": {1, 8, 8, 8, "", 0, says("[53000 64000 75000 86000 97000 a8000 b9000 ca000] 8 8 50", func(l *Log) []any {
		var bus []string
		ready, timed := 0, 0
		for _, r := range l.Comms[0].Ranks {
			bus = append(bus, r.BusID)
			if r.Complete != nil {
				ready++
			}
			if r.Init != nil {
				timed++
			}
		}
		return []any{bus, ready, timed, len(l.Comms[0].Matrix)}
	})},
	"hang_after_init_start_2.23plus": {1, 2, 16, 3, "", 0, says("4 12 stopped after start", func(l *Log) []any {
		c := l.Comms[0]
		return []any{c.Ranks[0].Rank, c.Ranks[1].Rank, c.Ranks[1].State()}
	})},
	"hang_bootstrap_efa_2.9": {0, 0, 0, 4, "", 0, says("NCCL_TOPO_FILE=/usr/local/share/aws-ofi-nccl/xml/p4d-24xl-topo.xml (plugin)", func(l *Log) []any { return []any{settings(l.Processes[2].Env)} })},
	"hpcx_no_ib_device_2.18": {0, 0, 0, 1, "", 0, says("no device IBext", func(l *Log) []any { return []any{first(l).NoIB[0].Value, first(l).Plugins[0].Name} })},
	"ib_async_fatal_qp_2.25.1": {0, 0, 0, 1, "", 1, says("ib-fatal-event mlx5_1 1 true invalid request local work queue error", func(l *Log) []any {
		e := first(l).IBErrors[0]
		return []any{ids(l), e.HCA, e.Port, e.Fatal, e.Event}
	})},
	"ib_err4_acs_2.18": {0, 0, 0, 3, "", 3, says("ib-local-protection 4 81 Send fe80::aaaa:bb03:8b:1178%ib0<53249>", func(l *Log) []any {
		e := first(l).IBErrors[0]
		return []any{ids(l), e.Status, e.VendorErr, e.Request, e.Peer}
	})},
	"ib_gin_rma_2.29plus": {1, 1, 8, 3, "", 0, says("4 mlx5_3 IB 2 2.29+", func(l *Log) []any {
		n := first(l).NICs
		return []any{len(n), n[3].Name, n[3].Link, l.Comms[0].Ranks[0].Rank, l.Processes[2].Form}
	})},
	"ib_opa_a100_4nodes_2.10.3": {1, 32, 32, 32, "2.10.3+11.3", 0, says("NET/IB:20 P2P/IPC/read:112 from NET/IB:20 2 true [0 24]", func(l *Log) []any {
		c := l.Comms[0]
		return []any{edges(l), len(c.Rings), c.Rings[0].Cut, []int{c.Trees[0].Root, c.Trees[1].Root}}
	})},
	"ib_port_flap_2.18": {0, 0, 0, 5, "", 5, warned("ib-port-event ib-retry")},
	"ibext_ignores_ib_disable_2.20": {1, 1, 3, 1, "", 0, says("NET/IBext_v8:1 from NET/IBext_v8:2 mlx5_2+mlx5_3 mlx5_0+mlx5_1 NCCL_P2P_LEVEL=LOC (environment)", func(l *Log) []any {
		return []any{edges(l), first(l).NICs[0].Name, first(l).NICs[1].Name, settings(first(l).Env)}
	})},
	"ibext_sharp_no_prefix_2.24.3": {1, 1, 8, 1, "2.24.3+12.2", 0, says("8 true SHARP (v8) collnet", func(l *Log) []any {
		p := first(l)
		i := slices.IndexFunc(p.Plugins, func(x Plugin) bool { return x.Kind == "collnet" && x.Outcome == PluginLoaded })
		return []any{len(p.NICs), p.NICs[7].SHARP, p.Plugins[i].Name, p.Plugins[i].Kind}
	})},
	"libibverbs_missing_2.28.9": {1, 1, 2, 1, "2.28.9+13.0", 0, says("libibverbs missing Socket", func(l *Log) []any { return []any{first(l).NoIB[0].Value, first(l).Networks[0].Value} })},
	"no_algorithm_2.18":         {1, 4, 4, 4, "", 1, says("no-algorithm 24 16", func(l *Log) []any { t := l.Comms[0].Ranks[1].Totals; return []any{ids(l), t.Coll, t.NVLS} })},
	"nvls_bind_fail_2.21.5":     {0, 0, 0, 1, "", 4, warned("nvls-failed")},
	"opcount_mismatch": {1, 2, 4, 2, "", 0, says("1 652 AllGather AllReduce 0 2", func(l *Log) []any {
		c := l.Comms[0]
		m := c.Mismatches[0]
		return []any{len(c.Mismatches), m.N, m.Call.Op, m.Want.Op, c.Ranks[0].Rank, c.Ranks[1].Rank}
	})},
	"pcie_2gpu_shm_consumer_2.27.5": {1, 2, 2, 4, "2.27.5+12.9", 0, says("SHM/direct/direct:4 16 destroy complete", func(l *Log) []any {
		return []any{edges(l), len(first(l).SocketIfs), l.Comms[0].Ranks[0].State()}
	})},
	"pcie_64ch_2.31.2":       {1, 1, 0, 1, "2.31.2+13.3", 0, says("2 no device", func(l *Log) []any { return []any{len(first(l).SocketIfs), first(l).NoIB[0].Value} })},
	"percall_tuning_2.20_22": {1, 2, 0, 2, "", 0, says("2", func(l *Log) []any { return []any{len(l.Comms[0].Selections)} })},
	"roce_dlopen_lines_2.30": {0, 0, 0, 2, "", 0, says("2 RoCE libnvidia-ml.so.1", func(l *Log) []any {
		return []any{len(first(l).NICs), first(l).NICs[1].Link, first(l).Libraries[0].Path}
	})},
	"roce_err12_ibext_2.2x": {0, 0, 0, 1, "", 2, says("ib-retry ib-flush 12 129 Recv ::ffff:10.82.240.249", func(l *Log) []any {
		e := first(l).IBErrors[0]
		return []any{ids(l), e.Status, e.VendorErr, e.Request, e.RemoteGID}
	})},
	"roce_gdr_disabled_2.20": {1, 1, 16, 1, "", 0, says("2 false mlx5_1", func(l *Log) []any { g := first(l).NICGDR; return []any{len(g), g[1].Enabled, g[1].NIC} })},
	"rtx5090_2.25.1":         {1, 1, 2, 2, "2.25.1+12.2", 0, says("1 CloudflareWARP", func(l *Log) []any { return []any{l.Comms[0].Ranks[0].Rank, l.Processes[1].SocketIfs[1].Interface} })},
	"sharp_tree_lock_fail": {1, 1, 0, 2, "", 1, says("sharp-lock COLLNET SHARP 5 true", func(l *Log) []any {
		e := l.Comms[0].Ranks[0].Edges[0]
		return []any{ids(l), e.Transport, e.Net, e.NetDev, e.GDR}
	})},
	"shm_full_2.18.3": {0, 0, 0, 1, "", 2, warned("shm-full shm-failed")},
	"slingshot_ofi_cxi_then_crash_2.20.5": {1, 8, 8, 9, "2.20.5+12.4", 0, says("NET/AWS Libfabric GDRDMA:12 P2P/CUMEM/read:55 from NET/AWS Libfabric GDRDMA:12 watchdog", func(l *Log) []any {
		return []any{edges(l), l.Failures[0].Kind} // one of 56 lost its first word to a torn line
	})},
	"socket_connect_abort_2.18.3": {1, 1, 0, 1, "", 4, warned("connect-failed proxy-failed peer-closed proxy-gone")},
	"socket_shm_rankprefix_2.18":  {1, 4, 0, 4, "", 0, says("NET/Socket:1 SHM/direct/direct:1 from NET/Socket:1", func(l *Log) []any { return []any{edges(l)} })},
	"topo_file_fault_2ch_2.27.7": {1, 2, 2, 3, "2.27.7+13.0", 0, says("P2P/direct pointer/read:4 2 11 /home/user/nccl-tests/topo_fail.xml", func(l *Log) []any {
		i := slices.IndexFunc(first(l).Env, func(s Setting) bool { return s.Name == "NCCL_TOPO_FILE" })
		return []any{edges(l), l.Comms[0].Ranks[0].Totals.Coll, len(l.Comms[0].Selections), first(l).Env[i].Value}
	})},
	"truncated_socket_2.10.3": {0, 0, 0, 1, "", 1, warned("truncated")},
	"tuning_coll_ibext_2.12": {1, 2, 2, 3, "", 0, says("9 2 1", func(l *Log) []any {
		c := l.Comms[0]
		return []any{len(c.Tuning), c.Ranks[0].Totals.Coll, c.Ranks[1].Calls.Collectives}
	})},
	"tuning_table_algo_tree_2.19": {1, 1, 0, 1, "", 0, says("9 9 NCCL_ALGO=Tree (environment)", func(l *Log) []any {
		c := l.Comms[0]
		return []any{len(c.Tuning), len(c.MaxThreads), settings(first(l).Env)}
	})},
	"vm_modify_qp_timeout_2.14": {0, 0, 0, 1, "", 4, warned("modify-qp proxy-failed peer-closed")},
	"ar_info": {1, 2, 2, 1, "2.28.9+13.0", 0, says("P2P/direct pointer:48 24 105 26 24", func(l *Log) []any {
		c := l.Comms[0]
		return []any{edges(l), len(c.Rings), len(c.Tuning), len(c.Selections), c.Ranks[1].Totals.Coll}
	})},
	"ar_shm": {1, 2, 2, 1, "2.28.9+13.0", 0, says("SHM/direct/direct:8 4", func(l *Log) []any { return []any{edges(l), l.Comms[0].Ranks[0].Totals.Coll} })},
}

// Calls of two ranks in files of their own; what each scenario did is in its name.
func TestSharedCalls(t *testing.T) {
	if _, err := os.Stat(logsData); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; in CI it must be there", logsData)
		}
		t.Skipf("%s is not here", logsData)
	}
	for _, c := range []struct {
		dir        string
		calls      [2]int // COLL lines of each rank, by grep
		mismatches int
		at         int
	}{
		{"control", [2]int{9, 9}, 0, 0}, {"op", [2]int{8, 7}, 1, 6}, {"size", [2]int{7, 7}, 1, 6},
		{"skip", [2]int{7, 7}, 1, 6}, {"stuck", [2]int{7, 6}, 0, 0}, {"skip_same", [2]int{9, 8}, 0, 0},
	} {
		t.Run(c.dir, func(t *testing.T) {
			l := open(t, logsData+"/torch_nccl/"+c.dir)
			equal(t, "communicators and ranks", []int{len(l.Comms), len(l.Comms[0].Ranks)}, []int{1, 2})
			for _, u := range l.Counts.Unknown {
				t.Errorf("%d x not understood: %s", u.Count, u.First.Text)
			}
			r := l.Comms[0].Ranks
			equal(t, "calls", [2]int{r[0].Calls.Collectives, r[1].Calls.Collectives}, c.calls)
			equal(t, "mismatches", len(l.Comms[0].Mismatches), c.mismatches)
			if c.mismatches > 0 && len(l.Comms[0].Mismatches) > 0 {
				equal(t, "place", l.Comms[0].Mismatches[0].N, c.at)
			}
		})
	}
}
