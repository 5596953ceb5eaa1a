// Compares nvml_abi.h with NVIDIA's nvml.h. Compiled by nvml_abi_test.go, never run. WANT_VERSION, from the command line, is the API version that
// nvml.h must have.
#define NVML_NO_UNVERSIONED_FUNC_DEFS // or the header renames the oldest form of a function to the newest
#include <nvml.h>
#include "abi_check.h"
#include "nvml_abi.h"

VALUE(WANT_VERSION, NVML_API_VERSION);

// NVIDIA's handle is a pointer. The copy of the header that is used here wraps it in a struct, which is passed as the pointer alone is (System V's ABI for
// x86-64, Arm's AAPCS64).
_Static_assert(sizeof(cp_nvml_device) == sizeof(nvmlDevice_t), "nvmlDevice_t: size differs");
_Static_assert(__builtin_classify_type(((nvmlDevice_t *)0)->handle) == 5, "nvmlDevice_t: not a pointer");
CP_PAIR(cp_nvml_device, nvmlDevice_t);

INTEGER(int, nvmlReturn_t);
INTEGER(int, nvmlEnableState_t);
INTEGER(int, nvmlMemoryErrorType_t);
INTEGER(int, nvmlEccCounterType_t);
INTEGER(int, nvmlPageRetirementCause_t);
INTEGER(int, nvmlTemperatureSensors_t);
INTEGER(int, nvmlComputeMode_t);
INTEGER(int, nvmlNvLinkErrorCounter_t);
INTEGER(int, nvmlIntNvLinkDeviceType_t);
INTEGER(int, nvmlGpuTopologyLevel_t);
INTEGER(int, nvmlGpuP2PCapsIndex_t);
INTEGER(int, nvmlGpuP2PStatus_t);

