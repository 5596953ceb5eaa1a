/* Host build of the link kernels; verify_host.c finds them by name. */
#include "links.h"

#define ARG(type, i) (*(type *)params[i])

void cp_host_launch_link_copy(void **params) { cp_link_copy(ARG(void *, 0), ARG(const void *, 1), ARG(uint64_t, 2)); }

void cp_host_launch_link_ping(void **params)
{
	cp_link_ping(ARG(volatile uint64_t *, 0), ARG(volatile uint64_t *, 1), ARG(uint32_t, 2), ARG(uint32_t, 3), ARG(uint32_t, 4),
	             ARG(uint64_t, 5), ARG(cp_link_pinged *, 6));
}
