/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Unresolved: the second reading of a path.
 *
 * Problem: some servers decode a path and resolve none of its dots and slashes (normal.bpf.h), so that it is another one to them.
 * How: where both differ, the path as it is then is ruled too (readings.bpf.h).
 */
#pragma once

#include "normal.bpf.h"

/* The path as a server has it that decodes it and resolves nothing, into request.text in the place of the other one. */
__noinline int path_unresolved(const struct request_bytes *bytes __arg_nonnull,
			       struct front_request *request __arg_nonnull)
{
	__u32 i, length = request->path_led, end = request->path_end;

	request->text.at[0] = '/';
	for (i = loop_from(request->path_at); i < end && can_loop; i++) {
		i = loop_from(i);
		length = loop_from(length);
		request->text.at[length & BYTES_MASK] = decoded_at(bytes, &i, end);
		length++;
	}
	span_set(request, REQUEST_PATH, 0, length, PLACE_TEXT);
	return 0;
}
