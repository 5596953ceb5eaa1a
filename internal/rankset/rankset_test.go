package rankset

import (
	"slices"
	"testing"
)

func TestFold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   []int
		want string
	}{
		{nil, ""}, {[]int{3}, "3"}, {[]int{1, 0}, "0-1"}, {[]int{7, 0, 2, 1, 4, 6, 2}, "0-2, 4, 6-7"}, {[]int{0, 2, 4}, "0, 2, 4"},
	} {
		before := slices.Clone(c.in)
		got := Fold(c.in, ", ")
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.in, got, c.want)
		}
		if !slices.Equal(before, c.in) {
			t.Errorf("%v was changed to %v", before, c.in)
		}
		sorted := slices.Compact(slices.Sorted(slices.Values(c.in)))
		if back := Unfold(got); !slices.Equal(back, sorted) {
			t.Errorf("%q is read as %v", got, back)
		}
	}
	if got := Fold([]int{0, 1, 5}, ","); got != "0-1,5" {
		t.Error(got)
	}
}

func TestUnfoldOddInput(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"none": nil, "a-3, 2": {2}, "3-a,1": {1}, "5-3": nil, "-4": nil, " 1 , 2": {1, 2}} {
		if got := Unfold(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if n := len(Unfold("0-99999999999")); n != Most {
		t.Errorf("%d ranks of a range without end", n)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	if got := Parse("0-2,8"); !slices.Equal(got, []int{0, 1, 2, 8}) {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"", "x", "3-1", "1-", "-1", "0,x", "0-1048576"} {
		if got := Parse(bad); got != nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
