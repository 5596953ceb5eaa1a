// Self-checking exercise of the host engine, built by host_test.go with ThreadSanitizer and with AddressSanitizer.
//
// Each scenario runs in processes of its own, forked by a parent that never starts a thread, and must leave nothing alive. Run it with a
// scenario's name to run that one only; "bench RANKS" measures instead.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../host.h"

cp_cudart_table cp_cudart;
cp_cudrv_table cp_cudrv;
cp_nccl_table cp_nccl;

#define CHECK(x) \
  do { \
    if (!(x)) { \
      fprintf(stderr, "%s:%d: pid %d: %s (last NCCL error: %s)\n", __FILE__, __LINE__, getpid(), #x, cp_nccl.ncclGetLastError ? cp_ncclGetLastErrorText() : ""); \
      fflush(NULL); \
      _exit(1); \
    } \
  } while (0)
#define OK(x) CHECK((x) == 0)

static const char *cp_ncclGetLastErrorText(void) { return cp_nccl.ncclGetLastError(NULL); }
static int64_t now_ms(void) { return cp_host_now() / 1000000; }
static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// ---- kernels that verify_host.c would provide ----

static void kernel_set(void **params) {
  *(uint64_t *)*(void **)params[0] = *(uint64_t *)params[1];
}

static void kernel_add(void **params) { *(uint64_t *)*(void **)params[0] += *(uint64_t *)params[1]; }

static void kernel_wait(void **params) { // until the flag is set
  atomic_int *flag = *(void **)params[0];
  while (!atomic_load(flag)) usleep(500);
}

static const struct {
  const char *name;
  cp_host_kernel_fn fn;
  int params;
} kernels[] = {{"set", kernel_set, 2}, {"add", kernel_add, 2}, {"wait", kernel_wait, 1}};

cp_host_kernel_fn cp_host_kernel(const char *name) {
  for (size_t i = 0; i < 3; i++) {
    if (!strcmp(kernels[i].name, name)) return kernels[i].fn;
  }
  return NULL;
}

int cp_host_kernel_params(const char *name) {
  for (size_t i = 0; i < 3; i++) {
    if (!strcmp(kernels[i].name, name)) return kernels[i].params;
  }
  return -1;
}

static cp_module module;
static void launch(const char *name, cp_stream s, void *p, uint64_t v) {
  cp_function f;
  uint64_t slots[2] = {(uint64_t)(uintptr_t)p, v};
  void *params[2] = {&slots[0], &slots[1]};
  OK(cp_cuModuleGetFunction(&f, module, name));
  OK(cp_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
}

// ---- running scenarios ----

typedef struct {
  _Atomic int id_ready, failed, stage[8];
  cp_unique_id id;
} shared_page;
static shared_page *shared;

static void barrier(int stage, int n) {
  atomic_fetch_add(&shared->stage[stage], 1);
  while (atomic_load(&shared->stage[stage]) < n) usleep(200);
}

typedef struct {
  int rank, n;
  void (*fn)(int rank, int n);
} rank_arg;

static int open_files(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static void get_id(int rank) {
  if (rank == 0) {
    OK(cp_ncclGetUniqueId(&shared->id));
    atomic_store(&shared->id_ready, 1);
  }
  while (!atomic_load(&shared->id_ready)) usleep(200);
}

static void child(rank_arg a) {
  int files = open_files();
  cp_host_fill(&cp_cudart, &cp_cudrv, &cp_nccl, 8);
  OK(cp_cuModuleLoadData(&module, "any"));
  OK(cp_cudaSetDevice(a.rank % 8)); // two ranks of a host may not share one
  a.fn(a.rank, a.n);
  OK(cp_cuModuleUnload(module));
  int64_t until = now_ms() + 5000;
  while (cp_host_live(CP_HOST_LIVE_ALL) != 0 && now_ms() < until) usleep(1000);
  for (int i = 1; i < CP_HOST_LIVE_KINDS; i++) {
    if (cp_host_live(i)) fprintf(stderr, "left alive: kind %d: %d\n", i, cp_host_live(i));
  }
  CHECK(cp_host_live(CP_HOST_LIVE_ALL) == 0);
  CHECK(open_files() == files);
  exit(0);
}

// Runs fn as n processes. The exit status 9 is one that a scenario asks for.
static int run(const char *name, const char *only, int n, void (*fn)(int, int), int limit_ms) {
  pid_t pids[16];
  int left = n, bad = 0;
  if (only && strcmp(only, name)) return 0;
  memset(shared, 0, sizeof *shared);
  int64_t t = now_ms();
  for (int i = 0; i < n; i++) {
    pids[i] = fork();
    if (pids[i] == 0) child((rank_arg){i, n, fn});
  }
  while (left > 0) {
    for (int i = 0; i < n; i++) {
      int status;
      if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) <= 0) continue;
      pids[i] = 0;
      left--;
      if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9)) continue;
      fprintf(stderr, "%s: rank %d ended with status %#x\n", name, i, status);
      bad = 1;
    }
    if (now_ms() - t > limit_ms) {
      for (int i = 0; i < n; i++) {
        if (pids[i] <= 0) continue;
        fprintf(stderr, "%s: rank %d hangs\n", name, i);
        kill(pids[i], SIGKILL);
      }
      bad = 1;
      t = now_ms();
    }
    usleep(2000);
  }
  printf("%-24s %s %lld ms\n", name, bad ? "FAILED" : "ok", (long long)(now_ms() - t));
  fflush(stdout);
  return bad;
}

static void *rank_thread(void *arg) {
  rank_arg *a = arg;
  OK(cp_cudaSetDevice(a->rank));
  a->fn(a->rank, a->n);
  return NULL;
}

static void as_threads(int n, void (*fn)(int, int)) {
  pthread_t t[16];
  rank_arg a[16];
  for (int i = 0; i < n; i++) {
    a[i] = (rank_arg){i, n, fn};
    OK(pthread_create(&t[i], NULL, rank_thread, &a[i]));
  }
  for (int i = 0; i < n; i++) OK(pthread_join(t[i], NULL));
}

// ---- values: small numbers that every type holds exactly ----

// Called for every element: too slow under ThreadSanitizer.
#define UNWATCHED __attribute__((no_sanitize("thread")))

static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static uint32_t float_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

UNWATCHED static void put(int dtype, void *p, size_t i, double v) {
  switch (dtype) {
  case CP_INT8: ((int8_t *)p)[i] = (int8_t)v; break;
  case CP_UINT8: ((uint8_t *)p)[i] = (uint8_t)v; break;
  case CP_INT32: ((int32_t *)p)[i] = (int32_t)v; break;
  case CP_UINT32: ((uint32_t *)p)[i] = (uint32_t)v; break;
  case CP_INT64: ((int64_t *)p)[i] = (int64_t)v; break;
  case CP_UINT64: ((uint64_t *)p)[i] = (uint64_t)v; break;
  case CP_FLOAT32: ((float *)p)[i] = (float)v; break;
  case CP_FLOAT64: ((double *)p)[i] = v; break;
  default: {
    uint32_t u = float_bits((float)v), e = u >> 23, m = u & 0x7fffff;
    if (dtype == CP_FLOAT16) ((uint16_t *)p)[i] = (uint16_t)((e - 112) << 10 | m >> 13);
    if (dtype == CP_BFLOAT16) ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
    if (dtype == CP_FLOAT8E4M3) ((uint8_t *)p)[i] = (uint8_t)((e - 120) << 3 | m >> 20);
    if (dtype == CP_FLOAT8E5M2) ((uint8_t *)p)[i] = (uint8_t)((e - 112) << 2 | m >> 21);
  }
  }
}

