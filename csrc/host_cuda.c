// The CUDA half of the host engine: virtual devices, memory, streams, events, graphs, kernels.
//
// A stream is a worker thread with a queue of 1024 entries; a launch into a full queue waits, as a real launch queue makes it wait.
// Device memory is process memory, so every pointer is valid everywhere and peers can always be reached.
//
// What differs from CUDA:
// - Versions are reported as 0 and the compute capability as 0.0: this is not CUDA.
// - Legacy default stream: work on it waits for work submitted earlier to the blocking streams of its device and the other way round.
//   The per-thread default stream does not exist.
// - Capture: the capture modes are all treated as relaxed. Streams that join a capture through events are recorded into one sequence, in
//   the order of the calls, so branches of a graph do not run at the same time. Work on a NULL stream cannot be captured.
// - A kernel's grid, block and shared memory are not passed on to it, and a parameter is eight bytes (host.h).
// - Priorities have no effect. IPC handles answer cudaErrorNotSupported.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

enum {
  HOST_QUEUE = 1024,
  HOST_MAX_DEVICES = 1024,
  HOST_MAX_PARAMS = 16,
  HOST_STREAM_MAGIC = 0x53545231,
  HOST_EVENT_MAGIC = 0x45564e31,
  HOST_GRAPH_MAGIC = 0x47524631,
  HOST_EXEC_MAGIC = 0x47524532,
  HOST_MODULE_MAGIC = 0x4d4f4431,
  HOST_FUNCTION_MAGIC = 0x46554e31,
  // Codes that only this engine answers.
  HOST_ILLEGAL_STATE = 401,
  HOST_CAPTURE_UNMATCHED = 903,
  HOST_CAPTURE_ISOLATION = 905,
  HOST_CAPTURED_EVENT = 907,
  HOST_HUGE = 1 << 20, // from here on memory comes straight from the system
};

// What a capturing stream records. Streams and events that take part hold references.
typedef struct {
  atomic_int refs, ended;
  pthread_mutex_t mu;
  void *origin; // the stream that began it, only compared
  cp_host_work **works;
  size_t n, cap;
} host_capture;

typedef struct {
  cp_host_work *work;
  uint64_t ticket;
} host_slot;

typedef struct host_stream {
  uint32_t magic;
  int device;
  unsigned flags;
  bool is_null;
  atomic_int refs;
  pthread_mutex_t mu;
  pthread_cond_t more, progress;
  host_slot queue[HOST_QUEUE];
  _Atomic uint64_t tail, done; // entries ever submitted and ever completed; written under mu
  int waiters;
  bool closing;
  host_capture *capture;
  struct host_stream *next; // all streams of the process, under host_mu
} host_stream;

// The point in a stream that an event recorded. It outlives a new record of the event as long as somebody waits for it.
typedef struct {
  cp_host_work work;
  pthread_mutex_t mu;
  pthread_cond_t reached;
  bool done;
  int64_t ns;
} host_mark;

typedef struct {
  uint32_t magic;
  int device;
  unsigned flags;
  pthread_mutex_t mu;
  host_mark *mark;
  host_capture *capture;
} host_event;

typedef struct {
  uint32_t magic;
  size_t n;
  cp_host_work **works;
  atomic_int refs;
  pthread_mutex_t mu; // held while a launch is submitted, so taken before a stream's
  host_stream *last;  // where the latest launch went, and its place there
  uint64_t last_seq;
} host_graph; // a graph, or an executable one

typedef struct host_alloc {
  char *base;
  size_t bytes, mapped;
  int device; // -1: pinned host memory
  struct host_alloc *next;
} host_alloc;

typedef struct host_function {
  uint32_t magic;
  cp_host_kernel_fn fn;
  int nparams;
  struct host_function *next;
} host_function;

typedef struct {
  uint32_t magic;
  host_function *functions;
} host_module;

// Lock order: an executable graph's mu, host_mu, a stream's mu, then a capture's, an event's, a mark's or a communicator's mu. None of the last is taken under another.
static pthread_mutex_t host_mu = PTHREAD_MUTEX_INITIALIZER;
static int host_devices;
static host_stream *host_streams;
static host_stream *host_nulls[HOST_MAX_DEVICES];
static host_alloc *host_allocs;
static size_t host_used[HOST_MAX_DEVICES];
static unsigned char *host_peers; // bit matrix of enabled peer access
static atomic_int host_null_count;
static atomic_int host_lives[CP_HOST_LIVE_KINDS];

static __thread int host_device;
static __thread int host_last_error;

static int host_fail(int code) {
  if (code != CP_CUDA_SUCCESS) host_last_error = code;
  return code;
}

void cp_host_count(int what, int delta) { atomic_fetch_add(&host_lives[what], delta); }

int cp_host_live(int what) {
  if (what < 0 || what >= CP_HOST_LIVE_KINDS) return -1;
  if (what != CP_HOST_LIVE_ALL) return atomic_load(&host_lives[what]);
  int sum = 0;
  for (int i = 1; i < CP_HOST_LIVE_KINDS; i++) sum += atomic_load(&host_lives[i]);
  return sum;
}

int64_t cp_host_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int cp_host_current_device(void) { return host_device; }
int cp_host_device_count(void) { return host_devices; }

int cp_host_thread(void *(*fn)(void *), void *arg, pthread_t *joinable) {
  sigset_t all, old;
  pthread_attr_t attr;
  pthread_t t;
  sigfillset(&all);
  int err = pthread_attr_init(&attr);
  if (err != 0) return err;
  pthread_attr_setstacksize(&attr, 1 << 20);
  if (!joinable) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &old); // the new thread inherits it
  err = pthread_create(joinable ? joinable : &t, &attr, fn, arg);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attr);
  return err;
}

// ---- work ----

static void host_work_hold(cp_host_work *w) { atomic_fetch_add(&w->refs, 1); }

void cp_host_work_drop(cp_host_work *w) {
  if (atomic_fetch_sub(&w->refs, 1) == 1) w->release(w);
}

static void host_work_free(cp_host_work *w) { free(w); }

static void host_works_drop(cp_host_work **works, size_t n) {
  for (size_t i = 0; i < n; i++) cp_host_work_drop(works[i]);
  free(works);
}

// ---- capture ----

static void host_capture_drop(host_capture *c) {
  if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
  host_works_drop(c->works, c->n);
  pthread_mutex_destroy(&c->mu);
  free(c);
}

static int host_capture_add(host_capture *c, cp_host_work *w) {
  int err = CP_CUDA_SUCCESS;
  pthread_mutex_lock(&c->mu);
  if (c->n == c->cap) {
    size_t cap = c->cap ? 2 * c->cap : 16;
    cp_host_work **works = realloc(c->works, cap * sizeof *works);
    if (!works) err = CP_CUDA_OUT_OF_MEMORY;
    else c->works = works, c->cap = cap;
  }
  if (err == CP_CUDA_SUCCESS) {
    host_work_hold(w);
    c->works[c->n++] = w;
  }
  pthread_mutex_unlock(&c->mu);
  return err;
}

// ---- streams ----

static void host_stream_drop(host_stream *s) {
  if (atomic_fetch_sub(&s->refs, 1) != 1) return;
  pthread_mutex_destroy(&s->mu);
  pthread_cond_destroy(&s->more);
  pthread_cond_destroy(&s->progress);
  free(s);
}

static void host_stream_unlink(host_stream *s) {
  pthread_mutex_lock(&host_mu);
  for (host_stream **p = &host_streams; *p; p = &(*p)->next) {
    if (*p != s) continue;
    *p = s->next;
    break;
  }
  pthread_mutex_unlock(&host_mu);
}

