// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps as the control plane has them: opened by their pin, read and written.

pub use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::{Context, Result};

/// Removes an entry; one that is not there is no error.
pub fn delete(map: &MapHandle, name: &str, key: &[u8]) -> Result<()> {
    match map.delete(key) {
        Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
        done => done.context(|| format!("cannot delete from the map {name}")),
    }
}
