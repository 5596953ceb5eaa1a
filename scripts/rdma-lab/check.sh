#!/usr/bin/env bash
# For both hosts of the lab at the same time: is the lab what it says it is, and does our program work in it? `make rdma-lab` runs it.
# Each check is a line; the status is 1 if one failed. A check with two sides runs to its end on both, so that the hosts stay in step.
set -uo pipefail
failed=0

check() { # NAME COMMAND
	local name=$1 text
	shift
	if text=$("$@" 2>&1); then
		echo "ok    $name"
	else
		echo "FAIL  $name"
		failed=1
	fi
	[[ -z $text ]] || echo "$text" | sed 's/^/      /'
}

is() { # FILE WANTED: the file's only line
	[[ $(<"$1") == "$2" ]] || { echo "$1 is '$(<"$1")', wanted '$2'"; return 1; }
}

port=/sys/class/infiniband/rxe0/ports/1
check "port active" is $port/state "4: ACTIVE"
check "netdev of GID 1" is $port/gid_attrs/ndevs/1 eth0
check "GID 1 is IPv4" is $port/gids/1 "0000:0000:0000:0000:0000:ffff:0a4d:000${LAB_ADDR##*.}"
check "type of GID 1" is $port/gid_attrs/types/1 "RoCE v2"
check "libibverbs opens the device" sh -c 'ibv_devinfo -d rxe0 -i 1 | grep -E "state|mtu"'
check "both hosts are there" lab sync check
check "perftest" perftest.sh -m 4 "ib_write_bw ib_read_lat" "65536" 1
check "perftest with 4 queue pairs" perftest.sh -m 4 ib_read_bw 65536 4

# tests PACKAGE NAMES: those that need a device; each uses one host. The others do not gain from running here.
tests() {
	local binary=$LAB_ROOT/bin/rdma-lab/$1.test
	(cd "$LAB_ROOT/$1" && REQUIRE_RDMA=1 "$binary" -test.run "^($2)\$" -test.v -test.timeout 5m) >"$LAB_OUT/$1.tests.txt" 2>&1 ||
		{ tail -n 40 "$LAB_OUT/$1.tests.txt"; return 1; }
	grep -q '^--- PASS' "$LAB_OUT/$1.tests.txt" || { echo "no test was run: has it another name?"; return 1; }
	grep -c '^--- PASS' "$LAB_OUT/$1.tests.txt" | sed 's/$/ passed/'
}

# ---- ours: what `make rdma-lab` has built in bin/rdma-lab, and bin/commprobe
if [[ $LAB_HOST == a ]]; then
	check "tests of ibverbs" tests ibverbs 'TestLink'
	check "tests of rdma" tests rdma 'TestBlocksArrive|TestLinkToItself'
fi
check "both hosts are done with their tests" env LAB_SYNC_S=660 lab sync tests

# A size within one packet, one beyond 64 KiB, one of many packets. A host that is emulated answers too late for perftest's 67 ms.
opts="-s 2,65537,1M -n 8 --set ack-timeout=20"
check "our program between the hosts" link.sh "write $opts" "read $opts -q 4" "send $opts -q 4 -b" "latency write read send atomic -s 2 -n 100"
check "what goes wrong between them" faults.sh
check "all pairs of NICs" pairs.sh "-n 32 -T 10 --set ack-timeout=18"

exit $failed
