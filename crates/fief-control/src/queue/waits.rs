// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long requests waited, from the kernel side's counts by steps (`bpf/abi/queue.h`). Pure.

use fief_bpf::abi;

/// The wait that this part of all did not exceed, to an eighth of itself; `None`: nobody waited.
pub(super) fn quantile(counts: &[u32], part: f64) -> Option<u64> {
    let all: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let wanted = ((all as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    let step = counts.iter().position(|&count| {
        seen += u64::from(count);
        all > 0 && seen >= wanted
    })?;
    Some(middle(step as u64))
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
        assert_eq!(quantile(&counts, 0.5), None);
        counts[10] = 98;
        counts[40] = 2;
        assert_eq!(quantile(&counts, 0.5), Some(middle(10)));
        assert_eq!(quantile(&counts, 0.98), Some(middle(10)));
        assert_eq!(quantile(&counts, 0.99), Some(middle(40)));
    }
}
