// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Told: what was told last of the counters that a reading may have too much of for a moment. Pure.
//!
//! Problem: a reading has the time of a CPU that the hypervisor has taken, until the kernel side knows it (bpf/core/usage.bpf.h), and a
//! request that enters its queue may turn out to make no connection (queue_enter in bpf/front/waiting.bpf.h). The next reading has less.
//! Prometheus takes a counter that falls for one that began anew, and counts all of it once more.
//! How: a counter that falls by no more than such a moment stays as it was told, until it is as large again. One that falls by more began
//! anew.
//! Limits: an agent that starts does not know what the one before it told. Of a counter that began anew and was hardly larger before,
//! the first moment is not told.

use std::collections::HashMap;
use std::hash::Hash;

use fief::Usage;

use crate::series::Row;

/// What a reading has too much of one CPU's time at most: what lasts longer the kernel side does not take for the hypervisor's
/// (`STEAL_MAX_NS` in bpf/core/steal.bpf.h).
const MOST_NS: u64 = 10_000_000_000;

/// Listener and container.
type Class = [(&'static str, String); 2];

/// What all formats have told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// By the container of the series, and the kind of time.
    times: Counters<((u32, u32), &'static str)>,
    entered: Counters<Class>,
}

impl Told {
    /// Lets no CPU time of a series fall by what the last reading had too much of it.
    pub(crate) fn hold_times(&mut self, rows: &mut [Row], cpus: u32) {
        // of a slot the generation goes up as long as one installation is in force
        let last: HashMap<u32, u32> = self.times.last.keys().map(|(of, _)| *of).collect();
        let is_older = |Row { of: (id, generation), .. }: &Row| {
            last.get(id).is_some_and(|last| (generation.wrapping_sub(*last) as i32) < 0)
        };
        if rows.iter().any(is_older) {
            *self = Self::default();
        }
        let times = rows.iter_mut().flat_map(|row| {
            let Row { of, usage: Usage { thread_ns, receive_ns, .. }, .. } = row;
            [((*of, "thread"), thread_ns), ((*of, "receive"), receive_ns)]
        });
        self.times.hold(times, u64::from(cpus) * MOST_NS);
    }

    /// The same of the requests that entered. A CPU lets in one at a time.
    pub(crate) fn hold_entered(&mut self, entered: &mut [(Class, u64)], cpus: u32) {
        self.entered.hold(entered.iter_mut().map(|(class, count)| (class.clone(), count)), cpus.into());
    }
}

#[derive(Debug, Default)]
struct Counters<K> {
    last: HashMap<K, u64>,
}

impl<K: Eq + Hash> Counters<K> {
    /// `most`: by so much a counter may fall that goes on.
    fn hold<'n>(&mut self, now: impl Iterator<Item = (K, &'n mut u64)>, most: u64) {
        let last = std::mem::take(&mut self.last);
        for (key, count) in now {
            let fell = last.get(&key).and_then(|told| told.checked_sub(*count));
            *count += fell.filter(|by| *by <= most).unwrap_or(0);
            self.last.insert(key, *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One counter is read so often, at most 10 too large: what the agent tells each time.
    fn told<const N: usize>(read: [u64; N]) -> [u64; N] {
        let mut counters = Counters::default();
        read.map(|mut count| {
            counters.hold([("one", &mut count)].into_iter(), 10);
            count
        })
    }

    #[test]
    fn what_a_reading_had_too_much_of_does_not_fall() {
        assert_eq!(told([100, 150, 140, 145, 160]), [100, 150, 150, 150, 160]);
        assert_eq!(told([100, 95, 88, 95]), [100, 100, 88, 95], "by 12 it fell since it began anew");
    }

    #[test]
    fn what_began_anew_is_told_as_it_is() {
        assert_eq!(told([100, 3, 5]), [100, 3, 5]);
    }

    #[test]
    fn what_was_gone_for_a_while_is_not_remembered() {
        let mut counters = Counters::default();
        let mut hold = |mut count: u64, is_there: bool| {
            counters.hold([("one", &mut count)].into_iter().filter(|_| is_there), 10);
            count
        };
        assert_eq!([hold(5, true), hold(0, false), hold(1, true)], [5, 0, 1]);
    }
}
