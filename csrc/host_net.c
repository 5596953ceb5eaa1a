// Sockets of the host engine: connections between ranks, the doors they come in through, and the bootstrap root.
//
// The root is a listening socket and a thread in the process that called ncclGetUniqueId. Each rank connects to it, tells who it is and
// where it listens, and gets the table of all ranks once the last has come. Everything after that goes between the ranks directly.
// Connections without the right cookie are dropped after a few seconds at the latest.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "host.h"

enum {
  // Socket buffers. The kernel doubles the value, so 64 KiB always fit into the sender's side of a connection nobody reads yet, and
  // about 1 MiB never does: that is where small sends end and large sends begin. Left to the kernel, the limit would grow with use.
  HOST_BUFFER = 192 << 10,
  HOST_BACKLOG = 4096,
  HOST_ROOT_PENDING = 256,
};

static const int64_t HOST_HELLO_NS = 5000000000; // how long a new connection may take to say who it is
static const uint64_t HOST_HELLO_MAGIC = 0x6f6c6c656870632e;
static const char HOST_ID_MAGIC[8] = "cphost01";

// What is inside of a unique id.
typedef struct {
  char magic[8];
  uint64_t cookie;
  cp_host_addr addr;
} host_id;

_Static_assert(sizeof(host_id) <= sizeof(cp_unique_id), "the id must fit");

// What a rank sends to the root.
typedef struct {
  char magic[8];
  uint64_t cookie;
  int32_t nranks, rank;
  cp_host_peer me;
} host_join;

uint64_t cp_host_mix(uint64_t a, uint64_t b) { // splitmix64's finaliser
  uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static bool host_random(uint64_t *v) { return getrandom(v, sizeof *v, 0) == (ssize_t)sizeof *v; }

static uint64_t host_process_seed;
static void host_process_init(void) {
  if (!host_random(&host_process_seed)) host_process_seed = (uint64_t)cp_host_now();
}

// The process id is mixed in so that a fork is another process.
uint64_t cp_host_process(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, host_process_init);
  return cp_host_mix(host_process_seed, (uint64_t)getpid());
}

static uint64_t host_mix_text(uint64_t h, const char *text, ssize_t n) {
  for (ssize_t i = 0; i < n; i++) h = cp_host_mix(h, (unsigned char)text[i]);
  return h;
}

// Processes of one machine share the kernel's boot. Those in another network namespace count as another host, like containers with devices of
// their own. The thread's namespace, not the process's: that is where its sockets are. NCCL_HOSTID says otherwise, as it does for NCCL.
uint64_t cp_host_machine(void) {
  char text[128];
  const char *given = getenv("NCCL_HOSTID");
  if (given && *given) return host_mix_text(2, given, (ssize_t)strlen(given)) | 1;
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  uint64_t h = host_mix_text(1, text, n);
  n = readlink("/proc/thread-self/ns/net", text, sizeof text);
  return n <= 0 ? 0 : host_mix_text(h, text, n) | 1;
}

// ---- plain sockets ----

static int host_open(int fd) {
  if (fd >= 0) cp_host_count(CP_HOST_LIVE_SOCKETS, 1);
  return fd;
}

void cp_host_close(int *fd) {
  if (*fd < 0) return;
  close(*fd);
  *fd = -1;
  cp_host_count(CP_HOST_LIVE_SOCKETS, -1);
}

int cp_host_net_code(int err) {
  switch (err) {
  case EPIPE:
  case ECONNRESET:
  case ECONNREFUSED:
  case ECONNABORTED:
  case ENOTCONN:
  case ETIMEDOUT:
  case EHOSTUNREACH:
  case ENETUNREACH: return CP_NCCL_REMOTE;
  }
  return CP_NCCL_SYSTEM;
}

static socklen_t host_addr_size(const cp_host_addr *a) { return a->sa.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in4; }

static int host_socket(int family) {
  int fd = host_open(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), one = 1, size = HOST_BUFFER;
  if (fd < 0) return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size); // accepted sockets inherit both
  return fd;
}

