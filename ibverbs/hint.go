package ibverbs

// #include <sys/resource.h>
// enum { IV_RLIMIT_MEMLOCK = RLIMIT_MEMLOCK };
import "C"

import (
	"fmt"
	"math"
	"syscall"
)

// memlock reads the limit of locked memory of this process. A variable for tests.
var memlock = func() (uint64, error) {
	var r syscall.Rlimit
	err := syscall.Getrlimit(C.IV_RLIMIT_MEMLOCK, &r)
	return r.Cur, err
}

func memlockHint() string {
	limit := "unknown"
	switch n, err := memlock(); {
	case err != nil:
	case n == math.MaxUint64:
		return "the limit of locked memory is unlimited, so the machine or the device itself is out of memory or of such objects"
	default:
		limit = fmt.Sprintf("%d KiB", n/1024)
	}
	return "the limit of locked memory (RLIMIT_MEMLOCK) of this process is " + limit + ", most likely too small: raise it with ulimit -l unlimited, " +
		"/etc/security/limits.conf, systemd LimitMEMLOCK=infinity, docker --ulimit memlock=-1, or CAP_IPC_LOCK in Kubernetes"
}

const (
	noPermission = "this process may not use /dev/infiniband/uverbs*: add the user to the group that owns it, or give the container the devices " +
		"(docker --device=/dev/infiniband, Kubernetes RDMA device plugin)"
	noDeviceFile = "/dev/infiniband/uverbs* is not there: modprobe ib_uverbs, or give the container the devices (docker --device=/dev/infiniband)"
	noKernel     = "the kernel has no RDMA support, or this container does not see it: modprobe ib_uverbs and the driver of the adapter " +
		"(mlx5_ib, bnxt_re, irdma; rdma_rxe for soft-RoCE)"
	noDMABuf = "DMA-BUF memory needs Linux 5.12, a provider that can (mlx5, newer irdma, efa, bnxt_re) in this container's rdma-core, and NVIDIA's " +
		"open kernel modules"
	noGPU = "the address is not this process's host memory. GPU memory needs the module nvidia_peermem (modprobe nvidia-peermem) and an ib_core that " +
		"takes it (MLNX_OFED or DOCA), free BAR1 space, and a GPU that offers GPUDirect RDMA (GeForce and vGPU do not); DMA-BUF is the other way"
	badRTR = "the GID index is empty or of another type than the peer's, RoCE without a global route, or the MTU is above the port's active MTU"
	noPeer = "the peer's GID could not be resolved to a hardware address: no answer to ARP or neighbour discovery. A link-local GID does not cross " +
		"subnets; see ip route get ADDRESS of the GID, VLAN, cable"
	noNetDev = "the GID's slot is empty or its network interface is gone, as in a container of another network namespace: choose another GID index"
	noRoute  = "no route from the GID's network interface to the peer's GID"
)

type failure struct {
	fn    string
	errno syscall.Errno
}

// hints tells what an errno of a call most likely means. Memory limits are told apart from the rest in Hint.
var hints = map[failure]string{
	{"ibv_get_device_list", syscall.ENOSYS}: noKernel,
	{"ibv_get_device_list", syscall.EPERM}:  noPermission,
	{"ibv_get_device_list", syscall.EACCES}: noPermission,
	{"ibv_open_device", syscall.EACCES}:     noPermission,
	{"ibv_open_device", syscall.EPERM}:      noPermission,
	{"ibv_open_device", syscall.ENOENT}:     noDeviceFile,
	{"ibv_open_device", syscall.ENXIO}:      noDeviceFile,
	{"ibv_open_device", syscall.ENODEV}:     "the device is gone, or the name is not that of an RDMA device: see rdma link, ibv_devices",

	{"ibv_reg_mr", syscall.EFAULT}:       noGPU,
	{"ibv_reg_mr", syscall.EINVAL}:       "the range is empty or wraps, or remote write and atomics were asked for without local write",
	{"ibv_reg_mr", syscall.EOPNOTSUPP}:   "the device does not offer one of the access rights that were asked for",
	{"ibv_reg_mr_iova2", syscall.EFAULT}: noGPU,

	{"ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP}:      noDMABuf,
	{"ibv_reg_dmabuf_mr", syscall.EPROTONOSUPPORT}: noDMABuf,
	{"ibv_reg_dmabuf_mr", syscall.EBADF}:           "the file descriptor is not a DMA-BUF",
	{"ibv_reg_dmabuf_mr", syscall.EINVAL}: "offset, address and length must agree in their place within a page of the host, and only local write, " +
		"remote and relaxed-ordering rights are allowed",

	{"ibv_create_qp", syscall.EOPNOTSUPP}: "the device has no queue pairs of this type (EFA, for one, has SRD instead of RC)",
	{"ibv_create_qp", syscall.EINVAL}:     "more sends, receives, segments or inline bytes than the device allows; ask for less",
	{"ibv_create_cq", syscall.EINVAL}:     "more entries than the device allows, or none",
	{"ibv_create_ah", syscall.ETIMEDOUT}:  noPeer,
	{"ibv_create_ah", syscall.EINVAL}:     badRTR,
	{"ibv_query_port", syscall.EINVAL}:    "the device has no such port",

	{"ibv_modify_qp to INIT", syscall.EINVAL}:      "the device has no such port or partition key, or the queue pair is not in state reset",
	{"ibv_modify_qp to RTR", syscall.EINVAL}:       badRTR,
	{"ibv_modify_qp to RTR", syscall.ETIMEDOUT}:    noPeer,
	{"ibv_modify_qp to RTR", syscall.EHOSTUNREACH}: noPeer,
	{"ibv_modify_qp to RTR", syscall.ENODEV}:       noNetDev,
	{"ibv_modify_qp to RTR", syscall.ENODATA}:      noNetDev,
	{"ibv_modify_qp to RTR", syscall.ENETUNREACH}:  noRoute,
	{"ibv_modify_qp to RTS", syscall.EINVAL}:       "the queue pair is not ready to receive, or more outstanding reads were asked for than the device allows",

	{"ibv_post_send", syscall.ENOMEM}: "the send queue is full: fewer operations at a time, or a larger queue",
	{"ibv_post_send", syscall.EINVAL}: "the queue pair is not ready to send, or the data is too large to go inline",
	{"ibv_post_recv", syscall.ENOMEM}: "the receive queue is full: fewer receives at a time, or a larger queue",
}

// locking are the calls that lock memory.
var locking = map[string]bool{
	"ibv_reg_mr": true, "ibv_reg_mr_iova2": true, "ibv_reg_dmabuf_mr": true, "ibv_create_cq": true, "ibv_create_qp": true, "ibv_alloc_pd": true,
}

// Hint says what an errno of a verbs call most likely means and what to do, "" when nothing is known. ibv_modify_qp is told apart by the state that
// it was to bring: "ibv_modify_qp to RTR".
func Hint(fn string, errno syscall.Errno) string {
	if errno == syscall.ENOMEM && locking[fn] {
		return memlockHint()
	}
	return hints[failure{fn, errno}]
}
