// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a door of these tests leaves to the next one: an installation whose door knows nobody.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::wait_until;
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{REMEMBERED, SOON, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
isolate = { above = 20, for = "1h" }
[[listener.plain.client]]
from = ["any"]
container = "web"
syn = { rate = 1000, burst = 1000, per = "source" }
[[listener.plain.request]]
path = "/refused"
refuse = "reset"
penalty = "1h"
"#;

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";
const REFUSED: &[u8] = b"GET /refused HTTP/1.1\r\n\r\n";

/// Elements of an array that are read at a time.
const AT_A_TIME: u32 = 256;

fn is_empty(front: &Front, name: &str) -> bool {
    let table = MapHandle::from_pinned_path(front.installation().fief().pins().map(name)).unwrap();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    match table.map_type() {
        MapType::Array => {
            let mut all = table.lookup_batch(AT_A_TIME, MapFlags::ANY, MapFlags::ANY).unwrap();
            all.all(|(_, value)| is_zero(&value))
        }
        MapType::PercpuArray => (0..table.max_entries()).all(|n| {
            let of_cpus = table.lookup_percpu(&n.to_ne_bytes(), MapFlags::ANY).unwrap().expect("an element");
            of_cpus.iter().all(|value| is_zero(value))
        }),
        _ => table.keys().next().is_none(),
    }
}

fn filled(front: &Front) -> Vec<&'static str> {
    REMEMBERED.into_iter().filter(|name| !is_empty(front, name)).collect()
}

fn client(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 89, n, 1).into()
}

#[test]
fn a_door_knows_nothing_of_those_before_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let scope = rig.front.installation().scope().to_owned();
    for (n, request) in [(1, REQUEST), (2, REFUSED)] {
        rig.open_from((client(n), 2000).into()).converse(request, &whole(request), SOON).unwrap();
    }
    let begun = rig.open_from((client(3), 2000).into());
    rig.clients.send(&begun.segment(PSH | ACK, 0, &REQUEST[..20])).unwrap();
    let prefix = fief_policy::parse_prefix("10.89.4.0/24").unwrap();
    let front = &rig.front;
    let ban = || drop(front.installation().fief().ban(prefix, Duration::from_secs(3600)).unwrap());
    front.topology.server.run(ban).unwrap();
    // a half head too, a moment later
    let known = ["ban_counts", "bans", "half_rows", "halves", "meters", "source_buckets", "sources", "verdicts"];
    wait_until(SOON, || known.iter().all(|name| !is_empty(front, name)))
        .unwrap_or_else(|_| panic!("{known:?}: {:?}", filled(front)));
    drop(begun);
    drop(rig);

    let rig = Rig::new(Door::Own, POLICY);
    assert_eq!(rig.front.installation().scope(), scope, "it is the same installation");
    assert_eq!(filled(&rig.front), [""; 0]);
    rig.open_from((client(2), 2000).into()).converse(REQUEST, &whole(REQUEST), SOON).unwrap();
    assert_eq!(rig.server.accepted(), 1, "a penalty of the door before: {:?}", rig.verdicts());
}
