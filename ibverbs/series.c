// The timed series: every lane's queue is kept full, with one reading of the clock a post and one a batch of completions.
#include "run.h"

#include <stdlib.h>

static iv_shape shape_of(const iv_series *s) {
  return (iv_shape){.op = s->op, .inlined = s->inlined, .ud = s->ud, .bytes = s->bytes, .compare_add = s->compare_add, .swap = s->swap};
}

int iv_post_receives(const iv_series *s, const iv_lane *lanes, int64_t count) {
  iv_shape shape = shape_of(s);
  for (int l = 0; l < s->lanes; l++) {
    iv_work w;
    iv_prepare(&w, &lanes[l], &shape);
    for (int64_t i = 0; i < count; i++) {
      int err = iv_post_receive(&w, ID(l, i));
      if (err != 0) return err > 0 ? err : EIO;
    }
  }
  return 0;
}

// A series that is running.
typedef struct {
  iv_series *s;
  iv_work *work;
  iv_wait wait;
  int64_t *posted, *completed;
  int32_t *completed_ops;
  int64_t max_completions;

  int64_t sent, to_send; // operations of all lanes; to_send is not known with a duration
  int64_t to_receive;    // < 0: until the flag says finish
  int64_t until;         // end of a duration, 0 before the first post
  int open;              // lanes that still post
  int room;              // something completed since the lanes were last filled

  int64_t base_ns, base_ops, last_ns, last_ops; // the sampled part
} running;

// Posts the last operation of a lane whose time is up, so that all of it completes. It is done without when the last one was signalled.
static int close_lane(running *r, int l) {
  iv_work *w = &r->work[l];
  w->closed = 1;
  r->open--;
  if (w->posted % r->s->signal == 0) return 0;
  int err = iv_post_one(w, ID(l, w->posted), 1);
  if (err != 0) return iv_fail(&r->s->fault, IV_FAULT_POST_SEND, err);
  w->posted++;
  r->sent++;
  return 0;
}

static int fill_for(running *r, int l) {
  iv_series *s = r->s;
  iv_work *w = &r->work[l];
  while (!w->closed && w->posted - w->done < s->depth) {
    int64_t now = now_ns();
    if (r->until == 0) {
      s->first_ns = now;
      r->until = now + s->for_ns;
    }
    if (now >= r->until) return close_lane(r, l);
    if (s->op == IV_WRITE_IMM) w->wr.imm_data = htonl((uint32_t)w->posted);
    int err = iv_post_one(w, ID(l, w->posted), (w->posted + 1) % s->signal == 0);
    if (err != 0) return iv_fail(&s->fault, IV_FAULT_POST_SEND, err);
    w->posted++;
    r->sent++;
  }
  return 0;
}

static int fill_count(running *r, int l) {
  iv_series *s = r->s;
  iv_work *w = &r->work[l];
  while (w->posted < s->send && w->posted - w->done < s->depth) {
    int signaled = (w->posted + 1) % s->signal == 0 || w->posted + 1 == s->send;
    if (s->op == IV_WRITE_IMM) w->wr.imm_data = htonl((uint32_t)w->posted);
    r->posted[r->sent] = now_ns();
    int err = iv_post_one(w, ID(l, w->posted), signaled);
    if (err != 0) return iv_fail(&s->fault, IV_FAULT_POST_SEND, err);
    w->posted++;
    r->sent++;
  }
  return 0;
}

// Fills the lanes' queues. Answers 1 on a fault.
static int fill(running *r) {
  r->room = 0;
  for (int l = 0; l < r->s->lanes; l++)
    if (r->s->for_ns > 0 ? fill_for(r, l) : fill_count(r, l)) return 1;
  return 0;
}

static void sample(running *r, int64_t now) {
  int64_t begin = r->s->first_ns + r->s->margin_ns, end = r->until - r->s->margin_ns;
  if (now < begin || now > end) return;
  if (r->base_ns == 0) {
    r->base_ns = now;
    r->base_ops = r->s->ops;
  }
  r->last_ns = now;
  r->last_ops = r->s->ops;
}

static void sent_done(running *r, const struct ibv_wc *wc, int64_t now) {
  iv_series *s = r->s;
  iv_work *w = &r->work[LANE_OF(wc->wr_id)];
  int64_t done = (int64_t)(wc->wr_id & INDEX_MASK) + 1;
  s->ops += done - w->done;
  w->done = done;
  s->last_ns = now;
  r->room = 1;
  if (s->completions < r->max_completions) {
    r->completed[s->completions] = now;
    r->completed_ops[s->completions++] = (int32_t)s->ops;
  }
}

