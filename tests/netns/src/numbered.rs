// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces by their numbers. That of one that is gone is given again: to the next thing that gets one.

use std::fs;
use std::os::unix::fs::MetadataExt;

use fief_testkit::NetNs;

/// More than keep smaller numbers that are free.
const MOST: usize = 100;
/// Somebody else may get the number first.
const TRIES: usize = 10;

/// A namespace's number.
pub fn netns_number(namespace: &NetNs) -> u64 {
    fs::metadata(namespace.path()).expect("it is there").ino()
}

/// A namespace that has the number of one that is gone, in which `work` was done.
pub fn numbered_again(work: impl Fn(&NetNs)) -> NetNs {
    let again = || {
        let gone = NetNs::new("gone").expect("a namespace");
        work(&gone);
        let number = netns_number(&gone);
        drop(gone);
        let mut others = Vec::new();
        let made = (0..MOST).map(|_| NetNs::new("again").expect("a namespace"));
        for namespace in made {
            if netns_number(&namespace) == number {
                return Some(namespace);
            }
            others.push(namespace);
        }
        None
    };
    (0..TRIES).find_map(|_| again()).expect("a namespace with a number that is free again")
}
