package rdma

import (
	"errors"
	"testing"
	"time"

	"github.com/commprobe/commprobe/ibverbs"
)

// loopBytes are all sizes together.
func loopBytes() (n int64) {
	for _, s := range loopSizes {
		n += int64(s)
	}
	return n
}

func TestLoopback(t *testing.T) {
	if !overFake(t) {
		return
	}
	got, err := TryLoopback("", "host", 5*time.Second)
	if err != nil || got.Step != LoopDone || got.Bytes != loopBytes() || got.Wrong != 0 || got.Port != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if left := ibverbs.Live(); len(left) != 0 {
		t.Errorf("not closed: %v", left)
	}
	got, err = TryLoopback("no such device", "host", time.Second)
	if err == nil || got.Step != LoopOpen {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = TryLoopback("", "nonsense", time.Second)
	if err == nil || got.Step != LoopMemory {
		t.Errorf("%+v, %v", got, err)
	}
	if left := ibverbs.Live(); len(left) != 0 {
		t.Errorf("not closed: %v", left)
	}
}

// loopFails expects the step at which a loopback over the stand-in with these settings ends.
func loopFails(t *testing.T, want LoopbackStep, env ...string) {
	t.Helper()
	if !overFake(t, env...) {
		return
	}
	got, err := TryLoopback("", "host", 300*time.Millisecond)
	if err == nil || got.Step != want {
		t.Errorf("%+v, %v: want step %s", got, err, want)
	}
	if left := ibverbs.Live(); len(left) != 0 {
		t.Errorf("not closed: %v", left)
	}
}

func TestLoopbackRegister(t *testing.T) { loopFails(t, LoopRegister, "FAKE_FAIL=ibv_reg_mr=14") }
func TestLoopbackPort(t *testing.T)     { loopFails(t, LoopPort, "FAKE_STATE=1") }
func TestLoopbackConnect(t *testing.T)  { loopFails(t, LoopConnect, "FAKE_FAIL=ibv_create_qp=12") }
func TestLoopbackError(t *testing.T)    { loopFails(t, LoopMove, "FAKE_WC=3:4:81") }
func TestLoopbackSilent(t *testing.T)   { loopFails(t, LoopMove, "FAKE_SILENT=1") }

// TestLoopbackWrong: what arrives wrong is told as such, by a memory whose check sees other data than was written.
func TestLoopbackWrong(t *testing.T) {
	if !overFake(t) {
		return
	}
	l := loop{memory: "host", wait: 5 * time.Second}
	for _, f := range []func() error{l.open, l.allocate, l.register, l.port, l.connect} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	l.buffer = spoilt{l.buffer}
	err := l.transfer()
	if KindOf(err) != WrongData || l.result.Step != LoopCheck || l.result.Wrong != 1 {
		t.Errorf("%+v, %v", l.result, err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
}

// spoilt memory changes a byte before it is compared.
type spoilt struct{ buffer }

func (s spoilt) check(offset, bytes int, seed uint64, stream uint32) (wrong, first, last int, err error) {
	b, err := s.at(offset)
	err = errors.Join(err, s.put(offset, []byte{b ^ 1}))
	wrong, first, last, err2 := s.buffer.check(offset, bytes, seed, stream)
	return wrong, first, last, errors.Join(err, err2)
}
