// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that are asked for another protocol, behind a door, and what clients say to them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use fief_bpf::abi;
use fief_testkit::{Family, Process, read_until, wait_until};
use fief_tests_netns::front::{Door, Front, Verdicts, anywhere, plain};
use fief_tests_netns::{SOON, connect_from};

pub const RULE: &str = "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\"\n";
pub const PUBLIC: &str = "GET /public/1 HTTP/1.1\r\nHost: server\r\n\r\n";
pub const SECRET: &str = "GET /secret/1 HTTP/1.1\r\nHost: server\r\n\r\n";
/// A frame of a WebSocket that holds "hello".
pub const FRAME: &[u8] = b"\x81\x85\x01\x02\x03\x04\x69\x67\x6f\x68\x6e";

/// Words that no request begins with, one that could, and one that a rule would refuse.
pub const FOREIGN: [&[u8]; 3] = [FRAME, b"no request\r\n", SECRET.as_bytes()];

/// The end of the scripted server's confirmation.
pub const SWITCHED: &str = "Connection: Upgrade\r\n\r\n";

pub const SCRIPTED: &str = include_str!("server.py");

pub fn policy(listener: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n{listener}\n[[listener.plain.client]]\n\
         from = [\"any\"]\ncontainer = \"web\"\n{RULE}"
    )
}

pub fn upgrade(path: &str) -> Vec<u8> {
    let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Sec-WebSocket-Version: 13\r\n";
    format!("GET {path} HTTP/1.1\r\nHost: server\r\n{lines}\r\n").into_bytes()
}

pub fn connect(to: &str) -> Vec<u8> {
    format!("CONNECT {to}:80 HTTP/1.1\r\nHost: {to}:80\r\n\r\n").into_bytes()
}

pub struct Rig {
    pub front: Front,
    pub servers: Vec<Process>,
}

impl Rig {
    pub fn new(door: Door, listener: &str) -> Self {
        Self { front: Front::new(door, &policy(listener)), servers: Vec::new() }
    }

    /// A server of the test's own, whose answer the path names, in a managed cgroup or not.
    pub fn scripted(door: Door, listener: &str, managed: bool) -> Self {
        let rig = Self::new(door, listener);
        let mut command =
            if managed { rig.front.server_command("python3") } else { rig.front.topology.server.command("python3") };
        command.args(["-c", SCRIPTED]);
        rig.with(command)
    }

    pub fn with(mut self, mut command: Command) -> Self {
        command.stdout(Stdio::null());
        self.servers.push(Process::start(command).unwrap());
        wait_until(SOON, || self.dial().is_some()).unwrap();
        self
    }

    pub fn dial(&self) -> Option<TcpStream> {
        let stream = connect_from(&self.front.topology.clients, anywhere(Family::V4), plain(Family::V4)).ok()?;
        stream.set_nodelay(true).unwrap();
        Some(stream)
    }

    /// A connection that has sent this and was answered so.
    pub fn asked(&self, request: &[u8], answer: &str) -> TcpStream {
        let mut stream = self.dial().expect("a connection");
        stream.write_all(request).unwrap();
        let words = read_until(&mut stream, answer);
        assert!(words.contains(answer), "{words}");
        stream
    }

    /// Since then there was a verdict of this reason, and one only.
    #[track_caller]
    pub fn has_one(&self, before: &Verdicts, reason: abi::fief_reason, what: &str) {
        let new = self.since(before);
        assert!(self.front.is_counted(new.count(reason), 1), "{:?}, {what}: {new:?}", self.front.door);
    }

    pub fn since(&self, before: &Verdicts) -> Verdicts {
        self.front.verdicts().since(before)
    }
}

/// Whether the other side says these bytes again.
pub fn echoes(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes).is_ok() && stream.read_exact(&mut back).is_ok() && back == bytes
}
