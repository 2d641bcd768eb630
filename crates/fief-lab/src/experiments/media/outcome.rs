// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came out: the rates by the number of hogs, how far they are apart, and the late frames.

use serde_json::json;

use super::arithmetic::{spread, worst};
use super::deadlines::{self, Order};
use super::way::Way;
use super::{Clip, Measured, PERCENT, Sample};
use crate::experiments::Outcome;
use crate::figures::{Bound, Figures};
use crate::plot::{Plot, Series};
use crate::statistics::median;
use crate::table::{Table, number};

const ABOUT: &str = "A player decodes frames and sends their pixels over a UNIX socket to a display server, which shows each before the \
player goes on. Both only compute, the same for each frame. Beside them 1 to 7 hogs want all of the CPU, each in a container of its own. \
In one container, or where the server works for the container of the player that asks it, the frame rate is that of the share, however \
many hogs there are. Then a clip of 25 frames a second plays in a container with processes that compute: with deadlines (edf) no frame \
is late.";

const LOAD: &str = "a player, its display server, and 1, 3, 5 and 7 hogs on one CPU";
const MOST: &str = "a player, its display server, and 7 hogs on one CPU";
const CLIP: &str =
    "a clip of 25 frames a second, 3 processes that compute in the same container, and 7 hogs beside it on one CPU";

impl Sample {
    fn rounds(&self, way: Way, percent: u32, hogs: usize, what: impl Fn(&Measured) -> f64) -> Vec<f64> {
        let here = |one: &&Measured| one.way == way && one.percent == percent && one.hogs == hogs;
        self.measured.iter().filter(here).map(what).collect()
    }

    fn rate(&self, way: Way, percent: u32, hogs: usize) -> f64 {
        median(&self.rounds(way, percent, hogs, |one| one.rate))
    }

    fn hogs(&self) -> Vec<usize> {
        sorted(self.measured.iter().map(|one| one.hogs))
    }

    fn percents(&self, way: Way) -> Vec<u32> {
        sorted(self.measured.iter().filter(|one| one.way == way).map(|one| one.percent))
    }

    /// How far the rates are apart with the number of hogs; of all shares the worst.
    fn spread(&self, way: Way, what: impl Fn(&Measured) -> f64 + Copy) -> f64 {
        worst(self.percents(way).into_iter().map(|percent| {
            let rates = self.hogs().into_iter().map(|hogs| median(&self.rounds(way, percent, hogs, what)));
            spread(&rates.collect::<Vec<_>>())
        }))
    }

    /// Of what the share pays for, the rate that is farthest below it.
    fn vs_share(&self, way: Way) -> f64 {
        let paid = |percent: u32| f64::from(percent) * 10.0 / self.frame_ms;
        let percents = self.percents(way).into_iter();
        let each = percents.flat_map(|percent| self.hogs().into_iter().map(move |hogs| (percent, hogs)));
        -worst(each.map(|(percent, hogs)| -self.rate(way, percent, hogs) / paid(percent)))
    }

    fn clip(&self, order: Order, what: impl Fn(&Clip) -> f64) -> f64 {
        self.clips.iter().find(|clip| clip.order == order).map_or(f64::NAN, what)
    }
}

fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}

pub fn of(sample: &Sample) -> Outcome {
    let mut outcome = Outcome { name: "media", about: ABOUT.to_owned(), ..Outcome::default() };
    outcome.tables.extend([rates(sample), clips(sample)]);
    outcome.plots.push(plot("rate", "Frame rate beside hogs", "frames a second", sample, |one| one.rate));
    outcome.plots.push(plot("jitter", "Jitter beside hogs, 99th percentile", "ms", sample, |one| one.jitter_ms));
    figures_of_rates(&mut outcome.figures, sample);
    figures_of_clips(&mut outcome.figures, sample);
    outcome.measurements.push(json!({ "frame_ms": sample.frame_ms, "alone_frames_per_second": sample.alone_rate }));
    outcome.measurements.extend(sample.measured.iter().map(|one| {
        json!({
            "way": one.way.name(), "share_percent": one.percent, "hogs": one.hogs, "round": one.round,
            "frames_per_second": one.rate, "other_frames_per_second": one.other_rate, "jitter_p99_ms": one.jitter_ms,
            "charged_ms": one.charged_ms,
        })
    }));
    outcome.measurements.extend(sample.clips.iter().map(|clip| {
        json!({
            "order": clip.order.name(), "frames": clip.frames, "missed": clip.missed, "jitter_p99_ms": clip.jitter_ms,
        })
    }));
    outcome
}

