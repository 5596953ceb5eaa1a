// What the Go side of this package sees of the C side. Nothing of <infiniband/verbs.h> shows here: handles are void pointers, numbers are
// those of the verbs interface. Every function that can fail answers 0, an errno, or IV_MISSING.
#ifndef IV_BINDING_H
#define IV_BINDING_H

#include <stddef.h>
#include <stdint.h>

// The answer of a call to a function that the loaded library lacks. No errno is that large.
enum { IV_MISSING = 1 << 20 };

// ---- table.c
int iv_fill(uintptr_t handle);                // empties the table and fills it from the opened library; answers how many it has
int iv_loaded_path(char *out, int out_len);   // the file that the functions come from; 0 when none
int iv_count(void);                           // functions in the table, their names, and whether the library has them
const char *iv_name(int i);
int iv_present(int i);

// ---- device.c
typedef struct {
  char name[64], uverbs[64];
  uint64_t guid; // host order
  int node_type, transport;
} iv_device;

typedef struct {
  char firmware[64];
  uint64_t node_guid, sys_image_guid, max_mr_bytes;
  uint32_t vendor_id, part_id, hw_version;
  int max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_qp_init_rd_atom, atomics, ports;
} iv_attr;

typedef struct {
  int state, phys_state, link_layer, max_mtu, active_mtu, lid, sm_lid, gids, pkeys, grh_required, width, speed;
} iv_port;

typedef struct {
  uint8_t raw[16];
  int type; // 0 InfiniBand, 1 RoCE v1, 2 RoCE v2, -1 not told
  uint32_t ifindex;
} iv_gid;

typedef struct {
  int type, port;
  uint32_t qp_num;
} iv_event;

int iv_devices(iv_device **out, int *n); // *out is the caller's, to free
int iv_open(const char *name, void **ctx);
int iv_close(void *ctx);
int iv_query_device(void *ctx, iv_attr *a);
int iv_query_port(void *ctx, int port, iv_port *p);
int iv_query_gid(void *ctx, int port, int index, iv_gid *g);       // with type and network device
int iv_query_gid_plain(void *ctx, int port, int index, iv_gid *g); // of libraries that have only the old query
int iv_next_event(void *ctx, int waker, iv_event *e);               // EAGAIN: woken, or interrupted by a signal

// ---- resource.c
int iv_alloc_pd(void *ctx, void **pd);
int iv_dealloc_pd(void *pd);
int iv_create_channel(void *ctx, void **channel);
int iv_destroy_channel(void *channel);
int iv_wait_channel(void *channel, int waker, void **cq); // EAGAIN: woken, or interrupted by a signal; acknowledges the event
int iv_create_cq(void *ctx, int depth, void *channel, void **cq);
int iv_destroy_cq(void *cq);
int iv_arm_cq(void *cq);
int iv_reg_mr(void *pd, uintptr_t addr, size_t bytes, int access, void **mr);
int iv_reg_dmabuf(void *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access, void **mr);
int iv_dereg_mr(void *mr);
void iv_mr_keys(void *mr, uint32_t *lkey, uint32_t *rkey);

typedef struct {
  int global, sgid_index, sl, traffic_class, hop_limit, port, dlid;
  uint32_t flow_label;
  uint8_t dgid[16];
} iv_path;

int iv_create_ah(void *pd, const iv_path *path, void **ah);
int iv_destroy_ah(void *ah);

// ---- qp.c
typedef struct {
  int type; // 2 RC, 3 UC, 4 UD
  int max_send, max_recv, max_send_sge, max_recv_sge, max_inline; // wanted, then granted
  uint32_t num;
} iv_qp_config;

int iv_create_qp(void *pd, void *send_cq, void *recv_cq, iv_qp_config *c, void **qp);
int iv_destroy_qp(void *qp);
int iv_qp_state(void *qp, int *state);
int iv_qp_set_state(void *qp, int state);
int iv_qp_init(void *qp, int type, int port, int pkey_index, int access, uint32_t qkey);
int iv_qp_rtr(void *qp, int type, const iv_path *path, int mtu, uint32_t remote_qp, uint32_t remote_psn, int rd_atomic, int min_rnr_timer);
int iv_qp_rts(void *qp, int type, uint32_t psn, int timeout, int retry, int rnr_retry, int rd_atomic);

// ---- the data path

