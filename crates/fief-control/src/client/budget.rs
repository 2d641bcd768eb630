// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much is left of a rate: the state of a bucket (`struct fief_bucket`) in requests or CPU time.

use fief_bpf::abi;
use serde::{Deserialize, Serialize};

use crate::wire;

/// A rate that counts a client, and how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Which: `client-rule`, `client-rule-source`, `proven`, `unproven`, `request-rule`, `request-rule-source`. Those of a
    /// source are its own; the others it shares.
    #[serde(deserialize_with = "wire::word")]
    pub of: wire::Word,
    /// The listener is so loaded that it counts.
    pub in_force: bool,
    /// Of what.
    pub left: Left,
    /// So long until there is one again; 0: there is.
    pub again_ns: u64,
}

/// What is left, and how much that is at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// Connections, or requests.
    Cells { left: u64, most: u64 },
    /// CPU time.
    Time { left_ns: u64, most_ns: u64 },
}

impl Budget {
    /// Whether the next one is above the rate.
    pub fn is_reached(&self) -> bool {
        self.again_ns > 0
    }

    pub(super) fn cells(
        of: &'static str,
        arrival_ns: u64,
        bucket: &abi::fief_bucket,
        now: u64,
        in_force: bool,
    ) -> Self {
        let (ahead, interval) = (arrival_ns.saturating_sub(now), bucket.interval_ns.max(1));
        let most = bucket.tolerance_ns / interval + 1;
        let left = if ahead > bucket.tolerance_ns { 0 } else { (bucket.tolerance_ns - ahead) / interval + 1 };
        let again_ns = ahead.saturating_sub(bucket.tolerance_ns);
        Self { of, in_force, left: Left::Cells { left, most }, again_ns }
    }

    /// A microsecond of CPU time is worth `interval_ns` of the clock.
    pub(super) fn time(of: &'static str, bucket: &abi::fief_bucket, now: u64, in_force: bool) -> Self {
        let (ahead, interval) = (bucket.arrival_ns.saturating_sub(now), bucket.interval_ns.max(1));
        let cpu = |ns: u64| (u128::from(ns) * 1000 / u128::from(interval)) as u64;
        let left_ns = cpu(bucket.tolerance_ns.saturating_sub(ahead));
        let again_ns = ahead.saturating_sub(bucket.tolerance_ns);
        Self { of, in_force, left: Left::Time { left_ns, most_ns: cpu(bucket.tolerance_ns) }, again_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten a second, three at once.
    const RATE: (u64, u64) = (100_000_000, 200_000_000);

    fn cells(ahead: u64) -> (u64, u64, u64) {
        let bucket = abi::fief_bucket { interval_ns: RATE.0, tolerance_ns: RATE.1, ..Default::default() };
        let budget = Budget::cells("proven", 1000 + ahead, &bucket, 1000, true);
        let Left::Cells { left, most } = budget.left else { panic!("{budget:?}") };
        (left, most, budget.again_ns)
    }

    #[test]
    fn a_full_bucket_has_the_burst_and_each_one_takes_an_interval() {
        assert_eq!(cells(0), (3, 3, 0));
        assert_eq!(cells(RATE.0), (2, 3, 0));
        assert_eq!(cells(2 * RATE.0), (1, 3, 0));
        assert_eq!(cells(3 * RATE.0), (0, 3, RATE.0), "three were taken");
    }

    #[test]
    fn cpu_time_is_left_in_its_own_unit() {
        // a fifth of two CPUs with 50 ms at once: a microsecond is worth 2.5 of the clock
        let bucket = abi::fief_bucket {
            interval_ns: 2500,
            tolerance_ns: 125_000_000,
            arrival_ns: 1000 + 25_000_000,
            ..Default::default()
        };
        let budget = Budget::time("request-rule", &bucket, 1000, true);
        assert_eq!(budget.left, Left::Time { left_ns: 40_000_000, most_ns: 50_000_000 });
        assert!(!budget.is_reached());
    }
}
