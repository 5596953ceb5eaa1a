// The table of libibverbs' exported functions, and a caller for each. What the header has as inline functions (ibv_post_send, ibv_poll_cq …)
// reaches the provider through the context's own table and is not here.
#ifndef IV_TABLE_H
#define IV_TABLE_H

#include <errno.h>
#include <infiniband/verbs.h>

#include "binding.h"

// The header hides these behind inline functions that call the exported ones by name, which would need the library at link time.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

// X(what a missing function answers, result, name, parameters, arguments). A pointer's NULL comes with IV_MISSING in errno.
#define IV_FUNCS(X)                                                                                                                         \
  X(NULL, struct ibv_device **, ibv_get_device_list, (int *n), (n))                                                                        \
  X(, void, ibv_free_device_list, (struct ibv_device **list), (list))                                                                      \
  X(NULL, const char *, ibv_get_device_name, (struct ibv_device *d), (d))                                                                  \
  X(0, __be64, ibv_get_device_guid, (struct ibv_device *d), (d))                                                                           \
  X(NULL, struct ibv_context *, ibv_open_device, (struct ibv_device *d), (d))                                                              \
  X(IV_MISSING, int, ibv_close_device, (struct ibv_context *c), (c))                                                                       \
  X(IV_MISSING, int, ibv_query_device, (struct ibv_context *c, struct ibv_device_attr *a), (c, a))                                         \
  X(IV_MISSING, int, ibv_query_port, (struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a), (c, port, a))                 \
  X(IV_MISSING, int, ibv_query_gid, (struct ibv_context *c, uint8_t port, int index, union ibv_gid *g), (c, port, index, g))               \
  X(IV_MISSING, int, _ibv_query_gid_ex,                                                                                                    \
    (struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size),                          \
    (c, port, index, e, flags, size))                                                                                                      \
  X(IV_MISSING, int, ibv_get_async_event, (struct ibv_context *c, struct ibv_async_event *e), (c, e))                                      \
  X(, void, ibv_ack_async_event, (struct ibv_async_event *e), (e))                                                                         \
  X(NULL, struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *c), (c))                                                                     \
  X(IV_MISSING, int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd))                                                                            \
  X(NULL, struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *addr, size_t bytes, int access), (pd, addr, bytes, access))               \
  X(NULL, struct ibv_mr *, ibv_reg_mr_iova2, (struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access),            \
    (pd, addr, bytes, iova, access))                                                                                                       \
  X(NULL, struct ibv_mr *, ibv_reg_dmabuf_mr, (struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access),       \
    (pd, offset, bytes, iova, fd, access))                                                                                                 \
  X(IV_MISSING, int, ibv_dereg_mr, (struct ibv_mr *mr), (mr))                                                                              \
  X(NULL, struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *c), (c))                                                \
  X(IV_MISSING, int, ibv_destroy_comp_channel, (struct ibv_comp_channel *ch), (ch))                                                        \
  X(NULL, struct ibv_cq *, ibv_create_cq, (struct ibv_context *c, int depth, void *user, struct ibv_comp_channel *ch, int vector),         \
    (c, depth, user, ch, vector))                                                                                                          \
  X(IV_MISSING, int, ibv_destroy_cq, (struct ibv_cq *cq), (cq))                                                                            \
  X(IV_MISSING, int, ibv_get_cq_event, (struct ibv_comp_channel *ch, struct ibv_cq **cq, void **user), (ch, cq, user))                     \
  X(, void, ibv_ack_cq_events, (struct ibv_cq *cq, unsigned int n), (cq, n))                                                               \
  X(NULL, struct ibv_qp *, ibv_create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *a), (pd, a))                                        \
  X(IV_MISSING, int, ibv_destroy_qp, (struct ibv_qp *qp), (qp))                                                                            \
  X(IV_MISSING, int, ibv_modify_qp, (struct ibv_qp *qp, struct ibv_qp_attr *a, int mask), (qp, a, mask))                                   \
  X(IV_MISSING, int, ibv_query_qp, (struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *i), (qp, a, mask, i))     \
  X(NULL, struct ibv_ah *, ibv_create_ah, (struct ibv_pd *pd, struct ibv_ah_attr *a), (pd, a))                                             \
  X(IV_MISSING, int, ibv_destroy_ah, (struct ibv_ah *ah), (ah))

typedef struct {
#define IV_MEMBER(missing, result, name, params, args) result(*name) params;
  IV_FUNCS(IV_MEMBER)
#undef IV_MEMBER
} iv_table;

extern iv_table iv_verbs;

#define IV_CALLER(missing, result, name, params, args)                                                                                      \
  static inline result call_##name params {                                                                                                \
    if (iv_verbs.name == NULL) {                                                                                                           \
      errno = IV_MISSING;                                                                                                                  \
      return missing;                                                                                                                      \
    }                                                                                                                                      \
    return iv_verbs.name args;                                                                                                             \
  }
IV_FUNCS(IV_CALLER)
#undef IV_CALLER

// The error of a call that answered NULL. A library that forgets errno must not look like success.
static inline int iv_errno(void) { return errno != 0 ? errno : EIO; }

// The error of a call that answered a number: some answer an errno, some -1 with it in errno.
static inline int iv_error(int rc) { return rc < 0 ? iv_errno() : rc; }

#endif
