// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use crate::{Error, Kind, Result};
use std::io::{ErrorKind, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Held by one test of this process at a time: by tests that load the machine, and judge themselves by what they get of it.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks `condition` until it holds; an error once `deadline` has passed.
pub fn wait_until(deadline: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_micros(200);
    loop {
        if condition() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(Error::new(Kind::Deadline, format!("the condition did not hold within {deadline:?}")));
        }
        std::thread::sleep(pause);
        // Short waits are answered fast, long ones do not eat the CPU that the awaited one needs.
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reads until these words have come, or the end; a signal to this process ends nothing.
pub fn read_until(stream: &mut impl Read, words: &str) -> String {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&all);
        if text.contains(words) {
            return text.into_owned();
        }
        match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return text.into_owned(),
            Ok(length) => all.extend(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_as_soon_as_the_condition_holds() {
        let mut asked = 0;
        wait_until(Duration::from_secs(5), || {
            asked += 1;
            asked == 3
        })
        .expect("the third answer is yes");
        assert_eq!(asked, 3);
    }

    #[test]
    fn says_that_the_deadline_passed() {
        let error = wait_until(Duration::from_millis(1), || false).expect_err("it never holds");
        assert_eq!(error.kind(), Kind::Deadline);
    }
}
