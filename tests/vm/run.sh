#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs fief on Debian's own kernels, each in an emulated machine. Usage: tests/vm/run.sh [-m | -s SCRIPT] [VERSION...]
#
# VERSION: the first numbers of a kernel that Debian trixie or its backports have, or `newest`: the newest that they have now; without
# any, 6.12, 7.0 and the newest. On each the checks are made in an initramfs, and then those of a whole machine, which systemd runs from
# a disk; with -m the latter alone. With -s, the guest runs the lines of SCRIPT in place of all checks. Kernels, an initramfs, the disk
# and the guests' consoles are kept in target/vm; nothing of the machine's package management is changed. Fails if a check fails or is
# skipped, or a guest dies; by 77 if a kernel cannot be had. Only on the newest a check may be skipped, with a reason. VM_PROGRAMS: the
# folder of a built fief and fief-tests-vm; without it both are built. VM_APPEND: more boot parameters for the guests.
set -euo pipefail

script=
guests=(checks machine)
case ${1:-} in
-s)
	script=$(realpath "$2")
	guests=(checks)
	shift 2
	;;
-m)
	guests=(machine)
	shift
	;;
esac
[[ $# -gt 0 ]] || set -- 6.12 7.0 newest

cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/vm
programs=$(realpath -m "${VM_PROGRAMS:-$target/release}")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# a guest that hangs is ended
most_seconds=${VM_SECONDS:-1800}
mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial"

missing=
for program in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio; do
	command -v "${program%:*}" >/dev/null || missing+=" ${program#*:}"
done
if [[ -n $missing ]]; then
	echo "skipped: no guest without$missing (apt install$missing)"
	exit 0
fi

# apt with lists of its own, from the mirror that this machine uses.
private_apt() {
	local mirror
	if [[ ! -s $place/apt/sources ]]; then
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | grep -v security | head -n 1)
		[[ -n $mirror ]] || { echo "apt knows no mirror: apt-get update" >&2; return 1; }
		for suite in trixie trixie-backports; do
			echo "deb [signed-by=$keyring] $mirror $suite main"
		done >"$place/apt/sources"
	fi
	APT_CONFIG=$place/apt/config "$@"
}

cat >"$place/apt/config" <<CONFIG
Dir::Etc::SourceList "$place/apt/sources";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$place/apt/lists";
Dir::Cache "$place/apt/cache";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONFIG

# The whole version of the newest kernel that apt offers. What it offers is asked for again after a day; without a mirror what it said
# before has to do.
newest() {
	local asked=$place/apt/asked version
	if [[ -z $(find "$asked" -mtime -1 2>/dev/null) ]]; then
		private_apt apt-get update -qq >&2 && touch "$asked" || true
	fi
	version=$(private_apt apt-cache search --names-only '^linux-(binary|image)-[0-9][^-]*-cloud-amd64$' |
		sed -E 's/^linux-[a-z]+-([^-]*)-.*/\1/' | sort -V | tail -n 1)
	[[ -n $version ]] || { echo "apt offers no kernel" >&2; return 1; }
	echo "$version"
}

# The newest kernel of a version, unpacked with those of its modules that the checks need, which since 7.0 are another
# package's; prints its folder. One that is here already is not asked for again.
kernel() {
	local package files=$place/files module path release words
	if ! compgen -G "$place/kernels/$1[.+-]*/vmlinuz" >/dev/null; then
		compgen -G "$place/apt/lists/*Packages*" >/dev/null || private_apt apt-get update -qq >&2 || return 1
		words=$(sed 's/[.+]/\\&/g' <<<"$1")
		# since 7.0, linux-image is without the image
		package=$(private_apt apt-cache search --names-only "^linux-(binary|image)-$words([.+][^-]*)?-cloud-amd64$" |
			cut -d' ' -f1 | sort -t- -k2,2 -k3,3V | awk -F- '!kind { kind = $2 } $2 == kind' | tail -n 1)
		[[ -n $package ]] || { echo "Debian trixie has no kernel $1" >&2; return 1; }
		rm -rf "$files"
		(cd "$place" && private_apt apt-get download -qq "$package" >&2 && dpkg-deb -x "$package"_*.deb "$files" &&
			rm "$package"_*.deb) || return 1
		path=$(compgen -G "$files/boot/vmlinuz-*")
		release=${path##*vmlinuz-}
		mkdir -p "$place/kernels/$release"
		for module in llc stp garp mrp 8021q bridge veth inet_diag tcp_diag; do
			find "$files" -name "$module.ko.xz" -exec busybox xzcat {} \; >"$files/$module.ko"
			[[ ! -s $files/$module.ko ]] || mv "$files/$module.ko" "$place/kernels/$release"
		done
		mv "$path" "$place/kernels/$release/vmlinuz"
		rm -rf "$files"
	fi
	dirname "$(compgen -G "$place/kernels/$1[.+-]*/vmlinuz" | sort -V | tail -n 1)"
}

# A program without debug information, and the libraries that it needs.
install_program() {
	local library
	mkdir -p "$(dirname "$2")"
	strip -o "$2" "$1"
	{ ldd "$1" | grep -oE '/[^ ]+' || true; } | while read -r library; do
		[[ -e $root$library ]] || install -D "$(realpath "$library")" "$root$library"
	done
}

# The server that experiments have, where this machine has it, with those of its modules that they ask for.
install_servers() {
	local module
	[[ -x /usr/sbin/lighttpd ]] || return 0
	install_program /usr/sbin/lighttpd "$root/bin/lighttpd"
	for module in /usr/lib/lighttpd/mod_{cgi,deflate}.so; do
		[[ ! -e $module ]] || install_program "$module" "$root$module"
	done
}

names=(fief fief-tests-vm)
build_programs() {
	local packages=(-p fief-cli -p fief-tests-vm)
	if [[ -n ${VM_PROGRAMS:-} ]]; then
		[[ -z $script || ! -e $programs/fief-lab ]] || names+=(fief-lab)
		return 0
	fi
	if [[ -n $script ]]; then # which may have experiments
		names+=(fief-lab)
		packages+=(-p fief-lab)
	fi
	cargo build --release --locked "${packages[@]}"
}

build_initramfs() {
	local applet kernel name
	root=$place/root
	rm -rf "$root"
	mkdir -p "$root"/{bin,proc,sys,dev,tmp,run}
	cp "$(command -v busybox)" "$root/bin/busybox"
	for applet in $(busybox --list); do
		[[ -e $root/bin/$applet ]] || ln -s busybox "$root/bin/$applet"
	done
	for name in "${names[@]}"; do
		install_program "$programs/$name" "$root/bin/$name"
	done
	rm "$root/bin/ip" # busybox's makes no pair of links
	install_program "$(command -v ip)" "$root/bin/ip"
	for kernel in "$@"; do
		mkdir -p "$root/modules/${kernel##*/}"
		find "$kernel" -name '*.ko' -exec cp -t "$root/modules/${kernel##*/}" {} +
	done
	cp tests/vm/init "$root/init"
	if [[ -n $script ]]; then
		cp "$script" "$root/script"
		[[ " ${names[*]} " != *" fief-lab "* ]] || install_servers
	fi
	(cd "$root" && find . | cpio --create --format=newc --quiet) >"$place/initramfs"
}

# Two CPUs (VM_CPUS: another number), emulated in turn, whose clock counts instructions: however busy this machine is, figures are exact.
# With VM_CLOCK=host each CPU is a thread of this machine, whose clock is the guest's. What the guest says goes to standard output, its console to a
# file. Usage: boot FOLDER checks|machine
boot() {
	local release=${1##*/} guest=$2 said=$place/said console cpu=Nehalem own shift
	local -a clock
	console=$place/console-$release
	# QEMU 7.2 can leave wrong flags after CMPXCHG16B, of which 6.12 dies; later kernels' local storage needs it
	[[ $release != 6.12.* ]] || cpu+=,-cx16
	if [[ $guest == checks ]]; then
		shift=2
		own=(-no-reboot -initrd "$place/initramfs" -append "console=ttyS0 panic=-1 quiet ${VM_APPEND:-}")
	else
		console+=-machine
		# Both kernels have NVMe and ext4 built in. What is written lasts over a reboot, and ends with the machine. The CPU is four
		# times as fast as the other guest's, by the clock: systemd gives services minutes, and the verifier is emulated. That clock
		# leaps while nobody runs, so no disk is late.
		shift=0
		own=(-drive "if=none,id=disk,file=$place/machine,format=raw,snapshot=on,cache=unsafe" -device nvme,drive=disk,serial=machine
			-append "console=ttyS0 panic=-1 quiet root=/dev/nvme0n1 rw rootwait nvme_core.io_timeout=4000 systemd.show_status=yes \
				${VM_APPEND:-}")
	fi
	clock=(-accel tcg,thread=single -icount "shift=$shift,sleep=off")
	[[ ${VM_CLOCK:-} != host ]] || clock=(-accel tcg,thread=multi)
	: >"$said"
	nice -n "${VM_NICE:-15}" timeout "$most_seconds" qemu-system-x86_64 "${clock[@]}" \
		-cpu "$cpu" -smp "${VM_CPUS:-2}" -m 1024 -display none -nodefaults -serial "file:$console" \
		-device virtio-serial-pci -chardev "file,id=result,path=$said" -device virtserialport,chardev=result,name=result \
		-kernel "$1/vmlinuz" "${own[@]}" || true
	tr -d '\r' <"$said" | tee -a "$place/all"
	if ! grep -q '^== end ' "$said"; then
		echo "FAILED the guest died, or was ended after $most_seconds seconds; its console:" | tee -a "$place/all"
		grep -av '^[[:space:]]*$' "$console" | tail -n 45
	elif ! grep -q '^== end 0' "$said"; then
		echo "FAILED something on $release" | tee -a "$place/all"
	elif [[ -z $script && -z ${may_skip[$1]:-} ]] && grep -q '^skipped ' "$said"; then
		echo "FAILED $release should have what was skipped" | tee -a "$place/all"
	fi
}

# The disk of a whole machine; where this one cannot give it, why.
build_disk() {
	local ended=0
	tests/vm/machine/disk "$programs/fief" "$programs/fief-tests-vm" "$place/machine" || ended=$?
	[[ $ended != 77 ]] || guests=("${guests[@]/machine/}")
	[[ $ended == 0 || $ended == 77 ]]
}

: >"$place/all"
kernels=()
declare -A may_skip=()
for version in "$@"; do
	whole=$version
	[[ $version != newest ]] || whole=$(newest) || { echo "no newest kernel: what apt said is above"; exit 77; }
	folder=$(kernel "$whole") || { echo "no kernel $whole: what apt said is above"; exit 77; }
	[[ " ${kernels[*]} " != *" $folder "* ]] || continue
	kernels+=("$folder")
	[[ $version != newest ]] || may_skip[$folder]=1
done
build_programs
[[ ${guests[*]} == machine ]] || build_initramfs "${kernels[@]}"
[[ ${guests[*]} != *machine ]] || build_disk
for folder in "${kernels[@]}"; do
	for guest in ${guests[*]}; do
		boot "$folder" "$guest"
	done
done
failed=$(grep -c '^FAILED ' "$place/all" || true)
passed=$(grep -c '^ok ' "$place/all" || true)
skipped=$(grep -c '^skipped ' "$place/all" || true)
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed == 0 && ( -n $script || $passed -gt 0 ) ]]
