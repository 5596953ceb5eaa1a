package csrc

import (
	"errors"
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

func TestFindTakesTheFirstThatIsAgreedTo(t *testing.T) {
	s := Search{Library: "something", Names: []string{"libnowhere.so.9", "libm.so.6", "libc.so.6"}, Flag: "--flag"}
	var asked []string
	got, err := Find(s, func(h Handle, path string) (string, error) {
		asked = append(asked, path)
		if h == 0 || path != "libc.so.6" {
			return "", errors.New("not this one")
		}
		return "/its/path", nil
	})
	if err != nil || got != "/its/path" || !slices.Equal(asked, s.Names[1:]) {
		t.Errorf("%q, %v, asked for %q", got, err, asked)
	}
	_, err = Find(s, func(Handle, string) (string, error) { return "", errors.New("not this one") })
	e, ok := IsLibrary(err)
	if !ok || len(e.Tried) != 3 || e.Tried[0].Path != "libnowhere.so.9" || e.Tried[2].Reason != "not this one" || e.Library != "something" || e.Flag != "--flag" {
		t.Errorf("%#v", err)
	}
}
