// Package pairs measures the RDMA link between every NIC of every pair of hosts, and says which NIC, host, rail or path is slow.
//
// On each host runs an agent (Agent), started through a remote shell and spoken to over its stdin and stdout, a line of JSON each way (wire.go). It lists
// devices, serves one test, runs one test; what it measures with is a Bench, Verbs outside of the tests. When its stdin closes it ends all that it does. The
// orchestrator (Run) starts the agents, plans the measurements so that no host is in two at once, measures what turned out slow a second time by itself, and
// has the result judged by Judge, a pure function. A host that fails is named with the phase in which it did, and the others go on.
package pairs
