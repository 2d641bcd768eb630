// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that follow each other: what the next one would change, whose containers end where, and in which network namespace.

use fief_control::{ApplyOptions, Ending, ErrorKind, LetGo, LostHome, NewHome};
use fief_testkit::{Cgroup, Feature, NetNs, require};
use fief_tests_netns::Installation;
use fief_tests_netns::front::ready;

const TENANTS: &str = "version = 1\n[container.acme]\n[container.\"acme/shop\"]\n[container.\"acme/shop/gold\"]\n\
                       [container.other]\n";
/// The listener's catch-all is another tenant's.
const WITHOUT_SHOP: &str = "version = 1\n[container.acme]\n[container.other]\n[container.fresh]\n[listener.web]\n\
                            address = \"0.0.0.0:80\"\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"other\"\n";

fn parse(text: &str) -> fief_policy::Policy {
    fief_policy::parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Paths, with what holds them and the policy.
fn containers(installation: &Installation) -> Vec<(String, u32, bool)> {
    let snapshot = installation.fief().snapshot().unwrap();
    snapshot.containers.into_iter().map(|of| (of.path, of.handles, of.policy)).collect()
}

#[test]
fn the_difference_tells_what_the_next_policy_changes_and_changes_nothing() {
    if !ready() {
        return;
    }
    let namespace = NetNs::new("life").unwrap();
    namespace
        .run(|| {
            let installation = Installation::new(TENANTS, "acme/shop/gold");
            let before = (containers(&installation), installation.fief().policy_text().unwrap());
            let difference = installation.fief().difference(&parse(WITHOUT_SHOP)).unwrap();
            assert_eq!((containers(&installation), installation.fief().policy_text().unwrap()), before);
            assert!(difference.in_force);
            assert_eq!(
                (&difference.made[..], &difference.kept[..]),
                (&["fresh".into()][..], &["acme".into(), "other".into()][..])
            );
            let ending = |path: &str, held| Ending { path: path.into(), held, below: "acme".into() };
            assert_eq!(difference.ended, [ending("acme/shop/gold", true), ending("acme/shop", false)]);
            let command = format!("fief manage --container acme {}", installation.cgroup().display());
            let home = NewHome::Unknown { why: None, command: Some(command.clone()) };
            let lost = LostHome { cgroup: installation.cgroup(), container: "acme/shop/gold".into(), home };
            assert_eq!(difference.units, [lost]);
            // nobody says whose the unit is
            let apply = |let_go| {
                let options = ApplyOptions { let_go, ..ApplyOptions::default() };
                installation.fief().apply(&parse(WITHOUT_SHOP), WITHOUT_SHOP, &options)
            };
            let refused = apply(LetGo::None).unwrap_err();
            assert!(refused.kind() == ErrorKind::Exists && refused.to_string().contains(&command), "{refused}");
            assert_eq!((containers(&installation), installation.fief().policy_text().unwrap()), before);
            let [web] = &difference.listeners[..] else { panic!("{difference:?}") };
            assert!(web.before.is_none() && web.servers.is_empty());
            // as it is told, so it comes
            let applied = apply(LetGo::All).unwrap();
            assert_eq!((applied.made, applied.kept), (difference.made, difference.kept));
            assert_eq!(applied.released, ["acme/shop/gold", "acme/shop"]);
            let paths: Vec<_> = containers(&installation).into_iter().map(|of| of.0).collect();
            assert!(paths.contains(&"acme/gold".to_owned()), "the unit's home stays the tenant's: {paths:?}");
            assert!(apply(LetGo::None).is_ok(), "it was let go of once");
        })
        .unwrap();
}

#[test]
fn a_policy_of_another_network_namespace_is_moved_only_on_demand() {
    if !ready() {
        return;
    }
    let [one, other] = ["one", "other"].map(|role| NetNs::new(role).unwrap());
    let installation = one.run(|| Installation::new(TENANTS, "other")).unwrap();
    let apply = |here| {
        let options = ApplyOptions { here, ..ApplyOptions::default() };
        other.run(|| installation.fief().apply(&parse(WITHOUT_SHOP), WITHOUT_SHOP, &options)).unwrap()
    };
    let refused = apply(false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    assert!(refused.to_string().contains("--here"), "{refused}");
    assert_eq!(installation.fief().policy_text().unwrap().as_deref(), Some(TENANTS));
    apply(true).unwrap();
    assert!(apply(false).is_ok(), "it is of this one now");
    // a namespace that is gone has nothing to lose
    drop(other);
    one.run(|| installation.fief().apply(&parse(TENANTS), TENANTS, &ApplyOptions::default())).unwrap().unwrap();
}

#[test]
fn a_unit_whose_container_stays_is_not_told() {
    if !(ready() && require(Feature::Cgroup2)) {
        return;
    }
    let installation = Installation::new(TENANTS, "acme");
    let second = Cgroup::new("life").unwrap();
    installation.manage(second.path(), Some("acme/shop"), false);
    let difference = installation.fief().difference(&parse(WITHOUT_SHOP)).unwrap();
    let lost: Vec<_> = difference.units.iter().map(|lost| (lost.cgroup.as_path(), lost.container.as_str())).collect();
    assert_eq!(lost, [(second.path(), "acme/shop")]);
    // nor is one that a renamed container has
    let renamed = WITHOUT_SHOP.replace("[container.fresh]", "[container.fresh]\nwas = \"acme/shop\"");
    assert_eq!(installation.fief().difference(&parse(&renamed)).unwrap().units, []);
    let given = |home: &str| {
        installation.manage(second.path(), Some(home), false);
        installation.fief().difference(&parse(WITHOUT_SHOP)).unwrap().units
    };
    assert_eq!(given("other"), []);
}
