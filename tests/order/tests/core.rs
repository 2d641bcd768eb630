// SPDX-License-Identifier: Apache-2.0 OR MIT
//! References of containers, when threads end, are bound from outside, follow their sockets, and find that a container has ended.

use fief_tests_order::FIRST;
use fief_tests_order::core::{By, Core, OURS, References, Socket, Worked};

const ESTALE: i32 = -116;
const ROOT: u32 = 0;
/// Of the table.
const SLOTS: u32 = 8;
/// More than any call has; fewer are an error of the test.
const POINTS: std::ops::Range<u32> = 0..10_000;

/// What the kernel cannot delete now, a thread's end finds again when its structure is freed (core.md C5).
#[test]
fn a_thread_that_ends_lets_go_once_also_where_its_storage_stays() {
    for storage_busy in [false, true] {
        let mut core = Core::new();
        let [home, class] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
        core.thread(1, home);
        core.switch(1);
        core.bind(class).unwrap();
        assert_eq!(core.references(home), References { handles: 2, ..OURS }, "{storage_busy}");
        assert_eq!(core.references(class), References { threads: 1, ..OURS }, "{storage_busy}");
        core.end(storage_busy);
        assert_eq!([home, class].map(|id| core.references(id)), [OURS; 2], "{storage_busy}");
    }
}

/// On 6.12 interrupts cannot be off while a thread binds itself (core.md C7).
#[test]
fn a_request_that_comes_in_the_midst_of_a_bind_takes_and_leaves_one_reference() {
    type Call = fn(&mut Core, u32) -> Result<(), i32>;
    let calls: [Call; 2] = [Core::bind, |core, _| core.unbind()];
    for (by, call) in [By::Softirq, By::Switch].into_iter().flat_map(|by| calls.map(|call| (by, call))) {
        let mut met = 0;
        for at in POINTS {
            let mut core = Core::new();
            let [home, was, to, asked] = [(); 4].map(|()| core.create(ROOT).unwrap());
            core.thread(1, home);
            core.switch(1);
            core.bind(was).unwrap();
            let Some(bound) = core.with_request(at, asked, by, |core| call(core, to)) else { break };
            met += 1;
            bound.unwrap();
            // what has to wait is taken at the next boundary
            core.softirq();
            let now = core.binding();
            assert!([home, to, asked].contains(&now), "point {at} of {by:?}: {now}");
            core.end(false);
            for id in [home, was, to, asked] {
                // the CPU keeps the reference of a thread that left by itself
                let kept = References { threads: 1, ..OURS };
                let left = core.references(id);
                assert!(left == OURS || left == kept, "point {at} of {by:?}: {id} has {left:?}");
                core.close(id);
            }
            assert_eq!(core.free(), SLOTS, "point {at} of {by:?}");
        }
        assert!(met > 5 && met < POINTS.end, "{met}");
    }
}

/// Between the lookup of a parent and the reference on it, it may end, and its slot be another's (core.md C8).
#[test]
fn a_parent_that_ends_while_a_child_is_made_has_it_or_the_child_is_refused() {
    child_comes_to("made", |core, parent, _| core.create(parent));
}

#[test]
fn a_parent_that_ends_while_a_child_is_moved_to_it_has_it_or_the_child_is_refused() {
    child_comes_to("moved", |core, parent, child| core.adopt(child, parent).map(|()| child));
}

