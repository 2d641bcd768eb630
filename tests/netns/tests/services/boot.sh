# SPDX-License-Identifier: Apache-2.0 OR MIT
# Boots this machine's systemd in namespaces of its own, as PID 1 of a copy of this machine whose services are Fief's and nginx.
# Started by unshare(1) in new namespaces of every kind but users. Usage: boot.sh ROOT PROGRAM SERVICE POLICY
set -eu

root=$1

mount --make-rprivate /
mount -t tmpfs none "$root"
mkdir "$root/changed" "$root/work" "$root/machine"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/changed,workdir=$root/work" "$root/machine"

touch "$root/machine/usr/bin/fief"
mount --bind "$2" "$root/machine/usr/bin/fief"
mkdir -p "$root/machine/etc/fief"
cp "$4" "$root/machine/etc/fief/policy.toml"
cp "$3" "$root/machine/etc/systemd/system/fief.service"
cat >"$root/machine/etc/systemd/system/web.service" <<-UNIT
	[Service]
	User=www-data
	ExecStart=/usr/bin/python3 -m http.server 8080
UNIT

cd "$root/machine"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /sys/fs/bpf sys/fs/bpf
mount --rbind /dev dev
mount -t tmpfs none run
mount -t tmpfs none tmp
ip link set lo up

# What this machine starts is none of its copy's business, nor are its disks.
: >etc/fstab
for wants in {etc,usr/lib}/systemd/system/*.{wants,requires}; do
	[ ! -d "$wants" ] || mount -t tmpfs none "$wants"
done
mkdir -p etc/systemd/system.conf.d etc/systemd/system/multi-user.target.wants
printf '[Manager]\nDefaultEnvironment=FIEF_SCOPE=%s\n' "$FIEF_SCOPE" >etc/systemd/system.conf.d/fief.conf
for service in etc/systemd/system/fief.service lib/systemd/system/nginx.service; do
	ln -s "/$service" etc/systemd/system/multi-user.target.wants/
done
for service in nginx web; do
	/usr/bin/env "$2" unit "$service" --container shop --root .
done

exec chroot . env -i "PATH=$PATH" container=other /lib/systemd/systemd --unit=multi-user.target --show-status=no \
	--log-target=console --log-level=warning
