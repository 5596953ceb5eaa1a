#define _GNU_SOURCE
#include "flight.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "series.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the ring's format is little endian"
#endif

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, "version 2 of the format")
AT(cp_flight_header, pid, 40);
AT(cp_flight_header, next, 64);
AT(cp_flight_header, repeated, 72);
AT(cp_flight_header, heartbeat_ns, 128);
AT(cp_flight_header, host, 192);
AT(cp_flight_header, phase_seq, 288);
AT(cp_flight_header, phase, 320);
AT(cp_flight_group, coll_enqueued, 64);
AT(cp_flight_entry, state, 112);
AT(cp_flight_entry, repeats, 144);
AT(cp_flight_entry, end, 184);

enum {
  GROUPS_AT = CP_FLIGHT_HEADER,
  SITES_AT = GROUPS_AT + CP_FLIGHT_GROUPS * (int)sizeof(cp_flight_group),
  TEXT_AT = SITES_AT + CP_FLIGHT_SITES * (int)sizeof(cp_flight_site),
  ENTRIES_AT = TEXT_AT + CP_FLIGHT_TEXT,
};
_Static_assert(ENTRIES_AT == 282624, "version 2 of the format");

uint64_t cp_flight_bytes(uint32_t entries) { return ENTRIES_AT + (uint64_t)entries * sizeof(cp_flight_entry); }

static int64_t wall_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void cp_flight_open(cp_flight *f, void *base, uint32_t entries) {
  char *b = base;
  cp_flight_header *h = base;
  // What an earlier process left must not be taken for records, and pages that are there already cost an append no page fault.
  memset(base, 0, cp_flight_bytes(entries));
  *f = (cp_flight){h, (void *)(b + GROUPS_AT), (void *)(b + SITES_AT), b + TEXT_AT, (void *)(b + ENTRIES_AT), entries};
  h->version = CP_FLIGHT_VERSION;
  h->entry_bytes = sizeof(cp_flight_entry);
  h->capacity = entries;
  h->groups_cap = CP_FLIGHT_GROUPS;
  h->sites_cap = CP_FLIGHT_SITES;
  h->text_bytes = CP_FLIGHT_TEXT;
  h->rank = h->world = -1;
  h->pid = (uint64_t)getpid();
  h->wall_minus_mono_ns = wall_ns() - cp_now_ns();
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(h->magic, "CPFLIGHT", 8);
}

// ---- entries ----

static void pause_a_little(int *spins) {
  if (++*spins > 100) sched_yield(); // the writer holds it for nanoseconds, unless it was just descheduled
}

