package csrc

// #include "series.h"
import "C"

// NowNs is the clock of all series and records: CLOCK_MONOTONIC in nanoseconds.
func NowNs() int64 { return int64(C.cp_now_ns()) }
