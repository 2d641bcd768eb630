// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Precedence over the rest of the machine while an experiment runs, so that a compiler beside it disturbs it less.
//!
//! Every server and load inherits it, with Fief and without, so no comparison gains by it. A nice value alone would do
//! little: where the kernel groups tasks by session (autogroup) it counts only inside the session, so the session's
//! own value is set too, and put back in the end. What is not allowed is left; the figures are then only noisier.

use std::fs;

const NICE: i32 = -10;
const SESSION: &str = "/proc/self/autogroup";

#[derive(Debug)]
pub struct Precedence {
    /// The session's nice value before.
    before: Option<i32>,
}

impl Precedence {
    pub fn take() -> Precedence {
        let _ = fief_testkit::set_nice(NICE);
        let before = session();
        if before.is_some() {
            set_session(NICE);
        }
        Precedence { before }
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_session(before);
        }
    }
}

/// The nice value of this process's session.
pub fn session() -> Option<i32> {
    nice_of(&fs::read_to_string(SESSION).ok()?)
}

pub fn set_session(nice: i32) {
    let _ = fs::write(SESSION, nice.to_string());
}

/// `/autogroup-8 nice 0`; empty where the kernel has none.
fn nice_of(text: &str) -> Option<i32> {
    text.trim().rsplit_once("nice ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sessions_value_is_its_last_word() {
        assert_eq!(nice_of("/autogroup-8 nice -3\n"), Some(-3));
        assert_eq!(nice_of(""), None);
    }
}
