// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Medians, spreads and a histogram of latencies. Pure.
//!
//! The machine is shared and short of cores, so a figure is the median of rounds and never a mean of them: one round
//! in which somebody compiled must not move it.

use serde::{Deserialize, Serialize};

/// The q-quantile (0..=1) of a sample, with linear interpolation; NaN of an empty one.
pub fn quantile(sample: &[f64], q: f64) -> f64 {
    let mut sorted: Vec<f64> = sample.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

pub fn median(sample: &[f64]) -> f64 {
    quantile(sample, 0.5)
}

/// A median with the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub rounds: usize,
}

impl Spread {
    pub fn of(sample: &[f64]) -> Spread {
        Spread {
            median: median(sample),
            low: quantile(sample, 0.25),
            high: quantile(sample, 0.75),
            rounds: sample.len(),
        }
    }
}

/// Milliseconds of microseconds.
pub fn ms(us: &[f64]) -> Vec<f64> {
    us.iter().map(|us| us / 1000.0).collect()
}

/// Ratios round by round, so that what slows a whole round cancels.
pub fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

/// Each power of two is cut into so many buckets: an error below 1.6 percent.
const PARTS: u64 = 64;
const BITS: u32 = PARTS.trailing_zeros();

/// A histogram of nanoseconds with a constant relative error. It merges, so that a percentile is of all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// (bucket, count), ascending; most buckets are empty.
    buckets: Vec<(u32, u64)>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    pub fn record(&mut self, ns: u64) {
        self.add(bucket(ns), 1);
        self.count += 1;
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    fn add(&mut self, bucket: u32, count: u64) {
        match self.buckets.binary_search_by_key(&bucket, |entry| entry.0) {
            Ok(place) => self.buckets[place].1 += count,
            Err(place) => self.buckets.insert(place, (bucket, count)),
        }
    }

    pub fn merge(&mut self, other: &Histogram) {
        for &(bucket, count) in &other.buckets {
            self.add(bucket, count);
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Exact, not of the buckets; NaN of an empty histogram.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// How many took at most so long; what lies in its very bucket does by the bucket's middle.
    pub fn within(&self, ns: u64) -> u64 {
        self.buckets.iter().filter(|entry| middle(entry.0) <= ns as f64).map(|entry| entry.1).sum()
    }

    /// The q-quantile in ns, the middle of its bucket.
    pub fn quantile(&self, q: f64) -> f64 {
        if self.count == 0 {
            return f64::NAN;
        }
        let wanted = ((q * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for &(bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return middle(bucket).min(self.max as f64);
            }
        }
        self.max as f64
    }
}

fn bucket(ns: u64) -> u32 {
    if ns < PARTS {
        return ns as u32;
    }
    let shift = ns.ilog2() - BITS;
    // The top bit is implied by the power of two.
    (shift + 1) * PARTS as u32 + ((ns >> shift) - PARTS) as u32
}

fn middle(bucket: u32) -> f64 {
    let (power, part) = (u64::from(bucket) / PARTS, u64::from(bucket) % PARTS);
    if power == 0 {
        return part as f64;
    }
    let width = (1u64 << (power - 1)) as f64;
    (PARTS + part) as f64 * width + width / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_of_an_even_sample_lies_between() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_round_that_failed_does_not_count() {
        assert_eq!(median(&[1.0, f64::NAN, 3.0]), 2.0);
    }

    #[test]
    fn one_bad_round_does_not_move_the_figure() {
        let spread = Spread::of(&[1.0, 1.1, 0.9, 50.0, 1.0]);
        assert_eq!(spread.median, 1.0);
        assert_eq!(spread.rounds, 5);
    }

    #[test]
    fn what_took_at_most_so_long_is_counted_to_a_bucket() {
        let mut histogram = Histogram::default();
        [1_000_000, 19_600_000, 20_400_000, 50_000_000].into_iter().for_each(|ns| histogram.record(ns));
        assert_eq!(histogram.within(20_000_000), 2);
        assert_eq!([histogram.within(0), histogram.within(u64::MAX)], [0, 4]);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
    }

    #[test]
    fn an_empty_histogram_has_no_mean() {
        assert!(Histogram::default().mean().is_nan());
        assert!(Histogram::default().quantile(0.5).is_nan());
    }

    proptest! {
        #[test]
        fn a_bucket_is_within_two_percent(ns in 0u64..10_000_000_000) {
            let middle = middle(bucket(ns));
            prop_assert!((middle - ns as f64).abs() <= 0.016 * ns as f64 + 0.5);
        }

        #[test]
        fn buckets_ascend_with_their_values(a in 0u64..1 << 40, b in 0u64..1 << 40) {
            prop_assert!(bucket(a.min(b)) <= bucket(a.max(b)));
        }

        #[test]
        fn merging_is_recording_into_one(a in prop::collection::vec(1u64..1 << 40, 0..50),
                                         b in prop::collection::vec(1u64..1 << 40, 0..50)) {
            let record = |values: &[u64]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|&ns| histogram.record(ns));
                histogram
            };
            let mut merged = record(&a);
            merged.merge(&record(&b));
            prop_assert_eq!(merged, record(&[a, b].concat()));
        }

        #[test]
        fn quantiles_are_near_the_exact_ones(mut values in prop::collection::vec(1u64..1 << 40, 1..200), q in 0.0..1.0f64) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&ns| histogram.record(ns));
            values.sort_unstable();
            let exact = values[((q * values.len() as f64).ceil() as usize).clamp(1, values.len()) - 1] as f64;
            prop_assert!((histogram.quantile(q) - exact).abs() <= 0.017 * exact + 1.0);
        }
    }
}
