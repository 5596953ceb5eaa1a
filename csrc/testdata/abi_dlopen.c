// Opens a vendor's library as the program does and prints, one a line, its version and which functions of abi.h it has. Run by abi_test.go.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "abi.h"

#define PRINT(name, params, args) printf("%s=%s\n", #name, dlsym(lib, #name) ? "present" : "absent");

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: abi_dlopen nccl|cudart path\n");
    return 2;
  }
  void *lib = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    return 1;
  }
  int nccl = strcmp(argv[1], "nccl") == 0;
  if (nccl) {
    CP_NCCL_FUNCS(PRINT)
    CP_NCCL_TEXT(PRINT)
  } else {
    CP_CUDART_FUNCS(PRINT)
    CP_CUDART_TEXT(PRINT)
  }
  int (*get_version)(int *) = (int (*)(int *))dlsym(lib, nccl ? "ncclGetVersion" : "cudaRuntimeGetVersion");
  int version = 0;
  int rc = get_version ? get_version(&version) : CP_MISSING;
  if (rc != 0) {
    fprintf(stderr, "get version: result %d\n", rc);
    return 1;
  }
  printf("version=%d\n", version);
  return 0;
}
