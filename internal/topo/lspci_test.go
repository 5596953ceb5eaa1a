package topo_test

import (
	"strings"
	"testing"

	"github.com/commprobe/commprobe/internal/topo"
)

// lspciTree is drawn as lspci -tv does: several host bridges, a switch with a fork, a bus with one device, functions of one card.
const lspciTree = `-+-[0000:80]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers
 |           \-02.0-[81-84]----00.0-[82-84]--+-08.0-[83]----00.0  NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB]
 |                                           \-10.0-[84]--+-00.0  Mellanox Technologies MT27700 Family [ConnectX-4]
 |                                                        \-00.1  Mellanox Technologies MT27700 Family [ConnectX-4]
 \-[0000:00]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers
             +-01.0-[01]----00.0  NVIDIA Corporation GA102GL [A40]
             +-03.0-[02-09]----00.0-[03-09]--+-04.0-[04]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
             |                               +-05.0-[05-07]----00.0-[06-07]----00.0-[07]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
             |                               +-06.0-[08]--
             |                               \-0c.0-[09]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
             +-1c.0-[0a]----00.0  NVIDIA Corporation TU104 HD Audio Controller
             +-1d.0-[0b]----00.0  NVIDIA Corporation GH100 [H100 NVSwitch]
             \-1f.0  Intel Corporation C621 Series Chipset LPC Controller
`

func TestLspci(t *testing.T) {
	for name, text := range map[string]string{
		"alone":  lspciTree,
		"pasted": "$ lspci -tv\r\n" + strings.ReplaceAll(lspciTree, "\n", "\r\n") + "$ exit\r\n",
		"quoted": "> " + strings.ReplaceAll(strings.TrimSuffix(lspciTree, "\n"), "\n", "\n> ") + "\n",
	} {
		g := read(t, text).Graph
		if g == nil || len(g.GPUs) != 4 || len(g.NICs) != 3 || len(g.NVSwitches) != 1 || len(g.CPUs) != 0 || codes(g.Notes) != "lspci-only no-numa nvlink-unknown" {
			t.Fatalf("%s: %+v", name, g)
		}
		for _, tt := range []struct{ a, b, pci, nccl string }{
			{"0000:04:00.0", "0000:09:00.0", "PIX", "PIX"},
			{"0000:07:00.0", "0000:09:00.0", "PXB", "PXB"},
			{"0000:04:00.0", "0000:07:00.0", "PXB", ""},
			{"0000:01:00.0", "0000:09:00.0", "PHB", ""},
			{"0000:01:00.0", "0000:84:00.1", "NODE|SYS", ""},
			{"0000:83:00.0", "0000:84:00.0", "PIX", "PIX"},
			{"0000:84:00.0", "0000:84:00.1", "PIX", "LOC"},
		} {
			p, err := g.Path(tt.a, tt.b)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if p.PCI != tt.pci || p.NCCL != tt.nccl || p.GBs != nil {
				t.Errorf("%s: %s to %s: %+v", name, tt.a, tt.b, p)
			}
		}
	}
	var drawn strings.Builder
	if err := read(t, lspciTree).Graph.Tree(&drawn); err != nil || !strings.Contains(drawn.String(), "0000:05:00.0  switch") || strings.Contains(drawn.String(), "0000:03:04.0") {
		t.Errorf("a switch is one line, and its ports are none: %v\n%s", err, &drawn)
	}
	old := read(t, "-[00]-+-00.0  Intel\n      \\-01.0-[01]----00.0  NVIDIA Corporation GP100GL [10de:15f9]\n").Graph
	if len(old.GPUs) != 1 || old.GPUs[0].BusID != "0000:01:00.0" || old.PCI[1].Device != "0x15f9" {
		t.Errorf("%+v", old)
	}
	broken := read(t, "-[0000:00]-+-01.0-[01]----00.0  NVIDIA Corporation GA100\n   +-02.0  what\n           \\-zz\n").Graph
	if !strings.HasPrefix(codes(broken.Notes), "lspci-line") || len(broken.GPUs) != 1 {
		t.Errorf("%v", broken.Notes)
	}
	if _, err := topo.Read(strings.NewReader("+-00.0 no tree\n"), "t"); err == nil {
		t.Error("a piece without a root was read")
	}
}
