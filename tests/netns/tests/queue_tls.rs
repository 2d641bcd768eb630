// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx speaks TLS, so requests cannot be read: the better class's turn goes first all the same.

#[path = "queue_programs/rig.rs"]
mod rig;

use std::io::Write;
use std::net::IpAddr;
use std::process::{ChildStdin, ChildStdout, Stdio};

use fief_testkit::{Client, Family, Process, Topology, read_until, wait_until};
use fief_tests_netns::front::Door;
use fief_tests_netns::{SOON, while_it_stands};
use rig::server::Server;
use rig::{By, Rig};

/// Of the low class.
const WAITING: u8 = 6;

/// A connection of OpenSSL's own client.
struct Tls {
    _process: Process,
    asks: ChildStdin,
    hears: ChildStdout,
}

impl Tls {
    fn connect(topology: &Topology, from: IpAddr) -> Self {
        let mut command = topology.clients.command("timeout");
        command.args(["100", "openssl", "s_client", "-quiet", "-connect", "10.77.0.1:443", "-bind", &from.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(command).unwrap();
        let (asks, hears) = (process.child().stdin.take().unwrap(), process.child().stdout.take().unwrap());
        Self { _process: process, asks, hears }
    }

    /// Long enough not to look like a frame that nobody answers.
    fn ask(&mut self, path: &str) {
        let padding = "x".repeat(200);
        let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\nX: {padding}\r\n\r\n");
        self.asks.write_all(request.as_bytes()).unwrap();
    }

    #[track_caller]
    fn is_answered_with(&mut self, path: &str) {
        let end = format!("\r\n\r\n{path}");
        let words = read_until(&mut self.hears, &end);
        assert!(words.contains(" 200 OK") && words.ends_with(&end), "{path}: {words}");
    }
}

/// The first request has begun when the high one comes, and all others wait. Each is the second of its connection: the turn of
/// the first ends with the server's session ticket.
fn nginx_with_tls_serves_the_better_class_first(by: By) {
    let low = |n| (Client::Low.address(Family::V4, n), format!("/low-{n}"));
    let high = (Client::High.address(Family::V4, 1), "/high".to_owned());
    let come: Vec<_> = (1..=WAITING).map(low).chain([high.clone()]).collect();
    let go: Vec<_> = [low(1), high].into_iter().chain((2..=WAITING).map(low)).map(|(_, path)| path).collect();
    // the place of the first lasts until all have come, and all wait so long
    let Some(rig) = Rig::new(Server::NginxTls, by, "{ in-service = 1, wait = \"1m\", stale = \"30s\" }") else {
        return;
    };
    let connect = |(from, _): &(IpAddr, String)| {
        let mut client = Tls::connect(rig.topology(), *from);
        client.ask("/before");
        client.is_answered_with("/before");
        client
    };
    let mut clients: Vec<_> = come.iter().map(connect).collect();
    let wait_for = |waiting: u32, busy: u32| {
        let is_so = || (rig.queue().waiting, rig.queue().busy) == (waiting, busy);
        wait_until(SOON, is_so).unwrap_or_else(|_| panic!("{} wait, {} places", rig.queue().waiting, rig.queue().busy));
    };
    wait_for(0, 0);
    while_it_stands(&rig.topology().server, || {
        for (waiting, (client, (_, path))) in (0..).zip(clients.iter_mut().zip(&come)) {
            client.ask(path);
            wait_for(waiting, 1);
        }
    });
    clients.iter_mut().zip(&come).for_each(|(client, (_, path))| client.is_answered_with(path));
    wait_until(SOON, || rig.answered().len() == 2 * come.len()).unwrap();
    assert_eq!(rig.answered()[come.len()..], go);
    drop(clients);
    rig.stop();
}

#[test]
fn nginx_with_tls_serves_the_better_class_first_by_fief_run() {
    nginx_with_tls_serves_the_better_class_first(By::Run);
}

#[test]
fn nginx_with_tls_serves_the_better_class_first_where_fief_answers() {
    nginx_with_tls_serves_the_better_class_first(By::Apply(Door::Own));
}

#[test]
fn nginx_with_tls_serves_the_better_class_first_where_the_kernel_answers() {
    nginx_with_tls_serves_the_better_class_first(By::Apply(Door::Kernel));
}