fn rates(sample: &Sample) -> Table {
    let hogs = sample.hogs();
    let counts = hogs.iter().map(|count| format!("{count} hogs"));
    let head: Vec<String> =
        ["way", "share %"].map(str::to_owned).into_iter().chain(counts).chain(["spread".to_owned()]).collect();
    let mut table = Table::new("Frames a second", &head.iter().map(String::as_str).collect::<Vec<_>>());
    for way in Way::ALL {
        for percent in sample.percents(way) {
            let all: Vec<f64> = hogs.iter().map(|count| sample.rate(way, percent, *count)).collect();
            let share = if way == Way::Plain { String::new() } else { percent.to_string() };
            let cells = all.iter().map(|rate| format!("{rate:.2}"));
            let cells = [way.title().to_owned(), share].into_iter().chain(cells);
            table.row(cells.chain([format!("{:.4}", spread(&all))]));
        }
    }
    table.note(format!(
        "A frame costs both {} ms of the CPU; alone they show {} a second.",
        number(sample.frame_ms),
        number(sample.alone_rate)
    ));
    for note in &sample.notes {
        table.note(note);
    }
    table
}

fn clips(sample: &Sample) -> Table {
    let mut table = Table::new("A clip of 25 frames a second", &["order", "frames", "late", "jitter p99, ms"]);
    for clip in &sample.clips {
        let (frames, missed) = (clip.frames.to_string(), clip.missed.to_string());
        table.row([clip.order.title().to_owned(), frames, missed, format!("{:.2}", clip.jitter_ms)]);
    }
    table
}

fn plot(name: &str, title: &str, y: &str, sample: &Sample, what: impl Fn(&Measured) -> f64 + Copy) -> Plot {
    let series = Way::ALL.into_iter().filter(|way| !sample.percents(*way).is_empty()).map(|way| {
        let at = |count: &usize| (*count as f64, sample.rounds(way, PERCENT, *count, what));
        Series::of(way.title(), sample.hogs().iter().map(at))
    });
    Plot {
        name: name.to_owned(),
        title: format!("{title}, share of {PERCENT} %"),
        x: "hogs".to_owned(),
        y: y.to_owned(),
        series: series.collect(),
        logarithmic: false,
    }
}

fn figures_of_rates(figures: &mut Figures, sample: &Sample) {
    let spread_of = |way| sample.spread(way, |one| one.rate);
    let apart = "how far the frame rates with 1, 3, 5 and 7 hogs are apart, of the highest";
    figures.must("spread", worst([spread_of(Way::One), spread_of(Way::Shared)]), Bound::AtMost(0.02)).of(
        format!("{apart}; the worse of one container and of a shared display server, at the worst share"),
        "ratio",
        LOAD,
    );
    for way in [Way::One, Way::Shared, Way::Greedy, Way::Apart, Way::Plain, Way::Groups] {
        let metric = format!("{apart}; {}", way.title());
        figures.add(format!("{}_spread", way.name()), spread_of(way)).of(metric, "ratio", LOAD);
    }
    for way in [Way::One, Way::Shared, Way::Greedy] {
        let metric = format!("frame rate where it is lowest, of what the share pays for; {}", way.title());
        figures.add(format!("{}_vs_share", way.name()), sample.vs_share(way)).of(metric, "ratio", LOAD);
    }
    let charged = sample.measured.iter().filter(|one| one.way == Way::Shared).filter_map(|one| one.charged_ms);
    let farthest = worst(charged.map(|ms| (ms / sample.frame_ms - 1.0).abs()));
    let metric = "how far what the player's container is charged for a frame, the server's part too, is off what a frame costs alone";
    figures.add("shared_charged_error", farthest).of(metric, "ratio", LOAD);
    let most = sample.hogs().last().copied().unwrap_or(0);
    let rate = |way| sample.rate(way, PERCENT, most);
    for way in [Way::Shared, Way::Greedy, Way::Apart, Way::Plain, Way::Groups] {
        let metric = format!("frame rate, of that in one container of {PERCENT} %; {}", way.title());
        figures.add(format!("{}_vs_one", way.name()), rate(way) / rate(Way::One)).of(metric, "ratio", MOST);
    }
    for way in [Way::One, Way::Shared, Way::Greedy, Way::Apart, Way::Plain, Way::Groups] {
        let jitter = median(&sample.rounds(way, PERCENT, most, |one| one.jitter_ms));
        let name = if way == Way::One { "jitter_p99_ms".to_owned() } else { format!("{}_jitter_p99_ms", way.name()) };
        let metric =
            format!("99th percentile of how far the time from frame to frame is off its mean; {}", way.title());
        figures.add(name, jitter).of(metric, "ms", MOST);
    }
    figures.add("frame_ms", sample.frame_ms).of("what a frame costs player and server", "ms of the CPU", "none");
}

