// A libibverbs whose devices are loopbacks within the process: queue pairs reach each other by number, whatever address they are given. Work is done inside the call
// that posts it. As with real adapters, a queue's slot is free again when a completion at or behind it was polled, and a full completion queue is fatal.
//
// What it does differently from a library that works comes from the environment, read at each call:
//   FAKE_FAIL     "ibv_create_qp=12,post_send=12": these answer this errno
//   FAKE_DEVICES  how many devices there are, 1 unless set
//   FAKE_WC       "3:12:129": the fourth operation that is posted from now on completes with status 12 and vendor error 129, and its queue pair breaks
//   FAKE_SILENT   operations are taken and nothing ever completes
//   FAKE_EVENT    "10:1,1:0": asynchronous events waiting when a device is opened, with their port
//   FAKE_STATE, FAKE_WIDTH, FAKE_SPEED, FAKE_LINK, FAKE_MTU   of the port
//   FAKE_OLD      the context is of the old form: no extended port query, only the exported one
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int env(const char *name, int otherwise) {
  const char *v = getenv(name);
  return v != NULL && *v != 0 ? atoi(v) : otherwise;
}

static int fails(const char *name) {
  const char *list = getenv("FAKE_FAIL");
  size_t n = strlen(name);
  for (const char *at = list; at != NULL && *at != 0;) {
    if (strncmp(at, name, n) == 0 && at[n] == '=') return atoi(at + n + 1);
    at = strchr(at, ',');
    if (at != NULL) at++;
  }
  return 0;
}

// The two ways in which the interface's functions fail.
#define FAIL_NULL()                                                                                                                         \
  do {                                                                                                                                     \
    errno = fails(__func__);                                                                                                               \
    if (errno != 0) return NULL;                                                                                                           \
  } while (0)
#define FAIL_CODE()                                                                                                                         \
  do {                                                                                                                                     \
    int code_ = fails(__func__);                                                                                                           \
    if (code_ != 0) return code_;                                                                                                          \
  } while (0)

enum { MAX_OBJECTS = 4096, MAX_GIDS = 8 };

typedef struct {
  struct verbs_context v;
  int event_fd, objects;
} context;

typedef struct {
  struct ibv_wc wc;
  struct qp *qp;
  uint64_t seq;
  int recv;
} entry;

typedef struct {
  struct ibv_cq cq;
  entry *ring;
  int depth, head, count, armed;
} cq;

typedef struct {
  struct ibv_send_wr wr;
  struct ibv_sge sge;
  char *inlined;
  uint64_t seq;
} work;

typedef struct {
  uint64_t wr_id, seq;
  struct ibv_sge sge;
} receive;

typedef struct qp {
  struct ibv_qp qp;
  struct ibv_qp_cap cap;
  uint32_t dest;
  work *sends;       // waiting
  receive *receives; // waiting
  int nsends, nreceives, access;
  uint64_t sent, received, freed_sends, freed_receives; // freed by polls
} qp;

typedef struct {
  struct ibv_mr mr;
  int access;
} mr;

static qp *qps[MAX_OBJECTS];
static mr *mrs[MAX_OBJECTS];
static struct ibv_device devices[4];

// ---- devices

