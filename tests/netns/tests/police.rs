// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which SYNs are answered: rates, isolation, proven sources and the budget of all others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use fief::Reason;
use fief_bpf::abi;
use fief_testkit::segment::{SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, Verdicts, plain, ready};
use fief_tests_netns::{SOON, one_installation};

/// A listener whose table ends with these lines; what its clients may do stands in `client`.
fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n\
         [listener.plain]\naddress = \"0.0.0.0:80\"\nadmit = true\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{client}\n"
    )
}

struct Rig {
    front: Front,
    clients: RawClients,
    before: Verdicts,
    sent: u64,
    _server: TcpListener,
}

impl Rig {
    fn new(listener: &str, client: &str) -> Option<Self> {
        if !ready() {
            return None;
        }
        let front = Front::new(Door::Own, &policy(listener, client));
        let server = front.topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        front.no_cpu_idle();
        let before = front.verdicts();
        Some(Self { front, clients, before, sent: 0, _server: server })
    }

    /// So many SYNs from one address.
    fn syns(&mut self, from: Ipv4Addr, count: u16) {
        for n in 0..count {
            let source = SocketAddr::new(from.into(), 1024 + n);
            let mut syn = Segment::new(source, plain(Family::V4), SYN);
            syn.options = ORDINARY_OPTIONS.to_vec();
            self.clients.send(&syn).unwrap();
        }
        self.sent += u64::from(count);
    }

    /// Returns a cookie from this address.
    fn prove(&mut self, from: Ipv4Addr) {
        let ends = [SocketAddr::new(from.into(), 60_000), plain(Family::V4)];
        let proven = self.front.proven_sources();
        let connection = RawConnection::open(&self.clients, ends, 7, &ORDINARY_OPTIONS, SOON).unwrap();
        connection.expect("a SYN-ACK").acknowledge().unwrap();
        self.sent += 1;
        wait_until(SOON, || self.front.proven_sources() > proven).expect("the source is proven");
    }

    /// Verdicts on what was sent since the last call, once all of it has arrived.
    fn verdicts(&mut self) -> Verdicts {
        let new = || self.front.verdicts().since(&self.before);
        let syns = |verdicts: &Verdicts| {
            let enforced = verdicts.all().iter().filter(|verdict| !verdict.monitored);
            enforced.filter(|verdict| verdict.reason <= abi::FIEF_SYN_QUEUE).map(|verdict| verdict.count).sum::<u64>()
        };
        wait_until(SOON, || syns(&new()) >= self.sent).unwrap_or_else(|_| panic!("{} SYNs, {:?}", self.sent, new()));
        let verdicts = new();
        assert_eq!(syns(&verdicts), self.sent, "{verdicts:?}");
        self.before = self.front.verdicts();
        self.sent = 0;
        verdicts
    }

    /// Prefixes that are isolated now.
    fn isolated(&self) -> Vec<String> {
        let front = &self.front;
        let view = front.topology.server.run(|| front.installation().fief().front().unwrap()).unwrap();
        let isolated = view.shut_out.into_iter().filter(|shut_out| shut_out.why == Reason::SynIsolated);
        isolated.map(|shut_out| shut_out.source).collect()
    }
}

/// A bucket of one a second lets its burst through, and what time has brought since.
fn assert_burst(count: u64, burst: u64, began: Instant) {
    let brought = began.elapsed().as_secs() + 1;
    assert!((burst..=burst + brought).contains(&count), "{count} instead of {burst}, or {brought} more");
}

fn client(prefix: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, prefix, n)
}

#[test]
fn a_rate_lets_its_burst_through_and_then_what_time_brings() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("", "syn = { rate = 20, burst = 30 }") else { return };
    let began = Instant::now();
    for _ in 0..4 {
        rig.syns(client(1, 1), 100);
    }
    let verdicts = rig.verdicts();
    let brought = (began.elapsed().as_secs_f64() * 20.0) as u64 + 1;
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((30..=30 + brought).contains(&taken), "{taken} with {brought} by time");
    assert_eq!(verdicts.count(abi::FIEF_SYN_RATE), 400 - taken);
}

#[test]
fn a_rate_per_source_is_one_for_each() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("", "syn = { rate = 1, burst = 3, per = \"source\" }") else { return };
    for n in 1..=5 {
        let began = Instant::now();
        rig.syns(client(1, n), 10);
        let verdicts = rig.verdicts();
        assert_burst(verdicts.count(abi::FIEF_SYN_TAKEN), 3, began);
        assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN) + verdicts.count(abi::FIEF_SYN_RATE), 10);
    }
}

#[test]
fn a_rate_for_some_ports_of_the_clients_limits_no_others() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("", "syn = { rate = 1, burst = 3, from-port = \"1024-1043\" }") else { return };
    let began = Instant::now();
    rig.syns(client(1, 1), 50);
    let verdicts = rig.verdicts();
    assert_burst(verdicts.count(abi::FIEF_SYN_TAKEN) - 30, 3, began);
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN) + verdicts.count(abi::FIEF_SYN_RATE), 50);
}

