// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief ls`: the containers as a tree, who holds them, what they have used.

use crate::cli::Ls;
use crate::failure::Result;
use crate::history::{self, Pace};
use crate::output::{Align, Output, Table};
use crate::quantity;
use crate::record::{self, Place};
use crate::tree::{self, Tree};
use fief_control::{ContainerView, Snapshot};

pub fn run(args: &Ls, output: &mut Output) -> Result<()> {
    let snapshot = history::source(&args.history, Pace::Leaps)?.look()?;
    match args.json {
        true => {
            let paths = record::paths(&snapshot);
            let order = Tree::of(&snapshot).walk();
            order.into_iter().try_for_each(|(at, _)| output.json(&Place::of(&snapshot.containers[at], &paths)))
        }
        false => output.text(table(&snapshot)),
    }
}

fn table(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        ("CONTAINER", Align::Left),
        ("ID", Align::Right),
        ("STATE", Align::Left),
        ("HELD BY", Align::Left),
        ("THREADS", Align::Right),
        ("PROCESSES", Align::Right),
        ("SOCKETS", Align::Right),
        ("CPU", Align::Right),
    ]);
    for (at, depth) in Tree::of(snapshot).walk() {
        let view = &snapshot.containers[at];
        table.push([
            tree::indented(&view.path, depth),
            view.id.to_string(),
            view.state.into(),
            holders(view),
            view.threads.to_string(),
            view.processes.to_string(),
            view.sockets.to_string(),
            quantity::duration(view.usage.cpu_ns()),
        ]);
    }
    table
}

/// What keeps it alive, in short.
pub fn holders(view: &ContainerView) -> String {
    if tree::is_always_there(view) {
        return "always there".to_owned();
    }
    let mut holders = Vec::new();
    if view.policy {
        holders.push("policy".to_owned());
    }
    if view.unit {
        holders.push("unit".to_owned());
    }
    if !view.policy && !view.unit && view.handles > 0 {
        holders.push(if view.handles == 1 { "1 handle".to_owned() } else { format!("{} handles", view.handles) });
    }
    if holders.is_empty() && view.threads > 0 {
        holders.push("threads".to_owned());
    }
    quantity::or_dash((!holders.is_empty()).then(|| holders.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn the_list_is_a_tree_with_holders() {
        let mut gold = sample::container("shop/gold", 9, Some(8));
        gold.threads = 3;
        gold.usage.thread_ns = 1_500_000;
        let mut request = sample::container("shop/gold/#70", 70, Some(9));
        request.policy = false;
        let snapshot = sample::snapshot(vec![
            sample::container("idle", fief::abi::FIEF_IDLE, None),
            sample::container("shop", 8, Some(0)),
            gold,
            request,
        ]);
        assert_eq!(
            table(&snapshot).to_string(),
            "\
CONTAINER  ID  STATE  HELD BY       THREADS  PROCESSES  SOCKETS     CPU
shop        8  alive  policy              0          0        0       0
  gold      9  alive  policy              3          0        0  1.5 ms
    #70    70  alive  1 handle            0          0        0       0
idle        2  alive  always there        0          0        0       0
"
        );
    }
}
