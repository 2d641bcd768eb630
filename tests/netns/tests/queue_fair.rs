// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `fair = "source"` the clients of a class take turns, and one with many connections waits behind itself.
//!
//! Which addresses share a list nobody can foresee, so what is said here holds if half of them share none with the busy one.

use std::net::{IpAddr, Ipv6Addr, TcpStream};

use fief_testkit::wait_until;
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{Queued, lasting, status};
use fief_tests_netns::{SOON, one_installation};

const OTHERS: u8 = 8;
const MANY: usize = 20;

fn policy(length: usize) -> String {
    lasting().replace("in-service = 1, length = 200", &format!("in-service = 1, fair = \"source\", length = {length}"))
}

/// A busy client and others, of either family.
fn clients(family: u8) -> (IpAddr, Vec<IpAddr>) {
    let address = |n: u8| match family {
        4 => IpAddr::from([10, 77, 2, n]),
        _ => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 2, n.into()).into(),
    };
    (address(1), (2..2 + OTHERS).map(address).collect())
}

/// The server has one request, and does not answer it.
fn busy(queued: &Queued, from: IpAddr) -> TcpStream {
    let first = queued.ask(from, "/first");
    queued.got_all(1);
    first
}

#[test]
fn who_asks_for_much_waits_behind_itself() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let queued = Queued::new(door, &policy(200));
        let (busy_one, others) = clients(4);
        let _first = busy(&queued, busy_one);
        let _many: Vec<_> = (0..MANY).map(|_| queued.ask(busy_one, "/many")).collect();
        queued.wait_for(MANY as u32);
        let _others: Vec<_> = others.iter().map(|from| queued.ask(*from, "/other")).collect();
        queued.wait_for((MANY + others.len()) as u32);
        queued.let_go(1 + MANY + others.len());
        let got = queued.got_all(1 + MANY + others.len());
        let soon = got.iter().take(1 + 2 * others.len()).filter(|path| *path == "/other").count();
        assert!(soon >= others.len() / 2, "{door:?}: {got:?}");
        queued.wait_for_peace();
    }
}

#[test]
fn who_has_most_in_line_gives_way() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let queued = Queued::new(door, &policy(OTHERS.into()));
        let (busy_one, others) = clients(4);
        let first = busy(&queued, busy_one);
        let many: Vec<_> = (0..OTHERS).map(|_| queued.ask(busy_one, "/many")).collect();
        queued.wait_for(OTHERS.into());
        let others: Vec<_> = others.iter().map(|from| queued.ask(*from, "/other")).collect();
        let refused = || queued.queue().class[1].refused_full;
        wait_until(SOON, || refused() == u64::from(OTHERS)).unwrap_or_else(|_| panic!("{:?}", queued.queue()));
        queued.let_go(1 + usize::from(OTHERS));
        let served = |streams: Vec<TcpStream>| streams.into_iter().map(status).filter(|status| *status == 200).count();
        let (many, others) = (served(many), served(others));
        assert_eq!(many + others, usize::from(OTHERS), "{door:?}");
        assert!(others >= usize::from(OTHERS) / 2, "{door:?}: {others} others beside {many}");
        assert_eq!(status(first), 200);
    }
}

#[test]
fn an_ipv6_client_is_a_network() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let queued = Queued::new(door, &policy(200));
        let (busy_one, others) = clients(6);
        let _first = busy(&queued, busy_one);
        let _all: Vec<_> = others.iter().map(|from| queued.ask(*from, "/one")).collect();
        queued.wait_for(others.len() as u32);
        let class = queued.queue().class[1];
        assert_eq!(class.sources.count_ones(), 1, "{door:?}: {class:?}");
        queued.let_go(1 + others.len());
        queued.wait_for_peace();
    }
}
