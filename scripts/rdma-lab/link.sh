#!/usr/bin/env bash
# For both hosts of the lab: bin/commprobe rdma between them, host a serves, host b asks. Each OPTIONS is one test.
#   link.sh [-o DIR] OPTIONS…            link.sh "write -s 2..4M -n 16 -q 4 -b" "latency write read"
# The address goes behind the first word. A line a test on b's standard output, "ok" or "FAIL"; texts and JSON go to DIR (/out/link).
set -uo pipefail
dir=$LAB_OUT/link
if [[ ${1:-} == -o ]]; then
	dir=$2
	shift 2
fi
[[ $# -gt 0 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"

# serve: one server for all tests, as an engineer would leave one running
if [[ $LAB_HOST == a ]]; then
	"$LAB_ROOT/bin/commprobe" rdma serve "$LAB_ADDR" >"$dir/serve.txt" 2>&1 &
	server=$!
	for ((i = 0; i < 400; i++)); do
		grep -qs "serving\|COMMPROBE_TOKEN" "$dir/serve.txt" && break
		kill -0 $server 2>/dev/null || break
		sleep 0.05
	done
	LAB_SYNC_S=60 lab sync link-begin || exit 1
	LAB_SYNC_S=3600 lab sync link-end
	kill -INT $server
	wait $server
	exit 0
fi

lab sync link-begin || exit 1
failed=0 n=0
for test in "$@"; do
	n=$((n + 1))
	read -r -a words <<<"$test"
	begin=$EPOCHREALTIME status=0
	"$LAB_ROOT/bin/commprobe" rdma "${words[0]}" "$LAB_PEER" "${words[@]:1}" --json "$dir/$n.json" --force >"$dir/$n.txt" 2>"$dir/$n.err" || status=$?
	rows=$(grep -c ' ok (' "$dir/$n.txt")
	took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.0f", b - a }')
	if ((status == 0 && rows > 0)); then
		echo "ok    $test: $rows rows, $took s"
	else
		failed=1
		echo "FAIL  $test: status $status, $rows rows, $took s"
		tail -n 5 "$dir/$n.txt" "$dir/$n.err" | sed 's/^/      /'
	fi
done
lab sync link-end
exit $failed
