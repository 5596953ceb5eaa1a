// Package cuda is a thin binding of the CUDA runtime and the part of the driver API that this program needs: devices, memory, streams,
// events, graphs, IPC and modules. The same calls reach a real GPU or the host engine, whichever provider was chosen.
//
// Load or UseHost must have succeeded before any other function is called. Handles are plain values: whoever creates one destroys it.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/commprobe/commprobe/csrc"
)

// Library is one loaded shared object.
type Library struct{ Name, Path, Version string }

// Options says which files to load.
type Options struct {
	RuntimePath string // libcudart; "" searches
}

// NoDeviceError says that there is no GPU this process can use. The host engine still works.
type NoDeviceError struct{ Reason string }

func (e *NoDeviceError) Error() string {
	return "no CUDA device: " + e.Reason + "; --engine host still works"
}

// provider is what the process uses; written once by Load or UseHost.
var provider struct {
	host bool
	libs []Library
}

// Load loads the driver library and the CUDA runtime and checks that there is a device. A runtime that is too new for the driver is passed
// over for an older one. Errors: *csrc.LibraryError when a library is lacking, *NoDeviceError when there is no device.
func Load(opts Options) error {
	drv, err := csrc.Load(csrc.CUDRV, csrc.Search{
		Library: "NVIDIA driver library", Names: []string{"libcuda.so.1"},
		Meaning: "without the NVIDIA driver no GPU can be used; --engine host still works",
	}, nil)
	if err != nil {
		return err
	}
	if code := csrc.CuInit(); code != 0 {
		return noDevice(code)
	}
	count := 0
	rt, err := csrc.Load(csrc.CUDART, csrc.Search{
		Library: "CUDA runtime", Names: []string{"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}, Explicit: opts.RuntimePath,
		Python: []string{"nvidia/cu13/lib", "nvidia/cuda_runtime/lib"}, CUDA: true, Flag: "--cudart-lib",
		Meaning: "GPUs cannot be used without it; --engine host still works",
	}, func(path string) error {
		n, err := DeviceCount()
		if errors.Is(err, ErrInsufficientDriver) {
			return fmt.Errorf("%s is newer than the driver supports", path)
		}
		if errors.Is(err, ErrNoDevice) { // another runtime would find none either
			return nil
		}
		count = n
		return err
	})
	if err != nil {
		return err
	}
	if count == 0 {
		return &NoDeviceError{"the driver reports 0 devices" + visible()}
	}
	provider.host = false
	provider.libs = []Library{{"cuda driver", drv, driverVersion()}, {"cudart", rt, runtimeVersion()}}
	return nil
}

func noDevice(code int) error {
	if code == csrc.Missing {
		return &NoDeviceError{"the NVIDIA driver library has no cuInit"}
	}
	name, text := csrc.DriverText(code)
	return &NoDeviceError{fmt.Sprintf("the NVIDIA driver library is present, but cuInit answers %s (%d: %s)%s; is the kernel module loaded and /dev/nvidia0 visible?", name, code, text, visible())}
}

// visible tells of the variable that hides devices, where it is set.
func visible() string {
	v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if !set {
		return ""
	}
	return " (CUDA_VISIBLE_DEVICES=" + strconv.Quote(v) + ")"
}

// UseHost chooses the host engine with the given number of virtual devices (1 to 1024).
func UseHost(devices int) {
	csrc.FillHost(devices)
	provider.host = true
	path, err := os.Executable()
	if err != nil {
		path = "(this program)"
	}
	provider.libs = []Library{{"host engine", path, "built in"}}
}

// IsHost tells whether the host engine is in use.
func IsHost() bool { return provider.host }

// Libraries lists what was loaded.
func Libraries() []Library { return append([]Library(nil), provider.libs...) }

func dotted(v int32) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

func driverVersion() string {
	var v int32
	if csrc.CuDriverGetVersion(&v) != 0 {
		return ""
	}
	return dotted(v)
}

func runtimeVersion() string {
	var v int32
	if csrc.CudaRuntimeGetVersion(&v) != 0 {
		return ""
	}
	return dotted(v)
}

// KernelDriver reads the NVIDIA kernel driver's version below root ("" for the running system), "" when there is none.
func KernelDriver(root string) string {
	b, err := os.ReadFile(root + "/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	for _, f := range strings.Fields(string(b)) {
		if c := strings.Count(f, "."); c >= 1 && strings.Trim(f, "0123456789.") == "" {
			return f
		}
	}
	return ""
}
