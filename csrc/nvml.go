package csrc

/*
#include <stdlib.h>
#include <string.h>
#include "nvml_abi.h"
#define P(x) ((void *)(uintptr_t)(x))

// Where a function has several forms the newest that the library has is called. Its result is never undefined: places are zeroed before.
static int raw_nvmlInit(void) { return cp_nvml.nvmlInit_v2 ? cp_nvmlInit_v2() : cp_nvmlInit(); }
static int raw_nvmlDeviceGetCount(unsigned *n) { return cp_nvml.nvmlDeviceGetCount_v2 ? cp_nvmlDeviceGetCount_v2(n) : cp_nvmlDeviceGetCount(n); }
static int raw_nvmlSystemGetCudaDriverVersion(int *v) {
  return cp_nvml.nvmlSystemGetCudaDriverVersion_v2 ? cp_nvmlSystemGetCudaDriverVersion_v2(v) : cp_nvmlSystemGetCudaDriverVersion(v);
}
static int raw_nvmlDeviceGetHandleByIndex(unsigned i, uintptr_t *out) {
  cp_nvml_device d = NULL;
  int code = cp_nvml.nvmlDeviceGetHandleByIndex_v2 ? cp_nvmlDeviceGetHandleByIndex_v2(i, &d) : cp_nvmlDeviceGetHandleByIndex(i, &d);
  *out = (uintptr_t)d;
  return code;
}

// The longer id is empty where an old form answered. id has one byte more than the struct, for the end of the text.
static void bus_id(const cp_nvml_pci *p, char *id) {
  if (p->bus_id[0] != 0) memcpy(id, p->bus_id, sizeof p->bus_id);
  else memcpy(id, p->bus_id_legacy, sizeof p->bus_id_legacy);
}
static int raw_nvmlDeviceGetPciInfo(uintptr_t d, char *id) {
  cp_nvml_pci p = {0};
  int code = cp_nvml.nvmlDeviceGetPciInfo_v3 ? cp_nvmlDeviceGetPciInfo_v3(P(d), &p)
           : cp_nvml.nvmlDeviceGetPciInfo_v2 ? cp_nvmlDeviceGetPciInfo_v2(P(d), &p)
           : cp_nvmlDeviceGetPciInfo(P(d), &p);
  bus_id(&p, id);
  return code;
}
static int raw_nvmlDeviceGetNvLinkRemotePciInfo(uintptr_t d, unsigned link, char *id) {
  cp_nvml_pci p = {0};
  int code = cp_nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2 ? cp_nvmlDeviceGetNvLinkRemotePciInfo_v2(P(d), link, &p) : cp_nvmlDeviceGetNvLinkRemotePciInfo(P(d), link, &p);
  bus_id(&p, id);
  return code;
}
static int raw_processes_v1(uintptr_t d, unsigned *n, cp_nvml_process *p) {
  unsigned room = *n;
  cp_nvml_process_v1 *old = calloc(room, sizeof *old);
  if (old == NULL) return CP_NVML_INSUFFICIENT_SIZE;
  int code = cp_nvmlDeviceGetComputeRunningProcesses(P(d), n, old);
  for (unsigned i = 0; code == CP_NVML_SUCCESS && i < *n && i < room; i++) p[i] = (cp_nvml_process){.pid = old[i].pid, .used = old[i].used};
  free(old);
  return code;
}
static int raw_nvmlDeviceGetComputeRunningProcesses(uintptr_t d, unsigned *n, cp_nvml_process *p) {
  if (cp_nvml.nvmlDeviceGetComputeRunningProcesses_v3) return cp_nvmlDeviceGetComputeRunningProcesses_v3(P(d), n, p);
  if (cp_nvml.nvmlDeviceGetComputeRunningProcesses_v2) return cp_nvmlDeviceGetComputeRunningProcesses_v2(P(d), n, p);
  return raw_processes_v1(d, n, p);
}
static int raw_nvmlDeviceGetCurrentClocksEventReasons(uintptr_t d, unsigned long long *mask) {
  return cp_nvml.nvmlDeviceGetCurrentClocksEventReasons ? cp_nvmlDeviceGetCurrentClocksEventReasons(P(d), mask) : cp_nvmlDeviceGetCurrentClocksThrottleReasons(P(d), mask);
}
static int raw_nvmlDeviceGetFieldValues(uintptr_t d, unsigned field, unsigned *v) {
  cp_nvml_field f = {.field = field};
  int code = cp_nvmlDeviceGetFieldValues(P(d), 1, &f);
  *v = f.value.u;
  return code != CP_NVML_SUCCESS ? code : f.code;
}
static int raw_nvmlDeviceGetGpuFabricInfoV(uintptr_t d, cp_nvml_fabric_v2 *f) {
  f->version = CP_NVML_FABRIC_V2;
  return cp_nvmlDeviceGetGpuFabricInfoV(P(d), f);
}
static int raw_nvmlDeviceGetGpuFabricInfo(uintptr_t d, cp_nvml_fabric_v2 *f) {
  cp_nvml_fabric_v1 old = {0};
  int code = cp_nvmlDeviceGetGpuFabricInfo(P(d), &old);
  memcpy(f->cluster, old.cluster, sizeof old.cluster);
  f->status = old.status;
  f->clique = old.clique;
  f->state = old.state;
  return code;
}

#define RAW(name, type) static int raw_##name(uintptr_t d, type *v) { return cp_##name(P(d), v); }
RAW(nvmlDeviceGetMinorNumber, unsigned)
RAW(nvmlDeviceGetMemoryInfo, cp_nvml_memory)
RAW(nvmlDeviceGetBAR1MemoryInfo, cp_nvml_bar1)
RAW(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
RAW(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
RAW(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
RAW(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
RAW(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned)
RAW(nvmlDeviceGetPcieReplayCounter, unsigned)
RAW(nvmlDeviceGetRetiredPagesPendingStatus, int)
RAW(nvmlDeviceGetPowerUsage, unsigned)
RAW(nvmlDeviceGetEnforcedPowerLimit, unsigned)
RAW(nvmlDeviceGetPersistenceMode, int)
RAW(nvmlDeviceGetComputeMode, int)

static int raw_nvmlDeviceGetName(uintptr_t d, char *s, unsigned n) { return cp_nvmlDeviceGetName(P(d), s, n); }
static int raw_nvmlDeviceGetUUID(uintptr_t d, char *s, unsigned n) { return cp_nvmlDeviceGetUUID(P(d), s, n); }
static int raw_nvmlDeviceGetCudaComputeCapability(uintptr_t d, int *major, int *minor) { return cp_nvmlDeviceGetCudaComputeCapability(P(d), major, minor); }
static int raw_nvmlDeviceGetEccMode(uintptr_t d, int *now, int *pending) { return cp_nvmlDeviceGetEccMode(P(d), now, pending); }
static int raw_nvmlDeviceGetTotalEccErrors(uintptr_t d, int kind, int since, unsigned long long *n) { return cp_nvmlDeviceGetTotalEccErrors(P(d), kind, since, n); }
static int raw_nvmlDeviceGetRetiredPages(uintptr_t d, int cause, unsigned *n, unsigned long long *pages) { return cp_nvmlDeviceGetRetiredPages(P(d), cause, n, pages); }
static int raw_nvmlDeviceGetRemappedRows(uintptr_t d, unsigned *v) { return cp_nvmlDeviceGetRemappedRows(P(d), v, v + 1, v + 2, v + 3); }
static int raw_nvmlDeviceGetTemperature(uintptr_t d, unsigned *v) { return cp_nvmlDeviceGetTemperature(P(d), CP_NVML_TEMPERATURE_GPU, v); }
static int raw_nvmlDeviceGetMigMode(uintptr_t d, unsigned *now, unsigned *pending) { return cp_nvmlDeviceGetMigMode(P(d), now, pending); }
static int raw_nvmlDeviceGetCpuAffinity(uintptr_t d, unsigned words, unsigned long *set) { return cp_nvmlDeviceGetCpuAffinity(P(d), words, set); }
static int raw_nvmlDeviceGetNvLinkState(uintptr_t d, unsigned link, int *on) { return cp_nvmlDeviceGetNvLinkState(P(d), link, on); }
static int raw_nvmlDeviceGetNvLinkVersion(uintptr_t d, unsigned link, unsigned *v) { return cp_nvmlDeviceGetNvLinkVersion(P(d), link, v); }
static int raw_nvmlDeviceGetNvLinkRemoteDeviceType(uintptr_t d, unsigned link, int *kind) { return cp_nvmlDeviceGetNvLinkRemoteDeviceType(P(d), link, kind); }
static int raw_nvmlDeviceGetNvLinkErrorCounter(uintptr_t d, unsigned link, int counter, unsigned long long *n) { return cp_nvmlDeviceGetNvLinkErrorCounter(P(d), link, counter, n); }
static int raw_nvmlDeviceGetTopologyCommonAncestor(uintptr_t a, uintptr_t b, int *level) { return cp_nvmlDeviceGetTopologyCommonAncestor(P(a), P(b), level); }
static int raw_nvmlDeviceGetP2PStatus(uintptr_t a, uintptr_t b, int capability, int *status) { return cp_nvmlDeviceGetP2PStatus(P(a), P(b), capability, status); }
*/
import "C"

