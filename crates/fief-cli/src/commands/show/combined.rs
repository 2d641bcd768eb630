// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that serve a container among others, and are scheduled for all of those together.

use fief_control::CombinedView;
use serde::Serialize;

use crate::output::printable;

/// Of a server with very many threads not all are told to people.
const SHOWN: usize = 20;

#[derive(Debug, Serialize)]
pub struct Combined<'a> {
    thread: u32,
    process: u32,
    /// All that it serves, by path.
    containers: &'a [String],
    /// Whose turn it has, since a request of that one waits for it.
    lent: Option<&'a str>,
}

impl<'a> Combined<'a> {
    /// Those that serve this container.
    pub fn of(all: &'a [CombinedView], path: &str) -> Vec<Self> {
        let is_its = |one: &&CombinedView| one.containers.iter().chain(&one.lent).any(|container| container == path);
        let of = |one: &'a CombinedView| Self {
            thread: one.thread,
            process: one.process,
            containers: &one.containers,
            lent: one.lent.as_deref(),
        };
        all.iter().filter(is_its).map(of).collect()
    }
}

pub fn lines(all: &[Combined]) -> String {
    let line = |one: &Combined| {
        let containers = printable(&one.containers.join(", "));
        let thread = format!("thread {} of process {}", one.thread, one.process);
        match one.lent {
            Some(lent) => {
                format!("{thread} serves {containers} by the turn of {}, whose request waits for it\n", printable(lent))
            }
            None => format!("{thread} is scheduled for {containers} together\n"),
        }
    };
    let mut lines: String = all.iter().take(SHOWN).map(line).collect();
    if all.len() > SHOWN {
        lines.push_str(&format!("and {} more threads\n", all.len() - SHOWN));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(thread: u32, containers: &[&str]) -> CombinedView {
        let containers = containers.iter().map(|path| (*path).to_owned()).collect();
        CombinedView { thread, process: 11, containers, lent: None }
    }

    #[test]
    fn a_thread_is_told_at_each_container_that_it_serves() {
        let all = [serves(12, &["shop", "shop/gold"]), serves(13, &["shop/gold", "shop/guests"])];
        let told = |path| lines(&Combined::of(&all, path));
        assert_eq!(told("shop"), "thread 12 of process 11 is scheduled for shop, shop/gold together\n");
        assert_eq!(told("shop/gold").lines().count(), 2);
        assert_eq!(told("system"), "");
    }

    #[test]
    fn a_lent_turn_is_told_at_both_containers() {
        let all = [CombinedView { lent: Some("gold".to_owned()), ..serves(12, &["bronze"]) }];
        let said = "thread 12 of process 11 serves bronze by the turn of gold, whose request waits for it\n";
        for path in ["gold", "bronze"] {
            assert_eq!(lines(&Combined::of(&all, path)), said);
        }
    }

    #[test]
    fn of_very_many_threads_some_are_told() {
        let all: Vec<_> = (0..25).map(|thread| serves(thread, &["a", "b"])).collect();
        assert!(lines(&Combined::of(&all, "a")).ends_with("\nand 5 more threads\n"));
    }
}
