// The NCCL half of the host engine: communicators between ranks that are threads or processes, over TCP.
//
// Like NCCL, nothing here checks counts, types or the order of calls across ranks. What one call sends and another receives is told apart as the
// flags in NCCL's slots do it: a length goes in front of what a call sends to a peer. A rank that expects more than that waits for ever,
// since the next call's bytes are not for this one, and what a rank does not take is dropped. A small send (64 KiB at least)
// completes without its receiver, a large one (1 MiB at most) does not; the next receive from that peer then gets the old data. An operation whose peer has died never completes: its stream stays
// busy until the communicator is aborted, and ncclCommGetAsyncError answers ncclRemoteError meanwhile.
//
// What differs from NCCL:
// - ncclGetVersion answers 22809, the level of functions and configuration offered here. It is not a claim to be NCCL.
// - One ring in rank order, one socket for each ordered pair that sends and receives. Operations of one communicator run one after another,
//   in the order of their launches, on whatever stream; in NCCL small ones may overlap.
// - A nonblocking communicator launches at once: only its initialisation, split and finalisation go on in the background.
// - The 8-bit floats are added as float and saturate. Registration and windows are accepted and have no effect.
// - A graph that outlives its communicator may be launched: its operations then do nothing.
// - When the process that made the unique id is gone, initialisation fails with ncclRemoteError instead of waiting.
// - Two ranks with one virtual device are refused where they are on one host: the same machine and network namespace, or the same NCCL_HOSTID.
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host.h"

enum {
  HOST_VERSION = 22809,
  HOST_CHUNK = 128 << 10,  // bytes received before they are combined; a multiple of every type's size
  HOST_STAGE = 1024 << 10, // partial results on their way to the next rank
  HOST_TILE = 8 << 10,
  HOST_MOST = 1 << 20, // bytes of one send or recv call, so that an abort is seen soon
  HOST_NOCOLOR = -1,
};

// ---- types ----

typedef struct {
  int dtype;
  size_t size; // of an element
  cp_host_reduce_fn reduce;
  bool scale, divide;
  const void *device_scalar; // read when the operation runs
  char scalar[8];
} host_arith;

typedef struct {
  bool used;
  int dtype;
  const void *device_scalar;
  char scalar[8];
} host_redop;

typedef struct host_registration {
  bool window;
  struct host_registration *next;
} host_registration;

// Where the reader of a connection is. A length of 8 bytes comes before the bytes of each call.
typedef struct {
  uint64_t owed;    // calls of which nothing was wanted and whose length has not come by yet
  uint64_t discard; // bytes of earlier calls still to come and to be dropped
  char head[8];
  size_t have; // of head
} host_reader;

typedef struct {
  int fd; // -1: not dialled yet
  bool dialed;
  size_t greeted;
  cp_host_hello hello;
} host_outgoing;

typedef struct { // one piece of the bytes that come from the previous rank
  char *dst;     // NULL: staged
  const char *own;
  size_t bytes;
  bool reduce, last;
} host_in;

typedef struct { // one piece of the bytes that go to the next rank
  const char *src; // NULL: staged
  size_t bytes;
} host_out;

typedef struct host_comm {
  atomic_int refs;
  int nranks, rank, device;
  bool blocking;
  uint64_t cookie;
  int wake; // readable once aborted, and never read: every poll of every thread ends
  atomic_int aborted;
  atomic_int state; // NCCL code that ncclCommGetAsyncError answers
  pthread_mutex_t mu;
  pthread_cond_t cond; // any change below
  uint64_t tickets, turn; // operations launched, operations completed
  uint64_t splits, split_turn; // splits begun, splits that have met the other ranks
  int running, jobs; // threads that use the sockets
  bool closed, finalized;
  host_redop *redops;
  int nredops;
  host_registration *registrations;

  cp_host_peer *peers;
  cp_host_door door, ctl; // for operations, for splits
  // What follows belongs to the operation whose turn it is.
  int prev, next;
  host_reader from_prev, *from;
  int *incoming;
  host_outgoing *outgoing;
  struct pollfd *polls;
  host_in *ins;
  host_out *outs;
  char *bounce, *stage, *scaled;

  struct host_comm *link; // all handles, under host_comms_mu
} host_comm;

enum { HOST_ALL_REDUCE, HOST_BROADCAST, HOST_REDUCE, HOST_ALL_GATHER, HOST_REDUCE_SCATTER, HOST_SWAP };

typedef struct {
  int peer;
  bool send;
  char *buf;
  size_t bytes;
} host_p2p;

typedef struct {
  cp_host_work work;
  host_comm *comm;
  int func, root;
  const char *send;
  char *recv;
  size_t count;
  host_arith arith;
  int np2p;
  host_p2p p2p[];
} host_coll;

enum { HOST_JOB_INIT, HOST_JOB_SPLIT, HOST_JOB_FINALIZE };

typedef struct {
  int kind, result;
  host_comm *comm;   // the new one (NULL: a split without colour), or the one to finalise
  host_comm *parent; // of a split
  cp_comm *out;
  cp_unique_id id;
  int color, key;
  uint64_t seq;
  pthread_t thread;
  bool started, blocking;
} host_job;

typedef struct {
  host_comm *comm;
  cp_stream stream;
  host_coll *coll; // NULL: p2p
  host_p2p p2p;
  bool taken;
} host_item;

static __thread struct {
  int depth, err;
  host_item *items;
  int n, cap;
  host_job **jobs;
  int njobs;
} host_group;

// ---- errors ----

static pthread_mutex_t host_last_mu = PTHREAD_MUTEX_INITIALIZER;
static char host_last[256];

__attribute__((format(printf, 2, 3))) static int host_say(int code, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  pthread_mutex_lock(&host_last_mu);
  vsnprintf(host_last, sizeof host_last, format, ap);
  pthread_mutex_unlock(&host_last_mu);
  va_end(ap);
  return code;
}

static const char *host_ncclGetLastError(cp_comm comm) {
  static __thread char copy[sizeof host_last];
  (void)comm;
  pthread_mutex_lock(&host_last_mu);
  memcpy(copy, host_last, sizeof copy);
  pthread_mutex_unlock(&host_last_mu);
  return copy;
}

static const char *host_ncclGetErrorString(int code) {
  switch (code) {
  case CP_NCCL_SUCCESS: return "no error";
  case CP_NCCL_UNHANDLED_CUDA: return "a device call failed";
  case CP_NCCL_SYSTEM: return "a system call failed";
  case CP_NCCL_INTERNAL: return "internal error";
  case CP_NCCL_INVALID_ARGUMENT: return "invalid argument";
  case CP_NCCL_INVALID_USAGE: return "invalid usage";
  case CP_NCCL_REMOTE: return "a remote process exited or the network failed";
  case CP_NCCL_IN_PROGRESS: return "operation in progress";
  }
  return "unknown result code";
}

// ---- communicator objects ----

static pthread_mutex_t host_comms_mu = PTHREAD_MUTEX_INITIALIZER;
static host_comm *host_comms;

// Called once no thread uses the sockets any more.
static void host_comm_close(host_comm *c) {
  cp_host_close(&c->prev);
  cp_host_close(&c->next);
  for (int i = 0; i < c->nranks; i++) {
    cp_host_close(&c->incoming[i]);
    cp_host_close(&c->outgoing[i].fd);
  }
  cp_host_door_close(&c->door);
  cp_host_door_close(&c->ctl);
  cp_host_close(&c->wake);
}

static void host_comm_drop(host_comm *c) {
  if (atomic_fetch_sub(&c->refs, 1) != 1) return;
  if (!c->closed && c->incoming && c->outgoing) host_comm_close(c);
  cp_host_close(&c->wake);
  while (c->registrations) {
    host_registration *r = c->registrations;
    c->registrations = r->next;
    free(r);
  }
  free(c->redops);
  free(c->peers);
  free(c->from);
  free(c->incoming);
  free(c->outgoing);
  free(c->polls);
  free(c->ins);
  free(c->outs);
  free(c->bounce);
  free(c->stage);
  free(c->scaled);
  pthread_mutex_destroy(&c->mu);
  pthread_cond_destroy(&c->cond);
  free(c);
}

// nranks is an upper limit for a split, which knows its size only later.
static host_comm *host_comm_new(int nranks, int rank, int device, bool blocking) {
  host_comm *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  size_t n = (size_t)nranks;
  atomic_init(&c->refs, 1);
  atomic_init(&c->aborted, 0);
  atomic_init(&c->state, CP_NCCL_IN_PROGRESS);
  pthread_mutex_init(&c->mu, NULL);
  pthread_cond_init(&c->cond, NULL);
  c->nranks = nranks;
  c->rank = rank;
  c->device = device;
  c->blocking = blocking;
  c->prev = c->next = c->door.fd = c->ctl.fd = -1;
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (c->wake >= 0) cp_host_count(CP_HOST_LIVE_SOCKETS, 1);
  c->peers = calloc(n, sizeof *c->peers);
  c->from = calloc(n, sizeof *c->from);
  c->incoming = calloc(n, sizeof *c->incoming);
  c->outgoing = calloc(n, sizeof *c->outgoing);
  c->polls = calloc(2 * n + CP_HOST_PENDING + 3, sizeof *c->polls);
  c->ins = calloc(2 * n, sizeof *c->ins);
  c->outs = calloc(2 * n, sizeof *c->outs);
  c->bounce = malloc(HOST_CHUNK);
  c->stage = malloc(HOST_STAGE);
  c->scaled = malloc(HOST_CHUNK);
  for (int i = 0; i < nranks; i++) {
    if (c->incoming) c->incoming[i] = -1;
    if (c->outgoing) c->outgoing[i].fd = -1;
  }
  if (c->wake >= 0 && c->peers && c->from && c->incoming && c->outgoing && c->polls && c->ins && c->outs && c->bounce && c->stage && c->scaled) return c;
  host_comm_drop(c);
  return NULL;
}

static void host_comm_hold(host_comm *c) { atomic_fetch_add(&c->refs, 1); }

