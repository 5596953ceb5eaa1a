// What the loops of the data path share.
#ifndef IV_RUN_H
#define IV_RUN_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <time.h>

#include "binding.h"

enum {
  POLL_BATCH = 16,    // completions taken by one call
  LOOK_EVERY = 64,    // empty polls between two looks at the flag and the clock; a power of two
  STATUS_FLUSH = 5,
};

#define RECV_BIT (1ull << 63)
#define INDEX_MASK ((1ull << IV_LANE_SHIFT) - 1)
#define LANE_OF(id) ((int)((id) >> IV_LANE_SHIFT & (IV_MAX_LANES - 1)))
#define ID(lane, index) ((uint64_t)(lane) << IV_LANE_SHIFT | ((uint64_t)(index) & INDEX_MASK))

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// A wait with a deadline. Progress is only marked; the clock is read when nothing happens.
typedef struct {
  int64_t deadline_ns, since;
  int *stop;
  iv_fault *fault;
  unsigned looks;
  int progressed;
} iv_wait;

static inline void iv_wait_start(iv_wait *w, int64_t deadline_ns, int *stop, iv_fault *fault) {
  memset(fault, 0, sizeof *fault);
  *w = (iv_wait){.deadline_ns = deadline_ns, .stop = stop, .fault = fault, .since = now_ns()};
}

static inline int iv_flagged(const iv_wait *w, int value) { return w->stop != NULL && __atomic_load_n(w->stop, __ATOMIC_RELAXED) == value; }

// Called when nothing was found. Answers 1 when the wait is over, with the reason in the fault.
static inline int iv_nothing(iv_wait *w) {
  if ((++w->looks & (LOOK_EVERY - 1)) != 0) return 0;
  if (iv_flagged(w, IV_FLAG_STOP)) {
    w->fault->kind = IV_FAULT_STOPPED;
    return 1;
  }
  int64_t now = now_ns();
  if (w->progressed) {
    w->progressed = 0;
    w->since = now;
  } else if (now - w->since > w->deadline_ns) {
    w->fault->kind = IV_FAULT_TIMEOUT;
    return 1;
  }
  return 0;
}

static inline int iv_fail(iv_fault *f, int kind, int err) {
  f->kind = kind;
  f->err = err != 0 ? err : EIO;
  return 1;
}

// Keeps the first completion that failed. A flush is a consequence of another failure and gives way to it.
static inline void iv_failed(iv_fault *f, const struct ibv_wc *wc) {
  if (f->kind == IV_FAULT_WC && (f->status != STATUS_FLUSH || (int)wc->status == STATUS_FLUSH)) return;
  f->kind = IV_FAULT_WC;
  f->status = (int)wc->status;
  f->vendor = wc->vendor_err;
  f->qp_num = wc->qp_num;
  f->wr_id = wc->wr_id;
}

static inline int iv_poll_some(struct ibv_cq *cq, int max, struct ibv_wc *wc) { return cq->context->ops.poll_cq(cq, max, wc); }

// At the end of a run. After a flush it looks through what else has completed for the failure that caused it.
void iv_find_cause(iv_fault *f, struct ibv_cq *a, struct ibv_cq *b);

// One queue pair's prepared work requests.
typedef struct {
  struct ibv_qp *qp;
  struct ibv_send_wr wr;
  struct ibv_sge sge;
  struct ibv_recv_wr rwr;
  struct ibv_sge rsge;
  int64_t posted, done;   // operations
  int64_t rposted, rdone; // receives
  int closed;             // its last operation was posted
} iv_work;

// The numbers that make a work request, of a series or a ping-pong.
typedef struct {
  int op, inlined, ud;
  uint32_t bytes;
  uint64_t compare_add, swap;
} iv_shape;

void iv_prepare(iv_work *w, const iv_lane *lane, const iv_shape *s);

static inline int iv_post_one(iv_work *w, uint64_t id, int signaled) {
  struct ibv_send_wr *bad;
  w->wr.wr_id = id;
  w->wr.send_flags = (w->wr.send_flags & ~(unsigned)IBV_SEND_SIGNALED) | (signaled ? IBV_SEND_SIGNALED : 0);
  return w->qp->context->ops.post_send(w->qp, &w->wr, &bad);
}

static inline int iv_post_receive(iv_work *w, uint64_t id) {
  struct ibv_recv_wr *bad;
  w->rwr.wr_id = id | RECV_BIT;
  return w->qp->context->ops.post_recv(w->qp, &w->rwr, &bad);
}

#endif
