package hanglab

// order: two calls, right in themselves, in the wrong order on one rank.
func order() Scenario {
	return Scenario{
		Name: "order", Class: "order_mismatch", Line: "one rank calls all_reduce, then all_gather; the others the reverse",
		Fault: func(l *lab, s int, odd bool) error {
			gather := call{fn: fnAllGather, count: max(1, l.count(s)/l.world), unchecked: true}
			reduce := call{fn: fnAllReduce, count: l.count(s), unchecked: true} // both leave their result in one buffer
			if odd {
				l.inject("all_reduce before all_gather")
				return l.calls(reduce, gather)
			}
			return l.calls(gather, reduce)
		},
	}
}
