// The host engine: the CUDA and NCCL function tables on CPU threads, process memory and TCP sockets.
//
// This header is the contract between the engine's files (host_*.c), the kernels compiled into the binary (verify_host.c) and the
// leak tests. Behaviour that differs from CUDA or NCCL is listed at the top of host_cuda.c and host_nccl.c.
#ifndef CP_HOST_H
#define CP_HOST_H

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "abi.h"

// ---- kernels: provided by verify_host.c ----

// The number of parameters of the kernel that cp_host_kernel(name) answers, 0 to 16; negative if there is no such kernel.
// The driver API does not say how wide a parameter is. So the engine copies eight bytes a parameter at launch, and every caller of
// cuLaunchKernel must keep each parameter in an eight-byte slot of its own (narrower values at the slot's start).
int cp_host_kernel_params(const char *name);

// ---- leak tests ----

enum { // what cp_host_live counts
  CP_HOST_LIVE_ALL = 0, // the sum of all below
  CP_HOST_LIVE_STREAMS = 1,
  CP_HOST_LIVE_EVENTS = 2,
  CP_HOST_LIVE_ALLOCATIONS = 3, // device and pinned memory
  CP_HOST_LIVE_COMMS = 4,       // handles not yet destroyed or aborted
  CP_HOST_LIVE_GRAPHS = 5,      // graphs and executable graphs
  CP_HOST_LIVE_MODULES = 6,
  CP_HOST_LIVE_THREADS = 7, // stream workers, side threads, bootstrap roots; not the workers of NULL streams, which live as long as the process
  CP_HOST_LIVE_SOCKETS = 8, // open sockets and wake-up descriptors of communicators and bootstrap roots
  CP_HOST_LIVE_KINDS = 9,
};

// Counts what is alive in this process. Threads end shortly after their stream or communicator was destroyed, so a test polls.
int cp_host_live(int what);

// ---- work on streams: host_cuda.c, used by host_nccl.c ----

typedef struct cp_host_work cp_host_work;

// One thing to do on a stream. A graph may run the same work many times, so run must not change it; what differs from run to run
// is in the ticket, which launch draws at the moment of (each) launch, under the stream's lock.
struct cp_host_work {
  void (*run)(cp_host_work *w, uint64_t ticket);
  uint64_t (*launch)(cp_host_work *w); // may be NULL
  void (*release)(cp_host_work *w);    // frees it
  atomic_int refs;
};

void cp_host_work_drop(cp_host_work *w);

// Puts w on the stream (NULL: the default stream of device), or records it if the stream is capturing. Takes a reference of its own.
// Answers a CUDA code.
int cp_host_submit(cp_stream s, int device, cp_host_work *w);

// Makes later work of s wait for all work submitted to earlier so far. Answers a CUDA code.
int cp_host_after(cp_stream s, cp_stream earlier, int device);

int cp_host_current_device(void);
int cp_host_device_count(void);
int cp_host_alloc(void **p, size_t bytes); // cudaMalloc
int cp_host_release(void *p);              // cudaFree
int64_t cp_host_now(void);                 // CLOCK_MONOTONIC in nanoseconds
void cp_host_count(int what, int delta);

// Starts a thread with all signals blocked, so that Go's handlers never run on it. joinable NULL: detached. Answers 0 or an errno value.
int cp_host_thread(void *(*fn)(void *), void *arg, pthread_t *joinable);

// ---- arithmetic: host_math.c ----

size_t cp_host_type_size(int dtype);    // 0: no such type
bool cp_host_type_is_integer(int dtype);

typedef void (*cp_host_reduce_fn)(void *dst, const void *a, const void *b, size_t n); // dst may be a or b
cp_host_reduce_fn cp_host_reducer(int dtype, int op);                                  // op: sum, prod, max, min

void cp_host_scale(void *dst, const void *src, size_t n, int dtype, const void *scalar); // dst = src * scalar, rounded to the type
void cp_host_divide(void *dst, size_t n, int dtype, int ranks);                          // integers, towards zero
void cp_host_reciprocal(void *scalar, int dtype, int ranks);                             // 1/ranks rounded to the type

// ---- sockets and bootstrap: host_net.c ----

typedef union {
  struct sockaddr sa;
  struct sockaddr_in in4;
  struct sockaddr_in6 in6;
} cp_host_addr;

enum { CP_HOST_STOPPED = -1 }; // beside the NCCL codes: the communicator was aborted meanwhile

enum { // what a connection to a communicator's door is for
  CP_HOST_RING = 1,
  CP_HOST_P2P = 2,
  CP_HOST_CTL = 3,
};

// First bytes on every connection between ranks. All ranks are builds of this program on machines of one byte order.
typedef struct {
  uint64_t magic, cookie, seq;
  uint32_t kind;
  int32_t from;
} cp_host_hello;

// What a rank tells the others of itself.
typedef struct {
  uint64_t process; // random, one value a process
  uint64_t host;    // see cp_host_machine
  int32_t device, rank, color, key;
  cp_host_addr p2p, ctl; // its two doors
} cp_host_peer;

enum { CP_HOST_PENDING = 64 };

typedef struct {
  int fd;
  size_t have;
  int64_t deadline;
  cp_host_hello hello;
} cp_host_pending;

// A listening socket and the connections that came in through it. Used by one thread at a time.
typedef struct {
  int fd;
  uint64_t cookie;
  int npending, narrived, cap;
  cp_host_pending pending[CP_HOST_PENDING]; // hello not complete yet
  cp_host_pending *arrived;                 // hello complete, not taken yet
} cp_host_door;

void cp_host_close(int *fd);
int cp_host_net_code(int err); // errno value to NCCL code
int cp_host_dial(const cp_host_addr *to);
int cp_host_dialed(int fd); // after POLLOUT: NCCL code
int cp_host_move(int fd, const int stop[2], void *buf, size_t bytes, bool out);
int cp_host_connect(const cp_host_addr *to, const int stop[2], int *fd);

void cp_host_greeting(cp_host_hello *h, uint64_t cookie, int kind, int from, uint64_t seq);
int cp_host_door_open(cp_host_door *d, const cp_host_addr *at, uint64_t cookie, cp_host_addr *bound);
void cp_host_door_close(cp_host_door *d);
int cp_host_door_poll(const cp_host_door *d, struct pollfd *p); // fills at most CP_HOST_PENDING + 1 entries; answers how many
int cp_host_door_serve(cp_host_door *d);                        // accepts and reads without blocking
int cp_host_door_timeout(const cp_host_door *d);                // for poll, in milliseconds; -1: none
int cp_host_door_take(cp_host_door *d, int kind, int from, uint64_t seq); // a socket or -1
int cp_host_door_await(cp_host_door *d, const int stop[2], int kind, int from, uint64_t seq, int *fd);

// Opens a bootstrap root in this process and writes how to reach it. why is set on failure.
int cp_host_root_start(cp_unique_id *id, const char **why);
int cp_host_root_join(const cp_unique_id *id, const int stop[2], int *root, cp_host_addr *local);
int cp_host_root_exchange(const cp_unique_id *id, const int stop[2], int root, int nranks, const cp_host_peer *me, cp_host_peer *all);
bool cp_host_id_cookie(const cp_unique_id *id, uint64_t *cookie); // false: not an id of the host engine
uint64_t cp_host_process(void);
uint64_t cp_host_machine(void); // one value for all ranks of a host, 0: cannot tell
uint64_t cp_host_mix(uint64_t a, uint64_t b);

// ---- table parts ----

void cp_host_fill_nccl(cp_nccl_table *nccl); // host_nccl.c

#endif
