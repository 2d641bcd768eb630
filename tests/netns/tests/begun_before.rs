// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A handshake that Fief has answered is a connection, whatever the policy says that is in force when its client asks.

use std::io::Write;

use fief_testkit::{Client, Family, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::rig::{Rig, status_of};
use fief_tests_netns::{SOON, connect_from, refusing, unacknowledged};

const HELD: &str = refusing!("/secret", "503");
/// Connection requests have a rate, requests have no rules.
const RATED: &str = r#"
[container.web]
[listener.plain]
address = "[::]:80"
[[listener.plain.client]]
from = ["any"]
syn = { rate = 100000 }
container = "web"
"#;

fn watching() -> String {
    HELD.replace("[listener.plain]\n", "[listener.plain]\nmode = \"monitor\"\n")
}

/// Connects, has another policy put in force, and asks; in pieces where `cut` says.
fn ask_across(rig: &Rig, next: &str, path: &str, cut: Option<usize>) -> u16 {
    rig.front.apply(HELD).unwrap();
    let from = (Client::High.address(Family::V4, 1), 0).into();
    let mut stream = connect_from(&rig.front.topology.clients, from, plain(Family::V4)).unwrap();
    stream.set_nodelay(true).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n");
    let (before, after) = request.split_at(cut.unwrap_or(0));
    stream.write_all(before.as_bytes()).unwrap();
    // what the door holds is acknowledged
    wait_until(SOON, || unacknowledged(&stream) == 0).unwrap();
    rig.front.apply(next).unwrap();
    stream.write_all(after.as_bytes()).unwrap();
    status_of(stream).unwrap_or_else(|errno| panic!("{path}, {cut:?}: {errno}: {next}"))
}

#[test]
fn a_connection_that_was_begun_goes_on_where_nothing_is_held_any_more() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door, HELD);
        // without request rules the kernel answers by cookies only when it has to, and takes none back
        let nexts = [watching(), RATED.to_owned()];
        for next in nexts.iter().take(if door == Door::Own { 2 } else { 1 }) {
            assert_eq!(ask_across(&rig, next, "/10", None), 200, "{door:?}: {next}");
            assert_eq!(ask_across(&rig, next, "/10", Some(9)), 200, "{door:?}, in pieces: {next}");
            assert_eq!(ask_across(&rig, next, "/secret", None), 200, "{door:?}: nothing is refused any more: {next}");
        }
        assert_eq!(ask_across(&rig, HELD, "/secret", None), 503, "{door:?}");
    }
}
