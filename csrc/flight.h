// The flight ring: a record of every NCCL call of a rank, in memory that outlives the process.
//
// The ring is a file mapped MAP_SHARED (on tmpfs), so that the parent can read it when the rank hangs in C, is stopped by SIGSTOP or is dead;
// nothing is ever written at exit. Nothing here allocates, locks a mutex or makes a system call once the ring is open.
//
// This header is the format, version 2, little endian. hanglab/flight/ring.go reads it without C; a fixture that both packages test keeps the two
// together. Every offset is fixed and every field naturally aligned: a reader needs no more than the bytes, and a file from another build of
// this version is read alike.
//
//   0       cp_flight_header, 4096 bytes: a page of its own, so that the counters that are written all the time share no line with the tables
//   4096    64 × cp_flight_group: communicators; written once each, but for the counters
//   12288   1024 × cp_flight_site: call sites, interned, so that a record carries 4 bytes instead of a stack
//   20480   256 KiB of text that groups and sites point into; only ever appended to
//   282624  capacity × cp_flight_entry; capacity is a power of two, record n lies in entry (n - 1) % capacity
//
// Torn entries. A writer sets id and end to 0, then writes the rest, then end, then id. So whoever copies an entry from low to high addresses and finds
// id == end != 0 has a whole record; otherwise the entry was being written, or its writer died there. State, times and flags change later: the
// times are written before the state that gives them a meaning and lie after it, so that a copy never has a state without its times.
//
// Runs. A record may stand for several calls, one after the other, that differ in nothing but their numbers: for its own, and for as many more as
// repeats says, each with the next op_id and the next sequence number of its group. A timed series makes thousands of them, and counting one costs
// a few nanoseconds where a record costs some hundred, most of it for memory that is no longer in a cache. repeats is the record's number × 256 and
// the count; with another number it is left over and means none. So a writer that was held up cannot give its calls to a later record. State and times
// are those of the run's last call; what comes before it is bounded by it. While the run may still grow, its flags say so.
//
// Counters that say "last" are -1 until there is one, as in PyTorch's dumps. Sequence numbers and record numbers begin with 1.
#ifndef CP_FLIGHT_H
#define CP_FLIGHT_H

#include "abi.h"

enum {
  CP_FLIGHT_VERSION = 2,
  CP_FLIGHT_HEADER = 4096,
  CP_FLIGHT_GROUPS = 64,
  CP_FLIGHT_SITES = 1024,
  CP_FLIGHT_TEXT = 256 << 10,
  CP_FLIGHT_PHASE = 128,
  CP_FLIGHT_MAX_ENTRIES = 1 << 20,
};

enum { // state of a record; it only ever grows
  CP_FLIGHT_SCHEDULED = 0, // the call was made or is being made
  CP_FLIGHT_STARTED = 1,   // the device was seen to have begun
  CP_FLIGHT_COMPLETED = 2, // the device was seen to have finished
};

enum { // flags of a record
  CP_FLIGHT_P2P = 1,       // numbered by p2p_seq, not by coll_seq
  CP_FLIGHT_RETIRED = 2,   // given up: the call failed or its communicator was aborted; with a state short of completed it never will be
  CP_FLIGHT_COALESCED = 4, // inside of ncclGroupStart and ncclGroupEnd, or the record of the ncclGroupEnd itself
  CP_FLIGHT_BOUNDED = 8,   // has no event of its own: complete when a later record of its stream is
  CP_FLIGHT_JOINED = 16,   // coalesced, and not the first of its NCCL group: shares the sequence number of that one
  CP_FLIGHT_OPEN = 32,     // a run that may still grow
};

