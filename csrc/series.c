#define _GNU_SOURCE
#include "series.h"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

int64_t cp_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// A few microseconds of additions that do not depend on each other, six chains wide.
static double issue_once(void) {
#if defined(__x86_64__) || defined(__aarch64__)
  enum { rounds = 2000, adds = 48 };
  unsigned long a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
  int64_t start = cp_now_ns();
  for (int i = 0; i < rounds; i++) {
#if defined(__x86_64__)
    __asm__ volatile(".rept 8\n add $1,%0\n add $1,%1\n add $1,%2\n add $1,%3\n add $1,%4\n add $1,%5\n .endr" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
#else
    __asm__ volatile(".rept 8\n add %0,%0,#1\n add %1,%1,#1\n add %2,%2,#1\n add %3,%3,#1\n add %4,%4,#1\n add %5,%5,#1\n .endr" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
#endif
  }
  return (double)rounds * adds / (double)(cp_now_ns() - start + 1);
#else
  return 0;
#endif
}

double cp_issue_rate(void) {
  double best = 0;
  for (int i = 0; i < 5; i++) {
    double r = issue_once();
    if (r > best) best = r;
  }
  return best;
}

double cp_quiet_core(const int32_t *cpus, int n, int start, int tries, double *best) {
  double rate = cp_issue_rate();
  int known = *best > 0;
  if (rate > *best) *best = rate;
  // Until the best is known from several processors, look around even if the present one seems good.
  for (int i = 0; i < tries && n > 0 && (rate < 0.9 * *best || (!known && i < 8)); i++) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[(start + i) % n], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) continue;
    rate = cp_issue_rate();
    if (rate > *best) *best = rate;
  }
  return rate;
}

void cp_flag_set(int32_t *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }
int cp_flag_get(int32_t *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0; }

// The abort flag and the deadline, looked at in every waiting loop.
static int must_stop(int32_t *abort, int64_t deadline_ns) {
  if (abort != NULL && cp_flag_get(abort)) return CP_SERIES_ABORTED;
  if (deadline_ns != 0 && cp_now_ns() > deadline_ns) return CP_SERIES_TIMEOUT;
  return CP_SERIES_OK;
}

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void cp_spin(int64_t ns) {
  for (int64_t end = cp_now_ns() + ns; cp_now_ns() < end;) relax();
}

int cp_barrier_wait(cp_barrier *b, int parties, int32_t *abort, int64_t deadline_ns) {
  uint32_t generation = __atomic_load_n(&b->generation, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&b->broken, __ATOMIC_SEQ_CST)) return CP_SERIES_BARRIER;
  if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_SEQ_CST) == (uint32_t)parties) {
    __atomic_store_n(&b->arrived, 0, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&b->generation, 1, __ATOMIC_SEQ_CST);
    return CP_SERIES_OK;
  }
  // Spin briefly so that all leave within a microsecond; then yield, since ranks may outnumber the processors.
  for (uint64_t spin = 0; __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation; spin++) {
    if (__atomic_load_n(&b->broken, __ATOMIC_RELAXED)) return CP_SERIES_BARRIER;
    if (spin < 4096) {
      relax();
      continue;
    }
    int stop = must_stop(abort, deadline_ns);
    if (stop) {
      cp_barrier_break(b);
      return stop;
    }
    sched_yield();
  }
  return CP_SERIES_OK;
}

void cp_barrier_break(cp_barrier *b) { __atomic_store_n(&b->broken, 1, __ATOMIC_SEQ_CST); }

static int fail(cp_series *s, int status, int code, int lane) {
  s->status = status;
  s->code = code;
  s->lane = lane;
  return status;
}

// ---- flight records ----

static int recording(const cp_series *s) { return s->flight != NULL && !s->capture; }

static int is_p2p(int kind) { return kind == CP_STEP_SEND || kind == CP_STEP_RECV; }

// The clock, read anew when some ten microseconds have passed: reading it for each record would be a fifth of a record's cost.
static int64_t note_time(cp_series *s) {
#if defined(__x86_64__)
  uint64_t at = __builtin_ia32_rdtsc();
  if (s->noted_ns != 0 && at - s->noted_at < 1 << 15) return s->noted_ns;
  s->noted_at = at;
#endif
  return s->noted_ns = cp_now_ns();
}

// A run takes no longer than this at the pace of the one before, so that its calls were made about when its time says.
enum { RUN_NS = 1000000 };

