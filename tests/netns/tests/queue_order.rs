// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nobody gets around the queue.

use std::io::Write;
use std::time::Duration;

use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::one_installation;
use fief_tests_netns::queued::{Queued, answer_on, ask_on, lasting, low};

/// A request that may pass the queue takes no other one with it.
#[test]
fn what_passes_the_queue_takes_nothing_with_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rule = "[[listener.plain.request]]\npath = \"/poll\"\nqueue = false\n";
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n");
    for door in Door::GUARDS {
        let rig = Queued::new(door, &format!("{}{rule}", lasting()));
        let mut persistent = rig.connect(low(2));
        rig.let_go(1);
        ask_on(&mut persistent, "/before");
        answer_on(&mut persistent);
        let _first = rig.ask(low(1), "/first");
        rig.got_all(2);
        let mut fresh = rig.connect(low(3));
        for stream in [&mut fresh, &mut persistent] {
            stream.write_all((get("/costly") + &get("/poll")).as_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        let costly = rig.got().iter().filter(|path| *path == "/costly").count();
        assert_eq!(costly, 0, "{door:?}: {:?}, {:?}", rig.got(), rig.queue().waiting);
    }
}
