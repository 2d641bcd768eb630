// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door at network interfaces: which of them its program is attached to.
//!
//! A tcx link belongs to an interface, is pinned below `interfaces/<namespace>/<index>`, and ends with the interface: the
//! pin then stands for nothing and is replaced. The program goes in front of whatever else is attached: one that ends
//! the chain (TC_ACT_OK) would let packets round it. It ends the chain itself only where it answers or drops.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::Program;

use crate::error::{Context, Result};
use crate::link;
use crate::pin::{Pins, make_dir};

/// The program at the interfaces.
pub const INGRESS_PROGRAM: &str = "ingress_guards";

/// Attaches to the interfaces with these indexes in the caller's network namespace, whose inode is `netns`. What is
/// attached already stays.
pub fn attach(pins: &Pins, netns: u64, indexes: &[u32]) -> Result<()> {
    let folder = pins.interfaces().join(netns.to_string());
    make_dir(&folder)?;
    for &index in indexes {
        let pin = folder.join(index.to_string());
        if link::target(&pin) == Some(index) {
            continue;
        }
        link::remove(&pin)?;
        let program = Program::fd_from_pinned_path(pins.program(INGRESS_PROGRAM))
            .context(|| format!("cannot open the program {INGRESS_PROGRAM}"))?;
        let attached = link::create_first(program.as_fd(), index)
            .context(|| format!("cannot attach {INGRESS_PROGRAM} to the interface {index}"))
            .map_err(|e| e.remedy("use a kernel of 6.6 or later with CONFIG_NET_XGRESS"))?;
        link::pin(attached.as_fd(), &pin)?;
    }
    Ok(())
}

/// Lets go of every interface but these.
pub fn detach_others(pins: &Pins, netns: u64, indexes: &[u32]) -> Result<()> {
    let keep = pins.interfaces().join(netns.to_string());
    for pin in links(pins) {
        let index = pin.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<u32>().ok());
        if pin.parent() != Some(&keep) || !index.is_some_and(|index| indexes.contains(&index)) {
            link::remove(&pin)?;
        }
    }
    for folder in std::fs::read_dir(pins.interfaces()).into_iter().flatten().flatten() {
        // one that is not empty is in use
        let _ = std::fs::remove_dir(folder.path());
    }
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
    let folders = std::fs::read_dir(pins.interfaces()).into_iter().flatten().flatten();
    let inside = |folder: std::fs::DirEntry| std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
    folders.flat_map(inside).map(|entry| entry.path()).collect()
}
