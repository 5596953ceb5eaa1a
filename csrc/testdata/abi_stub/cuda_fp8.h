// Stand-in: nccl.h includes this header but uses no type of it, and the original needs a further package (nv/target).
