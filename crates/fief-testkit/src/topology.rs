// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two-core testbed: a server's namespace and its clients', one link, addresses by class of client.
//!
//! Server 10.77.0.1/16 on `sv`; clients on `cv`: 10.77.1.x high, 10.77.2.x low, 10.77.3.x middle, 10.88.x.x for floods;
//! IPv6 fd77::1 and fd77::<class>:x likewise. A local route covers each client prefix as a whole, so every address that
//! a test invents has a host, and no reply has anywhere else to go.
//!
//! The offloads are set so that the server's receive work is done by the server's core: with segmentation offload on
//! the sender's side veth would skip NAPI, and the client's core would pay.

use crate::{Error, Impairer, Impairment, NetNs, Result, Veth, cpus, napi_threads, pin, run, set_fifo, wait_until};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// RFC 8200, section 5.
const IPV6_LEAST_MTU: u32 = 1280;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Whose address a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    High,
    Low,
    Middle,
}

impl Client {
    fn number(self) -> u8 {
        match self {
            Client::High => 1,
            Client::Low => 2,
            Client::Middle => 3,
        }
    }

    /// The prefix of the class, as a policy writes it.
    pub fn prefix(self, family: Family) -> String {
        match family {
            Family::V4 => format!("10.77.{}.0/24", self.number()),
            Family::V6 => format!("fd77::{}:0/112", self.number()),
        }
    }

