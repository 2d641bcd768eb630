// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The live picture: a bar for each server and number of other clients, without Fief and with it. On a terminal it is drawn again
//! in place; elsewhere each result is a plain line. It goes to standard error, so that a redirected table stays clean.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

const COLUMNS: [&str; 2] = ["without Fief", "with Fief"];
const WIDTH: usize = 26;
/// Full width at first, so that the first bars do not fill it; it grows with what is measured.
const LEAST_SCALE_US: f64 = 2000.0;

#[derive(Debug)]
pub struct Picture {
    about: String,
    rows: Vec<Row>,
    cells: Vec<[Cell; 2]>,
    /// Row and column that is measured now.
    at: (usize, usize),
    is_terminal: bool,
    /// Lines drawn last, to go back over.
    drawn: usize,
}

/// One server beside so many others.
#[derive(Clone, Debug)]
pub struct Row {
    pub server: &'static str,
    pub others: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    us: f64,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Empty,
    Running,
    Done,
}

impl Picture {
    pub fn new(about: &str, rows: Vec<Row>) -> Picture {
        let is_terminal = std::io::stderr().is_terminal();
        let mut picture = Picture {
            about: wrap(about, 76),
            cells: vec![Default::default(); rows.len()],
            rows,
            at: (0, 0),
            is_terminal,
            drawn: 0,
        };
        if is_terminal {
            picture.draw();
        } else {
            eprintln!("{}\n", picture.about);
        }
        picture
    }

    pub fn begin(&mut self, row: usize, column: usize) {
        self.at = (row, column);
        self.cell().state = State::Running;
        self.draw();
    }

    pub fn live(&mut self, us: f64) {
        self.cell().us = us;
        self.draw();
    }

    pub fn end(&mut self, us: f64) {
        *self.cell() = Cell { us, state: State::Done };
        if self.is_terminal {
            self.draw();
        } else {
            let (row, column) = self.at;
            let Row { server, others } = &self.rows[row];
            eprintln!("{server}, {}, {others} others: the paying client waits {}", COLUMNS[column], time(us));
        }
    }

    fn cell(&mut self) -> &mut Cell {
        &mut self.cells[self.at.0][self.at.1]
    }

    fn draw(&mut self) {
        if !self.is_terminal {
            return;
        }
        let text = self.render();
        let up = if self.drawn > 0 { format!("\x1b[{}A\r", self.drawn) } else { String::new() };
        // Each line is cleared to its end, since a bar may have become shorter.
        let text = text.replace('\n', "\x1b[K\n");
        self.drawn = text.matches('\n').count();
        let mut stderr = std::io::stderr();
        let _ = stderr.write_all(format!("{up}{text}").as_bytes());
        let _ = stderr.flush();
    }

    fn render(&self) -> String {
        let values = self.cells.iter().flatten().map(|cell| cell.us).filter(|us| us.is_finite());
        let scale = values.fold(LEAST_SCALE_US, f64::max);
        let width = WIDTH + 11;
        let mut text = format!("{}\n\n  others  {:<width$}{}\n", self.about, COLUMNS[0], COLUMNS[1]);
        let mut server = "";
        for (row, cells) in self.rows.iter().zip(&self.cells) {
            if row.server != server {
                server = row.server;
                let _ = writeln!(text, "  {server}");
            }
            let cells = cells.map(|cell| cell.render(scale));
            let line = format!("  {:>6}  {:<width$}{}", row.others, cells[0], cells[1]);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
        text
    }
}

impl Cell {
    fn render(self, scale: f64) -> String {
        let length = ((self.us / scale * WIDTH as f64).round() as usize).clamp(1, WIDTH);
        match self.state {
            State::Empty => "·".to_owned(),
            State::Running if self.us > 0.0 => format!("{} {} …", "▒".repeat(length), time(self.us)),
            State::Running => "…".to_owned(),
            State::Done => format!("{} {}", "█".repeat(length), time(self.us)),
        }
    }
}

fn time(us: f64) -> String {
    match us.is_finite() {
        true => format!("{:.2} ms", us / 1000.0),
        false => "no answer".to_owned(),
    }
}

fn wrap(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let mut picture = Picture {
            about: "about".into(),
            rows: vec![Row { server: "nginx", others: 5 }, Row { server: "Go", others: 5 }],
            cells: vec![Default::default(); 2],
            at: (0, 0),
            is_terminal: false,
            drawn: 0,
        };
        picture.end(250.0);
        picture.begin(1, 0);
        picture.live(2600.0);
        picture
    }

    #[test]
    fn bars_are_in_proportion_and_the_running_one_is_marked() {
        let text = picture().render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[3], lines[5]), ("  nginx", "  Go"), "{text}");
        assert_eq!(lines[4].matches('█').count(), 3, "{text}");
        assert_eq!(lines[6].matches('▒').count(), WIDTH, "{text}");
        assert!(lines[6].contains("2.60 ms …") && lines[6].trim_end().ends_with('·'), "{text}");
    }

    #[test]
    fn a_client_without_an_answer_is_told_as_such() {
        assert_eq!(time(f64::NAN), "no answer");
    }

    #[test]
    fn long_text_is_wrapped_between_words() {
        assert_eq!(wrap("one two three", 8), "one two\nthree");
    }
}
