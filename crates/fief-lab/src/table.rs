// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of text with aligned columns. Pure.

use crate::figures::Figures;
use std::fmt;

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Lines below it: what the reader should know before believing it.
    pub notes: Vec<String>,
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&str]) -> Table {
        Table { title: title.into(), head: head.iter().map(|&word| word.to_owned()).collect(), ..Table::default() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Figures beside what they must be.
    pub fn of_figures(title: impl Into<String>, figures: &Figures) -> Table {
        let mut table = Table::new(title, &["figure", "value", "must be", ""]);
        for figure in figures.iter() {
            let bound = figure.bound.map_or_else(String::new, |bound| bound.to_string());
            table.row([figure.name.clone(), number(figure.value), bound, figure.verdict().to_owned()]);
        }
        table
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().chain([&self.head]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// Columns of numbers stand right, words left.
    fn is_words(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty());
        column == 0
            || cells.any(|cell| cell.len() > 1 && !cell.starts_with(|first: char| "-<>=0123456789".contains(first)))
    }

    fn line(&self, cells: &[String]) -> String {
        let cells = cells.iter().enumerate().map(|(column, cell)| {
            let width = self.width(column);
            if self.is_words(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let head = self.line(&self.head);
        writeln!(f, "  {head}\n  {}", "-".repeat(head.chars().count()))?;
        for row in &self.rows {
            writeln!(f, "  {}", self.line(row))?;
        }
        for note in &self.notes {
            writeln!(f, "\n  {note}")?;
        }
        Ok(())
    }
}

/// A number for people: three or four digits that matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Milliseconds of microseconds.
pub fn in_ms(us: f64) -> String {
    number(us / 1000.0)
}

/// What a request costs, as people say it: 0.3 ms.
pub fn cost_ms(us: u64) -> String {
    format!("{} ms", us as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_requests_are_in_milliseconds() {
        assert_eq!([62_300.0, 651.0, 48.0].map(in_ms), ["62.3", "0.6510", "0.0480"]);
        assert_eq!([300, 1000].map(cost_ms), ["0.3 ms", "1 ms"]);
    }
    use crate::figures::Bound;

    #[test]
    fn names_stand_left_and_numbers_right() {
        let mut table = Table::new("title", &["load", "us"]);
        table.row(["5 clients", "7"]);
        table.row(["40", "1234"]);
        table.note("a note");
        let text = table.to_string();
        assert_eq!(
            text,
            "title\n\n  load         us\n  ---------------\n  5 clients     7\n  40         1234\n\n  a note\n"
        );
    }

    #[test]
    fn a_column_of_words_stands_left() {
        let mut table = Table::new("t", &["name", "ms", "who"]);
        table.row(["a", "1", "the others"]);
        table.row(["b", "10", "me"]);
        assert!(table.to_string().contains("\n  a      1  the others\n  b     10  me\n"), "{table}");
    }

    #[test]
    fn a_missed_figure_is_loud() {
        let mut figures = Figures::default();
        let _ = figures.must("x", 2.0, Bound::AtMost(1.0));
        assert!(Table::of_figures("t", &figures).to_string().contains("MISSED"));
    }
}
