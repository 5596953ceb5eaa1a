// The ABI of the CUDA runtime, the CUDA driver and NCCL, as far as this program calls it.
//
// Declared here in our own words from the documented interfaces, so that the program builds on a machine that has none of them. One X-macro
// list a library declares its function table, fills it from a shared object (load.c) or from the host engine (host_*.c), and makes one
// inline caller each (cp_NAME). A null entry is never called: the caller answers CP_MISSING. abi_test.go compares every value, size and
// offset below with the vendors' own headers.
#ifndef CP_ABI_H
#define CP_ABI_H

#include <stddef.h>
#include <stdint.h>

// Answer of an inline caller whose table entry is null. No library uses this code.
#define CP_MISSING (-20011)

// ---- CUDA runtime and driver: types ----

typedef void *cp_stream;     // cudaStream_t, CUstream
typedef void *cp_event;      // cudaEvent_t
typedef void *cp_graph;      // cudaGraph_t
typedef void *cp_graph_exec; // cudaGraphExec_t
typedef void *cp_module;     // CUmodule
typedef void *cp_function;   // CUfunction
typedef int cp_device;       // CUdevice

typedef struct { char reserved[64]; } cp_ipc_handle; // cudaIpcMemHandle_t and cudaIpcEventHandle_t
typedef struct { char bytes[16]; } cp_uuid;          // CUuuid

enum { // cudaError_t, only what this program tells apart
  CP_CUDA_SUCCESS = 0,
  CP_CUDA_INVALID_VALUE = 1,
  CP_CUDA_OUT_OF_MEMORY = 2,
  CP_CUDA_INITIALIZATION_ERROR = 3,
  CP_CUDA_INSUFFICIENT_DRIVER = 35,
  CP_CUDA_NO_DEVICE = 100,
  CP_CUDA_INVALID_DEVICE = 101,
  CP_CUDA_INVALID_RESOURCE_HANDLE = 400,
  CP_CUDA_SYMBOL_NOT_FOUND = 500,
  CP_CUDA_NOT_READY = 600,
  CP_CUDA_ILLEGAL_ADDRESS = 700,
  CP_CUDA_PEER_ACCESS_ALREADY_ENABLED = 704,
  CP_CUDA_PEER_ACCESS_NOT_ENABLED = 705,
  CP_CUDA_LAUNCH_FAILURE = 719,
  CP_CUDA_NOT_SUPPORTED = 801,
  CP_CUDA_STREAM_CAPTURE_UNSUPPORTED = 900,
  CP_CUDA_STREAM_CAPTURE_INVALIDATED = 901,
  CP_CUDA_UNKNOWN = 999,
};

enum { // cudaMemcpyKind
  CP_MEMCPY_HOST_TO_HOST = 0,
  CP_MEMCPY_HOST_TO_DEVICE = 1,
  CP_MEMCPY_DEVICE_TO_HOST = 2,
  CP_MEMCPY_DEVICE_TO_DEVICE = 3,
  CP_MEMCPY_DEFAULT = 4,
};

enum { // flags of streams, events, pinned memory, IPC, capture
  CP_STREAM_DEFAULT = 0,
  CP_STREAM_NON_BLOCKING = 1,
  CP_EVENT_DEFAULT = 0,
  CP_EVENT_BLOCKING_SYNC = 1,
  CP_EVENT_DISABLE_TIMING = 2,
  CP_EVENT_INTERPROCESS = 4,
  CP_HOST_ALLOC_PORTABLE = 1,
  CP_HOST_ALLOC_MAPPED = 2,
  CP_IPC_LAZY_PEER_ACCESS = 1,
  CP_CAPTURE_GLOBAL = 0,
  CP_CAPTURE_THREAD_LOCAL = 1,
  CP_CAPTURE_RELAXED = 2,
};

