// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a rule says of how its class waits: how many, for how long, and how many places no other class can take. What the command
//! tells of each class.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::wait_until;
use fief_tests_netns::front::{Door, ready};
use fief_tests_netns::queued::{POLICY, Queued, high, low, robot, status};
use fief_tests_netns::{SOON, fief_binary, one_installation};

/// A place lasts longer than any of these tests. `queue`: more of the queue's; and what the rules of the classes say.
fn policy(queue: &str, classes: &[(&str, &str)]) -> String {
    let mut policy = POLICY.replace("length = 200, wait = \"1m\"", &format!("stale = \"30s\", {queue}"));
    for (class, says) in classes {
        let container = format!("\ncontainer = \"{class}\"\n");
        assert!(policy.contains(&container), "{class}");
        policy = policy.replace(&container, &format!("{container}queue = {{ {says} }}\n"));
    }
    policy
}

/// The server has a request that it does not answer yet.
fn busy(rig: &Queued) -> TcpStream {
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    first
}

/// Asks, and waits until so many wait.
fn waits(rig: &Queued, from: IpAddr, path: &str, waiting: u32) -> TcpStream {
    let asked = rig.ask(from, path);
    rig.wait_for(waiting);
    asked
}

#[test]
fn a_class_waits_for_as_long_as_its_rule_says() {
    if !ready() {
        return;
    }
    let cases = [("wait = \"1m\"", "low", "wait = \"200ms\""), ("wait = \"200ms\"", "high", "wait = \"1m\"")];
    let _one = one_installation();
    for door in Door::GUARDS {
        for (queue, class, says) in cases {
            let rig = Queued::new(door, &policy(queue, &[(class, says)]));
            let first = busy(&rig);
            let patient = waits(&rig, high(1), "/high", 1);
            assert_eq!(status(rig.ask(low(2), "/low")), 503, "{door:?}, {class}");
            assert_eq!((rig.queue().waiting, rig.queue().class[1].refused_wait), (1, 1), "{door:?}, {class}");
            rig.let_go(2);
            assert_eq!((status(first), status(patient)), (200, 200), "{door:?}, {class}");
            rig.wait_for_peace();
        }
    }
}

/// One more comes each 4 ms, and the server answers none: for longer than it takes to see that, and for as long as `more` says so.
fn come_in_turn(rig: &Queued, more: impl Fn() -> bool) -> Vec<TcpStream> {
    let mut asked = Vec::new();
    for n in (1..=250).cycle() {
        asked.push(rig.ask(low(n), "/low"));
        std::thread::sleep(Duration::from_millis(4));
        if asked.len() > 20 && !more() {
            break;
        }
    }
    asked
}

#[test]
fn who_waits_in_a_line_that_gets_no_shorter_is_refused_soon() {
    if !ready() {
        return;
    }
    let (unsaid, said) = ("length = 2000", "length = 2000, wait = \"1m\"");
    let refused = |rig: &Queued| rig.queue().class[1].refused_wait;
    let _one = one_installation();
    for door in Door::GUARDS {
        for queue in [unsaid, said] {
            let rig = Queued::new(door, &policy(queue, &[]));
            let first = busy(&rig);
            let begun = Instant::now();
            // as long as what the policy says may hold; on a busy machine it may take longer to see, and by default nobody waits for 5 s
            let most = Duration::from_millis(if queue == said { 3000 } else { 4500 });
            let asked = come_in_turn(&rig, || refused(&rig) == 0 && begun.elapsed() < most);
            assert_eq!(refused(&rig) > 0, queue == unsaid, "{door:?}, {queue}: {:?}", rig.queue().class[1]);
            // nobody who has just come
            let last = rig.ask(high(1), "/high");
            rig.let_go(1 + asked.len());
            assert_eq!((status(first), status(last)), (200, 200), "{door:?}, {queue}");
        }
    }
}

#[test]
fn a_burst_waits_as_long_as_ever() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy("length = 2000", &[]));
        let mut asked = vec![busy(&rig)];
        let many = 30;
        asked.extend((1..=many).map(|n| rig.ask(low(n), "/burst")));
        rig.wait_for(many.into());
        // answered one after the other, in more than a second; some come meanwhile
        for n in 1..=many {
            rig.let_go(1);
            std::thread::sleep(Duration::from_millis(50));
            if n % 10 == 0 {
                asked.push(rig.ask(low(n), "/more"));
            }
        }
        rig.let_go(asked.len());
        assert_eq!(rig.queue().class[1].refused_wait, 0, "{door:?}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn no_more_of_a_class_wait_than_its_length() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy("length = 200, wait = \"1m\"", &[("low", "length = 2")]));
        let mut asked = vec![busy(&rig)];
        asked.push(waits(&rig, low(2), "/l1", 1));
        asked.push(waits(&rig, robot(1), "/r1", 2));
        asked.push(waits(&rig, low(3), "/l2", 3));
        // nobody gives way, however much worse
        assert_eq!(status(rig.ask(low(4), "/l3")), 429, "{door:?}");
        asked.push(waits(&rig, high(1), "/h1", 4));
        asked.push(waits(&rig, robot(2), "/r2", 5));
        rig.let_go(6);
        assert_eq!(rig.got_all(6), ["/first", "/h1", "/l1", "/l2", "/r1", "/r2"], "{door:?}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
        assert!(rig.front.is_counted(rig.queue().class[1].refused_full, 1), "{door:?}");
    }
}