import "unsafe"

// NVML's values, as nvml_abi.h has them.
const (
	NvmlSuccess                 = C.CP_NVML_SUCCESS
	NvmlInvalidArgument         = C.CP_NVML_INVALID_ARGUMENT
	NvmlNotSupported            = C.CP_NVML_NOT_SUPPORTED
	NvmlInsufficientSize        = C.CP_NVML_INSUFFICIENT_SIZE
	NvmlDriverNotLoaded         = C.CP_NVML_DRIVER_NOT_LOADED
	NvmlLibraryNotFound         = C.CP_NVML_LIBRARY_NOT_FOUND
	NvmlVersionMismatch         = C.CP_NVML_VERSION_MISMATCH
	NvmlArgumentVersionMismatch = C.CP_NVML_ARGUMENT_VERSION_MISMATCH

	NvmlMaxLinks            = C.CP_NVML_MAX_LINKS
	NvmlEnabled             = C.CP_NVML_ENABLED
	NvmlCorrected           = C.CP_NVML_CORRECTED
	NvmlUncorrected         = C.CP_NVML_UNCORRECTED
	NvmlVolatile            = C.CP_NVML_VOLATILE
	NvmlAggregate           = C.CP_NVML_AGGREGATE
	NvmlRetiredSingleBit    = C.CP_NVML_RETIRED_SINGLE_BIT
	NvmlRetiredDoubleBit    = C.CP_NVML_RETIRED_DOUBLE_BIT
	NvmlMIGOn               = C.CP_NVML_MIG_ON
	NvmlFieldRecoveryAction = C.CP_NVML_FIELD_RECOVERY_ACTION

	NvmlLinkReplay   = C.CP_NVML_LINK_REPLAY
	NvmlLinkRecovery = C.CP_NVML_LINK_RECOVERY
	NvmlLinkCRCFlit  = C.CP_NVML_LINK_CRC_FLIT
	NvmlLinkCRCData  = C.CP_NVML_LINK_CRC_DATA
	NvmlRemoteGPU    = C.CP_NVML_REMOTE_GPU
	NvmlRemoteCPU    = C.CP_NVML_REMOTE_CPU
	NvmlRemoteSwitch = C.CP_NVML_REMOTE_SWITCH

	NvmlTopologyInternal   = C.CP_NVML_TOPOLOGY_INTERNAL
	NvmlTopologySingle     = C.CP_NVML_TOPOLOGY_SINGLE
	NvmlTopologyMultiple   = C.CP_NVML_TOPOLOGY_MULTIPLE
	NvmlTopologyHostBridge = C.CP_NVML_TOPOLOGY_HOSTBRIDGE
	NvmlTopologyNode       = C.CP_NVML_TOPOLOGY_NODE
	NvmlTopologySystem     = C.CP_NVML_TOPOLOGY_SYSTEM
)