UNWATCHED static bool same(int dtype, const void *p, size_t i, double v) {
  char want[8] __attribute__((aligned(8)));
  put(dtype, want, 0, v);
  return !memcmp(want, (const char *)p + i * (size_t)sizes[dtype], (size_t)sizes[dtype]);
}

UNWATCHED static double value(int rank, size_t i) { return (double)((((size_t)rank + 1) * 2654435761u + i * 40503u) >> 7 & 1) + 1; }

UNWATCHED static double expected(int op, int dtype, int n, size_t i) {
  double r = value(0, i);
  for (int k = 1; k < n; k++) {
    double v = value(k, i);
    if (op == CP_SUM || op == CP_AVG) r += v;
    if (op == CP_PROD) r *= v;
    if (op == CP_MAX && v > r) r = v;
    if (op == CP_MIN && v < r) r = v;
  }
  if (op != CP_AVG) return r;
  return dtype <= CP_UINT64 ? (double)((int)r / n) : r / n;
}

typedef struct {
  cp_comm comm;
  cp_stream s;
  int rank, n, dtype, op;
  size_t count;
  char *send, *recv; // room for n * count elements and a canary
  size_t room;
} job;

static void job_new(job *j) {
  j->room = (size_t)j->n * j->count * (size_t)sizes[j->dtype];
  OK(cp_cudaMalloc((void **)&j->send, j->room + 64));
  OK(cp_cudaMalloc((void **)&j->recv, j->room + 64));
}

UNWATCHED static void job_reset(job *j, size_t used) {
  memset(j->recv, 0x5a, j->room + 64);
  memset(j->send, 0x5a, j->room + 64);
  for (size_t i = 0; i < used; i++) put(j->dtype, j->send, i, value(j->rank, i));
}

// The stream is done, and nothing was written past the result.
UNWATCHED static void job_done(job *j, size_t used) {
  OK(cp_cudaStreamSynchronize(j->s));
  for (size_t i = used * (size_t)sizes[j->dtype]; i < j->room + 64; i++) CHECK(j->recv[i] == 0x5a);
}

static void job_free(job *j) {
  OK(cp_cudaFree(j->send));
  OK(cp_cudaFree(j->recv));
}

UNWATCHED static void check_reductions(job *j) {
  for (int in_place = 0; in_place < 2; in_place++) {
    job_reset(j, j->count);
    void *send = j->send;
    if (in_place) send = memcpy(j->recv, j->send, j->count * (size_t)sizes[j->dtype]);
    OK(cp_ncclAllReduce(send, j->recv, j->count, j->dtype, j->op, j->comm, j->s));
    job_done(j, j->count);
    for (size_t i = 0; i < j->count; i++) CHECK(same(j->dtype, j->recv, i, expected(j->op, j->dtype, j->n, i)));
    if (!in_place)
      for (size_t i = 0; i < j->count; i++) CHECK(same(j->dtype, j->send, i, value(j->rank, i)));
  }
  for (int root = 0; root < j->n; root++) {
    job_reset(j, j->count);
    OK(cp_ncclReduce(j->send, j->rank == root ? j->recv : NULL, j->count, j->dtype, j->op, root, j->comm, j->s));
    job_done(j, j->rank == root ? j->count : 0);
    if (j->rank == root)
      for (size_t i = 0; i < j->count; i++) CHECK(same(j->dtype, j->recv, i, expected(j->op, j->dtype, j->n, i)));
  }
  size_t all = j->count * (size_t)j->n, at = (size_t)j->rank * j->count, size = (size_t)sizes[j->dtype];
  for (int in_place = 0; in_place < 2; in_place++) {
    job_reset(j, all);
    char *recv = in_place ? j->send + at * size : j->recv;
    OK(cp_ncclReduceScatter(j->send, recv, j->count, j->dtype, j->op, j->comm, j->s));
    job_done(j, in_place ? 0 : j->count);
    for (size_t i = 0; i < j->count; i++) CHECK(same(j->dtype, recv, i, expected(j->op, j->dtype, j->n, at + i)));
  }
}

UNWATCHED static void check_moves(job *j) {
  size_t size = (size_t)sizes[j->dtype], bytes = j->count * size, n = (size_t)j->n, r = (size_t)j->rank, c = j->count;
  for (int in_place = 0; in_place < 2; in_place++) {
    job_reset(j, c);
    void *send = j->send;
    if (in_place) send = memcpy(j->recv + r * bytes, j->send, bytes);
    OK(cp_ncclAllGather(send, j->recv, c, j->dtype, j->comm, j->s));
    job_done(j, n * c);
    for (size_t i = 0; i < n * c; i++) CHECK(same(j->dtype, j->recv, i, value((int)(i / c), i % c)));
  }
  for (int root = 0; root < j->n; root++) {
    job_reset(j, c);
    OK(cp_ncclBroadcast(j->rank == root ? j->send : NULL, j->recv, c, j->dtype, root, j->comm, j->s));
    job_done(j, c);
    for (size_t i = 0; i < c; i++) CHECK(same(j->dtype, j->recv, i, value(root, i)));
    job_reset(j, c);
    OK(cp_ncclGather(j->send, j->rank == root ? j->recv : NULL, c, j->dtype, root, j->comm, j->s));
    job_done(j, j->rank == root ? n * c : 0);
    if (j->rank == root)
      for (size_t i = 0; i < n * c; i++) CHECK(same(j->dtype, j->recv, i, value((int)(i / c), i % c)));
    job_reset(j, n * c);
    OK(cp_ncclScatter(j->rank == root ? j->send : NULL, j->recv, c, j->dtype, root, j->comm, j->s));
    job_done(j, c);
    for (size_t i = 0; i < c; i++) CHECK(same(j->dtype, j->recv, i, value(root, r * c + i)));
  }
  job_reset(j, n * c);
  OK(cp_ncclAlltoAll(j->send, j->recv, c, j->dtype, j->comm, j->s));
  job_done(j, n * c);
  for (size_t i = 0; i < n * c; i++) CHECK(same(j->dtype, j->recv, i, value((int)(i / c), r * c + i % c)));
}

static void check_one(cp_comm comm, cp_stream s, int rank, int n, int dtype, int op, size_t count) {
  if (op == CP_AVG && dtype > CP_UINT64 && n & (n - 1)) return; // not exact
  job j = {.comm = comm, .s = s, .rank = rank, .n = n, .dtype = dtype, .op = op, .count = count};
  job_new(&j);
  check_reductions(&j);
  if (op == CP_SUM) check_moves(&j);
  job_free(&j);
}

