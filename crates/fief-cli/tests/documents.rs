// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the documents name is there: files, parts of the kernel side, maps, programs, constants, keys of a policy.
//!
//! A name stands in backquotes or is the target of a link. Names of the kernel are there if a source uses them or the kernel's
//! types have them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents that are about the kernel, and about figures whose names the lab puts together.
const OF_OTHERS: [&str; 2] = ["docs/kernel-facts.md", "docs/lab.md"];

/// Folders of the kernel side whose parts are named without `bpf/` and `.bpf.h`.
const ROOMS: [&str; 5] = ["core", "front", "lrp", "files", "flow"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            below(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn files_of(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    below(&root().join(folder), &mut found);
    found.retain(|path| path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)));
    found
}

/// The documents that are written by hand.
fn documents() -> Vec<(String, String)> {
    let mut paths: Vec<_> = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"].map(|name| root().join(name)).into();
    paths.extend(files_of("docs", &["md"]));
    paths.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), read(path))).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// Every word of the sources.
fn vocabulary() -> BTreeSet<String> {
    let folders = ["bpf", "crates", "shim", "tests", "examples", "fuzz"];
    let sources = folders.iter().flat_map(|folder| files_of(folder, &["h", "c", "rs", "toml", "py"]));
    let mut found = BTreeSet::new();
    for path in sources.filter(|path| !path.ends_with("documents.rs")) {
        found.extend(words(&read(&path)).filter(|word| word.contains('_')).map(str::to_owned));
    }
    found
}

/// The lines outside of fences, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn linked(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Whether a path that begins in the top folder is there; `*` stands for anything in the last part.
fn is_there(path: &str) -> bool {
    let path = path.split('#').next().unwrap_or(path);
    match path.split_once('*') {
        Some((before, _)) => root().join(before).parent().is_some_and(Path::is_dir),
        None => root().join(path).exists(),
    }
}

/// Why a name in backquotes is none; `None`: it is one, or no name of ours.
fn complaint(name: &str, vocabulary: &BTreeSet<String>, of_others: bool) -> Option<&'static str> {
    let letters = |extra: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || extra.contains(letter));
    let (first, rest) = name.split_once('/').unwrap_or((name, ""));
    let top = ["bpf", "crates", "docs", "examples", "fuzz", "packaging", "shim", "tests", ".ci"].contains(&first);
    if letters("_./-*") && top && !rest.is_empty() {
        // a folder of pins may have the name of one of ours
        return (!is_there(name)).then_some("no such file");
    }
    if letters("_/") && ROOMS.contains(&first) && !rest.is_empty() {
        return (!is_there(&format!("bpf/{name}.bpf.h"))).then_some("no such part of the kernel side");
    }
    let ours = name.starts_with("FIEF_") || name.starts_with("fief_");
    if letters("_") && name.contains('_') && (ours || !of_others) {
        return (!vocabulary.contains(name)).then_some("no such name in the sources");
    }
    None
}

