// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in service by class. The kernel side's queue counts all of them together; whose they are stands at their flows.

use std::collections::HashMap;

use fief_bpf::{Result, abi, batch};

use crate::Fief;

/// Requests that servers have, by number of the queue and position of the class.
#[derive(Debug, Default)]
pub(super) struct Served(HashMap<(u32, u32), u32>);

impl Served {
    /// Reads them where somebody has a place: the tables of flows are larger than all queues.
    pub(super) fn read(fief: &Fief, queues: &[(u32, abi::fief_queue)], now_ns: u64) -> Result<Self> {
        if queues.iter().all(|(_, queue)| super::in_service(queue, now_ns) == 0) {
            return Ok(Self::default());
        }
        let any = |map| -> Result<Vec<(abi::fief_flow_key, abi::fief_served)>> { batch::entries(&fief.map(map)?) };
        let (serves, lasts) = (any("queue_serves")?, any("queue_lasts")?);
        let shifts = queues.iter().map(|(number, queue)| (*number, queue.tick_shift)).collect();
        let values = |flows: Vec<(_, abi::fief_served)>| flows.into_iter().map(|(_, served)| served);
        Ok(Self::count(values(serves), values(lasts), &shifts, now_ns))
    }

    /// `shifts`: by queue, how long a tick is, at whose begin a place runs out.
    fn count(
        serves: impl Iterator<Item = abi::fief_served>,
        lasts: impl Iterator<Item = abi::fief_served>,
        shifts: &HashMap<u32, u32>,
        now_ns: u64,
    ) -> Self {
        // those whose place has run out are remembered for a while
        let has_place = |served: &abi::fief_served| {
            shifts.get(&served.queue).is_some_and(|shift| served.ends >> shift > now_ns >> shift)
        };
        let mut counts = HashMap::new();
        for served in serves.filter(has_place).chain(lasts) {
            *counts.entry((served.queue, served.class)).or_default() += 1;
        }
        Self(counts)
    }

    /// Of a class.
    pub(super) fn of(&self, queue: u32, class: usize) -> u32 {
        self.0.get(&(queue, class as u32)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_for_its_class_until_its_place_runs_out() {
        let served =
            |queue, class, ends: u64| abi::fief_served { queue, class, ends: ends << 20, ..Default::default() };
        let serves = [served(3, 0, 11), served(3, 0, 12), served(3, 1, 10), served(4, 0, 99), served(7, 0, 99)];
        let lasts = [served(3, 1, 0)];
        let shifts = HashMap::from([(3, 20), (4, 20)]);
        let counted = Served::count(serves.into_iter(), lasts.into_iter(), &shifts, 10 << 20);
        assert_eq!([counted.of(3, 0), counted.of(3, 1), counted.of(3, 2), counted.of(4, 0)], [2, 1, 0, 1]);
        assert_eq!(counted.of(7, 0), 0, "a queue that is no longer there");
    }
}
