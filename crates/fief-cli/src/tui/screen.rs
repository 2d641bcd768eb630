// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How `top` looks: the machine in two lines, the tree, the keys in the last line.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table};

use super::app::App;
use super::column::Column;
use super::rows::{Row, RowKind};
use crate::output::printable;
use crate::quantity::part;

const KEYS: [(&str, &str); 10] = [
    ("↑↓", "move"),
    ("←→", "fold"),
    ("<>", "sort"),
    ("r", "reverse"),
    ("i", "idle lines"),
    ("/", "search"),
    ("p", "pause"),
    ("+-", "interval"),
    ("?", "help"),
    ("q", "quit"),
];

const USER: Color = Color::Green;
const SYSTEM: Color = Color::Yellow;
const RECEIVE: Color = Color::Magenta;
const UNMANAGED: Color = Color::Blue;
const STEAL: Color = Color::Red;

const NARROWEST_NAME: usize = 18;
const BAR: usize = 16;

pub fn draw(frame: &mut Frame, app: &mut App) {
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [title, machine, _, table, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(heading(app)), title);
    draw_machine(frame, app, machine);
    draw_table(frame, app, table);
    let last = app.search().line().map_or_else(key_line, |words| printable(&words).into());
    frame.render_widget(Paragraph::new(last), keys);
    if app.shows_help() {
        draw_help(frame, app.columns());
    }
}

fn heading(app: &App) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::styled("fief top", bold)];
    if let Some(snapshot) = app.snapshot() {
        let cpus = match snapshot.cpus {
            1 => "1 CPU".to_owned(),
            cpus => format!("{cpus} CPUs"),
        };
        spans.push(format!("   {cpus}, {} containers", snapshot.containers.len()).into());
    }
    spans.push(format!("   every {} s", app.interval().as_secs_f64()).into());
    if app.is_paused() {
        spans.push("   ".into());
        spans.push(Span::styled(" PAUSED ", bold.add_modifier(Modifier::REVERSED)));
    }
    spans.into()
}

/// The whole machine as one bar, with its legend in front; or why there is nothing to show.
fn draw_machine(frame: &mut Frame, app: &App, area: Rect) {
    if let Some(note) = app.note() {
        return frame.render_widget(Paragraph::new(note), area);
    }
    let machine = app.machine();
    let parts = [
        ("user", machine.user, USER),
        ("system", machine.system, SYSTEM),
        ("receive", machine.receive, RECEIVE),
        ("unmanaged", machine.unmanaged, UNMANAGED),
        ("steal", machine.steal, STEAL),
    ];
    let mut spans: Vec<Span> = Vec::new();
    for (name, value, colour) in parts {
        spans.push(Span::styled(format!("{name} {:>5}%  ", part(value)), Style::new().fg(colour)));
    }
    let legend: usize = spans.iter().map(Span::width).sum();
    let room = usize::from(area.width).saturating_sub(legend);
    spans.extend(bar(&parts.map(|(_, value, colour)| (value, colour)), room));
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

/// Parts of the machine, one after the other; the rest is dots.
fn bar(parts: &[(f64, Color)], room: usize) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    let (mut end, mut filled) = (0.0, 0);
    for &(value, colour) in parts {
        end += value;
        // Rounding the ends, not the lengths, keeps the whole as long as its sum.
        let to = ((end * room as f64).round() as usize).clamp(filled, room);
        spans.push(Span::styled("█".repeat(to - filled), Style::new().fg(colour)));
        filled = to;
    }
    spans.push(Span::styled("·".repeat(room - filled), Style::new().add_modifier(Modifier::DIM)));
    spans
}

/// What all columns but the names take.
fn numbers(columns: &[Column]) -> usize {
    let numbers = columns.iter().filter(|&&column| column != Column::Container);
    numbers.map(|column| column.width() + 1).sum()
}

/// How long the names are, and then the bars: who has much room sees more of both, and no gap.
fn shares(width: usize, columns: &[Column], rows: &[Row]) -> (usize, usize) {
    let room = width - numbers(columns) - 1;
    let longest = rows.iter().map(|row| Line::from(name(row)).width()).max().unwrap_or(0);
    let names = longest.clamp(NARROWEST_NAME, room - BAR);
    (names, room - names)
}

