package hanglab

import (
	"fmt"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
	"github.com/commprobe/commprobe/nccl"
)

// fn is a kind of NCCL call; the values are csrc's step kinds, which the ring records.
type fn csrc.StepKind

const (
	fnAllReduce     fn = fn(csrc.StepAllReduce)
	fnBroadcast     fn = fn(csrc.StepBroadcast)
	fnReduce        fn = fn(csrc.StepReduce)
	fnAllGather     fn = fn(csrc.StepAllGather)
	fnReduceScatter fn = fn(csrc.StepReduceScatter)
	fnSend          fn = fn(csrc.StepSend)
	fnRecv          fn = fn(csrc.StepRecv)
)

var fnNames = map[fn]string{
	fnAllReduce: "all_reduce", fnBroadcast: "broadcast", fnReduce: "reduce", fnAllGather: "all_gather", fnReduceScatter: "reduce_scatter",
	fnSend: "send", fnRecv: "recv",
}

func (f fn) String() string { return fnNames[f] }

func (f fn) p2p() bool { return f == fnSend || f == fnRecv }

// call is one NCCL call of the laboratory: floats, or bfloat16 of the same buffers.
type call struct {
	fn        fn
	count     int // elements, as the NCCL call counts them
	bf16      bool
	peer      int  // peer of a send or receive, root of a broadcast or reduce
	unchecked bool // the result is not compared with what it should be
}

func (c call) dtype() nccl.DataType {
	if c.bf16 {
		return nccl.Bfloat16
	}
	return nccl.Float32
}

// elements are the numbers of elements that the call reads and writes on a rank.
func (c call) elements(world int) (in, out int) {
	switch c.fn {
	case fnAllGather:
		return c.count, c.count * world
	case fnReduceScatter:
		return c.count * world, c.count
	case fnSend:
		return c.count, 0
	case fnRecv:
		return 0, c.count
	}
	return c.count, c.count
}

// String is the call in words: "all_reduce of 393216 float".
func (c call) String() string {
	text := fmt.Sprintf("%s of %d %s", c.fn, c.count, c.dtype())
	switch c.fn {
	case fnSend:
		return fmt.Sprintf("%s to rank %d", text, c.peer)
	case fnRecv:
		return fmt.Sprintf("%s from rank %d", text, c.peer)
	case fnBroadcast, fnReduce:
		return fmt.Sprintf("%s, root %d", text, c.peer)
	}
	return text
}

// issue makes the NCCL call. It may block inside the library: while a connection is made, or when its queue is full.
func (c call) issue(comm *nccl.Comm, send, recv cuda.DevicePtr, s cuda.Stream) error {
	n, t := nccl.Count(c.count), c.dtype()
	switch c.fn {
	case fnAllReduce:
		return comm.AllReduce(send, recv, n, t, nccl.Sum, s)
	case fnBroadcast:
		return comm.Broadcast(send, recv, n, t, c.peer, s)
	case fnReduce:
		return comm.Reduce(send, recv, n, t, nccl.Sum, c.peer, s)
	case fnAllGather:
		return comm.AllGather(send, recv, n, t, s)
	case fnReduceScatter:
		return comm.ReduceScatter(send, recv, n, t, nccl.Sum, s)
	case fnSend:
		return comm.Send(send, n, t, c.peer, s)
	case fnRecv:
		return comm.Recv(recv, n, t, c.peer, s)
	}
	return fmt.Errorf("call %d is not one of the laboratory's", c.fn)
}
