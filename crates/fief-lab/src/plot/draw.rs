// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plot by plotters: chart above, names of the series below, so that no name lies upon a line.

use super::{Form, Plot, Point};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

type Drawn<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Distinct for most kinds of colour blindness (Okabe and Ito). Black and white are the page's to change (`DARK`).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];

/// A file of its own obeys whoever looks at it, as the page does.
const DARK: &str = "<style>@media(prefers-color-scheme:dark){[fill=\"#FFFFFF\"]{fill:#181818}[fill=\"#000000\"]{fill:#ddd}\
[stroke=\"#FFFFFF\"]{stroke:#181818}[stroke=\"#000000\"]{stroke:#ddd}}</style>";

/// Of a name in the legend, where plotters' size is 1.24 of what it writes; and what a letter takes of it at most.
const FONT: u32 = 15;
const LETTER: i32 = 7;
const ROW: i32 = 20;
/// The line before a name, and what is between two.
const SAMPLE: i32 = 24;
const GAP: i32 = 18;
const MARGIN: i32 = 14;

impl Form {
    fn chart(self) -> (u32, u32) {
        match self {
            Form::File | Form::Page => (860, 440),
            Form::Narrow => (368, 300),
        }
    }
}

pub fn draw(plot: &Plot, form: Form) -> Drawn<String> {
    let (width, height) = form.chart();
    let rows = legend(plot, width as i32);
    let mut svg = String::new();
    {
        let below = ROW * rows.iter().map(|place| place.row + 1).max().unwrap_or(0) + MARGIN / 2;
        let root = SVGBackend::with_string(&mut svg, (width, height + below as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, names) = root.split_vertically(height);
        chart(plot, form, &above)?;
        for (place, series) in rows.iter().zip(&plot.series) {
            let (x, y) = (place.x, place.row * ROW + ROW / 2);
            names.draw(&PathElement::new([(x, y), (x + 18, y)], place.colour.stroke_width(2)))?;
            let style = ("sans-serif", FONT).into_font();
            names.draw(&Text::new(series.name.clone(), (x + SAMPLE, y - FONT as i32 / 2), style))?;
        }
        root.present()?;
    }
    if form == Form::File
        && let Some(end) = svg.find('>')
    {
        svg.insert_str(end + 1, DARK);
    }
    Ok(svg)
}

/// Where a name stands in the legend.
struct Place {
    x: i32,
    row: i32,
    colour: RGBColor,
}

/// As many in a row as there is room for.
fn legend(plot: &Plot, width: i32) -> Vec<Place> {
    let (mut x, mut row) = (MARGIN, 0);
    let place = |(at, name): (usize, &str)| {
        let takes = SAMPLE + LETTER * name.chars().count() as i32;
        if x > MARGIN && x + takes > width - MARGIN {
            (x, row) = (MARGIN, row + 1);
        }
        let place = Place { x, row, colour: COLOURS[at % COLOURS.len()] };
        x += takes + GAP;
        place
    };
    plot.series.iter().map(|series| series.name.as_str()).enumerate().map(place).collect()
}

fn chart<DB>(plot: &Plot, form: Form, area: &DrawingArea<DB, Shift>) -> Drawn<()>
where
    DB: DrawingBackend,
    DB::ErrorType: 'static,
{
    let right = plot.points().map(|point| point.x).fold(1.0, f64::max);
    let top = plot.points().map(|point| point.y.high).fold(0.0, f64::max);
    let top = if top > 0.0 { top } else { 1.0 };
    let bottom = plot.points().map(|point| point.y.low).filter(|low| *low > 0.0).fold(top, f64::min);
    let mut builder = ChartBuilder::on(area);
    let labels = if form == Form::Narrow { 48 } else { 64 };
    // half of the last number below the axis is to the right of it
    let half = LETTER * format!("{right:.0}").len() as i32 / 2 + 2;
    builder.margin(MARGIN).margin_right(MARGIN.max(half)).x_label_area_size(42).y_label_area_size(labels);
    if form == Form::File {
        // a long title gets smaller letters
        let letters = plot.title.chars().count().max(1) as u32;
        builder.caption(&plot.title, ("sans-serif", (form.chart().0 * 17 / 10 / letters).min(24)));
    }
    let x = 0.0..right * 1.02;
    // The two kinds of axis are different types, hence the two arms.
    if plot.logarithmic {
        let (least, most) = (bottom / 1.3, top * 1.3);
        let mut chart = builder.build_cartesian_2d(x, (least..most).log_scale())?;
        mesh(plot, form, chart.configure_mesh(), &|value| decimals(*value, *value))?;
        lines(plot, &mut chart, least)?;
    } else {
        let mut chart = builder.build_cartesian_2d(x, 0.0..top * 1.08)?;
        mesh(plot, form, chart.configure_mesh(), &|value| decimals(*value, top))?;
        lines(plot, &mut chart, 0.0)?;
    }
    Ok(())
}

/// As many as tell numbers of this size apart.
fn decimals(value: f64, size: f64) -> String {
    match size {
        size if size >= 10.0 => format!("{value:.0}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// There is no half a client.
fn whole(value: &f64) -> String {
    let is_whole = (value - value.round()).abs() < 1e-6;
    if is_whole { format!("{value:.0}") } else { String::new() }
}

fn mesh<'b, X, Y, DB>(
    plot: &Plot,
    form: Form,
    mut mesh: plotters::chart::MeshStyle<'_, 'b, X, Y, DB>,
    label: &'b dyn Fn(&f64) -> String,
) -> Drawn<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    DB: DrawingBackend,
    DB::ErrorType: 'static,
{
    let labels = if form == Form::Narrow { 5 } else { 10 };
    mesh.x_desc(&plot.x)
        .y_desc(&plot.y)
        .x_labels(labels)
        .y_labels(labels)
        .axis_desc_style(("sans-serif", FONT))
        .label_style(("sans-serif", 14))
        .x_label_formatter(&whole)
        .y_label_formatter(label)
        .light_line_style(WHITE)
        .draw()?;
    Ok(())
}

/// A line through the medians, and at each of them a bar from quartile to quartile. `least`: where the axis begins.
fn lines<'a, Y, DB>(
    plot: &Plot,
    chart: &mut ChartContext<'a, DB, Cartesian2d<RangedCoordf64, Y>>,
    least: f64,
) -> Drawn<()>
where
    Y: Ranged<ValueType = f64>,
    DB: DrawingBackend + 'a,
    DB::ErrorType: 'static,
{
    for (place, series) in plot.series.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let medians = series.measured().map(|point| (point.x, point.y.median));
        chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)))?;
        let (spread, single): (Vec<Point>, Vec<Point>) =
            series.measured().partition(|point| point.y.low < point.y.high);
        chart.draw_series(spread.iter().map(|point| {
            let low = point.y.low.max(least);
            ErrorBar::new_vertical(point.x, low, point.y.median, point.y.high, colour.filled(), 8)
        }))?;
        chart.draw_series(single.iter().map(|point| Circle::new((point.x, point.y.median), 3, colour.filled())))?;
    }
    Ok(())
}
