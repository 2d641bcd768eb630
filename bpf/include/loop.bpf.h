/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Loops that nobody can tell the end of but the verifier's own count, which ends them after millions of turns. */
#pragma once

/* The instruction may_goto, which clang writes by name for newer instruction sets only: code 0xe5, a jump by 16 bits. */
#ifndef can_loop
#define can_loop                                                                                                       \
	({                                                                                                             \
		__label__ stop, go;                                                                                    \
		bool on = true;                                                                                        \
		asm volatile goto(                                                                                     \
		    "1:.byte 0xe5; .byte 0; .long ((%l[stop] - 1b - 8) / 8) & 0xffff; .short 0" :: ::stop);            \
		goto go;                                                                                               \
	stop:                                                                                                          \
		on = false;                                                                                            \
	go:;                                                                                                           \
		on;                                                                                                    \
	})
#endif
