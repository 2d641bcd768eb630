// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments of a shape that is as usual and of a connection that is not: no cookie, another's, one that was spent, flags
//! or words that open nothing.

#[path = "shapes/rig.rs"]
mod rig;

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use fief_bpf::{abi, record};
use fief_testkit::segment::{ACK, ECE, FIN, PSH, RST, SYN, Segment, URG};
use fief_testkit::{
    Ending, Family, Feature, ORDINARY_OPTIONS, Process, RawClients, RawConnection, require, wait_until,
};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{SOON, connect_from, one_installation};
use libbpf_rs::MapHandle;
use rig::{OPEN, POLICY, Rig, SECRET, client};

#[test]
fn words_in_a_syn_are_not_acknowledged() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::ALL {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let mut syn = Segment::new(client(family, n), plain(family), SYN);
            (syn.sequence, syn.payload) = (77, SECRET.to_vec());
            rig.clients.send(&syn).unwrap();
            let answer = rig.clients.receive(syn.source, SOON).unwrap();
            assert!(answer.has(SYN | ACK), "{door:?}: {answer:?}");
            assert_eq!(answer.acknowledgment, 78, "{door:?}");
        }
        rig.pass_through(3000);
        assert!(rig.server.seen().iter().all(|seen| !seen.line.contains("secret")));
    }
}

#[test]
fn flags_that_open_nothing_are_answered_as_ever() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    // A bare ACK apart: where cookies are in use it draws no answer, lest a lost first segment kill its connection.
    let flags = [0, FIN, RST, RST | ACK, SYN | RST, SYN | FIN, FIN | PSH | URG, SYN | ACK, SYN | ECE];
    let answers = Door::ALL.map(|door| {
        let rig = Rig::new(door);
        let mut answers = Vec::new();
        for family in [Family::V4, Family::V6] {
            for (n, &flags) in flags.iter().enumerate() {
                rig.clients.send(&Segment::new(client(family, n), plain(family), flags)).unwrap();
                // All of them went the same way as this one.
                rig.pass_through(3000 + answers.len() as u16);
                let answer = rig.clients.receive(client(family, n), Duration::from_millis(1));
                answers.push((flags, answer.map(|answer| answer.flags & (SYN | RST | FIN))));
            }
        }
        answers
    });
    let [stock, own, kernel] = answers;
    assert!(own == stock && kernel == stock, "{stock:?}\n{own:?}\n{kernel:?}");
}

#[test]
fn forged_acks_are_dropped_and_counted() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for family in [Family::V4, Family::V6] {
            let before = rig.front.verdicts();
            for n in 0..50 {
                let mut forged = Segment::new(client(family, n), plain(family), PSH | ACK);
                (forged.sequence, forged.acknowledgment) = (1000, 0x1234_5678 + n as u32);
                forged.payload = OPEN.to_vec();
                rig.clients.send(&forged).unwrap();
            }
            rig.pass_through(3000 + u16::from(family == Family::V6));
            let new = rig.front.verdicts().since(&before);
            let counted = new.count(abi::FIEF_ACK_BAD) + new.count(abi::FIEF_ACK_LIMIT);
            assert_eq!(counted, 50, "{door:?}, {family:?}: {new:?}");
        }
        assert_eq!(rig.server.accepted(), 2, "only the two ordinary ones");
    }
}

/// SipHash-2-4 of words.
#[allow(deprecated, reason = "nothing else in the standard library says which SipHash it is")]
fn siphash(key: [u64; 2], words: &[u64]) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
    words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
    hasher.finish()
}

