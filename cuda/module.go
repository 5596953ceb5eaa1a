package cuda

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

// Module is loaded device code.
type Module struct{ h uintptr }

// Function is a kernel in a module.
type Function struct{ h uintptr }

// LoadModule loads PTX or a device binary into the calling thread's context; PTX is compiled by the driver, which takes a moment. image must
// end with a zero byte. The caller unloads the module. The host engine ignores the image: it has its kernels compiled in.
//
// Implements: CUresult cuModuleLoadData(CUmodule *module, const void *image)
func LoadModule(image []byte) (Module, error) {
	if len(image) == 0 || image[len(image)-1] != 0 {
		return Module{}, fmt.Errorf("cuModuleLoadData: the image must end with a zero byte")
	}
	var h uintptr
	if err := checkDriver("cuModuleLoadData", csrc.CuModuleLoadData(&h, image)); err != nil {
		return Module{}, err
	}
	live.modules.Add(1)
	return Module{h}, nil
}

// Unload unloads the module.
//
// Implements: CUresult cuModuleUnload(CUmodule hmod)
func (m Module) Unload() error {
	err := checkDriver("cuModuleUnload", csrc.CuModuleUnload(m.h))
	if err == nil {
		live.modules.Add(-1)
	}
	return err
}

// Function finds a kernel by its C name.
//
// Implements: CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
func (m Module) Function(name string) (Function, error) {
	var f uintptr
	if err := checkDriver("cuModuleGetFunction", csrc.CuModuleGetFunction(&f, m.h, append([]byte(name), 0))); err != nil {
		return Function{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	return Function{f}, nil
}

// Launch queues the kernel with a one-dimensional grid. Every parameter is the low bytes of one slot: device addresses and integers as
// they are; at most csrc.MaxKernelParams.
//
// Implements: CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, …, CUstream hStream, void **kernelParams, void **extra)
func (f Function) Launch(grid, block int, s Stream, params ...uint64) error {
	return checkDriver("cuLaunchKernel", csrc.CuLaunchKernel(f.h, uint32(grid), uint32(block), s.h, params))
}
