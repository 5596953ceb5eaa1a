// Devices, ports, GIDs, asynchronous events.
#include "table.h"

#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int iv_devices(iv_device **out, int *n) {
  *out = NULL;
  *n = 0;
  errno = 0;
  struct ibv_device **list = call_ibv_get_device_list(n);
  if (list == NULL) return iv_errno();
  *out = calloc((size_t)*n + 1, sizeof **out);
  for (int i = 0; *out != NULL && i < *n; i++) {
    iv_device *d = &(*out)[i];
    snprintf(d->name, sizeof d->name, "%s", list[i]->name);
    snprintf(d->uverbs, sizeof d->uverbs, "%s", list[i]->dev_name);
    d->guid = be64toh(call_ibv_get_device_guid(list[i]));
    d->node_type = list[i]->node_type;
    d->transport = list[i]->transport_type;
  }
  call_ibv_free_device_list(list);
  return *out == NULL ? ENOMEM : 0;
}

// The list is fetched afresh: a device of an old list is gone once that list is freed.
int iv_open(const char *name, void **ctx) {
  int n = 0;
  errno = 0;
  struct ibv_device **list = call_ibv_get_device_list(&n);
  if (list == NULL) return iv_errno();
  int err = ENODEV;
  for (int i = 0; i < n; i++) {
    if (strcmp(list[i]->name, name) != 0) continue;
    errno = 0;
    struct ibv_context *c = call_ibv_open_device(list[i]);
    err = c == NULL ? iv_errno() : 0;
    *ctx = c;
    break;
  }
  call_ibv_free_device_list(list);
  if (err == 0) {
    // Reading an event must not block beyond the deadline that poll keeps.
    int fd = ((struct ibv_context *)*ctx)->async_fd;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return err;
}

int iv_close(void *ctx) { return iv_error(call_ibv_close_device(ctx)); }

int iv_query_device(void *ctx, iv_attr *a) {
  struct ibv_device_attr d;
  memset(&d, 0, sizeof d);
  int err = iv_error(call_ibv_query_device(ctx, &d));
  if (err != 0) return err;
  snprintf(a->firmware, sizeof a->firmware, "%s", d.fw_ver);
  a->node_guid = be64toh(d.node_guid);
  a->sys_image_guid = be64toh(d.sys_image_guid);
  a->max_mr_bytes = d.max_mr_size;
  a->vendor_id = d.vendor_id;
  a->part_id = d.vendor_part_id;
  a->hw_version = d.hw_ver;
  a->max_qp = d.max_qp;
  a->max_qp_wr = d.max_qp_wr;
  a->max_sge = d.max_sge;
  a->max_cq = d.max_cq;
  a->max_cqe = d.max_cqe;
  a->max_mr = d.max_mr;
  a->max_pd = d.max_pd;
  a->max_qp_rd_atom = d.max_qp_rd_atom;
  a->max_qp_init_rd_atom = d.max_qp_init_rd_atom;
  a->atomics = d.atomic_cap;
  a->ports = d.phys_port_cnt;
  return 0;
}

int iv_query_port(void *ctx, int port, iv_port *p) {
  struct ibv_port_attr a;
  memset(&a, 0, sizeof a);
  struct ibv_context *c = ctx;
  struct verbs_context *v = verbs_get_ctx_op(c, query_port);
  // The exported function knows only the fields of its first version, which are the leading part of the struct.
  int err = v != NULL ? v->query_port(c, (uint8_t)port, &a, sizeof a)
                      : call_ibv_query_port(c, (uint8_t)port, (struct _compat_ibv_port_attr *)&a);
  if (err != 0) return iv_error(err);
  *p = (iv_port){
      .state = a.state, .phys_state = a.phys_state, .link_layer = a.link_layer, .max_mtu = a.max_mtu, .active_mtu = a.active_mtu,
      .lid = a.lid, .sm_lid = a.sm_lid, .gids = a.gid_tbl_len, .pkeys = a.pkey_tbl_len,
      .grh_required = (a.flags & IBV_QPF_GRH_REQUIRED) != 0, .width = a.active_width, .speed = a.active_speed,
  };
  return 0;
}

int iv_query_gid(void *ctx, int port, int index, iv_gid *g) {
  struct ibv_gid_entry e;
  memset(&e, 0, sizeof e);
  int err = iv_error(call__ibv_query_gid_ex(ctx, (uint32_t)port, (uint32_t)index, &e, 0, sizeof e));
  if (err != 0) return err;
  memcpy(g->raw, e.gid.raw, sizeof g->raw);
  g->type = (int)e.gid_type;
  g->ifindex = e.ndev_ifindex;
  return 0;
}

int iv_query_gid_plain(void *ctx, int port, int index, iv_gid *g) {
  union ibv_gid gid;
  memset(&gid, 0, sizeof gid);
  errno = 0;
  int err = iv_error(call_ibv_query_gid(ctx, (uint8_t)port, index, &gid));
  if (err != 0) return err;
  memcpy(g->raw, gid.raw, sizeof g->raw);
  g->type = -1;
  g->ifindex = 0;
  return 0;
}

static void describe(const struct ibv_async_event *e, iv_event *out) {
  out->type = (int)e->event_type;
  out->port = 0;
  out->qp_num = 0;
  switch (e->event_type) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_PATH_MIG:
  case IBV_EVENT_PATH_MIG_ERR:
  case IBV_EVENT_QP_LAST_WQE_REACHED: out->qp_num = e->element.qp->qp_num; break;
  case IBV_EVENT_PORT_ACTIVE:
  case IBV_EVENT_PORT_ERR:
  case IBV_EVENT_LID_CHANGE:
  case IBV_EVENT_PKEY_CHANGE:
  case IBV_EVENT_SM_CHANGE:
  case IBV_EVENT_CLIENT_REREGISTER:
  case IBV_EVENT_GID_CHANGE: out->port = e->element.port_num; break;
  default: break;
  }
}

int iv_next_event(void *ctx, int waker, iv_event *out) {
  struct ibv_context *c = ctx;
  if (!iv_readable(c->async_fd, waker)) return EAGAIN;
  struct ibv_async_event e;
  errno = 0;
  int err = iv_error(call_ibv_get_async_event(c, &e));
  if (err != 0) return err;
  describe(&e, out);
  call_ibv_ack_async_event(&e); // after the look at the QP: destroying it waits for this
  return 0;
}
