// Scattered writes, posted as linked lists, and the wait for their arrival on the other side.
#include "run.h"

enum { LIST = 64 }; // work requests in one post

typedef struct {
  iv_batch *b;
  const iv_entry *entries;
  int64_t n, posted;
  iv_wait wait;
  struct ibv_send_wr wr[LIST];
  struct ibv_sge sge[LIST];
} batch;

// Posts the next list of k entries, the last of which completes.
static int post_list(batch *g, int k) {
  for (int i = 0; i < k; i++) {
    const iv_entry *e = &g->entries[g->posted + i];
    struct ibv_send_wr *wr = &g->wr[i];
    g->sge[i] = (struct ibv_sge){.addr = e->local_addr, .length = e->bytes, .lkey = e->lkey};
    int last = g->posted + i == g->n - 1;
    *wr = (struct ibv_send_wr){
        .wr_id = ID(0, g->posted + i), .next = i + 1 < k ? wr + 1 : NULL, .sg_list = &g->sge[i], .num_sge = e->bytes > 0,
        .opcode = last && g->b->with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, .send_flags = i + 1 == k ? IBV_SEND_SIGNALED : 0,
        .imm_data = htonl(g->b->imm), .wr.rdma = {.remote_addr = e->remote_addr, .rkey = e->rkey},
    };
  }
  struct ibv_qp *qp = g->b->qp;
  struct ibv_send_wr *bad;
  int err = qp->context->ops.post_send(qp, g->wr, &bad);
  if (err != 0) return iv_fail(&g->b->fault, IV_FAULT_POST_SEND, err);
  g->posted += k;
  return 0;
}

static int harvest(batch *g) {
  struct ibv_wc wc[POLL_BATCH];
  int n = iv_poll_some(g->b->send_cq, POLL_BATCH, wc);
  if (n < 0) return iv_fail(&g->b->fault, IV_FAULT_POLL, EIO);
  for (int i = 0; i < n; i++) {
    if (wc[i].status != IBV_WC_SUCCESS)
      iv_failed(&g->b->fault, &wc[i]);
    else if (!(wc[i].wr_id & RECV_BIT))
      g->b->done = (int64_t)(wc[i].wr_id & INDEX_MASK) + 1;
  }
  if (g->b->fault.kind != IV_OK) return 1;
  if (n == 0) return iv_nothing(&g->wait);
  g->wait.progressed = 1;
  return 0;
}

void iv_batch_run(iv_batch *b, const iv_entry *entries, int64_t n) {
  batch g = {.b = b, .entries = entries, .n = n};
  iv_wait_start(&g.wait, b->deadline_ns, b->stop, &b->fault);
  // Two lists fit the queue, so that one is under way while the next is made.
  int list = b->depth >= 2 * LIST ? LIST : b->depth > 1 ? b->depth / 2 : 1;
  b->posted_ns = now_ns();
  while (b->done < n) {
    int64_t left = n - g.posted;
    int k = left < list ? (int)left : list;
    if (k > 0 && g.posted - b->done + k <= b->depth) {
      if (post_list(&g, k)) break;
    } else if (harvest(&g)) {
      break;
    }
  }
  b->done_ns = now_ns();
  iv_find_cause(&b->fault, b->send_cq, b->send_cq);
}

static int post_empty(struct ibv_qp *qp, uint64_t index) {
  struct ibv_recv_wr wr = {.wr_id = ID(0, index) | RECV_BIT}, *bad;
  return qp->context->ops.post_recv(qp, &wr, &bad);
}

int iv_post_empty_receives(void *qp, int n) {
  for (int i = 0; i < n; i++) {
    int err = post_empty(qp, (uint64_t)i);
    if (err != 0) return err > 0 ? err : EIO;
  }
  return 0;
}

void iv_wait_imm(iv_imm *w, int64_t n, uint32_t *imm, int64_t *at) {
  iv_wait wait;
  iv_wait_start(&wait, w->deadline_ns, w->stop, &w->fault);
  while (w->done < n && w->fault.kind == IV_OK) {
    struct ibv_wc wc[POLL_BATCH];
    // No more than wanted: the next call finds the rest in the queue.
    int want = n - w->done < POLL_BATCH ? (int)(n - w->done) : POLL_BATCH;
    int got = iv_poll_some(w->recv_cq, want, wc);
    if (got < 0) iv_fail(&w->fault, IV_FAULT_POLL, EIO);
    if (got == 0 && iv_nothing(&wait)) break;
    int64_t now = got > 0 ? now_ns() : 0;
    for (int i = 0; i < got; i++) {
      if (wc[i].status != IBV_WC_SUCCESS) {
        iv_failed(&w->fault, &wc[i]);
        continue;
      }
      wait.progressed = 1;
      imm[w->done] = ntohl(wc[i].imm_data);
      at[w->done++] = now;
      int err = post_empty(w->qp, (uint64_t)w->done);
      if (err != 0) iv_fail(&w->fault, IV_FAULT_POST_RECV, err);
    }
  }
  iv_find_cause(&w->fault, w->recv_cq, w->recv_cq);
}
