// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the budget for unproven sources is spent on while it is not enough for all.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, wait_until};
use fief_tests_netns::front::{Door, Front, Verdicts, plain, ready};
use fief_tests_netns::{SOON, one_installation};

/// Longer than what keeps a double apart from a SYN that is sent again (RESENT_SYN).
const AGAIN: Duration = Duration::from_millis(500);

struct Rig {
    front: Front,
    clients: RawClients,
    _server: TcpListener,
    sent: u32,
}

impl Rig {
    fn new(door: Door, unproven: &str) -> Option<Self> {
        if !ready() {
            return None;
        }
        let policy = format!(
            "[container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\nadmit = true\nunproven = {{ {unproven} }}\n\
             [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n"
        );
        let front = Front::new(door, &policy);
        let server = front.topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        front.topology.server.ip("route replace 10.0.0.0/9 via 10.77.0.2 dev sv").unwrap();
        front.no_cpu_idle();
        Some(Self { front, clients, _server: server, sent: 0 })
    }

    fn syn(&mut self, source: Ipv4Addr, sequence: u32) {
        let mut syn = Segment::new((source, 2000).into(), plain(Family::V4), SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        syn.sequence = sequence;
        self.clients.send(&syn).unwrap();
        self.sent += 1;
    }

    fn is_answered(&self, source: Ipv4Addr, time: Duration) -> bool {
        let client = SocketAddr::new(IpAddr::V4(source), 2000);
        self.clients.receive(client, time).is_some_and(|segment| segment.has(SYN | ACK))
    }

    /// A SYN from everywhere, each another one.
    fn spoof(&mut self, n: u32) {
        self.syn(Ipv4Addr::from(0x0a00_0000 | n.wrapping_mul(0x9e37_79b9) >> 9), n);
    }

    /// Whether each of these gets an answer.
    fn are_answered(&self, newcomers: impl IntoIterator<Item = u8>) -> bool {
        newcomers.into_iter().all(|n| self.is_answered(newcomer(n), SOON))
    }

    /// Goes on spoofing for a while, once all that was sent has arrived: what comes again is to come so much later.
    fn spoof_for(&mut self, time: Duration) {
        self.verdicts();
        let end = Instant::now() + time;
        let least = self.sent + 2500;
        while Instant::now() < end || self.sent < least {
            (0..100).for_each(|_| self.spoof(self.sent));
        }
    }

    /// What became of all that was sent.
    fn verdicts(&self) -> Verdicts {
        let syns = |verdicts: &Verdicts| {
            let syns = verdicts.all().iter().filter(|verdict| verdict.reason <= abi::FIEF_SYN_QUEUE);
            syns.map(|verdict| verdict.count).sum::<u64>()
        };
        wait_until(SOON, || syns(&self.front.verdicts()) >= self.sent.into()).expect("all have arrived");
        self.front.verdicts()
    }
}

/// Of a network each.
fn newcomer(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, n, 1)
}

#[test]
fn who_sends_the_same_again_is_answered_before_a_spoofed_flood() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 100, burst = 100") else { return };
        rig.spoof_for(Duration::from_millis(100));
        (0..20).for_each(|n| rig.syn(newcomer(n), 7));
        rig.spoof_for(AGAIN);
        (0..20).for_each(|n| rig.syn(newcomer(n), 7));
        assert!(rig.are_answered(0..20), "{} were sent: {:?}", rig.sent, rig.verdicts());
        assert!(rig.verdicts().count(abi::FIEF_SYN_UNPROVEN) > 2000, "{:?}", rig.verdicts());
    }
}

/// Spoofers that send each SYN twice are told from clients by who sends a third time.
#[test]
fn who_is_most_patient_is_answered_before_spoofers_that_send_twice() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 100, burst = 100") else { return };
        rig.spoof_for(Duration::from_millis(100));
        for _ in 0..2 {
            (0..10).for_each(|n| rig.syn(newcomer(n), 7));
            (1_000_000..1_004_000).for_each(|n| rig.spoof(n));
            rig.spoof_for(AGAIN);
        }
        let answered: Vec<u8> = (0..10).filter(|n| rig.is_answered(newcomer(*n), Duration::from_millis(20))).collect();
        // their second SYNs have taken what there was for those
        (0..10).for_each(|n| rig.syn(newcomer(n), 7));
        let more = (0..10).filter(|n| !answered.contains(n));
        assert!(rig.are_answered(more), "{answered:?}, {:?}", rig.verdicts());
    }
}

#[test]
fn doubles_are_not_sent_again() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 1, burst = 1") else { return };
        let began = Instant::now();
        (0..50).for_each(|n| rig.syn(newcomer(n), 7));
        (0..20).for_each(|_| rig.syn(newcomer(77), 7));
        let verdicts = rig.verdicts();
        let brought = began.elapsed().as_secs() + 1;
        if began.elapsed() < AGAIN / 2 {
            assert!(verdicts.count(abi::FIEF_SYN_TAKEN) <= 1 + brought, "{verdicts:?}");
        }
    }
}

#[test]
fn a_network_that_floods_leaves_room_for_others() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 100, burst = 100") else { return };
        for n in 0..5000u32 {
            rig.syn(Ipv4Addr::new(10, 88, 1, n as u8), n);
        }
        (0..20).for_each(|n| rig.syn(newcomer(n), 7));
        rig.verdicts(); // those that get an answer have been sent it
        let late: Vec<u8> = (0..20).filter(|n| !rig.is_answered(newcomer(*n), Duration::from_millis(200))).collect();
        // The keyed hash may put a few into the flooding network's place: they are answered when they ask again.
        assert!(late.len() <= 4, "{late:?}: {:?}", rig.verdicts());
        rig.spoof_for(AGAIN);
        late.iter().for_each(|n| rig.syn(newcomer(*n), 7));
        assert!(rig.are_answered(late.iter().copied()), "{late:?}: {:?}", rig.verdicts());
    }
}

/// Who owns a /16 has 256 networks to flood from.
#[test]
fn a_flood_from_all_networks_of_a_16_leaves_room_for_others() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 1000, burst = 1000") else { return };
        for n in 0..20_000u32 {
            rig.syn(Ipv4Addr::from(0x0a58_0000 | ((n * 257) & 0xffff)), n);
        }
        (0..20).for_each(|n| rig.syn(newcomer(n), 7));
        assert!(rig.are_answered(0..20), "{:?}", rig.verdicts());
    }
}

#[test]
fn what_was_not_used_is_there_for_a_burst_and_no_more() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 10, burst = 200") else { return };
        let began = Instant::now();
        (0..1000).for_each(|n| rig.spoof(n));
        let taken = rig.verdicts().count(abi::FIEF_SYN_TAKEN);
        let brought = (began.elapsed().as_secs_f64() * 10.0) as u64 + 1;
        assert!((200..=200 + brought).contains(&taken), "{taken}");
    }
}

#[test]
fn a_cpu_with_time_left_answers_more_than_the_budget() {
    let _one = one_installation();
    for door in Door::GUARDS {
        let Some(mut rig) = Rig::new(door, "rate = 1, burst = 1") else { return };
        rig.front.cpus_idle();
        (0..500).for_each(|n| rig.spoof(n));
        assert_eq!(rig.verdicts().count(abi::FIEF_SYN_TAKEN), 500);
    }
}
