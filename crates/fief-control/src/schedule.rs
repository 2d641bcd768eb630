// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of containers on the CPU, as far as this version goes: a copy of a server runs at the nice value of its
//! container's priority. Shares, weights and limits come with the scheduler.

/// Priority 100 is nice 0; every 5 steps of priority are one of nice, within what nice knows.
pub fn nice_of(priority: u32) -> i32 {
    ((100 - i64::from(priority)) / 5).clamp(-20, 19) as i32
}

#[cfg(test)]
mod tests {
    use super::nice_of;

    #[test]
    fn maps_the_default_priority_to_nice_0_and_stays_within_nice() {
        assert_eq!(nice_of(100), 0);
        assert_eq!(nice_of(200), -20);
        assert_eq!(nice_of(50), 10);
        assert_eq!(nice_of(0), 19);
        assert_eq!(nice_of(65535), -20);
    }
}
