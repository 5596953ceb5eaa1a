package csrc

import _ "embed"

//go:generate clang-16 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 -nocudainc -nocudalib -O3 -S verify.cu -o verify.ptx

//go:embed verify.ptx
var verifyPTX string

// VerifyPTX returns the data and check kernels as PTX for sm_70 and later, with the trailing NUL that cuModuleLoadData wants. Each call
// returns a new slice. The kernels are cp_fill_input, cp_check, cp_check_reset, cp_poison, cp_corrupt, cp_hash and cp_nan_scan;
// verify_kernels.h has their arguments. Any grid and any block of up to 1024 threads in one dimension works.
func VerifyPTX() []byte {
	return append([]byte(verifyPTX), 0)
}

// CheckSamples is how many wrong elements a CheckResult can describe.
const CheckSamples = 8

// MaxVerifyRanks is the largest number of ranks that reduction data can be made for.
const MaxVerifyRanks = 65536

// OpSource stands in place of an operation for data that is moved and not reduced. The operations themselves, and the element types, have
// NCCL's numbers.
const OpSource = -1

// OpUniform stands in place of an operation for input that shows the order of a floating-point sum: results can be compared with each other,
// but none is expected, and cp_check calls all elements wrong.
const OpUniform = -2

// OpMulSum stands for an operation made by ncclRedOpCreatePreMulSum where each rank's scalar is MulSumScalar. It is a number of the data
// kernels; NCCL gives each operation made so a number of its own.
const OpMulSum = 5

// CheckResult is what cp_check found, or cp_nan_scan, in the layout of C's cp_check_result. Several checks may add to one result. Before the first of them
// it must be reset, by cp_check_reset or by NewCheckResult's value. Indices count elements in the generator's space: the check's first
// index plus the position in the buffer. FirstIndex and LastIndex mean nothing while Wrong is 0.
type CheckResult struct {
	Wrong      uint64 // elements that differ
	FirstIndex uint64
	LastIndex  uint64
	NSample    uint64 // entries of Sample in use
	Sample     [CheckSamples]CheckSample
}

// CheckSample is one wrong element: its index and its bits, zero-extended.
type CheckSample struct {
	Index, Got, Expected uint64
}

// NewCheckResult returns the value that a check may start from.
func NewCheckResult() CheckResult {
	return CheckResult{FirstIndex: ^uint64(0)}
}
