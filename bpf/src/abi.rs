// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records and constants that the kernel side and user space share, generated from `abi.h`, where they are described. Those that
//! applications see are crate `fief`'s.

#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

pub use fief::abi::*;

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
