package hanglab

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestLeftovers: what a process holds stays, and what none holds goes, with its namespaces.
func TestLeftovers(t *testing.T) {
	parent := t.TempDir()
	live, err := newClaim(parent)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newClaim(parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead.dir, "ring_0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dead.lock.Close(); err != nil { // as when its process is killed
		t.Fatal(err)
	}
	young, old, other := filepath.Join(parent, ringsPrefix+"young"), filepath.Join(parent, ringsPrefix+"old"), filepath.Join(parent, "other")
	for _, dir := range []string{young, old, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-2 * beingMade)
	if err := errors.Join(os.Chtimes(old, then, then), os.Symlink(other, filepath.Join(parent, ringsPrefix+"link"))); err != nil {
		t.Fatal(err)
	}
	sweepLeftovers(parent)
	for path, want := range map[string]bool{live.dir: true, dead.dir: false, young: true, old: false, other: true} {
		if exists(path) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(path), !want, want)
		}
	}
	if err := live.release(); err != nil || exists(live.dir) {
		t.Errorf("release: %v", err)
	}
	if err := (*claim)(nil).release(); err != nil {
		t.Error(err)
	}
}

// TestLeftoverNamespaces: namespaces of a run that was killed are removed by the next; names that are not of this program are left alone.
func TestLeftoverNamespaces(t *testing.T) {
	parent := t.TempDir()
	c, err := newClaim(parent)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newTwoNets(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	const mine = "commprobe-test-keeps"
	if err := ip("netns", "add", mine); err != nil {
		t.Fatal(err)
	}
	defer ip("netns", "del", mine)
	f, err := os.OpenFile(filepath.Join(c.dir, netsName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(mine + " cpffffffa\n"); err != nil { // the last is gone already
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), c.lock.Close()); err != nil {
		t.Fatal(err)
	}
	sweepLeftovers(parent)
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	if list := string(out); strings.Contains(list, n.a) || strings.Contains(list, n.b) || !strings.Contains(list, mine) || exists(c.dir) {
		t.Errorf("after the sweep: %s", list)
	}
}
