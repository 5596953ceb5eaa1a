#!/usr/bin/env bash
# For both hosts of the lab: bin/commprobe rdma against perftest in the same boot, in turn, host b asks host a. Run the lab with --pin, on a machine that
# does nothing else.
#   compare.sh [-r REPEATS] [-s SECONDS] TESTS SIZES          compare.sh -r 5 "write read send" "64 4096 65536"
# TESTS are write, read, send (bandwidth) and write-latency, read-latency, send-latency. A line a run on b's standard output:
#   test bytes repeat iterations perftest|ours value unit quiet|busy      bandwidth: average, MiB/s; latency: median, us
# The order changes from one repeat to the next. A processor whose other hardware thread works for somebody else does half as much, for seconds at a
# time. So both hosts wait (SECONDS at most, 3) until a loop takes no longer than the best seen, and run it again behind each run: "quiet" is a run with both good.
set -uo pipefail
repeats=3 patience=3 dir=$LAB_OUT/compare
while getopts r:s: option; do
	case $option in
	r) repeats=$OPTARG ;;
	s) patience=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"
binary=$LAB_ROOT/bin/commprobe
best=1000000000

# probe: microseconds of a loop, in $took; the best is kept
probe() {
	local i from=${EPOCHREALTIME/./}
	for ((i = 0; i < 2000; i++)); do :; done
	took=$((${EPOCHREALTIME/./} - from))
	((took >= best)) || best=$took
}

good() { ((took * 100 <= best * 125)); }

settle() { # sets before
	local end=$((SECONDS + patience))
	probe
	until good || ((SECONDS >= end)); do probe; done
	good && before=quiet || before=busy
}

# iterations TEST BYTES: half a second or more
iterations() {
	case $1 in
	*-latency) echo 800 ;;
	*) echo $((8 * 1048576 / ($2 + 4000) + 8)) ;;
	esac
}

theirs() { # TEST BYTES N
	local tool=ib_${1%-latency}_bw
	[[ $1 != *-latency ]] || tool=ib_${1%-latency}_lat
	perftest.sh -n "$3" -o "$dir" "$tool" "$2" 1 | awk '$1 ~ /^ib_/ { print $6 }'
}

ours() { # TEST BYTES N
	if [[ $LAB_HOST == b ]]; then
		local words=("$1" "$LAB_PEER")
		[[ $1 != *-latency ]] || words=(latency "$LAB_PEER" "${1%-latency}")
		"$binary" rdma "${words[@]}" -s "$2" -n "$3" --set ack-timeout=20 2>>"$dir/ours.err" | tee -a "$dir/ours.txt" |
			awk -v bytes="$2" -v test="$1" '/ ok \(/ { print (test ~ /latency/ ? $5 : bytes < 4096 ? $7 * bytes / 1.048576 : $5) }'
	fi
	LAB_SYNC_S=120 lab sync ours
}

# one PROGRAM TEST BYTES REPEAT
one() {
	local n value unit=MiB/s state
	[[ $2 != *-latency ]] || unit=us
	n=$(iterations "$2" "$3")
	settle
	lab sync settled || exit 1
	value=$("$1" "$2" "$3" "$n")
	probe
	good || before=busy
	[[ $LAB_HOST == b ]] || echo "$before" >"$dir/state"
	lab sync told || exit 1
	[[ $LAB_HOST == b ]] || return 0
	state=$before
	[[ $(<"$dir/state") == quiet ]] || state=busy
	echo "$2 $3 $4 $n ${1/theirs/perftest} ${value:--} $unit $state"
	[[ -n $value ]] || failed=1
}

if [[ $LAB_HOST == a ]]; then
	"$binary" rdma serve "$LAB_ADDR" >"$dir/serve.txt" 2>&1 &
	server=$!
	trap 'kill -INT $server; wait $server' EXIT
	sleep 2
fi
lab sync compare || exit 1
failed=0
for ((i = 0; i < 40; i++)); do probe; done
for ((r = 1; r <= repeats; r++)); do
	for bytes in $2; do
		for test in $1; do
			programs=(theirs ours)
			((r % 2)) || programs=(ours theirs)
			for program in "${programs[@]}"; do one "$program" "$test" "$bytes" "$r"; done
		done
	done
done
exit $failed
