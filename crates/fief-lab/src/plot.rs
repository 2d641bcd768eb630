// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Line plots with the spread of the rounds, as SVG. Pure: a plot becomes a string.

mod draw;

use crate::error::{Error, Result};
use crate::statistics::Spread;

#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// File name without the ending.
    pub name: String,
    pub title: String,
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
    /// A logarithmic y axis.
    pub logarithmic: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Series {
    pub name: String,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub x: f64,
    pub y: Spread,
}

/// Where a plot is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file of its own, with its title.
    File,
    /// A page, which has the title.
    Page,
    /// A page on a telephone: as wide as it, so that letters keep their size.
    Narrow,
}

impl Series {
    /// At each place the median of the values there, with their quartiles.
    pub fn of(name: impl Into<String>, samples: impl IntoIterator<Item = (f64, Vec<f64>)>) -> Series {
        let points = samples.into_iter().map(|(x, values)| Point { x, y: Spread::of(&values) });
        Series { name: name.into(), points: points.collect() }
    }

    /// Points that were measured.
    fn measured(&self) -> impl Iterator<Item = Point> {
        self.points.iter().copied().filter(|point| point.y.median.is_finite())
    }

    /// Single values, each of which is shown.
    pub fn of_single(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series::of(name, points.into_iter().map(|(x, value)| (x, vec![value])))
    }
}

impl Plot {
    /// Values by the number of the round, for experiments that vary nothing else: how far they can be trusted.
    pub fn of_rounds(
        name: &str,
        title: impl Into<String>,
        y: &str,
        series: impl IntoIterator<Item = (String, Vec<f64>)>,
    ) -> Plot {
        let number = |values: Vec<f64>| values.into_iter().enumerate().map(|(at, value)| (at as f64 + 1.0, value));
        Plot {
            name: name.to_owned(),
            title: title.into(),
            x: "round".to_owned(),
            y: y.to_owned(),
            series: series.into_iter().map(|(name, values)| Series::of_single(name, number(values))).collect(),
            logarithmic: false,
        }
    }

    /// Whether a point stands for several rounds that differ.
    pub fn has_spread(&self) -> bool {
        self.points().any(|point| point.y.low < point.y.high)
    }

    /// Those that were measured.
    fn points(&self) -> impl Iterator<Item = Point> {
        self.series.iter().flat_map(Series::measured)
    }

    pub fn to_svg(&self, form: Form) -> Result<String> {
        draw::draw(self, form).map_err(|error| Error::failed(format!("draw {}: {error}", self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(logarithmic: bool) -> Plot {
        let samples = [(0.0, vec![150.0, 200.0, 260.0]), (40.0, vec![f64::NAN]), (5.0, vec![900.0])];
        Plot {
            name: "p".into(),
            title: "Response time".into(),
            x: "clients".into(),
            y: "ms".into(),
            series: vec![Series::of("plain <nginx>", samples)],
            logarithmic,
        }
    }

    #[test]
    fn a_plot_names_its_series_and_survives_a_hole() {
        for logarithmic in [false, true] {
            for form in [Form::File, Form::Page, Form::Narrow] {
                let svg = plot(logarithmic).to_svg(form).expect("drawn");
                assert!(svg.starts_with("<svg") && svg.contains("plain &lt;nginx&gt;"), "{svg}");
                assert!(!svg.contains("NaN") && svg.contains(">\nclients\n<"), "{svg}");
                assert_eq!(svg.contains(">\nResponse time\n<"), form == Form::File, "{svg}");
            }
        }
    }

    #[test]
    fn a_point_of_several_rounds_shows_how_far_they_were_apart() {
        let bars = |values: Vec<f64>| {
            let plot = Plot { series: vec![Series::of("s", [(1.0, values)])], ..Plot::default() };
            let svg = plot.to_svg(Form::Page).expect("drawn");
            (plot.has_spread(), svg.matches("<line opacity=\"1\" stroke=\"#000000\"").count())
        };
        // a bar and its two ends
        assert_eq!([bars(vec![1.0, 2.0, 3.0]), bars(vec![2.0])], [(true, 3), (false, 0)]);
    }

    #[test]
    fn what_takes_less_than_a_millisecond_fills_the_plot_too() {
        let small = Plot { series: vec![Series::of_single("s", [(1.0, 0.03)])], ..Plot::default() };
        let svg = small.to_svg(Form::Page).expect("drawn");
        assert!(svg.contains("0.03") && !svg.contains("1.00"), "{svg}");
    }

    #[test]
    fn an_empty_plot_is_a_plot() {
        assert!(Plot { title: "t".into(), ..Plot::default() }.to_svg(Form::File).is_ok());
    }
}
