// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of the front door, from the kernel's random source, set once for an installation.
//!
//! They outlive policies and upgrades, so that no handshake under way is refused. The kernel side derives the cookies' key of
//! each epoch from them.

use crate::abi;
use crate::error::{Context, Result};
use crate::pin::Pins;
use crate::record::{self, Record};

/// Sets the keys, unless they are set.
pub(crate) fn set(pins: &Pins) -> Result<()> {
    let map = pins.open_map("secrets")?;
    let there: abi::fief_secret = record::lookup(&map, &0u32.to_ne_bytes())?.unwrap_or_default();
    if there.bytes().iter().any(|byte| *byte != 0) {
        return Ok(());
    }
    let mut fresh = abi::fief_secret::default();
    fill(fresh.bytes_mut()).context(|| "cannot get the front door's keys from the kernel's random source".into())?;
    record::update(&map, 0, &fresh)
}

pub(crate) fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    // SAFETY: the kernel writes at most as many bytes as there are.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // requests up to 256 bytes are never cut short
    if got == bytes.len() as isize { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_differ() {
        let (mut one, mut two) = ([0; 32], [0; 32]);
        fill(&mut one).expect("random bytes");
        fill(&mut two).expect("random bytes");
        assert_ne!(one, two);
    }
}
