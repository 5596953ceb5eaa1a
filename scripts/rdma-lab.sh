#!/usr/bin/env bash
# Two hosts with real RDMA verbs (soft-RoCE) on a machine without RDMA hardware: two virtual machines under qemu. docs/rdma-lab.md says more.
#   rdma-lab.sh build [DIR]                       fetch the kernel (never installed), make the initramfs; quick when they are in the cache
#   rdma-lab.sh run [OPTIONS] -- CMD_A [CMD_B]    boot hosts a and b, run a shell command in each (CMD_A in both if there is one only)
#       --out DIR        results: a.txt b.txt a.status b.status (out/rdma-lab)
#       --timeout S      for the commands, from the moment both hosts are up (300)
#       --grace S        how long b may go on after a has ended (10)
#       --mtu N          of the netdevs; RDMA takes the next lower power of two (1500: RDMA 1024)
#       --nics N         RDMA devices a host, each with a link of its own (1)
#       --cpus N         processors a host (1; what polls in two threads of one host wants 2)
#       --pin            host a runs on processor 0 of this machine only, b on processor 1: figures between hosts vary less
#       --icount         the guests' clocks count instructions: figures within one host repeat whatever else this machine does
#       --memory N       MiB a host (1024)
#       --cache DIR      as for build
#   rdma-lab.sh link OUT HOST off|on [NIC]        cut a link of a run that is going on, or mend it
#   rdma-lab.sh freeze OUT HOST, thaw OUT HOST    stop a host's processors, let them go on
# Exit status of run: 0 both commands ended with 0, 1 one did not, 2 usage, 3 something is missing, 4 time-out.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=$root/scripts/rdma-lab
boot_limit_s=240 # a busy machine with counted instructions took 100

say() { echo "rdma-lab: $*" >&2; }
die() {
	local status=$1
	shift
	say "$@"
	exit "$status"
}
usage() {
	sed -n 's/^#   //p' "$root/scripts/rdma-lab.sh" >&2
	exit 2
}

# ---- kernel and initramfs

# kernel_version: of the package that the distribution's metapackage for a full kernel depends on. Kernels for clouds lack rdma_rxe.
kernel_version() {
	local meta
	for meta in linux-image-amd64 linux-image-generic; do
		[[ -n $(apt-cache pkgnames "$meta") ]] || continue
		apt-cache depends "$meta" | sed -n 's/^ *Depends: linux-image-\([0-9][^ ]*\)$/\1/p' | head -n 1
		return
	done
}

# fetch VERSION DIR: vmlinuz and modules, from packages that are unpacked only
fetch() {
	local version=$1 dir=$2 package deb
	mkdir -p "$dir/deb" "$dir/tree"
	for package in "linux-image-$version" "linux-modules-$version" "linux-modules-extra-$version"; do
		apt-cache show "$package" >/dev/null 2>&1 || continue # Ubuntu's modules are packages of their own
		(cd "$dir/deb" && apt-get -qq -o Acquire::Retries=3 download "$package" 2>"$dir/log") || {
			cat "$dir/log" >&2
			die 3 "cannot download $package: is there a network, is apt-get update needed?"
		}
	done
	for deb in "$dir"/deb/*.deb; do
		[[ -e $deb ]] || die 3 "apt knows no package linux-image-$version"
		dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$dir/tree" --wildcards './boot/vmlinuz*' './lib/modules/*' --exclude='*/drivers/gpu' --exclude='*/sound' ||
			[[ -d $dir/tree/lib/modules ]] || die 3 "cannot unpack ${deb##*/}"
	done
	rm -r "$dir/deb"
	[[ -e $dir/tree/boot/vmlinuz-$version && -d $dir/tree/lib/modules/$version ]] || die 3 "the packages of kernel $version have no vmlinuz or no modules"
}

# unpack VMLINUZ FILE: the kernel in it as an ELF file, which qemu starts as it is. Unpacking takes an emulated processor several seconds.
# Where it lies: "The real-mode kernel header" of the kernel's boot protocol.
unpack() {
	local setup offset length packer
	setup=$((($(number "$1" 0x1f1 1) + 1) * 512))
	offset=$((setup + $(number "$1" 0x248 4))) length=$(number "$1" 0x24c 4)
	case $(od -An -tx1 -j "$offset" -N 4 "$1" | tr -d ' ') in
	fd377a58) packer=xz ;;
	28b52ffd) packer=zstd ;;
	1f8b*) packer=gzip ;;
	*) return 1 ;;
	esac
	# The last four bytes are the length of what comes out.
	tail -c "+$((offset + 1))" "$1" | head -c "$((length - 4))" | "$packer" -dcq >"$2" || [[ -s $2 ]] || return
	[[ $(head -c 4 "$2" | od -An -c | tr -d ' ') == 177ELF ]]
}

