package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sharedData = "../../shared/data"

// TestShared looks at a recorded tree of a machine with eight NDR ports and an Ethernet bond; it holds /sys/class/infiniband alone, so most cannot be told.
func TestShared(t *testing.T) {
	t.Parallel()
	from, err := filepath.Abs(filepath.Join(sharedData, "rdma_public/sysfs-h100"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(from); err != nil {
		t.Skip("the shared data is not beside the repository: ", err)
	}
	n := Node{Root: t.TempDir(), Now: noon}
	if err := os.MkdirAll(filepath.Join(n.Root, "sys/class"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(n.Root, "sys/class/infiniband"), os.DirFS(from)); err != nil { // a link would lead out of the root
		t.Fatal(err)
	}
	r := Run(n)
	for id, want := range map[string]struct {
		status Status
		says   string
	}{
		"rdma-devices": {OK, "MT4129"}, "rdma-state": {OK, "9 up"}, "rdma-rate": {OK, "400 Gb/sec (4X NDR)"}, "rdma-link-layer": {Warn, "Ethernet (mlx5_bond_0)"}, "rdma-errors": {Warn, "mlx5_1: link_downed is 255"},
		"rdma-pcie": {CannotTell, ""}, "rdma-gid": {CannotTell, "mlx5_bond_0"}, "rdma-verbs": {CannotTell, "/usr"}, "container-infiniband": {CannotTell, "/dev"}, "rdma-firmware": {OK, "28.41.1000"},
	} {
		x := r.Get(id)
		if x == nil || x.Status != want.status || !strings.Contains(strings.Join(x.Found, "\n"), want.says) {
			t.Errorf("%s: %+v, want %s with %q", id, x, want.status, want.says)
		}
	}
	if r.Count(Fault) > 0 || len(r.Warnings) > 0 {
		t.Errorf("%d faults, warnings %q", r.Count(Fault), r.Warnings)
	}
}
