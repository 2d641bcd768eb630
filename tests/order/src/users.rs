// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two users and what is counted for them, with two calls at once that stop at any point of each.

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard};

unsafe extern "C" {
    fn users_reset(of_containers: bool);
    fn users_stick(sticks: bool);
    fn users_sweep(user: u32) -> bool;
    fn users_do(steps: *const std::ffi::c_char) -> i32;
    fn users_share(
        first: *const std::ffi::c_char,
        first_stop: u32,
        second: *const std::ffi::c_char,
        second_stop: u32,
    ) -> i32;
    fn users_held(user: u32) -> u32;
    fn users_counted(user: u32) -> u32;
    fn users_place() -> u32;
    fn users_entries() -> u32;
}

/// The table is the process's: one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Which of two calls have the point where they are to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Not the first: it has no more points.
    None,
    First,
    Both,
}

/// What a user holds, and what the table says of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub held: u32,
    pub counted: u32,
}

/// Users A and B. What they do are steps: a capital takes one thing, a small letter gives one back; `=` makes B a place of its own, and `?`
/// looks for A's.
#[derive(Debug)]
pub struct Users {
    _one: MutexGuard<'static, ()>,
}

impl Users {
    /// With containers, or with things of the kind that have a quota.
    pub fn new(of_containers: bool) -> Self {
        let one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the lock keeps every other user of the table away.
        unsafe { users_reset(of_containers) };
        Self { _one: one }
    }

    /// One step after the other. Errors: the last one was refused.
    pub fn go(&mut self, steps: &str) -> Result<(), i32> {
        let steps = steps_of(steps);
        // SAFETY: as in `new`; the steps end with a zero and name users A and B.
        match unsafe { users_do(steps.as_ptr()) } {
            0 => Ok(()),
            err => Err(err),
        }
    }

    /// The first stops at a point of its own, the second too; then each goes on to its end.
    pub fn share(&mut self, first: (&str, u32), second: (&str, u32)) -> Stopped {
        let (steps, others) = (steps_of(first.0), steps_of(second.0));
        // SAFETY: as in `go`.
        match unsafe { users_share(steps.as_ptr(), first.1, others.as_ptr(), second.1) } {
            0 => Stopped::None,
            1 => Stopped::First,
            _ => Stopped::Both,
        }
    }

    /// While it does, no entry is removed.
    pub fn stick(&mut self, sticks: bool) {
        // SAFETY: as in `new`.
        unsafe { users_stick(sticks) }
    }

    /// What `fief apply` does with A's entry: whether it is removed.
    pub fn sweep(&mut self) -> bool {
        // SAFETY: as in `new`; there are two users.
        unsafe { users_sweep(0) }
    }

    /// Of A and of B.
    pub fn counts(&self) -> [Count; 2] {
        // SAFETY: as in `new`; there are two users.
        [0, 1].map(|user| unsafe { Count { held: users_held(user), counted: users_counted(user) } })
    }

    /// The container that A was last found to have for a place.
    pub fn place(&self) -> Option<u32> {
        // SAFETY: as in `new`.
        let id = unsafe { users_place() };
        (id != u32::MAX).then_some(id)
    }

    /// In the table.
    pub fn entries(&self) -> u32 {
        // SAFETY: as in `new`.
        unsafe { users_entries() }
    }
}

fn steps_of(steps: &str) -> CString {
    assert!(steps.chars().all(|step| "ABab=?".contains(step)), "{steps}");
    CString::new(steps).expect("no zero")
}
