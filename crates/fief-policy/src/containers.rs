// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads `[container.…]` and completes the tree with the parents that nobody named.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::cpu::{self, Cpu, Order};
use crate::diagnostic::{Findings, Kind};
use crate::model::{Container, Listener, Network};
use crate::nearest::nearest;
use crate::quantity::{self, Refused};
use crate::reader::{Named, Value, View};
use crate::{name, rules, shares, vocabulary};

use toml::de::DeValue;

/// A container, and where the file speaks of it.
pub(crate) struct Declared {
    pub(crate) container: Container,
    /// Of its name, or of the name that implies it.
    pub(crate) span: Range<usize>,
    pub(crate) share_span: Option<Range<usize>>,
    pub(crate) limit_span: Option<Range<usize>>,
    programs_span: Option<Range<usize>>,
    was_span: Option<Range<usize>>,
}

/// The tree of containers. Names that were refused are known all the same: one mistake, one error.
pub(crate) struct Containers {
    pub(crate) tree: Vec<Declared>,
    known: HashSet<String>,
}

impl Containers {
    pub(crate) fn read(policy: &View<'_, '_>, orders: &[Order], findings: &mut Findings) -> Self {
        let mut declared = Vec::new();
        let mut known = HashSet::new();
        for Named { name: path, name_span: span, view } in policy.named("container", findings) {
            let container = attributes(path, span.clone(), &view, orders, findings);
            match name::check_path(path) {
                Ok(()) => declared.push(container),
                Err(Refused { message, remedy }) => {
                    findings.add(Kind::Name, span, message, name::EXPECTED_PATH, remedy);
                    known.insert(path.to_owned());
                }
            }
        }
        let mut tree = with_parents(declared);
        shares::check(&mut tree, findings);
        check_was(&tree, findings);
        known.extend(tree.iter().map(|declared| declared.container.path.clone()));
        let containers = Self { tree, known };
        containers.tree.iter().for_each(|declared| containers.check_programs(declared, findings));
        containers
    }

    /// A server's programs have containers beside or below its own: what is above it holds the server too.
    fn check_programs(&self, declared: &Declared, findings: &mut Findings) {
        let (Some(programs), Some(span)) = (&declared.container.programs, &declared.programs_span) else { return };
        if !self.knows(programs) {
            return rules::unknown_container(programs, span.clone(), self, findings);
        }
        let path = &declared.container.path;
        if name::is_within(path, programs) {
            let message =
                format!("the programs of `{path}` cannot be charged to `{programs}`, which the server is charged to");
            let expected = "a container that is neither this one nor above it";
            let remedy = format!("write programs = \"{path}/cgi\", and add [container.\"{path}/cgi\"]");
            findings.add(Kind::Contradiction, span.clone(), message, expected, remedy);
        }
    }

    /// Only a queue whose class it is can hold one.
    pub(crate) fn check_latencies(&self, listeners: &[Listener], findings: &mut Findings) {
        let is_class = |path: &str| {
            listeners.iter().any(|listener| listener.queue.is_some() && listener.class_paths().contains(path))
        };
        for Declared { container, span, .. } in &self.tree {
            if container.latency.is_some() && !is_class(&container.path) {
                let message = format!(
                    "container {} has a `latency`, and no listener with a queue has it as a class",
                    container.path
                );
                let expected = "`latency` of a class that waits in a queue";
                let remedy = "add `queue = true` to its listener, or remove `latency`";
                findings.add(Kind::Contradiction, span.clone(), message, expected, remedy);
            }
        }
    }

    pub(crate) fn knows(&self, path: &str) -> bool {
        self.known.contains(path)
    }

    /// What the tree has of that path.
    pub(crate) fn get(&self, path: &str) -> Option<&Declared> {
        self.tree.iter().find(|declared| declared.container.path == path)
    }

    pub(crate) fn nearest(&self, path: &str) -> Option<&str> {
        nearest(path, self.tree.iter().map(|declared| declared.container.path.as_str()))
    }
}

