// The part of nvml.h that the stand-in needs, in terms of this program's own declarations, which csrc compares with NVIDIA's.
#include "nvml_abi.h"

typedef int nvmlReturn_t, nvmlEnableState_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlPageRetirementCause_t, nvmlTemperatureSensors_t;
typedef int nvmlComputeMode_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkErrorCounter_t, nvmlGpuTopologyLevel_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t;
typedef cp_nvml_device nvmlDevice_t;
typedef cp_nvml_pci nvmlPciInfo_t;
typedef cp_nvml_memory nvmlMemory_t;
typedef cp_nvml_bar1 nvmlBAR1Memory_t;
typedef cp_nvml_process_v1 nvmlProcessInfo_v1_t;
typedef cp_nvml_process nvmlProcessInfo_v2_t, nvmlProcessInfo_t;
typedef cp_nvml_field nvmlFieldValue_t;
typedef cp_nvml_fabric_v1 nvmlGpuFabricInfo_t;
typedef cp_nvml_fabric_v2 nvmlGpuFabricInfoV_t;

#define busIdLegacy bus_id_legacy
#define busId bus_id
#define bar1Total total
#define bar1Free free
#define bar1Used used
#define usedGpuMemory used
#define fieldId field
#define valueType type
#define nvmlReturn code
#define uiVal u
#define clusterUuid cluster
#define cliqueId clique
#define healthMask health
#define nvmlGpuFabricInfo_v2 CP_NVML_FABRIC_V2

enum {
  NVML_SUCCESS = CP_NVML_SUCCESS,
  NVML_ERROR_INVALID_ARGUMENT = CP_NVML_INVALID_ARGUMENT,
  NVML_ERROR_NOT_SUPPORTED = CP_NVML_NOT_SUPPORTED,
  NVML_ERROR_INSUFFICIENT_SIZE = CP_NVML_INSUFFICIENT_SIZE,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = CP_NVML_ARGUMENT_VERSION_MISMATCH,
  NVML_FEATURE_DISABLED = CP_NVML_DISABLED,
  NVML_FEATURE_ENABLED = CP_NVML_ENABLED,
  NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
  NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = CP_NVML_FIELD_RECOVERY_ACTION,
  NVML_VALUE_TYPE_UNSIGNED_INT = 1,
  NVML_NVLINK_VERSION_4_0 = 6,
  NVML_NVLINK_DEVICE_TYPE_GPU = CP_NVML_REMOTE_GPU,
  NVML_NVLINK_DEVICE_TYPE_SWITCH = CP_NVML_REMOTE_SWITCH,
  NVML_NVLINK_ERROR_DL_CRC_DATA = CP_NVML_LINK_CRC_DATA,
  NVML_GPU_FABRIC_STATE_IN_PROGRESS = 2,
  NVML_GPU_FABRIC_STATE_COMPLETED = 3,
  NVML_TOPOLOGY_SYSTEM = CP_NVML_TOPOLOGY_SYSTEM,
  NVML_P2P_CAPS_INDEX_ATOMICS = 3,
  NVML_P2P_STATUS_OK = 0,
  NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED = 3,
};

// A function of the stand-in that is not as the table has it does not compile.
#define PROTOTYPE(name, params, args) nvmlReturn_t name params;
CP_NVML_FUNCS(PROTOTYPE)
