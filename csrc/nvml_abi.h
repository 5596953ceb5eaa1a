// The ABI of NVML, NVIDIA's management library, as far as this program calls it. It follows abi.h: declared in our own words from the documented
// interface; one X-macro list declares the table, fills it (load.c) and makes one inline caller each; a null entry answers CP_MISSING.
// nvml_abi_test.go compares every value, size, offset and prototype below with NVIDIA's own header.
#ifndef CP_NVML_ABI_H
#define CP_NVML_ABI_H

#include "abi.h"

// ---- types ----

typedef void *cp_nvml_device; // nvmlDevice_t

enum { // nvmlReturn_t, only what this program tells apart
  CP_NVML_SUCCESS = 0,
  CP_NVML_INVALID_ARGUMENT = 2,
  CP_NVML_NOT_SUPPORTED = 3,
  CP_NVML_INSUFFICIENT_SIZE = 7,
  CP_NVML_DRIVER_NOT_LOADED = 9,
  CP_NVML_LIBRARY_NOT_FOUND = 12,
  CP_NVML_VERSION_MISMATCH = 18,          // driver and library
  CP_NVML_ARGUMENT_VERSION_MISMATCH = 25, // version word of a struct
};

enum { // sizes and limits
  CP_NVML_BUS_ID_BYTES = 32,
  CP_NVML_BUS_ID_LEGACY_BYTES = 16,
  CP_NVML_VERSION_BYTES = 80, // of the driver's and the library's version
  CP_NVML_NAME_BYTES = 96,
  CP_NVML_UUID_BYTES = 96,
  CP_NVML_CLUSTER_BYTES = 16,
  CP_NVML_MAX_LINKS = 36,
};

enum { // arguments and answers
  CP_NVML_DISABLED = 0, // nvmlEnableState_t
  CP_NVML_ENABLED = 1,
  CP_NVML_CORRECTED = 0, // nvmlMemoryErrorType_t
  CP_NVML_UNCORRECTED = 1,
  CP_NVML_VOLATILE = 0, // nvmlEccCounterType_t
  CP_NVML_AGGREGATE = 1,
  CP_NVML_RETIRED_SINGLE_BIT = 0, // nvmlPageRetirementCause_t
  CP_NVML_RETIRED_DOUBLE_BIT = 1,
  CP_NVML_TEMPERATURE_GPU = 0, // nvmlTemperatureSensors_t
  CP_NVML_MIG_ON = 1,
  CP_NVML_FIELD_RECOVERY_ACTION = 230, // driver 570
  CP_NVML_LINK_REPLAY = 0,             // nvmlNvLinkErrorCounter_t
  CP_NVML_LINK_RECOVERY = 1,
  CP_NVML_LINK_CRC_FLIT = 2,
  CP_NVML_LINK_CRC_DATA = 3,
  CP_NVML_REMOTE_GPU = 0, // nvmlIntNvLinkDeviceType_t
  CP_NVML_REMOTE_CPU = 1,
  CP_NVML_REMOTE_SWITCH = 2,
  CP_NVML_TOPOLOGY_INTERNAL = 0, // nvmlGpuTopologyLevel_t
  CP_NVML_TOPOLOGY_SINGLE = 10,
  CP_NVML_TOPOLOGY_MULTIPLE = 20,
  CP_NVML_TOPOLOGY_HOSTBRIDGE = 30,
  CP_NVML_TOPOLOGY_NODE = 40,
  CP_NVML_TOPOLOGY_SYSTEM = 50,
};

typedef struct { // nvmlPciInfo_t; the oldest form of the call fills the first members only
  char bus_id_legacy[CP_NVML_BUS_ID_LEGACY_BYTES];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device;
  unsigned pci_subsystem;
  char bus_id[CP_NVML_BUS_ID_BYTES];
} cp_nvml_pci;

