// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any shares, weights and limits at two levels, where all have work: what each has of one CPU, and how long each waits for its turn.

use fief_tests_order::{Given, Machine};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SLICE: u64 = 4 * MS;
const ROOT: u32 = 0;

// of bpf/sched/order.h
const WHOLE: u64 = 1_000_000;
const LAG: u64 = 8 * MS;
const PERIOD: u64 = 20 * MS;

const CHOICES: u64 = 4000;

/// Among whom one is chosen: how far a choice moves it in virtual time, and each of the others.
#[derive(Debug, Clone)]
struct Stage {
    own: u64,
    others: Vec<u64>,
}

impl Stage {
    fn parties(&self) -> f64 {
        (self.others.len() + 1) as f64
    }

    /// Of what is given away here.
    fn part(&self) -> f64 {
        let speed = |cost: u64| 1.0 / cost as f64;
        speed(self.own) / self.others.iter().fold(speed(self.own), |sum, &other| sum + speed(other))
    }
}

/// A container whose threads always wait.
#[derive(Debug)]
struct Leaf {
    id: u32,
    /// How it is chosen, from itself up to the root.
    stages: Vec<Stage>,
    /// Of itself, and of what is above it; 0: none.
    limits: Vec<u32>,
}

impl Leaf {
    /// From one choice of it to the next, in choices. Of those that it is chosen among, none was behind it when it was chosen, unless it was
    /// away, and then by `lag`. So until its turn has come as often as is needed below, each of the others is chosen as often as that moves it
    /// no further, and once more.
    fn longest_gap(&self, lag: u64) -> u64 {
        self.stages.iter().fold(1, |turns, stage| {
            let of_one = |other: &u64| turns * stage.own / other + 1 + lag.div_ceil(SLICE);
            turns + stage.others.iter().map(of_one).sum::<u64>()
        })
    }

    /// Its part of the choices, and by how many of them it may be off. All began at the same place, and nobody is further ahead of who is most
    /// behind than by one choice of its own: so it may have one too many, and lack its part of those that the others have too many.
    fn expected(&self) -> (f64, f64) {
        self.stages.iter().rev().fold((CHOICES as f64, 0.0), |(choices, off), stage| {
            let part = stage.part();
            let here = if stage.others.is_empty() { 0.0 } else { f64::max(1.0, part * stage.parties()) };
            (choices * part, off * part + here)
        })
    }

    /// The least of the choices, where others are held by their limits at times, or come back: these have no more than one too many.
    fn least(&self) -> f64 {
        self.stages.iter().rev().fold(CHOICES as f64, |choices, stage| {
            let others_too_many = if stage.others.is_empty() { 0.0 } else { stage.parties() };
            (choices - others_too_many) * stage.part()
        })
    }
}

/// One of these children of a container that has `whole`, as it is chosen, from itself up: those without a share are one among those with one.
fn stages(children: &[Given], whole: u64, at: usize) -> Vec<Stage> {
    let by_share = |given: &Given| SLICE * WHOLE / u64::from(given.share_ppm);
    let by_weight = |given: &Given| SLICE * 10_000 / u64::from(given.weight);
    let given: u64 = children.iter().map(|child| u64::from(child.share_ppm)).sum();
    let rest = if whole == 0 { WHOLE } else { whole.saturating_sub(given).max(whole / 100 + 1) };
    let others = || children.iter().enumerate().filter(move |&(other, _)| other != at).map(|(_, child)| child);
    let mut shares: Vec<u64> = others().filter(|other| other.share_ppm > 0).map(by_share).collect();
    let rests: Vec<u64> = others().filter(|other| other.share_ppm == 0).map(by_weight).collect();
    let of_rest = SLICE * WHOLE / rest;
    if children[at].share_ppm == 0 {
        let among_rest = Stage { own: by_weight(&children[at]), others: rests };
        return vec![among_rest, Stage { own: of_rest, others: shares }];
    }
    shares.extend((!rests.is_empty()).then_some(of_rest));
    vec![Stage { own: by_share(&children[at]), others: shares }]
}

/// Shares no larger than what is left of the parent's, of 1 % at least.
fn that_fit(children: &[Given], whole: u64) -> Vec<Given> {
    let mut left = whole as u32;
    let fits = |child: &Given| {
        let share = child.share_ppm.min(left);
        let share_ppm = if share < 10_000 { 0 } else { share };
        left -= share_ppm;
        Given { share_ppm, ..*child }
    };
    children.iter().map(fits).collect()
}