// Waits until nobody writes the entry and takes it. With newer 0 only if it holds record id, with 1 for a record newer than the one it holds.
static int hold(cp_flight_entry *e, uint64_t id, int newer) {
  uint64_t c = __atomic_load_n(&e->claim, __ATOMIC_RELAXED);
  for (int spins = 0;;) {
    if (c & 1) {
      pause_a_little(&spins);
      c = __atomic_load_n(&e->claim, __ATOMIC_RELAXED);
      continue;
    }
    if (newer ? c >> 1 >= id : c >> 1 != id) return 0;
    if (__atomic_compare_exchange_n(&e->claim, &c, id << 1 | 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 1;
  }
}

static void let_go(cp_flight_entry *e, uint64_t id) { __atomic_store_n(&e->claim, id << 1, __ATOMIC_RELEASE); }

static cp_flight_entry *entry_of(cp_flight *f, uint64_t id) { return &f->entries[(id - 1) & (f->capacity - 1)]; }

static cp_flight_group *group_of(cp_flight *f, int32_t i) {
  return i >= 0 && (uint32_t)i < __atomic_load_n(&f->header->ngroups, __ATOMIC_ACQUIRE) ? &f->groups[i] : NULL;
}

static void raise_to(int64_t *at, int64_t v) {
  for (int64_t was = __atomic_load_n(at, __ATOMIC_RELAXED); was < v;) {
    if (__atomic_compare_exchange_n(at, &was, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  }
}

static uint32_t thread_id(void) {
  static __thread uint32_t id; // a forked child's main thread would keep its parent's, but ranks are not forked
  if (id == 0) id = (uint32_t)syscall(SYS_gettid);
  return id;
}

// A communicator belongs to one thread, so its numbers need no locked instructions, of which each would cost a tenth of an append.
static uint64_t next_number(uint64_t *at, int more) {
  uint64_t n = __atomic_load_n(at, __ATOMIC_RELAXED);
  if (more) __atomic_store_n(at, ++n, __ATOMIC_RELAXED);
  return n;
}

static void raise_mine(int64_t *at, int64_t v) {
  if (__atomic_load_n(at, __ATOMIC_RELAXED) < v) __atomic_store_n(at, v, __ATOMIC_RELAXED);
}

// The record's numbers in its group: its own, or the next ones. The counters follow either way.
static void number(cp_flight *f, const cp_flight_record *r, uint64_t n[3]) {
  cp_flight_group *g = group_of(f, r->group);
  int p2p = (r->flags & CP_FLIGHT_P2P) != 0;
  n[0] = r->coll_seq;
  n[1] = r->p2p_seq;
  n[2] = r->op_id;
  if (g == NULL) return;
  if (r->op_id == 0) {
    int fresh = !(r->flags & CP_FLIGHT_JOINED);
    n[0] = next_number(&g->coll_seq, fresh && !p2p);
    n[1] = next_number(&g->p2p_seq, fresh && p2p);
    n[2] = next_number(&g->op_id, r->kind != CP_STEP_GROUP_END);
  } else {
    raise_mine((int64_t *)&g->coll_seq, (int64_t)n[0]);
    raise_mine((int64_t *)&g->p2p_seq, (int64_t)n[1]);
    raise_mine((int64_t *)&g->op_id, (int64_t)n[2]);
  }
  raise_mine(p2p ? &g->p2p_enqueued : &g->coll_enqueued, (int64_t)n[p2p]);
}

uint64_t cp_flight_append(cp_flight *f, const cp_flight_record *r) {
  uint64_t n[3];
  number(f, r, n);
  uint64_t id = __atomic_add_fetch(&f->header->next, 1, __ATOMIC_RELAXED);
  cp_flight_entry *e = entry_of(f, id);
  if (!hold(e, id, 1)) return id; // this thread was held up for a whole round of the ring, and the entry has a later record
  __atomic_store_n(&e->id, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&e->end, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE); // both are 0 before anything else changes
  e->group = r->group;
  e->site = r->site;
  e->stream = r->stream;
  e->kind = r->kind;
  e->dtype = r->dtype;
  e->redop = r->redop;
  e->peer = r->peer;
  e->tid = thread_id();
  e->coll_seq = n[0];
  e->p2p_seq = n[1];
  e->op_id = n[2];
  e->count = r->count;
  e->in = r->in;
  e->out = r->out;
  e->created_ns = r->created_ns ? r->created_ns : cp_now_ns();
  e->timeout_ns = r->timeout_ns;
  e->state = CP_FLIGHT_SCHEDULED;
  e->flags = r->flags;
  e->started_ns = e->completed_ns = 0;
  e->duration_ns = -1;
  e->repeats = 0;
  __atomic_store_n(&e->end, id, __ATOMIC_RELEASE);
  __atomic_store_n(&e->id, id, __ATOMIC_RELEASE);
  let_go(e, id);
  return id;
}

void cp_flight_append_many(cp_flight *f, const cp_flight_record *r, int64_t n) {
  for (int64_t i = 0; i < n; i++) cp_flight_append(f, r);
}

// ---- runs ----

static void change_flags(cp_flight *f, uint64_t id, uint32_t set, uint32_t clear);

uint64_t cp_flight_begin(cp_flight *f, const cp_flight_record *r, int repeats, cp_flight_run *run) {
  cp_flight_record open = *r;
  open.flags |= CP_FLIGHT_OPEN;
  uint64_t id = cp_flight_append(f, &open);
  *run = (cp_flight_run){.at = &entry_of(f, id)->repeats, .word = id << 8, .left = repeats < CP_FLIGHT_REPEATS ? repeats : CP_FLIGHT_REPEATS,
                         .p2p = (r->flags & CP_FLIGHT_P2P) != 0, .id = id, .group = group_of(f, r->group)};
  return id;
}

int cp_flight_take_back(cp_flight_run *run) {
  if ((run->word & 255) == 0) return 0;
  run->left++;
  __atomic_store_n(run->at, --run->word, __ATOMIC_RELAXED);
  return 1;
}

// Numbers were given without being counted.
static void catch_up(const cp_flight_run *run, uint64_t n) {
  cp_flight_group *g = run->group;
  uint64_t *seq = run->p2p ? &g->p2p_seq : &g->coll_seq;
  __atomic_store_n(&g->op_id, g->op_id + n, __ATOMIC_RELAXED);
  __atomic_store_n(seq, *seq + n, __ATOMIC_RELAXED);
  raise_mine(run->p2p ? &g->p2p_enqueued : &g->coll_enqueued, (int64_t)*seq);
}

int cp_flight_end(cp_flight *f, cp_flight_run *run) {
  uint64_t n = run->word & 255;
  if (run->id == 0) return 0;
  if (n > 0 && run->group != NULL) catch_up(run, n);
  change_flags(f, run->id, 0, CP_FLIGHT_OPEN);
  if (n > 0) __atomic_add_fetch(&f->header->repeated, n, __ATOMIC_RELAXED);
  *run = (cp_flight_run){0};
  return (int)n;
}

// ---- later news ----

static cp_flight_entry *hold_record(cp_flight *f, uint64_t id) {
  if (id == 0) return NULL;
  cp_flight_entry *e = entry_of(f, id);
  return hold(e, id, 0) ? e : NULL;
}

// The sequence number of a record's last call.
static int64_t last_seq(cp_flight_entry *e, int p2p) {
  uint64_t repeats = __atomic_load_n(&e->repeats, __ATOMIC_RELAXED);
  return (int64_t)((p2p ? e->p2p_seq : e->coll_seq) + (repeats >> 8 == e->id ? repeats & 255 : 0));
}

static void set_state(cp_flight_entry *e, uint32_t state) {
  if (e->state < state) __atomic_store_n(&e->state, state, __ATOMIC_RELEASE);
}

void cp_flight_start(cp_flight *f, uint64_t id, int64_t ns) {
  cp_flight_entry *e = hold_record(f, id);
  if (e == NULL) return;
  cp_flight_group *g = group_of(f, e->group);
  int p2p = (e->flags & CP_FLIGHT_P2P) != 0;
  if (e->started_ns == 0) e->started_ns = ns;
  set_state(e, CP_FLIGHT_STARTED);
  if (g != NULL) raise_to(p2p ? &g->p2p_started : &g->coll_started, last_seq(e, p2p));
  let_go(e, id);
}

void cp_flight_complete(cp_flight *f, uint64_t id, int64_t ns, int64_t duration_ns) {
  cp_flight_entry *e = hold_record(f, id);
  if (e == NULL) return;
  cp_flight_group *g = group_of(f, e->group);
  int p2p = (e->flags & CP_FLIGHT_P2P) != 0;
  if (e->state != CP_FLIGHT_COMPLETED) {
    e->completed_ns = ns;
    e->duration_ns = duration_ns;
    set_state(e, CP_FLIGHT_COMPLETED);
    e->flags &= ~(uint32_t)CP_FLIGHT_BOUNDED;
  }
  if (g != NULL) raise_to(p2p ? &g->p2p_completed : &g->coll_completed, last_seq(e, p2p));
  let_go(e, id);
}

static void change_flags(cp_flight *f, uint64_t id, uint32_t set, uint32_t clear) {
  cp_flight_entry *e = hold_record(f, id);
  if (e == NULL) return;
  e->flags = (e->flags | set) & ~clear;
  let_go(e, id);
}

void cp_flight_retire(cp_flight *f, uint64_t id) { change_flags(f, id, CP_FLIGHT_RETIRED, 0); }
void cp_flight_unbound(cp_flight *f, uint64_t id) { change_flags(f, id, 0, CP_FLIGHT_BOUNDED); }

// ---- tables ----

// Takes n bytes of the text area, 4-aligned. -1: full.
static int64_t take_text(cp_flight *f, const void *from, uint64_t n) {
  uint64_t at = (f->header->text_used + 3) & ~(uint64_t)3;
  if (at > CP_FLIGHT_TEXT || n > CP_FLIGHT_TEXT - at) return -1;
  if (n > 0) memcpy(f->text + at, from, n);
  f->header->text_used = at + n;
  return (int64_t)at;
}

int cp_flight_add_group(cp_flight *f, const char *name, uint32_t name_len, const char *desc, uint32_t desc_len, const int32_t *members, uint32_t n) {
  uint32_t i = f->header->ngroups;
  uint64_t used = f->header->text_used;
  if (i == CP_FLIGHT_GROUPS) return -1;
  int64_t name_at = take_text(f, name, name_len), desc_at = take_text(f, desc, desc_len), members_at = take_text(f, members, 4 * (uint64_t)n);
  if (name_at < 0 || desc_at < 0 || members_at < 0) {
    f->header->text_used = used;
    return -1;
  }
  f->groups[i] = (cp_flight_group){
      .name_at = (uint32_t)name_at, .name_len = name_len, .desc_at = (uint32_t)desc_at, .desc_len = desc_len,
      .members_at = (uint32_t)members_at, .nmembers = n,
      .coll_enqueued = -1, .coll_started = -1, .coll_completed = -1, .p2p_enqueued = -1, .p2p_started = -1, .p2p_completed = -1,
  };
  __atomic_store_n(&f->header->ngroups, i + 1, __ATOMIC_RELEASE);
  return (int)i;
}

void cp_flight_set_comm(cp_flight *f, int group, uint64_t id) {
  cp_flight_group *g = group_of(f, group);
  if (g != NULL) __atomic_store_n(&g->comm_id, id, __ATOMIC_RELAXED);
}

uint32_t cp_flight_add_site(cp_flight *f, const char *text, uint32_t len) {
  uint32_t i = f->header->nsites;
  int64_t at = i == CP_FLIGHT_SITES ? -1 : take_text(f, text, len);
  if (at < 0) {
    f->header->sites_lost++;
    return 0;
  }
  f->sites[i] = (cp_flight_site){(uint32_t)at, len};
  __atomic_store_n(&f->header->nsites, i + 1, __ATOMIC_RELEASE);
  return i + 1;
}

static void set_text(char *to, uint32_t room, const char *from, uint32_t len) {
  if (len >= room) len = room - 1;
  memset(to, 0, room);
  if (len > 0) memcpy(to, from, len);
}

void cp_flight_set_rank(cp_flight *f, int rank, int world, const char *host, uint32_t host_len, const char *library, uint32_t library_len) {
  cp_flight_header *h = f->header;
  h->rank = rank;
  h->world = world;
  set_text(h->host, sizeof h->host, host, host_len);
  set_text(h->library, sizeof h->library, library, library_len);
}

void cp_flight_set_phase(cp_flight *f, const char *text, uint32_t len) {
  cp_flight_header *h = f->header;
  uint32_t seq = __atomic_load_n(&h->phase_seq, __ATOMIC_RELAXED);
  for (int spins = 0;;) { // odd: another thread writes
    if (seq & 1) {
      pause_a_little(&spins);
      seq = __atomic_load_n(&h->phase_seq, __ATOMIC_RELAXED);
    } else if (__atomic_compare_exchange_n(&h->phase_seq, &seq, seq + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      break;
    }
  }
  __atomic_thread_fence(__ATOMIC_RELEASE);
  if (len > CP_FLIGHT_PHASE) len = CP_FLIGHT_PHASE;
  h->phase_len = len;
  h->phase_ns = cp_now_ns();
  if (len > 0) memcpy(h->phase, text, len);
  __atomic_store_n(&h->phase_seq, seq + 2, __ATOMIC_RELEASE);
}

void cp_flight_beat(cp_flight *f, int64_t ns) { __atomic_store_n(&f->header->heartbeat_ns, ns, __ATOMIC_RELAXED); }
int64_t cp_flight_heartbeat(cp_flight *f) { return __atomic_load_n(&f->header->heartbeat_ns, __ATOMIC_RELAXED); }

// ---- copies ----

enum { COPY_TRIES = 100 };

static void copy_entry(const cp_flight_entry *from, cp_flight_entry *to) {
  for (int i = 0; i < COPY_TRIES; i++) {
    uint64_t id = __atomic_load_n(&from->id, __ATOMIC_ACQUIRE);
    uint32_t state = __atomic_load_n(&from->state, __ATOMIC_ACQUIRE); // before the times, see the top of flight.h
    memcpy(to, from, sizeof *to);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    to->state = state;
    to->claim = 0;
    to->id = id;
    if (id == __atomic_load_n(&from->id, __ATOMIC_RELAXED) && id == to->end) return;
  }
  to->id = 0; // its writer is stuck, or died in it
}

void cp_flight_copy(cp_flight *f, void *to) {
  cp_flight_header *h = to;
  for (int i = 0; i < COPY_TRIES; i++) {
    uint32_t seq = __atomic_load_n(&f->header->phase_seq, __ATOMIC_ACQUIRE);
    memcpy(to, f->header, CP_FLIGHT_HEADER);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    h->phase_seq = seq;
    if ((seq & 1) == 0 && seq == __atomic_load_n(&f->header->phase_seq, __ATOMIC_RELAXED)) break;
  }
  memcpy((char *)to + GROUPS_AT, (const char *)f->header + GROUPS_AT, ENTRIES_AT - GROUPS_AT);
  cp_flight_entry *e = (void *)((char *)to + ENTRIES_AT);
  for (uint32_t i = 0; i < f->capacity; i++) copy_entry(&f->entries[i], &e[i]);
}

// ---- completion of series ----

// Looks at one event. 1: it was done now.
static int poll_slot(cp_flight_pool *p, int i) {
  uint64_t use = __atomic_load_n(&p->slot[i].use, __ATOMIC_ACQUIRE);
  if ((use & 1) == 0 || cp_cudaEventQuery(p->slot[i].event) != CP_CUDA_SUCCESS) return 0;
  // Another thread may have seen the same, and the event may be in use again, later than what was asked for here: then it is not freed. The event
  // was done at one moment since use was read, and any later use of it begins after that of this record.
  cp_flight_complete(p->flight, use >> 1, cp_now_ns(), -1);
  __atomic_compare_exchange_n(&p->slot[i].use, &use, use & ~(uint64_t)1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  return 1;
}

int cp_flight_pool_free(const cp_flight_pool *p) { return p->n > 0 && (__atomic_load_n(&p->slot[p->next].use, __ATOMIC_RELAXED) & 1) == 0; }

int cp_flight_pool_poll(cp_flight_pool *p) {
  int done = 0;
  for (int i = 0; i < p->n; i++) done += poll_slot(p, i);
  return done;
}

// Events are used in turn, so the next one is the one in use for longest.
int cp_flight_pool_record(cp_flight_pool *p, uint64_t id, cp_stream stream, int *recorded) {
  *recorded = 0;
  if (p->n == 0) return CP_CUDA_SUCCESS;
  int i = p->next;
  poll_slot(p, i);
  if (__atomic_load_n(&p->slot[i].use, __ATOMIC_ACQUIRE) & 1) return CP_CUDA_SUCCESS;
  int code = cp_cudaEventRecord(p->slot[i].event, stream);
  if (code != CP_CUDA_SUCCESS) return code;
  __atomic_store_n(&p->slot[i].use, id << 1 | 1, __ATOMIC_RELEASE);
  p->next = (i + 1) % p->n;
  *recorded = 1;
  return CP_CUDA_SUCCESS;
}