static void *host_stream_main(void *arg) {
  host_stream *s = arg;
  bool counted = !s->is_null;
  pthread_mutex_lock(&s->mu);
  for (;;) {
    while (s->done == s->tail && !s->closing) pthread_cond_wait(&s->more, &s->mu);
    if (s->done == s->tail) break;
    host_slot e = s->queue[s->done % HOST_QUEUE];
    pthread_mutex_unlock(&s->mu);
    e.work->run(e.work, e.ticket);
    cp_host_work_drop(e.work);
    pthread_mutex_lock(&s->mu);
    s->done++;
    if (s->waiters > 0) pthread_cond_broadcast(&s->progress);
  }
  pthread_mutex_unlock(&s->mu);
  host_stream_unlink(s);
  host_stream_drop(s);
  if (counted) cp_host_count(CP_HOST_LIVE_THREADS, -1);
  return NULL;
}

// Called under host_mu. The stream has one reference for its handle and one for its worker.
static host_stream *host_stream_new(int device, unsigned flags, bool is_null) {
  host_stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->magic = HOST_STREAM_MAGIC;
  s->device = device;
  s->flags = flags;
  s->is_null = is_null;
  atomic_init(&s->refs, 2);
  pthread_mutex_init(&s->mu, NULL);
  pthread_cond_init(&s->more, NULL);
  pthread_cond_init(&s->progress, NULL);
  if (!is_null) cp_host_count(CP_HOST_LIVE_THREADS, 1);
  if (cp_host_thread(host_stream_main, s, NULL) != 0) {
    if (!is_null) cp_host_count(CP_HOST_LIVE_THREADS, -1);
    atomic_store(&s->refs, 1);
    host_stream_drop(s);
    return NULL;
  }
  s->next = host_streams;
  host_streams = s;
  return s;
}

// The stream behind a handle; NULL and 1 (cudaStreamLegacy) are the default stream of the device.
static host_stream *host_stream_get(cp_stream h, int device, int *err) {
  host_stream *s = h;
  *err = CP_CUDA_SUCCESS;
  if (h != NULL && (uintptr_t)h != 1) {
    if ((uintptr_t)h > 2 && s->magic == HOST_STREAM_MAGIC) return s;
    *err = CP_CUDA_INVALID_RESOURCE_HANDLE;
    return NULL;
  }
  pthread_mutex_lock(&host_mu);
  s = host_nulls[device];
  if (!s) {
    s = host_nulls[device] = host_stream_new(device, CP_STREAM_DEFAULT, true);
    if (s) atomic_fetch_add(&host_null_count, 1);
  }
  pthread_mutex_unlock(&host_mu);
  if (!s) *err = CP_CUDA_OUT_OF_MEMORY;
  return s;
}

static void host_stream_wait(host_stream *s, uint64_t seq) {
  if (atomic_load(&s->done) >= seq) return;
  pthread_mutex_lock(&s->mu);
  s->waiters++;
  while (s->done < seq) pthread_cond_wait(&s->progress, &s->mu);
  s->waiters--;
  pthread_mutex_unlock(&s->mu);
}

// Called under s->mu. May wait for room; the worker does not need the caller to go on.
static void host_push(host_stream *s, cp_host_work *w) {
  s->waiters++;
  while (s->tail - s->done >= HOST_QUEUE) pthread_cond_wait(&s->progress, &s->mu);
  s->waiters--;
  host_work_hold(w);
  s->queue[s->tail % HOST_QUEUE] = (host_slot){w, w->launch ? w->launch(w) : 0};
  s->tail++;
  pthread_cond_signal(&s->more);
}

typedef struct {
  cp_host_work work;
  host_stream *stream;
  uint64_t seq;
} host_wait;

static void host_wait_run(cp_host_work *w, uint64_t ticket) {
  host_wait *x = (host_wait *)w;
  (void)ticket;
  host_stream_wait(x->stream, x->seq);
}

static void host_wait_free(cp_host_work *w) {
  host_stream_drop(((host_wait *)w)->stream);
  free(w);
}

static host_wait *host_wait_new(host_stream *on, uint64_t seq) {
  host_wait *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->work.run = host_wait_run;
  w->work.release = host_wait_free;
  atomic_init(&w->work.refs, 1);
  atomic_fetch_add(&on->refs, 1);
  w->stream = on;
  w->seq = seq;
  return w;
}

// A point in a stream to wait for, with a reference on the stream.
typedef struct {
  host_stream *stream;
  uint64_t seq;
} host_point;

// Collects the unfinished streams of a device (-1: all), under host_mu so that none goes away. legacy: only those that the
// default stream synchronises with; except is left out. Answers how many, or -1.
static int host_pending(int device, bool legacy, const host_stream *except, host_point **points) {
  int n = 0, cap = 0;
  *points = NULL;
  pthread_mutex_lock(&host_mu);
  for (host_stream *s = host_streams; s; s = s->next) {
    if (s == except || (device >= 0 && s->device != device) || (legacy && s->flags & CP_STREAM_NON_BLOCKING)) continue;
    uint64_t tail = atomic_load(&s->tail);
    if (atomic_load(&s->done) >= tail) continue;
    if (n == cap) {
      cap = cap ? 2 * cap : 8;
      host_point *grown = realloc(*points, (size_t)cap * sizeof *grown);
      if (!grown) {
        pthread_mutex_unlock(&host_mu);
        for (int i = 0; i < n; i++) host_stream_drop((*points)[i].stream);
        free(*points);
        *points = NULL;
        return -1;
      }
      *points = grown;
    }
    atomic_fetch_add(&s->refs, 1);
    (*points)[n++] = (host_point){s, tail};
  }
  pthread_mutex_unlock(&host_mu);
  return n;
}

static int host_pending_wait(int device, bool legacy) {
  host_point *points;
  int n = host_pending(device, legacy, NULL, &points);
  if (n < 0) return CP_CUDA_OUT_OF_MEMORY;
  for (int i = 0; i < n; i++) {
    host_stream_wait(points[i].stream, points[i].seq);
    host_stream_drop(points[i].stream);
  }
  free(points);
  return CP_CUDA_SUCCESS;
}

// Which earlier work the legacy rules make the next entry of s wait for.
static int host_legacy_points(host_stream *s, host_point **points) {
  *points = NULL;
  if (s->is_null) return host_pending(s->device, true, s, points);
  if (s->flags & CP_STREAM_NON_BLOCKING || atomic_load(&host_null_count) == 0) return 0;
  pthread_mutex_lock(&host_mu);
  host_stream *z = host_nulls[s->device];
  pthread_mutex_unlock(&host_mu);
  uint64_t tail = z ? atomic_load(&z->tail) : 0;
  if (!z || atomic_load(&z->done) >= tail) return 0;
  *points = malloc(sizeof **points);
  if (!*points) return -1;
  atomic_fetch_add(&z->refs, 1);
  (*points)[0] = (host_point){z, tail};
  return 1;
}

// Submits w; seq tells, if wanted, what to wait for until it is done (0: it was only recorded).
static int host_submit(host_stream *s, cp_host_work *w, uint64_t *seq) {
  host_point *points;
  int n = host_legacy_points(s, &points), err = n < 0 ? CP_CUDA_OUT_OF_MEMORY : CP_CUDA_SUCCESS;
  pthread_mutex_lock(&s->mu);
  if (s->capture) {
    if (err == CP_CUDA_SUCCESS) err = host_capture_add(s->capture, w);
    if (seq) *seq = 0;
  } else {
    for (int i = 0; i < n && err == CP_CUDA_SUCCESS; i++) {
      host_wait *x = host_wait_new(points[i].stream, points[i].seq);
      if (x) host_push(s, &x->work), cp_host_work_drop(&x->work);
      else err = CP_CUDA_OUT_OF_MEMORY;
    }
    if (err == CP_CUDA_SUCCESS) host_push(s, w);
    if (seq) *seq = s->tail;
  }
  pthread_mutex_unlock(&s->mu);
  for (int i = 0; i < n; i++) host_stream_drop(points[i].stream);
  free(points);
  return err;
}

