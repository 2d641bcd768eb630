// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interfaces are Fief's own, by which nothing comes in that has not passed the front door: by what is attached there, and not by
//! names, which others can give theirs.

use std::sync::atomic::{AtomicU32, Ordering};

use fief_control::{ApplyOptions, Fief, Status, WhyUnguarded};
use fief_testkit::{Feature, NetNs, require, run};

/// Named as the ends of a lane are.
const NAMED: [&str; 2] = ["fief-9r", "fief-9s"];

struct Place {
    fief: Fief,
    namespace: NetNs,
}

impl Place {
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if ![Feature::Root, Feature::NetNs, Feature::Bpf, Feature::ThreadedNapi].into_iter().all(require) {
            return None;
        }
        let scope = format!("ff-{}-own{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let namespace = NetNs::new("own").unwrap();
        let [receives, sends] = NAMED;
        namespace.ip(&format!("link add {sends} type veth peer name {receives}")).unwrap();
        for end in NAMED {
            run(namespace.command("ip").args(["link", "set", end, "up", "alias", "fief lane other 9.1 shop"])).unwrap();
        }
        Some(Self { fief: Fief::with_scope(&scope), namespace })
    }

    /// A policy of one listener with a rate and this line.
    fn apply(&self, listener: &str) {
        let text = format!(
            "version = 1\n[container.shop]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\nsyn = {{ rate = 10, burst = 1 }}\n"
        );
        let parsed = fief_policy::parse(&text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions { containers: Some(128), ..ApplyOptions::default() };
        self.namespace.run(|| self.fief.apply(&parsed, &text, &options).unwrap()).unwrap();
    }

    fn status(&self) -> Status {
        self.namespace.run(|| self.fief.status().unwrap()).unwrap()
    }

    /// How many interfaces have names as Fief gives them.
    fn named(&self) -> usize {
        self.namespace.ip("-oneline link").unwrap().lines().filter(|line| line.contains(": fief-")).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.namespace.run(|| self.fief.down()).unwrap() {
            eprintln!("cannot take the test's installation down: {error}");
        }
    }
}

#[test]
fn one_that_is_only_named_like_fiefs_own_is_guarded() {
    let Some(place) = Place::new() else { return };
    for (listener, own) in [("", 0), ("queue = { in-service = 1 }", 2), ("lrp.when = \"always\"", 2)] {
        // Fief's own are made, and then found
        for turn in ["made", "found"] {
            place.apply(listener);
            let mut guarded = place.status().interfaces;
            guarded.sort();
            assert_eq!((guarded, place.named()), (NAMED.map(str::to_owned).to_vec(), 2 + own), "{listener}, {turn}");
        }
    }
}

#[test]
fn one_that_is_only_named_like_fiefs_own_and_came_later_is_told() {
    let Some(place) = Place::new() else { return };
    place.namespace.ip("link set fief-9s down").unwrap();
    place.apply("queue = { in-service = 1 }");
    place.namespace.ip("link set fief-9s up").unwrap();
    let unguarded = place.status().unguarded;
    let open: Vec<_> = unguarded.iter().map(|open| (open.name.as_str(), open.why)).collect();
    assert_eq!(open, [("fief-9s", WhyUnguarded::CameLater), ("lo", WhyUnguarded::Loopback)]);
}