/// The cookie that a client got so many epochs ago, as `bpf/front/cookie.bpf.h` makes it.
fn old_cookie(rig: &Rig, from: SocketAddr, to: SocketAddr, first: u32, epochs_ago: u32) -> u32 {
    let map = MapHandle::from_pinned_path(rig.front.installation().fief().pins().map("secrets")).unwrap();
    let secret = record::lookup::<abi::fief_secret>(&map, &0u32.to_ne_bytes()).unwrap().unwrap();
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let epoch = (((now.tv_sec() as u64 * 1_000_000_000) >> 36) as u32).wrapping_sub(epochs_ago);
    let key = [0, 1].map(|half| siphash(secret.cookie, &[u64::from(epoch) << 1 | half]));
    let low = u64::from(epoch & 1) << 8 | 0x0f;
    let ports = u64::from(from.port()) << 48 | u64::from(to.port()) << 32 | u64::from(first);
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let addresses = [octets(from.ip()), octets(to.ip())].concat();
    let words: Vec<u64> = match addresses.len() {
        8 => {
            let [source, destination] = [0, 4].map(|at| u32::from_ne_bytes(addresses[at..at + 4].try_into().unwrap()));
            vec![ports, low, u64::from(source) << 32 | u64::from(destination)]
        }
        _ => {
            let words = addresses.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            [ports, low].into_iter().chain(words).collect()
        }
    };
    (siphash(key, &words) as u32 & !0x1ff) | low as u32
}

#[test]
fn who_comes_too_late_with_a_cookie_is_told() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own);
    for family in [Family::V4, Family::V6] {
        // three is the first that has surely run out
        for (n, epochs_ago) in [(0, 3), (1, 4), (2, 20)] {
            let before = rig.front.verdicts();
            let mut late = Segment::new(client(family, n), plain(family), PSH | ACK);
            late.sequence = 1001;
            late.payload = OPEN.to_vec();
            late.acknowledgment = old_cookie(&rig, late.source, plain(family), 1000, epochs_ago).wrapping_add(1);
            rig.clients.send(&late).unwrap();
            let answer = rig.clients.receive(late.source, SOON).unwrap();
            assert!(answer.has(RST), "{epochs_ago}: {answer:?}");
            assert_eq!(answer.sequence, late.acknowledgment);
            let mut forged = late.clone();
            forged.acknowledgment ^= 0x0010_0000;
            rig.clients.send(&forged).unwrap();
            rig.pass_through(3000 + n as u16 + 100 * u16::from(family == Family::V6));
            assert!(rig.clients.receive(late.source, Duration::from_millis(1)).is_none(), "{epochs_ago}: forged");
            assert_eq!(rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD), 2);
        }
    }
}

/// The timestamp of a SYN-ACK of the kernel's of so many seconds ago, as a client sends it back.
fn timestamp_of(seconds_ago: u64) -> Vec<u8> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let made = Duration::from(now).as_millis() as u32;
    let echo = made.wrapping_sub((seconds_ago * 1000) as u32);
    [&[1, 1, 8, 10, 0, 0, 0, 7][..], &echo.to_be_bytes()].concat()
}

#[test]
fn who_comes_too_late_with_a_cookie_of_the_kernel_is_told_if_it_bears_a_time() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Kernel);
    for family in [Family::V4, Family::V6] {
        for (n, (seconds_ago, told)) in [(130, true), (1700, true), (100, false), (7200, false)].into_iter().enumerate()
        {
            let before = rig.front.verdicts();
            let mut late = Segment::new(client(family, n), plain(family), PSH | ACK);
            (late.sequence, late.acknowledgment, late.payload) = (1001, 4711, OPEN.to_vec());
            late.options = timestamp_of(seconds_ago);
            rig.clients.send(&late).unwrap();
            rig.pass_through(3000 + n as u16 + 100 * u16::from(family == Family::V6));
            let answer = rig.clients.receive(late.source, Duration::from_millis(1));
            let reset = answer.map(|answer| (answer.has(RST), answer.sequence));
            assert_eq!(reset, told.then_some((true, late.acknowledgment)), "{seconds_ago}");
            assert_eq!(rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD), 1);
        }
    }
}

