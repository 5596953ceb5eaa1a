package ncclenv

import (
	"fmt"
	"slices"
	"strings"
)

// mustAgree are layers in which ranks that differ hang, fail or compute with different algorithms.
var mustAgree = []string{"tuning", "nvls", "collnet", "mnnvl", "symmetric", "gin", "communicator"}

// alsoAgree and mayDiffer are the exceptions from what the layer says.
var (
	alsoAgree = []string{"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_IB_DISABLE", "NCCL_IB_SPLIT_DATA_ON_QPS",
		"NCCL_P2P_PXN_LEVEL", "NCCL_COMM_ID", "NCCL_SOCKET_MAGIC", "NCCL_SOCKET_FAMILY", "NCCL_OOB_NET_ENABLE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS",
		"NCCL_TUNER_PLUGIN", "TORCH_DISTRIBUTED_DEBUG", "NCCL_RUNTIME_CONNECT"}
	mayDiffer = []string{"NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_CONF_FILE",
		"NCCL_RAS_ADDR", "NCCL_MNNVL_CLIQUE_ID", "NCCL_PROXY_CPUSET", "CUDA_VISIBLE_DEVICES", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "NCCL_DEBUG"}
)

// Differences compares sources, one a host, and tells each variable that is not the same everywhere. A source that is partial (a log) says nothing
// by silence.
func Differences(sources []*Source) []Finding {
	if len(sources) < 2 {
		return nil
	}
	var names []string
	for _, src := range sources {
		for _, s := range src.Settings {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	var found []Finding
	for _, name := range slices.Compact(names) {
		if f, ok := difference(name, sources); ok {
			found = append(found, f)
		}
	}
	found = append(found, equalHostIDs(sources)...)
	if f, ok := versionsDiffer(sources); ok {
		found = append(found, f)
	}
	Sort(found)
	return found
}

func difference(name string, sources []*Source) (Finding, bool) {
	g := groups{of: map[string][]string{}}
	for _, src := range sources {
		switch s := src.Get(name); {
		case s != nil && (s.Open || s.Hidden): // cannot be compared
			return Finding{}, false
		case s != nil:
			g.add(shownValue(name, s.Value), src.Name)
		case !src.Partial:
			g.add("not set", src.Name)
		}
	}
	if len(g.values) < 2 {
		return Finding{}, false
	}
	severity, advice := Odd, "use one value, unless the hosts are built differently"
	v := Lookup(name)
	switch {
	case slices.Contains(mayDiffer, name):
		severity, advice = Note, "right where the hosts are built differently"
	case v != nil && (slices.Contains(mustAgree, v.Layer) || slices.Contains(alsoAgree, name)):
		severity, advice = Fault, "ranks that differ here hang or fail: use one value everywhere"
	}
	return Finding{ID: "host-differs", Severity: severity, Name: name, Text: g.String(), Advice: advice}, true
}

// shownValue makes equal what NCCL reads as equal: 1 and 01, but no more.
func shownValue(name, value string) string {
	if v := Lookup(name); v != nil && v.integer() {
		if n, rest, ok, _ := cInt(value); ok && strings.TrimSpace(rest) == "" {
			return fmt.Sprint(n)
		}
	}
	return show(value)
}

// groups are hosts by value, in the order in which the values came.
type groups struct {
	values []string
	of     map[string][]string
}

func (g *groups) add(value, host string) {
	if g.of[value] == nil {
		g.values = append(g.values, value)
	}
	g.of[value] = append(g.of[value], host)
}

// String names the largest group last and only by number, because the few are the ones to look at.
func (g *groups) String() string {
	values := slices.Clone(g.values)
	slices.SortStableFunc(values, func(a, b string) int { return len(g.of[a]) - len(g.of[b]) })
	var parts []string
	for i, v := range values {
		hosts := g.of[v]
		who := strings.Join(hosts[:min(len(hosts), 4)], ", ")
		if n := len(hosts); n > 4 {
			who = fmt.Sprintf("%s and %d more", who, n-4)
			if i == len(values)-1 {
				who = fmt.Sprintf("the other %d", n)
			}
		}
		parts = append(parts, v+" on "+who)
	}
	return strings.Join(parts, "; ")
}

// equalHostIDs finds hosts that would take each other for one.
func equalHostIDs(sources []*Source) []Finding {
	g := groups{of: map[string][]string{}}
	for _, src := range sources {
		if s := src.Get("NCCL_HOSTID"); s != nil && s.Value != "" && !s.Open {
			g.add(s.Value, src.Name)
		}
	}
	for _, v := range g.values {
		if hosts := g.of[v]; len(hosts) > 1 {
			return []Finding{{ID: "hostid-equal", Severity: Fault, Name: "NCCL_HOSTID", Value: v, Text: "the same on " + strings.Join(hosts[:min(len(hosts), 4)], ", ") +
				": NCCL takes them for one machine and tries P2P and shared memory between them", Advice: "give each host its own, or unset it; right only for containers of one host"}}
		}
	}
	return nil
}

func versionsDiffer(sources []*Source) (Finding, bool) {
	g := groups{of: map[string][]string{}}
	for _, src := range sources {
		if !src.NCCL.IsZero() {
			g.add(src.NCCL.String(), src.Name)
		}
	}
	if len(g.values) < 2 {
		return Finding{}, false
	}
	return Finding{ID: "version-differs", Severity: Fault, Text: "NCCL " + g.String(), Advice: "load one version on all hosts"}, true
}