number() { od -An "-tu$3" -j "$(($2))" -N "$3" "$1" | tr -d ' '; } # FILE OFFSET BYTES

# initramfs VERSION TREE FILE: busybox, init, and the modules in the order of their dependencies
initramfs() {
	local version=$1 tree=$2 file=$3 fs word path module
	fs=$(mktemp -d "$tree/initramfs.XXXXXX")
	mkdir -p "$fs"/{bin,dev,proc,sys,lower,changes,root,modules}
	cp "$(busybox_static)" "$fs/bin/busybox"
	cp "$parts/init" "$fs/init"
	/sbin/depmod -b "$tree" "$version"
	grep -v '^#' "$parts/modules" | while read -r module; do
		/sbin/modprobe -d "$tree" -S "$version" --ignore-install --show-depends "$module" ||
			die 3 "kernel $version has no module $module"
	done | while read -r word path _; do
		[[ $word == insmod ]] || continue # "builtin"
		module=$(basename "$path" | sed 's/\.ko.*/.ko/')
		[[ -e $fs/modules/$module ]] && continue
		case $path in
		*.xz) xz -dc "$path" ;;
		*.zst) zstd -dcq "$path" ;;
		*.gz) gzip -dc "$path" ;;
		*) cat "$path" ;;
		esac >"$fs/modules/$module"
		echo "$module" >>"$fs/modules/order"
	done
	(cd "$fs" && find . | cpio -o -H newc --quiet | gzip -1) >"$file.part"
	rm -r "$fs"
	mv "$file.part" "$file"
}

busybox_static() {
	local b
	for b in /bin/busybox /usr/bin/busybox; do
		[[ -x $b ]] && echo "$b" && return
	done
	die 3 "no busybox (package busybox-static)"
}

# build [DIR]: sets kernel and initrd. What is in DIR is complete: it appears by one rename.
build() {
	local version dir tmp
	[[ $(uname -m) == x86_64 ]] || die 3 "the lab runs on x86_64 only: its guests run the host's programs"
	"$root/scripts/need.sh" rdma-lab || exit 3
	version=$(kernel_version)
	if [[ -z $version ]]; then # an image without apt's lists
		local sudo=
		[[ $(id -u) == 0 ]] || sudo=sudo
		$sudo apt-get -qq update >&2 || say "apt-get update failed"
		version=$(kernel_version)
	fi
	[[ -n $version ]] || die 3 "apt knows neither linux-image-amd64 (Debian) nor linux-image-generic (Ubuntu): the lab needs one of their kernels"
	dir=${1:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/commprobe/rdma-lab/$version}
	kernel=$dir/kernel
	initrd=$dir/initramfs-$(cat "$parts/init" "$parts/modules" | sha256sum | cut -c1-12).gz
	[[ -e $kernel && -e $initrd ]] && return

	mkdir -p "$(dirname "$dir")"
	tmp=$(mktemp -d "$dir.XXXXXX")
	# shellcheck disable=SC2064 # now, not then
	trap "rm -rf '$tmp'" EXIT
	say "fetching kernel $version (once: then it is in ${dir%/*})"
	fetch "$version" "$tmp"
	mkdir "$tmp/new"
	unpack "$tmp/tree/boot/vmlinuz-$version" "$tmp/new/kernel" || cp "$tmp/tree/boot/vmlinuz-$version" "$tmp/new/kernel"
	initramfs "$version" "$tmp/tree" "$tmp/new/${initrd##*/}"
	rm -rf "$dir"
	# Somebody else may have built the same at the same time.
	mv -T "$tmp/new" "$dir" 2>/dev/null || [[ -e $kernel && -e $initrd ]] || die 3 "cannot write $dir"
	rm -rf "$tmp"
	trap - EXIT
}

# ---- a run: $lab is its folder for sockets, pipes and settings, OUT/.lab

