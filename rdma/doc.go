// Package rdma tests the link between two hosts over libibverbs: bandwidth and latency of WRITE, READ and SEND, from host or GPU memory, with the
// data checked, and moves paged blocks (KV cache) from a registered pool.
//
// Two sides take part: a server (rank 0), which waits for one client after the other, and a client (rank 1), whose options rule both. They meet at the
// store of internal/bootstrap, describe themselves to each other, agree on the link by pure functions of both descriptions, and then go through
// the same steps, each with a hand-over before and after it. What one side measured the other learns, so both end with the same report.
//
// Choice of the GID pair, agreement, statistics, text and errors touch no device and are in files of their own; verbs.go is the only one that
// holds handles of the data path. Tests of the protocol run over memory instead (fake_test.go).
package rdma