static int host_listen(const cp_host_addr *at, cp_host_addr *bound) {
  int fd = host_socket(at->sa.sa_family);
  if (fd < 0) return -1;
  cp_host_addr a = *at;
  socklen_t len = sizeof *bound;
  if (a.sa.sa_family == AF_INET6) a.in6.sin6_port = 0;
  else a.in4.sin_port = 0;
  memset(bound, 0, sizeof *bound);
  if (bind(fd, &a.sa, host_addr_size(&a)) != 0 || listen(fd, HOST_BACKLOG) != 0 || getsockname(fd, &bound->sa, &len) != 0) {
    int err = errno;
    cp_host_close(&fd);
    errno = err;
    return -1;
  }
  return fd;
}

// The next connection, or -1 with EAGAIN. Whatever went wrong with a connection before it was accepted is no concern of ours.
static int host_accept(int lfd) {
  for (;;) {
    int one = 1, fd = host_open(accept4(lfd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd >= 0) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      return fd;
    }
    if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != ENETDOWN && errno != EHOSTUNREACH) return -1;
  }
}

// Begins a connection; wait for POLLOUT, then ask cp_host_dialed.
int cp_host_dial(const cp_host_addr *to) {
  int fd = host_socket(to->sa.sa_family);
  if (fd < 0) return -1;
  if (connect(fd, &to->sa, host_addr_size(to)) == 0 || errno == EINPROGRESS || errno == EINTR) return fd;
  int err = errno;
  cp_host_close(&fd);
  errno = err;
  return -1;
}

int cp_host_dialed(int fd) {
  int err = 0;
  socklen_t len = sizeof err, mine_len = sizeof(cp_host_addr), theirs_len = sizeof(cp_host_addr);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0) return CP_NCCL_SYSTEM;
  if (err != 0) return cp_host_net_code(err);
  cp_host_addr mine, theirs;
  memset(&mine, 0, sizeof mine);
  memset(&theirs, 0, sizeof theirs);
  if (getsockname(fd, &mine.sa, &mine_len) != 0 || getpeername(fd, &theirs.sa, &theirs_len) != 0) return cp_host_net_code(errno);
  // A local port that nobody listens at any more may be picked as our own port: TCP then connects the socket to itself.
  return memcmp(&mine, &theirs, sizeof mine) == 0 ? CP_NCCL_REMOTE : CP_NCCL_SUCCESS;
}

// Waits until fd is ready for events or a stop descriptor is readable.
static int host_poll(int fd, short events, const int stop[2], int timeout) {
  struct pollfd p[3] = {{fd, events, 0}, {stop[0], POLLIN, 0}, {stop[1], POLLIN, 0}}; // poll skips negative descriptors
  for (;;) {
    int n = poll(p, 3, timeout);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CP_NCCL_SYSTEM;
    return p[1].revents || p[2].revents ? CP_HOST_STOPPED : CP_NCCL_SUCCESS;
  }
}

int cp_host_move(int fd, const int stop[2], void *buf, size_t bytes, bool out) {
  char *p = buf;
  while (bytes > 0) {
    ssize_t n = out ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, bytes, MSG_DONTWAIT);
    if (n > 0) {
      p += n;
      bytes -= (size_t)n;
      continue;
    }
    if (n == 0) return CP_NCCL_REMOTE;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return cp_host_net_code(errno);
    int r = host_poll(fd, out ? POLLOUT : POLLIN, stop, -1);
    if (r != CP_NCCL_SUCCESS) return r;
  }
  return CP_NCCL_SUCCESS;
}

int cp_host_connect(const cp_host_addr *to, const int stop[2], int *out) {
  int fd = cp_host_dial(to);
  if (fd < 0) return cp_host_net_code(errno);
  int r = host_poll(fd, POLLOUT, stop, -1);
  if (r == CP_NCCL_SUCCESS) r = cp_host_dialed(fd);
  if (r != CP_NCCL_SUCCESS) cp_host_close(&fd);
  *out = fd;
  return r;
}