// NvmlDevice is a device's handle; the zero value is none. The library owns it until NvmlShutdown. Each method calls the function of its name, in the
// newest form that the library has, and returns its code last: Missing where the library has no form of it. What it returns beside another code than
// NvmlSuccess has no meaning.
type NvmlDevice struct{ handle uintptr }

// NvmlInit calls nvmlInit_v2 or nvmlInit. It may be called again; each call wants its NvmlShutdown.
func NvmlInit() int { return int(C.raw_nvmlInit()) }

// NvmlShutdown calls nvmlShutdown.
func NvmlShutdown() int { return int(C.cp_nvmlShutdown()) }

// NvmlSystemGetNVMLVersion calls nvmlSystemGetNVMLVersion.
func NvmlSystemGetNVMLVersion() (string, int) {
	var buf [C.CP_NVML_VERSION_BYTES + 1]C.char // one more than the library may fill, so that the text ends
	code := C.cp_nvmlSystemGetNVMLVersion(&buf[0], C.CP_NVML_VERSION_BYTES)
	return C.GoString(&buf[0]), int(code)
}

// NvmlSystemGetDriverVersion calls nvmlSystemGetDriverVersion.
func NvmlSystemGetDriverVersion() (string, int) {
	var buf [C.CP_NVML_VERSION_BYTES + 1]C.char
	code := C.cp_nvmlSystemGetDriverVersion(&buf[0], C.CP_NVML_VERSION_BYTES)
	return C.GoString(&buf[0]), int(code)
}

