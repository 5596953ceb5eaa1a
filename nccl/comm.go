package nccl

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/commprobe/commprobe/csrc"
	"github.com/commprobe/commprobe/cuda"
)

// UniqueID names a communicator to be. One process makes it, all ranks of the communicator use it once.
type UniqueID [csrc.UniqueIDBytes]byte

// NewUniqueID makes an id and opens the socket at which the ranks meet, in this process.
//
// Implements: ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
func NewUniqueID() (UniqueID, error) {
	var id [csrc.UniqueIDBytes]byte
	err := check("ncclGetUniqueId", csrc.NcclGetUniqueID(&id))
	return id, err
}

// Comm is one rank's communicator. It is created by InitRank, InitAll or Split and ended by Destroy or Abort, once.
type Comm struct {
	cell  csrc.Cell
	plain uintptr // handle when there is no cell
	gone  atomic.Bool
}

// live counts communicators that were neither destroyed nor aborted.
var live atomic.Int64

// Live returns how many communicators exist.
func Live() int64 { return live.Load() }

// Handle is the communicator's address, for the timed series. Inside a group it is 0 until the group has ended.
func (c *Comm) Handle() uintptr {
	if c.plain != 0 {
		return c.plain
	}
	return c.cell.Value()
}

func accepted(fn string, code int) error {
	if Result(code) == ErrInProgress {
		return nil // non-blocking: AsyncError tells when it is done
	}
	return check(fn, code)
}

// ErrGone says that the communicator was destroyed or aborted before.
var ErrGone = errors.New("communicator was already destroyed or aborted")

// accept makes a call on a communicator that may still be going on when it returns. What was destroyed or aborted is not handed to the library,
// which would look into freed memory.
func (c *Comm) accept(fn string, call func(h uintptr) int) error {
	if c.gone.Load() {
		return fmt.Errorf("%s: %w", fn, ErrGone)
	}
	return accepted(fn, call(c.Handle()))
}

// check is accept for calls that are complete when they return.
func (c *Comm) check(fn string, call func(h uintptr) int) error {
	if c.gone.Load() {
		return fmt.Errorf("%s: %w", fn, ErrGone)
	}
	return check(fn, call(c.Handle()))
}

// InitRank joins rank of world to the communicator named by id, on the calling thread's device. A nil config means defaults. It blocks until
// all ranks have joined, without a limit of its own; with a non-blocking config it returns at once and AsyncError tells how it stands.
//
// Implements: ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
func InitRank(id UniqueID, world, rank int, config *Config) (*Comm, error) {
	c := &Comm{cell: csrc.NewCell()}
	raw := [csrc.UniqueIDBytes]byte(id)
	fn := "ncclCommInitRank"
	if config != nil {
		fn = "ncclCommInitRankConfig"
	}
	if err := accepted(fn, csrc.NcclCommInitRank(c.cell, world, &raw, rank, config.raw())); err != nil {
		return nil, err // the cell stays: a failed library may still write it
	}
	live.Add(1)
	return c, nil
}

// InitAll makes one communicator for the given devices of this process; the result has one Comm a device, in the same order.
//
// Implements: ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
func InitAll(devices []int) ([]*Comm, error) {
	handles := make([]uintptr, len(devices))
	list := make([]int32, len(devices))
	for i, d := range devices {
		list[i] = int32(d)
	}
	if err := check("ncclCommInitAll", csrc.NcclCommInitAll(handles, list)); err != nil {
		return nil, err
	}
	out := make([]*Comm, len(handles))
	for i, h := range handles {
		out[i] = &Comm{plain: h}
	}
	live.Add(int64(len(out)))
	return out, nil
}

// NoColor as a color makes a rank belong to no part of a split.
const NoColor = -1

// Split divides the communicator: ranks of one color form a new one, ordered by key. It returns nil for NoColor. Collective over c.
//
// Implements: ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
func (c *Comm) Split(color, key int, config *Config) (*Comm, error) {
	out := &Comm{cell: csrc.NewCell()}
	if err := c.accept("ncclCommSplit", func(h uintptr) int { return csrc.NcclCommSplit(h, color, key, out.cell, config.raw()) }); err != nil {
		return nil, err
	}
	if color == NoColor {
		return nil, nil
	}
	live.Add(1)
	return out, nil
}

// Finalize flushes outstanding work; Destroy must follow. Collective; may block.
//
// Implements: ncclResult_t ncclCommFinalize(ncclComm_t comm)
func (c *Comm) Finalize() error {
	return c.accept("ncclCommFinalize", csrc.NcclCommFinalize)
}

// Destroy ends the communicator in order. It is a collective act in effect: it may wait for other ranks. All of its work must be complete.
//
// Implements: ncclResult_t ncclCommDestroy(ncclComm_t comm)
func (c *Comm) Destroy() error {
	if c.gone.Swap(true) {
		return fmt.Errorf("ncclCommDestroy: %w", ErrGone)
	}
	live.Add(-1)
	return accepted("ncclCommDestroy", csrc.NcclCommDestroy(c.Handle()))
}

// Abort ends the communicator at once and stops its work on the device. It takes no lock and may be called from any goroutine, also while
// another thread hangs in a call on c.
//
// Implements: ncclResult_t ncclCommAbort(ncclComm_t comm)
func (c *Comm) Abort() error {
	if c.gone.Swap(true) {
		return fmt.Errorf("ncclCommAbort: %w", ErrGone)
	}
	live.Add(-1)
	return accepted("ncclCommAbort", csrc.NcclCommAbort(c.Handle()))
}