typedef struct {
  char magic[8]; // "CPFLIGHT"; written last, so a file without it is not a ring yet
  uint32_t version;
  uint32_t entry_bytes;
  uint32_t capacity;
  uint32_t groups_cap;
  uint32_t sites_cap;
  uint32_t text_bytes;
  int32_t rank, world; // -1 until known
  uint64_t pid;
  int64_t wall_minus_mono_ns; // at creation: a monotonic time plus this is a wall clock time
  uint32_t ngroups, nsites;   // written after the entry that they announce
  uint64_t next;              // records ever given a number: the last one's number
  uint64_t repeated;          // calls beyond those, of the runs that are no longer open
  uint64_t pad0[6];
  int64_t heartbeat_ns; // monotonic: when the watchdog last came round, 0: never
  uint64_t text_used;
  uint32_t sites_lost; // call sites that did not fit
  uint32_t pad1[11];
  char host[64], library[32]; // NUL-terminated
  // What the rank's thread does now. phase_seq is odd while the three after it are written.
  uint32_t phase_seq, phase_len;
  int64_t phase_ns; // monotonic
  uint64_t pad2[2];
  char phase[CP_FLIGHT_PHASE];
} cp_flight_header;

// A communicator. Offsets are into the text area; members are global ranks, 4 bytes each.
typedef struct {
  uint64_t comm_id; // whatever tells communicators apart, 0: not made yet
  uint32_t name_at, name_len;
  uint32_t desc_at, desc_len;
  uint32_t members_at, nmembers;
  uint64_t coll_seq, p2p_seq, op_id; // the last numbers given
  uint64_t pad0;
  int64_t coll_enqueued, coll_started, coll_completed;
  int64_t p2p_enqueued, p2p_started, p2p_completed;
  uint64_t pad1[2];
} cp_flight_group;

typedef struct {
  uint32_t at, len; // "function\tfile\tline\n" for each frame, the innermost first
} cp_flight_site;

// Three cache lines. claim is the writers' own: record number × 2, and 1 while somebody writes. Readers ignore it.
typedef struct {
  uint64_t id; // record number, see above
  uint64_t claim;
  int32_t group;   // index, -1: none
  uint32_t site;   // number of the call site from 1, 0: not known
  uint32_t stream; // the caller's own numbering
  uint32_t kind;   // CP_STEP_*
  int32_t dtype;
  int32_t redop;
  int32_t peer; // root or peer, rank in the group
  uint32_t tid; // of the OS thread that made the call
  uint64_t coll_seq, p2p_seq, op_id;
  uint64_t count;   // elements, as passed to NCCL
  uint64_t in, out; // elements of the whole input and output
  int64_t created_ns;
  int64_t timeout_ns; // 0: none
  uint32_t state, flags;
  int64_t started_ns, completed_ns; // monotonic, when it was noticed
  int64_t duration_ns;              // by device events, -1: not known
  uint64_t repeats;                 // see above
  uint64_t pad[4];
  uint64_t end;
} cp_flight_entry;

_Static_assert(sizeof(cp_flight_group) == 128 && sizeof(cp_flight_site) == 8 && sizeof(cp_flight_entry) == 192, "version 2 of the format");

// A ring as this process has it mapped.
typedef struct {
  cp_flight_header *header;
  cp_flight_group *groups;
  cp_flight_site *sites;
  char *text;
  cp_flight_entry *entries;
  uint32_t capacity;
} cp_flight;

// What to append. op_id 0: the ring gives the record the numbers that follow in its group (with CP_FLIGHT_JOINED: the same sequence number as the
// last), otherwise all three are the caller's.
typedef struct {
  int32_t group;
  uint32_t site, stream, kind;
  int32_t dtype, redop, peer;
  uint32_t flags;
  uint64_t coll_seq, p2p_seq, op_id, count, in, out;
  int64_t created_ns, timeout_ns; // created_ns 0: now
} cp_flight_record;

// Bytes that a ring of so many entries takes, which must be a power of two.
uint64_t cp_flight_bytes(uint32_t entries);

// Makes an empty ring in mapped memory. f is the caller's.
void cp_flight_open(cp_flight *f, void *base, uint32_t entries);

// Appends a record and answers its number. Any number of threads may append to one ring, but to one group only one, as NCCL has it for communicators.
uint64_t cp_flight_append(cp_flight *f, const cp_flight_record *r);

// The same record n times, for measuring.
void cp_flight_append_many(cp_flight *f, const cp_flight_record *r, int64_t n);

enum { CP_FLIGHT_REPEATS = 127 }; // of one record at most, 255 would fit

