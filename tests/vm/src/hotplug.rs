// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU that goes and comes: the kernel takes a scheduler out that does not follow, and threads that ran there go on elsewhere.

use std::fs;

use crate::report::{Found, text};
use crate::schedule::{apply, must, near, percents, start};

/// Of the machine's two.
const LAST: &str = "/sys/devices/system/cpu/cpu1/online";
const ROUNDS: usize = 2;

fn turn(on: bool) -> Result<(), String> {
    fs::write(LAST, if on { "1" } else { "0" }).map_err(text)
}

/// The CPU is back, whatever was found.
struct Away;

impl Drop for Away {
    fn drop(&mut self) {
        // where it is there already, nothing happens
        let _ = turn(true);
    }
}

/// Shares and limits are of what is there.
pub fn is_borne() -> Found {
    let names = ["a", "b", "c"];
    apply(&[("a", "cpu.share = \"60%\""), ("b", "cpu.limit = \"10%\""), ("c", "")])?;
    let spinners = start(&names.map(|name| (name, 3)))?;
    let expected = [60.0, 10.0, 30.0];
    let mut told = Vec::new();
    for _ in 0..ROUNDS {
        turn(false)?;
        let away = Away;
        told.push(near(&percents(&names, &[&spinners])?, &expected, 1.5).map_err(|e| format!("one CPU: {e}"))?);
        drop(away);
        told.push(near(&percents(&names, &[&spinners])?, &expected, 1.5).map_err(|e| format!("two CPUs: {e}"))?);
    }
    must(true)?;
    Ok(told.pop().unwrap_or_default())
}
