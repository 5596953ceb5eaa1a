package nccl_test

import (
	"errors"
	"testing"

	"github.com/commprobe/commprobe/nccl"
)

func TestVersionText(t *testing.T) {
	for v, want := range map[nccl.Version]string{22809: "2.28.9", 23000: "2.30.0", 21803: "2.18.3", 2708: "2.7.8", 2000: "2.0.0"} {
		if got := v.String(); got != want {
			t.Errorf("%d is %q, want %q", int(v), got, want)
		}
	}
}

func TestResultText(t *testing.T) {
	for r, want := range map[nccl.Result]string{0: "ncclSuccess", nccl.ErrRemote: "ncclRemoteError", nccl.ErrInProgress: "ncclInProgress", 77: "ncclResult 77"} {
		if r.Name() != want || r.Error() != want {
			t.Errorf("%d is %q and %q, want %q", int(r), r.Name(), r.Error(), want)
		}
	}
	if err := nccl.NewError("series", 0); err != nil {
		t.Errorf("success is %v", err)
	}
	if err := nccl.NewError("series", 6); !errors.Is(err, nccl.ErrRemote) {
		t.Errorf("got %v", err)
	}
}

func TestDataTypes(t *testing.T) {
	size := map[nccl.DataType]int{
		nccl.Int8: 1, nccl.Uint8: 1, nccl.Int32: 4, nccl.Uint32: 4, nccl.Int64: 8, nccl.Uint64: 8, nccl.Float16: 2, nccl.Float32: 4,
		nccl.Float64: 8, nccl.Bfloat16: 2, nccl.Float8E4M3: 1, nccl.Float8E5M2: 1,
	}
	if all := nccl.DataTypes(); len(all) != len(size) {
		t.Errorf("%d types", len(all))
	}
	for _, d := range nccl.DataTypes() {
		got, err := nccl.ParseDataType(d.String())
		if err != nil || got != d || d.Size() != size[d] || d.IsFloat8() != (d == nccl.Float8E4M3 || d == nccl.Float8E5M2) {
			t.Errorf("%v of %d bytes is parsed as %v, %v", d, d.Size(), got, err)
		}
	}
	_, err := nccl.ParseDataType("float33")
	wantText(t, err, `"float33"`, "int8", "f8e5m2", "all")
	if got := nccl.DataType(99).String(); got != "type 99" {
		t.Error(got)
	}
}

func TestRedOps(t *testing.T) {
	for i, o := range nccl.RedOps() {
		if got, err := nccl.ParseRedOp(o.String()); err != nil || got != o || int(o) != i {
			t.Errorf("%v is parsed as %v, %v", o, got, err)
		}
	}
	_, err := nccl.ParseRedOp("median")
	wantText(t, err, `"median"`, "sum", "avg", "all")
	if got := nccl.RedOp(7).String(); got != "op 7" {
		t.Error(got)
	}
}
