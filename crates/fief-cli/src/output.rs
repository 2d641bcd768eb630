// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the commands print on standard output: lines, tables for people, one JSON object a line for programs; and what those that go on
//! say meanwhile on standard error.
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
        self.line(harmless(&line))
    }

    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(|error| Failure::write(&error))
    }

    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

/// A line on standard error. Nobody may read it, and its disk may be full: that ends no server, agent or mount, as the panic of `eprintln!`
/// would.
pub fn say(line: impl fmt::Display) {
    let _ = io::stderr().write_all(format!("fief: {line}\n").as_bytes());
}

/// What the operator should know, a line each.
pub fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {}\n", printable(note))).collect()
}

/// Whether a terminal would do something upon it, or show nothing: control characters, and those that lead, turn or join text, by
/// which one name looks like another.
fn acts(character: char) -> bool {
    let is_unseen = matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    );
    is_unseen || character.is_control()
}

/// Without characters that would do something to a terminal.
pub fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        match acts(character) {
            true => clean.extend(character.escape_default()),
            false => clean.push(character),
        }
    }
    clean
}

/// JSON that says the same without such characters. They stand in its texts alone, where each has an escape.
fn harmless(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for character in json.chars() {
        match acts(character) {
            true => {
                let mut units = [0; 2];
                character.encode_utf16(&mut units).iter().for_each(|unit| clean.push_str(&format!("\\u{unit:04x}")));
            }
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

    #[test]
    fn what_leads_and_what_is_not_seen_is_shown() {
        assert_eq!(printable("gold\u{202e}\u{200b}\u{9b}8m\u{7f}"), "gold\\u{202e}\\u{200b}\\u{9b}8m\\u{7f}");
        for fine in ["gold", "größe", "प्रकाश", "金", "e\u{301}"] {
            assert_eq!(printable(fine), fine);
        }
    }

    #[test]
    fn an_object_cannot_write_to_the_terminal_and_says_what_it_said() {
        let liar = "\u{1b}[8m\u{7f}\u{9b}8m\u{202e}\u{200b}\u{e0041}\"größe";
        let json = harmless(&serde_json::to_string(liar).expect("a text"));
        assert!(!json.chars().any(acts), "{json:?}");
        assert!(json.contains("\\u007f\\u009b8m\\u202e\\u200b\\udb40\\udc41") && json.contains("größe"), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("a text"), liar);
    }
}
