package topo

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

func TestPCIeRates(t *testing.T) {
	tests := []struct {
		speed, width string
		gbs          float64 // 0: unknown
		text         string
	}{
		{"2.5 GT/s PCIe", "16", 4, "gen1 x16"},
		{"5 GT/s", "16", 8, "gen2 x16"},
		{"8.0 GT/s PCIe", "16", 15.75, "gen3 x16"},
		{"16 GT/s", "16", 31.51, "gen4 x16"},
		{"32 GT/s PCIe/s", "16", 63.02, "gen5 x16"},
		{"32.0 GT/s PCIe", "8", 31.51, "gen5 x8"},
		{"64.0 GT/s PCIe", "16", 121, "gen6 x16"},
		{"12 GT/s", "4", 5.91, "12 GT/s x4"},
		{"Unknown", "0", 0, "unknown"},
		{"", "", 0, "unknown"},
		{"16.0 GT/s PCIe", "0", 0, "gen4"},
		{"nan", "16", 0, "x16"},
		{"-1", "255", 0, "unknown"},
	}
	for _, tt := range tests {
		l := PCILink{MaxSpeed: parseSpeed(tt.speed), MaxWidth: parseWidth(tt.width)}
		if got := l.MaxGBs(); got == nil && tt.gbs != 0 || got != nil && *got != tt.gbs {
			t.Errorf("%q x %q: %v GB/s, want %v", tt.speed, tt.width, got, tt.gbs)
		}
		if l.String() != tt.text {
			t.Errorf("%q x %q: %q, want %q", tt.speed, tt.width, l, tt.text)
		}
		if l.GBs() != nil {
			t.Errorf("%q: the present rate is not known", tt.speed)
		}
	}
}

func TestBusID(t *testing.T) {
	for in, want := range map[string]string{
		"0000:07:00.0": "0000:07:00.0", "00000000:0F:00.0": "0000:0f:00.0", "00000009:01:00.0": "0009:01:00.0", "07:00.0": "0000:07:00.0",
		"10000:01:00.0": "10000:01:00.0", " 0000:C1:00.1\n": "0000:c1:00.1", HiddenTarget: HiddenTarget,
		"": "!", "GPU0": "!", "0000:07:00": "!", "0000:07:00.0.1": "!", "pci0000:00": "!",
	} {
		got, ok := BusID(in)
		if ok == (want == "!") || ok && got != want {
			t.Errorf("BusID(%q) = %q, %v; want %q", in, got, ok, want)
		}
	}
}

func TestCPUSets(t *testing.T) {
	for mask, want := range map[string]string{
		"ffffffff": "0-31", "00000000,000fffff": "0-19", "000000ff,ffff0000,00ffffff": "0-23,48-71", "1": "0", "0": "", "00000001,00000000": "32",
		"ff000000,00000000,ff000000,00000000": "56-63,120-127",
	} {
		cpus, err := parseCPUMask(mask)
		if err != nil || formatCPUList(cpus) != want {
			t.Errorf("%s: %s, %v; want %s", mask, formatCPUList(cpus), err, want)
		}
		back, err := parseCPUMask(formatCPUMask(cpus))
		if err != nil || !slices.Equal(back, cpus) {
			t.Errorf("%s: written as %s: %v", mask, formatCPUMask(cpus), err)
		}
		list, err := parseCPUList(want)
		if err != nil || !slices.Equal(list, cpus) {
			t.Errorf("%q: %v, %v", want, list, err)
		}
	}
	for _, bad := range []string{"xyz", "123456789", ",", strings.Repeat("0,", 5000) + "0"} {
		if _, err := parseCPUMask(bad); err == nil {
			t.Errorf("the mask %.20q was read", bad)
		}
	}
	for _, bad := range []string{"a", "5-3", "-1", "0-99999999", "1-"} {
		if _, err := parseCPUList(bad); err == nil {
			t.Errorf("the list %q was read", bad)
		}
	}
}

func TestWordOrder(t *testing.T) {
	order := []string{"X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"}
	for i, w := range order {
		if SMIDistance(w) != i {
			t.Errorf("%s: %d, want %d", w, SMIDistance(w), i)
		}
	}
	for _, w := range []string{"?", "PHB|NODE", "", "NV", "NVX", "NV1234"} {
		if SMIDistance(w) != -1 {
			t.Errorf("%q has distance %d", w, SMIDistance(w))
		}
	}
	if SMIDistance("SOC") != SMIDistance("SYS") || NCCLDistance("PXB") != 5 || NCCLDistance("PHB") != 8 || NCCLDistance("NODE") != -1 {
		t.Error("distances of NCCL's numbering: PXB is 5, PHB 8")
	}
}

