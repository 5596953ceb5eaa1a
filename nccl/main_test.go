package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
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

func native() bool { return os.Getenv("COMMPROBE_TEST_ENGINE") == "native" }

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

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
}

// soon is a context for what should be done in an instant.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not say %q", err, p)
		}
	}
}