// ---- doors ----

int cp_host_door_open(cp_host_door *d, const cp_host_addr *at, uint64_t cookie, cp_host_addr *bound) {
  d->cookie = cookie;
  d->npending = d->narrived = d->cap = 0;
  d->arrived = NULL;
  d->fd = host_listen(at, bound);
  return d->fd < 0 ? cp_host_net_code(errno) : CP_NCCL_SUCCESS;
}

void cp_host_door_close(cp_host_door *d) {
  cp_host_close(&d->fd);
  for (int i = 0; i < d->npending; i++) cp_host_close(&d->pending[i].fd);
  for (int i = 0; i < d->narrived; i++) cp_host_close(&d->arrived[i].fd);
  free(d->arrived);
  d->arrived = NULL;
  d->npending = d->narrived = d->cap = 0;
}

int cp_host_door_poll(const cp_host_door *d, struct pollfd *p) {
  p[0] = (struct pollfd){d->fd, POLLIN, 0};
  for (int i = 0; i < d->npending; i++) p[i + 1] = (struct pollfd){d->pending[i].fd, POLLIN, 0};
  return d->npending + 1;
}

int cp_host_door_timeout(const cp_host_door *d) {
  if (d->npending == 0) return -1;
  int64_t left = d->pending[0].deadline - cp_host_now(); // the oldest is first
  return left <= 0 ? 0 : (int)(left / 1000000) + 1;
}

static int host_door_arrive(cp_host_door *d, const cp_host_pending *p) {
  if (d->narrived == d->cap) {
    int cap = d->cap ? 2 * d->cap : 8;
    cp_host_pending *grown = realloc(d->arrived, (size_t)cap * sizeof *grown);
    if (!grown) return CP_NCCL_SYSTEM;
    d->arrived = grown;
    d->cap = cap;
  }
  d->arrived[d->narrived++] = *p;
  return CP_NCCL_SUCCESS;
}

