// Stand-in: nccl.h includes this header but uses no type of it, and the original needs a further package (nv/target). nccl.h before 2.24
// declares its bfloat16 value only where this macro says that the type exists; the libraries are built with it.
#define __CUDA_BF16_TYPES_EXIST__
