package hanglab

import "syscall"

// lastMoment lets the others come to the call first. Over sockets they hear of the end at once and write their records: those of ranks that were on
// their way would look like the dead one's.
func (l *lab) lastMoment() { _ = l.sleep("its last moment", l.plan.Op/4) }

// kill: the process is gone without a word, as by the kernel's out-of-memory killer.
func kill() Scenario {
	return Scenario{
		Name: "kill", Class: "rank_crash", Line: "one rank is killed by SIGKILL",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.lastMoment()
				l.inject("SIGKILL")
				return syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			}
			return l.allReduce(l.count(s))
		},
	}
}

// exit: the program ends by itself, with a status.
func exit() Scenario {
	return Scenario{
		Name: "exit", Class: "rank_crash", Line: "one rank ends with exit status 42",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.lastMoment()
				l.inject("exit status 42")
				return &ExitError{Code: 42, Text: "exit before the all_reduce", Abrupt: true}
			}
			return l.allReduce(l.count(s))
		},
	}
}

// panics: the program's own error, with a traceback.
func panics() Scenario {
	return Scenario{
		Name: "panic", Class: "rank_crash", Line: "one rank panics: a traceback and exit status 2",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.lastMoment()
				l.inject("panic")
				panic("injected application failure before the collective")
			}
			return l.allReduce(l.count(s))
		},
	}
}