static int received(running *r, const struct ibv_wc *wc, int64_t now) {
  iv_series *s = r->s;
  int l = LANE_OF(wc->wr_id);
  iv_work *w = &r->work[l];
  w->rdone++;
  s->received++;
  if (r->to_send == 0 && s->for_ns == 0) { // only receiving: these are the times
    if (s->first_ns == 0) s->first_ns = now;
    s->last_ns = now;
  }
  if (s->recv >= 0 && w->rposted >= s->recv) return 0;
  int err = iv_post_receive(w, ID(l, w->rposted));
  if (err != 0) return iv_fail(&s->fault, IV_FAULT_POST_RECV, err);
  w->rposted++;
  return 0;
}

// Takes completions of one queue. Answers how many, or -1 on a fault.
static int take(running *r, struct ibv_cq *cq) {
  struct ibv_wc wc[POLL_BATCH];
  int n = iv_poll_some(cq, POLL_BATCH, wc);
  if (n == 0) return 0;
  if (n < 0) {
    iv_fail(&r->s->fault, IV_FAULT_POLL, EIO);
    return -1;
  }
  int64_t now = now_ns();
  int64_t before = r->s->ops;
  r->wait.progressed = 1;
  for (int i = 0; i < n; i++) {
    if (wc[i].status != IBV_WC_SUCCESS) {
      iv_failed(&r->s->fault, &wc[i]);
      continue;
    }
    if (LANE_OF(wc[i].wr_id) >= r->s->lanes) continue; // of something else on this queue
    if (wc[i].wr_id & RECV_BIT) {
      if (received(r, &wc[i], now)) return -1;
    } else {
      sent_done(r, &wc[i], now);
    }
  }
  if (r->s->for_ns > 0 && r->s->ops > before) sample(r, now);
  return r->s->fault.kind == IV_OK ? n : -1;
}

static int sends_over(const running *r) {
  const iv_series *s = r->s;
  return s->for_ns > 0 ? r->open == 0 && s->ops == r->sent : s->ops == r->to_send;
}

static int over(const running *r) { return r->s->recv >= 0 && r->s->received >= r->to_receive && sends_over(r); }

static void loop(running *r) {
  iv_series *s = r->s;
  struct ibv_cq *send_cq = s->send_cq, *recv_cq = s->recv_cq;
  int receiving = s->recv != 0 && recv_cq != send_cq, polls_sends = s->send > 0 || s->for_ns > 0 || recv_cq == send_cq;
  while (!over(r)) {
    if (r->room && fill(r)) return;
    int n = polls_sends ? take(r, send_cq) : 0;
    if (n < 0) return;
    if (receiving) {
      int m = take(r, recv_cq);
      if (m < 0) return;
      n += m;
    }
    if (n == 0) {
      // Finish comes after the peer's last operation, whose receive is therefore in the queue: an empty one means all of them.
      if (s->recv < 0 && iv_flagged(&r->wait, IV_FLAG_FINISH) && sends_over(r)) return;
      if (iv_nothing(&r->wait)) return;
    } else if ((++r->wait.looks & (LOOK_EVERY - 1)) == 0 && iv_flagged(&r->wait, IV_FLAG_STOP)) {
      s->fault.kind = IV_FAULT_STOPPED; // a queue that is never empty must not hide the flag
      return;
    }
  }
}

void iv_series_run(iv_series *s, const iv_lane *lanes, int64_t *posted, int64_t *completed, int32_t *completed_ops, int64_t max_completions) {
  running r = {
      .s = s, .posted = posted, .completed = completed, .completed_ops = completed_ops, .max_completions = max_completions,
      .to_send = s->send * s->lanes, .to_receive = s->recv * s->lanes, .room = s->send > 0 || s->for_ns > 0, .open = s->for_ns > 0 ? s->lanes : 0,
  };
  iv_wait_start(&r.wait, s->deadline_ns, s->stop, &s->fault);
  r.work = calloc((size_t)s->lanes, sizeof *r.work);
  if (r.work == NULL) {
    iv_fail(&s->fault, IV_FAULT_POST_SEND, ENOMEM);
    return;
  }
  iv_shape shape = shape_of(s);
  int64_t first = s->recv < 0 || s->recv > s->recv_depth ? s->recv_depth : s->recv;
  for (int l = 0; l < s->lanes; l++) {
    iv_prepare(&r.work[l], &lanes[l], &shape);
    r.work[l].rposted = first; // by iv_post_receives
  }
  // The stamps' pages are touched before the clock counts.
  if (posted != NULL) memset(posted, 0, (size_t)r.to_send * sizeof *posted);
  if (completed != NULL) memset(completed, 0, (size_t)max_completions * sizeof *completed);
  if (completed_ops != NULL) memset(completed_ops, 0, (size_t)max_completions * sizeof *completed_ops);

  loop(&r);

  iv_find_cause(&s->fault, s->send_cq, s->recv_cq);
  s->posts = r.sent;
  if (posted != NULL && r.sent > 0) s->first_ns = posted[0];
  s->sampled_ops = r.last_ops - r.base_ops;
  s->sampled_ns = r.last_ns - r.base_ns;
  free(r.work);
}