typedef struct { // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} cp_nvml_memory;

typedef struct { // nvmlBAR1Memory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} cp_nvml_bar1;

typedef struct { // nvmlProcessInfo_v1_t, of the call without a version
  unsigned pid;
  unsigned long long used;
} cp_nvml_process_v1;

typedef struct { // nvmlProcessInfo_v2_t, which the third version of the call takes as well
  unsigned pid;
  unsigned long long used; // all ones where the driver does not tell
  unsigned gpu_instance;
  unsigned compute_instance;
} cp_nvml_process;

typedef union { // nvmlValue_t
  double d;
  int i;
  unsigned u;
  unsigned long ul;
  unsigned long long ull;
  signed long long ll;
  unsigned short us;
} cp_nvml_value;

typedef struct { // nvmlFieldValue_t
  unsigned field;
  unsigned scope;
  long long timestamp;
  long long latency;
  int type;
  int code; // of this field alone
  cp_nvml_value value;
} cp_nvml_field;

typedef struct { // nvmlGpuFabricInfo_t
  unsigned char cluster[CP_NVML_CLUSTER_BYTES];
  int status;
  unsigned clique;
  unsigned char state;
} cp_nvml_fabric_v1;

typedef struct { // nvmlGpuFabricInfo_v2_t
  unsigned version;
  unsigned char cluster[CP_NVML_CLUSTER_BYTES];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
} cp_nvml_fabric_v2;

// The version word says the struct's size and its version in the top byte; a library that does not know it answers ARGUMENT_VERSION_MISMATCH.
#define CP_NVML_FABRIC_V2 ((unsigned)sizeof(cp_nvml_fabric_v2) | 2u << 24)

// X(name, parameters, arguments): every function returns nvmlReturn_t as int, and an enum that one takes or gives is an int. Where a function has several
// forms, a driver has the oldest up to its own newest.
#define CP_NVML_FUNCS(X) \
  X(nvmlInit_v2, (void), ()) \
  X(nvmlInit, (void), ()) \
  X(nvmlShutdown, (void), ()) \
  X(nvmlSystemGetNVMLVersion, (char *text, unsigned len), (text, len)) \
  X(nvmlSystemGetDriverVersion, (char *text, unsigned len), (text, len)) \
  X(nvmlSystemGetCudaDriverVersion_v2, (int *version), (version)) \
  X(nvmlSystemGetCudaDriverVersion, (int *version), (version)) \
  X(nvmlDeviceGetCount_v2, (unsigned *n), (n)) \
  X(nvmlDeviceGetCount, (unsigned *n), (n)) \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, cp_nvml_device *d), (index, d)) \
  X(nvmlDeviceGetHandleByIndex, (unsigned index, cp_nvml_device *d), (index, d)) \
  X(nvmlDeviceGetName, (cp_nvml_device d, char *text, unsigned len), (d, text, len)) \
  X(nvmlDeviceGetUUID, (cp_nvml_device d, char *text, unsigned len), (d, text, len)) \
  X(nvmlDeviceGetPciInfo_v3, (cp_nvml_device d, cp_nvml_pci *pci), (d, pci)) \
  X(nvmlDeviceGetPciInfo_v2, (cp_nvml_device d, cp_nvml_pci *pci), (d, pci)) \
  X(nvmlDeviceGetPciInfo, (cp_nvml_device d, cp_nvml_pci *pci), (d, pci)) \
  X(nvmlDeviceGetMinorNumber, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetCudaComputeCapability, (cp_nvml_device d, int *major, int *minor), (d, major, minor)) \
  X(nvmlDeviceGetMemoryInfo, (cp_nvml_device d, cp_nvml_memory *m), (d, m)) \
  X(nvmlDeviceGetBAR1MemoryInfo, (cp_nvml_device d, cp_nvml_bar1 *m), (d, m)) \
  X(nvmlDeviceGetCurrPcieLinkGeneration, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetCurrPcieLinkWidth, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetMaxPcieLinkGeneration, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetMaxPcieLinkWidth, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetGpuMaxPcieLinkGeneration, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetPcieReplayCounter, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetEccMode, (cp_nvml_device d, int *now, int *pending), (d, now, pending)) \
  X(nvmlDeviceGetTotalEccErrors, (cp_nvml_device d, int kind, int since, unsigned long long *n), (d, kind, since, n)) \
  X(nvmlDeviceGetRetiredPages, (cp_nvml_device d, int cause, unsigned *n, unsigned long long *pages), (d, cause, n, pages)) \
  X(nvmlDeviceGetRetiredPagesPendingStatus, (cp_nvml_device d, int *pending), (d, pending)) \
  X(nvmlDeviceGetRemappedRows, (cp_nvml_device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure), (d, corrected, uncorrected, pending, failure)) \
  X(nvmlDeviceGetCurrentClocksEventReasons, (cp_nvml_device d, unsigned long long *mask), (d, mask)) \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (cp_nvml_device d, unsigned long long *mask), (d, mask)) \
  X(nvmlDeviceGetTemperature, (cp_nvml_device d, int sensor, unsigned *v), (d, sensor, v)) \
  X(nvmlDeviceGetPowerUsage, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetEnforcedPowerLimit, (cp_nvml_device d, unsigned *v), (d, v)) \
  X(nvmlDeviceGetPersistenceMode, (cp_nvml_device d, int *on), (d, on)) \
  X(nvmlDeviceGetComputeMode, (cp_nvml_device d, int *mode), (d, mode)) \
  X(nvmlDeviceGetMigMode, (cp_nvml_device d, unsigned *now, unsigned *pending), (d, now, pending)) \
  X(nvmlDeviceGetCpuAffinity, (cp_nvml_device d, unsigned words, unsigned long *set), (d, words, set)) \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (cp_nvml_device d, unsigned *n, cp_nvml_process *p), (d, n, p)) \
  X(nvmlDeviceGetComputeRunningProcesses_v2, (cp_nvml_device d, unsigned *n, cp_nvml_process *p), (d, n, p)) \
  X(nvmlDeviceGetComputeRunningProcesses, (cp_nvml_device d, unsigned *n, cp_nvml_process_v1 *p), (d, n, p)) \
  X(nvmlDeviceGetFieldValues, (cp_nvml_device d, int n, cp_nvml_field *f), (d, n, f)) \
  X(nvmlDeviceGetNvLinkState, (cp_nvml_device d, unsigned link, int *on), (d, link, on)) \
  X(nvmlDeviceGetNvLinkVersion, (cp_nvml_device d, unsigned link, unsigned *v), (d, link, v)) \
  X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (cp_nvml_device d, unsigned link, cp_nvml_pci *pci), (d, link, pci)) \
  X(nvmlDeviceGetNvLinkRemotePciInfo, (cp_nvml_device d, unsigned link, cp_nvml_pci *pci), (d, link, pci)) \
  X(nvmlDeviceGetNvLinkRemoteDeviceType, (cp_nvml_device d, unsigned link, int *kind), (d, link, kind)) \
  X(nvmlDeviceGetNvLinkErrorCounter, (cp_nvml_device d, unsigned link, int counter, unsigned long long *n), (d, link, counter, n)) \
  X(nvmlDeviceGetGpuFabricInfoV, (cp_nvml_device d, cp_nvml_fabric_v2 *f), (d, f)) \
  X(nvmlDeviceGetGpuFabricInfo, (cp_nvml_device d, cp_nvml_fabric_v1 *f), (d, f)) \
  X(nvmlDeviceGetTopologyCommonAncestor, (cp_nvml_device a, cp_nvml_device b, int *level), (a, b, level)) \
  X(nvmlDeviceGetP2PStatus, (cp_nvml_device a, cp_nvml_device b, int capability, int *status), (a, b, capability, status))

// ---- table and callers ----

typedef struct { CP_NVML_FUNCS(CP_FIELD_INT) } cp_nvml_table;

// The table in force; as for those of abi.h.
extern cp_nvml_table cp_nvml;

#define CP_NVML_CALL(name, params, args) static inline int cp_##name params { return cp_nvml.name ? cp_nvml.name args : CP_MISSING; }
CP_NVML_FUNCS(CP_NVML_CALL)

#endif