#[test]
fn a_cookie_is_good_for_its_own_connection_only() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let mut connection = rig.open(client(family, n));
            let good = connection.segment(PSH | ACK, 0, OPEN);
            let other = |change: &dyn Fn(&mut Segment)| {
                let mut segment = good.clone();
                change(&mut segment);
                segment
            };
            let mut forgeries = vec![
                other(&|segment| segment.source.set_port(9)),
                other(&|segment| segment.source.set_ip(RawClients::address(family, 77))),
                other(&|segment| segment.acknowledgment ^= 0x8000_0000),
            ];
            // The kernel's cookie has the segment size in its lowest bits and is taken less the sequence number: a
            // neighbouring number is another size to it.
            if door == Door::Own {
                forgeries.push(other(&|segment| segment.sequence = segment.sequence.wrapping_add(1)));
                forgeries.push(other(&|segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1)));
            }
            let before = rig.front.verdicts();
            let accepted = rig.server.accepted();
            for forgery in &forgeries {
                rig.clients.send(forgery).unwrap();
            }
            rig.pass_through(3000 + n as u16);
            let new = rig.front.verdicts().since(&before);
            let counted = new.count(abi::FIEF_ACK_BAD) + new.count(abi::FIEF_ACK_LIMIT);
            let expected = (forgeries.len() as u64, accepted + 1);
            assert_eq!((counted, rig.server.accepted()), expected, "{door:?}, {family:?}: {new:?}");
            // The rightful owner was not harmed.
            let (words, ending) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
            assert!(words.starts_with(b"HTTP/1.1 200") && ending == Ending::Closed, "{door:?}: {ending:?}");
        }
    }
}

#[test]
fn a_cookie_makes_one_connection() {
    if !ready() || !require(Feature::Python) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, POLICY);
        let mut server = front.server_command("python3");
        server.args(["-m", "http.server", "80", "--bind", "::"]).stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Process::start(server).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            wait_until(SOON, || connect_from(&front.topology.clients, anywhere(family), plain(family)).is_ok())
                .unwrap();
            let ends = [client(family, n), plain(family)];
            let open = || RawConnection::open(&clients, ends, 4711, &ORDINARY_OPTIONS, SOON).unwrap().unwrap();
            let mut connection = open();
            let copy = connection.segment(PSH | ACK, 0, OPEN);
            let (words, ending) = connection.converse(OPEN, std::slice::from_ref(&(0..OPEN.len())), SOON).unwrap();
            assert!(words.starts_with(b"HTTP/1.0 404") && ending == Ending::Closed, "{door:?}: {ending:?}");
            drop(connection);
            wait_until(SOON, || front.sockets(copy.source.port()).is_empty()).unwrap();
            let before = front.verdicts();
            for _ in 0..3 {
                clients.send(&copy).unwrap();
            }
            wait_until(SOON, || front.verdicts().since(&before).count(abi::FIEF_ACK_BAD) == 3)
                .unwrap_or_else(|_| panic!("{door:?}, {family:?}: {:?}", front.verdicts().since(&before)));
            assert_eq!(front.verdicts().since(&before).requests(), 0, "{door:?}, {family:?}");
            assert!(front.sockets(copy.source.port()).is_empty(), "{door:?}, {family:?}");
        }
    }
}

/// By nothing but the end of its side, which the server has answered: no reset, and no label of the core's.
#[test]
fn a_cookie_whose_client_has_ended_its_connection_makes_no_other_one() {
    const STAYS: &[u8] = b"GET /10 HTTP/1.1\r\nHost: server\r\n\r\n";
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (n, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let mut connection = rig.open(client(family, n));
            let copy = connection.segment(PSH | ACK, 0, STAYS);
            let served = |words: &[u8]| words.starts_with(b"HTTP/1.1 200");
            let (words, ending) =
                connection.converse_until(STAYS, std::slice::from_ref(&(0..STAYS.len())), SOON, served).unwrap();
            assert!(served(&words) && ending == Ending::Silent, "{door:?}, {family:?}: {ending:?}");
            rig.clients.send(&connection.segment(FIN | ACK, STAYS.len() as u32, b"")).unwrap();
            assert_eq!(connection.hear(SOON).unwrap(), Some(Ending::Closed), "{door:?}, {family:?}");
            connection.vanish();
            wait_until(SOON, || rig.front.sockets(copy.source.port()).is_empty()).unwrap();
            let (before, accepted) = (rig.front.verdicts(), rig.server.accepted());
            for _ in 0..3 {
                rig.clients.send(&copy).unwrap();
            }
            wait_until(SOON, || rig.front.verdicts().since(&before).count(abi::FIEF_ACK_BAD) == 3)
                .unwrap_or_else(|_| panic!("{door:?}, {family:?}: {:?}", rig.front.verdicts().since(&before)));
            assert_eq!(rig.server.accepted(), accepted, "{door:?}, {family:?}");
        }
    }
}
