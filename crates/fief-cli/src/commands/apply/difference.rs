// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief apply --dry-run`: what the policy would change of what is in force.

use fief_control::{Difference, Ending, Fief, ListenerChange, LostHome, NewHome, refuse_lost};
use fief_policy::{Listener, Policy};
use serde::Serialize;
use serde_json::Value;

use super::Renamed;
use crate::brief;
use crate::cli::Apply;
use crate::commands::check::listener;
use crate::commands::status::Server;
use crate::failure::Result;
use crate::output::{Output, printable};
use crate::policy_file;

pub fn run(args: &Apply, fief: &Fief, policy: &Policy, output: &mut Output) -> Result<()> {
    fief.refuse_elsewhere(args.here)?;
    let difference = fief.difference(policy)?;
    let name = policy_file::name(&args.file);
    let refused = refuse_lost(&difference.units, &args.let_go()).err();
    let record = Record { refused: refused.is_some(), ..Record::of(&name, &difference, policy) };
    match args.json {
        true => output.json(&record),
        false => output.text(page(&record, &difference)),
    }?;
    // as `apply` would fail
    refused.map_or(Ok(()), |error| Err(error.into()))
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
struct Record<'a> {
    file: &'a str,
    dry_run: bool,
    in_force: bool,
    /// `apply` would refuse it, since units lose their container.
    refused: bool,
    /// The text of the policy in force is there to be compared.
    compared: bool,
    /// What is neither a container's nor a listener's.
    settings: Vec<String>,
    made: &'a [String],
    kept: &'a [String],
    renamed: Vec<Renamed<'a>>,
    changed: Vec<Changed<'a>>,
    ended: Vec<Ended<'a>>,
    listeners: Vec<Change<'a>>,
    units: Vec<Unit<'a>>,
    /// The programs in force are of another version.
    programs: bool,
    guarded: &'a [String],
    unguarded: &'a [String],
}

#[derive(Serialize)]
struct Changed<'a> {
    container: &'a str,
    attributes: Vec<String>,
}

#[derive(Serialize)]
struct Ended<'a> {
    container: &'a str,
    held: bool,
    below: &'a str,
}

#[derive(Serialize)]
struct Change<'a> {
    listener: &'a str,
    address: String,
    change: &'static str,
    removed: Vec<String>,
    added: Vec<String>,
    reordered: bool,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
struct Unit<'a> {
    cgroup: String,
    container: &'a str,
    /// Where its drop-in leads it.
    home: Option<&'a str>,
    /// What would give it a home.
    command: Option<&'a str>,
}

impl<'a> Unit<'a> {
    fn of(lost: &'a LostHome) -> Self {
        let (home, command) = match &lost.home {
            NewHome::Known { container, .. } => (Some(container.as_str()), None),
            NewHome::Unknown { command, .. } => (None, command.as_deref()),
        };
        Self { cgroup: lost.cgroup.to_string_lossy().into_owned(), container: &lost.container, home, command }
    }
}

impl<'a> Record<'a> {
    fn of(file: &'a str, difference: &'a Difference, policy: &'a Policy) -> Self {
        let Difference { before, in_force, made, kept, renamed, ended, listeners, units, .. } = difference;
        Self {
            file,
            dry_run: true,
            in_force: *in_force,
            refused: false,
            compared: before.is_some(),
            settings: before.as_ref().map(|before| settings(before, policy)).unwrap_or_default(),
            made,
            kept,
            renamed: Renamed::of(renamed),
            changed: before.as_ref().map(|before| changed(before, policy, renamed)).unwrap_or_default(),
            ended: ended
                .iter()
                .map(|Ending { path, held, below }| Ended { container: path, held: *held, below })
                .collect(),
            listeners: listeners.iter().filter_map(Change::of).collect(),
            units: units.iter().map(Unit::of).collect(),
            programs: difference.programs,
            guarded: &difference.guarded,
            unguarded: &difference.unguarded,
        }
    }

    fn is_nothing(&self) -> bool {
        let same = self.settings.is_empty() && self.made.is_empty() && self.changed.is_empty() && self.ended.is_empty();
        let around = !self.programs && self.guarded.is_empty() && self.unguarded.is_empty();
        self.compared && same && around && self.renamed.is_empty() && self.listeners.is_empty()
    }
}