#[test]
fn what_documents_name_is_there() {
    let vocabulary = vocabulary();
    let mut wrong = Vec::new();
    for (document, text) in documents() {
        for (number, line) in prose(&text) {
            let names = quoted(line).filter_map(|name| {
                let why = complaint(name, &vocabulary, OF_OTHERS.contains(&document.as_str()))?;
                Some(format!("{document}:{number}: {name}: {why}"))
            });
            wrong.extend(names);
            let folder = Path::new(&document).parent().unwrap_or(Path::new(""));
            for target in linked(line).filter(|target| !target.contains("://")) {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = if path.is_empty() { PathBuf::from(&document) } else { folder.join(path) };
                let whole = root().join(&path);
                if !whole.exists() {
                    wrong.push(format!("{document}:{number}: {target}: no such file"));
                } else if !anchor.is_empty() && !anchors(&read(&whole)).contains(anchor) {
                    wrong.push(format!("{document}:{number}: {target}: no such heading"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Headings as links name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text)
        .filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let kept = |letter: char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    headings
        .map(|heading| {
            heading.to_lowercase().chars().filter(|letter| kept(*letter)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

/// The maps that the objects of the product define.
fn maps() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files_of("bpf", &["h"]).into_iter().filter(|path| !path.ends_with("policy_tables.bpf.h")) {
        let text = read(&path);
        let mut before: Vec<_> = text.split(" SEC(\".maps\")").collect();
        before.pop();
        found.extend(before.into_iter().filter_map(|text| words(text).last().map(str::to_owned)));
        // the macro of maps that hold a table for each policy slot
        let tables = text.split("\nPOLICY_TABLES(").skip(1);
        found.extend(tables.filter_map(|text| words(text).next().map(str::to_owned)));
    }
    found
}

/// The table of maps has each map, and nothing but maps; `name_…` stands for all that begin so.
#[test]
fn the_table_of_maps_has_every_map() {
    let text = read(&root().join("docs/maps.md"));
    let rows =
        text.lines().skip_while(|line| !line.starts_with("| map ")).skip(2).take_while(|line| line.starts_with('|'));
    let named: Vec<_> = rows.filter_map(|row| row.split('|').nth(1)).flat_map(quoted).collect();
    let all = maps();
    let fits = |name: &str, map: &str| name.strip_suffix('…').map_or(map == name, |begin| map.starts_with(begin));
    let missing: Vec<_> = all.iter().filter(|map| !named.iter().any(|name| fits(name, map))).collect();
    let gone: Vec<_> = named.iter().filter(|name| !all.iter().any(|map| fits(name, map))).collect();
    assert!(missing.is_empty() && gone.is_empty(), "docs/maps.md lacks {missing:?}, and names {gone:?}");
}

/// A path without what is filled in: `policy.<slot>.toml` and `policy.{slot}.toml` are one.
fn shape(path: &str, open: char, close: char) -> String {
    let mut parts = path.split(open);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shape, part| shape + "<>" + part.split_once(close).map_or("", |(_, rest)| rest))
}

/// The names that are joined to a path by these words of a source.
fn joined(source: &str, words: &str) -> Vec<String> {
    let name = |rest: &str| {
        let literal = rest.strip_prefix("format!(").unwrap_or(rest).strip_prefix('"')?;
        Some(shape(literal.split('"').next()?, '{', '}'))
    };
    source.split(words).skip(1).filter_map(name).collect()
}

/// Pins and files as the sources name them. Those of a folder are where it is named alone.
fn kept() -> BTreeSet<String> {
    let pins = read(&root().join("bpf/src/pin.rs"));
    let parted = ["schedule", "interfaces", "lanes"];
    let mut found: BTreeSet<_> =
        joined(&pins, "self.root.join(").into_iter().filter(|name| !parted.contains(&name.as_str())).collect();
    found.extend(joined(&pins, "self.schedule().join(").iter().map(|name| format!("schedule/{name}")));
    let attachments = read(&root().join("bpf/src/attachment.rs"));
    let ends = attachments.split(" door(\"").skip(1).filter_map(|row| row.split('"').nth(2));
    found.extend(ends.map(|end| format!("interfaces/<>/<>{end}")));
    found.extend(["lanes/<>/<>-<>", "/run/fief/<>/", "/run/fief/shim-<>.so"].map(str::to_owned));
    for path in files_of("crates/fief-control/src", &["rs"]) {
        let source = read(&path);
        found.extend(joined(&source, "run_dir().join(").iter().map(|name| format!("/run/fief/<>/{name}")));
        found.extend(joined(&source, "(RUN).join(").iter().map(|name| format!("/run/fief/{name}")));
    }
    found
}

/// So has the list of pins and files. A line begins with their names, two spaces before what they are.
#[test]
fn the_list_of_pins_has_every_pin_and_file() {
    let text = read(&root().join("docs/maps.md"));
    let lines =
        text.lines().skip_while(|line| !line.starts_with("/sys/fs/bpf/fief/")).take_while(|line| *line != "```");
    // the rest of what they are has more before it
    let lines = lines.filter(|line| !line.starts_with(&" ".repeat(40)));
    let names = lines.flat_map(|line| line.trim_start().split("  ").next().unwrap_or_default().split(", "));
    let named: Vec<_> = names.map(|name| shape(name.trim_start_matches("/sys/fs/bpf/fief/"), '<', '>')).collect();
    let kept = kept();
    assert!(kept.len() > 30, "what the sources name is not found there: {kept:?}");
    let below =
        |name: &str, kept: &str| name.strip_prefix(kept).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let missing: Vec<_> = kept.iter().filter(|kept| !named.iter().any(|name| below(name, kept))).collect();
    let gone: Vec<_> = named.iter().filter(|name| !kept.iter().any(|kept| below(name, kept))).collect();
    assert!(missing.is_empty() && gone.is_empty(), "docs/maps.md lacks {missing:?}, and names {gone:?}");
}