static void check_all(cp_comm comm, cp_stream s, int rank, int n) {
  static const size_t counts[] = {1, 7, 1003};
  for (int dtype = 0; dtype < 12; dtype++) {
    for (int op = 0; op < 5; op++) check_one(comm, s, rank, n, dtype, op, counts[(dtype + op) % 3]);
  }
  check_one(comm, s, rank, n, CP_FLOAT32, CP_SUM, 0);
  check_one(comm, s, rank, n, CP_FLOAT32, CP_SUM, n == 3 ? 300001 : 70001); // several chunks, and more than the staging holds
  check_one(comm, s, rank, n, CP_BFLOAT16, CP_AVG, 150001);
}

static void check_premul(cp_comm comm, cp_stream s, int n) {
  float k = 3, *buf, *scalar;
  int op, op2, other;
  OK(cp_cudaMalloc((void **)&buf, 4000));
  OK(cp_cudaMalloc((void **)&scalar, 4));
  OK(cp_ncclRedOpCreatePreMulSum(&op, &k, CP_FLOAT32, CP_SCALAR_HOST_IMMEDIATE, comm));
  OK(cp_ncclRedOpCreatePreMulSum(&op2, scalar, CP_FLOAT32, CP_SCALAR_DEVICE, comm));
  CHECK(op != op2 && op > CP_AVG);
  CHECK(cp_ncclAllReduce(buf, buf, 1, CP_INT32, op, comm, s) == CP_NCCL_INVALID_ARGUMENT);
  for (int i = 0; i < 1000; i++) buf[i] = (float)i;
  k = 5;
  OK(cp_ncclAllReduce(buf, buf, 1000, CP_FLOAT32, op, comm, s));
  OK(cp_cudaMemcpyAsync(scalar, &k, 4, CP_MEMCPY_HOST_TO_DEVICE, s));
  OK(cp_ncclAllReduce(buf, buf, 1000, CP_FLOAT32, op2, comm, s));
  OK(cp_cudaStreamSynchronize(s));
  for (int i = 0; i < 1000; i++) CHECK(buf[i] == (float)(i * 3 * n * 5 * n));
  OK(cp_ncclRedOpDestroy(op, comm));
  CHECK(cp_ncclRedOpDestroy(op, comm) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(buf, buf, 1, CP_FLOAT32, op, comm, s) == CP_NCCL_INVALID_ARGUMENT);
  OK(cp_ncclRedOpCreatePreMulSum(&other, &k, CP_FLOAT32, CP_SCALAR_HOST_IMMEDIATE, comm));
  OK(cp_ncclRedOpDestroy(other, comm));
  OK(cp_ncclRedOpDestroy(op2, comm));
  OK(cp_cudaFree(scalar));
  OK(cp_cudaFree(buf));
}

static void check_split(cp_comm comm, cp_stream s, int rank, int n) {
  cp_comm half, none = (cp_comm)1, reversed;
  int v, *x;
  OK(cp_ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
  OK(cp_ncclCommSplit(comm, rank == 0 ? -1 : 5, 0, &none, NULL));
  OK(cp_ncclCommSplit(comm, 0, n - rank, &reversed, NULL));
  CHECK((none == NULL) == (rank == 0));
  OK(cp_ncclCommUserRank(reversed, &v));
  CHECK(v == n - 1 - rank);
  OK(cp_ncclCommCount(half, &v));
  CHECK(v == (n + 1 - rank % 2) / 2);
  OK(cp_cudaMalloc((void **)&x, 8));
  x[0] = x[1] = rank;
  OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_MAX, half, s));
  OK(cp_ncclBroadcast(x + 1, x + 1, 1, CP_INT32, 0, reversed, s));
  OK(cp_cudaStreamSynchronize(s));
  CHECK(x[0] % 2 == rank % 2 && x[0] >= n - 2 && x[1] == n - 1);
  OK(cp_cudaFree(x));
  OK(cp_ncclCommDestroy(half));
  OK(cp_ncclCommDestroy(reversed));
  if (none) OK(cp_ncclCommDestroy(none));
}

static void check_registration(cp_comm comm) {
  void *p, *h;
  cp_window w;
  OK(cp_ncclMemAlloc(&p, 4096));
  OK(cp_ncclCommRegister(comm, p, 4096, &h));
  OK(cp_ncclCommWindowRegister(comm, p, 4096, &w, CP_WIN_COLL_SYMMETRIC));
  CHECK(cp_ncclCommDeregister(comm, w) == CP_NCCL_INVALID_ARGUMENT);
  OK(cp_ncclCommDeregister(comm, h));
  CHECK(cp_ncclCommDeregister(comm, h) == CP_NCCL_INVALID_ARGUMENT);
  OK(cp_ncclCommWindowDeregister(comm, w));
  OK(cp_ncclMemFree(p));
}

static void collectives(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  int v;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_ncclCommCount(comm, &v));
  CHECK(v == n);
  OK(cp_ncclCommUserRank(comm, &v));
  CHECK(v == rank);
  OK(cp_cudaStreamCreateWithFlags(&s, CP_STREAM_NON_BLOCKING));
  check_all(comm, s, rank, n);
  check_premul(comm, s, n);
  check_registration(comm);
  if (n > 1) check_split(comm, s, rank, n);
  OK(cp_ncclCommFinalize(comm));
  OK(cp_ncclCommDestroy(comm));
  CHECK(cp_ncclCommDestroy(comm) == CP_NCCL_INVALID_ARGUMENT);
  OK(cp_cudaStreamDestroy(s));
}

static void collectives_threads(int rank, int n) {
  (void)rank, (void)n;
  as_threads(4, collectives);
}

// ---- sends and receives ----

enum { BIG = 3 << 20 };

static void exchange(int rank, int n) {
  cp_comm comm;
  cp_stream s[2];
  char *send, *recv;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  for (int i = 0; i < 2; i++) OK(cp_cudaStreamCreateWithFlags(&s[i], i ? CP_STREAM_NON_BLOCKING : 0));
  OK(cp_cudaMalloc((void **)&send, BIG));
  OK(cp_cudaMalloc((void **)&recv, (size_t)n * BIG));
  for (int round = 0; round < 3; round++) {
    memset(send, 'a' + rank + round, BIG);
    memset(recv, 0, (size_t)n * BIG);
    OK(cp_ncclGroupStart());
    OK(cp_ncclGroupStart()); // nested
    for (int p = 0; p < n; p++) {
      int peer = (rank + p) % n; // the order is another on every rank
      OK(cp_ncclSend(send, BIG / 2, CP_UINT8, peer, comm, s[p % 2]));
      OK(cp_ncclRecv(recv + (size_t)peer * BIG, BIG / 2, CP_UINT8, peer, comm, s[0]));
      OK(cp_ncclSend(send, 5, CP_UINT8, peer, comm, s[0]));
      OK(cp_ncclRecv(recv + (size_t)peer * BIG + BIG - 5, 5, CP_UINT8, peer, comm, s[1]));
    }
    OK(cp_ncclGroupEnd());
    OK(cp_ncclGroupEnd());
    OK(cp_cudaStreamSynchronize(s[round % 2]));
    for (int p = 0; p < n; p++) {
      char *r = recv + (size_t)p * BIG, want = (char)('a' + p + round);
      CHECK(r[0] == want && r[BIG / 2 - 1] == want && r[BIG / 2] == 0 && r[BIG - 6] == 0 && r[BIG - 1] == want);
    }
    OK(cp_cudaDeviceSynchronize());
  }
  // A pipeline without groups: receive, then send.
  if (rank > 0) OK(cp_ncclRecv(recv, BIG, CP_UINT8, rank - 1, comm, s[0]));
  if (rank < n - 1) OK(cp_ncclSend(rank == 0 ? send : recv, BIG, CP_UINT8, rank + 1, comm, s[0]));
  OK(cp_cudaStreamSynchronize(s[0]));
  CHECK(rank == 0 || recv[BIG - 1] == 'a' + 2);
  // Operations of one communicator on two streams keep their order.
  int32_t *x = (int32_t *)(void *)send;
  for (int i = 0; i < 64; i++) {
    x[i] = 1;
    OK(cp_ncclAllReduce(&x[i], &x[i], 1, CP_INT32, CP_SUM, comm, s[i % 2]));
  }
  for (int i = 0; i < 2; i++) OK(cp_cudaStreamSynchronize(s[i]));
  for (int i = 0; i < 64; i++) CHECK(x[i] == n);
  CHECK(cp_ncclSend(send, 1, CP_UINT8, rank, comm, s[0]) == CP_NCCL_INVALID_USAGE);
  OK(cp_ncclCommDestroy(comm));
  for (int i = 0; i < 2; i++) OK(cp_cudaStreamDestroy(s[i]));
  OK(cp_cudaFree(send));
  OK(cp_cudaFree(recv));
}

