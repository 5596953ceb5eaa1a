package nccl_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bindtest"
	"github.com/commprobe/commprobe/nccl"
)

// TestMain fails when a test has left a handle behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left, comms := cuda.Live(), nccl.Live(); (len(left) > 0 || comms != 0) && code == 0 {
		fmt.Fprintln(os.Stderr, "not destroyed:", left, comms, "communicators")
		code = 1
	}
	os.Exit(code)
}

// Short names for what every test here uses.
var (
	native   = bindtest.Native
	ok       = bindtest.OK
	is       = bindtest.Is
	soon     = bindtest.Soon
	wantText = bindtest.Says
)

// engine chooses the provider of this process once and answers the number of devices.
var engine = sync.OnceValues(func() (int, error) {
	if native() {
		if err := cuda.Load(cuda.Options{}); err != nil {
			return 0, err
		}
		if err := nccl.Load(""); err != nil {
			return 0, err
		}
	} else {
		cuda.UseHost(4)
		if err := nccl.UseHost(); err != nil {
			return 0, err
		}
	}
	return cuda.DeviceCount()
})

// devices skips the test where there are fewer than n devices.
func devices(t *testing.T, n int) {
	t.Helper()
	have, err := engine()
	var none *cuda.NoDeviceError
	if _, lib := csrc.IsLibrary(err); (lib || errors.As(err, &none)) && os.Getenv("REQUIRE_GPU") == "" {
		t.Skip(err)
	}
	ok(t, err)
	if have < n {
		t.Skipf("needs %d devices, there are %d", n, have)
	}
}

func hostOnly(t *testing.T, why string) {
	t.Helper()
	if native() {
		t.Skip("only on the host engine: ", why)
	}
	devices(t, 1)
}
