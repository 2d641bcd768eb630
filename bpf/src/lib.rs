// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side of Fief: its BPF objects, how they are loaded, attached and pinned, and the records they share with user
//! space. Of the product's crates only this one names libbpf.

pub mod abi;
pub mod admin;
mod attachment;
pub mod batch;
pub mod cgroup;
pub mod chain;
pub mod charging;
mod clock;
pub mod costs;
pub mod error;
mod extension;
pub mod files;
pub mod floor;
pub mod ingress;
pub mod inner;
pub mod lane;
mod link;
mod load;
pub mod loaded;
pub mod managed;
pub mod map;
pub mod notices;
pub mod open;
pub mod order;
pub mod pick;
pub mod pin;
pub mod process;
pub mod queue;
pub mod record;
pub mod ring;
pub mod runs;
pub mod schedule;
mod secret;
mod skeleton;
pub mod sweep;
pub mod table;
pub mod top;
pub mod trial;
pub mod upgrade;
mod view;
pub mod watch;
pub mod word;
pub mod yardstick;

pub use error::{Context, Error, ErrorKind, Result};
pub use skeleton::build;
