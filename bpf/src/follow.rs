// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tracepoints by which a thread follows its sockets. Every send and receive of the machine passes them, so they are
//! attached only while a managed unit has a use for them.

use std::os::fd::AsFd;

use crate::error::{Context, Result};
use crate::link;
use crate::pin::Pins;

/// Also tells when an accepted socket counts, so that every unit needs it.
const RECEIVE: &str = "recv_follows";
const SEND: &str = "send_follows";

/// Whether a machine-wide program waits for a unit that needs it.
pub(crate) fn is_ours(program: &str) -> bool {
    program == RECEIVE || program == SEND
}

/// Before a unit is managed; `follows`: its threads follow their sockets. What is attached already stays.
pub fn attach(pins: &Pins, follows: bool) -> Result<()> {
    for name in [RECEIVE].into_iter().chain(follows.then_some(SEND)) {
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
    [RECEIVE, SEND].into_iter().try_for_each(|name| link::remove(&pins.links().join(name)))
}