fn attributes(
    path: &str,
    span: Range<usize>,
    view: &View<'_, '_>,
    orders: &[Order],
    findings: &mut Findings,
) -> Declared {
    let mut container = Container::new(path);
    let mut share_span = None;
    let mut limit_span = None;
    if let Some(cpu) = view.table("cpu", findings) {
        if let Some((share, span)) = cpu.quantity("share", quantity::percent, findings) {
            container.cpu.share_ppm = share;
            share_span = Some(span);
        }
        if let Some((limit, span)) = cpu.quantity("limit", or_max(quantity::percent), findings) {
            container.cpu.limit_ppm = limit;
            limit_span = Some(span);
        }
        cpu::read_order(&cpu, &mut container.cpu, orders, findings);
        let Cpu { weight, priority, .. } = Cpu::default();
        container.cpu.weight = small(cpu.integer("weight", vocabulary::WEIGHT, findings), weight);
        container.cpu.priority = small(cpu.integer("priority", vocabulary::PRIORITY, findings), priority);
    }
    if let Some(memory) = view.table("memory", findings) {
        container.memory_max = memory_max(&memory, findings);
    }
    if let Some(network) = view.table("network", findings) {
        if let Some((bits, _)) = network.quantity("max", or_max(quantity::bit_rate), findings) {
            container.network.max_bits = bits;
        }
        let weight = network.integer("weight", vocabulary::WEIGHT, findings);
        container.network.weight = small(weight, Network::default().weight);
    }
    container.latency = view.quantity("latency", quantity::latency, findings).map(|(latency, _)| latency);
    container.pass_up = view.flag("pass-up", findings).unwrap_or_default();
    if let Some(descendants) = view.table("descendants", findings) {
        let unlimited = descendants.get("max").is_some_and(is_max);
        if !unlimited {
            container.descendants_max = small(descendants.integer("max", vocabulary::DESCENDANTS, findings), 0);
        }
    }
    let programs = view.text("programs", findings);
    let programs_span = programs.as_ref().map(|(_, span)| span.clone());
    container.programs = programs.map(|(path, _)| path.to_owned());
    let was = view.text("was", findings);
    container.was = was.as_ref().map(|(path, _)| (*path).to_owned());
    let was_span = was.map(|(_, span)| span);
    Declared { container, span, share_span, limit_span, programs_span, was_span }
}

/// A former path is that of one container, and of none that this policy has too.
fn check_was(tree: &[Declared], findings: &mut Findings) {
    let mut named: HashMap<&str, &Range<usize>> = HashMap::new();
    for Declared { container, was_span, .. } in tree {
        let (Some(was), Some(span)) = (&container.was, was_span) else { continue };
        if let Err(Refused { message, remedy }) = name::check_path(was) {
            findings.add(Kind::Name, span.clone(), message, name::EXPECTED_PATH, remedy);
            continue;
        }
        if let Some(other) = tree.iter().find(|other| other.container.path == *was) {
            let message = match other.container.path == container.path {
                true => format!("`{was}` is its own path"),
                false => format!("`{was}` is in this policy too, so it cannot have become `{}`", container.path),
            };
            let expected = "the path that this container had in the policy before";
            let remedy = "remove `was`, or the container that still bears the old path";
            findings
                .add(Kind::Contradiction, span.clone(), message, expected, remedy)
                .also(other.span.clone(), "it is named here");
            continue;
        }
        match named.get(was.as_str()) {
            Some(first) => {
                let message = format!("two containers were `{was}`");
                let remedy = "leave `was` at the one that goes on with its usage";
                findings
                    .add(Kind::Contradiction, span.clone(), message, "one container for each old path", remedy)
                    .also((*first).clone(), "the first one");
            }
            None => {
                named.insert(was, span);
            }
        }
    }
}

/// An integer that the vocabulary's range keeps within 32 bits.
fn small(value: Option<u64>, default: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
}

/// Bytes are the one quantity that is also written as a bare integer.
fn memory_max(memory: &View<'_, '_>, findings: &mut Findings) -> u64 {
    match memory.get("max").map(|value| value.get_ref()) {
        Some(DeValue::Integer(_)) => {
            memory.integer("max", vocabulary::LEAST_MEMORY..=u64::MAX, findings).unwrap_or_default()
        }
        _ => {
            let read = or_max(|text| quantity::bytes(text, vocabulary::LEAST_MEMORY));
            memory.quantity("max", read, findings).map_or(0, |(bytes, _)| bytes)
        }
    }
}

fn is_max(value: &Value<'_>) -> bool {
    matches!(value.get_ref(), DeValue::String(text) if text.as_ref() == "max")
}

/// "max" is no limit, which is 0 in the model.
fn or_max<T: Default>(read: impl Fn(&str) -> Result<T, Refused>) -> impl Fn(&str) -> Result<T, Refused> {
    move |text| {
        if text == "max" { Ok(T::default()) } else { read(text) }
    }
}

/// Parents before their children, otherwise in the order of the file; implied parents with all defaults.
fn with_parents(declared: Vec<Declared>) -> Vec<Declared> {
    let order: Vec<String> = declared.iter().map(|declared| declared.container.path.clone()).collect();
    let mut by_path: HashMap<String, Declared> =
        declared.into_iter().map(|declared| (declared.container.path.clone(), declared)).collect();
    let mut placed: HashSet<String> = HashSet::new();
    let mut tree = Vec::new();
    for path in &order {
        let span = by_path.get(path).map(|declared| declared.span.clone());
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for ancestor in ends.map(|end| &path[..end]) {
            if !placed.insert(ancestor.to_owned()) {
                continue;
            }
            tree.push(by_path.remove(ancestor).unwrap_or_else(|| Declared {
                container: Container::new(ancestor),
                span: span.clone().expect("only a declared path has missing ancestors"),
                share_span: None,
                limit_span: None,
                programs_span: None,
                was_span: None,
            }));
        }
    }
    tree
}