/// Those of all columns that a width has room for, and whether there is some for a bar.
fn columns(all: &[Column], width: usize) -> (Vec<Column>, bool) {
    let mut columns = all.to_vec();
    let needed = |columns: &[Column]| NARROWEST_NAME + numbers(columns);
    for dispensable in Column::DISPENSABLE {
        if needed(&columns) <= width {
            break;
        }
        columns.retain(|&column| column != dispensable);
    }
    let has_bar = needed(&columns) + BAR < width;
    (columns, has_bar)
}

fn draw_table(frame: &mut Frame, app: &mut App, area: Rect) {
    let width = usize::from(area.width);
    let (columns, has_bar) = columns(app.columns(), width);
    let (names, bars) = if has_bar { shares(width, &columns, app.rows()) } else { (NARROWEST_NAME, 0) };
    let window = app.window(usize::from(area.height.saturating_sub(1)));
    let selected = app.selected();
    let mut widths: Vec<Constraint> = Vec::new();
    let mut header: Vec<Cell> = Vec::new();
    for &column in &columns {
        let is_sorted = column == app.view().sort;
        let style = if is_sorted { Style::new().add_modifier(Modifier::UNDERLINED) } else { Style::new() };
        let title = Line::from(Span::styled(column.title(), style));
        header.push(Cell::from(title.alignment(alignment(column))));
        widths.push(match column {
            Column::Container => Constraint::Min(names as u16),
            _ => Constraint::Length(column.width() as u16),
        });
    }
    if has_bar {
        header.push(Cell::from("OF THE MACHINE"));
        widths.push(Constraint::Length(bars as u16));
    }
    let rows = window.map(|at| {
        let row = &app.rows()[at];
        let mut cells: Vec<Cell> = columns.iter().map(|&column| cell(column, row)).collect();
        if has_bar {
            cells.push(Cell::from(Line::from(row_bar(row, bars))));
        }
        let style = match (at == selected, row.kind) {
            (true, _) => Style::new().add_modifier(Modifier::REVERSED),
            (false, RowKind::Container) => Style::new(),
            (false, _) => Style::new().add_modifier(Modifier::DIM),
        };
        TableRow::new(cells).style(style)
    });
    let table = Table::new(rows, widths)
        .header(TableRow::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn alignment(column: Column) -> Alignment {
    if column == Column::Container { Alignment::Left } else { Alignment::Right }
}

fn cell(column: Column, row: &Row) -> Cell<'static> {
    if column != Column::Container {
        return Cell::from(Line::from(column.cell(row)).alignment(Alignment::Right));
    }
    Cell::from(name(row))
}

/// With its place in the tree.
fn name(row: &Row) -> String {
    let mark = match row.folded {
        Some(true) => "▸ ",
        Some(false) => "▾ ",
        None => "  ",
    };
    format!("{:width$}{mark}{}", "", printable(&row.name), width = 2 * row.depth)
}

fn row_bar(row: &Row, room: usize) -> Vec<Span<'static>> {
    let rest = match row.kind {
        RowKind::NotOurs => Color::DarkGray,
        _ => UNMANAGED,
    };
    bar(&[(row.user, USER), (row.system, SYSTEM), (row.receive, RECEIVE), (row.undivided, rest)], room)
}

fn key_line() -> Line<'static> {
    let mut spans = Vec::new();
    for (key, what) in KEYS {
        spans.push(Span::styled(key, Style::new().add_modifier(Modifier::BOLD)));
        spans.push(format!(" {what}  ").into());
    }
    spans.into()
}

fn draw_help(frame: &mut Frame, columns: &[Column]) {
    let mut lines: Vec<Line> = Vec::new();
    for column in columns {
        lines.push(format!("{:<11} {}", column.title(), column.about()).into());
    }
    lines.push("".into());
    lines.push("↑ ↓ PgUp PgDn Home End   move".into());
    lines.push("← →   fold and unfold; ← from inside goes to the parent".into());
    lines.push("< >   choose the column to sort by (underlined); r reverses".into());
    lines.push("i     hide lines in which nothing happens".into());
    lines.push("/     mark what has these letters in its path; n  the next one".into());
    lines.push("p     pause;  + -  a longer or shorter interval;  q  quit".into());
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 4;
    let area = centred(frame.area(), width, lines.len() as u16 + 2);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" any key closes this ")), area);
}

