package csrc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/google/go-cmp/cmp"
)

func libraryError(t *testing.T, err error) *csrc.LibraryError {
	t.Helper()
	e, ok := csrc.IsLibrary(fmt.Errorf("rank 0: %w", err))
	if !ok {
		t.Fatalf("got %v, want a *csrc.LibraryError", err)
	}
	return e
}

func wantText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not say %q", text, p)
		}
	}
}

const (
	oldName = "libcpfake.so.1"
	newName = "libcpfake.so.2"
)

// everywhere looks in all places for a library that no machine has.
func everywhere() csrc.Search {
	return csrc.Search{Library: "fake", Names: []string{newName, oldName}, Python: []string{"nvidia/fake/lib", "nvidia/other/lib"}, CUDA: true, Flag: "--fake-lib", Meaning: "nothing works"}
}

// TestLoadUnusable: a file that is not a library which can be used is an error that names it and says why.
func TestLoadUnusable(t *testing.T) {
	for _, c := range []struct {
		name   string
		setup  func(t *testing.T, path string)
		reason string
	}{
		{"text", func(t *testing.T, path string) { bindtest.Write(t, path, "not a library\n") }, "file too short"},
		{"long text", func(t *testing.T, path string) { bindtest.Write(t, path, strings.Repeat("not a library\n", 1000)) }, "invalid ELF header"},
		{"linker script", func(t *testing.T, path string) {
			bindtest.Write(t, path, "/* GNU ld script */"+strings.Repeat("\n", 100))
		}, "invalid ELF header"},
		{"folder", func(t *testing.T, path string) { bindtest.Write(t, filepath.Join(path, "x"), "") }, "Is a directory"},
		{"missing dependency", dependent, "libcpneeded.so.7: cannot open shared object file"},
		{"none of the functions", func(t *testing.T, path string) { bindtest.Put(t, path, "nothing") }, "has none of the functions of fake"},
		{"absent", func(*testing.T, string) {}, "No such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				c.setup(t, filepath.Join(dir, newName))
				return nil
			}) {
				return
			}
			path := bindtest.InDir(newName)
			s := everywhere()
			s.Explicit = path
			got, err := csrc.Load(csrc.NCCL, s, nil)
			e := libraryError(t, err)
			if got != "" || len(e.Tried) != 1 || e.Tried[0].Path != path || !strings.Contains(e.Tried[0].Reason, c.reason) {
				t.Errorf("Load gives %q and %+v", got, e)
			}
			wantText(t, e.Error(), "no fake", path, c.reason, "nothing works", "--fake-lib")
			if csrc.LoadedPath(csrc.NCCL) != "" || csrc.Proc("ncclSend") != 0 {
				t.Error("the table is not empty")
			}
		})
	}
}

// dependent makes a library that needs another one, which is then removed.
func dependent(t *testing.T, path string) {
	t.Helper()
	needed := filepath.Join(t.TempDir(), "libcpneeded.so.7")
	bindtest.Put(t, needed, "nothing", "-Wl,-soname,libcpneeded.so.7")
	bindtest.Put(t, path, "nccl", "-Wl,--no-as-needed", needed)
	if err := os.Remove(needed); err != nil {
		t.Fatal(err)
	}
}

// TestLoadReason: in a search, what is said is why a file that exists was not taken, also when what it lacks is another file.
func TestLoadReason(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(t *testing.T, dir string)
		want  []string
	}{
		{"nowhere", func(*testing.T, string) {}, []string{newName + ", " + oldName, "LD_LIBRARY_PATH", "nothing works", "--fake-lib"}},
		{"broken", func(t *testing.T, dir string) {
			bindtest.Write(t, filepath.Join(dir, oldName), strings.Repeat("no\n", 1000))
		}, []string{oldName, "invalid ELF header"}},
		{"missing dependency", func(t *testing.T, dir string) { dependent(t, filepath.Join(dir, oldName)) }, []string{"libcpneeded.so.7: cannot open shared object file"}},
		{"elsewhere", func(t *testing.T, dir string) {
			bindtest.Write(t, filepath.Join(dir, "cuda/lib64", oldName), strings.Repeat("no\n", 1000))
		}, []string{"3 places in all", "CUDA_HOME", "/cuda/lib64/" + oldName}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				c.setup(t, dir)
				return []string{"LD_LIBRARY_PATH=" + dir, "CUDA_HOME=" + filepath.Join(dir, "cuda")}
			}) {
				return
			}
			_, err := csrc.Load(csrc.NCCL, everywhere(), nil)
			wantText(t, libraryError(t, err).Error(), append(c.want, "no fake: looked for "+newName)...)
		})
	}
}

