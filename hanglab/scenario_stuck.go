package hanglab

import (
	"syscall"
	"time"
)

// stuck: one rank is in host code and does not come.
func stuck() Scenario {
	return Scenario{
		Name: "stuck", Class: "rank_stuck_host", Line: "one rank sleeps in \"save checkpoint\" before its call",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("stuck in save")
				if err := l.sleep("saving a checkpoint", l.plan.Op*4); err != nil {
					return err
				}
			}
			return l.allReduce(l.count(s))
		},
	}
}

// stop: the whole process stands still, its watchdog too.
func stop() Scenario {
	return Scenario{
		Name: "stop", Class: "rank_stuck_host", Line: "one rank's process is stopped (SIGSTOP)",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("SIGSTOP")
				if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err != nil {
					return err
				}
				// The signal takes the threads one after another; this one does not get to its call before.
				if err := l.sleep("stopped", time.Second/4); err != nil {
					return err
				}
			}
			return l.allReduce(l.count(s))
		},
	}
}

// straggler: late, but within the deadline.
func straggler() Scenario {
	return Scenario{
		Name: "straggler", Class: "straggler", Line: "one rank comes late, but within the deadline: nothing hangs",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("late by %v", l.plan.Op/2)
				if err := l.sleep("slow step", l.plan.Op/2); err != nil {
					return err
				}
			}
			return l.allReduce(l.count(s))
		},
	}
}
