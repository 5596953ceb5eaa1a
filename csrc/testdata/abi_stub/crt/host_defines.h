// Stand-in for a header that the CUDA runtime package leaves to the compiler package: the decorations of declarations mean nothing to a C
// compiler on Linux.
#define __host__
#define __device__
#define __global__
#define __constant__
#define __shared__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __forceinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define CUDARTAPI
#define CUDARTAPI_CDECL
