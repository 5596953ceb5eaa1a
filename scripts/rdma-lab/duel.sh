#!/usr/bin/env bash
# For both hosts of the lab: bin/commprobe rdma and perftest at the same time, but never both awake: every half second one is stopped and the other goes on, on both
# hosts. So both meet the same moods of this machine, whose processors do half as much while their other hardware thread works for somebody else, for
# seconds at a time; runs one after the other would have to be repeated for hours.
#   duel.sh [-t SECONDS] TESTS SIZES          duel.sh -t 40 "write read send read-latency" "64 4096 65536"
# A line a test and size on host b's standard output:
#   test bytes slots perftest ours     packets that the port counted in each one's time, per second: the more the better, for latencies as well
# and in duel/slots.TEST.BYTES.txt a line a pair of slots: packets and microseconds of perftest, then of ours.
# What a stopped program has queued still goes out, so bandwidth is measured with no more than 256 KiB queued, and slots are counted from their second quarter on.
set -uo pipefail
seconds=40 slot=0.5 dir=$LAB_OUT/duel
while getopts t: option; do
	case $option in
	t) seconds=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"
binary=$LAB_ROOT/bin/commprobe
port=/sys/class/infiniband/rxe0/ports/1/hw_counters
mkfifo "/run/never.$$"
exec {never}<>"/run/never.$$"
nap() { read -r -t "$1" -u "$never"; } # not sleep: starting a program takes an emulated processor 20 ms

depth_for() { # BYTES
	local d=$((262144 / $1))
	((d <= 128)) || d=128
	((d >= 1)) || d=1
	echo "$d"
}

# commands TEST BYTES: arrays of both programs' arguments; the runs are longer than the duel
commands() {
	local d n=2000000
	d=$(depth_for "$2")
	if [[ $1 == *-latency ]]; then
		perftest=("ib_${1%-latency}_lat" -x 1 -d rxe0 -s "$2" -n "$n")
		mine=(latency "$LAB_PEER" "${1%-latency}" -s "$2" -n "$n" -T 60)
	else
		perftest=("ib_${1}_bw" -x 1 -d rxe0 -s "$2" -D "$((2 * seconds + 60))" -t "$d" -Q 1)
		[[ $1 != send ]] || perftest+=(-r 512)
		mine=("$1" "$LAB_PEER" -s "$2" -D "$((2 * seconds + 60))" -t "$d" --set signal=1 -T 60)
	fi
	mine+=(--set ack-timeout=20)
}

# ---- host a: servers, and an ear for who is to be awake
serve() { # TEST BYTES
	local word pid
	commands "$1" "$2"
	"${perftest[@]}" >"$dir/server.$1.$2.txt" 2>&1 &
	pid=$!
	"$binary" rdma serve "$LAB_ADDR" >"$dir/serve.$1.$2.txt" 2>&1 &
	mine_pid=$!
	sleep 3
	lab sync ready
	while read -r word; do
		case $word in
		p) kill -STOP "$mine_pid" && kill -CONT "$pid" ;;
		o) kill -STOP "$pid" && kill -CONT "$mine_pid" ;;
		b) kill -CONT "$mine_pid" "$pid" ;;
		e) break ;;
		esac
	done < <(busybox nc -l -p 7077)
	kill -CONT "$mine_pid" "$pid" 2>/dev/null
	LAB_SYNC_S=300 lab sync over
	kill -INT "$mine_pid" 2>/dev/null
	kill "$pid" 2>/dev/null
	wait
}

# ---- host b
wake() { # p|o|b
	echo "$1" >&"$ear"
	case $1 in
	p) kill -STOP "$mine_pid" && kill -CONT "$pid" ;;
	o) kill -STOP "$pid" && kill -CONT "$mine_pid" ;;
	b) kill -CONT "$pid" "$mine_pid" ;;
	esac
} 2>/dev/null

# packets of both ways, and when
count() { packets=$(($(<$port/sent_pkts) + $(<$port/rcvd_pkts))) at=${EPOCHREALTIME/./}; }

fight() { # TEST BYTES
	local i who end n=0 before from pair
	declare -A moved=([p]=0 [o]=0) time=([p]=0 [o]=0)
	commands "$1" "$2"
	lab sync ready
	for ((i = 0; i < 50; i++)); do
		exec {ear}<>"/dev/tcp/$LAB_PEER/7077" && break
		sleep 0.1
	done 2>/dev/null
	"${perftest[@]}" "$LAB_PEER" >"$dir/perftest.$1.$2.txt" 2>&1 &
	pid=$!
	nap 4
	echo o >&"$ear" # the peer's perftest stops as well
	kill -STOP "$pid"
	"$binary" rdma "${mine[@]}" >"$dir/ours.$1.$2.txt" 2>"$dir/ours.$1.$2.err" &
	mine_pid=$!
	nap 5
	end=$((SECONDS + seconds))
	while ((SECONDS < end)) && kill -0 "$pid" 2>/dev/null && kill -0 "$mine_pid" 2>/dev/null; do
		pair=
		for who in p o; do
			wake "$who"
			nap 0.125
			count
			before=$packets from=$at
			nap 0.375
			count
			moved[$who]=$((moved[$who] + packets - before)) time[$who]=$((time[$who] + at - from))
			pair+="$((packets - before)) $((at - from)) "
		done
		echo "$pair" >>"$dir/slots.$1.$2.txt"
		n=$((n + 1))
	done
	echo "$1 $2 $n $(awk -v a="${moved[p]}" -v b="${time[p]}" -v c="${moved[o]}" -v d="${time[o]}" 'BEGIN { print a / b * 1e6, c / d * 1e6 }')"
	echo e >&"$ear"
	kill -KILL "$pid" "$mine_pid" 2>/dev/null
	exec {ear}>&-
	LAB_SYNC_S=300 lab sync over
	wait
} 2>/dev/null

lab sync duel || exit 1
for bytes in $2; do
	for test in $1; do
		if [[ $LAB_HOST == a ]]; then serve "$test" "$bytes"; else fight "$test" "$bytes"; fi
	done
done
