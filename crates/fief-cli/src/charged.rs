// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is said where no CPU time is charged, so that nobody takes counters that stand still for a machine that does.

use fief_control::Snapshot;

pub const NOT_CHARGED: &str = "no CPU time is charged: no process is managed or bound, and the policy goes by none";

/// It, if that is so of what is shown: of a record only the readings tell.
pub fn note(now: &Snapshot, before: Option<&Snapshot>) -> Option<&'static str> {
    let used = |snapshot: &Snapshot| snapshot.containers.iter().map(|view| view.usage.cpu_ns()).sum::<u64>();
    let stands = |before: &Snapshot| before.taken_ns < now.taken_ns && used(before) == used(now);
    (!now.charged || before.is_some_and(stands)).then_some(NOT_CHARGED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn of_a_record_the_readings_tell() {
        let mut before = sample::snapshot(vec![sample::container("shop", 8, None)]);
        before.containers[0].usage.thread_ns = 5;
        let mut now = before.clone();
        assert_eq!((note(&now, None), note(&now, Some(&before))), (None, None), "one reading twice");
        now.taken_ns += 1;
        assert_eq!((note(&now, None), note(&now, Some(&before))), (None, Some(NOT_CHARGED)));
        now.containers[0].usage.thread_ns = 6;
        assert_eq!(note(&now, Some(&before)), None);
        now.charged = false;
        assert_eq!((note(&now, None), note(&now, Some(&before))), (Some(NOT_CHARGED), Some(NOT_CHARGED)));
    }
}
