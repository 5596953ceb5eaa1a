#define _GNU_SOURCE
#include "load.h"
#include "nvml_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

cp_cudart_table cp_cudart;
cp_cudrv_table cp_cudrv;
cp_nccl_table cp_nccl;
cp_nvml_table cp_nvml;

typedef struct {
  const char *name;
  void **slot;
} entry;

// A function pointer and an object pointer have one size on every system with dlsym (POSIX), so that a table can be filled by slot.
#define RT_ENTRY(name, params, args) {#name, (void **)&cp_cudart.name},
#define DRV_ENTRY(name, params, args) {#name, (void **)&cp_cudrv.name},
#define NCCL_ENTRY(name, params, args) {#name, (void **)&cp_nccl.name},
#define NVML_ENTRY(name, params, args) {#name, (void **)&cp_nvml.name},

static const entry cudart_entries[] = {CP_CUDART_FUNCS(RT_ENTRY) CP_CUDART_TEXT(RT_ENTRY)};
static const entry cudrv_entries[] = {CP_CUDRV_FUNCS(DRV_ENTRY)};
static const entry nccl_entries[] = {CP_NCCL_FUNCS(NCCL_ENTRY) CP_NCCL_TEXT(NCCL_ENTRY)};
static const entry nvml_entries[] = {CP_NVML_FUNCS(NVML_ENTRY)};

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const entry *entries(int lib, int *n) {
  switch (lib) {
  case CP_LIB_CUDART: *n = COUNT(cudart_entries); return cudart_entries;
  case CP_LIB_CUDRV: *n = COUNT(cudrv_entries); return cudrv_entries;
  case CP_LIB_NCCL: *n = COUNT(nccl_entries); return nccl_entries;
  case CP_LIB_NVML: *n = COUNT(nvml_entries); return nvml_entries;
  }
  *n = 0;
  return NULL;
}

void *cp_open(const char *path, char *err, int err_len) {
  dlerror();
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (h == NULL) {
    const char *text = dlerror();
    snprintf(err, (size_t)err_len, "%s", text ? text : "dlopen failed without a reason");
  }
  return h;
}

int cp_fill(int lib, void *handle) {
  int n, found = 0;
  const entry *e = entries(lib, &n);
  for (int i = 0; i < n; i++) {
    *e[i].slot = dlsym(handle, e[i].name);
    if (*e[i].slot != NULL) found++;
  }
  return found;
}

int cp_loaded_path(int lib, char *out, int out_len) {
  int n;
  const entry *e = entries(lib, &n);
  for (int i = 0; i < n; i++) {
    Dl_info info;
    if (*e[i].slot != NULL && dladdr(*e[i].slot, &info) && info.dli_fname != NULL) {
      snprintf(out, (size_t)out_len, "%s", info.dli_fname);
      return 1;
    }
  }
  return 0;
}

uintptr_t cp_proc(const char *name) {
  for (int lib = CP_LIB_CUDART; lib <= CP_LIB_NVML; lib++) {
    int n;
    const entry *e = entries(lib, &n);
    for (int i = 0; i < n; i++)
      if (strcmp(e[i].name, name) == 0) return (uintptr_t)*e[i].slot;
  }
  return 0;
}

int cp_count(int lib) {
  int n;
  entries(lib, &n);
  return n;
}

const char *cp_name(int lib, int i) {
  int n;
  const entry *e = entries(lib, &n);
  return i >= 0 && i < n ? e[i].name : NULL;
}

int cp_present(int lib, int i) {
  int n;
  const entry *e = entries(lib, &n);
  return i >= 0 && i < n && *e[i].slot != NULL;
}
