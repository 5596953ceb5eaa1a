package hanglab

// gpuBusy: the rank has queued everything, but its device is busy with something that does not end.
func gpuBusy() Scenario {
	return Scenario{
		Name: "gpu_busy", Class: "rank_stuck_gpu", Line: "an endless kernel is queued before the all_reduce on one rank",
		Fault: func(l *lab, s int, odd bool) error {
			if odd {
				l.inject("a kernel that does not end by itself")
				if err := l.busy(); err != nil {
					return err
				}
			}
			return l.allReduce(l.count(s))
		},
	}
}

// wrongDevice: two ranks chose one GPU.
func wrongDevice() Scenario {
	return Scenario{Name: "wrong_device", Class: "env_mismatch", Line: "two ranks of one host use the same GPU", SameGPU: true}
}