/// `come`: a child of the second container, perhaps the third one.
fn child_comes_to(how: &str, come: impl Fn(&mut Core, u32, u32) -> Result<u32, i32>) {
    let mut refused = 0;
    for at in POINTS {
        let mut core = Core::new();
        let [parent, child] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
        let Some(came) = core.with_end(at, parent, |core| come(core, parent, child)) else {
            assert!(refused > 3 && at > 10, "{refused} of {at} points");
            return;
        };
        let all = 8..8 + SLOTS;
        let children: u64 = all.clone().map(|id| core.references(id).children).sum();
        match came {
            // the parent's slot stays, and nobody else has it
            Ok(_) => {
                assert_eq!(core.references(parent), References { handles: 0, threads: 0, children: 1 }, "{how}, {at}")
            }
            Err(why) => {
                assert_eq!((why, children), (ESTALE, 0), "{how}, {at}");
                refused += 1;
            }
        }
        for id in all {
            if core.references(id).handles > 0 {
                assert_eq!(core.references(id), OURS, "{how}, {at}: {id}");
                core.close(id);
            }
        }
        assert_eq!(core.free(), SLOTS, "{how}, {at}");
    }
    panic!("no end of points");
}

/// Clients say how many programs there are.
#[test]
fn programs_have_half_of_what_their_user_may_have_and_half_of_the_users_part_and_then_the_policys_own() {
    // the users' part is seven; a user's quota; a number of the policy's; what one user gets, and all
    for (quota, descendants, of_one, of_all) in
        [(0, 0, 2, 3), (100, 0, 2, 3), (2, 0, 1, 3), (2, 5, 1, 3), (100, 4, 2, 4), (100, 1, 1, 1)]
    {
        let case = format!("quota {quota}, descendants.max {descendants}");
        let mut core = Core::new();
        core.limit_users(quota);
        let into = core.create(ROOT).unwrap();
        core.limit_descendants(into, descendants);
        let mut made = Vec::new();
        for uid in [0, 1000, 1001] {
            let own = std::iter::from_fn(|| Some(core.program(uid, into)).filter(|&id| id != into));
            let own: Vec<u32> = own.collect();
            core.close(into); // the one without a container of its own
            assert_eq!(core.counted(uid) as usize, own.len(), "{case}");
            made.push(own);
        }
        assert_eq!(made[0].len(), of_one, "{case}");
        assert_eq!(made.concat().len(), of_all, "{case}");
        let references = References { handles: 1, threads: 0, children: of_all as u64 };
        assert_eq!(core.references(into), references, "{case}");
        // one that has ended makes room for the next
        core.close(made[0].pop().expect("some"));
        made[0].push(core.program(0, into));
        assert!(!made[0].contains(&into), "{case}: {made:?}");
        made.concat().into_iter().chain([into]).for_each(|id| core.close(id));
        assert_eq!(core.free(), SLOTS, "{case}");
    }
}

/// A server's own program starts those of its users (suexec).
#[test]
fn a_program_counts_for_who_it_runs_as_and_shares_the_policys_container_where_that_one_has_no_room() {
    const SERVER: u32 = 33;
    const USER: u32 = 1000;
    for full in [false, true] {
        let mut core = Core::new();
        core.limit_users(2); // one of them for programs
        let [home, into] = [core.create(ROOT).unwrap(), core.create(ROOT).unwrap()];
        let other = full.then(|| core.program(USER, into));
        core.thread(1, home);
        core.switch(1);
        core.programs(into, home);
        core.exec(SERVER);
        let own = core.binding();
        assert!(![home, into].contains(&own));
        assert_eq!((core.counted(SERVER), core.makes()), (1, true));
        core.exec(USER);
        assert_eq!((core.counted(SERVER), core.counted(USER)), (0, 1));
        assert_eq!(core.binding(), if full { into } else { own });
        for _ in 0..2 {
            assert_eq!(core.makes(), !full, "what is to be below the policy's container has room of its own");
            core.unbind().unwrap();
        }
        core.end(false);
        other.into_iter().chain([home, into]).for_each(|id| core.close(id));
        assert_eq!((core.free(), core.counted(USER)), (SLOTS, 0));
    }
}

/// A thread that follows its sockets, of a home with a class, for which it has just worked: its socket 0 is of a client of that.
fn follower() -> (Core, u32, u32) {
    let mut core = Core::new();
    let home = core.create(ROOT).unwrap();
    let gold = core.create(home).unwrap();
    core.follower(1, home);
    core.switch(1);
    core.socket(0, Socket::Accepted);
    core.label(0, Some(gold));
    core.receive(0, 1);
    assert_eq!(core.binding(), gold);
    (core, home, gold)
}