func TestNatural(t *testing.T) {
	names := []string{"mlx5_10", "mlx5_2", "mlx5_1", "bnxt_re0", "mlx5_bond_0", "mlx5_02"}
	slices.SortFunc(names, natural)
	if got := strings.Join(names, " "); got != "bnxt_re0 mlx5_1 mlx5_2 mlx5_02 mlx5_10 mlx5_bond_0" {
		t.Error(got)
	}
}

// TestInterCPU has NCCL's classes of processors.
func TestInterCPU(t *testing.T) {
	n := func(v int) *int { return &v }
	tests := []struct {
		c       CPU
		bw      float64
		assumed bool
	}{
		{CPU{Arch: "x86_64", Vendor: "AuthenticAMD", Family: n(25)}, 16, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel", Family: n(6), Model: n(79)}, 6, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel", Family: n(6), Model: n(85)}, 10, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel", Family: n(6), Model: n(106)}, 10, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel", Family: n(6), Model: n(143)}, 22, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel", Family: n(6), Model: n(207)}, 40, false},
		{CPU{Arch: "x86_64", Vendor: "GenuineIntel"}, 6, true},
		{CPU{Arch: "arm64"}, 6, false},
		{CPU{Arch: "ppc64"}, 32, false},
		{CPU{}, 5000, true},
	}
	for _, tt := range tests {
		if bw, assumed := interCPU(&tt.c); bw != tt.bw || assumed != tt.assumed {
			t.Errorf("%+v: %v, %v", tt.c, bw, assumed)
		}
	}
}

func TestConfigSpace(t *testing.T) {
	space := func(change func(c []byte)) []byte {
		c := make([]byte, 4096)
		c[0x34], c[0x40], c[0x41], c[0x60] = 0x40, 0x01, 0x60, 0x10
		binary.LittleEndian.PutUint32(c[0x100:], 0x0001|1<<16|0x140<<20)
		binary.LittleEndian.PutUint32(c[0x140:], 0x000d|1<<16)
		binary.LittleEndian.PutUint16(c[0x146:], 0x1d)
		if change != nil {
			change(c)
		}
		return c
	}
	if got := acs(space(nil)); got.State != "on" || strings.Join(got.Enabled, " ") != "SV RR CR UF" {
		t.Errorf("%+v", got)
	}
	if got := pcieCapability(space(nil)); got != 0x60 {
		t.Errorf("PCI Express capability at %#x", got)
	}
	for name, tt := range map[string]struct {
		change func([]byte)
		want   string
	}{
		"off":    {func(c []byte) { c[0x146] = 0 }, "off"},
		"absent": {func(c []byte) { c[0x140] = 0xe }, "absent"},
		"loop":   {func(c []byte) { binary.LittleEndian.PutUint32(c[0x100:], 0x1|0x100<<20) }, "absent"},
		"ends":   {func(c []byte) { binary.LittleEndian.PutUint32(c[0x100:], 0xffffffff) }, "absent"},
		"beyond": {func(c []byte) { binary.LittleEndian.PutUint32(c[0x100:], 0x1|0xffc<<20) }, "absent"},
	} {
		if got := acs(space(tt.change)); got.State != tt.want {
			t.Errorf("%s: %+v, want %s", name, got, tt.want)
		}
	}
	if got := acs(make([]byte, 256)); got.State != "cannot tell" || got.Why == "" {
		t.Errorf("256 bytes: %+v", got)
	}
	if got := pcieCapability(space(func(c []byte) { c[0x61], c[0x60] = 0x60, 5 })); got != 0 {
		t.Errorf("a loop gives %#x", got)
	}
}

func FuzzConfigSpace(f *testing.F) {
	c := make([]byte, 300)
	c[0x34], c[0x40] = 0x40, 0x10
	binary.LittleEndian.PutUint32(c[0x100:], 0xd|1<<16)
	f.Add(c)
	f.Fuzz(func(t *testing.T, c []byte) {
		if len(c) <= 64 {
			return
		}
		if at := pcieCapability(c); at != 0 && c[at] != 0x10 {
			t.Errorf("capability at %#x is %#x", at, c[at])
		}
		if got := acs(c); got.State == "on" != (len(got.Enabled) > 0) || got.State == "" {
			t.Errorf("%+v", got)
		}
	})
}
