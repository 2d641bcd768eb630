// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A handshake that Fief has answered is a connection, whatever the policy says that is in force when its client asks.

use std::io::Write;
use std::net::TcpStream;
use std::thread::scope;
use std::time::{Duration, Instant};

use fief_bpf::ingress;
use fief_testkit::{Client, Family, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::{Rig, status_of};
use fief_tests_netns::{SOON, connect_from, refusing, unacknowledged};
use nix::errno::Errno;

const HELD: &str = refusing!("/secret", "503");
/// Connection requests have a rate, requests have no rules.
const RATED: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
syn = { rate = 100000 }
container = "web"
"#;

fn watching() -> String {
    HELD.replace("[listener.plain]\n", "[listener.plain]\nmode = \"monitor\"\n")
}

/// As many clients begin a connection. Each has an offset of timestamps of its own, of which it may like one half.
const CLIENTS: usize = 8;

fn connected(rig: &Rig) -> Vec<TcpStream> {
    let from = (Client::High.address(Family::V4, 1), 0).into();
    let connect = |_| connect_from(&rig.front.topology.clients, from, plain(Family::V4)).unwrap();
    (0..CLIENTS).map(connect).inspect(|stream| stream.set_nodelay(true).unwrap()).collect()
}

fn answers(streams: Vec<TcpStream>, rest: &str) -> Vec<Result<u16, Errno>> {
    for mut stream in &streams {
        stream.write_all(rest.as_bytes()).unwrap();
    }
    streams.into_iter().map(status_of).collect()
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n")
}

/// Clients connect, another policy is put in force, and they ask; in pieces where `cut` says.
fn ask_across(rig: &Rig, next: &str, path: &str, cut: Option<usize>) -> Vec<Result<u16, Errno>> {
    rig.front.apply(HELD).unwrap();
    let streams = connected(rig);
    let request = request(path);
    let (before, after) = request.split_at(cut.unwrap_or(0));
    for mut stream in &streams {
        stream.write_all(before.as_bytes()).unwrap();
        // what the door holds is acknowledged
        wait_until(SOON, || unacknowledged(stream) == 0).unwrap();
    }
    rig.front.apply(next).unwrap();
    answers(streams, after)
}

#[test]
fn a_connection_that_was_begun_goes_on_where_nothing_is_held_any_more() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, HELD);
        // without request rules the kernel answers by cookies only when it has to, and takes none back
        let nexts = [watching(), RATED.to_owned()];
        let all = |status: u16| vec![Ok(status); CLIENTS];
        for next in nexts.iter().take(if door == Door::Own { 2 } else { 1 }) {
            assert_eq!(ask_across(&rig, next, "/10", None), all(200), "{door:?}: {next}");
            assert_eq!(ask_across(&rig, next, "/10", Some(9)), all(200), "{door:?}, in pieces: {next}");
            assert_eq!(
                ask_across(&rig, next, "/secret", None),
                all(200),
                "{door:?}: nothing is refused any more: {next}"
            );
        }
        assert_eq!(ask_across(&rig, HELD, "/secret", None), all(503), "{door:?}");
    }
}

/// Of the door's own cookies the kernel knows nothing: it resets those who return them.
#[test]
fn a_connection_of_the_kernels_cookies_goes_on_where_nothing_is_in_force_any_more() {
    if !ready() {
        return;
    }
    // A request that the kernel takes up later than half a second after the door has gone may be lost, and a busy machine may stand still
    // for so long. Its client is told later than that, or never.
    let all: Vec<Result<u16, Errno>> = vec![Ok(200); CLIENTS];
    let mut tries = (0..5).map(|_| answers_after_down());
    let judged = tries.find(|(within, answers)| *within < Duration::from_millis(450) || *answers == all);
    assert_eq!(judged.expect("a try that was fast enough").1, all);
}

/// Clients ask once the door is gone: within which time all of them are told, and what.
fn answers_after_down() -> (Duration, Vec<Result<u16, Errno>>) {
    let rig = Rig::new(Door::Kernel, HELD);
    let streams = connected(&rig);
    let fief = rig.front.installation().fief();
    scope(|scope| {
        let down = scope.spawn(|| fief.down().unwrap());
        let gone = wait_for(|| ingress::standing(fief.pins()).is_empty());
        for mut stream in &streams {
            stream.write_all(request("/secret").as_bytes()).unwrap();
        }
        let answers: Vec<_> = streams.into_iter().map(status_of).collect();
        let within = gone.elapsed();
        down.join().unwrap();
        (within, answers)
    })
}

/// When it was last seen not to be so.
fn wait_for(is_so: impl Fn() -> bool) -> Instant {
    let mut last = Instant::now();
    wait_until(SOON, || {
        let now = Instant::now();
        let so = is_so();
        if !so {
            last = now;
        }
        so
    })
    .unwrap();
    last
}
