// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a container's share, weight and limit are in the terms of cgroups: a weight among the cgroups beside it, and a quota.
//!
//! A cgroup has no guarantee. Among siblings that are all busy the weights are such that each has its share, and those without
//! one divide by weight what the shares leave: the same division as the scheduler's (`bpf/sched/order.h`).

/// Of a parent, in parts per million.
const WHOLE_PPM: u64 = 1_000_000;

/// The most that a cgroup weighs, in the terms of version 2; the least is 1.
pub(super) const MOST: f64 = 10_000.0;

/// The kernel's usual period of a quota, and its longest; us.
const PERIOD_US: u64 = 100_000;
const LONGEST_US: u64 = 1_000_000;
/// The kernel refuses a quota below that; us.
const LEAST_US: u64 = 1000;

/// The weight of the threads of a container that has children, among these.
pub(super) const OWN_WEIGHT: u32 = 100;

/// One of the cgroups that divide what their parent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sibling {
    pub(super) share_ppm: u32,
    pub(super) weight: u32,
    pub(super) priority: u32,
}

impl Sibling {
    /// Own threads of the parent, or whatever else has neither share nor weight of its own.
    pub(super) const OWN: Self = Self { share_ppm: 0, weight: OWN_WEIGHT, priority: 100 };

    /// Cgroups have no strict order of priorities. A higher one counts as nice values do between processes: five steps are one
    /// of nice, and one of nice is a quarter more (sched_prio_to_weight, kernel/sched/core.c).
    fn pull(self) -> f64 {
        f64::from(self.weight) * 1.25_f64.powi(-crate::schedule::nice_of(self.priority))
    }
}

/// The part of each sibling, in any unit. `whole_ppm`: the parent's share, 0 if it has none; `reserved_ppm`: the shares of all
/// its children, also those that have no processes.
pub(super) fn parts(whole_ppm: u32, reserved_ppm: u32, siblings: &[Sibling]) -> Vec<f64> {
    let whole = if whole_ppm == 0 { WHOLE_PPM } else { u64::from(whole_ppm) };
    // they are not starved by shares of 100 %
    let rest = whole.saturating_sub(reserved_ppm.into()).max(whole / 100 + 1) as f64;
    let pulls: f64 = siblings.iter().filter(|one| one.share_ppm == 0).map(|one| one.pull()).sum();
    let part = |one: &Sibling| match one.share_ppm {
        0 => rest * one.pull() / pulls,
        share => f64::from(share),
    };
    siblings.iter().map(part).collect()
}

/// The weights of siblings with these parts, in the terms of version 2. Where nobody has a share, weights are as they were
/// written; otherwise the largest part weighs the most that there is, since the others are then rounded least.
pub(super) fn weights(whole_ppm: u32, reserved_ppm: u32, siblings: &[Sibling]) -> Vec<f64> {
    let parts = match siblings.iter().any(|one| one.share_ppm != 0) {
        true => parts(whole_ppm, reserved_ppm, siblings),
        false => siblings.iter().map(|one| one.pull()).collect(),
    };
    let largest = parts.iter().copied().fold(1.0, f64::max);
    let scaled = siblings.iter().any(|one| one.share_ppm != 0) || largest > MOST;
    let factor = if scaled { MOST / largest } else { 1.0 };
    parts.into_iter().map(|part| (part * factor).clamp(1.0, MOST)).collect()
}

/// At most so much CPU time in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) quota_us: u64,
    pub(super) period_us: u64,
}

impl Quota {
    /// Of a limit in parts of the machine; `None`: no limit. A limit that the kernel refuses as too small is the least that it
    /// takes.
    pub(super) fn of(limit_ppm: u32, cpus: u32) -> Option<Self> {
        let cpus = u64::from(cpus.max(1));
        if limit_ppm == 0 || u64::from(limit_ppm) >= WHOLE_PPM {
            return None;
        }
        let in_period = |period_us: u64| u64::from(limit_ppm) * cpus * period_us / WHOLE_PPM;
        let period_us = if in_period(PERIOD_US) < LEAST_US { LONGEST_US } else { PERIOD_US };
        Some(Self { quota_us: in_period(period_us).max(LEAST_US), period_us })
    }

