// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records and constants that applications share with the kernel side.
//!
//! `cargo run -p fief-interface` writes this file, from the headers of the kernel side (`bpf/abi/`), where a change is made.

#![allow(missing_docs, non_camel_case_types)]

/// one path component with its final NUL
pub const FIEF_NAME_LEN: u32 = 32;
pub const FIEF_NO_ID: u32 = 0xffffffff;

/// Ids below FIEF_FIRST_ID are always there; they are containers of their own so that every nanosecond has a name.
pub type fief_known_id = u32;
/// threads that nobody manages
pub const FIEF_ROOT: fief_known_id = 0;
/// work that belongs to nobody: kernel threads, timers, packets for nobody we know
pub const FIEF_SYSTEM: fief_known_id = 1;
pub const FIEF_IDLE: fief_known_id = 2;
/// the hypervisor ran somebody else
pub const FIEF_STEAL: fief_known_id = 3;
/// sockets without a container; a gap of an upgrade; what ran unseen
pub const FIEF_UNATTRIBUTED: fief_known_id = 4;
/// what destroyed containers used and did not pass up to a living parent
pub const FIEF_RETIRED: fief_known_id = 5;
/// "user": parent of user/\<uid>, the containers of unprivileged users without a unit
pub const FIEF_USERS: fief_known_id = 6;
pub const FIEF_FIRST_ID: fief_known_id = 8;

/// A container is named by slot and generation together; a reference whose generation is not the slot's is stale.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_ref {
    pub id: u32,
    pub generation: u32,
}

pub type fief_container_state = u32;
pub const FIEF_FREE: fief_container_state = 0;
/// has a holder: a descriptor, a bound thread, a labelled socket or the policy
pub const FIEF_ALIVE: fief_container_state = 1;
/// no holder left; the slot stays for its children's chain of limits
pub const FIEF_ENDED: fief_container_state = 2;
/// only as an answer: alive, and its parent has ended
pub const FIEF_ORPHAN: fief_container_state = 3;

/// Counters of one container. The time of a thread is split into user and system by the kernel's own tick samples.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_usage {
    /// in threads bound here, user mode and system calls, without interrupts on top
    pub thread_ns: u64,
    /// protocol work on packets for sockets of this container
    pub receive_ns: u64,
    /// tick samples of thread_ns in user mode
    pub user_ns: u64,
    /// tick samples of thread_ns in kernel mode
    pub system_ns: u64,
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    pub disk_read_bytes: u64,
    pub disk_write_bytes: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub syns_seen: u64,
    pub syns_dropped: u64,
    pub spare: u64,
    /// connections labelled with this container
    pub accepts: u64,
}

/// Attribute numbers for FIEF_SET_ATTRIBUTE; struct fief_attributes holds them all.
pub type fief_attribute = u32;
/// guaranteed CPU, parts per million of the machine
pub const FIEF_ATTR_SHARE: fief_attribute = 1;
/// most CPU, parts per million of the machine; 0: none
pub const FIEF_ATTR_LIMIT: fief_attribute = 2;
/// 1..10000, default 100
pub const FIEF_ATTR_WEIGHT: fief_attribute = 3;
/// 0: only when nothing else wants the CPU; default 100; at most 65535
pub const FIEF_ATTR_PRIORITY: fief_attribute = 4;
pub const FIEF_ATTR_MEMORY_MAX: fief_attribute = 5;
pub const FIEF_ATTR_NET_WEIGHT: fief_attribute = 6;
/// bits per second; 0: none
pub const FIEF_ATTR_NET_MAX: fief_attribute = 7;
/// at the end, add the usage to the parent's
pub const FIEF_ATTR_PASS_UP: fief_attribute = 8;
pub const FIEF_ATTR_DESCENDANTS_MAX: fief_attribute = 9;
/// enum fief_policy
pub const FIEF_ATTR_POLICY: fief_attribute = 10;
/// of FIEF_POLICY_EDF, in microseconds; 0: 100,000
pub const FIEF_ATTR_PERIOD: fief_attribute = 11;
/// of it, at most the period; 0: 10,000
pub const FIEF_ATTR_BUDGET: fief_attribute = 12;

/// Which of a container's own threads goes first (bpf/sched/policies).
pub type fief_policy = u32;
pub const FIEF_POLICY_FAIR: fief_policy = 0;
pub const FIEF_POLICY_FIFO: fief_policy = 1;
pub const FIEF_POLICY_RR: fief_policy = 2;
pub const FIEF_POLICY_EDF: fief_policy = 3;
pub const FIEF_POLICY_LOTTERY: fief_policy = 4;

