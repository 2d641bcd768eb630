# SPDX-License-Identifier: Apache-2.0 OR MIT
# Boots this machine's systemd in namespaces of its own, as PID 1 of a copy of this machine whose services are Fief's and nginx; once
# more whenever it reboots. Started in a mount namespace of its own. Usage: boot.sh ROOT POLICY PROGRAM SERVICE
#                                                                           boot.sh ROOT POLICY PACKAGES
# With a folder in place of a program nothing of Fief is there yet: its packages are in /srv.
set -eu

# As the first process of the new namespaces.
if [ "$1" = start ]; then
	cd "$2"
	mount -t proc proc proc
	mount -t sysfs sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount --rbind /sys/fs/bpf sys/fs/bpf
	mount --rbind /dev dev
	mount -t tmpfs none run
	mount -t tmpfs none tmp
	ip link set lo up
	exec chroot . env -i "PATH=$PATH" container=other /lib/systemd/systemd --unit=multi-user.target --show-status=no \
		--log-target=console --log-level=warning
fi

root=$1
mount --make-rprivate /
mount -t tmpfs none "$root"
mkdir "$root/changed" "$root/work" "$root/machine"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/changed,workdir=$root/work" "$root/machine"
cd "$root/machine"
mkdir -p etc/fief
cp "$2" etc/fief/policy.toml

# What this machine starts is none of its copy's business, nor are its disks.
: >etc/fstab
for wants in {etc,usr/lib}/systemd/system/*.{wants,requires}; do
	[ ! -d "$wants" ] || mount -t tmpfs none "$wants"
done
mkdir -p etc/systemd/system.conf.d etc/systemd/system/multi-user.target.wants
printf '[Manager]\nDefaultEnvironment=FIEF_SCOPE=%s\n' "$FIEF_SCOPE" >etc/systemd/system.conf.d/fief.conf
ln -s /lib/systemd/system/nginx.service etc/systemd/system/multi-user.target.wants/

# Packages start and stop services here as they would anywhere.
rm -f usr/sbin/policy-rc.d
if [ -d "$3" ]; then
	cp "$3"/*.deb srv
else
	touch usr/bin/fief
	mount --bind "$3" usr/bin/fief
	cp "$4" etc/systemd/system/fief.service
	ln -s /etc/systemd/system/fief.service etc/systemd/system/multi-user.target.wants/
	cat >etc/systemd/system/web.service <<-UNIT
		[Service]
		User=www-data
		ExecStart=/usr/bin/python3 -m http.server 8080
	UNIT
	cat >etc/systemd/system/online.service <<-UNIT
		[Unit]
		Wants=network-online.target
		After=network-online.target
		[Service]
		Type=oneshot
		RemainAfterExit=yes
		ExecStart=/usr/bin/fief ls
	UNIT
	ln -s /etc/systemd/system/online.service etc/systemd/system/multi-user.target.wants/
	for service in nginx web; do
		/usr/bin/env "$3" unit "$service" --container shop --root .
	done
fi

# reboot(2) in a PID namespace ends it by SIGHUP; anything else is the end. Each goes with the one that started it.
while :; do
	ended=0
	setpriv --pdeathsig KILL unshare --mount --pid --net --cgroup --uts --ipc --fork --kill-child \
		bash "$0" start "$root/machine" || ended=$?
	[ "$ended" = $((128 + 1)) ] || exit "$ended"
done