// A run as its writer knows it, which is one thread. Zeroed: none.
typedef struct {
  uint64_t *at;  // the record's repeats
  uint64_t word; // and what they are
  int32_t left;  // how many more it may become
  uint32_t p2p;
  uint64_t id;            // 0: none
  cp_flight_group *group; // NULL: none
} cp_flight_run;

// Appends a record that begins a run of at most that many repeats, and answers its number. Nothing else may be appended to its group before its end.
uint64_t cp_flight_begin(cp_flight *f, const cp_flight_record *r, int repeats, cp_flight_run *run);

// Counts one more call. 0: the run is full, or there is none. That is all that is done for most calls of a series, with code and data that the calls
// before have pushed out of the caches: so it is one store, and the group's counters follow at the end. Until then a reader adds them up.
static inline int cp_flight_repeat(cp_flight_run *run) {
  if (run->left <= 0) return 0;
  run->left--;
  __atomic_store_n(run->at, ++run->word, __ATOMIC_RELAXED);
  return 1;
}

// Takes the latest repeat back: it is to be a record of its own. 0: there is none.
int cp_flight_take_back(cp_flight_run *run);

// Ends the run, if there is one. Answers how many repeats it had.
int cp_flight_end(cp_flight *f, cp_flight_run *run);

// Later news of a record. From any thread; without effect when the record is no longer in the ring. Completion without an event of its own ends a
// record's being bounded.
void cp_flight_start(cp_flight *f, uint64_t id, int64_t ns);
void cp_flight_complete(cp_flight *f, uint64_t id, int64_t ns, int64_t duration_ns);
void cp_flight_retire(cp_flight *f, uint64_t id);
void cp_flight_unbound(cp_flight *f, uint64_t id);

// Adds a group, a call site (its number), bytes to the text area (-1: full). One thread at a time.
int cp_flight_add_group(cp_flight *f, const char *name, uint32_t name_len, const char *desc, uint32_t desc_len, const int32_t *members, uint32_t n);
uint32_t cp_flight_add_site(cp_flight *f, const char *text, uint32_t len);
void cp_flight_set_comm(cp_flight *f, int group, uint64_t id);

// Who writes this ring; host and library are cut to what the header holds.
void cp_flight_set_rank(cp_flight *f, int rank, int world, const char *host, uint32_t host_len, const char *library, uint32_t library_len);

// What the rank's thread does now, cut to CP_FLIGHT_PHASE bytes.
void cp_flight_set_phase(cp_flight *f, const char *text, uint32_t len);

void cp_flight_beat(cp_flight *f, int64_t ns);
int64_t cp_flight_heartbeat(cp_flight *f);

// Copies the ring in the order that the rule for torn entries asks for, each entry again if it was just being written.
void cp_flight_copy(cp_flight *f, void *to);

// ---- completion of series ----

// Where the records of a step lie.
typedef struct {
  int32_t group;
  uint32_t site;
  uint64_t in, out;
  int64_t timeout_ns;
} cp_flight_template;

enum {
  CP_FLIGHT_POOL = 16,       // events of a pool at most
  CP_FLIGHT_EVENT_EVERY = CP_FLIGHT_REPEATS + 1 // calls of a lane between two events at least: they are too dear for each of a series' operations
};

// Events without timing for one stream. An event is used again only once its last use is known to be done. Only the stream's own thread records;
// any thread may poll.
typedef struct {
  cp_flight *flight;
  int32_t n, next;
  struct {
    cp_event event;
    uint64_t use; // record number × 2, and 1 while not known to be done
  } slot[CP_FLIGHT_POOL];
} cp_flight_pool;

// Records an event for record id on the stream, unless all are in use, and tells which it was. Answers a cudaError_t.
int cp_flight_pool_record(cp_flight_pool *p, uint64_t id, cp_stream stream, int *recorded);

// Whether the event whose turn it is next is known to be done. For the stream's own thread.
int cp_flight_pool_free(const cp_flight_pool *p);

// Completes the records whose events are done. Answers how many.
int cp_flight_pool_poll(cp_flight_pool *p);

#endif
