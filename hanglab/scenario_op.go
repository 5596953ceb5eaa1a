package hanglab

// op: a broadcast and an all_reduce of one size move other bytes in another order; the root of the broadcast may even finish.
func op() Scenario {
	return Scenario{
		Name: "op", Class: "op_mismatch", Line: "one rank calls all_reduce where the others call broadcast",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("all_reduce instead of broadcast")
				return l.allReduce(l.count(s))
			}
			return l.call(l.comm, call{fn: fnBroadcast, count: l.count(s)})
		},
	}
}