enum { // cudaDeviceAttr
  CP_ATTR_CLOCK_RATE_KHZ = 13,
  CP_ATTR_MULTIPROCESSOR_COUNT = 16,
  CP_ATTR_COMPUTE_MODE = 20,
  CP_ATTR_PCI_BUS_ID = 33,
  CP_ATTR_PCI_DEVICE_ID = 34,
  CP_ATTR_MEMORY_CLOCK_RATE_KHZ = 36,
  CP_ATTR_MEMORY_BUS_WIDTH = 37,
  CP_ATTR_L2_CACHE_BYTES = 38,
  CP_ATTR_UNIFIED_ADDRESSING = 41,
  CP_ATTR_PCI_DOMAIN_ID = 50,
  CP_ATTR_COMPUTE_MAJOR = 75,
  CP_ATTR_COMPUTE_MINOR = 76,
  CP_ATTR_DMA_BUF_SUPPORTED = 124, // of the driver's attributes, CUDA 11.7
};

// X(name, parameters, arguments): every function returns cudaError_t as int.
// cudaGraphInstantiate changed its parameters between CUDA 11 and 12 under one symbol name; cudaGraphInstantiateWithFlags did not.
#define CP_CUDART_FUNCS(X) \
  X(cudaDriverGetVersion, (int *version), (version)) \
  X(cudaRuntimeGetVersion, (int *version), (version)) \
  X(cudaGetDeviceCount, (int *count), (count)) \
  X(cudaSetDevice, (int device), (device)) \
  X(cudaGetDevice, (int *device), (device)) \
  X(cudaDeviceGetAttribute, (int *value, int attr, int device), (value, attr, device)) \
  X(cudaDeviceGetPCIBusId, (char *id, int len, int device), (id, len, device)) \
  X(cudaDeviceSynchronize, (void), ()) \
  X(cudaDeviceCanAccessPeer, (int *can, int device, int peer), (can, device, peer)) \
  X(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), (peer, flags)) \
  X(cudaDeviceDisablePeerAccess, (int peer), (peer)) \
  X(cudaGetLastError, (void), ()) \
  X(cudaMalloc, (void **p, size_t bytes), (p, bytes)) \
  X(cudaFree, (void *p), (p)) \
  X(cudaHostAlloc, (void **p, size_t bytes, unsigned flags), (p, bytes, flags)) \
  X(cudaFreeHost, (void *p), (p)) \
  X(cudaMemGetInfo, (size_t *free_bytes, size_t *total), (free_bytes, total)) \
  X(cudaMemset, (void *p, int value, size_t bytes), (p, value, bytes)) \
  X(cudaMemsetAsync, (void *p, int value, size_t bytes, cp_stream s), (p, value, bytes, s)) \
  X(cudaMemcpy, (void *dst, const void *src, size_t bytes, int kind), (dst, src, bytes, kind)) \
  X(cudaMemcpyAsync, (void *dst, const void *src, size_t bytes, int kind, cp_stream s), (dst, src, bytes, kind, s)) \
  X(cudaMemcpyPeer, (void *dst, int dst_dev, const void *src, int src_dev, size_t bytes), (dst, dst_dev, src, src_dev, bytes)) \
  X(cudaMemcpyPeerAsync, (void *dst, int dst_dev, const void *src, int src_dev, size_t bytes, cp_stream s), (dst, dst_dev, src, src_dev, bytes, s)) \
  X(cudaStreamCreateWithFlags, (cp_stream *s, unsigned flags), (s, flags)) \
  X(cudaStreamCreateWithPriority, (cp_stream *s, unsigned flags, int priority), (s, flags, priority)) \
  X(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), (least, greatest)) \
  X(cudaStreamDestroy, (cp_stream s), (s)) \
  X(cudaStreamQuery, (cp_stream s), (s)) \
  X(cudaStreamSynchronize, (cp_stream s), (s)) \
  X(cudaStreamWaitEvent, (cp_stream s, cp_event e, unsigned flags), (s, e, flags)) \
  X(cudaEventCreateWithFlags, (cp_event *e, unsigned flags), (e, flags)) \
  X(cudaEventDestroy, (cp_event e), (e)) \
  X(cudaEventRecord, (cp_event e, cp_stream s), (e, s)) \
  X(cudaEventQuery, (cp_event e), (e)) \
  X(cudaEventSynchronize, (cp_event e), (e)) \
  X(cudaEventElapsedTime, (float *ms, cp_event start, cp_event end), (ms, start, end)) \
  X(cudaStreamBeginCapture, (cp_stream s, int mode), (s, mode)) \
  X(cudaStreamEndCapture, (cp_stream s, cp_graph *g), (s, g)) \
  X(cudaGraphInstantiateWithFlags, (cp_graph_exec *x, cp_graph g, unsigned long long flags), (x, g, flags)) \
  X(cudaGraphLaunch, (cp_graph_exec x, cp_stream s), (x, s)) \
  X(cudaGraphExecDestroy, (cp_graph_exec x), (x)) \
  X(cudaGraphDestroy, (cp_graph g), (g)) \
  X(cudaIpcGetMemHandle, (cp_ipc_handle *h, void *p), (h, p)) \
  X(cudaIpcOpenMemHandle, (void **p, cp_ipc_handle h, unsigned flags), (p, h, flags)) \
  X(cudaIpcCloseMemHandle, (void *p), (p)) \
  X(cudaIpcGetEventHandle, (cp_ipc_handle *h, cp_event e), (h, e)) \
  X(cudaIpcOpenEventHandle, (cp_event *e, cp_ipc_handle h), (e, h))