int cp_host_submit(cp_stream h, int device, cp_host_work *w) {
  int err;
  host_stream *s = host_stream_get(h, device, &err);
  if (s && s->device != device) err = CP_CUDA_INVALID_RESOURCE_HANDLE;
  return err != CP_CUDA_SUCCESS ? err : host_submit(s, w, NULL);
}

static bool host_capturing(host_stream *s) {
  pthread_mutex_lock(&s->mu);
  bool yes = s->capture != NULL;
  pthread_mutex_unlock(&s->mu);
  return yes;
}

int cp_host_after(cp_stream h, cp_stream earlier, int device) {
  int err;
  host_stream *s = host_stream_get(h, device, &err), *e = s ? host_stream_get(earlier, device, &err) : NULL;
  if (!s || !e) return err;
  // Both in a capture: the order of the calls is the order of the graph already.
  if (s == e || host_capturing(s) || host_capturing(e)) return CP_CUDA_SUCCESS;
  host_wait *x = host_wait_new(e, atomic_load(&e->tail));
  if (!x) return CP_CUDA_OUT_OF_MEMORY;
  err = host_submit(s, &x->work, NULL);
  cp_host_work_drop(&x->work);
  return err;
}

static int host_cudaStreamCreateWithFlags(cp_stream *out, unsigned flags) {
  if (!out || flags & ~(unsigned)CP_STREAM_NON_BLOCKING) return host_fail(CP_CUDA_INVALID_VALUE);
  pthread_mutex_lock(&host_mu);
  host_stream *s = host_stream_new(host_device, flags, false);
  pthread_mutex_unlock(&host_mu);
  if (!s) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  cp_host_count(CP_HOST_LIVE_STREAMS, 1);
  *out = s;
  return CP_CUDA_SUCCESS;
}

static int host_cudaStreamCreateWithPriority(cp_stream *out, unsigned flags, int priority) {
  (void)priority;
  return host_cudaStreamCreateWithFlags(out, flags);
}

static int host_cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return CP_CUDA_SUCCESS;
}

// Returns at once. The worker finishes what is queued (after an abort of a hung communicator, too), then frees the stream.
static int host_cudaStreamDestroy(cp_stream h) {
  int err;
  if (h == NULL || (uintptr_t)h == 1) return host_fail(CP_CUDA_INVALID_RESOURCE_HANDLE);
  host_stream *s = host_stream_get(h, 0, &err);
  if (!s) return host_fail(err);
  pthread_mutex_lock(&s->mu);
  s->magic = 0;
  s->closing = true;
  host_capture *c = s->capture;
  s->capture = NULL;
  pthread_cond_signal(&s->more);
  pthread_mutex_unlock(&s->mu);
  host_capture_drop(c);
  host_stream_drop(s);
  cp_host_count(CP_HOST_LIVE_STREAMS, -1);
  return CP_CUDA_SUCCESS;
}

static int host_cudaStreamQuery(cp_stream h) {
  int err;
  host_stream *s = host_stream_get(h, host_device, &err);
  if (!s) return host_fail(err);
  if (host_capturing(s)) return host_fail(CP_CUDA_STREAM_CAPTURE_UNSUPPORTED);
  bool busy = atomic_load(&s->done) < atomic_load(&s->tail);
  if (s->is_null && !busy) {
    host_point *points;
    int n = host_pending(s->device, true, NULL, &points);
    for (int i = 0; i < n; i++) host_stream_drop(points[i].stream);
    free(points);
    busy = n > 0;
  }
  return host_fail(busy ? CP_CUDA_NOT_READY : CP_CUDA_SUCCESS);
}

static int host_cudaStreamSynchronize(cp_stream h) {
  int err;
  host_stream *s = host_stream_get(h, host_device, &err);
  if (!s) return host_fail(err);
  if (host_capturing(s)) return host_fail(CP_CUDA_STREAM_CAPTURE_UNSUPPORTED);
  if (s->is_null) return host_fail(host_pending_wait(s->device, true));
  host_stream_wait(s, atomic_load(&s->tail));
  return CP_CUDA_SUCCESS;
}

static int host_cudaDeviceSynchronize(void) { return host_fail(host_pending_wait(host_device, false)); }

// ---- events ----

static void host_mark_run(cp_host_work *w, uint64_t ticket) {
  host_mark *m = (host_mark *)w;
  (void)ticket;
  pthread_mutex_lock(&m->mu);
  m->ns = cp_host_now();
  m->done = true;
  pthread_cond_broadcast(&m->reached);
  pthread_mutex_unlock(&m->mu);
}

static void host_mark_free(cp_host_work *w) {
  host_mark *m = (host_mark *)w;
  pthread_mutex_destroy(&m->mu);
  pthread_cond_destroy(&m->reached);
  free(m);
}

static host_mark *host_mark_new(void) {
  host_mark *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  m->work.run = host_mark_run;
  m->work.release = host_mark_free;
  atomic_init(&m->work.refs, 1);
  pthread_mutex_init(&m->mu, NULL);
  pthread_cond_init(&m->reached, NULL);
  return m;
}

static void host_mark_wait(host_mark *m) {
  pthread_mutex_lock(&m->mu);
  while (!m->done) pthread_cond_wait(&m->reached, &m->mu);
  pthread_mutex_unlock(&m->mu);
}

static bool host_mark_done(host_mark *m, int64_t *ns) {
  pthread_mutex_lock(&m->mu);
  bool done = m->done;
  *ns = m->ns;
  pthread_mutex_unlock(&m->mu);
  return done;
}

typedef struct {
  cp_host_work work;
  host_mark *mark;
} host_mark_waiter;

static void host_mark_waiter_run(cp_host_work *w, uint64_t ticket) {
  (void)ticket;
  host_mark_wait(((host_mark_waiter *)w)->mark);
}

static void host_mark_waiter_free(cp_host_work *w) {
  cp_host_work_drop(&((host_mark_waiter *)w)->mark->work);
  free(w);
}

static host_event *host_event_get(cp_event h) {
  host_event *e = h;
  return e && e->magic == HOST_EVENT_MAGIC ? e : NULL;
}

static int host_cudaEventCreateWithFlags(cp_event *out, unsigned flags) {
  if (!out || flags & ~(unsigned)(CP_EVENT_BLOCKING_SYNC | CP_EVENT_DISABLE_TIMING | CP_EVENT_INTERPROCESS)) return host_fail(CP_CUDA_INVALID_VALUE);
  if (flags & CP_EVENT_INTERPROCESS && !(flags & CP_EVENT_DISABLE_TIMING)) return host_fail(CP_CUDA_INVALID_VALUE);
  host_event *e = calloc(1, sizeof *e);
  if (!e) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  e->magic = HOST_EVENT_MAGIC;
  e->device = host_device;
  e->flags = flags;
  pthread_mutex_init(&e->mu, NULL);
  cp_host_count(CP_HOST_LIVE_EVENTS, 1);
  *out = e;
  return CP_CUDA_SUCCESS;
}

// Replaces what the event stands for. Takes over the caller's references.
static void host_event_set(host_event *e, host_mark *m, host_capture *c) {
  pthread_mutex_lock(&e->mu);
  host_mark *old_mark = e->mark;
  host_capture *old_capture = e->capture;
  e->mark = m;
  e->capture = c;
  pthread_mutex_unlock(&e->mu);
  if (old_mark) cp_host_work_drop(&old_mark->work);
  host_capture_drop(old_capture);
}

// What the event stands for, with references for the caller.
static void host_event_state(host_event *e, host_mark **m, host_capture **c) {
  pthread_mutex_lock(&e->mu);
  *m = e->mark;
  *c = e->capture;
  if (*m) host_work_hold(&(*m)->work);
  if (*c) atomic_fetch_add(&(*c)->refs, 1);
  pthread_mutex_unlock(&e->mu);
}

