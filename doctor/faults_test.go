package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/internal/nvml"
)

// planted is one thing changed in a healthy machine, and the only checks that may answer otherwise than before.
type planted struct {
	name, fixture string
	lines         []string // of a tree
	env           []string
	gpu           func(n *Node)
	want          map[string]Status
	says          string // in what was found, of the first of want
}

func one(id string, s Status) map[string]Status { return map[string]Status{id: s} }

func set[T any](p **T, v T) { *p = &v }

// limited is /proc/self/limits with one limit and the others without end.
func limited(name, value string) string {
	return fmt.Sprintf("proc/self/limits = %-26s%s  %s x\\nMax processes   unlimited unlimited x\\nMax open files  1048576 1048576 x\\nMax locked memory  unlimited unlimited x\\n", name, value, value)
}

// putLibrary adds a library with a text among its constants.
func putLibrary(name, text string) func(*Node) {
	return func(n *Node) {
		if err := write(filepath.Join(n.Root, name), library(text)); err != nil {
			panic(err)
		}
	}
}

const nic3 = "sys/bus/pci/devices/0000:5e:00.0" // of mlx5_3 in dgx-h100

var driverFaults = []planted{
	{name: "module not loaded", fixture: "pcie", lines: []string{"rm proc/driver/nvidia", "rm sys/module/nvidia"}, want: map[string]Status{"driver-loaded": Fault, "driver-mix": ""}, says: "not loaded"},
	{name: "library of another version", fixture: "dgx-a100", lines: []string{"rm usr/lib/x86_64-linux-gnu/libcuda.so.535.129.03", "usr/lib/x86_64-linux-gnu/libcuda.so.535.154.05 = elf", "usr/lib/x86_64-linux-gnu/libcuda.so.1 -> usr/lib/x86_64-linux-gnu/libcuda.so.535.154.05"},
		want: one("driver-mix", Fault), says: "libcuda.so.535.154.05"},
	{name: "left-over library", fixture: "dgx-h100", lines: []string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.129.03 = elf"}, want: one("driver-mix", Warn), says: "libnvidia-ml.so.535.129.03"},
	{name: "toolkit too new", fixture: "dgx-a100", lines: []string{`usr/local/cuda/version.json = \x7b"cuda" : \x7b "version" : "13.0.1" \x7d\x7d`}, want: one("driver-cuda", Warn), says: "13.0"},
	{name: "second NCCL", fixture: "dgx-h100", lines: []string{"usr/local/lib/python3.10/dist-packages/nvidia/nccl/lib/libnccl.so.2 = elf", "usr/local/lib/python3.10/dist-packages/nvidia_nccl_cu12-2.21.5.dist-info/METADATA = x"},
		want: one("driver-nccl", Warn), says: "2.21.5"},
	{name: "NCCL in the library path", fixture: "dgx-h100", lines: []string{"opt/nccl/libnccl.so.2.19.3 = elf"}, env: []string{"LD_LIBRARY_PATH=/opt/nccl"}, want: map[string]Status{"driver-nccl": Warn, "env-libraries": OK}, says: "2.19.3"},
	{name: "plain copy of NCCL", fixture: "dgx-h100", gpu: putLibrary("opt/nccl/libnccl.so.2", "NCCL version 2.28.9+cuda12.9"), env: []string{"LD_LIBRARY_PATH=/opt/nccl"}, want: map[string]Status{"driver-nccl": Warn, "env-libraries": OK}, says: "2.28.9 (/opt/nccl/libnccl.so.2)"},
	{name: "plain copy of the same NCCL", fixture: "dgx-h100", gpu: putLibrary("opt/nccl/libnccl.so.2", "NCCL version 2.27.7+cuda13.0"), env: []string{"LD_LIBRARY_PATH=/opt/nccl"}, want: map[string]Status{"driver-nccl": OK, "env-libraries": OK}, says: "2.27.7 (/opt/nccl/libnccl.so.2, /usr"},
	{name: "plain copy that is no library", fixture: "dgx-h100", lines: []string{"opt/nccl/libnccl.so.2 = NCCL version 2.27.7+cuda13.0"}, env: []string{"LD_LIBRARY_PATH=/opt/nccl"}, want: map[string]Status{"driver-nccl": Warn, "env-libraries": OK}, says: "unknown version (/opt/nccl/libnccl.so.2)"},
}

var gpuFaults = []planted{
	{name: "GPU not seen", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs, n.NVML.Pairs = n.NVML.GPUs[:7], nil }, want: map[string]Status{"gpu-count": Fault, "gpu-p2p": CannotTell}, says: "0000:df:00.0"},
	{name: "GPU lost", fixture: "dgx-h100", gpu: func(n *Node) {
		n.NVML.GPUs[2].Missing = map[string]string{"temperature_c": "the GPU has fallen off the bus"}
	}, want: one("gpu-answers", Fault), says: "GPU 2"},
	{name: "GPU that says nothing", fixture: "dgx-h100", gpu: func(n *Node) {
		n.NVML.GPUs[2] = nvml.GPU{Index: 2, Missing: map[string]string{"all": "the GPU has fallen off the bus"}}
	}, want: map[string]Status{"gpu-answers": Fault, "nvlink-active": Fault, "gpu-same": CannotTell, "gpu-ecc": CannotTell, "gpu-rows": CannotTell, "gpu-clocks": CannotTell, "gpu-temperature": CannotTell, "gpu-pcie": CannotTell,
		"gpu-replays": CannotTell, "gpu-persistence": CannotTell, "gpu-mig": CannotTell, "gpu-compute-mode": CannotTell, "gpu-free": CannotTell, "gpu-bar1": CannotTell}, says: "fallen off"},
	{name: "reset asked for", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[2].Recovery, "GPU reset") }, want: one("gpu-answers", Fault), says: "GPU reset"},
	{name: "other model", fixture: "pcie", gpu: func(n *Node) { set(&n.NVML.GPUs[3].Name, "NVIDIA L4") }, want: one("gpu-same", Warn), says: "NVIDIA L4"},
	{name: "Xid 79", fixture: "dgx-h100", lines: []string{"var/log/kern.log = Linux version 5.15\\nNVRM: Xid (PCI:0000:43:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\\n"}, want: one("gpu-xid", Fault), says: "Xid 79 on 0000:43:00"},
	{name: "Xid 48, then reset", fixture: "dgx-h100", lines: []string{"var/log/kern.log = NVRM: Xid (PCI:0000:43:00): 48, pid=1, DBE (double bit error) ECC Error\\n"}, gpu: func(n *Node) { set(&n.NVML.GPUs[1].Recovery, "none") },
		want: one("gpu-xid", Warn), says: "no recovery now"},
	{name: "recovery asked for", fixture: "dgx-h100", lines: []string{"var/log/kern.log = NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\\nNVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\\n"},
		want: one("gpu-xid", Fault), says: "asks for a recovery"},
	{name: "fatal SXid", fixture: "dgx-a100", lines: []string{"var/log/kern.log = nvidia-nvswitch3: SXid (PCI:0000:c7:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\\n"}, want: one("gpu-xid", Fault), says: "SXid 20034"},
	{name: "SXid", fixture: "dgx-a100", lines: []string{"var/log/kern.log = nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error\\n"}, want: one("gpu-xid", Warn), says: "SXid 12028"},
	{name: "ECC off", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[1].ECC.On, false); set(&n.NVML.GPUs[1].ECC.Pending, false) }, want: one("gpu-ecc", Warn), says: "GPU 1"},
	{name: "uncorrected errors", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[5].ECC.VolatileUncorrected, 3) }, want: one("gpu-ecc", Fault), says: "3 uncorrected"},
	{name: "row failure", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs[5].Rows.Failure = true }, want: one("gpu-rows", Fault), says: "GPU 5"},
	{name: "row pending", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs[5].Rows.Pending = true }, want: one("gpu-rows", Warn), says: "next reset"},
	{name: "power brake", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[0].Clocks, 0x80) }, want: one("gpu-clocks", Fault), says: "power brake"},
	{name: "software thermal", fixture: "pcie", gpu: func(n *Node) { set(&n.NVML.GPUs[0].Clocks, 0x20) }, want: one("gpu-clocks", Warn), says: "thermal"},
	{name: "hot", fixture: "pcie", gpu: func(n *Node) { set(&n.NVML.GPUs[2].Temperature, 88) }, want: one("gpu-temperature", Warn), says: "88"},
	{name: "x8", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[6].PCIe.Width, 8) }, want: one("gpu-pcie", Fault), says: "x8 of x16"},
	{name: "slow while busy", fixture: "pcie", gpu: func(n *Node) {
		set(&n.NVML.GPUs[1].Clocks, 0)
		n.NVML.GPUs[1].Processes = []nvml.Process{{PID: 4711}}
	}, want: map[string]Status{"gpu-pcie": Warn, "gpu-free": Warn}, says: "generation 1 of 4"},
	{name: "slot of an older generation", fixture: "pcie", gpu: func(n *Node) { set(&n.NVML.GPUs[1].PCIe.MaxGen, 3) }, want: one("gpu-pcie", Warn), says: "gen3"},
	{name: "replays", fixture: "pcie", gpu: func(n *Node) { set(&n.NVML.GPUs[1].PCIe.Replays, 5000) }, want: one("gpu-replays", Warn), says: "5000"},
	{name: "persistence off", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[1].Persistence, false) }, want: one("gpu-persistence", Warn), says: "GPU 1"},
	{name: "MIG", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[3].MIG, true) }, want: one("gpu-mig", Warn), says: "GPU 3"},
	{name: "prohibited", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[3].ComputeMode, "prohibited") }, want: one("gpu-compute-mode", Fault), says: "prohibited"},
	{name: "exclusive", fixture: "dgx-a100", gpu: func(n *Node) { set(&n.NVML.GPUs[3].ComputeMode, "exclusive-process") }, want: one("gpu-compute-mode", Warn), says: "exclusive"},
	{name: "process", fixture: "dgx-a100", gpu: func(n *Node) { n.NVML.GPUs[3].Processes = []nvml.Process{{PID: 4711}} }, want: one("gpu-free", Warn), says: "4711"},
	{name: "memory of nobody", fixture: "container", gpu: func(n *Node) { n.NVML.GPUs[3].Memory.UsedBytes = 40 << 30 }, want: one("gpu-free", Warn), says: "40 GiB"},
	{name: "no P2P", fixture: "pcie", gpu: func(n *Node) { n.NVML.Pairs[2].P2P["read"] = "CNS" }, want: one("gpu-p2p", Warn), says: "CNS (0-3)"},
	{name: "no P2P in spite of NVLink", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.Pairs[0].P2P["read"] = "TNS" }, want: one("gpu-p2p", Fault), says: "TNS (0-1)"},
	{name: "small BAR1", fixture: "pcie", gpu: func(n *Node) { n.NVML.GPUs[0].BAR1.TotalBytes = 256 << 20 }, want: one("gpu-bar1", Warn), says: "256 MiB"},
	{name: "NVML refuses", fixture: "plain", lines: []string{"proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  x", "sys/bus/pci/devices/0000:01:00.0/class = 0x030200", "sys/bus/pci/devices/0000:01:00.0/vendor = 0x10de"},
		want: withGPU(map[string]Status{"driver-nvml": Fault}), says: "no NVML library"},
	{name: "NVML hangs", fixture: "plain", lines: []string{"proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  x", "sys/bus/pci/devices/0000:01:00.0/class = 0x030200", "sys/bus/pci/devices/0000:01:00.0/vendor = 0x10de"},
		gpu: func(n *Node) { n.NVMLErr = fmt.Errorf("%w in time", nvml.ErrNoAnswer) }, want: withGPU(map[string]Status{"driver-nvml": Warn}), says: "persistence mode"},
	{name: "mismatch", fixture: "plain", lines: []string{"proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  x", "sys/bus/pci/devices/0000:01:00.0/class = 0x030200", "sys/bus/pci/devices/0000:01:00.0/vendor = 0x10de"},
		gpu: func(n *Node) { n.NVMLErr = fmt.Errorf("nvmlInit: %w", nvml.ErrMismatch) }, want: withGPU(map[string]Status{"driver-nvml": CannotTell, "driver-mix": Fault}), says: "differ in version"},
}

