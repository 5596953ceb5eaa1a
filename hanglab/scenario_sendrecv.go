package hanglab

// pipeline is 0 -> 1 -> 2 ...: in each step each rank sends to the next and receives from the one before. The odd rank does not post its receive.
func pipeline(name, line string, count int) Scenario {
	return Scenario{
		Name: name, Class: "unpaired_p2p", Line: line, Elements: count,
		Always: func(l *lab, s int) error { return l.pass(s, true) },
		Fault: func(l *lab, s int, odd bool) error {
			if odd && l.id > 0 {
				l.inject("no receive from rank %d", l.id-1)
			}
			return l.pass(s, !odd)
		},
	}
}

// pass is one step of a pipeline; post tells whether this rank posts its receive. Even ranks send first, odd ones receive first.
func (l *lab) pass(s int, post bool) error {
	if err := l.allReduce(l.count(s)); err != nil {
		return err
	}
	count := l.scenario.elements(l.world)
	send := func() error {
		if l.id+1 == l.world {
			return nil
		}
		return l.call(l.comm, call{fn: fnSend, count: count, peer: l.id + 1})
	}
	receive := func() error {
		if l.id == 0 || !post {
			return nil
		}
		return l.call(l.comm, call{fn: fnRecv, count: count, peer: l.id - 1})
	}
	first, then := send, receive
	if l.id%2 == 1 { // or the message would go down the line one rank after the other
		first, then = receive, send
	}
	if err := first(); err != nil {
		return err
	}
	return then()
}

// sendrecvSmall: a message that fits the transport's buffers leaves its sender at once, received or not.
func sendrecvSmall() Scenario {
	return pipeline("sendrecv_small", "one rank does not post a receive of 16 KiB: the sender may finish, the next receive gets old data", 4096)
}

// sendrecvLarge: one that does not fit keeps its sender.
func sendrecvLarge() Scenario {
	s := pipeline("sendrecv_large", "one rank does not post a receive of 16 MiB: the sender waits for ever", 4<<20)
	s.Shared, s.Least = true, 512<<10
	return s
}
