// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables, a plot and figures. Pure.

use super::differential::{Difference, Tally};
use super::head::LENGTH;
use super::kept::Kept;
use super::load::{CONNECTIONS, PER_SECOND, Used};
use super::segments::{Head, WINDOW};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "A head of almost 16 kB comes in segments of one byte, or something else that is kept until it is whole: \
what does a segment cost the program at the interface, by its place? And how often do Fief and a real server read a mutated \
head or ClientHello differently?";

/// Rows of the table.
const ROWS: usize = 8;

pub fn of(
    heads: &[Head],
    others: &[(Kept, Vec<Head>)],
    loads: &[Used],
    difference: Option<&Difference>,
    note: Option<String>,
) -> Outcome {
    let mut outcome = Outcome { name: "parse", about: ABOUT.to_owned(), ..Outcome::default() };
    segments(heads, &mut outcome);
    kept(others, &mut outcome);
    load(loads, &mut outcome);
    differential(difference, note, &mut outcome);
    outcome
}

/// What all heads took behind so many bytes.
fn of_places(heads: &[Head]) -> impl Iterator<Item = (f64, Vec<f64>)> {
    let places = heads.iter().map(|head| head.windows.len()).min().unwrap_or(0);
    (0..places).map(move |place| ((place * WINDOW) as f64, heads.iter().map(|head| head.windows[place]).collect()))
}

/// The median of all heads at each place, so that one interruption is no worst segment.
fn by_place(heads: &[Head]) -> Vec<f64> {
    of_places(heads).map(|(_, windows)| median(&windows)).collect()
}

/// ns a segment.
struct Costs {
    first: f64,
    worst: f64,
    verdict: f64,
}

impl Costs {
    fn of(heads: &[Head]) -> Costs {
        let windows = by_place(heads);
        Costs {
            first: windows.first().copied().unwrap_or(f64::NAN),
            worst: windows.iter().copied().fold(f64::NAN, f64::max),
            verdict: median(&heads.iter().map(|head| head.verdict).collect::<Vec<_>>()),
        }
    }
}

fn segments(heads: &[Head], outcome: &mut Outcome) {
    let windows = by_place(heads);
    let Costs { first, worst, verdict } = Costs::of(heads);
    let mut table = Table::new(
        format!("The program at the interface, ns a segment of one byte, of a head of {LENGTH} bytes"),
        &["bytes before it", "ns"],
    );
    for (place, ns) in windows.iter().enumerate().step_by(windows.len().div_ceil(ROWS).max(1)) {
        table.row([(place * WINDOW).to_string(), number(*ns)]);
    }
    table.row(["the verdict's own".to_owned(), number(verdict)]);
    table.note(format!("Means of {WINDOW} segments, and medians of {} heads of these.", heads.len()));
    outcome.tables.push(table);
    outcome.plots.push(Plot {
        name: "segments".to_owned(),
        title: "What a segment of one byte costs".to_owned(),
        x: "bytes of the head before it".to_owned(),
        y: "ns".to_owned(),
        series: vec![Series::of("program at the interface", of_places(heads))],
        logarithmic: false,
    });
    outcome.measurements.extend(heads.iter().enumerate().map(|(round, head)| head.to_json(Kept::First, round)));
    let load = format!("one connection, a head of {LENGTH} bytes in segments of one byte, without any other traffic");
    let metric = format!(
        "run time of the program a segment: the largest mean of {WINDOW} consecutive segments before the verdict, of the \
         first {WINDOW}"
    );
    let figures = &mut outcome.figures;
    figures.must("worst_segment_vs_first", worst / first, Bound::AtMost(1.5)).of(metric, "ratio", &load);
    let metric = format!("run time of the segment with which the head is complete, of the first {WINDOW}");
    figures.add("verdict_segment_vs_first", verdict / first).of(metric, "ratio", &load);
    figures.add("first_segment_ns", first).of("run time of the program a segment", "ns", &load);
    figures.add("worst_segment_ns", worst).of("run time of the program a segment", "ns", load);
}

/// What is kept until it is whole beside the head that begins a connection.
fn kept(others: &[(Kept, Vec<Head>)], outcome: &mut Outcome) {
    let mut table = Table::new(
        "The program at the interface, ns a segment of one byte of what else is kept until it is whole",
        &["", "the first", "the worst", "the verdict's own"],
    );
    let mut plot = Plot {
        name: "kept".to_owned(),
        title: "What a segment of one byte costs, of what else is kept".to_owned(),
        x: "bytes before it".to_owned(),
        y: "ns".to_owned(),
        ..Plot::default()
    };
    for (kept, heads) in others {
        let Costs { first, worst, verdict } = Costs::of(heads);
        table.row([kept.title().to_owned(), number(first), number(worst), number(verdict)]);
        plot.series.push(Series::of(kept.title(), of_places(heads)));
        outcome.measurements.extend(heads.iter().enumerate().map(|(round, head)| head.to_json(*kept, round)));
        let load = format!("one connection, {} of almost {LENGTH} bytes in segments of one byte", kept.title());
        let metric = format!(
            "run time of the program a segment: the largest mean of {WINDOW} consecutive segments before the verdict, of the \
             first {WINDOW}"
        );
        let name = format!("worst_segment_vs_first_{}", kept.name());
        outcome.figures.must(name, worst / first, Bound::AtMost(1.5)).of(metric, "ratio", load);
    }
    table.note(format!(
        "Means of {WINDOW} segments, and medians of {} rounds.",
        others.first().map_or(0, |one| one.1.len())
    ));
    outcome.tables.push(table);
    outcome.plots.push(plot);
}

