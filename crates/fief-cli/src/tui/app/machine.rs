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

    use super::*;
    use crate::tui::rows::sample;

    #[test]
    fn the_machine_is_the_sum_of_what_runs() {
        let mut app = App::new(Duration::from_secs(1));
        app.update(sample::moment([100, 100, 100, 0, 0]));
        app.update(sample::second().0);
        let machine = app.machine();
        assert!((machine.user + machine.system - 0.7).abs() < 1e-9, "{machine:?}");
    }
}
