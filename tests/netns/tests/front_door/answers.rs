// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who answers a connection request, the front door or the kernel; and the sysctls that the kernel's cookies need, which are given
//! back.

use std::os::fd::{AsRawFd, OwnedFd};

use fief_bpf::abi;
use fief_control::{Applied, ApplyOptions};
use fief_testkit::{NetNs, wait_until};
use fief_tests_netns::SOON;

use crate::door::{Door, answers_of, policy};

#[test]
fn a_policy_that_fails_at_last_leaves_the_sysctls_of_the_one_before() {
    let Some(door) = Door::new() else { return };
    let [own, kernel] = ["own", "kernel"].map(|who| policy(&format!("handshake = \"{who}\""), "admit = true", 10));
    door.apply(&own).unwrap();
    let text = door.no_next();
    door.apply(&kernel).unwrap_err();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    std::fs::remove_dir(text).unwrap();
    door.apply(&kernel).unwrap();
    let elsewhere = NetNs::new("elsewhere").unwrap();
    let moved = || elsewhere.run(|| door.apply_by(&kernel, ApplyOptions { here: true, ..ApplyOptions::default() }));
    let text = door.no_next();
    moved().unwrap().unwrap_err();
    assert_eq!(answers_of(&door.namespace), ["2", "2"]);
    assert_eq!(answers_of(&elsewhere), ["1", "1"]);
    std::fs::remove_dir(text).unwrap();
    moved().unwrap().unwrap();
    // cookies may still come back to where the door stood
    assert_eq!(answers_of(&door.namespace), ["1", "2"]);
    assert_eq!(answers_of(&elsewhere), ["2", "2"]);
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    assert_eq!(answers_of(&elsewhere), ["1", "1"]);
}

#[test]
fn the_kernels_cookies_are_switched_on_and_the_sysctls_given_back() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    let kernel = policy("handshake = \"kernel\"", "admit = true", 10);
    let applied = door.apply(&kernel).unwrap();
    assert!(applied.notes.iter().any(|note| note.contains("tcp_syncookies = 2")), "{:?}", applied.notes);
    assert_eq!(answers_of(&door.namespace), ["2", "2"]);
    assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_KERNEL, 0);
    let own = policy("handshake = \"own\"", "admit = true", 10);
    for _ in 0..2 {
        door.apply(&own).unwrap();
        // cookies may still come back, and their connections must have the offset that the SYN-ACK had
        assert_eq!(answers_of(&door.namespace), ["1", "2"]);
    }
    door.cookies_ran_out();
    door.apply(&own).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    door.apply(&kernel).unwrap();
    // again, so that what was ours is not taken for what was there
    door.apply(&kernel).unwrap();
    // from another network namespace
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
}

#[test]
fn cookies_come_back_also_where_the_kernel_answered_by_them_before() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    for (who, timestamps) in [("kernel", "2"), ("own", "2"), ("kernel", "2")] {
        door.apply(&policy(&format!("handshake = \"{who}\""), "admit = true", 10)).unwrap();
        assert_eq!(answers_of(&door.namespace), ["2", timestamps], "{who}");
    }
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["2", "1"]);
}

#[test]
fn who_only_watches_changes_no_sysctl() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    for watches in ["admit = true\nmode = \"monitor\"", "admit = true"] {
        let kernel = policy("handshake = \"kernel\"", watches, 10);
        let applied = door.apply(&kernel).unwrap();
        let is_set = !watches.contains("monitor");
        assert_eq!(door.sysctl("tcp_syncookies"), if is_set { "2" } else { "1" }, "{watches}: {:?}", applied.notes);
    }
    let watching = policy("handshake = \"kernel\"", "admit = true\nmode = \"monitor\"", 10);
    door.apply(&watching).unwrap();
    assert_eq!(door.sysctl("tcp_syncookies"), "1");
    door.cookies_ran_out();
    door.apply(&watching).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
}

#[test]
fn a_sysctl_that_somebody_else_has_changed_since_is_left_alone() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("handshake = \"kernel\"", "admit = true", 10)).unwrap();
    door.namespace.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    door.namespace.run(|| door.fief.down().unwrap()).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "0"]);
}

#[test]
fn a_firewall_makes_the_kernel_answer() {
    let Some(door) = Door::new() else { return };
    let text = policy("", "admit = true", 10);
    let own = door.apply(&text).unwrap();
    assert!(own.notes.iter().any(|note| note.contains("the front door answers")), "{:?}", own.notes);
    let nft = |words: &str| {
        let done = door.namespace.command("nft").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "nft {words}");
    };
    nft("add table inet guard");
    nft("add chain inet guard in { type filter hook input priority 0 ; }");
    let own = door.apply(&text).unwrap();
    assert!(own.notes.iter().any(|note| note.contains("the front door answers")), "a chain without rules: {own:?}");
    nft("add rule inet guard in tcp dport 81 drop");
    let kernel = door.apply(&text).unwrap();
    assert!(kernel.notes.iter().any(|note| note.contains("table inet guard has rules")), "{kernel:?}");
    nft("add rule inet guard in ct state invalid drop");
    let kernel = door.apply(&text).unwrap();
    assert!(kernel.notes.iter().any(|note| note.contains("inet guard tracks connections")), "{kernel:?}");
    assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_KERNEL, 0);
}

#[test]
fn for_a_listener_of_multipath_tcp_the_kernel_answers_unless_the_policy_says_otherwise() {
    let Some(door) = Door::new() else { return };
    let multipath = door.namespace.run(multipath_listener).unwrap();
    let flags = |handshake: &str| {
        let applied = door.apply(&policy(handshake, "admit = true", 10)).unwrap();
        assert!(applied.notes.iter().any(|note| note.contains("multipath TCP")), "{:?}", applied.notes);
        door.guards()[&0].flags & (abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_KERNEL)
    };
    assert_eq!(flags("handshake = \"own\""), abi::FIEF_GUARD_ADMIT);
    assert_eq!(flags(""), abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_KERNEL);
    drop(multipath);
}

fn multipath_listener() -> OwnedFd {
    use nix::sys::socket::{Backlog, SockaddrIn, bind, listen};
    let socket = fief_tests_netns::multipath_socket(libc::AF_INET).unwrap();
    // a child that another test has just forked may still hold the address
    wait_until(SOON, || bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 80)).is_ok()).unwrap();
    listen(&socket, Backlog::new(16).unwrap()).unwrap();
    socket
}

#[test]
fn without_syncookies_nothing_is_admitted_and_the_remedy_is_said() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    // while the kernel answers it is 2, which the next policy does not leave
    for before in ["own", "kernel"] {
        door.apply(&policy(&format!("handshake = \"{before}\""), "admit = true", 10)).unwrap();
        let applied = door.apply(&policy("handshake = \"own\"", "admit = true", 10)).unwrap();
        assert!(applied.notes.iter().any(|note| note.contains("sysctl -w net.ipv4.tcp_syncookies=1")), "{applied:?}");
        assert_eq!(door.guards()[&0].flags & abi::FIEF_GUARD_ADMIT, 0, "{before}");
        assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_POLICE, 0, "rates hold all the same");
    }
}

#[test]
fn without_timestamps_the_weaker_cookie_and_the_remedy_are_said() {
    let Some(door) = Door::new() else { return };
    let text = policy("handshake = \"own\"", "admit = true", 10);
    let is_said =
        |applied: &Applied| applied.notes.iter().any(|note| note.contains("sysctl -w net.ipv4.tcp_timestamps=1"));
    assert!(!is_said(&door.apply(&text).unwrap()));
    door.namespace.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    assert!(is_said(&door.apply(&text).unwrap()));
}
