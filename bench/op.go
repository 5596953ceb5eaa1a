package bench

import (
	"fmt"
	"strings"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/nccl"
)

// mulSum stands for NCCL's PreMulSum, whose operators are made for one communicator: each rank's input times its own factor, then the sum.
const mulSum = nccl.RedOp(csrc.OpMulSum)

// sourced stands for data that is only moved, in calls of the data kernels.
const sourced = nccl.RedOp(csrc.OpSource)

// Ops lists the operators by name, in NCCL's order. mulsum is what nccl-tests calls ncclRedOpCreatePreMulSum's.
func Ops() []string {
	var out []string
	for _, op := range nccl.RedOps() {
		out = append(out, op.String())
	}
	return append(out, opName(mulSum))
}

func opName(op nccl.RedOp) string {
	if op == mulSum {
		return "mulsum"
	}
	return op.String()
}

// ParseOp finds an operator by name and returns the name that is used everywhere: premulsum is mulsum.
func ParseOp(name string) (string, error) {
	op, err := parseOp(name)
	if err != nil {
		return "", err
	}
	return opName(op), nil
}

func parseOp(name string) (nccl.RedOp, error) {
	if name == "mulsum" || name == "premulsum" {
		return mulSum, nil
	}
	op, err := nccl.ParseRedOp(name)
	if err != nil {
		return 0, fmt.Errorf("unknown operator %q: use %s or all", name, strings.Join(Ops(), ", "))
	}
	return op, nil
}

// dataOp is the operator that data of a cell is made for.
func (c cell) dataOp() nccl.RedOp {
	if c.coll.reduces {
		return c.op
	}
	return sourced
}
