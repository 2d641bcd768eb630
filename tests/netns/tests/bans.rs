// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whom `fief ban` shuts out, whom it does not, and that `fief pardon` lets in again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fief_bpf::abi;
use fief_control::{Banned, Pardoned};
use fief_testkit::segment::{ACK, FIN, RST, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low, status};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
const KEPT: &[u8] = b"GET /10 HTTP/1.1\r\nHost: a\r\n\r\n";
const REFUSED: &[u8] = b"GET /refused HTTP/1.1\r\n\r\n";
const HOUR: Duration = Duration::from_secs(3600);

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
isolate = { above = 20, for = "1h" }
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/refused"
refuse = "reset"
penalty = "1h"
"#;

fn client(network: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, 89, network, n).into()
}

fn ban(rig: &Rig, prefix: &str, time: Duration) -> Banned {
    ban_at(&rig.front, prefix, time)
}

fn ban_at(front: &Front, prefix: &str, time: Duration) -> Banned {
    let prefix = fief_policy::parse_prefix(prefix).unwrap();
    front.topology.server.run(|| front.installation().fief().ban(prefix, time).unwrap()).unwrap()
}

fn pardon(rig: &Rig, prefix: &str) -> Pardoned {
    let prefix = fief_policy::parse_prefix(prefix).unwrap();
    let front = &rig.front;
    front.topology.server.run(|| front.installation().fief().pardon(prefix).unwrap()).unwrap()
}

/// Names of who is banned.
fn banned(rig: &Rig) -> Vec<String> {
    rig.front.installation().fief().bans().unwrap().iter().map(|ban| ban.name()).collect()
}

/// How long nothing comes to a SYN that is not answered.
const SILENCE: Duration = Duration::from_millis(200);

/// A handshake, if the SYN is answered within the time.
fn open(rig: &Rig, from: IpAddr, port: u16, time: Duration) -> Option<RawConnection<'_>> {
    let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
    let ends = [SocketAddr::new(from, port), plain(family)];
    RawConnection::open(&rig.clients, ends, 9, &ORDINARY_OPTIONS, time).unwrap()
}

#[track_caller]
fn is_served(rig: &Rig, from: IpAddr, port: u16) {
    let open = open(rig, from, port, SOON);
    let mut connection = open.unwrap_or_else(|| panic!("{from} is shut out: {:?}", rig.verdicts()));
    let (words, _) = connection.converse(REQUEST, &whole(REQUEST), SOON).unwrap();
    assert!(words.starts_with(b"HTTP/1.1 200"), "{from}: {:?}", rig.verdicts());
}

/// No SYN of it is answered, and each is counted.
#[track_caller]
fn is_out(rig: &Rig, from: IpAddr, port: u16) {
    let before = rig.verdicts();
    assert!(open(rig, from, port, SILENCE).is_none(), "{from} is answered");
    wait_until(SOON, || rig.verdicts().since(&before).count(abi::FIEF_BANNED) > 0).expect("counted");
}

#[test]
fn all_packets_of_a_banned_client_are_dropped_also_on_its_open_connections_and_nobody_elses() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let mut kept = open(&rig, client(1, 1), 2000, SOON).expect("answered");
        let (words, _) = kept.converse_until(KEPT, &whole(KEPT), SOON, |words| !words.is_empty()).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{door:?}");
        let done = ban(&rig, "10.89.1.1", HOUR);
        assert_eq!((done.ban.name(), done.before, done.notes), ("10.89.1.1".to_owned(), None, vec![]), "{door:?}");
        is_out(&rig, client(1, 1), 2001);
        let before = rig.verdicts();
        rig.clients.send(&kept.segment(ACK, KEPT.len() as u32, KEPT)).unwrap();
        wait_until(SOON, || rig.verdicts().since(&before).count(abi::FIEF_BANNED) == 1).unwrap();
        assert_eq!(rig.verdicts().since(&before).count(abi::FIEF_REQUEST_CLIENT), 0, "{door:?}: ruled");
        is_served(&rig, client(1, 2), 2000);
        pardon(&rig, "10.89.1.1");
        is_served(&rig, client(1, 1), 2002);
    }
}

#[test]
fn a_network_of_either_family_is_shut_out_as_a_whole() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    ban(&rig, "10.89.0.0/16", HOUR);
    ban(&rig, "fd89::/64", HOUR);
    is_out(&rig, client(7, 7), 2000);
    is_out(&rig, "fd89::7".parse().unwrap(), 2000);
    assert_eq!(banned(&rig), ["10.89.0.0/16", "fd89::/64"]);
    assert_eq!(pardon(&rig, "fd89::/32").bans.len(), 1, "what is in it");
    is_served(&rig, "fd89::7".parse().unwrap(), 2001);
    is_out(&rig, client(7, 7), 2001);
}

