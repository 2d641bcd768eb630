// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who serves, and where receive work is done.

use super::PORT;
use crate::command::{self, DOWN, PolicyFile};
use crate::error::{Error, Kind, Result};
use fief_testkit::{Client, Family, NetNs, Nginx, NginxConfig, Topology, napi_threads, pin, pin_command, run};
use std::process::Command;

/// Of rules of the packet filter.
const TABLE: &str = "flood";
const FLOOD: &str = "10.88.0.0/16";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// A copy of nginx for each class; packets are worked through as they come.
    Copies,
    /// The same, and a receiving thread for each class.
    Lanes,
    /// Copies, and the flood is dropped at the first place where the kernel lets a packet be dropped, by somebody who
    /// knows where it comes from: what is left is the cost of its packets until there, which nobody can do without.
    Dropped,
}

/// The class of whoever is neither high nor low.
pub const REST: &str = "rest";

impl Way {
    pub const ALL: [Way; 4] = [Way::Plain, Way::Copies, Way::Lanes, Way::Dropped];

    /// Part of its figures' names.
    pub fn name(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Copies => "without",
            Way::Lanes => "with",
            Way::Dropped => "dropped",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Way::Plain => "plain nginx",
            Way::Copies => "Fief without LRP",
            Way::Lanes => "Fief with LRP",
            Way::Dropped => "Fief without LRP, flood dropped by nft",
        }
    }

    /// Whether the machine can do it.
    pub fn check(self) -> Result<()> {
        match self.policy() {
            _ if self == Way::Dropped && run(Command::new("nft").arg("--version")).is_err() => {
                Err(Error::new(Kind::Missing, "nftables is not installed"))
            }
            None => Ok(()),
            Some(policy) => command::can_run().and_then(|()| PolicyFile::new(&policy)?.check()),
        }
    }

    fn policy(self) -> Option<String> {
        let lanes = match self {
            Way::Plain => return None,
            Way::Copies | Way::Dropped => "",
            Way::Lanes => "[listener.web.lrp]\nwhen = \"always\"\n\n",
        };
        let [high, low] = [Client::High, Client::Low].map(|client| client.prefix(Family::V4));
        Some(format!(
            "version = 1\nmode = \"enforce\"\n\n[container.gold]\ncpu.priority = 200\n\n[container.browse]\n\n\
             [container.{REST}]\ncpu.priority = 1\n\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\n\
             copies = \"per-class\"\n\n{lanes}\
             [[listener.web.client]]\nfrom = [\"{high}\"]\ncontainer = \"gold\"\n\n\
             [[listener.web.client]]\nfrom = [\"{low}\"]\ncontainer = \"browse\"\n\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"{REST}\"\n"
        ))
    }

    /// Starts it on the server's core, all of its receive work included; ready when it answers.
    pub fn start(self, topology: &Topology, backlog: u32) -> Result<Server> {
        let _rules = (self == Way::Dropped).then(|| Rules::new(&topology.server)).transpose()?;
        let config = NginxConfig::listening(PORT, &[&format!("{PORT} backlog={backlog}")], 1, "")?;
        let policy = self.policy().map(|policy| PolicyFile::new(&policy)).transpose()?;
        let mut command = match &policy {
            Some(policy) => policy.run(&topology.server, "nginx", config.arguments())?,
            None => {
                let mut command = topology.server.command("nginx");
                command.args(config.arguments()).stderr(std::process::Stdio::null());
                command
            }
        };
        pin_command(&mut command, Topology::server_cpu());
        let nginx = Nginx::start_command(&topology.server, command, config)?;
        let server = Server { nginx: Some(nginx), _policy: policy, _rules };
        for lane in lanes(&topology.server)? {
            for thread in napi_threads(&topology.server, &lane)? {
                pin(thread, Topology::server_cpu())?;
            }
        }
        Ok(server)
    }
}

/// The interfaces whose threads work for one class each.
pub fn lanes(server: &NetNs) -> Result<Vec<String>> {
    let text = server.ip("-oneline link show type veth")?;
    Ok(receiving_ends(&text))
}

/// A line: `7: fief-3r@fief-3s: <BROADCAST,...`; in another scope than Fief's own more follows: `fief-3r1f`.
fn receiving_ends(links: &str) -> Vec<String> {
    let names = links.lines().filter_map(|line| line.split_whitespace().nth(1));
    let names = names.map(|name| name.split(['@', ':']).next().unwrap_or(name));
    let receives = |name: &&str| {
        let number = name.strip_prefix("fief-");
        number.is_some_and(|number| number.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with('r'))
    };
    names.filter(receives).map(str::to_owned).collect()
}

/// A running server. A killed `fief run` would leave its programs to its guard, so it is asked first.
#[derive(Debug)]
pub struct Server {
    nginx: Option<Nginx>,
    _policy: Option<PolicyFile>,
    _rules: Option<Rules>,
}

/// Drops the flood, until the guard ends.
#[derive(Debug)]
struct Rules {
    remove: Command,
}

impl Rules {
    fn new(server: &NetNs) -> Result<Rules> {
        let rules = format!(
            "table netdev {TABLE} {{ chain first {{ type filter hook ingress device \"{}\" priority -500; policy accept; \
             ip saddr {FLOOD} drop; }}; }}",
            Topology::SERVER
        );
        command::nft(server, &rules)?;
        let mut remove = server.command("nft");
        remove.arg(format!("delete table netdev {TABLE}"));
        Ok(Rules { remove })
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        // the namespace ends with the lab, and its rules with it
        let _ = run(&mut self.remove);
    }
}

impl Server {
    pub fn stop(mut self) -> Result<()> {
        match self.nginx.take().and_then(|nginx| nginx.stop(DOWN)) {
            Some(_) => Ok(()),
            None => Err(Error::failed(format!("the server did not end within {DOWN:?}"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(nginx) = self.nginx.take() {
            nginx.stop(DOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_receiving_ends_of_lanes_are_lanes() {
        let links = "2: sv@if2: <UP> mtu 1500\n7: fief-3r@fief-3s: <UP> mtu\n8: fief-3s@fief-3r: <UP> mtu\n\
                     9: fief-12r5a@fief-12s5a: <UP>\n10: fief-12s5a@fief-12r5a: <UP>\n";
        assert_eq!(receiving_ends(links), ["fief-3r", "fief-12r5a"]);
    }
}