// AsyncError returns nil while all is well, ErrInProgress (by errors.Is) while a non-blocking call goes on, and otherwise what went wrong.
//
// Implements: ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
func (c *Comm) AsyncError() error {
	var e int32
	if err := c.check("ncclCommGetAsyncError", func(h uintptr) int { return csrc.NcclCommGetAsyncError(h, &e) }); err != nil {
		return err
	}
	return check("asynchronous error", int(e))
}

// Size is the number of ranks.
//
// Implements: ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
func (c *Comm) Size() (int, error) {
	var n int32
	err := c.check("ncclCommCount", func(h uintptr) int { return csrc.NcclCommCount(h, &n) })
	return int(n), err
}

// Device is the communicator's device.
//
// Implements: ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
func (c *Comm) Device() (int, error) {
	var n int32
	err := c.check("ncclCommCuDevice", func(h uintptr) int { return csrc.NcclCommCuDevice(h, &n) })
	return int(n), err
}

// Rank is the caller's rank.
//
// Implements: ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
func (c *Comm) Rank() (int, error) {
	var n int32
	err := c.check("ncclCommUserRank", func(h uintptr) int { return csrc.NcclCommUserRank(h, &n) })
	return int(n), err
}

// Group runs f between ncclGroupStart and ncclGroupEnd on the calling thread, which must be locked (cuda.Thread.Do). Calls in f take effect
// at the end of the outermost group. The end is called also when f fails, so that the thread's group state stays whole.
//
// Implements: ncclResult_t ncclGroupStart(void), ncclResult_t ncclGroupEnd(void)
func Group(f func() error) error {
	if err := check("ncclGroupStart", csrc.NcclGroupStart()); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, accepted("ncclGroupEnd", csrc.NcclGroupEnd()))
}

// MemAlloc allocates n bytes on the calling thread's device, in the way that NCCL can register best. The caller frees them with MemFree (2.19).
//
// Implements: ncclResult_t ncclMemAlloc(void **ptr, size_t size)
func MemAlloc(n int64) (cuda.DevicePtr, error) {
	if n < 0 {
		return 0, fmt.Errorf("ncclMemAlloc: negative size %d", n)
	}
	var p uintptr
	err := check("ncclMemAlloc", csrc.NcclMemAlloc(&p, uintptr(n)))
	return cuda.DevicePtr(p), err
}

// MemFree frees what MemAlloc returned (2.19).
//
// Implements: ncclResult_t ncclMemFree(void *ptr)
func MemFree(p cuda.DevicePtr) error { return check("ncclMemFree", csrc.NcclMemFree(uintptr(p))) }

// Registration is a buffer registered with a communicator.
type Registration struct {
	c *Comm
	h uintptr
}

// Register registers n bytes at p for zero-copy where possible. The caller deregisters before Destroy (2.19).
//
// Implements: ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
func (c *Comm) Register(p cuda.DevicePtr, n int64) (Registration, error) {
	var reg uintptr
	err := c.check("ncclCommRegister", func(h uintptr) int { return csrc.NcclCommRegister(h, uintptr(p), uintptr(n), &reg) })
	return Registration{c, reg}, err
}

// Deregister ends the registration.
//
// Implements: ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
func (r Registration) Deregister() error {
	return r.c.check("ncclCommDeregister", func(h uintptr) int { return csrc.NcclCommDeregister(h, r.h) })
}

// Window is a buffer registered as a memory window.
type Window struct {
	c    *Comm
	cell csrc.Cell
}

// RegisterWindow registers n bytes at p, memory from MemAlloc, as a window; symmetric asks for symmetric kernels. Collective (2.27).
//
// Implements: ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
func (c *Comm) RegisterWindow(p cuda.DevicePtr, n int64, symmetric bool) (Window, error) {
	w := Window{c, csrc.NewCell()}
	err := c.accept("ncclCommWindowRegister", func(h uintptr) int {
		return csrc.NcclCommWindowRegister(h, uintptr(p), uintptr(n), w.cell, boolInt(symmetric))
	})
	return w, err
}

// Deregister ends the window. Collective.
//
// Implements: ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
func (w Window) Deregister() error {
	return w.c.check("ncclCommWindowDeregister", func(h uintptr) int { return csrc.NcclCommWindowDeregister(h, w.cell.Value()) })
}

// NewPreMulSum makes an operator that multiplies each rank's input by scalar (one element of t in its binary form, padded to 8 bytes) before
// summing. The caller destroys it with DestroyOp (2.11).
//
// Implements: ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm)
func (c *Comm) NewPreMulSum(scalar [8]byte, t DataType) (RedOp, error) {
	var op int32
	err := c.check("ncclRedOpCreatePreMulSum", func(h uintptr) int { return csrc.NcclRedOpCreatePreMulSum(&op, &scalar, int(t), h) })
	return RedOp(op), err
}

// DestroyOp destroys an operator; work that is queued keeps its meaning.
//
// Implements: ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
func (c *Comm) DestroyOp(op RedOp) error {
	return c.check("ncclRedOpDestroy", func(h uintptr) int { return csrc.NcclRedOpDestroy(int(op), h) })
}