#[test]
fn a_request_without_a_container_is_the_homes_and_not_the_clients_before() {
    let kinds = [
        (Socket::Accepted, true),
        (Socket::Connected, false),
        (Socket::UnixAccepted(2), true),
        (Socket::UnixConnected(2), false),
    ];
    for (kind, brings) in kinds {
        for (bytes, labelled) in
            [0, 1].into_iter().flat_map(|bytes| ["not", "with none", "with a stranger"].map(|how| (bytes, how)))
        {
            let (mut core, home, gold) = follower();
            let stranger = core.create(ROOT).unwrap();
            core.socket(1, kind);
            match labelled {
                "with none" => core.label(1, None),
                "with a stranger" => core.label(1, Some(stranger)),
                _ => (),
            }
            core.receive(1, bytes);
            let works_for = if brings && bytes > 0 { home } else { gold };
            assert_eq!(core.binding(), works_for, "{kind:?}, {bytes}, labelled {labelled}");
            core.receive(0, 1);
            assert_eq!(core.binding(), gold, "{kind:?}, {bytes}, labelled {labelled}");
        }
    }
}

#[test]
fn what_nobody_asked_for_takes_the_container_from_a_connection_that_had_one() {
    let (mut core, home, gold) = follower();
    core.socket(1, Socket::UnixConnected(2));
    core.socket(2, Socket::UnixAccepted(1));
    core.send(1, 1);
    core.follower(2, home);
    core.switch(2);
    core.receive(2, 1);
    assert_eq!(core.binding(), gold, "the thread that sent it served gold");
    core.end(false);
    core.follower(2, home);
    core.switch(2);
    core.send(1, 1);
    core.switch(1);
    core.receive(0, 1);
    core.receive(2, 1);
    assert_eq!(core.binding(), home, "that one had not served");
}

/// Between the lookup of a label's container and the reference on it, that may end, and its slot be another's.
#[test]
fn a_class_that_ends_while_a_thread_comes_to_it_has_it_or_the_home_does() {
    let mut homes = 0;
    for at in POINTS {
        let (mut core, home, gold) = follower();
        core.socket(1, Socket::Accepted);
        core.receive(1, 1);
        assert_eq!(core.binding(), home);
        core.softirq();
        let Some(()) = core.with_end(at, gold, |core| core.receive(0, 1)) else {
            assert!(homes > 3 && at > homes, "{homes} of {at} points");
            return;
        };
        let now = core.binding();
        assert!([home, gold].contains(&now) && core.is_bound_to(now), "point {at}: {now}");
        homes += u32::from(now == home);
        core.end(false);
        for id in FIRST..FIRST + SLOTS {
            if core.references(id).handles > 0 {
                core.close(id);
            }
        }
        assert_eq!(core.free(), SLOTS, "point {at}");
    }
    panic!("no end of points");
}

#[test]
fn after_a_sleep_the_next_request_tells_whose_the_time_is() {
    let (mut core, home, gold) = follower();
    core.socket(1, Socket::Accepted);
    for (socket, whose) in [(0, gold), (1, home)] {
        core.switch(0);
        core.switch(1);
        assert_eq!(core.charges(), None);
        core.receive(socket, 1);
        assert_eq!((core.charges(), core.binding()), (Some(whose), whose));
        assert_eq!(core.makes(), whose == home); // it may where it is at home
    }
}

