// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes' programs: loaded when a policy first wants lanes, attached to the interfaces of the network (what sorts)
//! and to the receiving end of each lane (what counts who has left).
//!
//! What sorts comes last at an interface: what it redirects, no later program there sees.

use std::mem::MaybeUninit;
use std::path::PathBuf;

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::error::{Context, Result};
use crate::link::{self, Place, Side};
use crate::open;
use crate::pin::{Pins, make_dir};
use crate::skeleton::lrp;

/// At the interfaces of the network.
pub(crate) const SORTS: &str = "lrp_sorts";
/// At the receiving end of a lane.
pub(crate) const LEAVES: &str = "lrp_leaves";

/// Loads the programs, unless they are there.
pub fn install(pins: &Pins) -> Result<()> {
    if pins.program(SORTS).exists() && pins.program(LEAVES).exists() {
        return Ok(());
    }
    with_object(pins, |object| open::pin_all(object, pins, false))
}

/// Loads this binary's object on the maps that are pinned.
pub(crate) fn with_object(pins: &Pins, work: impl FnOnce(&mut libbpf_rs::Object) -> Result<()>) -> Result<()> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open = lrp::LrpSkelBuilder::default().open(&mut place).context(|| "cannot open the lrp object".into())?;
    open::reuse_maps(open.open_object_mut(), pins)?;
    let mut skel = open.load().map_err(|e| open::unsupported("lrp", &e))?;
    work(skel.object_mut())
}

/// Whether an installation has the programs.
pub(crate) fn installed(pins: &Pins) -> bool {
    pins.program(SORTS).exists()
}

/// Sorts what comes in at an interface of the caller's network namespace, behind what is attached there now.
pub fn attach_sorter(pins: &Pins, netns: u64, interface: u32) -> Result<()> {
    attach(pins, netns, SORTS, interface)
}

/// Counts what leaves a lane at its receiving end.
pub fn attach_end(pins: &Pins, netns: u64, interface: u32) -> Result<()> {
    attach(pins, netns, LEAVES, interface)
}

fn attach(pins: &Pins, netns: u64, name: &str, interface: u32) -> Result<()> {
    let folder = pins.lanes().join(netns.to_string());
    make_dir(&folder)?;
    let pin = folder.join(format!("{name}-{interface}"));
    link::attach_interface(pins, name, Side::Ingress, Place::Last, interface, &pin)
}

/// Detaches what sorts from every interface but these, at once.
pub fn detach_sorters(pins: &Pins, keep: &[u32]) -> Result<()> {
    for pin in links(pins, SORTS) {
        if !link::target(&pin).is_some_and(|interface| keep.contains(&interface)) {
            link::remove(&pin)?;
        }
    }
    Ok(())
}

/// Removes the pins of lanes that are gone.
pub fn forget_ends(pins: &Pins) -> Result<()> {
    for pin in links(pins, LEAVES) {
        if link::target(&pin).is_none() {
            link::remove(&pin)?;
        }
    }
    link::remove_empty_below(&pins.lanes());
    Ok(())
}

/// The pinned links of one of the programs.
pub(crate) fn links(pins: &Pins, name: &str) -> Vec<PathBuf> {
    let of = |pin: &PathBuf| {
        pin.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(&format!("{name}-")))
    };
    link::pins_below(&pins.lanes()).into_iter().filter(of).collect()
}
