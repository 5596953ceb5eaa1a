package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/commprobe/commprobe/csrc"
)

const defaultLibrary = "libnvidia-ml.so.1"

// opened names the library that this process keeps: the function table belongs to the process, and is not filled again while calls may run.
var opened struct {
	sync.Mutex
	name string
}

// Read asks the library for everything. It blocks while NVML does; when ctx ends first the answer is ErrNoAnswer, and the thread that waits in the
// library is lost. Errors are ErrNoLibrary, ErrNoDriver, ErrMismatch, ErrNoGPU, ErrNoAnswer, or another code of NVML's in words.
func Read(ctx context.Context, opts Options) (*Node, error) {
	type answer struct {
		node *Node
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		n, err := read(opts)
		done <- answer{n, err}
	}()
	select {
	case a := <-done:
		return a.node, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w in time (%w): a GPU or the driver hangs, see dmesg for NVRM and Xid", ErrNoAnswer, context.Cause(ctx))
	}
}

func read(opts Options) (*Node, error) {
	name, err := open(opts.Library)
	if err != nil {
		return nil, err
	}
	if code := csrc.NvmlInit(); code != csrc.NvmlSuccess {
		return nil, initError(code)
	}
	defer csrc.NvmlShutdown()
	n := &Node{Library: name, Missing: map[string]string{}}
	m := n.Missing
	n.NVML = get(m, "nvml_version", "nvmlSystemGetNVMLVersion", csrc.NvmlSystemGetNVMLVersion)
	n.Driver = get(m, "driver_version", "nvmlSystemGetDriverVersion", csrc.NvmlSystemGetDriverVersion)
	n.CUDADriver = as(get(m, "cuda_driver_version", "nvmlSystemGetCudaDriverVersion", csrc.NvmlSystemGetCudaDriverVersion), func(v int) string {
		return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	})
	count := get(m, "gpus", "nvmlDeviceGetCount_v2", csrc.NvmlDeviceGetCount)
	if count == nil {
		return nil, fmt.Errorf("NVML cannot count GPUs: %s", m["gpus"])
	}
	if *count == 0 {
		return nil, fmt.Errorf("%w: driver %s is loaded; are GPUs given to this machine or container?", ErrNoGPU, orUnknown(n.Driver))
	}
	handles := make([]*csrc.NvmlDevice, 0, *count) // nil: cannot be had
	for i := range *count {
		g := GPU{Index: i, Missing: map[string]string{}}
		h := get(g.Missing, "all", "nvmlDeviceGetHandleByIndex_v2", func() (csrc.NvmlDevice, int) { return csrc.NvmlDeviceGetHandleByIndex(i) })
		if h != nil {
			readGPU(&g, *h)
		}
		handles, n.GPUs = append(handles, h), append(n.GPUs, g)
	}
	n.Pairs = readPairs(handles)
	return n, nil
}

// open fills the function table from the named file, once a process, and returns the file's name. The library is never closed.
func open(name string) (string, error) {
	if name == "" {
		name = defaultLibrary
	}
	opened.Lock()
	defer opened.Unlock()
	if opened.name == name {
		return name, nil
	}
	if opened.name != "" {
		return "", fmt.Errorf("%w: %s was opened before, and a process can use one file only, not %s as well", ErrNoLibrary, opened.name, name)
	}
	h, text := csrc.Open(name)
	if h == 0 {
		return "", fmt.Errorf("%w: %w (it comes with the driver; in a container the NVIDIA runtime puts it there: NVIDIA_DRIVER_CAPABILITIES must have utility)", ErrNoLibrary, errors.New(text))
	}
	csrc.Fill(csrc.NVML, h)
	if csrc.Proc("nvmlInit_v2") == 0 && csrc.Proc("nvmlInit") == 0 {
		return "", fmt.Errorf("%w: %s is no NVML library: it has neither nvmlInit_v2 nor nvmlInit", ErrNoLibrary, name)
	}
	opened.name = name
	return name, nil
}

func initError(code int) error {
	switch code {
	case csrc.NvmlLibraryNotFound:
		return fmt.Errorf("nvmlInit: %w that it could use: what was opened does not find the driver's own part", ErrNoLibrary)
	case csrc.NvmlDriverNotLoaded:
		return fmt.Errorf("nvmlInit: %w: modprobe nvidia, and dmesg for the reason", ErrNoDriver)
	case csrc.NvmlVersionMismatch:
		return fmt.Errorf("nvmlInit: %w: the driver was updated under a loaded kernel module; reload the module or reboot", ErrMismatch)
	}
	return fmt.Errorf("nvmlInit: %s", codeText(code))
}

// get makes one call, or says in missing why there is no value. symbol is what a library that has no form of the function should have.
func get[T any](missing map[string]string, field, symbol string, call func() (T, int)) *T {
	v, code := call()
	switch code {
	case csrc.NvmlSuccess:
		return &v
	case csrc.Missing:
		missing[field] = lacks(symbol)
	default:
		missing[field] = codeText(code)
	}
	return nil
}

func lacks(symbol string) string { return "the driver's library has no " + symbol }

// as converts what get found.
func as[T, U any](v *T, f func(T) U) *U {
	if v == nil {
		return nil
	}
	u := f(*v)
	return &u
}

func isOn(state int) bool { return state == csrc.NvmlEnabled }

func orUnknown(s *string) string {
	if s == nil {
		return "of unknown version"
	}
	return *s
}
