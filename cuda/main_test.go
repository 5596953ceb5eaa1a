package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/internal/bindtest"
)

// TestMain fails when a test has left a handle behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := cuda.Live(); len(left) > 0 && code == 0 {
		fmt.Fprintln(os.Stderr, "not destroyed:", left)
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
	} else {
		cuda.UseHost(4)
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

// onDevice runs f on a thread of device.
func onDevice(t *testing.T, device int, f func() error) {
	t.Helper()
	devices(t, device+1)
	th, err := cuda.NewThread(device)
	ok(t, err)
	if err := th.Do(soon(t), f); err != nil {
		t.Error(err)
	}
	ok(t, th.Close(soon(t)))
}
