// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the whole machine did in the interval that is shown.

use super::App;
use crate::tui::rows::RowKind;

/// Parts of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    pub user: f64,
    pub system: f64,
    pub receive: f64,
    /// Threads that nobody manages.
    pub unmanaged: f64,
    pub steal: f64,
}

impl App {
    /// The sum of all lines at the top.
    pub fn machine(&self) -> Machine {
        let mut machine = Machine::default();
        for row in self.rows.iter().filter(|row| row.depth == 0) {
            match row.kind {
                RowKind::NotOurs if row.key.0 == fief::abi::FIEF_STEAL => machine.steal += row.cpu(),
                RowKind::NotOurs => {}
                _ => {
                    machine.user += row.user;
                    machine.system += row.system;
                    machine.receive += row.receive;
                    machine.unmanaged += row.undivided;
                }
            }
        }
        machine
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::quantity::part;
    use crate::tui::rows::sample;

    #[test]
    fn the_machine_is_the_sum_of_what_runs() {
        let mut app = App::new(Duration::from_secs(1));
        app.update(sample::moment([100, 100, 100, 0, 0]));
        app.update(sample::second().0);
        let machine = app.machine();
        assert!((machine.user + machine.system - 0.7).abs() < 1e-9, "{machine:?}");
    }

    /// A reading has the time of a CPU that the hypervisor has taken, and the next one has less (bpf/core/usage.bpf.h).
    #[test]
    fn what_a_reading_had_too_much_of_is_taken_from_what_comes_next() {
        let shown = |app: &mut App, second: u64, gold: u64| {
            let mut reading = sample::moment([0, gold, 0, 0, 0]);
            reading.taken_ns += second * 1_000_000_000;
            app.update(reading);
            let machine = app.machine();
            part(machine.user + machine.system)
        };
        let mut app = App::new(Duration::from_secs(1));
        // 20 ms too much in the second one, and in the last one before a pause
        let parts = [(0, 100), (1, 150), (2, 130), (3, 160), (4, 200)].map(|(at, gold)| shown(&mut app, at, gold));
        assert_eq!(parts, ["0", "2.5", "0", "0.5", "2.0"]);
        for _ in 0..2 {
            app.on_key(KeyEvent::from(KeyCode::Char('p')));
        }
        let parts = [(60, 180), (61, 210)].map(|(at, gold)| shown(&mut app, at, gold));
        assert_eq!(parts, ["2.0", "0.5"], "as before the pause, then 10 ms");
    }
}
