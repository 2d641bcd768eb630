/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads that are born, also where the kernel has no storage for their records at that moment (core.c). */
#pragma once

/* The running thread makes one, in the unit with that home; FIEF_NO_ID: in no unit. `lacks_storage`: the kernel makes it no record. */
void core_born(__u32 number, __u32 home, bool lacks_storage)
{
	static struct kernfs_node node;
	static struct cgroup cgroup;
	static struct css_set set;
	bool managed = home != FIEF_NO_ID;

	if (managed)
		unit.home = own_ref(home);
	node.id = managed ? UNIT : UNIT + 1;
	cgroup.kn = &node;
	set.dfl_cgrp = &cgroup;
	threads[number].task.cgroups = &set;
	lacks = lacks_storage;
	newtask_inherit(&threads[number].task);
	lacks = false;
}

/* How often the kernel side could not do that; enum fief_error. */
__u64 core_failed(__u32 which)
{
	return control.errors[which & 7];
}