/// Children of the root, each with children of its own or none; so many threads wait in each that has none.
fn grow(machine: &mut Machine, tree: &[(Given, Vec<Given>)], threads: u32) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let outer = that_fit(&tree.iter().map(|(given, _)| *given).collect::<Vec<_>>(), WHOLE);
    for (at, (given, (_, children))) in outer.iter().zip(tree).enumerate() {
        let id = machine.container(ROOT, *given);
        let above = stages(&outer, WHOLE, at);
        let whole = u64::from(given.share_ppm);
        let inner = that_fit(children, whole);
        if inner.is_empty() {
            leaves.push(Leaf { id, stages: above.clone(), limits: vec![given.limit_ppm] });
        }
        for (at, child) in inner.iter().enumerate() {
            let mut own = stages(&inner, whole, at);
            own.extend(above.iter().cloned());
            let limits = vec![child.limit_ppm, given.limit_ppm];
            leaves.push(Leaf { id: machine.container(id, *child), stages: own, limits });
        }
    }
    for leaf in &leaves {
        for _ in 0..threads {
            machine.wait(leaf.id);
        }
    }
    leaves
}

/// So many choices: the most from one choice of each to its next, with that before the first one and that which has not ended.
fn gaps(machine: &mut Machine, leaves: &[Leaf]) -> Vec<u64> {
    let mut last = vec![0; leaves.len()];
    let mut most = vec![0; leaves.len()];
    for choice in 1..=CHOICES {
        if let Some(id) = machine.step(SLICE) {
            let at = leaves.iter().position(|leaf| leaf.id == id).expect("one of ours");
            most[at] = most[at].max(choice - last[at]);
            last[at] = choice;
        }
    }
    most.iter().zip(last).map(|(&most, last)| most.max(CHOICES + 1 - last)).collect()
}

fn tree(limits: impl Strategy<Value = u32> + Clone) -> impl Strategy<Value = Vec<(Given, Vec<Given>)>> {
    let given = (prop_oneof![Just(0u32), 1..40u32], 10..1000u32, limits).prop_map(|(share, weight, limit)| Given {
        share_ppm: share * 10_000,
        limit_ppm: limit * 10_000,
        weight,
        ..Given::default()
    });
    proptest::collection::vec((given.clone(), proptest::collection::vec(given, 0..5)), 2..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Where all have work, at two levels.
    #[test]
    fn any_parts_are_held_to_a_choice_and_the_turn_of_each_comes_in_time(tree in tree(Just(0u32)), threads in 1..3u32) {
        let mut machine = Machine::new();
        let leaves = grow(&mut machine, &tree, threads);
        let gaps = gaps(&mut machine, &leaves);
        prop_assert_eq!(machine.idle_ns(), 0);
        for (leaf, gap) in leaves.iter().zip(gaps) {
            prop_assert!(gap <= leaf.longest_gap(0), "{gap} choices, not {}, {leaf:?}", leaf.longest_gap(0));
            let found = (machine.used_ns(leaf.id) / SLICE) as f64;
            let (expected, off) = leaf.expected();
            // what is rounded off of a step adds up to less than a tenth of one
            prop_assert!((found - expected).abs() <= off + 0.1, "{found} choices, not {expected}, {leaf:?}");
        }
    }

    /// Beside limits that are used up at times: nobody has more than its limit, who has none lacks nothing, and who has one waits no longer than
    /// until it has paid its debt back, and for its turn.
    #[test]
    fn any_limits_are_held_and_take_nothing_from_others(
        tree in tree(prop_oneof![Just(0u32), Just(0u32), 1..50u32]),
        threads in 1..3u32,
    ) {
        let mut machine = Machine::new();
        let leaves = grow(&mut machine, &tree, threads);
        let gaps = gaps(&mut machine, &leaves);
        let used = |id: u32| machine.used_ns(id);
        let quota = |limit: u32| PERIOD * u64::from(limit) / WHOLE;
        // of one CPU for so long, with what is there at first and what the last choice goes beyond
        let most = |limit: u32| quota(limit) * (1 + CHOICES * SLICE / PERIOD) + SLICE;
        if leaves.iter().any(|leaf| leaf.limits.iter().all(|&limit| limit == 0)) {
            prop_assert_eq!(machine.idle_ns(), 0);
        }
        // each leaf by itself, and those below one together: they are one after the other
        let mut at = 0;
        for (given, children) in &tree {
            let below = &leaves[at..at + children.len().max(1)];
            at += below.len();
            if given.limit_ppm > 0 {
                let together: u64 = below.iter().map(|leaf| used(leaf.id)).sum();
                prop_assert!(together <= most(given.limit_ppm), "{together} ns by {}, {below:?}", given.limit_ppm);
            }
        }
        for (leaf, gap) in leaves.iter().zip(gaps) {
            let own = leaf.limits[0];
            prop_assert!(own == 0 || used(leaf.id) <= most(own), "{} ns, {leaf:?}", used(leaf.id));
            if leaf.limits[1..].iter().any(|&limit| limit > 0) {
                continue; // the others there use that up too
            }
            let held = if own > 0 { (SLICE.div_ceil(quota(own)) + 1) * PERIOD / SLICE } else { 0 };
            let longest = leaf.longest_gap(LAG) + held;
            prop_assert!(gap <= longest, "{gap} choices, not {longest}, {leaf:?}");
            if own == 0 {
                let found = (used(leaf.id) / SLICE) as f64;
                prop_assert!(found >= leaf.least() - 0.1, "{found} choices, not {}, {leaf:?}", leaf.least());
            }
        }
    }
}