#[test]
fn what_a_class_has_for_itself_no_other_one_fills() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy("length = 4, wait = \"1m\"", &[("high", "reserve = 2")]));
        let mut asked = vec![busy(&rig)];
        asked.push(waits(&rig, low(2), "/l1", 1));
        let gives_way = waits(&rig, low(3), "/l2", 2);
        assert_eq!(status(rig.ask(low(4), "/l3")), 503, "{door:?}: the rest is the high class's");
        asked.push(waits(&rig, high(1), "/h1", 3));
        asked.push(waits(&rig, high(2), "/h2", 4));
        assert_eq!(rig.queue().class[1].waiting, 2, "{door:?}: nobody had to give way");
        let better = rig.ask(high(3), "/h3");
        assert_eq!(status(gives_way), 503, "{door:?}: beyond its reserve a better class displaces");
        asked.push(better);
        rig.wait_for(4);
        rig.let_go(5);
        assert_eq!(rig.got_all(5), ["/first", "/h1", "/h2", "/h3", "/l1"], "{door:?}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
        assert_eq!(rig.queue().shared, 0, "{door:?}");
    }
}

#[test]
fn nobody_is_displaced_from_a_place_of_its_classs_own() {
    if !ready() {
        return;
    }
    let reserves = [("high", "reserve = 1"), ("robots", "reserve = 1")];
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy("length = 3, wait = \"1m\"", &reserves));
        let mut asked = vec![busy(&rig)];
        asked.push(waits(&rig, robot(1), "/r1", 1));
        let gives_way = waits(&rig, low(2), "/l1", 2);
        asked.push(waits(&rig, high(1), "/h1", 3));
        asked.push(rig.ask(high(2), "/h2"));
        assert_eq!(status(gives_way), 503, "{door:?}: though the robots are worse");
        rig.wait_for(3);
        assert_eq!(status(rig.ask(robot(2), "/r2")), 503, "{door:?}");
        assert_eq!(status(rig.ask(high(3), "/h3")), 503, "{door:?}: the robot that waits has its own place");
        rig.let_go(4);
        assert_eq!(rig.got_all(4), ["/first", "/h1", "/h2", "/r1"], "{door:?}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn what_a_class_had_while_nobody_waited_is_not_owed() {
    if !ready() {
        return;
    }
    let equal = policy("length = 200, wait = \"1m\"", &[]).replace("cpu.priority = 200", "");
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &equal);
        rig.let_go(40);
        for n in 1..=40 {
            assert_eq!(status(rig.ask(high(n), "/alone")), 200, "{door:?}");
        }
        rig.wait_for_peace();
        let mut asked = vec![rig.ask(low(1), "/first")];
        rig.got_all(41);
        for (n, waiting) in (1..=4).zip([1, 3, 5, 7]) {
            asked.push(waits(&rig, low(n + 1), "/low", waiting));
            asked.push(waits(&rig, high(n), "/high", waiting + 1));
        }
        rig.let_go(9);
        let got = rig.got_all(49);
        let of_four = got[41..45].iter().filter(|path| *path == "/high").count();
        assert!((1..=3).contains(&of_four), "{door:?}: {:?}", &got[40..]);
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

/// The accept queue stays empty meanwhile.
#[test]
fn requests_that_wait_make_the_listener_busy() {
    if !ready() {
        return;
    }
    let levels =
        "[overload]\nbusy = { queue = \"50%\", cpu = \"100%\" }\noverloaded = { cpu = \"100%\" }\nhold = \"50ms\"\n";
    let rule = "[[listener.plain.request]]\npath = \"/dear\"\nrefuse = \"503\"\nwhen = \"busy\"\n";
    for door in Door::GUARDS {
        let rig = Queued::new(door, &(levels.to_owned() + &policy("length = 4, wait = \"1m\"", &[]) + rule));
        let first = busy(&rig);
        let second = waits(&rig, low(2), "/second", 1);
        let third = waits(&rig, low(3), "/third", 2);
        // what comes is what looks, once in 10 ms
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(status(rig.ask(high(1), "/dear")), 503, "{door:?}");
        rig.let_go(3);
        assert_eq!([first, second, third].map(status), [200; 3], "{door:?}");
        rig.let_go(1000);
        wait_until(SOON, || status(rig.ask(high(1), "/dear")) == 200).unwrap();
        rig.wait_for_peace();
    }
}

/// Reasons of what was told, each once, in their order.
fn told(rig: &Queued) -> Vec<(&'static str, String)> {
    let recent = || rig.front.installation().fief().recent(Duration::from_secs(60)).unwrap();
    let notices = rig.front.topology.server.run(recent).unwrap().notices;
    let mut told: Vec<_> = notices
        .into_iter()
        .map(|(_, notice)| (notice.verdict.reason.as_str(), notice.source.ip().to_string()))
        .collect();
    told.dedup();
    told
}

