// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Socket activation: listening sockets that the server inherits (LISTEN_FDS).
//!
//! They are for the process that LISTEN_PID names. `fief exec --here` becomes the server, which then takes them. `fief run` and
//! `fief exec` start another process: it would not take them, and while they are open their clients would wait for ever.

use std::env;

use crate::{Error, ErrorKind, Result};

/// Errors: this process was passed sockets that its server would not take.
pub(crate) fn refuse() -> Result<()> {
    let word = |name: &str| env::var(name).ok()?.trim().parse::<u32>().ok();
    if !is_for(std::process::id(), word("LISTEN_PID"), word("LISTEN_FDS")) {
        return Ok(());
    }
    let what =
        "listening sockets were passed to this process (LISTEN_FDS), and the server that it starts would not take them";
    Err(Error::new(ErrorKind::Other, what).remedy(
        "start the activator itself by this command, or the service without its socket unit; `fief exec --here` passes them on, \
         but their clients have no classes",
    ))
}

fn is_for(own: u32, named: Option<u32>, sockets: Option<u32>) -> bool {
    named == Some(own) && sockets.is_some_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_another_process_are_not_ours() {
        assert!(is_for(7, Some(7), Some(1)));
        for (named, sockets) in [(Some(8), Some(1)), (None, Some(1)), (Some(7), Some(0)), (Some(7), None)] {
            assert!(!is_for(7, named, sockets), "{named:?} {sockets:?}");
        }
    }
}
