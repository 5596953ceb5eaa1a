package hanglab

// skip: a branch leaves out one call and goes on, so that everything later on that rank is one call early.
func skip() Scenario {
	return Scenario{
		Name: "skip", Class: "skipped_collective", Line: "one rank leaves out the all_reduce of one step and goes on with the next",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("all_reduce of step %d left out", s)
				return nil
			}
			return l.allReduce(l.count(s))
		},
	}
}

// skipStop: the same, but the rank stays in host code.
func skipStop() Scenario {
	return Scenario{
		Name: "skip_stop", Class: "skipped_collective", Line: "one rank leaves out the all_reduce of one step and stays in host code",
		Fault: func(l *lab, s int, odd bool) error {
			if !odd {
				return l.allReduce(l.count(s))
			}
			l.inject("all_reduce of step %d left out, the program waits for input", s)
			return l.sleep("waiting for the next batch", l.plan.Op*4)
		},
	}
}

// skipSame: with one size for all steps the shifted calls match, and only the last one has no partner.
func skipSame() Scenario {
	sc := skip()
	sc.Name, sc.Constant = "skip_same", true
	sc.AtEnd = func(l *lab) error {
		if l.odd() { // the program is over for it, but its process still has something to do, as real ones have
			l.lastMoment()
		}
		return nil
	}
	sc.Line = "as skip, with constant sizes: everything matches until the end, where one call is missing"
	return sc
}
