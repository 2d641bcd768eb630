// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds what Fief lets pass against what real servers make of it.
//!
//! A policy refuses one resource, by its path, its host or a header. Heads and ClientHellos that mean that resource to some server,
//! in thousands of spellings, are sent to nginx, HAProxy, Apache, lighttpd, Node, Python and Go through a guarded port. The
//! servers themselves say in their answers which resource they served, so no reading of ours takes part:
//!
//! - *let round*: a server served the refused resource through the guarded port;
//! - *refused wrongly*: a head that RFC 9112 and the policy allow ([`valid`]) is served by the same server at an unguarded
//!   port, and Fief refused it, each of five times;
//! - *read otherwise*: no failure, though refused as often. Another of the servers reads the refused resource in it, or a request
//!   where none is, and one policy holds for all;
//! - *unsteady*: refused once, and served when it was tried again.
//!
//! What is tried: the [`vector::seeds`], then what [`grow`] makes of them. Some of it is sent slowly, so that a server which answers
//! before it has the whole request is seen to do so. What fails is made smaller ([`shrink`]) and
//! printed as a line for `seeds.txt`. The test is in `tests/`, `make fuzz` runs the same with more cases.

pub mod campaign;
pub mod exchange;
pub mod grow;
pub mod hello;
pub mod report;
pub mod server;
pub mod shrink;
pub mod stage;
pub mod valid;
pub mod vector;

pub use campaign::{Campaign, Finding, Speech, Tally, Wrong};
pub use report::Report;
pub use server::Kind;
pub use stage::{Port, Position, Stage};
pub use vector::Case;
