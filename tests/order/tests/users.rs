// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of what users have, and their entries, which go with the last one.

use fief_tests_order::users::{Stopped, Users};

/// More than any call has; fewer are an error of the test.
const POINTS: std::ops::Range<u32> = 0..1000;

/// What both have at the end is counted, nobody is kept out, and an entry goes with what it counts.
fn is_settled(users: &mut Users, how: &str) {
    for (user, count) in ["A", "B"].iter().zip(users.counts()) {
        assert_eq!(count.counted, count.held, "{how}: {user}");
    }
    for (take, give) in [("A", "a"), ("B", "b")] {
        users.go(take).unwrap_or_else(|err| panic!("{how}: {take} is refused: {err}"));
        while users.counts()[usize::from(take == "B")].held > 0 {
            users.go(give).unwrap();
        }
    }
    assert_eq!(users.entries(), 0, "{how}");
}

/// Between any two steps of a user who gives back or takes, the same user and another one do what they like.
#[test]
fn an_entry_that_goes_takes_no_other_users_along() {
    let at_once = [
        ("A", "a", "AaB"),
        ("A", "a", "B"),
        ("A", "a", "Aa"),
        ("A", "A", "aB"),
        ("A", "A", "aBb"),
        ("AB", "ab", "AaBb"),
    ];
    for (of_containers, (before, first, second)) in
        [false, true].into_iter().flat_map(|kind| at_once.map(|calls| (kind, calls)))
    {
        let mut met = 0;
        'first: for stop in POINTS {
            for other_stop in POINTS {
                let how = format!("containers {of_containers}, {first} at {stop}, {second} at {other_stop}");
                let mut users = Users::new(of_containers);
                users.go(before).unwrap();
                let stopped = users.share((first, stop), (second, other_stop));
                is_settled(&mut users, &how);
                match stopped {
                    Stopped::None => break 'first,
                    Stopped::First => break,
                    Stopped::Both => met += 1,
                }
            }
        }
        assert!(met > 10 && met < POINTS.end, "{first} and {second}: {met}");
    }
}

/// The entry of a user without a place goes with the last container, and may be that of another one who has a place.
#[test]
fn nobody_is_shown_to_the_place_of_another_user() {
    let mut met = 0;
    'first: for stop in POINTS {
        for other_stop in POINTS {
            let mut users = Users::new(true);
            users.go("A").unwrap();
            let stopped = users.share(("?", stop), ("aB=", other_stop));
            assert_eq!(users.place(), None, "{stop}, {other_stop}");
            match stopped {
                Stopped::None => break 'first,
                Stopped::First => break,
                Stopped::Both => met += 1,
            }
        }
    }
    assert!(met > 10 && met < POINTS.end, "{met}");
}

/// A count that somebody adds to a marked entry stays in it.
#[test]
fn an_entry_that_could_not_be_removed_is_swept() {
    let mut users = Users::new(true);
    users.go("A").unwrap();
    assert!(!users.sweep(), "it counts a container");
    users.stick(true);
    users.go("a").unwrap();
    assert!(users.go("A").is_err(), "it is about to go");
    users.stick(false);
    assert!(users.sweep());
    users.go("Aa").unwrap();
    assert_eq!(users.entries(), 0);
}
