// An NVML library of a machine with two GPUs and an NVSwitch, for tests. It is written in the words of NVIDIA's nvml.h: with VENDOR it is built against that
// header, so that the layouts are NVIDIA's own, and otherwise against ours.h. What it does differently comes from the environment:
//   FAKE_NVML_INIT   nvmlInit answers this code
//   FAKE_NVML_GPUS   how many GPUs there are, 2 unless set
//   FAKE_NVML_FAIL   "nvmlDeviceGetName=3,nvmlDeviceGetNvLinkState=4": these answer this code
//   FAKE_NVML_LOST   this GPU's handle cannot be had: 15, the GPU is lost
//   FAKE_NVML_HANG   nvmlInit never returns
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef VENDOR
#include <nvml.h>
#define HANDLE(d) ((d).handle) // the copy of the header that can be had wraps the pointer
#else
#include "ours.h"
#define HANDLE(d) (d)
#endif

static int env(const char *name, int otherwise) {
  const char *v = getenv(name);
  return v != NULL && *v != 0 ? atoi(v) : otherwise;
}

static nvmlReturn_t fails(const char *name) {
  size_t n = strlen(name);
  for (const char *at = getenv("FAKE_NVML_FAIL"); at != NULL && *at != 0;) {
    if (strncmp(at, name, n) == 0 && at[n] == '=') return atoi(at + n + 1);
    at = strchr(at, ',');
    if (at != NULL) at++;
  }
  return NVML_SUCCESS;
}

