// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The generated skeletons.

#![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code, non_snake_case)]

pub(crate) mod core {
    include!(concat!(env!("OUT_DIR"), "/core.skel.rs"));
}

pub(crate) mod front {
    include!(concat!(env!("OUT_DIR"), "/front.skel.rs"));
}

pub(crate) mod lrp {
    include!(concat!(env!("OUT_DIR"), "/lrp.skel.rs"));
}