    /// The least that can be held, in parts of the machine.
    pub(super) fn least_ppm(cpus: u32) -> u32 {
        (LEAST_US * WHOLE_PPM / LONGEST_US / u64::from(cpus.max(1))) as u32
    }

    /// Whether it gives less than the other; none gives all.
    pub(super) fn is_below(own: Option<Self>, other: Option<Self>) -> bool {
        match (own, other) {
            (Some(own), Some(other)) => own.quota_us * other.period_us < other.quota_us * own.period_us,
            (own, None) => own.is_some(),
            (None, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(percent: u32) -> Sibling {
        Sibling { share_ppm: percent * 10_000, ..Sibling::OWN }
    }

    fn weight(weight: u32) -> Sibling {
        Sibling { weight, ..Sibling::OWN }
    }

    #[test]
    fn weights_without_shares_are_as_written() {
        assert_eq!(weights(0, 0, &[weight(100), weight(250), weight(1)]), [100.0, 250.0, 1.0]);
    }

    #[test]
    fn shares_are_in_proportion_and_the_largest_weighs_most() {
        assert_eq!(weights(0, 1_000_000, &[share(75), share(25)]).map_rounded(), [10_000, 3333]);
    }

    #[test]
    fn those_without_a_share_divide_what_the_shares_leave() {
        // 60 % and of the other 40 % one and three parts
        let found = weights(0, 600_000, &[share(60), weight(100), weight(300)]);
        assert_eq!(found.map_rounded(), [10_000, 1667, 5000]);
    }

    #[test]
    fn below_a_share_all_is_in_the_parents_terms() {
        // 30 % of the machine below a parent of 60 % is a half of it, and the parent's own threads have the other one
        assert_eq!(weights(600_000, 300_000, &[share(30), Sibling::OWN]).map_rounded(), [10_000, 10_000]);
    }

    #[test]
    fn shares_of_everything_leave_a_hundredth() {
        assert_eq!(weights(0, 1_000_000, &[share(100), weight(10_000)]).map_rounded(), [10_000, 100]);
    }

    #[test]
    fn a_share_that_nobody_uses_is_not_divided_twice() {
        // another child has 50 % and no processes: the weight has half of what both could have
        let found = weights(0, 750_000, &[share(25), weight(100)]);
        assert_eq!(found.map_rounded(), [10_000, 10_000]);
    }

    #[test]
    fn a_priority_counts_as_nice_does() {
        let high = Sibling { priority: 105, ..Sibling::OWN };
        let found = weights(0, 0, &[high, Sibling::OWN]);
        assert!((found[0] / found[1] - 1.25).abs() < 1e-9, "{found:?}");
        // nor beyond what a cgroup can weigh
        let highest = Sibling { priority: 65_535, weight: 10_000, ..Sibling::OWN };
        assert!(weights(0, 0, &[highest, weight(1)]).into_iter().all(|one| (1.0..=MOST).contains(&one)));
    }

    #[test]
    fn a_limit_is_of_all_cpus_together() {
        assert_eq!(Quota::of(300_000, 2), Some(Quota { quota_us: 60_000, period_us: 100_000 }));
        assert_eq!(Quota::of(0, 2), None);
        assert_eq!(Quota::of(1_000_000, 2), None);
    }

    #[test]
    fn a_small_limit_has_a_longer_period_and_the_smallest_the_least() {
        assert_eq!(Quota::of(2000, 2), Some(Quota { quota_us: 4000, period_us: 1_000_000 }));
        assert_eq!(Quota::of(1, 2), Some(Quota { quota_us: 1000, period_us: 1_000_000 }));
        assert_eq!(Quota::least_ppm(2), 500);
    }

    #[test]
    fn quotas_of_different_periods_are_compared_by_what_they_give() {
        let (tenth, fifth) = (Quota::of(2000, 1), Quota::of(200_000, 1));
        assert!(Quota::is_below(tenth, fifth) && !Quota::is_below(fifth, tenth));
        assert!(Quota::is_below(fifth, None) && !Quota::is_below(None, fifth) && !Quota::is_below(None, None));
    }

    trait Rounded {
        fn map_rounded(self) -> Vec<u64>;
    }

    impl Rounded for Vec<f64> {
        fn map_rounded(self) -> Vec<u64> {
            self.into_iter().map(|one| one.round() as u64).collect()
        }
    }
}
