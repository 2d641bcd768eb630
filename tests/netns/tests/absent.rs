// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients who come while a server is started anew: with `restart` they are served by the one that starts, and without it refused.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use fief_bpf::abi;
use fief_testkit::{Family, Feature, Process, read_until, require, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{SOON, connect_from, python_server};

fn policy(listener: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n{listener}\n[[listener.plain.client]]\n\
         from = [\"any\"]\ncontainer = \"web\"\n"
    )
}

fn start(front: &Front) -> Process {
    front.python(&python_server("    do_GET = answer"))
}

fn dial(front: &Front, family: Family) -> nix::Result<TcpStream> {
    connect_from(&front.topology.clients, anywhere(family), plain(family))
}

fn is_served(stream: nix::Result<TcpStream>) -> bool {
    let mut stream = stream.unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"GET /public/1 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").unwrap();
    read_until(&mut stream, "served /public/1\n").contains("served /public/1\n")
}

fn absent(front: &Front) -> u64 {
    front.verdicts().count(abi::FIEF_SYN_ABSENT)
}

/// The end of a server, so that nobody listens.
fn end(front: &Front, server: Process) {
    drop(server);
    wait_until(SOON, || !front.listens(80)).unwrap();
}

#[test]
fn who_comes_during_a_restart_is_served_by_the_server_that_starts() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    for door in Door::GUARDS {
        let front = Front::new(door, &policy("restart = \"20s\""));
        for more in ["", "admit = true", "[[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"reset\""] {
            let rules = if more.starts_with('[') { more } else { "" };
            let own = if rules.is_empty() { more } else { "" };
            front.apply(&(policy(&format!("restart = \"20s\"\n{own}")) + rules)).unwrap();
            let families: &[Family] = if more.is_empty() { &[Family::V4, Family::V6] } else { &[Family::V4] };
            for &family in families {
                let server = start(&front);
                wait_until(SOON, || dial(&front, family).is_ok()).unwrap();
                end(&front, server);
                let before = absent(&front);
                std::thread::scope(|scope| {
                    let client = scope.spawn(|| is_served(dial(&front, family)));
                    wait_until(SOON, || absent(&front) > before).unwrap();
                    let _server = start(&front);
                    assert!(client.join().unwrap(), "{door:?}, {more:?}, {family:?}");
                    // who comes now is served at once, and the next restart has its whole time again
                    let before = absent(&front);
                    assert!(is_served(dial(&front, family)), "{door:?}, {more:?}, {family:?}");
                    assert_eq!(absent(&front), before);
                });
                wait_until(SOON, || !front.listens(80)).unwrap();
            }
        }
    }
}

#[test]
fn a_server_that_stays_away_is_refused_as_without_fief() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        for (listener, dropped) in
            [("admit = true", false), ("restart = \"1s\"", true), ("restart = \"20s\"\nmode = \"monitor\"", false)]
        {
            let front = Front::new(door, &policy(listener));
            // the first one begins the time, and has passed it when it comes again
            let first = dial(&front, Family::V4).map_err(|errno| std::io::Error::from(errno).kind());
            let refused = Some(ErrorKind::ConnectionRefused);
            assert_eq!(first.err(), refused, "{door:?}, {listener}");
            assert_eq!(absent(&front) > 0, dropped, "{door:?}, {listener}: {:?}", front.verdicts());
        }
    }
}

/// What another listener left under its number is not this one's: the restart of a server long ago, a level, an isolation.
#[test]
fn a_new_listener_begins_with_nothing_of_one_that_had_its_number() {
    if !ready() {
        return;
    }
    let at = |port: u16| {
        policy("restart = \"1s\"\nisolate = { above = 5, for = \"1h\" }").replace(":80", &format!(":{port}"))
    };
    let front = Front::new(Door::Own, &at(80));
    let dial = |port: u16| {
        let to = SocketAddr::new(plain(Family::V4).ip(), port);
        connect_from(&front.topology.clients, anywhere(Family::V4), to).err()
    };
    assert_eq!(dial(80), Some(nix::Error::ECONNREFUSED), "its second is over");
    let fief = front.installation().fief();
    let meters = fief.pins().open_map("meters").unwrap();
    let isolated = abi::fief_meter {
        prefix: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 1, 0],
        length: 24,
        isolated_until_ns: u64::MAX,
        ..Default::default()
    };
    fief_bpf::record::update(&meters, 7, &isolated).unwrap();
    assert_eq!(fief.front().unwrap().shut_out.len(), 1);
    front.apply(&at(81)).unwrap();
    assert_eq!(fief.front().unwrap().shut_out.len(), 1, "who is shut out stays so while nobody has the number");
    // a number is given again when all have been, or where it is not known which have
    std::fs::remove_file(format!("/run/fief/{}/listeners", fief.pins().scope())).unwrap();
    front.apply(&at(82)).unwrap();
    let view = fief.front().unwrap();
    assert!(view.loads.is_empty() && view.shut_out.is_empty(), "{view:?}");
    let before = absent(&front);
    assert_eq!(dial(82), Some(nix::Error::ECONNREFUSED));
    assert!(absent(&front) > before, "it has a second of its own");
}

/// A server of one family, at a listener of both: its own clients do not give those of the other one more time.
#[test]
fn an_address_without_a_server_is_refused_beside_one_that_has_it() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let front = Front::new(Door::Own, &policy("restart = \"1s\""));
    let narrow = python_server("    do_GET = answer").replace("AF_INET6", "AF_INET").replace("\"::\"", "\"0.0.0.0\"");
    let _server = front.python(&narrow);
    wait_until(SOON, || dial(&front, Family::V4).is_ok()).unwrap();
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| dial(&front, Family::V6).err());
        while !refused.is_finished() {
            assert!(is_served(dial(&front, Family::V4)));
        }
        assert_eq!(refused.join().unwrap(), Some(nix::Error::ECONNREFUSED));
    });
}

/// A range of ports of which one is served: its clients give those of another one no more time, and these take none of it.
#[test]
fn a_port_of_a_range_without_a_server_is_refused_beside_one_that_has_it() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let range = policy("restart = \"1s\"\nclasses = \"shared\"").replace(":80\"", ":80-81\"");
    let front = Front::new(Door::Own, &range);
    let refused = Some(nix::Error::ECONNREFUSED);
    let other = || {
        let to = SocketAddr::new(plain(Family::V4).ip(), 81);
        connect_from(&front.topology.clients, anywhere(Family::V4), to).err()
    };
    let server = start(&front);
    wait_until(SOON, || dial(&front, Family::V4).is_ok()).unwrap();
    std::thread::scope(|scope| {
        let one = scope.spawn(other);
        while !one.is_finished() {
            assert!(is_served(dial(&front, Family::V4)));
        }
        assert_eq!(one.join().unwrap(), refused);
    });
    end(&front, server);
    assert_eq!(other(), refused, "its second is over");
    let before = absent(&front);
    assert_eq!(dial(&front, Family::V4).err(), refused);
    assert!(absent(&front) > before, "the port that was served has a second of its own");
}
