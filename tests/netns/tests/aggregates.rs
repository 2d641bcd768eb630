// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is given a whole IPv6 /48, and really receives what is sent there, is not a source 65,536 times over: it displaces
//! nobody, has few buckets, and is isolated as one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::{Family, ORDINARY_OPTIONS, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{SOON, one_installation};

const HONEST: u16 = 128;

/// A policy whose listener has these lines, and its clients those.
fn policy(listener: &str, client: &str) -> String {
    format!(
        "[container.web]\n[listener.plain]\naddress = \"[::]:80\"\nadmit = true\n{listener}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n{client}\n"
    )
}

fn rig(policy: &str) -> Option<Rig> {
    if !ready() {
        return None;
    }
    let rig = Rig::new(Door::Own, policy);
    rig.front.topology.server.ip("-6 route replace fd00::/8 via fd77::1:0:2 dev sv").unwrap();
    Some(rig)
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
    let _one = one_installation();
    let Some(rig) = rig(&policy("proven.rate = 1000000", "")) else { return };
    let honest = honest();
    rig.begin(&honest, b"");
    wait_until(SOON, || rig.front.proven_sources() == honest.len()).expect("all are proven");
    for begin in (0..100_000u32).step_by(10_000) {
        rig.begin(&(begin..begin + 10_000).map(attacker).collect::<Vec<_>>(), b"");
    }
    rig.front.apply(&policy("unproven = { rate = 1, burst = 1 }", "")).unwrap();
    let before = rig.verdicts();
    honest.iter().for_each(|source| rig.syn((*source, 2000).into()));
    let verdicts = rig.verdicts_on(&before, honest.len() as u64);
    assert_eq!(verdicts.count(abi::FIEF_SYN_TAKEN), honest.len() as u64, "{verdicts:?}");
    assert!(rig.front.proven_sources() <= honest.len() + 8, "{}", rig.front.proven_sources());
}

#[test]
fn a_48_has_few_buckets_of_its_own() {
    let _one = one_installation();
    let Some(rig) = rig(&policy("", "syn = { rate = 1, burst = 3, per = \"source\" }")) else { return };
    let neighbour: IpAddr = Ipv6Addr::new(0xfd8b, 1, 0, 1, 0, 0, 0, 1).into();
    let (before, began) = (rig.verdicts(), Instant::now());
    (0..3).for_each(|port| rig.syn((neighbour, 2000 + port).into()));
    for n in 0..1000 {
        (0..3).for_each(|port| rig.syn((attacker(n), 2000 + port).into()));
    }
    rig.syn((neighbour, 2003).into());
    let verdicts = rig.verdicts_on(&before, 3004);
    let brought = began.elapsed().as_secs() + 1;
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((3 + 3..=4 + 8 * (3 + brought)).contains(&taken), "{taken}");
}

#[test]
fn a_48_is_isolated_as_one_and_its_neighbours_are_not() {
    let _one = one_installation();
    let Some(rig) = rig(&policy("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    let before = rig.verdicts();
    for n in 0..2000 {
        rig.syn((attacker(n), 2000).into());
    }
    let taken = rig.verdicts_on(&before, 2000).count(abi::FIEF_SYN_TAKEN);
    assert!((20..=400).contains(&taken), "{taken}");
    let before = rig.verdicts();
    for n in 0..50 {
        rig.syn(SocketAddr::new(Ipv6Addr::new(0xfd8a, 7, 8, n, 0, 0, 0, 1).into(), 2000));
    }
    assert_eq!(rig.verdicts_on(&before, 50).count(abi::FIEF_SYN_TAKEN), 50, "of another /48");
}

/// One /64 that floods is isolated, and not the /48 that it is in.
#[test]
fn a_64_is_isolated_alone() {
    let _one = one_installation();
    let Some(rig) = rig(&policy("isolate = { above = 20, for = \"1m\" }", "")) else { return };
    let before = rig.verdicts();
    (0..500).for_each(|n| rig.syn((attacker(1), 2000 + n).into()));
    assert!(rig.verdicts_on(&before, 500).count(abi::FIEF_SYN_ISOLATED) >= 400);
    let before = rig.verdicts();
    rig.syn((attacker(2), 2000).into());
    assert_eq!(rig.verdicts_on(&before, 1).count(abi::FIEF_SYN_TAKEN), 1);
}

/// A source may have one cookie after the other.
#[test]
fn a_source_that_comes_again_is_one() {
    let _one = one_installation();
    let Some(rig) = rig(&policy("proven.rate = 1000000", "")) else { return };
    let ends = [SocketAddr::new(attacker(1), 60_001), plain(Family::V6)];
    for _ in 0..3 {
        let connection = RawConnection::open(&rig.clients, ends, 7, &ORDINARY_OPTIONS, SOON).unwrap();
        connection.expect("a SYN-ACK").acknowledge().unwrap();
        rig.begin(&[attacker(1)], b"");
        wait_until(Duration::from_secs(5), || rig.front.proven_sources() == 1).expect("one source");
    }
}
