// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force while a server is loaded: nothing, empty programs where Fief's would be, or Fief; for one or more settings
//! of Fief. Each takes its turn in every round, in an order that turns too.

pub mod cpu;
pub mod throughput;
mod trial;

pub use trial::{Promise, Trial};

use crate::command::{PolicyFile, scope};
use crate::error::{Error, Result};
use crate::installation::Installation;
use crate::progress::Progress;
use fief_bpf::floor::{self, Floor, Place};
use fief_bpf::pin::Pins;
use fief_testkit::NetNs;
use std::path::{Path, PathBuf};

/// One of them. With and floor say which setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Without,
    /// Empty programs at the same places.
    Floor(usize),
    With(usize),
}

/// The server's cgroup, for settings that manage it.
#[derive(Clone, Debug)]
pub struct Unit {
    pub cgroup: PathBuf,
    pub container: &'static str,
    pub follow: bool,
}

/// A policy in force in the network namespace of a server.
#[derive(Debug)]
pub struct Setting<'a> {
    title: &'static str,
    policy: PolicyFile,
    servers: &'a NetNs,
    unit: Option<Unit>,
    places: Vec<Place>,
}

impl<'a> Setting<'a> {
    /// Puts it into force once, to see where its programs are.
    pub fn new(title: &'static str, policy: &str, servers: &'a NetNs, unit: Option<Unit>) -> Result<Setting<'a>> {
        let policy = PolicyFile::new(policy)?;
        let mut setting = Setting { title, policy, servers, unit, places: Vec::new() };
        let installation = setting.fief()?;
        setting.places = places()?;
        installation.down()?;
        let places = std::mem::take(&mut setting.places);
        setting.places = servers.run(|| places.into_iter().filter(Place::stays).collect())?;
        Ok(setting)
    }

    fn fief(&self) -> Result<Installation> {
        let installation = Installation::apply_in(&self.policy, self.servers)?;
        if let Some(unit) = &self.unit {
            installation.manage(&unit.cgroup, unit.container, unit.follow)?;
        }
        Ok(installation)
    }

    fn floor(&self) -> Result<Floor> {
        let unit = self.unit.as_ref().map(|unit| unit.cgroup.as_path());
        empty_programs(self.servers, &self.places, unit)
    }
}

/// At these places, those in a namespace in that of the servers; `unit`: the managed cgroup.
pub fn empty_programs(servers: &NetNs, places: &[Place], unit: Option<&Path>) -> Result<Floor> {
    let top = fief_testkit::cgroup2_mount()?;
    let floor = servers.run(|| Floor::attach(places, unit, Some(&top)))?;
    floor.map_err(|error| Error::failed(format!("cannot attach empty programs: {error}")))
}

/// Where the programs of the lab's installation are.
pub fn places() -> Result<Vec<Place>> {
    let places = floor::places(&Pins::new(&scope()));
    places.map_err(|error| Error::failed(format!("cannot tell where Fief's programs are: {error}")))
}

#[derive(Debug)]
pub struct Sides<'a> {
    settings: Vec<Setting<'a>>,
}

/// In force until it is dropped, or ended in order.
#[derive(Debug)]
struct Force {
    installation: Option<Installation>,
    floor: Option<Floor>,
}

/// What was measured, of each side a value a round.
#[derive(Debug)]
pub struct Rounds<T> {
    sides: Vec<(Side, Vec<T>)>,
}

impl<'a> Sides<'a> {
    pub fn new(settings: Vec<Setting<'a>>) -> Sides<'a> {
        Sides { settings }
    }

    pub fn all(&self) -> Vec<Side> {
        let settings = (0..self.settings.len()).flat_map(|place| [Side::Floor(place), Side::With(place)]);
        std::iter::once(Side::Without).chain(settings).collect()
    }

    pub fn title(&self, side: Side) -> String {
        match side {
            Side::Without => "without".to_owned(),
            Side::Floor(_) if self.settings.len() == 1 => "empty programs".to_owned(),
            Side::Floor(place) => format!("empty programs, {}", self.settings[place].title),
            Side::With(place) => self.settings[place].title.to_owned(),
        }
    }

    fn put(&self, side: Side) -> Result<Force> {
        let (mut installation, mut floor) = (None, None);
        match side {
            Side::Without => {}
            Side::Floor(place) => floor = Some(self.settings[place].floor()?),
            Side::With(place) => installation = Some(self.settings[place].fief()?),
        }
        Ok(Force { installation, floor })
    }

    /// `measure` gets the side that is in force and the number of the round.
    pub fn rounds<T>(
        &self,
        rounds: usize,
        what: &str,
        progress: &mut Progress,
        mut measure: impl FnMut(Side, usize) -> Result<T>,
    ) -> Result<Rounds<T>> {
        let all = self.all();
        let mut sides: Vec<(Side, Vec<T>)> = all.iter().map(|&side| (side, Vec::new())).collect();
        for round in 0..rounds {
            for turn in 0..all.len() {
                let place = (round + turn) % all.len();
                progress.step(&format!("{what}, {}", self.title(all[place])))?;
                let force = self.put(all[place])?;
                sides[place].1.push(measure(all[place], round)?);
                force.end()?;
            }
        }
        Ok(Rounds { sides })
    }

    /// Where the empty programs are, for a note below a table.
    pub fn places(&self) -> String {
        let mut told: Vec<&str> = Vec::new();
        let mut parts = Vec::new();
        for setting in &self.settings {
            let mut names: Vec<&str> = setting.places.iter().map(Place::name).collect();
            names.sort_unstable();
            names.dedup();
            names.retain(|name| !told.contains(name));
            let also = if told.is_empty() { String::new() } else { format!("{}: also ", setting.title) };
            parts.push(format!("{also}{}", names.join(", ")));
            told.extend(names);
        }
        format!("Empty programs at {}.", parts.join("; "))
    }
}

impl Force {
    fn end(self) -> Result<()> {
        drop(self.floor);
        self.installation.map_or(Ok(()), Installation::down)
    }
}

impl<T> Rounds<T> {
    pub fn of(&self, side: Side) -> &[T] {
        self.sides.iter().find(|one| one.0 == side).map_or(&[], |one| &one.1)
    }

    /// The same values seen otherwise.
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> Rounds<U> {
        let each = |(side, values): &(Side, Vec<T>)| (*side, values.iter().map(&of).collect());
        Rounds { sides: self.sides.iter().map(each).collect() }
    }

    fn iter(&self) -> impl Iterator<Item = (Side, &[T])> {
        self.sides.iter().map(|(side, values)| (*side, values.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_floor_is_measured_beside_it() {
        let rounds = Rounds { sides: vec![(Side::Without, vec![2.0]), (Side::Floor(0), vec![3.0])] };
        assert_eq!(rounds.map(|value| value * 2.0).of(Side::Floor(0)), [6.0]);
        assert!(rounds.of(Side::With(0)).is_empty());
    }
}