#[test]
fn sources_that_are_not_proven_share_a_budget_which_proven_ones_do_not_need() {
    let _one = one_installation();
    let limits = "unproven = { rate = 1, burst = 10 }\nproven = { rate = 1, burst = 4 }";
    let Some(mut rig) = Rig::new(limits, "") else { return };
    let began = Instant::now();
    rig.prove(client(1, 1));
    rig.verdicts();
    for n in 2..=21 {
        rig.syns(client(n, n), 2);
    }
    let verdicts = rig.verdicts();
    assert_burst(verdicts.count(abi::FIEF_SYN_TAKEN), 9, began);
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN) + verdicts.count(abi::FIEF_SYN_UNPROVEN), 40);
    let began = Instant::now();
    rig.syns(client(1, 1), 10);
    let verdicts = rig.verdicts();
    assert_burst(verdicts.count(abi::FIEF_SYN_TAKEN), 4, began);
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN) + verdicts.count(abi::FIEF_SYN_ISOLATED), 10);
}

#[test]
fn a_flood_isolates_its_own_prefix_and_nobody_who_is_proven() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("isolate = { above = 20, for = \"1m\" }", "") else { return };
    rig.prove(client(1, 1));
    rig.verdicts();
    for n in 2..=201 {
        rig.syns(client(1, n), 1);
    }
    let verdicts = rig.verdicts();
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((19..=40).contains(&taken), "{taken}: one window's, or two where the flood met the end of one");
    assert_eq!(verdicts.count(abi::FIEF_SYN_ISOLATED), 200 - taken);
    rig.syns(client(1, 250), 1);
    assert_eq!(rig.verdicts().count(abi::FIEF_SYN_ISOLATED), 1, "a neighbour of the flood");
    rig.syns(client(1, 1), 5);
    rig.syns(client(2, 1), 5);
    assert_eq!(rig.verdicts().count(abi::FIEF_SYN_TAKEN), 10, "the proven neighbour, and another prefix");
}

#[test]
fn isolation_ends_when_the_flood_does() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("isolate = { above = 5, for = \"2s\" }", "") else { return };
    let begin = Instant::now();
    // Longer than one isolation lasts.
    while begin.elapsed() < Duration::from_secs(3) {
        rig.syns(client(1, 1), 50);
        let verdicts = rig.verdicts();
        let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
        assert!(taken <= 10, "{taken}: one window's, or two where they met");
        assert_eq!(rig.isolated(), ["10.89.1.0/24"]);
    }
    wait_until(SOON, || rig.isolated().is_empty()).expect("the end of the isolation");
    rig.syns(client(1, 2), 1);
    assert_eq!(rig.verdicts().count(abi::FIEF_SYN_TAKEN), 1);
}

#[test]
fn who_sends_from_ever_new_prefixes_isolates_none_of_them() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("isolate = { above = 20, for = \"1m\" }", "") else { return };
    for n in 1..=10 {
        for prefix in 0..=255 {
            rig.syns(client(prefix, n), 1);
        }
    }
    assert_eq!(rig.verdicts().count(abi::FIEF_SYN_TAKEN), 2560);
}

#[test]
fn isolation_stands_before_the_rate_and_the_rate_before_the_budget() {
    let _one = one_installation();
    let limits = "isolate = { above = 10, for = \"1m\" }\nunproven = { rate = 1, burst = 12 }";
    let Some(mut rig) = Rig::new(limits, "syn = { rate = 1, burst = 2 }") else { return };
    let began = Instant::now();
    rig.syns(client(1, 1), 30);
    let verdicts = rig.verdicts();
    let [taken, unproven, rate, isolated] =
        [abi::FIEF_SYN_TAKEN, abi::FIEF_SYN_UNPROVEN, abi::FIEF_SYN_RATE, abi::FIEF_SYN_ISOLATED]
            .map(|reason| verdicts.count(reason));
    assert_burst(taken, 2, began);
    assert_eq!(unproven, 0, "{verdicts:?}");
    assert!((10..=20).contains(&(taken + rate)), "{verdicts:?}");
    assert_eq!(taken + rate + isolated, 30);
}

#[test]
fn a_guard_that_only_watches_counts_what_it_would_drop() {
    let _one = one_installation();
    let Some(mut rig) = Rig::new("mode = \"monitor\"", "syn = { rate = 1, burst = 6 }") else { return };
    let began = Instant::now();
    rig.syns(client(1, 1), 20);
    let verdicts = rig.verdicts();
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN), 20);
    assert_burst(20 - verdicts.monitored(abi::FIEF_SYN_RATE), 6, began);
}

#[test]
fn a_rate_on_trial_is_counted_and_the_budget_behind_it_holds() {
    let _one = one_installation();
    let limits = "unproven = { rate = 1, burst = 10 }";
    let Some(mut rig) = Rig::new(limits, "syn = { rate = 1, burst = 3 }\nmode = \"monitor\"") else { return };
    let began = Instant::now();
    rig.syns(client(1, 1), 20);
    let verdicts = rig.verdicts();
    assert_burst(20 - verdicts.monitored(abi::FIEF_SYN_RATE), 3, began);
    // one network has half of the burst at least
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((5..=11 + began.elapsed().as_secs()).contains(&taken), "{taken}");
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN) + verdicts.count(abi::FIEF_SYN_UNPROVEN), 20);
}

#[test]
fn ipv6_sources_are_their_64() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let text = policy("isolate = { above = 20, for = \"1m\" }", "").replace("0.0.0.0:80", "[::]:80");
    let front = Front::new(Door::Own, &text);
    let _server = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let clients = RawClients::new(&front.topology).unwrap();
    for n in 1..=50 {
        let source: IpAddr = RawClients::address(Family::V6, n);
        clients.send(&Segment::new((source, 1024).into(), plain(Family::V6), SYN)).unwrap();
    }
    wait_until(SOON, || front.verdicts().count(abi::FIEF_SYN_ISOLATED) >= 10)
        .unwrap_or_else(|_| panic!("{:?}", front.verdicts()));
}
