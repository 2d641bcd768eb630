// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pair of virtual Ethernet devices between two namespaces. It ends with either namespace.

use crate::{Mac, NetNs, Result, run};
use std::process::Command;

#[derive(Debug, Clone)]
pub struct Veth {
    /// Interface name in the first namespace.
    pub near: String,
    /// Interface name in the second.
    pub far: String,
    pub near_mac: Mac,
    pub far_mac: Mac,
}

impl Veth {
    /// Connects the two; both ends are down and without addresses.
    pub fn between(near: (&NetNs, &str), far: (&NetNs, &str)) -> Result<Veth> {
        run(Command::new("ip").args(["link", "add", near.1, "netns", near.0.name(), "type", "veth"]).args([
            "peer",
            "name",
            far.1,
            "netns",
            far.0.name(),
        ]))?;
        Ok(Veth {
            near: near.1.to_owned(),
            far: far.1.to_owned(),
            near_mac: near.0.read_device(&format!("{}/address", near.1))?.parse()?,
            far_mac: far.0.read_device(&format!("{}/address", far.1))?.parse()?,
        })
    }
}
