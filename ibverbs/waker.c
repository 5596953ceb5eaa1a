// Waiting for a descriptor until somebody calls it off.
#include "binding.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

int iv_waker_open(void) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd >= 0 ? fd : -errno;
}

void iv_waker_wake(int waker) { (void)!eventfd_write(waker, 1); }

void iv_waker_close(int waker) { close(waker); }

int iv_readable(int fd, int waker) {
  struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = waker, .events = POLLIN}};
  return poll(p, 2, -1) > 0 && p[0].revents != 0;
}