accelerator() {
	if ((icount)); then
		echo "-accel tcg,thread=single -icount shift=1 -cpu max"
	elif [[ -r /dev/kvm && -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
		echo "-accel kvm -cpu host"
	else
		echo "-accel tcg,thread=multi -cpu max"
	fi
}

# boot HOST NUMBER: starts qemu; paths are relative to $lab, since the name of a socket has 107 bytes at most
boot() {
	local host=$1 n=$2 i pipe text args=() death=()
	for pipe in qmp ctl; do
		mkfifo "$lab/$host.$pipe.in" "$lab/$host.$pipe.out"
		exec {i}<>"$lab/$host.$pipe.in" # what is written before qemu has opened it must not be lost
		args+=(-chardev "pipe,id=$pipe,path=$host.$pipe")
	done
	for ((i = 0; i < nics; i++)); do
		args+=(-netdev "stream,id=n$i,server=$([[ $host == a ]] && echo on || echo off),addr.type=unix,addr.path=net$i"
			-device "virtio-net-pci,id=net$i,netdev=n$i,mac=52:54:00:00:0$i:0$n,romfile=")
	done
	printf '%s\n' "LAB_ROOT=${root@Q}" "LAB_ADDR=10.77.0.$n" "LAB_PEER=10.77.0.$((3 - n))" "LAB_NICS=$nics" "LAB_MTU=$mtu" >"$lab/$host.env"
	cat "$lab/$host.qmp.out" >"$lab/$host.qmp.txt" &
	pids+=($!)
	{ sed -u "s/^/$host /" "$lab/$host.ctl.out" && echo "$host gone"; } >"$lab/events" &
	pids+=($!)
	# Nothing may outlive this script, even when it is killed.
	command -v setpriv >/dev/null && death=(setpriv --pdeathsig KILL)
	((pin)) && death+=(taskset -c "$((n - 1))")
	# shellcheck disable=SC2046 # words
	(cd "$lab" && exec "${death[@]}" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot $(accelerator) \
		-m "$memory" -smp "$cpus" -kernel "$kernel" -initrd "$initrd" \
		-append "console=ttyS0 quiet panic=-1 lab.host=$host" \
		-chardev "file,id=console,path=$host.console.txt" -serial chardev:console -serial chardev:ctl -mon chardev=qmp,mode=control \
		-virtfs "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap" \
		-virtfs "local,path=${out//,/,,},mount_tag=out,security_model=none" "${args[@]}") >"$lab/$host.qemu.txt" 2>&1 &
	pids+=($!)
	echo $! >"$lab/$host.pid"
	text=$(ask "$host" qmp_capabilities '{}') || {
		say "$host: $text"
		console "$host"
		exit 1
	}
}

# ask HOST COMMAND ARGUMENTS: a command for qemu; its answer, or a message and status 1
ask() {
	local host=$1 command=$2 arguments=$3 id=$BASHPID.$RANDOM answer i
	kill -0 "$(cat "$lab/$host.pid" 2>/dev/null)" 2>/dev/null || { echo "host $host does not run"; return 1; }
	echo "{\"execute\":\"$command\",\"arguments\":$arguments,\"id\":\"$id\"}" 1<>"$lab/$host.qmp.in"
	for ((i = 0; i < 500; i++)); do
		if answer=$(grep -s "\"id\": \"$id\"" "$lab/$host.qmp.txt"); then
			[[ $answer != *'"error":'* ]] && return
			echo "$answer" | sed 's/.*"desc": "\([^"]*\)".*/\1/'
			return 1
		fi
		sleep 0.02
	done
	echo "qemu of host $host does not answer"
	return 1
}

link() { # HOST off|on [NIC]
	[[ $1 == [ab] && $2 =~ ^(on|off)$ && ${3:-0} =~ ^[0-9]+$ ]] || { echo "link wants: HOST off|on [NIC]"; return 1; }
	ask "$1" set_link "{\"name\":\"net${3:-0}\",\"up\":$([[ $2 == on ]] && echo true || echo false)}"
}
freeze() { ask "$1" stop '{}'; }
thaw() { ask "$1" cont '{}'; }

# act HOST WORDS: what a guest asked for by scripts/rdma-lab/lab
act() {
	local from=$1 word=$2
	shift 2
	case $word in
	link)
		if [[ ${2:-} == [ab] ]]; then link "$2" "${1:-}" "${3:-0}"; else link "$from" "${1:-}" "${2:-0}"; fi
		;;
	freeze)
		local host=$from
		[[ ${1:-} == [ab] ]] && host=$1 && shift
		if [[ $host == "$from" && ! ${1:-} =~ ^[0-9.]+$ ]]; then
			echo "a host that freezes itself must say for how many seconds"
			return 1
		fi
		freeze "$host"
		;;
	thaw) thaw "${1:-$from}" ;;
	*)
		echo "the lab cannot do this: $word"
		return 1
		;;
	esac
}

