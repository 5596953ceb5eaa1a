package cuda

import (
	"time"

	"github.com/commprobe/commprobe/csrc"
)

// Stream is a CUDA stream; the zero Stream is the NULL stream. It belongs to the device that was current when it was created.
type Stream struct{ h uintptr }

// Handle is the stream's address, for the timed series.
func (s Stream) Handle() uintptr { return s.h }

const nonBlocking = 1

// NewStream creates a stream that does not synchronise with the NULL stream. The caller destroys it.
//
// Implements: cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
func NewStream() (Stream, error) {
	var h uintptr
	if err := check("cudaStreamCreateWithFlags", csrc.CudaStreamCreateWithFlags(&h, nonBlocking)); err != nil {
		return Stream{}, err
	}
	live.streams.Add(1)
	return Stream{h}, nil
}

// NewPriorityStream creates such a stream with a priority; lower numbers go first (see StreamPriorities).
//
// Implements: cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
func NewPriorityStream(priority int) (Stream, error) {
	var h uintptr
	if err := check("cudaStreamCreateWithPriority", csrc.CudaStreamCreateWithPriority(&h, nonBlocking, priority)); err != nil {
		return Stream{}, err
	}
	live.streams.Add(1)
	return Stream{h}, nil
}

// StreamPriorities returns the least and the greatest priority of the current device's streams, e.g. 0 and -5.
//
// Implements: cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
func StreamPriorities() (least, greatest int, err error) {
	var l, g int32
	err = check("cudaDeviceGetStreamPriorityRange", csrc.CudaDeviceGetStreamPriorityRange(&l, &g))
	return int(l), int(g), err
}

// Destroy destroys the stream. Work that is queued still runs.
//
// Implements: cudaError_t cudaStreamDestroy(cudaStream_t stream)
func (s Stream) Destroy() error {
	err := check("cudaStreamDestroy", csrc.CudaStreamDestroy(s.h))
	if err == nil {
		live.streams.Add(-1)
	}
	return err
}

// Done tells whether everything queued has finished. It does not block.
//
// Implements: cudaError_t cudaStreamQuery(cudaStream_t stream)
func (s Stream) Done() (bool, error) { return done("cudaStreamQuery", csrc.CudaStreamQuery(s.h)) }

func done(fn string, code int) (bool, error) {
	if Code(code) == ErrNotReady {
		return false, nil
	}
	err := check(fn, code)
	return err == nil, err
}

// Synchronize waits for everything queued. It blocks without a limit.
//
// Implements: cudaError_t cudaStreamSynchronize(cudaStream_t stream)
func (s Stream) Synchronize() error {
	return check("cudaStreamSynchronize", csrc.CudaStreamSynchronize(s.h))
}

// Wait makes work queued later wait for the event.
//
// Implements: cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
func (s Stream) Wait(e Event) error {
	return check("cudaStreamWaitEvent", csrc.CudaStreamWaitEvent(s.h, e.h))
}

// CaptureMode says which calls of other threads a capture tolerates.
type CaptureMode int

// The capture modes.
const (
	CaptureGlobal      CaptureMode = 0
	CaptureThreadLocal CaptureMode = 1
	CaptureRelaxed     CaptureMode = 2
)

// BeginCapture records the work queued from now on instead of running it.
//
// Implements: cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
func (s Stream) BeginCapture(mode CaptureMode) error {
	return check("cudaStreamBeginCapture", csrc.CudaStreamBeginCapture(s.h, int(mode)))
}

// EndCapture ends the recording. The caller destroys the graph.
//
// Implements: cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
func (s Stream) EndCapture() (Graph, error) {
	var g uintptr
	if err := check("cudaStreamEndCapture", csrc.CudaStreamEndCapture(s.h, &g)); err != nil {
		return Graph{}, err
	}
	live.graphs.Add(1)
	return Graph{g}, nil
}

// Graph is recorded work.
type Graph struct{ h uintptr }

// Instantiate makes the graph executable. The caller destroys the result; the graph may be destroyed before.
//
// Implements: cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
func (g Graph) Instantiate() (GraphExec, error) {
	var x uintptr
	if err := check("cudaGraphInstantiateWithFlags", csrc.CudaGraphInstantiate(&x, g.h)); err != nil {
		return GraphExec{}, err
	}
	live.graphs.Add(1)
	return GraphExec{x}, nil
}

