// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who used the CPU between two readings of `fief usage`. Pure.

use crate::command::Used;
use crate::table::Table;

/// Less than this part of the machine is not worth a line.
const LEAST: f64 = 0.001;

pub fn table(server: &str, low: usize, before: &[Used], after: &[Used]) -> Table {
    let title = format!("Who used the CPU while {low} others asked {server}, by Fief's account");
    let mut table = Table::new(title, &["container", "threads", "receive work", "of the machine", "who that is"]);
    let mut rows: Vec<Row> = after.iter().map(|now| Row::between(before, now)).collect();
    let total: f64 = rows.iter().map(Row::total).sum();
    rows.retain(|row| row.total() >= LEAST * total);
    rows.sort_by(|one, other| other.total().total_cmp(&one.total()));
    for row in &rows {
        table.row([
            row.container.clone(),
            format!("{:.0} ms", row.thread_ns / 1e6),
            format!("{:.0} ms", row.receive_ns / 1e6),
            format!("{:.1} %", 100.0 * row.total() / total),
            who(&row.container).to_owned(),
        ]);
    }
    table.note(
        "Receive work is the kernel's on packets; a kernel charges it to whoever runs at that moment, or to nobody.",
    );
    table
}

#[derive(Debug)]
struct Row {
    container: String,
    thread_ns: f64,
    receive_ns: f64,
}

impl Row {
    fn between(before: &[Used], now: &Used) -> Row {
        let then = before.iter().find(|then| then.container == now.container);
        let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0)) as f64;
        Row {
            container: now.container.clone(),
            thread_ns: since(now.thread_ns, then.map(|then| then.thread_ns)),
            receive_ns: since(now.receive_ns, then.map(|then| then.receive_ns)),
        }
    }

    fn total(&self) -> f64 {
        self.thread_ns + self.receive_ns
    }
}

/// The names that a newcomer meets here.
fn who(container: &str) -> &'static str {
    match container.trim_start_matches('/') {
        "gold" => "the server for the paying client",
        "browse" => "the server for the others",
        "" | "root" => "all that is not managed: here the clients themselves",
        "idle" => "nobody",
        "system" => "the kernel's own work",
        "steal" => "other machines on this host",
        "unattributed" => "work on sockets of nobody that is managed",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(container: &str, thread_ns: u64, receive_ns: u64) -> Used {
        Used {
            taken_ns: 0,
            container: container.to_owned(),
            id: 0,
            generation: 0,
            thread_ns,
            receive_ns,
            packets_in: 0,
            accepts: 0,
        }
    }

    #[test]
    fn counts_what_was_used_between_the_readings_largest_first() {
        let before = [used("gold", 1_000_000, 0), used("browse", 5_000_000, 0)];
        let after = [used("gold", 11_000_000, 10_000_000), used("browse", 65_000_000, 20_000_000), used("x", 10, 0)];
        let table = table("nginx", 40, &before, &after);
        assert_eq!(table.rows.len(), 2, "what used next to nothing has no line");
        assert_eq!(table.rows[0][..4], ["browse", "60 ms", "20 ms", "80.0 %"]);
        assert_eq!(table.rows[1][..4], ["gold", "10 ms", "10 ms", "20.0 %"]);
    }
}
