// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps as the control plane has them: opened by their pin, read, written, and rings.

use std::cell::RefCell;
use std::time::Duration;

pub use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::{Context, Result};
use crate::record::Record;

/// Removes an entry; one that is not there is no error.
pub fn delete(map: &MapHandle, name: &str, key: &[u8]) -> Result<()> {
    match map.delete(key) {
        Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
        done => done.context(|| format!("cannot delete from the map {name}")),
    }
}

/// Calls `each` with the records that come into a ring, at least once in a `tick`, until it says no.
pub fn follow<T: Record, E: From<crate::Error>>(
    ring: &MapHandle,
    tick: Duration,
    mut each: impl FnMut(Vec<T>) -> std::result::Result<bool, E>,
) -> std::result::Result<(), E> {
    let unreadable = || "cannot read a ring of the kernel side".to_owned();
    let taken = RefCell::new(Vec::new());
    let mut builder = libbpf_rs::RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        taken.borrow_mut().extend(T::from_bytes(bytes));
        0
    };
    builder.add(ring, take).context(unreadable)?;
    let reader = builder.build().context(unreadable)?;
    while each(taken.take())? {
        match reader.poll(tick) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            polled => polled.context(unreadable)?,
        }
    }
    Ok(())
}
