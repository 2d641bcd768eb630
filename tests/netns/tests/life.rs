// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that follow each other.

use fief_control::{ApplyOptions, ErrorKind};
use fief_testkit::NetNs;
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
