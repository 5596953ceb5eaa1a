#!/usr/bin/env bash
# Runs as root in a guest: sets the network and the RDMA devices up, waits for the other guest, runs the command, says how it ended.
# init starts it from the lab's folder for results, where the runner has put it beside the settings.
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[[ $(</proc/cmdline) =~ lab\.host=([ab]) ]] && export LAB_HOST=${BASH_REMATCH[1]}
set -a
. "/out/.lab/$LAB_HOST.env" # LAB_ROOT LAB_ADDR LAB_PEER LAB_NICS LAB_MTU
set +a
export LAB_OUT=/out PATH=$PATH:$LAB_ROOT/scripts/rdma-lab
COMMPROBE_TOKEN=$(printf %064d 1) # by it the programs of both hosts know each other; it is no secret here
export COMMPROBE_TOKEN

# The control channel stays open, so that no word of the runner is lost between two readers.
exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo

fail() {
	echo "fail $*" >&3
	sleep infinity # the runner ends the machine
}

# device N: netdev ethN, RDMA device rxeN, address 10.(77+N).0.1 or .2
device() {
	local net=eth$1 rdma=rxe$1 i
	# Duplicate address detection would keep the link-local GID away for seconds.
	echo 0 >"/proc/sys/net/ipv6/conf/$net/accept_dad"
	# The network of the lab loses nothing, as RoCE wants it: the default queue (fq_codel) drops packets that waited 5 ms, which an emulated host needs
	# for a few of them, and soft-RoCE then repeats whole messages until nothing gets through.
	tc qdisc replace dev "$net" root pfifo limit 300000 || fail "cannot set the queue of $net"
	ip addr add "10.$((77 + $1)).0.${LAB_ADDR##*.}/24" dev "$net" && ip link set "$net" mtu "$LAB_MTU" up || fail "cannot set up $net"
	rdma link add "$rdma" type rxe netdev "$net" || fail "cannot add $rdma on $net"
	for ((i = 0; i < 100; i++)); do
		grep -qs "ffff:" "/sys/class/infiniband/$rdma/ports/1/gids/1" && return
		sleep 0.05
	done
	fail "$rdma has no GID for its IPv4 address after 5 s"
}

hostname "$LAB_HOST" 2>/dev/null || echo "$LAB_HOST" >/proc/sys/kernel/hostname
ip link set lo up
# What udev does elsewhere.
ln -s /proc/self/fd /dev/fd
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "/dev/${n#*:}"; done
for ((n = 0; n < LAB_NICS; n++)); do
	device "$n"
done

echo ready >&3
read -r -u 3 word || fail "the control channel is closed"
[[ $word == go ]] || fail "the runner said $word instead of go"
cd "$LAB_ROOT" || fail "no folder $LAB_ROOT in the guest"
bash "/out/.lab/$LAB_HOST.cmd" >"/out/$LAB_HOST.txt" 2>&1 </dev/null 3>&-
echo "exit $?" >&3
# The machine stays until the runner ends it: what this host still has to send must not be lost because its command was done first.
sleep infinity