impl<'a> Change<'a> {
    fn of(change: &'a ListenerChange) -> Option<Self> {
        let ListenerChange { before, now, servers } = change;
        let listener = now.as_ref().or(before.as_ref())?;
        let lines = |of: &Option<Listener>| of.as_ref().map(listener::lines).unwrap_or_default();
        let (old, new) = (lines(before), lines(now));
        Some(Self {
            listener: &listener.name,
            address: listener::address(listener),
            change: match (before, now) {
                (None, _) => "new",
                (_, None) => "lost",
                _ => "changed",
            },
            removed: only_in(&old, &new),
            added: only_in(&new, &old),
            reordered: before.is_some() && now.is_some() && is_reordered(&old, &new),
            servers: servers.iter().map(Server::of).collect(),
        })
    }
}

/// Lines of the one that the other has not, or not as often.
fn only_in(one: &[String], other: &[String]) -> Vec<String> {
    let mut left = std::collections::HashMap::<&str, usize>::new();
    other.iter().for_each(|line| *left.entry(line).or_default() += 1);
    let is_only = |line: &&String| match left.get_mut(line.as_str()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    one.iter().filter(is_only).cloned().collect()
}

/// The first match wins, so that the order of rules that stay is a change too.
fn is_reordered(old: &[String], new: &[String]) -> bool {
    let stay = |of: &[String], other: &[String]| -> Vec<String> {
        let there: std::collections::HashSet<&String> = other.iter().collect();
        of.iter().filter(|line| there.contains(line)).cloned().collect()
    };
    let (before, now) = (stay(old, new), stay(new, old));
    before.len() == now.len() && before != now
}

fn settings(before: &Policy, now: &Policy) -> Vec<String> {
    let of = |policy: &Policy| {
        let mut leaves = leaves(policy);
        leaves.retain(|(name, _)| !name.starts_with("containers") && !name.starts_with("listeners"));
        leaves
    };
    differing(&of(before), &of(now))
}

/// Attributes of containers that both policies name.
fn changed<'a>(before: &Policy, now: &'a Policy, renamed: &[(String, String)]) -> Vec<Changed<'a>> {
    // its names are told apart from this
    let attributes = |container: &fief_policy::Container| {
        let bare = fief_policy::Container { path: String::new(), was: None, ..container.clone() };
        leaves(&bare)
    };
    let change = |container: &'a fief_policy::Container| {
        let was = renamed.iter().find(|(_, new)| *new == container.path).map_or(&container.path, |(old, _)| old);
        let attributes = differing(&attributes(before.container(was)?), &attributes(container));
        (!attributes.is_empty()).then_some(Changed { container: &container.path, attributes })
    };
    now.containers.iter().filter_map(change).collect()
}

/// Names as `fief check --json` has them, and values.
fn leaves(of: &impl Serialize) -> Vec<(String, String)> {
    fn walk(name: String, value: &Value, found: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                    walk(name, value, found);
                }
            }
            Value::String(text) => found.push((name, text.clone())),
            other => found.push((name, other.to_string())),
        }
    }
    let value = serde_json::to_value(of).expect("a policy of numbers and texts always serialises");
    let mut found = Vec::new();
    walk(String::new(), &value, &mut found);
    found
}

