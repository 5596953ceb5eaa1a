package topo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/internal/topo/topotest"
)

// pairsOf is "GPU0=mlx5_0:1 …".
func pairsOf(a Advice) string {
	var out []string
	for i := range a.GPUs {
		out = append(out, strings.TrimPrefix(a.GPUs[i].GPU, "GPU")+"="+a.GPUs[i].name())
	}
	return strings.Join(out, " ")
}

// settingOf is a variable's value without a condition: "-" where it is to be left unset, empty where nothing is said.
func settingOf(a Advice, variable string) (string, Confidence) {
	for _, s := range a.Settings {
		if s.Variable != variable || s.When != "" {
			continue
		}
		if s.Value == nil {
			return "-", s.Confidence
		}
		return *s.Value, s.Confidence
	}
	return "", ""
}

// conditionOf is the value that a variable has under a condition.
func conditionOf(a Advice, variable string) string {
	for _, s := range a.Settings {
		if s.Variable == variable && s.When != "" && s.Value != nil {
			return *s.Value
		}
	}
	return ""
}

// The expectations are written by hand from the machines' descriptions.
func TestAdviseMachines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, pairs, hca string
		left             map[string]string // excluded port: part of the reason
		gid              string            // NCCL_IB_GID_INDEX for old versions
		gdr, p2p         string            // unconditional
		gdrIf, p2pIf     string            // conditional
	}{
		{"dgx-a100", "0=mlx5_0:1 1=mlx5_1:1 2=mlx5_2:1 3=mlx5_3:1 4=mlx5_6:1 5=mlx5_7:1 6=mlx5_8:1 7=mlx5_9:1",
			"=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1",
			map[string]string{"mlx5_4": "storage or management", "mlx5_5": "storage or management", "enp225s0": "no RDMA device"}, "", "-", "-", "", ""},
		{"dgx-h100", "0=mlx5_0:1 1=mlx5_3:1 2=mlx5_4:1 3=mlx5_5:1 4=mlx5_6:1 5=mlx5_7:1 6=mlx5_8:1 7=mlx5_9:1",
			"=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1",
			map[string]string{"mlx5_1": "NODE at best", "mlx5_2": "DOWN"}, "", "-", "-", "", ""},
		{"dgx1-v100", "0=mlx5_0:1 1=mlx5_0:1 2=mlx5_1:1 3=mlx5_1:1 4=mlx5_2:1 5=mlx5_2:1 6=mlx5_3:1 7=mlx5_3:1",
			"=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", nil, "", "-", "-", "", ""},
		{"a40-bridges", "0=mlx5_0:1 1=mlx5_0:1 2=mlx5_0:1 3=mlx5_0:1 4=mlx5_1:1 5=mlx5_1:1 6=mlx5_1:1 7=mlx5_1:1", "=mlx5_0:1,mlx5_1:1", nil, "3", "", "", "PHB", "PHB"},
		{"gh200", "0=mlx5_0:1", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", nil, "", "-", "", "", ""},
		{"pcie-plx", "0= 1= 2= 3= 4= 5= 6= 7=", "-", map[string]string{"eno1": "no RDMA device"}, "", "", "", "", "PHB"},
		{"roce-bond-vf", "0=mlx5_bond_0:1 1=mlx5_2:1", "=mlx5_2:1,mlx5_bond_0:1", map[string]string{"mlx5_3": "DOWN", "mlx5_10": "virtual function of mlx5_2"}, "3", "", "-", "PHB", ""},
		{"vm-flat", "0=mlx5_0:1 1=mlx5_1:1 2=mlx5_2:1 3=mlx5_3:1", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1", nil, "3", "", "-", "PHB", ""},
		{"container-cutdown", "0= 1=", "-", nil, "", "", "-", "", ""},
		{"no-gpu-no-nic", "", "-", nil, "", "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Advise(drawnGraph(t, c.name), nil, AdviseOptions{})
			if got := pairsOf(a); got != c.pairs {
				t.Errorf("pairs %q, want %q", got, c.pairs)
			}
			if got, _ := settingOf(a, "NCCL_IB_HCA"); got != c.hca {
				t.Errorf("NCCL_IB_HCA %q, want %q", got, c.hca)
			}
			if got, _ := settingOf(a, "NCCL_NET_GDR_LEVEL"); got != c.gdr {
				t.Errorf("NCCL_NET_GDR_LEVEL %q, want %q", got, c.gdr)
			}
			if got, _ := settingOf(a, "NCCL_P2P_LEVEL"); got != c.p2p {
				t.Errorf("NCCL_P2P_LEVEL %q, want %q", got, c.p2p)
			}
			for name, want := range map[string]string{"NCCL_IB_GID_INDEX": c.gid, "NCCL_NET_GDR_LEVEL": c.gdrIf, "NCCL_P2P_LEVEL": c.p2pIf} {
				if got := conditionOf(a, name); got != want {
					t.Errorf("%s %q under a condition, want %q", name, got, want)
				}
			}
			left := 0
			for _, n := range a.NICs {
				if !n.Use {
					left++
					if part, ok := c.left[n.NIC]; !ok || !strings.Contains(n.Reason, part) {
						t.Errorf("%s left out: %s", n.NIC, n.Reason)
					}
				}
			}
			if left != len(c.left) || len(a.Contradictions) > 0 {
				t.Errorf("%d ports left out, want %d; contradictions %v", left, len(c.left), a.Contradictions)
			}
			for _, s := range a.Settings {
				if s.Reason == "" || s.Confidence == "" {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

func TestAdviseBinding(t *testing.T) {
	t.Parallel()
	a := Advise(drawnGraph(t, "dgx-a100"), nil, AdviseOptions{})
	if v := a.GPUs[4]; v.Command != "numactl --physcpubind=112-127,240-255 --membind=7" || v.NUMA == nil || *v.NUMA != 7 || v.SMI != "PXB" {
		t.Errorf("%+v", v)
	}
	vm := Advise(drawnGraph(t, "vm-flat"), nil, AdviseOptions{})
	if v := vm.GPUs[0]; v.Command != "" || v.CPUs != "0-79" || v.Confidence != Likely || len(v.EqualNICs) != 7 {
		t.Errorf("%+v", v)
	}
	g := drawnGraph(t, "roce-bond-vf")
	if v := Advise(g, nil, AdviseOptions{}).GPUs[1]; strings.Contains(v.Reason, "NCCL") { // 10 GB/s between these CPUs: less than the port has
		t.Errorf("NCCL takes the same: %s", v.Reason)
	}
	for i := range g.CPUs {
		model := 0xcf // 40 GB/s
		g.CPUs[i].Model = &model
	}
	if v := Advise(g, nil, AdviseOptions{}).GPUs[1]; !strings.Contains(v.Reason, "NCCL by itself takes mlx5_bond_0:1") {
		t.Errorf("what NCCL prefers is not told: %s", v.Reason)
	}
}

// The index for old versions is given only where the version may be old, and only where the ports agree.
func TestAdviseGID(t *testing.T) {
	t.Parallel()
	g := drawnGraph(t, "a40-bridges")
	for version, want := range map[string]string{"": "3", "2.20.5": "3", "2.21.5": "", "2.27.3": "", "x": "3"} {
		if got := conditionOf(Advise(g, nil, AdviseOptions{NCCL: version}), "NCCL_IB_GID_INDEX"); got != want {
			t.Errorf("NCCL %q: %q, want %q", version, got, want)
		}
	}
	ids := g.NICs[1].Ports[0].GIDs
	g.NICs[1].Ports[0].GIDs = append(slices.Clone(ids[:3]), GID{Index: 5, Value: ids[3].Value, Type: ids[3].Type})
	a := Advise(g, nil, AdviseOptions{})
	if got, c := settingOf(a, "NCCL_IB_GID_INDEX"); got != "-" || c != Sure || conditionOf(a, "NCCL_IB_GID_INDEX") != "" {
		t.Errorf("indexes 3 and 5: %q %s", got, c)
	}
	v6 := GID{Index: 7, Value: "2001:0db8:0000:0000:0000:0000:0000:0001", Type: roce2}
	for i := range g.NICs {
		g.NICs[i].Ports[0].GIDs = append(slices.Clone(ids[:2]), v6)
	}
	a = Advise(g, nil, AdviseOptions{})
	if got, _ := settingOf(a, "NCCL_IB_ADDR_FAMILY"); got != "AF_INET6" || *a.NICs[0].GIDIndex != 7 {
		t.Errorf("IPv6 alone: %q", got)
	}
	for i := range g.NICs {
		g.NICs[i].Ports[0].GIDs = ids[:2] // fe80 alone
	}
	a = Advise(g, nil, AdviseOptions{})
	if got, c := settingOf(a, "NCCL_IB_GID_INDEX"); got != "-" || c != Depends || a.NICs[0].GIDIndex != nil || !strings.Contains(a.NICs[0].GIDText, "no RoCE v2 address") {
		t.Errorf("link-local alone: %q %s %+v", got, c, a.NICs[0])
	}
}

// What stands in the environment is compared with the node.
func TestAdviseContradictions(t *testing.T) {
	t.Parallel()
	graphs := map[string]*Graph{}
	up := []Netdev{{Name: "lo", State: "unknown", Virtual: true}, {Name: "eth1", State: "up"}, {Name: "eth10", State: "up"}, {Name: "eth2", State: "down"}, {Name: "docker0", State: "up", Virtual: true}}
	for _, c := range []struct {
		machine, variable, value string
		want                     []string // one text each, in any order; none: no contradiction
	}{
		{"dgx-a100", "NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1", nil},
		{"dgx-a100", "NCCL_IB_HCA", "^=mlx5_4,mlx5_5", nil},
		{"dgx-a100", "NCCL_IB_HCA", "mlx5", []string{"it also takes in mlx5_4:1 (SYS at best"}},
		{"dgx-a100", "NCCL_IB_HCA", "=mlx5_0", []string{"it leaves out mlx5_1:1 mlx5_2:1"}},
		{"dgx-a100", "NCCL_IB_HCA", "=mlx5_4,mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9", []string{"it also takes in mlx5_4:1 (SYS"}},
		{"dgx-a100", "NCCL_IB_HCA", "=mlx5_77", []string{"mlx5_77 does not exist", "no active port"}},
		{"dgx-a100", "NCCL_IB_HCA", "=mlx5_0:2", []string{"mlx5_0:2 does not exist", "no active port"}},
		{"dgx-h100", "NCCL_IB_HCA", "=mlx5_0,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9", []string{"mlx5_2 is not active (mlx5_2:1 DOWN)"}},
		{"roce-bond-vf", "NCCL_IB_HCA", "=mlx5_2,mlx5_bond_0", nil},
		{"roce-bond-vf", "NCCL_IB_HCA", "=mlx5_1,mlx5_bond_0,mlx5_2", []string{"mlx5_1 does not exist"}},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "3", nil},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "-1", nil},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "2", []string{"index 2 of mlx5_2:1 is IB/RoCE v1", "index 2 of mlx5_bond_0:1 is IB/RoCE v1"}},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "1", []string{"index 1 of mlx5_2:1 is link-local", "mlx5_bond_0:1 is link-local"}},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "6", []string{"mlx5_2:1 has no address at index 6", "mlx5_bond_0:1 has no"}},
		{"roce-bond-vf", "NCCL_IB_GID_INDEX", "x", []string{"no number"}},
		{"dgx-a100", "NCCL_IB_GID_INDEX", "3", nil}, // InfiniBand has no such table
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "docker0", []string{"leads to no other node"}},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "lo", []string{"leads to no other node"}},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "=eth1", nil},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "^docker,lo", nil},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "^docker,lo,eth", []string{"excludes every interface"}},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "eth1", []string{"is a prefix and also matches eth10"}},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "eth2", []string{"eth2 is down"}},
		{"dgx-a100", "NCCL_SOCKET_IFNAME", "bond0", []string{"no interface of this node fits bond0"}},
		{"dgx-a100", "NCCL_NET_GDR_LEVEL", "PIX", []string{"switches GPUDirect RDMA off for GPU0 (PXB)"}},
		{"dgx-a100", "NCCL_NET_GDR_LEVEL", "2", nil},
		{"dgx-a100", "NCCL_NET_GDR_LEVEL", "near", []string{"no level"}},
		{"dgx-a100", "NCCL_P2P_LEVEL", "LOC", []string{"forbids NVLink"}},
		{"dgx-a100", "NCCL_P2P_LEVEL", "nvl", nil},
		{"pcie-plx", "NCCL_P2P_LEVEL", "0", nil},
		{"dgx-a100", "NCCL_P2P_DISABLE", "1", []string{"NVLink among them"}},
		{"dgx-a100", "NCCL_IB_DISABLE", "1", []string{"switches RDMA off"}},
		{"pcie-plx", "NCCL_IB_DISABLE", "1", nil},
		{"dgx-a100", "NCCL_NET", "Socket", []string{"chooses sockets"}},
		{"dgx-a100", "NCCL_CROSS_NIC", "3", []string{"none of 0, 1, 2"}},
		{"a40-bridges", "NCCL_IB_ADDR_FAMILY", "AF_INET6", []string{"mlx5_0:1 is 10.", "mlx5_1:1 is 10."}},
	} {
		if graphs[c.machine] == nil {
			graphs[c.machine] = drawnGraph(t, c.machine)
		}
		a := Advise(graphs[c.machine], map[string]string{c.variable: c.value}, AdviseOptions{Net: HostNet{Netdevs: up, DefaultRoute: "eth1"}})
		var got []string
		for _, x := range a.Contradictions {
			got = append(got, x.Text)
			if x.Variable != c.variable || x.Value != c.value || x.Fix == "" {
				t.Errorf("%s %s=%s: %+v", c.machine, c.variable, c.value, x)
			}
		}
		for _, part := range c.want {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, part) }) {
				t.Errorf("%s %s=%s: no %q in %q", c.machine, c.variable, c.value, part, got)
			}
		}
		if len(got) != len(c.want) {
			t.Errorf("%s %s=%s: %d contradictions, want %d: %q", c.machine, c.variable, c.value, len(got), len(c.want), got)
		}
	}
}