// places are where a library is looked for, the preferred first, with the variable that leads there.
var places = []struct{ env, root, dir string }{
	{"LD_LIBRARY_PATH", "ld", ""},
	{"CUDA_HOME", "home", "lib64"},
	{"CUDA_HOME", "home", "lib"},
	{"CUDA_HOME", "home", "targets/x86_64-linux/lib"},
	{"CUDA_PATH", "path", "lib64"},
	{"VIRTUAL_ENV", "venv", "lib/python3.11/site-packages/nvidia/fake/lib"},
	{"VIRTUAL_ENV", "venv", "lib/python3.11/site-packages/nvidia/other/lib"},
	{"VIRTUAL_ENV", "venv", "lib64/python3.11/site-packages/nvidia/fake/lib"},
	{"CONDA_PREFIX", "conda", "lib/python3.12/site-packages/nvidia/fake/lib"},
	{"PATH", "venv2", "lib/python3.12/site-packages/nvidia/fake/lib"},
	{"", "real", "lib/python3.12/site-packages/nvidia/fake/lib"},
	{"", "real", "lib/python3/dist-packages/nvidia/fake/lib"},
	{"HOME", ".local", "lib/python3.9/site-packages/nvidia/fake/lib"},
}

// placesEnv points the variables at the roots below dir, in which there is a python3 that is a link to another one.
func placesEnv(t *testing.T, dir string) []string {
	t.Helper()
	env := []string{"HOME=" + dir, "PATH=" + filepath.Join(dir, "venv2/bin")}
	for _, p := range places {
		if p.env != "" && p.env != "HOME" && p.env != "PATH" {
			env = append(env, p.env+"="+filepath.Join(dir, p.root))
		}
	}
	bindtest.Write(t, filepath.Join(dir, "real/bin/python3"), "")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "venv2/bin"), 0o755), os.Symlink("../../real/bin/python3", filepath.Join(dir, "venv2/bin/python3"))); err != nil {
		t.Fatal(err)
	}
	return env
}

// TestLoadOrder puts the library into one place and all that come after it.
func TestLoadOrder(t *testing.T) {
	for i, p := range places {
		t.Run(fmt.Sprintf("%02d %s", i, p.root), func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				for _, q := range places[i:] {
					bindtest.Put(t, filepath.Join(dir, q.root, q.dir, newName), "nccl")
				}
				return placesEnv(t, dir)
			}) {
				return
			}
			got, err := csrc.Load(csrc.NCCL, everywhere(), nil)
			if want := bindtest.InDir(filepath.Join(p.root, p.dir, newName)); err != nil || got != want {
				t.Errorf("Load gives %q, %v, want %q", got, err, want)
			}
		})
	}
}

