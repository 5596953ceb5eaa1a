package csrc

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MissingSymbolError says that the loaded library has no such function.
type MissingSymbolError struct {
	Func    string
	Library string // "NCCL", "CUDA runtime", "CUDA driver"
	Path    string // file that was loaded
	Version string // its version, "" when unknown
	Since   string // first version that has it, "" when unknown
}

func (e *MissingSymbolError) Error() string {
	s := fmt.Sprintf("%s: not in the loaded %s library", e.Func, e.Library)
	if e.Version != "" {
		s += " " + e.Version
	}
	if e.Path != "" {
		s += " (" + e.Path + ")"
	}
	if e.Since != "" {
		s += ", it came with " + e.Since
	}
	return s
}

// Try is one place where a library was looked for, and why it was not taken.
type Try struct{ Path, Reason string }

// LibraryError says that a library could not be loaded, what was tried, and what that means.
type LibraryError struct {
	Library string // "NVIDIA driver library", "CUDA runtime", "NCCL"
	Names   []string
	Flag    string // option that names the file, "" when there is none
	Tried   []Try
	Meaning string
}

func (e *LibraryError) Error() string {
	var s string
	if len(e.Tried) == 1 && strings.Contains(e.Tried[0].Path, "/") { // a search starts with names: this is the file that the user named
		path := e.Tried[0].Path
		s = fmt.Sprintf("no %s: cannot use %s: %s", e.Library, path, strings.TrimPrefix(e.Tried[0].Reason, path+": "))
	} else {
		where := "the loader's search path (LD_LIBRARY_PATH, ldconfig)"
		if len(e.Tried) > len(e.Names) {
			where += fmt.Sprintf(", CUDA_HOME, /usr/local/cuda* and Python environments (%d places in all)", len(e.Tried))
		}
		s = fmt.Sprintf("no %s: looked for %s in %s", e.Library, strings.Join(e.Names, ", "), where)
		if r := e.reason(); r != "" {
			s += ": " + r
		}
	}
	if e.Meaning != "" {
		s += "; " + e.Meaning
	}
	if e.Flag != "" {
		s += "; name the file with " + e.Flag
	}
	return s
}

// reason picks the attempt that tells most: a file that exists but does not load says more than one that is not there. The loader's text is
// the same for a file that is absent and for one that needs an absent file, but for the name it begins with.
func (e *LibraryError) reason() string {
	for _, t := range e.Tried {
		if !strings.HasPrefix(t.Reason, t.Path+": cannot open shared object file: No such file") {
			return t.Reason
		}
	}
	return ""
}

// Search says how to look for a library.
type Search struct {
	Library  string
	Names    []string // file names, preferred first
	Explicit string   // a file the user named: nothing else is tried
	Python   []string // folders below site-packages that Python wheels put it in, such as "nvidia/nccl/lib"
	CUDA     bool     // look below CUDA_HOME and /usr/local/cuda* as well
	Flag     string
	Meaning  string
}

// Load opens the first library that loads and that accept (nil: any) agrees to. accept runs after the table of lib was filled; its error is
// kept as the reason why that file was passed over. On success it returns the file's path as the loader knows it.
func Load(lib Lib, s Search, accept func(path string) error) (string, error) {
	return Find(s, func(h Handle, path string) (string, error) {
		if Fill(lib, h) == 0 {
			return "", fmt.Errorf("%s has none of the functions of %s", path, s.Library)
		}
		got := LoadedPath(lib)
		if real, err := filepath.EvalSymlinks(got); err == nil {
			got = real
		}
		if accept != nil {
			return got, accept(got)
		}
		return got, nil
	})
}

// Find opens the libraries that s names, in order, until take agrees to one: it gets the opened object and the path that opened it, and returns
// the file's path as the loader knows it. Its error is kept as the reason why that file was passed over. Errors: *LibraryError.
func Find(s Search, take func(h Handle, path string) (string, error)) (string, error) {
	tried := make([]Try, 0, 8)
	for _, path := range s.candidates() {
		h, text := Open(path)
		if h == 0 {
			tried = append(tried, Try{path, text})
			continue
		}
		got, err := take(h, path)
		if err == nil {
			return got, nil
		}
		tried = append(tried, Try{path, err.Error()})
	}
	return "", &LibraryError{Library: s.Library, Names: s.Names, Flag: s.Flag, Tried: tried, Meaning: s.Meaning}
}

// candidates lists what to open, in order. A bare name lets the loader search LD_LIBRARY_PATH and ldconfig's cache.
func (s Search) candidates() []string {
	if s.Explicit != "" {
		return []string{s.Explicit}
	}
	out := append([]string(nil), s.Names...)
	var dirs []string
	if s.CUDA {
		dirs = append(dirs, cudaDirs()...)
	}
	if len(s.Python) > 0 {
		dirs = append(dirs, pythonDirs(s.Python)...)
	}
	for _, name := range s.Names {
		for _, d := range dirs {
			p := filepath.Join(d, name)
			if _, err := os.Stat(p); err == nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// newestFirst sorts paths that differ in version numbers: python3.12 before python3.9, cuda-13.0 before cuda-9.2.
func newestFirst(paths []string) {
	slices.SortFunc(paths, func(a, b string) int {
		if c := slices.Compare(numbersIn(b), numbersIn(a)); c != 0 {
			return c
		}
		return strings.Compare(b, a)
	})
}

func numbersIn(s string) []int {
	var out []int
	for _, digits := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(digits)
		if err != nil {
			n = math.MaxInt // longer than any version
		}
		out = append(out, n)
	}
	return out
}

func cudaDirs() []string {
	var roots []string
	for _, v := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if d := os.Getenv(v); d != "" {
			roots = append(roots, d)
		}
	}
	found, _ := filepath.Glob("/usr/local/cuda*") // the pattern is constant: no error
	newestFirst(found)
	roots = append(roots, found...)
	var out []string
	for _, r := range roots {
		out = append(out, filepath.Join(r, "lib64"), filepath.Join(r, "lib"), filepath.Join(r, "targets/x86_64-linux/lib"), filepath.Join(r, "targets/sbsa-linux/lib"))
	}
	return out
}

// pythonDirs lists the given folders below every site-packages that is on the machine: the active environment's first.
func pythonDirs(sub []string) []string {
	var roots []string
	for _, v := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if d := os.Getenv(v); d != "" {
			roots = append(roots, d)
		}
	}
	if p, err := exec.LookPath("python3"); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(p)))
		if real, err := filepath.EvalSymlinks(p); err == nil {
			roots = append(roots, filepath.Dir(filepath.Dir(real)))
		}
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	roots = append(roots, "/usr/local", "/usr", "/opt/venv", "/opt/conda")
	var out []string
	seen := make(map[string]bool)
	for _, r := range roots {
		for _, pattern := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages", "lib/python3/dist-packages"} {
			found, err := filepath.Glob(filepath.Join(r, pattern))
			if err != nil {
				continue // the root holds pattern characters: it cannot be searched this way
			}
			newestFirst(found)
			for _, f := range found {
				for _, s := range sub {
					if d := filepath.Join(f, s); !seen[d] {
						seen[d] = true
						out = append(out, d)
					}
				}
			}
		}
	}
	return out
}

// IsLibrary tells whether err says that a library could not be loaded, and which.
func IsLibrary(err error) (*LibraryError, bool) {
	var e *LibraryError
	ok := errors.As(err, &e)
	return e, ok
}
