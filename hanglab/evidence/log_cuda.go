package evidence

import (
	"bytes"
	"strings"
)

// outOfMemory takes every spelling of "out of GPU memory". A line of the kernel's or of the host's memory is another matter.
func (c *logContext) outOfMemory(line []byte, at Where) bool {
	low := bytes.ToLower(line[:min(len(line), 4096)])
	if !containsAny(low, "cuda", "gpu", "hip", "cublas", "device memory", "cudnn", "torch.outofmemory", "xla", "hbm", "resource_exhausted") {
		return c.hostMemory(low, line, at)
	}
	if containsAny(low, "oom_kill", "oom-kill", "killed process", "ray.exceptions") {
		return c.hostMemory(low, line, at)
	}
	f := newFact(CUDAOOM, at, line)
	f.Mild = containsAny(low, "skipping", "retry", "caught", "ignor", "recover", "halving", "halved", "reducing", "xfail", "passed", "falling back", "fall back", "smaller batch", "trying again")
	f.speakingRank(c.prefix.text)
	c.add(f)
	return true
}

// hostMemory takes what says that the host's own memory ran out.
func (c *logContext) hostMemory(low, line []byte, at Where) bool {
	switch {
	case containsAny(low, "task was killed due to the node running low on memory", "ray.exceptions.outofmemory"):
		f := newFact(OOMKill, at, line)
		f.Detail, f.Signal = "ray", 9
		c.add(f)
	case containsAny(low, "oom_kill event", "oom-kill event"):
		f := newFact(OOMKill, at, line)
		f.Detail, f.Signal = "slurm", 9
		c.addOther(f)
	default:
		return false
	}
	return true
}

func containsAny(b []byte, words ...string) bool {
	for _, w := range words {
		if bytes.Contains(b, []byte(w)) {
			return true
		}
	}
	return false
}

// cudaNames has the errors that end a process, with their numbers.
var cudaNames = []struct {
	text string
	code int
}{
	{"illegal memory access", 700}, {"device-side assert", 710}, {"unspecified launch failure", 719}, {"uncorrectable ECC error", 214}, {"uncorrectable NVLink error", 220},
	{"launch timed out", 702}, {"misaligned address", 716}, {"invalid device ordinal", 101}, {"no CUDA-capable device", 100}, {"busy or unavailable", 46},
	{"invalid argument", 1}, {"system not yet initialized", 802}, {"hardware stack error", 714}, {"illegal instruction", 715}, {"peer access", 217}, {"unknown error", 999},
	{"driver version is insufficient", 35}, {"initialization error", 3},
}

// cudaError takes "CUDA error: an illegal memory access was encountered", "Cuda failure 719", "CUBLAS_STATUS_EXECUTION_FAILED" and their like.
func (c *logContext) cudaError(line []byte, at Where) bool {
	if !bytes.Contains(line, []byte("rror")) && !bytes.Contains(line, []byte("ailure")) && !containsAny(line, "CUBLAS_STATUS", "CUDNN_STATUS", "CUDA_ERROR_", "illegal memory") {
		return false
	}
	if containsAny(line, "CUDA kernel errors might be", "CUDA error handling", "no CUDA error", "CUDA_LAUNCH_BLOCKING", "STATUS_SUCCESS") && !bytes.Contains(line, []byte("CUDA error: ")) {
		return false // the advice that PyTorch prints behind it
	}
	f := newFact(CUDAError, at, line)
	for _, n := range cudaNames {
		if bytes.Contains(line, []byte(n.text)) {
			f.Code, f.Detail = n.code, n.text
			break
		}
	}
	if n, ok := numberBehind(line, "Cuda failure ", "CUDA failure ", "CUDA error "); ok && f.Code < 0 {
		f.Code = n
	}
	f.speakingRank(c.prefix.text)
	f.torchGroup(line)
	c.nameDefault(&f)
	c.add(f)
	return true
}

// speakingRank reads "rank 6 exc …" and "Rank 6: …" at the beginning of a text.
func (f *Fact) speakingRank(text []byte) {
	text = bytes.TrimLeft(text, " [")
	if rest, ok := skipAny(text, "rank ", "Rank ", "RANK ", "rank=", "rank:"); ok {
		if n, _, ok := leadingNumber(rest); ok && n >= 0 && n < 1<<20 {
			f.Rank = n
		}
	}
}

// remoteError takes errors that say no more than that a peer is gone or the network failed, and Python's exceptions about NCCL's other results.
func (c *logContext) remoteError(line []byte, at Where) bool {
	f := newFact(RemoteError, at, line)
	switch {
	case containsAny(line, "Duplicate GPU detected", "ncclInternalError", "ncclInvalid", "ncclUnhandledCudaError", ", internal error", ", unhandled cuda error", ", invalid usage", ", invalid argument"):
		f.Kind = NCCLWarn
	case bytes.Contains(line, []byte("gloo/transport")):
		return false
	case !containsAny(line, "ncclRemoteError", "ncclSystemError", "remote process exited", "NCCL", "nccl", "TCPStore", "c10d", "socket", "Socket"):
		return false
	}
	for _, r := range ncclResults {
		if bytes.Contains(line, []byte(r.name)) || r.text != "" && bytes.Contains(line, []byte(r.text)) {
			f.Detail = r.name
			break
		}
	}
	f.Consequence = f.Kind == RemoteError
	f.duplicateGPU(line)
	f.speakingRank(c.prefix.text)
	f.torchGroup(line)
	c.nameDefault(&f)
	c.add(f)
	return true
}

// ncclResults are NCCL's results, and what PyTorch writes of them in one line with "NCCL error in".
var ncclResults = []struct{ name, text string }{
	{"ncclRemoteError", ""}, {"ncclSystemError", ", unhandled system error"}, {"ncclInternalError", ", internal error"}, {"ncclInvalidUsage", ", invalid usage"},
	{"ncclInvalidArgument", ", invalid argument"}, {"ncclUnhandledCudaError", ", unhandled cuda error"},
}

// gloo takes "Timed out waiting 6000ms for recv operation to complete" and a peer that closed its connection.
func (c *logContext) gloo(line []byte, at Where) bool {
	if !bytes.Contains(line, []byte("gloo")) {
		return false
	}
	f := newFact(Gloo, at, line)
	f.speakingRank(c.prefix.text)
	switch {
	case bytes.Contains(line, []byte("Timed out waiting ")):
		if n, ok := numberBehind(line, "Timed out waiting "); ok {
			f.TimeoutMs = int64(n)
		}
		_, what, _ := bytes.Cut(line, []byte(" for "))
		what, _, _ = bytes.Cut(what, []byte(" operation"))
		f.Op = strings.ToLower(cutText(what, 20))
		f.Detail = "timed out"
	case bytes.Contains(line, []byte("Connection closed by peer")), bytes.Contains(line, []byte("Connection reset by peer")), bytes.Contains(line, []byte("Broken pipe")):
		f.Detail, f.Consequence = "peer closed", true
		if _, peer, ok := bytes.Cut(line, []byte("by peer [")); ok {
			peer, _, _ = bytes.Cut(peer, []byte("]"))
			f.Detail += " " + cutText(peer, 60)
		}
	default:
		f.Detail = cutText(bytes.TrimSpace(c.prefix.text), 200)
	}
	c.add(f)
	return true
}
