package ras

import (
	"strings"
	"time"
)

// Event is a change among the processes of a job that RAS's monitor (since NCCL 2.29) told of.
type Event struct {
	Time   time.Time // local time of the job, whose zone it does not say, as UTC
	Name   string    // "PEER_DEAD", "PEER_UNRESPONSIVE", "PEER_SEND_STUCK" …
	PID    int       // of the peer, 0: not said
	Host   string
	Detail string // all behind the name
}

// ReadEvent reads a line of the monitor's text form: "[2026-01-02 03:04:05] PEER_DEAD: Process 12 on node 192.0.2.1 managing GPU 1".
func ReadEvent(line string) (e Event, ok bool) {
	stamp, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "["), "] ")
	if !ok || !strings.HasPrefix(rest, "PEER_") {
		return Event{}, false
	}
	var err error
	if e.Time, err = time.Parse(time.DateTime, stamp); err != nil {
		return Event{}, false
	}
	e.Name, e.Detail, _ = strings.Cut(rest, ":")
	if strings.Trim(e.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return Event{}, false
	}
	e.Detail = strings.TrimSpace(e.Detail)
	if peer, found := strings.CutPrefix(e.Detail, "Process "); found {
		pid, rest, isNumber := number(peer)
		if host, isPeer := strings.CutPrefix(rest, " on node "); isNumber && isPeer {
			e.PID = pid
			e.Host, _, _ = strings.Cut(host, " ")
		}
	}
	return e, true
}
