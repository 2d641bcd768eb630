// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the commands print on standard output: lines, tables for people, one JSON object a line for programs.
//!
//! Names of containers come from applications; nothing of them but printable characters reaches a terminal.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Standard output. Nothing is lost silently: every write can fail, [`Output::finish`] too.
pub struct Output {
    writer: BufWriter<io::Stdout>,
}

impl Output {
    pub fn standard() -> Self {
        Self { writer: BufWriter::new(io::stdout()) }
    }

    pub fn is_terminal() -> bool {
        io::stdout().is_terminal()
    }

    pub fn line(&mut self, line: impl fmt::Display) -> Result<()> {
        writeln!(self.writer, "{line}").map_err(|error| Failure::write(&error))
    }

    /// A table, or any text that brings its own ends of lines.
    pub fn text(&mut self, text: impl fmt::Display) -> Result<()> {
        write!(self.writer, "{text}").map_err(|error| Failure::write(&error))
    }

    /// One object, on its line.
    pub fn json(&mut self, object: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(object).expect("records of numbers and texts always serialise");
        self.line(line)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(|error| Failure::write(&error))
    }

    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

/// What the operator should know, a line each.
pub fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {}\n", printable(note))).collect()
}

/// Without characters that would do something to a terminal.
pub fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => clean.extend(character.escape_default()),
            false => clean.push(character),
        }
    }
    clean
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Columns as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    header: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[(&'static str, Align)]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub fn push<const N: usize>(&mut self, row: [String; N]) {
        debug_assert_eq!(N, self.header.len(), "a cell for each column");
        self.rows.push(row.iter().map(|cell| printable(cell)).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|(name, _)| name.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let header: Vec<String> = self.header.iter().map(|(name, _)| (*name).to_owned()).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, (_, align)), &width) in row.iter().zip(&self.header).zip(&widths) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_each_other() {
        let mut table = Table::new(&[("NAME", Align::Left), ("COUNT", Align::Right), ("NOTE", Align::Left)]);
        table.push(["a".into(), "1".into(), String::new()]);
        table.push(["longer".into(), "123456".into(), "x".into()]);
        assert_eq!(table.to_string(), "NAME     COUNT  NOTE\na            1\nlonger  123456  x\n");
    }

    #[test]
    fn a_name_cannot_write_to_the_terminal() {
        let mut table = Table::new(&[("NAME", Align::Left)]);
        table.push(["\u{1b}[2Jevil\n".into()]);
        assert_eq!(table.to_string(), "NAME\n\\u{1b}[2Jevil\\n\n");
    }
}
