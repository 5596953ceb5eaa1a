package hanglab

// netcut: the connection goes away without a packet that says so.
func netcut() Scenario {
	return Scenario{
		Name: "netcut", Class: "network", Line: "the link between two network namespaces goes down", HostOnly: true, Network: true,
		Fault: func(l *lab, s int, odd bool) error {
			if err := l.cut(odd); err != nil {
				return err
			}
			return l.allReduce(l.count(s))
		},
	}
}
