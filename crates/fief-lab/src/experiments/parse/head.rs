// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A long head, the server that it is for, and a client without a kernel, which says each segment itself.

use super::{BALANCED_PORT, PORT};
use crate::command::{PolicyFile, scope};
use crate::error::{Context, Error, Result};
use crate::installation::Installation;
use fief_bpf::pin::Pins;
use fief_bpf::runs::{Ran, Runs};
use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{
    Family, Nginx, NginxConfig, ORDINARY_OPTIONS, RawClients, RawConnection, Topology, pin_command, wait_until,
};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of the head: the most that the kernel lets a segment grow to, less some for its headers.
pub const LENGTH: usize = 15_800;
const LINE: usize = 1000;
const ANSWER: Duration = Duration::from_secs(10);

/// A server behind admission, and clients that say each segment themselves.
#[derive(Debug)]
pub struct Door {
    // ends before the namespaces
    installation: Installation,
    _policy: PolicyFile,
    _nginx: Nginx,
    clients: RawClients,
    topology: Topology,
    runs: Runs,
    /// Connections so far; each has a port of its own.
    connections: Cell<u16>,
}

impl Door {
    pub fn open() -> Result<Door> {
        let topology = Topology::new()?;
        fief_testkit::pin(0, Topology::load_cpu())?;
        let addresses = [PORT.to_string(), format!("{BALANCED_PORT} proxy_protocol")];
        let config = NginxConfig::listening(PORT, &addresses.each_ref().map(String::as_str), 1, "")?;
        let mut command = topology.server.command("nginx");
        command.args(config.arguments()).stderr(std::process::Stdio::null());
        pin_command(&mut command, Topology::server_cpu());
        let nginx = Nginx::start_command(&topology.server, command, config)?;
        let clients = RawClients::new(&topology)?;
        let policy = PolicyFile::new(&policy())?;
        let installation = Installation::apply_in(&policy, &topology.server)?;
        let runs = Runs::count(&Pins::new(&scope())).context("count the runs of the program")?;
        let connections = Cell::new(0);
        Ok(Door { installation, _policy: policy, _nginx: nginx, clients, topology, runs, connections })
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn ran(&self) -> Result<Ran> {
        self.runs.so_far().context("count the runs of the program")
    }

    /// A new connection to this port whose handshake is done.
    pub fn connect(&self, port: u16) -> Result<RawConnection<'_>> {
        self.connections.set(self.connections.get() + 1);
        let client: SocketAddr = (RawClients::address(Family::V4, 1), 2000 + self.connections.get()).into();
        // acknowledgements of earlier connections would fill the queue
        let nobody: SocketAddr = (RawClients::address(Family::V4, 2), 1).into();
        while self.clients.receive(nobody, Duration::ZERO).is_some() {}
        let addresses = [client, Topology::server_address(Family::V4, port)];
        let connection = RawConnection::open(&self.clients, addresses, 1, &ORDINARY_OPTIONS, ANSWER)?;
        let connection = connection.ok_or_else(|| Error::failed("no SYN-ACK came to a lone client"))?;
        connection.acknowledge()?;
        Ok(connection)
    }

    /// Bytes of the stream from there on, in a segment of their own. With PSH, so that the receiver merges it with no other.
    pub fn send(&self, connection: &RawConnection<'_>, at: usize, bytes: &[u8]) -> Result<()> {
        let offset = u32::try_from(at).expect("a stream is short");
        Ok(self.clients.send(&connection.segment(PSH | ACK, offset, bytes))?)
    }

    /// Waits until the program ran so many times in all.
    pub fn wait_for(&self, count: u64) -> Result<Ran> {
        let mut ran = Ran::default();
        wait_until(ANSWER, || {
            ran = self.ran().unwrap_or_default();
            ran.count >= count
        })?;
        Ok(ran)
    }

    /// An error if Fief does not come down in order.
    pub fn close(self) -> Result<()> {
        self.installation.down()
    }
}

/// Lines that nginx has room for, until the head has this length.
pub fn head(length: usize) -> Vec<u8> {
    let mut head = b"GET /1k HTTP/1.0\r\nHost: server\r\n".to_vec();
    let mut number = 0;
    while head.len() + 4 < length {
        let name = format!("X-{number}: ");
        // the end, and the end of this line
        let left = length - head.len() - 2;
        let value = left.min(LINE).saturating_sub(name.len() + 2);
        head.extend(name.as_bytes());
        head.extend(std::iter::repeat_n(b'a', value));
        head.extend(b"\r\n");
        number += 1;
    }
    head.extend(b"\r\n");
    head
}

fn policy() -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/browse\"]\n\n\
         [front]\ninterfaces = [\"{}\"]\n\n{}{}",
        Topology::SERVER,
        listener("web", PORT, ""),
        // raw clients are its balancers
        listener("balanced", BALANCED_PORT, "proxy = { from = [\"10.89.0.0/16\"] }\n"),
    )
}

fn listener(name: &str, port: u16, more: &str) -> String {
    format!(
        "[listener.{name}]\naddress = \"0.0.0.0:{port}\"\nadmit = true\n{more}\n\
         [[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.{name}.request]]\npath = [\"/admin/*\"]\nrefuse = \"reset\"\n\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_as_long_as_said_and_ends_once() {
        let head = head(LENGTH);
        assert!(head.len() <= LENGTH && head.len() + 40 > LENGTH, "{}", head.len());
        let end = head.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        assert_eq!(end, Some(head.len() - 4));
        let longest = head.split(|&byte| byte == b'\n').map(<[u8]>::len).max();
        assert!(longest <= Some(LINE + 1), "nginx has lines of 8 kB, {longest:?}");
    }
}
