package bench

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
	"github.com/commprobe/commprobe/nccl"
)

// reported is a run whose ranks have reported their devices.
func reported(engine string, min, max result.Bytes, reports ...deviceReport) *oneRun {
	p := goodPlan()
	p.Engine, p.World, p.MinBytes, p.MaxBytes = engine, len(reports), min, max
	for r := range reports {
		reports[r].Rank.Rank, reports[r].Rank.Host = r, reports[r].HostKey
		if reports[r].NCCL == 0 {
			reports[r].NCCL, reports[r].Compute = 22809, 90
		}
	}
	return &oneRun{s: &Sweep{Plan: p, Runs: 1}, out: &result.Run{}, number: 1, plan: p, reports: reports}
}

func TestLimitMemory(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	at := func(host string, free int64) deviceReport { return deviceReport{HostKey: host, Free: free} }
	for _, c := range []struct {
		name      string
		run       *oneRun
		want      result.Bytes // -e afterwards
		note, err []string
	}{
		{"enough", reported("native", 8, 16*gib, at("a", 80*gib), at("a", 80*gib)), 16 * gib, nil, nil},
		{"exactly enough", reported("native", 8, 39*gib, at("a", 80*gib)), 39 * gib, nil, nil},
		{"one GPU has less", reported("native", 8, 16*gib, at("a", 80*gib), at("b", 10*gib+5000)), 4 * gib, // (10 GiB + 5000 − 2 GiB) / 2, down to 4 KiB
			[]string{"-e lowered from 17179869184 to 4294967296", "rank 1", "10737423240 bytes free − 2147483648 reserved", "÷ 2 buffers"}, nil},
		{"host memory is shared by its ranks", reported("host", 8, gib, at("a", 1000*mib), at("a", 1000*mib), at("a", 1000*mib), at("a", 1000*mib)), 100 * mib,
			[]string{"to 104857600 bytes", "1048576000 bytes free ÷ 4 ranks × 0.8"}, nil},
		{"two hosts", reported("host", 8, gib, at("a", 1000*mib), at("b", 250*mib)), 100 * mib, []string{"rank 1"}, nil},
		{"not even -b", reported("native", 8, gib, at("a", 2*gib)), gib, nil, []string{"rank 0", "not enough memory", "room for 0 bytes"}},
		{"less than the reserve", reported("native", 8, gib, at("a", gib)), gib, nil, []string{"room for 0 bytes"}},
		{"-b above the limit", reported("native", 2*gib, 4*gib, at("a", 4*gib)), 4 * gib, nil, []string{"1073741824 bytes a buffer"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			note, err := c.run.limitMemory()
			if (err != nil) != (c.err != nil) || (note != "") != (c.note != nil) {
				t.Fatalf("note %q, error %v", note, err)
			}
			var f *Failure
			if err != nil && (!errors.As(err, &f) || f.Kind != FailUsage) {
				t.Errorf("error %#v is not one of usage", err)
			}
			if c.run.plan.MaxBytes != c.want {
				t.Errorf("-e is %d, want %d", c.run.plan.MaxBytes, c.want)
			}
			for _, s := range c.note {
				if !strings.Contains(note, s) {
					t.Errorf("no %q in %q", s, note)
				}
			}
			for _, s := range c.err {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("no %q in %q", s, err)
				}
			}
		})
	}
}