// And a number less than FIEF_OBJECT_SETS (abi/turn.h): of an object, which only operators give.
pub const FIEF_POLICY_OBJECT: u32 = 16;

#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_attributes {
    pub share_ppm: u32,
    pub limit_ppm: u32,
    pub weight: u32,
    pub priority: u32,
    pub memory_max: u64,
    pub net_max: u64,
    pub net_weight: u32,
    pub pass_up: u32,
    /// containers below this one; 0: none but the quota of the user
    pub descendants_max: u32,
    /// read only: sum of the children's shares
    pub reserved_ppm: u32,
    /// read only: the policy of this slot names it
    pub named: u32,
    /// of a policy: id of the container for what servers start for this one; 0: none
    pub programs: u32,
    /// enum fief_policy
    pub policy: u32,
    pub period_us: u32,
    pub budget_us: u32,
    pub pad: u32,
}

pub const FIEF_SOL: u32 = 0x46696566;

pub type fief_option = u32;
// setsockopt
/// unbound AF_INET datagram socket: a child of the caller's container; fief_create or empty
pub const FIEF_CREATE: fief_option = 1;
/// bind the calling thread (no value), or struct fief_bind
pub const FIEF_BIND: fief_option = 2;
/// the calling thread returns home; any container descriptor
pub const FIEF_UNBIND: fief_option = 3;
/// remember this container for the thread's next FIEF_DUP
pub const FIEF_STAGE: fief_option = 4;
/// fresh socket: becomes a second descriptor of the staged container, same rights
pub const FIEF_DUP: fief_option = 5;
/// fresh socket: becomes a descriptor of the thread's container; __u32: rights
pub const FIEF_OPEN_BINDING: fief_option = 6;
/// this container becomes a child of the caller's container
pub const FIEF_ADOPT: fief_option = 7;
/// struct fief_set_attribute
pub const FIEF_SET_ATTRIBUTE: fief_option = 8;
/// __u32: rights that stay
pub const FIEF_DROP_RIGHTS: fief_option = 9;
/// on any socket: label it with the caller's container
pub const FIEF_ASSIGN: fief_option = 10;
/// up to FIEF_NAME_LEN - 1 bytes, no '/'
pub const FIEF_SET_NAME: fief_option = 11;
/// on an unbound TCP socket: listener of the n-th class, __u32 (the listen shim)
pub const FIEF_CLASS: fief_option = 12;
/// on an unbound TCP socket: struct fief_filter, labelled with the caller's container
pub const FIEF_FILTER: fief_option = 13;
/// on any socket: remove its label
pub const FIEF_UNASSIGN: fief_option = 14;
/// bind the calling thread and remember what it was bound to, FIEF_NEST deep
pub const FIEF_ENTER: fief_option = 15;
/// back to what FIEF_ENTER remembered; any container descriptor
pub const FIEF_LEAVE: fief_option = 16;
/// container descriptor: becomes one of a new child, as FIEF_CREATE, and lets go of the old
pub const FIEF_RENEW: fief_option = 17;
/// fresh socket: becomes the label, with the caller's container, of the open file __s32
pub const FIEF_ASSIGN_FILE: fief_option = 18;
/// any socket: the calling thread's ring, struct fief_ring_open; no value: it ends
pub const FIEF_RING: fief_option = 19;
/// this container is in the place __u32 of the calling thread's ring
pub const FIEF_RING_PLACE: fief_option = 20;
/// any socket: nothing is in the place __u32
pub const FIEF_RING_CLEAR: fief_option = 21;
/// any socket: the records up to now are taken
pub const FIEF_RING_FLUSH: fief_option = 22;
/// any socket: the calling thread is scheduled for its container alone
pub const FIEF_RESET_SCHEDULER_BINDING: fief_option = 23;
// getsockopt
/// struct fief_usage, with the open stint of running threads
pub const FIEF_USAGE: fief_option = 32;
/// struct fief_attributes
pub const FIEF_ATTRIBUTES: fief_option = 33;
/// struct fief_info
pub const FIEF_INFO: fief_option = 34;
/// struct fief_ref of the calling thread; any socket of a managed unit
pub const FIEF_BINDING: fief_option = 35;
/// on a listening or bound TCP socket: struct fief_classes
pub const FIEF_CLASSES: fief_option = 36;
/// on any socket: struct fief_ref of its label
pub const FIEF_LABEL: fief_option = 37;
/// on a listening TCP socket: struct fief_drops
pub const FIEF_DROPS: fief_option = 38;

