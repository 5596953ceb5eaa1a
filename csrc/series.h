// Timed series: a list of calls repeated many times, timed and completed without leaving C.
#ifndef CP_SERIES_H
#define CP_SERIES_H

#include "abi.h"
#include "flight.h"

// What a step does. Collectives use send/recv, count, dtype, op and peer (root or peer rank) as NCCL does.
enum {
  CP_STEP_GROUP_START = 0,
  CP_STEP_GROUP_END = 1,
  CP_STEP_ALL_REDUCE = 2,
  CP_STEP_BROADCAST = 3,
  CP_STEP_REDUCE = 4,
  CP_STEP_ALL_GATHER = 5,
  CP_STEP_REDUCE_SCATTER = 6,
  CP_STEP_SEND = 7,
  CP_STEP_RECV = 8,
  CP_STEP_ALL_TO_ALL = 9,
  CP_STEP_GATHER = 10,
  CP_STEP_SCATTER = 11,
  CP_STEP_COPY = 12, // count elements from send to recv on the lane's device, by the CUDA runtime; of a type it needs only the size
  CP_STEP_GRAPH = 13, // no step, but what a flight record calls the launch of a graph
};

// One call of an iteration. In operation k (iteration i is operations i * aggregate and following), the lane's rot_stride * (k % rot_slots) is
// added to send and recv (when not 0).
typedef struct {
  int32_t kind;
  int32_t lane; // index into the series' lanes: which communicator and stream
  uint64_t send;
  uint64_t recv;
  uint64_t count;
  int32_t dtype;
  int32_t op;
  int32_t peer;
  int32_t pad;
  cp_flight_template flight; // of its record, with cp_series.flight
} cp_step;

// One rank driven by this series: its communicator, stream and, for the event series, iters + 1 timing events.
typedef struct {
  cp_comm comm;
  cp_stream stream; // NULL: the legacy default stream
  cp_event *events;
  uint64_t rot_stride;
  uint64_t rot_slots; // at least 1
  // With cp_series.flight: the stream's number in records, events that tell how far it is (NULL: none), and where graph launches belong.
  cp_flight_pool *pool;
  uint32_t flight_stream;
  uint32_t unmarked;  // calls since the last event, but for those of the run
  int64_t event_ns;   // when that was
  uint64_t last;      // latest record, 0: none
  uint32_t in_group;  // records in the NCCL group that is open
  uint32_t group_p2p; // the first of them is a send or a receive
  int32_t group_of;   // and whose
  uint32_t group_site;
  cp_flight_template graph;
  const cp_flight_template *run_of; // whose calls the run has
  cp_flight_run run;                // of calls that are the same
  int64_t run_ns;                   // when it began
} cp_lane;

// What happens after each iteration.
enum {
  CP_BLOCKING_NO = 0,       // nothing: iterations queue up
  CP_BLOCKING_BARRIER = 1,  // wait for the streams, then for all at the barrier
  CP_BLOCKING_WAIT = 2,     // wait for the streams
  CP_BLOCKING_EXCLUDED = 3, // as CP_BLOCKING_BARRIER; the barrier's time is counted in excluded_ns
};

// Barrier between the threads and processes of one host that time together. Lives in memory that they share; starts zeroed.
// Its fields, and the abort flags below, are accessed by atomic operations only (the type is plain for cgo's sake).
typedef struct {
  uint32_t arrived;
  uint32_t generation;
  uint32_t broken; // set by whoever gives up; every waiter leaves
  uint32_t pad;
} cp_barrier;

// Where a series stopped.
enum {
  CP_SERIES_OK = 0,
  CP_SERIES_TIMEOUT = 1, // deadline passed
  CP_SERIES_ABORTED = 2, // *abort was set
  CP_SERIES_CALL = 3,    // a step's call failed: code is its result
  CP_SERIES_ASYNC = 4,   // ncclCommGetAsyncError reported code
  CP_SERIES_CUDA = 5,    // a stream or event call failed: code is its result
  CP_SERIES_BARRIER = 6, // another rank broke the barrier
};

// What the series was doing.
enum { CP_PHASE_BARRIER = 0, CP_PHASE_ENQUEUE = 1, CP_PHASE_COMPLETE = 2 };

// How many iterations the cost of queueing is taken from: few enough that the launch queue is never full, where queueing takes as long as
// the operations themselves.
#define CP_ENQUEUE_SAMPLE 100

typedef struct {
  // in
  const cp_step *steps;
  cp_lane *lanes;
  cp_barrier *barrier;    // NULL: none
  int32_t *abort; // NULL: none
  int64_t deadline_ns;    // CLOCK_MONOTONIC, 0: none
  int64_t iters;
  int64_t aggregate; // operations in one group that make an iteration, at least 1
  int32_t blocking;
  int32_t capture; // the streams are being captured: queue only, wait for nothing
  int32_t nsteps;
  int32_t nlanes;
  int32_t parties;    // members of the barrier
  int32_t probe;      // measure the issue rate right before the barrier and after the end
  int32_t use_events; // record events[i] before iteration i on every lane and events[iters] at the end
  cp_graph_exec *graphs; // one a lane: launched instead of the steps; NULL: steps are called
  cp_flight *flight; // records every NCCL call and graph launch, but for what is only captured; NULL: none
  // out
  int64_t start_ns;
  int64_t marked_ns;   // after the first CP_ENQUEUE_SAMPLE iterations were queued, or all if they are fewer
  int64_t enqueued_ns;
  int64_t done_ns;
  int64_t excluded_ns; // of start to done, see CP_BLOCKING_EXCLUDED
  double rate_before; // issue rate, with probe
  double rate_after;
  int64_t switches; // involuntary context switches of this thread from start to done
  int64_t iter;     // iteration reached
  int32_t status;
  int32_t code;
  int32_t phase;
  int32_t lane; // lane of the failure, -1: none in particular
  int32_t cpu;  // processor at the end
  int32_t pad;
  int32_t appended;  // records were, since the last event was thought of
  int32_t pad2;
  int64_t polled_ns; // when the flight events were last looked at
  int64_t noted_ns;  // the clock as it was at the time stamp counter's
  uint64_t noted_at;
} cp_series;

// Waits at the barrier, then calls every step iters times, then waits for every lane's stream. Blocks until done, deadline or abort.
// Answers status, also kept in the series. Never frees or aborts anything: after a failure the communicators are the caller's to abort.
int cp_series_run(cp_series *s);

// Waits for parties arrivals. CP_SERIES_OK, _TIMEOUT, _ABORTED or _BARRIER.
int cp_barrier_wait(cp_barrier *b, int parties, int32_t *abort, int64_t deadline_ns);
void cp_barrier_break(cp_barrier *b);

int64_t cp_now_ns(void);

// How many independent additions the calling thread's core does in a nanosecond, best of a few loops of some microseconds; 0 where this is not
// known how to measure. A core whose other hardware thread is busy (another process, another virtual machine) does about half as many, while
// code that waits for its own results runs as fast as ever: so no clock or load figure shows it, but launching kernels slows down by half.
double cp_issue_rate(void);

// Moves the calling thread to one of the cpus whose issue rate is within a tenth of the best seen (*best, updated), trying at most tries of
// them from start on; the last one tried is kept if none is. Answers the rate there. The thread stays bound to that processor.
double cp_quiet_core(const int32_t *cpus, int n, int start, int tries, double *best);

// Keeps the calling thread's processor busy for ns nanoseconds.
void cp_spin(int64_t ns);

void cp_flag_set(int32_t *flag);
int cp_flag_get(int32_t *flag);

#endif