func TestFinalPlan(t *testing.T) {
	lib := result.Library{Name: "nccl", Path: "/l", Version: "2.28.9"}
	o := reported("native", 8, 64, deviceReport{HostKey: "a", Free: 80 << 30, Drivers: 2, Libraries: []result.Library{lib}},
		deviceReport{HostKey: "a", Free: 80 << 30, Libraries: []result.Library{lib}}, deviceReport{HostKey: "b", Free: 80 << 30, Drivers: 1, NCCL: 22707, Compute: 80})
	for r := range o.reports {
		o.reports[r].Rank.UUID = digits(int64(r))
	}
	o.plan.Types, o.job = []string{"float", "f8e4m3"}, "j"
	msg, err := o.finalPlan()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"a": 2, "b": 1}, msg.Drivers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{"a": 0, "b": 2}, msg.First); diff != "" {
		t.Error(diff)
	}
	if msg.Job != "j" || !slices.Equal(msg.Plan.Types, []string{"float"}) || len(o.out.Skipped) != 1 || !strings.Contains(o.out.Skipped[0].Why, "8.0") {
		t.Errorf("job %q, types %v, skipped %+v", msg.Job, msg.Plan.Types, o.out.Skipped)
	}
	if len(o.out.Ranks) != 3 || len(o.out.Environment.Hosts) != 2 || len(o.out.Environment.Libraries) != 1 {
		t.Errorf("%d ranks, %d hosts, libraries %v", len(o.out.Ranks), len(o.out.Environment.Hosts), o.out.Environment.Libraries)
	}
	if len(o.out.Notes) != 1 || !strings.Contains(o.out.Notes[0].Text, "2.28.9 on ranks 0-1;") || !strings.Contains(o.out.Notes[0].Text, "2.27.7 on ranks 2;") {
		t.Errorf("notes %+v", o.out.Notes)
	}
	if p := o.out.Config.Parity; !p.NCCLMemAlloc || !p.NVLinkCentricSched {
		t.Errorf("parity %+v", p)
	}

	t.Run("no type is left", func(t *testing.T) {
		o := reported("native", 8, 64, deviceReport{HostKey: "a", Free: 80 << 30, NCCL: 22809, Compute: 80})
		o.plan.Types = []string{"f8e5m2"}
		var f *Failure
		if _, err := o.finalPlan(); !errors.As(err, &f) || f.Kind != FailUsage || !strings.Contains(f.Text, "type f8e5m2") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("one GPU for two ranks", func(t *testing.T) {
		o := reported("native", 8, 64, deviceReport{HostKey: "a", Free: 80 << 30}, deviceReport{HostKey: "a", Free: 80 << 30})
		var f *Failure
		if _, err := o.finalPlan(); !errors.As(err, &f) || f.Kind != FailUsage || f.Rank != 1 || !strings.Contains(f.Text, "same GPU as rank 0") {
			t.Errorf("error %v", err)
		}
		o.reports[1].HostKey = "b" // the same bus id on another host
		if _, err := o.finalPlan(); err != nil {
			t.Error(err)
		}
	})
}

func TestShare(t *testing.T) {
	eight := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		index, parts int
		want         []int32
	}{
		{0, 1, eight},
		{0, 2, []int32{0, 2, 4, 6}},
		{1, 2, []int32{1, 3, 5, 7}},
		{2, 3, []int32{2, 5}},
		{3, 4, []int32{3, 7}},
		{4, 5, eight}, // fewer than two each: all of them
	} {
		if got := share(eight, c.index, c.parts); !slices.Equal(got, c.want) {
			t.Errorf("%d of %d: %v, want %v", c.index, c.parts, got, c.want)
		}
	}
	if got := share(nil, 0, 2); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}

func TestAllowedList(t *testing.T) {
	list := cpuList(allowedCPUs())
	if len(list) != runtime.NumCPU() {
		t.Errorf("%d processors in %q, the runtime says %d", len(list), allowedCPUs(), runtime.NumCPU())
	}
	if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != len(list) {
		t.Errorf("%v", list)
	}
}

