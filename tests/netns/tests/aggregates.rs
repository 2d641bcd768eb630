// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is given a whole IPv6 /48 or /56, and really receives what is sent there, is not a source 65,536 times over, or 256: it
//! displaces nobody, has few buckets, and is isolated as one. Who has a /32 is as many as its /48s, and shuts out nobody either.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::{Family, ORDINARY_OPTIONS, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const HONEST: u16 = 128;

/// Sources of IPv6 that can be proven at a time (FIEF_SOURCE_SETS * FIEF_WAYS).
const SOURCES: u32 = 65_536;

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";

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

/// Clients of one family, those of IPv6 in a /48 each.
fn honest_of(family: Family) -> Vec<IpAddr> {
    let client = |n: u16| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from(0x0a59_0100 + u32::from(n))),
        Family::V6 => IpAddr::from(Ipv6Addr::new(0xfd8b, n, 0, 1, 0, 0, 0, 1)),
    };
    (0..HONEST).map(client).collect()
}

fn honest() -> Vec<IpAddr> {
    [Family::V4, Family::V6].map(honest_of).concat()
}

/// The n-th /64 of the attacker's /48, the /56s in turn.
fn attacker(n: u32) -> IpAddr {
    Ipv6Addr::new(0xfd8a, 7, 7, (n as u16).rotate_left(8), 0, 0, 0, (n >> 16) as u16 + 1).into()
}

/// The n-th address of one /56, in its 256 networks in turn.
fn of_one_56(n: u32) -> IpAddr {
    Ipv6Addr::new(0xfd8a, 7, 7, 0x0100 | (n % 256) as u16, 0, 0, 0, (n / 256) as u16 + 1).into()
}

/// The n-th of addresses in the 65,536 /48s of a /32, in turn.
fn of_one_32(n: u32) -> IpAddr {
    Ipv6Addr::new(0xfd8c, 7, n as u16, (n >> 16) as u16, 0, 0, 0, 1).into()
}

/// So many of these return a cookie.
fn fill(rig: &Rig, count: u32, address: fn(u32) -> IpAddr) {
    for begin in (0..count).step_by(10_000) {
        rig.begin(&(begin..count.min(begin + 10_000)).map(address).collect::<Vec<_>>(), b"");
    }
}

/// How many of these have kept their proof: nobody else is answered, but for one.
fn kept(rig: &Rig, sources: &[IpAddr]) -> u64 {
    rig.front.apply(&policy("unproven = { rate = 1, burst = 1 }", "")).unwrap();
    rig.front.no_cpu_idle();
    let before = rig.verdicts();
    sources.iter().for_each(|source| rig.syn((*source, 2000).into()));
    rig.verdicts_on(&before, sources.len() as u64).count(abi::FIEF_SYN_TAKEN)
}

/// Cookies returned from so many addresses make no honest client forgotten, and the network has at most so many places.
fn makes_nobody_forgotten(address: fn(u32) -> IpAddr, count: u32, places: usize) {
    let _one = one_installation();
    let Some(rig) = rig(&policy("proven.rate = 1000000", "")) else { return };
    let honest = honest();
    rig.begin(&honest, b"");
    wait_until(SOON, || rig.front.proven_sources() == honest.len()).expect("all are proven");
    fill(&rig, count, address);
    assert_eq!(kept(&rig, &honest), honest.len() as u64, "{:?}", rig.verdicts());
    assert!(rig.front.proven_sources() <= honest.len() + places, "{}", rig.front.proven_sources());
}

/// In all 65,536 networks of it.
#[test]
fn a_48_that_proves_itself_everywhere_makes_nobody_forgotten() {
    makes_nobody_forgotten(attacker, 100_000, 8);
}

#[test]
fn a_56_that_proves_itself_everywhere_makes_nobody_forgotten() {
    makes_nobody_forgotten(of_one_56, 10_000, 4);
}

/// The 65,536 /48s of a /32 fill the table of their family. Who is forgotten is a newcomer, and is served as one (docs/limits.md).
#[test]
fn a_32_that_proves_itself_everywhere_shuts_out_nobody() {
    let _one = one_installation();
    let Some(rig) = rig(&policy("proven.rate = 1000000", "")) else { return };
    rig.begin(&honest(), b"");
    fill(&rig, SOURCES + SOURCES / 2, of_one_32);
    let full = rig.front.proven_sources();
    assert!(full > SOURCES as usize * 8 / 10, "the table is full but for sets that chance left out: {full}");
    let again: Vec<_> = honest_of(Family::V6).into_iter().step_by(16).collect();
    for client in &again {
        let mut connection = rig.open_from((*client, 3000).into());
        let (words, _) = connection.converse(REQUEST, &whole(REQUEST), SOON).unwrap();
        assert!(words.starts_with(b"HTTP/1.1 200"), "{client}: {:?}", rig.verdicts());
    }
    // Each has proved itself anew.
    let new = kept(&rig, &again);
    assert!(new >= again.len() as u64 - 1, "{new} of {}", again.len());
    assert_eq!(kept(&rig, &honest_of(Family::V4)), u64::from(HONEST), "the other family has a table of its own");
    let kept = kept(&rig, &honest_of(Family::V6));
    eprintln!("{kept} of {HONEST} were still proven after {} others", SOURCES + SOURCES / 2);
}

/// A network that has so many places has buckets for no more of its sources, and those are no neighbour's.
fn has_few_buckets(address: fn(u32) -> IpAddr, places: u64) {
    let _one = one_installation();
    let Some(rig) = rig(&policy("", "syn = { rate = 1, burst = 3, per = \"source\" }")) else { return };
    let neighbour: IpAddr = Ipv6Addr::new(0xfd8b, 1, 0, 1, 0, 0, 0, 1).into();
    let (before, began) = (rig.verdicts(), Instant::now());
    (0..3).for_each(|port| rig.syn((neighbour, 2000 + port).into()));
    for n in 0..1000 {
        (0..3).for_each(|port| rig.syn((address(n), 2000 + port).into()));
    }
    rig.syn((neighbour, 2003).into());
    let verdicts = rig.verdicts_on(&before, 3004);
    let brought = began.elapsed().as_secs() + 1;
    let taken = verdicts.count(abi::FIEF_SYN_TAKEN);
    assert!((3 + 3 * places..=4 + places * (3 + brought)).contains(&taken), "{taken}");
}

#[test]
fn a_48_has_few_buckets_of_its_own() {
    has_few_buckets(attacker, 8);
}

#[test]
fn a_56_has_few_buckets_of_its_own() {
    has_few_buckets(of_one_56, 4);
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
