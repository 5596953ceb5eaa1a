package hanglab

// size: NCCL does not compare counts, so a rank with more elements waits for data that nobody sends.
func size() Scenario {
	return Scenario{
		Name: "size", Class: "size_mismatch", Line: "one rank passes 1,024 elements more to the same all_reduce",
		Fault: func(l *lab, s int, odd bool) error {
			n := l.count(s)
			if odd {
				n += 1024
				l.inject("count %d instead of %d", n, l.count(s))
			}
			return l.allReduce(n)
		},
	}
}
