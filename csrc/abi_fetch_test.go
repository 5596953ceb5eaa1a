//go:build !race

// Not under the race detector: unpacking gigabytes of wheels takes minutes there, and nothing here is of interest to it. `make test` runs these
// tests apart.

package csrc_test

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// errUnavailable marks a package that this machine cannot get: no pip, no network, or no time.
var errUnavailable = errors.New("vendor package cannot be had")

// maxWheelFile bounds one unpacked file. The largest so far is libnccl.so.2 of 2.32 with 474 MB.
const maxWheelFile = 2 << 30

// abiPackage is one version of a vendor's package on PyPI and what the test needs of it.
type abiPackage struct {
	name    string   // on PyPI
	version string   // on PyPI
	code    int      // what the header and the library call themselves
	lib     string   // the shared object, below lib/
	keep    []string // paths in the package, from include/ or lib/ on; a trailing slash takes a whole folder
}

func ncclPackage(version string) abiPackage {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		panic(err) // the versions are constants of this test
	}
	return abiPackage{
		name: "nvidia-nccl-cu12", version: version, code: major*10000 + minor*100 + patch,
		lib: "libnccl.so.2", keep: []string{"include/nccl.h", "lib/libnccl.so.2"},
	}
}

func (p abiPackage) dir(cache string) string { return filepath.Join(cache, p.name+"-"+p.version) }

// abiCache is where packages stay between runs: outside the repository, because they are large and the vendor's.
func abiCache() (string, error) {
	dir := os.Getenv("COMMPROBE_ABI_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "commprobe", "abi")
	}
	// The compiler and the loader get these paths from another folder.
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, sweep(dir)
}

// sweep removes what killed runs left behind. A day is longer than any run that may still be at work.
func sweep(cache string) error {
	left, err := filepath.Glob(filepath.Join(cache, "tmp-*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if info, err := os.Stat(dir); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetchAll gets the packages, two at a time: a wheel is some 300 MB, and unpacking one leaves the network idle.
// It returns one error a package, and starts no further download once one was unavailable.
func fetchAll(t *testing.T, cache string, pkgs []abiPackage) []error {
	t.Helper()
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok {
		// Leave time for the checks, so that a slow network ends in a reason and not in a panic of the test binary.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-30*time.Second))
		defer cancel()
	}
	start := time.Now()
	errs := make([]error, len(pkgs))
	var mu sync.Mutex
	var total int64
	var unavailable error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i, p := range pkgs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			mu.Lock()
			err := unavailable
			mu.Unlock()
			var n int64
			if err == nil {
				n, err = fetchPackage(ctx, cache, p)
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
			errs[i] = err
			if errors.Is(err, errUnavailable) {
				unavailable = err
			}
		})
	}
	wg.Wait()
	if total > 0 {
		t.Logf("downloaded %d MB in %.1f s", total/1e6, time.Since(start).Seconds())
	}
	return errs
}

// fetchPackage makes sure that p is in the cache and returns the bytes it downloaded, 0 if it was there.
// A package is complete if its folder exists: the folder gets its name only when everything is in it.
func fetchPackage(ctx context.Context, cache string, p abiPackage) (int64, error) {
	final := p.dir(cache)
	if _, err := os.Stat(final); err == nil {
		return 0, nil
	}
	if testing.Short() {
		return 0, fmt.Errorf("%w: %s %s is not in the cache and -short downloads nothing", errUnavailable, p.name, p.version)
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	wheel, err := pipDownload(ctx, tmp, p)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(wheel)
	if err != nil {
		return 0, err
	}
	content := filepath.Join(tmp, "content")
	if err := unpackWheel(wheel, content, p.keep); err != nil {
		return info.Size(), fmt.Errorf("%s: %w", filepath.Base(wheel), err)
	}
	if err := os.Rename(content, final); err != nil {
		// Another test process may have been faster.
		if _, statErr := os.Stat(final); statErr != nil {
			return info.Size(), err
		}
	}
	return info.Size(), nil
}

// findPip returns the command line of a pip that runs. Debian's python3 has no pip module unless python3-pip is installed.
var findPip = sync.OnceValue(func() []string {
	for _, pip := range [][]string{{"python3", "-m", "pip"}, {"pip3"}, {"pip"}} {
		if exec.Command(pip[0], append(pip[1:len(pip):len(pip)], "--version")...).Run() == nil {
			return pip
		}
	}
	return nil
})

func pipDownload(ctx context.Context, dir string, p abiPackage) (string, error) {
	pip := findPip()
	if pip == nil {
		return "", fmt.Errorf("%w: no pip (python3 -m pip, pip3, pip)", errUnavailable)
	}
	// No cache of pip's own: it would keep a second copy of every wheel.
	args := append(pip[1:len(pip):len(pip)], "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
		"--disable-pip-version-check", "--quiet", "--retries", "2", "--timeout", "20", "-d", dir, p.name+"=="+p.version)
	cmd := exec.CommandContext(ctx, pip[0], args...)
	cmd.WaitDelay = 5 * time.Second
	// pip's own temporary files go where they are removed even if it is killed, and where there is room.
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%w: %s %s: %v: %s", errUnavailable, p.name, p.version, err, lastLine(out))
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("pip left %d wheels of %s %s, want 1", len(found), p.name, p.version)
	}
	return found[0], nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// unpackWheel writes the files of a wheel that keep names below dir, which must not exist. Each entry of keep must be found.
func unpackWheel(wheel, dir string, keep []string) error {
	r, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer r.Close()
	found := make([]bool, len(keep))
	for _, f := range r.File {
		rel := packagePath(f.Name)
		for i, k := range keep {
			if rel != k && (!strings.HasSuffix(k, "/") || !strings.HasPrefix(rel, k)) || strings.HasSuffix(rel, "/") {
				continue
			}
			if err := unpackFile(f, dir, rel); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			found[i] = true
		}
	}
	for i, ok := range found {
		if !ok {
			return fmt.Errorf("no %s in the wheel", keep[i])
		}
	}
	return nil
}

// packagePath cuts the package's own folders off, which differ between CUDA 12 (nvidia/nccl/) and 13 (nvidia/cu13/).
func packagePath(name string) string {
	for _, top := range []string{"include/", "lib/"} {
		if _, rest, ok := strings.Cut(name, "/"+top); ok {
			return top + rest
		}
	}
	return ""
}

func unpackFile(f *zip.File, dir, rel string) error {
	if !filepath.IsLocal(rel) || !f.Mode().IsRegular() {
		return errors.New("not a plain file inside the package")
	}
	if f.UncompressedSize64 > maxWheelFile {
		return fmt.Errorf("%d bytes, limit %d", f.UncompressedSize64, int64(maxWheelFile))
	}
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	path := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	// The reader fails on a wrong length or checksum.
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