// Reads what there is of the greeting. Answers 1: complete, 0: not yet, -1: drop the connection.
static int host_door_read(const cp_host_door *d, cp_host_pending *p) {
  while (p->have < sizeof p->hello) {
    ssize_t n = recv(p->fd, (char *)&p->hello + p->have, sizeof p->hello - p->have, MSG_DONTWAIT);
    if (n > 0) {
      p->have += (size_t)n;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return cp_host_now() < p->deadline ? 0 : -1;
    return -1;
  }
  return p->hello.magic == HOST_HELLO_MAGIC && p->hello.cookie == d->cookie ? 1 : -1;
}

static void host_door_forget(cp_host_door *d, int i) {
  memmove(&d->pending[i], &d->pending[i + 1], (size_t)(d->npending - i - 1) * sizeof d->pending[0]);
  d->npending--;
}

static int host_door_greet(cp_host_door *d) {
  for (int i = 0; i < d->npending;) {
    int got = host_door_read(d, &d->pending[i]);
    if (got == 0) {
      i++;
      continue;
    }
    if (got < 0) cp_host_close(&d->pending[i].fd);
    else if (host_door_arrive(d, &d->pending[i]) != CP_NCCL_SUCCESS) return CP_NCCL_SYSTEM;
    host_door_forget(d, i);
  }
  return CP_NCCL_SUCCESS;
}

int cp_host_door_serve(cp_host_door *d) {
  for (;;) {
    int fd = host_accept(d->fd);
    if (fd < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return CP_NCCL_SYSTEM;
    if (fd < 0) return host_door_greet(d);
    if (d->npending == CP_HOST_PENDING && host_door_greet(d) != CP_NCCL_SUCCESS) {
      cp_host_close(&fd);
      return CP_NCCL_SYSTEM;
    }
    if (d->npending == CP_HOST_PENDING) { // strangers only: a rank greets at once
      cp_host_close(&d->pending[0].fd);
      host_door_forget(d, 0);
    }
    d->pending[d->npending++] = (cp_host_pending){.fd = fd, .deadline = cp_host_now() + HOST_HELLO_NS};
  }
}

int cp_host_door_take(cp_host_door *d, int kind, int from, uint64_t seq) {
  for (int i = 0; i < d->narrived; i++) {
    const cp_host_hello *h = &d->arrived[i].hello;
    if (h->kind != (uint32_t)kind || h->from != from || h->seq != seq) continue;
    int fd = d->arrived[i].fd;
    d->arrived[i] = d->arrived[--d->narrived];
    return fd;
  }
  return -1;
}

int cp_host_door_await(cp_host_door *d, const int stop[2], int kind, int from, uint64_t seq, int *fd) {
  struct pollfd p[CP_HOST_PENDING + 3];
  for (;;) {
    int r = cp_host_door_serve(d);
    if (r != CP_NCCL_SUCCESS) return r;
    *fd = cp_host_door_take(d, kind, from, seq);
    if (*fd >= 0) return CP_NCCL_SUCCESS;
    int n = cp_host_door_poll(d, p);
    p[n] = (struct pollfd){stop[0], POLLIN, 0};
    p[n + 1] = (struct pollfd){stop[1], POLLIN, 0};
    if (poll(p, (nfds_t)n + 2, cp_host_door_timeout(d)) < 0) {
      if (errno == EINTR) continue;
      return CP_NCCL_SYSTEM;
    }
    if (p[n].revents || p[n + 1].revents) return CP_HOST_STOPPED;
  }
}

void cp_host_greeting(cp_host_hello *h, uint64_t cookie, int kind, int from, uint64_t seq) {
  *h = (cp_host_hello){.magic = HOST_HELLO_MAGIC, .cookie = cookie, .seq = seq, .kind = (uint32_t)kind, .from = from};
}

// ---- the bootstrap root ----

typedef struct {
  int fd;
  size_t have;
  int64_t deadline;
  bool joined;
  host_join join;
} host_caller;

typedef struct {
  int lfd;
  uint64_t cookie;
  int nranks, joined, n, cap;
  bool over;
  host_caller **callers; // oldest first
} host_root;

static void host_root_forget(host_root *r, int i) {
  if (r->callers[i]->joined) r->joined--;
  cp_host_close(&r->callers[i]->fd);
  free(r->callers[i]);
  memmove(&r->callers[i], &r->callers[i + 1], (size_t)(r->n - i - 1) * sizeof r->callers[0]);
  r->n--;
}

static void host_root_close(host_root *r) {
  while (r->n > 0) host_root_forget(r, r->n - 1);
  free(r->callers);
  cp_host_close(&r->lfd);
  free(r);
}

// Everything that had come has been read before this is called again, so who has not joined by then is silent: a stranger, most likely.
static void host_root_accept(host_root *r) {
  while (r->n - r->joined >= HOST_ROOT_PENDING) { // make room by dropping the oldest
    int i = 0;
    while (r->callers[i]->joined) i++;
    host_root_forget(r, i);
  }
  while (r->n - r->joined < HOST_ROOT_PENDING) {
    if (r->n == r->cap) {
      int cap = r->cap ? 2 * r->cap : 16;
      host_caller **grown = realloc(r->callers, (size_t)cap * sizeof *grown);
      if (!grown) return;
      r->callers = grown;
      r->cap = cap;
    }
    int fd = host_accept(r->lfd);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE) usleep(10000); // the listening socket stays readable: do not spin
      return;
    }
    host_caller *c = calloc(1, sizeof *c);
    if (!c) {
      cp_host_close(&fd);
      return;
    }
    c->fd = fd;
    c->deadline = cp_host_now() + HOST_HELLO_NS;
    r->callers[r->n++] = c;
  }
}

