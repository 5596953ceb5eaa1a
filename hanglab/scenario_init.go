package hanglab

// lazySkip: without a communicator there is no operation yet, so no deadline of an operation can expire.
func lazySkip() Scenario {
	return Scenario{
		Name: "lazy_skip", Class: "lazy_init", Line: "communicators are made at their first use, and one rank never comes to it", Lazy: true,
		Always: func(l *lab, s int) error {
			if s == 0 && l.odd() {
				l.inject("does not come to the first collective")
				return l.sleep("loading data", l.plan.Init*4)
			}
			return l.allReduce(l.count(s))
		},
	}
}

// coldComm: making a communicator is a collective act of its own, and can be part of a cycle.
func coldComm() Scenario {
	return Scenario{
		Name: "cold_comm", Class: "lazy_init", Line: "a second communicator is made at its first use, while one rank still uses the old one",
		Fault: func(l *lab, s int, odd bool) error {
			usual := call{fn: fnAllReduce, count: l.count(s)}
			if odd {
				l.inject("uses the old communicator before the new one")
				if err := l.call(l.comm, usual); err != nil {
					return err
				}
				return l.cold(usual)
			}
			if err := l.cold(usual); err != nil {
				return err
			}
			return l.call(l.comm, usual)
		},
	}
}