// Rights of a descriptor and of a binding made through it.
/// bind to it, assign to it
pub const FIEF_RIGHT_USE: u32 = 1;
/// usage, attributes
pub const FIEF_RIGHT_READ: u32 = 2;
/// make and adopt children
pub const FIEF_RIGHT_CHILDREN: u32 = 4;
/// attributes, name, adoption of itself
pub const FIEF_RIGHT_ADMINISTER: u32 = 8;
pub const FIEF_RIGHTS_ALL: u32 = 15;

#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_create {
    /// FIEF_CREATE_*
    pub flags: u32,
    /// 0: default
    pub weight: u32,
}

pub const FIEF_CREATE_PASS_UP: u32 = 1;

#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_bind {
    /// as the caller's pid namespace counts
    pub thread: i32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_set_attribute {
    pub attribute: u32,
    pub pad: u32,
    pub value: u64,
}

#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_info {
    pub self_: fief_ref,
    /// id FIEF_NO_ID: no parent
    pub parent: fief_ref,
    pub state: u32,
    pub rights: u32,
    pub depth: u32,
    pub holders: u32,
    pub children: u32,
    pub threads: u32,
    pub processes: u32,
    pub sockets: u32,
    pub name: [core::ffi::c_char; FIEF_NAME_LEN as usize],
}

/// Why a verdict fell: one closed list, counted by container, listener and rule (struct fief_verdict_key).
pub type fief_reason = u32;
pub const FIEF_REASON_NONE: fief_reason = 0;
// police: a SYN at a guarded listener
/// answered, or left to the kernel to answer
pub const FIEF_SYN_TAKEN: fief_reason = 1;
/// above the rate of its filter
pub const FIEF_SYN_RATE: fief_reason = 2;
/// above what is answered to addresses that never returned a cookie
pub const FIEF_SYN_UNPROVEN: fief_reason = 3;
/// its source, or the prefix around it, sends too many
pub const FIEF_SYN_ISOLATED: fief_reason = 4;
/// its source was refused a request a short time ago
pub const FIEF_SYN_PENALTY: fief_reason = 5;
/// the listen queue of its class is full
pub const FIEF_SYN_QUEUE: fief_reason = 6;
// admit: the handshake
/// no socket and no valid cookie
pub const FIEF_ACK_BAD: fief_reason = 7;
/// too many of those: not even looked at
pub const FIEF_ACK_LIMIT: fief_reason = 8;
/// options, extension headers, fragments, tags or lengths that the door cannot read
pub const FIEF_SHAPE: fief_reason = 9;
// admit: a request
/// a rule let it pass, perhaps into another container
pub const FIEF_REQUEST_RULE: fief_reason = 10;
/// no rule matched: the class of its client
pub const FIEF_REQUEST_CLIENT: fief_reason = 11;
/// a rule refuses it
pub const FIEF_REQUEST_REFUSED: fief_reason = 12;
/// above the rule's requests per second
pub const FIEF_REQUEST_RATE: fief_reason = 13;
/// above the rule's CPU time per second
pub const FIEF_REQUEST_CPU: fief_reason = 14;
/// no longer counted (FIEF_PASSED_OTHER, FIEF_REFUSED_OTHER are); keeps its number
pub const FIEF_REQUEST_UNTRACKED: fief_reason = 15;
// receive in a thread of the class
/// the queue of the thread is full: discarded before any protocol work
pub const FIEF_LANE_FULL: fief_reason = 16;
// the door itself
/// no route leads to its source: a SYN is the kernel's, anything else is dropped
pub const FIEF_ANSWER_UNROUTED: fief_reason = 17;
/// a new connection that passed no door, at a listener that is guarded
pub const FIEF_SYN_UNGUARDED: fief_reason = 18;
// admit: a later request, once more
/// other bytes in the place of a request's head that was ruled: dropped
pub const FIEF_REQUEST_REPLACED: fief_reason = 19;
// admit: what cannot be read, in the order of enum fief_unread. It passes into the class of the client ...
pub const FIEF_PASSED_MALFORMED: fief_reason = 20;
pub const FIEF_PASSED_TOO_LONG: fief_reason = 21;
pub const FIEF_PASSED_UPGRADE: fief_reason = 22;
pub const FIEF_PASSED_HTTP2: fief_reason = 23;
pub const FIEF_PASSED_PROXY: fief_reason = 24;
pub const FIEF_PASSED_NO_ROOM: fief_reason = 25;
pub const FIEF_PASSED_OTHER: fief_reason = 26;
// ... or is reset, without a penalty
pub const FIEF_REFUSED_MALFORMED: fief_reason = 27;
pub const FIEF_REFUSED_TOO_LONG: fief_reason = 28;
pub const FIEF_REFUSED_UPGRADE: fief_reason = 29;
pub const FIEF_REFUSED_HTTP2: fief_reason = 30;
pub const FIEF_REFUSED_PROXY: fief_reason = 31;
pub const FIEF_REFUSED_NO_ROOM: fief_reason = 32;
pub const FIEF_REFUSED_OTHER: fief_reason = 33;
// the queue of the listener
/// no room for it
pub const FIEF_REFUSED_QUEUE_FULL: fief_reason = 34;
/// it waited too long, or would have
pub const FIEF_REFUSED_QUEUE_WAIT: fief_reason = 35;
// the door itself, before anything else
/// any packet of a client that the operator has shut out
pub const FIEF_BANNED: fief_reason = 36;
// police, before all else of it
/// nobody listens now: the client is to send it again, and finds the server that starts
pub const FIEF_SYN_ABSENT: fief_reason = 37;
// the queue of the listener, once more
/// one that waited gave way to another
pub const FIEF_REFUSED_QUEUE_DISPLACED: fief_reason = 38;
// ... and what is told of it, and not counted: no verdicts
/// a request begins to wait
pub const FIEF_QUEUE_WAITS: fief_reason = 39;
/// one that waited goes to the server
pub const FIEF_QUEUE_RELEASED: fief_reason = 40;
pub const FIEF_REASONS: fief_reason = 41;