// FN begins a function that may be told to fail.
#define FN(name, ...)                       \
  nvmlReturn_t name(__VA_ARGS__) {          \
    nvmlReturn_t code = fails(#name);       \
    if (code != NVML_SUCCESS) return code;

#define END            \
  return NVML_SUCCESS; \
  }

static long index_of(nvmlDevice_t d) { return (long)HANDLE(d) - 1; }

static nvmlReturn_t init(void) {
  if (env("FAKE_NVML_HANG", 0)) pause();
  return env("FAKE_NVML_INIT", 0);
}
nvmlReturn_t nvmlInit_v2(void) { return init(); }
nvmlReturn_t nvmlInit(void) { return init(); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

static void text(char *to, unsigned int n, const char *s) {
  strncpy(to, s, n);
  to[n - 1] = 0;
}

FN(nvmlSystemGetNVMLVersion, char *s, unsigned int n) text(s, n, "12.580.65.06"); END
FN(nvmlSystemGetDriverVersion, char *s, unsigned int n) text(s, n, "580.65.06"); END
FN(nvmlSystemGetCudaDriverVersion, int *v) *v = 12090; END
FN(nvmlSystemGetCudaDriverVersion_v2, int *v) *v = 13000; END
FN(nvmlDeviceGetCount_v2, unsigned int *n) *n = env("FAKE_NVML_GPUS", 2); END
nvmlReturn_t nvmlDeviceGetCount(unsigned int *n) { return nvmlDeviceGetCount_v2(n); }

FN(nvmlDeviceGetHandleByIndex_v2, unsigned int i, nvmlDevice_t *d)
  if ((int)i == env("FAKE_NVML_LOST", -1)) return NVML_ERROR_GPU_IS_LOST;
  HANDLE(*d) = (void *)((long)i + 1);
END
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int i, nvmlDevice_t *d) { return nvmlDeviceGetHandleByIndex_v2(i, d); }

FN(nvmlDeviceGetName, nvmlDevice_t d, char *s, unsigned int n) text(s, n, "Fake H100"); END
FN(nvmlDeviceGetUUID, nvmlDevice_t d, char *s, unsigned int n) text(s, n, index_of(d) ? "GPU-b" : "GPU-a"); END
FN(nvmlDeviceGetPciInfo_v3, nvmlDevice_t d, nvmlPciInfo_t *p)
  memset(p, 0, sizeof *p);
  text(p->busId, sizeof p->busId, index_of(d) ? "00000009:2D:00.0" : "00000000:0F:00.0");
END
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_t *p) { return nvmlDeviceGetPciInfo_v3(d, p); }
// The oldest form knows the first member only, and does not touch what comes after.
FN(nvmlDeviceGetPciInfo, nvmlDevice_t d, nvmlPciInfo_t *p) text(p->busIdLegacy, sizeof p->busIdLegacy, index_of(d) ? "0009:2D:00.0" : "0000:0F:00.0"); END
FN(nvmlDeviceGetMinorNumber, nvmlDevice_t d, unsigned int *n) *n = index_of(d); END
FN(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t d, int *major, int *minor) *major = 9; *minor = 0; END
FN(nvmlDeviceGetMemoryInfo, nvmlDevice_t d, nvmlMemory_t *m) *m = (nvmlMemory_t){.total = 80ull << 30, .free = 79ull << 30, .used = 1ull << 30}; END
FN(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t d, nvmlBAR1Memory_t *m) *m = (nvmlBAR1Memory_t){.bar1Total = 128ull << 30, .bar1Free = 127ull << 30, .bar1Used = 1ull << 30}; END
FN(nvmlDeviceGetCurrPcieLinkGeneration, nvmlDevice_t d, unsigned int *n) *n = 1; END
FN(nvmlDeviceGetCurrPcieLinkWidth, nvmlDevice_t d, unsigned int *n) *n = 16; END
FN(nvmlDeviceGetMaxPcieLinkGeneration, nvmlDevice_t d, unsigned int *n) *n = 5; END
FN(nvmlDeviceGetMaxPcieLinkWidth, nvmlDevice_t d, unsigned int *n) *n = 16; END
FN(nvmlDeviceGetGpuMaxPcieLinkGeneration, nvmlDevice_t d, unsigned int *n) *n = 5; END
FN(nvmlDeviceGetPcieReplayCounter, nvmlDevice_t d, unsigned int *n) *n = 7; END
FN(nvmlDeviceGetEccMode, nvmlDevice_t d, nvmlEnableState_t *now, nvmlEnableState_t *next) *now = NVML_FEATURE_ENABLED; *next = NVML_FEATURE_DISABLED; END
FN(nvmlDeviceGetTotalEccErrors, nvmlDevice_t d, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t since, unsigned long long *n) *n = 10 * kind + since; END
FN(nvmlDeviceGetRetiredPages, nvmlDevice_t d, nvmlPageRetirementCause_t cause, unsigned int *n, unsigned long long *pages)
  if (*n < 3) {
    *n = 3;
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  *n = 3;
END
FN(nvmlDeviceGetRetiredPagesPendingStatus, nvmlDevice_t d, nvmlEnableState_t *s) *s = NVML_FEATURE_DISABLED; END
FN(nvmlDeviceGetRemappedRows, nvmlDevice_t d, unsigned int *c, unsigned int *u, unsigned int *pending, unsigned int *failure) *c = 1; *u = 2; *pending = 1; *failure = 0; END
FN(nvmlDeviceGetCurrentClocksEventReasons, nvmlDevice_t d, unsigned long long *r) *r = 1; END
FN(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDevice_t d, unsigned long long *r) *r = 4; END
FN(nvmlDeviceGetTemperature, nvmlDevice_t d, nvmlTemperatureSensors_t s, unsigned int *t) *t = 31; END
FN(nvmlDeviceGetPowerUsage, nvmlDevice_t d, unsigned int *p) *p = 70000; END
FN(nvmlDeviceGetEnforcedPowerLimit, nvmlDevice_t d, unsigned int *p) *p = 700000; END
FN(nvmlDeviceGetPersistenceMode, nvmlDevice_t d, nvmlEnableState_t *s) *s = NVML_FEATURE_ENABLED; END
FN(nvmlDeviceGetComputeMode, nvmlDevice_t d, nvmlComputeMode_t *m) *m = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS; END
FN(nvmlDeviceGetMigMode, nvmlDevice_t d, unsigned int *now, unsigned int *next) *now = *next = 0; END
FN(nvmlDeviceGetCpuAffinity, nvmlDevice_t d, unsigned int n, unsigned long *set)
  memset(set, 0, n * sizeof *set);
  set[0] = index_of(d) ? 0xff00 : 0x00ff;
  set[1] = 1;
END
FN(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *p)
  unsigned int have = *n;
  *n = 2;
  if (have < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
  memset(p, 0, 2 * sizeof *p);
  p[0].pid = 100;
  p[0].usedGpuMemory = 5;
  p[1].pid = 200;
  p[1].usedGpuMemory = ~0ull;
END
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *p) { return nvmlDeviceGetComputeRunningProcesses_v3(d, n, p); }
FN(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *p)
  unsigned int have = *n;
  *n = 3;
  if (have < 3) return NVML_ERROR_INSUFFICIENT_SIZE;
  p[0] = (nvmlProcessInfo_v1_t){.pid = 300, .usedGpuMemory = 7};
  p[1] = (nvmlProcessInfo_v1_t){.pid = 400, .usedGpuMemory = ~0ull};
  p[2] = (nvmlProcessInfo_v1_t){.pid = 500, .usedGpuMemory = 9};
END
FN(nvmlDeviceGetFieldValues, nvmlDevice_t d, int n, nvmlFieldValue_t *v)
  for (int i = 0; i < n; i++) {
    v[i].nvmlReturn = v[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    v[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    v[i].value.uiVal = index_of(d) ? 1 : 0;
  }
END

// Four links: three up, to a switch that is seen, to one that is hidden, to the other GPU; and one that is down.
FN(nvmlDeviceGetNvLinkState, nvmlDevice_t d, unsigned int l, nvmlEnableState_t *s)
  if (l > 3) return NVML_ERROR_INVALID_ARGUMENT;
  *s = l < 3 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
END
FN(nvmlDeviceGetNvLinkVersion, nvmlDevice_t d, unsigned int l, unsigned int *v) *v = NVML_NVLINK_VERSION_4_0; END
FN(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDevice_t d, unsigned int l, nvmlPciInfo_t *p)
  memset(p, 0, sizeof *p);
  text(p->busId, sizeof p->busId, l == 1 ? "FFFFFFFF:FFFF:FF.F" : l == 2 ? "00000009:2D:00.0" : "00000000:C4:00.0");
END
FN(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDevice_t d, unsigned int l, nvmlPciInfo_t *p) text(p->busIdLegacy, sizeof p->busIdLegacy, "0000:C5:00.0"); END
FN(nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDevice_t d, unsigned int l, nvmlIntNvLinkDeviceType_t *t) *t = l == 2 ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH; END
FN(nvmlDeviceGetNvLinkErrorCounter, nvmlDevice_t d, unsigned int l, nvmlNvLinkErrorCounter_t c, unsigned long long *n)
  if (c == NVML_NVLINK_ERROR_DL_CRC_DATA) return NVML_ERROR_NOT_SUPPORTED;
  *n = 10 * l + c;
END
FN(nvmlDeviceGetGpuFabricInfoV, nvmlDevice_t d, nvmlGpuFabricInfoV_t *f)
  if (f->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  f->clusterUuid[0] = 0xab;
  f->status = 0;
  f->cliqueId = 4;
  f->state = NVML_GPU_FABRIC_STATE_COMPLETED;
  f->healthMask = 0x1;
END
FN(nvmlDeviceGetGpuFabricInfo, nvmlDevice_t d, nvmlGpuFabricInfo_t *f)
  memset(f, 0, sizeof *f);
  f->state = NVML_GPU_FABRIC_STATE_IN_PROGRESS;
END
FN(nvmlDeviceGetTopologyCommonAncestor, nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *l) *l = NVML_TOPOLOGY_SYSTEM; END
FN(nvmlDeviceGetP2PStatus, nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t i, nvmlGpuP2PStatus_t *s) *s = i == NVML_P2P_CAPS_INDEX_ATOMICS ? NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED : NVML_P2P_STATUS_OK; END
