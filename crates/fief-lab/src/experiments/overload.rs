// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the three overload experiments share: servers whose requests cost CPU, crowds that offer more than a server can
//! do, and rounds in which every way of dealing with it takes its turn.
//!
//! They are those of "Kernel Mechanisms for Service Differentiation in Overloaded Web Servers" (USENIX 2001), with
//! nginx or 50 blocking workers for its Apache.

mod crowd;
mod page;
mod rounds;
mod sample;
mod site;
mod way;

pub use crowd::Crowd;
pub use page::{Page, text};
pub use rounds::{Plan, run};
pub use sample::{Sample, cell};
pub use site::{Limit, Program, Site};
pub use way::{Step, Way, usable};

/// Of every server here.
pub const PORT: u16 = 80;
/// CPU time of one request, where an experiment does not say otherwise.
pub const COST_US: u64 = 1000;
/// As many as the paper's Apache had processes.
pub const WORKERS: usize = 50;
