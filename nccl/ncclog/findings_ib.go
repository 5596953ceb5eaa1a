package ncclog

import (
	"fmt"
	"strings"
)

// ibKind is what a completion status of verbs means in an NCCL job.
type ibKind struct {
	id, title, next, fix string
	tier                 tier
	weak                 bool
}

// ibKinds goes by ibv_wc_status.
var ibKinds = map[int]ibKind{
	1: {"ib-local-length", "a message is longer than its buffer (local length error)", "do both ranks run the same NCCL with the same settings? COLL lines of both", "one version and one environment for all ranks; else the program's sizes differ", tierCause, false},
	4: {"ib-local-protection", "the NIC may not read or write the memory it was told to (local protection error)",
		"run once with NCCL_NET_GDR_LEVEL=LOC: if that works, GPUDirect RDMA is the culprit. Then `lspci -vvv | grep ACSCtl` on the bridges above GPU and NIC: a + after SrcValid or ReqRedir is ACS switched on; `iommu` in /proc/cmdline",
		"switch ACS off on these bridges (BIOS or setpci), iommu=pt or off; in a VM ATS must be on. GPUDirect RDMA off is only a test", tierCause, false},
	5:  {"ib-flush", "requests were flushed because the connection had already failed", "the first error on this connection, here or at the peer: it stands earlier in time", "", tierLoose, true},
	9:  {"ib-remote-access", "the peer's NIC refused the request (remote invalid request)", "the peer's log, dmesg and memory registration: peermem or DMA-BUF, driver versions", "another way to register GPU memory (DMA-BUF instead of nvidia_peermem or the reverse), newer driver or NCCL", tierLink, false},
	10: {"ib-remote-access", "the peer's NIC denied access to its memory (remote access error)", "the peer's log and dmesg (local access violation); peermem or DMA-BUF, driver versions", "another way to register GPU memory (DMA-BUF instead of nvidia_peermem or the reverse), newer driver or NCCL", tierLink, false},
	11: {"ib-remote-operation", "the peer's NIC could not finish the request (remote operation error)", "the peer's log and dmesg; firmware of its NIC", "", tierLink, false},
	12: {"ib-retry-exceeded", "the peer's NIC does not answer (transport retry counter exceeded)",
		"`ib_write_bw -d <hca>` between exactly these two NICs, both ways; `ibstat`, `mlxlink` and port counters (symbol errors, link downed) at both ends; IB: is the subnet manager alive, are both on one subnet; RoCE: GID, VLAN, MTU, PFC",
		"mend the link or leave the NIC out with NCCL_IB_HCA; RoCE: NCCL_IB_GID_INDEX of a routed RoCE v2 GID on all hosts. A larger NCCL_IB_TIMEOUT (20 to 22) helps only against short congestion", tierLink, false},
	13: {"ib-rnr", "the peer has no receive posted for too long (receiver not ready)", "the peer's log: is its process dead, stopped or very slow?", "", tierLink, true},
}

// ibCompletions turns completion errors into one finding a status.
func (f *finder) ibCompletions() {
	groups := map[int]*group{}
	hcas, vendors := map[int][]string{}, map[int][]string{}
	effect := map[int]bool{}
	var statuses []int
	down := f.downHosts()
	for _, p := range f.log.Processes {
		for _, e := range p.IBErrors {
			if e.Kind != "completion" {
				continue
			}
			if groups[e.Status] == nil {
				groups[e.Status] = &group{}
				statuses = append(statuses, e.Status)
				effect[e.Status] = true
			}
			groups[e.Status].take(p.Host, f.peerName(e.Peer), e.At)
			hcas[e.Status] = append(hcas[e.Status], e.HCA)
			if e.VendorErr >= 0 {
				vendors[e.Status] = append(vendors[e.Status], fmt.Sprint(e.VendorErr))
			}
			// A peer whose port went down cannot answer: the event there is the cause, this its effect.
			effect[e.Status] = effect[e.Status] && e.Status == 12 && (down[f.peerHost(e.Peer)] || down[hostOf(e.Peer)] || down[p.Host])
		}
	}
	for _, s := range statuses {
		k, ok := ibKinds[s]
		if !ok {
			k = ibKind{"ib-completion", "a request failed with status " + statusText(s), "dmesg and the NIC's counters at both ends", "", tierLink, false}
		}
		g := groups[s]
		title := fmt.Sprintf("InfiniBand/RoCE%s: %s", on(g.hosts), k.title)
		if peers := names(4, g.what); peers != "" {
			title += "; peer " + peers
		}
		if h := names(4, hcas[s]); h != "" {
			title += "; HCA " + h
		}
		title += fmt.Sprintf("; status %s", statusText(s))
		if v := names(3, vendors[s]); v != "" {
			title += ", vendor error " + v
		}
		if s == 12 || s == 4 {
			title += f.ibContext(s)
		}
		x := Finding{Severity: Fault, ID: k.id, Title: title, Evidence: g.lines, Cost: "the connection is lost, and with it the communicator; all ranks stop", Next: k.next, Fix: k.fix, Effect: effect[s]}
		if effect[s] {
			x.Of = "ib-port-error"
		}
		f.add(k.tier, k.weak, x)
	}
}

