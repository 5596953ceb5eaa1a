package cuda

import "sync/atomic"

// live counts what was created and not yet destroyed, so that tests and shutdown can tell of leaks.
var live liveCounts

type liveCounts struct {
	memory, streams, events, graphs, modules, ipc atomic.Int64
}

// Live returns how many handles of each kind exist, kinds with none left out.
func Live() map[string]int64 {
	out := make(map[string]int64)
	for name, c := range map[string]*atomic.Int64{
		"memory": &live.memory, "streams": &live.streams, "events": &live.events, "graphs": &live.graphs, "modules": &live.modules, "ipc": &live.ipc,
	} {
		if n := c.Load(); n != 0 {
			out[name] = n
		}
	}
	return out
}
