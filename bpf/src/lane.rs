// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes' programs: loaded when a policy first has lanes. The sorting program is attached to the interfaces of the network,
//! the one that counts leaving packets to the receiving end of each lane.

use std::mem::MaybeUninit;
use std::path::Path;

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::attachment;
use crate::error::{Context, Result};
use crate::link;
use crate::load;
use crate::open;
use crate::pin::Pins;
use crate::skeleton::lrp;

/// At the interfaces of the network.
const SORTS: &str = "lrp_sorts";
/// At the receiving end of a lane.
pub(crate) const LEAVES: &str = "lrp_leaves";

/// Loads the programs, unless they are there.
pub fn install(pins: &Pins) -> Result<()> {
    if pins.program(SORTS).exists() && pins.program(LEAVES).exists() {
        return Ok(());
    }
    with_object(pins, |object| {
        load::pin_new_maps(object.maps(), pins)?;
        open::pin_programs(object, pins)
    })
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
    link::attach_interface(pins, attachment::of(SORTS), netns, interface)
}

/// Counts what leaves a lane at its receiving end.
pub fn attach_end(pins: &Pins, netns: u64, interface: u32) -> Result<()> {
    link::attach_interface(pins, attachment::of(LEAVES), netns, interface)
}

/// The interfaces at which it sorts: inode of the network namespace and index.
pub fn sorted(pins: &Pins) -> Vec<(u64, u32)> {
    attachment::of(SORTS).links(pins).iter().filter_map(|pin| place(pin)).collect()
}

/// Detaches what sorts from every interface but these, at once.
pub fn detach_sorters(pins: &Pins, keep: &[(u64, u32)]) -> Result<()> {
    for pin in attachment::of(SORTS).links(pins) {
        if !place(&pin).is_some_and(|place| keep.contains(&place)) {
            link::remove(&pin)?;
        }
    }
    Ok(())
}

/// By its pin, if what that is attached to is there. Other namespaces have an interface with the same index.
fn place(pin: &Path) -> Option<(u64, u32)> {
    let netns = pin.parent()?.file_name()?.to_str()?.parse().ok()?;
    Some((netns, link::target(pin)?))
}

/// Removes the pins of lanes that are gone.
pub fn forget_ends(pins: &Pins) -> Result<()> {
    for pin in attachment::of(LEAVES).links(pins) {
        if link::target(&pin).is_none() {
            link::remove(&pin)?;
        }
    }
    link::remove_empty_below(&pins.lanes());
    Ok(())
}