struct ibv_device **ibv_get_device_list(int *n) {
  FAIL_NULL();
  *n = env("FAKE_DEVICES", 1);
  struct ibv_device **list = calloc((size_t)*n + 1, sizeof *list);
  for (int i = 0; i < *n; i++) {
    list[i] = &devices[i];
    devices[i].node_type = IBV_NODE_CA;
    devices[i].transport_type = IBV_TRANSPORT_IB;
    snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
    snprintf(devices[i].dev_name, sizeof devices[i].dev_name, "uverbs%d", i);
  }
  return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

__be64 ibv_get_device_guid(struct ibv_device *d) { return htobe64(0x0002c90300000000ull + (uint64_t)(d - devices)); }

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size);
static int post_send(struct ibv_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static int poll_cq(struct ibv_cq *q, int n, struct ibv_wc *wc);
static int req_notify_cq(struct ibv_cq *q, int solicited);

struct ibv_context *ibv_open_device(struct ibv_device *d) {
  FAIL_NULL();
  context *c = calloc(1, sizeof *c);
  int fd[2];
  if (pipe(fd) != 0) abort();
  c->v.sz = sizeof c->v;
  c->v.query_port = query_port;
  c->v.context.device = d;
  c->v.context.async_fd = fd[0];
  c->event_fd = fd[1];
  c->v.context.abi_compat = env("FAKE_OLD", 0) ? NULL : __VERBS_ABI_IS_EXTENDED;
  c->v.context.ops.post_send = post_send;
  c->v.context.ops.post_recv = post_recv;
  c->v.context.ops.poll_cq = poll_cq;
  c->v.context.ops.req_notify_cq = req_notify_cq;
  for (const char *at = getenv("FAKE_EVENT"); at != NULL && *at != 0;) {
    int e[2] = {0, 0};
    sscanf(at, "%d:%d", &e[0], &e[1]);
    if (write(fd[1], e, sizeof e) != sizeof e) abort();
    at = strchr(at, ',');
    if (at != NULL) at++;
  }
  return &c->v.context;
}

static context *of(struct ibv_context *c) { return (context *)((char *)c - offsetof(context, v.context)); }

int ibv_close_device(struct ibv_context *c) {
  FAIL_CODE();
  if (of(c)->objects != 0) return EBUSY;
  close(c->async_fd);
  close(of(c)->event_fd);
  free(of(c));
  return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
  FAIL_CODE();
  snprintf(a->fw_ver, sizeof a->fw_ver, "1.2.3");
  a->node_guid = ibv_get_device_guid(c->device);
  a->sys_image_guid = htobe64(7);
  a->max_mr_size = 1ull << 40;
  a->vendor_id = 0x2c9;
  a->vendor_part_id = 4129;
  a->hw_ver = 5;
  a->max_qp = 100;
  a->max_qp_wr = 1000;
  a->max_sge = 30;
  a->max_cq = 101;
  a->max_cqe = 1001;
  a->max_mr = 102;
  a->max_pd = 103;
  a->max_qp_rd_atom = 16;
  a->max_qp_init_rd_atom = 15;
  a->atomic_cap = IBV_ATOMIC_HCA;
  a->phys_port_cnt = 1;
  return 0;
}

static int fill_port(uint8_t port, struct ibv_port_attr *a) {
  if (port != 1) return EINVAL;
  a->state = (enum ibv_port_state)env("FAKE_STATE", IBV_PORT_ACTIVE);
  a->phys_state = 5;
  a->link_layer = (uint8_t)env("FAKE_LINK", IBV_LINK_LAYER_ETHERNET);
  a->max_mtu = IBV_MTU_4096;
  a->active_mtu = (enum ibv_mtu)env("FAKE_MTU", IBV_MTU_1024);
  a->lid = 3;
  a->sm_lid = 4;
  a->gid_tbl_len = MAX_GIDS;
  a->pkey_tbl_len = 2;
  a->active_width = (uint8_t)env("FAKE_WIDTH", 2);
  a->active_speed = (uint8_t)env("FAKE_SPEED", 64);
  return 0;
}

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size) {
  (void)c;
  FAIL_CODE();
  if (size != sizeof *a) abort();
  a->flags = IBV_QPF_GRH_REQUIRED; // only the extended query has it
  return fill_port(port, a);
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a) {
  (void)c;
  FAIL_CODE();
  return fill_port(port, (struct ibv_port_attr *)a);
}

static const struct {
  uint32_t word[4], type, ifindex;
} gids[MAX_GIDS] = {
    {{0xfe800000, 0, 0x1, 0x2}, IBV_GID_TYPE_ROCE_V1, 1},   {{0xfe800000, 0, 0x1, 0x2}, IBV_GID_TYPE_ROCE_V2, 1},
    {{0, 0, 0xffff, 0xa9fe0102}, IBV_GID_TYPE_ROCE_V2, 1},  {{0, 0, 0, 0}, 0, 0},
    {{0, 0, 0xffff, 0x0a000001}, IBV_GID_TYPE_ROCE_V1, 1},  {{0, 0, 0xffff, 0x0a000001}, IBV_GID_TYPE_ROCE_V2, 1},
    {{0x20010db8, 0, 0, 0x1}, IBV_GID_TYPE_ROCE_V2, 99999}, {{0, 0, 0, 0}, 0, 0},
};

