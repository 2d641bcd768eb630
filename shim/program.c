/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Programs: whether one that is executed will have the shim.
 *
 * The dynamic linker loads it, which a static program has not, and which obeys nobody's environment where the program
 * gets rights that its caller has not. Of a script the interpreter counts.
 */
#define _GNU_SOURCE
#include "program.h"
#include "real.h"

#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OWN_CLASS (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)

/* By the path, since who may execute it may not be allowed to read it. */
static bool gives_rights(const char *path)
{
	struct stat file;

	return (!stat(path, &file) && file.st_mode & (S_ISUID | S_ISGID)) ||
	       getxattr(path, "security.capability", NULL, 0) > 0;
}

static bool is_dynamic(int fd, const ElfW(Ehdr) * head)
{
	ElfW(Phdr) part;

	for (int i = 0; i < head->e_phnum; i++)
		if (pread(fd, &part, sizeof(part), head->e_phoff + i * sizeof(part)) == sizeof(part) &&
		    part.p_type == PT_INTERP)
			return true;
	return false;
}

/* Closes without the shim, which may know something else by this number: a child of vfork() has descriptors of its own. */
static bool preloads(const char *path, bool script)
{
	union {
		ElfW(Ehdr) elf;
		char text[256];
	} head = {};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	bool answer = true;

	if (fd < 0)
		return !gives_rights(path);
	if (pread(fd, &head, sizeof(head) - 1, 0) >= SELFMAG && !memcmp(head.text, ELFMAG, SELFMAG)) {
		answer = head.elf.e_ident[EI_CLASS] == OWN_CLASS && !gives_rights(path) && is_dynamic(fd, &head.elf);
	} else if (script && !memcmp(head.text, "#!", 2)) {
		char *name = head.text + 2 + strspn(head.text + 2, " \t");

		name[strcspn(name, " \t\n")] = 0;
		answer = preloads(name, false);
	}
	real()->close(fd);
	return answer;
}

bool program_preloads(const char *path)
{
	return preloads(path, true);
}

bool program_preloads_from_file(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return preloads(path, true);
}

bool program_preloads_from_path(const char *name)
{
	const char *folders = getenv("PATH");
	char path[4096];

	if (strchr(name, '/'))
		return preloads(name, true);
	folders = folders ? folders : "/bin:/usr/bin"; /* as the C library has it */
	for (size_t length; *folders; folders += length + (folders[length] == ':')) {
		length = strcspn(folders, ":");
		snprintf(path, sizeof(path), "%.*s%s%s", (int)length, folders, length ? "/" : "", name);
		if (!access(path, X_OK))
			return preloads(path, true);
	}
	return true;
}
