// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the policies in examples/ mean.

mod example;

use example::{example, examples};
use fief_policy::{Listener, Serve, parse};

fn class_of(listener: &Listener, address: &str) -> String {
    let table = listener.table();
    let entry = table.lookup(address.parse().expect("an address")).expect("every address has a class");
    table.classes[usize::from(entry.class)].container.clone()
}

#[test]
fn every_example_is_accepted() {
    let examples = examples();
    assert!(examples.len() >= 6);
    for (name, text) in examples {
        parse(&text, &name).unwrap_or_else(|errors| panic!("{errors}"));
    }
}

#[test]
fn the_shop_has_three_classes_behind_one_server() {
    let shop = example("shop.toml");
    let paths: Vec<_> = shop.containers.iter().map(|container| container.path.as_str()).collect();
    assert_eq!(paths, ["shop", "shop/gold", "shop/partner", "shop/browse"]);
    let web = &shop.listeners[0];
    assert!(web.queue.is_some() && web.serve == Serve::Shared);
    assert_eq!(web.table().classes.len(), 3);
    assert_eq!(class_of(web, "10.1.2.3"), "shop/gold");
    assert_eq!(class_of(web, "10.2.0.7"), "shop/gold");
    assert_eq!(class_of(web, "10.2.0.8"), "shop/partner");
    assert_eq!(class_of(web, "192.0.2.1"), "shop/browse");
}

#[test]
fn two_tenants_have_their_shares_and_addresses() {
    let tenants = example("two-tenants.toml");
    assert_eq!(tenants.container("acme").expect("acme").cpu.share_ppm, 400_000);
    assert_eq!(tenants.container("globex").expect("globex").cpu.limit_ppm, 500_000);
    let acme = tenants.listener("acme").expect("acme");
    assert_eq!(class_of(acme, "203.0.113.9"), "acme/office");
    assert_eq!(class_of(acme, "198.51.100.1"), "acme/public");
    assert_eq!(tenants.listener("globex").expect("globex").serve, Serve::Shared);
}

#[test]
fn copies_have_a_server_for_each_class() {
    let copies = example("copies.toml");
    assert_eq!(copies.listeners[0].serve, Serve::CopiesPerClass);
    assert_eq!(class_of(&copies.listeners[0], "203.0.113.200"), "site/robots");
    assert_eq!(class_of(&copies.listeners[0], "203.0.113.100"), "site/others");
    assert_eq!(copies.container("site/robots").expect("robots").cpu.priority, 0);
}

#[test]
fn ipv6_clients_and_ipv4_clients_meet_their_own_rules() {
    let policy = example("ipv6.toml");
    let web = policy.listener("web").expect("web");
    for (address, container) in [
        ("2001:db8:1:ff::5", "web/lab"),
        ("2001:db8:1:fe::5", "web/inside"),
        ("2001:db8:2::5", "web/outside"),
        ("10.255.1.1", "web/lab"),
        ("10.254.1.1", "web/inside"),
        ("::ffff:10.254.1.1", "web/inside"),
        ("192.0.2.1", "web/outside"),
    ] {
        assert_eq!(class_of(web, address), container, "{address}");
    }
    assert_eq!(policy.listener("metrics").expect("metrics").serve, Serve::Shared);
}
