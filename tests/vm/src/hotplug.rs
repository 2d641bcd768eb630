// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU that goes and comes: the kernel takes a scheduler out that does not follow, and threads that ran there go on elsewhere.

use std::fs;
use std::time::Duration;

use crate::report::{Found, text};
use crate::schedule::{apply, must, near, percents_in, start};

/// Of the machine's two.
const LAST: &str = "/sys/devices/system/cpu/cpu1/online";
const ROUNDS: usize = 2;
/// A limit is in debt by some ticks when a window begins or ends.
const WINDOW: Duration = Duration::from_secs(6);

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
    let found = || -> Result<Vec<f64>, String> {
        let found = percents_in(WINDOW, &names, &[&spinners])?;
        // the kernel's own work, where a CPU has come, is of none of the three
        let all: f64 = found.iter().sum();
        if all < 90.0 {
            return Err(format!("{all:.2} of 100 % in use"));
        }
        Ok(found.iter().map(|part| part * 100.0 / all).collect())
    };
    let mut told = Vec::new();
    for _ in 0..ROUNDS {
        turn(false)?;
        let away = Away;
        told.push(near(&found()?, &expected, 1.5).map_err(|e| format!("one CPU: {e}"))?);
        drop(away);
        told.push(near(&found()?, &expected, 1.5).map_err(|e| format!("two CPUs: {e}"))?);
    }
    must(true)?;
    Ok(told.pop().unwrap_or_default())
}
