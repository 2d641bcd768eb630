/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Added: bytes of a packet are put behind those that are kept of a request, or of a part of its body.
 *
 * How: they are written where those are, and scanned for the end (scan.bpf.h). A word marks the place as being written; a CPU
 * that finds it set drops its packet, which comes again.
 */
#pragma once

#include "halves.bpf.h"
#include "refused.bpf.h"
#include "scan.bpf.h"

/* Copies `count` bytes of the stream, which has the packet's payload, from `from` on behind the `known` bytes of a half. */
static __noinline int half_append(struct half *half, __u32 known, const struct stream *stream, __u32 from, __u32 count)
{
	__u32 done, size, to, at;

	for (done = loop_from(0); done < count && can_loop; done += STREAM_STEP) {
		size = count - done;
		if (size > STREAM_STEP)
			size = STREAM_STEP;
		to = known + done;
		at = from + done;
		barrier_var(size);
		barrier_var(to);
		barrier_var(at);
		if (!size || size > STREAM_STEP || to > FIEF_HEADER_MAX || at > STREAM_ROOM - STREAM_STEP)
			return -1;
		if (bpf_probe_read_kernel(half->bytes + to, size, stream->bytes + at))
			return -1;
	}
	return 0;
}

enum half_added { HALF_SPOILT, HALF_KEPT, HALF_READY, HALF_REFUSED };

/*
 * Adds the packet's bytes from `skip` on to a half of `known` bytes; the stream has its payload. HALF_KEPT: there is nothing
 * to be ruled yet. Where there is, nothing has changed: the packet may come again. HALF_REFUSED: it was ruled already, and
 * stream->ruling says so much as its answer needs. `ended`: the client sends no more.
 */
__noinline int half_add(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull, __u32 known,
			__u32 skip, bool ended)
{
	__u32 at = stream->held, fresh = stream->length - skip, end = known + fresh;
	enum half_added done = HALF_SPOILT;
	struct half *half = bpf_map_lookup_elem(&halves, &at);

	if (!half || skip > stream->length || !half_lock(half))
		return HALF_SPOILT;
	if (!half_is(half, p, stream->cookie) || half->length != known)
		goto out;
	done = HALF_REFUSED;
	if (is_refused(half)) {
		refused_again(half, stream);
		goto out;
	}
	done = HALF_READY;
	if (end >= FIEF_HEADER_MAX || ended)
		goto out;
	stream->scan = half->scan;
	if (half_append(half, known, stream, skip, fresh))
		done = HALF_SPOILT;
	else if (!scan_on(half->kind, (const struct request_bytes *)half->bytes, end, &stream->scan))
		done = HALF_KEPT;
	if (done == HALF_KEPT) {
		half->length = end;
		half->scan = stream->scan;
		half_touch(at, &stream->half, bpf_ktime_get_ns());
	}
out:
	half_unlock(half);
	return done;
}
