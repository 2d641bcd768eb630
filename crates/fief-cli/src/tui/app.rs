// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of `top`, and what keys and snapshots do to it.

mod machine;
mod search;

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::column::Column;
use super::rows::{self, Key, Row, View};
use crate::charged;
use crate::interval::{Interval, Intervals};
use crate::look::Seen;
use crate::queued::{self, ByContainer};
use fief_control::Snapshot;
use search::Search;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

pub struct App {
    view: View,
    interval: Duration,
    is_paused: bool,
    shows_help: bool,
    search: Search,
    /// The look before; none after a pause, which is no interval.
    last: Option<Rc<Seen>>,
    intervals: Intervals,
    shown: Option<Shown>,
    rows: Vec<Row>,
    selected: Option<Key>,
    /// First line on the screen.
    offset: usize,
    /// Lines that fit on the screen.
    height: usize,
}

struct Shown {
    seen: Rc<Seen>,
    interval: Interval,
    queued: ByContainer,
    note: Option<&'static str>,
}

/// What is left for the terminal to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Draw,
    /// Take a snapshot now.
    Look,
    Suspend,
    Quit,
}

impl App {
    pub fn new(interval: Duration) -> Self {
        Self {
            view: View::default(),
            interval,
            is_paused: false,
            shows_help: false,
            search: Search::default(),
            last: None,
            intervals: Intervals::default(),
            shown: None,
            rows: Vec::new(),
            selected: None,
            offset: 0,
            height: 1,
        }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn interval(&self) -> Duration {
        self.interval
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub fn shows_help(&self) -> bool {
        self.shows_help
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.shown.as_ref().map(|shown| &shown.seen.snapshot)
    }

    /// What to know of the CPU time that is shown.
    pub fn note(&self) -> Option<&'static str> {
        self.shown.as_ref().and_then(|shown| shown.note)
    }

    /// From left to right, on a screen that has room for them.
    pub fn columns(&self) -> &'static [Column] {
        Column::shown(self.shown.as_ref().is_some_and(|shown| !shown.seen.queues.is_empty()))
    }

    /// Position of the marked line.
    pub fn selected(&self) -> usize {
        self.rows.iter().position(|row| Some(row.key) == self.selected).unwrap_or(0)
    }

    /// Takes a new snapshot in, and shows what happened since the one before.
    pub fn update(&mut self, seen: impl Into<Seen>) {
        let seen = Rc::new(seen.into());
        let last = self.last.replace(Rc::clone(&seen));
        // also over a pause: what a reading before it had too much of is taken from what comes after
        let interval = self.intervals.until(&seen.snapshot);
        if last.is_some() || self.shown.is_none() {
            let queued = queued::between(last.as_ref().map(|last| last.queues.as_slice()), &seen.queues);
            let note = charged::note(&seen.snapshot, last.as_ref().map(|last| &last.snapshot));
            self.shown = Some(Shown { seen, interval, queued, note });
        }
        self.arrange();
    }

    fn arrange(&mut self) {
        let before = self.selected();
        if let Some(Shown { seen, interval, queued, .. }) = &self.shown {
            self.rows = rows::rows(&seen.snapshot, interval, queued, &self.view);
        }
        // The marked container has ended, or is below a folded one: mark what is where it was. Before anybody has moved
        // the mark, it is not on a container, but on the first line.
        if self.selected.is_some() && !self.rows.iter().any(|row| Some(row.key) == self.selected) {
            self.select(before);
        }
    }

    fn select(&mut self, at: usize) {
        self.selected = self.rows.get(at.min(self.rows.len().saturating_sub(1))).map(|row| row.key);
    }

    /// Which lines are on a screen with so many, the marked one among them.
    pub fn window(&mut self, height: usize) -> Range<usize> {
        self.height = height.max(1);
        let selected = self.selected();
        let least = (selected + 1).saturating_sub(self.height);
        let most = self.rows.len().saturating_sub(self.height);
        self.offset = self.offset.clamp(least, selected.max(least)).min(most.max(least));
        self.offset..(self.offset + self.height).min(self.rows.len())
    }