// X(name, parameters, arguments): every function returns a constant string.
#define CP_CUDART_TEXT(X) \
  X(cudaGetErrorName, (int code), (code)) \
  X(cudaGetErrorString, (int code), (code))

typedef unsigned long long cp_device_ptr; // CUdeviceptr

enum { CP_RANGE_DMA_BUF_FD = 1 }; // CUmemRangeHandleType, CUDA 11.7

// X(name, parameters, arguments): every function returns CUresult as int. The _v2 names are the symbols that cuda.h's plain names mean.
#define CP_CUDRV_FUNCS(X) \
  X(cuInit, (unsigned flags), (flags)) \
  X(cuDriverGetVersion, (int *version), (version)) \
  X(cuDeviceGet, (cp_device *device, int ordinal), (device, ordinal)) \
  X(cuDeviceGetName, (char *name, int len, cp_device device), (name, len, device)) \
  X(cuDeviceGetAttribute, (int *value, int attribute, cp_device device), (value, attribute, device)) \
  X(cuDeviceTotalMem_v2, (size_t *bytes, cp_device device), (bytes, device)) \
  X(cuDeviceGetUuid_v2, (cp_uuid *uuid, cp_device device), (uuid, device)) \
  X(cuMemGetHandleForAddressRange, (void *handle, cp_device_ptr p, size_t bytes, int type, unsigned long long flags), (handle, p, bytes, type, flags)) \
  X(cuModuleLoadData, (cp_module *m, const void *image), (m, image)) \
  X(cuModuleUnload, (cp_module m), (m)) \
  X(cuModuleGetFunction, (cp_function *f, cp_module m, const char *name), (f, m, name)) \
  X(cuLaunchKernel, (cp_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, cp_stream s, void **params, void **extra), (f, gx, gy, gz, bx, by, bz, shared, s, params, extra)) \
  X(cuGetErrorName, (int code, const char **text), (code, text)) \
  X(cuGetErrorString, (int code, const char **text), (code, text))

// ---- NCCL: types ----

typedef void *cp_comm;   // ncclComm_t
typedef void *cp_window; // ncclWindow_t
typedef struct { char internal[128]; } cp_unique_id; // ncclUniqueId

enum { // ncclResult_t
  CP_NCCL_SUCCESS = 0,
  CP_NCCL_UNHANDLED_CUDA = 1,
  CP_NCCL_SYSTEM = 2,
  CP_NCCL_INTERNAL = 3,
  CP_NCCL_INVALID_ARGUMENT = 4,
  CP_NCCL_INVALID_USAGE = 5,
  CP_NCCL_REMOTE = 6,
  CP_NCCL_IN_PROGRESS = 7,
};

