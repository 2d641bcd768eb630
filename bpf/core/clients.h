/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Clients: of which listeners the running thread has served clients, in the word that the scheduler takes (`received` of fief_cpu).
 *
 * It has two of them: the last one that it received from a client of, and one before that, of another listener, which it received from or
 * sent to a client of. If it received from none, the first one that it sent to, and the last one.
 */
#pragma once

static inline __u32 client_first(__u32 word)
{
	return word & FIEF_CLIENT;
}

static inline __u32 client_other(__u32 word)
{
	return word >> FIEF_CLIENT_BITS & FIEF_CLIENT;
}

static inline __u32 clients_of(__u32 first, __u32 other, __u32 how)
{
	return first | other << FIEF_CLIENT_BITS | how;
}

/* The word, once the thread has received from a client of the listener, or sent to one. */
static inline __u32 client_noted(__u32 word, __u32 listener, bool received)
{
	__u32 first = client_first(word);

	listener = (listener + 1) & FIEF_CLIENT;
	if (received && word & FIEF_ANSWERED)
		return clients_of(listener, first == listener ? client_other(word) : first, FIEF_ANSWERED_OTHER);
	if (received)
		return first == listener ? word : clients_of(listener, first, 0);
	if (!word)
		return clients_of(listener, 0, FIEF_ANSWERED);
	if (first == listener)
		return word;
	if (word & FIEF_ANSWERED)
		return clients_of(first, listener, FIEF_ANSWERED);
	return client_other(word) ? word : clients_of(first, listener, FIEF_ANSWERED_OTHER);
}