// Destroy frees the graph.
//
// Implements: cudaError_t cudaGraphDestroy(cudaGraph_t graph)
func (g Graph) Destroy() error {
	err := check("cudaGraphDestroy", csrc.CudaGraphDestroy(g.h))
	if err == nil {
		live.graphs.Add(-1)
	}
	return err
}

// GraphExec is an executable graph.
type GraphExec struct{ h uintptr }

// Handle is the executable graph's address, for the timed series.
func (x GraphExec) Handle() uintptr { return x.h }

// Launch queues the graph's work.
//
// Implements: cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
func (x GraphExec) Launch(s Stream) error {
	return check("cudaGraphLaunch", csrc.CudaGraphLaunch(x.h, s.h))
}

// Destroy frees the executable graph.
//
// Implements: cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
func (x GraphExec) Destroy() error {
	err := check("cudaGraphExecDestroy", csrc.CudaGraphExecDestroy(x.h))
	if err == nil {
		live.graphs.Add(-1)
	}
	return err
}

// Event marks a point in a stream.
type Event struct{ h uintptr }

// Handle is the event's address, for the timed series.
func (e Event) Handle() uintptr { return e.h }

// EventKind says what an event is for.
type EventKind uint32

// The kinds of events; they can be combined.
const (
	EventTiming       EventKind = 0 // can measure time
	EventBlockingSync EventKind = 1 // Synchronize sleeps instead of spinning
	EventNoTiming     EventKind = 2 // cheaper, cannot measure time
	EventInterprocess EventKind = 4 // can be opened by another process; needs EventNoTiming
)

// NewEvent creates an event on the current device. The caller destroys it.
//
// Implements: cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
func NewEvent(kind EventKind) (Event, error) {
	var h uintptr
	if err := check("cudaEventCreateWithFlags", csrc.CudaEventCreateWithFlags(&h, uint32(kind))); err != nil {
		return Event{}, err
	}
	live.events.Add(1)
	return Event{h}, nil
}

// Destroy destroys the event.
//
// Implements: cudaError_t cudaEventDestroy(cudaEvent_t event)
func (e Event) Destroy() error {
	err := check("cudaEventDestroy", csrc.CudaEventDestroy(e.h))
	if err == nil {
		live.events.Add(-1)
	}
	return err
}

// Record marks the present end of the stream.
//
// Implements: cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
func (e Event) Record(s Stream) error {
	return check("cudaEventRecord", csrc.CudaEventRecord(e.h, s.h))
}

// Done tells whether the stream has passed the event. It does not block.
//
// Implements: cudaError_t cudaEventQuery(cudaEvent_t event)
func (e Event) Done() (bool, error) { return done("cudaEventQuery", csrc.CudaEventQuery(e.h)) }

// Synchronize waits until the stream has passed the event. It blocks without a limit.
//
// Implements: cudaError_t cudaEventSynchronize(cudaEvent_t event)
func (e Event) Synchronize() error {
	return check("cudaEventSynchronize", csrc.CudaEventSynchronize(e.h))
}

// Since returns the time from start to e on the device; its resolution is about half a microsecond. Both must be complete.
//
// Implements: cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
func (e Event) Since(start Event) (time.Duration, error) {
	var ms float32
	if err := check("cudaEventElapsedTime", csrc.CudaEventElapsedTime(&ms, start.h, e.h)); err != nil {
		return 0, err
	}
	return time.Duration(float64(ms) * 1e6), nil
}

// IPCExport names the event so that another process can open it.
//
// Implements: cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
func (e Event) IPCExport() (IPCHandle, error) {
	var h [csrc.IPCHandleBytes]byte
	err := check("cudaIpcGetEventHandle", csrc.CudaIpcGetEventHandle(&h, e.h))
	return h, err
}

// IPCOpenEvent opens an event of another process. The caller destroys it.
//
// Implements: cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
func IPCOpenEvent(h IPCHandle) (Event, error) {
	var e uintptr
	b := [csrc.IPCHandleBytes]byte(h)
	if err := check("cudaIpcOpenEventHandle", csrc.CudaIpcOpenEventHandle(&e, &b)); err != nil {
		return Event{}, err
	}
	live.events.Add(1)
	return Event{e}, nil
}
