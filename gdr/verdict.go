package gdr

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/commprobe/commprobe/internal/topo"
)

// A limit of locked memory below this is too small for buffers of NCCL; and memory of BAR1 up to this is what cards without GPUDirect RDMA have.
const (
	smallMemlock = 64 << 20
	smallBAR1    = 256 << 20
)

// Judge answers for every pair; without pairs it says what is in the way of each GPU.
func Judge(r *Report) {
	f := &r.Facts
	r.Verdicts, r.Causes = []Verdict{}, nil
	for i := range f.Pairs {
		r.Verdicts = append(r.Verdicts, f.judge(&f.Pairs[i]))
	}
	if len(f.Pairs) == 0 {
		for i := range f.GPUs {
			if f.GPUs[i].Export.State == Fails {
				r.Causes = append(r.Causes, f.exportCauses(&f.GPUs[i])...)
			}
		}
		r.Causes = unique(r.Causes)
	}
}

func unique(causes []Cause) (out []Cause) {
	for _, c := range causes {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// judge takes the best of what was tried: data that arrived beats a registration, and a registration beats everything that files say.
func (f *Facts) judge(p *Pair) Verdict {
	v := Verdict{GPU: p.GPU, NIC: p.NIC}
	v.NCCL, v.NCCLWhy = f.nccl(p)
	in := func(want State, get func(Trial) State) *Trial {
		i := slices.IndexFunc(p.Trials, func(t Trial) bool { return get(t) == want })
		if i < 0 {
			return nil
		}
		return &p.Trials[i]
	}
	moved := func(t Trial) State { return t.Move.State }
	registered := func(t Trial) State { return t.Register.State }
	switch {
	case in(Works, moved) != nil:
		t := in(Works, moved)
		v.Answer, v.Method, v.Why = Yes, t.Method, "data went through the NIC from GPU memory to GPU memory, by "+string(t.Method)
		v.Causes = f.slowing(p)
	case in(Fails, moved) != nil:
		t := in(Fails, moved)
		v.Answer, v.Why = No, "memory can be registered by "+string(t.Method)+", but data does not get through: "+t.Move.Text
		v.Causes = f.moveCauses(p)
	case in(Works, registered) != nil:
		t := in(Works, registered)
		v.Answer, v.Method, v.Why = CannotTell, t.Method, "memory can be registered by "+string(t.Method)+"; no data was moved: "+t.Move.Text
	case in(Fails, registered) != nil:
		v.Answer, v.Why, v.Causes = No, registerText(p), f.registerCauses(p)
	default:
		v.Answer, v.Why = CannotTell, "nothing was tried"
		if len(p.Trials) > 0 && p.Trials[0].Register.Text != "" {
			v.Why = p.Trials[0].Register.Text
		}
	}
	if v.Answer == Yes && v.NCCL == nil && v.NCCLWhy == "" {
		v.NCCLWhy = "the distance is not known"
	}
	return v
}

func registerText(p *Pair) string {
	var parts []string
	for _, t := range p.Trials {
		if t.Register.State == Fails {
			parts = append(parts, string(t.Method)+": "+t.Register.Text)
		}
	}
	return "memory cannot be registered; " + strings.Join(parts, "; ")
}

func is(p *bool, want bool) bool { return p != nil && *p == want }

const (
	openFix   = "install the open kernel modules (package nvidia-open; the default from driver 560 on), or modprobe nvidia-peermem"
	kernelFix = "boot a kernel of 5.12 or later, or modprobe nvidia-peermem"
	peerFix   = "modprobe nvidia-peermem on the host, not in the container, and name it in /etc/modules-load.d; its ib_core must have peer memory (MLNX_OFED or DOCA-OFED), else use DMA-BUF"
)

// exportCauses are why memory of a GPU cannot be exported as DMA-BUF.
func (f *Facts) exportCauses(g *GPU) (out []Cause) {
	if is(f.DMABufKernel, false) {
		out = append(out, Cause{"old-kernel", "DMA-BUF for RDMA needs Linux 5.12, this is " + f.Kernel, kernelFix})
	}
	if is(f.OpenModules, false) {
		out = append(out, Cause{"closed-modules", "the proprietary NVIDIA kernel modules are loaded (driver " + f.Driver + "): they have no DMA-BUF", openFix})
	}
	if len(out) == 0 && is(g.DMABuf, false) {
		out = append(out, Cause{"no-attribute", g.ID + ": the driver does not offer DMA-BUF (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0)",
			"open kernel modules from 515 on, and a card that has GPUDirect RDMA (GeForce, and virtual GPUs without it, have not)"})
	}
	return out
}

// registerCauses are why neither method registers memory, those of DMA-BUF first.
func (f *Facts) registerCauses(p *Pair) []Cause {
	g, n := f.gpu(p.GPU), f.nic(p.NIC)
	out := f.exportCauses(g)
	if is(f.DMABufVerbs, false) {
		out = append(out, Cause{"old-libibverbs", f.Library + " has no ibv_reg_dmabuf_mr", "rdma-core 34 or later, in the container as well as on the host"})
	}
	if is(n.DMABuf, false) {
		out = append(out, Cause{"nic-no-dmabuf", "kernel or driver of " + n.Name + " takes no DMA-BUF", "a newer kernel or MLNX_OFED/DOCA-OFED; the provider in a container must be as new (apt-get install ibverbs-providers)"})
	}
	if is(f.PeerLoaded, false) {
		out = append(out, Cause{"no-peermem", "neither nvidia_peermem nor nv_peer_mem is loaded", peerFix})
	}
	if g.BAR1 != nil && *g.BAR1 <= smallBAR1 {
		out = append(out, Cause{"small-bar1", fmt.Sprintf("BAR1 of %s has %d MiB: little or nothing can be registered", g.ID, *g.BAR1>>20),
			"turn on Above 4G Decoding and Resizable BAR in the BIOS; cards such as T4 and GeForce have no more"})
	}
	// Memory of a GPU does not count against the limit everywhere: it is a cause only where memory is what the error says.
	noMemory := slices.ContainsFunc(p.Trials, func(t Trial) bool { return strings.Contains(t.Register.Text, syscall.ENOMEM.Error()) })
	if noMemory && f.Memlock != nil && *f.Memlock < smallMemlock {
		out = append(out, Cause{"memlock", fmt.Sprintf("the limit of locked memory is %d KiB", *f.Memlock>>10), "ulimit -l unlimited: LimitMEMLOCK=infinity for the daemon that starts the job (slurmd, containerd), --ulimit memlock=-1 for docker"})
	}
	return out
}

func acsCause(bridges []string) Cause {
	return Cause{"acs", "ACS redirects traffic between devices up to the processor in " + strings.Join(bridges, ", "), "turn ACS off in the BIOS, or until the next start: setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each"}
}

var iommuCause = Cause{"iommu", "the IOMMU translates addresses for the GPU or the NIC", "start the kernel with iommu=pt (Intel: intel_iommu=on iommu=pt), or turn the IOMMU off in the BIOS"}

// moveCauses are why data does not get through although memory was registered.
func (f *Facts) moveCauses(p *Pair) (out []Cause) {
	if len(p.ACS) > 0 {
		out = append(out, acsCause(p.ACS))
	}
	if is(p.Translated, true) {
		out = append(out, iommuCause)
	}
	if p.ACSHidden {
		out = append(out, Cause{"acs-unknown", "ACS of the bridges on the way cannot be read by this user", "look as root: sudo commprobe gdr, or sudo lspci -vvv | grep ACSCtl"})
	}
	if len(out) == 0 {
		out = append(out, Cause{"transfer", "nothing that can be seen here explains it", "rdma write with --memory host on the same NIC shows whether the NIC itself is well; then dmesg, and the BIOS (MMIO above 4 GiB, peer-to-peer)"})
	}
	return out
}

// slowing is what costs bandwidth though it works.
func (f *Facts) slowing(p *Pair) (out []Cause) {
	if len(p.ACS) > 0 {
		out = append(out, acsCause(p.ACS))
	}
	if is(p.Translated, true) && !is(f.Virtual, true) {
		out = append(out, iommuCause)
	}
	g, n := f.gpu(p.GPU), f.nic(p.NIC)
	if g.BAR1 != nil && g.Memory > 0 && *g.BAR1 < g.Memory {
		out = append(out, Cause{"bar1", fmt.Sprintf("BAR1 of %s has %d MiB, its memory %d MiB: not all of it can be registered at a time", g.ID, *g.BAR1>>20, g.Memory>>20), "turn on Resizable BAR in the BIOS"})
	}
	if is(n.Relaxed, false) {
		out = append(out, Cause{"relaxed-ordering", n.Name + " does not use relaxed ordering", "writes to far memory wait for each other without it: mlxconfig -d " + n.PCI + " set PCI_WR_ORDERING=1, then reset the card; or turn it on in the BIOS"})
	}
	if f.Memlock != nil && *f.Memlock < smallMemlock {
		out = append(out, Cause{"memlock", fmt.Sprintf("the limit of locked memory is %d KiB: jobs will fail to register more", *f.Memlock>>10), "ulimit -l unlimited"})
	}
	return out
}

// nccl tells whether NCCL uses GPUDirect RDMA on this pair by its distance rule, provided that it works at all.
func (f *Facts) nccl(p *Pair) (*bool, string) {
	have, level := topo.NCCLDistance(p.Distance), topo.NCCLDistance(f.Level)
	if have < 0 || level < 0 {
		return nil, ""
	}
	uses := have <= level
	why := fmt.Sprintf("distance %s is within %s (%s)", p.Distance, f.Level, f.LevelFrom)
	if !uses {
		why = fmt.Sprintf("distance %s is beyond %s (%s): NCCL stages through host memory; give this GPU a nearer NIC, or where there is none and this one works, NCCL_NET_GDR_LEVEL=%s", p.Distance, f.Level, f.LevelFrom, p.Distance)
	}
	if g := f.gpu(p.GPU); uses && g.SM != nil && *g.SM < 80 {
		why += "; sends of a GPU before Ampere are staged all the same, unless it has NVLink or NCCL_NET_GDR_READ=1"
	}
	return &uses, why
}

// Level is the distance up to which NCCL uses GPUDirect RDMA: NCCL_NET_GDR_LEVEL as a word or as a number of old, else the default, which is PXB, and P2C from
// 2.27 on unless NCCL_NET_GDR_C2C is 0 (NCCL src/graph/paths.cc). P2C is farther than PXB, but exists only where a CPU has NVLink-C2C.
func Level(getenv func(string) string) (level, from string) {
	v := getenv("NCCL_NET_GDR_LEVEL")
	if old := []string{"LOC", "PIX", "PXB", "PHB", "SYS", "SYS"}; len(v) == 1 && v[0] >= '0' && int(v[0]-'0') < len(old) {
		return old[v[0]-'0'], "NCCL_NET_GDR_LEVEL=" + v
	}
	if topo.NCCLDistance(strings.ToUpper(v)) >= 0 {
		return strings.ToUpper(v), "NCCL_NET_GDR_LEVEL=" + v
	}
	if getenv("NCCL_NET_GDR_C2C") == "0" {
		return "PXB", "default of NCCL, NCCL_NET_GDR_C2C=0"
	}
	return "P2C", "default of NCCL 2.27 and later; before it is PXB"
}