/// What never reached a listening socket; the last notice of it changes at most once in FIEF_NOTICE_NS.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_drops {
    /// by the kernel, because a queue of the socket was full
    pub dropped: u64,
    /// by the policy, before any listener of the address
    pub refused: u64,
    /// of the notice, CLOCK_MONOTONIC; 0: none yet
    pub time_ns: u64,
    pub source: [u8; 16],
    /// how many the notice stands for
    pub count: u32,
    /// enum fief_reason
    pub reason: u32,
}

/// Filter of one listening socket: IPv4 mapped; complement: everything but the prefix.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_filter {
    pub address: [u8; 16],
    pub prefix_length: u8,
    pub complement: u8,
    pub pad: [u8; 6],
}

/// levels below the root
pub const FIEF_MAX_DEPTH: u32 = 16;
/// client rules that name different containers, per listener
pub const FIEF_MAX_CLASSES: u32 = 32;
pub const FIEF_RING_RECORDS: u32 = 256;
/// containers that one ring can name
pub const FIEF_RING_PLACES: u32 = 64;
pub const FIEF_RING_PLACE_BITS: u32 = 6;
/// the place of the thread's home, which is always there
pub const FIEF_RING_HOME: u32 = 0;
pub const FIEF_RING_ALIGN: u32 = 4096;

/// In the thread's memory, at a multiple of FIEF_RING_ALIGN. The kernel only reads it. A record says that the thread works for
/// the container in that place from that moment of CLOCK_MONOTONIC on:
///
/// ```text
///      63                                  6 5      0
///     +-------------------------------------+--------+
///     |        nanoseconds, modulo 2^58     | place  |
///     +-------------------------------------+--------+
/// ```
///
/// A thread writes at most FIEF_RING_RECORDS of them between two calls of FIEF_RING_FLUSH.
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_ring_page {
    /// records so far, modulo 2^32; written after the record, which lies at head modulo FIEF_RING_RECORDS
    pub head: u32,
    /// the library's own: 0 in the child of a fork, which has no ring
    pub live: u32,
    pub spare: [u64; 7],
    pub records: [u64; FIEF_RING_RECORDS as usize],
}

/// The value of FIEF_RING.
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fief_ring_open {
    /// of a struct fief_ring_page
    pub address: u64,
    /// CLOCK_MONOTONIC as the caller has it, which in a time namespace is not the kernel's
    pub now_ns: u64,
}