#[test]
fn a_ban_ends_by_itself_and_within_a_longer_one_with_that() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    ban(&rig, "10.89.0.0/16", HOUR);
    let inner = ban(&rig, "10.89.1.1", Duration::from_secs(1));
    assert_eq!(inner.within.map(|ban| ban.name()), Some("10.89.0.0/16".to_owned()));
    wait_until(SOON, || banned(&rig) == ["10.89.0.0/16"]).expect("the inner one has ended");
    is_out(&rig, client(1, 1), 2000);
    let told = pardon(&rig, "10.89.1.1");
    assert_eq!(told.still.iter().map(|ban| ban.name()).collect::<Vec<_>>(), ["10.89.0.0/16"], "{told:?}");
    is_out(&rig, client(1, 1), 2001);
    let shorter = ban(&rig, "10.89.0.0/16", Duration::from_secs(1));
    assert!(shorter.before.is_some_and(|before| before.remaining_ns > shorter.ban.remaining_ns));
    let mut port = 2100..;
    wait_until(SOON, || open(&rig, client(1, 1), port.next().expect("a port"), SILENCE).is_some())
        .expect("it has ended");
    assert_eq!(banned(&rig), [""; 0]);
}

#[test]
fn a_ban_stays_over_a_new_policy_and_a_listener_on_trial_only_counts_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    ban(&rig, "10.89.1.1", HOUR);
    rig.front.apply(POLICY).unwrap();
    is_out(&rig, client(1, 1), 2000);
    rig.front.apply(&POLICY.replace("isolate =", "mode = \"monitor\"\nisolate =")).unwrap();
    is_served(&rig, client(1, 1), 2001);
    wait_until(SOON, || rig.verdicts().monitored(abi::FIEF_BANNED) > 0).unwrap();
    let again = ban(&rig, "10.89.1.1", HOUR);
    assert!(again.notes.iter().any(|note| note.contains("plain is in monitor mode")), "{again:?}");
    rig.front.apply("\n[container.web]\n").unwrap();
    let again = ban(&rig, "10.89.1.1", HOUR);
    assert!(again.notes.iter().any(|note| note.contains("no listener of the policy in force is guarded")), "{again:?}");
}

#[test]
fn a_pardon_ends_a_penalty_and_the_isolation_around_a_client() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    rig.open_from((client(1, 1), 2000).into()).converse(REFUSED, &whole(REFUSED), SOON).unwrap();
    assert!(open(&rig, client(1, 1), 2001, SILENCE).is_none(), "it has a penalty");
    let told = pardon(&rig, "10.89.1.0/24");
    assert_eq!((told.penalties, told.isolations), (vec!["10.89.1.1".to_owned()], vec![]));
    is_served(&rig, client(1, 1), 2002);

    let before = rig.verdicts();
    let syns = (0..100u8).flat_map(|n| [1000, 1001].map(|port| SocketAddr::new(client(3, 100 + n), port)));
    syns.for_each(|from| rig.syn(from));
    // all of them: those that come behind the pardon would isolate the network again
    assert!(rig.verdicts_on(&before, 200).count(abi::FIEF_SYN_ISOLATED) > 0, "{:?}", rig.verdicts());
    assert!(open(&rig, client(3, 1), 2000, SILENCE).is_none(), "isolated");
    let told = pardon(&rig, "10.89.3.7");
    assert_eq!(told.isolations, [("plain".to_owned(), "10.89.3.0/24".to_owned())]);
    is_served(&rig, client(3, 1), 2001);
    assert_eq!(pardon(&rig, "10.89.3.7"), Pardoned::default(), "there is nothing more");
}

/// In the window, behind what TCP lacks.
const BEHIND: u32 = 100;

type Change = fn(&mut Segment);

/// Ends of a connection by somebody who guesses a place in its window, and does not know the server's numbers.
const FORGED: [(u8, Change); 5] = [
    (FIN | ACK, |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(1 << 30)),
    (FIN | ACK, |segment| segment.acknowledgment ^= 0x8000_0000),
    (RST | ACK, |segment| segment.acknowledgment = segment.acknowledgment.wrapping_add(100_000)),
    (RST | ACK, |segment| segment.acknowledgment = segment.acknowledgment.wrapping_sub(1 << 20)),
    (RST, |_| {}),
];