// NvmlSystemGetCudaDriverVersion calls nvmlSystemGetCudaDriverVersion_v2 or nvmlSystemGetCudaDriverVersion: 12080 is 12.8.
func NvmlSystemGetCudaDriverVersion() (int, int) {
	var v C.int
	code := C.raw_nvmlSystemGetCudaDriverVersion(&v)
	return int(v), int(code)
}

// NvmlDeviceGetCount calls nvmlDeviceGetCount_v2 or nvmlDeviceGetCount.
func NvmlDeviceGetCount() (int, int) {
	var n C.uint
	code := C.raw_nvmlDeviceGetCount(&n)
	return int(n), int(code)
}

// NvmlDeviceGetHandleByIndex calls nvmlDeviceGetHandleByIndex_v2 or nvmlDeviceGetHandleByIndex.
func NvmlDeviceGetHandleByIndex(i int) (NvmlDevice, int) {
	var h C.uintptr_t
	code := C.raw_nvmlDeviceGetHandleByIndex(C.uint(i), &h)
	return NvmlDevice{uintptr(h)}, int(code)
}

func (d NvmlDevice) c() C.uintptr_t { return C.uintptr_t(d.handle) }

// GetName calls nvmlDeviceGetName.
func (d NvmlDevice) GetName() (string, int) {
	var buf [C.CP_NVML_NAME_BYTES + 1]C.char
	code := C.raw_nvmlDeviceGetName(d.c(), &buf[0], C.CP_NVML_NAME_BYTES)
	return C.GoString(&buf[0]), int(code)
}

// GetUUID calls nvmlDeviceGetUUID.
func (d NvmlDevice) GetUUID() (string, int) {
	var buf [C.CP_NVML_UUID_BYTES + 1]C.char
	code := C.raw_nvmlDeviceGetUUID(d.c(), &buf[0], C.CP_NVML_UUID_BYTES)
	return C.GoString(&buf[0]), int(code)
}

// GetPciInfo calls nvmlDeviceGetPciInfo_v3, _v2 or the first form for the bus id.
func (d NvmlDevice) GetPciInfo() (string, int) {
	var buf [C.CP_NVML_BUS_ID_BYTES + 1]C.char
	code := C.raw_nvmlDeviceGetPciInfo(d.c(), &buf[0])
	return C.GoString(&buf[0]), int(code)
}

// GetMinorNumber calls nvmlDeviceGetMinorNumber: N of /dev/nvidiaN.
func (d NvmlDevice) GetMinorNumber() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetMinorNumber(d.c(), &v)
	return int(v), int(code)
}

