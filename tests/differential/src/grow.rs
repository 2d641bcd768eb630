// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes cases of seeds: a recipe names a seed and what is done to it, each step with dice of its own, so that a step can
//! be left out when a failing case is made smaller.

mod body;
mod fields;
mod line;
mod pieces;
mod target;

use fief_testkit::Dice;

use crate::campaign::Speech;
use crate::hello::{self, Change};
use crate::vector::{Case, Seed};

/// What can be done to a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    Method,
    Version,
    Blank,
    LineEnd,
    Fold,
    Before,
    Length,
    Target,
    Encoding,
    Host,
    Field,
    Secret,
    Body,
    Chunks,
    Pipeline,
    Bytes,
    Hello(Change),
    /// The last ones: the others move what they place.
    End,
    Pieces,
}

impl Mutation {
    /// Those of heads.
    pub const ALL: [Mutation; 18] = [
        Mutation::Method,
        Mutation::Version,
        Mutation::Blank,
        Mutation::LineEnd,
        Mutation::Fold,
        Mutation::Before,
        Mutation::Length,
        Mutation::Target,
        Mutation::Encoding,
        Mutation::Host,
        Mutation::Field,
        Mutation::Secret,
        Mutation::Body,
        Mutation::Chunks,
        Mutation::Pipeline,
        Mutation::Bytes,
        Mutation::End,
        Mutation::Pieces,
    ];

    fn apply(self, case: &mut Case, dice: &mut Dice) {
        match self {
            Mutation::Method => line::method(&mut case.bytes, dice),
            Mutation::Version => line::version(&mut case.bytes, dice),
            Mutation::Blank => line::blank(&mut case.bytes, dice),
            Mutation::LineEnd => line::line_end(&mut case.bytes, dice),
            Mutation::Before => line::before(&mut case.bytes, dice),
            Mutation::Target => target::target(&mut case.bytes, dice),
            Mutation::Encoding => target::encoding(&mut case.bytes, dice),
            Mutation::Fold => fields::fold(&mut case.bytes, dice),
            Mutation::Length => fields::length(&mut case.bytes, dice),
            Mutation::Host => fields::host(&mut case.bytes, dice),
            Mutation::Field => fields::field(&mut case.bytes, dice),
            Mutation::Secret => fields::secret(&mut case.bytes, dice),
            Mutation::Body => body::body(&mut case.bytes, dice),
            Mutation::Chunks => body::chunks(&mut case.bytes, dice),
            Mutation::Pipeline => body::pipeline(&mut case.bytes, dice),
            Mutation::Bytes => pieces::bytes(&mut case.bytes, dice),
            // Together with the others of its kind, Recipe::make.
            Mutation::Hello(_) => {}
            Mutation::End => pieces::end(case, dice),
            Mutation::Pieces => pieces::pieces(case, dice),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Number of a seed.
    pub seed: usize,
    pub steps: Vec<(Mutation, u64)>,
}

impl Recipe {
    pub fn throw(speech: Speech, seeds: &[Seed], dice: &mut Dice) -> Recipe {
        // Most cases begin with what everybody reads alike, so that one oddity stands alone.
        let ordinary = |seed: &Seed| seed.name.starts_with("plain") || seed.name.starts_with("secret");
        let mut seed = dice.roll(seeds.len());
        while !ordinary(&seeds[seed]) && dice.roll(4) != 0 {
            seed = dice.roll(seeds.len());
        }
        let count = 1 + [0, 0, 0, 1, 1, 2, 3][dice.roll(7)];
        let one = |dice: &mut Dice| match speech {
            Speech::Heads => Mutation::ALL[dice.roll(Mutation::ALL.len())],
            Speech::Hellos => match dice.roll(Change::ALL.len() + 2) {
                0 => Mutation::End,
                1 => Mutation::Pieces,
                change => Mutation::Hello(Change::ALL[change - 2]),
            },
        };
        let mut steps: Vec<_> = (0..count).map(|_| (one(dice), dice.number())).collect();
        steps.sort_by_key(|(mutation, _)| (*mutation >= Mutation::Hello(Change::Name)).then_some(*mutation));
        Recipe { seed, steps }
    }

    pub fn make(&self, seeds: &[Seed]) -> Case {
        let mut case = seeds[self.seed].case.clone();
        let change = |(mutation, seed): &(Mutation, u64)| match mutation {
            Mutation::Hello(change) => Some((*change, *seed)),
            _ => None,
        };
        hello::make(&mut case, &self.steps.iter().filter_map(change).collect::<Vec<_>>());
        for (mutation, seed) in &self.steps {
            mutation.apply(&mut case, &mut Dice::new(*seed));
        }
        case.cuts.retain(|&cut| cut < case.bytes.len());
        case
    }
}

/// One of them.
fn one<'a, T: ?Sized>(dice: &mut Dice, all: &[&'a T]) -> &'a T {
    all[dice.roll(all.len())]
}

/// The lines of the first head with their ends, leading empty ones left out; the empty line not among them.
fn lines(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut at = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let mut found = vec![];
    while let Some(length) = bytes[at..].iter().position(|&byte| byte == b'\n') {
        if matches!(&bytes[at..at + length], b"" | b"\r") {
            break;
        }
        found.push(at..at + length + 1);
        at += length + 1;
    }
    found
}

/// The first line without its end; the whole of the bytes where no line ends.
fn first_line(bytes: &[u8]) -> std::ops::Range<usize> {
    let line = lines(bytes).first().cloned().unwrap_or(0..bytes.len());
    let text = &bytes[line.clone()];
    let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    line.start..line.start + end
}

/// Where the target stands in the first line.
fn target_range(bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    let line = first_line(bytes);
    let text = &bytes[line.clone()];
    let begin = text.iter().position(|&byte| byte == b' ')? + 1;
    let length = text[begin..].iter().position(|&byte| byte == b' ').unwrap_or(text.len() - begin);
    Some(line.start + begin..line.start + begin + length)
}

fn replace(bytes: &mut Vec<u8>, range: std::ops::Range<usize>, with: &[u8]) {
    bytes.splice(range, with.iter().copied());
}

/// A place behind the first line where a field may stand.
fn field_place(bytes: &[u8], dice: &mut Dice) -> usize {
    let lines = lines(bytes);
    if lines.is_empty() { bytes.len() } else { lines[dice.roll(lines.len())].end }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::Speech;

    use crate::vector::seeds;

    #[test]
    fn a_recipe_always_makes_the_same_case() {
        let seeds = seeds();
        let throw = || Recipe::throw(Speech::Heads, &seeds, &mut Dice::new(7));
        assert_eq!((throw(), throw().make(&seeds)), (throw(), throw().make(&seeds)));
    }

    #[test]
    fn every_mutation_changes_some_case_and_survives_the_oddest() {
        let seeds = seeds();
        let odd = [&b""[..], b"\n", b"\r\n\r\n", b"x", b" ", b"GET /\n\n"];
        for mutation in Mutation::ALL {
            for (number, bytes) in odd.iter().enumerate() {
                mutation.apply(&mut Case::whole(*bytes), &mut Dice::new(number as u64));
            }
            let changes = (0..20).any(|number| {
                let mut case = seeds[0].case.clone();
                mutation.apply(&mut case, &mut Dice::new(number));
                case != seeds[0].case
            });
            assert!(changes, "{mutation:?}");
        }
    }
}