// mlx5_1 is also the beginning of mlx5_10.
func TestAdvisePrefix(t *testing.T) {
	t.Parallel()
	g := drawnGraph(t, "dgx-a100")
	for i := range g.NICs {
		if g.NICs[i].Name == "mlx5_4" {
			g.NICs[i].Name = "mlx5_10"
		}
	}
	env := map[string]string{"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9"}
	a := Advise(g, env, AdviseOptions{})
	if len(a.Contradictions) != 1 || !strings.Contains(a.Contradictions[0].Text, "mlx5_1 is a prefix and also matches mlx5_10:1") || !strings.HasPrefix(a.Contradictions[0].Fix, "export NCCL_IB_HCA==mlx5_0:1") {
		t.Errorf("%+v", a.Contradictions)
	}
	env["NCCL_IB_HCA"] = "=" + env["NCCL_IB_HCA"]
	if a := Advise(g, env, AdviseOptions{}); len(a.Contradictions) != 0 {
		t.Errorf("exact: %+v", a.Contradictions)
	}
}

func TestAdviseAffinity(t *testing.T) {
	t.Parallel()
	g := drawnGraph(t, "a40-bridges")
	for allowed, want := range map[string]string{"0-15": "no core near GPU4-7", "0-191": "", "95-96": "", "": "", "x": ""} {
		a := Advise(g, nil, AdviseOptions{Net: HostNet{Allowed: allowed}})
		switch {
		case want == "" && len(a.Contradictions) > 0, want != "" && (len(a.Contradictions) != 1 || !strings.Contains(a.Contradictions[0].Text, want)):
			t.Errorf("%q: %+v", allowed, a.Contradictions)
		}
	}
	a := Advise(g, nil, AdviseOptions{Devices: []int{2, 3}, Net: HostNet{Allowed: "0-15"}})
	if pairsOf(a) != "2=mlx5_0:1 3=mlx5_0:1" || len(a.Contradictions) > 0 {
		t.Errorf("two devices: %s %+v", pairsOf(a), a.Contradictions)
	}
}

