package doctor

import (
	"slices"
	"strings"
)

var containerChecks = []check{
	{"container-kind", "container", "a container sees its own limits, devices and name spaces", "files that container runtimes leave", containerKind},
	{"container-infiniband", "RDMA character devices can be opened", "sysfs shows the host's adapters; without /dev/infiniband NCCL goes through sockets and says little", "/dev/infiniband; libibverbs", containerInfiniband},
	{"container-gpus", "GPUs and NVML are passed on", "the NVIDIA runtime gives what two variables ask for; without utility NCCL finds no NVML", "NVIDIA container toolkit: NVIDIA_VISIBLE_DEVICES, NVIDIA_DRIVER_CAPABILITIES", containerGPUs},
}

func containerKind(m *machine, v *verdict) {
	kind, virtual := m.container(), m.virtual()
	text := "none"
	if kind != "" {
		text = kind
	}
	machine := "a bare machine or one that does not tell"
	if virtual != nil && *virtual {
		machine = "a virtual machine"
	} else if virtual != nil {
		machine = "a bare machine"
	}
	v.fact("container", text)
	v.ok("%s, on %s", text, machine)
}

func containerInfiniband(m *machine, v *verdict) {
	list := m.ports()
	if !m.needPorts(v, list, "RDMA device") {
		return
	}
	devices := slices.DeleteFunc(m.list("dev/infiniband"), func(s string) bool { return !strings.HasPrefix(s, "uverbs") })
	adapters := map[string]bool{}
	for _, p := range list {
		adapters[p.dev] = true
	}
	pass := "modprobe ib_uverbs rdma_ucm"
	if m.container() != "" {
		pass = "docker: --device /dev/infiniband (or --privileged); Kubernetes: the RDMA device plugin"
	}
	if !m.exists("dev") {
		v.unknown("", "/dev cannot be seen")
		return
	}
	if len(devices) == 0 {
		v.fault(pass, "%d RDMA devices in sysfs, and no /dev/infiniband/uverbs*", len(adapters))
		return
	}
	if len(devices) < len(adapters) {
		v.warn(pass, "%d RDMA devices in sysfs, but only %d of /dev/infiniband/uverbs*: %s", len(adapters), len(devices), shorten(devices, 8))
	}
	var refused []string
	for _, d := range devices {
		if m.Access == nil {
			break
		}
		if err := m.Access(m.at("dev/infiniband/" + d)); err != nil {
			refused = append(refused, d+": "+why(err))
		}
	}
	if len(refused) > 0 {
		v.fault("chmod 0666 /dev/infiniband/uverbs* (rdma-core's udev rules do), or give the user the group rdma", "%s", shorten(refused, 4))
	}
	v.allOK("%d", len(devices))
}

func containerGPUs(m *machine, v *verdict) {
	visible, isSet := m.env["NVIDIA_VISIBLE_DEVICES"]
	capabilities := m.env["NVIDIA_DRIVER_CAPABILITIES"]
	if m.container() == "" || !isSet && capabilities == "" {
		v.skip("not set, or not in a container")
		return
	}
	if isSet && (visible == "void" || visible == "none" || visible == "") && m.gpuDevices() > 0 {
		v.warn("docker run --gpus all, or ask for nvidia.com/gpu in Kubernetes", "NVIDIA_VISIBLE_DEVICES=%s gives no GPU to this container", visible)
	}
	list := strings.Split(capabilities, ",")
	if capabilities != "" && !slices.Contains(list, "all") {
		for _, need := range []string{"compute", "utility"} {
			if !slices.Contains(list, need) {
				v.fault("NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_DRIVER_CAPABILITIES=%s lacks %s", capabilities, need)
			}
		}
	}
	v.allOK("NVIDIA_VISIBLE_DEVICES=%s NVIDIA_DRIVER_CAPABILITIES=%s", visible, capabilities)
}