func TestNearCPUs(t *testing.T) {
	all := cpuList(allowedCPUs())
	device := "sys/bus/pci/devices/0000:0f:00.0/local_cpulist"
	first := strconv.Itoa(int(all[0]))
	for _, c := range []struct {
		name, content string
		want          []int32
	}{
		{"one of ours", first + ",100000-100003\n", all[:1]},
		{"none of ours", "100000-100003\n", all},
		{"no list", "nonsense\n", all},
		{"empty", "\n", all},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := nearCPUs(tree(t, map[string]string{device: c.content}), "0000:0f:00.0"); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
	if got := nearCPUs(t.TempDir(), "0000:0f:00.0"); !slices.Equal(got, all) {
		t.Errorf("without the device: %v, want %v", got, all)
	}
}

func TestHostKey(t *testing.T) {
	a := hostKey("a")
	if a != hostKey("a") || a == hostKey("b") || !strings.HasPrefix(a, "a/") || len(a) < 20 {
		t.Errorf("%q and %q", a, hostKey("b"))
	}
}

// tree writes files below a new folder that stands for a machine's root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestMeminfo(t *testing.T) {
	root := tree(t, map[string]string{"proc/meminfo": "MemTotal:       131842396 kB\nMemFree:            1024 kB\nHugePages_Total:       7\nBad: x kB\n"})
	for key, want := range map[string]int64{"MemTotal": 131842396 << 10, "MemFree": 1 << 20, "Mem": 0, "MemAvailable": 0, "Bad": 0} {
		if got := meminfo(root, key); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
	if got := meminfo(t.TempDir(), "MemTotal"); got != 0 {
		t.Errorf("without the file: %d", got)
	}
}

func TestHostFacts(t *testing.T) {
	cpu := func(model, flags string) string {
		return "processor\t: 0\nmodel name\t: " + model + "\nflags\t\t: fpu " + flags + " lm\n\n"
	}
	root := tree(t, map[string]string{
		"proc/meminfo":                        "MemTotal: 2048 kB\n",
		"proc/sys/kernel/osrelease":           "6.1.0-42-amd64\n",
		"proc/cpuinfo":                        cpu("Model A", "hypervisor") + cpu("Model B", "none"),
		"sys/devices/system/node/node0/x":     "",
		"sys/devices/system/node/node1/x":     "",
		"sys/devices/system/node/possible":    "",
		"proc/driver/nvidia/version":          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: x\n",
		"proc/sys/kernel/random/boot_id":      "x\n",
		"sys/devices/system/node/node10/meme": "",
	})
	h := HostFacts(root)
	if h.CPUModel != "Model A" || !h.Hypervisor || h.Kernel != "6.1.0-42-amd64" || h.NUMANodes != 3 || h.MemTotal != 2<<20 || h.Driver != "580.159.04" {
		t.Errorf("%+v", h)
	}
	if name, _ := os.Hostname(); h.Name != name || h.CPUs != runtime.NumCPU() {
		t.Errorf("%+v", h)
	}
	if h := HostFacts(t.TempDir()); h.CPUModel != "" || h.Kernel != "" || h.MemTotal != 0 || h.Driver != "" || h.NUMANodes != 0 || h.Hypervisor {
		t.Errorf("of an empty machine: %+v", h)
	}
}

func TestOnlyNCCLEnvironment(t *testing.T) {
	for _, k := range []string{"NCCL_DEBUG", "NCCLX", "XNCCL_DEBUG", "SECRET"} {
		t.Setenv(k, "value")
	}
	env := ncclEnv()
	if env["NCCL_DEBUG"] != "value" {
		t.Errorf("%v", env)
	}
	for k := range env {
		if !strings.HasPrefix(k, "NCCL_") {
			t.Errorf("%s is recorded", k)
		}
	}
}

// The values are those that the formats' definitions name: IEEE 754, and the OCP 8-bit formats (E4M3 has no infinity).
func TestFormatBits(t *testing.T) {
	for _, c := range []struct {
		t    nccl.DataType
		bits uint64
		want string
	}{
		{nccl.Int8, 0x7f, "127"}, {nccl.Int8, 0x80, "-128"}, {nccl.Int8, 0xff, "-1"},
		{nccl.Uint8, 0xff, "255"},
		{nccl.Int32, 0x80000000, "-2147483648"}, {nccl.Int32, 0xffffffff, "-1"},
		{nccl.Uint32, 0xffffffff, "4294967295"},
		{nccl.Int64, 0x8000000000000000, "-9223372036854775808"}, {nccl.Int64, 1<<64 - 1, "-1"},
		{nccl.Uint64, 1<<64 - 1, "18446744073709551615"},
		{nccl.Float32, 0x3f800000, "1"}, {nccl.Float32, 0x3dcccccd, "0.1"}, {nccl.Float32, 0x7f7fffff, "3.4028235e+38"}, {nccl.Float32, 1, "1e-45"},
		{nccl.Float32, 0x80000000, "-0"}, {nccl.Float32, 0x7f800000, "+Inf"}, {nccl.Float32, 0xff800000, "-Inf"}, {nccl.Float32, 0x7fc00000, "NaN"},
		{nccl.Float64, 0x3fb999999999999a, "0.1"}, {nccl.Float64, 0x7ff0000000000000, "+Inf"}, {nccl.Float64, 0x7ff8000000000000, "NaN"}, {nccl.Float64, 1, "5e-324"},
		{nccl.Bfloat16, 0x3f80, "1"}, {nccl.Bfloat16, 0xc049, "-3.140625"}, {nccl.Bfloat16, 0x7f80, "+Inf"}, {nccl.Bfloat16, 0xff80, "-Inf"}, {nccl.Bfloat16, 0x7fc0, "NaN"},
		{nccl.Bfloat16, 0x8000, "-0"}, {nccl.Bfloat16, 0x0080, "1.1754944e-38"},
		{nccl.Float16, 0x3c00, "1"}, {nccl.Float16, 0xc000, "-2"}, {nccl.Float16, 0x3555, "0.33325195"}, {nccl.Float16, 0x7bff, "65504"}, {nccl.Float16, 0x0400, "6.1035156e-05"},
		{nccl.Float16, 0x0001, "5.9604645e-08"}, {nccl.Float16, 0x8000, "-0"}, {nccl.Float16, 0x7c00, "+Inf"}, {nccl.Float16, 0xfc00, "-Inf"}, {nccl.Float16, 0x7e00, "NaN"}, {nccl.Float16, 0x7c01, "NaN"},
		{nccl.Float8E4M3, 0x38, "1"}, {nccl.Float8E4M3, 0xb8, "-1"}, {nccl.Float8E4M3, 0x7e, "448"}, {nccl.Float8E4M3, 0xfe, "-448"}, {nccl.Float8E4M3, 0x78, "256"},
		{nccl.Float8E4M3, 0x08, "0.015625"}, {nccl.Float8E4M3, 0x01, "0.001953125"}, {nccl.Float8E4M3, 0x7f, "NaN"}, {nccl.Float8E4M3, 0xff, "NaN"}, {nccl.Float8E4M3, 0x80, "-0"},
		{nccl.Float8E5M2, 0x3c, "1"}, {nccl.Float8E5M2, 0x7b, "57344"}, {nccl.Float8E5M2, 0x04, "6.1035156e-05"}, {nccl.Float8E5M2, 0x01, "1.5258789e-05"},
		{nccl.Float8E5M2, 0x7c, "+Inf"}, {nccl.Float8E5M2, 0xfc, "-Inf"}, {nccl.Float8E5M2, 0x7d, "NaN"}, {nccl.Float8E5M2, 0x7f, "NaN"}, {nccl.Float8E5M2, 0x80, "-0"},
		{nccl.DataType(99), 0xab, "0xab"},
	} {
		if got := formatBits(c.t, c.bits); got != c.want {
			t.Errorf("%s %#x: %s, want %s", c.t, c.bits, got, c.want)
		}
	}
}

func TestSlots(t *testing.T) {
	for _, c := range []struct {
		bytes, max result.Bytes
		want       uint64
	}{{8, 64, 8}, {8, 71, 8}, {64, 64, 1}, {48, 64, 1}, {0, 64, 1}} {
		task := &task{plan: &Plan{MaxBytes: c.max}}
		if got := task.slots(c.bytes); got != c.want {
			t.Errorf("%d bytes of %d: %d, want %d", c.bytes, c.max, got, c.want)
		}
	}
}