# thaw_later HOST [HOST] [SECONDS]: after a freeze that is to end by itself
thaw_later() {
	local host=$1
	shift
	[[ ${1:-} == [ab] ]] && host=$1 && shift
	[[ -n ${1:-} ]] || return 0
	# Not sleep: it would outlive a shell that is killed.
	{ read -r -t "$1" -u "$never" || thaw "$host"; } >/dev/null &
}

tell() { echo "$2" 1<>"$lab/$1.ctl.in"; } # HOST LINE

# answer HOST ID WORDS
answer() {
	local host=$1 id=$2 text
	shift 2
	if [[ $1 == sync ]]; then
		meet "$host" "$id" "${2:-}"
		return
	fi
	say "$host: $*"
	if text=$(act "$host" "$@"); then
		[[ $1 != freeze ]] || thaw_later "$host" "${@:2}"
		tell "$host" "$id ok"
	else
		tell "$host" "$id error $text"
	fi
}

# meet HOST ID NAME: the second to come frees both
meet() {
	local host=$1 id=$2 name=$3 peer=b
	[[ $host == a ]] || peer=a
	if [[ -n ${ended[$peer]:-} ]]; then
		tell "$host" "$id error host $peer has ended"
	elif [[ ${waiting[$peer]:-} == *" $name" ]]; then
		tell "$peer" "${waiting[$peer]%% *} ok"
		tell "$host" "$id ok"
		unset "waiting[$peer]"
	else
		waiting[$host]="$id $name"
	fi
}

end() { # HOST STATUS
	local host=$1 peer=b
	[[ $host == a ]] || peer=a
	[[ -z ${ended[$host]:-} ]] || return 0
	ended[$host]=$2
	echo "$2" >"$out/$host.status"
	if [[ -n ${waiting[$peer]:-} ]]; then
		tell "$peer" "${waiting[$peer]%% *} error host $host has ended"
		unset "waiting[$peer]"
	fi
	[[ $host == a ]] && ((SECONDS + grace < deadline)) || return 0
	deadline=$((SECONDS + grace)) in_grace=1
}

# console HOST: why it did not come up
console() {
	sed "s/^/rdma-lab: $1: /" "$lab/$1.qemu.txt" "$lab/$1.console.txt" 2>/dev/null | tail -n 20 >&2
}

# attend: the life of a run. One line of a guest is one event.
attend() {
	local ready=0 host word rest
	deadline=$((SECONDS + boot_limit_s))
	while [[ -z ${ended[a]:-} || -z ${ended[b]:-} ]]; do
		if ! read -r -t $((deadline > SECONDS ? deadline - SECONDS : 0)).1 -u "$events" host word rest; then
			((deadline > SECONDS)) || return 0
			continue
		fi
		case $word in
		ready)
			((++ready < 2)) && continue
			say "both hosts are up after $SECONDS s"
			up=1 deadline=$((SECONDS + timeout_s))
			tell a go
			tell b go
			;;
		ask)
			read -r -a words <<<"$rest"
			answer "$host" "${words[@]}"
			;;
		exit) end "$host" "$rest" ;;
		fail)
			say "$host: $rest"
			console "$host"
			end "$host" failed
			;;
		gone)
			[[ -n ${ended[$host]:-} ]] || console "$host"
			end "$host" gone
			;;
		esac
		((up)) || [[ $word == ready ]] || return 0 # it will not come up any more
	done
}

# end_all: every process of this run
end_all() {
	local pid i
	# shellcheck disable=SC2207 # those that wait to thaw a host are not in the list
	pids+=($(jobs -rp))
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for ((i = 0; i < 40; i++)); do
		[[ -n $(jobs -rp) ]] || break
		sleep 0.05
	done
	for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	pids=()
}

stop_all() {
	trap '' INT TERM
	end_all
}

