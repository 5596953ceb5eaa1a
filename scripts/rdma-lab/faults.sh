#!/usr/bin/env bash
# For both hosts of the lab: what goes wrong between them is told on both sides, in time. Host a serves, host b asks. A line a check, "ok" or "FAIL".
set -uo pipefail
dir=$LAB_OUT/faults
mkdir -p "$dir"
program=$LAB_ROOT/bin/commprobe
failed=0

# told NAME FILE STATUS SECONDS WANTED_STATUS LIMIT WORDS…: one side's end
told() {
	local name=$1 file=$2 status=$3 took=$4 wanted=$5 limit=$6 word bad=''
	shift 6
	[[ $status == "$wanted" ]] || bad+=" status $status, wanted $wanted;"
	((took <= limit)) || bad+=" took $took s, limit $limit;"
	for word in "$@"; do
		grep -qF -- "$word" "$file" || bad+=" does not say '$word';"
	done
	if [[ -z $bad ]]; then
		echo "ok    $name"
	else
		echo "FAIL  $name:$bad"
		sed 's/^/      /' "$file" | tail -n 8
		failed=1
	fi
}

# both NAME SERVER_OPTIONS CLIENT_OPTIONS: one test; status and seconds are set
both() {
	local name=$1 begin
	if [[ $LAB_HOST == a ]]; then
		# shellcheck disable=SC2086 # words
		timeout 100 "$program" rdma serve "$LAB_ADDR" --once $2 >"$dir/$name.a.txt" 2>&1 &
		child=$!
		sleep 1
		lab sync "$name"
	else
		lab sync "$name"
		# shellcheck disable=SC2086
		timeout 100 "$program" rdma ${3/ADDR/$LAB_PEER} >"$dir/$name.b.txt" 2>&1 &
		child=$!
	fi
}

over() { # sets status
	status=0
	wait "$child" || status=$?
}

# ---- the link is cut while data flows
both cut "-T 20" "write ADDR -D 60 -T 20 -s 64K --set retries=3 --set ack-timeout=14"
sleep 8
SECONDS=0
[[ $LAB_HOST == a ]] || lab link off b
over
if [[ $LAB_HOST == b ]]; then
	told "link cut, the side that sends" "$dir/cut.b.txt" "$status" $SECONDS 5 20 "port down" "transport retry" "GID 1 (10.77.0.2) to 1 (10.77.0.1)"
	lab link on b
else
	told "link cut, the other side" "$dir/cut.a.txt" "$status" $SECONDS 5 30 "b (pid"
fi
lab sync mended
# The address stays, but the port needs a moment.
for ((i = 0; i < 100; i++)); do
	grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state && break
	sleep 0.1
done

# ---- silence: ports stay active, sends run into their retries; the control connection lives (it is let through)
both silence "-T 20" "write ADDR -D 60 -T 20 -s 64K --set retries=3 --set ack-timeout=14"
sleep 8
SECONDS=0
if [[ $LAB_HOST == a ]]; then # RoCE v2 is UDP port 4791
	tc qdisc replace dev eth0 root handle 1: prio bands 3 && tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100% &&
		tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3
fi
over
if [[ $LAB_HOST == b ]]; then
	told "RoCE packets dropped, the side that sends" "$dir/silence.b.txt" "$status" $SECONDS 5 30 "transport retry" "10.77.0.1"
else
	told "RoCE packets dropped, the other side" "$dir/silence.a.txt" "$status" $SECONDS 5 30 "transport retry" b
	tc qdisc replace dev eth0 root pfifo limit 300000
fi
lab sync loud

# ---- wrong data
both wrong "" "write ADDR -s 4K -n 16 --inject-fault"
SECONDS=0
over
told "a wrong byte" "$dir/wrong.$LAB_HOST.txt" "$status" $SECONDS 6 30 "wrong data" "offset"
lab sync done
exit $failed
