package nccl

import (
	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// Count is a number of elements of a collective's data type.
type Count uint64

// All collectives below are queued on the stream and return at once; their data is ready when the stream has passed them.

// AllReduce reduces count elements of all ranks and leaves the result on all. send == recv is in place.
//
// Implements: ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) AllReduce(send, recv cuda.DevicePtr, count Count, t DataType, op RedOp, s cuda.Stream) error {
	return c.accept("ncclAllReduce", func(h uintptr) int {
		return csrc.NcclAllReduce(uintptr(send), uintptr(recv), uintptr(count), int(t), int(op), h, s.Handle())
	})
}

// Broadcast copies count elements from root's send to every rank's recv.
//
// Implements: ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Broadcast(send, recv cuda.DevicePtr, count Count, t DataType, root int, s cuda.Stream) error {
	return c.accept("ncclBroadcast", func(h uintptr) int {
		return csrc.NcclBroadcast(uintptr(send), uintptr(recv), uintptr(count), int(t), root, h, s.Handle())
	})
}

// Reduce reduces count elements of all ranks and leaves the result in root's recv.
//
// Implements: ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Reduce(send, recv cuda.DevicePtr, count Count, t DataType, op RedOp, root int, s cuda.Stream) error {
	return c.accept("ncclReduce", func(h uintptr) int {
		return csrc.NcclReduce(uintptr(send), uintptr(recv), uintptr(count), int(t), int(op), root, h, s.Handle())
	})
}

// AllGather collects count elements of every rank, in rank order, on all: recv holds world × count. In place: send = recv + rank × count.
//
// Implements: ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) AllGather(send, recv cuda.DevicePtr, count Count, t DataType, s cuda.Stream) error {
	return c.accept("ncclAllGather", func(h uintptr) int {
		return csrc.NcclAllGather(uintptr(send), uintptr(recv), uintptr(count), int(t), h, s.Handle())
	})
}

// ReduceScatter reduces world × count elements and leaves the rank's part of count elements in recv. In place: recv = send + rank × count.
//
// Implements: ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) ReduceScatter(send, recv cuda.DevicePtr, count Count, t DataType, op RedOp, s cuda.Stream) error {
	return c.accept("ncclReduceScatter", func(h uintptr) int {
		return csrc.NcclReduceScatter(uintptr(send), uintptr(recv), uintptr(count), int(t), int(op), h, s.Handle())
	})
}

// Send sends count elements to peer, which must call Recv alike.
//
// Implements: ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Send(send cuda.DevicePtr, count Count, t DataType, peer int, s cuda.Stream) error {
	return c.accept("ncclSend", func(h uintptr) int { return csrc.NcclSend(uintptr(send), uintptr(count), int(t), peer, h, s.Handle()) })
}

// Recv receives count elements from peer, which must call Send alike.
//
// Implements: ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Recv(recv cuda.DevicePtr, count Count, t DataType, peer int, s cuda.Stream) error {
	return c.accept("ncclRecv", func(h uintptr) int { return csrc.NcclRecv(uintptr(recv), uintptr(count), int(t), peer, h, s.Handle()) })
}

// AlltoAll sends count elements to every rank and receives as many from each (2.28; earlier versions: grouped Send and Recv).
//
// Implements: ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) AlltoAll(send, recv cuda.DevicePtr, count Count, t DataType, s cuda.Stream) error {
	return c.accept("ncclAlltoAll", func(h uintptr) int {
		return csrc.NcclAlltoAll(uintptr(send), uintptr(recv), uintptr(count), int(t), h, s.Handle())
	})
}

// Gather collects count elements of every rank in root's recv (2.28).
//
// Implements: ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Gather(send, recv cuda.DevicePtr, count Count, t DataType, root int, s cuda.Stream) error {
	return c.accept("ncclGather", func(h uintptr) int {
		return csrc.NcclGather(uintptr(send), uintptr(recv), uintptr(count), int(t), root, h, s.Handle())
	})
}

// Scatter sends count elements of root's send to each rank (2.28).
//
// Implements: ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
func (c *Comm) Scatter(send, recv cuda.DevicePtr, count Count, t DataType, root int, s cuda.Stream) error {
	return c.accept("ncclScatter", func(h uintptr) int {
		return csrc.NcclScatter(uintptr(send), uintptr(recv), uintptr(count), int(t), root, h, s.Handle())
	})
}
