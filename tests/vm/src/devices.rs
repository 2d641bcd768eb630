// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come in over devices on top of others: VLANs, and a bridge. Where the kernel's modules are not in the
//! guest, no check is made.

use std::path::Path;
use std::process::Command;

use crate::command::{fief, finish, number, objects, write_policy};
use crate::host::Host;
use crate::report::{Found, Report};

const POLICY: &str = r#"
version = 1
[container.web]
[listener.web]
address = "0.0.0.0:80"
classes = "shared"
[[listener.web.client]]
from = ["any"]
container = "web"
[[listener.web.request]]
path = "/no"
refuse = "503"
"#;
/// In the order in which they need each other.
const MODULES: [&str; 9] = ["llc", "stp", "garp", "mrp", "8021q", "bridge", "veth", "inet_diag", "tcp_diag"];
/// What a client gets for the file `yes` and for the file `no`.
const OPEN: (&str, &str) = ("200", "200");
const RULED: (&str, &str) = ("200", "503");

/// All of them.
pub fn check(report: &mut Report) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/modules").join(release.trim());
    if !modules.join("veth.ko").exists() {
        println!("no modules of {}: no VLAN, no bridge", release.trim());
        return;
    }
    report.check("devices on top of others are there", || insert(&modules));
    report.check("requests over a VLAN are ruled as others are", vlan);
    report.check("requests over a bridge are ruled, and what it forwards is not", bridge);
}

fn insert(modules: &Path) -> Found {
    for module in MODULES {
        finish(Command::new("insmod").arg(modules.join(format!("{module}.ko"))))?;
    }
    Ok(MODULES.join(", "))
}

/// What the client gets at each of the addresses has to be this.
fn expect(client: &Host, expected: &[(&str, (&str, &str))]) -> Result<(), String> {
    for (address, (yes, no)) in expected {
        let got = (client.get(address, "yes")?, client.get(address, "no")?);
        if got != ((*yes).to_owned(), (*no).to_owned()) {
            return Err(format!("{address}: {got:?} instead of {yes} and {no}"));
        }
    }
    Ok(())
}

fn apply() -> Result<(), String> {
    fief(&["apply", write_policy(POLICY)?]).map(drop)
}

/// How many requests were refused since the first policy; each must have been seen once.
fn expect_refused(expected: u64) -> Result<(), String> {
    let all = objects(&["explain"])?;
    let refused =
        all.iter().filter(|one| one["reason"] == "request-refused").map(|one| number(one, "count")).sum::<u64>();
    if refused == expected { Ok(()) } else { Err(format!("{refused} refused instead of {expected}")) }
}

/// A device above another for what bears the number, with the address 10.9.number.last.
fn add_vlan(host: &Host, below: &str, number: u8, last: u8) -> Result<(), String> {
    host.ip(&[
        &format!("link add link {below} name {below}.{number} type vlan id {number}"),
        &format!("addr add 10.9.{number}.{last}/24 dev {below}.{number}"),
        &format!("link set {below}.{number} up"),
    ])
}

fn vlan() -> Found {
    let (guest, client) = (Host::guest(), Host::new()?);
    guest.link("sv", &client)?;
    guest.ip(&["addr add 10.9.0.1/24 dev sv"])?;
    client.ip(&["addr add 10.9.0.2/24 dev svx"])?;
    let add_vlan_between = |number: u8| {
        add_vlan(&guest, "sv", number, 1)?;
        add_vlan(&client, "svx", number, 2)
    };
    add_vlan_between(5)?;
    let _server = guest.serve()?;
    expect(&client, &[("10.9.0.1", OPEN), ("10.9.5.1", OPEN)])?;
    apply()?;
    expect(&client, &[("10.9.0.1", RULED), ("10.9.5.1", RULED)])?;
    // one that was not there is guarded from the next policy on, which is told
    add_vlan_between(6)?;
    let notes = objects(&["explain"])?[0]["notes"].to_string();
    if !notes.contains("sv.6") {
        return Err(format!("sv.6 is not named: {notes}"));
    }
    apply()?;
    expect(&client, &[("10.9.0.1", RULED), ("10.9.5.1", RULED), ("10.9.6.1", RULED)])?;
    expect_refused(5)?;
    fief(&["down"])?;
    expect(&client, &[("10.9.0.1", OPEN), ("10.9.6.1", OPEN)])?;
    guest.ip(&["link del sv"])?;
    Ok("untagged, VLAN 5, and 6 which came later".to_owned())
}

fn bridge() -> Found {
    let (guest, client, other) = (Host::guest(), Host::new()?, Host::new()?);
    guest.link("sv", &client)?;
    guest.link("ov", &other)?;
    guest.ip(&[
        "link add br0 type bridge forward_delay 0",
        "link set sv master br0",
        "link set ov master br0",
        "addr add 10.9.0.1/24 dev br0",
        "link set br0 up",
    ])?;
    client.ip(&["addr add 10.9.0.2/24 dev svx"])?;
    other.ip(&["addr add 10.9.0.3/24 dev ovx"])?;
    let _servers = (guest.serve()?, other.serve()?);
    expect(&client, &[("10.9.0.1", OPEN), ("10.9.0.3", OPEN)])?;
    apply()?;
    expect(&client, &[("10.9.0.1", RULED), ("10.9.0.3", OPEN)])?;
    expect(&other, &[("10.9.0.1", RULED)])?;
    expect(&guest, &[("10.9.0.3", OPEN)])?;
    expect_refused(2)?;
    fief(&["down"])?;
    guest.ip(&["link del br0", "link del sv", "link del ov"])?;
    Ok("of both ports".to_owned())
}
