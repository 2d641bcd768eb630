// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From single measurements to tables, a plot and figures. Pure.

use super::differential::{Difference, Tally};
use super::head::LENGTH;
use super::load::{CONNECTIONS, PER_SECOND, Used};
use super::segments::{Head, WINDOW};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "A head of almost 16 kB comes in segments of one byte: what does a segment cost the program at the \
interface, by its place in the head? And how often do Fief and a real server read a mutated head or ClientHello differently?";

/// Rows of the table.
const ROWS: usize = 8;

pub fn of(heads: &[Head], loads: &[Used], difference: Option<&Difference>, note: Option<String>) -> Outcome {
    let mut outcome = Outcome { name: "parse", about: ABOUT.to_owned(), ..Outcome::default() };
    segments(heads, &mut outcome);
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

fn segments(heads: &[Head], outcome: &mut Outcome) {
    let windows = by_place(heads);
    let first = windows.first().copied().unwrap_or(f64::NAN);
    let worst = windows.iter().copied().fold(f64::NAN, f64::max);
    let verdict = median(&heads.iter().map(|head| head.verdict).collect::<Vec<_>>());
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
    outcome.measurements.extend(heads.iter().enumerate().map(|(round, head)| head.to_json(round)));
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
    let mut table = Table::new("Fief against real servers", &["server", "", "cases", "let round", "refused wrongly"]);
    for one in difference.iter().flat_map(|difference| &difference.tallies) {
        let counts = [one.cases, one.let_round, one.refused_wrongly].map(|count| count.to_string());
        table.row([one.server.clone(), one.speech.clone()].into_iter().chain(counts));
        one.failures.iter().for_each(|failure| table.note(failure.clone()));
    }
    if let Some(note) = note {
        table.note(format!("Not measured: {note}"));
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
    let metric = "valid requests that a server served, and that were allowed, and Fief refused, of all servers";
    outcome.figures.must("refused_wrongly", wrong, Bound::AtMost(0.0)).of(metric, "requests", load);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_worst_place_and_not_the_worst_moment() {
        let head = |windows: [f64; 3]| Head { windows: windows.to_vec(), verdict: 9000.0 };
        let heads = [head([1000.0, 1100.0, 1400.0]), head([1000.0, 9000.0, 1400.0]), head([1000.0, 1100.0, 1400.0])];
        let outcome = of(&heads, &[], None, Some("a reason".to_owned()));
        let figure = |name: &str| outcome.figures.get(name).expect("a figure");
        assert_eq!((figure("worst_segment_vs_first"), figure("verdict_segment_vs_first")), (1.4, 9.0));
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["let_round", "refused_wrongly"], "what was not measured is missed");
        assert!(outcome.tables.iter().any(|table| table.notes.iter().any(|note| note.contains("a reason"))));
    }
}