// The NIC of the default route is left to the node where the others do as well, and kept where it is needed.
func TestAdviseDefaultRoute(t *testing.T) {
	t.Parallel()
	vm := Advise(drawnGraph(t, "vm-flat"), nil, AdviseOptions{Net: HostNet{DefaultRoute: "eth0"}})
	if got, _ := settingOf(vm, "NCCL_IB_HCA"); strings.Contains(got, "mlx5_0") || !strings.Contains(got, "mlx5_7:1") {
		t.Errorf("vm-flat: %s", got)
	}
	if got, c := settingOf(vm, "NCCL_SOCKET_IFNAME"); got != "=eth0" || c != Sure {
		t.Errorf("NCCL_SOCKET_IFNAME %s %s", got, c)
	}
	a40 := Advise(drawnGraph(t, "a40-bridges"), nil, AdviseOptions{Net: HostNet{DefaultRoute: "eth0"}})
	if got, _ := settingOf(a40, "NCCL_IB_HCA"); got != "=mlx5_0:1,mlx5_1:1" {
		t.Errorf("a40-bridges: %s", got)
	}
	if got, _ := settingOf(Advise(drawnGraph(t, "a40-bridges"), nil, AdviseOptions{Net: HostNet{DefaultRoute: "docker0"}}), "NCCL_SOCKET_IFNAME"); got == "=docker0" {
		t.Error("docker0 was advised")
	}
}

