// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records and constants shared with the kernel side, generated from `bpf/abi.h`, where they are described.

#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));
