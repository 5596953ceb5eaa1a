// Queue pairs and their states.
#include "table.h"

#include <string.h>

void iv_fill_ah(struct ibv_ah_attr *a, const iv_path *p); // resource.c

int iv_create_qp(void *pd, void *send_cq, void *recv_cq, iv_qp_config *c, void **qp) {
  struct ibv_qp_init_attr a;
  memset(&a, 0, sizeof a);
  a.send_cq = send_cq;
  a.recv_cq = recv_cq;
  a.qp_type = (enum ibv_qp_type)c->type;
  a.cap.max_send_wr = (uint32_t)c->max_send;
  a.cap.max_recv_wr = (uint32_t)c->max_recv;
  a.cap.max_send_sge = (uint32_t)c->max_send_sge;
  a.cap.max_recv_sge = (uint32_t)c->max_recv_sge;
  a.cap.max_inline_data = (uint32_t)c->max_inline;
  errno = 0;
  struct ibv_qp *q = call_ibv_create_qp(pd, &a);
  *qp = q;
  if (q == NULL) return iv_errno();
  c->max_send = (int)a.cap.max_send_wr;
  c->max_recv = (int)a.cap.max_recv_wr;
  c->max_inline = (int)a.cap.max_inline_data;
  c->num = q->qp_num;
  return 0;
}

int iv_destroy_qp(void *qp) { return iv_error(call_ibv_destroy_qp(qp)); }

int iv_qp_state(void *qp, int *state) {
  struct ibv_qp_attr a;
  struct ibv_qp_init_attr i;
  memset(&a, 0, sizeof a);
  memset(&i, 0, sizeof i);
  int err = iv_error(call_ibv_query_qp(qp, &a, IBV_QP_STATE, &i));
  *state = (int)a.qp_state;
  return err;
}

int iv_qp_set_state(void *qp, int state) {
  struct ibv_qp_attr a;
  memset(&a, 0, sizeof a);
  a.qp_state = (enum ibv_qp_state)state;
  return iv_error(call_ibv_modify_qp(qp, &a, IBV_QP_STATE));
}

int iv_qp_init(void *qp, int type, int port, int pkey_index, int access, uint32_t qkey) {
  struct ibv_qp_attr a;
  memset(&a, 0, sizeof a);
  a.qp_state = IBV_QPS_INIT;
  a.port_num = (uint8_t)port;
  a.pkey_index = (uint16_t)pkey_index;
  a.qp_access_flags = (unsigned)access;
  a.qkey = qkey;
  int own = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  return iv_error(call_ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own));
}

int iv_qp_rtr(void *qp, int type, const iv_path *path, int mtu, uint32_t remote_qp, uint32_t remote_psn, int rd_atomic, int min_rnr_timer) {
  if (type == IBV_QPT_UD) return iv_qp_set_state(qp, IBV_QPS_RTR);
  struct ibv_qp_attr a;
  memset(&a, 0, sizeof a);
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = (enum ibv_mtu)mtu;
  a.dest_qp_num = remote_qp;
  a.rq_psn = remote_psn;
  a.max_dest_rd_atomic = (uint8_t)rd_atomic;
  a.min_rnr_timer = (uint8_t)min_rnr_timer;
  iv_fill_ah(&a.ah_attr, path);
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return iv_error(call_ibv_modify_qp(qp, &a, mask));
}

int iv_qp_rts(void *qp, int type, uint32_t psn, int timeout, int retry, int rnr_retry, int rd_atomic) {
  struct ibv_qp_attr a;
  memset(&a, 0, sizeof a);
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = psn;
  a.timeout = (uint8_t)timeout;
  a.retry_cnt = (uint8_t)retry;
  a.rnr_retry = (uint8_t)rnr_retry;
  a.max_rd_atomic = (uint8_t)rd_atomic;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return iv_error(call_ibv_modify_qp(qp, &a, mask));
}