    pub fn on_key(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Wish::Quit,
                KeyCode::Char('z') => Wish::Suspend,
                _ => Wish::Draw,
            };
        }
        if self.shows_help {
            self.shows_help = false;
            return if key.code == KeyCode::Char('q') { Wish::Quit } else { Wish::Draw };
        }
        if self.search.is_typed() {
            self.on_search_key(key.code);
            return Wish::Draw;
        }
        let page = self.height.saturating_sub(1).max(1);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected() + 1),
            KeyCode::PageUp => self.select(self.selected().saturating_sub(page)),
            KeyCode::PageDown => self.select(self.selected() + page),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Left | KeyCode::Char('h') => self.fold_or_leave(),
            KeyCode::Right | KeyCode::Char('l') => self.fold(Some(false)),
            KeyCode::Char(' ') | KeyCode::Enter => self.fold(None),
            KeyCode::Char('<' | ',') => self.sort_by(-1),
            KeyCode::Char('>' | '.' | 's') => self.sort_by(1),
            KeyCode::Char('r') => {
                self.view.reverse = !self.view.reverse;
                self.arrange();
            }
            KeyCode::Char('i') => {
                self.view.hide_quiet = !self.view.hide_quiet;
                self.arrange();
            }
            KeyCode::Char('p') => return self.pause(),
            KeyCode::Char('/') => self.begin_search(),
            KeyCode::Char('n') => self.seek(1),
            KeyCode::Char('+' | '=') => self.interval = (self.interval * 2).min(LONGEST),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(SHORTEST),
            _ => {}
        }
        Wish::Draw
    }

    fn pause(&mut self) -> Wish {
        self.is_paused = !self.is_paused;
        if self.is_paused {
            return Wish::Draw;
        }
        self.last = None;
        Wish::Look
    }

    fn sort_by(&mut self, step: isize) {
        self.view.sort = self.view.sort.next(step, self.columns());
        self.arrange();
    }

    /// None: the other way round.
    fn fold(&mut self, folded: Option<bool>) {
        let Some(row) = self.rows.get(self.selected()) else { return };
        if let Some(now) = row.folded {
            self.view.folds.insert(row.key, folded.unwrap_or(!now));
            self.arrange();
        }
    }

    /// Folds an open line; from any other, goes to the one above it in the tree.
    fn fold_or_leave(&mut self) {
        match self.rows.get(self.selected()) {
            Some(Row { folded: Some(false), .. }) => self.fold(Some(true)),
            Some(Row { parent: Some(parent), .. }) => self.selected = Some(*parent),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::rows::sample;

    fn app() -> App {
        let mut app = App::new(Duration::from_secs(1));
        app.update(sample::moment([100, 100, 100, 0, 0]));
        let (after, _) = sample::second();
        app.update(after);
        app
    }

    fn press(app: &mut App, keys: &str) -> Wish {
        let code = |key| match key {
            '↓' => KeyCode::Down,
            '←' => KeyCode::Left,
            '→' => KeyCode::Right,
            '⏎' => KeyCode::Enter,
            '⎋' => KeyCode::Esc,
            '⌫' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        keys.chars().map(|key| app.on_key(KeyEvent::from(code(key)))).last().expect("at least one key")
    }

    fn names(app: &App) -> Vec<&str> {
        app.rows().iter().map(|row| row.name.as_str()).collect()
    }

    fn marked(app: &App) -> &str {
        &app.rows()[app.selected()].name
    }

    #[test]
    fn a_line_folds_and_unfolds() {
        let mut app = app();
        press(&mut app, "←");
        assert_eq!(names(&app), ["shop", "backup", "system", "idle"]);
        press(&mut app, "→");
        assert_eq!(names(&app), ["shop", "browse", "gold", "backup", "system", "idle"]);
        press(&mut app, " ");
        assert_eq!(names(&app), ["shop", "backup", "system", "idle"]);
    }

    #[test]
    fn left_leads_from_a_child_to_its_parent() {
        let mut app = app();
        press(&mut app, "↓↓");
        assert_eq!(marked(&app), "gold");
        press(&mut app, "←");
        assert_eq!(marked(&app), "shop");
    }

    #[test]
    fn the_mark_stays_on_its_container_when_the_order_changes() {
        let mut app = app();
        press(&mut app, "↓");
        assert_eq!(marked(&app), "browse");
        press(&mut app, "r");
        assert_eq!((marked(&app), app.selected()), ("browse", 3));
    }

    #[test]
    fn the_column_to_sort_by_moves_left_and_right() {
        let mut app = app();
        press(&mut app, ">");
        assert_eq!(app.view().sort, Column::User);
        press(&mut app, "<<");
        assert_eq!(app.view().sort, Column::Share);
    }

    #[test]
    fn lines_are_sorted_by_who_waits_where_a_listener_has_a_queue() {
        let mut app = App::new(Duration::from_secs(1));
        let mut queues = sample::queues(0);
        queues[0].classes[0].waiting = 9;
        app.update(Seen { snapshot: sample::second().0, queues });
        press(&mut app, "<<<");
        assert_eq!(app.view().sort, Column::Late);
        press(&mut app, "<<<<<<");
        assert_eq!((app.view().sort, names(&app)[1]), (Column::Waiting, "gold"));
        press(&mut app, "r");
        assert_eq!(names(&app)[..2], ["backup", "shop"], "which has no queue");
        app.update(sample::second().0);
        assert_eq!(app.columns().last(), Some(&Column::Threads));
    }

    #[test]
    fn a_part_of_a_name_is_found_below_a_folded_line_too() {
        let mut app = app();
        press(&mut app, "←");
        assert_eq!(names(&app), ["shop", "backup", "system", "idle"]);
        press(&mut app, "/GOL");
        assert_eq!((marked(&app), app.search().line().as_deref()), ("gold", Some("/GOL_")));
        assert_eq!(names(&app), ["shop", "browse", "gold", "backup", "system", "idle"]);
        press(&mut app, "⌫⌫⌫sh");
        assert_eq!(marked(&app), "shop", "from where it began");
        press(&mut app, "⏎n");
        assert_eq!(marked(&app), "browse", "shop/browse has it too");
        press(&mut app, "nn");
        assert_eq!(marked(&app), "shop", "and round");
        press(&mut app, "/quit");
        assert_eq!((marked(&app), app.search().line().as_deref()), ("shop", Some("/quit_   no container has it")));
        assert_eq!(press(&mut app, "⎋"), Wish::Draw);
        assert_eq!((marked(&app), app.search().line()), ("shop", None));
        assert_eq!(press(&mut app, "q"), Wish::Quit);
    }

    #[test]
    fn a_pause_is_no_interval() {
        let mut app = app();
        press(&mut app, "p");
        assert!(app.is_paused());
        let before = app.machine();
        assert_eq!(press(&mut app, "p"), Wish::Look);
        let mut much_later = sample::moment([9_000, 9_000, 9_000, 9_000, 9_000]);
        much_later.taken_ns += 50_000_000_000;
        app.update(much_later);
        assert_eq!(app.machine(), before, "the old numbers stay until there is an interval again");
    }

    #[test]
    fn the_marked_line_is_always_on_the_screen() {
        let mut app = app();
        assert_eq!(app.window(3), 0..3);
        press(&mut app, "G");
        assert_eq!(app.window(3), 3..6);
        assert_eq!(app.window(100), 0..6);
        press(&mut app, "g");
        assert_eq!(app.window(1), 0..1);
        assert_eq!(app.window(0), 0..1);
    }

    #[test]
    fn control_c_and_q_quit() {
        let mut app = app();
        assert_eq!(press(&mut app, "q"), Wish::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(app.on_key(control_c), Wish::Quit);
        press(&mut app, "?");
        assert!(app.shows_help());
        assert_eq!(app.on_key(control_c), Wish::Quit);
    }

    #[test]
    fn an_app_without_containers_survives_every_key() {
        let mut app = App::new(Duration::from_secs(1));
        press(&mut app, "↓←→ gG<>ripn/x⏎n");
        assert_eq!(app.window(10), 0..0);
    }

    #[test]
    fn the_interval_stays_within_bounds() {
        let mut app = app();
        press(&mut app, "----------");
        assert_eq!(app.interval(), SHORTEST);
        press(&mut app, "++++++++++++");
        assert_eq!(app.interval(), LONGEST);
    }
}