int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *g) {
  (void)c;
  (void)port;
  if ((errno = fails(__func__)) != 0) return -1;
  for (int i = 0; i < 4; i++) ((uint32_t *)g->raw)[i] = htonl(gids[index].word[i]);
  return 0;
}

int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size) {
  FAIL_CODE();
  if (flags != 0 || size != sizeof *e) return EINVAL;
  if (gids[index].word[0] == 0 && gids[index].word[3] == 0) return ENODATA;
  e->gid_type = gids[index].type;
  e->ndev_ifindex = gids[index].ifindex;
  return ibv_query_gid(c, (uint8_t)port, (int)index, &e->gid);
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e) {
  if ((errno = fails(__func__)) != 0) return -1;
  int got[2];
  if (read(c->async_fd, got, sizeof got) != sizeof got) return -1;
  static struct ibv_qp broken = {.qp_num = 17};
  e->event_type = (enum ibv_event_type)got[0];
  if (got[1] != 0)
    e->element.port_num = got[1];
  else
    e->element.qp = &broken;
  return 0;
}

void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }

// ---- resources

static void *made(struct ibv_context *c, size_t size) {
  __atomic_add_fetch(&of(c)->objects, 1, __ATOMIC_SEQ_CST);
  return calloc(1, size);
}

static int gone(struct ibv_context *c, void *object) {
  __atomic_sub_fetch(&of(c)->objects, 1, __ATOMIC_SEQ_CST);
  free(object);
  return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
  FAIL_NULL();
  struct ibv_pd *pd = made(c, sizeof *pd);
  pd->context = c;
  return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
  FAIL_CODE();
  return gone(pd->context, pd);
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c) {
  FAIL_NULL();
  struct ibv_comp_channel *ch = made(c, sizeof *ch);
  int fd[2];
  if (pipe(fd) != 0) abort();
  ch->context = c;
  ch->fd = fd[0];
  ch->refcnt = fd[1];
  return ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch) {
  FAIL_CODE();
  close(ch->fd);
  close(ch->refcnt);
  return gone(ch->context, ch);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int depth, void *user, struct ibv_comp_channel *ch, int vector) {
  (void)vector;
  FAIL_NULL();
  if (depth < 1) {
    errno = EINVAL;
    return NULL;
  }
  cq *q = made(c, sizeof *q);
  q->cq.context = c;
  q->cq.cq_context = user;
  q->cq.channel = ch;
  q->depth = depth;
  q->ring = calloc((size_t)depth, sizeof *q->ring);
  return &q->cq;
}

int ibv_destroy_cq(struct ibv_cq *q) {
  FAIL_CODE();
  free(((cq *)q)->ring);
  return gone(q->context, q);
}

int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **q, void **user) {
  if ((errno = fails(__func__)) != 0) return -1;
  if (read(ch->fd, q, sizeof *q) != sizeof *q) return -1;
  *user = (*q)->cq_context;
  return 0;
}

void ibv_ack_cq_events(struct ibv_cq *q, unsigned int n) {
  (void)q;
  (void)n;
}

static int req_notify_cq(struct ibv_cq *q, int solicited) {
  (void)solicited;
  FAIL_CODE();
  pthread_mutex_lock(&lock);
  ((cq *)q)->armed = 1;
  pthread_mutex_unlock(&lock);
  return 0;
}