static void exchange_threads(int rank, int n) {
  (void)rank, (void)n;
  as_threads(3, exchange);
}

static bool busy_for(cp_stream s, int ms) {
  int64_t until = now_ms() + ms;
  while (now_ms() < until) {
    if (cp_cudaStreamQuery(s) == CP_CUDA_SUCCESS) return false;
    sleep_ms(5);
  }
  return true;
}

static void unpaired(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  char *p;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&p, BIG));
  if (rank == 0) {
    OK(cp_ncclSend(p, 64 << 10, CP_UINT8, 1, comm, s));
    OK(cp_cudaStreamSynchronize(s)); // small: the receiver never comes
    OK(cp_ncclSend(p, 1 << 20, CP_UINT8, 1, comm, s));
    CHECK(busy_for(s, 200)); // large
  } else {
    OK(cp_ncclRecv(p, 10, CP_UINT8, rank == 1 ? 2 : 0, comm, s));
    CHECK(busy_for(s, 200));
  }
  barrier(0, n);
  OK(cp_ncclCommAbort(comm));
  OK(cp_cudaStreamSynchronize(s));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(p));
}

// ---- hangs, aborts, errors ----

static void *abort_later(void *comm) {
  sleep_ms(150);
  OK(cp_ncclCommAbort(comm));
  return NULL;
}

static void hung_abort(int rank, int n) {
  cp_comm comm;
  cp_stream s, queued;
  pthread_t t;
  int32_t *x;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaStreamCreateWithFlags(&queued, CP_STREAM_NON_BLOCKING));
  OK(cp_cudaMalloc((void **)&x, 4 << 20));
  if (rank == 0) { // nobody else calls
    OK(cp_ncclAllReduce(x, x, 1 << 20, CP_INT32, CP_SUM, comm, s));
    OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, comm, queued));
    OK(pthread_create(&t, NULL, abort_later, comm));
    CHECK(busy_for(s, 100) && busy_for(queued, 1));
    OK(cp_cudaStreamDestroy(queued)); // while it hangs
    int64_t begin = now_ms();
    OK(cp_cudaStreamSynchronize(s));
    CHECK(now_ms() - begin < 2000);
    OK(pthread_join(t, NULL));
    CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, comm, s) == CP_NCCL_INVALID_ARGUMENT);
    barrier(0, n);
  } else {
    barrier(0, n);
    OK(cp_ncclAllReduce(x, x, 1 << 20, CP_INT32, CP_SUM, comm, s)); // the other is gone
    int e = 0;
    for (int64_t until = now_ms() + 3000; !e && now_ms() < until; sleep_ms(5)) OK(cp_ncclCommGetAsyncError(comm, &e));
    CHECK(e == CP_NCCL_REMOTE);
    CHECK(busy_for(s, 100));
    CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, comm, s) == CP_NCCL_REMOTE);
    OK(cp_ncclCommDestroy(comm)); // after an error as good as an abort
    OK(cp_cudaStreamSynchronize(s));
    OK(cp_cudaStreamDestroy(queued));
  }
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

static void *destroy_now(void *comm) {
  OK(cp_ncclCommDestroy(comm));
  return NULL;
}

// A hung destroy is ended by an abort from another thread.
static void hung_destroy(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  pthread_t t;
  int32_t *x;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 4));
  if (rank == 0) OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, comm, s));
  else barrier(0, n);
  OK(pthread_create(&t, NULL, destroy_now, comm));
  sleep_ms(100);
  int r = cp_ncclCommAbort(comm);
  CHECK(rank == 0 ? r == CP_NCCL_SUCCESS : r == CP_NCCL_INVALID_ARGUMENT);
  if (rank == 0) barrier(0, n);
  OK(pthread_join(t, NULL));
  OK(cp_cudaStreamSynchronize(s));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

// Counts that differ. What a receiver does not take is dropped, so that the next call is right again; one that wants more waits for bytes that
// never come, whatever is sent by later calls.
static void mismatch(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  int32_t *x;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 4 << 20));
  for (int round = 0; round < 4; round++) {
    size_t mine = rank == 0 && round % 2 == 0 ? 1500 : 1000;
    for (int i = 0; i < 1 << 20; i++) x[i] = rank * 100 + round + 1;
    OK(cp_ncclBroadcast(x, x, mine, CP_INT32, 0, comm, s));
    OK(cp_cudaStreamSynchronize(s));
    CHECK(rank == 0 || (x[0] == round + 1 && x[999] == round + 1 && x[1000] == 100 + round + 1));
    if (rank == 0) OK(cp_ncclSend(x, mine, CP_INT32, 1, comm, s));
    else OK(cp_ncclRecv(x + 2000, 1000, CP_INT32, 0, comm, s));
    OK(cp_cudaStreamSynchronize(s));
    CHECK(rank == 0 || (x[2000] == round + 1 && x[2999] == round + 1 && x[3000] == 100 + round + 1));
    barrier(0, n);
  }
  if (rank == 0) {
    OK(cp_ncclSend(x, 1000, CP_INT32, 1, comm, s));
    OK(cp_ncclSend(x, 1000, CP_INT32, 1, comm, s));
    OK(cp_ncclBroadcast(x, x, 1000, CP_INT32, 0, comm, s));
    OK(cp_cudaStreamSynchronize(s));
  } else {
    OK(cp_ncclRecv(x, 1500, CP_INT32, 0, comm, s));
    CHECK(busy_for(s, 300));
  }
  barrier(1, n);
  OK(cp_ncclCommAbort(comm));
  OK(cp_cudaStreamSynchronize(s));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

// The same of a collective that gets too little.
static void shortfall(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  int32_t *x;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 4 << 20));
  OK(cp_ncclBroadcast(x, x, rank == 0 ? 1000 : 1500, CP_INT32, 0, comm, s));
  OK(cp_ncclBroadcast(x, x, 1000, CP_INT32, 0, comm, s));
  if (rank == 0) OK(cp_cudaStreamSynchronize(s));
  else CHECK(busy_for(s, 300));
  barrier(0, n);
  OK(cp_ncclCommAbort(comm));
  OK(cp_cudaStreamSynchronize(s));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