/// With `until = "close"` the connection keeps a place, which comes back with its end.
#[test]
fn only_a_banned_client_itself_ends_its_connection() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let queue = "queue = { in-service = 2, until = \"close\" }";
    let policy = POLICY.replace("isolate = { above = 20, for = \"1h\" }", queue);
    assert_ne!(policy, POLICY);
    for door in Door::GUARDS {
        let rig = Rig::in_order(door, &policy);
        let lasts = |places: u32| wait_until(SOON, || rig.front.queue().lasting == places);
        for (n, flags, offset) in [(1, FIN | ACK, BEHIND), (2, RST | ACK, BEHIND), (3, RST, 0)] {
            let mut kept = open(&rig, client(1, n), 2000, SOON).expect("answered");
            kept.converse_until(KEPT, &whole(KEPT), SOON, |words| !words.is_empty()).unwrap();
            lasts(1).unwrap_or_else(|_| panic!("{door:?}, {n}: {:?}", rig.front.queue()));
            ban(&rig, &format!("10.89.1.{n}"), HOUR);
            let banned = || rig.verdicts().count(abi::FIEF_BANNED);
            let (before, next) = (banned(), KEPT.len() as u32);
            for (flags, change) in FORGED {
                let mut segment = kept.segment(flags, next + BEHIND, &[]);
                change(&mut segment);
                rig.clients.send(&segment).unwrap();
            }
            // behind all of them
            rig.clients.send(&kept.segment(ACK, next, KEPT)).unwrap();
            wait_until(SOON, || banned() - before > FORGED.len() as u64).unwrap();
            assert_eq!(rig.front.queue().lasting, 1, "{door:?}, {n}: somebody else ended it");
            rig.clients.send(&kept.segment(flags, next + offset, &[])).unwrap();
            lasts(0).unwrap_or_else(|_| panic!("{door:?}, {n}: {:?}", rig.front.queue()));
        }
    }
}

const EXCEPTED: &str = "isolate = { above = 20, for = \"1h\", except = [\"10.89.3.1\", \"10.89.3.7\"] }\n\
                        penalty = { except = [\"10.89.1.0/24\"] }";

#[test]
fn exceptions_have_neither_isolation_nor_penalty_and_others_have_both() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let policy = POLICY.replace("isolate = { above = 20, for = \"1h\" }", EXCEPTED);
        let rig = Rig::new(door, &policy);
        for from in [client(1, 1), client(2, 1)] {
            rig.open_from((from, 2000).into()).converse(REFUSED, &whole(REFUSED), SOON).unwrap();
        }
        is_served(&rig, client(1, 1), 2001);
        assert!(open(&rig, client(2, 1), 2001, SILENCE).is_none(), "{door:?}: it has a penalty");

        let syns = |n: u8, times: u16| (0..times).for_each(|port| rig.syn((client(3, n), 1000 + port).into()));
        syns(7, 100);
        is_served(&rig, client(3, 2), 2000);
        (100..200).for_each(|n| syns(n, 1));
        wait_until(SOON, || rig.verdicts().count(abi::FIEF_SYN_ISOLATED) > 0).expect("isolated");
        assert!(open(&rig, client(3, 3), 2000, SILENCE).is_none(), "{door:?}: it is isolated");
        is_served(&rig, client(3, 1), 2000);
        // a policy without them takes both away
        rig.front.apply(POLICY).unwrap();
        assert!(open(&rig, client(3, 8), 2001, SILENCE).is_none(), "{door:?}: isolated still");
    }
}

/// Requests that were acknowledged in the server's name need no packet of the client's to get there.
#[test]
fn what_a_banned_client_has_in_line_does_not_get_to_the_server() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut kept = rig.connect(low(2));
        rig.let_go(1);
        ask_on(&mut kept, "/kept");
        assert!(answer_on(&mut kept).starts_with("HTTP/1.1 200 "), "{door:?}");
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        ask_on(&mut kept, "/banned");
        let banned: Vec<_> = (0..49).map(|_| rig.ask(low(2), "/banned")).collect();
        let other = rig.ask(low(3), "/other");
        rig.wait_for(51);
        ban_at(&rig.front, "10.77.2.2", HOUR);
        rig.let_go(2);
        assert_eq!((status(first), status(other)), (200, 200), "{door:?}");
        rig.wait_for_peace();
        assert_eq!(rig.got(), ["/kept", "/first", "/other"], "{door:?}");
        let port = kept.local_addr().unwrap().port();
        wait_until(SOON, || rig.front.sockets(port).is_empty()).expect("the server has no connection that lacks bytes");
        drop((kept, banned));
    }
}
