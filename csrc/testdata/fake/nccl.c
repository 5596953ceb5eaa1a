#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

int ncclGetVersion(int *version) {
  *version = FAKE_VERSION;
  return fake_call(__func__, "%s", "");
}

// FAKE_CONFIG is a file for what is received. As in NCCL, the struct's own size says how much there is.
static void keep(const cp_nccl_config *c) {
  const char *path = getenv("FAKE_CONFIG");
  FILE *f = path != NULL && c != NULL ? fopen(path, "wb") : NULL;
  if (f == NULL) return;
  fwrite(c, 1, c->size, f);
  // The texts lie behind the pointers.
  fprintf(f, "%s|%s", c->net_name ? c->net_name : "", c->comm_name ? c->comm_name : "");
  fclose(f);
}

int ncclCommInitRankConfig(cp_comm *comm, int nranks, cp_unique_id id, int rank, cp_nccl_config *config) {
  keep(config);
  *comm = (cp_comm)(size_t)(1 + rank);
  return fake_call(__func__, "%d %d", nranks, rank);
}

int ncclCommInitRank(cp_comm *comm, int nranks, cp_unique_id id, int rank) {
  *comm = (cp_comm)(size_t)(1 + rank);
  return fake_call(__func__, "%d %d", nranks, rank);
}

int ncclCommInitAll(cp_comm *comms, int ndev, const int *devices) {
  for (int i = 0; i < ndev; i++) comms[i] = (cp_comm)(size_t)(1 + i);
  return fake_call(__func__, "%d", ndev);
}

int ncclCommSplit(cp_comm comm, int color, int key, cp_comm *out, cp_nccl_config *config) {
  keep(config);
  *out = color < 0 ? NULL : (cp_comm)(size_t)100;
  return fake_call(__func__, "%d %d", color, key);
}

// FAKE_BROKEN is a communicator that has failed with ncclRemoteError, FAKE_STARTING one that is not ready yet.
int ncclCommGetAsyncError(cp_comm comm, int *error) {
  int c = (int)(size_t)comm;
  *error = c != 0 && c == fake_env("FAKE_BROKEN", 0) ? 6 : c != 0 && c == fake_env("FAKE_STARTING", 0) ? 7 : 0;
  return fake_call(__func__, "%d", c);
}

int ncclCommAbort(cp_comm comm) {
  fake_abort();
  return fake_call(__func__, "%d", (int)(size_t)comm);
}

// The log shows what a call was given, in the order of its parameters.
#define N(x) ((size_t)(x))

int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %zu %zu", N(send), N(recv), count, dtype, op, N(comm), N(s));
}

int ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %zu %zu", N(send), N(recv), count, dtype, root, N(comm), N(s));
}

int ncclReduce(const void *send, void *recv, size_t count, int dtype, int op, int root, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %d %zu %zu", N(send), N(recv), count, dtype, op, root, N(comm), N(s));
}

int ncclAllGather(const void *send, void *recv, size_t count, int dtype, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %zu %zu", N(send), N(recv), count, dtype, N(comm), N(s));
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %zu %zu", N(send), N(recv), count, dtype, op, N(comm), N(s));
}

int ncclSend(const void *send, size_t count, int dtype, int peer, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %d %d %zu %zu", N(send), count, dtype, peer, N(comm), N(s));
}

int ncclRecv(void *recv, size_t count, int dtype, int peer, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %d %d %zu %zu", N(recv), count, dtype, peer, N(comm), N(s));
}

int ncclAlltoAll(const void *send, void *recv, size_t count, int dtype, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %zu %zu", N(send), N(recv), count, dtype, N(comm), N(s));
}

int ncclGather(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %zu %zu", N(send), N(recv), count, dtype, root, N(comm), N(s));
}

int ncclScatter(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return fake_call(__func__, "%zu %zu %zu %d %d %zu %zu", N(send), N(recv), count, dtype, root, N(comm), N(s));
}

const char *ncclGetErrorString(int code) {
  static __thread char text[32];
  snprintf(text, sizeof text, "fake text %d", code);
  return text;
}

const char *ncclGetLastError(cp_comm comm) { return "fake last"; }
