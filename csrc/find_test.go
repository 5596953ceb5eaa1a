package csrc

import (
	"slices"
	"testing"
)

func TestNewestFirst(t *testing.T) {
	for _, want := range [][]string{
		{"/usr/lib/python3.12/site-packages", "/usr/lib/python3.9/site-packages", "/usr/lib/python3/dist-packages"},
		{"/usr/local/cuda-13.0", "/usr/local/cuda-12.9", "/usr/local/cuda-9.2", "/usr/local/cuda"},
		{"a99999999999999999999", "a9"}, // no number of a machine's
		{},
	} {
		got := slices.Clone(want)
		slices.Reverse(got)
		newestFirst(got)
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
