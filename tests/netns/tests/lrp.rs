// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lazy receiver processing: receive work in a thread of the class that it is for, with real packets.

#[path = "lrp/stage.rs"]
mod stage;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use fief::{Reason, assign};
use fief_control::{Fief, LaneView};
use fief_testkit::segment::ACK;
use fief_testkit::{Client, Family, Feature, NetNs, SchedStat, TaskClock, Topology, pin, require, wait_until};
use fief_tests_netns::{SOON, kill_before, role, steps};
use stage::{OTHER_PORT, PORT, Stage, policy, scheduling, send_all, serve};

fn interfaces(namespace: &NetNs) -> Vec<String> {
    let text = namespace.ip("-oneline link").unwrap();
    text.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_owned).collect()
}

fn own_interfaces(namespace: &NetNs) -> Vec<String> {
    interfaces(namespace).into_iter().filter(|name| name.starts_with("fief-")).collect()
}

#[test]
fn each_class_is_received_in_a_thread_of_its_own() {
    let name = "each_class_is_received_in_a_thread_of_its_own";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let classes = [(Client::High, "shop/high"), (Client::Middle, "shop/idle"), (Client::Low, "shop/low")];
    for family in [Family::V4, Family::V6] {
        for (class, own) in classes {
            let before = classes.map(|(_, container)| stage.lane(container).entered);
            let ran = || SchedStat::of(stage.thread(own).cast_unsigned()).unwrap().ran;
            let ran_before = ran();
            stage.upload(family, class, PORT, 4 << 20);
            for ((_, container), before) in classes.into_iter().zip(before) {
                let entered = stage.settled(container).entered - before;
                assert_eq!(entered > 1000, container == own, "{family:?} {container}: {entered}");
            }
            // a thread that has not slept since is accounted at the next tick; 1,000 packets take longer than that anywhere
            wait_until(SOON, || ran() > ran_before + Duration::from_micros(100)).unwrap();
        }
    }
}

#[test]
fn threads_have_the_priority_of_their_containers() {
    let name = "threads_have_the_priority_of_their_containers";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let of = |container| scheduling(stage.thread(container));
    assert_eq!([of("shop/high"), of("shop/low")], [(-20, libc::SCHED_OTHER), (10, libc::SCHED_OTHER)]);
    assert_eq!(of("shop/idle").1, libc::SCHED_IDLE);
    // a new policy finds the lanes as they are, and their threads another priority
    let thread = stage.thread("shop/low");
    let changed = policy("always").replace("cpu.priority = 50", "cpu.priority = 150");
    stage.topology.server.run(|| stage.installation.apply(&changed).unwrap()).unwrap();
    assert_eq!((stage.thread("shop/low"), of("shop/low").0), (thread, -10));
}

/// A switch of threads takes no longer.
const SWITCH_NS: u64 = 2000;

/// How often a thread came onto its CPU so far.
fn switches(thread: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
    let counts = text.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum()
}

/// How often the charge is measured, and how many of these somebody else may have disturbed, either way.
const MEASURED: usize = 10;
const DISTURBED: usize = 3;

