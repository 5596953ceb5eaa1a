package report

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commprobe/commprobe/bench/result"
)

// chosen is a curve with a choice for each size.
func chosen() *result.Run {
	run := &result.Run{Config: result.Config{World: 2, Engine: "native", Placement: "process"}}
	for i, b := 0, result.Bytes(8); b <= 1<<30; i, b = i+1, b*2 {
		us := 7 + float64(b)/330e3
		h := &result.Half{TimeUS: result.Micros(us), AlgBW: result.GBps(float64(b) / us / 1e3), BusBW: result.GBps(float64(b) / us / 1e3)}
		row := result.Row{Collective: "all_reduce", Type: "float", Op: "sum", Root: -1, Bytes: b, OutOfPlace: h, InPlace: h}
		switch {
		case b < 64<<10:
			row.Choices = []result.Choice{{Algo: "Ring", Proto: "LL", Channels: 1}}
		case b < 256<<10:
			row.Choices = []result.Choice{{Algo: "Ring", Proto: "LL", ChannelHi: 3, Channels: 4}}
		case b < 2<<20:
			row.Choices = []result.Choice{{Algo: "Ring", Proto: "LL128", ChannelHi: 15, Channels: 16}}
		case b < 512<<20:
			row.Choices = []result.Choice{{Algo: "Ring", Proto: "Simple", ChannelHi: 23, Channels: 24}}
		default:
			row.Choices = []result.Choice{{Kind: "Symmetric", Kernel: "AllReduce_RSxLD_AGxST", Channels: 24}, {Algo: "Ring", Proto: "Simple", Channels: 24}}
		}
		run.Rows = append(run.Rows, row)
	}
	return run
}

func TestChoiceLines(t *testing.T) {
	want := `# NCCL's choices, from a pass of its own with the TUNING log:
#   8 B … 32 KiB: Ring LL, 1 channel
#   64 KiB … 128 KiB: Ring LL, 4 channels
#   256 KiB … 1 MiB: Ring LL128, 16 channels
#   2 MiB … 256 MiB: Ring Simple, 24 channels
#   512 MiB … 1 GiB: Symmetric AllReduce_RSxLD_AGxST, 24 channels or Ring Simple, 24 channels
`
	run := chosen()
	if d := cmp.Diff(want, choiceLines(run.Rows)); d != "" {
		t.Error(d)
	}
	for i := range run.Rows {
		run.Rows[i].Choices = nil
	}
	if got := choiceLines(run.Rows); got != "" {
		t.Errorf("nothing is known, and it says %q", got)
	}
	other := chosen()
	for i := range other.Rows {
		other.Rows[i].Type = "half"
	}
	if got := choiceLines(append(chosen().Rows, other.Rows...)); strings.Count(got, "all_reduce half sum: ") != 5 {
		t.Errorf("two curves:\n%s", got)
	}
}

// TestChoicesInPicture: the picture has a caption for each choice.
func TestChoicesInPicture(t *testing.T) {
	var b strings.Builder
	if err := Plot(&b, "svg", chosen(), Options{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Ring LL, 1 channel", "Ring LL, 4 channels", "Ring LL128, 16 channels", "Ring Simple, 24 channels"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if name := os.Getenv("COMMPROBE_LOOK"); name != "" {
		if err := WritePlot(name, chosen(), Options{Force: true}); err != nil {
			t.Error(err)
		}
	}
}
