package topo

import (
	"math"
	"strconv"
	"strings"
)

// parseSpeed reads the spellings of a PCIe speed that are met: "16.0 GT/s PCIe", "16 GT/s", "32 GT/s PCIe/s", "8". Empty and "Unknown" are nil.
func parseSpeed(s string) *float64 {
	word, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	v, err := strconv.ParseFloat(word, 64)
	if err != nil || !(v > 0 && v < 1000) {
		return nil
	}
	return &v
}

// parseWidth reads a number of lanes. 0 is what /sys says for a virtual function, 255 for a link that is not there: both are nil.
func parseWidth(s string) *int {
	v, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil || v <= 0 || v > 64 {
		return nil
	}
	return &v
}

// formatSpeed writes a speed as the kernel does since 5.7.
func formatSpeed(gts float64) string { return strconv.FormatFloat(gts, 'f', 1, 64) + " GT/s PCIe" }

// pcieGen is the generation of a speed: 1 for 2.5 GT/s up to 7 for 128; nil: none of them.
func pcieGen(gts *float64) *int {
	if gts == nil {
		return nil
	}
	gen, ok := map[float64]int{2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6, 128: 7}[*gts]
	if !ok {
		return nil
	}
	return &gen
}

// genSpeed is the speed of a generation in GT/s.
func genSpeed(gen int) *float64 {
	if gen < 1 || gen > 7 {
		return nil
	}
	v := []float64{2.5, 5, 8, 16, 32, 64, 128}[gen-1]
	return &v
}

// pcieGBs is the line rate one way in GB/s (1e9 bytes) after the line code: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, flits with 242 of 256 bytes of payload
// and header from 64 GT/s on (PCI Express Base Specification 6.0). Packet headers are not subtracted; 80 to 90 % of it is reached in practice.
func pcieGBs(gts *float64, width *int) *float64 {
	if gts == nil || width == nil {
		return nil
	}
	code := 128.0 / 130
	switch {
	case *gts <= 5:
		code = 0.8
	case *gts >= 64:
		code = 242.0 / 256
	}
	v := round(*gts*float64(*width)*code/8, 2)
	return &v
}

// GBs is the bandwidth of the link one way as it runs now; nil: unknown.
func (l PCILink) GBs() *float64 { return pcieGBs(l.Speed, l.Width) }

// MaxGBs is the bandwidth of the link one way at the best speed and width of both ends; nil: unknown.
func (l PCILink) MaxGBs() *float64 { return pcieGBs(l.MaxSpeed, l.MaxWidth) }

// String is the link in short: "gen5 x16", "gen1 x16 (of gen5 x16)", "unknown".
func (l PCILink) String() string {
	now, best := linkText(l.Speed, l.Width), linkText(l.MaxSpeed, l.MaxWidth)
	switch {
	case now == "" && best == "":
		return "unknown"
	case now == "" || now == best:
		return best
	case best == "":
		return now
	}
	return now + " (of " + best + ")"
}

func linkText(gts *float64, width *int) string {
	var parts []string
	if gen := pcieGen(gts); gen != nil {
		parts = append(parts, "gen"+strconv.Itoa(*gen))
	} else if gts != nil {
		parts = append(parts, strconv.FormatFloat(*gts, 'g', -1, 64)+" GT/s")
	}
	if width != nil {
		parts = append(parts, "x"+strconv.Itoa(*width))
	}
	return strings.Join(parts, " ")
}

// lower is the smaller of two values; one that is unknown does not count.
func lower[T int | float64](a, b *T) *T {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

// nvlinkGBs is the nominal rate of one NVLink one way by compute capability (NVIDIA's data sheets: P100 4 x 20, V100 6 x 25, A100 12 x 25, H100 18 x 25,
// B200 18 x 50 GB/s each way; GA102 cards with a bridge 4 x 14.0625). nil: unknown.
func nvlinkGBs(sm *int) *float64 {
	if sm == nil {
		return nil
	}
	rates := map[int]float64{60: 20, 70: 25, 75: 25, 80: 25, 86: 14.0625, 90: 25, 100: 50, 103: 50}
	v, ok := rates[*sm]
	if !ok {
		return nil
	}
	return &v
}