// withGPU are the answers of a machine that has a GPU, but no NVML.
func withGPU(want map[string]Status) map[string]Status {
	for id, s := range map[string]Status{"driver-loaded": OK, "driver-mix": CannotTell, "limit-nofile": Warn} {
		if _, ok := want[id]; !ok {
			want[id] = s
		}
	}
	for _, c := range append(gpuChecks, nvlinkChecks...) {
		switch c.id {
		case "gpu-bar1", "fabric-manager", "fabric-health", "imex":
		default:
			want[c.id] = CannotTell
		}
	}
	return want
}

var nvlinkFaults = []planted{
	{name: "link down", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[2].Links[7].Active, false) }, want: one("nvlink-active", Fault), says: "down: 7"},
	{name: "no link", fixture: "dgx-a100", gpu: func(n *Node) { n.NVML.GPUs[2].Links = nil }, want: one("nvlink-active", Fault), says: "down: all"},
	{name: "recoveries", fixture: "dgx-h100", gpu: func(n *Node) {
		set(&n.NVML.GPUs[2].Links[3].Replays, 1)
		set(&n.NVML.GPUs[2].Links[7].Recoveries, 2)
	}, want: one("nvlink-errors", Warn), says: "GPU 2 (0000:52:00.0): link 3: replays 1; link 7: recoveries 2"},
	{name: "CRC over the driver's life", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[2].Links[7].CRCFlit, 50000) }, want: one("nvlink-errors", OK), says: "on 144 links; CRC errors 3 to 50000 a link"},
	{name: "counters not told", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs[2].Links[7].Replays = nil }, want: one("nvlink-errors", CannotTell), says: "1 of 144 links"},
	{name: "no fabric manager", fixture: "dgx-a100", lines: []string{"rm proc/810"}, want: one("fabric-manager", Fault), says: "6 NVSwitches"},
	{name: "fabric in progress", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs[4].Fabric.State = "in progress" }, want: one("fabric-manager", Fault), says: "GPU 4"},
	{name: "fabric failed", fixture: "cloud-vm", gpu: func(n *Node) { n.NVML.GPUs[4].Fabric.Status = 999 }, want: one("fabric-manager", Fault), says: "999"},
	{name: "fabric manager of another version", fixture: "dgx-h100", lines: []string{"var/lib/dpkg/status = Package: nvidia-fabricmanager-550\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: 550.54.15-1\\n\\n"}, want: one("fabric-manager", Fault), says: "550.54.15"},
	{name: "fabric manager that was removed", fixture: "dgx-h100", lines: []string{"var/lib/dpkg/status = Package: nvidia-fabricmanager-550\\nStatus: deinstall ok config-files\\nVersion: 550.54.15-1\\n\\n"}, want: one("fabric-manager", OK), says: "runs"},
	{name: "fabric degraded", fixture: "dgx-h100", gpu: func(n *Node) { set(&n.NVML.GPUs[4].Fabric.Health, 1) }, want: one("fabric-health", Fault), says: "bandwidth is degraded"},
	{name: "fabric health not told", fixture: "dgx-h100", gpu: func(n *Node) {
		for i := range n.NVML.GPUs {
			set(&n.NVML.GPUs[i].Fabric.Health, 0)
		}
	}, want: one("fabric-health", "")},
	{name: "no IMEX", fixture: "dgx-h100", gpu: func(n *Node) { n.NVML.GPUs[0].Fabric.Cluster = "abcdef01-0000-0000-0000-000000000001" }, want: one("imex", Fault), says: "nvidia-imex"},
	{name: "no IMEX channel", fixture: "dgx-h100", lines: []string{"proc/900/comm = nvidia-imex"}, gpu: func(n *Node) { n.NVML.GPUs[0].Fabric.Cluster = "abcdef01-0000-0000-0000-000000000001" }, want: one("imex", Fault), says: "channel0"},
}

