package csrc

import "testing"

func TestPTXOfLinks(t *testing.T) {
	ptxIsCurrent(t, "links.go", "links.ptx", linksPTX)
	ptxHasTheKernels(t, LinksPTX(), map[string]int{"cp_link_copy": 3, "cp_link_ping": 7})
}
