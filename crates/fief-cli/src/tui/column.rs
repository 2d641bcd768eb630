// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The columns of `top`: their titles, what a line shows in them, and how lines are sorted by them.

use std::cmp::Ordering;

use super::rows::Row;
use crate::quantity;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Container,
    Share,
    Cpu,
    User,
    System,
    Receive,
    PacketsIn,
    PacketsOut,
    Syns,
    Dropped,
    Threads,
}

impl Column {
    /// From left to right.
    pub const ALL: [Column; 11] = [
        Column::Container,
        Column::Share,
        Column::Cpu,
        Column::User,
        Column::System,
        Column::Receive,
        Column::PacketsIn,
        Column::PacketsOut,
        Column::Syns,
        Column::Dropped,
        Column::Threads,
    ];

    /// Left out in this order where the terminal is narrow.
    pub const DISPENSABLE: [Column; 9] = [
        Column::Share,
        Column::PacketsOut,
        Column::Threads,
        Column::Dropped,
        Column::Syns,
        Column::PacketsIn,
        Column::System,
        Column::User,
        Column::Receive,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Column::Container => "CONTAINER",
            Column::Share => "SHARE",
            Column::Cpu => "CPU%",
            Column::User => "USER%",
            Column::System => "SYS%",
            Column::Receive => "RECV%",
            Column::PacketsIn => "PKTS IN/s",
            Column::PacketsOut => "PKTS OUT/s",
            Column::Syns => "SYN/s",
            Column::Dropped => "DROPPED/s",
            Column::Threads => "THREADS",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Column::Container => "the container; each line counts what is below it too",
            Column::Share => "guaranteed part of the machine's CPU; (30%): nobody enforces it",
            Column::Cpu => "CPU time, in percent of the whole machine",
            Column::User => "threads in user mode; not known of threads that nobody manages",
            Column::System => "threads in the kernel",
            Column::Receive => "receiving packets for it, whomever that interrupted",
            Column::PacketsIn => "packets that reached its sockets",
            Column::PacketsOut => "packets that its sockets sent",
            Column::Syns => "connection requests",
            Column::Dropped => "of these, dropped",
            Column::Threads => "threads that are bound to it now",
        }
    }

    /// Wide enough for its title and every number below it.
    pub fn width(self) -> usize {
        self.title().len().max(5)
    }

    pub fn cell(self, row: &Row) -> String {
        let split = |part: f64| match row.undivided > 0.0 && row.user + row.system <= 0.0 {
            true => "-".to_owned(),
            false => quantity::part(part),
        };
        match self {
            Column::Container => row.name.clone(),
            Column::Share => match quantity::percent(row.share_ppm) {
                _ if row.share_ppm == 0 => "-".to_owned(),
                share if row.is_share_held => share,
                share => format!("({share})"),
            },
            Column::Cpu => quantity::part(row.cpu()),
            Column::User => split(row.user),
            Column::System => split(row.system),
            Column::Receive => quantity::part(row.receive),
            Column::PacketsIn => quantity::rate(row.packets_in),
            Column::PacketsOut => quantity::rate(row.packets_out),
            Column::Syns => quantity::rate(row.syns_seen),
            Column::Dropped => quantity::rate(row.syns_dropped),
            Column::Threads => row.threads.to_string(),
        }
    }

    /// Names from A, numbers from the greatest.
    pub fn compare(self, a: &Row, b: &Row) -> Ordering {
        let number = |row: &Row| match self {
            Column::Container => 0.0,
            Column::Share => f64::from(row.share_ppm),
            Column::Cpu => row.cpu(),
            Column::User => row.user,
            Column::System => row.system,
            Column::Receive => row.receive,
            Column::PacketsIn => row.packets_in,
            Column::PacketsOut => row.packets_out,
            Column::Syns => row.syns_seen,
            Column::Dropped => row.syns_dropped,
            Column::Threads => f64::from(row.threads),
        };
        match self {
            Column::Container => a.name.cmp(&b.name),
            _ => number(b).total_cmp(&number(a)),
        }
    }

    /// The one to the right, or to the left; from the last to the first.
    pub fn next(self, step: isize) -> Self {
        let here = Self::ALL.iter().position(|&column| column == self).expect("every column is in the list");
        let count = Self::ALL.len() as isize;
        Self::ALL[(here as isize + step).rem_euclid(count) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_round() {
        assert_eq!(Column::Container.next(-1), Column::Threads);
        assert_eq!(Column::Threads.next(1), Column::Container);
        assert_eq!(Column::Cpu.next(1), Column::User);
    }

    #[test]
    fn only_the_container_and_its_cpu_time_are_indispensable() {
        let kept: Vec<_> = Column::ALL.into_iter().filter(|column| !Column::DISPENSABLE.contains(column)).collect();
        assert_eq!(kept, [Column::Container, Column::Cpu]);
    }
}
