// Package gdr finds out whether each NIC of a node reaches the memory of each GPU by itself (GPUDirect RDMA): what kernel, drivers and library offer, what the
// distance and the settings on the way say, and what happens when it is tried.
//
// Look gathers facts and Try tries; Judge is a pure function of both and gives one of three answers a pair, with the reason.
package gdr

import "time"

// Schema names the JSON form of a Report.
const Schema = "commprobe/gdr/1"

// Method is a way to make GPU memory known to a NIC.
type Method string

// The methods. NCCL takes DMA-BUF where both work.
const (
	DMABuf  Method = "DMA-BUF"
	PeerMem Method = "peer memory" // nvidia_peermem, nv_peer_mem
)

// State of something that was tried.
type State string

// The states.
const (
	Untried State = ""
	Works   State = "works"
	Fails   State = "fails"
)

// Outcome is what happened when something was tried, and the error's or the reason's text.
type Outcome struct {
	State State  `json:"state"`
	Text  string `json:"text,omitempty"`
}

// Facts are everything that the verdict rests on. nil and "" are unknown.
type Facts struct {
	Kernel       string   `json:"kernel,omitempty"`      // 6.8.0-40-generic
	DMABufKernel *bool    `json:"dmabuf_kernel"`         // 5.12 or later
	Driver       string   `json:"driver,omitempty"`      // 580.82.07
	OpenModules  *bool    `json:"open_modules"`          // the open NVIDIA kernel modules
	PeerModule   string   `json:"peer_module,omitempty"` // the module that is loaded
	PeerLoaded   *bool    `json:"peer_module_loaded"`
	Library      string   `json:"libibverbs,omitempty"`     // version and path
	LibraryWhy   string   `json:"libibverbs_why,omitempty"` // why there is none
	DMABufVerbs  *bool    `json:"libibverbs_dmabuf"`        // it has ibv_reg_dmabuf_mr
	Memlock      *uint64  `json:"memlock_bytes"`            // limit; ^uint64(0) is none
	Container    *bool    `json:"container"`
	Virtual      *bool    `json:"virtual"`
	Level        string   `json:"nccl_gdr_level"`  // what NCCL allows: "PXB"
	LevelFrom    string   `json:"nccl_level_from"` // "default of NCCL", or the variable
	HostEngine   bool     `json:"host_engine,omitempty"`
	GPUs         []GPU    `json:"gpus"`
	NICs         []NIC    `json:"nics"`
	Pairs        []Pair   `json:"pairs"`
	Notes        []string `json:"notes,omitempty"`
}

// GPU is one device.
type GPU struct {
	ID     string  `json:"id"`
	Device int     `json:"device"` // CUDA's number
	Name   string  `json:"name"`
	PCI    string  `json:"pci"`
	SM     *int    `json:"sm"` // compute capability times ten
	DMABuf *bool   `json:"dmabuf_attribute"`
	BAR1   *uint64 `json:"bar1_bytes"`
	Memory uint64  `json:"memory_bytes"`
	Export Outcome `json:"export"` // memory was allocated and exported as DMA-BUF
}

// NIC is one RDMA device.
type NIC struct {
	Name      string `json:"name"`
	PCI       string `json:"pci,omitempty"`
	LinkLayer string `json:"link_layer,omitempty"`
	Port      string `json:"port_state,omitempty"` // of the best port
	DMABuf    *bool  `json:"dmabuf_driver"`        // kernel and driver of the NIC take DMA-BUFs
	Closed    string `json:"cannot_open,omitempty"`
	Relaxed   *bool  `json:"relaxed_ordering"` // in its PCI configuration
}

// Pair is the way between a GPU and a NIC, and what was tried.
type Pair struct {
	GPU        string   `json:"gpu"`
	NIC        string   `json:"nic"`
	Distance   string   `json:"nccl_distance,omitempty"` // PIX, PXB, PHB, SYS …
	SMI        string   `json:"smi_distance,omitempty"`
	ACS        []string `json:"acs_redirect,omitempty"` // bridges on the way that redirect traffic between devices
	ACSHidden  bool     `json:"acs_unknown,omitempty"`  // some cannot be read
	Translated *bool    `json:"iommu_translates"`       // for either of the two
	Trials     []Trial  `json:"trials"`
}

