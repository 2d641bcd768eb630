// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One installation for the doors of a test that follow each other: to load it takes the kernel more than a second of verifying,
//! at each door anew.
//!
//! Between two doors nothing is guarded, and the next one's policy moves to a network namespace of its own, as by
//! `fief apply --here`. Listeners and queues, their counters, and containers but for `web` are new by that. What the door knows of
//! sources, of flows and of idle CPUs stays. So this is for tests of what servers get and clients are answered, in whatever order they
//! come; not for those of admission, rates, bans, isolation and full tables, which begin with an installation that has seen nobody.

use std::cell::{Cell, RefCell};

use fief_bpf::{abi, record};
use fief_testkit::NetNs;

use crate::Installation;

/// The policy between two doors has the container of the managed cgroup, and guards nothing.
const NOTHING: &str = "version = 1\n[container.web]\n";

thread_local! {
    static WANTED: Cell<bool> = const { Cell::new(false) };
    static SPARE: RefCell<Option<Installation>> = const { RefCell::new(None) };
    static TAKEN: Cell<u16> = const { Cell::new(0) };
}

/// While it lives, the doors of this thread share an installation. Dropped, it takes that down.
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
        TAKEN.set(0);
        drop(SPARE.take());
    }
}

/// That of the door before, if there was one.
pub(crate) fn take() -> Option<Installation> {
    let spare = SPARE.take();
    TAKEN.set(TAKEN.get() + u16::from(spare.is_some()));
    spare
}

/// The first port of the raw clients of this thread's next door: what the installation knows of those before must not meet it.
pub(crate) fn first_port() -> u16 {
    const PORTS: u16 = 8000;
    let taken = TAKEN.get();
    assert!(taken < u16::MAX / PORTS - 1, "one installation for too many doors with raw clients");
    2000 + taken * PORTS
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
    // the next door sees for itself what clients ask for
    let sightings = installation.fief().pins().open_map("sightings");
    sightings.and_then(|map| record::update(&map, 0, &abi::fief_sightings::default())).unwrap();
    drop(SPARE.replace(Some(installation)));
}
