// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door at network interfaces: which of them its programs are attached to.
//!
//! A tcx link belongs to an interface and ends with it; its pin then stands for nothing and is replaced. A program ends the
//! interface's chain of programs only where it answers or drops.

use std::path::{Path, PathBuf};

use crate::attachment::{self, Attachment};
use crate::error::Result;
use crate::pin::Pins;
use crate::{lane, link};

/// The program at the interfaces.
pub const INGRESS_PROGRAM: &str = "ingress_guards";

/// The programs of the front door at interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Rules what arrives.
    Guards,
    /// Looks at the answers of servers that were asked for another protocol, as they leave.
    Confirms,
    /// At the loopback: notes which connections are the machine's own.
    Notes,
    /// Looks at the answers of servers with a queue, as they leave.
    Clocks,
    /// At an interface of Fief's own, where what it sends to itself comes back after a while.
    Ticks,
}

/// A program at an interface of a network namespace, which is known by its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Stand {
    pub netns: u64,
    pub interface: u32,
    pub part: Part,
}

impl Part {
    const ALL: [Part; 5] = [Part::Guards, Part::Confirms, Part::Notes, Part::Clocks, Part::Ticks];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Part::Guards => INGRESS_PROGRAM,
            Part::Confirms => "egress_confirms",
            Part::Notes => "ingress_notes",
            Part::Clocks => "egress_clocks",
            Part::Ticks => "ingress_ticks",
        }
    }

    fn row(self) -> &'static Attachment {
        attachment::of(self.program())
    }
}

impl Stand {
    fn pin(&self, pins: &Pins) -> PathBuf {
        self.part.row().pin_at(pins, self.netns, self.interface)
    }

    /// By its pin, if what that is attached to is there.
    fn read(pin: &Path) -> Option<Stand> {
        let netns = pin.parent()?.file_name()?.to_str()?.parse().ok()?;
        Some(Stand { netns, interface: link::target(pin)?, part: part_of(pin)? })
    }
}

fn part_of(pin: &Path) -> Option<Part> {
    Part::ALL.into_iter().find(|part| part.row().is_at(pin))
}

/// Attaches these programs to interfaces of the caller's network namespace. What is attached already stays.
pub fn attach(pins: &Pins, stands: &[Stand]) -> Result<()> {
    for stand in stands {
        link::attach_interface(pins, stand.part.row(), stand.netns, stand.interface)?;
    }
    Ok(())
}

/// Detaches every program but these.
pub fn detach_others(pins: &Pins, keep: &[Stand]) -> Result<()> {
    let keep: Vec<_> = keep.iter().map(|stand| stand.pin(pins)).collect();
    for pin in link::pins_below(&pins.interfaces()) {
        if !keep.contains(&pin) {
            link::remove(&pin)?;
        }
    }
    link::remove_empty_below(&pins.interfaces());
    Ok(())
}

/// What is attached now.
pub fn standing(pins: &Pins) -> Vec<Stand> {
    let mut found: Vec<_> = link::pins_below(&pins.interfaces()).iter().filter_map(|pin| Stand::read(pin)).collect();
    found.sort_unstable();
    found
}

/// The receiving ends of Fief's own pairs in the caller's network namespace, whose inode is `netns`, whatever installation made them:
/// by what is attached there, since others can give an interface any name.
pub fn own_ends(netns: u64) -> Vec<u32> {
    let rows = [Part::Ticks.row(), attachment::of(lane::LEAVES)];
    let all = Pins::all().into_iter().map(|scope| Pins::new(&scope));
    all.flat_map(|pins| rows.map(|row| link::interfaces_here(&pins, row, netns))).flatten().collect()
}

/// The interfaces that are guarded now: inode of the network namespace and index.
pub fn attached(pins: &Pins) -> Vec<(u64, u32)> {
    let guards = standing(pins).into_iter().filter(|stand| stand.part == Part::Guards);
    guards.map(|stand| (stand.netns, stand.interface)).collect()
}
