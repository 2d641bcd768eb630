// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A step of an apply that fails.

use std::path::PathBuf;

use fief_control::Fief;

/// A pin that lies elsewhere as long as this is there.
#[derive(Debug)]
pub struct Away {
    pin: PathBuf,
    away: PathBuf,
}

impl Away {
    pub fn new(pin: PathBuf) -> Self {
        let away = pin.with_file_name("away");
        std::fs::rename(&pin, &away).unwrap();
        Self { pin, away }
    }

    /// Has the last step of each apply fail: this program refuses what the one in whose place it is would be told.
    pub fn flip(fief: &Fief) -> Self {
        let away = Self::new(fief.pins().program("admin_flip"));
        std::fs::hard_link(fief.pins().program("admin_release"), &away.pin).unwrap();
        away
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        std::fs::rename(&self.away, &self.pin).unwrap();
    }
}
