// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CLOCK_MONOTONIC for the price of reading the processor's counter, where the kernel itself keeps time by that counter.
//!
//! `clock_gettime` costs twice as much as all the rest of a record in a ring. The counter is held against it every few
//! milliseconds, so that a record is off by less than the time that it takes to write some of them.

/// Ticks after which the counter is held against the clock again: some milliseconds. Their product with the scale fits.
const WINDOW: u64 = 1 << 24;
/// Binary places of the scale.
const SHIFT: u32 = 32;
/// Nanoseconds between the first two looks, which tell how long a tick is.
const CALIBRATION_NS: u64 = 100_000;
/// Older than that, a look is no measure of the present length of a tick.
const BASE_NS: u64 = 1_000_000_000;
/// A scale that differs by more than this part is a clock that stood still meanwhile (suspend).
const STEADY_PART: u64 = 1024;

/// A moment by both clocks.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    ticks: u64,
    ns: u64,
}

#[derive(Debug)]
pub(crate) struct Clock {
    /// ns of a tick, times 2^SHIFT; 0: the counter is not to be used.
    scale: u64,
    anchor: Look,
    base: Look,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let mut clock = Self { scale: 0, anchor: Look::default(), base: Look::default() };
        if counter().is_none() || !kernel_counts() {
            return clock;
        }
        clock.base = look();
        while monotonic_ns() < clock.base.ns + CALIBRATION_NS {
            std::hint::spin_loop();
        }
        clock.anchor = look();
        clock.scale = scale(clock.base, clock.anchor);
        clock
    }

    /// CLOCK_MONOTONIC in ns.
    #[inline]
    pub(crate) fn now(&mut self) -> u64 {
        if self.scale != 0 {
            let passed = counter().unwrap_or(0).wrapping_sub(self.anchor.ticks);
            if passed < WINDOW {
                return self.anchor.ns + ((passed * self.scale) >> SHIFT);
            }
            return self.compare();
        }
        monotonic_ns()
    }

    #[cold]
    fn compare(&mut self) -> u64 {
        let now = look();
        let scale = scale(self.base, now);
        if scale.abs_diff(self.scale) <= self.scale / STEADY_PART {
            self.scale = scale;
        }
        if now.ns.saturating_sub(self.base.ns) > BASE_NS {
            self.base = self.anchor;
            if now.ns.saturating_sub(self.base.ns) > BASE_NS {
                self.base = now;
            }
        }
        self.anchor = now;
        now.ns
    }
}

/// 0 if no time has passed.
fn scale(from: Look, to: Look) -> u64 {
    let ticks = u128::from(to.ticks.wrapping_sub(from.ticks));
    let ns = u128::from(to.ns.saturating_sub(from.ns));
    (ns << SHIFT)
        .checked_div(ticks)
        .and_then(|scale| u64::try_from(scale).ok())
        .filter(|s| s >> SHIFT == 0)
        .unwrap_or(0)
}

/// Whether the kernel keeps time by the counter; else it may stop, or differ between CPUs.
fn kernel_counts() -> bool {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|name| name.trim() == "tsc")
}

#[inline]
fn counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a counter that every processor of this kind has.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Both clocks at one moment: of some tries the one that nothing came between.
fn look() -> Look {
    let tries = (0..4).map(|_| {
        let before = counter().unwrap_or(0);
        let ns = monotonic_ns();
        let took = counter().unwrap_or(0).wrapping_sub(before);
        (took, Look { ticks: before.wrapping_add(took / 2), ns })
    });
    tries.min_by_key(|(took, _)| *took).map(|(_, look)| look).unwrap_or_default()
}

pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the record, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_agrees_with_the_clock_over_many_windows() {
        let mut clock = Clock::new();
        let end = monotonic_ns() + 60_000_000;
        let mut closest = u64::MAX;
        let mut farthest_of_close = 0;
        loop {
            let before = monotonic_ns();
            let own = clock.now();
            let after = monotonic_ns();
            if before > end {
                break;
            }
            // who was interrupted in between says nothing
            if after - before < 2_000 {
                let off = before.saturating_sub(own).max(own.saturating_sub(after));
                closest = closest.min(off);
                farthest_of_close = farthest_of_close.max(off);
            }
        }
        assert!(closest < 1_000, "{closest} ns");
        assert!(farthest_of_close < 100_000, "{farthest_of_close} ns");
    }

    #[test]
    fn a_clock_that_stood_still_does_not_change_the_scale() {
        let at = |ticks, ns| Look { ticks, ns };
        let mut clock = Clock { scale: 1 << 31, anchor: at(1 << 30, 1 << 29), base: at(0, 0) };
        let before = clock.scale;
        assert_eq!(scale(at(0, 0), at(1 << 30, 1 << 29)), 1 << 31);
        clock.compare(); // the machine's own clocks have nothing to do with these
        assert!(clock.scale.abs_diff(before) <= before / STEADY_PART);
        assert_eq!(scale(at(5, 5), at(5, 5)), 0);
    }
}