fn differing(before: &[(String, String)], now: &[(String, String)]) -> Vec<String> {
    let of = |leaves: &[(String, String)], name: &str| {
        leaves.iter().find(|leaf| leaf.0 == name).map_or_else(|| "null".to_owned(), |leaf| leaf.1.clone())
    };
    let mut names: Vec<&str> = before.iter().chain(now).map(|leaf| leaf.0.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &&str| of(before, name) != of(now, name);
    let shown = |name: &str| format!("{name} {} -> {}", of(before, name), of(now, name));
    names.into_iter().filter(differs).map(shown).collect()
}

fn page(record: &Record<'_>, difference: &Difference) -> String {
    let file = printable(record.file);
    if record.is_nothing() {
        return format!("{file} is in force as it is; `fief apply` would change nothing\n");
    }
    let would = if record.refused { "refuse it; with --let-go it would do this" } else { "do this" };
    let mut lines = vec![format!("{file} is not applied; `fief apply` would {would}:")];
    if !record.in_force {
        lines.push("nothing is in force now".to_owned());
    } else if !record.compared {
        lines.push("the text of the policy in force was removed, so that listeners cannot be compared".to_owned());
    }
    if record.programs {
        lines.push("replaced: the programs in force, which are of another version of fief".to_owned());
    }
    for (what, names) in [("guarded from then on", record.guarded), ("guarded no longer", record.unguarded)] {
        if !names.is_empty() {
            lines.push(format!("{what}: {}", names.join(", ")));
        }
    }
    lines.extend(record.settings.iter().map(|setting| format!("changed: {setting}")));
    for (what, paths) in [("made", record.made), ("kept", record.kept)] {
        if !paths.is_empty() {
            lines.push(format!("{what}: {}", paths.join(", ")));
        }
    }
    if !record.renamed.is_empty() {
        lines.push(format!("renamed: {}", Renamed::words(&record.renamed)));
    }
    for Changed { container, attributes } in &record.changed {
        lines.push(format!("changed: {container}: {}", attributes.join(", ")));
    }
    for Ended { container, held, below } in &record.ended {
        let held =
            if *held { format!(" (held: it lives on below {below} until it is let go of)") } else { String::new() };
        lines.push(format!("ended: {container}{held}"));
    }
    for (change, of) in record.listeners.iter().zip(&difference.listeners) {
        lines.extend(change_lines(change, of));
    }
    for Unit { cgroup, container, home, .. } in &record.units {
        lines.push(match home {
            Some(home) => format!("moved: unit {cgroup} from {container} to {home}, as its drop-in says"),
            None => {
                format!("let go: unit {cgroup} would stay in {container}, which is no container of the policy any more")
            }
        });
    }
    lines.iter().map(|line| printable(line) + "\n").collect()
}

fn change_lines(change: &Change<'_>, of: &ListenerChange) -> Vec<String> {
    let Change { listener, address, change, removed, added, reordered, .. } = change;
    let servers = match &of.servers[..] {
        [] => "nobody listens there now".to_owned(),
        servers => brief::servers(servers),
    };
    let mut lines = vec![format!("{change} listener: {listener} on {address} ({servers})")];
    if of.before.is_none() || of.now.is_none() {
        return lines;
    }
    lines.extend(removed.iter().map(|line| format!("  - {line}")));
    lines.extend(added.iter().map(|line| format!("  + {line}")));
    if *reordered {
        lines.push("  its rules are in another order".to_owned());
    } else if removed.is_empty() && added.is_empty() {
        lines.push("  in what `fief check` does not tell apart".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        fief_policy::parse(text, "policy").unwrap_or_else(|errors| panic!("{errors}"))
    }

    const OLD: &str = "version = 1\n[container.shop]\ncpu.weight = 100\n[container.\"shop/gold\"]\n[listener.web]\n\
        address = \"0.0.0.0:80\"\nqueue = false\n[[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n\
        [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";

    fn unit(name: &str, home: Option<&str>) -> LostHome {
        let known = |container: &str| NewHome::Known { container: container.to_owned(), follow: true };
        let unknown = || NewHome::Unknown { why: None, command: Some("fief manage".to_owned()) };
        let cgroup = format!("/sys/fs/cgroup/{name}").into();
        LostHome { cgroup, container: "shop/gold".into(), home: home.map_or_else(unknown, known) }
    }

    /// As the control plane would find it, with units in a container that ends, and nobody there.
    fn difference(before: &str, now: &Policy) -> Difference {
        let before = policy(before);
        let paths = |of: &Policy| of.containers.iter().map(|container| container.path.clone()).collect::<Vec<_>>();
        let (old, new) = (paths(&before), paths(now));
        let (kept, made) = new.iter().cloned().partition(|path| old.contains(path));
        let gone = old.into_iter().filter(|path| !new.contains(path));
        let changed = now.listeners.iter().filter(|listener| before.listener(&listener.name) != Some(listener));
        Difference {
            in_force: true,
            made,
            kept,
            ended: gone.map(|path| Ending { path, held: true, below: "shop".into() }).collect(),
            listeners: changed
                .map(|listener| ListenerChange {
                    before: before.listener(&listener.name).cloned(),
                    now: Some(listener.clone()),
                    servers: Vec::new(),
                })
                .collect(),
            renamed: Vec::new(),
            units: vec![unit("web", None), unit("api", Some("shop"))],
            programs: false,
            guarded: Vec::new(),
            unguarded: Vec::new(),
            before: Some(before),
        }
    }

    fn told(before: &str, now: &str) -> String {
        let now = policy(now);
        let difference = difference(before, &now);
        page(&Record::of("p.toml", &difference, &now), &difference)
    }

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let documented = include_str!("../../../../../docs/cli.md");
        let now = policy(&OLD.replace("weight = 100", "weight = 200").replace("shop/gold", "shop/silver"));
        let difference = difference(OLD, &now);
        let object = serde_json::to_value(Record::of("p.toml", &difference, &now)).expect("texts and numbers");
        for part in [&object, &object["changed"][0], &object["ended"][0], &object["listeners"][0], &object["units"][0]]
        {
            for name in part.as_object().expect("an object").keys() {
                assert!(documented.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
    }

    #[test]
    fn what_would_change_is_told_container_by_container_and_rule_by_rule() {
        let now = OLD
            .replace("version = 1\n", "version = 1\nmode = \"monitor\"\n")
            .replace("weight = 100", "weight = 200")
            .replace("shop/gold", "shop/silver");
        assert_eq!(
            told(OLD, &now),
            "\
p.toml is not applied; `fief apply` would do this:
changed: mode enforce -> monitor
made: shop/silver
kept: shop
changed: shop: cpu.weight 100 -> 200
ended: shop/gold (held: it lives on below shop until it is let go of)
changed listener: web on 0.0.0.0:80 (nobody listens there now)
  - clients 10.0.0.0/8: shop/gold, before those being served
  + on trial: what would be refused is counted, and passes
  + clients 10.0.0.0/8: shop/silver, before those being served
let go: unit /sys/fs/cgroup/web would stay in shop/gold, which is no container of the policy any more
moved: unit /sys/fs/cgroup/api from shop/gold to shop, as its drop-in says
"
        );
    }

    #[test]
    fn a_policy_that_would_be_refused_is_told_as_such() {
        let now = policy(&OLD.replace("shop/gold", "shop/silver"));
        let difference = difference(OLD, &now);
        let record = Record { refused: true, ..Record::of("p.toml", &difference, &now) };
        let told = page(&record, &difference);
        assert!(
            told.starts_with("p.toml is not applied; `fief apply` would refuse it; with --let-go it would do this:\n"),
            "{told}"
        );
    }

    #[test]
    fn the_same_policy_changes_nothing() {
        assert_eq!(told(OLD, OLD), "p.toml is in force as it is; `fief apply` would change nothing\n");
    }

    #[test]
    fn other_programs_and_interfaces_are_changes_too() {
        let now = policy(OLD);
        let of = |change: fn(&mut Difference)| {
            let mut difference = difference(OLD, &now);
            change(&mut difference);
            page(&Record::of("p.toml", &difference, &now), &difference)
        };
        assert!(of(|difference| difference.programs = true).contains("replaced: the programs in force"));
        assert!(of(|difference| difference.guarded = vec!["eth1".into()]).contains("guarded from then on: eth1"));
        assert!(of(|difference| difference.unguarded = vec!["eth0".into()]).contains("guarded no longer: eth0"));
    }

    #[test]
    fn another_order_of_rules_is_a_change() {
        let rule = |from: &str| format!("[[listener.web.client]]\nfrom = [\"{from}\"]\ncontainer = \"shop/gold\"\n");
        let [zero, one, two] = [rule("10.0.0.0/8"), rule("11.0.0.0/8"), rule("12.0.0.0/8")];
        let with = |rules: &[&str]| OLD.replace(&zero, &rules.concat());
        let swapped = told(&with(&[&zero, &one]), &with(&[&one, &zero]));
        assert!(swapped.contains("\n  its rules are in another order\n") && !swapped.contains("clients"), "{swapped}");
        let replaced = told(&with(&[&zero, &one]), &with(&[&zero, &two]));
        assert!(
            replaced.contains("  - clients 11.0.0.0/8") && replaced.contains("  + clients 12.0.0.0/8"),
            "{replaced}"
        );
        assert!(!replaced.contains("another order"), "{replaced}");
        let lines = |of: &[&str]| of.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert!(is_reordered(&lines(&["a", "b"]), &lines(&["b", "a", "c"])));
        assert!(!is_reordered(&lines(&["a", "b"]), &lines(&["a", "c", "b"])));
        assert_eq!(only_in(&lines(&["a", "a", "b"]), &lines(&["a"])), ["a", "b"]);
    }
}
