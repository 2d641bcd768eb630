// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resource containers for applications: a *container* is who work is charged to, be it a tenant, a class of clients
//! or a single request; smaller or larger than a process.
//!
//! A container is a file descriptor. It is inherited over `fork`, passed to other processes over UNIX sockets and
//! destroyed when its last descriptor is closed and its last thread unbound. There is no daemon to talk to and no
//! privilege to have: the operations are socket options, answered in the kernel by the programs that `fief run` or
//! `fief manage` attached to the cgroup this process lives in. Outside of such a cgroup every operation fails with
//! [`ErrorKind::NotManaged`].
//!
//! ```
//! use fief::{Container, ErrorKind};
//!
//! # fn main() -> Result<(), fief::Error> {
//! let gold = match Container::create() {
//!     Err(e) if e.kind() == ErrorKind::NotManaged => return Ok(()), // serve without
//!     created => created?,
//! };
//! gold.set_name("gold")?;
//! {
//!     let _bound = gold.bind()?; // this thread's work is gold's from here on
//!     // ... serve a request ...
//! } // and the former container's again
//! println!("gold used {} ns of CPU", gold.usage()?.cpu_ns());
//! # Ok(())
//! # }
//! ```
//!
//! After Banga, Druschel and Mogul, "Resource Containers" (OSDI 1999), section 4.

pub mod abi;
mod attributes;
mod binding;
mod clock;
mod container;
mod drops;
mod error;
mod file;
mod listener;
mod option;
mod reason;
mod ring;

pub use attributes::{Attributes, COUNTERS, Info, Policy, Rights, State, Usage};
pub use binding::{Binding, current, open_current, reset_scheduler_binding, unbind};
pub use container::{Container, Options, assign, unassign};
pub use drops::{Drops, Notice, drops};
pub use error::{Error, ErrorKind, Result};
pub use file::{FileLabel, assign_file};
pub use listener::{Filter, bind_filtered};
pub use reason::Reason;
pub use ring::{Place, Ring};