// TestLoadPrefers: the explicit file before all, whatever is wrong with it; a better name in a worse place before a worse name.
func TestLoadPrefers(t *testing.T) {
	for _, c := range []struct{ name, explicit, want string }{
		{"explicit", "ex/some.so", "ex/some.so"},
		{"explicit only", "ex/broken.so", ""},
		{"explicit absent", "ex/absent.so", ""},
		{"newer name", "", "venv/lib/python3.11/site-packages/nvidia/fake/lib/" + newName},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				bindtest.Put(t, filepath.Join(dir, "ex/some.so"), "nccl")
				bindtest.Write(t, filepath.Join(dir, "ex/broken.so"), strings.Repeat("no\n", 1000))
				bindtest.Put(t, filepath.Join(dir, "home/lib64", oldName), "nccl")
				bindtest.Put(t, filepath.Join(dir, "venv/lib/python3.11/site-packages/nvidia/fake/lib", newName), "nccl")
				return placesEnv(t, dir)
			}) {
				return
			}
			s := everywhere()
			if c.explicit != "" {
				s.Explicit = bindtest.InDir(c.explicit)
			}
			got, err := csrc.Load(csrc.NCCL, s, nil)
			if c.want == "" {
				if e := libraryError(t, err); len(e.Tried) != 1 || e.Tried[0].Path != s.Explicit {
					t.Errorf("tried %+v", e.Tried)
				}
				return
			}
			if err != nil || got != bindtest.InDir(c.want) {
				t.Errorf("Load gives %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestLoadAccept: a file that accept refuses is passed over, and the table is the next one's.
func TestLoadAccept(t *testing.T) {
	t.Parallel()
	if !bindtest.Isolated(t, func(dir string) []string {
		bindtest.Put(t, filepath.Join(dir, newName), "nccl", "-DFAKE_VERSION=23007")
		bindtest.Put(t, filepath.Join(dir, oldName), "nccl", bindtest.Lacking(t, "ncclSend")...)
		return []string{"LD_LIBRARY_PATH=" + dir}
	}) {
		return
	}
	var versions []int32
	refuse := func(path string) error {
		var v int32
		if code := csrc.NcclGetVersion(&v); code != 0 {
			t.Errorf("ncclGetVersion answers %d", code)
		}
		if versions = append(versions, v); v == 23007 {
			return fmt.Errorf("%s is too new", path)
		}
		return nil
	}
	got, err := csrc.Load(csrc.NCCL, everywhere(), refuse)
	if err != nil || got != bindtest.InDir(oldName) || csrc.LoadedPath(csrc.NCCL) != got || !slices.Equal(versions, []int32{23007, 22809}) {
		t.Errorf("Load gives %q, %v after versions %v", got, err, versions)
	}
	if csrc.Proc("ncclRecv") == 0 || csrc.Proc("ncclSend") != 0 {
		t.Error("the table has the refused library's functions")
	}
	_, err = csrc.Load(csrc.NCCL, everywhere(), func(string) error { return errors.New("never") })
	e := libraryError(t, err)
	wantText(t, e.Error(), "never")
	if len(e.Tried) != 2 {
		t.Errorf("tried %+v", e.Tried)
	}
}

// TestLoadTables: each table is filled from its library; what that lacks is null and answers Missing.
func TestLoadTables(t *testing.T) {
	for lib, c := range map[csrc.Lib]struct{ fake, lacks string }{
		csrc.CUDART: {"cudart", "cudaDeviceSynchronize"}, csrc.CUDRV: {"cuda", "cuInit"}, csrc.NCCL: {"nccl", "ncclGroupStart"},
	} {
		t.Run(c.fake, func(t *testing.T) {
			t.Parallel()
			if !bindtest.Isolated(t, func(dir string) []string {
				bindtest.Put(t, filepath.Join(dir, "whole.so"), c.fake)
				bindtest.Put(t, filepath.Join(dir, "part.so"), c.fake, bindtest.Lacking(t, c.lacks)...)
				return []string{"FAKE_FAIL=" + c.lacks + "=42"}
			}) {
				return
			}
			call := map[csrc.Lib]func() int{csrc.CUDART: csrc.CudaDeviceSynchronize, csrc.CUDRV: csrc.CuInit, csrc.NCCL: csrc.NcclGroupStart}[lib]
			whole := fillFrom(t, lib, "whole.so")
			if whole[c.lacks] == false || csrc.Proc(c.lacks) == 0 || call() != 42 {
				t.Errorf("%s answers %d", c.lacks, call())
			}
			// Refilling leaves nothing of the library before.
			part := fillFrom(t, lib, "part.so")
			if part[c.lacks] || csrc.Proc(c.lacks) != 0 || call() != csrc.Missing {
				t.Errorf("%s answers %d, want Missing", c.lacks, call())
			}
			whole[c.lacks] = false
			if d := cmp.Diff(whole, part); d != "" {
				t.Error(d)
			}
		})
	}
}

// fillFrom fills the table and returns its names; all that the fake has must be found.
func fillFrom(t *testing.T, lib csrc.Lib, name string) map[string]bool {
	t.Helper()
	h, text := csrc.Open(bindtest.InDir(name))
	if h == 0 {
		t.Fatal(text)
	}
	n := csrc.Fill(lib, h)
	got := csrc.Functions(lib)
	have := 0
	for _, present := range got {
		if present {
			have++
		}
	}
	// cudart's and NCCL's texts are constant strings, which the fakes have too.
	if n != have || n < len(got)-1 || len(got) < 10 {
		t.Errorf("%s: Fill answers %d, %d of %d present", name, n, have, len(got))
	}
	if p := csrc.LoadedPath(lib); p != bindtest.InDir(name) {
		t.Errorf("loaded from %q, want %s", p, name)
	}
	return got
}

func TestUnknownFunction(t *testing.T) {
	if got := csrc.Proc("ncclNoSuchThing"); got != 0 {
		t.Errorf("Proc gives %#x", got)
	}
}

func TestMissingSymbolText(t *testing.T) {
	for _, c := range []struct {
		e    csrc.MissingSymbolError
		want string
	}{
		{csrc.MissingSymbolError{Func: "f", Library: "NCCL"}, "f: not in the loaded NCCL library"},
		{csrc.MissingSymbolError{Func: "f", Library: "NCCL", Version: "2.18.3"}, "f: not in the loaded NCCL library 2.18.3"},
		{csrc.MissingSymbolError{Func: "f", Library: "NCCL", Version: "2.18.3", Path: "/x/l.so", Since: "2.28"}, "f: not in the loaded NCCL library 2.18.3 (/x/l.so), it came with 2.28"},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestIsLibrary(t *testing.T) {
	if e, ok := csrc.IsLibrary(errors.New("other")); ok || e != nil {
		t.Errorf("IsLibrary gives %v, %v for another error", e, ok)
	}
}
