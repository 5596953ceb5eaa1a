package topo

import "slices"

// paths are the ways from every node to base, found breadth first as NCCL does: a longer way never replaces a shorter one, and of equal length the first with
// more bandwidth counts.
func (s *ncclSystem) paths(base *ncclNode) map[*ncclNode]ncclPath {
	if p := s.from[base]; p != nil {
		return p
	}
	found := map[*ncclNode]ncclPath{base: {kind: typeLOC, bw: ncclLocal}}
	for front := []*ncclNode{base}; len(front) > 0; {
		var next []*ncclNode
		for _, n := range front {
			p := found[n]
			for _, l := range n.links {
				if n != base && n.kind == ncclGPU && (l.kind != typeNVL || l.to.kind != ncclGPU || p.hops > 1) {
					continue // only NVLink passes through a GPU, and through one at most
				}
				old, seen := found[l.to]
				bw := min(p.bw, l.bw)
				if seen && old.hops <= p.hops || seen && old.bw >= bw {
					continue
				}
				found[l.to] = ncclPath{kind: max(p.kind, hopType(n, l, p)), bw: bw, hops: p.hops + 1, assumed: p.assumed || l.assumed}
				if !slices.Contains(next, l.to) {
					next = append(next, l.to)
				}
			}
		}
		front = next
	}
	s.from[base] = found
	return found
}

// hopType is what one link makes of a path.
func hopType(from *ncclNode, l ncclLink, sofar ncclPath) int {
	switch {
	case l.kind == typeNET:
		return typeLOC
	case l.kind == typePIX && (from.kind == ncclCPU || l.to.kind == ncclCPU):
		return typePHB
	case from.kind == ncclPCI && l.to.kind == ncclPCI:
		return typePXB
	case from.kind == ncclGPU && sofar.kind == typeNVL && l.kind == typeNVL && sofar.hops+1 > 1:
		return typeNVB
	}
	return l.kind
}

// between is the path of two endpoints.
func (s *ncclSystem) between(a, b string) (ncclPath, bool) {
	from, to := s.ends[a], s.ends[b]
	if from == nil || to == nil {
		return ncclPath{}, false
	}
	p, ok := s.paths(to)[from]
	if !ok {
		return ncclPath{kind: typeDIS}, true
	}
	return p, true
}

// fill adds NCCL's view to a path.
func (s *ncclSystem) fill(out *Path, a, b endpoint, why *[]string) {
	p, ok := s.between(a.id, b.id)
	if !ok {
		return
	}
	if a.gpu != nil && b.gpu != nil && (a.gpu.NVLinks == nil || b.gpu.NVLinks == nil) {
		return // NVLink may join them
	}
	if s.lost(a) || s.lost(b) {
		return
	}
	if p.kind >= typePHB && (a.numa == nil || b.numa == nil) && s.tree.byID[a.busID] != nil && s.tree.byID[b.busID] != nil {
		*why = append(*why, "PHB or SYS for NCCL: the NUMA nodes are not known")
		return
	}
	if gpu, nic, ok := gpuAndNIC(a, b); ok {
		p.kind = s.c2cType(gpu, nic, p.kind)
		out.Relay = s.relay(gpu, nic, p)
	}
	out.NCCL = NCCLTypes[p.kind]
	if p.kind == typeDIS {
		return
	}
	if p.assumed {
		*why = append(*why, "NCCL's bandwidth depends on what the input does not say")
		return
	}
	bw := round(p.bw, 2)
	out.NCCLGBs = &bw
}

// lost says whether a device is on the bus, but its place is not known.
func (s *ncclSystem) lost(e endpoint) bool {
	f := s.tree.byID[e.busID]
	return f != nil && s.g.Form == FormFull && f.Root == ""
}

func gpuAndNIC(a, b endpoint) (gpu, nic endpoint, ok bool) {
	switch {
	case a.gpu != nil && b.nic != nil:
		return a, b, true
	case a.nic != nil && b.gpu != nil:
		return b, a, true
	}
	return a, b, false
}

