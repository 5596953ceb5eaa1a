package hanglab

// crossed: each rank's order is legal by itself; together they wait for each other.
func crossed() Scenario {
	return Scenario{
		Name: "crossed", Class: "crossed_comms", Line: "two communicators over the same ranks: A then B, on one rank B then A", Seconds: true,
		Fault: func(l *lab, s int, odd bool) error {
			a, b := call{fn: fnAllReduce, count: l.count(s)}, call{fn: fnAllReduce, count: 2 * l.count(s)}
			if odd {
				l.inject("communicator 1 before communicator 0")
				if err := l.call(l.second, b); err != nil {
					return err
				}
				return l.call(l.comm, a)
			}
			if err := l.call(l.comm, a); err != nil {
				return err
			}
			return l.call(l.second, b)
		},
	}
}
