package gdr

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/nvml"
	"github.com/commprobe/commprobe/internal/topo"
	"github.com/commprobe/commprobe/rdma"
)

// Sources are what Look puts together. Each may be nil.
type Sources struct {
	Root    string // of the files; "/" is this machine
	NVML    *nvml.Node
	Graph   *topo.Graph
	NICs    *rdma.List
	NICsErr error // why NICs is nil
	Getenv  func(string) string
}

// Look gathers the facts that need no trial. Package cuda must have an engine.
func Look(s Sources) (Facts, error) {
	f := Facts{HostEngine: cuda.IsHost(), GPUs: []GPU{}, NICs: []NIC{}, Pairs: []Pair{}}
	f.files(s.Root)
	f.Level, f.LevelFrom = Level(s.Getenv)
	if lib, err := ibverbs.Load(""); err == nil {
		f.Library, f.DMABufVerbs = strings.TrimSpace(lib.Version+" "+lib.Path), &lib.DMABuf
	} else {
		f.LibraryWhy = err.Error()
	}
	if s.Graph != nil {
		f.Virtual, f.Container = s.Graph.Host.Virtual, s.Graph.Host.Container
	}
	if err := f.gpus(s.NVML); err != nil {
		return f, err
	}
	f.nics(s)
	for _, g := range f.GPUs {
		for _, n := range f.NICs {
			f.Pairs = append(f.Pairs, pairOf(s, g, n))
		}
	}
	if s.NICsErr != nil {
		f.Notes = append(f.Notes, s.NICsErr.Error())
	}
	return f, nil
}

// files reads what the kernel tells below a root.
func (f *Facts) files(root string) {
	text := func(name string) (string, bool) {
		b, err := os.ReadFile(filepath.Join(root, name))
		return string(b), err == nil
	}
	if v, ok := text("proc/sys/kernel/osrelease"); ok {
		f.Kernel = strings.TrimSpace(v)
		f.DMABufKernel = since512(f.Kernel)
	}
	if v, ok := text("proc/modules"); ok {
		loaded := false
		for line := range strings.Lines(v) {
			name, _, _ := strings.Cut(line, " ")
			if slices.Contains([]string{"nvidia_peermem", "nv_peer_mem"}, name) {
				loaded, f.PeerModule = true, name
			}
		}
		f.PeerLoaded = &loaded
	}
	if v, ok := text("proc/driver/nvidia/version"); ok {
		open := strings.Contains(v, "Open Kernel Module")
		f.OpenModules = &open
		f.Driver = cuda.KernelDriver(strings.TrimSuffix(root, "/"))
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil {
		f.Memlock = &limit.Cur
	}
}

// since512 reads 6.8 of 6.8.0-40-generic; nil where there is no number.
func since512(release string) *bool {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return nil
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil {
		return nil
	}
	yes := major > 5 || major == 5 && minor >= 12
	return &yes
}

func (f *Facts) gpus(n *nvml.Node) error {
	count, err := cuda.DeviceCount()
	if err != nil {
		return err
	}
	for d := range count {
		p, err := cuda.GetProperties(d)
		if err != nil {
			return fmt.Errorf("GPU %d: %w", d, err)
		}
		g := GPU{ID: fmt.Sprintf("GPU%d", d), Device: d, Name: p.Name, PCI: p.PCIBusID, Memory: uint64(max(p.TotalBytes, 0))}
		if sm := 10*p.Major + p.Minor; sm > 0 {
			g.SM = &sm
		}
		if can, err := cuda.DMABufSupported(d); err == nil {
			g.DMABuf = &can
		}
		if n != nil {
			for _, v := range n.GPUs {
				if v.PCI != nil && *v.PCI == g.PCI && v.BAR1 != nil {
					g.BAR1 = &v.BAR1.TotalBytes
				}
			}
		}
		f.GPUs = append(f.GPUs, g)
	}
	return nil
}

// nics are those of libibverbs, and those that /sys has and libibverbs does not see.
func (f *Facts) nics(s Sources) {
	if s.NICs != nil {
		for _, d := range s.NICs.Devices {
			n := NIC{Name: d.Name, PCI: d.PCI, Closed: d.Error}
			if len(d.Ports) > 0 {
				n.Closed = "" // a port could be asked
			}
			for _, p := range d.Ports {
				if n.Port == "" || p.Active {
					n.Port, n.LinkLayer = p.State, p.LinkLayer
				}
			}
			if yes := d.DMABuf == "yes"; yes || d.DMABuf == "no" {
				n.DMABuf = &yes
			}
			f.NICs = append(f.NICs, n)
		}
	}
	if s.Graph == nil {
		return
	}
	for _, x := range s.Graph.NICs {
		if !is(x.RDMA, true) || x.Name == "" {
			continue
		}
		i := slices.IndexFunc(f.NICs, func(n NIC) bool { return n.Name == x.Name })
		if i < 0 {
			i = len(f.NICs)
			why := "libibverbs does not list it: no provider for it (apt-get install ibverbs-providers), or no /dev/infiniband here (in a container: --device=/dev/infiniband --cap-add=IPC_LOCK)"
			if f.LibraryWhy != "" {
				why = f.LibraryWhy
			}
			f.NICs = append(f.NICs, NIC{Name: x.Name, Closed: why})
		}
		n := &f.NICs[i]
		if n.PCI == "" {
			n.PCI = x.BusID
		}
		if fn := s.Graph.Function(x.BusID); fn != nil {
			n.Relaxed = fn.Relaxed
		}
	}
}

// pairOf describes the way between two devices.
func pairOf(s Sources, g GPU, n NIC) Pair {
	p := Pair{GPU: g.ID, NIC: n.Name, Trials: []Trial{}}
	if s.Graph == nil {
		return p
	}
	p.Translated = translated(s.Root, g.PCI, n.PCI)
	w, err := s.Graph.Path(g.PCI, n.Name)
	if err != nil {
		return p
	}
	p.Distance, p.SMI = w.NCCL, w.SMI
	for _, hop := range w.Hops {
		fn := s.Graph.Function(hop)
		if fn == nil {
			continue
		}
		switch {
		case fn.ACS.State == "cannot tell":
			p.ACSHidden = true
		case slices.Contains(fn.ACS.Enabled, "RR"), slices.Contains(fn.ACS.Enabled, "CR"):
			p.ACS = append(p.ACS, hop)
		}
	}
	return p
}

// translated tells whether the IOMMU translates addresses of either device; nil: there is no group to be seen for either, so it is off or cannot be told.
func translated(root string, pci ...string) *bool {
	var out *bool
	for _, id := range pci {
		b, err := os.ReadFile(filepath.Join(root, "sys/bus/pci/devices", id, "iommu_group/type"))
		if id == "" || err != nil {
			continue
		}
		yes := strings.HasPrefix(string(b), "DMA") || is(out, true)
		out = &yes
	}
	return out
}
