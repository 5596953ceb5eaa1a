package nvml

import (
	"regexp"
	"slices"
	"testing"
)

func TestNormalPCI(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"00000000:0F:00.0": "0000:0f:00.0", "00000009:01:00.0": "0009:01:00.0", "0000:0f:00.0": "0000:0f:00.0", "0F:00.0": "0000:0f:00.0", "00010000:01:00.0": "10000:01:00.0",
		"FFFFFFFF:FFFF:FF.F": "", "fffffff:ffff:ff": "", "": "", "GPU-1": "", "0000:00:20.0": "", "0000:00:00.8": "", "x:00:00.0": "",
	} {
		if got := NormalPCI(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzNormalPCI(f *testing.F) {
	f.Add("00000000:0F:00.0")
	f.Add("::.")
	f.Add("f:1f.7")
	form := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	f.Fuzz(func(t *testing.T, s string) {
		id := NormalPCI(s)
		if id != "" && (!form.MatchString(id) || NormalPCI(id) != id) {
			t.Errorf("%q: %q, again %q", s, id, NormalPCI(id))
		}
	})
}

func TestCPUList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words []uint
		want  string
	}{
		{nil, ""}, {[]uint{0}, ""}, {[]uint{1}, "0"}, {[]uint{0xff}, "0-7"}, {[]uint{0x8000000000000001, 3}, "0,63-65"}, {[]uint{^uint(0)}, "0-63"}, {[]uint{0, 5}, "64,66"},
	} {
		if got := cpuList(c.words); got != c.want {
			t.Errorf("%x: %q, want %q", c.words, got, c.want)
		}
	}
}

func TestMasks(t *testing.T) {
	t.Parallel()
	if got := ClockReasons(0x8 | 0x80 | 0x1000); !slices.Equal(got, []string{"hardware slowdown", "power brake", "unknown (0x1000)"}) {
		t.Errorf("%q", got)
	}
	if got := ClockReasons(0); got != nil {
		t.Errorf("%q", got)
	}
	for mask, want := range map[uint32][]string{
		0: nil, 2 | 2<<2 | 2<<4 | 2<<6 | 1<<8: nil, 1: {"bandwidth is degraded"}, 1<<4 | 5<<8: {"a route is unhealthy", "configuration: too few NVLinks"}, 0xf << 8: nil,
	} {
		if got := FabricTroubles(mask); !slices.Equal(got, want) {
			t.Errorf("%#x: %q, want %q", mask, got, want)
		}
	}
}

func TestLinkVersion(t *testing.T) {
	t.Parallel()
	for code, want := range map[uint32]string{0: "code 0", 1: "1.0", 6: "4.0", 8: "6.0", 99: "code 99"} {
		if got := linkVersion(code); got != want {
			t.Errorf("%d: %q, want %q", code, got, want)
		}
	}
}
