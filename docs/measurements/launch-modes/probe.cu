// What decides a process's cost of queueing a collective? Two processes, one GPU each; every line is one rank's view of one condition.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>
#define CK(x) do { auto c_ = (x); if (c_ != 0) { fprintf(stderr, "%s:%d %s = %d\n", __FILE__, __LINE__, #x, (int)c_); _exit(1); } } while (0)
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
static double cpu_now() { timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
struct Shared { std::atomic<int> arrived, gen; ncclUniqueId ids[16]; std::atomic<int> idready[16]; double out[2]; };
static Shared *sh; static int rank_, run_;
static void barrier() { int g = sh->gen; if (sh->arrived.fetch_add(1) == 1) { sh->arrived = 0; sh->gen++; } else while (sh->gen == g) {} }
__global__ void null_kernel() {}
struct Big { char b[4000]; };
__global__ void big_kernel(Big) {}
static float *buf;
struct Stat { double enq_min, enq_med, op_med, cpu_share; long flt, nvcsw, nivcsw; double stime; };
template <class F> static Stat measure(F f, cudaStream_t s, int ops, int batches, bool meet) {
  std::vector<double> e, o; double cpu = 0, wall = 0; rusage a, b; 
  for (int i = 0; i < 50; i++) f();
  CK(cudaStreamSynchronize(s));
  getrusage(RUSAGE_THREAD, &a);
  for (int k = 0; k < batches; k++) {
    if (meet) barrier();
    double c0 = cpu_now(), t0 = now();
    for (int i = 0; i < ops; i++) f();
    double t1 = now(), c1 = cpu_now();
    while (cudaStreamQuery(s) == cudaErrorNotReady) sched_yield();
    double t2 = now();
    e.push_back((t1 - t0) / ops); o.push_back((t2 - t0) / ops); cpu += c1 - c0; wall += t1 - t0;
  }
  getrusage(RUSAGE_THREAD, &b);
  std::sort(e.begin(), e.end()); std::sort(o.begin(), o.end());
  auto us = [](timeval t) { return t.tv_sec * 1e6 + t.tv_usec; };
  return {e[0], e[e.size() / 2], o[o.size() / 2], cpu / wall, b.ru_minflt - a.ru_minflt, b.ru_nvcsw - a.ru_nvcsw, b.ru_nivcsw - a.ru_nivcsw, (us(b.ru_stime) - us(a.ru_stime)) / std::max(1.0, us(b.ru_stime) - us(a.ru_stime) + us(b.ru_utime) - us(a.ru_utime))};
}
static void say(const char *what, int i, Stat s) {
  printf("run %2d rank %d %-12s %2d enq_min %6.2f enq_med %6.2f op %6.2f oncpu %.2f sys %.2f flt %ld vcs %ld ics %ld cpu %d\n", run_, rank_, what, i, s.enq_min, s.enq_med, s.op_med, s.cpu_share, s.stime, s.flt, s.nvcsw, s.nivcsw, sched_getcpu());
}
static double spin_int() { volatile unsigned long x = 1; double t = now(); unsigned long y = x; for (int i = 0; i < 2000000; i++) y = y * 6364136223846793005UL + 1; x = y; return (now() - t) / 2e6 * 1e3; }
static double chase(size_t bytes) {
  size_t n = bytes / 64; std::vector<size_t> idx(n); for (size_t i = 0; i < n; i++) idx[i] = i;
  unsigned seed = 7; for (size_t i = n - 1; i > 0; i--) { seed = seed * 1103515245 + 12345; std::swap(idx[i], idx[(seed >> 8) % i]); }
  char *m = (char *)aligned_alloc(64, bytes); for (size_t i = 0; i < n; i++) *(size_t *)(m + i * 64) = idx[i];
  size_t p = 0; for (size_t i = 0; i < n; i++) p = *(size_t *)(m + p * 64);
  double t = now(); int steps = 500000; for (int i = 0; i < steps; i++) p = *(size_t *)(m + p * 64);
  double r = (now() - t) / steps * 1e3; volatile size_t keep = p; (void)keep; free(m); return r;
}
static ncclComm_t make(int k) {
  if (rank_ == 0) { CK(ncclGetUniqueId(&sh->ids[k])); sh->idready[k] = 1; } else while (!sh->idready[k]) usleep(100);
  ncclComm_t c; CK(ncclCommInitRank(&c, 2, sh->ids[k], rank_)); return c;
}

// Issue rate of independent additions, in operations a nanosecond: what a core gives code that is not waiting for anything.
static double rate_once() {
  unsigned long a=1,b=2,c=3,d=4,e=5,f=6; double t=now();
  for (int i=0;i<3000;i++) asm volatile(".rept 8\n add $1,%0\n add $1,%1\n add $1,%2\n add $1,%3\n add $1,%4\n add $1,%5\n .endr":"+r"(a),"+r"(b),"+r"(c),"+r"(d),"+r"(e),"+r"(f));
  return 3000*48/((now()-t)*1e3);
}
static double chain_once() { unsigned long a=1; double t=now(); for (int i=0;i<1000;i++) asm volatile(".rept 16\n imul %0,%0\n .endr":"+r"(a)); return ((now()-t)*1e3)/16000; }
static double rate() { double m=0; for (int i=0;i<5;i++) m=std::max(m,rate_once()); return m; }
static double chain() { double m=1e9; for (int i=0;i<5;i++) m=std::min(m,chain_once()); return m; }
static void pin(int c) { cpu_set_t s; CPU_ZERO(&s); CPU_SET(c,&s); sched_setaffinity(0,sizeof s,&s); }
static void child() {
  CK(cudaSetDevice(rank_)); CK(cudaMalloc(&buf, 1 << 20)); CK(cudaMemset(buf, 0, 1 << 20));
  cudaStream_t st; CK(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
  ncclComm_t c0 = make(0);
  auto ar = [&] { CK(ncclAllReduce(buf, buf + 1024, 2, ncclFloat, ncclSum, c0, st)); };
  for (int i=0;i<300;i++) ar(); CK(cudaStreamSynchronize(st)); barrier();
  auto row = [&](const char *what, int i) { double r1=rate(), k=chain(); Stat s=measure(ar, st, 100, 3, true); double r2=rate(); printf("run %2d rank %d %-8s %2d rate %.2f %.2f chain %.3f enq %6.2f op %6.2f cpu %d oncpu %.2f\n", run_, rank_, what, i, r1, r2, k, s.enq_med, s.op_med, sched_getcpu(), s.cpu_share); };
  for (int c=0;c<32;c++) { pin((c+16*rank_)%32); row("core", c); }
  pin(4+16*rank_); for (int i=0;i<16;i++) { usleep(5000); barrier(); row("sleep", i); }
  for (int i=0;i<16;i++) { barrier(); row("nosleep", i); }
  // sibling map: spin on core j while probing core 4 (rank 0 only)
  if (rank_==0) { for (int j=0;j<32;j++) { if (j==4) continue; std::atomic<int> go{0}; std::thread t([&]{ pin(j); while(!go) {} }); usleep(500); double r=rate(); go=1; t.join(); printf("run %2d sibling spin on %2d: core 4 rate %.2f\n", run_, j, r); } }
  barrier();
  // hunt: change the core until this rank's issue rate is high, then stay
  int tries=0; double best=0; for (; tries<200; tries++) { pin((tries*5+16*rank_+(tries/32))%32); double r=rate(); best=std::max(best,r); if (r>0.9*best && tries>12) break; }
  int mycpu=sched_getcpu(); double r0=rate();
  barrier();
  for (int k=0;k<12;k++) { Stat s=measure(ar, st, 100, 100, true); printf("run %2d rank %d hunted tries %d cpu %d rate %.2f->%.2f block %2d enq %6.2f op %6.2f\n", run_, rank_, tries, mycpu, r0, rate(), k, s.enq_med, s.op_med); }
  fflush(stdout); barrier(); _exit(0);
}
int main(int argc, char **argv) {
  run_ = argc > 1 ? atoi(argv[1]) : 0; setvbuf(stdout, nullptr, _IOLBF, 4096);
  sh = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); memset((void *)sh, 0, sizeof *sh);
  pid_t p[2]; for (int r = 0; r < 2; r++) { p[r] = fork(); if (p[r] == 0) { rank_ = r; child(); } }
  int st, bad = 0; for (int r = 0; r < 2; r++) { waitpid(p[r], &st, 0); bad |= st; } return bad != 0;
}
