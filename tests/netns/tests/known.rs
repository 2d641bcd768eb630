// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `fief explain --from` says of a client is what the kernel then does with it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fief::Reason;
use fief_bpf::abi;
use fief_control::{Budget, ClientView, Left};
use fief_policy::Listener;
use fief_testkit::segment::ACK;
use fief_testkit::{RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::queued::{self, Queued};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
const REFUSED: &[u8] = b"GET /refused HTTP/1.1\r\n\r\n";

fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n[container.\"web/last\"]\ncpu.priority = 0\n\
         [listener.plain]\naddress = \"[::]:80\"\nadmit = true\nqueue = false\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{client}\n\
         [[listener.plain.request]]\npath = \"/refused\"\nrefuse = \"reset\"\npenalty = \"1h\"\n"
    )
}

/// The one listener of the policy in force.
fn listener(front: &Front) -> Listener {
    let text = front.installation().fief().policy_text().unwrap().expect("its text");
    fief_policy::parse(&text, "in force").unwrap().listeners.remove(0)
}

fn known(front: &Front, from: IpAddr) -> ClientView {
    let listener = listener(front);
    let ask = || front.installation().fief().client(&listener, from, |_| None).unwrap();
    front.topology.server.run(ask).unwrap()
}

fn client(network: u8, n: u8) -> IpAddr {
    Ipv4Addr::new(10, 89, network, n).into()
}

fn serve(rig: &Rig, from: IpAddr, port: u16) {
    let mut connection = rig.open_from((from, port).into());
    let (words, _) = connection.converse(REQUEST, &whole(REQUEST), SOON).unwrap();
    assert!(words.starts_with(b"HTTP/1.1 200"), "{:?}", rig.verdicts());
}

/// The reason that the kernel has for the next connection request of this client.
fn does(rig: &Rig, from: IpAddr, port: u16) -> Option<Reason> {
    let before = rig.verdicts();
    rig.syn((from, port).into());
    wait_until(SOON, || rig.verdicts().since(&before).syns() == 1).unwrap();
    let new = rig.verdicts().since(&before);
    let refused = new.all().iter().find(|verdict| verdict.reason != abi::FIEF_SYN_TAKEN);
    refused.and_then(|verdict| Reason::from_number(verdict.reason))
}

#[track_caller]
fn agrees(rig: &Rig, from: IpAddr, port: u16, refused: Option<Reason>) {
    assert_eq!(known(&rig.front, from).refused, refused, "{from} is told");
    assert_eq!(does(rig, from, port), refused, "{from} is done");
}

/// SYNs of ever new addresses of a network, until it is isolated.
fn isolate(rig: &Rig, network: u8) {
    let syns = (0..100u8).flat_map(|n| [1000, 1001].map(|port| SocketAddr::new(client(network, 100 + n), port)));
    let before = rig.verdicts();
    syns.for_each(|from| rig.syn(from));
    rig.verdicts_on(&before, 200); // none of them is the next one's
    wait_until(SOON, || !known(&rig.front, client(network, 99)).isolated.is_empty()).expect("isolated");
}

#[test]
fn a_client_of_an_isolated_prefix_is_told_to_be_refused_and_who_was_proven_before_is_not() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("isolate = { above = 20, for = \"1h\" }", ""));
    serve(&rig, client(1, 1), 2000);
    assert_eq!(known(&rig.front, client(1, 2)).isolated, []);
    isolate(&rig, 1);
    let told = known(&rig.front, client(1, 2));
    assert_eq!(told.isolated[0].prefix, "10.89.1.0/24");
    assert!((3_000_000_000_000..=3_600_000_000_000).contains(&told.isolated[0].remaining_ns), "{told:?}");
    assert!(told.isolated[0].since_ns < told.taken_ns && told.proven.is_none(), "{told:?}");
    agrees(&rig, client(1, 2), 2001, Some(Reason::SynIsolated));
    agrees(&rig, client(1, 1), 2001, None);
    agrees(&rig, client(2, 2), 2001, None);
    assert!(known(&rig.front, client(1, 1)).proven.is_some());
}

