// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door at network interfaces: which of them its program is attached to.
//!
//! A tcx link belongs to an interface, is pinned below `interfaces/<namespace>/<index>`, and ends with the interface: the
//! pin then stands for nothing and is replaced. The program goes in front of whatever else is attached: one that ends
//! the chain (TC_ACT_OK) would let packets round it. It ends the chain itself only where it answers or drops.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::link::{self, Place};
use crate::pin::{Pins, make_dir};

/// The program at the interfaces.
pub const INGRESS_PROGRAM: &str = "ingress_guards";

/// Attaches to the interfaces with these indexes in the caller's network namespace, whose inode is `netns`. What is
/// attached already stays.
pub fn attach(pins: &Pins, netns: u64, indexes: &[u32]) -> Result<()> {
    let folder = pins.interfaces().join(netns.to_string());
    make_dir(&folder)?;
    for &index in indexes {
        link::attach_ingress(pins, INGRESS_PROGRAM, Place::First, index, &folder.join(index.to_string()))?;
    }
    Ok(())
}

/// Lets go of every interface but these: inode of the network namespace and index.
pub fn detach_others(pins: &Pins, keep: &[(u64, u32)]) -> Result<()> {
    let pin = |(netns, index): &(u64, u32)| pins.interfaces().join(netns.to_string()).join(index.to_string());
    let keep: Vec<_> = keep.iter().map(pin).collect();
    for pin in links(pins) {
        if !keep.contains(&pin) {
            link::remove(&pin)?;
        }
    }
    link::remove_empty_below(&pins.interfaces());
    Ok(())
}

/// The interfaces that it is attached to now: inode of the network namespace and index.
pub fn attached(pins: &Pins) -> Vec<(u64, u32)> {
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u64>().ok();
    let place = |pin: PathBuf| Some((number(pin.parent()?)?, link::target(&pin)?));
    let mut found: Vec<_> = links(pins).into_iter().filter_map(place).collect();
    found.sort_unstable();
    found
}

/// The pins of the links.
pub(crate) fn links(pins: &Pins) -> Vec<PathBuf> {
    link::pins_below(&pins.interfaces())
}
