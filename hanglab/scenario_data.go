package hanglab

import "math"

// nan: one bad input spoils every rank's result; afterwards nobody can tell where it came from, unless the inputs were looked at.
func nan() Scenario {
	return Scenario{
		Name: "nan", Class: "nan_source", Line: "one rank's input has one NaN: nothing hangs, every result is spoilt", NaNs: true,
		Fault: func(l *lab, s int, odd bool) error {
			n := l.count(s)
			if odd {
				l.inject("NaN in element %d", n/3)
				l.poison(n/3, float32(math.NaN()))
			}
			return l.allReduce(n)
		},
	}
}

// race: the buffer belongs to NCCL until the stream has passed the operation.
func race() Scenario {
	return Scenario{
		Name: "race", Class: "data_race", Line: "one rank overwrites its send buffer right after the call returned", Elements: 8 << 20, Shared: true,
		Fault: func(l *lab, s int, odd bool) error {
			n := l.scenario.elements(l.world) // large, so that it takes a while
			if err := l.enqueue(l.comm, call{fn: fnAllReduce, count: n}); err != nil {
				return err
			}
			if odd {
				l.inject("the send buffer is overwritten while the all_reduce runs")
				if err := l.overwrite(n); err != nil {
					return err
				}
			}
			return l.settle()
		},
	}
}