// GetCudaComputeCapability calls nvmlDeviceGetCudaComputeCapability.
func (d NvmlDevice) GetCudaComputeCapability() (major, minor, code int) {
	var a, b C.int
	ret := C.raw_nvmlDeviceGetCudaComputeCapability(d.c(), &a, &b)
	return int(a), int(b), int(ret)
}

// NvmlMemory is a memory's size and use in bytes.
type NvmlMemory struct{ Total, Free, Used uint64 }

// GetMemoryInfo calls nvmlDeviceGetMemoryInfo, whose use includes what the driver keeps for itself.
func (d NvmlDevice) GetMemoryInfo() (NvmlMemory, int) {
	var m C.cp_nvml_memory
	code := C.raw_nvmlDeviceGetMemoryInfo(d.c(), &m)
	return NvmlMemory{uint64(m.total), uint64(m.free), uint64(m.used)}, int(code)
}

// GetBAR1MemoryInfo calls nvmlDeviceGetBAR1MemoryInfo.
func (d NvmlDevice) GetBAR1MemoryInfo() (NvmlMemory, int) {
	var m C.cp_nvml_bar1
	code := C.raw_nvmlDeviceGetBAR1MemoryInfo(d.c(), &m)
	return NvmlMemory{uint64(m.total), uint64(m.free), uint64(m.used)}, int(code)
}

// GetCurrPcieLinkGeneration calls nvmlDeviceGetCurrPcieLinkGeneration.
func (d NvmlDevice) GetCurrPcieLinkGeneration() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetCurrPcieLinkGeneration(d.c(), &v)
	return int(v), int(code)
}

// GetCurrPcieLinkWidth calls nvmlDeviceGetCurrPcieLinkWidth.
func (d NvmlDevice) GetCurrPcieLinkWidth() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetCurrPcieLinkWidth(d.c(), &v)
	return int(v), int(code)
}

// GetMaxPcieLinkGeneration calls nvmlDeviceGetMaxPcieLinkGeneration.
func (d NvmlDevice) GetMaxPcieLinkGeneration() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetMaxPcieLinkGeneration(d.c(), &v)
	return int(v), int(code)
}

// GetMaxPcieLinkWidth calls nvmlDeviceGetMaxPcieLinkWidth.
func (d NvmlDevice) GetMaxPcieLinkWidth() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetMaxPcieLinkWidth(d.c(), &v)
	return int(v), int(code)
}

// GetGpuMaxPcieLinkGeneration calls nvmlDeviceGetGpuMaxPcieLinkGeneration.
func (d NvmlDevice) GetGpuMaxPcieLinkGeneration() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetGpuMaxPcieLinkGeneration(d.c(), &v)
	return int(v), int(code)
}

// GetPcieReplayCounter calls nvmlDeviceGetPcieReplayCounter.
func (d NvmlDevice) GetPcieReplayCounter() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetPcieReplayCounter(d.c(), &v)
	return int(v), int(code)
}

// GetEccMode calls nvmlDeviceGetEccMode.
func (d NvmlDevice) GetEccMode() (now, pending, code int) {
	var a, b C.int
	ret := C.raw_nvmlDeviceGetEccMode(d.c(), &a, &b)
	return int(a), int(b), int(ret)
}

// GetTotalEccErrors calls nvmlDeviceGetTotalEccErrors.
func (d NvmlDevice) GetTotalEccErrors(kind, since int) (uint64, int) {
	var n C.ulonglong
	code := C.raw_nvmlDeviceGetTotalEccErrors(d.c(), C.int(kind), C.int(since), &n)
	return uint64(n), int(code)
}

// GetRetiredPages calls nvmlDeviceGetRetiredPages with room for the addresses, at least one, and returns how many there are; with
// NvmlInsufficientSize there may be more.
func (d NvmlDevice) GetRetiredPages(cause int, pages []uint64) (int, int) {
	n := C.uint(len(pages))
	code := C.raw_nvmlDeviceGetRetiredPages(d.c(), C.int(cause), &n, (*C.ulonglong)(unsafe.Pointer(&pages[0])))
	return int(n), int(code)
}