static int host_cudaEventDestroy(cp_event h) {
  host_event *e = host_event_get(h);
  if (!e) return host_fail(CP_CUDA_INVALID_RESOURCE_HANDLE);
  host_event_set(e, NULL, NULL);
  e->magic = 0;
  pthread_mutex_destroy(&e->mu);
  free(e);
  cp_host_count(CP_HOST_LIVE_EVENTS, -1);
  return CP_CUDA_SUCCESS;
}

static int host_cudaEventRecord(cp_event h, cp_stream sh) {
  int err;
  host_event *e = host_event_get(h);
  if (!e) return host_fail(CP_CUDA_INVALID_RESOURCE_HANDLE);
  host_stream *s = host_stream_get(sh, host_device, &err);
  if (s && s->device != e->device) err = CP_CUDA_INVALID_RESOURCE_HANDLE;
  if (err != CP_CUDA_SUCCESS) return host_fail(err);
  pthread_mutex_lock(&s->mu);
  host_capture *c = s->capture;
  if (c) atomic_fetch_add(&c->refs, 1);
  pthread_mutex_unlock(&s->mu);
  if (c) { // only an order within the graph, which the calls have already
    host_event_set(e, NULL, c);
    return CP_CUDA_SUCCESS;
  }
  host_mark *m = host_mark_new();
  if (!m) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  err = host_submit(s, &m->work, NULL);
  if (err != CP_CUDA_SUCCESS) {
    cp_host_work_drop(&m->work);
    return host_fail(err);
  }
  host_event_set(e, m, NULL);
  return CP_CUDA_SUCCESS;
}

static int host_event_check(cp_event h, bool wait) {
  host_event *e = host_event_get(h);
  if (!e) return host_fail(CP_CUDA_INVALID_RESOURCE_HANDLE);
  host_mark *m;
  host_capture *c;
  int64_t ns;
  int err = CP_CUDA_SUCCESS;
  host_event_state(e, &m, &c);
  if (c) err = HOST_CAPTURED_EVENT;
  if (m && wait) host_mark_wait(m);
  if (m && !host_mark_done(m, &ns)) err = CP_CUDA_NOT_READY;
  if (m) cp_host_work_drop(&m->work);
  host_capture_drop(c);
  return host_fail(err);
}

static int host_cudaEventQuery(cp_event h) { return host_event_check(h, false); }
static int host_cudaEventSynchronize(cp_event h) { return host_event_check(h, true); }

static int host_cudaEventElapsedTime(float *ms, cp_event start, cp_event end) {
  host_event *e[2] = {host_event_get(start), host_event_get(end)};
  int64_t ns[2] = {0, 0};
  int err = CP_CUDA_SUCCESS;
  if (!ms) return host_fail(CP_CUDA_INVALID_VALUE);
  for (int i = 0; i < 2; i++) {
    if (!e[i] || e[i]->flags & CP_EVENT_DISABLE_TIMING) return host_fail(CP_CUDA_INVALID_RESOURCE_HANDLE);
    host_mark *m;
    host_capture *c;
    host_event_state(e[i], &m, &c);
    if (!m) err = CP_CUDA_INVALID_RESOURCE_HANDLE;
    else if (!host_mark_done(m, &ns[i]) && err == CP_CUDA_SUCCESS) err = CP_CUDA_NOT_READY;
    if (m) cp_host_work_drop(&m->work);
    host_capture_drop(c);
  }
  if (err == CP_CUDA_SUCCESS) *ms = (float)((double)(ns[1] - ns[0]) / 1e6);
  return host_fail(err);
}

// A stream that waits for an event of a running capture joins that capture.
static int host_capture_join(host_stream *s, host_capture *c) {
  int err = CP_CUDA_SUCCESS;
  pthread_mutex_lock(&s->mu);
  if (atomic_load(&c->ended)) err = HOST_CAPTURED_EVENT;
  else if (s->is_null) err = CP_CUDA_STREAM_CAPTURE_UNSUPPORTED;
  else if (!s->capture) atomic_fetch_add(&c->refs, 1), s->capture = c;
  else if (s->capture != c) err = HOST_CAPTURE_ISOLATION;
  pthread_mutex_unlock(&s->mu);
  return err;
}

static int host_cudaStreamWaitEvent(cp_stream sh, cp_event h, unsigned flags) {
  int err;
  host_event *e = host_event_get(h);
  host_stream *s = host_stream_get(sh, host_device, &err);
  if (!e || !s) return host_fail(e ? err : CP_CUDA_INVALID_RESOURCE_HANDLE);
  if (flags > 1) return host_fail(CP_CUDA_INVALID_VALUE);
  host_mark *m;
  host_capture *c;
  int64_t ns;
  host_event_state(e, &m, &c);
  if (c) err = host_capture_join(s, c);
  else if (m && host_capturing(s)) err = HOST_CAPTURE_ISOLATION;
  host_capture_drop(c);
  if (!m) return host_fail(err);
  if (err != CP_CUDA_SUCCESS || host_mark_done(m, &ns)) {
    cp_host_work_drop(&m->work);
    return host_fail(err);
  }
  host_mark_waiter *w = calloc(1, sizeof *w);
  if (!w) {
    cp_host_work_drop(&m->work);
    return host_fail(CP_CUDA_OUT_OF_MEMORY);
  }
  w->work.run = host_mark_waiter_run;
  w->work.release = host_mark_waiter_free;
  atomic_init(&w->work.refs, 1);
  w->mark = m;
  err = host_submit(s, &w->work, NULL);
  cp_host_work_drop(&w->work);
  return host_fail(err);
}

// ---- graphs ----

static host_graph *host_graph_new(uint32_t magic, cp_host_work **works, size_t n) {
  host_graph *g = calloc(1, sizeof *g);
  cp_host_work **copy = calloc(n ? n : 1, sizeof *copy);
  if (!g || !copy) {
    free(g);
    free(copy);
    return NULL;
  }
  for (size_t i = 0; i < n; i++) {
    host_work_hold(works[i]);
    copy[i] = works[i];
  }
  g->magic = magic;
  g->works = copy;
  g->n = n;
  atomic_init(&g->refs, 1);
  pthread_mutex_init(&g->mu, NULL);
  cp_host_count(CP_HOST_LIVE_GRAPHS, 1);
  return g;
}

static void host_graph_drop(host_graph *g) {
  if (atomic_fetch_sub(&g->refs, 1) != 1) return;
  host_works_drop(g->works, g->n);
  if (g->last) host_stream_drop(g->last);
  pthread_mutex_destroy(&g->mu);
  free(g);
}

static int host_graph_destroy(host_graph *g, uint32_t magic) {
  if (!g || g->magic != magic) return host_fail(CP_CUDA_INVALID_VALUE);
  g->magic = 0;
  host_graph_drop(g);
  cp_host_count(CP_HOST_LIVE_GRAPHS, -1);
  return CP_CUDA_SUCCESS;
}

static int host_cudaStreamBeginCapture(cp_stream h, int mode) {
  int err;
  host_stream *s = host_stream_get(h, host_device, &err);
  if (!s) return host_fail(err);
  if (mode < CP_CAPTURE_GLOBAL || mode > CP_CAPTURE_RELAXED) return host_fail(CP_CUDA_INVALID_VALUE);
  if (s->is_null) return host_fail(CP_CUDA_STREAM_CAPTURE_UNSUPPORTED);
  host_capture *c = calloc(1, sizeof *c);
  if (!c) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  atomic_init(&c->refs, 1);
  atomic_init(&c->ended, 0);
  pthread_mutex_init(&c->mu, NULL);
  c->origin = s;
  pthread_mutex_lock(&s->mu);
  if (s->capture) err = HOST_ILLEGAL_STATE;
  else s->capture = c;
  pthread_mutex_unlock(&s->mu);
  if (err != CP_CUDA_SUCCESS) host_capture_drop(c);
  return host_fail(err);
}

