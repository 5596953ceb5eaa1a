# NCCL settings for production. Source it on every host: . ./nccl-prod.sh – or put the NCCL_ lines, without export and quotes, into /etc/nccl.conf.
# Little is set on purpose: algorithm, protocol, channels and buffers come from the machine, and what is forced hurts other sizes and later versions.
# Lines that begin with # need a value of the site.

# --- the log: errors only, one file a process -----------------------------------------------------------------------------------------------------
export NCCL_DEBUG=WARN
# The folder must exist. An existing file is cut at start.
#export NCCL_DEBUG_FILE=/var/log/nccl/nccl-%h-%p.log

# --- where traffic goes ---------------------------------------------------------------------------------------------------------------------------
# The interface that reaches all other hosts; the wrong one is the first cause of jobs that hang at their start. = means exactly this name.
#export NCCL_SOCKET_IFNAME==eth0
# The RDMA devices for this traffic; unset means all of them, storage and management included. Without = mlx5_1 takes mlx5_10 as well.
#export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3
# Demand RDMA: fails at once instead of falling back to TCP without a word. With a plugin its own network name stands here.
#export NCCL_NET=IB

# --- RoCE: must be what the switches are set up for -------------------------------------------------------------------------------------------------
# Traffic class of lossless traffic; 106 is DSCP 26.
#export NCCL_IB_TC=106
# Only where the automatic choice of the address (from 2.21 on) is wrong; the number may mean another address on another host: show_gids.
#export NCCL_IB_GID_INDEX=3
# --- InfiniBand: service level that the subnet manager set up for adaptive routing
#export NCCL_IB_SL=1

# --- PyTorch: a job that hangs must end and leave evidence -----------------------------------------------------------------------------------------
# 3 ends the process without aborting the communicator first; an abort can itself hang.
export TORCH_NCCL_ASYNC_ERROR_HANDLING=3
export TORCH_NCCL_ENABLE_MONITORING=1
# Longer than the longest stop that is in order, such as loading or compiling.
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600
export TORCH_NCCL_DUMP_ON_TIMEOUT=1
# PyTorch up to 2.10 knows these two as TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE.
export TORCH_FR_BUFFER_SIZE=2000
# The rank is added to the name. Storage that all hosts see, in a folder that exists: a job's files must survive its nodes.
#export TORCH_FR_DUMP_TEMP_FILE=/shared/jobs/ID/nccl_trace_rank_