func hostOf(peer string) string {
	h, _, _ := strings.Cut(peer, "<")
	return h
}

func statusText(s int) string {
	if s < 0 {
		return "not printed"
	}
	return fmt.Sprint(s)
}

// ibContext adds what the rest of the log says about the usual causes.
func (f *finder) ibContext(status int) string {
	if status == 4 {
		for _, p := range f.log.Processes {
			for _, e := range p.IBErrors {
				if e.Status == 4 && e.VendorErr == 81 {
					return ". With vendor error 81 this is typical of PCIe ACS or an IOMMU that turns GPUDirect RDMA writes away" + f.gdrWords()
				}
			}
		}
		return f.gdrWords()
	}
	return f.gidWords()
}

// gdrWords says whether GPUDirect RDMA is in use, where the log shows it.
func (f *finder) gdrWords() string {
	switch n := f.countGDR(); {
	case n.on > 0:
		return ". GPUDirect RDMA is on in this job"
	case n.off > 0:
		return ". The connections in the log do not use GPUDirect RDMA, which speaks against that"
	}
	return ""
}

// gidWords says what the log tells about RoCE addressing, for errors that a wrong GID causes.
func (f *finder) gidWords() string {
	roce, ib, old, v4 := false, false, true, false
	for _, p := range f.log.Processes {
		for _, n := range p.NICs {
			roce = roce || strings.HasPrefix(n.Link, "RoCE")
			ib = ib || strings.HasPrefix(n.Link, "IB")
		}
		for _, e := range p.IBErrors {
			if strings.HasPrefix(e.LocalGID, "::ffff:") {
				roce, v4 = true, true
			}
		}
		old = old && f.versionOf(p).hi < 22100
	}
	s, set := f.value("NCCL_IB_GID_INDEX")
	switch {
	case roce && ib:
		return ". IB and RoCE ports are mixed in this job, and they cannot reach each other"
	case set:
		return ". NCCL_IB_GID_INDEX is " + strings.TrimSuffix(s.Value, ".")
	case v4:
		return ". The GIDs are routed IPv4 ones (RoCE v2), so the index is plausible: look at VLAN, route, firewall and PFC"
	case roce && old:
		return ". RoCE, no NCCL_IB_GID_INDEX in the log and NCCL before 2.21: index 0 (link-local, mostly RoCE v1) is used; try 3 (RoCE v2)"
	case !roce && !ib && old && len(f.log.Processes) > 0 && f.versionOf(f.log.Processes[0]).hi > 0:
		return ". If it is RoCE: NCCL before 2.21 takes GID index 0 (link-local, mostly RoCE v1) unless NCCL_IB_GID_INDEX says otherwise; try 3 (RoCE v2)"
	}
	return ""
}

// downHosts are the hosts on which a port went down.
func (f *finder) downHosts() map[string]bool {
	down := map[string]bool{}
	for _, p := range f.log.Processes {
		for _, e := range p.IBErrors {
			if e.Kind == "event" && isPortError(e.Event) && p.Host != "" {
				down[p.Host] = true
			}
		}
	}
	return down
}