// How a run ended before it was done.
enum { IV_OK, IV_FAULT_WC, IV_FAULT_TIMEOUT, IV_FAULT_STOPPED, IV_FAULT_POST_SEND, IV_FAULT_POST_RECV, IV_FAULT_POLL };

typedef struct {
  int kind;
  int err;         // errno of a call that failed
  int status;      // of the completion that failed, with the rest of what it said
  uint32_t vendor, qp_num;
  uint64_t wr_id;
} iv_fault;

// A work request's id: the top bit marks a receive, then 15 bits of the lane and 48 of the operation's index there.
enum { IV_LANE_SHIFT = 48, IV_MAX_LANES = 1 << 15 };

typedef struct {
  void *qp, *ah;
  uint64_t local_addr, remote_addr, recv_addr;
  uint32_t lkey, rkey, recv_lkey, remote_qp, remote_qkey;
} iv_lane;

enum { IV_WRITE, IV_WRITE_IMM, IV_READ, IV_SEND, IV_FETCH_ADD, IV_CMP_SWAP };

typedef struct {
  int lanes, op, depth, recv_depth, signal, inlined, ud;
  uint32_t bytes;
  int64_t send, recv; // of a lane; recv < 0: as many as come until the flag says finish
  int64_t for_ns, margin_ns, deadline_ns;
  uint64_t compare_add, swap;
  void *send_cq, *recv_cq;
  int *stop; // may be NULL

  // What came out.
  iv_fault fault;
  int64_t posts, completions, ops, received, first_ns, last_ns, sampled_ops, sampled_ns;
} iv_series;

int iv_post_receives(const iv_series *s, const iv_lane *lanes, int64_t count); // for each lane
// posted has room for lanes*send stamps, completed and completed_ops for max_completions; all unused with for_ns.
void iv_series_run(iv_series *s, const iv_lane *lanes, int64_t *posted, int64_t *completed, int32_t *completed_ops, int64_t max_completions);

typedef struct {
  int op, initiator, cqe, inlined, ud;
  int recv_posted; // receives that are there already
  uint32_t bytes;
  int64_t iterations, deadline_ns;
  uint64_t compare_add, swap;
  void *send_cq, *recv_cq;
  int *stop;

  iv_fault fault;
  int64_t done;
} iv_pingpong;

void iv_pingpong_run(iv_pingpong *p, const iv_lane *lane, int64_t *stamps); // iterations + 1 stamps
void iv_clear_last(uint64_t addr, uint32_t bytes); // the byte that the peer's first write changes

typedef struct {
  uint64_t local_addr, remote_addr;
  uint32_t lkey, rkey, bytes;
} iv_entry;

typedef struct {
  void *qp, *send_cq;
  int depth;     // work requests that the queue takes
  int with_imm;
  uint32_t imm;
  int64_t deadline_ns;
  int *stop;

  iv_fault fault;
  int64_t posted_ns, done_ns, done;
} iv_batch;

void iv_batch_run(iv_batch *b, const iv_entry *entries, int64_t n);

typedef struct {
  void *qp, *recv_cq;
  int64_t deadline_ns;
  int *stop;

  iv_fault fault;
  int64_t done;
} iv_imm;

void iv_wait_imm(iv_imm *w, int64_t n, uint32_t *imm, int64_t *at);
int iv_post_empty_receives(void *qp, int n);

typedef struct {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor, qp_num, bytes, imm;
  int has_imm;
} iv_wc;

int iv_poll(void *cq, int max, iv_wc *out, int *n);

int64_t iv_now_ns(void); // CLOCK_MONOTONIC_RAW

// A flag's values: stop at once; no more receives will come.
enum { IV_FLAG_STOP = 1, IV_FLAG_FINISH = 2 };

int *iv_flag_new(void);
void iv_flag_set(int *flag, int value); // stop is not undone by finish

// ---- waker.c
int iv_waker_open(void); // a descriptor, or the error below 0
void iv_waker_wake(int waker);
void iv_waker_close(int waker);
int iv_readable(int fd, int waker); // blocks until fd has something: 1, or the waker was woken or a signal came: 0

// ---- pattern.c
void iv_fill_pattern(void *p, size_t bytes, uint64_t seed, uint32_t stream);
size_t iv_check_pattern(const void *p, size_t bytes, uint64_t seed, uint32_t stream, size_t *first, size_t *last);
void iv_poison(void *p, size_t bytes);

#endif