// Ports that do not fit to the others: slow, of another link layer, single members of a bond.
func TestAdviseOddPorts(t *testing.T) {
	t.Parallel()
	reason := func(a Advice, nic string) string {
		for _, n := range a.NICs {
			if n.NIC == nic && !n.Use {
				return n.Reason
			}
		}
		return ""
	}
	text := topotest.Text(t, "vm-flat")
	for change, want := range map[string]string{"ib=mlx5_2 layer=Eth rate=25": "looks like storage", "ib=mlx5_2 layer=IB rate=100": "cannot connect one with the other", "ib=mlx5_2 layer=Eth state=INIT rate=100": "port is INIT"} {
		g, err := ReadSys(topotest.Build(t, strings.Replace(text, "ib=mlx5_2 layer=Eth rate=100", change, 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := reason(Advise(g, nil, AdviseOptions{}), "mlx5_2"); !strings.Contains(got, want) {
			t.Errorf("%s: %q", change, got)
		}
	}
	g := drawnGraph(t, "vm-flat")
	g.NICs[0].Bond, g.NICs[1].Bond = "bond0", "bond0"
	a := Advise(g, nil, AdviseOptions{})
	if got := reason(a, "mlx5_0"); !strings.Contains(got, "one of 2 RDMA devices") || reason(a, "mlx5_1") == "" {
		t.Errorf("members of a bond: %q", got)
	}
}

func TestAdviseJSONAndText(t *testing.T) {
	t.Parallel()
	a := Advise(drawnGraph(t, "roce-bond-vf"), map[string]string{"NCCL_IB_HCA": "mlx5_9"}, AdviseOptions{})
	text, err := json.Marshal(a)
	var back Advice
	if err != nil || json.Unmarshal(text, &back) != nil || pairsOf(back) != pairsOf(a) || len(back.Settings) != len(a.Settings) {
		t.Errorf("%v %s", err, text)
	}
	if none, _ := json.Marshal(Advise(&Graph{}, nil, AdviseOptions{})); !strings.Contains(string(none), `"gpus":[],"nics":[]`) {
		t.Errorf("an empty graph: %s", none)
	}
	var b bytes.Buffer
	if err := a.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"AGAINST THIS NODE", "mlx5_9 does not exist", "  export NCCL_IB_HCA==mlx5_2:1,mlx5_bond_0:1\n", "# NCCL_IB_GID_INDEX=3 only where NCCL is older than 2.21", "ACS is on at 0000:18:00.0"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if s := strings.TrimSpace(line); strings.HasPrefix(s, "export ") && strings.ContainsAny(s, " \t") && len(strings.Fields(s)) != 2 {
			t.Errorf("no shell takes %q", s)
		}
	}
}

func TestReadHostNet(t *testing.T) {
	t.Parallel()
	root := topotest.Build(t, topotest.Text(t, "roce-bond-vf")+`
-- proc/net/route --
Iface	Destination	Gateway	Flags	RefCnt	Use	Metric	Mask	MTU	Window	IRTT
ens2f0np0	00000000	0102A8C0	0003	0	0	200	00000000	0	0	0
bond0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
bond0	0001A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
-- proc/self/status --
Name:	x
Cpus_allowed_list:	0-31,64-95
`)
	h, err := ReadHostNet(root)
	if err != nil || h.DefaultRoute != "bond0" || h.Allowed != "0-31,64-95" {
		t.Fatalf("%+v, %v", h, err)
	}
	i := slices.IndexFunc(h.Netdevs, func(d Netdev) bool { return d.Name == "bond0" })
	j := slices.IndexFunc(h.Netdevs, func(d Netdev) bool { return d.Name == "ens2f1np1" })
	if i < 0 || j < 0 || !h.Netdevs[i].Virtual || !h.Netdevs[i].Bond || h.Netdevs[j].Virtual || h.Netdevs[j].State != "down" {
		t.Errorf("%+v", h.Netdevs)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHostNet(file); err == nil {
		t.Error("a file is no root")
	}
	if h, err := ReadHostNet(t.TempDir()); err != nil || h.DefaultRoute != "" || h.Netdevs != nil {
		t.Errorf("an empty root: %+v, %v", h, err)
	}
}

// FuzzAdviseEnv: no text in the environment breaks the advice, and what is advised contradicts nothing.
func FuzzAdviseEnv(f *testing.F) {
	for _, s := range []string{"=mlx5_0:1", "^mlx5", "^=,,:", ":", "=", "mlx5_0:99999999999999999999", "3", "-1", "PXB", "docker0,lo"} {
		f.Add(s)
	}
	g, err := ReadSys(topotest.Materialise(f, "roce-bond-vf"), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		env := map[string]string{}
		for _, name := range []string{"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL", "NCCL_CROSS_NIC", "NCCL_IB_ADDR_FAMILY", "NCCL_NET"} {
			env[name] = s
		}
		a := Advise(g, env, AdviseOptions{NCCL: s, Net: HostNet{DefaultRoute: "bond0", Allowed: s, Netdevs: []Netdev{{Name: s}}}})
		env = map[string]string{}
		for _, x := range a.Settings {
			if x.Value != nil && x.When == "" {
				env[x.Variable] = *x.Value
			}
		}
		if again := Advise(g, env, AdviseOptions{}); len(again.Contradictions) > 0 {
			t.Errorf("its own advice contradicts the node: %+v", again.Contradictions)
		}
	})
}
