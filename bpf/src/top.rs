// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attachments to the top of the cgroup2 hierarchy: every packet that reaches a socket of the machine passes them, so they are there only
//! while a listener needs them.

use std::os::fd::{AsFd, BorrowedFd};

use crate::attachment;
use crate::error::{Context, Result};
use crate::link;
use crate::pin::{Pins, make_dir};

/// Attaches them to `cgroup`, the top. One that is attached already stays.
pub fn attach(pins: &Pins, cgroup: BorrowedFd<'_>) -> Result<()> {
    for (row, hook) in attachment::of_top() {
        let pin = pins.top().join(row.program);
        if pin.exists() {
            continue;
        }
        make_dir(&pins.top())?;
        let program = pins.open_program(row.program)?;
        let link = link::create(program.as_fd(), cgroup, hook)
            .context(|| format!("cannot attach {} to the top of the cgroups", row.program))?;
        link::pin(link.as_fd(), &pin)?;
    }
    Ok(())
}

/// Whether one is attached.
pub fn stands(pins: &Pins) -> bool {
    attachment::of_top().any(|(row, _)| !row.links(pins).is_empty())
}

/// When no listener needs them any more.
pub fn detach(pins: &Pins) -> Result<()> {
    attachment::of_top().flat_map(|(row, _)| row.links(pins)).try_for_each(|pin| link::remove(&pin))
}
