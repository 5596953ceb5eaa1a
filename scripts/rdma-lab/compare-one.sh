#!/usr/bin/env bash
# For one host of the lab, which asks itself: bin/commprobe rdma against perftest in the same boot, in turn. Run the lab with --icount: then the host's clock counts
# instructions, and figures repeat to a few tenths of a percent whatever else this machine does.
#   compare-one.sh [-r REPEATS] TESTS SIZES          compare-one.sh -r 2 "write read send read-latency" "64 4096 65536"
# A line a run: test bytes repeat iterations perftest|ours value unit. Latencies of write and send have no meaning here: both sides poll on one processor.
set -uo pipefail
repeats=2 dir=$LAB_OUT/compare-one
while getopts r: option; do
	case $option in
	r) repeats=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"
binary=$LAB_ROOT/bin/commprobe

iterations() {
	case $1 in
	*-latency) echo 500 ;;
	*) echo $((8 * 1048576 / ($2 + 4000) + 8)) ;;
	esac
}

theirs() { # TEST BYTES N: the server first, then the client once it listens
	local tool=ib_${1%-latency}_bw args i child
	[[ $1 != *-latency ]] || tool=ib_${1%-latency}_lat
	args=(-x 1 -d rxe0 -s "$2" -n "$3")
	timeout 200 "$tool" "${args[@]}" >"$dir/server.txt" 2>&1 &
	child=$!
	for ((i = 0; i < 400; i++)); do
		grep -qs ":$(printf %04X 18515) 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 && break
		sleep 0.05
	done
	timeout 200 "$tool" "${args[@]}" "$LAB_ADDR" | tee -a "$dir/perftest.txt" |
		awk -v test="$1" -v bytes="$2" '/^ *[0-9]+ +[0-9]+ +[0-9.]+/ { v = test ~ /latency/ ? $5 : $5 * 1e6 > $4 * 100 ? $5 * 1e6 * bytes / 1048576 : $4 } END { print v }'
	wait $child
}

ours() { # TEST BYTES N
	local words=("$1" "$LAB_ADDR")
	[[ $1 != *-latency ]] || words=(latency "$LAB_ADDR" "${1%-latency}")
	timeout 200 "$binary" rdma "${words[@]}" -s "$2" -n "$3" --set ack-timeout=20 2>>"$dir/ours.err" | tee -a "$dir/ours.txt" |
		awk -v bytes="$2" -v test="$1" '/ ok \(/ { print (test ~ /latency/ ? $5 : bytes < 4096 ? $7 * bytes / 1.048576 : $5) }'
}

"$binary" rdma serve "$LAB_ADDR" >"$dir/serve.txt" 2>&1 &
server=$!
trap 'kill -INT $server; wait $server' EXIT
sleep 2
failed=0
for ((r = 1; r <= repeats; r++)); do
	for bytes in $2; do
		for test in $1; do
			unit=MiB/s n=$(iterations "$test" "$bytes")
			[[ $test != *-latency ]] || unit=us
			for program in $( ((r % 2)) && echo theirs ours || echo ours theirs); do
				value=$("$program" "$test" "$bytes" "$n")
				echo "$test $bytes $r $n ${program/theirs/perftest} ${value:--} $unit"
				[[ -n $value ]] || failed=1
			done
		done
	done
done
exit $failed
