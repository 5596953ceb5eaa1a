package topo

import (
	"encoding/json"
	"fmt"
	"slices"
)

// readJSON reads a Graph as commprobe topo --json writes it; paths and edges are computed anew.
func readJSON(text []byte, name string) (*Graph, error) {
	var g Graph
	if err := json.Unmarshal(firstText(text), &g); err != nil {
		return nil, fmt.Errorf("%s: no graph in JSON: %w", name, err)
	}
	if len(g.PCI)+len(g.GPUs)+len(g.NICs)+len(g.CPUs) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrNoTopology)
	}
	if len(g.PCI) > maxXMLNodes || len(g.GPUs)+len(g.NICs)+len(g.CPUs) > maxXMLNodes {
		return nil, fmt.Errorf("%s: more than %d devices: this is no topology of one node", name, maxXMLNodes)
	}
	g.GPUs, g.NICs, g.CPUs, g.PCI = orNil(g.GPUs), orNil(g.NICs), orNil(g.CPUs), orNil(g.PCI)
	if slices.ContainsFunc(g.endpoints(), func(e endpoint) bool { return e.id == "" }) {
		g.nameAll()
	}
	return &g, nil
}

// orNil undoes orEmpty.
func orNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}
