package hanglab

// The pipeline 0 -> 1 -> 2 ...: each rank sends to the next and receives from the one before. The odd rank does not post its receive.
func sendrecv(count int) func(l *lab, receive bool) error {
	return func(l *lab, receive bool) error {
		if l.id+1 < l.world {
			if err := l.call(l.comm, call{fn: fnSend, count: count, peer: l.id + 1}); err != nil {
				return err
			}
		}
		if l.id > 0 && receive {
			return l.call(l.comm, call{fn: fnRecv, count: count, peer: l.id - 1})
		}
		return nil
	}
}

func pipeline(name, line string, count int) Scenario {
	exchange := sendrecv(count)
	return Scenario{
		Name: name, Class: "unpaired_p2p", Line: line, Elements: count,
		Always: func(l *lab, s int) error {
			if err := l.allReduce(l.count(s)); err != nil {
				return err
			}
			return exchange(l, true)
		},
		Fault: func(l *lab, s int, odd bool) error {
			if err := l.allReduce(l.count(s)); err != nil {
				return err
			}
			if odd && l.id > 0 {
				l.inject("no receive from rank %d", l.id-1)
			}
			return exchange(l, !odd)
		},
	}
}

// sendrecvSmall: a message that fits the transport's buffers leaves its sender at once, received or not.
func sendrecvSmall() Scenario {
	return pipeline("sendrecv_small", "one rank does not post a receive of 16 KiB: the sender may finish, the next receive gets old data", 4096)
}

// sendrecvLarge: one that does not fit keeps its sender.
func sendrecvLarge() Scenario {
	return pipeline("sendrecv_large", "one rank does not post a receive of 16 MiB: the sender waits for ever", 4<<20)
}