static int host_cudaStreamEndCapture(cp_stream h, cp_graph *out) {
  int err;
  host_stream *s = host_stream_get(h, host_device, &err);
  if (!s || !out) return host_fail(s ? CP_CUDA_INVALID_VALUE : err);
  *out = NULL;
  pthread_mutex_lock(&s->mu);
  host_capture *c = s->capture;
  if (!c) err = HOST_ILLEGAL_STATE;
  else if (c->origin != s) err = HOST_CAPTURE_UNMATCHED;
  else s->capture = NULL; // its reference is ours now
  pthread_mutex_unlock(&s->mu);
  if (err != CP_CUDA_SUCCESS) return host_fail(err);
  atomic_store(&c->ended, 1);
  pthread_mutex_lock(&host_mu);
  for (host_stream *t = host_streams; t; t = t->next) { // the streams that joined
    pthread_mutex_lock(&t->mu);
    bool joined = t->capture == c;
    if (joined) t->capture = NULL;
    pthread_mutex_unlock(&t->mu);
    if (joined) host_capture_drop(c); // never the last reference
  }
  pthread_mutex_unlock(&host_mu);
  pthread_mutex_lock(&c->mu);
  *out = host_graph_new(HOST_GRAPH_MAGIC, c->works, c->n);
  pthread_mutex_unlock(&c->mu);
  host_capture_drop(c);
  return host_fail(*out ? CP_CUDA_SUCCESS : CP_CUDA_OUT_OF_MEMORY);
}

static int host_cudaGraphInstantiateWithFlags(cp_graph_exec *out, cp_graph h, unsigned long long flags) {
  host_graph *g = h;
  (void)flags;
  if (!out || !g || g->magic != HOST_GRAPH_MAGIC) return host_fail(CP_CUDA_INVALID_VALUE);
  *out = host_graph_new(HOST_EXEC_MAGIC, g->works, g->n);
  return host_fail(*out ? CP_CUDA_SUCCESS : CP_CUDA_OUT_OF_MEMORY);
}

// One launch of an executable graph: one queue entry, but a ticket for each of its works.
typedef struct {
  cp_host_work work;
  host_graph *graph;
  uint64_t tickets[];
} host_replay;

static uint64_t host_replay_launch(cp_host_work *w) {
  host_replay *r = (host_replay *)w;
  for (size_t i = 0; i < r->graph->n; i++) {
    cp_host_work *x = r->graph->works[i];
    r->tickets[i] = x->launch ? x->launch(x) : 0;
  }
  return 0;
}

static void host_replay_run(cp_host_work *w, uint64_t ticket) {
  host_replay *r = (host_replay *)w;
  (void)ticket;
  for (size_t i = 0; i < r->graph->n; i++) r->graph->works[i]->run(r->graph->works[i], r->tickets[i]);
}

static void host_replay_free(cp_host_work *w) {
  host_graph_drop(((host_replay *)w)->graph);
  free(w);
}

// Launches of one executable graph follow each other, as in CUDA, even if they are on different streams.
static int host_replay_submit(host_graph *g, host_stream *s, cp_host_work *w) {
  int err = CP_CUDA_SUCCESS;
  uint64_t seq;
  pthread_mutex_lock(&g->mu);
  if (g->last && g->last != s && atomic_load(&g->last->done) < g->last_seq) {
    host_wait *x = host_wait_new(g->last, g->last_seq);
    err = x ? host_submit(s, &x->work, NULL) : CP_CUDA_OUT_OF_MEMORY;
    if (x) cp_host_work_drop(&x->work);
  }
  if (err == CP_CUDA_SUCCESS) err = host_submit(s, w, &seq);
  if (err == CP_CUDA_SUCCESS) {
    if (g->last) host_stream_drop(g->last);
    atomic_fetch_add(&s->refs, 1);
    g->last = s;
    g->last_seq = seq;
  }
  pthread_mutex_unlock(&g->mu);
  return err;
}

static int host_cudaGraphLaunch(cp_graph_exec h, cp_stream sh) {
  int err;
  host_graph *g = h;
  if (!g || g->magic != HOST_EXEC_MAGIC) return host_fail(CP_CUDA_INVALID_VALUE);
  host_stream *s = host_stream_get(sh, host_device, &err);
  if (!s) return host_fail(err);
  if (host_capturing(s)) { // a graph within a graph: its works one by one, because a replay's tickets are good for one run
    for (size_t i = 0; i < g->n && err == CP_CUDA_SUCCESS; i++) err = host_submit(s, g->works[i], NULL);
    return host_fail(err);
  }
  host_replay *r = calloc(1, sizeof *r + g->n * sizeof r->tickets[0]);
  if (!r) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  r->work.run = host_replay_run;
  r->work.launch = host_replay_launch;
  r->work.release = host_replay_free;
  atomic_init(&r->work.refs, 1);
  atomic_fetch_add(&g->refs, 1);
  r->graph = g;
  err = host_replay_submit(g, s, &r->work);
  cp_host_work_drop(&r->work);
  return host_fail(err);
}

static int host_cudaGraphDestroy(cp_graph g) { return host_graph_destroy(g, HOST_GRAPH_MAGIC); }
static int host_cudaGraphExecDestroy(cp_graph_exec x) { return host_graph_destroy(x, HOST_EXEC_MAGIC); }

// ---- memory ----

// Half of the machine's memory counts as device memory, shared by all virtual devices: one device alone may use it up.
static void host_memory(size_t *avail, size_t *total) {
  struct sysinfo si;
  *avail = *total = 0;
  if (sysinfo(&si) != 0) return;
  *total = (size_t)si.totalram / 2 * si.mem_unit;
  size_t used = 0, idle = ((size_t)si.freeram + si.bufferram) * si.mem_unit;
  pthread_mutex_lock(&host_mu);
  for (int i = 0; i < host_devices; i++) used += host_used[i];
  pthread_mutex_unlock(&host_mu);
  *avail = used < *total ? *total - used : 0;
  if (*avail > idle) *avail = idle;
}

static int host_alloc_new(void **out, size_t bytes, int device) {
  size_t avail, total, mapped = 0;
  if (!out) return CP_CUDA_INVALID_VALUE;
  *out = NULL;
  if (bytes == 0) return CP_CUDA_SUCCESS;
  host_memory(&avail, &total);
  pthread_mutex_lock(&host_mu);
  size_t used = 0;
  for (int i = 0; i < host_devices; i++) used += host_used[i];
  pthread_mutex_unlock(&host_mu);
  if (used >= total || bytes > total - used) return CP_CUDA_OUT_OF_MEMORY;
  host_alloc *a = calloc(1, sizeof *a);
  if (!a) return CP_CUDA_OUT_OF_MEMORY;
  if (bytes >= HOST_HUGE) {
    mapped = bytes;
    a->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->base == MAP_FAILED) a->base = NULL;
  } else {
    a->base = aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  if (!a->base) {
    free(a);
    return CP_CUDA_OUT_OF_MEMORY;
  }
  a->bytes = bytes;
  a->mapped = mapped;
  a->device = device;
  pthread_mutex_lock(&host_mu);
  if (device >= 0) host_used[device] += bytes;
  a->next = host_allocs;
  host_allocs = a;
  pthread_mutex_unlock(&host_mu);
  cp_host_count(CP_HOST_LIVE_ALLOCATIONS, 1);
  *out = a->base;
  return CP_CUDA_SUCCESS;
}

// The device of the allocation that begins at p; -2: there is none of this kind.
static int host_alloc_device(void *p, bool pinned) {
  int device = -2;
  pthread_mutex_lock(&host_mu);
  for (host_alloc *a = host_allocs; a; a = a->next) {
    if (a->base == p && (a->device < 0) == pinned) device = a->device;
  }
  pthread_mutex_unlock(&host_mu);
  return device;
}

