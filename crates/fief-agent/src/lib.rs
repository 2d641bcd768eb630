// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Fief knows, for whoever may read it. Nothing of Fief needs it: a policy holds, and root reads, without an agent.
//!
//! It reads what `fief status`, `usage` and `explain` read ([`reading`]), and hands it out: as metrics ([`metrics`], [`told`], [`pages`]) and as
//! the views of fief-control ([`ask`] is the other end) at a UNIX socket, as metrics alone at a loopback port ([`door`], [`http`] and
//! [`sending`]), into a file for node_exporter ([`textfile`]), and into a record ([`record`]). What has happened ([`events`]) goes to
//! the system's journal ([`journal`]). It changes nothing of what is in force.

// it panics where nobody reads, or the disk is full
#![cfg_attr(not(test), warn(clippy::print_stderr))]

pub mod ask;
mod door;
mod events;
mod http;
mod journal;
mod memory;
mod metrics;
mod pages;
mod peer;
mod reading;
pub mod record;
mod sending;
mod series;
mod serve;
mod textfile;
mod told;
mod turns;

pub use journal::reads_standard_error;
pub use peer::Readers;
pub use series::{MOST_CONTAINERS, SeriesOptions};
pub use serve::{Agent, AgentOptions, Warn};
pub use turns::Turns;
