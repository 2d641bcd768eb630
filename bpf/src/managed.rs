// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machine-wide tracepoints that only managed units have a use for: whose a received packet is, and by which a thread follows
//! its sockets. Every packet, send and receive of the machine passes them, so they are attached only while there is a unit.

use std::os::fd::AsFd;

use crate::error::{Context, Result};
use crate::link;
use crate::pin::Pins;

/// The first two part the receive time between packets; the last one also tells when an accepted socket counts.
const EVERY_UNIT: [&str; 3] = ["packet_starts", "poll_ends", "recv_follows"];
const SEND: &str = "send_follows";

/// Whether a machine-wide program waits for a unit that needs it.
pub(crate) fn is_ours(program: &str) -> bool {
    program == SEND || EVERY_UNIT.contains(&program)
}

/// Before a unit is managed; `follows`: its threads follow their sockets. What is attached already stays.
pub fn attach(pins: &Pins, follows: bool) -> Result<()> {
    for name in EVERY_UNIT.into_iter().chain(follows.then_some(SEND)) {
        let pin = pins.links().join(name);
        if !pin.exists() {
            let program = pins.open_program(name)?;
            let link = link::create_trace(program.as_fd()).context(|| format!("cannot attach {name}"))?;
            link::pin(link.as_fd(), &pin)?;
        }
    }
    Ok(())
}

/// After the last unit.
pub(crate) fn detach(pins: &Pins) -> Result<()> {
    EVERY_UNIT.into_iter().chain([SEND]).try_for_each(|name| link::remove(&pins.links().join(name)))
}
