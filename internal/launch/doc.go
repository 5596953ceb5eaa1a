// Package launch starts the worker processes of one host, watches over their
// end, and reads from the environment where a foreign launcher put this one.
//
// # No orphans
//
// Each worker leads a process group of its own, so that what it starts itself
// can be ended with it. Three things see to it that nothing stays behind:
//
//   - When a worker ends, for whatever reason, the rest of its group is killed
//     before the worker is reaped (see reap.go for why in this order).
//   - [Group.Shutdown], or the end of the context given to [Start], ends all
//     groups: SIGTERM, then SIGKILL.
//   - Should the parent itself be killed, every worker finds the pipe closed
//     that it watches by [WatchParent], and ends its own group with
//     [KillOwnGroup]. A worker that is stopped (SIGSTOP) at that moment is woken
//     for it by the kernel (SIGCONT as its parent-death signal).
//
// A process that a worker starts and that leaves the group (setsid, setpgid)
// is out of reach.
//
// Because workers are not in the parent's process group, a terminal's Ctrl-C
// reaches the parent only; the parent has to call Shutdown.
package launch
