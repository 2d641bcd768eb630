// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers behind a queue: nobody's request is lost, doubled or left behind.
//!
//! `FIEF_TEST_REQUESTS=100000` asks each server for more than the usual number.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use fief_testkit::{Family, Feature, Nginx, NginxConfig, Process, answers, require, run, wait_until};
use fief_tests_netns::front::{self, Door, Front, plain};
use fief_tests_netns::queued::POLICY;
use fief_tests_netns::{SOON, connect_from, one_installation, requests};

/// Clients at once, a third of them of the high class.
const CLIENTS: u8 = 24;
const PERSISTENT: [bool; 2] = [false, true];

/// Of each client, at each door and on either kind of connection.
fn requests_of_each() -> usize {
    requests(9600).div_ceil(usize::from(CLIENTS) * Door::GUARDS.len() * PERSISTENT.len())
}

fn address(client: u8) -> IpAddr {
    IpAddr::from([10, 77, if client.is_multiple_of(3) { 1 } else { 2 }, client + 1])
}

/// The queue's counters: requests that entered at once, that waited, and all that is left.
fn counted(front: &Front) -> (u64, u64, u64) {
    let queue = front.queue();
    let sum = |of: fn(&fief_bpf::abi::fief_queue_class) -> u64| queue.class.iter().map(of).sum::<u64>();
    let left = u64::from(queue.busy) + u64::from(queue.waiting) + queue.kept;
    assert_eq!(sum(|class| class.refused_full + class.refused_wait + class.gone), 0);
    (sum(|class| class.entered), sum(|class| class.released), left)
}

/// Reads one answer; its status.
fn answer(stream: &mut impl Read) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.trim().parse::<usize>().ok();
    let body = head.lines().find_map(length).expect("a length");
    stream.read_exact(&mut vec![0; body]).expect("a body");
    head.split(' ').nth(1).expect("a status").to_owned()
}

/// Every client asks again and again, on connections of its own or on one.
fn ask_all(front: &Front, path: &str, persistent: bool) {
    let client = |n: u8| {
        let connect = || connect_from(&front.topology.clients, (address(n), 0).into(), plain(Family::V4));
        let mut stream = connect().unwrap();
        for at in 0..requests_of_each() {
            if at > 0 && !persistent {
                stream = connect().unwrap();
            }
            stream.set_read_timeout(Some(SOON)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").unwrap();
            assert_eq!(answer(&mut stream), "200");
        }
    };
    std::thread::scope(|scope| (0..CLIENTS).for_each(|n| drop(scope.spawn(move || client(n)))));
}

fn serves_all(front: &Front, path: &str) {
    for persistent in PERSISTENT {
        let before = counted(front);
        ask_all(front, path, persistent);
        wait_until(SOON, || counted(front).2 == 0).unwrap_or_else(|_| panic!("{:?}", counted(front)));
        let after = counted(front);
        let (entered, waited) = (after.0 - before.0, after.1 - before.1);
        assert_eq!(entered + waited, u64::from(CLIENTS) * requests_of_each() as u64, "persistent: {persistent}");
        assert!(waited > 0, "persistent: {persistent}");
    }
}

#[test]
fn nginx_serves_every_request_once() {
    if !front::ready() || !require(Feature::Nginx) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let config = NginxConfig::new(80, 2, "keepalive_requests 1000000;").unwrap();
        let mut command = front.server_command("nginx");
        command.args(config.arguments()).stderr(Stdio::null());
        let _nginx = Nginx::start_command(&front.topology.server, command, config).unwrap();
        serves_all(&front, "/1k");
    }
}

#[test]
fn go_serves_every_request_once() {
    if !front::ready() || !require(Feature::Go) {
        return;
    }
    let _one = one_installation();
    let folder = std::env::temp_dir().join(format!("fief-queue-go-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("web.go"), folder.join("web"));
    std::fs::write(&source, include_str!("run_servers/web.go")).unwrap();
    run(Command::new("go").args(["build", "-o"]).args([&program, &source]).env("CGO_ENABLED", "0")).unwrap();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let mut command = front.server_command(program.to_str().unwrap());
        command.arg("[::]:80").arg(folder.join("log")).env("GODEBUG", "multipathtcp=0").stderr(Stdio::null());
        let _go = Process::start(command).unwrap();
        wait_until(SOON, || answers(&front.topology.server, plain(Family::V4))).unwrap();
        serves_all(&front, "/");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
