// Package bootstrap is the TCP key/value store through which the ranks of one
// job find each other: join, set, get and wait, barrier, gather, abort.
//
// The coordinator calls [Listen]; every worker calls [Dial] and holds one
// [Client] for the one or more ranks that live in it. Both the client and the
// server satisfy [Store]. Every call that waits has a deadline: that of its
// context, or Config.WaitTimeout where the context has none. A wait that
// misses its deadline says which ranks were missing and where the others are
// ([MissingRanksError]).
//
// # Protocol
//
// A client opens with 8 bytes of magic and a 16-bit version, and the server
// answers with its own, so that a mismatch is an error that names both
// versions. Then follows a mutual challenge–response:
//
//	server -> client  serverNonce
//	client -> server  clientNonce, HMAC(token, "client" || serverNonce || clientNonce)
//	server -> client  HMAC(token, "server" || serverNonce || clientNonce)
//
// The token itself never travels. The roles keep one side's answer from being
// reflected as the other's. After that come length-prefixed messages. The
// connection is authenticated when it opens but neither encrypted nor sealed
// message by message: whoever can rewrite packets on the path can alter it. It
// is built against strangers, port scans and the neighbour's job, on a network
// that the job's own data crosses in clear as well.
//
// # Liveness
//
// A client pings every Config.Heartbeat and the server answers. Either side
// that hears nothing for Config.DeadAfter takes the other for dead, so a host
// that vanishes without a TCP reset is noticed too. A process that is stopped
// (SIGSTOP) for longer than that counts as dead.
package bootstrap