fn centred(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::look::Seen;
    use crate::tui::rows::sample;

    fn app() -> App {
        let mut app = App::new(Duration::from_secs(1));
        app.update(sample::moment([100, 100, 100, 0, 0]));
        app.update(sample::second().0);
        app
    }

    fn lines(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen in memory");
        terminal.draw(|frame| draw(frame, app)).expect("memory does not fail");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn the_tree_stands_between_the_machine_and_the_keys() {
        let lines = lines(&mut app(), 120, 12);
        assert!(lines[0].starts_with("fief top   2 CPUs, 6 containers   every 1 s"), "{lines:#?}");
        assert!(lines[1].starts_with("user  60.0%  system  10.0%  receive     0%"), "{lines:#?}");
        assert!(lines[3].starts_with("CONTAINER") && lines[3].ends_with("OF THE MACHINE"), "{lines:#?}");
        assert!(lines[4].starts_with("▾ shop ") && lines[4].contains(" 65.0 "), "{lines:#?}");
        assert!(lines[5].starts_with("    browse "), "{lines:#?}");
        assert!(lines[6].starts_with("    gold "), "{lines:#?}");
        assert!(lines[9].starts_with("  idle ") && lines[9].contains(" 30.0 "), "{lines:#?}");
        assert!(lines[11].starts_with("↑↓ move  ←→ fold"), "{lines:#?}");
    }

    #[test]
    fn where_no_cpu_time_is_charged_words_stand_in_the_place_of_the_bar() {
        let mut app = app();
        let (mut after, _) = sample::second();
        after.charged = false;
        app.update(after);
        let lines = lines(&mut app, 120, 12);
        assert!(lines[1].starts_with("no CPU time is charged: "), "{lines:#?}");
    }

    #[test]
    fn a_narrow_screen_keeps_names_and_cpu() {
        let lines = lines(&mut app(), 30, 10);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["CONTAINER", "CPU%", "RECV%"], "{lines:#?}");
        assert!(lines[4].starts_with("▾ shop"), "{lines:#?}");
    }

    #[test]
    fn every_size_of_the_screen_is_drawn() {
        let mut app = app();
        for (width, height) in [(1, 1), (5, 3), (200, 4), (18, 60), (400, 100)] {
            assert_eq!(lines(&mut app, width, height).len(), usize::from(height));
        }
        app.on_key(KeyEvent::from(KeyCode::Char('?')));
        for (width, height) in [(1, 1), (40, 8), (200, 60)] {
            assert_eq!(lines(&mut app, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn a_wide_screen_has_longer_bars_and_no_gap() {
        let lines = lines(&mut app(), 200, 12);
        let gold = lines.iter().find(|line| line.contains(" gold ")).expect("a row");
        let behind = gold.split_once(" gold ").expect("it is there").1;
        let gap = behind.chars().take_while(|symbol| *symbol == ' ').count();
        assert!(gap < 30, "{lines:#?}");
        assert_eq!(gold.chars().count(), 200, "{lines:#?}");
    }

    #[test]
    fn the_help_explains_every_column() {
        for (queues, last) in [(Vec::new(), Column::Threads), (sample::queues(0), Column::Late)] {
            let mut app = app();
            app.update(Seen { snapshot: sample::second().0, queues });
            app.on_key(KeyEvent::from(KeyCode::Char('?')));
            let screen = lines(&mut app, 120, 30).join("\n");
            assert_eq!(app.columns().last(), Some(&last));
            for column in app.columns() {
                assert!(screen.contains(column.about()), "{screen}");
            }
        }
    }

    #[test]
    fn a_narrow_screen_keeps_who_waits() {
        let mut app = app();
        app.update(Seen { snapshot: sample::second().0, queues: sample::queues(4) });
        let words = |lines: &[String]| lines[3].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines(&mut app, 45, 10)), ["CONTAINER", "CPU%", "WAITING", "WAIT", "P99"]);
        let wide = words(&lines(&mut app, 170, 10));
        assert_eq!(wide[wide.len() - 5..], ["FULL/s", "LATE/s", "OF", "THE", "MACHINE"]);
    }

    #[test]
    fn a_pause_is_seen() {
        let mut app = app();
        app.on_key(KeyEvent::from(KeyCode::Char('p')));
        assert!(lines(&mut app, 80, 10)[0].contains("PAUSED"));
    }

    #[test]
    fn a_bar_is_never_longer_than_its_room() {
        for (values, expected) in [([0.5, 0.25], 12), ([0.9, 0.9], 16), ([0.0, 0.0], 0), ([0.03, 0.01], 1)] {
            let spans = bar(&values.map(|value| (value, Color::Green)), BAR);
            let text: String = spans.iter().map(|span| span.content.as_ref()).collect();
            assert_eq!(text.chars().count(), BAR);
            assert_eq!(text.chars().filter(|&symbol| symbol == '█').count(), expected, "{values:?}");
        }
    }
}