static struct ibv_mr *registered(struct ibv_pd *pd, uint64_t addr, size_t bytes, int access) {
  mr *m = made(pd->context, sizeof *m);
  m->mr.context = pd->context;
  m->mr.pd = pd;
  m->mr.addr = (void *)addr;
  m->mr.length = bytes;
  m->access = access;
  pthread_mutex_lock(&lock);
  for (uint32_t i = 1; i < MAX_OBJECTS; i++)
    if (mrs[i] == NULL) {
      mrs[i] = m;
      m->mr.lkey = i;
      m->mr.rkey = i << 8;
      break;
    }
  pthread_mutex_unlock(&lock);
  return &m->mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access) {
  FAIL_NULL();
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) != 0 || bytes == 0) {
    errno = EINVAL;
    return NULL;
  }
  return registered(pd, (uint64_t)addr, bytes, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access) {
  FAIL_NULL();
  if ((uint64_t)addr != iova) abort();
  return registered(pd, iova, bytes, (int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
  (void)offset;
  FAIL_NULL();
  if (fd < 0) {
    errno = EBADF;
    return NULL;
  }
  return registered(pd, iova, bytes, access);
}

int ibv_dereg_mr(struct ibv_mr *m) {
  FAIL_CODE();
  pthread_mutex_lock(&lock);
  mrs[m->lkey] = NULL;
  pthread_mutex_unlock(&lock);
  return gone(m->context, m);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a) {
  FAIL_NULL();
  if (a->is_global && a->grh.hop_limit == 0) {
    errno = EINVAL;
    return NULL;
  }
  struct ibv_ah *ah = made(pd->context, sizeof *ah);
  ah->context = pd->context;
  return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah) {
  FAIL_CODE();
  return gone(ah->context, ah);
}

// ---- queue pairs

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a) {
  FAIL_NULL();
  if (a->cap.max_send_wr > 1000 || a->cap.max_inline_data > 512) {
    errno = EINVAL;
    return NULL;
  }
  qp *q = made(pd->context, sizeof *q);
  q->qp.context = pd->context;
  q->qp.pd = pd;
  q->qp.send_cq = a->send_cq;
  q->qp.recv_cq = a->recv_cq;
  q->qp.qp_type = a->qp_type;
  if (a->cap.max_inline_data > 0) a->cap.max_inline_data = (a->cap.max_inline_data + 63) / 64 * 64; // devices grant more than was asked for
  q->cap = a->cap;
  q->sends = calloc(a->cap.max_send_wr + 1, sizeof *q->sends);
  q->receives = calloc(a->cap.max_recv_wr + 1, sizeof *q->receives);
  pthread_mutex_lock(&lock);
  for (uint32_t i = 1; i < MAX_OBJECTS; i++)
    if (qps[i] == NULL) {
      qps[i] = q;
      q->qp.qp_num = i;
      break;
    }
  pthread_mutex_unlock(&lock);
  return &q->qp;
}

static void forget(qp *q) {
  for (int i = 0; i < q->nsends; i++) free(q->sends[i].inlined);
  q->nsends = q->nreceives = 0;
}

int ibv_destroy_qp(struct ibv_qp *p) {
  FAIL_CODE();
  qp *q = (qp *)p;
  pthread_mutex_lock(&lock);
  qps[p->qp_num] = NULL;
  forget(q);
  // Completions that nobody polled stay, but free no slots any more.
  cq *queues[] = {(cq *)p->send_cq, (cq *)p->recv_cq};
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < queues[k]->depth; i++)
      if (queues[k]->ring[i].qp == q) queues[k]->ring[i].qp = NULL;
  pthread_mutex_unlock(&lock);
  free(q->sends);
  free(q->receives);
  return gone(p->context, q);
}

static void complete(qp *q, int recv, uint64_t wr_id, uint64_t seq, int status, uint32_t vendor, uint32_t bytes, int op, int with_imm, uint32_t imm) {
  cq *c = (cq *)(recv ? q->qp.recv_cq : q->qp.send_cq);
  if (c->count == c->depth) {
    fprintf(stderr, "fake: completion queue overrun\n");
    abort();
  }
  entry *e = &c->ring[(c->head + c->count++) % c->depth];
  *e = (entry){.qp = q, .seq = seq, .recv = recv};
  e->wc.wr_id = wr_id;
  e->wc.status = (enum ibv_wc_status)status;
  e->wc.vendor_err = vendor;
  e->wc.qp_num = q->qp.qp_num;
  e->wc.byte_len = bytes;
  e->wc.opcode = (enum ibv_wc_opcode)(status == 0 ? op : 0x7777); // not valid on errors
  e->wc.imm_data = imm;
  e->wc.wc_flags = with_imm ? IBV_WC_WITH_IMM : 0;
  if (c->armed && c->cq.channel != NULL) {
    struct ibv_cq *self = &c->cq;
    c->armed = 0;
    if (write(c->cq.channel->refcnt, &self, sizeof self) != sizeof self) abort();
  }
}

