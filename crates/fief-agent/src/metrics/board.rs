// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Grafana board asks for what the agent tells, for all of it, and as what it is. Whether Prometheus understands its queries is
//! asked of Prometheus' own tool, and of Prometheus where the command is tested.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use fief::Usage;
use fief_testkit::{Feature, require};
use serde_json::Value;

use super::tests::{front, scrape_of, status, text};
use super::*;
use crate::series::tests::container;

const BOARD: &str = include_str!("../../../../packaging/grafana/fief.json");

/// What Prometheus adds to every series.
const ADDED: [&str; 2] = ["instance", "job"];

fn board() -> Value {
    serde_json::from_str(BOARD).expect("an object")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn queries() -> Vec<String> {
    let board = board();
    let panels = list(&board["panels"]).iter().filter(|panel| panel["type"] != "row");
    let targets = panels.flat_map(|panel| list(&panel["targets"]));
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// Where a query asks for a metric: its name, the labels that it asks by, and what stands before.
struct Selector<'a> {
    name: &'a str,
    labels: Vec<&'a str>,
    before: &'a str,
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn selectors(query: &str) -> Vec<Selector<'_>> {
    let places = query.match_indices("fief_").map(|(at, _)| at).filter(|at| !query[..*at].ends_with(is_name));
    let selector = |at: usize| {
        let rest = &query[at..];
        let (name, rest) = rest.split_at(rest.find(|letter| !is_name(letter)).unwrap_or(rest.len()));
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
        let labels = inside.split(',').filter_map(|one| one.split(['=', '!']).next()).filter(|label| !label.is_empty());
        Selector { name, labels: labels.collect(), before: &query[..at] }
    };
    places.map(selector).collect()
}

/// Labels of its `by (...)`.
fn grouped(query: &str) -> impl Iterator<Item = &str> {
    query.split("by (").skip(1).filter_map(|rest| rest.split(')').next()).flat_map(|labels| labels.split(", "))
}

#[derive(Default)]
struct Family {
    is_counter: bool,
    labels: BTreeSet<String>,
}

/// What the agent tells of a machine on which everything happens.
fn exported() -> BTreeMap<String, Family> {
    let mut busy = container("shop", 8, None, 1);
    busy.usage = Usage::of_counters(busy.usage.counters().map(|_| 7));
    let text = text(scrape_of(10, vec![busy], front(), status()), Format::Text);
    let mut families = BTreeMap::<String, Family>::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.entry(name.to_owned()).or_default().is_counter = kind == "counter";
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a value"));
        let family = families.get_mut(name).unwrap_or_else(|| panic!("{name} has no type"));
        let labels = rest.strip_prefix('{').and_then(|rest| rest.rsplit_once("\"}")).map_or("", |(labels, _)| labels);
        family.labels.extend(labels.split("\",").filter_map(|one| Some(one.split_once('=')?.0.to_owned())));
    }
    families
}

#[test]
fn the_board_has_every_metric_and_no_other() {
    let queries = queries();
    let asked: BTreeSet<_> = queries.iter().flat_map(|query| selectors(query)).map(|one| one.name.to_owned()).collect();
    assert_eq!(asked, exported().into_keys().collect());
}

#[test]
fn the_board_asks_by_labels_that_there_are() {
    let families = exported();
    for query in queries() {
        for selector in selectors(&query) {
            let has = |label: &str| ADDED.contains(&label) || families[selector.name].labels.contains(label);
            for label in selector.labels.iter().copied().chain(grouped(&query)) {
                assert!(has(label), "{} has no label {label}: {query}", selector.name);
            }
        }
    }
    let board = board();
    for variable in list(&board["templating"]["list"]).iter().filter(|one| one["type"] == "query") {
        let query = variable["definition"].as_str().expect("a query");
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect(query);
        let (name, label) = inside.split_once(", ").expect(query);
        assert!(ADDED.contains(&label) || families[name].labels.contains(label), "{query}");
    }
}

#[test]
fn the_board_takes_counters_for_counters() {
    let families = exported();
    for query in queries() {
        for selector in selectors(&query) {
            let is_counter = families[selector.name].is_counter;
            assert_eq!(selector.before.ends_with("rate("), is_counter, "{} in {query}", selector.name);
        }
    }
}

#[test]
fn no_panel_lies_upon_another() {
    let board = board();
    let number = |panel: &Value, name: &str| panel["gridPos"][name].as_u64().expect("a number");
    let (mut cells, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&board["panels"]) {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        for x in number(panel, "x")..number(panel, "x") + number(panel, "w") {
            for y in number(panel, "y")..number(panel, "y") + number(panel, "h") {
                assert!(x < 24 && cells.insert((x, y)), "{panel}");
            }
        }
    }
}

#[test]
fn prometheus_understands_the_queries_of_the_board() {
    if !require(Feature::Promtool) {
        return;
    }
    let plain = |query: &str| {
        let names = ["instance", "container", "listener"];
        let query = query.replace("$__rate_interval", "5m");
        names.iter().fold(query, |query, name| query.replace(&format!("\"${name}\""), "\".*\""))
    };
    let rules: Vec<_> = queries()
        .iter()
        .enumerate()
        .map(|(number, query)| serde_json::json!({ "record": format!("board:{number}"), "expr": plain(query) }))
        .collect();
    assert!(rules.iter().all(|rule| !rule.to_string().contains('$')), "{rules:#?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    // YAML is a superset of JSON
    let groups = serde_json::json!({ "groups": [{ "name": "board", "rules": rules }] });
    std::fs::write(file.path(), groups.to_string()).expect("written");
    let checked = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output().expect("it starts");
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success(), "{said}");
}