static int host_alloc_free(void *p, bool pinned) {
  if (!p) return CP_CUDA_SUCCESS;
  int device = host_alloc_device(p, pinned);
  if (device == -2) return CP_CUDA_INVALID_VALUE;
  // As in CUDA: what still runs may use the memory.
  int err = host_pending_wait(device, false);
  if (err != CP_CUDA_SUCCESS) return err;
  host_alloc *found = NULL;
  pthread_mutex_lock(&host_mu);
  for (host_alloc **a = &host_allocs; *a; a = &(*a)->next) {
    if ((*a)->base != p) continue;
    found = *a;
    *a = found->next;
    if (device >= 0) host_used[device] -= found->bytes;
    break;
  }
  pthread_mutex_unlock(&host_mu);
  if (!found) return CP_CUDA_INVALID_VALUE;
  if (found->mapped) munmap(found->base, found->mapped);
  else free(found->base);
  free(found);
  cp_host_count(CP_HOST_LIVE_ALLOCATIONS, -1);
  return CP_CUDA_SUCCESS;
}

// Whether [p, p+bytes) is all right: inside an allocation, or outside of all of them (then known is false: memory of the caller's own).
static bool host_range(const void *p, size_t bytes, bool *known) {
  const char *q = p;
  bool ok = p != NULL || bytes == 0;
  *known = false;
  pthread_mutex_lock(&host_mu);
  for (host_alloc *a = host_allocs; a; a = a->next) {
    if (q < a->base || q >= a->base + a->bytes) continue;
    *known = true;
    ok = bytes <= a->bytes - (size_t)(q - a->base);
    break;
  }
  pthread_mutex_unlock(&host_mu);
  return ok;
}

int cp_host_alloc(void **p, size_t bytes) { return host_alloc_new(p, bytes, host_device); }
int cp_host_release(void *p) { return host_alloc_free(p, false); }

static int host_cudaMalloc(void **p, size_t bytes) { return host_fail(cp_host_alloc(p, bytes)); }
static int host_cudaFree(void *p) { return host_fail(cp_host_release(p)); }

static int host_cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  (void)flags;
  return host_fail(host_alloc_new(p, bytes, -1));
}

static int host_cudaFreeHost(void *p) { return host_fail(host_alloc_free(p, true)); }

static int host_cudaMemGetInfo(size_t *avail, size_t *total) {
  if (!avail || !total) return host_fail(CP_CUDA_INVALID_VALUE);
  host_memory(avail, total);
  return CP_CUDA_SUCCESS;
}

typedef struct {
  cp_host_work work;
  char *dst;
  const char *src; // NULL: set
  char *staged;    // copy of a source in pageable memory
  size_t bytes;
  int value;
} host_copy;

static void host_copy_run(cp_host_work *w, uint64_t ticket) {
  host_copy *c = (host_copy *)w;
  (void)ticket;
  if (c->src) memmove(c->dst, c->src, c->bytes);
  else memset(c->dst, c->value, c->bytes);
}

static void host_copy_free(cp_host_work *w) {
  free(((host_copy *)w)->staged);
  free(w);
}

static host_copy *host_copy_new(void *dst, const void *src, int value, size_t bytes) {
  host_copy *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->work.run = host_copy_run;
  c->work.release = host_copy_free;
  atomic_init(&c->work.refs, 1);
  c->dst = dst;
  c->src = src;
  c->value = value;
  c->bytes = bytes;
  return c;
}

static int host_cudaMemset(void *p, int value, size_t bytes) {
  bool known;
  if (bytes == 0) return CP_CUDA_SUCCESS;
  if (!host_range(p, bytes, &known) || !known) return host_fail(CP_CUDA_INVALID_VALUE);
  int err = host_pending_wait(host_device, true);
  if (err == CP_CUDA_SUCCESS) memset(p, value, bytes);
  return host_fail(err);
}

static int host_cudaMemsetAsync(void *p, int value, size_t bytes, cp_stream sh) {
  bool known;
  int err;
  host_stream *s = host_stream_get(sh, host_device, &err);
  if (!s || bytes == 0) return host_fail(err);
  if (!host_range(p, bytes, &known) || !known) return host_fail(CP_CUDA_INVALID_VALUE);
  host_copy *c = host_copy_new(p, NULL, value, bytes);
  if (!c) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  err = host_submit(s, &c->work, NULL);
  cp_host_work_drop(&c->work);
  return host_fail(err);
}

static int host_cudaMemcpy(void *dst, const void *src, size_t bytes, int kind) {
  bool known;
  if (kind < CP_MEMCPY_HOST_TO_HOST || kind > CP_MEMCPY_DEFAULT) return host_fail(CP_CUDA_INVALID_VALUE);
  if (bytes == 0) return CP_CUDA_SUCCESS;
  if (!host_range(dst, bytes, &known) || !host_range(src, bytes, &known)) return host_fail(CP_CUDA_INVALID_VALUE);
  int err = host_pending_wait(host_device, true);
  if (err == CP_CUDA_SUCCESS) memmove(dst, src, bytes);
  return host_fail(err);
}

// Pageable memory of the caller's own is treated as CUDA does: a source has been read when the call returns, and a destination has been
// written. So a caller (Go, for one) may move or free it at once.
static int host_cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, cp_stream sh) {
  bool dst_known, src_known;
  int err;
  uint64_t seq;
  host_stream *s = host_stream_get(sh, host_device, &err);
  if (!s) return host_fail(err);
  if (kind < CP_MEMCPY_HOST_TO_HOST || kind > CP_MEMCPY_DEFAULT) return host_fail(CP_CUDA_INVALID_VALUE);
  if (bytes == 0) return CP_CUDA_SUCCESS;
  if (!host_range(dst, bytes, &dst_known) || !host_range(src, bytes, &src_known)) return host_fail(CP_CUDA_INVALID_VALUE);
  host_copy *c = host_copy_new(dst, src, 0, bytes);
  if (!c) return host_fail(CP_CUDA_OUT_OF_MEMORY);
  if (!src_known && dst_known && !host_capturing(s)) {
    c->staged = malloc(bytes);
    if (c->staged) c->src = memcpy(c->staged, src, bytes);
    else err = CP_CUDA_OUT_OF_MEMORY;
  }
  if (err == CP_CUDA_SUCCESS) err = host_submit(s, &c->work, &seq);
  cp_host_work_drop(&c->work);
  if (err == CP_CUDA_SUCCESS && !dst_known) host_stream_wait(s, seq);
  return host_fail(err);
}

static bool host_is_device(int device) { return device >= 0 && device < host_devices; }

static int host_cudaMemcpyPeer(void *dst, int dst_dev, const void *src, int src_dev, size_t bytes) {
  if (!host_is_device(dst_dev) || !host_is_device(src_dev)) return host_fail(CP_CUDA_INVALID_DEVICE);
  int err = dst_dev == host_device ? CP_CUDA_SUCCESS : host_pending_wait(dst_dev, true);
  if (err == CP_CUDA_SUCCESS && src_dev != host_device) err = host_pending_wait(src_dev, true);
  return err != CP_CUDA_SUCCESS ? host_fail(err) : host_cudaMemcpy(dst, src, bytes, CP_MEMCPY_DEVICE_TO_DEVICE);
}

static int host_cudaMemcpyPeerAsync(void *dst, int dst_dev, const void *src, int src_dev, size_t bytes, cp_stream s) {
  if (!host_is_device(dst_dev) || !host_is_device(src_dev)) return host_fail(CP_CUDA_INVALID_DEVICE);
  return host_cudaMemcpyAsync(dst, src, bytes, CP_MEMCPY_DEVICE_TO_DEVICE, s);
}

