// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the times of frames tell: rates, how far rates are apart, jitter, and late frames. Pure.

use std::time::Duration;

use crate::statistics::quantile;

/// Frames a second, from the first one after `since` to the last.
pub fn rate(shown_us: &[u64], since: Duration) -> f64 {
    let counted = after(shown_us, since);
    match (counted.first(), counted.last()) {
        (Some(first), Some(last)) if last > first => (counted.len() - 1) as f64 * 1e6 / (last - first) as f64,
        _ => f64::NAN,
    }
}

fn after(shown_us: &[u64], since: Duration) -> &[u64] {
    let begin = shown_us.partition_point(|at| u128::from(*at) < since.as_micros());
    &shown_us[begin..]
}

/// How far the rates are apart: least to most, of the most. NaN if one was not measured.
pub fn spread(rates: &[f64]) -> f64 {
    if rates.is_empty() || rates.iter().any(|rate| !rate.is_finite()) {
        return f64::NAN;
    }
    let most = rates.iter().copied().fold(f64::MIN, f64::max);
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    (most - least) / most
}

/// The largest; NaN if one is.
pub fn worst(values: impl IntoIterator<Item = f64>) -> f64 {
    values
        .into_iter()
        .reduce(|worst, value| if value > worst || value.is_nan() { value } else { worst })
        .unwrap_or(f64::NAN)
}

/// The 99th percentile of how far the time from frame to frame is off its mean, ms.
pub fn jitter_ms(shown_us: &[u64], since: Duration) -> f64 {
    let counted = after(shown_us, since);
    let steps: Vec<f64> = counted.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1000.0).collect();
    let mean = steps.iter().sum::<f64>() / steps.len() as f64;
    quantile(&steps.iter().map(|step| (step - mean).abs()).collect::<Vec<_>>(), 0.99)
}

/// Frames of so many that had not been shown when the next one was due, and those that were not shown at all.
pub fn missed(shown_us: &[u64], period: Duration, frames: usize) -> usize {
    let end = |number: usize| period.as_micros() * (number as u128 + 1);
    let late = shown_us.iter().enumerate().filter(|(number, at)| u128::from(**at) > end(*number)).count();
    late + frames.saturating_sub(shown_us.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    #[test]
    fn a_rate_is_of_the_steps_after_the_warm_up() {
        let shown = [100_000, 600_000, 700_000, 800_000, 900_000];
        assert_eq!(rate(&shown, Duration::from_millis(600)), 10.0);
        assert_eq!(rate(&shown, NONE), 5.0);
        assert!(rate(&shown[..1], NONE).is_nan() && rate(&[], NONE).is_nan());
    }

    #[test]
    fn the_spread_is_of_the_most() {
        assert_eq!(spread(&[50.0, 40.0, 45.0]), 0.2);
        assert_eq!(spread(&[50.0]), 0.0);
        assert!(spread(&[50.0, f64::NAN]).is_nan() && spread(&[]).is_nan());
    }

    #[test]
    fn the_worst_of_what_was_not_measured_is_not_known() {
        assert_eq!(worst([1.0, 3.0, 2.0]), 3.0);
        for values in [[f64::NAN, 3.0], [3.0, f64::NAN]] {
            assert!(worst(values).is_nan());
        }
    }

    #[test]
    fn jitter_is_the_distance_of_a_step_from_the_mean() {
        let even: Vec<u64> = (0..100).map(|frame| frame * 20_000).collect();
        assert_eq!(jitter_ms(&even, NONE), 0.0);
        // one step in two takes 10 ms, the other 30
        let jerky: Vec<u64> = (0..101).map(|frame| frame * 20_000 + frame % 2 * 10_000).collect();
        assert!((jitter_ms(&jerky, NONE) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_frame_is_missed_that_was_shown_after_the_next_one_was_due() {
        let period = Duration::from_millis(40);
        assert_eq!(missed(&[40_000, 79_000, 120_001, 130_000], period, 4), 1);
        assert_eq!(missed(&[40_000, 79_000], period, 4), 2);
    }
}