// A caller has said who it is. Ranks that disagree on the number of ranks, or two of one number, end the bootstrap: all see it closed.
static void host_root_admit(host_root *r, host_caller *c) {
  const host_join *j = &c->join;
  if (r->nranks == 0) r->nranks = j->nranks;
  if (j->nranks != r->nranks || j->rank < 0 || j->rank >= r->nranks) r->over = true;
  for (int i = 0; i < r->n; i++) {
    if (r->callers[i] != c && r->callers[i]->joined && r->callers[i]->join.rank == j->rank) r->over = true;
  }
  c->joined = true;
  r->joined++;
}

// Reads from a caller. False: drop it. Nothing more is expected of one that has joined, so any news of it is its end.
static bool host_root_read(host_root *r, host_caller *c) {
  char more;
  for (;;) {
    char *to = c->joined ? &more : (char *)&c->join + c->have;
    ssize_t n = recv(c->fd, to, c->joined ? 1 : sizeof c->join - c->have, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return c->joined || cp_host_now() < c->deadline;
    if (n <= 0 || c->joined) return false;
    c->have += (size_t)n;
    if (c->have < sizeof c->join) continue;
    if (memcmp(c->join.magic, HOST_ID_MAGIC, sizeof HOST_ID_MAGIC) != 0 || c->join.cookie != r->cookie || c->join.nranks < 1) return false;
    host_root_admit(r, c);
  }
}

static void host_root_answer(host_root *r) {
  cp_host_peer *all = calloc((size_t)r->nranks, sizeof *all);
  if (!all) return;
  for (int i = 0; i < r->n; i++) {
    if (r->callers[i]->joined) all[r->callers[i]->join.rank] = r->callers[i]->join.me;
  }
  const int stop[2] = {-1, -1};
  for (int i = 0; i < r->n; i++) { // a rank that has joined reads at once or has closed its socket
    if (r->callers[i]->joined) cp_host_move(r->callers[i]->fd, stop, all, (size_t)r->nranks * sizeof *all, true);
  }
  free(all);
}

static int host_root_timeout(const host_root *r) {
  for (int i = 0; i < r->n; i++) {
    if (r->callers[i]->joined) continue;
    int64_t left = r->callers[i]->deadline - cp_host_now();
    return left <= 0 ? 0 : (int)(left / 1000000) + 1;
  }
  return -1;
}

static void *host_root_main(void *arg) {
  host_root *r = arg;
  struct pollfd *p = NULL;
  bool seen = false;
  // It ends with the answer, with a disagreement, or when every rank that had come has gone away again.
  while (!r->over && !(seen && r->joined == 0)) {
    struct pollfd *grown = realloc(p, (size_t)(r->n + 1) * sizeof *p);
    if (!grown) break;
    p = grown;
    p[0] = (struct pollfd){r->lfd, POLLIN, 0};
    for (int i = 0; i < r->n; i++) p[i + 1] = (struct pollfd){r->callers[i]->fd, POLLIN, 0};
    if (poll(p, (nfds_t)r->n + 1, host_root_timeout(r)) < 0 && errno != EINTR) break;
    host_root_accept(r);
    for (int i = 0; i < r->n && !r->over;) {
      if (host_root_read(r, r->callers[i])) i++;
      else host_root_forget(r, i);
    }
    seen |= r->joined > 0;
    if (r->over || r->nranks == 0 || r->joined < r->nranks) continue;
    host_root_answer(r);
    break;
  }
  free(p);
  host_root_close(r);
  cp_host_count(CP_HOST_LIVE_THREADS, -1);
  return NULL;
}

// Where to listen: COMMPROBE_HOST_ADDR as a number, 127.0.0.1 without it. Others must be able to reach it, so 0.0.0.0 will not do.
static bool host_root_addr(cp_host_addr *a, bool *given, const char **why) {
  const char *env = getenv("COMMPROBE_HOST_ADDR");
  *given = env && *env;
  char text[128];
  snprintf(text, sizeof text, "%s", *given ? env : "127.0.0.1");
  char *t = text;
  size_t len = strlen(t);
  if (len > 2 && t[0] == '[' && t[len - 1] == ']') t[len - 1] = 0, t++;
  struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *got = NULL;
  *why = "COMMPROBE_HOST_ADDR is not an IPv4 or IPv6 address that other ranks can connect to";
  if (getaddrinfo(t, NULL, &hints, &got) != 0 || !got) return false;
  memset(a, 0, sizeof *a);
  bool ok = got->ai_addrlen <= sizeof *a && (got->ai_family == AF_INET || got->ai_family == AF_INET6);
  if (ok) memcpy(a, got->ai_addr, got->ai_addrlen);
  freeaddrinfo(got);
  if (ok && a->sa.sa_family == AF_INET) return a->in4.sin_addr.s_addr != htonl(INADDR_ANY);
  return ok && !IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

int cp_host_root_start(cp_unique_id *out, const char **why) {
  host_id id;
  cp_host_addr at;
  bool given;
  memset(&id, 0, sizeof id);
  memcpy(id.magic, HOST_ID_MAGIC, sizeof id.magic);
  if (!host_root_addr(&at, &given, why)) return CP_NCCL_INVALID_USAGE;
  *why = "cannot open the bootstrap socket";
  host_root *r = calloc(1, sizeof *r);
  if (!r || !host_random(&id.cookie)) {
    free(r);
    return CP_NCCL_SYSTEM;
  }
  r->cookie = id.cookie;
  r->lfd = host_listen(&at, &id.addr);
  if (r->lfd < 0) {
    free(r);
    return CP_NCCL_SYSTEM;
  }
  cp_host_count(CP_HOST_LIVE_THREADS, 1);
  if (cp_host_thread(host_root_main, r, NULL) != 0) {
    cp_host_count(CP_HOST_LIVE_THREADS, -1);
    host_root_close(r);
    return CP_NCCL_SYSTEM;
  }
  memset(out, 0, sizeof *out);
  memcpy(out, &id, sizeof id);
  return CP_NCCL_SUCCESS;
}

bool cp_host_id_cookie(const cp_unique_id *in, uint64_t *cookie) {
  host_id id;
  memcpy(&id, in, sizeof id);
  *cookie = id.cookie;
  return memcmp(id.magic, HOST_ID_MAGIC, sizeof id.magic) == 0 && (id.addr.sa.sa_family == AF_INET || id.addr.sa.sa_family == AF_INET6);
}

// Connects to the root. local is where this rank is to listen itself: on the address that leads to the root, unless the environment says where.
int cp_host_root_join(const cp_unique_id *in, const int stop[2], int *root, cp_host_addr *local) {
  host_id id;
  bool given;
  const char *why;
  memcpy(&id, in, sizeof id);
  int r = cp_host_connect(&id.addr, stop, root);
  if (r != CP_NCCL_SUCCESS) return r;
  bool ok = host_root_addr(local, &given, &why);
  if (given) return ok ? CP_NCCL_SUCCESS : CP_NCCL_INVALID_USAGE;
  socklen_t len = sizeof *local;
  memset(local, 0, sizeof *local);
  return getsockname(*root, &local->sa, &len) == 0 ? CP_NCCL_SUCCESS : CP_NCCL_SYSTEM;
}

// Tells the root who we are and waits for the table of all ranks: for as long as it takes.
int cp_host_root_exchange(const cp_unique_id *in, const int stop[2], int root, int nranks, const cp_host_peer *me, cp_host_peer *all) {
  host_id id;
  host_join j;
  memcpy(&id, in, sizeof id);
  memset(&j, 0, sizeof j);
  memcpy(j.magic, HOST_ID_MAGIC, sizeof j.magic);
  j.cookie = id.cookie;
  j.nranks = nranks;
  j.rank = me->rank;
  j.me = *me;
  int r = cp_host_move(root, stop, &j, sizeof j, true);
  return r != CP_NCCL_SUCCESS ? r : cp_host_move(root, stop, all, (size_t)nranks * sizeof *all, false);
}
