// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The search for a container by a part of its path, as in less(1): what is typed is sought at once, and folded lines open for it.

use std::collections::HashSet;

use ratatui::crossterm::event::KeyCode;

use super::App;
use crate::tui::rows::Key;
use fief_control::{ContainerView, Snapshot};

/// The letters that are sought, and the line from which the search began.
#[derive(Debug, Default)]
pub struct Search {
    words: String,
    is_typed: bool,
    from: Option<Key>,
    is_found: bool,
}

impl Search {
    /// What the last line shows; `None`: nothing is sought.
    pub fn line(&self) -> Option<String> {
        let cursor = if self.is_typed { "_" } else { "" };
        let lost = if self.words.is_empty() || self.is_found { "" } else { "   no container has it" };
        (self.is_typed || !self.words.is_empty()).then(|| format!("/{}{cursor}{lost}", self.words))
    }

    pub fn is_typed(&self) -> bool {
        self.is_typed
    }
}

fn key(view: &ContainerView) -> Key {
    (view.id, view.generation)
}

/// Those above it, from the nearest one on.
fn above<'a>(snapshot: &'a Snapshot, view: &'a ContainerView) -> impl Iterator<Item = &'a ContainerView> {
    let parent = |of: &ContainerView| {
        let parent = of.parent;
        snapshot.containers.iter().find(move |other| Some(other.id) == parent && other.state != "ended")
    };
    std::iter::successors(parent(view), move |of| parent(of))
}

impl App {
    pub fn search(&self) -> &Search {
        &self.search
    }

    pub(super) fn begin_search(&mut self) {
        self.search = Search { is_typed: true, from: self.selected, ..Search::default() };
    }

    /// A key while words are typed.
    pub(super) fn on_search_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => {
                self.selected = self.search.from;
                self.search = Search::default();
                return self.arrange();
            }
            KeyCode::Enter => {
                self.search.is_typed = false;
                return;
            }
            KeyCode::Backspace => drop(self.search.words.pop()),
            KeyCode::Char(letter) => self.search.words.push(letter),
            _ => return,
        }
        self.selected = self.search.from;
        self.seek(0);
    }

    /// Marks the next line whose path has the words, so many behind the marked one; opens what hides it.
    pub(super) fn seek(&mut self, behind: usize) {
        let Some(shown) = &self.shown else { return };
        let snapshot = &shown.seen.snapshot;
        let words = self.search.words.to_lowercase();
        let fits = |view: &&ContainerView| !words.is_empty() && view.path.to_lowercase().contains(&words);
        let found: HashSet<Key> = snapshot.containers.iter().filter(fits).map(key).collect();
        self.search.is_found = !found.is_empty();
        let (at, count) = (self.selected(), self.rows.len());
        let mut places = (0..count).map(|step| (at + behind + step) % count);
        if let Some(place) = places.find(|place| found.contains(&self.rows[*place].key)) {
            return self.select(place);
        }
        let Some(hidden) = snapshot.containers.iter().find(|view| found.contains(&key(view))) else { return };
        let marked = key(hidden);
        for folded in above(snapshot, hidden) {
            self.view.folds.insert(key(folded), false);
        }
        self.selected = Some(marked);
        self.arrange();
    }
}
