/* Device build: go generate compiles this to links.ptx (see links.go). */
#include "links.h"
