// Every function of the table named by FAKE_LIST answers success, unless the library's own file defines it.
#define _GNU_SOURCE
#include "fake.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_FAIL
#define FAKE_FAIL ""
#endif

static atomic_int aborted;

void fake_abort(void) { atomic_store(&aborted, 1); }

int fake_env(const char *name, int otherwise) {
  const char *v = getenv(name);
  return v != NULL ? atoi(v) : otherwise;
}

// The code that a list like "a=1,b=2" has for name, 0 when there is none.
static int listed(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *p = list; p != NULL && *p != 0; p = strchr(p, ',')) {
    if (*p == ',') p++;
    if (strncmp(p, name, n) == 0 && p[n] == '=') return atoi(p + n + 1);
  }
  return 0;
}

static void hang(void) {
  for (int ms = 0; ms < 1000 * fake_env("FAKE_FUSE", 20) && !atomic_load(&aborted); ms++) usleep(1000);
}

int fake_call(const char *name, const char *format, ...) {
  const char *log = getenv("FAKE_LOG"), *stuck = getenv("FAKE_HANG"), *fail = getenv("FAKE_FAIL");
  FILE *f = log != NULL ? fopen(log, "a") : NULL;
  if (f != NULL) {
    va_list ap;
    va_start(ap, format);
    fprintf(f, "%s ", name);
    vfprintf(f, format, ap);
    fprintf(f, "\n");
    va_end(ap);
    fclose(f);
  }
  if (stuck != NULL && strcmp(stuck, name) == 0) hang();
  int code = listed(FAKE_FAIL, name);
  return code != 0 || fail == NULL ? code : listed(fail, name);
}

#define WEAK(name, params, args) __attribute__((weak)) int name params { return fake_call(#name, "%s", ""); }
FAKE_LIST(WEAK)
