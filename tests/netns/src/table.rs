// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The container table as a test looks at it.

use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_control::{Fief, Snapshot};
use fief_testkit::wait_until;

use crate::own_clock;

/// How long to wait for what must happen by itself.
pub const SOON: Duration = Duration::from_secs(60);

fn table() -> Table {
    Table::open(Fief::from_env().unwrap().pins()).expect("an installation in FIEF_SCOPE")
}

/// Slots in use, beside the known ones.
pub fn in_use() -> usize {
    table().rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID).count()
}

/// Containers that an application made and did not name.
pub fn unnamed() -> usize {
    table().rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID && row.name().is_empty()).count()
}

/// Containers without a name that were there at one moment: those that two scans both met, since one scan can count what
/// is freed behind it and made again before it.
pub fn unnamed_at_once() -> usize {
    let scan = || {
        let table = table();
        let rows = table.rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID && row.name().is_empty());
        rows.map(|row| (row.container.id, row.container.generation)).collect::<std::collections::HashSet<_>>()
    };
    scan().intersection(&scan()).count()
}

/// The unnamed containers, for a test that wanted none.
pub fn left() -> String {
    let mut text = String::new();
    for row in table().rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID && row.name().is_empty()) {
        let (refs, holders) = (row.record.refs, row.record.refs % (1 << 42));
        text += &format!(
            "\n{}: state {} children {} threads {} handles {} parent {}",
            row.container.id,
            row.record.state,
            refs >> 42,
            holders >> 20,
            refs % (1 << 20),
            row.record.parent.id
        );
    }
    text
}

/// Waits until no container is left that an application made and did not name.
pub fn all_end() {
    wait_until(SOON, || unnamed() == 0).unwrap_or_else(|_| panic!("left: {}", left()));
}

/// CPU time of a container as the control plane reads it; 0 if there is none at that path.
pub fn cpu_ns_of(path: &str) -> u64 {
    let snapshot = Fief::from_env().unwrap().snapshot().expect("an installation in FIEF_SCOPE");
    snapshot.containers.iter().find(|c| c.path == path).map_or(0, |c| c.usage.cpu_ns())
}

/// The table as it is read while nobody preempts the reader: of several readings the one that took least. Who is preempted in
/// the midst reads the rest late.
pub fn steady_snapshot(fief: &Fief) -> Snapshot {
    let readings = (0..10).map(|_| {
        let begun = Instant::now();
        let snapshot = fief.snapshot().expect("an installation");
        (begun.elapsed(), snapshot)
    });
    readings.min_by_key(|(took, _)| *took).expect("ten of them").1
}

/// The record in a slot, unless that is free.
pub fn record(id: u32) -> Option<abi::fief_container> {
    table().row(id).map(|row| row.record)
}

/// Uses this much CPU, however long that takes on a busy machine. What passes at once between two looks at the thread's clock was the
/// hypervisor's, of which nobody is charged.
pub fn spin(time: Duration) {
    let (mut left, mut last) = (time, own_clock());
    while !left.is_zero() {
        std::hint::spin_loop();
        let now = own_clock();
        left = left.saturating_sub((now - last).min(Duration::from_micros(100)));
        last = now;
    }
}