VALUE(CP_NVML_SUCCESS, NVML_SUCCESS);
VALUE(CP_NVML_INVALID_ARGUMENT, NVML_ERROR_INVALID_ARGUMENT);
VALUE(CP_NVML_NOT_SUPPORTED, NVML_ERROR_NOT_SUPPORTED);
VALUE(CP_NVML_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
VALUE(CP_NVML_DRIVER_NOT_LOADED, NVML_ERROR_DRIVER_NOT_LOADED);
VALUE(CP_NVML_LIBRARY_NOT_FOUND, NVML_ERROR_LIBRARY_NOT_FOUND);
VALUE(CP_NVML_VERSION_MISMATCH, NVML_ERROR_LIB_RM_VERSION_MISMATCH);
VALUE(CP_NVML_ARGUMENT_VERSION_MISMATCH, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);

VALUE(CP_NVML_BUS_ID_BYTES, NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE);
VALUE(CP_NVML_BUS_ID_LEGACY_BYTES, NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE);
VALUE(CP_NVML_VERSION_BYTES, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
VALUE(CP_NVML_VERSION_BYTES, NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE);
VALUE(CP_NVML_NAME_BYTES, NVML_DEVICE_NAME_V2_BUFFER_SIZE);
VALUE(CP_NVML_UUID_BYTES, NVML_DEVICE_UUID_V2_BUFFER_SIZE);
VALUE(CP_NVML_CLUSTER_BYTES, NVML_GPU_FABRIC_UUID_LEN);
VALUE(CP_NVML_MAX_LINKS, NVML_NVLINK_MAX_LINKS);

VALUE(CP_NVML_DISABLED, NVML_FEATURE_DISABLED);
VALUE(CP_NVML_ENABLED, NVML_FEATURE_ENABLED);
VALUE(CP_NVML_CORRECTED, NVML_MEMORY_ERROR_TYPE_CORRECTED);
VALUE(CP_NVML_UNCORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
VALUE(CP_NVML_VOLATILE, NVML_VOLATILE_ECC);
VALUE(CP_NVML_AGGREGATE, NVML_AGGREGATE_ECC);
VALUE(CP_NVML_RETIRED_SINGLE_BIT, NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS);
VALUE(CP_NVML_RETIRED_DOUBLE_BIT, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR);
VALUE(CP_NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_GPU);
VALUE(CP_NVML_MIG_ON, NVML_DEVICE_MIG_ENABLE);
VALUE(CP_NVML_FIELD_RECOVERY_ACTION, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
VALUE(CP_NVML_LINK_REPLAY, NVML_NVLINK_ERROR_DL_REPLAY);
VALUE(CP_NVML_LINK_RECOVERY, NVML_NVLINK_ERROR_DL_RECOVERY);
VALUE(CP_NVML_LINK_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_FLIT);
VALUE(CP_NVML_LINK_CRC_DATA, NVML_NVLINK_ERROR_DL_CRC_DATA);
VALUE(CP_NVML_REMOTE_GPU, NVML_NVLINK_DEVICE_TYPE_GPU);
VALUE(CP_NVML_REMOTE_CPU, NVML_NVLINK_DEVICE_TYPE_IBMNPU);
VALUE(CP_NVML_REMOTE_SWITCH, NVML_NVLINK_DEVICE_TYPE_SWITCH);
VALUE(CP_NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_INTERNAL);
VALUE(CP_NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_SINGLE);
VALUE(CP_NVML_TOPOLOGY_MULTIPLE, NVML_TOPOLOGY_MULTIPLE);
VALUE(CP_NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_HOSTBRIDGE);
VALUE(CP_NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_NODE);
VALUE(CP_NVML_TOPOLOGY_SYSTEM, NVML_TOPOLOGY_SYSTEM);

// ---- structs ----

// Place, size and kind; a sign is not seen, because an enum of the vendor's is an int of ours.
#define FIELD(ours, field, theirs, name) \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, name), #ours "." #field ": offset differs"); \
  _Static_assert(sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->name), #ours "." #field ": size differs"); \
  _Static_assert(__builtin_classify_type(((ours *)0)->field) == __builtin_classify_type(((theirs *)0)->name), #ours "." #field ": kind differs")

STRUCT(cp_nvml_pci, nvmlPciInfo_t);
FIELD(cp_nvml_pci, bus_id_legacy, nvmlPciInfo_t, busIdLegacy);
FIELD(cp_nvml_pci, domain, nvmlPciInfo_t, domain);
FIELD(cp_nvml_pci, bus, nvmlPciInfo_t, bus);
FIELD(cp_nvml_pci, device, nvmlPciInfo_t, device);
FIELD(cp_nvml_pci, pci_device, nvmlPciInfo_t, pciDeviceId);
FIELD(cp_nvml_pci, pci_subsystem, nvmlPciInfo_t, pciSubSystemId);
FIELD(cp_nvml_pci, bus_id, nvmlPciInfo_t, busId);

STRUCT(cp_nvml_memory, nvmlMemory_t);
FIELD(cp_nvml_memory, total, nvmlMemory_t, total);
FIELD(cp_nvml_memory, free, nvmlMemory_t, free);
FIELD(cp_nvml_memory, used, nvmlMemory_t, used);

STRUCT(cp_nvml_bar1, nvmlBAR1Memory_t);
FIELD(cp_nvml_bar1, total, nvmlBAR1Memory_t, bar1Total);
FIELD(cp_nvml_bar1, free, nvmlBAR1Memory_t, bar1Free);
FIELD(cp_nvml_bar1, used, nvmlBAR1Memory_t, bar1Used);

STRUCT(cp_nvml_process_v1, nvmlProcessInfo_v1_t);
FIELD(cp_nvml_process_v1, pid, nvmlProcessInfo_v1_t, pid);
FIELD(cp_nvml_process_v1, used, nvmlProcessInfo_v1_t, usedGpuMemory);

STRUCT(cp_nvml_process, nvmlProcessInfo_v2_t);
STRUCT(cp_nvml_process, nvmlProcessInfo_t);
FIELD(cp_nvml_process, pid, nvmlProcessInfo_v2_t, pid);
FIELD(cp_nvml_process, used, nvmlProcessInfo_v2_t, usedGpuMemory);
FIELD(cp_nvml_process, gpu_instance, nvmlProcessInfo_v2_t, gpuInstanceId);
FIELD(cp_nvml_process, compute_instance, nvmlProcessInfo_v2_t, computeInstanceId);

STRUCT(cp_nvml_value, nvmlValue_t);
FIELD(cp_nvml_value, d, nvmlValue_t, dVal);
FIELD(cp_nvml_value, i, nvmlValue_t, siVal);
FIELD(cp_nvml_value, u, nvmlValue_t, uiVal);
FIELD(cp_nvml_value, ul, nvmlValue_t, ulVal);
FIELD(cp_nvml_value, ull, nvmlValue_t, ullVal);
FIELD(cp_nvml_value, ll, nvmlValue_t, sllVal);
FIELD(cp_nvml_value, us, nvmlValue_t, usVal);

STRUCT(cp_nvml_field, nvmlFieldValue_t);
FIELD(cp_nvml_field, field, nvmlFieldValue_t, fieldId);
FIELD(cp_nvml_field, scope, nvmlFieldValue_t, scopeId);
FIELD(cp_nvml_field, timestamp, nvmlFieldValue_t, timestamp);
FIELD(cp_nvml_field, latency, nvmlFieldValue_t, latencyUsec);
FIELD(cp_nvml_field, type, nvmlFieldValue_t, valueType);
FIELD(cp_nvml_field, code, nvmlFieldValue_t, nvmlReturn);
FIELD(cp_nvml_field, value, nvmlFieldValue_t, value);

STRUCT(cp_nvml_fabric_v1, nvmlGpuFabricInfo_t);
FIELD(cp_nvml_fabric_v1, cluster, nvmlGpuFabricInfo_t, clusterUuid);
FIELD(cp_nvml_fabric_v1, status, nvmlGpuFabricInfo_t, status);
FIELD(cp_nvml_fabric_v1, clique, nvmlGpuFabricInfo_t, cliqueId);
FIELD(cp_nvml_fabric_v1, state, nvmlGpuFabricInfo_t, state);

STRUCT(cp_nvml_fabric_v2, nvmlGpuFabricInfo_v2_t);
FIELD(cp_nvml_fabric_v2, version, nvmlGpuFabricInfo_v2_t, version);
FIELD(cp_nvml_fabric_v2, cluster, nvmlGpuFabricInfo_v2_t, clusterUuid);
FIELD(cp_nvml_fabric_v2, status, nvmlGpuFabricInfo_v2_t, status);
FIELD(cp_nvml_fabric_v2, clique, nvmlGpuFabricInfo_v2_t, cliqueId);
FIELD(cp_nvml_fabric_v2, state, nvmlGpuFabricInfo_v2_t, state);
FIELD(cp_nvml_fabric_v2, health, nvmlGpuFabricInfo_v2_t, healthMask);
VALUE(CP_NVML_FABRIC_V2, nvmlGpuFabricInfo_v2);
// The call's prototype has the newest struct; the version word says which one it really gets.
CP_PAIR(cp_nvml_fabric_v2, nvmlGpuFabricInfoV_t);

CP_NVML_FUNCS(OUR_INT)
