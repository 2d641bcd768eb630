// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every measure of [`Sides`] has: a value of each side and round in both manners of asking, and the figures that a promise
//! makes of them.

use super::{Rounds, Side, Sides};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::progress::Progress;
use crate::stage::Manner;
use crate::table::Table;
use serde_json::Value;

/// What a setting's figures are called and must be: with a connection for each request, and over persistent ones.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    pub name: &'static str,
    /// What a request costs more, in ns; none where only requests a second are measured.
    pub added: Option<&'static str>,
    /// Of the value without.
    pub least: [Option<f64>; Manner::ALL.len()],
    /// Of the value with empty programs.
    pub least_of_floor: [Option<f64>; Manner::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    pub sides: &'a Sides<'a>,
    /// What nginx is here, for notes and the JSON.
    pub about: &'a str,
    /// One for each setting, in their order.
    pub promises: &'a [Promise],
}

impl Trial<'_> {
    /// One step a side and round. `take` gives a value and what the JSON says of it; `after` comes while the side is still in
    /// force.
    pub(super) fn measure<T: Copy>(
        &self,
        (part, what): (&str, &str),
        rounds: usize,
        (progress, outcome): (&mut Progress, &mut Outcome),
        mut take: impl FnMut(Manner) -> Result<(T, Value)>,
        mut after: impl FnMut(Side) -> Result<()>,
    ) -> Result<[Rounds<T>; Manner::ALL.len()]> {
        let experiment = outcome.name;
        let taken = self.sides.rounds(rounds, what, progress, |side, round| {
            let mut values = Vec::new();
            for manner in Manner::ALL {
                let (value, mut object) = take(manner)?;
                object["experiment"] = experiment.into();
                object["part"] = part.into();
                object["what"] = self.sides.title(side).into();
                object["how"] = manner.title().into();
                object["round"] = round.into();
                object["nginx"] = self.about.into();
                outcome.measurements.push(object);
                values.push(value);
            }
            after(side).map(|()| values)
        })?;
        Ok(Manner::ALL.map(|manner| taken.map(|values| values[manner.place()])))
    }

    /// Where the empty programs are, below the first of the tables.
    pub(super) fn note_places(&self, manner: Manner, table: &mut Table) {
        if manner.place() == 0 {
            table.note(self.sides.places());
        }
    }

    /// Three figures for each setting: of without, its floor, and of the floor. `compare` gives the ratio of two sides, and what
    /// it is.
    pub(super) fn add_figures(
        &self,
        figures: &mut Figures,
        manner: Manner,
        load: &str,
        compare: impl Fn(Side, Side) -> (f64, String),
    ) {
        for (setting, promise) in self.promises.iter().enumerate() {
            for (word, side, of, least) in three(setting, promise, manner) {
                let name = format!("{}{word}{}", promise.name, manner.suffix());
                let (value, metric) = compare(side, of);
                let figure = match least {
                    Some(least) => figures.must(name, value, Bound::AtLeast(least)),
                    None => figures.add(name, value),
                };
                figure.of(metric, "ratio", load);
            }
        }
    }
}

/// The end of the name, what is held against what, and the bound.
type Compared = (&'static str, Side, Side, Option<f64>);

fn three(setting: usize, promise: &Promise, manner: Manner) -> [Compared; 3] {
    let (with, floor) = (Side::With(setting), Side::Floor(setting));
    [
        ("", with, Side::Without, promise.least[manner.place()]),
        ("_floor", floor, Side::Without, None),
        ("_vs_floor", with, floor, promise.least_of_floor[manner.place()]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_held_against_without_and_its_own_floor() {
        let promise = Promise { name: "cpu", added: None, least: [Some(0.9); 2], least_of_floor: [None, Some(0.98)] };
        let [of_without, floor, of_floor] = three(1, &promise, Manner::Persistent);
        assert_eq!(of_without, ("", Side::With(1), Side::Without, Some(0.9)));
        assert_eq!(floor, ("_floor", Side::Floor(1), Side::Without, None));
        assert_eq!(of_floor, ("_vs_floor", Side::With(1), Side::Floor(1), Some(0.98)));
    }
}
