package nvml

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
)

// readLinks lists the links that the GPU has: asking beyond the last one is an invalid argument, asking a GPU without NVLink is not supported.
func readLinks(g *GPU, d csrc.NvmlDevice) {
	for i := range csrc.NvmlMaxLinks {
		state, code := d.GetNvLinkState(i)
		if code == csrc.Missing {
			g.Missing["nvlinks"] = lacks("nvmlDeviceGetNvLinkState")
			return
		}
		if code == csrc.NvmlInvalidArgument || code == csrc.NvmlNotSupported {
			if len(g.Links) == 0 && g.Missing["nvlinks"] == "" {
				g.Missing["nvlinks"] = "no NVLink on this GPU: " + codeText(code)
			}
			continue
		}
		delete(g.Missing, "nvlinks")
		l := Link{Link: i, Missing: map[string]string{}}
		if code == csrc.NvmlSuccess {
			on := isOn(state)
			l.Active = &on
		} else {
			l.Missing["active"] = codeText(code)
		}
		readLink(&l, d)
		g.Links = append(g.Links, l)
	}
}

func readLink(l *Link, d csrc.NvmlDevice) {
	m, i := l.Missing, l.Link
	l.Version = as(get(m, "version", "nvmlDeviceGetNvLinkVersion", func() (uint32, int) { return d.GetNvLinkVersion(i) }), linkVersion)
	remote := get(m, "remote_pci", "nvmlDeviceGetNvLinkRemotePciInfo_v2", func() (string, int) { return d.GetNvLinkRemotePciInfo(i) })
	l.RemotePCI = busID(m, "remote_pci", remote)
	kind := get(m, "remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", func() (int, int) { return d.GetNvLinkRemoteDeviceType(i) })
	l.RemoteType = as(kind, func(v int) string {
		switch v {
		case csrc.NvmlRemoteGPU:
			return "gpu"
		case csrc.NvmlRemoteCPU:
			return "cpu"
		case csrc.NvmlRemoteSwitch:
			return "switch"
		}
		return "unknown"
	})
	count := func(field string, counter int) *uint64 {
		return get(m, field, "nvmlDeviceGetNvLinkErrorCounter", func() (uint64, int) { return d.GetNvLinkErrorCounter(i, counter) })
	}
	l.Replays = count("replays", csrc.NvmlLinkReplay)
	l.Recoveries = count("recoveries", csrc.NvmlLinkRecovery)
	l.CRCFlit = count("crc_flit", csrc.NvmlLinkCRCFlit)
	l.CRCData = count("crc_data", csrc.NvmlLinkCRCData)
}

var ancestors = map[int]string{
	csrc.NvmlTopologyInternal: "internal", csrc.NvmlTopologySingle: "PIX", csrc.NvmlTopologyMultiple: "PXB", csrc.NvmlTopologyHostBridge: "PHB", csrc.NvmlTopologyNode: "NODE", csrc.NvmlTopologySystem: "SYS",
}

// p2pWords are nvidia-smi's for nvmlGpuP2PStatus_t.
var p2pWords = []string{"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"}

func readPairs(handles []*csrc.NvmlDevice) []Pair {
	var out []Pair
	for i, a := range handles {
		for j := i + 1; j < len(handles); j++ {
			if b := handles[j]; a != nil && b != nil {
				out = append(out, readPair(Pair{A: i, B: j, P2P: map[string]string{}, Missing: map[string]string{}}, *a, *b))
			}
		}
	}
	return out
}

func readPair(p Pair, a, b csrc.NvmlDevice) Pair {
	level := get(p.Missing, "common_ancestor", "nvmlDeviceGetTopologyCommonAncestor", func() (int, int) { return a.GetTopologyCommonAncestor(b) })
	p.Ancestor = as(level, func(v int) string {
		if s := ancestors[v]; s != "" {
			return s
		}
		return fmt.Sprint("level ", v)
	})
	for k, name := range []string{"read", "write", "nvlink", "atomics", "pci"} { // in the order of nvmlGpuP2PCapsIndex_t
		s := get(p.Missing, "p2p."+name, "nvmlDeviceGetP2PStatus", func() (int, int) { return a.GetP2PStatus(b, k) })
		switch {
		case s == nil:
		case *s >= 0 && *s < len(p2pWords):
			p.P2P[name] = p2pWords[*s]
		default:
			p.Missing["p2p."+name] = fmt.Sprint("not known: status ", *s)
		}
	}
	return p
}