static int host_cudaIpcGetMemHandle(cp_ipc_handle *h, void *p) { (void)h, (void)p; return host_fail(CP_CUDA_NOT_SUPPORTED); }
static int host_cudaIpcOpenMemHandle(void **p, cp_ipc_handle h, unsigned flags) { (void)p, (void)h, (void)flags; return host_fail(CP_CUDA_NOT_SUPPORTED); }
static int host_cudaIpcCloseMemHandle(void *p) { (void)p; return host_fail(CP_CUDA_NOT_SUPPORTED); }
static int host_cudaIpcGetEventHandle(cp_ipc_handle *h, cp_event e) { (void)h, (void)e; return host_fail(CP_CUDA_NOT_SUPPORTED); }
static int host_cudaIpcOpenEventHandle(cp_event *e, cp_ipc_handle h) { (void)e, (void)h; return host_fail(CP_CUDA_NOT_SUPPORTED); }

// ---- devices ----

static int host_cudaDriverGetVersion(int *version) {
  if (!version) return host_fail(CP_CUDA_INVALID_VALUE);
  *version = 0;
  return CP_CUDA_SUCCESS;
}

static int host_cudaRuntimeGetVersion(int *version) { return host_cudaDriverGetVersion(version); }

static int host_cudaGetDeviceCount(int *count) {
  if (!count) return host_fail(CP_CUDA_INVALID_VALUE);
  *count = host_devices;
  return host_fail(host_devices > 0 ? CP_CUDA_SUCCESS : CP_CUDA_NO_DEVICE);
}

static int host_cudaSetDevice(int device) {
  if (!host_is_device(device)) return host_fail(CP_CUDA_INVALID_DEVICE);
  host_device = device;
  return CP_CUDA_SUCCESS;
}

static int host_cudaGetDevice(int *device) {
  if (!device) return host_fail(CP_CUDA_INVALID_VALUE);
  *device = host_device;
  return CP_CUDA_SUCCESS;
}

static int host_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

// Virtual bus ids live in PCI domain ffff: bus and device number together are the ordinal.
static int host_cudaDeviceGetAttribute(int *value, int attr, int device) {
  if (!value) return host_fail(CP_CUDA_INVALID_VALUE);
  if (!host_is_device(device)) return host_fail(CP_CUDA_INVALID_DEVICE);
  switch (attr) {
  case CP_ATTR_MULTIPROCESSOR_COUNT: *value = host_cores(); break;
  case CP_ATTR_PCI_BUS_ID: *value = device & 0xff; break;
  case CP_ATTR_PCI_DEVICE_ID: *value = device >> 8; break;
  case CP_ATTR_PCI_DOMAIN_ID: *value = 0xffff; break;
  case CP_ATTR_UNIFIED_ADDRESSING: *value = 1; break;
  case CP_ATTR_CLOCK_RATE_KHZ:
  case CP_ATTR_COMPUTE_MODE:
  case CP_ATTR_MEMORY_CLOCK_RATE_KHZ:
  case CP_ATTR_MEMORY_BUS_WIDTH:
  case CP_ATTR_L2_CACHE_BYTES:
  case CP_ATTR_COMPUTE_MAJOR:
  case CP_ATTR_COMPUTE_MINOR: *value = 0; break;
  default: return host_fail(CP_CUDA_INVALID_VALUE);
  }
  return CP_CUDA_SUCCESS;
}

static int host_cudaDeviceGetPCIBusId(char *id, int len, int device) {
  if (!id || len < 13) return host_fail(CP_CUDA_INVALID_VALUE);
  if (!host_is_device(device)) return host_fail(CP_CUDA_INVALID_DEVICE);
  snprintf(id, (size_t)len, "ffff:%02x:%02x.0", (unsigned)device & 0xff, (unsigned)device >> 8);
  return CP_CUDA_SUCCESS;
}

static int host_cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (!can) return host_fail(CP_CUDA_INVALID_VALUE);
  if (!host_is_device(device) || !host_is_device(peer)) return host_fail(CP_CUDA_INVALID_DEVICE);
  *can = device != peer;
  return CP_CUDA_SUCCESS;
}

// Nothing depends on peer access here; it is tracked so that wrong calls answer what CUDA answers.
static int host_peer_set(int peer, bool on) {
  if (!host_is_device(peer) || peer == host_device) return CP_CUDA_INVALID_DEVICE;
  size_t bit = (size_t)host_device * HOST_MAX_DEVICES + (size_t)peer;
  unsigned char mask = (unsigned char)(1 << bit % 8);
  int err = CP_CUDA_SUCCESS;
  pthread_mutex_lock(&host_mu);
  if (!host_peers) host_peers = calloc(HOST_MAX_DEVICES, HOST_MAX_DEVICES / 8);
  if (!host_peers) err = CP_CUDA_OUT_OF_MEMORY;
  else if (((host_peers[bit / 8] & mask) != 0) == on) err = on ? CP_CUDA_PEER_ACCESS_ALREADY_ENABLED : CP_CUDA_PEER_ACCESS_NOT_ENABLED;
  else host_peers[bit / 8] ^= mask;
  pthread_mutex_unlock(&host_mu);
  return err;
}

static int host_cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return host_fail(flags != 0 ? CP_CUDA_INVALID_VALUE : host_peer_set(peer, true));
}

static int host_cudaDeviceDisablePeerAccess(int peer) { return host_fail(host_peer_set(peer, false)); }

static int host_cudaGetLastError(void) {
  int code = host_last_error;
  host_last_error = CP_CUDA_SUCCESS;
  return code;
}

// ---- driver ----

static int host_cuInit(unsigned flags) { return flags != 0 ? CP_CUDA_INVALID_VALUE : CP_CUDA_SUCCESS; }

static int host_cuDriverGetVersion(int *version) {
  if (!version) return CP_CUDA_INVALID_VALUE;
  *version = 0;
  return CP_CUDA_SUCCESS;
}

static int host_cuDeviceGet(cp_device *device, int ordinal) {
  if (!device) return CP_CUDA_INVALID_VALUE;
  if (!host_is_device(ordinal)) return CP_CUDA_INVALID_DEVICE;
  *device = ordinal;
  return CP_CUDA_SUCCESS;
}

static int host_cuDeviceGetName(char *name, int len, cp_device device) {
  if (!name || len < 1) return CP_CUDA_INVALID_VALUE;
  if (!host_is_device(device)) return CP_CUDA_INVALID_DEVICE;
  snprintf(name, (size_t)len, "commprobe host engine (CPU)");
  return CP_CUDA_SUCCESS;
}

static int host_cuDeviceGetAttribute(int *value, int attribute, cp_device device) {
  if (!value) return CP_CUDA_INVALID_VALUE;
  if (!host_is_device(device)) return CP_CUDA_INVALID_DEVICE;
  if (attribute != CP_ATTR_DMA_BUF_SUPPORTED) return host_cudaDeviceGetAttribute(value, attribute, device); // the two share their numbers
  *value = 0;
  return CP_CUDA_SUCCESS;
}

// What the engine calls device memory is the process's own: there is nothing that a NIC could not reach without.
static int host_cuMemGetHandleForAddressRange(void *handle, cp_device_ptr p, size_t bytes, int type, unsigned long long flags) {
  (void)handle, (void)p, (void)bytes, (void)type, (void)flags;
  return CP_CUDA_NOT_SUPPORTED;
}

static int host_cuDeviceTotalMem_v2(size_t *bytes, cp_device device) {
  size_t avail;
  if (!bytes) return CP_CUDA_INVALID_VALUE;
  if (!host_is_device(device)) return CP_CUDA_INVALID_DEVICE;
  host_memory(&avail, bytes);
  return CP_CUDA_SUCCESS;
}

