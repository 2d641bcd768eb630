// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces, links, servers and features for the tests and the lab.
//!
//! Everything here is a guard: what it made is gone when it is dropped, also while a panic unwinds. What a killed
//! process left behind is found by its name and swept by the next one ([`sweep`]). Traffic never leaves the
//! namespaces, and nothing here touches an interface or a process that it did not make.
//!
//! It does not know Fief: none of its programs, no policy. Tests bring those.

mod cgroup;
mod dice;
mod error;
mod feature;
mod impairer;
mod mac;
mod namespace;
mod napi;
mod packet;
mod process;
mod raw_client;
mod sched_stat;
mod scheduling;
pub mod segment;
mod server;
mod tap;
mod task_clock;
mod topology;
mod veth;
mod wait;
mod wire;
mod work;

pub use cgroup::{Cgroup, cgroup2_mount, sweep_cgroups};
pub use dice::Dice;
pub use error::{Error, Kind, Result};
pub use feature::{Feature, php_fpm, postgresql, require, require_if};
pub use impairer::{Impaired, Impairer, Impairment};
pub use mac::Mac;
pub use namespace::{NetNs, remove_all_of, sweep};
pub use napi::napi_threads;
pub use packet::{PacketCounter, PacketSender};
pub use process::{Process, lives, run};
pub use raw_client::{Ending, ORDINARY_OPTIONS, RawClients, RawConnection};
pub use sched_stat::SchedStat;
pub use scheduling::{cpus, pin, pin_command, set_fifo, set_idle, set_nice, set_other};
pub use server::{
    Haproxy, HaproxyConfig, Nginx, NginxConfig, PlainServer, Python, Seen, answers, digest, get, pattern, wait_ready,
};
pub use tap::Tap;
pub use task_clock::TaskClock;
pub use topology::{Client, Family, Topology, TopologyOptions};
pub use veth::Veth;
pub use wait::{alone, read_until, wait_until};
pub use wire::Wire;
pub use work::attach_work;
