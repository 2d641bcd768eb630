// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The views on their way to another process or into a file, and back. Pure.
//!
//! Names of files need not be text, and serde refuses those that are not: one cgroup with such a name would hide all the rest.
//! So they go over as people see them. Words of closed lists are static here, and are made so again there; a list of another
//! version may have others, and a bounded number of those is kept.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serializer};

/// Words that are kept, and the longest of them. All lists together have a quarter as many.
const MOST: usize = 256;
const LONGEST: usize = 64;
/// A word of a closed list. The name hides the reference from serde, which would borrow it from what it reads.
pub type Word = &'static str;

/// Stands for any word beyond.
const OTHER: &str = "other";

pub(crate) fn some_path<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.serialize_some(&path.to_string_lossy()),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

pub(crate) fn paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

pub(crate) fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    String::deserialize(deserializer).map(keep)
}

pub(crate) fn some_word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static str>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(keep))
}

pub(crate) fn counts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(&'static str, u64)>, D::Error> {
    let counts = Vec::<(String, u64)>::deserialize(deserializer)?;
    Ok(counts.into_iter().map(|(word, count)| (keep(word), count)).collect())
}

/// What an older version did not tell.
pub(crate) fn yes() -> bool {
    true
}

/// What is of the moment, and takes no byte of a record: a record is read by versions with it and without.
pub(crate) fn now<S: Serializer>(fact: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() { serializer.serialize_bool(*fact) } else { serializer.serialize_unit() }
}

pub(crate) fn now_or_yes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    if deserializer.is_human_readable() {
        return bool::deserialize(deserializer);
    }
    <()>::deserialize(deserializer).map(|()| yes())
}

fn keep(word: String) -> &'static str {
    static WORDS: Mutex<Words> = Mutex::new(Words(BTreeSet::new()));
    WORDS.lock().unwrap_or_else(PoisonError::into_inner).keep(word)
}

struct Words(BTreeSet<&'static str>);

impl Words {
    fn keep(&mut self, word: String) -> &'static str {
        if let Some(kept) = self.0.get(word.as_str()) {
            return kept;
        }
        if self.0.len() >= MOST || word.len() > LONGEST {
            return OTHER;
        }
        let word: &'static str = word.leak();
        self.0.insert(word);
        word
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::{ContainerView, SchedulerView, Snapshot, UnitView};

    pub(crate) fn container() -> ContainerView {
        let attributes = fief::Attributes::from(fief::abi::fief_attributes { weight: 100, ..Default::default() });
        ContainerView {
            path: "shop".into(),
            id: 8,
            generation: 3,
            parent: Some(0),
            state: "alive",
            policy: true,
            unit: false,
            handles: 1,
            threads: 2,
            processes: 1,
            sockets: 4,
            files: 0,
            discarded: 0,
            children: 0,
            attributes,
            usage: fief::Usage::of_counters(std::array::from_fn(|at| at as u64 * 1_000)),
        }
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            taken_ns: 5,
            cpus: 2,
            containers: vec![container()],
            system_kinds: vec![("hardirq", 7)],
            failures: vec![("table_full", 1)],
            units: vec![UnitView { cgroup: None, container: "shop".into() }],
            class_listeners: Vec::new(),
            scheduler: SchedulerView::On { counts: vec![("picked", 3)], combined: Vec::new() },
            charged: false,
        }
    }

    #[test]
    fn a_snapshot_comes_over_as_it_is() {
        let text = serde_json::to_string(&snapshot()).expect("texts and numbers");
        let back: Snapshot = serde_json::from_str(&text).expect("the same");
        assert_eq!(format!("{back:?}"), format!("{:?}", snapshot()));
    }

    #[test]
    fn an_older_agent_charges_always() {
        let mut told = serde_json::to_value(snapshot()).expect("texts and numbers");
        assert_eq!(told.as_object_mut().expect("an object").remove("charged"), Some(false.into()));
        assert!(serde_json::from_value::<Snapshot>(told).expect("a snapshot").charged);
    }

    #[test]
    fn a_cgroup_whose_name_is_no_text_hides_nothing() {
        let mut snapshot = snapshot();
        snapshot.units[0].cgroup = Some(OsString::from_vec(b"/sys/fs/cgroup/\xff".to_vec()).into());
        let text = serde_json::to_string(&snapshot).expect("a name that people see");
        let back: Snapshot = serde_json::from_str(&text).expect("a snapshot");
        assert_eq!(back.containers.len(), 1);
        assert!(back.units[0].cgroup.is_some());
    }

    #[test]
    fn words_without_end_are_not_kept() {
        let mut words = Words(BTreeSet::new());
        for number in 0..2 * MOST {
            words.keep(format!("word {number}"));
        }
        assert_eq!((words.keep("one more".to_owned()), words.keep("word 0".to_owned())), (OTHER, "word 0"));
    }
}
