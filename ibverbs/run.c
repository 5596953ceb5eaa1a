// What the loops of the data path share.
#include "run.h"

#include <stdlib.h>

int64_t iv_now_ns(void) { return now_ns(); }

int *iv_flag_new(void) { return calloc(1, sizeof(int)); }

void iv_flag_set(int *flag, int value) {
  int unset = 0;
  if (value == IV_FLAG_STOP)
    __atomic_store_n(flag, value, __ATOMIC_RELAXED);
  else
    __atomic_compare_exchange_n(flag, &unset, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void iv_find_cause(iv_fault *f, struct ibv_cq *a, struct ibv_cq *b) {
  if (f->kind != IV_FAULT_WC) return;
  struct ibv_wc wc[POLL_BATCH];
  struct ibv_cq *queues[] = {a, b};
  for (int q = 0; q < 2; q++) {
    int n;
    // A queue that is broken might answer for ever: no queue has a million entries.
    for (int rounds = 0; rounds < (1 << 16) && f->status == STATUS_FLUSH && (n = iv_poll_some(queues[q], POLL_BATCH, wc)) > 0; rounds++)
      for (int i = 0; i < n; i++)
        if (wc[i].status != IBV_WC_SUCCESS) iv_failed(f, &wc[i]);
  }
}

static const enum ibv_wr_opcode opcodes[] = {
    [IV_WRITE] = IBV_WR_RDMA_WRITE, [IV_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM, [IV_READ] = IBV_WR_RDMA_READ,
    [IV_SEND] = IBV_WR_SEND,        [IV_FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD, [IV_CMP_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP,
};

// A datagram's receive has the sender's route in front of it.
enum { GRH_BYTES = 40 };

void iv_prepare(iv_work *w, const iv_lane *l, const iv_shape *s) {
  memset(w, 0, sizeof *w);
  w->qp = l->qp;
  w->sge = (struct ibv_sge){.addr = l->local_addr, .length = s->bytes, .lkey = l->lkey};
  w->wr.sg_list = &w->sge;
  w->wr.num_sge = s->bytes > 0;
  w->wr.opcode = opcodes[s->op];
  w->wr.send_flags = s->inlined ? IBV_SEND_INLINE : 0;
  if (s->op == IV_FETCH_ADD || s->op == IV_CMP_SWAP) {
    w->wr.wr.atomic.remote_addr = l->remote_addr;
    w->wr.wr.atomic.rkey = l->rkey;
    w->wr.wr.atomic.compare_add = s->compare_add;
    w->wr.wr.atomic.swap = s->swap;
  } else if (s->ud) {
    w->wr.wr.ud.ah = l->ah;
    w->wr.wr.ud.remote_qpn = l->remote_qp;
    w->wr.wr.ud.remote_qkey = l->remote_qkey;
  } else {
    w->wr.wr.rdma.remote_addr = l->remote_addr;
    w->wr.wr.rdma.rkey = l->rkey;
  }
  w->rsge = (struct ibv_sge){.addr = l->recv_addr, .length = s->bytes + (s->ud ? GRH_BYTES : 0), .lkey = l->recv_lkey};
  w->rwr.sg_list = &w->rsge;
  // The data of a write with immediate lands where the write says.
  w->rwr.num_sge = s->op == IV_SEND && w->rsge.length > 0;
}

int iv_poll(void *cq, int max, iv_wc *out, int *n) {
  *n = 0;
  while (*n < max) {
    struct ibv_wc wc[POLL_BATCH];
    int want = max - *n < POLL_BATCH ? max - *n : POLL_BATCH;
    int got = iv_poll_some(cq, want, wc);
    if (got < 0) return EIO;
    for (int i = 0; i < got; i++)
      out[(*n)++] = (iv_wc){
          .wr_id = wc[i].wr_id, .status = (int)wc[i].status, .opcode = (int)wc[i].opcode, .vendor = wc[i].vendor_err, .qp_num = wc[i].qp_num,
          .bytes = wc[i].byte_len, .imm = ntohl(wc[i].imm_data), .has_imm = (wc[i].wc_flags & IBV_WC_WITH_IMM) != 0,
      };
    if (got < want) break;
  }
  return 0;
}
