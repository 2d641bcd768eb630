// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is given a whole IPv6 /48, and really receives what is sent there, is not a source 65,536 times over: it displaces
//! nobody, has few buckets, and is isolated as one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, Verdicts, plain, ready};

const HONEST: u16 = 128;
const PIECE: usize = 250;

struct Rig {
    front: Front,
    clients: RawClients,
    _server: TcpListener,
}

/// A policy whose listener has these lines, and its clients those.
fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\nadmit = true\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{client}\n"
    )
}

impl Rig {
    fn new(policy: &str) -> Option<Self> {
        if !ready() {
            return None;
        }
        let front = Front::new(Door::Own, policy);
        let server = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
        let clients = RawClients::new(&front.topology).unwrap();
        front.topology.server.ip("-6 route replace fd00::/8 via fd77::1:0:2 dev sv").unwrap();
        Some(Self { front, clients, _server: server })
    }

    fn syn(&self, source: IpAddr, port: u16) {
        let mut syn = Segment::new((source, port).into(), plain(family(source)), SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        self.clients.send(&syn).unwrap();
    }

    /// The answer to a SYN that was sent; what is lost is sent again.
    fn greeting(&self, client: SocketAddr) -> Segment {
        let end = Instant::now() + SOON;
        loop {
            if let Some(greeting) = self.clients.receive(client, Duration::from_millis(300)) {
                return greeting;
            }
            assert!(Instant::now() < end, "no SYN-ACK for {client}: {:?}", self.front.verdicts());
            self.syn(client.ip(), client.port());
        }
    }

    /// Every one of them returns a cookie.
    fn prove(&self, sources: &[IpAddr]) {
        for piece in sources.chunks(PIECE) {
            piece.iter().for_each(|source| self.syn(*source, 60_000));
            for source in piece {
                let client = SocketAddr::new(*source, 60_000);
                let greeting = self.greeting(client);
                let mut end = Segment::new(client, plain(family(*source)), ACK);
                end.sequence = greeting.acknowledgment;
                end.acknowledgment = greeting.sequence.wrapping_add(1);
                if let Some(stamp) = greeting.option(8) {
                    end.options = vec![1, 1, 8, 10, 0, 0, 0x10, 1];
                    end.options.extend(&stamp[..4]);
                }
                self.clients.send(&end).unwrap();
            }
        }
    }

    /// What became of so many SYNs.
    fn verdicts(&self, before: &Verdicts, sent: u64) -> Verdicts {
        let new = || self.front.verdicts().since(before);
        let syns = |verdicts: &Verdicts| {
            let syns = verdicts.all().iter().filter(|verdict| verdict.reason <= abi::FIEF_SYN_QUEUE);
            syns.map(|verdict| verdict.count).sum::<u64>()
        };
        wait_until(SOON, || syns(&new()) >= sent).unwrap_or_else(|_| panic!("{sent} SYNs, {:?}", new()));
        new()
    }
}

fn family(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Proven clients of both families, those of IPv6 in a /48 each.
fn honest() -> Vec<IpAddr> {
    let v4 = (0..HONEST).map(|n| Ipv4Addr::from(0x0a59_0100 + u32::from(n)).into());
    let v6 = (0..HONEST).map(|n| Ipv6Addr::new(0xfd8b, n, 0, 1, 0, 0, 0, 1).into());
    v4.chain(v6).collect()
}

/// The n-th /64 of the attacker's /48, the /56s in turn.
fn attacker(n: u32) -> IpAddr {
    Ipv6Addr::new(0xfd8a, 7, 7, (n as u16).rotate_left(8), 0, 0, 0, (n >> 16) as u16 + 1).into()
}

/// Cookies returned from 100,000 addresses in all 65,536 networks of a /48.
#[test]
fn a_48_that_proves_itself_everywhere_makes_nobody_forgotten() {
    let Some(rig) = Rig::new(&policy("proven.rate = 1000000", "")) else { return };
    let honest = honest();
    rig.prove(&honest);
    wait_until(SOON, || rig.front.proven_sources() == honest.len()).expect("all are proven");
    for begin in (0..100_000u32).step_by(10_000) {
        rig.prove(&(begin..begin + 10_000).map(attacker).collect::<Vec<_>>());
    }
    rig.front.apply(&policy("unproven = { rate = 1, burst = 1 }", "")).unwrap();
    let before = rig.front.verdicts();
    honest.iter().for_each(|source| rig.syn(*source, 2000));
    let verdicts = rig.verdicts(&before, honest.len() as u64);
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN), honest.len() as u64, "{verdicts:?}");
    assert!(rig.front.proven_sources() <= honest.len() + 8, "{}", rig.front.proven_sources());
}

#[test]
fn a_48_has_few_buckets_of_its_own() {
    let Some(rig) = Rig::new(&policy("", "syn = { rate = 1, burst = 3, per = \"source\" }")) else { return };
    let neighbour: IpAddr = Ipv6Addr::new(0xfd8b, 1, 0, 1, 0, 0, 0, 1).into();
    let (before, began) = (rig.front.verdicts(), Instant::now());
    (0..3).for_each(|port| rig.syn(neighbour, 2000 + port));
    for n in 0..1000 {
        (0..3).for_each(|port| rig.syn(attacker(n), 2000 + port));
    }
    rig.syn(neighbour, 2003);
    let verdicts = rig.verdicts(&before, 3004);
    let brought = began.elapsed().as_secs() + 1;
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((3 + 3..=4 + 8 * (3 + brought)).contains(&taken), "{taken}");
}

#[test]
fn a_48_is_isolated_as_one_and_its_neighbours_are_not() {
    let Some(rig) = Rig::new(&policy("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    let before = rig.front.verdicts();
    for n in 0..2000 {
        rig.syn(attacker(n), 2000);
    }
    let taken = rig.verdicts(&before, 2000).count(abi::FIEF_SYN_TAKEN);
    assert!((20..=400).contains(&taken), "{taken}");
    let before = rig.front.verdicts();
    for n in 0..50 {
        rig.syn(Ipv6Addr::new(0xfd8a, 7, 8, n, 0, 0, 0, 1).into(), 2000);
    }
    assert_eq!(rig.verdicts(&before, 50).count(abi::FIEF_SYN_TAKEN), 50, "of another /48");
}

/// One /64 that floods is isolated, and not the /48 that it is in.
#[test]
fn a_64_is_isolated_alone() {
    let Some(rig) = Rig::new(&policy("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    let before = rig.front.verdicts();
    (0..500).for_each(|n| rig.syn(attacker(1), 2000 + n));
    assert!(rig.verdicts(&before, 500).count(abi::FIEF_SYN_ISOLATED) >= 400);
    let before = rig.front.verdicts();
    rig.syn(attacker(2), 2000);
    assert_eq!(rig.verdicts(&before, 1).count(abi::FIEF_SYN_TAKEN), 1);
}

/// A source may have one cookie after the other.
#[test]
fn a_source_that_comes_again_is_one() {
    let Some(rig) = Rig::new(&policy("proven.rate = 1000000", "")) else { return };
    let ends = [SocketAddr::new(attacker(1), 60_001), plain(Family::V6)];
    for _ in 0..3 {
        let connection = RawConnection::open(&rig.clients, ends, 7, &ORDINARY_OPTIONS, SOON).unwrap();
        connection.expect("a SYN-ACK").acknowledge().unwrap();
        rig.prove(&[attacker(1)]);
        wait_until(Duration::from_secs(5), || rig.front.proven_sources() == 1).expect("one source");
    }
}
