// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What applications see of the records that both sides share (bpf/abi): as it stands there for C, and the same for Python and for
//! crate `fief`. Pure.
//!
//! It depends on no other crate of ours, so that it can write the Rust part anew when a header has changed and nothing else builds.

mod c;
mod declaration;
mod python;
mod rust;

pub use c::{in_c, orders_in_c};
pub use declaration::names;
pub use python::in_python;
pub use rust::in_rust;

/// Where crate `fief` has [`in_rust`], from the top folder.
pub const RUST: &str = "crates/fief/src/abi.rs";