// Trial is one method tried on one pair.
type Trial struct {
	Method   Method  `json:"method"`
	Register Outcome `json:"register"`
	Move     Outcome `json:"move"` // data written by the NIC from GPU memory into GPU memory, and compared
}

// Answer is the verdict on a pair.
type Answer string

// The answers.
const (
	Yes        Answer = "works"
	No         Answer = "does not work"
	CannotTell Answer = "could not be tested"
)

// Cause is something that is in the way, and what to do about it.
type Cause struct {
	Code string `json:"code"`
	Text string `json:"text"`
	Fix  string `json:"fix,omitempty"`
}

// Verdict is the answer for one pair.
type Verdict struct {
	GPU     string  `json:"gpu"`
	NIC     string  `json:"nic"`
	Answer  Answer  `json:"answer"`
	Method  Method  `json:"method,omitempty"` // by which it works
	Why     string  `json:"why"`
	Causes  []Cause `json:"causes,omitempty"` // for "does not work": what must be changed. For "works": what slows it down
	NCCL    *bool   `json:"nccl_uses"`        // nil: cannot tell
	NCCLWhy string  `json:"nccl_why,omitempty"`
}

// Report is facts and verdicts.
type Report struct {
	Schema   string    `json:"schema"`
	Program  string    `json:"program,omitempty"`
	Host     string    `json:"host,omitempty"`
	Time     time.Time `json:"time"`
	Facts    Facts     `json:"facts"`
	Verdicts []Verdict `json:"verdicts"`
	Causes   []Cause   `json:"causes,omitempty"` // of the node as a whole, where there is no pair
}

// Count tells how many pairs have an answer.
func (r *Report) Count(a Answer) (n int) {
	for _, v := range r.Verdicts {
		if v.Answer == a {
			n++
		}
	}
	return n
}

// Tester tries things. All block; a call that fails says so in its outcome.
type Tester interface {
	// Export allocates memory on a device and exports it as DMA-BUF.
	Export(device int) Outcome
	// Loopback registers memory of a device with a NIC, and moves data within it through the NIC.
	Loopback(device int, nic string, m Method) Trial
}

// Try fills what can only be tried. Without a device that has memory of its own nothing is tried.
func Try(f *Facts, t Tester, progress func(what string)) {
	if f.HostEngine {
		for i := range f.GPUs {
			f.GPUs[i].Export = Outcome{Text: hostMemory}
		}
		for i := range f.Pairs {
			f.Pairs[i].Trials = []Trial{{Method: DMABuf, Register: Outcome{Text: hostMemory}}}
		}
		return
	}
	for i := range f.GPUs {
		progress("export memory of " + f.GPUs[i].ID)
		f.GPUs[i].Export = t.Export(f.GPUs[i].Device)
	}
	for i := range f.Pairs {
		p := &f.Pairs[i]
		g, n := f.gpu(p.GPU), f.nic(p.NIC)
		for _, m := range []Method{DMABuf, PeerMem} {
			switch {
			case n.Closed != "":
				p.Trials = append(p.Trials, Trial{Method: m, Register: Outcome{Text: n.Name + " cannot be opened: " + n.Closed}})
			case m == DMABuf && g.Export.State == Fails:
				p.Trials = append(p.Trials, Trial{Method: m, Register: Outcome{Fails, g.Export.Text}})
			default:
				progress(p.GPU + " through " + p.NIC + " by " + string(m))
				p.Trials = append(p.Trials, t.Loopback(g.Device, p.NIC, m))
			}
		}
	}
}

const hostMemory = "host memory, no GPUDirect (host engine)"

func (f *Facts) gpu(id string) *GPU {
	for i := range f.GPUs {
		if f.GPUs[i].ID == id {
			return &f.GPUs[i]
		}
	}
	return &GPU{ID: id}
}

func (f *Facts) nic(name string) *NIC {
	for i := range f.NICs {
		if f.NICs[i].Name == name {
			return &f.NICs[i]
		}
	}
	return &NIC{Name: name}
}
