#!/bin/sh
# need.sh THING... makes sure that the build tools named are here, and installs what is missing from the distribution (Debian, Ubuntu).
# It looks at what works, not at what is installed, and touches apt only if something is missing.
# Things: make cc tsan setarch verbs-headers rdma-lab must be there in the end; certs clang-16 pip ip are told about and left out if they cannot be had.
set -u

have() {
	case $1 in
	make) command -v make ;;
	# A compiler without the C library's headers is common: gcc only recommends libc6-dev.
	cc) compiles -pthread ;;
	tsan) compiles -pthread -fsanitize=thread ;;
	setarch) command -v setarch ;;
	verbs-headers) printf '#include <infiniband/verbs.h>\nint main(void) { return 0; }\n' | ${CC:-gcc} -x c -c - -o "$tmp/probe" ;;
	clang-16) command -v clang-16 ;;
	ip) command -v ip ;;
	rdma-lab)
		PATH=$PATH:/sbin:/usr/sbin
		for tool in qemu-system-x86_64 busybox cpio depmod modprobe xz zstd rdma tc ib_write_bw ibv_devinfo; do
			command -v $tool || return
		done
		! ldd "$(command -v busybox)" # it runs where there is no C library
		;;
	pip) python3 -m pip --version || pip3 --version || pip --version ;;
	certs) # Where Go looks. It fetches modules by itself, but brings no certificates.
		for f in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem \
			/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/ssl/cert.pem; do
			[ -s "$f" ] && return
		done
		false
		;;
	esac >/dev/null 2>&1
}

compiles() {
	printf '#include <dlfcn.h>\n#include <math.h>\n#include <pthread.h>\nint main(void) { return 0; }\n' |
		${CC:-gcc} "$@" -x c - -o "$tmp/probe" -ldl -lm
}

packages() {
	case $1 in
	cc | tsan) echo gcc libc6-dev ;; # libtsan comes with gcc
	setarch) echo util-linux ;;
	verbs-headers) echo libibverbs-dev ;;
	pip) echo python3 python3-pip ;;
	certs) echo ca-certificates ;;
	ip) echo iproute2 ;;
	rdma-lab) echo qemu-system-x86 busybox-static cpio kmod xz-utils zstd perftest ibverbs-utils ibverbs-providers rdma-core iproute2 ;;
	*) echo "$1" ;;
	esac
}

missing() {
	for thing in "$@"; do
		have "$thing" || echo "$thing"
	done
}

apt() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" >"$tmp/log" 2>&1
}

install() {
	sudo=
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || return
		sudo=sudo
	fi
	command -v apt-get >/dev/null || return
	echo "missing: $*" >&2
	apt update || sed 's/^/need.sh: apt-get update: /' "$tmp/log" >&2
	wanted=
	for p in $(for thing in "$@"; do packages "$thing"; done | sort -u); do
		apt-cache show "$p" >/dev/null 2>&1 && wanted="$wanted $p"
	done
	[ -n "$wanted" ] || return
	echo "installing$wanted" >&2
	# shellcheck disable=SC2086 # a list of words
	apt install -y --no-install-recommends $wanted || sed 's/^/need.sh: apt-get install: /' "$tmp/log" >&2
}

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

for thing in "$@"; do
	case $thing in
	make | cc | tsan | setarch | verbs-headers | rdma-lab | certs | clang-16 | pip | ip) ;;
	*)
		echo "need.sh: unknown thing $thing" >&2
		exit 2
		;;
	esac
done
lacking=$(missing "$@")
[ -n "$lacking" ] || exit 0
# shellcheck disable=SC2086
install $lacking
status=0
# shellcheck disable=SC2086
for thing in $(missing $lacking); do
	case $thing in
	certs) echo "note: no certificates in /etc/ssl/certs: if Go cannot fetch modules, install ca-certificates" >&2 ;;
	clang-16) echo "note: no clang-16 to be had here: the test that rebuilds the GPU kernels is skipped" >&2 ;;
	ip) echo "note: no ip (iproute2) to be had here: the test that cuts a network is skipped" >&2 ;;
	pip) echo "note: no pip to be had here: the test against NVIDIA's headers is skipped unless they are in its cache" >&2 ;;
	*)
		echo "need.sh: $thing is missing. As root on Debian or Ubuntu: apt-get install $(packages "$thing")" >&2
		status=3
		;;
	esac
done
exit $status