func isPortError(event string) bool {
	e := strings.ToLower(event)
	return strings.Contains(e, "port err") || strings.Contains(e, "port_err") || strings.Contains(e, "port down")
}

// ibEvents are asynchronous events of devices: they come from the NIC or its link, not from NCCL.
func (f *finder) ibEvents() {
	var port, gid, fatal, other group
	procs := map[*Process]bool{}
	for _, p := range f.log.Processes {
		for _, e := range p.IBErrors {
			if e.Kind != "event" {
				continue
			}
			what := strings.TrimSpace(e.HCA + " " + e.Event)
			low := strings.ToLower(e.Event)
			switch {
			case e.Fatal:
				fatal.take(p.Host, what, e.At)
			case isPortError(e.Event):
				port.take(p.Host, e.HCA, e.At)
				procs[p] = true
			case strings.Contains(low, "gid") || strings.Contains(low, "unknown event"):
				gid.take(p.Host, what, e.At)
			case strings.Contains(low, "port active"):
			default:
				other.take(p.Host, what, e.At)
			}
		}
	}
	if len(port.lines) > 0 {
		title := "A port of the NIC went down" + on(port.hosts)
		if h := names(4, port.what); h != "" {
			title += ": " + h
		}
		if port.lines[0].Time != "" {
			title += " at " + port.lines[0].Time
		}
		f.add(tierCause, false, Finding{Severity: Fault, ID: "ib-port-error", Title: fmt.Sprintf("%s (reported by %s)", title, amount(len(procs), "process", "es")), Evidence: port.lines,
			Cost: "connections over that port fail with status 12 at the peers a few seconds later, if the link does not come back",
			Next: "cable and switch port of that HCA: `mlxlink -d <hca>`, `ibqueryerrors`, link_downed in the port counters, the switch's log",
			Fix:  "mend the link; this is not a setting of NCCL"})
	}
	f.limit(fatal, tierCause, false, Finding{ID: "ib-async-fatal", Title: "The NIC reports a fatal event{on}: {what}", Cost: "its connections are lost",
		Next: "dmesg (mlx5_core), firmware version; a local work queue or access error points at memory registration", Fix: "newer firmware and driver; see also ib-local-protection for ACS"})
	if len(gid.lines) > 0 {
		f.add(tierLink, false, Finding{Severity: Odd, ID: "ib-gid-changed", Title: "The GID table of a NIC changed during the run" + on(gid.hosts) + " (" + names(3, gid.what) + ")", Evidence: gid.lines,
			Cost: "connections made before may use an address that is gone", Next: "does a network manager, DHCP or a bond change addresses of the NICs?", Fix: "fixed addresses on the RDMA interfaces; keep NetworkManager off them"})
	}
	if len(other.lines) > 0 {
		f.add(tierLink, false, Finding{Severity: Odd, ID: "ib-async-event", Title: "The NIC reports an event" + on(other.hosts) + ": " + names(3, other.what), Evidence: other.lines, Next: "dmesg and the port's counters"})
	}
}

// gidIndex looks at RoCE connections that use a link-local address.
func (f *finder) gidIndex() {
	var g group
	for _, p := range f.log.Processes {
		roce := false
		for _, n := range p.NICs {
			roce = roce || strings.HasPrefix(n.Link, "RoCE")
		}
		for _, q := range p.QPs {
			if roce && q.GID == 0 && f.versionOf(p).hi < 22100 {
				g.take(p.Host, fmt.Sprint(q.GID), q.At)
			}
		}
	}
	if len(g.lines) > 0 && f.multiNode() != no {
		f.add(tierState, false, Finding{Severity: Odd, ID: "roce-gid-zero", Title: "RoCE connections use GID index 0" + on(g.hosts) + ", the default before 2.21: mostly the link-local address of RoCE v1", Evidence: g.lines,
			Cost: "works only within one layer-2 network, and without DSCP marks for PFC and ECN", Next: "`show_gids`: which index is RoCE v2 with the interface's IPv4 address?", Fix: "NCCL_IB_GID_INDEX of that entry (often 3) on all hosts, or NCCL 2.21 and newer"})
	}
}
