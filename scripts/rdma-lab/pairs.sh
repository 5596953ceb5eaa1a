#!/usr/bin/env bash
# For both hosts of the lab: `commprobe rdma pairs` from host a, whose agent on b is started through rsh. Each OPTIONS is one run.
#   pairs.sh [-o DIR] OPTIONS…            pairs.sh "-n 64" "--test latency -n 200" "-b -n 64"
# A line a run on a's standard output, "ok" or "FAIL"; texts and JSON go to DIR (/out/pairs). Emulated processors make figures that vary by factors: a low --below
# is given, so that what is tested is that everything was measured.
set -uo pipefail
dir=$LAB_OUT/pairs
if [[ ${1:-} == -o ]]; then
	dir=$2
	shift 2
fi
[[ $# -gt 0 ]] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$dir"
if [[ $LAB_HOST == b ]]; then
	rsh -l &
	shell=$!
	lab sync pairs-begin || exit 1
	LAB_SYNC_S=3600 lab sync pairs-end
	sleep 2
	left=$(pgrep -f "rdma-agent$" | wc -l)
	kill $shell
	((left == 0)) && echo "ok    no agent is left" || { echo "FAIL  $left agents are left"; exit 1; }
	exit 0
fi
lab sync pairs-begin || exit 1
failed=0 n=0
for options in "$@"; do
	n=$((n + 1)) status=0
	read -r -a words <<<"$options"
	"$LAB_ROOT/bin/commprobe" rdma pairs --hosts "a=$LAB_ADDR,b=$LAB_PEER" --rsh "$LAB_ROOT/scripts/rdma-lab/rsh" --below 0.01 -T 60 --set ack-timeout=20 \
		--json "$dir/$n.json" --force "${words[@]}" >"$dir/$n.txt" 2>"$dir/$n.err" || status=$?
	if ((status == 0)) && grep -q "VERDICT: good" "$dir/$n.txt"; then
		echo "ok    $options: $(sed -n 's/^# \(measured [^,]*\),.*/\1/p' "$dir/$n.txt")"
	else
		failed=1
		echo "FAIL  $options: status $status"
		tail -n 8 "$dir/$n.txt" "$dir/$n.err" | sed 's/^/      /'
	fi
done
lab sync pairs-end
exit $failed
