/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every record and constant that the kernel side and user space share: fixed width, no includes but its own parts. A
 * table of contents; the parts are in abi/, by topic.
 *
 *   container    ids, attributes, usage           descriptor   the socket options that are the calls
 *   label        what a socket belongs to         steer        listeners, classes of clients
 *   verdict      why one fell, and what is told   load         levels of overload
 *   police       buckets, sources                 guard        what stands before a listener
 *   admit        request rules                    lane         received by a thread of the class
 *   bind         the record of a thread           charge       the machine of a CPU
 *   file         labels of files                  control      what the privileged side sets
 *   rule_table   rules by prefix and pattern       queue        requests that wait
 *   schedule     what the scheduler tells         program      what servers start for their clients
 *   watch        who is charged for what         ring         bound without a call
 *   cost         which clients cost most          turn         orders from outside
 *
 * The includer brings __u8 .. __u64, __s32 and __s64. Rust gets it through bindgen (crate fief-bpf); the part that
 * applications see is written into crate fief by crate fief-interface. A record that both sides touch is described here and nowhere else.
 */
#ifndef FIEF_ABI_H
#define FIEF_ABI_H

#define FIEF_ABI_VERSION 24

#include "abi/container.h"
#include "abi/descriptor.h"
#include "abi/label.h"
#include "abi/rule_table.h"
#include "abi/steer.h"
#include "abi/verdict.h"
#include "abi/load.h"
#include "abi/police.h"
#include "abi/guard.h"
#include "abi/admit.h"
#include "abi/queue.h"
#include "abi/lane.h"
#include "abi/bind.h"
#include "abi/ring.h"
#include "abi/file.h"
#include "abi/charge.h"
#include "abi/schedule.h"
#include "abi/program.h"
#include "abi/control.h"
#include "abi/watch.h"
#include "abi/cost.h"
#include "abi/turn.h"

#endif