static void flush(qp *q) {
  q->qp.state = IBV_QPS_ERR;
  for (int i = 0; i < q->nsends; i++) {
    complete(q, 0, q->sends[i].wr.wr_id, q->sends[i].seq, IBV_WC_WR_FLUSH_ERR, 249, 0, 0, 0, 0);
    free(q->sends[i].inlined);
  }
  for (int i = 0; i < q->nreceives; i++) complete(q, 1, q->receives[i].wr_id, q->receives[i].seq, IBV_WC_WR_FLUSH_ERR, 249, 0, 0, 0, 0);
  q->nsends = q->nreceives = 0;
}

static void progress(qp *q);

int ibv_modify_qp(struct ibv_qp *p, struct ibv_qp_attr *a, int mask) {
  FAIL_CODE();
  char name[64];
  snprintf(name, sizeof name, "ibv_modify_qp:%d", (int)a->qp_state);
  int code = fails(name);
  if (code != 0) return code;
  qp *q = (qp *)p;
  static const int rc[] = {0, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                           IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC};
  static const int uc[] = {0, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, IBV_QP_STATE | IBV_QP_SQ_PSN};
  static const int ud[] = {0, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, IBV_QP_STATE, IBV_QP_STATE | IBV_QP_SQ_PSN};
  const int *masks = p->qp_type == IBV_QPT_RC ? rc : p->qp_type == IBV_QPT_UC ? uc : ud;
  int to = (int)a->qp_state;
  if (to >= IBV_QPS_INIT && to <= IBV_QPS_RTS && (masks[to] != mask || (int)p->state != to - 1)) return EINVAL;
  if (to == IBV_QPS_INIT && a->port_num != 1) return EINVAL;
  if (to == IBV_QPS_RTR && p->qp_type != IBV_QPT_UD && (!a->ah_attr.is_global || a->ah_attr.grh.sgid_index >= MAX_GIDS)) return EINVAL;
  pthread_mutex_lock(&lock);
  if (to == IBV_QPS_ERR) flush(q);
  if (to == IBV_QPS_RESET) forget(q);
  if (mask & IBV_QP_ACCESS_FLAGS) q->access = (int)a->qp_access_flags;
  if (mask & IBV_QP_DEST_QPN) q->dest = a->dest_qp_num;
  p->state = a->qp_state;
  pthread_mutex_unlock(&lock);
  return 0;
}

int ibv_query_qp(struct ibv_qp *p, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *i) {
  (void)i;
  FAIL_CODE();
  if (mask & IBV_QP_STATE) a->qp_state = p->state;
  return 0;
}

// ---- the data path

// The bytes behind a key, NULL when it does not cover them or does not grant the right. shift is 0 for local and 8 for remote keys.
static void *reach(uint64_t addr, uint32_t bytes, uint32_t key, int shift, int right) {
  if (bytes == 0) return (void *)addr;
  uint32_t i = key >> shift;
  mr *m = i < MAX_OBJECTS ? mrs[i] : NULL;
  if (m == NULL || (right != 0 && (m->access & right) == 0)) return NULL;
  uint64_t from = (uint64_t)m->mr.addr;
  return addr >= from && addr + bytes <= from + m->mr.length ? (void *)addr : NULL;
}

enum { LATER = -1 };