verdict() {
	local host bad=0 late=0
	if ((!up)); then
		for host in a b; do
			[[ -n ${ended[$host]:-} ]] && continue
			echo "not up" >"$out/$host.status"
			console "$host"
		done
		say "the hosts did not both come up (limit $boot_limit_s s): all that they said is in $lab"
		return 1
	fi
	for host in a b; do
		case ${ended[$host]:-} in
		0) ;;
		'')
			if [[ $host == b && $in_grace == 1 ]]; then
				echo stopped >"$out/b.status"
				say "b was still busy $grace s after a had ended"
				bad=1
			else
				echo time-out >"$out/$host.status"
				say "$host: not done in time"
				late=1
			fi
			;;
		*)
			say "$host: ${ended[$host]}: see $out/$host.txt"
			bad=1
			;;
		esac
	done
	((late)) && return 4
	return $bad
}

# live CMD_A CMD_B: one life of both hosts, from the empty folder to the end of their commands
live() {
	rm -rf "$lab" "$out"/{a,b}.{txt,status}
	mkdir "$lab"
	mkfifo "$lab/events" "$lab/never"
	exec {never}<>"$lab/never"
	exec {events}<>"$lab/events"
	echo "$1" >"$lab/a.cmd"
	echo "$2" >"$lab/b.cmd"
	cp "$parts/guest.sh" "$lab/"
	declare -gA ended=() waiting=()
	up=0 in_grace=0 SECONDS=0
	boot a 1
	local i
	for ((i = 0; i < 500; i++)); do # b connects to what a has made
		[[ -S $lab/net$((nics - 1)) ]] && break
		kill -0 "$(cat "$lab/a.pid")" 2>/dev/null || break
		sleep 0.02
	done
	boot b 2
	attend
}

run() {
	out=$root/out/rdma-lab timeout_s=300 grace=10 mtu=1500 nics=1 cpus=1 memory=1024 icount=0 pin=0
	local cache=
	while [[ $# -gt 0 ]]; do
		case $1 in
		--) shift && break ;;
		--icount) icount=1 && shift && continue ;;
		--pin) pin=1 && shift && continue ;;
		--hosts) [[ ${2:-} == 2 ]] || die 2 "the lab has two hosts" ;;
		--out) out=${2:-} ;;
		--cache) cache=${2:-} ;;
		--timeout | --grace | --mtu | --nics | --cpus | --memory)
			[[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || die 2 "$1 wants a number"
			case $1 in
			--timeout) timeout_s=$2 ;;
			--grace) grace=$2 ;;
			--mtu) mtu=$2 ;;
			--nics) nics=$2 ;;
			--cpus) cpus=$2 ;;
			--memory) memory=$2 ;;
			esac
			;;
		*) usage ;;
		esac
		shift 2 || usage
	done
	[[ $# == 1 || $# == 2 ]] || usage
	build "$cache"
	qemu-system-x86_64 -netdev help 2>/dev/null | grep -qw stream || die 3 "qemu 7.2 or newer is needed for its network over unix sockets"
	mkdir -p "$out" && out=$(cd "$out" && pwd) || die 2 "cannot make the folder for results"
	exec {lock}>"$out/.lock"
	flock -n "$lock" || die 2 "a lab is running in $out: choose another --out"
	lab=$out/.lab
	pids=()
	trap stop_all EXIT
	trap 'exit 130' INT TERM HUP
	live "$1" "${2:-$1}"
	local status=0 again
	for again in 1 2; do
		# Emulated kernels panic now and then before they have done anything, when they calibrate their clocks on a busy machine.
		((!up)) && grep -qs "Kernel panic" "$lab"/?.console.txt || break
		say "a host's kernel panicked while it booted: once more"
		end_all
		live "$1" "${2:-$1}"
	done
	verdict || status=$?
	say "a: $(cat "$out/a.status"), b: $(cat "$out/b.status"), after $SECONDS s, in $out"
	exit $status
}

command=${1:-}
[[ $# == 0 ]] || shift
case $command in
build)
	build "${1:-}"
	echo "$kernel"
	echo "$initrd"
	;;
run) run "$@" ;;
link | freeze | thaw)
	[[ $# -ge 2 ]] || usage
	lab=$1/.lab
	shift
	text=$("$command" "$@") || die 1 "$text"
	;;
*) usage ;;
esac
