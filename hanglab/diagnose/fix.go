package diagnose

// fix is what usually mends a class of fault, in plain words.
func fix(c Class) string {
	switch c {
	case SizeMismatch:
		return "Make all ranks pass the same number of elements: pad to a common length, or exchange the lengths first. Look at what decides the shape on the rank that differs (last batch, variable length, a shard that does not divide)."
	case DTypeMismatch:
		return "Cast to one data type before the call. Look for an autocast region, a parameter or a branch that only this rank has."
	case OpMismatch:
		return "All ranks must call the same operation with the same root at the same place. Look for a condition on the rank, or on local data, around the call."
	case OrderMismatch:
		return "Make the order of calls the same on all ranks: no iteration over a set or a dictionary of different order, no hooks that fire in data-dependent order, no call that one rank alone makes."
	case SkippedCollective:
		return "All ranks must make the same calls. Look for a branch, an early return, a different number of batches or an exception that is swallowed before this call; decide such things on one rank and broadcast the decision."
	case UnpairedP2P:
		return "Each send needs its receive, also for empty messages. Post the missing one, or leave out both sides by one common rule; group exchanges in batch_isend_irecv or ncclGroupStart/End."
	case CrossedComms:
		return "Use the communicators in one order on all ranks, or put a synchronisation between their calls; do not run two of them from threads that race."
	case RankCrash:
		return "The first process that ended is the cause, the others only noticed. Look at its last output, its exit status or signal and the kernel log of its host."
	case RankStuckHost:
		return "Find out what the rank's main thread does: data loader, checkpoint, a lock, a debugger, a file system. Bring it out of the path between collectives, or give it a deadline of its own."
	case RankStuckGPU:
		return "Look for a kernel that does not end or a GPU fault on this rank (nvidia-smi, dmesg for Xid, cuda-gdb). Move the rank to another GPU to tell the program from the device."
	case LazyInit:
		return "Create communicators at a fixed place on all ranks (device_id in init_process_group, one warm-up collective per group), and bind each rank to its own GPU before the first call."
	case Straggler:
		return "Find why the rank is late (input, checkpoint, throttling, another job on the host), or raise the deadline if that is normal here."
	case Network:
		return "Look at the link and the NIC that are named (ibstat, port counters, switch log, GID index, MTU), and take the host out of the job until they are clean."
	case GPUFault:
		return "Take the GPU out of service and reset or replace it according to its Xid; the messages of the other processes follow from it."
	case OOMHost:
		return "The host ran out of memory: fewer data-loader workers, less pinned or shared memory, a higher limit for the container, or checkpoints written in parts."
	case OOMGPU:
		return "The GPU ran out of memory: smaller batches, checkpointing of activations, or an even split; look for a leak or for another process on this GPU."
	case EnvMismatch:
		return "Make the environment the same on all ranks: one version of NCCL, the same NCCL_ variables, one GPU for each rank (CUDA_VISIBLE_DEVICES, set_device by the local rank)."
	case NaNSource:
		return "Check the input and the loss of this rank in this step; skip or clip it there. After the reduction all ranks have the NaN."
	case GPUStuckOrNetwork:
		return "The program's calls agree, so look below it: kernel logs for Xid, NVLink and NIC counters, NCCL WARN lines on all hosts; then a run with another NCCL_PROTO or NCCL_ALGO, or another version of NCCL."
	}
	return ""
}

// verb agrees with the ranks before it: "rank 3 waits", "ranks 0-2 wait".
func verb(ranks []int, word string) string {
	if len(ranks) != 1 {
		if word == "be" {
			return "are"
		}
		return word
	}
	switch word {
	case "be":
		return "is"
	case "have":
		return "has"
	}
	return word + "s"
}
