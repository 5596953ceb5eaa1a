// Stand-ins for libcuda, libcudart and libnccl, for tests of the loader and of the bindings' error paths. A test builds weak.c together with
// one of cuda.c, cudart.c and nccl.c as a shared object.
//
// What they do differently from a library that works comes from the environment, or from a macro FAKE_FAIL of the same form when one of
// several fakes in a process is meant:
//   FAKE_FAIL   "cudaMalloc=2,ncclSend=6": these functions answer these codes
//   FAKE_HANG   a function that does not return for FAKE_FUSE seconds (20 unless set), or until ncclCommAbort
//   FAKE_LOG    a file to which every call adds a line: its name, and what the function has to say
#ifndef FAKE_H
#define FAKE_H

#include "../../abi.h"

__attribute__((visibility("hidden"))) int fake_call(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
__attribute__((visibility("hidden"))) int fake_env(const char *name, int otherwise);
__attribute__((visibility("hidden"))) void fake_abort(void);

#endif