// nearest are the endpoints of a kind with the best way to n: most bandwidth, then the nearest type.
func (s *ncclSystem) nearest(n *ncclNode, ids []string) []string {
	var best []string
	bestBW, bestKind := 0.0, typeDIS
	for _, id := range ids {
		to := s.ends[id]
		if to == nil {
			continue
		}
		p, ok := s.paths(to)[n]
		if !ok {
			continue
		}
		if p.bw > bestBW || p.bw == bestBW && p.kind < bestKind {
			best, bestBW, bestKind = nil, p.bw, p.kind
		}
		if p.bw == bestBW && p.kind == bestKind {
			best = append(best, id)
		}
	}
	return best
}

// c2cType turns PHB into P2C for a NIC of the CPU that the GPU reaches by C2C, where that NIC is one of the nearest to the GPU.
func (s *ncclSystem) c2cType(gpu, nic endpoint, kind int) int {
	g, n := s.ends[gpu.id], s.ends[nic.id]
	cpu := s.nearCPU(g)
	if kind <= typeP2C || cpu == nil || s.paths(cpu)[g].kind != typeC2C || !slices.Contains(s.nearest(g, s.nicIDs()), nic.id) {
		return kind
	}
	if p, ok := s.paths(cpu)[n]; !ok || p.kind != typePHB {
		return kind
	}
	return typeP2C
}

// nicIDs are the NICs that NCCL would use: RDMA devices where there are any, and none whose ports are down.
func (s *ncclSystem) nicIDs() (ids []string) {
	rdma := slices.ContainsFunc(s.g.NICs, func(n NIC) bool { return n.RDMA != nil && *n.RDMA && !n.down() })
	for i := range s.g.NICs {
		n := &s.g.NICs[i]
		if n.down() || rdma && n.RDMA != nil && !*n.RDMA {
			continue
		}
		ids = append(ids, n.ID)
	}
	return ids
}

// down says whether every port is known not to be active.
func (n *NIC) down() bool {
	return len(n.Ports) > 0 && !slices.ContainsFunc(n.Ports, func(p Port) bool { return p.State == "" || p.State == "ACTIVE" })
}

// nearCPU is the CPU with the fewest hops.
func (s *ncclSystem) nearCPU(n *ncclNode) (best *ncclNode) {
	hops := 0
	for i := range s.g.CPUs {
		c := s.cpus[s.g.CPUs[i].NUMA]
		if p, ok := s.paths(c)[n]; ok && (best == nil || p.hops < hops) {
			best, hops = c, p.hops
		}
	}
	return best
}

// relay is the GPU through which NCCL would send to a NIC (PXN): one that is near the NIC, and joined by NVLink. NCCL asks for GPUDirect RDMA on top, which a
// topology may not say; where it says no there is no relay. NCCL takes the nearest GPU whose own nearest NIC this is; here it is the first of them.
func (s *ncclSystem) relay(gpu, nic endpoint, own ncclPath) string {
	if nic.nic.GDR != nil && !*nic.nic.GDR {
		return ""
	}
	n := s.ends[nic.id]
	var ids []string
	for i := range s.g.GPUs {
		ids = append(ids, s.g.GPUs[i].ID)
	}
	for _, id := range s.nearest(n, ids) {
		if !slices.Contains(s.nearest(s.ends[id], s.nicIDs()), nic.id) {
			continue
		}
		peer, _ := s.between(id, nic.id)
		peer.kind = s.c2cType(endpoint{id: id}, nic, peer.kind)
		link, ok := s.between(id, gpu.id)
		i := slices.IndexFunc(s.g.GPUs, func(g GPU) bool { return g.ID == id })
		if id == gpu.id || !ok || peer.kind > typeP2C || link.kind > typeNVL || s.g.GPUs[i].GDR != nil && !*s.g.GPUs[i].GDR {
			return ""
		}
		if peer.bw > own.bw || own.kind > typePXN {
			return id
		}
		return ""
	}
	return ""
}
