package topo

import (
	"slices"
	"strconv"
	"strings"
)

// The words of nvidia-smi topo -m for what lies between two devices. NVLink is NV and the number of links: NV18.
const (
	SMISelf = "X"
	SMIPIX  = "PIX"  // at most one PCIe switch
	SMIPXB  = "PXB"  // several PCIe switches, no host bridge
	SMIPHB  = "PHB"  // a host bridge
	SMINODE = "NODE" // several host bridges of one NUMA node
	SMISYS  = "SYS"  // between NUMA nodes
)

// What is printed where an input cannot tell the word: one of two, or nothing at all.
const (
	SMIHostOrNode = "PHB|NODE" // an XML of NCCL has no host bridges
	SMINodeOrSys  = "NODE|SYS" // the NUMA node is not known
	SMIUnknown    = "?"
)

// NCCLRules names the version of NCCL whose path rules and bandwidths are used (src/graph/topo.h, topo.cc, paths.cc).
const NCCLRules = "2.30"

// NCCLTypes are NCCL's path types from near to far (graph.h of NCCL 2.30). The index is the number in its messages: "distance 8 > 6".
var NCCLTypes = []string{"LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"}

// NCCLDistance is the number that NCCL gives a path type, -1 for a word that is none. NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL allow what is not above their level.
func NCCLDistance(word string) int { return slices.Index(NCCLTypes, word) }

// SMIDistance orders nvidia-smi's words from near to far: X, NV#, PIX, PXB, PHB, NODE, SYS; -1 for a word that is none of them, or not certain.
func SMIDistance(word string) int {
	if word == SMISelf {
		return 0
	}
	if _, ok := NVLinkCount(word); ok {
		return 1
	}
	if word == "SOC" { // SYS of drivers before 2017
		word = SMISYS
	}
	i := slices.Index([]string{SMIPIX, SMIPXB, SMIPHB, SMINODE, SMISYS}, word)
	if i < 0 {
		return -1
	}
	return i + 2
}

// NVLinkCount reads NV18.
func NVLinkCount(word string) (links int, ok bool) {
	digits, ok := strings.CutPrefix(word, "NV")
	if !ok || digits == "" || len(digits) > 3 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	links, err := strconv.Atoi(digits)
	return links, err == nil
}