// Ends the lane's run. Answers how many calls it had, 0 when there was none.
static int end_run(cp_series *s, cp_lane *l) {
  if (l->run.id == 0) return 0;
  int n = cp_flight_end(s->flight, &l->run);
  l->unmarked += (uint32_t)n;
  return n + 1;
}

// Counts a call that is the same as the lane's last one into its record. 0 when it needs a record of its own.
static inline int again(cp_lane *l, const cp_flight_template *t) { return l->run_of == t && cp_flight_repeat(&l->run); }

// A record has no event of its own until it turns out to be the last before one.
static void append(cp_series *s, cp_lane *l, const cp_flight_template *t, cp_flight_record r) {
  int calls = end_run(s, l);
  for (int i = 0; s->nlanes > 1 && i < s->nlanes; i++) {
    // Lanes may share a group, whose numbers go through.
    if (s->lanes[i].run_of != NULL && s->lanes[i].run_of->group == t->group) end_run(s, &s->lanes[i]);
  }
  r.group = t->group;
  r.site = t->site;
  r.in = t->in;
  r.out = t->out;
  r.timeout_ns = t->timeout_ns;
  r.stream = l->flight_stream;
  r.created_ns = note_time(s);
  r.flags |= CP_FLIGHT_BOUNDED;
  l->unmarked++;
  s->appended = 1;
  if (r.flags & CP_FLIGHT_COALESCED) {
    l->run_of = NULL;
    l->last = cp_flight_append(s->flight, &r);
    return;
  }
  int64_t took = r.created_ns - l->run_ns, most = 0; // of a pace that is not known yet
  if (l->run_of == t && calls > 0) most = took * CP_FLIGHT_REPEATS < RUN_NS * calls ? CP_FLIGHT_REPEATS : RUN_NS * calls / took;
  l->run_of = t;
  l->run_ns = r.created_ns;
  l->last = cp_flight_begin(s->flight, &r, (int)most, &l->run);
}

// Records a step before it is called, since a call may hang.
static void note_step(cp_series *s, const cp_step *t, int open) {
  cp_lane *l = &s->lanes[t->lane];
  cp_flight_record r = {.kind = (uint32_t)t->kind, .dtype = t->dtype, .redop = t->op, .peer = t->peer, .count = t->count};
  if (is_p2p(t->kind)) r.flags = CP_FLIGHT_P2P;
  if (open) {
    r.flags |= CP_FLIGHT_COALESCED | (l->in_group ? CP_FLIGHT_JOINED : 0);
    if (l->in_group++ == 0) {
      l->group_p2p = r.flags & CP_FLIGHT_P2P;
      l->group_of = t->flight.group;
      l->group_site = t->flight.site;
    }
  }
  append(s, l, &t->flight, r);
}

static void note_graph(cp_series *s, cp_lane *l) {
  append(s, l, &l->graph, (cp_flight_record){.kind = CP_STEP_GRAPH, .dtype = -1, .redop = -1, .peer = -1});
}

// Gives up the lane's latest call, which failed. In a run it becomes a record of its own first.
static void retire_last(cp_series *s, cp_lane *l) {
  if (cp_flight_take_back(&l->run)) {
    const cp_flight_entry *e = &s->flight->entries[(l->run.id - 1) & (s->flight->capacity - 1)];
    cp_flight_record r = {.kind = e->kind, .dtype = e->dtype, .redop = e->redop, .peer = e->peer, .count = e->count, .flags = e->flags & CP_FLIGHT_P2P};
    append(s, l, l->run_of, r);
  }
  cp_flight_retire(s->flight, l->last);
}

// The end of an NCCL group is a record of its own in each lane that took part: the operations are queued there and nowhere else.
static void note_group_end(cp_series *s) {
  for (int i = 0; i < s->nlanes; i++) {
    cp_lane *l = &s->lanes[i];
    if (l->in_group == 0) continue;
    cp_flight_template t = {.group = l->group_of, .site = l->group_site};
    uint32_t flags = CP_FLIGHT_COALESCED | CP_FLIGHT_JOINED | l->group_p2p;
    append(s, l, &t, (cp_flight_record){.kind = CP_STEP_GROUP_END, .peer = -1, .dtype = -1, .redop = -1, .flags = flags});
    l->in_group = 0;
  }
}

enum { POLL_NS = 1000000, EVENT_NS = 4000000 };

