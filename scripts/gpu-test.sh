#!/bin/sh
# Runs the test binaries that `make gpu-test` built, on a machine with a GPU and this tree; Go is not needed there.
# Arguments go to every binary: scripts/gpu-test.sh -test.run Graph
cd "$(dirname "$0")/.." || exit 1
root=$PWD
export REQUIRE_GPU=1 COMMPROBE_TEST_ENGINE=native

ran=0 failed=
for package in csrc cuda nccl bench links internal/nvml cmd/commprobe; do
	binary=$root/bin/gpu/$(basename "$package").test
	[ -x "$binary" ] || continue
	ran=$((ran + 1))
	echo "== $package"
	# A test finds its files relative to the folder of its package.
	# Few at a time: each test's timing threads spin, and all of them share the GPUs.
	(cd "$package" && "$binary" -test.timeout 8m -test.parallel 4 "$@") || failed="$failed $package"
done
if [ "$ran" = 0 ]; then
	echo "gpu-test: nothing in bin/gpu: run make gpu-test where Go is, and bring bin/gpu here" >&2
	exit 1
fi
if [ -n "$failed" ]; then
	echo "gpu-test: failed:$failed" >&2
	exit 1
fi
echo "gpu-test: $ran packages passed"
