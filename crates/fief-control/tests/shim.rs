// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listen shim's own tests, which are in C beside it and need neither privilege nor BPF.

use std::process::Command;

use fief_testkit::require_if;

/// What make says of a program that could have no network namespace (`LEFT_OUT` in shim/tests/network.h).
const LEFT_OUT: &str = "Error 77";

fn make(goal: &str) {
    let output = Command::new("make")
        .args(["--silent", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../../shim"), goal])
        .arg(format!("OUT={}", env!("CARGO_TARGET_TMPDIR")))
        .env_remove("MAKEFLAGS")
        .env("LC_ALL", "C")
        .output()
        .expect("make is there, since the build needs it");
    let said = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success();
    if require_if("netns", passed || !said.contains(LEFT_OUT), false) {
        assert!(passed, "{said}");
    }
}

#[test]
fn the_shim_keeps_its_order() {
    make("test");
}

/// In a network namespace of its own, as the next.
#[test]
fn threads_and_processes_that_wait_on_one_set_never_hang() {
    make("waiters");
}

#[test]
fn an_epoll_instance_or_listening_socket_is_one_under_all_its_descriptors() {
    make("names");
}

/// Under the sanitizer for threads too, as those that wait.
#[test]
fn threads_that_accept_wait_and_close_at_once_leave_no_client_unheard() {
    make("threads");
}

#[test]
fn the_shim_follows_a_server_that_opens_closes_forks_and_executes_at_random() {
    make("stress");
}