#[test]
fn what_becomes_of_requests_that_wait_is_told() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy("length = 1, wait = \"1m\"", &[]));
        let first = busy(&rig);
        let gives_way = waits(&rig, low(2), "/l1", 1);
        assert_eq!(status(rig.ask(low(3), "/l2")), 503, "{door:?}");
        let better = rig.ask(high(1), "/h1");
        assert_eq!(status(gives_way), 503, "{door:?}");
        rig.let_go(2);
        assert_eq!((status(first), status(better)), (200, 200), "{door:?}");
        rig.wait_for_peace();
        let (l1, l2, h1) = (low(2).to_string(), low(3).to_string(), high(1).to_string());
        let told = told(&rig);
        let expected = [
            ("queue-waits", &l1),
            ("refused-queue-full", &l2),
            ("refused-queue-displaced", &l1),
            ("queue-released", &h1),
        ];
        let of = |word| told.iter().find(|(reason, _)| *reason == word).map(|(_, source)| source);
        for (reason, source) in expected {
            assert_eq!(of(reason), Some(source), "{door:?}: {told:?}");
        }
        let verdicts = rig.front.verdicts();
        let counted = |reason| verdicts.count(reason);
        assert_eq!([abi::FIEF_QUEUE_WAITS, abi::FIEF_QUEUE_RELEASED].map(counted), [0, 0], "{door:?}: no verdicts");
        let refused = [abi::FIEF_REFUSED_QUEUE_FULL, abi::FIEF_REFUSED_QUEUE_DISPLACED].map(counted);
        assert!(refused.iter().all(|count| rig.front.is_counted(*count, 1)), "{door:?}: {refused:?}");
    }
}

fn fief(rig: &Queued, words: &[&str]) -> Command {
    let mut command = rig.front.topology.server.command(fief_binary().to_str().expect("a path in UTF-8"));
    command.args(words).env("FIEF_SCOPE", rig.front.installation().scope());
    command
}

/// What it prints.
fn said(rig: &Queued, words: &[&str]) -> String {
    let done = fief(rig, words).output().expect("it starts");
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// Cells of a line of `top` behind the number of threads: who waits, is in service, places, P50, P99, full, late.
fn cells(line: &str) -> Vec<String> {
    let columns = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    columns.skip(11).map(str::to_owned).collect()
}

#[test]
fn show_and_top_tell_who_waits_in_each_class_and_who_is_refused() {
    if !ready() {
        return;
    }
    let rig = Queued::new(Door::Own, &policy("length = 2, wait = \"1m\"", &[]));
    let first = busy(&rig);
    let better = waits(&rig, high(1), "/high", 1);
    let gives_way = waits(&rig, robot(1), "/robot", 2);
    let second = rig.ask(low(2), "/low");
    assert_eq!(status(gives_way), 503);
    assert_eq!(status(rig.ask(robot(2), "/robot")), 503);
    rig.wait_for(2);

    let low_says = said(&rig, &["show", "low", "--json"]);
    for word in [
        "\"listener\":\"plain\",\"container\":\"low\",\"places\":1,\"places_found\":false,\"in_service\":1",
        "\"waiting\":1",
        "\"class_in_service\":1",
        "\"wait_p99_ns\":null",
    ] {
        assert!(low_says.contains(word), "{word}: {low_says}");
    }
    let words = |container: &str| {
        let page = said(&rig, &["show", container]);
        let line = page.lines().skip_while(|line| !line.starts_with("QUEUE OF")).nth(1).unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(words("low"), ["plain", "1", "1", "1", "-", "-", "0", "0", "0"]);
    assert_eq!(words("high"), ["plain", "1", "0", "1", "-", "-", "0", "0", "0"]);
    assert_eq!(words("robots"), ["plain", "0", "0", "1", "-", "-", "2", "0", "0"]);
    assert_eq!(words("web"), [""; 0], "which is no class");

    let mut top = fief(&rig, &["top", "--plain", "--interval", "0.2", "--count", "50"]);
    let mut top = top.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(top.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut next =
        || lines.by_ref().find(|line| line.starts_with("high ")).map(|line| cells(&line)).expect("a page more");
    assert_eq!(next(), ["1", "0", "1", "-", "-", "0", "0"]);
    rig.let_go(1);
    // the wait is of the interval in which it ended, and of no other one
    let released = std::iter::repeat_with(&mut next).find(|cells| cells[4] != "-").expect("there is no end");
    assert_eq!((&*released[0], &*released[1], released[3] == released[4]), ("0", "1", true), "{released:?}");
    assert_eq!(next(), ["0", "1", "1", "-", "-", "0", "0"]);
    top.kill().and_then(|()| top.wait()).expect("it ends");
    assert_ne!(words("high")[5], "-");

    rig.let_go(2);
    assert_eq!([first, better, second].map(status), [200; 3]);
    rig.wait_for_peace();
    let after = said(&rig, &["show", "low"]);
    assert!(after.contains("plain: the server has 0 of 1 requests at once; 0 of 2 wait"), "{after}");
}
