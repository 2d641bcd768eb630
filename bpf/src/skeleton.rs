// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The generated skeletons, and which programs they hold.

#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code, non_snake_case)]

pub(crate) mod core {
    include!(concat!(env!("OUT_DIR"), "/core.skel.rs"));
}

pub(crate) mod front {
    include!(concat!(env!("OUT_DIR"), "/front.skel.rs"));
}

pub(crate) mod files {
    include!(concat!(env!("OUT_DIR"), "/files.skel.rs"));
}

pub(crate) mod sched {
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}

pub(crate) mod lrp {
    include!(concat!(env!("OUT_DIR"), "/lrp.skel.rs"));
}

pub(crate) mod pick {
    include!(concat!(env!("OUT_DIR"), "/pick.skel.rs"));
}

pub(crate) mod yardstick {
    include!(concat!(env!("OUT_DIR"), "/yardstick.skel.rs"));
}

/// This binary's programs, by a hash of them; never 0.
pub fn build() -> u32 {
    const BUILD: &str = env!("FIEF_BPF_BUILD");
    u32::from_str_radix(BUILD, 16).unwrap_or(0).max(1)
}

/// Opens each object of an installation, without loading it.
#[cfg(test)]
pub(crate) fn with_objects(mut work: impl FnMut(crate::attachment::Object, &mut libbpf_rs::OpenObject)) {
    use std::mem::MaybeUninit;

    use libbpf_rs::skel::{OpenSkel, SkelBuilder};

    use crate::attachment::Object;

    let mut place = MaybeUninit::uninit();
    work(Object::Core, core::CoreSkelBuilder::default().open(&mut place).unwrap().open_object_mut());
    let mut place = MaybeUninit::uninit();
    work(Object::Front, front::FrontSkelBuilder::default().open(&mut place).unwrap().open_object_mut());
    let mut place = MaybeUninit::uninit();
    work(Object::Lrp, lrp::LrpSkelBuilder::default().open(&mut place).unwrap().open_object_mut());
    let mut place = MaybeUninit::uninit();
    work(Object::Files, files::FilesSkelBuilder::default().open(&mut place).unwrap().open_object_mut());
    let mut place = MaybeUninit::uninit();
    work(Object::Sched, sched::SchedSkelBuilder::default().open(&mut place).unwrap().open_object_mut());
}

#[cfg(test)]
mod tests {
    use crate::attachment::Object;

    /// A section of variables is new with each load, so an upgrade would forget them: state lies in maps that have a pin.
    #[test]
    fn programs_keep_no_state_that_an_upgrade_forgets() {
        super::with_objects(|name, object| {
            let maps = object.maps_mut().map(|map| (map.name().to_string_lossy().into_owned(), map.value_size()));
            // what a scheduler knows ends with it, and with all that waits for it (`machine`, sched/state.bpf.h)
            let outlives = |map: &str| map.contains(".data") || map.ends_with(".bss") && name != Object::Sched;
            let written: u32 = maps.filter(|(map, _)| outlives(map)).map(|(_, size)| size).sum();
            // `nought`, which nobody writes: its value must not be known to the verifier (include/bytes.bpf.h)
            assert_eq!(written, if name == Object::Front { 4 } else { 0 }, "{name:?}");
        });
    }
}
