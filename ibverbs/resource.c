// Protection domains, completion queues, memory regions, address handles.
#include "table.h"

#include <fcntl.h>
#include <string.h>

// Makes an object: answers 0 with it in *out, or the error.
#define MAKE(out, call)                                                                                                                     \
  do {                                                                                                                                     \
    errno = 0;                                                                                                                             \
    *(out) = call;                                                                                                                         \
    return *(out) == NULL ? iv_errno() : 0;                                                                                                \
  } while (0)

int iv_alloc_pd(void *ctx, void **pd) { MAKE(pd, call_ibv_alloc_pd(ctx)); }

int iv_dealloc_pd(void *pd) { return iv_error(call_ibv_dealloc_pd(pd)); }

int iv_create_channel(void *ctx, void **channel) {
  errno = 0;
  struct ibv_comp_channel *ch = call_ibv_create_comp_channel(ctx);
  *channel = ch;
  if (ch == NULL) return iv_errno();
  fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK);
  return 0;
}

int iv_destroy_channel(void *channel) { return iv_error(call_ibv_destroy_comp_channel(channel)); }

int iv_wait_channel(void *channel, int waker, void **cq) {
  struct ibv_comp_channel *ch = channel;
  if (!iv_readable(ch->fd, waker)) return EAGAIN;
  struct ibv_cq *got = NULL;
  void *user = NULL;
  errno = 0;
  int err = iv_error(call_ibv_get_cq_event(ch, &got, &user));
  if (err != 0) return err;
  call_ibv_ack_cq_events(got, 1); // at once: destroying the queue waits for it
  *cq = got;
  return 0;
}

int iv_create_cq(void *ctx, int depth, void *channel, void **cq) { MAKE(cq, call_ibv_create_cq(ctx, depth, NULL, channel, 0)); }

int iv_destroy_cq(void *cq) { return iv_error(call_ibv_destroy_cq(cq)); }

int iv_arm_cq(void *cq) {
  struct ibv_cq *q = cq;
  return iv_error(q->context->ops.req_notify_cq(q, 0));
}

int iv_reg_mr(void *pd, uintptr_t addr, size_t bytes, int access, void **mr) {
  // Optional flags need the newer function. A library without it may do without them: that is what optional means.
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) != 0 && iv_verbs.ibv_reg_mr_iova2 != NULL)
    MAKE(mr, call_ibv_reg_mr_iova2(pd, (void *)addr, bytes, addr, (unsigned)access));
  MAKE(mr, call_ibv_reg_mr(pd, (void *)addr, bytes, access & ~IBV_ACCESS_OPTIONAL_RANGE));
}

int iv_reg_dmabuf(void *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access, void **mr) {
  MAKE(mr, call_ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, access));
}

int iv_dereg_mr(void *mr) { return iv_error(call_ibv_dereg_mr(mr)); }

void iv_mr_keys(void *mr, uint32_t *lkey, uint32_t *rkey) {
  *lkey = ((struct ibv_mr *)mr)->lkey;
  *rkey = ((struct ibv_mr *)mr)->rkey;
}

void iv_fill_ah(struct ibv_ah_attr *a, const iv_path *p) {
  memset(a, 0, sizeof *a);
  a->port_num = (uint8_t)p->port;
  a->dlid = (uint16_t)p->dlid;
  a->sl = (uint8_t)p->sl;
  if (!p->global) return;
  a->is_global = 1;
  memcpy(a->grh.dgid.raw, p->dgid, sizeof p->dgid);
  a->grh.sgid_index = (uint8_t)p->sgid_index;
  a->grh.hop_limit = (uint8_t)p->hop_limit;
  a->grh.traffic_class = (uint8_t)p->traffic_class;
  a->grh.flow_label = p->flow_label;
}

int iv_create_ah(void *pd, const iv_path *path, void **ah) {
  struct ibv_ah_attr a;
  iv_fill_ah(&a, path);
  MAKE(ah, call_ibv_create_ah(pd, &a));
}

int iv_destroy_ah(void *ah) { return iv_error(call_ibv_destroy_ah(ah)); }
