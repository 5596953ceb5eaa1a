/* Device build: go generate compiles this to busy.ptx (see busy.go). */
#include "busy.h"
