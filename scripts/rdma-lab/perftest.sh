#!/usr/bin/env bash
# For both hosts of the lab: runs perftest's tools, host b as the client of host a.
#   perftest.sh [-r REPEATS] [-n ITERATIONS] [-m MIB] [-o DIR] TOOLS SIZES [QPS]
# TOOLS, SIZES (bytes) and QPS (1) are lists in one word each: perftest.sh "ib_write_bw ib_read_lat" "2 65536" "1 4".
# Iterations are as many as make MIB (8) mebibytes, at least 8 and at most 1000: under emulation a mebibyte takes a tenth of a second and more.
# Texts go to DIR (/out/perftest), and a line a run to b's standard output:
#   tool bytes qps repeat iterations value unit      value: average of bandwidth (MiB/s), median of latency (us)
set -uo pipefail
repeats=1 iterations='' mib=8 dir=$LAB_OUT/perftest limit_s=120 attempts=10
while getopts r:n:m:o: option; do
	case $option in
	r) repeats=$OPTARG ;;
	n) iterations=$OPTARG ;;
	m) mib=$OPTARG ;;
	o) dir=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[[ $# == 2 || $# == 3 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"

iterations() { # BYTES
	local n=$((mib * 1048576 / $1))
	((n <= 1000)) || n=1000
	((n >= 8)) || n=8
	echo "${iterations:-$n}"
}

# listens PORT PID: until it does; the server may be gone before
listens() {
	local i
	for ((i = 0; i < 400; i++)); do
		grep -qs ":$(printf %04X "$1") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 && return
		kill -0 "$2" 2>/dev/null || return
		sleep 0.05
	done
	return 1
}

# bandwidth BYTES MIB MPPS: in MiB/s. The rate of data has two decimals (of MB, which are MiB here), that of messages six: whichever has more digits.
bandwidth() {
	awk -v bytes="$1" -v mib="$2" -v mpps="$3" 'BEGIN { print (mpps * 1e6 > mib * 100 ? mpps * 1e6 * bytes / 1048576 : mib) }'
}

# row FILE: the line of figures
row() { awk '/^ *[0-9]+ +[0-9]+ +[0-9.]+/ { r = $0 } END { print r }' "$1"; }

# clockless FILE: perftest counts cycles and measures their rate at its start. On a busy machine that fails and gives 0 or inf, or comes
# out wrong, which it tells, and gives figures that are as wrong.
clockless() { grep -qE 'Conflicting CPU frequency|^ *[0-9]+ +[0-9]+ +(inf|0\.000000 +0\.000000)' "$1"; }

ended() { # STATUS FILE: says in FILE how a tool failed, and fails
	[[ $1 == 124 ]] && echo "perftest.sh: stopped after $limit_s s without an end" >>"$2" || echo "perftest.sh: exit status $1" >>"$2"
	return 1
}

serve() { # FILE COMMAND
	local file=$1 status=0
	shift
	timeout "$limit_s" "$@" >"$file.server.txt" 2>&1 &
	listens 18515 $! || echo "perftest.sh: the server does not listen" >>"$file.server.txt"
	lab sync perftest || status=1
	wait $! || ended $? "$file.server.txt" || status=1
	return $status
}

use() { # FILE COMMAND
	local file=$1
	shift
	lab sync perftest || return
	timeout "$limit_s" "$@" "$LAB_PEER" >"$file.txt" 2>&1 || ended $? "$file.txt"
}

# attempt FILE COMMAND: both hosts return b's verdict, which goes over the folder that they share: 0, 1 failed, 9 to be done again
attempt() {
	local file=$1 status=0
	if [[ $LAB_HOST == a ]]; then
		serve "$@" || tail -n 5 "$file.server.txt"
	else
		use "$@" || status=1
		[[ $status == 1 ]] || ! clockless "$file.txt" || status=9
		echo "$status" >"$file.verdict"
	fi
	LAB_SYNC_S=$limit_s lab sync ran || return 1
	return "$(<"$file.verdict")"
}

# once TOOL BYTES QPS REPEAT
once() {
	local tool=$1 bytes=$2 qps=$3 n file=$dir/$1-$2-$3-$4 command figures status i
	n=$(iterations "$bytes")
	command=("$tool" -x 1 -d rxe0 -s "$bytes" -n "$n")
	[[ $tool == *_bw ]] && command+=(-q "$qps")
	for ((i = 0; i < attempts; i++)); do
		status=0
		attempt "$file" "${command[@]}" || status=$?
		[[ $status == 9 ]] || break
		[[ $LAB_HOST == a ]] || echo "# $tool $bytes $qps $4: again, perftest found no rate of its clock"
	done
	[[ $LAB_HOST == b ]] || return "$status"
	read -r -a figures < <(row "$file.txt")
	if ((status != 0 || ${#figures[@]} < 5)); then
		echo "perftest.sh: $tool, $bytes bytes, failed:"
		tail -n 5 "$file.txt"
		return 1
	fi
	if [[ $tool == *_bw ]]; then
		echo "$tool $bytes $qps $4 $n $(bandwidth "$bytes" "${figures[3]}" "${figures[4]}") MiB/s"
	else
		echo "$tool $bytes $qps $4 $n ${figures[4]} us"
	fi
}

failed=0
for ((r = 1; r <= repeats; r++)); do
	for bytes in $2; do
		for qps in ${3:-1}; do
			for tool in $1; do
				once "$tool" "$bytes" "$qps" "$r" || failed=1
			done
		done
	done
done
exit $failed
