package bindtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// NVIDIA's nvml.h comes in no package of PyPI's that has a stable name, but this module carries a copy. It is no dependency: what links it does not start
// where the loader binds at once.
const (
	NVMLModule  = "github.com/NVIDIA/go-nvml"
	NVMLVersion = "v0.13.4-1"
	nvmlSum     = "h1:2E7RdOLBxHGSXq8sUw+c5Y0aWmFT7Cj+ZdjYulgUH18=" // of the whole module, as go.sum writes it
)

// NVMLHeader puts the module into Go's cache and returns the folder of nvml.h. With -test.short the network is left alone. The error says why it cannot be had;
// a module with another checksum ends the test.
func NVMLHeader(t *testing.T) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", NVMLModule+"@"+NVMLVersion)
	cmd.Dir = t.TempDir() // outside of every module, so that no go.mod or go.sum is touched
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GONOSUMDB="+NVMLModule)
	if testing.Short() { // only what is in the cache
		cmd.Env = append(cmd.Env, "GOPROXY=off")
	}
	out, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if bad := json.Unmarshal(out, &got); bad != nil || got.Error != "" || err != nil {
		return "", fmt.Errorf("%s cannot be had: %w %s", NVMLModule, errors.Join(err, bad), got.Error)
	}
	if got.Sum != nvmlSum {
		t.Fatalf("%s has checksum %s, want %s", NVMLModule, got.Sum, nvmlSum)
	}
	return filepath.Join(got.Dir, "pkg/nvml"), nil
}
