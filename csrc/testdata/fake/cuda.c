#include "fake.h"

#include <stdio.h>

int cuDriverGetVersion(int *version) {
  *version = 13000;
  return fake_call(__func__, "%s", "");
}

int cuDeviceGetName(char *name, int len, cp_device device) {
  snprintf(name, (size_t)len, "fake GPU %d", device);
  return fake_call(__func__, "%s", "");
}

int cuGetErrorName(int code, const char **text) {
  *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
  return 0;
}

int cuGetErrorString(int code, const char **text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : "fake driver error";
  return 0;
}