// GetRetiredPagesPendingStatus calls nvmlDeviceGetRetiredPagesPendingStatus.
func (d NvmlDevice) GetRetiredPagesPendingStatus() (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetRetiredPagesPendingStatus(d.c(), &v)
	return int(v), int(code)
}

// GetRemappedRows calls nvmlDeviceGetRemappedRows: corrected, uncorrected, pending, failure.
func (d NvmlDevice) GetRemappedRows() ([4]uint32, int) {
	var v [4]C.uint
	code := C.raw_nvmlDeviceGetRemappedRows(d.c(), &v[0])
	return [4]uint32{uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[3])}, int(code)
}

// GetCurrentClocksEventReasons calls nvmlDeviceGetCurrentClocksEventReasons or, as it was called, nvmlDeviceGetCurrentClocksThrottleReasons.
func (d NvmlDevice) GetCurrentClocksEventReasons() (uint64, int) {
	var mask C.ulonglong
	code := C.raw_nvmlDeviceGetCurrentClocksEventReasons(d.c(), &mask)
	return uint64(mask), int(code)
}

// GetTemperature calls nvmlDeviceGetTemperature for the sensor on the die, in °C.
func (d NvmlDevice) GetTemperature() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetTemperature(d.c(), &v)
	return int(v), int(code)
}

// GetPowerUsage calls nvmlDeviceGetPowerUsage, in milliwatts.
func (d NvmlDevice) GetPowerUsage() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetPowerUsage(d.c(), &v)
	return int(v), int(code)
}

// GetEnforcedPowerLimit calls nvmlDeviceGetEnforcedPowerLimit, in milliwatts.
func (d NvmlDevice) GetEnforcedPowerLimit() (int, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetEnforcedPowerLimit(d.c(), &v)
	return int(v), int(code)
}

// GetPersistenceMode calls nvmlDeviceGetPersistenceMode.
func (d NvmlDevice) GetPersistenceMode() (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetPersistenceMode(d.c(), &v)
	return int(v), int(code)
}

// GetComputeMode calls nvmlDeviceGetComputeMode.
func (d NvmlDevice) GetComputeMode() (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetComputeMode(d.c(), &v)
	return int(v), int(code)
}

// GetMigMode calls nvmlDeviceGetMigMode.
func (d NvmlDevice) GetMigMode() (now, pending, code int) {
	var a, b C.uint
	ret := C.raw_nvmlDeviceGetMigMode(d.c(), &a, &b)
	return int(a), int(b), int(ret)
}

// GetCpuAffinity calls nvmlDeviceGetCpuAffinity for as many CPUs as the words, at least one, have bits.
func (d NvmlDevice) GetCpuAffinity(words []uint) int {
	return int(C.raw_nvmlDeviceGetCpuAffinity(d.c(), C.uint(len(words)), (*C.ulong)(unsafe.Pointer(&words[0]))))
}

// NvmlProcess has memory on a device. UsedBytes is all ones where the driver does not tell.
type NvmlProcess struct {
	PID       uint32
	UsedBytes uint64
}

// GetComputeRunningProcesses calls nvmlDeviceGetComputeRunningProcesses_v3, _v2 or the first form with the given room, at least one. It returns those that
// fit and how many there are; with NvmlInsufficientSize there may be more.
func (d NvmlDevice) GetComputeRunningProcesses(room int) ([]NvmlProcess, int, int) {
	buf := make([]C.cp_nvml_process, room)
	n := C.uint(room)
	code := C.raw_nvmlDeviceGetComputeRunningProcesses(d.c(), &n, &buf[0])
	var out []NvmlProcess
	if code == NvmlSuccess {
		for _, p := range buf[:min(int(n), room)] {
			out = append(out, NvmlProcess{uint32(p.pid), uint64(p.used)})
		}
	}
	return out, int(n), int(code)
}

