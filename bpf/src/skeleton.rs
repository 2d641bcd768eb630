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

pub(crate) mod floor {
    include!(concat!(env!("OUT_DIR"), "/floor.skel.rs"));
}

pub(crate) mod lrp {
    include!(concat!(env!("OUT_DIR"), "/lrp.skel.rs"));
}

/// This binary's programs, by a hash of them; never 0.
pub fn build() -> u32 {
    const BUILD: &str = env!("FIEF_BPF_BUILD");
    u32::from_str_radix(BUILD, 16).unwrap_or(0).max(1)
}