enum { // ncclDataType_t
  CP_INT8 = 0,
  CP_UINT8 = 1,
  CP_INT32 = 2,
  CP_UINT32 = 3,
  CP_INT64 = 4,
  CP_UINT64 = 5,
  CP_FLOAT16 = 6,
  CP_FLOAT32 = 7,
  CP_FLOAT64 = 8,
  CP_BFLOAT16 = 9,
  CP_FLOAT8E4M3 = 10, // 2.24
  CP_FLOAT8E5M2 = 11, // 2.24
};

enum { // ncclRedOp_t; larger values are handles from ncclRedOpCreatePreMulSum
  CP_SUM = 0,
  CP_PROD = 1,
  CP_MAX = 2,
  CP_MIN = 3,
  CP_AVG = 4,
};

enum { // ncclScalarResidence_t, window flags
  CP_SCALAR_DEVICE = 0,
  CP_SCALAR_HOST_IMMEDIATE = 1,
  CP_WIN_DEFAULT = 0,
  CP_WIN_COLL_SYMMETRIC = 1,
};

#define CP_NCCL_CONFIG_MAGIC 0xcafebeefu
#define CP_NCCL_CONFIG_UNDEF_INT INT32_MIN
#define CP_NCCL_CONFIG_UNDEF_PTR NULL

// ncclConfig_t as of 2.28; earlier versions are prefixes of it. The comment names the first version that reads the field. Later versions append.
typedef struct {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;             // 2.14
  int cga_cluster_size;     // 2.17
  int min_ctas;             // 2.17
  int max_ctas;             // 2.17
  const char *net_name;     // 2.17
  int split_share;          // 2.18
  int traffic_class;        // 2.26
  const char *comm_name;    // 2.27
  int collnet_enable;       // 2.27
  int cta_policy;           // 2.27
  int shrink_share;         // 2.27
  int nvls_ctas;            // 2.27
  int channels_per_net_peer; // 2.28
  int nvlink_centric_sched; // 2.28
} cp_nccl_config;

// X(name, parameters, arguments): every function returns ncclResult_t as int.
#define CP_NCCL_FUNCS(X) \
  X(ncclGetVersion, (int *version), (version)) \
  X(ncclGetUniqueId, (cp_unique_id *id), (id)) \
  X(ncclCommInitRank, (cp_comm *comm, int nranks, cp_unique_id id, int rank), (comm, nranks, id, rank)) \
  X(ncclCommInitRankConfig, (cp_comm *comm, int nranks, cp_unique_id id, int rank, cp_nccl_config *config), (comm, nranks, id, rank, config)) \
  X(ncclCommInitAll, (cp_comm *comms, int ndev, const int *devices), (comms, ndev, devices)) \
  X(ncclCommSplit, (cp_comm comm, int color, int key, cp_comm *out, cp_nccl_config *config), (comm, color, key, out, config)) \
  X(ncclCommFinalize, (cp_comm comm), (comm)) \
  X(ncclCommDestroy, (cp_comm comm), (comm)) \
  X(ncclCommAbort, (cp_comm comm), (comm)) \
  X(ncclCommGetAsyncError, (cp_comm comm, int *error), (comm, error)) \
  X(ncclCommCount, (cp_comm comm, int *count), (comm, count)) \
  X(ncclCommCuDevice, (cp_comm comm, int *device), (comm, device)) \
  X(ncclCommUserRank, (cp_comm comm, int *rank), (comm, rank)) \
  X(ncclGroupStart, (void), ()) \
  X(ncclGroupEnd, (void), ()) \
  X(ncclAllReduce, (const void *send, void *recv, size_t count, int dtype, int op, cp_comm comm, cp_stream s), (send, recv, count, dtype, op, comm, s)) \
  X(ncclBroadcast, (const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s), (send, recv, count, dtype, root, comm, s)) \
  X(ncclReduce, (const void *send, void *recv, size_t count, int dtype, int op, int root, cp_comm comm, cp_stream s), (send, recv, count, dtype, op, root, comm, s)) \
  X(ncclAllGather, (const void *send, void *recv, size_t send_count, int dtype, cp_comm comm, cp_stream s), (send, recv, send_count, dtype, comm, s)) \
  X(ncclReduceScatter, (const void *send, void *recv, size_t recv_count, int dtype, int op, cp_comm comm, cp_stream s), (send, recv, recv_count, dtype, op, comm, s)) \
  X(ncclSend, (const void *send, size_t count, int dtype, int peer, cp_comm comm, cp_stream s), (send, count, dtype, peer, comm, s)) \
  X(ncclRecv, (void *recv, size_t count, int dtype, int peer, cp_comm comm, cp_stream s), (recv, count, dtype, peer, comm, s)) \
  X(ncclAlltoAll, (const void *send, void *recv, size_t count, int dtype, cp_comm comm, cp_stream s), (send, recv, count, dtype, comm, s)) /* 2.28 */ \
  X(ncclGather, (const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s), (send, recv, count, dtype, root, comm, s)) /* 2.28 */ \
  X(ncclScatter, (const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s), (send, recv, count, dtype, root, comm, s)) /* 2.28 */ \
  X(ncclMemAlloc, (void **p, size_t bytes), (p, bytes)) /* 2.19 */ \
  X(ncclMemFree, (void *p), (p)) /* 2.19 */ \
  X(ncclCommRegister, (cp_comm comm, void *p, size_t bytes, void **handle), (comm, p, bytes, handle)) /* 2.19 */ \
  X(ncclCommDeregister, (cp_comm comm, void *handle), (comm, handle)) /* 2.19 */ \
  X(ncclCommWindowRegister, (cp_comm comm, void *p, size_t bytes, cp_window *win, int flags), (comm, p, bytes, win, flags)) /* 2.27 */ \
  X(ncclCommWindowDeregister, (cp_comm comm, cp_window win), (comm, win)) /* 2.27 */ \
  X(ncclRedOpCreatePreMulSum, (int *op, void *scalar, int dtype, int residence, cp_comm comm), (op, scalar, dtype, residence, comm)) \
  X(ncclRedOpDestroy, (int op, cp_comm comm), (op, comm))

