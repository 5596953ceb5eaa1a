package nccl

import (
	"fmt"
	"strings"
)

// DataType is an ncclDataType_t.
type DataType int

// The data types.
const (
	Int8       DataType = 0
	Uint8      DataType = 1
	Int32      DataType = 2
	Uint32     DataType = 3
	Int64      DataType = 4
	Uint64     DataType = 5
	Float16    DataType = 6
	Float32    DataType = 7
	Float64    DataType = 8
	Bfloat16   DataType = 9
	Float8E4M3 DataType = 10 // 2.24, GPUs of compute capability 9.0 or newer
	Float8E5M2 DataType = 11 // 2.24, GPUs of compute capability 9.0 or newer
)

// The names are nccl-tests'.
var typeNames = []string{"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"}

var typeSizes = []int{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}

// DataTypes lists all data types in NCCL's order.
func DataTypes() []DataType {
	out := make([]DataType, len(typeNames))
	for i := range out {
		out[i] = DataType(i)
	}
	return out
}

func (t DataType) String() string {
	if t < 0 || int(t) >= len(typeNames) {
		return fmt.Sprintf("type %d", int(t))
	}
	return typeNames[t]
}

// Size is the size of one element in bytes.
func (t DataType) Size() int { return typeSizes[t] }

// IsFloat8 tells whether the type is one of the two 8-bit floats.
func (t DataType) IsFloat8() bool { return t == Float8E4M3 || t == Float8E5M2 }

// ParseDataType finds a type by nccl-tests' name.
func ParseDataType(name string) (DataType, error) {
	for i, n := range typeNames {
		if n == name {
			return DataType(i), nil
		}
	}
	return 0, fmt.Errorf("unknown data type %q: use %s or all", name, strings.Join(typeNames, ", "))
}

// RedOp is an ncclRedOp_t: one of the constants, or a handle from Comm.NewPreMulSum.
type RedOp int

// The built-in reduction operators.
const (
	Sum  RedOp = 0
	Prod RedOp = 1
	Max  RedOp = 2
	Min  RedOp = 3
	Avg  RedOp = 4
)

var opNames = []string{"sum", "prod", "max", "min", "avg"}

// RedOps lists the built-in operators in NCCL's order.
func RedOps() []RedOp { return []RedOp{Sum, Prod, Max, Min, Avg} }

func (o RedOp) String() string {
	if o < 0 || int(o) >= len(opNames) {
		return fmt.Sprintf("op %d", int(o))
	}
	return opNames[o]
}

// ParseRedOp finds a built-in operator by name.
func ParseRedOp(name string) (RedOp, error) {
	for i, n := range opNames {
		if n == name {
			return RedOp(i), nil
		}
	}
	return 0, fmt.Errorf("unknown operator %q: use %s or all", name, strings.Join(opNames, ", "))
}
