/* Device build: go generate compiles this to verify.ptx (see verify_embed.go). */
#include "verify_kernels.h"
