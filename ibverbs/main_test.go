package ibverbs_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/ibverbs"
	"github.com/commprobe/commprobe/internal/bindtest"
)

// TestMain fails when a test has left a handle behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := ibverbs.Live(); len(left) > 0 && code == 0 {
		fmt.Fprintln(os.Stderr, "not closed:", left)
		code = 1
	}
	os.Exit(code)
}

// Short names for what every test here uses.
var (
	ok   = bindtest.OK
	is   = bindtest.Is
	says = bindtest.Says
	soon = bindtest.Soon
)

// fake runs the test in a process of its own, whose libibverbs is the stand-in built with flags.
func fake(t *testing.T, flags ...string) bool {
	t.Helper()
	return bindtest.Isolated(t, func(dir string) []string {
		path := filepath.Join(dir, "libibverbs.so.1.14.44.0")
		bindtest.PutVerbs(t, path, flags...)
		return []string{ibverbs.LibraryEnv + "=" + path}
	})
}

// device opens the stand-in's first device.
func device(t *testing.T) *ibverbs.Context {
	t.Helper()
	list, err := ibverbs.Devices()
	ok(t, err)
	if len(list) == 0 {
		t.Fatal("no device")
	}
	c, err := list[0].Open()
	ok(t, err)
	t.Cleanup(func() { ok(t, c.Close()) })
	return c
}

// The library is opened at run time only: a program that uses this package starts on a machine without it.
func TestNothingIsLinked(t *testing.T) {
	exe, err := os.Executable()
	ok(t, err)
	f, err := elf.Open(exe)
	ok(t, err)
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	ok(t, err)
	libs, err := f.ImportedLibraries()
	ok(t, err)
	if !slices.ContainsFunc(symbols, func(s elf.ImportedSymbol) bool { return s.Name == "dlsym" }) {
		t.Error("the list of symbols lacks dlsym, which is there: the look is wrong")
	}
	for _, s := range symbols {
		if strings.Contains(s.Name, "ibv_") {
			t.Error("undefined at link time:", s.Name)
		}
	}
	for _, l := range libs {
		if strings.Contains(l, "ibverbs") {
			t.Error("linked:", l)
		}
	}
}

// rdmaResource is the output of iproute2's rdma.
func rdmaResource() (string, error) {
	path, err := exec.LookPath("rdma")
	if err != nil {
		path = "/sbin/rdma" // not in everyone's PATH
	}
	b, err := exec.Command(path, "resource", "show").Output()
	return string(b), err
}
