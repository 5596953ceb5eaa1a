// Filling the table from the shared object.
#define _GNU_SOURCE
#include "table.h"

#include <dlfcn.h>
#include <stdio.h>

iv_table iv_verbs;

// A function pointer and an object pointer have one size on every system with dlsym (POSIX), so that the table can be filled by slot.
#define ENTRY(missing, result, name, params, args) {#name, (void **)&iv_verbs.name},
static const struct {
  const char *name;
  void **slot;
} entries[] = {IV_FUNCS(ENTRY)};

int iv_count(void) { return (int)(sizeof entries / sizeof entries[0]); }

const char *iv_name(int i) { return i >= 0 && i < iv_count() ? entries[i].name : NULL; }

int iv_present(int i) { return i >= 0 && i < iv_count() && *entries[i].slot != NULL; }

int iv_fill(uintptr_t handle) {
  int found = 0;
  for (int i = 0; i < iv_count(); i++) {
    *entries[i].slot = dlsym((void *)handle, entries[i].name);
    found += *entries[i].slot != NULL;
  }
  return found;
}

int iv_loaded_path(char *out, int out_len) {
  for (int i = 0; i < iv_count(); i++) {
    Dl_info info;
    if (*entries[i].slot != NULL && dladdr(*entries[i].slot, &info) && info.dli_fname != NULL) {
      snprintf(out, (size_t)out_len, "%s", info.dli_fname);
      return 1;
    }
  }
  return 0;
}
