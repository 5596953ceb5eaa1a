#!/usr/bin/env bash
# For both hosts of the lab: bin/commprobe rdma against perftest in the same boot, in turn, host b asks host a. A machine that does nothing else is needed.
#   compare.sh [-r REPEATS] [-q QPS] TESTS SIZES          compare.sh -r 5 "write read send" "2 64 4096 65536"
# TESTS are write, read, send (bandwidth) and write-latency, read-latency, send-latency. A line a pair on b's standard output:
#   test bytes qps repeat iterations perftest ours unit     bandwidth: average, MiB/s; latency: median, us
# Within a pair the order changes from one repeat to the next.
set -uo pipefail
repeats=3 qps=1 dir=$LAB_OUT/compare
while getopts r:q: option; do
	case $option in
	r) repeats=$OPTARG ;;
	q) qps=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"
COMMPROBE_TOKEN=$(printf %064d 1) # it is no secret here
export COMMPROBE_TOKEN
binary=$LAB_ROOT/bin/commprobe

# iterations TEST BYTES: a second or two
iterations() {
	case $1 in
	*-latency) echo $((131072000 / ($2 + 131072))) ;;
	*) echo $((24 * 1048576 / ($2 + 5000) / qps + 5)) ;;
	esac
}

theirs() { # TEST BYTES N
	local tool=ib_${1%-latency}_bw
	[[ $1 != *-latency ]] || tool=ib_${1%-latency}_lat
	perftest.sh -n "$3" -o "$dir" "$tool" "$2" "$qps" | awk '/^#/ { print > "/dev/stderr"; next } $1 ~ /^ib_/ { print $6 }'
}

ours() { # TEST BYTES N
	if [[ $LAB_HOST == b ]]; then
		local words=("$1" "$LAB_PEER" -q "$qps")
		[[ $1 != *-latency ]] || words=(latency "$LAB_PEER" "${1%-latency}")
		"$binary" rdma "${words[@]}" -s "$2" -n "$3" --set ack-timeout=20 2>>"$dir/ours.err" | tee -a "$dir/ours.txt" |
			awk -v bytes="$2" -v test="$1" '/ ok \(/ { print (test ~ /latency/ ? $5 : bytes < 4096 ? $7 * bytes / 1.048576 : $5) }'
	fi
	LAB_SYNC_S=120 lab sync ours
}

if [[ $LAB_HOST == a ]]; then
	"$binary" rdma serve "$LAB_ADDR" >"$dir/serve.txt" 2>&1 &
	server=$!
	trap 'kill -INT $server; wait $server' EXIT
	sleep 2
fi
lab sync compare || exit 1
failed=0
for ((r = 1; r <= repeats; r++)); do
	for bytes in $2; do
		for test in $1; do
			n=$(iterations "$test" "$bytes")
			if ((r % 2)); then
				x=$(theirs "$test" "$bytes" "$n") y=$(ours "$test" "$bytes" "$n")
			else
				y=$(ours "$test" "$bytes" "$n") x=$(theirs "$test" "$bytes" "$n")
			fi
			[[ $LAB_HOST == a ]] || echo "$test $bytes $qps $r $n ${x:--} ${y:--} $([[ $test == *-latency ]] && echo us || echo MiB/s)"
			[[ $LAB_HOST == a || (-n $x && -n $y) ]] || failed=1
		done
	done
done
exit $failed
