package hanglab

import (
	"fmt"
	"slices"
	"strings"
)

// Scenario is one fault that can be caused on purpose. Its text is in hanglab/pages; what it does is a few lines of code in a file of its own.
type Scenario struct {
	Name  string
	Class string // class of the verdict it deserves, in diagnose's words; "" for the control
	Line  string // mechanism in one line
	// Fault is what every rank does at the step of the fault in place of the usual all_reduce; odd tells whether this rank misbehaves.
	Fault func(l *lab, s int, odd bool) error
	// Always is done at every other step in place of the usual all_reduce; nil: the usual.
	Always func(l *lab, s int) error
	// AtEnd is done after the last step; nil: nothing.
	AtEnd func(l *lab) error

	Constant bool // all steps have one size, whatever was asked for
	Lazy     bool // communicators are made at their first use
	HostOnly bool // needs the host engine
	Seconds  bool // needs a second communicator over all ranks from the start
	SameGPU  bool // the odd rank takes its neighbour's device
	Network  bool // ranks live in two network namespaces
	Elements int  // least number of elements of a buffer; 0: what the steps need
	Shared   bool // Elements is for four ranks, and goes down with more of them
	Least    int  // but not below this
	NaNs     bool // inputs are searched for NaN when a result has one
}

// Scenarios lists what can be run, in the order in which they are shown.
func Scenarios() []Scenario {
	return []Scenario{
		control(), size(), dtype(), op(), order(), skip(), skipStop(), skipSame(), sendrecvSmall(), sendrecvLarge(), crossed(),
		kill(), exit(), panics(), stuck(), stop(), gpuBusy(), lazySkip(), coldComm(), wrongDevice(), straggler(), netcut(), nan(), race(),
	}
}

// elements is the least number of elements of a buffer in a job of that many ranks.
func (s *Scenario) elements(world int) int {
	if s.Shared {
		return max(s.Elements*4/max(4, world), s.Least)
	}
	return s.Elements
}

// aliases are other programs' names for the same.
var aliases = map[string]string{
	"exception": "panic", "sendrecv": "sendrecv_large", "sigkill": "kill", "sigstop": "stop", "checkpoint": "stuck", "skip_constant": "skip_same",
}

// Find is the scenario of that name, dashes and case aside.
func Find(name string) (Scenario, error) {
	want := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if a, ok := aliases[want]; ok {
		want = a
	}
	all := Scenarios()
	if i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == want }); i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return Scenario{}, fmt.Errorf("no scenario %q; there are: %s", name, strings.Join(names, ", "))
}
