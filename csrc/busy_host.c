/* Host build of the busy kernel; verify_host.c finds it by name. */
#include "busy.h"

void cp_host_launch_busy(void **params)
{
	cp_busy(*(const volatile uint32_t **)params[0], *(uint64_t *)params[1]);
}

void cp_busy_stop(uint32_t *stop, int value) { __atomic_store_n(stop, (uint32_t)value, __ATOMIC_RELEASE); }