// Between two iterations: puts an event behind the calls of each lane that has made enough of them for long enough, or any at all at the end of the
// series: an event costs as much as some hundred calls counted. One that was used before is asked whether it is done now and then only.
static int mark(cp_series *s, uint32_t least) {
  s->appended = 0;
  int may_ask = least == 1 || s->noted_ns - s->polled_ns >= POLL_NS;
  for (int i = 0; i < s->nlanes; i++) {
    cp_lane *l = &s->lanes[i];
    if (l->pool == NULL || l->unmarked < least) continue;
    if (least > 1 && s->noted_ns - l->event_ns < EVENT_NS) continue;
    if (!cp_flight_pool_free(l->pool)) {
      if (!may_ask) continue;
      if (s->polled_ns < s->noted_ns) s->polled_ns = s->noted_ns;
    }
    int recorded, code = cp_flight_pool_record(l->pool, l->last, l->stream, &recorded);
    if (code) return fail(s, CP_SERIES_CUDA, code, i);
    if (!recorded) continue;
    cp_flight_unbound(s->flight, l->last);
    end_run(s, l);
    l->unmarked = 0;
    l->event_ns = s->noted_ns;
  }
  return CP_SERIES_OK;
}

static void poll_flight(cp_series *s) {
  for (int i = 0; i < s->nlanes; i++) {
    if (s->lanes[i].pool != NULL) cp_flight_pool_poll(s->lanes[i].pool);
  }
}

// While the operations run: looks at the events now and then. Only who waits that long needs an event behind the last operations as well.
static int watch_flight(cp_series *s) {
  int64_t now = cp_now_ns();
  if (now - s->polled_ns < POLL_NS) return CP_SERIES_OK;
  s->polled_ns = now;
  poll_flight(s);
  return mark(s, 1);
}

// A lane's stream has run empty, so all of its events are done as well.
static void lane_complete(cp_series *s, int l) {
  if (s->lanes[l].pool != NULL) cp_flight_pool_poll(s->lanes[l].pool);
  end_run(s, &s->lanes[l]);
  cp_flight_complete(s->flight, s->lanes[l].last, cp_now_ns(), -1);
}

// ---- calls ----

static int call_step(const cp_step *t, const cp_lane *l, uint64_t shift) {
  const void *send = (const void *)(uintptr_t)(t->send ? t->send + shift : 0);
  void *recv = (void *)(uintptr_t)(t->recv ? t->recv + shift : 0);
  switch (t->kind) {
  case CP_STEP_GROUP_START: return cp_ncclGroupStart();
  case CP_STEP_GROUP_END: return cp_ncclGroupEnd();
  case CP_STEP_ALL_REDUCE: return cp_ncclAllReduce(send, recv, t->count, t->dtype, t->op, l->comm, l->stream);
  case CP_STEP_BROADCAST: return cp_ncclBroadcast(send, recv, t->count, t->dtype, t->peer, l->comm, l->stream);
  case CP_STEP_REDUCE: return cp_ncclReduce(send, recv, t->count, t->dtype, t->op, t->peer, l->comm, l->stream);
  case CP_STEP_ALL_GATHER: return cp_ncclAllGather(send, recv, t->count, t->dtype, l->comm, l->stream);
  case CP_STEP_REDUCE_SCATTER: return cp_ncclReduceScatter(send, recv, t->count, t->dtype, t->op, l->comm, l->stream);
  case CP_STEP_SEND: return cp_ncclSend(send, t->count, t->dtype, t->peer, l->comm, l->stream);
  case CP_STEP_RECV: return cp_ncclRecv(recv, t->count, t->dtype, t->peer, l->comm, l->stream);
  case CP_STEP_ALL_TO_ALL: return cp_ncclAlltoAll(send, recv, t->count, t->dtype, l->comm, l->stream);
  case CP_STEP_GATHER: return cp_ncclGather(send, recv, t->count, t->dtype, t->peer, l->comm, l->stream);
  case CP_STEP_SCATTER: return cp_ncclScatter(send, recv, t->count, t->dtype, t->peer, l->comm, l->stream);
  }
  return CP_NCCL_INVALID_ARGUMENT;
}

