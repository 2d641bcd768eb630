// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guarantees must be kept: what the children of a container are promised is at most what it has itself.
//!
//! A container without a share of its own promises what its children need, and has to be given that by its parent in
//! turn; so its share becomes the sum of theirs. At the top stands the machine with 100 %.

use std::collections::HashMap;
use std::ops::Range;

use crate::containers::Declared;
use crate::diagnostic::{Findings, Kind};
use crate::quantity::as_percent;

const MACHINE_PPM: u64 = 1_000_000;

/// Reports broken promises and fills in the shares of parents that name none. `tree`: parents before children.
pub(crate) fn check(tree: &mut [Declared], findings: &mut Findings) {
    let position: HashMap<String, usize> =
        tree.iter().enumerate().map(|(index, declared)| (declared.container.path.clone(), index)).collect();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); tree.len()];
    let mut top = Vec::new();
    for (index, declared) in tree.iter().enumerate() {
        match declared.container.parent().and_then(|parent| position.get(parent)) {
            Some(&parent) => children[parent].push(index),
            None => top.push(index),
        }
    }

    for index in (0..tree.len()).rev() {
        let Some(needed) = sum(tree, &children[index]) else {
            continue;
        };
        let cpu = tree[index].container.cpu;
        let own = (cpu.share_ppm > 0).then_some((u64::from(cpu.share_ppm), "share"));
        let limit = (cpu.limit_ppm > 0).then_some((u64::from(cpu.limit_ppm), "limit"));
        if let Some((bound, key)) = own.or(limit)
            && needed > bound
        {
            let path = tree[index].container.path.clone();
            let span = if key == "share" { tree[index].share_span.clone() } else { tree[index].limit_span.clone() };
            report(tree, &children[index], &Bound { ppm: bound, of: Some((path, key, span)) }, findings);
        }
        if cpu.share_ppm == 0 {
            // Beyond the bound an error has just been given; one is enough.
            let given = needed.min(limit.map_or(MACHINE_PPM, |(bound, _)| bound));
            tree[index].container.cpu.share_ppm = u32::try_from(given).unwrap_or(u32::MAX);
        }
    }
    if sum(tree, &top).is_some_and(|needed| needed > MACHINE_PPM) {
        report(tree, &top, &Bound { ppm: MACHINE_PPM, of: None }, findings);
    }
    for declared in tree.iter() {
        check_own_limit(declared, findings);
    }
}

/// What the shares of these containers add up to; none: nobody has one.
fn sum(tree: &[Declared], indices: &[usize]) -> Option<u64> {
    let total: u64 = indices.iter().map(|&index| u64::from(tree[index].container.cpu.share_ppm)).sum();
    (total > 0).then_some(total)
}

/// What there is to promise, and the container that has it (none: the machine) by which key at which place.
struct Bound {
    ppm: u64,
    of: Option<(String, &'static str, Option<Range<usize>>)>,
}

/// Points at the share with which the sum goes over the bound; the others are shown beside it.
fn report(tree: &[Declared], siblings: &[usize], bound: &Bound, findings: &mut Findings) {
    let mut total = 0;
    let mut over = None;
    for &index in siblings {
        total += u64::from(tree[index].container.cpu.share_ppm);
        if total > bound.ppm && over.is_none() {
            over = Some(index);
        }
    }
    let Some(over) = over else { return };
    let place = |index: usize| tree[index].share_span.clone().unwrap_or_else(|| tree[index].span.clone());
    let share = |index: usize| u64::from(tree[index].container.cpu.share_ppm);
    let path = &tree[over].container.path;
    let bound_text = as_percent(bound.ppm);

    let others: Vec<usize> = siblings.iter().copied().filter(|&index| index != over && share(index) > 0).collect();
    let is_alone = share(over) > bound.ppm || others.is_empty();
    let has = match &bound.of {
        Some((parent, key, _)) => format!("the {key} of its parent `{parent}` is {bound_text}"),
        None => "the machine has 100%".to_owned(),
    };
    let message = if is_alone {
        format!("`{path}` is guaranteed {}, but {has}", as_percent(share(over)))
    } else {
        format!("the shares of `{path}` and its siblings add up to {}, but {has}", as_percent(total))
    };
    let remedy = {
        let raise = match &bound.of {
            Some((parent, key, _)) if total <= MACHINE_PPM => {
                format!(", or raise cpu.{key} of `{parent}` to \"{}\"", as_percent(total))
            }
            _ => String::new(),
        };
        if is_alone && others.is_empty() {
            format!("lower cpu.share of `{path}` to \"{bound_text}\" or less{raise}")
        } else {
            format!("lower the shares by {} in all{raise}", as_percent(total - bound.ppm))
        }
    };
    let expected = if is_alone || others.is_empty() {
        format!("at most {bound_text}")
    } else {
        format!("shares of at most {bound_text} in all")
    };
    let finding = findings.add(Kind::Share, place(over), message, expected, remedy);
    if let Some((parent, key, Some(span))) = &bound.of {
        finding.also(span.clone(), format!("the {key} of `{parent}`"));
    }
    // A page of siblings explains nothing more.
    for &other in others.iter().take(8) {
        let message = format!("`{}` is guaranteed {}", tree[other].container.path, as_percent(share(other)));
        finding.also(place(other), message);
    }
}

fn check_own_limit(declared: &Declared, findings: &mut Findings) {
    let cpu = declared.container.cpu;
    let (Some(share_span), Some(limit_span)) = (&declared.share_span, &declared.limit_span) else {
        return;
    };
    if cpu.limit_ppm == 0 || cpu.share_ppm <= cpu.limit_ppm {
        return;
    }
    let (share, limit) = (as_percent(cpu.share_ppm.into()), as_percent(cpu.limit_ppm.into()));
    findings
        .add(
            Kind::Share,
            share_span.clone(),
            format!("`{}` is guaranteed {share}, but limited to {limit}", declared.container.path),
            format!("at most {limit}"),
            format!("lower cpu.share to \"{limit}\" or less, or raise cpu.limit to \"{share}\" or more"),
        )
        .also(limit_span.clone(), "the limit");
}
