package hanglab

// dtype: the same count of another type is another number of bytes.
func dtype() Scenario {
	return Scenario{
		Name: "dtype", Class: "dtype_mismatch", Line: "one rank calls the same all_reduce with bfloat16, the others with float",
		Fault: func(l *lab, s int, odd bool) error {
			if !odd {
				return l.allReduce(l.count(s))
			}
			l.inject("bfloat16 instead of float")
			return l.call(l.comm, call{fn: fnAllReduce, count: l.count(s), bf16: true, unchecked: true})
		},
	}
}
