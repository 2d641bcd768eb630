// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds for every list of rules, against a matcher that is too simple to be wrong.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fief_policy::{Client, From, Kind, Listener, Serve, parse};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;

// ---- what the policy language says, word by word --------------------------------------------------------------

fn covers(net: &IpNet, address: IpAddr) -> bool {
    match (net, address) {
        (IpNet::V4(net), IpAddr::V4(address)) => net.contains(&address),
        (IpNet::V6(net), IpAddr::V6(address)) => net.contains(&address),
        _ => false,
    }
}

fn matches(from: &From, address: IpAddr) -> bool {
    match from {
        From::Any => true,
        From::In(nets) => nets.iter().any(|net| covers(net, address)),
        From::NotIn(nets) => !nets.iter().any(|net| covers(net, address)),
    }
}

/// `address` is canonical: IPv4 as IPv4.
fn first_match(rules: &[From], address: IpAddr) -> Option<usize> {
    rules.iter().position(|rule| matches(rule, address))
}

// ---- lists of rules that nest, touch and repeat -----------------------------------------------------------------

fn ipv4_net() -> impl Strategy<Value = IpNet> {
    let base = prop_oneof![
        // Neighbours at every length, so that unions come about.
        (0u32..8, 0u32..32).prop_map(|(bits, shift)| bits.rotate_right(3).rotate_right(shift)),
        (0u32..8).prop_map(|low| 0x0a00_0000 | low),
        (0u32..8).prop_map(|high| 0x0a00_0000 | high << 21),
        any::<u32>(),
        Just(0),
        Just(u32::MAX),
    ];
    let length = prop_oneof![0u8..=4, 7u8..=12, 29u8..=32, 0u8..=32];
    (base, length)
        .prop_map(|(base, length)| Ipv4Net::new(Ipv4Addr::from(base), length).expect("at most 32").trunc().into())
}

fn ipv6_net() -> impl Strategy<Value = IpNet> {
    let base = prop_oneof![
        (0u128..8, 0u32..128).prop_map(|(bits, shift)| bits.rotate_right(3).rotate_right(shift)),
        (0u128..8).prop_map(|high| (0x2001_0db8 << 96) | high << 93),
        // On both sides of IPv4.
        Just(0xfffe << 32),
        Just(0x1_0000 << 32),
        Just(0xffff << 32),
        any::<u128>(),
        Just(u128::MAX),
    ];
    let length = prop_oneof![0u8..=4, 30u8..=36, 78u8..=98, 126u8..=128, 0u8..=128];
    (base, length).prop_map(|(base, length)| {
        let net = Ipv6Net::new(Ipv6Addr::from(base), length).expect("at most 128").trunc();
        // The parser makes IPv4 of these.
        match net.addr().to_ipv4_mapped() {
            Some(v4) if length >= 96 => Ipv4Net::new(v4, length - 96).expect("at most 32").into(),
            _ => net.into(),
        }
    })
}

fn rule() -> impl Strategy<Value = From> {
    let nets = || prop::collection::vec(prop_oneof![3 => ipv4_net(), 2 => ipv6_net()], 1..5);
    prop_oneof![8 => nets().prop_map(From::In), 2 => nets().prop_map(From::NotIn)]
}

/// Rules and their catch-all.
fn rules() -> impl Strategy<Value = Vec<From>> {
    prop::collection::vec(rule(), 0..10).prop_map(|mut rules| {
        rules.push(From::Any);
        rules
    })
}

fn local() -> impl Strategy<Value = SocketAddr> {
    let addresses = ["[::]:80", "0.0.0.0:80", "10.0.0.1:80", "[2001:db8::1]:80"];
    prop::sample::select(addresses.to_vec()).prop_map(|address| address.parse().expect("an address"))
}

/// Each rule with its own container, so that no two mistakes cancel out; some share one where `shared` says so.
fn listener(address: SocketAddr, rules: &[From], shared: usize) -> Listener {
    let client = |(index, from): (usize, &From)| Client::new(from.clone(), format!("c{}", index % shared));
    let clients = rules.iter().enumerate().map(client).collect();
    Listener { serve: Serve::Shim, clients, ..Listener::new("web", address) }
}

/// Can a client with this address reach the listener?
fn arrives(address: IpAddr, local: SocketAddr) -> bool {
    match local.ip() {
        IpAddr::V4(_) => address.is_ipv4(),
        IpAddr::V6(ip) if ip.is_unspecified() => true,
        IpAddr::V6(_) => address.is_ipv6(),
    }
}

/// The first and last address of every prefix, their neighbours outside, and the edges of both families.
fn edges(rules: &[From]) -> BTreeSet<IpAddr> {
    let mut edges = BTreeSet::new();
    let mut add = |bits: u128| {
        for bits in [bits.wrapping_sub(1), bits, bits.wrapping_add(1)] {
            edges.insert(IpAddr::V6(Ipv6Addr::from(bits)).to_canonical());
        }
    };
    for bits in [0, u128::MAX, 0xffff << 32, 0xffff_ffff_ffff] {
        add(bits);
    }
    for rule in rules {
        let (From::In(nets) | From::NotIn(nets)) = rule else {
            continue;
        };
        for net in nets {
            for address in [net.network(), net.broadcast()] {
                add(match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
                    IpAddr::V6(v6) => v6.into(),
                });
            }
        }
    }
    edges
}

