// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of thousands of prefixes that lie in each other, the kernel finds the rule that the policy alone says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fief_bpf::abi;
use fief_bpf::trial::Trial;
use fief_testkit::segment::{SYN, Segment, frame};
use fief_testkit::{Dice, Mac, Topology};
use fief_tests_netns::front::{Door, Front, plain, ready};

const RULES: usize = 60;
const PREFIXES: usize = 12_000;

type Prefix = (IpAddr, u32);

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Draws prefixes and addresses, the same ones in every run.
struct Draw(Dice);

impl Draw {
    /// One that lies in none of the others, mostly.
    fn prefix(&mut self) -> Prefix {
        let (drawn, length) = (self.0.number(), self.0.number());
        let is_short = drawn >> 32 & 31 == 0;
        if drawn % 2 == 0 {
            let shortest = if is_short { 9 } else { 20 };
            let length = shortest + length as u32 % (33 - shortest);
            return (Ipv4Addr::from((96 << 24 | (drawn >> 37) as u32) & u32::MAX << (32 - length)).into(), length);
        }
        let shortest = if is_short { 17 } else { 40 };
        let length = shortest + length as u32 % (129 - shortest);
        let address = 0xfd99 << 112 | u128::from(drawn) << 48 | u128::from(drawn);
        (Ipv6Addr::from(address & u128::MAX << (128 - length)).into(), length)
    }

    /// One that lies in another, unless that is a single address.
    fn longer(&mut self, outer: Prefix) -> Prefix {
        let bits = bits(outer.0);
        let length = outer.1 + (self.0.number() % 9) as u32;
        let length = length.min(bits);
        let address = match self.inside(outer) {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & u32::MAX << (bits - length)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & u128::MAX << (bits - length)).into(),
        };
        (address, length)
    }

    fn inside(&mut self, (address, length): Prefix) -> IpAddr {
        let host = self.0.number();
        match address {
            IpAddr::V4(v4) => {
                Ipv4Addr::from(u32::from(v4) | host as u32 & u32::MAX.checked_shr(length).unwrap_or(0)).into()
            }
            IpAddr::V6(v6) => {
                let host = u128::from(host) << 64 | u128::from(host);
                Ipv6Addr::from(u128::from(v6) | host & u128::MAX.checked_shr(length).unwrap_or(0)).into()
            }
        }
    }
}

/// The longer ones first.
fn prefixes(draw: &mut Draw) -> Vec<Prefix> {
    let mut prefixes: Vec<Prefix> = Vec::new();
    let mut known = BTreeSet::new();
    while prefixes.len() < PREFIXES {
        let outer = prefixes.get(draw.0.number() as usize % (2 * prefixes.len() + 1)).copied();
        let next = match outer {
            Some(outer) => draw.longer(outer),
            None => draw.prefix(),
        };
        if known.insert(next) {
            prefixes.push(next);
        }
    }
    prefixes.sort_by_key(|&(address, length)| bits(address) - length);
    prefixes
}

/// A listener that counts which rule each connection request is taken by.
fn policy(prefixes: &[Prefix]) -> String {
    let rules = prefixes.chunks(PREFIXES / RULES).map(|rule| {
        let rule: Vec<_> = rule.iter().map(|(address, length)| format!("\"{address}/{length}\"")).collect();
        rule.join(", ")
    });
    let mut text = "[overload]\nbusy = { drops = 1000000 }\noverloaded = { drops = 1000000 }\n[container.web]\n\
                    [listener.plain]\naddress = \"[::]:80\"\nadmit = true\n"
        .to_owned();
    let syn = "syn = { rate = 1000000, burst = 1000000 }";
    for rule in rules.chain(["\"any\"".to_owned()]) {
        writeln!(text, "[[listener.plain.client]]\nfrom = [{rule}]\ncontainer = \"web\"\n{syn}").unwrap();
    }
    text
}

fn ask(front: &Front, sources: &[IpAddr]) {
    let interface = nix::net::if_::if_nametoindex(Topology::SERVER).unwrap();
    let trial = Trial::open(front.installation().fief().pins(), interface).unwrap();
    let [server, clients] = [front.topology.link.near_mac, front.topology.link.far_mac].map(Mac::octets);
    for (source, port) in sources.iter().zip((1024..60_000).cycle()) {
        let family = if source.is_ipv4() { fief_testkit::Family::V4 } else { fief_testkit::Family::V6 };
        let syn = Segment::new(SocketAddr::new(*source, port), plain(family), SYN);
        trial.run(&frame(server, clients, &[], &syn.packet()), &mut [0; 2048]).unwrap();
    }
}

#[test]
fn the_kernel_finds_the_rule_among_thousands_of_prefixes() {
    if !ready() {
        return;
    }
    let mut draw = Draw(Dice::new(1));
    let prefixes = prefixes(&mut draw);
    let text = policy(&prefixes);
    let parsed = fief_policy::parse(&format!("version = 1\n{text}"), "test.toml").unwrap_or_else(|e| panic!("{e}"));
    let inside = prefixes.iter().map(|&prefix| draw.inside(prefix)).collect::<Vec<_>>();
    let outside = (0..1000).map(|n| Ipv4Addr::from(203 << 24 | n).into());
    let sources: Vec<IpAddr> = inside.into_iter().chain(outside).collect();
    let mut expected = BTreeMap::new();
    for &source in &sources {
        let (rule, _) = parsed.listeners[0].client_of(source).expect("there is a catch-all");
        *expected.entry(u32::try_from(rule).unwrap()).or_insert(0u64) += 1;
    }
    assert_eq!(expected.len(), RULES + 1, "every rule is met");

    let front = Front::new(Door::Own, &text);
    let _server = front.plain_server();
    let before = front.verdicts();
    front.topology.server.run(|| ask(&front, &sources)).unwrap();
    let mut found = BTreeMap::new();
    for verdict in front.verdicts().since(&before).all().iter().filter(|v| v.reason == abi::FIEF_SYN_TAKEN) {
        *found.entry(verdict.rule.expect("every client has a rule")).or_insert(0) += verdict.count;
    }
    assert_eq!(found, expected);
}
