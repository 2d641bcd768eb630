// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that accepts nothing more: what is next cannot reach it, and who has waited for too long is told so all the same.

use std::time::Duration;

use fief_testkit::Family;
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{POLICY, low, status};

/// So many connections the kernel keeps for a server that accepts none, with a backlog of 6; as many places.
const KEPT: u8 = 7;

/// Where the kernel answers it takes no connection while the server accepts none.
#[test]
fn who_waits_too_long_is_told_beside_one_that_cannot_go() {
    if !ready() {
        return;
    }
    let queue = format!("in-service = {KEPT}, length = 200, wait = \"500ms\", stale = \"64ms\"");
    let policy = POLICY.replace("in-service = 1, length = 200, wait = \"1m\"", &queue).replace("[::]:80", "0.0.0.0:80");
    let front = Front::new(Door::Own, &policy);
    let let_it = front.server_with_queue(i32::from(KEPT) - 1);
    let ask = |n: u8| front.ask_from(low(n), plain(Family::V4), "/low").unwrap();
    let kept: Vec<_> = (1..=KEPT).map(ask).collect();
    // the next one always has time left: each comes soon after the one before
    let asked: Vec<_> = (1..=40)
        .map(|n| {
            std::thread::sleep(Duration::from_millis(50));
            ask(KEPT + n)
        })
        .collect();
    let queue = front.queue();
    assert!(queue.refused <= 4, "{} are not told, {} wait", queue.refused, queue.waiting);
    assert!(queue.class[1].refused_wait >= 20, "{:?}", queue.class[1]);
    assert!(asked.into_iter().take(20).all(|stream| status(stream) == 503));
    let_it.send(()).unwrap();
    assert!(kept.into_iter().all(|stream| status(stream) == 200));
}