/// The threads' own calls shape what is noted here: none that moves no bytes says that a client is served.
#[test]
fn a_client_is_served_by_bytes_that_went_and_first_of_all_by_those_that_came() {
    let (mut core, _, gold) = follower();
    core.socket(1, Socket::Accepted);
    core.label(1, Some(gold));
    core.listener(0, 0);
    core.listener(1, 7);
    for nothing in [-32, -11, 0] {
        core.send(0, nothing);
        core.receive(0, nothing);
        assert_eq!(core.client(), None, "{nothing}");
    }
    for (socket, answered) in [(0, None), (0, None), (1, Some(7)), (0, Some(7))] {
        core.send(socket, 5);
        assert_eq!(core.client(), Some(Worked::Answered(0, answered)));
    }
    core.receive(1, 5);
    assert_eq!(core.client(), Some(Worked::ReceivedAndAnswered(7, 0)));
    core.receive(0, 5);
    assert_eq!(core.client(), Some(Worked::Received(0, Some(7))));
    for socket in [0, 1] {
        core.send(socket, 5);
        core.receive(0, 5);
        assert_eq!(core.client(), Some(Worked::Received(0, Some(7))));
    }
    core.listener(0, 0);
    for _ in 0..2 {
        core.receive(0, 5);
        core.send(0, 5);
        assert_eq!(core.client(), Some(Worked::Received(0, None)));
    }
    core.send(1, 5);
    assert_eq!(core.client(), Some(Worked::ReceivedAndAnswered(0, 7)));
}

#[test]
fn so_it_is_by_a_thread_that_was_bound_and_does_not_follow() {
    let mut core = Core::new();
    let home = core.create(ROOT).unwrap();
    core.thread(1, home);
    core.switch(1);
    core.socket(0, Socket::Accepted);
    core.label(0, Some(home));
    core.listener(0, 3);
    core.send(0, 5);
    assert_eq!(core.client(), Some(Worked::Answered(3, None)));
    assert_eq!(core.binding(), home);
}

#[test]
fn what_is_sent_without_a_label_takes_no_thread_to_its_home() {
    let (mut core, _, gold) = follower();
    core.socket(1, Socket::Accepted);
    core.send(1, 5);
    assert_eq!(core.binding(), gold);
}

/// What the scheduler goes by, against the same sums by a walk upwards.
#[test]
fn time_counts_where_the_turn_was_and_is_held_against_the_limits_of_whom_it_is_charged_to() {
    let mut core = Core::new();
    let mut chain = vec![ROOT];
    for level in 0..4 {
        chain.push(core.create(chain[level]).unwrap());
    }
    let other = core.create(chain[1]).unwrap();
    let all: Vec<u32> = chain.iter().copied().chain([other]).collect();
    // itself, and what is above it but the root
    let above = |id: u32| -> Vec<u32> {
        match chain.iter().position(|&one| one == id) {
            Some(at) => chain[1..=at].to_vec(),
            None => vec![chain[1], other],
        }
    };
    core.listener(0, 0);
    // one between them has ended, and is there since it has a child
    core.close(chain[2]);
    for (ns, to, from, receives) in [
        (1, chain[4], None, false),
        (2, chain[1], None, false),
        (3, ROOT, None, false),
        (4, chain[4], Some(other), false),
        (5, chain[4], Some(chain[4]), false),
        (6, chain[3], Some(ROOT), false),
        (7, chain[4], Some(other), true),
        (8, other, None, true),
        (9, chain[2], Some(chain[4]), false),
    ] {
        let mut sums: Vec<[i64; 3]> = all.iter().map(|&id| core.sums(id)).collect();
        core.gather(to, from, receives, ns);
        let from = from.filter(|&from| !receives && from != to);
        let mut add = |ids: Vec<u32>, sum: usize, ns: i64| {
            for id in ids {
                sums[all.iter().position(|&one| one == id).unwrap()][sum] += ns;
            }
        };
        let has_turn = from.unwrap_or(to);
        add(vec![has_turn], 0, ns as i64);
        add(above(has_turn), 1, ns as i64);
        if let Some(from) = from {
            add(above(from), 2, ns as i64);
            add(above(to), 2, -(ns as i64));
        }
        let now: Vec<[i64; 3]> = all.iter().map(|&id| core.sums(id)).collect();
        assert_eq!(now, sums, "{ns} ns to {to} of {from:?}, received: {receives}");
    }
}