#[test]
fn the_time_of_the_thread_is_charged_to_its_class() {
    let name = "the_time_of_the_thread_is_charged_to_its_class";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let thread = stage.thread("shop/low");
    pin(thread.cast_unsigned(), Topology::server_cpu()).unwrap();
    for (sound, family) in [(true, Family::V4), (true, Family::V6), (false, Family::V4), (false, Family::V6)] {
        let mut frames = stage.syns(family, Client::Low, 40_000);
        if !sound {
            // no socket ever sees these
            frames.iter_mut().for_each(|frame| *frame.last_mut().unwrap() ^= 0xff);
        }
        let mut errors: Vec<f64> = (0..MEASURED)
            .map(|_| {
                let (switched, stolen) = (switches(thread), stage.stolen_ns());
                let mut clock = TaskClock::of(thread.cast_unsigned()).unwrap();
                let charged = stage.receive_ns("shop/low");
                // on a busy machine the thread's queue is full most of the time, and it hardly runs
                wait_until(SOON, || {
                    stage.flood(&frames);
                    stage.settled("shop/low");
                    clock.ran().unwrap() > Duration::from_millis(10)
                })
                .expect("the thread works");
                let (charged, ran) = (stage.receive_ns("shop/low") - charged, clock.ran().unwrap().as_nanos() as f64);
                let error = charged as f64 / ran - 1.0;
                // between our mark of a switch and that of the thread's clock; a hypervisor's time is in the clock alone
                let between = ((switches(thread) - switched) * SWITCH_NS) as f64 / ran;
                let stolen = stage.stolen_ns().saturating_sub(stolen) as f64 / ran;
                if error > 0.0 { (error - between).max(0.0) } else { (error + stolen).min(0.0) }
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        eprintln!("{family:?}, sound: {sound}: {errors:.4?}");
        // the thread's clock has interrupts on top of it; the class has not
        let (least, most) = (errors[DISTURBED], errors[MEASURED - 1 - DISTURBED]);
        assert!(least > -0.03 && most < 0.03, "{family:?}, sound: {sound}: {errors:?}");
    }
}

#[test]
fn what_the_thread_cannot_take_up_is_discarded_and_counted() {
    let name = "what_the_thread_cannot_take_up_is_discarded_and_counted";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    pin(stage.thread("shop/low").cast_unsigned(), Topology::server_cpu()).unwrap();
    // damaged, so that nothing is answered and nothing comes back
    let mut frames = stage.syns(Family::V4, Client::Low, 60_000);
    frames.iter_mut().for_each(|frame| *frame.last_mut().unwrap() ^= 0xff);
    let mut sent = 0;
    // a flood is too much where the machine lets it come fast enough
    wait_until(SOON, || {
        stage.flood(&frames);
        sent += frames.len() as u64;
        let counted = || {
            let lane = stage.lane("shop/low");
            lane.entered + lane.discarded == sent && lane.entered == lane.left
        };
        wait_until(SOON, counted).unwrap_or_else(|e| panic!("{e}: {sent} of {:?}", stage.lane("shop/low")));
        stage.lane("shop/low").discarded > 0
    })
    .expect("more than the thread can take up");
    let discarded = stage.lane("shop/low").discarded;
    let front = stage.installation.fief().front().unwrap();
    let full: Vec<_> = front.verdicts.iter().filter(|verdict| verdict.reason == Reason::LaneFull).collect();
    assert_eq!(full.len(), 1, "{full:?}");
    assert_eq!((full[0].listener.as_str(), full[0].container.as_str()), ("four", "shop/low"));
    assert_eq!(full[0].count, discarded);
}

/// Of so many floods some come while the threads run; and more frames than what both lanes have room for at once.
const FLOODS: usize = 100;
const ROOM_OF_BOTH: u64 = 2048;

/// What a lane did in a flood.
#[derive(Debug, Default)]
struct Flooded {
    discarded: u64,
    left: u64,
}

impl Flooded {
    fn between(before: &LaneView, after: &LaneView) -> Flooded {
        Flooded { discarded: after.discarded - before.discarded, left: after.left - before.left }
    }

    fn add(&mut self, other: &Flooded) {
        self.discarded += other.discarded;
        self.left += other.left;
    }
}

#[test]
fn the_higher_class_goes_first_when_both_are_too_much() {
    let name = "the_higher_class_goes_first_when_both_are_too_much";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    for container in ["shop/high", "shop/low"] {
        pin(stage.thread(container).cast_unsigned(), Topology::server_cpu()).unwrap();
    }
    let [high, low] = [Client::High, Client::Low].map(|class| stage.syns(Family::V4, class, 60_000));
    // as much of each, in turn
    let both: Vec<_> = high.into_iter().zip(low).flat_map(|(high, low)| [high, low]).collect();
    let lanes = || (stage.settled("shop/high"), stage.settled("shop/low"));
    let (mut high, mut low) = (Flooded::default(), Flooded::default());
    let mut before = lanes();
    for _ in 0..FLOODS {
        stage.flood(&both);
        let after = lanes();
        let (of_high, of_low) = (Flooded::between(&before.0, &after.0), Flooded::between(&before.1, &after.1));
        before = after;
        // while the flooder has the machine to itself the threads do not run, and each lane keeps what it has room for
        if of_high.left + of_low.left >= ROOM_OF_BOTH {
            high.add(&of_high);
            low.add(&of_low);
        }
        if low.discarded > 100_000 {
            break;
        }
    }
    assert!(low.discarded > 100_000, "the lanes had too little to do: {high:?} {low:?}");
    // how much further depends on how much is too much
    assert!(high.discarded < low.discarded && high.left * 10 > low.left * 11, "{high:?} {low:?}");
}

/// Reads from the first client, then gives the second client's connection to the container it is bound to now.
fn serve_and_relabel() {
    let listener = TcpListener::bind(Topology::server_address(Family::V4, PORT)).unwrap();
    let (mut first, _) = listener.accept().unwrap();
    let (mut second, _) = listener.accept().unwrap();
    first.read_exact(&mut [0]).unwrap();
    assign(&second).unwrap();
    first.write_all(b".").unwrap();
    let mut buffer = vec![0; 65536];
    while second.read(&mut buffer).is_ok_and(|length| length > 0) {}
    second.write_all(b".").unwrap();
}

#[test]
fn a_socket_that_gets_another_container_moves_its_receive_work() {
    let name = "a_socket_that_gets_another_container_moves_its_receive_work";
    if role().is_some() {
        return serve_and_relabel();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let mut first = stage.connect(Family::V4, Client::High.address(Family::V4, 1), PORT);
    let mut second = stage.connect(Family::V4, Client::Low.address(Family::V4, 1), PORT);
    first.write_all(b".").unwrap();
    first.read_exact(&mut [0]).unwrap();
    let (high, low) = (stage.settled("shop/high").entered, stage.settled("shop/low").entered);
    send_all(&mut second, 4 << 20);
    second.shutdown(std::net::Shutdown::Write).unwrap();
    second.read_exact(&mut [0]).unwrap();
    assert!(stage.settled("shop/high").entered > high + 1000);
    assert_eq!(stage.lane("shop/low").entered, low);
}

/// Thresholds that nothing reaches.
const CALM: &str = "version = 1\n[overload]\nbusy = { drops = 900000 }\noverloaded = { drops = 1000000 }\n";

#[test]
fn below_the_level_and_at_other_ports_packets_go_straight() {
    let name = "below_the_level_and_at_other_ports_packets_go_straight";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "overloaded");
    // nobody else on the machine can raise it
    let calm = policy("overloaded").replace("version = 1\n", CALM);
    stage.topology.server.run(|| stage.installation.apply(&calm).unwrap()).unwrap();
    let entered = || ["shop/high", "shop/idle", "shop/low"].map(|container| stage.lane(container).entered);
    for family in [Family::V4, Family::V6] {
        stage.upload(family, Client::High, PORT, 1 << 20);
    }
    assert_eq!(entered(), [0; 3]);
    stage.topology.server.run(|| stage.installation.apply(&policy("always")).unwrap()).unwrap();
    stage.upload(Family::V4, Client::High, OTHER_PORT, 1 << 20);
    assert_eq!(entered(), [0; 3]);
    stage.upload(Family::V4, Client::High, PORT, 1 << 20);
    assert!(entered()[0] > 0);
}

#[test]
fn a_firewall_that_tracks_connections_sees_whole_ones() {
    let name = "a_firewall_that_tracks_connections_sees_whole_ones";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let rules = "table inet t { chain in { type filter hook input priority 0; policy drop; \
                 iifname \"lo\" accept; meta l4proto ipv6-icmp accept; ct state invalid drop; \
                 ct state established accept; tcp dport 8080 tcp flags syn ct state new accept; }; }";
    fief_testkit::run(stage.topology.server.command("nft").arg(rules)).unwrap();
    for family in [Family::V4, Family::V6] {
        stage.upload(family, Client::High, PORT, 1 << 20);
    }
    assert!(stage.lane("shop/high").entered > 100);
    // what belongs to no connection is dropped, and nobody says so
    let before = stage.lane("shop/low").entered;
    let mut stray = stage.syns(Family::V4, Client::Low, 1);
    stray[0][14 + 20 + 13] = ACK;
    stage.flood(&stray);
    wait_until(SOON, || stage.lane("shop/low").left > before).unwrap();
}

#[test]
fn a_policy_without_lanes_and_a_down_leave_none() {
    let name = "a_policy_without_lanes_and_a_down_leave_none";
    if role().is_some() {
        return serve();
    }
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let stage = Stage::new(name, "always");
    let server = &stage.topology.server;
    let before = own_interfaces(server);
    assert_eq!(before.len(), 6, "{before:?}");
    let fewer = policy("always").replace("container = \"shop/idle\"", "container = \"shop/low\"");
    server.run(|| stage.installation.apply(&fewer).unwrap()).unwrap();
    assert_eq!(own_interfaces(server).len(), 4);
    stage.upload(Family::V4, Client::Middle, PORT, 1 << 20);
    let none: String = policy("always")
        .lines()
        .filter(|l| !l.contains(".lrp") && !l.contains("when"))
        .map(|l| format!("{l}\n"))
        .collect();
    server.run(|| stage.installation.apply(&none).unwrap()).unwrap();
    assert!(own_interfaces(server).is_empty());
    stage.upload(Family::V4, Client::Low, PORT, 1 << 20);
    server.run(|| stage.installation.apply(&policy("always")).unwrap()).unwrap();
    assert_eq!(own_interfaces(server).len(), 6);
    // from another network namespace too
    stage.installation.fief().down().unwrap();
    assert!(own_interfaces(server).is_empty());
    stage.upload(Family::V6, Client::Low, PORT, 1 << 20);
}

/// Takes down what a test put into force, also when it fails.
struct Down(Fief);

impl Drop for Down {
    fn drop(&mut self) {
        let _ = self.0.down();
    }
}

#[test]
fn what_a_kill_left_is_swept_by_the_next_command() {
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let topology = Topology::new().unwrap();
    let fief = Fief::with_scope(&format!("ff-{}-lanes", std::process::id()));
    let _guard = Down(fief.clone());
    let apply = |text: &str| {
        let policy = fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        fief.apply(&policy, text, &Default::default()).unwrap_or_else(|e| panic!("{e}"));
    };
    let without = "version = 1\n[container.shop]\n";
    topology.server.run(|| apply(without)).unwrap();
    let again = || topology.server.run(|| apply(without)).unwrap();
    topology.server.run(|| apply(&policy("always"))).unwrap();
    again();
    let all = topology.server.run(|| steps(|| apply(&policy("always")))).unwrap();
    let mut left = 0;
    // lanes come last but for the steps that put the policy into force and note where they are
    let noting = all.saturating_sub(12);
    for step in (all.saturating_sub(60)..noting).step_by(6).chain(noting..all) {
        again();
        assert!(own_interfaces(&topology.server).is_empty(), "step {step}: {:?}", interfaces(&topology.server));
        assert!(topology.server.run(|| kill_before(step, || apply(&policy("always")))).unwrap(), "{step} of {all}");
        left += usize::from(!own_interfaces(&topology.server).is_empty());
    }
    again();
    assert!(own_interfaces(&topology.server).is_empty());
    assert!(left > 2, "{left} of {all}");
    let mut step = 0;
    loop {
        topology.server.run(|| apply(&policy("always"))).unwrap();
        let down = || {
            fief.down().unwrap();
        };
        if !kill_before(step, down) {
            break;
        }
        // killed late, it leaves nothing in force, which the next one says
        let _ = fief.down();
        assert!(own_interfaces(&topology.server).is_empty(), "step {step}: {:?}", interfaces(&topology.server));
        // the first steps take the lanes away, the others the pins
        step += if step < 12 { 3 } else { 60 };
    }
    assert!(own_interfaces(&topology.server).is_empty());
    assert!(step > 12, "{step}");
}