static int copy_step(cp_series *s, const cp_step *t, uint64_t shift) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; // in the order of ncclDataType_t
  if (t->dtype < 0 || t->dtype >= (int32_t)(sizeof sizes / sizeof *sizes)) return fail(s, CP_SERIES_CALL, CP_NCCL_INVALID_ARGUMENT, t->lane);
  int code = cp_cudaMemcpyAsync((void *)(uintptr_t)(t->recv + shift), (const void *)(uintptr_t)(t->send + shift), t->count * sizes[t->dtype],
                                CP_MEMCPY_DEVICE_TO_DEVICE, s->lanes[t->lane].stream);
  return code ? fail(s, CP_SERIES_CUDA, code, t->lane) : CP_SERIES_OK;
}

static int record(cp_series *s, int64_t i) {
  for (int l = 0; l < s->nlanes; l++) {
    int code = cp_cudaEventRecord(s->lanes[l].events[i], s->lanes[l].stream);
    if (code) return fail(s, CP_SERIES_CUDA, code, l);
  }
  return CP_SERIES_OK;
}

// Queues operation k. open: groups that are open around it.
static int enqueue_operation(cp_series *s, uint64_t k, int open) {
  for (int n = 0; n < s->nsteps; n++) {
    const cp_step *t = &s->steps[n];
    const cp_lane *l = &s->lanes[t->lane];
    uint64_t shift = l->rot_stride * (k % l->rot_slots);
    if (t->kind == CP_STEP_COPY) {
      if (copy_step(s, t, shift) == CP_SERIES_OK) continue;
      for (; open > 0; open--) cp_ncclGroupEnd();
      return s->status;
    }
    int noted = recording(s) && t->kind >= CP_STEP_ALL_REDUCE;
    if (noted && (open || !again(&s->lanes[t->lane], &t->flight))) note_step(s, t, open);
    if (recording(s) && t->kind == CP_STEP_GROUP_END && open == 1) note_group_end(s);
    int code = call_step(t, l, shift);
    if (t->kind == CP_STEP_GROUP_END) open--;
    if (code == CP_NCCL_SUCCESS || code == CP_NCCL_IN_PROGRESS) { // in progress: the non-blocking mode's state, not an error
      if (t->kind == CP_STEP_GROUP_START) open++;
      continue;
    }
    // Group state is the thread's: in a group left open nothing that this thread queues later starts, nor would an abort.
    for (; open > 0; open--) cp_ncclGroupEnd();
    if (noted) retire_last(s, &s->lanes[t->lane]);
    return fail(s, CP_SERIES_CALL, code, t->lane);
  }
  return CP_SERIES_OK;
}

static int enqueue_one(cp_series *s, int64_t i) {
  if (s->graphs != NULL) {
    for (int l = 0; l < s->nlanes; l++) {
      if (recording(s) && !again(&s->lanes[l], &s->lanes[l].graph)) note_graph(s, &s->lanes[l]);
      int code = cp_cudaGraphLaunch(s->graphs[l], s->lanes[l].stream);
      if (code && recording(s)) retire_last(s, &s->lanes[l]);
      if (code) return fail(s, CP_SERIES_CUDA, code, l);
    }
    return CP_SERIES_OK;
  }
  int grouped = s->aggregate > 1;
  if (grouped) {
    int code = cp_ncclGroupStart();
    if (code) return fail(s, CP_SERIES_CALL, code, -1);
  }
  for (int64_t a = 0; a < s->aggregate; a++) {
    if (enqueue_operation(s, (uint64_t)(i * s->aggregate + a), grouped)) return s->status;
  }
  if (!grouped) return CP_SERIES_OK;
  if (recording(s)) note_group_end(s);
  int code = cp_ncclGroupEnd();
  if (code && code != CP_NCCL_IN_PROGRESS) return fail(s, CP_SERIES_CALL, code, -1);
  return CP_SERIES_OK;
}

// One look at a lane: 1 done, 0 not yet, -1 failed.
static int lane_done(cp_series *s, int l) {
  int code = cp_cudaStreamQuery(s->lanes[l].stream);
  if (code == CP_CUDA_SUCCESS) return 1;
  if (code != CP_CUDA_NOT_READY) {
    fail(s, CP_SERIES_CUDA, code, l);
    return -1;
  }
  int async = CP_NCCL_SUCCESS;
  if (s->lanes[l].comm != NULL) code = cp_ncclCommGetAsyncError(s->lanes[l].comm, &async);
  else code = CP_NCCL_SUCCESS;
  if (code != CP_NCCL_SUCCESS) async = code;
  if (async != CP_NCCL_SUCCESS && async != CP_NCCL_IN_PROGRESS) {
    fail(s, CP_SERIES_ASYNC, async, l);
    return -1;
  }
  return 0;
}

