// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A head that a CPU has ruled before is not read again, and nobody can tell but by the time that it takes: what the verdict on it
//! depends on is compared, and what is done for each request is done for it.

#[path = "known_heads/stage.rs"]
mod stage;

use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use fief_bpf::abi;
use fief_testkit::{Family, PlainServer};
use fief_tests_netns::front::{Door, Verdict, ready};
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, refusing};
use stage::{MOST, OFTEN, Persistent, Stage, get, post, ruled};

const LETS_PASS: &str = refusing!("/never", "503");
const REFUSES: &str = refusing!("/10", "503");

#[test]
fn a_head_that_a_former_policy_let_pass_is_refused_by_the_next() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let stage = Stage::new(door, LETS_PASS);
        let head = get("/10", "");
        for turn in 0..2 {
            eprintln!("{door:?}, turn {turn}");
            stage.learn(&head, Ok(200));
            // another one in the other slot, and then one in the slot of the first
            stage.front.apply(LETS_PASS).unwrap();
            stage.learn(&head, Ok(200));
            stage.front.apply(REFUSES).unwrap();
            stage.learn(&head, Ok(503));
            stage.front.apply(LETS_PASS).unwrap();
        }
    }
}

#[test]
fn a_request_on_a_connection_that_stays_is_ruled_by_the_next_policy() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, LETS_PASS);
    let head = post("/10", "");
    let mut connection = Persistent::open(&stage);
    for _ in 0..2 * OFTEN {
        assert_eq!(connection.ask(&head), Some(200), "{:?}", stage.front.verdicts());
    }
    assert!(stage.knows(&head));
    stage.front.apply(REFUSES).unwrap();
    assert_ne!(connection.ask(&head), Some(200), "{:?}", stage.front.verdicts());
    assert_ne!(Persistent::open(&stage).ask(&head), Some(200), "{:?}", stage.front.verdicts());
}

#[test]
fn each_listener_rules_the_same_head_by_its_own_rules() {
    if !ready() {
        return;
    }
    let listener = |name: &str, port: u16, rule: &str| {
        format!(
            "[listener.{name}]\naddress = \"[::]:{port}\"\nqueue = false\n[[listener.{name}.client]]\nfrom = [\"any\"]\n\
             container = \"web\"\n[[listener.{name}.request]]\npath = \"/10\"\n{rule}"
        )
    };
    let [open, shut] = [listener("open", 80, "container = \"web/ten\"\n"), listener("shut", 81, "refuse = \"503\"\n")];
    let stage = Stage::new(Door::Own, &format!("\n[container.web]\n[container.\"web/ten\"]\n{open}{shut}"));
    let _other = PlainServer::start(&stage.front.topology.server, "[::]:81".parse().unwrap()).unwrap();
    let head = get("/10", "");
    stage.learn(&head, Ok(200));
    for _ in 0..2 * OFTEN {
        assert_eq!(stage.ask_at(81, &head), Ok(503), "{:?}", stage.front.verdicts());
        assert_eq!(stage.ask_at(80, &head), Ok(200), "{:?}", stage.front.verdicts());
    }
}

#[test]
fn a_rule_for_busy_times_holds_for_a_head_that_is_known_from_others() {
    if !ready() {
        return;
    }
    let rule = "[[listener.plain.request]]\npath = \"/10\"\nrefuse = \"503\"\nwhen = \"busy\"\n";
    let stage = Stage::new(Door::Own, &ruled(rule));
    let head = get("/10", "");
    stage.learn(&head, Ok(200));
    for _ in 0..3 {
        stage.set_busy(true);
        stage.stays(&head, Ok(503));
        stage.set_busy(false);
        stage.stays(&head, Ok(200));
    }
}

/// Refused by what stands at the very end.
const BY_ITS_END: &str = "[[listener.plain.request]]\nheader = { \"x-last\" = \"b\" }\nrefuse = \"503\"\n";

/// A head of `length` bytes.
fn head_of(length: usize, last: char) -> Vec<u8> {
    let lines = |filler: usize| format!("Cookie: {}\r\nX-Last: {last}\r\n", "c".repeat(filler));
    let head = get("/10", &lines(length - get("/10", &lines(0)).len()));
    assert_eq!(head.len(), length);
    head
}

#[test]
fn heads_that_differ_in_one_byte_at_their_end_are_two() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, &ruled(BY_ITS_END));
    // wherever the byte stands in its word; the last one that is kept, and beyond
    for length in (96..=104).chain(500..=520).chain([700, 4000]) {
        let [open, shut] = ['a', 'b'].map(|last| head_of(length, last));
        for (head, outcome) in [(&open, Ok(200)), (&shut, Ok(503))] {
            if length <= MOST {
                stage.learn(head, outcome);
            } else {
                stage.stays(head, outcome);
                assert!(!stage.knows(head), "{length} bytes");
            }
        }
        stage.stays(&open, Ok(200));
    }
}