    /// The n-th client's address; n from 1 to 250.
    pub fn address(self, family: Family, n: u8) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 77, self.number(), n).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, self.number().into(), n.into()).into(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct TopologyOptions {
    /// Receive in a thread per device instead of softirq.
    pub threaded: bool,
    /// Merge segments on receive. Off, and without XDP, veth has no NAPI at all: the sender's core does the work up to
    /// the backlog.
    pub gro: bool,
    pub ipv6: bool,
}

impl Default for TopologyOptions {
    fn default() -> TopologyOptions {
        TopologyOptions { threaded: true, gro: true, ipv6: true }
    }
}

#[derive(Debug)]
pub struct Topology {
    pub server: NetNs,
    pub clients: NetNs,
    pub link: Veth,
    /// What stands between the two ends of the link, if anything does.
    pub impairer: Option<Impairer>,
    /// Whether the ends have addresses of it.
    ipv6: bool,
    /// Where it stands.
    _between: Option<NetNs>,
}

impl Topology {
    pub const SERVER: &str = "sv";
    pub const CLIENTS: &str = "cv";

    pub fn new() -> Result<Topology> {
        Topology::with(TopologyOptions::default())
    }

    pub fn with(options: TopologyOptions) -> Result<Topology> {
        let server = NetNs::new("server")?;
        let clients = NetNs::new("clients")?;
        let link = Veth::between((&server, Topology::SERVER), (&clients, Topology::CLIENTS))?;
        let topology = Topology { server, clients, link, impairer: None, ipv6: options.ipv6, _between: None };
        topology.offloads()?;
        topology.tune()?;
        topology.address()?;
        topology.set_receive(options.threaded, options.gro)?;
        Ok(topology)
    }

    /// The same with a link that impairs packets. What it costs is not to be measured: each packet goes through user
    /// space, one by one.
    pub fn impaired(impairment: Impairment) -> Result<Topology> {
        let (server, clients, between) = (NetNs::new("server")?, NetNs::new("clients")?, NetNs::new("between")?);
        let near = Veth::between((&server, Topology::SERVER), (&between, "near"))?;
        let far = Veth::between((&between, "far"), (&clients, Topology::CLIENTS))?;
        for interface in ["near", "far"] {
            between.sysctl(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "1")?;
            between.ip(&format!("link set {interface} mtu 65535 up"))?;
            run(between.command("ethtool").args(["-K", interface, "gro", "off"]))?;
        }
        for (namespace, interface) in [(&server, Topology::SERVER), (&clients, Topology::CLIENTS)] {
            run(namespace.command("ethtool").args(["-K", interface, "tx", "off", "tso", "off", "gso", "off"]))?;
        }
        let impairer = Some(Impairer::start(&between, ["near", "far"], impairment)?);
        let link = Veth { near: near.near, far: far.far, near_mac: near.near_mac, far_mac: far.far_mac };
        let topology = Topology { server, clients, link, impairer, ipv6: true, _between: Some(between) };
        topology.tune()?;
        topology.address()?;
        Ok(topology)
    }

    /// Changes the MTU of both ends. Below 1280 the kernel takes IPv6 off the link; from there on it is given back.
    pub fn set_mtu(&self, bytes: u32) -> Result<()> {
        for (namespace, device) in self.ends() {
            namespace.ip(&format!("link set {device} mtu {bytes}"))?;
        }
        let gone = || Ok::<_, Error>(!self.server.ip("-6 addr show dev sv scope global")?.contains("fd77::1/"));
        if self.ipv6 && bytes >= IPV6_LEAST_MTU && gone()? { self.address_ipv6() } else { Ok(()) }
    }

    /// The server's address with a port.
    pub fn server_address(family: Family, port: u16) -> SocketAddr {
        match family {
            Family::V4 => (Ipv4Addr::new(10, 77, 0, 1), port).into(),
            Family::V6 => (Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1), port).into(),
        }
    }

    /// The core that the server and its receive work belong on.
    pub fn server_cpu() -> usize {
        *cpus().first().expect("a running process has a CPU")
    }

    /// The core that the load belongs on; the server's where there is only one.
    pub fn load_cpu() -> usize {
        *cpus().get(1).unwrap_or(&Topology::server_cpu())
    }

    /// Changes how both ends receive. Each change makes new threads, so they are pinned here again.
    pub fn set_receive(&self, threaded: bool, gro: bool) -> Result<()> {
        let word = if gro { "on" } else { "off" };
        for (namespace, device) in self.ends() {
            run(namespace.command("ethtool").args(["-K", device, "gro", word]))?;
            namespace.write_device(&format!("{device}/threaded"), if threaded { "1" } else { "0" })?;
        }
        self.pin()
    }

    /// Pins the receiving threads, if there are any, above everything else on their core.
    pub fn pin(&self) -> Result<()> {
        let cpus = [Topology::server_cpu(), Topology::load_cpu()];
        for ((namespace, device), cpu) in self.ends().into_iter().zip(cpus) {
            for thread in napi_threads(namespace, device)? {
                pin(thread, cpu)?;
                set_fifo(thread, 50)?;
            }
        }
        Ok(())
    }

    fn ends(&self) -> [(&NetNs, &str); 2] {
        [(&self.server, Topology::SERVER), (&self.clients, Topology::CLIENTS)]
    }

    fn tune(&self) -> Result<()> {
        for (name, value) in [
            ("net.core.somaxconn", "4096"),
            ("net.ipv4.tcp_max_syn_backlog", "4096"),
            ("net.ipv4.tcp_syncookies", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.tcp_max_tw_buckets", "20000"),
        ] {
            self.server.sysctl(name, value)?;
        }
        for (name, value) in [
            ("net.ipv4.ip_local_port_range", "1024 65000"),
            ("net.ipv4.tcp_max_tw_buckets", "20000"),
            ("net.ipv4.conf.all.arp_announce", "0"),
            ("net.ipv4.conf.all.rp_filter", "0"),
        ] {
            self.clients.sysctl(name, value)?;
        }
        Ok(())
    }

    fn offloads(&self) -> Result<()> {
        let set = |namespace: &NetNs, device: &str, words: &str| {
            run(namespace.command("ethtool").args(["-K", device]).args(words.split(' '))).map(drop)
        };
        set(&self.clients, Topology::CLIENTS, "tx off tso off gso off")?;
        set(&self.server, Topology::SERVER, "tso off gso off")
    }

    fn address(&self) -> Result<()> {
        let (server, clients) = (&self.server, &self.clients);
        let (server_mac, clients_mac) = (&self.link.near_mac, &self.link.far_mac);
        server.ip("addr add 10.77.0.1/16 dev sv")?;
        clients.ip("addr add 10.77.0.2/16 dev cv")?;
        server.ip("link set sv up")?;
        clients.ip("link set cv up")?;
        server.ip(&format!("neigh replace 10.77.0.2 lladdr {clients_mac} dev sv nud permanent"))?;
        clients.ip(&format!("neigh replace 10.77.0.1 lladdr {server_mac} dev cv nud permanent"))?;
        for prefix in ["10.77.1.0/24", "10.77.2.0/24", "10.77.3.0/24", "10.88.0.0/16"] {
            server.ip(&format!("route add {prefix} via 10.77.0.2 dev sv"))?;
            clients.ip(&format!("route add local {prefix} dev lo"))?;
        }
        if self.ipv6 { self.address_ipv6() } else { Ok(()) }
    }

    /// Both links are up.
    fn address_ipv6(&self) -> Result<()> {
        let (server, clients) = (&self.server, &self.clients);
        let (server_mac, clients_mac) = (&self.link.near_mac, &self.link.far_mac);
        clients.sysctl("net.ipv6.ip_nonlocal_bind", "1")?;
        server.ip("addr replace fd77::1/64 dev sv nodad")?;
        clients.ip("addr replace fd77:0:0:0:0:1:0:2/64 dev cv nodad")?;
        server.ip(&format!("neigh replace fd77::1:0:2 lladdr {clients_mac} dev sv nud permanent"))?;
        clients.ip(&format!("neigh replace fd77::1 lladdr {server_mac} dev cv nud permanent"))?;
        for class in [Client::High, Client::Low, Client::Middle] {
            let prefix = class.prefix(Family::V6);
            server.ip(&format!("-6 route replace {prefix} via fd77::1:0:2 dev sv"))?;
            clients.ip(&format!("-6 route replace local {prefix} dev lo"))?;
        }
        // Addresses answer at once but for the link-local ones, whose absence delays nothing here.
        wait_until(Duration::from_secs(5), || {
            server.ip("-6 addr show dev sv scope global").is_ok_and(|text| !text.contains("tentative"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, require};
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn every_class_of_client_reaches_the_server_over_both_families() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        for family in [Family::V4, Family::V6] {
            let server = Topology::server_address(family, 4000);
            let socket = topology.server.run(|| UdpSocket::bind(server)).expect("inside").expect("bound");
            for class in [Client::High, Client::Low, Client::Middle] {
                let address = class.address(family, 9);
                let sender = topology.clients.run(|| UdpSocket::bind((address, 0))).expect("inside").expect("bound");
                sender.send_to(b"hello", server).expect("sent");
                let mut buffer = [0; 8];
                socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
                let (length, from) = socket.recv_from(&mut buffer).expect("received");
                assert_eq!((length, from.ip()), (5, address));
                socket.send_to(b"you", from).expect("answered");
                sender.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
                assert_eq!(sender.recv(&mut buffer).expect("the answer"), 3);
            }
        }
    }

    #[test]
    fn two_topologies_live_side_by_side() {
        if !require(Feature::NetNs) {
            return;
        }
        let topologies = [Topology::new().expect("one"), Topology::new().expect("two")];
        let address = Topology::server_address(Family::V4, 4001);
        let _listeners = topologies
            .each_ref()
            .map(|topology| topology.server.run(|| TcpListener::bind(address)).expect("inside").expect("bound"));
    }

    #[test]
    fn the_receiving_threads_are_pinned() {
        if !require(Feature::ThreadedNapi) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let threads = napi_threads(&topology.server, "sv").expect("asked");
        assert_eq!(threads.len(), 1, "one queue, one thread");
        let status = std::fs::read_to_string(format!("/proc/{}/status", threads[0])).expect("it lives");
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("a line");
        assert_eq!(allowed.split('\t').nth(1), Some(Topology::server_cpu().to_string().as_str()));
        topology.set_receive(false, true).expect("changed");
        assert!(napi_threads(&topology.server, "sv").expect("asked").is_empty());
    }
}
