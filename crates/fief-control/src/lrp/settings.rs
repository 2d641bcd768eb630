// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the network layer treat packets out of a lane like packets that come in at the network's interfaces.
//!
//! Limits: a rule that names an interface (`iifname`, a strict reverse path) sees the lane's.

use std::fs;
use std::path::Path;

use fief_bpf::{Context, Result};

const ROOT: &str = "/proc/sys/net";

/// A setting of an interface in the caller's network namespace; `None`: there is none, as without IPv6.
fn read(family: &str, interface: &str, name: &str) -> Option<u32> {
    let file = Path::new(ROOT).join(family).join("conf").join(interface).join(name);
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn write(family: &str, interface: &str, name: &str, value: u32) -> Result<()> {
    if read(family, interface, name).is_none_or(|is| is == value) {
        return Ok(());
    }
    let file = Path::new(ROOT).join(family).join("conf").join(interface).join(name);
    fs::write(&file, value.to_string()).context(|| format!("cannot write {value} to {}", file.display()))
}

/// Whether a source must be reachable through the interface that it came in at.
pub(super) fn is_strict(interface: &str) -> bool {
    let of = |interface| read("ipv4", interface, "rp_filter").unwrap_or(0);
    of("all").max(of(interface)) == 1
}

/// Sets both ends up before they come up. `interfaces`: those of the network whose packets take the lane.
pub(super) fn copy(sends: &str, receives: &str, interfaces: &[&str]) -> Result<()> {
    let every = |family: &str, name: &str| {
        let mut values = interfaces.iter().map(|interface| read(family, interface, name).unwrap_or(0));
        u32::from(values.all(|value| value != 0))
    };
    // what is forwarded never gets here, but for what the firewall sends on to another host
    write("ipv4", receives, "forwarding", every("ipv4", "forwarding"))?;
    write("ipv6", receives, "forwarding", every("ipv6", "forwarding"))?;
    // no source is reachable through a lane; 2: it must be reachable at all
    let reachable = interfaces.iter().any(|interface| read("ipv4", interface, "rp_filter").unwrap_or(0) != 0);
    let anywhere = reachable || read("ipv4", "all", "rp_filter").unwrap_or(0) != 0;
    write("ipv4", receives, "rp_filter", if anywhere { 2 } else { 0 })?;
    write("ipv6", receives, "disable_ipv6", every("ipv6", "disable_ipv6"))?;
    // no addresses of its own
    write("ipv6", receives, "addr_gen_mode", 1)?;
    write("ipv6", receives, "accept_ra", 0)?;
    write("ipv6", sends, "disable_ipv6", 1)
}
