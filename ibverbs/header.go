package ibverbs

// #include <infiniband/verbs.h>
import "C"

// The last numbers of the lists that this package has texts for, as the header has them.
const (
	headerStatus = C.IBV_WC_TM_RNDV_INCOMPLETE
	headerEvent  = C.IBV_EVENT_WQ_FATAL
)
