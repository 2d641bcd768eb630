// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The columns of `top`: their titles, what a line shows in them, and how lines are sorted by them.

use std::cmp::Ordering;

use super::rows::Row;
use crate::quantity;
use crate::queued::Queued;

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
    Waiting,
    InService,
    Places,
    WaitP50,
    WaitP99,
    Full,
    Late,
}

impl Column {
    /// From left to right. Those of queues are last.
    pub const ALL: [Column; 18] = [
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
        Column::Waiting,
        Column::InService,
        Column::Places,
        Column::WaitP50,
        Column::WaitP99,
        Column::Full,
        Column::Late,
    ];

    /// Where no listener has a queue.
    const UNQUEUED: usize = 11;

    /// Left out in this order where the terminal is narrow.
    pub const DISPENSABLE: [Column; 16] = [
        Column::Share,
        Column::PacketsOut,
        Column::Threads,
        Column::Places,
        Column::WaitP50,
        Column::Dropped,
        Column::Syns,
        Column::PacketsIn,
        Column::Late,
        Column::Full,
        Column::System,
        Column::User,
        Column::InService,
        Column::Receive,
        Column::WaitP99,
        Column::Waiting,
    ];

    /// `has_queues`: some listener has one.
    pub fn shown(has_queues: bool) -> &'static [Self] {
        if has_queues { &Self::ALL } else { &Self::ALL[..Self::UNQUEUED] }
    }

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
            Column::Waiting => "WAITING",
            Column::InService => "IN SERVICE",
            Column::Places => "PLACES",
            Column::WaitP50 => "WAIT P50",
            Column::WaitP99 => "WAIT P99",
            Column::Full => "FULL/s",
            Column::Late => "LATE/s",
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
            Column::Waiting => "its requests that wait in queues now",
            Column::InService => "its requests that servers have now",
            Column::Places => "requests that those servers get at once, of all classes; ~: the number is found out",
            Column::WaitP50 => "half of its requests that went from a queue to the server waited no longer",
            Column::WaitP99 => "99 of a hundred of them waited no longer",
            Column::Full => "its requests that found no room in a queue, or gave way there to better ones",
            Column::Late => "its requests that waited in a queue for too long, or would have",
        }
    }

    /// Wide enough for its title and every number below it.
    pub fn width(self) -> usize {
        self.title().len().max(5)
    }

    /// Of a line that has to do with a queue.
    fn queue_cell(self, row: &Row) -> Option<String> {
        let queued = row.queued.as_ref()?;
        Some(match self {
            Column::Waiting => quantity::count(queued.waiting.into()),
            Column::InService => quantity::count(queued.in_service.into()),
            Column::Places => format!("{}{}", if queued.finds { "~" } else { "" }, queued.places()),
            Column::WaitP50 => queued.waits.quantile(0.5).map(quantity::duration)?,
            Column::WaitP99 => queued.waits.quantile(0.99).map(quantity::duration)?,
            Column::Full => quantity::rate(row.refused_full),
            Column::Late => quantity::rate(row.refused_wait),
            _ => return None,
        })
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
            _ => quantity::or_dash(self.queue_cell(row)),
        }
    }

    /// Names from A, numbers from the greatest.
    pub fn compare(self, a: &Row, b: &Row) -> Ordering {
        // whoever has nothing to do with a queue comes last
        let queued =
            |row: &Row, number: fn(&Queued) -> u64| row.queued.as_ref().map_or(-1.0, |queued| number(queued) as f64);
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
            Column::Waiting => queued(row, |queued| queued.waiting.into()),
            Column::InService => queued(row, |queued| queued.in_service.into()),
            Column::Places => queued(row, |queued| queued.places().into()),
            Column::WaitP50 => queued(row, |queued| queued.waits.quantile(0.5).unwrap_or(0)),
            Column::WaitP99 => queued(row, |queued| queued.waits.quantile(0.99).unwrap_or(0)),
            Column::Full => queued(row, |queued| queued.refused_full),
            Column::Late => queued(row, |queued| queued.refused_wait),
        };
        match self {
            Column::Container => a.name.cmp(&b.name),
            _ => number(b).total_cmp(&number(a)),
        }
    }

    /// The one to the right, or to the left, of those that are shown; from the last to the first.
    pub fn next(self, step: isize, shown: &[Self]) -> Self {
        // queues may have gone since it was chosen
        let here = shown.iter().position(|&column| column == self).unwrap_or(0);
        shown[(here as isize + step).rem_euclid(shown.len() as isize) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_round() {
        let next = |column: Column, step| [false, true].map(|queues| column.next(step, Column::shown(queues)));
        assert_eq!(next(Column::Container, -1), [Column::Threads, Column::Late]);
        assert_eq!(next(Column::Threads, 1), [Column::Container, Column::Waiting]);
        assert_eq!(next(Column::Cpu, 1), [Column::User; 2]);
        assert_eq!(next(Column::WaitP99, 1), [Column::Share, Column::Full], "it was sorted by one that is gone");
    }

    #[test]
    fn only_the_container_and_its_cpu_time_are_indispensable() {
        let kept: Vec<_> = Column::ALL.into_iter().filter(|column| !Column::DISPENSABLE.contains(column)).collect();
        assert_eq!(kept, [Column::Container, Column::Cpu]);
    }
}
