#include "fake.h"

#include <stdio.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif

int cudaRuntimeGetVersion(int *version) {
  *version = FAKE_VERSION;
  return fake_call(__func__, "%s", "");
}

int cudaGetDeviceCount(int *count) {
  int code = fake_call(__func__, "%s", "");
  *count = code ? 0 : fake_env("FAKE_DEVICES", 1);
  return code;
}

int cudaDeviceGetPCIBusId(char *id, int len, int device) {
  snprintf(id, (size_t)len, "0000:AF:%02X.0", device);
  return fake_call(__func__, "%s", "");
}

// FAKE_BUSY is a stream whose work never ends, -1 means all.
int cudaStreamQuery(cp_stream s) {
  int code = fake_call(__func__, "%s", ""), busy = fake_env("FAKE_BUSY", 0);
  return code == 0 && (busy == -1 || (s != NULL && busy == (int)(size_t)s)) ? 600 : code;
}

const char *cudaGetErrorName(int code) {
  switch (code) {
  case 2: return "cudaErrorMemoryAllocation";
  case 35: return "cudaErrorInsufficientDriver";
  case 100: return "cudaErrorNoDevice";
  }
  return "cudaErrorFake";
}

const char *cudaGetErrorString(int code) {
  static __thread char text[32];
  snprintf(text, sizeof text, "fake text %d", code);
  return text;
}
