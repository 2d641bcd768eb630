// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a failing case smaller while it still fails: steps of its recipe are left out, then bytes.

use crate::campaign::{Campaign, Finding, Origin, Speech};
use crate::stage::Stage;
use crate::vector::{Case, Seed};

/// Rounds of leaving bytes out, so that one case never takes long.
const ROUNDS: usize = 24;

/// Whether each of these fails as `like` does.
fn fail(stage: &Stage, speech: Speech, like: &Finding, cases: &[Case]) -> Vec<bool> {
    let campaign =
        cases.iter().fold(Campaign::new(stage, speech), |campaign, case| campaign.with_trial(like, case.clone()));
    let findings = campaign.run(stage).findings;
    cases.iter().map(|case| findings.iter().any(|found| found.wrong == like.wrong && found.case == *case)).collect()
}

/// The same failure with as few steps as it needs. Its names tell what it is about.
pub fn steps(stage: &Stage, speech: Speech, seeds: &[Seed], mut finding: Finding) -> Finding {
    while let Origin::Grown(recipe) = &finding.origin {
        let without = |step: usize| {
            let mut recipe = recipe.clone();
            recipe.steps.remove(step);
            recipe
        };
        let recipes: Vec<_> = (0..recipe.steps.len()).map(without).collect();
        let cases: Vec<_> = recipes.iter().map(|recipe| recipe.make(seeds)).collect();
        let failed = fail(stage, speech, &finding, &cases);
        let Some(at) = failed.iter().position(|&failed| failed) else { break };
        finding.case = cases[at].clone();
        finding.origin = Origin::Grown(recipes[at].clone());
    }
    finding
}

/// The same failure with fewer bytes and cuts; for the printed line alone.
pub fn bytes(stage: &Stage, speech: Speech, finding: &Finding) -> Case {
    let mut case = finding.case.clone();
    let mut size = case.bytes.len().div_ceil(2).max(1);
    for _ in 0..ROUNDS {
        let mut smaller: Vec<Case> =
            (0..case.bytes.len()).step_by(size).map(|at| left_out(&case, at, size)).take(400).collect();
        if !case.cuts.is_empty() {
            smaller.insert(0, Case { cuts: vec![], ..case.clone() });
        }
        let failed = fail(stage, speech, finding, &smaller);
        match failed.iter().position(|&failed| failed) {
            Some(at) => case = smaller[at].clone(),
            None if size == 1 => break,
            None => size = size.div_ceil(2),
        }
    }
    case
}

fn left_out(case: &Case, at: usize, size: usize) -> Case {
    let stop = (at + size).min(case.bytes.len());
    let mut bytes = case.bytes.clone();
    bytes.drain(at..stop);
    let moved = |&cut: &usize| if cut <= at { cut } else { at.max(cut.saturating_sub(size)) };
    let mut cuts: Vec<usize> = case.cuts.iter().map(moved).filter(|&cut| cut < bytes.len()).collect();
    cuts.dedup();
    Case { bytes, cuts, ..*case }
}