fn figures_of_clips(figures: &mut Figures, sample: &Sample) {
    let percent = deadlines::PERCENT;
    let metric = |what: &str, order: Order| format!("{what}, where all have {percent} %; {}", order.title());
    let late = "frames that were not shown when the next one was due";
    let missed = |order| sample.clip(order, |clip| clip.missed as f64);
    figures.must("edf_missed", missed(Order::Edf), Bound::AtMost(0.0)).of(metric(late, Order::Edf), "frames", CLIP);
    for order in [Order::Fair, Order::Turns, Order::Kernel] {
        figures.add(format!("{}_missed", order.name()), missed(order)).of(metric(late, order), "frames", CLIP);
    }
    let off = "99th percentile of how far the time from frame to frame is off its mean";
    for order in [Order::Edf, Order::Fair, Order::Turns, Order::Kernel] {
        let jitter = sample.clip(order, |clip| clip.jitter_ms);
        figures.add(format!("{}_clip_jitter_p99_ms", order.name()), jitter).of(metric(off, order), "ms", CLIP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(way: Way, percent: u32, hogs: usize, rate: f64) -> Measured {
        Measured { way, percent, hogs, round: 0, rate, other_rate: None, jitter_ms: 1.0, charged_ms: None }
    }

    #[test]
    fn the_spread_is_within_each_share_and_of_the_worse_way() {
        let mut sample = Sample { frame_ms: 8.0, ..Sample::default() };
        for (percent, factor) in [(20, 1.0), (40, 2.0)] {
            for hogs in [1, 7] {
                sample.measured.push(measured(Way::One, percent, hogs, 25.0 * factor));
            }
            sample.measured.push(measured(Way::Shared, percent, 1, 25.0 * factor));
            sample.measured.push(measured(Way::Shared, percent, 7, 24.0 * factor));
        }
        let outcome = of(&sample);
        let get = |name: &str| outcome.figures.get(name).expect("a figure");
        assert_eq!((get("one_spread"), get("one_vs_share")), (0.0, 1.0));
        assert!((get("spread") - 0.04).abs() < 1e-9 && (get("shared_vs_share") - 0.96).abs() < 1e-9);
        assert!(get("eevdf_spread").is_nan() && get("edf_missed").is_nan());
        let missed: Vec<_> = outcome.figures.missed().map(|figure| figure.name.clone()).collect();
        assert_eq!(missed, ["spread", "edf_missed"]);
    }

    #[test]
    fn late_frames_are_those_of_the_order() {
        let clip = |order, missed| Clip { order, frames: 100, missed, jitter_ms: 2.0 };
        let clips = vec![clip(Order::Fair, 7), clip(Order::Edf, 0)];
        let outcome = of(&Sample { clips, ..Sample::default() });
        assert_eq!(outcome.figures.get("edf_missed"), Some(0.0));
        assert_eq!(outcome.figures.get("fair_missed"), Some(7.0));
    }
}
