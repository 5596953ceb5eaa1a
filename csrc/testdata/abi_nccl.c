// Compares the NCCL part of abi.h with one version of nccl.h. Compiled by abi_test.go, never run.
//
// From the command line: WANT_VERSION, the version that nccl.h must have; HAS_field, 0 or 1, whether that version has the config field, from
// the comments in abi.h; CONFIG_FIELDS, how many of our fields it has.
#include <nccl.h>
#include "abi_check.h"

VALUE(WANT_VERSION, NCCL_VERSION_CODE);

HANDLE(cp_comm, ncclComm_t);
HANDLE(cp_stream, cudaStream_t);
INTEGER(int, ncclResult_t);
INTEGER(int, ncclDataType_t);
INTEGER(int, ncclRedOp_t);
INTEGER(int, ncclScalarResidence_t);
STRUCT(cp_unique_id, ncclUniqueId);

VALUE(CP_NCCL_SUCCESS, ncclSuccess);
VALUE(CP_NCCL_UNHANDLED_CUDA, ncclUnhandledCudaError);
VALUE(CP_NCCL_SYSTEM, ncclSystemError);
VALUE(CP_NCCL_INTERNAL, ncclInternalError);
VALUE(CP_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
VALUE(CP_NCCL_INVALID_USAGE, ncclInvalidUsage);
VALUE(CP_NCCL_REMOTE, ncclRemoteError);
VALUE(CP_NCCL_IN_PROGRESS, ncclInProgress);

VALUE(CP_INT8, ncclInt8);
VALUE(CP_UINT8, ncclUint8);
VALUE(CP_INT32, ncclInt32);
VALUE(CP_UINT32, ncclUint32);
VALUE(CP_INT64, ncclInt64);
VALUE(CP_UINT64, ncclUint64);
VALUE(CP_FLOAT16, ncclFloat16);
VALUE(CP_FLOAT32, ncclFloat32);
VALUE(CP_FLOAT64, ncclFloat64);
VALUE(CP_BFLOAT16, ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
VALUE(CP_FLOAT8E4M3, ncclFloat8e4m3);
VALUE(CP_FLOAT8E5M2, ncclFloat8e5m2);
#else
VALUE(CP_FLOAT8E4M3, ncclNumTypes); // the first value that this version does not know
#endif

VALUE(CP_SUM, ncclSum);
VALUE(CP_PROD, ncclProd);
VALUE(CP_MAX, ncclMax);
VALUE(CP_MIN, ncclMin);
VALUE(CP_AVG, ncclAvg);

VALUE(CP_SCALAR_DEVICE, ncclScalarDevice);
VALUE(CP_SCALAR_HOST_IMMEDIATE, ncclScalarHostImmediate);

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
HANDLE(cp_window, ncclWindow_t);
VALUE(CP_WIN_DEFAULT, NCCL_WIN_DEFAULT);
VALUE(CP_WIN_COLL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
#endif

VALUE(CP_NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT);

// ---- config struct ----

// The vendor's struct grows and ours does not, so the pair is not compared as a whole: a pointer to ours is passed, with its own size in it.
CP_PAIR(cp_nccl_config, ncclConfig_t);

// A field that this version has: same place and same type.
#define FIELD_1(ours, theirs) \
  _Static_assert(offsetof(cp_nccl_config, ours) == offsetof(ncclConfig_t, theirs), "config." #ours ": offset differs"); \
  _Static_assert(__builtin_types_compatible_p(__typeof__(((cp_nccl_config *)0)->ours), __typeof__(((ncclConfig_t *)0)->theirs)), "config." #ours ": type differs");
// A field that it does not have: the struct ends at or before its place, padding included. CONFIG_FIELDS covers a field inside the padding.
#define FIELD_0(ours, theirs) \
  _Static_assert(sizeof(ncclConfig_t) <= (offsetof(cp_nccl_config, ours) + 7) / 8 * 8, "config." #ours ": this version has it already");
#define FIELD(ours, theirs) CP_CAT(FIELD_, HAS_##ours)(ours, theirs)

#define FIELDS(X) \
  X(size, size) \
  X(magic, magic) \
  X(version, version) \
  X(blocking, blocking) \
  X(cga_cluster_size, cgaClusterSize) \
  X(min_ctas, minCTAs) \
  X(max_ctas, maxCTAs) \
  X(net_name, netName) \
  X(split_share, splitShare) \
  X(traffic_class, trafficClass) \
  X(comm_name, commName) \
  X(collnet_enable, collnetEnable) \
  X(cta_policy, CTAPolicy) \
  X(shrink_share, shrinkShare) \
  X(nvls_ctas, nvlsCTAs) \
  X(channels_per_net_peer, nChannelsPerNetPeer) \
  X(nvlink_centric_sched, nvlinkCentricSched)
FIELDS(FIELD)

// The number of initial values is the number of fields. As integers, so that an array can count them; never evaluated.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wint-conversion"
enum { VENDOR_FIELDS = sizeof((long long[])NCCL_CONFIG_INITIALIZER) / sizeof(long long) };
#pragma GCC diagnostic pop

// Later versions only append. Where abi.h takes more fields over, the version and the field named here move on.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
_Static_assert(VENDOR_FIELDS == CONFIG_FIELDS, "config: number of fields differs");
#else
_Static_assert(VENDOR_FIELDS > CONFIG_FIELDS, "config: number of fields differs");
_Static_assert(offsetof(ncclConfig_t, graphUsageMode) == sizeof(cp_nccl_config), "config: the first newer field is not behind ours");
#endif

// A call that the optimizer must remove: gcc refuses one that is left.
extern void config_default_differs(const char *field) __attribute__((error("config: NCCL_CONFIG_INITIALIZER differs from ours")));

// Same bits as the initializer of ours: undefined, except for the three header fields.
#define DEFAULT_INT(theirs) if (c.theirs != CP_NCCL_CONFIG_UNDEF_INT) config_default_differs(#theirs);
#define DEFAULT_PTR(theirs) if (c.theirs != CP_NCCL_CONFIG_UNDEF_PTR) config_default_differs(#theirs);

void check_config_defaults(void) {
  const ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  if (c.size != sizeof(ncclConfig_t)) config_default_differs("size");
  if (c.magic != CP_NCCL_CONFIG_MAGIC) config_default_differs("magic");
  if (c.version != NCCL_VERSION_CODE) config_default_differs("version");
  DEFAULT_INT(blocking)
  DEFAULT_INT(cgaClusterSize)
  DEFAULT_INT(minCTAs)
  DEFAULT_INT(maxCTAs)
  DEFAULT_PTR(netName)
  DEFAULT_INT(splitShare)
#if HAS_traffic_class
  DEFAULT_INT(trafficClass)
#endif
#if HAS_comm_name
  DEFAULT_PTR(commName)
  DEFAULT_INT(collnetEnable)
  DEFAULT_INT(CTAPolicy)
  DEFAULT_INT(shrinkShare)
  DEFAULT_INT(nvlsCTAs)
#endif
#if HAS_channels_per_net_peer
  DEFAULT_INT(nChannelsPerNetPeer)
  DEFAULT_INT(nvlinkCentricSched)
#endif
}

CP_NCCL_FUNCS(OUR_INT)
CP_NCCL_TEXT(OUR_TEXT)
