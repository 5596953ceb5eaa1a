package hanglab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A supervisor that is killed leaves its folder in memory and its network namespaces. Each folder has a lock, which the system lets go with the process that
// holds it, however that ends; the next supervisor takes away what nobody holds.
const (
	ringsPrefix = "commprobe-hang-"
	lockName    = "lock"
	netsName    = "netns" // in the folder: names of the namespaces
	beingMade   = time.Minute
)

// claim is a folder that this process holds.
type claim struct {
	dir  string
	lock *os.File
}

// newClaim makes a folder below parent; "" is the system's for temporary files. Release it.
func newClaim(parent string) (*claim, error) {
	dir, err := os.MkdirTemp(parent, ringsPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := newLock(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &claim{dir, lock}, nil
}

// newLock makes a folder's lock. Its name appears when it is held already.
func newLock(dir string) (*os.File, error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(hold(f), os.Rename(name+".new", name)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hold takes a lock that is free.
func hold(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// release removes the folder.
func (c *claim) release() error {
	if c == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(c.dir), c.lock.Close())
}

// sweepLeftovers removes the folders below parent that nobody holds, with their namespaces. What it may not remove, or cannot, stays: it is somebody else's.
func sweepLeftovers(parent string) {
	if parent == "" {
		parent = os.TempDir()
	}
	dirs, _ := filepath.Glob(filepath.Join(parent, ringsPrefix+"*"))
	for _, dir := range dirs {
		lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			info, err := os.Lstat(dir)
			if err == nil && info.IsDir() && time.Since(info.ModTime()) > beingMade {
				_ = os.RemoveAll(dir)
			}
			continue
		}
		if err != nil {
			continue
		}
		if hold(lock) == nil {
			removeNets(dir)
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}

var netName = regexp.MustCompile(`^cp[0-9a-f]{6}[ab]$`)

// removeNets deletes the namespaces that a folder names. One that is gone is none.
func removeNets(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, netsName))
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(text)) {
		if netName.MatchString(name) {
			_ = ip("netns", "del", name)
		}
	}
}