static int host_cuDeviceGetUuid_v2(cp_uuid *uuid, cp_device device) {
  if (!uuid) return CP_CUDA_INVALID_VALUE;
  if (!host_is_device(device)) return CP_CUDA_INVALID_DEVICE;
  memcpy(uuid->bytes, "commprobe-host", 14);
  uuid->bytes[14] = (char)(device >> 8);
  uuid->bytes[15] = (char)(device & 0xff);
  return CP_CUDA_SUCCESS;
}

static int host_cuModuleLoadData(cp_module *out, const void *image) {
  if (!out || !image) return CP_CUDA_INVALID_VALUE;
  host_module *m = calloc(1, sizeof *m);
  if (!m) return CP_CUDA_OUT_OF_MEMORY;
  m->magic = HOST_MODULE_MAGIC;
  cp_host_count(CP_HOST_LIVE_MODULES, 1);
  *out = m;
  return CP_CUDA_SUCCESS;
}

static int host_cuModuleUnload(cp_module h) {
  host_module *m = h;
  if (!m || m->magic != HOST_MODULE_MAGIC) return CP_CUDA_INVALID_RESOURCE_HANDLE;
  m->magic = 0;
  while (m->functions) {
    host_function *f = m->functions;
    m->functions = f->next;
    f->magic = 0;
    free(f);
  }
  free(m);
  cp_host_count(CP_HOST_LIVE_MODULES, -1);
  return CP_CUDA_SUCCESS;
}

static int host_cuModuleGetFunction(cp_function *out, cp_module h, const char *name) {
  host_module *m = h;
  if (!out || !name) return CP_CUDA_INVALID_VALUE;
  if (!m || m->magic != HOST_MODULE_MAGIC) return CP_CUDA_INVALID_RESOURCE_HANDLE;
  cp_host_kernel_fn fn = cp_host_kernel(name);
  int nparams = cp_host_kernel_params(name);
  if (!fn || nparams < 0 || nparams > HOST_MAX_PARAMS) return CP_CUDA_SYMBOL_NOT_FOUND;
  host_function *f = calloc(1, sizeof *f);
  if (!f) return CP_CUDA_OUT_OF_MEMORY;
  f->magic = HOST_FUNCTION_MAGIC;
  f->fn = fn;
  f->nparams = nparams;
  pthread_mutex_lock(&host_mu);
  f->next = m->functions;
  m->functions = f;
  pthread_mutex_unlock(&host_mu);
  *out = f;
  return CP_CUDA_SUCCESS;
}

typedef struct {
  cp_host_work work;
  cp_host_kernel_fn fn;
  int nparams;
  uint64_t slots[HOST_MAX_PARAMS];
} host_kernel;

// The kernel gets a copy of its parameters at every run: a graph runs it again.
static void host_kernel_run(cp_host_work *w, uint64_t ticket) {
  host_kernel *k = (host_kernel *)w;
  uint64_t slots[HOST_MAX_PARAMS];
  void *params[HOST_MAX_PARAMS];
  (void)ticket;
  memcpy(slots, k->slots, sizeof slots);
  for (int i = 0; i < HOST_MAX_PARAMS; i++) params[i] = &slots[i];
  k->fn(params);
}

static int host_cuLaunchKernel(cp_function h, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                               cp_stream sh, void **params, void **extra) {
  host_function *f = h;
  (void)shared;
  if (!f || f->magic != HOST_FUNCTION_MAGIC) return CP_CUDA_INVALID_RESOURCE_HANDLE;
  if (!gx || !gy || !gz || !bx || !by || !bz) return CP_CUDA_INVALID_VALUE;
  if (extra) return CP_CUDA_NOT_SUPPORTED;
  if (f->nparams > 0 && !params) return CP_CUDA_INVALID_VALUE;
  host_kernel *k = calloc(1, sizeof *k);
  if (!k) return CP_CUDA_OUT_OF_MEMORY;
  k->work.run = host_kernel_run;
  k->work.release = host_work_free;
  atomic_init(&k->work.refs, 1);
  k->fn = f->fn;
  k->nparams = f->nparams;
  for (int i = 0; i < f->nparams; i++) memcpy(&k->slots[i], params[i], sizeof k->slots[i]);
  int err = cp_host_submit(sh, host_device, &k->work);
  cp_host_work_drop(&k->work);
  return err;
}

// ---- errors ----

static const struct {
  int code;
  const char *name, *text;
} host_errors[] = {
  {CP_CUDA_SUCCESS, "cudaSuccess", "no error"},
  {CP_CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
  {CP_CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
  {CP_CUDA_INITIALIZATION_ERROR, "cudaErrorInitializationError", "initialization error"},
  {CP_CUDA_INSUFFICIENT_DRIVER, "cudaErrorInsufficientDriver", "driver too old for the runtime"},
  {CP_CUDA_NO_DEVICE, "cudaErrorNoDevice", "no device"},
  {CP_CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
  {CP_CUDA_INVALID_RESOURCE_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
  {HOST_ILLEGAL_STATE, "cudaErrorIllegalState", "not possible in the object's current state"},
  {CP_CUDA_SYMBOL_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
  {CP_CUDA_NOT_READY, "cudaErrorNotReady", "not ready"},
  {CP_CUDA_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress", "illegal memory access"},
  {CP_CUDA_PEER_ACCESS_ALREADY_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
  {CP_CUDA_PEER_ACCESS_NOT_ENABLED, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
  {CP_CUDA_LAUNCH_FAILURE, "cudaErrorLaunchFailure", "launch failure"},
  {CP_CUDA_NOT_SUPPORTED, "cudaErrorNotSupported", "not supported by the host engine"},
  {CP_CUDA_STREAM_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "not permitted while the stream is capturing"},
  {CP_CUDA_STREAM_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated", "an earlier error invalidated the capture"},
  {HOST_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched", "the capture was begun on another stream"},
  {HOST_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation", "dependency on work outside of the capture"},
  {HOST_CAPTURED_EVENT, "cudaErrorCapturedEvent", "the event was last recorded in a capturing stream"},
  {CP_CUDA_UNKNOWN, "cudaErrorUnknown", "unknown error"},
};

static const char *host_error_text(int code, bool name) {
  for (size_t i = 0; i < sizeof host_errors / sizeof host_errors[0]; i++) {
    if (host_errors[i].code == code) return name ? host_errors[i].name : host_errors[i].text;
  }
  return NULL;
}

static const char *host_cudaGetErrorName(int code) {
  const char *t = host_error_text(code, true);
  return t ? t : "unknown";
}

static const char *host_cudaGetErrorString(int code) {
  const char *t = host_error_text(code, false);
  return t ? t : "unknown error code";
}

static int host_cuGetErrorName(int code, const char **text) {
  if (!text) return CP_CUDA_INVALID_VALUE;
  *text = host_error_text(code, true);
  return *text ? CP_CUDA_SUCCESS : CP_CUDA_INVALID_VALUE;
}

static int host_cuGetErrorString(int code, const char **text) {
  if (!text) return CP_CUDA_INVALID_VALUE;
  *text = host_error_text(code, false);
  return *text ? CP_CUDA_SUCCESS : CP_CUDA_INVALID_VALUE;
}

#define HOST_SET(name, params, args) t->name = host_##name;

static void host_fill_cudart(cp_cudart_table *t) { CP_CUDART_FUNCS(HOST_SET) CP_CUDART_TEXT(HOST_SET) }
static void host_fill_cudrv(cp_cudrv_table *t) { CP_CUDRV_FUNCS(HOST_SET) }

void cp_host_fill(cp_cudart_table *rt, cp_cudrv_table *drv, cp_nccl_table *nccl, int devices) {
  host_devices = devices < 1 ? 1 : devices > HOST_MAX_DEVICES ? HOST_MAX_DEVICES : devices;
  host_fill_cudart(rt);
  host_fill_cudrv(drv);
  cp_host_fill_nccl(nccl);
}