#define CP_NCCL_TEXT(X) \
  X(ncclGetErrorString, (int code), (code)) \
  X(ncclGetLastError, (cp_comm comm), (comm)) /* 2.13 */

// ---- tables and callers ----

#define CP_FIELD_INT(name, params, args) int (*name) params;
#define CP_FIELD_TEXT(name, params, args) const char *(*name) params;

typedef struct { CP_CUDART_FUNCS(CP_FIELD_INT) CP_CUDART_TEXT(CP_FIELD_TEXT) } cp_cudart_table;
typedef struct { CP_CUDRV_FUNCS(CP_FIELD_INT) } cp_cudrv_table;
typedef struct { CP_NCCL_FUNCS(CP_FIELD_INT) CP_NCCL_TEXT(CP_FIELD_TEXT) } cp_nccl_table;

// The tables in force. Filled once by a provider before any call; never changed while calls may run.
extern cp_cudart_table cp_cudart;
extern cp_cudrv_table cp_cudrv;
extern cp_nccl_table cp_nccl;

#define CP_CUDART_CALL(name, params, args) static inline int cp_##name params { return cp_cudart.name ? cp_cudart.name args : CP_MISSING; }
#define CP_CUDRV_CALL(name, params, args) static inline int cp_##name params { return cp_cudrv.name ? cp_cudrv.name args : CP_MISSING; }
#define CP_NCCL_CALL(name, params, args) static inline int cp_##name params { return cp_nccl.name ? cp_nccl.name args : CP_MISSING; }
CP_CUDART_FUNCS(CP_CUDART_CALL)
CP_CUDRV_FUNCS(CP_CUDRV_CALL)
CP_NCCL_FUNCS(CP_NCCL_CALL)

// ---- host engine ----

// Fills the three tables with the host engine's functions. devices is the number of virtual devices (1 to 1024).
void cp_host_fill(cp_cudart_table *rt, cp_cudrv_table *drv, cp_nccl_table *nccl, int devices);

// Finds a kernel compiled into this binary by its CUDA name; NULL if there is none. params is as for cuLaunchKernel.
typedef void (*cp_host_kernel_fn)(void **params);
cp_host_kernel_fn cp_host_kernel(const char *name);

#endif