var rdmaFaults = []planted{
	{name: "no RDMA driver", fixture: "pcie", lines: []string{"rm sys/class/infiniband"}, want: map[string]Status{"rdma-devices": Fault, "gpu-bar1": "", "rdma-state": "", "rdma-rate": "", "rdma-link-layer": "", "rdma-errors": "", "rdma-pcie": "", "rdma-firmware": "", "rdma-mtu": "",
		"rdma-gid": "", "rdma-lossless": "", "rdma-verbs": "", "gdr-path": "", "gdr-acs": "", "gdr-iommu": "", "net-rails": "", "container-infiniband": ""}, says: "0000:41:00.0"},
	{name: "no subnet manager", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/state = 2: INIT"}, want: one("rdma-state", Fault), says: "mlx5_3: INIT"},
	{name: "port down", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/<state> = 1: DOWN", "sys/class/infiniband/mlx5_3/ports/1/phys_state = 2: Polling"}, want: one("rdma-state", Warn), says: "Polling"},
	{name: "all ports down", fixture: "cloud-vm", lines: []string{"sys/class/infiniband/mlx5_ib{0-7}/ports/1/state = 1: DOWN", "sys/class/infiniband/mlx5_ib{0-7}/ports/1/phys_state = 2: Polling"}, want: map[string]Status{"rdma-state": Fault, "rdma-rate": "", "rdma-link-layer": "", "rdma-errors": ""}, says: "no port is up"},
	{name: "trained low", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/rate = 200 Gb/sec (4X HDR)"}, want: one("rdma-rate", Fault), says: "mlx5_3"},
	{name: "one lane", fixture: "dgx-a100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/rate = 50 Gb/sec (1X HDR)"}, want: one("rdma-rate", Fault), says: "one lane"},
	{name: "mixed link layers", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_bond_0/ports/1/link_layer = Ethernet", "sys/class/infiniband/mlx5_bond_0/ports/1/state = 4: ACTIVE", "sys/class/infiniband/mlx5_bond_0/ports/1/rate = 100 Gb/sec (4X EDR)", "sys/class/infiniband/mlx5_bond_0/ports/1/gids/{0-2} = 0000:0000:0000:0000:0000:0000:0000:0000", "sys/class/infiniband/mlx5_bond_0/ports/1/gids/3 = 0000:0000:0000:0000:0000:ffff:0a01:0001",
		"sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/types/3 = RoCE v2", "sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/3 = bond0", "sys/class/net/bond0/mtu = 9000", "dev/infiniband/uverbs8 ="},
		want: map[string]Status{"rdma-link-layer": Warn, "rdma-mtu": OK, "rdma-gid": OK, "rdma-lossless": CannotTell}, says: "Ethernet (mlx5_bond_0)"},
	{name: "symbol errors", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error = 70000"}, want: one("rdma-errors", Warn), says: "symbol_error is 70000"},
	{name: "link often down", fixture: "dgx-a100", lines: []string{"sys/class/infiniband/mlx5_3/ports/1/counters/link_downed = 255"}, want: one("rdma-errors", Warn), says: "255, where it stops counting"},
	{name: "NIC x8", fixture: "dgx-h100", lines: []string{nic3 + "/current_link_width = 8"}, want: one("rdma-pcie", Fault), says: "x8 of x16"},
	{name: "NIC slow", fixture: "dgx-h100", lines: []string{nic3 + "/current_link_speed = 16.0 GT/s PCIe"}, want: one("rdma-pcie", Fault), says: "16 of 32 GT/s"},
	{name: "slot with fewer lanes", fixture: "dgx-h100", lines: []string{nic3 + "/current_link_width = 8", "sys/bus/pci/devices/0000:5d:00.0/max_link_width = 8"}, want: one("rdma-pcie", Warn), says: "the slot carries 252 Gb/s"},
	{name: "NIC slot", fixture: "dgx-h100", lines: []string{nic3 + "/<current,max>_link_speed = 16.0 GT/s PCIe"}, want: one("rdma-pcie", Warn), says: "the slot carries"},
	{name: "no NUMA node", fixture: "dgx-h100", lines: []string{nic3 + "/numa_node = -1"}, want: one("rdma-numa", Warn), says: "0000:5e:00.0"},
	{name: "firmware", fixture: "dgx-h100", lines: []string{"sys/class/infiniband/mlx5_3/fw_ver = 28.36.1010"}, want: one("rdma-firmware", Warn), says: "28.36.1010 (mlx5_3)"},
	{name: "MTU 1500", fixture: "pcie", lines: []string{"sys/class/net/ens2np0/mtu = 1500"}, want: one("rdma-mtu", Warn), says: "ens2np0: MTU 1500"},
	{name: "MTUs differ", fixture: "pcie", lines: []string{"sys/class/net/ens2np0/mtu = 4200"}, want: one("rdma-mtu", Warn), says: "4200 (ens2np0)"},
	{name: "no IPv4", fixture: "pcie", lines: []string{"sys/class/infiniband/mlx5_1/ports/1/gids/<2,3> = 0000:0000:0000:0000:0000:0000:0000:0000"}, want: one("rdma-gid", Fault), says: "mlx5_1"},
	{name: "IPv6 alone", fixture: "pcie", lines: []string{"sys/class/infiniband/mlx5_1/ports/1/gids/<2,3> = 2001:0db8:0000:0000:0a00:27ff:fe00:0002"}, want: one("rdma-gid", Warn), says: "IPv6"},
	{name: "forced index", fixture: "pcie", env: []string{"NCCL_IB_GID_INDEX=1"}, want: map[string]Status{"rdma-gid": Fault}, says: "link-local"},
	{name: "forced index of v1", fixture: "pcie", env: []string{"NCCL_IB_GID_INDEX=2"}, want: map[string]Status{"rdma-gid": Fault}, says: "IB/RoCE v1"},
	{name: "ECN off", fixture: "pcie", lines: []string{"sys/class/net/ens2np0/ecn/roce_rp/enable/3 = 0"}, want: one("rdma-lossless", Warn), says: "roce_rp"},
	{name: "no libibverbs", fixture: "dgx-h100", lines: []string{"rm usr/lib/x86_64-linux-gnu/libibverbs.so.1", "rm usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0"}, want: one("rdma-verbs", Fault), says: "libibverbs.so.1"},
	{name: "no provider", fixture: "dgx-h100", lines: []string{"rm etc/libibverbs.d/mlx5.driver"}, want: one("rdma-verbs", Fault), says: "mlx5"},
	{name: "no peermem", fixture: "dgx-a100", lines: []string{"rm sys/module/nvidia_peermem"}, want: one("gdr-path", Fault), says: "proprietary"},
	{name: "old kernel", fixture: "dgx-h100", lines: []string{"rm sys/module/nvidia_peermem", "proc/sys/kernel/osrelease = 5.4.0-150-generic"}, want: one("gdr-path", Fault), says: "5.4.0"},
	{name: "ACS on", fixture: "dgx-h100", lines: []string{"sys/bus/pci/devices/0000:5d:02.0/config = ", "sys/bus/pci/devices/0000:5d:02.0/config acs 001d"}, want: one("gdr-acs", Fault), says: "1 of 32"},
	{name: "ACS not readable", fixture: "dgx-h100", lines: []string{"sys/bus/pci/devices/0000:5d:02.0/config = short"}, want: one("gdr-acs", CannotTell), says: "1 of 32"},
	{name: "IOMMU translates", fixture: "dgx-a100", lines: []string{"sys/bus/pci/devices/0000:0f:00.0/iommu_group/type = DMA-FQ"}, want: one("gdr-iommu", Warn), says: "DMA-FQ"},
	{name: "no gdrdrv", fixture: "dgx-h100", env: []string{"NCCL_GDRCOPY_ENABLE=1"}, want: one("gdr-copy", Warn), says: "gdrdrv"},
}

var hostFaults = []planted{
	{name: "bridge first", fixture: "dgx-h100", lines: []string{"sys/class/net/{virbr0,eth0}/ifindex = {2,3}", "sys/class/net/virbr0/operstate = up", "proc/net/route = Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\nvirbr0\\t007AA8C0\\t0\\t1\\t0\\t0\\t0\\t00FFFFFF\\neth0\\t00000000\\t0101A8C0\\t3\\t0\\t0\\t0\\t00000000\\n"},
		want: one("net-interface", Warn), says: "older versions"},
	{name: "container's bridge first", fixture: "dgx-h100", lines: []string{"sys/class/net/{br-1a2b,eth0}/ifindex = {2,3}", "sys/class/net/br-1a2b/operstate = up", "proc/net/route = Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\nbr-1a2b\\t007AA8C0\\t0\\t1\\t0\\t0\\t0\\t00FFFFFF\\neth0\\t00000000\\t0101A8C0\\t3\\t0\\t0\\t0\\t00000000\\n"},
		want: one("net-interface", Warn), says: "br-1a2b"},
	{name: "IPoIB without an address", fixture: "dgx-h100", lines: []string{"sys/class/net/ibp24s0/ifindex = 4", "sys/class/net/ibp24s0/operstate = up", "proc/net/if_inet6 = fe80000000000000946dae030012abcd 04 40 20 80 ibp24s0\\n"}, want: one("net-interface", Warn), says: "link-local"},
	{name: "interface that is not there", fixture: "dgx-h100", env: []string{"NCCL_SOCKET_IFNAME=bond7"}, want: map[string]Status{"net-interface": Fault, "env-nccl": Fault}, says: "bond7"},
	{name: "one subnet", fixture: "pcie", lines: []string{"proc/net/route = Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\neth0\\t00000000\\t0101A8C0\\t3\\t0\\t0\\t0\\t00000000\\nens1np0\\t0000010A\\t0\\t1\\t0\\t0\\t0\\t0000FFFF\\nens2np0\\t0000010A\\t0\\t1\\t0\\t0\\t0\\t0000FFFF\\n"},
		want: one("net-rails", Warn), says: "10.1.0.0/16"},
	{name: "ufw", fixture: "dgx-h100", lines: []string{"etc/ufw/ufw.conf = # comment\\nENABLED=yes\\n"}, want: one("net-firewall", Warn), says: "ufw"},
	{name: "firewalld", fixture: "dgx-h100", lines: []string{"proc/950/comm = firewalld"}, want: one("net-firewall", Warn), says: "950"},
	{name: "iptables", fixture: "dgx-h100", lines: []string{"etc/iptables/rules.v4 = *filter\\n:INPUT DROP [0:0]\\nCOMMIT\\n"}, want: one("net-firewall", Warn), says: "rules.v4:2"},
	{name: "few ports", fixture: "dgx-h100", lines: []string{"proc/sys/net/ipv4/ip_local_port_range = 60000 60999"}, want: one("net-ports", Warn), says: "1000 ports"},
	{name: "NUMA balancing", fixture: "dgx-h100", lines: []string{"proc/sys/kernel/numa_balancing = 1"}, want: one("host-numa-balancing", Warn), says: "on, with 2"},
	{name: "module lost", fixture: "dgx-h100", lines: []string{"sys/devices/system/node/node1/meminfo = Node 1 MemTotal:  924613632 kB\\n"}, want: one("host-numa-memory", Warn), says: "node1"},
	{name: "hpet", fixture: "dgx-h100", lines: []string{"sys/devices/system/clocksource/clocksource0/current_clocksource = hpet"}, want: one("host-clock", Warn), says: "hpet"},
	{name: "powersave", fixture: "dgx-h100", lines: []string{"sys/devices/system/cpu/cpu2/cpufreq/scaling_governor = powersave"}, want: one("host-governor", Warn), says: "powersave on 1"},
	{name: "powersave by name alone", fixture: "dgx-h100", lines: []string{"sys/devices/system/cpu/cpu2/cpufreq/scaling_governor = powersave", "sys/devices/system/cpu/cpu2/cpufreq/energy_performance_preference = performance"}, want: one("host-governor", OK), says: "by preference"},
	{name: "huge pages compact", fixture: "dgx-h100", lines: []string{"sys/kernel/mm/transparent_hugepage/<enabled,defrag> = [always] madvise never"}, want: one("host-hugepages", Warn), says: "always"},
	{name: "reserved pages", fixture: "dgx-h100", lines: []string{"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 600000"}, want: one("host-hugepages", Warn), says: "reserved"},
	{name: "clock not kept", fixture: "dgx-h100", lines: []string{"rm proc/800"}, want: one("host-time", Warn), says: "nothing runs"},
	{name: "machine check", fixture: "dgx-h100", lines: []string{"var/log/kern.log = mce: [Hardware Error]: Machine check events logged\\n"}, want: one("host-errors", Warn), says: "1 machine check in"},
	{name: "PCIe errors", fixture: "dgx-h100", lines: []string{"var/log/kern.log = pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer\\n"}, want: one("host-errors", Warn), says: "uncorrected PCIe"},
}

var limitFaults = []planted{
	{name: "memlock", fixture: "dgx-h100", lines: []string{limited("Max locked memory", "65536")}, want: one("limit-memlock", Fault), says: "64 KiB"},
	{name: "memlock of a gigabyte", fixture: "dgx-h100", lines: []string{limited("Max locked memory", "1073741824")}, want: one("limit-memlock", Warn), says: "1 GiB"},
	{name: "nofile", fixture: "dgx-h100", lines: []string{limited("Max open files", "1024")}, want: one("limit-nofile", Warn), says: "1024"},
	{name: "nproc", fixture: "dgx-h100", lines: []string{limited("Max processes", "1000")}, want: one("limit-nproc", Warn), says: "1000"},
	{name: "Docker's shm", fixture: "container", lines: []string{"proc/self/mounts = shm /dev/shm tmpfs rw,size=65536k 0 0\\n"}, want: one("limit-shm", Fault), says: "64 MiB"},
	{name: "no shm", fixture: "container", lines: []string{"proc/self/mounts = overlay / overlay rw 0 0\\n"}, want: one("limit-shm", Fault), says: "not mounted"},
	{name: "shm full", fixture: "dgx-h100", gpu: func(n *Node) { n.Shm = &nvml.Space{TotalBytes: 64 << 30, UsedBytes: 63 << 30} }, want: one("limit-shm", Warn), says: "63 GiB of 64 GiB"},
	{name: "memory", fixture: "container", lines: []string{"sys/fs/cgroup/memory.max = 68719476736"}, want: one("limit-memory", Warn), says: "64 GiB"},
	{name: "memory above", fixture: "dgx-h100", lines: []string{"sys/fs/cgroup/user.slice/memory.max = 68719476736"}, want: one("limit-memory", Warn), says: "/sys/fs/cgroup/user.slice/memory.max"},
	{name: "memory of version 1", fixture: "container", lines: []string{"proc/self/cgroup = 4:memory:/kubepods/a\\n3:pids:/kubepods/a\\n2:cpu,cpuacct:/kubepods/a\\n", "sys/fs/cgroup/memory/kubepods/a/memory.limit_in_bytes = 68719476736", "sys/fs/cgroup/pids/kubepods/a/pids.max = max"},
		want: one("limit-memory", Warn), says: "64 GiB"},
	{name: "quota", fixture: "container", lines: []string{"sys/fs/cgroup/cpu.max = 3200000 100000"}, want: one("limit-cpu", Warn), says: "32 processors"},
	{name: "few processors", fixture: "dgx-h100", lines: []string{"proc/self/status = Cpus_allowed_list:\\t0-7,56-63\\n"}, want: one("limit-cpu", Warn), says: "16 processors"},
	{name: "one node's processors", fixture: "dgx-h100", lines: []string{"proc/self/status = Cpus_allowed_list:\\t0-55\\n"}, want: one("limit-cpu", Warn), says: "node1"},
	{name: "pids", fixture: "container", lines: []string{"sys/fs/cgroup/pids.max = 1024"}, want: one("limit-pids", Warn), says: "1024"},
}

var containerFaults = []planted{
	{name: "no driver in the container", fixture: "plain", lines: []string{".dockerenv =", "sys/bus/pci/devices/0000:01:00.0/class = 0x030200", "sys/bus/pci/devices/0000:01:00.0/vendor = 0x10de"},
		want: without(withGPU(map[string]Status{"driver-loaded": Warn}), "driver-mix"), says: "this container has no driver"},
	{name: "no character devices", fixture: "container", lines: []string{"rm dev/infiniband"}, want: one("container-infiniband", Fault), says: "no /dev/infiniband"},
	{name: "a character device too few", fixture: "container", lines: []string{"rm dev/infiniband/uverbs3"}, want: one("container-infiniband", Warn), says: "only 7"},
	{name: "no permission", fixture: "container", gpu: func(n *Node) {
		if err := os.Chmod(filepath.Join(n.Root, "dev/infiniband/uverbs3"), 0o600); err != nil {
			panic(err)
		}
	}, want: one("container-infiniband", Fault), says: "uverbs3"},
	{name: "no utility", fixture: "container", env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute"}, want: one("container-gpus", Fault), says: "lacks utility"},
	{name: "no GPUs asked for", fixture: "container", env: []string{"NVIDIA_VISIBLE_DEVICES=void"}, want: one("container-gpus", Warn), says: "void"},
	{name: "misspelt setting", fixture: "dgx-h100", env: []string{"NCCL_IB_HAC=mlx5_0"}, want: one("env-nccl", Fault), says: "NCCL_IB_HAC"},
	{name: "setting that was left", fixture: "dgx-h100", env: []string{"NCCL_P2P_DISABLE=1"}, want: one("env-nccl", Warn), says: "NCCL_P2P_DISABLE"},
	{name: "settings file", fixture: "dgx-h100", lines: []string{"etc/nccl.conf = NCCL_DEBUG=WARN\\nexport NCCL_IB_TIMEOUT=22\\n"}, want: one("env-conf", Fault), says: "/etc/nccl.conf:2"},
	{name: "GPU that is not there", fixture: "dgx-h100", env: []string{"CUDA_VISIBLE_DEVICES=0,1,8"}, want: one("env-visible", Fault), says: "no GPU 8"},
	{name: "GPU twice", fixture: "dgx-h100", env: []string{"CUDA_VISIBLE_DEVICES=0,1,1"}, want: one("env-visible", Fault), says: "twice"},
	{name: "all hidden", fixture: "dgx-h100", env: []string{"CUDA_VISIBLE_DEVICES="}, want: one("env-visible", Fault), says: "hides all 8"},
	{name: "stubs", fixture: "dgx-h100", env: []string{"LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs"}, want: one("env-libraries", Fault), says: "stub"},
	{name: "preload", fixture: "dgx-h100", env: []string{"LD_PRELOAD=/opt/none.so"}, want: one("env-libraries", Warn), says: "/opt/none.so"},
}

func without(want map[string]Status, id string) map[string]Status {
	delete(want, id)
	return want
}

// Each fault turns the checks that it concerns, and no other.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	n := 0
	for _, list := range [][]planted{driverFaults, gpuFaults, nvlinkFaults, rdmaFaults, hostFaults, limitFaults, containerFaults} {
		for _, p := range list {
			n++
			t.Run(p.fixture+"/"+p.name, func(t *testing.T) {
				t.Parallel()
				p.check(t)
			})
		}
	}
	if n < 40 {
		t.Errorf("only %d faults", n)
	}
}

var baselines struct {
	sync.Mutex
	reports map[string]*Report
}

// baseline is what a healthy machine answers; it is asked once.
func baseline(t *testing.T, fixture string) *Report {
	t.Helper()
	baselines.Lock()
	defer baselines.Unlock()
	if baselines.reports[fixture] == nil {
		if baselines.reports == nil {
			baselines.reports = map[string]*Report{}
		}
		baselines.reports[fixture] = Run(healthy(t, fixture))
	}
	return baselines.reports[fixture]
}

func (p planted) check(t *testing.T) {
	node := healthy(t, p.fixture)
	before := baseline(t, p.fixture)
	change(t, &node, p.lines...)
	node.Env = append(node.Env, p.env...)
	if p.gpu != nil {
		p.gpu(&node)
	}
	after := Run(node)
	answer := func(r *Report, id string) Status {
		if x := r.Get(id); x != nil {
			return x.Status
		}
		return "" // skipped
	}
	for _, rule := range Rules() {
		want, listed := p.want[rule.ID]
		if !listed {
			want = answer(before, rule.ID)
		}
		got := answer(after, rule.ID)
		if got != want {
			t.Errorf("%s: %q, want %q: %+v", rule.ID, got, want, after.Get(rule.ID))
		}
		if x := after.Get(rule.ID); listed && (want == Fault || want == Warn) && len(x.Fix) == 0 {
			t.Errorf("%s: does not say what to do", rule.ID)
		}
	}
	said := false
	for id := range p.want {
		if x := after.Get(id); x != nil {
			said = said || strings.Contains(strings.Join(x.Found, "\n"), p.says)
		}
	}
	if !said && p.says != "" {
		t.Errorf("nothing says %q", p.says)
	}
	if len(after.Warnings) > 0 {
		t.Errorf("warnings: %q", after.Warnings)
	}
}

// Every check is turned to a warning or a fault by some planted one, except those that only inform.
func TestEveryCheckCanFail(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"host-kernel": true, "host-smt": true, "container-kind": true}
	for _, list := range [][]planted{driverFaults, gpuFaults, nvlinkFaults, rdmaFaults, hostFaults, limitFaults, containerFaults} {
		for _, p := range list {
			for id, s := range p.want {
				seen[id] = seen[id] || s == Fault || s == Warn
			}
		}
	}
	for _, r := range Rules() {
		if !seen[r.ID] {
			t.Errorf("no planted fault turns %s", r.ID)
		}
	}
}

// Counters that move between two samples are told apart from those that stand.
func TestMovingCounters(t *testing.T) {
	t.Parallel()
	for counter, want := range map[string]Status{"counters/symbol_error": Fault, "hw_counters/out_of_sequence": Warn, "counters/port_xmit_data": OK} {
		node := healthy(t, "dgx-h100")
		slept := 0
		node.Sleep = func(d time.Duration) {
			slept++
			if d < 10*time.Millisecond {
				t.Errorf("slept %v: adapters keep their counters for 10 ms", d)
			}
			change(t, &node, "sys/class/infiniband/mlx5_3/ports/1/"+counter+" = 40")
		}
		x := Run(node).Get("rdma-errors")
		if x.Status != want || slept != 1 || want != OK && !strings.Contains(x.Found[0], "grew by") {
			t.Errorf("%s: %+v after %d sleeps", counter, x, slept)
		}
	}
	node := healthy(t, "dgx-h100")
	node.Sleep = nil
	if x := Run(node).Get("rdma-errors"); x.Status != OK || !strings.Contains(x.Found[0], "looked at once") {
		t.Errorf("without a second sample: %+v", x)
	}
}

// A check that never comes back costs its own answer only.
func TestLateCheck(t *testing.T) {
	t.Parallel()
	node := healthy(t, "dgx-h100")
	before := Run(node)
	node.Patience = 400 * time.Millisecond
	node.Access = func(string) error { select {} }
	start := time.Now()
	after := Run(node)
	if d := time.Since(start); d > 8*time.Second {
		t.Errorf("took %v", d)
	}
	for _, x := range before.Results {
		got := after.Get(x.ID)
		if x.ID == "container-infiniband" {
			x.Status = CannotTell
		}
		if got == nil || got.Status != x.Status {
			t.Errorf("%s: %+v, want %s", x.ID, got, x.Status)
		}
	}
}

func TestFailedCheck(t *testing.T) {
	t.Parallel()
	v := &verdict{facts: map[string]string{}}
	c := check{id: "x", look: func(*machine, *verdict) { panic(errors.New("oops")) }}
	c.run(newMachine(Node{Root: t.TempDir()}), v)
	if r := v.result("a", c); r.Status != CannotTell || !strings.Contains(r.Found[0], "oops") {
		t.Errorf("%+v", r)
	}
	v = &verdict{}
	c.look = func(*machine, *verdict) {}
	c.run(newMachine(Node{Root: t.TempDir()}), v)
	if r := v.result("a", c); r.Status != CannotTell {
		t.Errorf("a check that says nothing: %+v", r)
	}
}