static void dead_peer(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  int32_t *x;
  int e = 0;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  if (rank == 1) _exit(9);
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 4 << 20));
  sleep_ms(50);
  OK(cp_ncclAllReduce(x, x, 1 << 20, CP_INT32, CP_SUM, comm, s));
  for (int64_t until = now_ms() + 3000; !e && now_ms() < until; sleep_ms(5)) OK(cp_ncclCommGetAsyncError(comm, &e));
  CHECK(e == CP_NCCL_REMOTE);
  CHECK(busy_for(s, 50));
  barrier(0, n - 1);
  OK(cp_ncclCommAbort(comm));
  OK(cp_cudaStreamSynchronize(s));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

static cp_nccl_config nonblocking(void) {
  cp_nccl_config c;
  memset(&c, 0, sizeof c);
  c.size = sizeof c;
  c.magic = CP_NCCL_CONFIG_MAGIC;
  c.version = 22809;
  return c;
}

static int settle(cp_comm comm) {
  int e = CP_NCCL_IN_PROGRESS;
  for (int64_t until = now_ms() + 5000; e == CP_NCCL_IN_PROGRESS && now_ms() < until; sleep_ms(2)) OK(cp_ncclCommGetAsyncError(comm, &e));
  return e;
}

static void background(int rank, int n) {
  cp_comm comm, half;
  cp_nccl_config config = nonblocking();
  cp_stream s;
  int32_t *x;
  int v;
  get_id(rank);
  if (rank == 1) sleep_ms(150);
  CHECK(cp_ncclCommInitRankConfig(&comm, n, shared->id, rank, &config) == CP_NCCL_IN_PROGRESS);
  if (rank == 0) CHECK(cp_ncclCommCount(comm, &v) == CP_NCCL_INVALID_ARGUMENT);
  OK(settle(comm));
  CHECK(cp_ncclCommSplit(comm, rank / 2, 0, &half, NULL) == CP_NCCL_IN_PROGRESS);
  OK(settle(comm));
  OK(settle(half));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 4));
  *x = 1;
  OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, half, s));
  OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_MAX, comm, s));
  CHECK(cp_ncclCommFinalize(half) == CP_NCCL_IN_PROGRESS);
  OK(settle(half));
  CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, half, s) == CP_NCCL_INVALID_USAGE);
  OK(cp_cudaStreamSynchronize(s));
  CHECK(*x == 2);
  OK(cp_ncclCommDestroy(half));
  OK(cp_ncclCommDestroy(comm));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

static cp_comm early;
static void *blocked_init(void *arg) {
  CHECK(cp_ncclCommInitRank(&early, 3, *(cp_unique_id *)arg, 1) != CP_NCCL_SUCCESS);
  return NULL;
}

// A rank that never comes. Aborted in the background and from another thread.
static void missing_rank(int rank, int n) {
  cp_comm comm;
  cp_unique_id id;
  cp_nccl_config config = nonblocking();
  pthread_t t;
  int e;
  (void)rank, (void)n;
  OK(cp_ncclGetUniqueId(&id));
  CHECK(cp_ncclCommInitRankConfig(&comm, 3, id, 0, &config) == CP_NCCL_IN_PROGRESS);
  OK(pthread_create(&t, NULL, blocked_init, &id));
  sleep_ms(200);
  OK(cp_ncclCommGetAsyncError(comm, &e));
  CHECK(e == CP_NCCL_IN_PROGRESS);
  OK(cp_ncclCommAbort(comm));
  cp_comm h = __atomic_load_n(&early, __ATOMIC_ACQUIRE);
  CHECK(h != NULL);
  OK(cp_ncclCommAbort(h));
  OK(pthread_join(t, NULL));
}

static int dial_root(const cp_unique_id *id) { // the id's address follows the magic and the cookie
  struct sockaddr_in a;
  memcpy(&a, id->internal + 16, sizeof a);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
  return fd;
}

static void strangers(int rank, int n) {
  cp_comm comm;
  int fd[3];
  get_id(rank);
  for (int i = 0; i < 3; i++) fd[i] = dial_root(&shared->id);
  char junk[4096];
  memset(junk, 'x', sizeof junk);
  CHECK(send(fd[0], junk, sizeof junk, MSG_NOSIGNAL) > 0);
  CHECK(send(fd[1], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) > 0); // and fd[2] says nothing
  sleep_ms(20);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_ncclCommDestroy(comm));
  for (int i = 0; i < 3; i++) close(fd[i]);
  cp_unique_id wrong;
  memset(&wrong, 0, sizeof wrong);
  CHECK(cp_ncclCommInitRank(&comm, n, wrong, rank) == CP_NCCL_INVALID_ARGUMENT && comm == NULL);
}

static void same_device(int rank, int n) {
  cp_comm comm;
  get_id(rank);
  OK(cp_cudaSetDevice(3));
  CHECK(cp_ncclCommInitRank(&comm, n, shared->id, rank) == CP_NCCL_INVALID_USAGE && comm == NULL);
}

static void disagree(int rank, int n) {
  cp_comm comm;
  get_id(rank);
  CHECK(cp_ncclCommInitRank(&comm, n + rank, shared->id, rank) == CP_NCCL_REMOTE && comm == NULL);
}

