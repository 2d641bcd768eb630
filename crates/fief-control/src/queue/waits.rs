// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long requests waited, from the kernel side's counts by steps (`bpf/abi/queue.h`). Pure.

use fief_bpf::abi;
use serde::{Deserialize, Serialize};

/// How many requests waited how long: a count for each step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Waits(Vec<u32>);

impl Waits {
    /// Of the counts of the kernel side.
    pub fn of(counts: &[u32]) -> Self {
        Self(counts.to_vec())
    }

    /// The wait that this part of all did not exceed, to an eighth of itself; `None`: nobody waited.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let all: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let step = self.0.iter().position(|&count| {
            seen += u64::from(count);
            all > 0 && seen >= wanted
        })?;
        Some(middle(step as u64))
    }

    /// Those since an earlier reading of the same class. The counts of the kernel side may go round.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(before).map(|(now, before)| now.wrapping_sub(before)).collect())
    }

    /// Together with those of another class.
    pub fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count = count.saturating_add(*more));
    }
}

/// Of the waits that a step is for.
fn middle(step: u64) -> u64 {
    let (begin, width) = match step {
        0..4 => (step, 1),
        _ => ((4 + step % 4) << (step / 4 - 1), 1 << (step / 4 - 1)),
    };
    ((2 * begin + width) << abi::FIEF_WAIT_SHIFT) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_without_a_gap() {
        let ends = |step: u64| {
            let unit = 1u64 << abi::FIEF_WAIT_SHIFT;
            let width = if step < 8 { unit } else { unit << (step / 4 - 1) };
            (middle(step) - width / 2, middle(step) + width / 2)
        };
        for step in 0..u64::from(abi::FIEF_WAIT_STEPS) - 1 {
            assert_eq!(ends(step).1, ends(step + 1).0, "{step}");
        }
        let (longest, _) = ends(u64::from(abi::FIEF_WAIT_STEPS) - 1);
        assert!(longest > 30_000_000_000, "half a minute has a step: {longest}");
    }

    #[test]
    fn a_quantile_is_the_step_that_reaches_it() {
        let mut counts = [0; abi::FIEF_WAIT_STEPS as usize];
        let quantile = |counts: &[u32], part| Waits::of(counts).quantile(part);
        assert_eq!(quantile(&counts, 0.5), None);
        counts[10] = 98;
        counts[40] = 2;
        assert_eq!(quantile(&counts, 0.5), Some(middle(10)));
        assert_eq!(quantile(&counts, 0.98), Some(middle(10)));
        assert_eq!(quantile(&counts, 0.99), Some(middle(40)));
    }

    #[test]
    fn an_interval_has_the_waits_that_the_earlier_reading_did_not() {
        let (before, after) = (Waits::of(&[100, 0, u32::MAX]), Waits::of(&[100, 4, 1]));
        assert_eq!(after.since(&before), Waits::of(&[0, 4, 2]), "the last count went round");
        assert_eq!(after.since(&Waits::default()), after, "there was no reading");
        assert_eq!(before.since(&before).quantile(0.99), None);
    }

    #[test]
    fn classes_add_up_step_by_step() {
        let mut both = Waits::of(&[1, 2]);
        both.add(&Waits::of(&[0, 3, 4]));
        assert_eq!(both, Waits::of(&[1, 5, 4]));
    }
}
