// Filling the function tables from shared objects.
#ifndef CP_LOAD_H
#define CP_LOAD_H

#include "abi.h"

enum { CP_LIB_CUDART = 0, CP_LIB_CUDRV = 1, CP_LIB_NCCL = 2, CP_LIB_NVML = 3 };

// Opens path with RTLD_NOW|RTLD_LOCAL. NULL on failure, with the loader's own text in err. The library is never closed: its threads
// and exit handlers outlive any handle. dlopen and dlerror must be in one C call, since the text belongs to the thread.
void *cp_open(const char *path, char *err, int err_len);

// Clears the table of lib and fills it from the opened object. Names it lacks stay null. Answers how many were found.
int cp_fill(int lib, void *handle);

// Path of the file that holds the first function found in the table of lib (what the loader really took); 0 when none.
int cp_loaded_path(int lib, char *out, int out_len);

// Address of a table entry by its C name, 0 when it is null or unknown.
uintptr_t cp_proc(const char *name);

// Number of names in the table of lib, and the name at index i.
int cp_count(int lib);
const char *cp_name(int lib, int i);
int cp_present(int lib, int i);

#endif
