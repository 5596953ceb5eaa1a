package ncclog_test

import (
	"strings"
	"testing"
)

// A finding often has several reasons; each must be told apart by the lines that are there.
func TestFindingsReasons(t *testing.T) {
	slowTable := []string{"     6.0/  10.0", "    9.0/  20.0", "    20.0/  30.0", "     6.0/  10.0", "    9.0/   0.0", "    20.0/  30.0", "     0.0/   0.0", "     0.0/   0.0", "     0.0/   0.0"}
	tests := []struct {
		name, id, severity, text string
		words                    []string
	}{
		{"GDR switched off", "gdr-off", odd, pair(both(netEdges(""), early("NCCL_NET_GDR_LEVEL set by environment to LOC"))), []string{"switched off by NCCL_NET_GDR_LEVEL=LOC"}},
		{"GDR not offered, level cannot help", "gdr-off", odd, pair(both(netEdges(""), mid("NCCL_NET_GDR_LEVEL set by environment to SYS", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"))), []string{"does not offer it", "cannot help"}},
		{"GDR only known by the rings", "gdr-off", odd, pair(late("Connected all rings, use ring PXN 0 GDR 0")), []string{"rings of ranks 0-1", "which and why"}},
		{"GDR mixed", "gdr-off", odd, pair(only(0, late("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA"))), []string{"With and without it on rank 0"}},
		{"LL128 by path", "ll128-off", note, node(only(0, mid(append([]string{"Pattern 4, crossNic 0, nChannels 2, bw 20.000000/20.000000, type SYS/PIX, sameChannels 1"}, table("AllReduce", slowTable...)...)...))), []string{"SYS within"}},
		{"NVLS by setting", "nvls-off", odd, node(mid("NCCL_NVLS_ENABLE set by environment to 0.")), []string{"NCCL_NVLS_ENABLE=0"}},
		{"NVLS available without channels", "nvls-off", odd, node(mid("NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)")), []string{"0 channels", "does not say why"}},
		{"MNNVL by setting", "mnnvl-unused", odd, pair(mid("MNNVL busId 0x1000 fabric UUID 8f3a2b.17cd cliqueId 0x1 state 3 healthMask 0x0", "NCCL_MNNVL_ENABLE set by environment to 0.")), []string{"NCCL_MNNVL_ENABLE=0"}},
		{"sockets by IB_DISABLE", "socket-asked", odd, pair(both(sockets, early("NCCL_IB_DISABLE set by environment to 1."))), []string{"NCCL_IB_DISABLE=1"}},
		{"sockets, number of nodes unknown", "socket-fallback", note, rankLog{host: "node-a", of: 2, net: "Socket", nic: "No device found."}.String(), []string{"No line says how many nodes"}},
		{"PXN, number of nodes unknown", "pxn-off", note, rankLog{host: "node-a", of: 2, late: []string{"NCCL_PXN_DISABLE set by environment to 1."}}.String(), []string{"the log does not say"}},
		{"few channels for the NICs", "few-channels", odd, pair(func(r *rankLog) { r.coll = 1 }), []string{"only 1 channel ", "2 NICs"}},
		{"CollNet by algorithm", "collnet-missing", odd, pair(early("NCCL_ALGO set by environment to CollnetDirect", "NET/Plugin: Could not find: libnccl-net.so")), []string{"NCCL_ALGO=CollnetDirect"}},
		{"P2P by level", "p2p-disabled", odd, node(late("NCCL_P2P_LEVEL set by environment to LOC")), []string{"NCCL_P2P_LEVEL=LOC"}},
		{"SHM without NVLink", "p2p-shm", note, node(both(mid(pcieOnly...), ring("SHM/direct/direct"))), []string{"no NVLink"}},
		{"digits of the old scale", "value-misleading", odd, pair(late("NCCL_P2P_LEVEL set by environment to 5")), []string{"old scale"}},
		{"loopback by name", "value-misleading", odd, pair(early("NCCL_SOCKET_IFNAME set by environment to lo")), []string{"no other host"}},
		{"P2P and SHM off", "value-misleading", odd, node(late("NCCL_P2P_DISABLE set by environment to 1", "NCCL_SHM_DISABLE set by environment to 1.")), []string{"only the network left"}},
		{"NCCL_DEBUG=TRACE", "env-leftover", odd, pair(early("NCCL_DEBUG set by environment to TRACE")), []string{"NCCL_DEBUG=TRACE"}},
		{"/dev/shm without a reason", "shm-full", fault, warn("misc/shmutils.cc:71", "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes"), []string{"gives no reason", "9.2 MiB"}},
		{"/dev/shm for another reason", "shm-full", fault, warn("misc/shmutils.cc:71", "Error: failed to extend /dev/shm/nccl-AbCdEf to 900 bytes, error: Permission denied (13)"), []string{"could not make its file", "Permission denied", "900 bytes"}},
		{"a peer of the list of hosts", "ib-retry-exceeded", fault, pair(func(r *rankLog) {
			r.nic = "Using [0]mlx5_0:1/IB [1]mlx5_8:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
			r.late = []string{"WARN transport/net_ib.cc:1 NET/IB : Got completion from peer 10.0.0.108<1> with status=12 opcode=0 len=0 vendor err 129 (Send)"}
		}), []string{"IB and RoCE ports are mixed"}},
		{"the index that is set", "ib-retry-exceeded", fault, pair(both(early("NCCL_IB_GID_INDEX set by environment to 3."), late("WARN transport/net_ib.cc:1 NET/IB : Got completion from peer 10.0.0.108<1> with status=12 opcode=0 len=0 vendor err 129 (Send)"))),
			[]string{"NCCL_IB_GID_INDEX is 3"}},
		{"a bridge above GPU and NIC", "pci-narrow", odd, node(mid("=== System : maxBw 48.0 totalBw 370.8 ===", "CPU/0-0 (1/2/-1)", "+ PCI[0.2] - PCI/0-65000 (1234)", "              + PCI[48.0] - NIC/0-67000", "              + PCI[48.0] - GPU/0-68000 (8)", "==========================================")),
			[]string{"CPU/0-0 and PCI/0-65000"}},
		{"majority against one", "coll-mismatch", fault, three(), []string{"rank 2 does AllGather", "2 of 3 agree"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := findingsIn(t, tt.text)
			x := get(all, tt.id)
			if x == nil {
				t.Fatalf("no %s:\n%s", tt.id, list(all))
			}
			if x.Severity != tt.severity {
				t.Errorf("severity %s, want %s: %s", x.Severity, tt.severity, x.Title)
			}
			for _, w := range tt.words {
				if !strings.Contains(x.Title, w) {
					t.Errorf("title lacks %q: %s", w, x.Title)
				}
			}
			checkFinding(t, *x, tt.text)
		})
	}
}

// three is a job of three ranks of which the last makes another call.
func three() string {
	var b strings.Builder
	for i, op := range []string{"AllReduce", "AllReduce", "AllGather"} {
		r := rankLog{host: "node-" + string(rune('a'+i)), rank: i, of: 3, nodes: 3, local: 1}
		b.WriteString(r.String())
		b.WriteString(callOf(r.host, 1000+i, i, op, 1, 8))
	}
	return b.String()
}
