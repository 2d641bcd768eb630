// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Line plots as SVG. Pure: a plot becomes a string.

use crate::error::{Error, Result};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

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

impl Plot {
    /// Values by the number of the round, for experiments that vary nothing else: how far they can be trusted.
    pub fn of_rounds(
        name: &str,
        title: impl Into<String>,
        y: &str,
        series: impl IntoIterator<Item = (String, Vec<f64>)>,
    ) -> Plot {
        let number =
            |values: Vec<f64>| values.into_iter().enumerate().map(|(at, value)| (at as f64 + 1.0, value)).collect();
        Plot {
            name: name.to_owned(),
            title: title.into(),
            x: "round".to_owned(),
            y: y.to_owned(),
            series: series.into_iter().map(|(name, values)| Series { name, points: number(values) }).collect(),
            logarithmic: false,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Distinct for most kinds of colour blindness (Okabe and Ito).
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
const SIZE: (u32, u32) = (860, 480);

impl Plot {
    pub fn to_svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| Error::failed(format!("draw {}: {error}", self.name)))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || self.series.iter().flat_map(|series| &series.points).filter(|point| point.1.is_finite());
        let right = points().map(|point| point.0).fold(1.0, f64::max);
        let top = points().map(|point| point.1).fold(1.0, f64::max);
        let bottom = points().map(|point| point.1).fold(top, f64::min).max(1e-3);
        let mut builder = ChartBuilder::on(&root);
        builder.caption(&self.title, ("sans-serif", 20)).margin(14).x_label_area_size(42).y_label_area_size(64);
        let x = 0.0..right * 1.02;
        // The two kinds of axis are different types, hence the two arms.
        if self.logarithmic {
            let mut chart = builder.build_cartesian_2d(x, (bottom / 1.3..top * 1.3).log_scale())?;
            self.mesh(chart.configure_mesh(), top)?;
            self.lines(&mut chart)?;
        } else {
            let mut chart = builder.build_cartesian_2d(x, 0.0..top * 1.08)?;
            self.mesh(chart.configure_mesh(), top)?;
            self.lines(&mut chart)?;
        }
        root.present()?;
        Ok(())
    }

    fn mesh<X, Y, DB>(
        &self,
        mut mesh: plotters::chart::MeshStyle<'_, '_, X, Y, DB>,
        top: f64,
    ) -> std::result::Result<(), Box<dyn std::error::Error>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
        DB: DrawingBackend,
        DB::ErrorType: 'static,
    {
        let label: &'static dyn Fn(&f64) -> String =
            if top < 10.0 { &|value| format!("{value:.2}") } else { &|value| format!("{value:.0}") };
        mesh.x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(label)
            .light_line_style(WHITE)
            .draw()?;
        Ok(())
    }

    fn lines<'a, Y, DB>(
        &self,
        chart: &mut ChartContext<'a, DB, Cartesian2d<RangedCoordf64, Y>>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>>
    where
        Y: Ranged<ValueType = f64>,
        DB: DrawingBackend + 'a,
        DB::ErrorType: 'static,
    {
        for (place, series) in self.series.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let points = || series.points.iter().copied().filter(|point| point.1.is_finite());
            chart
                .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(("sans-serif", 14))
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(logarithmic: bool) -> Plot {
        Plot {
            name: "p".into(),
            title: "Response time".into(),
            x: "clients".into(),
            y: "us".into(),
            series: vec![Series {
                name: "plain <nginx>".into(),
                points: vec![(0.0, 200.0), (40.0, f64::NAN), (5.0, 900.0)],
            }],
            logarithmic,
        }
    }

    #[test]
    fn a_plot_names_its_series_and_survives_a_hole() {
        for logarithmic in [false, true] {
            let svg = plot(logarithmic).to_svg().expect("drawn");
            assert!(svg.starts_with("<svg") && svg.contains("Response time"), "{svg}");
            assert!(svg.contains("plain &lt;nginx&gt;") && !svg.contains("NaN"), "{svg}");
        }
    }

    #[test]
    fn an_empty_plot_is_a_plot() {
        assert!(Plot { title: "t".into(), ..Plot::default() }.to_svg().is_ok());
    }
}
