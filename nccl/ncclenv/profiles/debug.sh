# NCCL settings to find out what is wrong. Source it before the job, on every host: . ./nccl-debug.sh
# It writes much: use it for one run, keep the logs, then go back to the production profile.

# --- the log of NCCL -----------------------------------------------------------------------------------------------------------------------------
export NCCL_DEBUG=INFO
# For a job that hangs add COLL: every call with its opCount, so the last lines of all ranks can be compared.
export NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING
# %h is the host, %p the process; without %p all processes of a host write the same file. The folder must exist.
export NCCL_DEBUG_FILE=/tmp/nccl-%h-%p.log
# From 2.26 on: a time on each INFO line too, with milliseconds (_ is a blank).
export NCCL_DEBUG_TIMESTAMP_LEVELS=ALL
export NCCL_DEBUG_TIMESTAMP_FORMAT='[%F_%T.%3f]_'

# --- where traffic goes: name it, so that it is not what goes wrong ------------------------------------------------------------------------------
# ip -br addr shows the names. The = in the value means exactly this one; without it eth1 takes eth10 as well.
#export NCCL_SOCKET_IFNAME==eth0
# ls /sys/class/infiniband shows the names.
#export NCCL_IB_HCA==mlx5_0,mlx5_1

# --- one at a time, to find the culprit; each is proved by a whole curve before and after, then removed -------------------------------------------
#export NCCL_NET=Socket           # is it RDMA?
#export NCCL_P2P_DISABLE=1        # is it GPU to GPU within a node?
#export NCCL_SHM_DISABLE=1        # is it shared memory?
#export NCCL_NET_GDR_LEVEL=LOC    # is it GPUDirect RDMA?
#export NCCL_NVLS_ENABLE=0        # is it NVLink SHARP?
#export NCCL_PROTO=^LL128         # wrong results?
#export NCCL_ALGO=allreduce:ring  # is it the algorithm?
# Compares counts and types among ranks; from 2.29.7 on, slow.
#export NCCL_CHECK_MODE=DEBUG_GLOBAL

# --- PyTorch: leave evidence ---------------------------------------------------------------------------------------------------------------------
# 3 ends the process without aborting the communicator first; an abort can itself hang, and then the dump is lost.
export TORCH_NCCL_ASYNC_ERROR_HANDLING=3
export TORCH_NCCL_ENABLE_MONITORING=1
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=300
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
# PyTorch up to 2.10 knows these two as TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE.
export TORCH_FR_BUFFER_SIZE=2048
# The rank is added to the name; take a folder that all hosts see. It must exist.
export TORCH_FR_DUMP_TEMP_FILE=/tmp/nccl_trace_rank_
# Compares each collective among ranks before it starts: names a mismatch at once, and is slow.
#export TORCH_DISTRIBUTED_DEBUG=DETAIL
