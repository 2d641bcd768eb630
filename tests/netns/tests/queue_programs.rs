// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers behind the queue, unmodified: the better class is served first, and no request is lost, doubled or answered
//! with the answer of another, also over a link that loses, doubles and reorders packets. By `fief run`, and by `fief apply` and `manage`
//! with either handshake.
//!
//! `FIEF_TEST_REQUESTS=100000` asks each server for more than the usual number.

#[path = "queue_programs/rig.rs"]
mod rig;

use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use fief_testkit::segment::Segment;
use fief_testkit::{Client, Family, Feature, Impairment, Topology, Wire, require, wait_until};
use fief_tests_netns::front::Door;
use fief_tests_netns::{SOON, one_installation, requests, while_it_stands};
use rig::server::{Server, go};
use rig::{By, EVERYWAY, Rig};

/// Of the low class.
const WAITING: u8 = 30;

/// At once, of each library and on either kind of connection.
const CLIENTS: usize = 12;
const LIBRARIES: [Library; 2] = [Library::Python, Library::Go];
const MODES: [&str; 2] = ["each", "persistent"];

const IMPAIRMENT: Impairment = Impairment { seed: 17, lost: 10, doubled: 30, reordered: 60 };

#[derive(Clone, Copy, Debug)]
enum Library {
    Python,
    Go,
}

impl Library {
    fn command(self, topology: &Topology) -> Command {
        match self {
            Library::Go => topology.clients.command(go("client")),
            Library::Python => {
                let mut command = topology.clients.command("python3");
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queue_programs/client.py"));
                command
            }
        }
    }
}