fn some_addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    let ipv4 = any::<u32>().prop_map(|bits| IpAddr::V4(bits.into()));
    let ipv6 = any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()).to_canonical());
    prop::collection::vec(prop_oneof![ipv4, ipv6], 32)
}

/// What the operator would write.
fn as_policy(address: SocketAddr, rules: &[From]) -> String {
    let mut text = format!("version = 1\n[listener.web]\naddress = \"{address}\"\n");
    for (index, rule) in rules.iter().enumerate() {
        let list = |nets: &[IpNet]| nets.iter().map(|net| format!("\"{net}\"")).collect::<Vec<_>>().join(", ");
        let from = match rule {
            From::Any => "from = [\"any\"]".to_owned(),
            From::In(nets) => format!("from = [{}]", list(nets)),
            From::NotIn(nets) => format!("not-from = [{}]", list(nets)),
        };
        text.push_str(&format!("[[listener.web.client]]\n{from}\ncontainer = \"c{index}\"\n"));
    }
    for index in 0..rules.len() {
        text.push_str(&format!("[container.c{index}]\n"));
    }
    text
}

/// Positions of the rules that `parse` calls unreachable. Nothing else may be wrong.
fn unreachable(address: SocketAddr, rules: &[From]) -> BTreeSet<usize> {
    let Err(errors) = parse(&as_policy(address, rules), "test.toml") else {
        return BTreeSet::new();
    };
    let positions = errors.iter().map(|error| {
        assert_eq!(error.kind, Kind::Unreachable, "{errors}");
        // Three lines before the first rule, three for each, and the addresses in the second of them.
        (error.line - 5) / 3
    });
    positions.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_longest_prefix_is_the_first_match(
        local in local(), rules in rules(), shared in 1usize..12, random in some_addresses()
    ) {
        let table = listener(local, &rules, shared).table();
        for address in edges(&rules).into_iter().chain(random).filter(|&address| arrives(address, local)) {
            let entry = table.lookup(address).expect("every address has an entry");
            let expected = first_match(&rules, address).expect("the catch-all matches");
            prop_assert_eq!(usize::from(entry.rule), expected, "for {}", address);
            let container = &table.classes[usize::from(entry.class)].container;
            prop_assert_eq!(container, &format!("c{}", expected % shared));
        }
    }

    #[test]
    fn a_table_has_a_default_and_no_entry_too_many(local in local(), rules in rules(), shared in 1usize..12) {
        let table = listener(local, &rules, shared).table();
        prop_assert_eq!(table.entries[0].prefix, Ipv6Net::default());
        prop_assert!(table.classes.len() <= shared);
        for (index, entry) in table.entries.iter().enumerate() {
            let around = table.entries[..index].iter().filter(|other| other.prefix.contains(&entry.prefix));
            if let Some(around) = around.max_by_key(|other| other.prefix.prefix_len()) {
                prop_assert_ne!(around.prefix, entry.prefix);
                prop_assert_ne!(around.rule, entry.rule, "{} repeats {}", entry.prefix, around.prefix);
            }
        }
    }

    #[test]
    fn a_rule_is_unreachable_if_and_only_if_it_never_matches(
        local in local(), rules in rules(), random in some_addresses()
    ) {
        let dead = unreachable(local, &rules);
        for address in edges(&rules).into_iter().chain(random).filter(|&address| arrives(address, local)) {
            let first = first_match(&rules, address).expect("the catch-all matches");
            prop_assert!(!dead.contains(&first), "rule {} matches {}", first + 1, address);
        }
        // The other way round: a rule that is alive is in the table, and its region has an address at its edge.
        let reached: BTreeSet<usize> = edges(&rules)
            .into_iter()
            .filter(|&address| arrives(address, local))
            .filter_map(|address| first_match(&rules, address))
            .collect();
        let alive: BTreeSet<usize> = (0..rules.len()).filter(|rule| !dead.contains(rule)).collect();
        prop_assert_eq!(reached, alive);
    }

    #[test]
    fn removing_unreachable_rules_changes_no_table(local in local(), rules in rules()) {
        let dead = unreachable(local, &rules);
        let whole = listener(local, &rules, usize::MAX);
        let mut without = whole.clone();
        let mut position = 0;
        without.clients.retain(|_| {
            position += 1;
            !dead.contains(&(position - 1))
        });
        let named = |listener: &Listener| -> Vec<(Ipv6Net, String)> {
            let table = listener.table();
            let class = |class: u16| table.classes[usize::from(class)].container.clone();
            table.entries.iter().map(|entry| (entry.prefix, class(entry.class))).collect()
        };
        if without.clients.is_empty() {
            return Err(TestCaseError::fail("some rule matches"));
        }
        prop_assert_eq!(named(&whole), named(&without));
    }
}