// Spins on all lanes in turn, as nccl-tests does, so that both programs see an operation's end equally early.
// All, because one that waits for ever may be waiting for another whose communicator has failed.
static int complete(cp_series *s) {
  int next = 0; // lanes before it are done
  for (int l = 0; next < s->nlanes; l = l + 1 < s->nlanes ? l + 1 : next) {
    int got = lane_done(s, l);
    if (got < 0) return s->status;
    if (got) {
      if (l == next) next++;
      continue;
    }
    if (recording(s) && watch_flight(s)) return s->status;
    int stop = must_stop(s->abort, s->deadline_ns);
    if (stop) return fail(s, stop, 0, l);
    sched_yield();
  }
  return CP_SERIES_OK;
}

// What -z of nccl-tests does after each iteration.
static int after_each(cp_series *s) {
  if (complete(s)) return s->status;
  for (int l = 0; recording(s) && l < s->nlanes; l++) {
    end_run(s, &s->lanes[l]);
    cp_flight_complete(s->flight, s->lanes[l].last, cp_now_ns(), -1);
  }
  if (s->blocking == CP_BLOCKING_WAIT || s->barrier == NULL) return CP_SERIES_OK;
  int64_t from = cp_now_ns();
  int stop = cp_barrier_wait(s->barrier, s->parties, s->abort, s->deadline_ns);
  if (stop) return fail(s, stop, 0, -1);
  if (s->blocking == CP_BLOCKING_EXCLUDED) s->excluded_ns += cp_now_ns() - from;
  return CP_SERIES_OK;
}

static int enqueue(cp_series *s) {
  for (s->iter = 0; s->iter < s->iters; s->iter++) {
    if (s->use_events && record(s, s->iter)) return s->status;
    if (enqueue_one(s, s->iter)) return s->status;
    if (s->appended && mark(s, CP_FLIGHT_EVENT_EVERY)) return s->status;
    if (s->blocking && !s->capture && after_each(s)) return s->status;
    if (s->iter == CP_ENQUEUE_SAMPLE - 1) s->marked_ns = cp_now_ns();
    // The abort flag costs a load; a launch queue that is full blocks inside the call and is ended by the parent alone.
    if (s->abort != NULL && cp_flag_get(s->abort)) return fail(s, CP_SERIES_ABORTED, 0, -1);
  }
  if (s->use_events && record(s, s->iters)) return s->status;
  s->polled_ns = s->noted_ns;
  return CP_SERIES_OK;
}

static int64_t involuntary(void) {
  struct rusage u;
  return getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nivcsw : 0;
}

// After the last time stamp: what the ring has to learn of a series that is over.
static void close_records(cp_series *s, int status) {
  if (!recording(s)) return;
  if (status != CP_SERIES_OK) poll_flight(s); // what is known last
  for (int l = 0; status != CP_SERIES_OK && l < s->nlanes; l++) end_run(s, &s->lanes[l]);
  for (int l = 0; status == CP_SERIES_OK && l < s->nlanes; l++) lane_complete(s, l);
}

int cp_series_run(cp_series *s) {
  s->status = CP_SERIES_OK;
  s->code = 0;
  s->lane = -1;
  s->iter = 0;
  s->excluded_ns = 0;
  s->phase = CP_PHASE_BARRIER;
  int64_t before = involuntary();
  if (s->probe) s->rate_before = cp_issue_rate();
  if (s->barrier != NULL) {
    int stop = cp_barrier_wait(s->barrier, s->parties, s->abort, s->deadline_ns);
    if (stop) return fail(s, stop, 0, -1);
  }
  s->phase = CP_PHASE_ENQUEUE;
  s->start_ns = cp_now_ns();
  int status = enqueue(s);
  s->enqueued_ns = cp_now_ns();
  if (s->iters < CP_ENQUEUE_SAMPLE) s->marked_ns = s->enqueued_ns;
  if (status == CP_SERIES_OK && !s->capture) {
    s->phase = CP_PHASE_COMPLETE;
    status = complete(s);
  }
  s->done_ns = cp_now_ns();
  close_records(s, status);
  s->switches = involuntary() - before;
  if (s->probe) s->rate_after = cp_issue_rate();
  s->cpu = sched_getcpu();
  return status;
}