static int fill_receive(qp *to, const work *s, const void *data, uint32_t bytes, int with_imm) {
  receive r = to->receives[0];
  uint32_t skip = to->qp.qp_type == IBV_QPT_UD ? 40 : 0;
  int status = IBV_WC_SUCCESS;
  if (s->wr.opcode == IBV_WR_SEND) {
    char *at = reach(r.sge.addr, skip + bytes, r.sge.lkey, 0, IBV_ACCESS_LOCAL_WRITE);
    if (skip + bytes > r.sge.length) return IBV_WC_REM_INV_REQ_ERR;
    if (at == NULL) status = IBV_WC_LOC_PROT_ERR;
    else if (bytes > 0) memcpy(at + skip, data, bytes);
  }
  memmove(to->receives, to->receives + 1, (size_t)--to->nreceives * sizeof *to->receives);
  int op = s->wr.opcode == IBV_WR_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  complete(to, 1, r.wr_id, r.seq, status, 0x51, skip + bytes, op, with_imm, s->wr.imm_data);
  return status == IBV_WC_SUCCESS ? status : IBV_WC_REM_OP_ERR;
}

// Does one operation. Answers the completion status, or LATER when the peer has no receive.
static int execute(qp *q, work *s) {
  uint32_t number = q->qp.qp_type == IBV_QPT_UD ? s->wr.wr.ud.remote_qpn : q->dest;
  qp *to = number < MAX_OBJECTS ? qps[number] : NULL;
  int reliable = q->qp.qp_type == IBV_QPT_RC, needs = s->wr.opcode == IBV_WR_SEND || s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  uint32_t bytes = s->wr.num_sge > 0 ? s->sge.length : 0;
  int loads = s->wr.opcode == IBV_WR_RDMA_READ || s->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || s->wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  void *local = s->inlined ? s->inlined : reach(s->sge.addr, bytes, s->sge.lkey, 0, loads ? IBV_ACCESS_LOCAL_WRITE : 0);
  if (local == NULL && bytes > 0) return IBV_WC_LOC_PROT_ERR;
  if (to == NULL || to->qp.state < IBV_QPS_RTR || to->qp.state == IBV_QPS_ERR) return reliable ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
  if (needs && to->nreceives == 0) return reliable ? LATER : IBV_WC_SUCCESS;
  if (s->wr.opcode == IBV_WR_SEND) return fill_receive(to, s, local, bytes, 0);
  int right = s->wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : loads ? IBV_ACCESS_REMOTE_ATOMIC : IBV_ACCESS_REMOTE_WRITE;
  uint64_t addr = loads && right == IBV_ACCESS_REMOTE_ATOMIC ? s->wr.wr.atomic.remote_addr : s->wr.wr.rdma.remote_addr;
  uint32_t rkey = loads && right == IBV_ACCESS_REMOTE_ATOMIC ? s->wr.wr.atomic.rkey : s->wr.wr.rdma.rkey;
  uint64_t *remote = reach(addr, bytes, rkey, 8, right);
  if ((remote == NULL && bytes > 0) || (to->access & right) == 0) {
    flush(to);
    return IBV_WC_REM_ACCESS_ERR;
  }
  uint64_t old;
  switch (s->wr.opcode) {
  case IBV_WR_RDMA_WRITE_WITH_IMM:
  case IBV_WR_RDMA_WRITE:
    // The last byte last, as a receiver that polls it expects.
    if (bytes > 1) memcpy(remote, local, bytes - 1);
    if (bytes > 0) __atomic_store_n((char *)remote + bytes - 1, ((char *)local)[bytes - 1], __ATOMIC_RELEASE);
    return needs ? fill_receive(to, s, NULL, bytes, 1) : IBV_WC_SUCCESS;
  case IBV_WR_RDMA_READ:
    if (bytes > 0) memcpy(local, remote, bytes);
    return IBV_WC_SUCCESS;
  default:
    old = *remote;
    if (s->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) *remote += s->wr.wr.atomic.compare_add;
    else if (old == s->wr.wr.atomic.compare_add) *remote = s->wr.wr.atomic.swap;
    *(uint64_t *)local = old;
    return IBV_WC_SUCCESS;
  }
}