// The handle becomes valid; the registry takes over the caller's reference.
static void host_comm_register(host_comm *c) {
  pthread_mutex_lock(&host_comms_mu);
  c->link = host_comms;
  host_comms = c;
  pthread_mutex_unlock(&host_comms_mu);
  cp_host_count(CP_HOST_LIVE_COMMS, 1);
}

static void host_comm_unregister(host_comm *c) {
  bool found = false;
  pthread_mutex_lock(&host_comms_mu);
  for (host_comm **p = &host_comms; *p && !found; p = &(*p)->link) {
    if (*p != c) continue;
    *p = c->link;
    found = true;
    break;
  }
  pthread_mutex_unlock(&host_comms_mu);
  if (!found) return;
  cp_host_count(CP_HOST_LIVE_COMMS, -1);
  host_comm_drop(c);
}

// The communicator behind a handle, with a reference for the caller; NULL if there is none.
static host_comm *host_comm_get(cp_comm h) {
  pthread_mutex_lock(&host_comms_mu);
  host_comm *c = host_comms;
  while (c && c != h) c = c->link;
  if (c) host_comm_hold(c);
  pthread_mutex_unlock(&host_comms_mu);
  if (!c) host_say(CP_NCCL_INVALID_ARGUMENT, "not a communicator, or one already destroyed");
  return c;
}

// As host_comm_get, but only a communicator that can be used.
static int host_comm_ready(cp_comm h, host_comm **out) {
  host_comm *c = *out = host_comm_get(h);
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  int r = atomic_load(&c->state);
  if (r == CP_NCCL_IN_PROGRESS) r = host_say(CP_NCCL_INVALID_ARGUMENT, "communicator used before its previous operation was complete");
  else if (atomic_load(&c->aborted)) r = host_say(CP_NCCL_INVALID_USAGE, "communicator was aborted");
  if (r == CP_NCCL_SUCCESS) return r;
  host_comm_drop(c);
  *out = NULL;
  return r;
}

static bool host_comm_failed(host_comm *c) {
  int s = atomic_load(&c->state);
  return s != CP_NCCL_SUCCESS && s != CP_NCCL_IN_PROGRESS;
}

// An error stays: what completes after it does not make the communicator whole.
static void host_comm_state(host_comm *c, int code) {
  pthread_mutex_lock(&c->mu);
  if (!host_comm_failed(c)) atomic_store(&c->state, code);
  pthread_cond_broadcast(&c->cond);
  pthread_mutex_unlock(&c->mu);
}

// Waits until all launched operations are complete, or never will be.
static void host_comm_flush(host_comm *c) {
  pthread_mutex_lock(&c->mu);
  while (!atomic_load(&c->aborted) && !host_comm_failed(c) && c->turn != c->tickets) pthread_cond_wait(&c->cond, &c->mu);
  pthread_mutex_unlock(&c->mu);
}

// Ends everything on the communicator and its handle. Any number of threads may do this at the same time.
static void host_comm_end(host_comm *c) {
  uint64_t one = 1;
  pthread_mutex_lock(&c->mu);
  if (!atomic_exchange(&c->aborted, 1) && !c->closed) (void)!write(c->wake, &one, sizeof one);
  pthread_cond_broadcast(&c->cond);
  while (c->running > 0 || c->jobs > 0) pthread_cond_wait(&c->cond, &c->mu);
  if (!c->closed) host_comm_close(c);
  c->closed = true;
  pthread_mutex_unlock(&c->mu);
  host_comm_unregister(c);
}

// ---- the ring ----
//
// Every ring collective is two byte streams: what comes from the previous rank and what goes to the next one. The pieces of the outgoing stream
// are the rank's own first piece (first bytes, may be none) followed by exactly what came in, combined with the rank's own data or as it
// is. So the outgoing stream may run up to first + in_done bytes, and that one rule pipelines all of them without steps or chunks.

typedef struct {
  host_comm *c;
  const host_arith *a;
  int nin, nout, ii, oi; // pieces, and where we are
  size_t io, oo;         // bytes of the current piece done
  size_t total_in, total_out, in_done, out_done, first;
  size_t have;               // bytes in bounce
  bool offers;               // the length of what the previous rank sends has come
  uint64_t offered, taken;   // that length, and how much of it has come
  uint64_t length;           // of what goes to the next rank
  size_t announced;          // bytes of length that are sent
  size_t scaled_at, scaled_len; // part of the first piece that is in scaled
} host_pump;

static size_t host_least(size_t a, size_t b) { return a < b ? a : b; }

static void host_pump_in(host_pump *p, char *dst, const char *own, size_t bytes, bool reduce, bool last) {
  p->c->ins[p->nin++] = (host_in){dst, own, bytes, reduce, last};
  p->total_in += bytes;
}

static void host_pump_out(host_pump *p, const char *src, size_t bytes) {
  p->c->outs[p->nout++] = (host_out){src, bytes};
  p->total_out += bytes;
}

static const void *host_scalar(const host_arith *a) { return a->device_scalar ? a->device_scalar : a->scalar; }

// dst = own (scaled) combined with in; last: in holds the data of all other ranks.
static void host_combine(const host_arith *a, char *dst, const char *own, const char *in, size_t bytes, bool last) {
  char tile[HOST_TILE] __attribute__((aligned(16)));
  int ranks;
  if (!a->scale) a->reduce(dst, own, in, bytes / a->size);
  for (size_t at = 0; a->scale && at < bytes; at += HOST_TILE) {
    size_t n = host_least(HOST_TILE, bytes - at) / a->size;
    cp_host_scale(tile, own + at, n, a->dtype, host_scalar(a));
    a->reduce(dst + at, tile, in + at, n);
  }
  memcpy(&ranks, a->scalar, sizeof ranks); // what an average of integers keeps there
  if (last && a->divide) cp_host_divide(dst, bytes / a->size, a->dtype, ranks);
}

// How many bytes can be received now, and where to. What the previous rank has not sent for this call does not come.
static size_t host_pump_room(host_pump *p, char **to) {
  if (!p->offers || p->taken == p->offered) return 0;
  while (p->ii < p->nin && p->io == p->c->ins[p->ii].bytes) p->ii++, p->io = 0;
  if (p->ii == p->nin) return 0;
  const host_in *in = &p->c->ins[p->ii];
  size_t room = host_least(in->bytes - p->io - p->have, p->offered - p->taken);
  if (!in->reduce) {
    *to = in->dst + p->io;
    return host_least(room, HOST_MOST);
  }
  *to = p->c->bounce + p->have;
  room = host_least(room, HOST_CHUNK - p->have);
  if (in->dst) return room;
  size_t staged = p->in_done - (p->out_done > p->first ? p->out_done - p->first : 0);
  size_t empty = HOST_STAGE - staged;
  return empty > p->have ? host_least(room, empty - p->have) : 0;
}

// n bytes have been received: combines the whole elements.
static void host_pump_absorb(host_pump *p, size_t n) {
  const host_in *in = &p->c->ins[p->ii];
  p->taken += n;
  if (!in->reduce) {
    p->io += n;
    p->in_done += n;
    return;
  }
  p->have += n;
  size_t whole = p->have / p->a->size * p->a->size, at = 0;
  while (at < whole) {
    size_t part = whole - at, off = p->in_done % HOST_STAGE;
    char *dst = in->dst ? in->dst + p->io : p->c->stage + off;
    if (!in->dst) part = host_least(part, HOST_STAGE - off);
    host_combine(p->a, dst, in->own + p->io, p->c->bounce + at, part, in->last);
    at += part;
    p->io += part;
    p->in_done += part;
  }
  p->have -= whole;
  if (p->have > 0 && whole > 0) memmove(p->c->bounce, p->c->bounce + whole, p->have);
}

// How many bytes can be sent now, and where they are.
static size_t host_pump_ready(host_pump *p, const char **from) {
  size_t limit = host_least(p->total_out, p->first + p->in_done);
  if (p->out_done >= limit) return 0;
  while (p->oo == p->c->outs[p->oi].bytes) p->oi++, p->oo = 0;
  const host_out *out = &p->c->outs[p->oi];
  size_t n = host_least(host_least(out->bytes - p->oo, limit - p->out_done), HOST_MOST);
  if (p->out_done < p->first && p->a->scale) {
    if (p->out_done >= p->scaled_at + p->scaled_len) {
      p->scaled_at = p->out_done;
      p->scaled_len = host_least(HOST_CHUNK, p->first - p->out_done);
      cp_host_scale(p->c->scaled, out->src + p->oo, p->scaled_len / p->a->size, p->a->dtype, host_scalar(p->a));
    }
    *from = p->c->scaled + (p->out_done - p->scaled_at);
    return p->scaled_at + p->scaled_len - p->out_done;
  }
  if (out->src) {
    *from = out->src + p->oo;
    return n;
  }
  size_t off = (p->out_done - p->first) % HOST_STAGE;
  *from = p->c->stage + off;
  return host_least(n, HOST_STAGE - off);
}