fn load(loads: &[Used], outcome: &mut Outcome) {
    let middle = |of: fn(&Used) -> f64| median(&loads.iter().map(of).collect::<Vec<_>>());
    let load = format!(
        "{PER_SECOND} segments of one byte a second, {CONNECTIONS} connections in turn, spread over heads of {LENGTH} bytes"
    );
    let mut table = Table::new(
        "10,000 segments of one byte a second: part of one core",
        &["segments/s", "receive thread", "program"],
    );
    table.row([middle(|one| one.per_second), middle(|one| one.thread), middle(|one| one.program)].map(number));
    outcome.tables.push(table);
    outcome.measurements.extend(loads.iter().enumerate().map(|(round, one)| one.to_json(round)));
    let metric = "CPU of the receiving thread a second";
    outcome.figures.add("core_used", middle(|one| one.thread)).of(metric, "part of one core", &load);
    let metric = "run time of the program at the interface a second";
    outcome.figures.add("core_used_by_program", middle(|one| one.program)).of(metric, "part of one core", load);
}

/// `note`: why it was not measured.
fn differential(difference: Option<&Difference>, note: Option<String>, outcome: &mut Outcome) {
    let head = ["server", "", "cases", "let round", "refused wrongly", "read otherwise", "unsteady"];
    let mut table = Table::new("Fief against real servers", &head);
    for one in difference.iter().flat_map(|difference| &difference.tallies) {
        let counts = [one.cases, one.let_round, one.refused_wrongly, one.read_otherwise, one.unsteady];
        let counts = counts.map(|count| count.to_string());
        table.row([one.server.clone(), one.speech.clone()].into_iter().chain(counts));
        one.failures.iter().for_each(|failure| table.note(failure.clone()));
    }
    match note {
        Some(note) => table.note(format!("Not measured: {note}")),
        None => table.note(
            "Read otherwise: valid and refused each time, but another of the servers reads the refused resource there, or one \
             request more. Unsteady: refused once, and served when it was tried again. Neither counts as refused wrongly.",
        ),
    }
    outcome.tables.push(table);
    outcome.measurements.extend(difference.into_iter().flat_map(Difference::to_json));
    let load = match difference {
        Some(one) => {
            let cases = one.least_cases();
            format!("at least {cases} mutated heads and hellos for each of {}; one seed", one.servers().join(", "))
        }
        None => "not measured".to_owned(),
    };
    let count = |of: fn(&Tally) -> u64| difference.map_or(f64::NAN, |one| one.total(of) as f64);
    let (round, wrong) = (count(|one| one.let_round), count(|one| one.refused_wrongly));
    let metric = "requests that a server served as the refused resource and Fief let pass, of all servers";
    outcome.figures.must("let_round", round, Bound::AtMost(0.0)).of(metric, "requests", &load);
    let metric = "valid and allowed requests that a server served and Fief refused each of five times, of all servers; without \
                  those in which another of them reads the refused resource or one request more (read otherwise), and those that \
                  were served when they were tried again (unsteady)";
    outcome.figures.must("refused_wrongly", wrong, Bound::AtMost(0.0)).of(metric, "requests", load);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_worst_place_and_not_the_worst_moment() {
        let head = |windows: [f64; 3]| Head { windows: windows.to_vec(), verdict: 9000.0 };
        let heads = [head([1000.0, 1100.0, 1400.0]), head([1000.0, 9000.0, 1400.0]), head([1000.0, 1100.0, 1400.0])];
        let others =
            [(Kept::Chunk, heads.clone().map(|one| Head { windows: vec![2.0, one.windows[2]], ..one }).to_vec())];
        let outcome = of(&heads, &others, &[], None, Some("a reason".to_owned()));
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert_eq!((figure("worst_segment_vs_first"), figure("verdict_segment_vs_first")), (1.4, 9.0));
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        let expected = ["worst_segment_vs_first_chunk_line", "let_round", "refused_wrongly"];
        assert_eq!(missed, expected, "what was not measured is missed");
        assert_eq!(figure("worst_segment_vs_first_chunk_line"), 700.0);
        assert!(outcome.tables.iter().any(|table| table.notes.iter().any(|note| note.contains("a reason"))));
    }

    #[test]
    fn refusals_that_are_no_failures_are_told_beside_them() {
        let tally = Tally {
            server: "nginx".to_owned(),
            speech: "heads".to_owned(),
            cases: 700,
            let_round: 0,
            refused_wrongly: 0,
            read_otherwise: 51,
            unsteady: 42,
            failures: Vec::new(),
        };
        let mut outcome = Outcome::default();
        differential(Some(&Difference { tallies: vec![tally] }), None, &mut outcome);
        assert_eq!(outcome.figures.get("refused_wrongly"), Some(0.0));
        let table = outcome.tables.last().expect("that of the servers").to_string();
        assert!(["read otherwise", "unsteady", "51", "42"].iter().all(|word| table.contains(word)), "{table}");
    }
}