#[test]
fn a_head_that_begins_as_another_one_is_another_one() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, &ruled(BY_ITS_END));
    let open = get("/10", "");
    let shut = [&open[..open.len() - 2], b"X-Last: b\r\n\r\n"].concat();
    stage.learn(&open, Ok(200));
    stage.learn(&shut, Ok(503));
    stage.stays(&open, Ok(200));
}

#[test]
fn first_and_later_requests_are_counted_one_by_one() {
    if !ready() {
        return;
    }
    let rule = "[[listener.plain.request]]\npath = \"/10\"\ncontainer = \"web/ten\"\n";
    for door in Door::GUARDS {
        let stage = Stage::new(door, &ruled(rule));
        let head = post("/10", "");
        for _ in 0..OFTEN {
            let mut connection = Persistent::open(&stage);
            for _ in 0..2 * OFTEN {
                assert_eq!(connection.ask(&head), Some(200), "{:?}", stage.front.verdicts());
            }
        }
        assert!(stage.knows(&head));
        let asked = 2 * OFTEN * OFTEN;
        let verdicts = stage.front.verdicts().since(stage.front.before());
        let ten = verdicts.all().iter().filter(|verdict| verdict.container == "web/ten" && verdict.rule == Some(0));
        let counted: u64 = ten.map(|verdict| verdict.count).sum();
        assert!(stage.front.is_counted(counted, asked as u64), "{door:?}: {verdicts:?}");
        assert_eq!(stage.server.seen().len(), asked, "{door:?}");
    }
}

#[test]
fn a_known_head_has_the_same_verdict_in_two_pieces() {
    if !ready() {
        return;
    }
    let rig = Rig::new(Door::Own, refusing!("/secret/*", "503"));
    for (path, status) in [("/10", "HTTP/1.1 200"), ("/secret/10", "HTTP/1.1 503")] {
        let head = get(path, "");
        let ask = |pieces: &[Range<usize>]| {
            let mut connection = rig.open(Family::V4);
            connection.acknowledge().unwrap();
            let (words, _) = connection.converse(&head, pieces, SOON).unwrap();
            let answer = String::from_utf8_lossy(&words).into_owned();
            assert!(answer.starts_with(status), "{path}, {pieces:?}: {answer}, {:?}", rig.verdicts());
        };
        for _ in 0..OFTEN {
            ask(&whole(&head));
        }
        for cut in [1, 8, 21, head.len() - 9, head.len() - 2, head.len() - 1] {
            ask(&[0..cut, cut..head.len()]);
            ask(&whole(&head));
        }
    }
}

#[test]
fn what_stands_behind_a_known_head_is_what_it_was() {
    if !ready() {
        return;
    }
    // with the begin of another one behind it: of a packet that ends with a head none is known but that
    const SECRET: &[u8] = b"GET /secret/10 HTTP/1.1\r\n\r\nGET";
    let stage = Stage::new(Door::Own, refusing!("/secret/*", "503"));
    let length = format!("Content-Length: {}\r\n", SECRET.len());
    let read_by_some = format!("GET /10 HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n", SECRET.len() - 3);
    for (head, behind, passes) in [
        (post("/10", "Content-Length: 5\r\n"), b"hello".to_vec(), true),
        (post("/10", "Content-Length: 5\r\n"), [&b"hello"[..], SECRET].concat(), false),
        // a request in the place of a body
        (post("/10", &length), SECRET.to_vec(), true),
        (read_by_some.into_bytes(), SECRET.to_vec(), false),
        (post("/10", "Transfer-Encoding: chunked\r\n"), [&b"5\r\nhello\r\n0\r\n\r\n"[..], SECRET].concat(), false),
        (post("/10", "Upgrade: other\r\nConnection: upgrade\r\n"), SECRET.to_vec(), false),
        (post("/10", ""), SECRET.to_vec(), false),
    ] {
        let stream = [&head[..], &behind].concat();
        for turn in 0..2 * OFTEN {
            let status = Persistent::open(&stage).ask(&stream);
            let what = String::from_utf8_lossy(&stream);
            assert_eq!(status == Some(200), passes, "turn {turn}: {status:?}, {what:?}, {:?}", stage.front.verdicts());
        }
        assert!(stage.knows(&head), "{:?}", String::from_utf8_lossy(&stream));
    }
    assert!(!stage.server.seen().iter().any(|seen| seen.line.contains("secret")), "{:?}", stage.server.seen());
}

