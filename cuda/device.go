package cuda

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

// Device attributes that Attribute can read.
const (
	AttrMultiprocessors = 16
	AttrComputeMode     = 20
	AttrL2Bytes         = 38
	AttrComputeMajor    = 75
	AttrComputeMinor    = 76
	attrDMABuf          = 124 // the driver's
)

// Properties describes a device.
type Properties struct {
	Device          int
	Name            string
	PCIBusID        string // "0000:0f:00.0"
	UUID            string // "GPU-…" as nvidia-smi prints it, "" when the driver does not say
	TotalBytes      int64
	Multiprocessors int
	Major, Minor    int // compute capability
	ComputeMode     int // 0 default, 2 prohibited, 3 exclusive process
}

// DeviceCount returns the number of devices that this process sees.
//
// Implements: cudaError_t cudaGetDeviceCount(int *count)
func DeviceCount() (int, error) {
	var n int32
	err := check("cudaGetDeviceCount", csrc.CudaGetDeviceCount(&n))
	return int(n), err
}

// SetDevice makes device the calling OS thread's device.
//
// Implements: cudaError_t cudaSetDevice(int device)
func SetDevice(device int) error { return check("cudaSetDevice", csrc.CudaSetDevice(device)) }

// GetDevice returns the calling OS thread's device.
//
// Implements: cudaError_t cudaGetDevice(int *device)
func GetDevice() (int, error) {
	var d int32
	err := check("cudaGetDevice", csrc.CudaGetDevice(&d))
	return int(d), err
}

// Attribute reads one device attribute.
//
// Implements: cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
func Attribute(attr, device int) (int, error) {
	var v int32
	err := check("cudaDeviceGetAttribute", csrc.CudaDeviceGetAttribute(&v, attr, device))
	return int(v), err
}

// PCIBusID returns the device's PCI address in lower case, "0000:0f:00.0".
//
// Implements: cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
func PCIBusID(device int) (string, error) {
	id, code := csrc.CudaDeviceGetPCIBusID(device)
	if err := check("cudaDeviceGetPCIBusId", code); err != nil {
		return "", err
	}
	return lower(id), nil
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'F' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// GetProperties gathers what is known about a device. It does not create a context on it.
func GetProperties(device int) (Properties, error) {
	p := Properties{Device: device}
	var dev int32
	if err := checkDriver("cuDeviceGet", csrc.CuDeviceGet(&dev, device)); err != nil {
		return p, err
	}
	name, code := csrc.CuDeviceGetName(dev)
	if err := checkDriver("cuDeviceGetName", code); err != nil {
		return p, err
	}
	var total uintptr
	if err := checkDriver("cuDeviceTotalMem", csrc.CuDeviceTotalMem(&total, dev)); err != nil {
		return p, err
	}
	p.Name, p.TotalBytes = name, int64(total)
	var uuid [16]byte
	if csrc.CuDeviceGetUUID(&uuid, dev) == 0 {
		p.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[0:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:16])
	}
	var err error
	if p.PCIBusID, err = PCIBusID(device); err != nil {
		return p, err
	}
	for _, a := range []struct {
		attr int
		to   *int
	}{{AttrMultiprocessors, &p.Multiprocessors}, {AttrComputeMajor, &p.Major}, {AttrComputeMinor, &p.Minor}, {AttrComputeMode, &p.ComputeMode}} {
		if *a.to, err = Attribute(a.attr, device); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Synchronize waits for everything queued on the calling thread's device. It blocks without a limit.
//
// Implements: cudaError_t cudaDeviceSynchronize(void)
func Synchronize() error { return check("cudaDeviceSynchronize", csrc.CudaDeviceSynchronize()) }

// CanAccessPeer tells whether device can map peer's memory.
//
// Implements: cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
func CanAccessPeer(device, peer int) (bool, error) {
	var can int32
	err := check("cudaDeviceCanAccessPeer", csrc.CudaDeviceCanAccessPeer(&can, device, peer))
	return can != 0, err
}

// EnablePeerAccess lets the calling thread's device map peer's memory. Access that is enabled already is no error.
//
// Implements: cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
func EnablePeerAccess(peer int) error {
	code := csrc.CudaDeviceEnablePeerAccess(peer)
	if Code(code) == errPeerAlreadyEnabled {
		csrc.CudaGetLastError()
		return nil
	}
	return check("cudaDeviceEnablePeerAccess", code)
}

// DisablePeerAccess ends what EnablePeerAccess began.
//
// Implements: cudaError_t cudaDeviceDisablePeerAccess(int peerDevice)
func DisablePeerAccess(peer int) error {
	return check("cudaDeviceDisablePeerAccess", csrc.CudaDeviceDisablePeerAccess(peer))
}

// DriverVersion returns the CUDA version that the driver supports, e.g. 13000.
//
// Implements: cudaError_t cudaDriverGetVersion(int *driverVersion)
func DriverVersion() (int, error) {
	var v int32
	err := check("cudaDriverGetVersion", csrc.CudaDriverGetVersion(&v))
	return int(v), err
}

// RuntimeVersion returns the CUDA runtime's version, e.g. 13000.
//
// Implements: cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
func RuntimeVersion() (int, error) {
	var v int32
	err := check("cudaRuntimeGetVersion", csrc.CudaRuntimeGetVersion(&v))
	return int(v), err
}