/// Clients of these libraries and kinds at once, whose every request has a path of its own. None is lost or answered with the answer
/// of another, and the server got each of them once.
fn is_asked_by(rig: &Rig, kinds: &[(Library, &str)], requests: usize) {
    let before = rig.answered().len();
    let host = Topology::server_address(Family::V4, rig.port()).ip().to_string();
    let begin = |&(library, mode): &(Library, &str)| {
        let mut command = library.command(rig.topology());
        command.args([&host, &rig.port().to_string(), mode, &CLIENTS.to_string(), &requests.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let asking: Vec<_> = kinds.iter().map(begin).collect();
    // none of them outlives the test
    let ended: Vec<_> = asking.into_iter().map(|client| client.wait_with_output().unwrap()).collect();
    for (kind, output) in kinds.iter().zip(ended) {
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        assert!(output.status.success(), "{kind:?}: {said}");
    }
    let all = kinds.len() * CLIENTS * requests;
    wait_until(SOON, || rig.answered().len() >= before + all).unwrap();
    let mut times: HashMap<String, usize> = HashMap::new();
    rig.answered().into_iter().skip(before).for_each(|path| *times.entry(path).or_default() += 1);
    let doubled: Vec<_> = times.iter().filter(|(_, count)| **count != 1).collect();
    assert!(doubled.is_empty() && times.len() == all, "{kinds:?}: {doubled:?}");
}

/// Clients in the order in which the first bytes of their answers leave. That is the order of the queue also where each worker
/// writes its own log, when it comes to it.
fn answered_on(wire: &Wire, clients: usize) -> Vec<IpAddr> {
    let (mut order, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while order.len() < clients {
        let length = wire.receive(&mut buffer, SOON).expect("an answer");
        let Some(segment) = Segment::parse(&buffer[..length]) else { continue };
        if !segment.payload.is_empty() && !order.contains(&segment.destination.ip()) {
            order.push(segment.destination.ip());
        }
    }
    order
}

fn is_answered_with(path: &str, mut stream: TcpStream) {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.") && response.ends_with(&format!("\r\n\r\n{path}")), "{path}: {response}");
}

/// The first request has begun when the high one comes, and all others wait.
fn the_better_class_goes_first_at(server: Server) {
    let low = |n| (Client::Low.address(Family::V4, n), format!("/low-{n}"));
    let high = (Client::High.address(Family::V4, 1), "/high".to_owned());
    let come: Vec<_> = (1..=WAITING).map(low).chain([high.clone()]).collect();
    let (from, mut paths): (Vec<_>, Vec<_>) = [low(1), high].into_iter().chain((2..=WAITING).map(low)).unzip();
    let _one = one_installation();
    for by in EVERYWAY {
        // the place of the first lasts until all have come, and however long that takes, nobody is refused meanwhile
        let Some(rig) = Rig::new(server, by, "{ in-service = 1, wait = \"1m\", stale = \"30s\" }") else { return };
        let wire = Wire::open(&rig.topology().clients, Topology::CLIENTS).unwrap();
        let asked: Vec<_> =
            while_it_stands(&rig.topology().server, || come.iter().map(|(from, path)| rig.ask(*from, path)).collect());
        come.iter().zip(asked).for_each(|((_, path), stream)| is_answered_with(path, stream));
        wait_until(SOON, || rig.answered().len() == come.len()).unwrap();
        let mut answered = rig.answered();
        if server == Server::NginxTwo {
            assert_eq!(answered_on(&wire, come.len()), from);
            answered.sort();
            paths.sort();
        }
        assert_eq!(answered, paths);
        rig.stop();
    }
}

fn none_is_lost_or_doubled_at(server: Server) {
    if !(require(Feature::Python) && require(Feature::Go)) {
        return;
    }
    let ways = [(By::Run, "{ in-service = 1 }"), (By::Run, "true"), (By::Apply(Door::Kernel), "true")];
    let each = requests(14_400).div_ceil(ways.len() * LIBRARIES.len() * MODES.len() * CLIENTS);
    let _one = one_installation();
    for (by, queue) in ways {
        let Some(rig) = Rig::new(server, by, queue) else { return };
        for client in LIBRARIES {
            for mode in MODES {
                is_asked_by(&rig, &[(client, mode)], each);
            }
        }
        rig.stop();
    }
}

/// At one of the doors, and all kinds of clients at once: they mostly wait for what the link has lost. A server of the test's own has both
/// doors (queue_impaired.rs).
fn none_is_lost_or_doubled_on_a_bad_link_at(server: Server, door: Door) {
    if !(require(Feature::Python) && require(Feature::Go)) {
        return;
    }
    let kinds = LIBRARIES.map(|library| MODES.map(|mode| (library, mode))).concat();
    let each = requests(480).div_ceil(kinds.len() * CLIENTS);
    let _one = one_installation();
    let queue = "{ in-service = 1, wait = \"1m\" }";
    let Some(rig) = Rig::at(server, By::Apply(door), queue, || Topology::impaired(IMPAIRMENT)) else { return };
    is_asked_by(&rig, &kinds, each);
    let left = || (rig.queue().waiting, rig.queue().kept);
    wait_until(SOON, || left() == (0, 0)).unwrap_or_else(|_| panic!("{:?}", left()));
    let waited = rig.queue().class.iter().map(|class| class.released).sum::<u64>();
    assert!(waited > 0, "nobody waited");
    let done = rig.topology().impairer.as_ref().unwrap().so_far();
    assert!(done.lost > 5 && done.doubled > 5 && done.reordered > 5, "{done:?}");
    rig.stop();
}

#[test]
fn nginx_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Nginx);
}

#[test]
fn nginx_with_two_workers_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::NginxTwo);
}

#[test]
fn lighttpd_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Lighttpd);
}

#[test]
fn go_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Go);
}

#[test]
fn node_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Node);
}

#[test]
fn gunicorn_serves_the_better_class_first() {
    the_better_class_goes_first_at(Server::Gunicorn);
}

#[test]
fn nginx_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Nginx);
}

#[test]
fn nginx_with_two_workers_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::NginxTwo);
}

#[test]
fn nginx_with_tls_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::NginxTls);
}

#[test]
fn lighttpd_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Lighttpd);
}

#[test]
fn go_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Go);
}

#[test]
fn node_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Node);
}

#[test]
fn gunicorn_gets_every_request_once() {
    none_is_lost_or_doubled_at(Server::Gunicorn);
}

#[test]
fn nginx_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::Nginx, Door::Own);
}

#[test]
fn nginx_with_two_workers_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::NginxTwo, Door::Kernel);
}

#[test]
fn nginx_with_tls_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::NginxTls, Door::Own);
}

#[test]
fn lighttpd_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::Lighttpd, Door::Kernel);
}

#[test]
fn go_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::Go, Door::Kernel);
}

#[test]
fn node_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::Node, Door::Own);
}

#[test]
fn gunicorn_gets_every_request_once_over_a_bad_link() {
    none_is_lost_or_doubled_on_a_bad_link_at(Server::Gunicorn, Door::Own);
}