#[test]
fn a_client_that_is_served_last_is_told_so() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let into = "unproven = { rate = 100000 }\nisolate = { above = 20, for = \"1h\", into = \"web/last\" }";
    let rig = Rig::new(Door::Own, &policy(into, ""));
    serve(&rig, client(1, 1), 2000);
    isolate(&rig, 1);
    assert!(known(&rig.front, client(1, 2)).last);
    assert!(!known(&rig.front, client(1, 1)).last, "proven before");
    agrees(&rig, client(1, 2), 2001, None);
}

#[test]
fn a_penalty_is_told_with_its_end() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for from in [client(1, 1), "fd89::7".parse().unwrap()] {
        let rig = Rig::new(Door::Own, &policy("", ""));
        assert_eq!(known(&rig.front, from).penalty_remaining_ns, None);
        rig.open_from((from, 2000).into()).converse(REFUSED, &whole(REFUSED), SOON).unwrap();
        let told = known(&rig.front, from);
        let remaining = told.penalty_remaining_ns.unwrap_or_else(|| panic!("{told:?}"));
        assert!((3_000_000_000_000..=3_600_000_000_000).contains(&remaining), "{told:?}");
        agrees(&rig, from, 2001, Some(Reason::SynPenalty));
    }
}

#[test]
fn what_is_left_of_a_sources_own_rate_is_told_until_it_is_reached() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let of_rule = "syn = { rate = 1, burst = 3, per = \"source\" }";
    for (listener, client_rule, of, reason) in [
        ("proven = { rate = 1, burst = 3 }", "", "proven", Reason::SynIsolated),
        ("", of_rule, "client-rule-source", Reason::SynRate),
    ] {
        let rig = Rig::new(Door::Own, &policy(listener, client_rule));
        let from = client(1, 1);
        let own = || known(&rig.front, from).budgets.into_iter().find(|budget| budget.of == of);
        let connections: Vec<RawConnection<'_>> =
            (0..6).map(|n| rig.open_from((from, 2000 + n).into())).take(3).collect();
        for connection in &connections {
            rig.clients.send(&connection.segment(ACK, 0, REQUEST)).unwrap();
        }
        wait_until(SOON, || rig.server.accepted() == 3).unwrap();
        // one comes back each second
        let told = own();
        if told.is_some_and(|budget| budget.is_reached()) {
            assert_eq!(told.map(|budget| budget.left), Some(Left::Cells { left: 0, most: 3 }), "{of}");
            assert_eq!(known(&rig.front, from).refused.unwrap_or(reason), reason, "{of}");
        }
        let left = |budget: Option<Budget>| match budget.map(|budget| budget.left) {
            Some(Left::Cells { left, most: 3 }) => left,
            other => panic!("{of}: {other:?}"),
        };
        wait_until(SOON, || left(own()) == 3).unwrap_or_else(|_| panic!("{of}: {:?}", own()));
    }
}

#[test]
fn what_waits_of_a_client_is_counted_and_no_one_elses() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Queued::new(Door::Own, &queued::lasting());
    let (one, other): (IpAddr, IpAddr) = (IpAddr::from([10, 77, 2, 1]), IpAddr::from([10, 77, 2, 2]));
    let counts = |from: IpAddr| {
        let told = known(&rig.front, from);
        (told.waiting, told.in_service)
    };
    let first = rig.ask(one, "/first");
    rig.got_all(1);
    let waits = [rig.ask(one, "/second"), rig.ask(other, "/third")];
    rig.wait_for(2);
    assert_eq!((counts(one), counts(other)), ((1, 1), (1, 0)));
    rig.let_go(3);
    for stream in std::iter::once(first).chain(waits) {
        assert_eq!(queued::status(stream), 200);
    }
    rig.wait_for_peace();
    assert_eq!((counts(one), counts(other)), ((0, 0), (0, 0)));
}

#[test]
fn over_ipv6_the_prefixes_of_64_and_48_bits_are_asked() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, &policy("isolate = { above = 20, for = \"1h\" }", ""));
    let host = |n: u16| IpAddr::from([0xfd77, 2, 0, 1, 0, 0, 0, n]);
    let told = || known(&rig.front, host(9));
    assert_eq!(told().isolated, []);
    for n in 100..200 {
        rig.syn((host(n), 1000).into());
    }
    wait_until(SOON, || !told().isolated.is_empty()).expect("isolated");
    assert_eq!(told().isolated[0].prefix, "fd77:2:0:1::/64");
    assert_eq!(told().refused, Some(Reason::SynIsolated));
}
