// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation for the doors of a program's tests, one after the other: to load one takes the kernel two seconds of verifying.
//!
//! Between two doors nothing is guarded, and the next one's policy moves to a network namespace of its own, as by
//! `fief apply --here`. Listeners and queues, their counters, and containers but for `web` are new by that. What the door knows of
//! clients, of flows and of idle CPUs is forgotten ([`REMEMBERED`]). What stays: `web` with its usage and its cgroup, what the core
//! counts, the keys of hashes and cookies, and heads that are known, which are compared as a whole. So this is not for tests of those, nor
//! for one that takes the installation down or needs it to be the first of its scope.
//!
//! A test that fails leaves its installation to nobody. Those that are left at the end of the program are taken down there.

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};

use fief_bpf::pin::Pins;
use fief_bpf::{Context, map, record};
use fief_testkit::NetNs;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::Installation;

/// The policy between two doors has the container of the managed cgroup, and guards nothing.
const NOTHING: &str = "version = 1\n[container.web]\n";

/// Tables of what the front door knows of clients and their packets, which no policy says. All of them begin empty.
pub const REMEMBERED: [&str; 33] = [
    "admitted",
    "answered",
    "bad_arrivals",
    "ban_counts",
    "bans",
    "counted_ends",
    "early_rounds",
    "expected_ends",
    "given",
    "half_rows",
    "half_tags",
    "halves",
    "idle_looks",
    "meters",
    "passed",
    "proven_segments",
    "queue_holds",
    "queue_lasts",
    "queue_lines",
    "queue_pieces",
    "queue_serves",
    "queue_waits",
    "resent_sets",
    "resolved",
    "sightings",
    "source_bucket_looks",
    "source_bucket_tags",
    "source_buckets",
    "source_looks",
    "source_tags",
    "sources",
    "unusual_segments",
    "verdicts",
];

static SPARE: Mutex<Vec<Installation>> = Mutex::new(Vec::new());

thread_local! {
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, the doors of this thread take an installation that one before them left, of this test or of another one of the
/// program, and leave it to the next.
#[derive(Debug)]
#[must_use = "it lasts as long as this"]
pub struct OneInstallation(());

/// From now on a door's installation is the next one's.
pub fn one_installation() -> OneInstallation {
    WANTED.set(true);
    OneInstallation(())
}

impl Drop for OneInstallation {
    fn drop(&mut self) {
        WANTED.set(false);
    }
}

fn spare() -> MutexGuard<'static, Vec<Installation>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That of a door before, if there was one.
pub(crate) fn take() -> Option<Installation> {
    if WANTED.get() { spare().pop() } else { None }
}

/// The first port of the raw clients of this thread's next door: not that of the doors just before.
pub(crate) fn first_port() -> u16 {
    const PORTS: u16 = 8000;
    const TURNS: u16 = 7;
    static DOORS: AtomicU16 = AtomicU16::new(0);
    let turn = if WANTED.get() { DOORS.fetch_add(1, Ordering::Relaxed) % TURNS } else { 0 };
    2000 + turn * PORTS
}

/// A door in this namespace goes: what stood there is the next one's, or is taken down.
pub(crate) fn put(installation: Installation, server: &NetNs) {
    // a test may have taken it down, and one that fails wants no other
    if !WANTED.get() || std::thread::panicking() || !installation.fief().installed() {
        return;
    }
    // while the namespace is there: what waits goes on, and the links and sysctls go back
    server.run(|| installation.apply(NOTHING)).unwrap().unwrap();
    installation.forget_sysctls();
    let pins = installation.fief().pins();
    // a queue that is left has its places in the tables
    if pins.open_map("queues").unwrap().keys().next().is_none() {
        forget(pins);
        keep(installation);
    }
}

/// Leaves it to the next door. The end of the program takes down those that are left.
fn keep(installation: Installation) {
    static AT_THE_END: Once = Once::new();
    AT_THE_END.call_once(|| {
        // SAFETY: the function lasts as long as the program. Children that are forked run no exit handlers (child.rs).
        assert_eq!(unsafe { libc::atexit(take_all_down) }, 0);
    });
    spare().push(installation);
}

extern "C" fn take_all_down() {
    let all = std::mem::take(&mut *spare());
    // by another thread: what is local to this one has gone already
    let _ = std::thread::spawn(move || drop(all)).join();
}

fn forget(pins: &Pins) {
    for name in REMEMBERED {
        let table = pins.open_map(name).unwrap_or_else(|e| panic!("{e}"));
        empty(&table, name).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The numbers of the elements of the longest array, as maps are told them.
static NUMBERS: LazyLock<Vec<u8>> = LazyLock::new(|| (0..1u32 << 17).flat_map(u32::to_ne_bytes).collect());

/// Bytes of values that are written at a time.
const AT_A_TIME: usize = 1 << 20;

fn empty(table: &MapHandle, name: &str) -> fief_bpf::Result<()> {
    const KEY: usize = size_of::<u32>();
    match table.map_type() {
        MapType::Array => {
            let size = table.value_size() as usize;
            let count = (AT_A_TIME / size).max(1);
            let nothing = vec![0; count * size];
            for numbers in NUMBERS[..table.max_entries() as usize * KEY].chunks(count * KEY) {
                let count = numbers.len() / KEY;
                table
                    .update_batch(numbers, &nothing[..count * size], count as u32, MapFlags::ANY, MapFlags::ANY)
                    .context(|| "cannot write zeroes".into())?;
            }
            Ok(())
        }
        MapType::PercpuArray => (0..table.max_entries()).try_for_each(|n| record::clear_of_all_cpus(table, n)),
        _ => {
            let keys: Vec<_> = table.keys().collect();
            keys.iter().try_for_each(|key| map::delete(table, name, key))
        }
    }
}