// The fault that the environment plants, which counts from when it was set.
static int planted(int *status, uint32_t *vendor) {
  static char seen[64];
  static int left;
  const char *v = getenv("FAKE_WC");
  if (v == NULL) v = "";
  if (strcmp(seen, v) != 0) {
    snprintf(seen, sizeof seen, "%s", v);
    left = atoi(v);
  }
  if (*v == 0 || left-- != 0) return 0;
  int n;
  return sscanf(v, "%d:%d:%u", &n, status, vendor) == 3;
}

static void progress(qp *q) {
  while (q->nsends > 0 && q->qp.state == IBV_QPS_RTS) {
    work s = q->sends[0];
    int status = 0;
    uint32_t vendor = 0;
    if (env("FAKE_SILENT", 0)) return;
    int wrong = planted(&status, &vendor);
    if (!wrong) {
      status = execute(q, &s);
      vendor = status == IBV_WC_RETRY_EXC_ERR ? 0x81 : 0;
    }
    if (status == LATER) return;
    memmove(q->sends, q->sends + 1, (size_t)--q->nsends * sizeof *q->sends);
    if (status != 0 || (s.wr.send_flags & IBV_SEND_SIGNALED))
      complete(q, 0, s.wr.wr_id, s.seq, status, vendor, s.sge.length, IBV_WC_SEND, 0, 0);
    free(s.inlined);
    if (status != 0) flush(q);
  }
}

static int post_send(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  qp *q = (qp *)p;
  int err = fails("post_send");
  pthread_mutex_lock(&lock);
  for (; err == 0 && wr != NULL; wr = wr->next) {
    if (q->sent - q->freed_sends >= q->cap.max_send_wr) err = ENOMEM;
    else if (p->state < IBV_QPS_RTS) err = EINVAL;
    else if ((wr->send_flags & IBV_SEND_INLINE) && wr->sg_list->length > q->cap.max_inline_data) err = EINVAL;
    if (err != 0) break;
    work *s = &q->sends[q->nsends++];
    *s = (work){.wr = *wr, .seq = q->sent++};
    if (wr->num_sge > 0) s->sge = wr->sg_list[0];
    if ((wr->send_flags & IBV_SEND_INLINE) && wr->num_sge > 0) {
      s->inlined = malloc(s->sge.length);
      memcpy(s->inlined, (void *)s->sge.addr, s->sge.length);
    }
    if (p->state == IBV_QPS_ERR) flush(q);
    else progress(q);
  }
  if (err != 0) *bad = wr;
  pthread_mutex_unlock(&lock);
  return err;
}

static int post_recv(struct ibv_qp *p, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  qp *q = (qp *)p;
  int err = fails("post_recv");
  pthread_mutex_lock(&lock);
  for (; err == 0 && wr != NULL; wr = wr->next) {
    if (q->received - q->freed_receives >= q->cap.max_recv_wr) err = ENOMEM;
    if (err != 0) break;
    receive *r = &q->receives[q->nreceives++];
    *r = (receive){.wr_id = wr->wr_id, .seq = q->received++};
    if (wr->num_sge > 0) r->sge = wr->sg_list[0];
  }
  if (err != 0) *bad = wr;
  if (p->state == IBV_QPS_ERR) flush(q);
  for (int i = 1; i < MAX_OBJECTS; i++) // who waits for a receive here goes on
    if (qps[i] != NULL && qps[i]->dest == p->qp_num) progress(qps[i]);
  pthread_mutex_unlock(&lock);
  return err;
}

static int poll_cq(struct ibv_cq *p, int n, struct ibv_wc *wc) {
  if (fails("poll_cq")) return -1;
  cq *c = (cq *)p;
  int got = 0;
  pthread_mutex_lock(&lock);
  for (; got < n && c->count > 0; got++, c->count--) {
    entry *e = &c->ring[c->head];
    c->head = (c->head + 1) % c->depth;
    wc[got] = e->wc;
    if (e->qp != NULL) *(e->recv ? &e->qp->freed_receives : &e->qp->freed_sends) = e->seq + 1;
  }
  pthread_mutex_unlock(&lock);
  return got;
}
