/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Rule table: of each policy slot an array of cache lines, with prefixes of clients and patterns of requests by
 * their hash, and the records of the rules that they belong to.
 */
#pragma once

#define FIEF_LINE_KEYS 7
#define FIEF_KEY_BITS  48 /* that a line has of a hash */

/*
 * Up to seven keys, or one record of at most as many bytes. A key belongs to one line, by the upper half of its hash;
 * where that is full it stands in the next that is not. The record of a key is a line too, its number 24 bits: 0 if the
 * place is free. Line 0 is empty.
 */
struct fief_line {
	__u64 key[FIEF_LINE_KEYS];	  /* lower 48 bits of the hash, and above them 16 of the record's number */
	__u8 record_high[FIEF_LINE_KEYS]; /* the other 8 */
	__u8 more;			  /* 1: a key that passed here in search of room stands further on */
};

/* Where the keys of a listener are. */
struct fief_lines {
	__u32 first; /* line */
	__u32 count; /* lines that a key can belong to; those that did not fit come behind */
};