// GetFieldValue calls nvmlDeviceGetFieldValues for one field that is an unsigned int. The code is the call's or the field's.
func (d NvmlDevice) GetFieldValue(field int) (uint32, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetFieldValues(d.c(), C.uint(field), &v)
	return uint32(v), int(code)
}

// GetNvLinkState calls nvmlDeviceGetNvLinkState.
func (d NvmlDevice) GetNvLinkState(link int) (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetNvLinkState(d.c(), C.uint(link), &v)
	return int(v), int(code)
}

// GetNvLinkVersion calls nvmlDeviceGetNvLinkVersion.
func (d NvmlDevice) GetNvLinkVersion(link int) (uint32, int) {
	var v C.uint
	code := C.raw_nvmlDeviceGetNvLinkVersion(d.c(), C.uint(link), &v)
	return uint32(v), int(code)
}

// GetNvLinkRemotePciInfo calls nvmlDeviceGetNvLinkRemotePciInfo_v2 or the first form for the bus id.
func (d NvmlDevice) GetNvLinkRemotePciInfo(link int) (string, int) {
	var buf [C.CP_NVML_BUS_ID_BYTES + 1]C.char
	code := C.raw_nvmlDeviceGetNvLinkRemotePciInfo(d.c(), C.uint(link), &buf[0])
	return C.GoString(&buf[0]), int(code)
}

// GetNvLinkRemoteDeviceType calls nvmlDeviceGetNvLinkRemoteDeviceType.
func (d NvmlDevice) GetNvLinkRemoteDeviceType(link int) (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetNvLinkRemoteDeviceType(d.c(), C.uint(link), &v)
	return int(v), int(code)
}

// GetNvLinkErrorCounter calls nvmlDeviceGetNvLinkErrorCounter.
func (d NvmlDevice) GetNvLinkErrorCounter(link, counter int) (uint64, int) {
	var n C.ulonglong
	code := C.raw_nvmlDeviceGetNvLinkErrorCounter(d.c(), C.uint(link), C.int(counter), &n)
	return uint64(n), int(code)
}

// NvmlFabric is nvmlGpuFabricInfo_v2_t. The first form has no Health.
type NvmlFabric struct {
	Cluster        [C.CP_NVML_CLUSTER_BYTES]byte
	Status, Clique uint32
	State          uint8
	Health         uint32
}

func newFabric(f *C.cp_nvml_fabric_v2) NvmlFabric {
	out := NvmlFabric{Status: uint32(f.status), Clique: uint32(f.clique), State: uint8(f.state), Health: uint32(f.health)}
	for i, b := range f.cluster {
		out.Cluster[i] = byte(b)
	}
	return out
}

// GetGpuFabricInfoV calls nvmlDeviceGetGpuFabricInfoV with version 2 of its struct. NvmlArgumentVersionMismatch: the library does not know that.
func (d NvmlDevice) GetGpuFabricInfoV() (NvmlFabric, int) {
	var f C.cp_nvml_fabric_v2
	code := C.raw_nvmlDeviceGetGpuFabricInfoV(d.c(), &f)
	return newFabric(&f), int(code)
}

// GetGpuFabricInfo calls nvmlDeviceGetGpuFabricInfo.
func (d NvmlDevice) GetGpuFabricInfo() (NvmlFabric, int) {
	var f C.cp_nvml_fabric_v2
	code := C.raw_nvmlDeviceGetGpuFabricInfo(d.c(), &f)
	return newFabric(&f), int(code)
}

// GetTopologyCommonAncestor calls nvmlDeviceGetTopologyCommonAncestor.
func (d NvmlDevice) GetTopologyCommonAncestor(other NvmlDevice) (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetTopologyCommonAncestor(d.c(), other.c(), &v)
	return int(v), int(code)
}

// GetP2PStatus calls nvmlDeviceGetP2PStatus.
func (d NvmlDevice) GetP2PStatus(other NvmlDevice, capability int) (int, int) {
	var v C.int
	code := C.raw_nvmlDeviceGetP2PStatus(d.c(), other.c(), C.int(capability), &v)
	return int(v), int(code)
}