static bool host_again(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// more: the rest follows at once, so a packet of its own would be a waste.
static int host_send_some(int fd, const char *from, size_t n, size_t *moved, bool more) {
  ssize_t k = send(fd, from, n, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
  *moved = k > 0 ? (size_t)k : 0;
  return k >= 0 || host_again() ? CP_NCCL_SUCCESS : cp_host_net_code(errno);
}

static int host_recv_some(int fd, char *to, size_t n, size_t *moved) {
  ssize_t k = recv(fd, to, n, MSG_DONTWAIT);
  *moved = k > 0 ? (size_t)k : 0;
  if (k == 0) return CP_NCCL_REMOTE;
  return k > 0 || host_again() ? CP_NCCL_SUCCESS : cp_host_net_code(errno);
}

static int host_poll_or_stop(struct pollfd *p, int n, int timeout) {
  if (poll(p, (nfds_t)n, timeout) < 0 && errno != EINTR) return CP_NCCL_SYSTEM;
  return CP_NCCL_SUCCESS;
}

// Reads lengths, and drops what is left of earlier calls, until the length of this call's bytes is there: *offered. With offers NULL this call
// wants none, and only what earlier ones left is read. Blocks for nothing.
static int host_reader_step(host_reader *f, int fd, bool *offers, uint64_t *offered, bool *any) {
  char drop[4096];
  while (offers || f->owed || f->discard) {
    size_t moved;
    char *to = f->discard ? drop : f->head + f->have;
    size_t n = f->discard ? host_least(f->discard, sizeof drop) : sizeof f->head - f->have;
    int r = host_recv_some(fd, to, n, &moved);
    if (r != CP_NCCL_SUCCESS || moved == 0) return r;
    *any = true;
    if (f->discard) {
      f->discard -= moved;
      continue;
    }
    f->have += moved;
    if (f->have < sizeof f->head) continue;
    uint64_t length;
    memcpy(&length, f->head, sizeof length);
    f->have = 0;
    if (f->owed) {
      f->owed--;
      f->discard = length;
      continue;
    }
    *offers = true;
    *offered = length;
    break;
  }
  return CP_NCCL_SUCCESS;
}

// What comes in before the bytes of this call: nothing is waited for when this call wants none.
static int host_pump_offer(host_pump *p, bool *any) {
  host_reader *f = &p->c->from_prev;
  if (p->total_in > 0) return p->offers ? CP_NCCL_SUCCESS : host_reader_step(f, p->c->prev, &p->offers, &p->offered, any);
  host_reader_step(f, p->c->prev, NULL, NULL, any); // an end of the connection is not this call's business
  return CP_NCCL_SUCCESS;
}

static int host_pump_send(host_pump *p, bool *any) {
  const char *from;
  size_t moved;
  if (p->announced < sizeof p->length) {
    int r = host_send_some(p->c->next, (const char *)&p->length + p->announced, sizeof p->length - p->announced, &moved, p->total_out > 0);
    p->announced += moved;
    if (moved) *any = true;
    if (r != CP_NCCL_SUCCESS || p->announced < sizeof p->length) return r;
  }
  size_t n = host_pump_ready(p, &from);
  if (n == 0) return CP_NCCL_SUCCESS;
  int r = host_send_some(p->c->next, from, n, &moved, false);
  p->out_done += moved;
  p->oo += moved;
  if (moved) *any = true;
  return r;
}

static int host_pump_recv(host_pump *p, bool *any) {
  char *to;
  size_t moved;
  int r = host_pump_offer(p, any);
  if (r != CP_NCCL_SUCCESS) return r;
  size_t n = host_pump_room(p, &to);
  if (n == 0) return CP_NCCL_SUCCESS;
  r = host_recv_some(p->c->prev, to, n, &moved);
  if (moved) host_pump_absorb(p, moved), *any = true;
  return r;
}

static int host_pump_sleep(host_pump *p) {
  const char *from;
  char *to;
  // A socket we want nothing of is left out: its end is not our business yet, and poll would not sleep. But of a peer that has sent less than
  // is wanted, and will send no more, the end is all that can still be heard.
  bool short_of = p->offers && p->taken == p->offered && p->in_done < p->total_in;
  short in = (p->total_in > 0 && !p->offers) || host_pump_room(p, &to) ? POLLIN : short_of ? POLLRDHUP : 0;
  bool out = p->announced < sizeof p->length || host_pump_ready(p, &from) > 0;
  struct pollfd polls[3] = {{p->c->wake, POLLIN, 0}, {in ? p->c->prev : -1, in, 0}, {out ? p->c->next : -1, POLLOUT, 0}};
  int r = host_poll_or_stop(polls, 3, -1);
  if (r == CP_NCCL_SUCCESS && in == POLLRDHUP && (polls[1].revents & (POLLRDHUP | POLLERR | POLLHUP))) return CP_NCCL_REMOTE;
  return r;
}

static int host_pump_run(host_pump *p) {
  host_comm *c = p->c;
  p->length = p->total_out;
  if (p->total_in == 0) c->from_prev.owed++;
  while (!atomic_load(&c->aborted)) {
    bool any = false;
    int r = host_pump_send(p, &any);
    if (r == CP_NCCL_SUCCESS) r = host_pump_recv(p, &any);
    if (r != CP_NCCL_SUCCESS) return r;
    if (p->in_done == p->total_in && p->out_done == p->total_out && p->announced == sizeof p->length) {
      c->from_prev.discard += p->offered - p->taken;
      return CP_NCCL_SUCCESS;
    }
    if (any) continue;
    r = host_pump_sleep(p);
    if (r != CP_NCCL_SUCCESS) return r;
  }
  return CP_HOST_STOPPED;
}

static void host_copy_own(char *dst, const char *src, size_t bytes) {
  if (dst != src && bytes > 0) memmove(dst, src, bytes);
}

// Block b of count elements cut into n blocks whose sizes differ by one at most.
static size_t host_block(size_t count, int n, int b, size_t *at) {
  size_t base = count / (size_t)n, rest = count % (size_t)n, i = (size_t)b;
  *at = i * base + host_least(i, rest);
  return base + (i < rest ? 1 : 0);
}

static int host_wrap(int x, int n) { return (x % n + n) % n; }

static void host_plan_all_reduce(host_pump *p, const host_coll *w) {
  int n = p->c->nranks, rank = p->c->rank;
  size_t size = w->arith.size, at;
  for (int s = 0; s < 2 * (n - 1); s++) {
    size_t bytes = host_block(w->count, n, host_wrap(rank - s, n), &at) * size;
    if (s == 0) p->first = bytes;
    host_pump_out(p, (s == 0 ? w->send : w->recv) + at * size, bytes);
    bytes = host_block(w->count, n, host_wrap(rank - s - 1, n), &at) * size;
    host_pump_in(p, w->recv + at * size, w->send + at * size, bytes, s < n - 1, s == n - 2);
  }
}

static void host_plan_reduce_scatter(host_pump *p, const host_coll *w) {
  int n = p->c->nranks, rank = p->c->rank;
  size_t bytes = w->count * w->arith.size;
  p->first = bytes;
  for (int s = 0; s < n - 1; s++) { // block rank - 1 goes first, so that the last to come is our own
    host_pump_out(p, s == 0 ? w->send + (size_t)host_wrap(rank - 1, n) * bytes : NULL, bytes);
    int b = host_wrap(rank - s - 2, n);
    host_pump_in(p, s == n - 2 ? w->recv : NULL, w->send + (size_t)b * bytes, bytes, true, s == n - 2);
  }
}

static void host_plan_all_gather(host_pump *p, const host_coll *w) {
  int n = p->c->nranks, rank = p->c->rank;
  size_t bytes = w->count * w->arith.size;
  host_copy_own(w->recv + (size_t)rank * bytes, w->send, bytes);
  p->first = bytes;
  for (int s = 0; s < n - 1; s++) {
    host_pump_out(p, w->recv + (size_t)host_wrap(rank - s, n) * bytes, bytes);
    host_pump_in(p, w->recv + (size_t)host_wrap(rank - s - 1, n) * bytes, NULL, bytes, false, false);
  }
}

static void host_plan_broadcast(host_pump *p, const host_coll *w) {
  int n = p->c->nranks, place = host_wrap(p->c->rank - w->root, n);
  size_t bytes = w->count * w->arith.size;
  if (place == 0) {
    host_copy_own(w->recv, w->send, bytes);
    p->first = bytes;
    host_pump_out(p, w->send, bytes);
    return;
  }
  host_pump_in(p, w->recv, NULL, bytes, false, false);
  if (place < n - 1) host_pump_out(p, w->recv, bytes);
}

static void host_plan_reduce(host_pump *p, const host_coll *w) {
  int n = p->c->nranks, place = host_wrap(p->c->rank - w->root - 1, n); // the root is last
  size_t bytes = w->count * w->arith.size;
  if (place == 0) {
    p->first = bytes;
    host_pump_out(p, w->send, bytes);
    return;
  }
  host_pump_in(p, place == n - 1 ? w->recv : NULL, w->send, bytes, true, place == n - 1);
  if (place < n - 1) host_pump_out(p, NULL, bytes);
}

static int host_coll_alone(const host_coll *w) {
  if (w->arith.scale) cp_host_scale(w->recv, w->send, w->count, w->arith.dtype, host_scalar(&w->arith));
  else host_copy_own(w->recv, w->send, w->count * w->arith.size);
  return CP_NCCL_SUCCESS;
}

// ---- sends and receives ----

// All sends and receives of one group, in progress. Those to (from) one peer follow each other in the order of the calls.
typedef struct {
  host_comm *c;
  const host_p2p *ops;
  int n, left;
  size_t *done;     // bytes, by operation
  uint64_t *offered; // bytes that the peer sends for a receive, by operation; UINT64_MAX: its length has not come
  uint8_t *announced; // bytes of a send's length that are sent, by operation
  int *after;        // the next operation of the same peer and direction, -1: none
  int *heads[2];    // the current receive, the current send, by peer
} host_swap;

// Operations of a rank with itself: the first send meets the first receive. They are as many of each, which the launch has checked.
static void host_swap_self(host_swap *x) {
  int self = x->c->rank, s = x->heads[1][self], r = x->heads[0][self];
  while (s >= 0 && r >= 0) {
    host_copy_own(x->ops[r].buf, x->ops[s].buf, host_least(x->ops[r].bytes, x->ops[s].bytes));
    s = x->after[s];
    r = x->after[r];
    x->left -= 2;
  }
  x->heads[0][self] = x->heads[1][self] = -1;
}

// tails, of as many ints as heads, is only needed meanwhile.
static bool host_swap_init(host_swap *x, host_comm *c, const host_coll *w) {
  size_t n = (size_t)w->np2p, ranks = (size_t)c->nranks;
  x->c = c;
  x->ops = w->p2p;
  x->n = x->left = w->np2p;
  x->done = calloc(n, sizeof *x->done + sizeof *x->offered + sizeof *x->after + sizeof *x->announced);
  int *heads = malloc(4 * ranks * sizeof *heads);
  x->heads[0] = heads;
  if (!x->done || !heads) return false;
  x->offered = (uint64_t *)(void *)(x->done + n);
  x->after = (int *)(void *)(x->offered + n);
  x->announced = (uint8_t *)(void *)(x->after + n);
  memset(x->offered, 0xff, n * sizeof *x->offered);
  x->heads[1] = heads + ranks;
  int *tails[2] = {heads + 2 * ranks, heads + 3 * ranks};
  for (size_t i = 0; i < 2 * ranks; i++) heads[i] = -1;
  for (int i = 0; i < x->n; i++) {
    int dir = x->ops[i].send, peer = x->ops[i].peer;
    x->after[i] = -1;
    if (x->heads[dir][peer] < 0) x->heads[dir][peer] = i;
    else x->after[tails[dir][peer]] = i;
    tails[dir][peer] = i;
  }
  return true;
}

static void host_swap_advance(host_swap *x, int dir, int peer, size_t moved) {
  int i = x->heads[dir][peer];
  x->done[i] += moved;
  if (x->done[i] < x->ops[i].bytes) return;
  x->heads[dir][peer] = x->after[i];
  x->left--;
}

// Brings the connection to a peer up as far as possible. up: data may be sent.
static int host_outgoing_up(host_comm *c, int peer, bool *up) {
  host_outgoing *o = &c->outgoing[peer];
  *up = false;
  if (o->fd < 0) {
    o->fd = cp_host_dial(&c->peers[peer].p2p);
    if (o->fd < 0) return cp_host_net_code(errno);
    cp_host_greeting(&o->hello, c->cookie, CP_HOST_P2P, c->rank, 0);
  }
  if (!o->dialed) {
    struct pollfd p = {o->fd, POLLOUT, 0};
    if (poll(&p, 1, 0) <= 0) return CP_NCCL_SUCCESS;
    int r = cp_host_dialed(o->fd);
    if (r != CP_NCCL_SUCCESS) return r;
    o->dialed = true;
  }
  while (o->greeted < sizeof o->hello) {
    size_t moved;
    int r = host_send_some(o->fd, (const char *)&o->hello + o->greeted, sizeof o->hello - o->greeted, &moved, true);
    if (r != CP_NCCL_SUCCESS || moved == 0) return r;
    o->greeted += moved;
  }
  *up = true;
  return CP_NCCL_SUCCESS;
}

static int host_swap_send(host_swap *x, int peer, bool *any) {
  bool up;
  int r = host_outgoing_up(x->c, peer, &up);
  if (r != CP_NCCL_SUCCESS || !up) return r;
  int i = x->heads[1][peer], fd = x->c->outgoing[peer].fd;
  const host_p2p *op = &x->ops[i];
  uint64_t length = op->bytes;
  size_t moved;
  if (x->announced[i] < sizeof length) {
    r = host_send_some(fd, (const char *)&length + x->announced[i], sizeof length - x->announced[i], &moved, true);
    x->announced[i] += (uint8_t)moved;
    if (moved) *any = true;
    if (r != CP_NCCL_SUCCESS || x->announced[i] < sizeof length) return r;
  }
  r = host_send_some(fd, op->buf + x->done[i], host_least(op->bytes - x->done[i], HOST_MOST), &moved, false);
  if (moved == 0) return r;
  host_swap_advance(x, 1, peer, moved);
  *any = true;
  return r;
}

static int host_swap_recv(host_swap *x, int peer, bool *any, bool *door) {
  host_comm *c = x->c;
  if (c->incoming[peer] < 0) c->incoming[peer] = cp_host_door_take(&c->door, CP_HOST_P2P, peer, 0);
  if (c->incoming[peer] < 0) {
    *door = true;
    return CP_NCCL_SUCCESS;
  }
  int i = x->heads[0][peer];
  const host_p2p *op = &x->ops[i];
  if (x->offered[i] == UINT64_MAX) {
    bool offers = false;
    uint64_t offered;
    int r = host_reader_step(&c->from[peer], c->incoming[peer], &offers, &offered, any);
    if (!offers) return r;
    x->offered[i] = offered;
  }
  size_t at = x->done[i], moved;
  if (at == x->offered[i]) { // and no more comes for this call; only the peer's end can still be heard
    struct pollfd end = {c->incoming[peer], POLLRDHUP, 0};
    return poll(&end, 1, 0) > 0 ? CP_NCCL_REMOTE : CP_NCCL_SUCCESS;
  }
  int r = host_recv_some(c->incoming[peer], op->buf + at, host_least(host_least(op->bytes, x->offered[i]) - at, HOST_MOST), &moved);
  if (moved == 0) return r;
  if (at + moved == op->bytes) c->from[peer].discard = x->offered[i] - op->bytes;
  host_swap_advance(x, 0, peer, moved);
  *any = true;
  return r;
}

static int host_swap_sleep(host_swap *x, bool door) {
  host_comm *c = x->c;
  struct pollfd *p = c->polls;
  int n = 0, timeout = -1;
  p[n++] = (struct pollfd){c->wake, POLLIN, 0};
  for (int i = 0; i < c->nranks; i++) {
    if (x->heads[1][i] >= 0) p[n++] = (struct pollfd){c->outgoing[i].fd, POLLOUT, 0};
    int k = x->heads[0][i];
    if (k < 0 || c->incoming[i] < 0) continue;
    p[n++] = (struct pollfd){c->incoming[i], x->done[k] == x->offered[k] ? POLLRDHUP : POLLIN, 0};
  }
  if (door) {
    n += cp_host_door_poll(&c->door, p + n);
    timeout = cp_host_door_timeout(&c->door);
  }
  return host_poll_or_stop(p, n, timeout);
}

static int host_swap_step(host_swap *x, bool *any, bool *door) {
  int r = CP_NCCL_SUCCESS;
  for (int i = 0; i < x->c->nranks && r == CP_NCCL_SUCCESS; i++) {
    if (x->heads[1][i] >= 0) r = host_swap_send(x, i, any);
    if (r == CP_NCCL_SUCCESS && x->heads[0][i] >= 0) r = host_swap_recv(x, i, any, door);
  }
  return r;
}

static int host_swap_run(host_comm *c, const host_coll *w) {
  host_swap x;
  int r = host_swap_init(&x, c, w) ? CP_NCCL_SUCCESS : CP_NCCL_SYSTEM;
  if (r == CP_NCCL_SUCCESS) host_swap_self(&x);
  while (r == CP_NCCL_SUCCESS && x.left > 0) {
    bool any = false, door = false;
    if (atomic_load(&c->aborted)) r = CP_HOST_STOPPED;
    if (r == CP_NCCL_SUCCESS) r = host_swap_step(&x, &any, &door);
    if (r == CP_NCCL_SUCCESS && x.left > 0 && !any) r = host_swap_sleep(&x, door);
    if (r == CP_NCCL_SUCCESS && door) r = cp_host_door_serve(&c->door);
  }
  free(x.done);
  free(x.heads[0]);
  return r;
}

// ---- running an operation ----

static int host_coll_do(const host_coll *w) {
  host_comm *c = w->comm;
  if (w->func == HOST_SWAP) return host_swap_run(c, w);
  if (c->nranks == 1) return host_coll_alone(w);
  host_pump p;
  memset(&p, 0, sizeof p);
  p.c = c;
  p.a = &w->arith;
  switch (w->func) {
  case HOST_ALL_REDUCE: host_plan_all_reduce(&p, w); break;
  case HOST_BROADCAST: host_plan_broadcast(&p, w); break;
  case HOST_REDUCE: host_plan_reduce(&p, w); break;
  case HOST_ALL_GATHER: host_plan_all_gather(&p, w); break;
  case HOST_REDUCE_SCATTER: host_plan_reduce_scatter(&p, w); break;
  }
  return host_pump_run(&p);
}

static uint64_t host_coll_launch(cp_host_work *w) {
  host_comm *c = ((host_coll *)w)->comm;
  pthread_mutex_lock(&c->mu);
  uint64_t ticket = c->tickets++;
  pthread_mutex_unlock(&c->mu);
  return ticket;
}

static void host_coll_run(cp_host_work *base, uint64_t ticket) {
  const host_coll *w = (const host_coll *)base;
  host_comm *c = w->comm;
  pthread_mutex_lock(&c->mu);
  while (!atomic_load(&c->aborted) && c->turn != ticket) pthread_cond_wait(&c->cond, &c->mu);
  bool go = !atomic_load(&c->aborted);
  if (go) c->running++;
  pthread_mutex_unlock(&c->mu);
  if (!go) return;
  int r = host_coll_do(w);
  pthread_mutex_lock(&c->mu);
  if (r != CP_NCCL_SUCCESS && r != CP_HOST_STOPPED) {
    host_say(r, r == CP_NCCL_REMOTE ? "rank %d: a peer closed its connection" : "rank %d: a system call failed", c->rank);
    if (!host_comm_failed(c)) atomic_store(&c->state, r);
    pthread_cond_broadcast(&c->cond);
    while (!atomic_load(&c->aborted)) pthread_cond_wait(&c->cond, &c->mu); // as NCCL's kernel: it does not return with an error
  }
  c->running--;
  c->turn++;
  pthread_cond_broadcast(&c->cond);
  pthread_mutex_unlock(&c->mu);
}

static void host_coll_free(cp_host_work *base) {
  host_comm_drop(((host_coll *)base)->comm);
  free(base);
}

static host_coll *host_coll_new(host_comm *c, int np2p) {
  host_coll *w = calloc(1, sizeof *w + (size_t)np2p * sizeof w->p2p[0]);
  if (!w) return NULL;
  w->work.run = host_coll_run;
  w->work.launch = host_coll_launch;
  w->work.release = host_coll_free;
  atomic_init(&w->work.refs, 1);
  host_comm_hold(c);
  w->comm = c;
  w->np2p = np2p;
  return w;
}

// ---- initialisation and split ----

static bool host_job_enter(host_comm *c) {
  if (!c) return true;
  pthread_mutex_lock(&c->mu);
  bool ok = !atomic_load(&c->aborted);
  if (ok) c->jobs++;
  pthread_mutex_unlock(&c->mu);
  return ok;
}

static void host_job_leave(host_comm *c) {
  if (!c) return;
  pthread_mutex_lock(&c->mu);
  c->jobs--;
  pthread_cond_broadcast(&c->cond);
  pthread_mutex_unlock(&c->mu);
}

// Connects the ring once the peers are known.
static int host_ring_up(host_comm *c, const int stop[2]) {
  if (c->nranks == 1) return CP_NCCL_SUCCESS;
  cp_host_hello hello;
  int r = cp_host_connect(&c->peers[host_wrap(c->rank + 1, c->nranks)].p2p, stop, &c->next);
  cp_host_greeting(&hello, c->cookie, CP_HOST_RING, c->rank, 0);
  if (r == CP_NCCL_SUCCESS) r = cp_host_move(c->next, stop, &hello, sizeof hello, true);
  if (r == CP_NCCL_SUCCESS) r = cp_host_door_await(&c->door, stop, CP_HOST_RING, host_wrap(c->rank - 1, c->nranks), 0, &c->prev);
  return r;
}

static int host_doors_up(host_comm *c, const cp_host_addr *local, cp_host_peer *me) {
  memset(me, 0, sizeof *me);
  me->process = cp_host_process();
  me->host = cp_host_machine();
  me->device = c->device;
  me->rank = c->rank;
  int r = cp_host_door_open(&c->door, local, c->cookie, &me->p2p);
  return r != CP_NCCL_SUCCESS ? r : cp_host_door_open(&c->ctl, local, c->cookie, &me->ctl);
}

// Where a machine cannot be told from another, only a process can.
static bool host_same_device(const cp_host_peer *a, const cp_host_peer *b) {
  return a->device == b->device && (a->process == b->process || (a->host != 0 && a->host == b->host));
}

static int host_duplicates(const host_comm *c) {
  for (int i = 0; i < c->nranks; i++) {
    for (int j = 0; j < i; j++) {
      if (!host_same_device(&c->peers[i], &c->peers[j])) continue;
      return host_say(CP_NCCL_INVALID_USAGE, "duplicate device: ranks %d and %d both use virtual device %d of one host", j, i, c->peers[i].device);
    }
  }
  return CP_NCCL_SUCCESS;
}

static int host_init_do(host_job *j) {
  host_comm *c = j->comm;
  const int stop[2] = {c->wake, -1};
  cp_host_addr local;
  cp_host_peer me;
  int root = -1;
  int r = cp_host_root_join(&j->id, stop, &root, &local);
  if (r == CP_NCCL_INVALID_USAGE) host_say(r, "COMMPROBE_HOST_ADDR is not an IPv4 or IPv6 address that other ranks can connect to");
  if (r == CP_NCCL_REMOTE) host_say(r, "rank %d: the bootstrap root does not answer: the process that made the unique id has ended or closed it", c->rank);
  if (r == CP_NCCL_SUCCESS) {
    r = host_doors_up(c, &local, &me);
    if (r != CP_NCCL_SUCCESS) host_say(r, "rank %d: cannot listen for other ranks", c->rank);
  }
  if (r == CP_NCCL_SUCCESS) {
    r = cp_host_root_exchange(&j->id, stop, root, c->nranks, &me, c->peers);
    if (r == CP_NCCL_REMOTE) host_say(r, "rank %d: the bootstrap root closed the connection: ranks disagree on their number, or two have the same", c->rank);
  }
  cp_host_close(&root);
  if (r == CP_NCCL_SUCCESS) r = host_duplicates(c);
  if (r != CP_NCCL_SUCCESS) return r;
  r = host_ring_up(c, stop);
  if (r == CP_NCCL_REMOTE) host_say(r, "rank %d: a neighbour's process ended during initialisation", c->rank);
  return r;
}

// Hands every rank's entry round the ring of the parent, over connections of its own so that operations are not disturbed.
static int host_split_exchange(host_comm *p, uint64_t seq, const int stop[2], cp_host_peer *all) {
  int n = p->nranks, rank = p->rank, next = -1, prev = -1;
  cp_host_hello hello;
  if (n == 1) return CP_NCCL_SUCCESS;
  cp_host_greeting(&hello, p->cookie, CP_HOST_CTL, rank, seq);
  int r = cp_host_connect(&p->peers[host_wrap(rank + 1, n)].ctl, stop, &next);
  if (r == CP_NCCL_SUCCESS) r = cp_host_move(next, stop, &hello, sizeof hello, true);
  if (r == CP_NCCL_SUCCESS) r = cp_host_door_await(&p->ctl, stop, CP_HOST_CTL, host_wrap(rank - 1, n), seq, &prev);
  for (int s = 0; s < n - 1 && r == CP_NCCL_SUCCESS; s++) {
    r = cp_host_move(next, stop, &all[host_wrap(rank - s, n)], sizeof all[0], true);
    if (r == CP_NCCL_SUCCESS) r = cp_host_move(prev, stop, &all[host_wrap(rank - s - 1, n)], sizeof all[0], false);
  }
  cp_host_close(&next);
  cp_host_close(&prev);
  return r;
}

static int host_peer_order(const void *a, const void *b) {
  const cp_host_peer *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : 1;
}

// Picks the ranks of our colour and gives them their new numbers.
static void host_split_choose(host_comm *c, const cp_host_peer *all, int n, int color) {
  int old = c->rank, m = 0;
  for (int i = 0; i < n; i++) {
    if (all[i].color == color) c->peers[m++] = all[i];
  }
  qsort(c->peers, (size_t)m, sizeof *c->peers, host_peer_order);
  c->nranks = m;
  for (int i = 0; i < m; i++) {
    if (c->peers[i].rank == old) c->rank = i;
  }
  for (int i = 0; i < m; i++) c->peers[i].rank = i;
}

static int host_split_do(host_job *j) {
  host_comm *p = j->parent, *c = j->comm;
  const int stop[2] = {p->wake, c ? c->wake : -1};
  cp_host_peer *all = calloc((size_t)p->nranks, sizeof *all), *me = all ? &all[p->rank] : NULL;
  int r = all ? CP_NCCL_SUCCESS : CP_NCCL_SYSTEM;
  pthread_mutex_lock(&p->mu); // splits of one parent go one by one, in the order of the calls
  while (!atomic_load(&p->aborted) && p->split_turn != j->seq) pthread_cond_wait(&p->cond, &p->mu);
  pthread_mutex_unlock(&p->mu);
  if (c && r == CP_NCCL_SUCCESS) {
    c->cookie = cp_host_mix(cp_host_mix(p->cookie, j->seq), (uint64_t)j->color);
    r = host_doors_up(c, &p->peers[p->rank].p2p, me);
  }
  if (r == CP_NCCL_SUCCESS) {
    me->color = j->color;
    me->key = j->key;
    me->rank = p->rank;
    r = host_split_exchange(p, j->seq, stop, all);
  }
  pthread_mutex_lock(&p->mu);
  p->split_turn++;
  pthread_cond_broadcast(&p->cond);
  pthread_mutex_unlock(&p->mu);
  if (c && r == CP_NCCL_SUCCESS) {
    host_split_choose(c, all, p->nranks, j->color);
    r = host_ring_up(c, stop);
  }
  free(all);
  if (r == CP_NCCL_REMOTE) host_say(r, "rank %d: a peer closed its connection during a split", p->rank);
  return r;
}

static int host_finalize_do(host_comm *c) {
  host_comm_flush(c);
  return host_comm_failed(c) ? atomic_load(&c->state) : CP_NCCL_SUCCESS;
}

static int host_job_do(host_job *j) {
  bool parent = host_job_enter(j->parent), own = parent && host_job_enter(j->comm);
  int r = CP_HOST_STOPPED;
  if (own && j->kind == HOST_JOB_INIT) r = host_init_do(j);
  if (own && j->kind == HOST_JOB_SPLIT) r = host_split_do(j);
  if (own && j->kind == HOST_JOB_FINALIZE) r = host_finalize_do(j->comm);
  if (r == CP_HOST_STOPPED) r = host_say(CP_NCCL_INTERNAL, "communicator was aborted meanwhile");
  if (r == CP_NCCL_SYSTEM) host_say(r, "rank %d: a system call failed", j->comm ? j->comm->rank : j->parent->rank);
  // The states are set before jobs counts down: who waits for that may tear the communicator down. That of the parent is last, because
  // it tells that the new communicator is complete.
  if (j->comm) host_comm_state(j->comm, r);
  if (j->parent && !j->blocking) host_comm_state(j->parent, r);
  if (own) host_job_leave(j->comm);
  if (parent) host_job_leave(j->parent);
  return r;
}

static void host_job_free(host_job *j) {
  if (j->comm) host_comm_drop(j->comm);
  if (j->parent) host_comm_drop(j->parent);
  free(j);
}

static void *host_job_main(void *arg) {
  host_job *j = arg;
  j->result = host_job_do(j);
  return NULL;
}

static void *host_job_aside(void *arg) {
  host_job_do(arg);
  host_job_free(arg);
  cp_host_count(CP_HOST_LIVE_THREADS, -1);
  return NULL;
}

// The handle of a job that failed or never ran becomes invalid again.
static void host_job_undo(host_job *j) {
  if (j->kind == HOST_JOB_FINALIZE || !j->comm) return;
  if (j->out) __atomic_store_n(j->out, NULL, __ATOMIC_RELEASE);
  host_comm_end(j->comm);
}

// Splits of one parent are numbered when they start, in the order of the calls, so that one that was dropped leaves no gap.
static void host_job_number(host_job *j) {
  host_comm *p = j->parent;
  if (j->kind != HOST_JOB_SPLIT) return;
  pthread_mutex_lock(&p->mu);
  j->seq = p->splits++;
  if (!j->blocking && !host_comm_failed(p)) atomic_store(&p->state, CP_NCCL_IN_PROGRESS);
  pthread_mutex_unlock(&p->mu);
}

static int host_job_start_aside(host_job *j) {
  cp_host_count(CP_HOST_LIVE_THREADS, 1);
  if (cp_host_thread(host_job_aside, j, NULL) == 0) return CP_NCCL_IN_PROGRESS; // the thread frees the job
  cp_host_count(CP_HOST_LIVE_THREADS, -1);
  host_job_undo(j);
  host_job_free(j);
  return host_say(CP_NCCL_SYSTEM, "cannot start a thread");
}

// Runs the jobs of a group at the same time, because the ranks of one communicator wait for each other.
static int host_jobs_run(host_job **jobs, int n) {
  int result = CP_NCCL_SUCCESS, blocking = 0;
  for (int i = 0; i < n; i++) host_job_number(jobs[i]);
  for (int i = 0; i < n; i++) {
    if (jobs[i]->blocking) {
      jobs[blocking++] = jobs[i];
      continue;
    }
    int r = host_job_start_aside(jobs[i]);
    if (result == CP_NCCL_SUCCESS || result == CP_NCCL_IN_PROGRESS) result = r;
  }
  for (int i = 1; i < blocking; i++) {
    jobs[i]->result = CP_NCCL_SYSTEM;
    jobs[i]->started = cp_host_thread(host_job_main, jobs[i], &jobs[i]->thread) == 0;
  }
  if (blocking > 0) host_job_main(jobs[0]);
  for (int i = 0; i < blocking; i++) {
    if (jobs[i]->started) pthread_join(jobs[i]->thread, NULL);
    int r = jobs[i]->result;
    if (r != CP_NCCL_SUCCESS) host_job_undo(jobs[i]);
    if (r != CP_NCCL_SUCCESS && (result == CP_NCCL_SUCCESS || result == CP_NCCL_IN_PROGRESS)) result = r;
    host_job_free(jobs[i]);
  }
  return result;
}

// ---- groups ----

static int host_ncclGroupStart(void) {
  host_group.depth++;
  return CP_NCCL_SUCCESS;
}

static host_item *host_group_add(host_comm *c, cp_stream s) {
  if (host_group.n == host_group.cap) {
    int cap = host_group.cap ? 2 * host_group.cap : 8;
    host_item *grown = realloc(host_group.items, (size_t)cap * sizeof *grown);
    if (!grown) return NULL;
    host_group.items = grown;
    host_group.cap = cap;
  }
  host_item *it = &host_group.items[host_group.n++];
  *it = (host_item){.comm = c, .stream = s};
  host_comm_hold(c);
  return it;
}

static int host_group_add_job(host_job *j) {
  host_job **grown = realloc(host_group.jobs, (size_t)(host_group.njobs + 1) * sizeof *grown);
  if (!grown) return CP_NCCL_SYSTEM;
  host_group.jobs = grown;
  host_group.jobs[host_group.njobs++] = j;
  return CP_NCCL_SUCCESS;
}

static int host_cuda(int code) {
  if (code == CP_CUDA_SUCCESS) return CP_NCCL_SUCCESS;
  return host_say(CP_NCCL_UNHANDLED_CUDA, "a device call failed with code %d", code);
}

// All streams of a group's sends and receives wait for each other, as they do in NCCL: s is the one that the operation runs on.
static int host_batch_order(host_item *items, int n, host_comm *c, cp_stream s, bool before) {
  int r = CP_NCCL_SUCCESS;
  for (int i = 0; i < n && r == CP_NCCL_SUCCESS; i++) {
    if (items[i].comm != c || items[i].coll || items[i].stream == s) continue;
    bool seen = false;
    for (int k = 0; k < i; k++) seen |= items[k].comm == c && !items[k].coll && items[k].stream == items[i].stream;
    if (!seen) r = host_cuda(before ? cp_host_after(s, items[i].stream, c->device) : cp_host_after(items[i].stream, s, c->device));
  }
  return r;
}

// Makes one operation of all sends and receives of one communicator.
static int host_batch_launch(host_item *items, int n, int at) {
  host_comm *c = items[at].comm;
  int count = 0, self = 0;
  for (int i = at; i < n; i++) count += items[i].comm == c && !items[i].coll;
  host_coll *w = host_coll_new(c, count);
  if (!w) return CP_NCCL_SYSTEM;
  w->func = HOST_SWAP;
  count = 0;
  for (int i = at; i < n; i++) {
    if (items[i].comm != c || items[i].coll) continue;
    items[i].taken = true;
    w->p2p[count++] = items[i].p2p;
    if (items[i].p2p.peer == c->rank) self += items[i].p2p.send ? 1 : -1;
  }
  int r = CP_NCCL_SUCCESS;
  if (self != 0) r = host_say(CP_NCCL_INVALID_USAGE, "rank %d: a %s to itself has no match in the group", c->rank, self > 0 ? "send" : "receive");
  if (r == CP_NCCL_SUCCESS) r = host_batch_order(items, n, c, items[at].stream, true);
  if (r == CP_NCCL_SUCCESS) r = host_cuda(cp_host_submit(items[at].stream, c->device, &w->work));
  if (r == CP_NCCL_SUCCESS) r = host_batch_order(items, n, c, items[at].stream, false);
  cp_host_work_drop(&w->work);
  return r;
}

static int host_group_launch(host_item *items, int n) {
  int r = CP_NCCL_SUCCESS;
  for (int i = 0; i < n && r == CP_NCCL_SUCCESS; i++) {
    if (items[i].coll) r = host_cuda(cp_host_submit(items[i].stream, items[i].comm->device, &items[i].coll->work));
  }
  for (int i = 0; i < n && r == CP_NCCL_SUCCESS; i++) {
    if (!items[i].coll && !items[i].taken) r = host_batch_launch(items, n, i);
  }
  return r;
}

static int host_ncclGroupEnd(void) {
  if (host_group.depth == 0) return host_say(CP_NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
  if (--host_group.depth > 0) return CP_NCCL_SUCCESS;
  host_item *items = host_group.items;
  host_job **jobs = host_group.jobs;
  int n = host_group.n, njobs = host_group.njobs, r = host_group.err;
  memset(&host_group, 0, sizeof host_group);
  if (r == CP_NCCL_SUCCESS) r = host_jobs_run(jobs, njobs);
  else {
    for (int i = 0; i < njobs; i++) {
      host_job_undo(jobs[i]);
      host_job_free(jobs[i]);
    }
  }
  if (r == CP_NCCL_SUCCESS || r == CP_NCCL_IN_PROGRESS) {
    int launched = host_group_launch(items, n);
    if (launched != CP_NCCL_SUCCESS) r = launched;
  }
  for (int i = 0; i < n; i++) {
    if (items[i].coll) cp_host_work_drop(&items[i].coll->work);
    host_comm_drop(items[i].comm);
  }
  free(items);
  free(jobs);
  return r;
}

// Every call is a group of its own, within the caller's if there is one. r: what became of adding it.
static int host_group_close(int r) {
  if (r != CP_NCCL_SUCCESS && host_group.err == CP_NCCL_SUCCESS) host_group.err = r;
  int e = host_ncclGroupEnd();
  return r != CP_NCCL_SUCCESS ? r : e;
}

// ---- calls on communicators ----

static int host_ncclGetVersion(int *version) {
  if (!version) return host_say(CP_NCCL_INVALID_ARGUMENT, "version is null");
  *version = HOST_VERSION;
  return CP_NCCL_SUCCESS;
}

static int host_ncclGetUniqueId(cp_unique_id *id) {
  const char *why;
  if (!id) return host_say(CP_NCCL_INVALID_ARGUMENT, "id is null");
  int r = cp_host_root_start(id, &why);
  return r == CP_NCCL_SUCCESS ? r : host_say(r, "%s", why);
}

static int host_config_blocking(const cp_nccl_config *config, bool inherited, bool *blocking) {
  *blocking = inherited;
  if (!config) return CP_NCCL_SUCCESS;
  if (config->magic != CP_NCCL_CONFIG_MAGIC) return host_say(CP_NCCL_INVALID_ARGUMENT, "config was not initialised");
  if (config->size < offsetof(cp_nccl_config, blocking) + sizeof config->blocking) return CP_NCCL_SUCCESS;
  if (config->blocking == CP_NCCL_CONFIG_UNDEF_INT) return CP_NCCL_SUCCESS;
  if (config->blocking != 0 && config->blocking != 1) return host_say(CP_NCCL_INVALID_ARGUMENT, "config: blocking must be 0 or 1");
  *blocking = config->blocking;
  return CP_NCCL_SUCCESS;
}

static host_job *host_job_new(int kind, host_comm *c, host_comm *parent, cp_comm *out) {
  host_job *j = calloc(1, sizeof *j);
  if (!j) return NULL;
  j->kind = kind;
  j->out = out;
  j->comm = c;
  j->parent = parent;
  if (c) host_comm_hold(c);
  if (parent) host_comm_hold(parent);
  return j;
}

// The handle is published before the job runs, so that another thread can abort an initialisation that never ends.
static int host_job_queue(host_job *j) {
  int r = host_group_add_job(j);
  if (r == CP_NCCL_SUCCESS) return r;
  host_job_undo(j);
  host_job_free(j);
  return r;
}

static int host_init_add(cp_comm *out, int nranks, const cp_unique_id *id, int rank, int device, const cp_nccl_config *config) {
  bool blocking;
  uint64_t cookie;
  if (!out) return host_say(CP_NCCL_INVALID_ARGUMENT, "comm is null");
  *out = NULL;
  if (nranks < 1 || rank < 0 || rank >= nranks) return host_say(CP_NCCL_INVALID_ARGUMENT, "rank %d of %d ranks", rank, nranks);
  if (!cp_host_id_cookie(id, &cookie)) return host_say(CP_NCCL_INVALID_ARGUMENT, "unique id was not made by the host engine");
  int r = host_config_blocking(config, true, &blocking);
  if (r != CP_NCCL_SUCCESS) return r;
  host_comm *c = host_comm_new(nranks, rank, device, blocking);
  if (!c) return host_say(CP_NCCL_SYSTEM, "no memory or descriptors for a communicator");
  c->cookie = cookie;
  host_job *j = host_job_new(HOST_JOB_INIT, c, NULL, out);
  if (!j) {
    host_comm_drop(c);
    return CP_NCCL_SYSTEM;
  }
  j->id = *id;
  j->blocking = blocking;
  host_comm_register(c);
  __atomic_store_n(out, (cp_comm)c, __ATOMIC_RELEASE);
  return host_job_queue(j);
}

static int host_ncclCommInitRankConfig(cp_comm *comm, int nranks, cp_unique_id id, int rank, cp_nccl_config *config) {
  host_ncclGroupStart();
  return host_group_close(host_init_add(comm, nranks, &id, rank, cp_host_current_device(), config));
}

static int host_ncclCommInitRank(cp_comm *comm, int nranks, cp_unique_id id, int rank) {
  return host_ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

static int host_ncclCommInitAll(cp_comm *comms, int ndev, const int *devices) {
  cp_unique_id id;
  if (!comms || ndev < 1) return host_say(CP_NCCL_INVALID_ARGUMENT, "no communicators asked for");
  for (int i = 0; i < ndev; i++) {
    int d = devices ? devices[i] : i;
    if (d < 0 || d >= cp_host_device_count()) return host_say(CP_NCCL_INVALID_ARGUMENT, "no virtual device %d", d);
    for (int k = 0; devices && k < i; k++) {
      if (devices[k] == d) return host_say(CP_NCCL_INVALID_USAGE, "duplicate device: virtual device %d twice", d);
    }
  }
  int r = host_ncclGetUniqueId(&id);
  host_ncclGroupStart();
  for (int i = 0; i < ndev && r == CP_NCCL_SUCCESS; i++) r = host_init_add(&comms[i], ndev, &id, i, devices ? devices[i] : i, NULL);
  return host_group_close(r);
}

static int host_split_add(cp_comm h, int color, int key, cp_comm *out, const cp_nccl_config *config) {
  host_comm *p, *c = NULL;
  bool blocking;
  if (!out) return host_say(CP_NCCL_INVALID_ARGUMENT, "the new communicator's address is null");
  *out = NULL;
  if (color < HOST_NOCOLOR) return host_say(CP_NCCL_INVALID_ARGUMENT, "colour %d", color);
  int r = host_comm_ready(h, &p);
  if (r != CP_NCCL_SUCCESS) return r;
  r = host_config_blocking(config, p->blocking, &blocking);
  if (r == CP_NCCL_SUCCESS && color >= 0) {
    c = host_comm_new(p->nranks, p->rank, p->device, blocking);
    if (!c) r = host_say(CP_NCCL_SYSTEM, "no memory or descriptors for a communicator");
  }
  host_job *j = r == CP_NCCL_SUCCESS ? host_job_new(HOST_JOB_SPLIT, c, p, out) : NULL;
  if (r == CP_NCCL_SUCCESS && !j) r = CP_NCCL_SYSTEM;
  if (r != CP_NCCL_SUCCESS) {
    if (c) host_comm_drop(c);
    host_comm_drop(p);
    return r;
  }
  j->color = color;
  j->key = key;
  j->blocking = blocking;
  if (c) {
    host_comm_register(c);
    __atomic_store_n(out, (cp_comm)c, __ATOMIC_RELEASE);
  }
  host_comm_drop(p);
  return host_job_queue(j);
}

static int host_ncclCommSplit(cp_comm comm, int color, int key, cp_comm *out, cp_nccl_config *config) {
  host_ncclGroupStart();
  return host_group_close(host_split_add(comm, color, key, out, config));
}

static int host_ncclCommFinalize(cp_comm h) {
  host_comm *c;
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  pthread_mutex_lock(&c->mu);
  bool again = c->finalized;
  c->finalized = true;
  pthread_mutex_unlock(&c->mu);
  if (again) r = host_say(CP_NCCL_INVALID_USAGE, "communicator is finalised already");
  else if (c->blocking) {
    host_comm_flush(c);
    r = atomic_load(&c->aborted) ? host_say(CP_NCCL_INTERNAL, "communicator was aborted") : atomic_load(&c->state);
  } else {
    host_job *j = host_job_new(HOST_JOB_FINALIZE, c, NULL, NULL);
    if (j) host_comm_state(c, CP_NCCL_IN_PROGRESS);
    r = j ? host_job_start_aside(j) : CP_NCCL_SYSTEM;
  }
  host_comm_drop(c);
  return r;
}

// Waits for what was launched, as a correct program has it complete; after an error there is nothing to wait for.
static int host_ncclCommDestroy(cp_comm h) {
  host_comm *c = h ? host_comm_get(h) : NULL;
  if (!h) return CP_NCCL_SUCCESS;
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  pthread_mutex_lock(&c->mu);
  while (!atomic_load(&c->aborted) && c->jobs > 0) pthread_cond_wait(&c->cond, &c->mu);
  pthread_mutex_unlock(&c->mu);
  host_comm_flush(c);
  host_comm_end(c);
  host_comm_drop(c);
  return CP_NCCL_SUCCESS;
}

static int host_ncclCommAbort(cp_comm h) {
  host_comm *c = h ? host_comm_get(h) : NULL;
  if (!h) return CP_NCCL_SUCCESS;
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  host_comm_end(c);
  host_comm_drop(c);
  return CP_NCCL_SUCCESS;
}

static int host_ncclCommGetAsyncError(cp_comm h, int *error) {
  host_comm *c = host_comm_get(h);
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  if (error) *error = atomic_load(&c->state);
  host_comm_drop(c);
  return error ? CP_NCCL_SUCCESS : host_say(CP_NCCL_INVALID_ARGUMENT, "error is null");
}

static int host_comm_number(cp_comm h, int *value, size_t field) {
  host_comm *c;
  if (!value) return host_say(CP_NCCL_INVALID_ARGUMENT, "null argument");
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  memcpy(value, (char *)c + field, sizeof *value);
  host_comm_drop(c);
  return r;
}

static int host_ncclCommCount(cp_comm h, int *n) { return host_comm_number(h, n, offsetof(host_comm, nranks)); }
static int host_ncclCommCuDevice(cp_comm h, int *n) { return host_comm_number(h, n, offsetof(host_comm, device)); }
static int host_ncclCommUserRank(cp_comm h, int *n) { return host_comm_number(h, n, offsetof(host_comm, rank)); }

// ---- collectives ----

// Turns a data type and an operation into what the loops need. op below 0: no arithmetic.
static int host_arith_set(host_comm *c, host_arith *a, int dtype, int op, bool reduces) {
  memset(a, 0, sizeof *a);
  a->dtype = dtype;
  a->size = cp_host_type_size(dtype);
  if (a->size == 0) return host_say(CP_NCCL_INVALID_ARGUMENT, "data type %d", dtype);
  if (!reduces) return CP_NCCL_SUCCESS;
  if (op < 0) return host_say(CP_NCCL_INVALID_ARGUMENT, "reduction %d", op);
  a->reduce = cp_host_reducer(dtype, op < CP_AVG ? op : CP_SUM);
  if (op < CP_AVG) return CP_NCCL_SUCCESS;
  if (op == CP_AVG) {
    a->divide = cp_host_type_is_integer(dtype);
    a->scale = !a->divide && c->nranks > 1;
    if (a->divide) memcpy(a->scalar, &c->nranks, sizeof c->nranks);
    else cp_host_reciprocal(a->scalar, dtype, c->nranks);
    return CP_NCCL_SUCCESS;
  }
  int i = op - CP_AVG - 1, r = CP_NCCL_SUCCESS;
  pthread_mutex_lock(&c->mu);
  if (i >= c->nredops || !c->redops[i].used) r = host_say(CP_NCCL_INVALID_ARGUMENT, "reduction %d does not exist", op);
  else if (c->redops[i].dtype != dtype) r = host_say(CP_NCCL_INVALID_ARGUMENT, "reduction %d was made for data type %d, not %d", op, c->redops[i].dtype, dtype);
  else {
    a->scale = true;
    a->device_scalar = c->redops[i].device_scalar;
    memcpy(a->scalar, c->redops[i].scalar, sizeof a->scalar);
  }
  pthread_mutex_unlock(&c->mu);
  return r;
}

static int host_check(host_comm *c, size_t count, size_t size, int root, const void *send, const void *recv) {
  pthread_mutex_lock(&c->mu);
  bool finalized = c->finalized;
  pthread_mutex_unlock(&c->mu);
  if (finalized) return host_say(CP_NCCL_INVALID_USAGE, "communicator is finalised");
  if (root < 0 || root >= c->nranks) return host_say(CP_NCCL_INVALID_ARGUMENT, "root or peer %d of %d ranks", root, c->nranks);
  if (count > SIZE_MAX / 4 / size / (size_t)c->nranks) return host_say(CP_NCCL_INVALID_ARGUMENT, "count %zu is too large", count);
  if (count > 0 && (!send || !recv)) return host_say(CP_NCCL_INVALID_ARGUMENT, "%s buffer is null", send ? "receive" : "send");
  return CP_NCCL_SUCCESS;
}

static int host_coll_add(int func, const void *send, void *recv, size_t count, int dtype, int op, int root, cp_comm h, cp_stream s) {
  host_comm *c;
  host_arith a;
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  bool reduces = func == HOST_ALL_REDUCE || func == HOST_REDUCE || func == HOST_REDUCE_SCATTER;
  static const char unused = 0; // stands for a buffer that this rank does not have
  const void *need_send = func == HOST_BROADCAST && c->rank != root ? &unused : send;
  const void *need_recv = func == HOST_REDUCE && c->rank != root ? &unused : recv;
  r = host_arith_set(c, &a, dtype, op, reduces);
  if (r == CP_NCCL_SUCCESS) r = host_check(c, count, a.size, root, need_send, need_recv);
  if (r == CP_NCCL_SUCCESS && count > 0) {
    host_coll *w = host_coll_new(c, 0);
    host_item *it = w ? host_group_add(c, s) : NULL;
    if (it) {
      w->func = func;
      w->root = root;
      w->send = send;
      w->recv = recv;
      w->count = count;
      w->arith = a;
      it->coll = w;
    } else {
      r = CP_NCCL_SYSTEM;
      if (w) cp_host_work_drop(&w->work);
    }
  }
  host_comm_drop(c);
  return r;
}

static int host_collective(int func, const void *send, void *recv, size_t count, int dtype, int op, int root, cp_comm comm, cp_stream s) {
  host_ncclGroupStart();
  return host_group_close(host_coll_add(func, send, recv, count, dtype, op, root, comm, s));
}

static int host_ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, cp_comm comm, cp_stream s) {
  return host_collective(HOST_ALL_REDUCE, send, recv, count, dtype, op, 0, comm, s);
}

static int host_ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return host_collective(HOST_BROADCAST, send, recv, count, dtype, CP_SUM, root, comm, s);
}

static int host_ncclReduce(const void *send, void *recv, size_t count, int dtype, int op, int root, cp_comm comm, cp_stream s) {
  return host_collective(HOST_REDUCE, send, recv, count, dtype, op, root, comm, s);
}

static int host_ncclAllGather(const void *send, void *recv, size_t count, int dtype, cp_comm comm, cp_stream s) {
  return host_collective(HOST_ALL_GATHER, send, recv, count, dtype, CP_SUM, 0, comm, s);
}

static int host_ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, cp_comm comm, cp_stream s) {
  return host_collective(HOST_REDUCE_SCATTER, send, recv, count, dtype, op, 0, comm, s);
}

// Adds one send or receive. bytes is 0 for none.
static int host_p2p_put(host_comm *c, cp_stream s, int peer, bool send, const char *buf, size_t bytes) {
  if (bytes == 0) return CP_NCCL_SUCCESS;
  host_item *it = host_group_add(c, s);
  if (!it) return CP_NCCL_SYSTEM;
  it->p2p = (host_p2p){.peer = peer, .send = send, .buf = (char *)(uintptr_t)buf, .bytes = bytes};
  return CP_NCCL_SUCCESS;
}

static int host_p2p_add(bool send, const void *buf, size_t count, int dtype, int peer, cp_comm h, cp_stream s) {
  host_comm *c;
  host_arith a;
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  r = host_arith_set(c, &a, dtype, CP_SUM, false);
  if (r == CP_NCCL_SUCCESS) r = host_check(c, count, a.size, peer, buf, buf);
  if (r == CP_NCCL_SUCCESS) r = host_p2p_put(c, s, peer, send, buf, count * a.size);
  host_comm_drop(c);
  return r;
}

static int host_ncclSend(const void *send, size_t count, int dtype, int peer, cp_comm comm, cp_stream s) {
  host_ncclGroupStart();
  return host_group_close(host_p2p_add(true, send, count, dtype, peer, comm, s));
}

static int host_ncclRecv(void *recv, size_t count, int dtype, int peer, cp_comm comm, cp_stream s) {
  host_ncclGroupStart();
  return host_group_close(host_p2p_add(false, recv, count, dtype, peer, comm, s));
}

enum { HOST_ALL_TO_ALL, HOST_GATHER, HOST_SCATTER };

// The collectives that are sends and receives: blocks of send go to their ranks, and blocks of recv come from theirs.
static int host_composed_add(int kind, const char *send, char *recv, size_t count, int dtype, int root, cp_comm h, cp_stream s) {
  host_comm *c;
  host_arith a;
  static const char unused = 0;
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  bool sends = kind != HOST_SCATTER || c->rank == root, receives = kind != HOST_GATHER || c->rank == root;
  r = host_arith_set(c, &a, dtype, CP_SUM, false);
  if (r == CP_NCCL_SUCCESS) r = host_check(c, count, a.size, root, sends ? send : &unused, receives ? recv : &unused);
  size_t bytes = r == CP_NCCL_SUCCESS ? count * a.size : 0;
  for (int i = 0; i < c->nranks && r == CP_NCCL_SUCCESS && bytes > 0; i++) {
    size_t at = (size_t)i * bytes;
    if (kind == HOST_GATHER ? i == root : sends) r = host_p2p_put(c, s, i, true, send + (kind == HOST_GATHER ? 0 : at), bytes);
    if (r == CP_NCCL_SUCCESS && (kind == HOST_SCATTER ? i == root : receives)) r = host_p2p_put(c, s, i, false, recv + (kind == HOST_SCATTER ? 0 : at), bytes);
  }
  host_comm_drop(c);
  return r;
}

static int host_composed(int kind, const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  host_ncclGroupStart();
  return host_group_close(host_composed_add(kind, send, recv, count, dtype, root, comm, s));
}

static int host_ncclAlltoAll(const void *send, void *recv, size_t count, int dtype, cp_comm comm, cp_stream s) {
  return host_composed(HOST_ALL_TO_ALL, send, recv, count, dtype, 0, comm, s);
}

static int host_ncclGather(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return host_composed(HOST_GATHER, send, recv, count, dtype, root, comm, s);
}

static int host_ncclScatter(const void *send, void *recv, size_t count, int dtype, int root, cp_comm comm, cp_stream s) {
  return host_composed(HOST_SCATTER, send, recv, count, dtype, root, comm, s);
}

// ---- memory, registration, reductions ----

static int host_ncclMemAlloc(void **p, size_t bytes) { return host_cuda(cp_host_alloc(p, bytes)); }
static int host_ncclMemFree(void *p) { return host_cuda(cp_host_release(p)); }

static int host_register(cp_comm h, void *p, size_t bytes, void **handle, bool window) {
  host_comm *c;
  if (!p || bytes == 0 || !handle) return host_say(CP_NCCL_INVALID_ARGUMENT, "nothing to register");
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  host_registration *reg = calloc(1, sizeof *reg);
  if (reg) {
    reg->window = window;
    pthread_mutex_lock(&c->mu);
    reg->next = c->registrations;
    c->registrations = reg;
    pthread_mutex_unlock(&c->mu);
    *handle = reg;
  } else r = CP_NCCL_SYSTEM;
  host_comm_drop(c);
  return r;
}

static int host_deregister(cp_comm h, void *handle, bool window) {
  host_registration *found = NULL;
  host_comm *c = host_comm_get(h);
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  pthread_mutex_lock(&c->mu);
  for (host_registration **p = &c->registrations; *p; p = &(*p)->next) {
    if (*p != handle || (*p)->window != window) continue;
    found = *p;
    *p = found->next;
    break;
  }
  pthread_mutex_unlock(&c->mu);
  host_comm_drop(c);
  free(found);
  return found ? CP_NCCL_SUCCESS : host_say(CP_NCCL_INVALID_ARGUMENT, "not a registration of this communicator");
}

static int host_ncclCommRegister(cp_comm comm, void *p, size_t bytes, void **handle) { return host_register(comm, p, bytes, handle, false); }
static int host_ncclCommDeregister(cp_comm comm, void *handle) { return host_deregister(comm, handle, false); }

static int host_ncclCommWindowRegister(cp_comm comm, void *p, size_t bytes, cp_window *win, int flags) {
  if (flags & ~CP_WIN_COLL_SYMMETRIC) return host_say(CP_NCCL_INVALID_ARGUMENT, "window flags %d", flags);
  return host_register(comm, p, bytes, win, true);
}

static int host_ncclCommWindowDeregister(cp_comm comm, cp_window win) { return host_deregister(comm, win, true); }

// A place in the communicator's list of reductions; -1: no memory. Called under its mu.
static int host_redop_slot(host_comm *c) {
  for (int i = 0; i < c->nredops; i++) {
    if (!c->redops[i].used) return i;
  }
  host_redop *grown = realloc(c->redops, (size_t)(c->nredops + 1) * sizeof *grown);
  if (!grown) return -1;
  c->redops = grown;
  return c->nredops++;
}

static int host_ncclRedOpCreatePreMulSum(int *op, void *scalar, int dtype, int residence, cp_comm h) {
  host_comm *c;
  size_t size = cp_host_type_size(dtype);
  if (!op || !scalar || size == 0) return host_say(CP_NCCL_INVALID_ARGUMENT, "reduction without scalar, place for its handle or data type");
  if (residence != CP_SCALAR_DEVICE && residence != CP_SCALAR_HOST_IMMEDIATE) return host_say(CP_NCCL_INVALID_ARGUMENT, "scalar residence %d", residence);
  int r = host_comm_ready(h, &c);
  if (r != CP_NCCL_SUCCESS) return r;
  pthread_mutex_lock(&c->mu);
  int i = host_redop_slot(c);
  if (i >= 0) {
    host_redop *x = &c->redops[i];
    memset(x, 0, sizeof *x);
    x->used = true;
    x->dtype = dtype;
    if (residence == CP_SCALAR_DEVICE) x->device_scalar = scalar;
    else memcpy(x->scalar, scalar, size);
    *op = CP_AVG + 1 + i;
  }
  pthread_mutex_unlock(&c->mu);
  host_comm_drop(c);
  return i < 0 ? CP_NCCL_SYSTEM : CP_NCCL_SUCCESS;
}

static int host_ncclRedOpDestroy(int op, cp_comm h) {
  host_comm *c = host_comm_get(h);
  if (!c) return CP_NCCL_INVALID_ARGUMENT;
  int i = op - CP_AVG - 1;
  pthread_mutex_lock(&c->mu);
  bool ok = i >= 0 && i < c->nredops && c->redops[i].used;
  if (ok) c->redops[i].used = false;
  pthread_mutex_unlock(&c->mu);
  host_comm_drop(c);
  return ok ? CP_NCCL_SUCCESS : host_say(CP_NCCL_INVALID_ARGUMENT, "reduction %d does not exist", op);
}

#define HOST_SET(name, params, args) t->name = host_##name;

void cp_host_fill_nccl(cp_nccl_table *t) { CP_NCCL_FUNCS(HOST_SET) CP_NCCL_TEXT(HOST_SET) }
