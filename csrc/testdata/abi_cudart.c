// Compares the CUDA part of abi.h with one version of the runtime's and the driver's headers. Compiled by abi_test.go, never run.
//
// From the command line: WANT_VERSION, the version that the headers must have.
#include <cuda_runtime_api.h>
// cuda.h renames functions by macros (cuDeviceGetUuid means cuDeviceGetUuid_v2 from CUDA 13 on). We look up symbols, so we want to see every
// symbol under its own name: this macro of NVIDIA's ends the renaming.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include "abi_check.h"

VALUE(WANT_VERSION, CUDART_VERSION);
VALUE(WANT_VERSION, CUDA_VERSION);

HANDLE(cp_stream, cudaStream_t);
HANDLE(cp_event, cudaEvent_t);
HANDLE(cp_graph, cudaGraph_t);
HANDLE(cp_graph_exec, cudaGraphExec_t);
HANDLE(cp_stream, CUstream);
HANDLE(cp_module, CUmodule);
HANDLE(cp_function, CUfunction);
INTEGER(cp_device, CUdevice);
INTEGER(cp_device_ptr, CUdeviceptr);
INTEGER(int, CUdevice_attribute);
INTEGER(int, CUmemRangeHandleType);
INTEGER(int, cudaError_t);
INTEGER(int, CUresult);
INTEGER(int, enum cudaMemcpyKind);
INTEGER(int, enum cudaDeviceAttr);
INTEGER(int, enum cudaStreamCaptureMode);
STRUCT(cp_ipc_handle, cudaIpcMemHandle_t);
STRUCT(cp_ipc_handle, cudaIpcEventHandle_t);
STRUCT(cp_uuid, CUuuid);

VALUE(CP_CUDA_SUCCESS, cudaSuccess);
VALUE(CP_CUDA_INVALID_VALUE, cudaErrorInvalidValue);
VALUE(CP_CUDA_OUT_OF_MEMORY, cudaErrorMemoryAllocation);
VALUE(CP_CUDA_INITIALIZATION_ERROR, cudaErrorInitializationError);
VALUE(CP_CUDA_INSUFFICIENT_DRIVER, cudaErrorInsufficientDriver);
VALUE(CP_CUDA_NO_DEVICE, cudaErrorNoDevice);
VALUE(CP_CUDA_INVALID_DEVICE, cudaErrorInvalidDevice);
VALUE(CP_CUDA_INVALID_RESOURCE_HANDLE, cudaErrorInvalidResourceHandle);
VALUE(CP_CUDA_SYMBOL_NOT_FOUND, cudaErrorSymbolNotFound);
VALUE(CP_CUDA_NOT_READY, cudaErrorNotReady);
VALUE(CP_CUDA_ILLEGAL_ADDRESS, cudaErrorIllegalAddress);
VALUE(CP_CUDA_PEER_ACCESS_ALREADY_ENABLED, cudaErrorPeerAccessAlreadyEnabled);
VALUE(CP_CUDA_PEER_ACCESS_NOT_ENABLED, cudaErrorPeerAccessNotEnabled);
VALUE(CP_CUDA_LAUNCH_FAILURE, cudaErrorLaunchFailure);
VALUE(CP_CUDA_NOT_SUPPORTED, cudaErrorNotSupported);
VALUE(CP_CUDA_STREAM_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported);
VALUE(CP_CUDA_STREAM_CAPTURE_INVALIDATED, cudaErrorStreamCaptureInvalidated);
VALUE(CP_CUDA_UNKNOWN, cudaErrorUnknown);

// The driver's codes: we read a CUresult by the same names.
VALUE(CP_CUDA_SUCCESS, CUDA_SUCCESS);
VALUE(CP_CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
VALUE(CP_CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
VALUE(CP_CUDA_INITIALIZATION_ERROR, CUDA_ERROR_NOT_INITIALIZED);
VALUE(CP_CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
VALUE(CP_CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
VALUE(CP_CUDA_INVALID_RESOURCE_HANDLE, CUDA_ERROR_INVALID_HANDLE);
VALUE(CP_CUDA_SYMBOL_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
VALUE(CP_CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
VALUE(CP_CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
VALUE(CP_CUDA_LAUNCH_FAILURE, CUDA_ERROR_LAUNCH_FAILED);
VALUE(CP_CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
VALUE(CP_CUDA_UNKNOWN, CUDA_ERROR_UNKNOWN);

VALUE(CP_MEMCPY_HOST_TO_HOST, cudaMemcpyHostToHost);
VALUE(CP_MEMCPY_HOST_TO_DEVICE, cudaMemcpyHostToDevice);
VALUE(CP_MEMCPY_DEVICE_TO_HOST, cudaMemcpyDeviceToHost);
VALUE(CP_MEMCPY_DEVICE_TO_DEVICE, cudaMemcpyDeviceToDevice);
VALUE(CP_MEMCPY_DEFAULT, cudaMemcpyDefault);

VALUE(CP_STREAM_DEFAULT, cudaStreamDefault);
VALUE(CP_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
VALUE(CP_EVENT_DEFAULT, cudaEventDefault);
VALUE(CP_EVENT_BLOCKING_SYNC, cudaEventBlockingSync);
VALUE(CP_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
VALUE(CP_EVENT_INTERPROCESS, cudaEventInterprocess);
VALUE(CP_HOST_ALLOC_PORTABLE, cudaHostAllocPortable);
VALUE(CP_HOST_ALLOC_MAPPED, cudaHostAllocMapped);
VALUE(CP_IPC_LAZY_PEER_ACCESS, cudaIpcMemLazyEnablePeerAccess);
VALUE(CP_CAPTURE_GLOBAL, cudaStreamCaptureModeGlobal);
VALUE(CP_CAPTURE_THREAD_LOCAL, cudaStreamCaptureModeThreadLocal);
VALUE(CP_CAPTURE_RELAXED, cudaStreamCaptureModeRelaxed);

VALUE(CP_ATTR_CLOCK_RATE_KHZ, cudaDevAttrClockRate);
VALUE(CP_ATTR_MULTIPROCESSOR_COUNT, cudaDevAttrMultiProcessorCount);
VALUE(CP_ATTR_COMPUTE_MODE, cudaDevAttrComputeMode);
VALUE(CP_ATTR_PCI_BUS_ID, cudaDevAttrPciBusId);
VALUE(CP_ATTR_PCI_DEVICE_ID, cudaDevAttrPciDeviceId);
VALUE(CP_ATTR_MEMORY_CLOCK_RATE_KHZ, cudaDevAttrMemoryClockRate);
VALUE(CP_ATTR_MEMORY_BUS_WIDTH, cudaDevAttrGlobalMemoryBusWidth);
VALUE(CP_ATTR_L2_CACHE_BYTES, cudaDevAttrL2CacheSize);
VALUE(CP_ATTR_UNIFIED_ADDRESSING, cudaDevAttrUnifiedAddressing);
VALUE(CP_ATTR_PCI_DOMAIN_ID, cudaDevAttrPciDomainId);
VALUE(CP_ATTR_COMPUTE_MAJOR, cudaDevAttrComputeCapabilityMajor);
VALUE(CP_ATTR_COMPUTE_MINOR, cudaDevAttrComputeCapabilityMinor);
VALUE(CP_ATTR_DMA_BUF_SUPPORTED, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
VALUE(CP_RANGE_DMA_BUF_FD, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);

CP_CUDART_FUNCS(OUR_INT)
CP_CUDART_TEXT(OUR_TEXT)
CP_CUDRV_FUNCS(OUR_INT)
