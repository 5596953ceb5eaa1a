package ncclog_test

import "strings"

func netEdges(suffix string) func(*rankLog) {
	return both(only(0, late("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"+suffix, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1"+suffix)),
		only(1, late("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0"+suffix, "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/1"+suffix)))
}

func sockets(r *rankLog) { r.net, r.nic = "Socket", "No device found." }

func netExamples() []example {
	return []example{
		{"socket-fallback", odd, pair(sockets), []string{"node-a, node-b", "no usable device"}, node(sockets)},
		{"socket-asked", odd, pair(both(sockets, early("NCCL_NET set by environment to Socket"))), []string{"NCCL_NET=Socket"}, pair(sockets)},
		{"libibverbs-missing", odd, pair(both(sockets, func(r *rankLog) { r.nic = "-" }, early("Failed to open libibverbs.so[.1]"))), []string{"node-a, node-b"}, node(both(sockets, early("Failed to open libibverbs.so[.1]")))},
		{"ib-no-device", odd, pair(both(sockets, early("NCCL_IB_HCA set by environment to mlx5"))), []string{"NCCL_IB_HCA is set"}, pair(sockets)},
		{"nic-mixed-links", odd, pair(func(r *rankLog) { r.nic = "Using [0]mlx5_0:1/IB [1]mlx5_8:1/RoCE [RO]; OOB eth0:10.0.0.1<0>" }), []string{"IB: mlx5_0", "RoCE: mlx5_8"},
			pair(func(r *rankLog) { r.nic = "Using [0]mlx5_0:1/IB/SHARP [1]mlx5_8:1/IB [RO]; OOB eth0:10.0.0.1<0>" })},
		{"nic-mixed-speed", odd, pair(early("NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x1 pciPath=/sys/devices/pci0000:00/0000:00:01.0 ar=1", "NET/IB: [1] mlx5_1:uverbs1:1/IB provider=Mlx5 speed=100000 context=0x1 pciPath=/sys/devices/pci0000:00/0000:00:02.0 ar=1")),
			[]string{"400 Gb/s: mlx5_0", "100 Gb/s: mlx5_1"},
			pair(early("NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x1 pciPath=/sys/devices/pci0000:00/0000:00:01.0 ar=1", "NET/IB: [1] mlx5_1:uverbs1:1/IB provider=Mlx5 speed=400000 context=0x1 pciPath=/sys/devices/pci0000:00/0000:00:02.0 ar=1"))},
		{"nic-bond", note, pair(func(r *rankLog) { r.nic = "Using [0]mlx5_bond_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>" }), []string{"mlx5_bond_0"}, pair(nil)},
		{"nics-differ", odd, pair(only(1, func(r *rankLog) { r.nic = "Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>" })), []string{"1 (IB) on node-b", "2 (IB) on node-a"}, pair(nil)},
		{"nic-idle", odd, quad("0"), []string{"numbers 0 of 2"}, quad("dev")},
		{"gdr-off", odd, pair(netEdges("")), []string{"ranks 0-1", "does not say why"}, pair(netEdges("/GDRDMA"))},
		{"gdr-distance", odd, pair(both(netEdges(""), func(r *rankLog) {
			r.version = "2.20.5"
			r.mid = []string{"NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "GPU Direct RDMA Disabled for GPU ca000 / HCA 0 (distance 7 > 4), read 0"}
		})), []string{"ca000", "SYS", "PXB", "different CPU sockets", "Not a fault of the driver"}, pair(both(netEdges("/GDRDMA"), func(r *rankLog) {
			r.version = "2.20.5"
			r.mid = []string{"GPU Direct RDMA Enabled for GPU 1000 / HCA 0 (distance 4 <= 4), read 0", "GPU Direct RDMA Enabled for GPU 1000 / HCA 1 (distance 3 <= 4), read 0", "GPU Direct RDMA Disabled for GPU 1000 / HCA 2 (distance 7 > 4), read 0"}
		}))},
		{"nic-not-local", odd, pair(both(netEdges("/GDRDMA"), func(r *rankLog) {
			r.version = "2.20.5"
			r.mid = []string{"NCCL_NET_GDR_LEVEL set by environment to SYS", "GPU Direct RDMA Enabled for GPU 1000 / HCA 0 (distance 7 <= 7), read 0", "GPU Direct RDMA Enabled for GPU 1000 / HCA 2 (distance 4 <= 7), read 0"}
		})), []string{"ranks 0-1", "GPU 1000", "SYS", "nearer would be NIC 2"}, pair(both(netEdges("/GDRDMA"), func(r *rankLog) {
			r.version = "2.20.5"
			r.mid = []string{"NCCL_NET_GDR_LEVEL set by environment to SYS", "GPU Direct RDMA Enabled for GPU 1000 / HCA 0 (distance 3 <= 7), read 0", "GPU Direct RDMA Enabled for GPU 1000 / HCA 2 (distance 7 <= 7), read 0"}
		}))},
		{"interfaces-one-subnet", odd, pair(early("NET/Socket : Using [0]eth0:10.0.0.5<0> [1]eth1:10.0.0.6<0>")), []string{"eth0 10.0.0.5 and eth1 10.0.0.6"}, pair(early("NET/Socket : Using [0]eth0:10.0.0.5<0> [1]eth1:10.0.1.6<0>"))},
		{"ibext-disabled", note, pair(early("NCCL_IBEXT_DISABLE set by environment to 1.")), []string{"NET/IB"}, pair(both(sockets, early("NCCL_IBEXT_DISABLE set by environment to 1.")))},
		{"nic-shared", note, pair(func(r *rankLog) { r.local = 8 }), []string{"8 ranks, 2 NIC"}, pair(nil)},
		{"slow-plan", odd, pair(mid("Pattern 4, crossNic 0, nChannels 2, bw 1.200000/1.200000, type SYS/SYS, sameChannels 1")), []string{"1.2 GB/s", "SYS"}, pair(mid("Pattern 4, crossNic 0, nChannels 2, bw 20.000000/20.000000, type NVL/PXB, sameChannels 1"))},
		{"ib-disable-ignored", odd, pair(both(func(r *rankLog) { r.net = "IBext_v8" }, early("NCCL_IB_DISABLE set by environment to 1."))), []string{"IBext_v8", "NCCL_IB_DISABLE=1"}, pair(nil)},
		{"bootstrap-virtual-interface", odd, pair(func(r *rankLog) { r.ifname, r.addr = "docker0", "172.17.0.1" }), []string{"docker0"}, node(func(r *rankLog) { r.ifname, r.addr = "docker0", "172.17.0.1" })},
		{"bootstrap-loopback", odd, pair(func(r *rankLog) { r.ifname, r.addr = "lo", "127.0.0.1" }), []string{"lo"}, node(func(r *rankLog) { r.ifname, r.addr = "lo", "127.0.0.1" })},
		{"bootstrap-link-local", odd, pair(func(r *rankLog) { r.ifname, r.addr = "ib0", "fe80::1:2%ib0" }), []string{"ib0"}, pair(func(r *rankLog) { r.ifname, r.addr = "ib0", "fd00::1:2" })},
		{"bootstrap-families", odd, pair(only(1, func(r *rankLog) { r.addr = "fd00::7" })), []string{"IPv4 on node-a", "IPv6 on node-b"}, pair(func(r *rankLog) { r.addr = "fd00::7" })},
		{"socket-virtual-interface", odd, pair(both(sockets, early("NET/Socket : Using [0]eth0:10.0.0.5<0> [1]docker0:172.17.0.1<0>"))), []string{"docker0"}, node(both(sockets, early("NET/Socket : Using [0]eth0:10.0.0.5<0> [1]docker0:172.17.0.1<0>")))},
		{"connect-retries", odd, pair(only(0, both(early("socketPollConnect: connect to 10.0.0.108<17943> returned Connection refused, retrying (1/34) after sleep for 100 msec"), func(r *rankLog) { r.noEnd = true }))), []string{"node-b"}, pair(nil)},
	}
}

// quad is two nodes with two ranks each; dev is the NIC they send by, "dev" for one each.
func quad(dev string) string {
	var b strings.Builder
	for i := range 4 {
		r := rankLog{host: []string{"node-a", "node-a", "node-b", "node-b"}[i], rank: i, of: 4, nodes: 2, local: 2, dev: i % 2}
		d := dev
		if dev == "dev" {
			d = string(rune('0' + i%2))
		}
		r.late = []string{"Channel 00/0 : " + string(rune('0'+i)) + "[0] -> " + string(rune('0'+(i+2)%4)) + "[0] [send] via NET/IB/" + d + "/GDRDMA"}
		b.WriteString(r.String())
	}
	return b.String()
}

// system is a dump of a machine with two GPUs on an NVSwitch; bw are their links to it.
func system(pci, bw0, bw1 string) []string {
	return []string{"=== System : maxBw 370.8 totalBw 370.8 ===", "CPU/0-0 (1/1/4)", "+ PCI[" + pci + "] - GPU/0-1000 (0)", "              + NVL[" + bw0 + "] - NVS/0-0", "+ PCI[48.0] - GPU/0-2000 (1)", "              + NVL[" + bw1 + "] - NVS/0-0",
		"=========================================="}
}

// bridge is a dump of two GPUs with a link between them; a and b are its bandwidth in both directions.
func bridge(a, b string) []string {
	return []string{"=== System : maxBw 240.0 totalBw 240.0 ===", "CPU/0-0 (1/1/4)", "+ PCI[24.0] - GPU/0-1000 (0)", "              + NVL[" + a + "] - GPU/0-2000", "+ PCI[24.0] - GPU/0-2000 (1)", "              + NVL[" + b + "] - GPU/0-1000",
		"=========================================="}
}

// pcieOnly is a dump of two GPUs without NVLink.
var pcieOnly = []string{"=== System : maxBw 24.0 totalBw 24.0 ===", "CPU/0-0 (1/1/4)", "+ PCI[24.0] - GPU/0-1000 (0)", "+ PCI[24.0] - GPU/0-2000 (1)", "=========================================="}

func ringTo(r *rankLog, via string) string {
	return "Channel 00/0 : " + string(rune('0'+r.rank)) + "[" + string(rune('0'+r.rank)) + "] -> " + string(rune('0'+1-r.rank)) + "[" + string(rune('0'+1-r.rank)) + "] via " + via
}

func ring(via string) func(*rankLog) {
	return func(r *rankLog) { r.late = append(r.late, ringTo(r, via)) }
}

const tableHead = "  Algorithm   |                            Tree                  |                            Ring                  |                   CollNetDirect                  |"
const tableProto = "  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |"
const tableMax = " Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |              0 |              0 |            640 |"

func table(fn string, cells ...string) []string {
	return []string{tableHead, tableProto, tableMax, "    " + fn + " |" + strings.Join(cells, " |") + " |"}
}

func nodeExamples() []example {
	full := []string{"     6.0/  10.0", "    9.0/  20.0", "    20.0/  30.0", "     6.0/  10.0", "    9.0/  20.0", "    20.0/  30.0", "     0.0/   0.0", "     0.0/   0.0", "     0.0/   0.0"}
	noLL128 := append([]string(nil), full...)
	noLL128[4] = "     9.0/   0.0"
	var nothing []string
	for range 9 {
		nothing = append(nothing, "     0.0/   0.0")
	}
	matrix := func(nvls string) []string {
		return []string{"NCCL_ALGO set by environment to ring,tree", "NVLS comm 0x550000 headRank 0 nHeads 2 nvlsRanks 2 buffSize 1048576 nvlsPerRankSize 33554432 nvlsTotalSize 268435456", "Enabled NCCL Func/Proto/Algo Matrix:",
			"RAW      Function |       LL     LL128    Simple   |          Tree           Ring  CollNetDirect   CollNetChain           NVLS       NVLSTree            PAT  ",
			"RAW    Broadcast |        1         2         1   |             1              1              0              0              0              0              0  ",
			"RAW    AllReduce |        1         2         1   |             1              1              0              0              " + nvls + "              0              0  ", "RAW "}
	}
	return []example{
		{"p2p-disabled", odd, node(both(late("NCCL_P2P_DISABLE set by environment to 1"), ring("SHM/direct/direct"))), []string{"NCCL_P2P_DISABLE=1", "SHM"}, node(both(late("NCCL_P2P_DISABLE set by environment to 0"), ring("P2P/CUMEM")))},
		{"p2p-refused", odd, node(mid("Could not enable P2P between dev 0(=1000) and dev 1(=2000)")), []string{"node-a"}, node(nil)},
		{"p2p-shm", odd, node(both(mid(system("48.0", "370.8", "370.8")...), ring("SHM/direct/direct"))), []string{"Ranks 0-1", "NVLink"}, node(both(mid(system("48.0", "370.8", "370.8")...), ring("P2P/CUMEM")))},
		{"host-split", odd, node(func(r *rankLog) { r.nodes, r.local = 2, 1 }), []string{"2 nodes", "1 host "}, pair(nil)},
		{"channels-differ", odd, node(only(1, func(r *rankLog) { r.coll = 8 })), []string{"16", "8"}, node(nil)},
		{"few-channels", odd, node(both(mid(system("48.0", "370.8", "370.8")...), func(r *rankLog) { r.coll = 2 })), []string{"only 2"}, node(both(mid(pcieOnly...), func(r *rankLog) { r.coll = 2 }))},
		{"ll128-off", note, node(only(0, mid(append([]string{"NCCL_PROTO set by environment to ^LL128"}, table("AllReduce", noLL128...)...)...))), []string{"LL128", "NCCL_PROTO"}, node(only(0, mid(table("AllReduce", full...)...)))},
		{"nvls-off", odd, node(mid(append(system("48.0", "370.8", "370.8"), "NVLS multicast support is not available on dev 0")...)), []string{"node-a", "Hopper"},
			node(mid(append(system("48.0", "240.0", "240.0"), "NVLS multicast support is not available on dev 0")...))},
		{"nvls-excluded", odd, node(only(0, both(mid(matrix("0")...), func(r *rankLog) { r.nvls = 16 }))), []string{"NCCL_ALGO=ring,tree"}, node(only(0, both(mid(matrix("1")...), func(r *rankLog) { r.nvls = 16 })))},
		{"algorithm-excluded", odd, node(only(0, mid(append([]string{"NCCL_ALGO set by environment to Tree"}, table("Broadcast", nothing...)...)...))), []string{"Broadcast", "NCCL_ALGO=Tree"}, node(only(0, mid(table("Broadcast", full...)...)))},
		{"mnnvl-unused", odd, pair(mid("MNNVL busId 0x1000 fabric UUID 8f3a2b.17cd cliqueId 0x1 state 3 healthMask 0x0")), []string{"node-a, node-b"}, pair(mid("MNNVL busId 0x1000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0"))},
		{"collnet-missing", odd, pair(early("NCCL_COLLNET_ENABLE set by environment to 1.", "NET/Plugin: Could not find: libnccl-net.so")), []string{"NCCL_COLLNET_ENABLE"},
			pair(early("NCCL_COLLNET_ENABLE set by environment to 1.", "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)", "NET/Plugin: Loaded collnet plugin SHARP (v8)"))},
		{"pxn-off", odd, pair(late("NCCL_PXN_DISABLE set by environment to 1.")), []string{"NCCL_PXN_DISABLE=1"}, node(late("NCCL_PXN_DISABLE set by environment to 1."))},
		{"pci-narrow", odd, node(mid(system("0.2", "370.8", "370.8")...)), []string{"0.2 GB/s", "GPU/0-1000"}, node(mid(system("12.0", "370.8", "370.8")...))},
		{"nvlink-asymmetric", odd, node(both(mid(append([]string{"NCCL_TOPO_FILE set by environment to /etc/t.xml"}, bridge("20.0", "240.0")...)...))), []string{"20 GB/s", "240", "NCCL_TOPO_FILE=/etc/t.xml"}, node(mid(bridge("240.0", "240.0")...))},
		{"nvlink-uneven", odd, node(mid(system("48.0", "370.8", "309.0")...)), []string{"309", "371"}, node(mid(system("48.0", "370.8", "370.8")...))},
		{"p2p-over-pcie", note, node(both(mid(pcieOnly...), ring("P2P/CUMEM"))), []string{"PCIe", "ACS"}, node(both(mid(system("48.0", "370.8", "370.8")...), ring("P2P/CUMEM")))},
	}
}

const watchdog = "[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600050 milliseconds before timing out.\n"

func stateExamples() []example {
	return []example{
		{"hang-after-init", fault, node(both(mid(pcieOnly...), ring("P2P/CUMEM"))) + watchdog, []string{"ALLREDUCE number 5", "ACS"}, watchdog},
		{"process-killed", fault, pair(nil) + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 81291) of binary: /usr/bin/python3\n", nil,
			pair(nil) + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 81291) of binary: /usr/bin/python3\n"},
		{"host-oom", fault, pair(nil) + "[Sat Feb 14 04:05:59 2026] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=969\n", nil,
			pair(nil) + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 81291) of binary: /usr/bin/python3\n"},
		{"program-failed", fault, pair(nil) + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2261, unhandled system error, NCCL version 2.27.7\n", []string{"result 2", "no WARN line"}, pair(nil)},
		{"error-without-warning", odd, "node-a:1:1 [0] NCCL INFO bootstrap.cc:270 -> 2\nnode-a:1:1 [0] NCCL INFO init.cc:1350 -> 2\n", []string{"init.cc:1350 returned 2"},
			pair(early("transport/net_ib.cc:852 -> 3"))},
	}
}
