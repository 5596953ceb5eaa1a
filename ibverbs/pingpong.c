// Latency: one operation at a time, there and back.
#include "run.h"

typedef struct {
  iv_pingpong *p;
  iv_work w;
  iv_wait wait;
  volatile unsigned char *out, *in; // the byte that changes with each write, here and as the peer writes it
} pingpong;

void iv_clear_last(uint64_t addr, uint32_t bytes) { ((volatile unsigned char *)(uintptr_t)addr)[bytes - 1] = 0; }

static int take(pingpong *g, struct ibv_cq *cq) {
  struct ibv_wc wc[2];
  int n = iv_poll_some(cq, 2, wc);
  if (n < 0) return iv_fail(&g->p->fault, IV_FAULT_POLL, EIO);
  for (int i = 0; i < n; i++) {
    if (wc[i].status != IBV_WC_SUCCESS)
      iv_failed(&g->p->fault, &wc[i]);
    else if (wc[i].wr_id & RECV_BIT)
      g->w.rdone++;
    else
      g->w.done++;
  }
  if (g->p->fault.kind != IV_OK) return 1;
  if (n == 0) return iv_nothing(&g->wait);
  g->wait.progressed = 1;
  return 0;
}

// Waits until so many sends and receives have completed. Answers 1 on a fault.
static int reach(pingpong *g, int64_t sends, int64_t receives) {
  while (g->w.rdone < receives) {
    // A failed send of ours would leave the answer out for ever: looked at as well, but seldom.
    int seldom = ((g->wait.looks + 1) & (LOOK_EVERY - 1)) == 0 && g->w.done < g->w.posted;
    if (seldom && g->p->send_cq != g->p->recv_cq && take(g, g->p->send_cq)) return 1;
    if (take(g, g->p->recv_cq)) return 1;
  }
  while (g->w.done < sends)
    if (take(g, g->p->send_cq)) return 1;
  return 0;
}

// Waits for the peer's i-th write (from 1).
static int see(pingpong *g, int64_t i) {
  unsigned char want = (unsigned char)i;
  while (*g->in != want)
    if (iv_nothing(&g->wait)) return 1;
  g->wait.progressed = 1;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return 0;
}

static int post(pingpong *g, int64_t i) {
  if (g->p->op == IV_WRITE) *g->out = (unsigned char)(i + 1);
  if (g->p->op == IV_WRITE_IMM) g->w.wr.imm_data = htonl((uint32_t)i);
  int err = iv_post_one(&g->w, ID(0, i), 1);
  if (err != 0) return iv_fail(&g->p->fault, IV_FAULT_POST_SEND, err);
  g->w.posted++;
  return 0;
}

// Replaces the receive that completed. Posted after the answer, so that it is nobody's latency.
static int refill(pingpong *g) {
  if (g->w.rposted >= g->p->iterations) return 0;
  int err = iv_post_receive(&g->w, ID(0, g->w.rposted));
  if (err != 0) return iv_fail(&g->p->fault, IV_FAULT_POST_RECV, err);
  g->w.rposted++;
  return 0;
}

// Operations that the peer does not answer: from post to completion.
static void one_sided(pingpong *g, int64_t *stamps) {
  for (int64_t i = 0; i < g->p->iterations; i++) {
    stamps[i] = now_ns();
    if (post(g, i) || reach(g, i + 1, 0)) return;
    g->p->done = i + 1;
  }
}

// Writes: the arrival is seen in memory.
static void by_memory(pingpong *g, int64_t *stamps) {
  int first = g->p->initiator;
  for (int64_t i = 0; i < g->p->iterations; i++) {
    if (!first && see(g, i + 1)) return;
    stamps[i] = now_ns();
    if (post(g, i) || reach(g, i + 1, 0)) return;
    if (first && see(g, i + 1)) return;
    g->p->done = i + 1;
  }
}

// Sends and writes with immediate: the arrival is a completion.
static void by_completion(pingpong *g, int64_t *stamps) {
  int first = g->p->initiator;
  for (int64_t i = 0; i < g->p->iterations; i++) {
    if (!first && reach(g, i, i + 1)) return;
    stamps[i] = now_ns();
    if (post(g, i)) return;
    if (first && reach(g, i + 1, i + 1)) return;
    if (refill(g)) return;
    g->p->done = i + 1;
  }
  reach(g, g->p->iterations, g->p->iterations);
}

void iv_pingpong_run(iv_pingpong *p, const iv_lane *lane, int64_t *stamps) {
  pingpong g = {.p = p};
  iv_shape shape = {.op = p->op, .inlined = p->inlined, .ud = p->ud, .bytes = p->bytes, .compare_add = p->compare_add, .swap = p->swap};
  iv_prepare(&g.w, lane, &shape);
  g.w.rposted = p->recv_posted;
  if (p->op == IV_WRITE) {
    g.out = (volatile unsigned char *)(uintptr_t)(lane->local_addr + p->bytes - 1);
    g.in = (volatile unsigned char *)(uintptr_t)(lane->recv_addr + p->bytes - 1);
  }
  memset(stamps, 0, (size_t)(p->iterations + 1) * sizeof *stamps);
  iv_wait_start(&g.wait, p->deadline_ns, p->stop, &p->fault);
  if (p->op == IV_READ || p->op == IV_FETCH_ADD || p->op == IV_CMP_SWAP)
    one_sided(&g, stamps);
  else if (p->op == IV_WRITE)
    by_memory(&g, stamps);
  else
    by_completion(&g, stamps);
  stamps[p->done] = now_ns();
  iv_find_cause(&p->fault, p->send_cq, p->recv_cq);
}
