package hanglab

// control has no fault: what a healthy run looks like in every piece of evidence.
func control() Scenario {
	return Scenario{Name: "control", Line: "no fault: what healthy looks like"}
}