#[test]
fn a_request_behind_one_with_a_body_is_ruled() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, refusing!("/secret/*", "503"));
    let head = post("/10", "Content-Length: 5\r\n");
    for turn in 0..2 * OFTEN {
        let mut connection = Persistent::open(&stage);
        // in one piece, and in two
        assert_eq!(connection.ask(&[&head[..], b"hello"].concat()), Some(200), "turn {turn}");
        connection.stream.get_mut().write_all(&head).unwrap();
        assert_eq!(connection.ask(b"world"), Some(200), "turn {turn}");
        assert_ne!(connection.ask(&get("/secret/10", "")), Some(200), "turn {turn}: {:?}", stage.front.verdicts());
    }
    assert!(stage.knows(&head));
}

#[test]
fn every_one_of_equal_requests_takes_of_its_rate() {
    if !ready() {
        return;
    }
    const BURST: u64 = 3;
    let rule = "[[listener.plain.request]]\npath = \"/10\"\nrate = { per-second = 1, burst = 3 }\n";
    let stage = Stage::new(Door::Own, &ruled(rule));
    let begin = Instant::now();
    let head = get("/10", "");
    let statuses: Vec<_> = (0..10).map(|_| stage.ask(&head).unwrap()).collect();
    let most = BURST + begin.elapsed().as_secs() + 1;
    assert!(stage.knows(&head));
    let passed = statuses.iter().filter(|status| **status == 200).count() as u64;
    let refused = statuses.iter().filter(|status| **status == 503).count() as u64;
    assert_eq!(passed + refused, 10, "{statuses:?}");
    assert!((1..=most).contains(&passed), "{statuses:?}");
    let verdicts = stage.front.verdicts().since(stage.front.before());
    for (reason, asked) in [(abi::FIEF_REQUEST_RULE, passed), (abi::FIEF_REQUEST_RATE, refused)] {
        assert!(stage.front.is_counted(verdicts.count(reason), asked), "{statuses:?}: {verdicts:?}");
    }
}

#[test]
fn equal_requests_are_counted_as_different_ones_are() {
    if !ready() {
        return;
    }
    const ASKED: u64 = 10;
    let rules = "[[listener.plain.request]]\npath = \"/10\"\nrefuse = \"503\"\nmode = \"monitor\"\n\
                 [[listener.plain.request]]\nhost = \"server\"\ncontainer = \"web/ten\"\n";
    let stage = Stage::new(Door::Own, &ruled(rules));
    let ask_all = |head: &dyn Fn(u64) -> Vec<u8>| {
        let before = stage.front.verdicts();
        for n in 0..ASKED {
            assert_eq!(stage.ask(&head(n)), Ok(200));
        }
        let new = stage.front.verdicts().since(&before);
        let of_requests = |verdict: &&Verdict| verdict.reason >= abi::FIEF_REQUEST_RULE;
        let mut kinds: Vec<_> = new.all().iter().filter(of_requests).cloned().collect();
        assert!(kinds.iter().all(|verdict| stage.front.is_counted(verdict.count, ASKED)), "{new:?}");
        kinds.iter_mut().for_each(|verdict| verdict.count = 0);
        kinds.sort_by_key(|verdict| (verdict.rule, verdict.reason));
        kinds
    };
    let different = ask_all(&|n| get("/10", &format!("X-Turn: {n}\r\n")));
    assert_eq!(different.len(), 2, "the trial, and the verdict: {different:?}");
    let head = get("/10", "");
    assert_eq!(ask_all(&|_| head.clone()), different);
    assert!(stage.knows(&head));
    // once more, now that it is known from the begin on
    assert_eq!(ask_all(&|_| head.clone()), different);
}

#[test]
fn a_head_that_comes_once_is_not_kept_and_moves_none_out() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, LETS_PASS);
    let head = get("/10", "");
    stage.learn(&head, Ok(200));
    let before = stage.known().len();
    for n in 0..300 {
        assert_eq!(stage.ask(&get("/10", &format!("X-Turn: {n}\r\n"))), Ok(200));
    }
    assert!(stage.knows(&head));
    // what a client sends again comes twice
    let after = stage.known().len();
    assert!(after as u64 <= before as u64 + stage.front.sent_again(), "{before} known before, {after} then");
    stage.stays(&head, Ok(200));
}

#[test]
fn an_upgrade_forgets_what_the_parsers_before_it_found() {
    if !ready() {
        return;
    }
    let stage = Stage::new(Door::Own, LETS_PASS);
    let head = get("/10", "");
    stage.learn(&head, Ok(200));
    let fief = stage.front.installation().fief();
    stage.front.topology.server.run(|| fief.upgrade()).unwrap().unwrap();
    assert_eq!(stage.known().len(), 0);
    stage.learn(&head, Ok(200));
}