static void refusals(int rank, int n) {
  (void)rank, (void)n;
  as_threads(2, same_device);
  atomic_store(&shared->id_ready, 0);
  cp_comm c[2], again;
  cp_unique_id id;
  cp_stream s;
  int32_t x[4];
  int dup[2] = {1, 1};
  OK(cp_ncclGetUniqueId(&id));
  CHECK(cp_ncclCommInitRank(&again, 2, id, 2) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclCommInitRank(NULL, 2, id, 1) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclCommInitAll(c, 2, dup) == CP_NCCL_INVALID_USAGE);
  OK(cp_ncclCommInitRank(&again, 1, id, 0)); // uses the id up
  OK(cp_ncclCommAbort(again));
  OK(cp_ncclCommInitAll(c, 2, NULL));
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  CHECK(cp_ncclAllReduce(NULL, x, 1, CP_INT32, CP_SUM, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, NULL, 1, CP_INT32, CP_SUM, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(strstr(cp_ncclGetLastErrorText(), "null") != NULL);
  OK(cp_ncclAllReduce(NULL, NULL, 0, CP_INT32, CP_SUM, c[0], s));
  CHECK(cp_ncclAllReduce(x, x, 1, 12, CP_SUM, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, 77, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, -1, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, x, SIZE_MAX / 4, CP_INT32, CP_SUM, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclBroadcast(x, x, 1, CP_INT32, 2, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclSend(x, 1, CP_INT32, -1, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, x, s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, c[1], s) == CP_NCCL_UNHANDLED_CUDA); // the stream is of device 0
  CHECK(cp_ncclGroupEnd() == CP_NCCL_INVALID_USAGE);
  OK(cp_ncclGroupStart());
  OK(cp_ncclAllReduce(x, x, 1, CP_INT32, CP_SUM, c[0], s));
  CHECK(cp_ncclBroadcast(x, x, 1, CP_INT32, 9, c[0], s) == CP_NCCL_INVALID_ARGUMENT);
  CHECK(cp_ncclGroupEnd() == CP_NCCL_INVALID_ARGUMENT); // and nothing was launched
  OK(cp_cudaStreamSynchronize(s));
  for (int i = 0; i < 2; i++) OK(cp_ncclCommDestroy(c[i]));
  OK(cp_cudaStreamDestroy(s));
  as_threads(2, disagree);
}

// ---- one thread, several devices ----

static void one_thread(int rank, int n) {
  cp_comm c[3], h[3];
  cp_stream s[3];
  int32_t *x[3];
  cp_graph g[3];
  cp_graph_exec e[3];
  (void)rank, (void)n;
  OK(cp_ncclCommInitAll(c, 3, NULL));
  OK(cp_ncclGroupStart());
  for (int i = 0; i < 3; i++) OK(cp_ncclCommSplit(c[i], 0, -i, &h[i], NULL));
  OK(cp_ncclGroupEnd());
  for (int i = 0; i < 3; i++) {
    OK(cp_cudaSetDevice(i));
    OK(cp_cudaStreamCreateWithFlags(&s[i], CP_STREAM_NON_BLOCKING));
    OK(cp_cudaMalloc((void **)&x[i], 1 << 20));
    x[i][0] = 1;
  }
  OK(cp_ncclGroupStart());
  for (int i = 0; i < 3; i++) OK(cp_ncclAllReduce(x[i], x[i], 1, CP_INT32, CP_SUM, c[i], s[i]));
  OK(cp_ncclGroupEnd());
  for (int i = 0; i < 3; i++) { // capture, several times the same communicator and the null stream refused
    OK(cp_cudaSetDevice(i));
    CHECK(cp_cudaStreamBeginCapture(NULL, CP_CAPTURE_GLOBAL) == CP_CUDA_STREAM_CAPTURE_UNSUPPORTED);
    OK(cp_cudaStreamBeginCapture(s[i], CP_CAPTURE_THREAD_LOCAL));
    launch("add", s[i], x[i] + 2, 5);
    OK(cp_ncclAllReduce(x[i], x[i], 1, CP_INT32, CP_SUM, c[i], s[i]));
    OK(cp_ncclAllReduce(x[i], x[i], 1, CP_INT32, CP_MAX, h[i], s[i]));
    CHECK(cp_cudaStreamQuery(s[i]) == CP_CUDA_STREAM_CAPTURE_UNSUPPORTED);
    OK(cp_cudaStreamEndCapture(s[i], &g[i]));
    OK(cp_cudaGraphInstantiateWithFlags(&e[i], g[i], 0));
    OK(cp_cudaGraphDestroy(g[i]));
    x[i][2] = x[i][3] = 0;
  }
  for (int k = 0; k < 4; k++) {
    for (int i = 0; i < 3; i++) OK(cp_cudaGraphLaunch(e[i], s[i]));
  }
  for (int i = 0; i < 3; i++) {
    OK(cp_cudaStreamSynchronize(s[i]));
    CHECK(x[i][0] == 243 && x[i][2] == 20);
  }
  for (int i = 0; i < 3; i++) {
    OK(cp_ncclCommDestroy(c[i]));
    OK(cp_ncclCommAbort(h[i]));
  }
  for (int i = 0; i < 3; i++) {
    OK(cp_cudaSetDevice(i));
    OK(cp_cudaGraphLaunch(e[i], s[i])); // the communicators are gone: nothing happens
    OK(cp_cudaStreamSynchronize(s[i]));
    CHECK(x[i][0] == 243);
    OK(cp_cudaGraphExecDestroy(e[i]));
    OK(cp_cudaStreamDestroy(s[i]));
    OK(cp_cudaFree(x[i]));
  }
}

// ---- CUDA alone ----

static void check_events(void) {
  cp_stream a, b;
  cp_event e, f, g;
  uint64_t *x;
  float ms;
  static atomic_int flag;
  atomic_store(&flag, 0);
  OK(cp_cudaStreamCreateWithPriority(&a, CP_STREAM_NON_BLOCKING, 0));
  OK(cp_cudaStreamCreateWithFlags(&b, CP_STREAM_NON_BLOCKING));
  OK(cp_cudaEventCreateWithFlags(&e, 0));
  OK(cp_cudaEventCreateWithFlags(&f, 0));
  OK(cp_cudaEventCreateWithFlags(&g, CP_EVENT_DISABLE_TIMING));
  OK(cp_cudaMalloc((void **)&x, 64));
  memset(x, 0, 64);
  OK(cp_cudaEventQuery(e)); // never recorded: complete
  CHECK(cp_cudaEventElapsedTime(&ms, e, f) == CP_CUDA_INVALID_RESOURCE_HANDLE);
  OK(cp_cudaEventRecord(e, a));
  launch("wait", a, &flag, 0);
  launch("set", a, x, 7);
  OK(cp_cudaEventRecord(f, a));
  OK(cp_cudaStreamWaitEvent(b, f, 0));
  launch("add", b, x, 1);
  OK(cp_cudaEventRecord(f, b)); // again, while b waits for the first record
  OK(cp_cudaEventRecord(g, b));
  OK(cp_cudaEventSynchronize(e));
  CHECK(cp_cudaEventQuery(f) == CP_CUDA_NOT_READY && cp_cudaStreamQuery(b) == CP_CUDA_NOT_READY);
  CHECK(cp_cudaEventElapsedTime(&ms, e, f) == CP_CUDA_NOT_READY);
  CHECK(cp_cudaGetLastError() == CP_CUDA_NOT_READY && cp_cudaGetLastError() == 0);
  sleep_ms(20);
  atomic_store(&flag, 1);
  OK(cp_cudaEventSynchronize(f));
  CHECK(x[0] == 8);
  OK(cp_cudaEventElapsedTime(&ms, e, f));
  CHECK(ms >= 15 && ms < 5000);
  OK(cp_cudaEventSynchronize(g));
  CHECK(cp_cudaEventElapsedTime(&ms, e, g) == CP_CUDA_INVALID_RESOURCE_HANDLE);
  OK(cp_cudaSetDevice(1));
  CHECK(cp_cudaEventRecord(e, NULL) == CP_CUDA_INVALID_RESOURCE_HANDLE); // an event of device 0
  OK(cp_cudaSetDevice(0));
  for (int i = 0; i < 3000; i++) launch("add", a, x, 1); // more than the queue holds
  OK(cp_cudaEventRecord(e, a));
  OK(cp_cudaEventDestroy(e)); // pending
  OK(cp_cudaDeviceSynchronize());
  CHECK(x[0] == 3008);
  OK(cp_cudaEventDestroy(f));
  OK(cp_cudaEventDestroy(g));
  OK(cp_cudaStreamDestroy(a));
  OK(cp_cudaStreamDestroy(b));
  OK(cp_cudaFree(x));
}

static void check_graph(void) { // two streams joined by events
  cp_stream a, b;
  cp_event fork_, join;
  cp_graph g;
  cp_graph_exec e;
  uint64_t *x;
  OK(cp_cudaStreamCreateWithFlags(&a, 0));
  OK(cp_cudaStreamCreateWithFlags(&b, 0));
  OK(cp_cudaEventCreateWithFlags(&fork_, CP_EVENT_DISABLE_TIMING));
  OK(cp_cudaEventCreateWithFlags(&join, CP_EVENT_DISABLE_TIMING));
  OK(cp_cudaMalloc((void **)&x, 64));
  memset(x, 0, 64);
  OK(cp_cudaStreamBeginCapture(a, CP_CAPTURE_GLOBAL));
  CHECK(cp_cudaStreamBeginCapture(a, CP_CAPTURE_GLOBAL) != 0);
  OK(cp_cudaMemsetAsync(x, 0, 8, a));
  OK(cp_cudaEventRecord(fork_, a));
  CHECK(cp_cudaEventQuery(fork_) != CP_CUDA_SUCCESS);
  OK(cp_cudaStreamWaitEvent(b, fork_, 0));
  launch("add", b, x, 3);
  OK(cp_cudaEventRecord(join, b));
  OK(cp_cudaStreamWaitEvent(a, join, 0));
  launch("add", a, x, 4);
  OK(cp_cudaMemcpyAsync(x + 1, x, 8, CP_MEMCPY_DEVICE_TO_DEVICE, a));
  OK(cp_cudaStreamEndCapture(a, &g));
  CHECK(cp_cudaStreamWaitEvent(a, fork_, 0) != CP_CUDA_SUCCESS);
  OK(cp_cudaStreamQuery(b));
  OK(cp_cudaStreamSynchronize(a));
  CHECK(x[0] == 0 && x[1] == 0);
  OK(cp_cudaGraphInstantiateWithFlags(&e, g, 0));
  for (int i = 0; i < 5; i++) OK(cp_cudaGraphLaunch(e, i % 2 ? a : b));
  OK(cp_cudaDeviceSynchronize());
  OK(cp_cudaGraphLaunch(e, NULL));
  OK(cp_cudaGraphExecDestroy(e));
  OK(cp_cudaGraphDestroy(g));
  OK(cp_cudaStreamSynchronize(NULL));
  CHECK(x[0] == 7 && x[1] == 7);
  CHECK(cp_cudaStreamEndCapture(a, &g) != CP_CUDA_SUCCESS);
  OK(cp_cudaStreamBeginCapture(a, CP_CAPTURE_GLOBAL)); // given up
  launch("add", a, x, 3);
  OK(cp_cudaStreamDestroy(a));
  OK(cp_cudaStreamDestroy(b));
  OK(cp_cudaEventDestroy(fork_));
  OK(cp_cudaEventDestroy(join));
  OK(cp_cudaFree(x));
}

static void check_memory(void) {
  char *p, *q, *pinned, own[256];
  size_t avail, total;
  OK(cp_cudaMemGetInfo(&avail, &total));
  CHECK(total > 0 && avail <= total);
  OK(cp_cudaMalloc((void **)&p, 100));
  OK(cp_cudaSetDevice(1));
  OK(cp_cudaMalloc((void **)&q, 3 << 20));
  OK(cp_cudaSetDevice(0));
  OK(cp_cudaHostAlloc((void **)&pinned, 100, 0));
  CHECK((uintptr_t)p % 256 == 0 && (uintptr_t)q % 256 == 0);
  void *none;
  CHECK(cp_cudaMalloc(&none, total * 2) == CP_CUDA_OUT_OF_MEMORY && none == NULL);
  CHECK(cp_cudaMemset(p, 1, 101) == CP_CUDA_INVALID_VALUE);
  CHECK(cp_cudaMemset(own, 1, 1) == CP_CUDA_INVALID_VALUE);
  OK(cp_cudaMemset(p, 1, 100));
  OK(cp_cudaMemcpy(own, p, 100, CP_MEMCPY_DEVICE_TO_HOST));
  CHECK(own[99] == 1);
  memset(own, 2, sizeof own);
  OK(cp_cudaMemcpyAsync(q, own, 100, CP_MEMCPY_HOST_TO_DEVICE, NULL));
  memset(own, 3, sizeof own); // read already
  OK(cp_cudaMemcpyPeer(p, 0, q, 1, 100));
  OK(cp_cudaMemcpyPeerAsync(pinned, 0, p, 1, 100, NULL));
  OK(cp_cudaMemcpyAsync(own, pinned, 100, CP_MEMCPY_DEFAULT, NULL));
  CHECK(own[0] == 2 && own[99] == 2 && own[100] == 3);
  CHECK(cp_cudaFree(own) == CP_CUDA_INVALID_VALUE && cp_cudaFree(p + 1) == CP_CUDA_INVALID_VALUE);
  CHECK(cp_cudaFree(pinned) == CP_CUDA_INVALID_VALUE && cp_cudaFreeHost(p) == CP_CUDA_INVALID_VALUE);
  OK(cp_cudaFree(p));
  CHECK(cp_cudaFree(p) == CP_CUDA_INVALID_VALUE);
  OK(cp_cudaFree(q));
  OK(cp_cudaFreeHost(pinned));
  OK(cp_cudaFree(NULL));
}

static void check_legacy(void) { // the default stream and the blocking streams wait for each other
  cp_stream a;
  uint64_t *x;
  static atomic_int flag;
  atomic_store(&flag, 0);
  OK(cp_cudaStreamCreateWithFlags(&a, 0));
  OK(cp_cudaMalloc((void **)&x, 64));
  launch("wait", a, &flag, 0);
  launch("set", a, x, 5);
  launch("add", NULL, x, 1);
  launch("add", a, x, 10);
  CHECK(cp_cudaStreamQuery(NULL) == CP_CUDA_NOT_READY);
  atomic_store(&flag, 1);
  uint64_t got = 0;
  OK(cp_cudaMemcpy(&got, x, 8, CP_MEMCPY_DEVICE_TO_HOST));
  CHECK(got == 16);
  OK(cp_cudaStreamDestroy(a));
  OK(cp_cudaFree(x));
}

static void check_devices(void) {
  int v, can;
  char text[64];
  cp_uuid u[2];
  size_t total;
  cp_function f;
  cp_ipc_handle ipc;
  const char *name;
  OK(cp_cudaGetDeviceCount(&v));
  CHECK(v == 8 && cp_cudaSetDevice(8) == CP_CUDA_INVALID_DEVICE);
  OK(cp_cudaDeviceGetPCIBusId(text, sizeof text, 7));
  CHECK(!strcmp(text, "ffff:07:00.0"));
  OK(cp_cuInit(0));
  OK(cp_cuDeviceGetName(text, sizeof text, 1));
  OK(cp_cuDeviceTotalMem_v2(&total, 1));
  for (int i = 0; i < 2; i++) OK(cp_cuDeviceGetUuid_v2(&u[i], i));
  CHECK(memcmp(&u[0], &u[1], sizeof u[0]) && total > 0);
  OK(cp_cudaDeviceGetAttribute(&v, CP_ATTR_MULTIPROCESSOR_COUNT, 0));
  CHECK(v >= 1 && cp_cudaDeviceGetAttribute(&v, 9999, 0) == CP_CUDA_INVALID_VALUE);
  OK(cp_cudaDeviceCanAccessPeer(&can, 0, 1));
  CHECK(can == 1);
  OK(cp_cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cp_cudaDeviceEnablePeerAccess(1, 0) == CP_CUDA_PEER_ACCESS_ALREADY_ENABLED);
  OK(cp_cudaDeviceDisablePeerAccess(1));
  CHECK(cp_cudaDeviceDisablePeerAccess(1) == CP_CUDA_PEER_ACCESS_NOT_ENABLED);
  CHECK(cp_cuModuleGetFunction(&f, module, "nothing") == CP_CUDA_SYMBOL_NOT_FOUND);
  CHECK(cp_cudaIpcGetMemHandle(&ipc, text) == CP_CUDA_NOT_SUPPORTED);
  CHECK(!strcmp(cp_cudart.cudaGetErrorName(600), "cudaErrorNotReady") && !strcmp(cp_cudart.cudaGetErrorName(-5), "unknown"));
  OK(cp_cuGetErrorName(1, &name));
  CHECK(cp_cuGetErrorName(-5, &name) == CP_CUDA_INVALID_VALUE);
}

static void cuda_alone(int rank, int n) {
  (void)rank, (void)n;
  check_devices();
  check_memory();
  check_events();
  check_graph();
  check_legacy();
}

// Ranks that come and go while others still read: every byte of the last operation arrives although the sender is gone.
static void short_lives(int rank, int n) {
  cp_comm comm;
  cp_stream s;
  int32_t *x;
  OK(cp_cudaStreamCreateWithFlags(&s, 0));
  OK(cp_cudaMalloc((void **)&x, 1 << 20));
  for (int round = 0; round < 8; round++) {
    if (rank == 0) OK(cp_ncclGetUniqueId(&shared->id));
    barrier(round, n);
    OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
    for (int i = 0; i < 1 << 18; i++) x[i] = 1;
    OK(cp_ncclBroadcast(x, x, 1 << 16, CP_INT32, round % n, comm, s));
    OK(cp_ncclAllReduce(x, x, 1 << 18, CP_INT32, CP_SUM, comm, s));
    OK(cp_ncclCommDestroy(comm));
    OK(cp_cudaStreamSynchronize(s));
    for (int i = 0; i < 1 << 18; i++) CHECK(x[i] == n);
  }
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
}

// ---- measuring ----

static void bench(int rank, int n) {
  static const struct { size_t bytes; int iters; } sizes_[] = {{8, 2000}, {4096, 1000}, {65536, 500}, {1 << 20, 100}, {16 << 20, 20}};
  cp_comm comm;
  cp_stream s;
  void *x, *y;
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_cudaStreamCreateWithFlags(&s, CP_STREAM_NON_BLOCKING));
  OK(cp_cudaMalloc(&x, 16 << 20));
  OK(cp_cudaMalloc(&y, 16 << 20));
  memset(x, 0, 16 << 20);
  memset(y, 0, 16 << 20);
  for (size_t k = 0; k < sizeof sizes_ / sizeof sizes_[0]; k++) {
    for (int pass = 0; pass < 2; pass++) {
      int64_t t = cp_host_now();
      for (int i = 0; i < sizes_[k].iters; i++) OK(cp_ncclAllReduce(x, y, sizes_[k].bytes / 4, CP_FLOAT32, CP_SUM, comm, s));
      OK(cp_cudaStreamSynchronize(s));
      double us = (double)(cp_host_now() - t) / 1000 / sizes_[k].iters;
      if (pass && rank == 0) printf("all_reduce %9zu B %2d ranks %10.1f us  algbw %.2f GB/s\n", sizes_[k].bytes, n, us, (double)sizes_[k].bytes / us / 1000);
    }
  }
  fflush(stdout);
  OK(cp_ncclCommDestroy(comm));
  OK(cp_cudaStreamDestroy(s));
  OK(cp_cudaFree(x));
  OK(cp_cudaFree(y));
}

// ---- devices of a host ----

static void shared_device(int rank, int n) { // two processes, and both choose device 5
  cp_comm comm = NULL;
  OK(cp_cudaSetDevice(5));
  get_id(rank);
  CHECK(cp_ncclCommInitRank(&comm, n, shared->id, rank) == CP_NCCL_INVALID_USAGE && comm == NULL);
  CHECK(strstr(cp_ncclGetLastErrorText(), "ranks 0 and 1 both use virtual device 5 of one host") != NULL);
}

static void other_hosts(int rank, int n) { // the same, but they say that they are on different hosts
  cp_comm comm = NULL;
  char name[16];
  int x = rank + 1;
  snprintf(name, sizeof name, "host%d", rank);
  OK(setenv("NCCL_HOSTID", name, 1));
  OK(cp_cudaSetDevice(5));
  get_id(rank);
  OK(cp_ncclCommInitRank(&comm, n, shared->id, rank));
  OK(cp_ncclAllReduce(&x, &x, 1, CP_INT32, CP_SUM, comm, NULL));
  OK(cp_cudaStreamSynchronize(NULL));
  CHECK(x == n * (n + 1) / 2);
  OK(cp_ncclCommDestroy(comm));
}

static void machines(int rank, int n) {
  (void)rank, (void)n;
  uint64_t here = cp_host_machine();
  CHECK(here != 0 && here == cp_host_machine());
  OK(setenv("NCCL_HOSTID", "a", 1));
  uint64_t a = cp_host_machine();
  OK(setenv("NCCL_HOSTID", "b", 1));
  CHECK(a != here && a != 0 && cp_host_machine() != a && cp_host_machine() != here);
  OK(setenv("NCCL_HOSTID", "", 1));
  CHECK(cp_host_machine() == here);
  if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) CHECK(cp_host_machine() != here); // another network namespace is another host
  else printf("network namespaces: not tried: %s\n", strerror(errno));
}

int main(int argc, char **argv) {
  const char *only = argc > 1 ? argv[1] : NULL;
  int bad = 0;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (only && !strcmp(only, "bench")) return run("bench", NULL, argc > 2 ? atoi(argv[2]) : 4, bench, 120000);
  bad |= run("cuda", only, 1, cuda_alone, 20000);
  bad |= run("one rank", only, 1, collectives, 20000);
  bad |= run("2 processes", only, 2, collectives, 30000);
  bad |= run("3 processes", only, 3, collectives, 30000);
  bad |= run("4 threads", only, 1, collectives_threads, 40000);
  bad |= run("exchange", only, 3, exchange, 20000);
  bad |= run("exchange threads", only, 1, exchange_threads, 20000);
  bad |= run("one thread", only, 1, one_thread, 20000);
  bad |= run("unpaired", only, 2 + 1, unpaired, 20000);
  bad |= run("hung abort", only, 2, hung_abort, 20000);
  bad |= run("hung destroy", only, 2, hung_destroy, 20000);
  bad |= run("mismatch", only, 2, mismatch, 20000);
  bad |= run("shortfall", only, 2, shortfall, 20000);
  bad |= run("dead peer", only, 3, dead_peer, 20000);
  bad |= run("background", only, 4, background, 20000);
  bad |= run("missing rank", only, 1, missing_rank, 20000);
  bad |= run("strangers", only, 2, strangers, 20000);
  bad |= run("refusals", only, 1, refusals, 20000);
  bad |= run("shared device", only, 2, shared_device, 20000);
  bad |= run("other hosts", only, 2, other_hosts, 20000);
  bad |= run("machines", only, 1, machines, 20000);
  bad |= run("short lives", only, 3, short_lives, 20000);
  return bad;
}
