// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one page of HTML that needs nothing else: no network, light or dark, on a telephone too. Pure.

use super::Made;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::{Figure, MISSED};
use crate::plot::{Form, Plot};
use crate::table::{Table, number};
use std::fmt::Write;

/// Each plot is there twice, and the narrow one where the page is. Its black and white are the page's own.
const STYLE: &str = ":root{color-scheme:light dark;--text:#222;--back:#fff;--line:#ddd;--note:#555;--missed:#b00020}\
@media(prefers-color-scheme:dark){:root{--text:#ddd;--back:#181818;--line:#444;--note:#aaa;--missed:#ff7b8a}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--text);background:var(--back)}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse}.wide{overflow-x:auto}\
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}\
.missed{color:var(--missed);font-weight:600}.note{color:var(--note);font-size:.9rem}code{overflow-wrap:anywhere}a{color:inherit}\
figure{margin:2.2rem 0}figcaption{font-size:1.15rem;font-weight:600}\
svg{display:block;max-width:100%;height:auto}.narrow{display:none}\
@media(max-width:36rem){.narrow{display:block}.page{display:none}}\
svg [fill=\"#FFFFFF\"]{fill:var(--back)}svg [stroke=\"#FFFFFF\"]{stroke:var(--back)}\
svg [fill=\"#000000\"]{fill:var(--text)}svg [stroke=\"#000000\"]{stroke:var(--text)}\
td.means{text-align:left;min-width:16rem;font-size:.9rem;color:var(--note)}";

pub fn render(outcome: &Outcome, made: &Made) -> Result<String> {
    let mut page = String::new();
    let name = escape(outcome.name);
    let mut put = |text: String| page.push_str(&text);
    put(format!("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>fief lab {name}</title>"));
    put(format!("<meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>"));
    put(format!("<h1>fief lab {name}</h1><p>{}</p>", escape(&outcome.about)));
    let model = if made.cpu_model.is_empty() { String::new() } else { format!(" ({})", made.cpu_model) };
    let machine = format!("Linux {}, {} CPUs{model}", made.kernel, made.cpus);
    put(format!("<p class=\"note\">{}, fief {}, {}</p>", escape(&made.date), made.version, escape(&machine)));
    put(format!("<p class=\"note\">To repeat it: <code>{}</code></p>", escape(&made.command)));
    for plot in &outcome.plots {
        put(drawn(plot)?);
    }
    outcome.tables.iter().for_each(|table| put(rendered(table)));
    put(figures(outcome));
    put("<p class=\"note\">Every single measurement is in <a href=\"result.json\">result.json</a>.</p></html>\n".into());
    Ok(page)
}

fn drawn(plot: &Plot) -> Result<String> {
    let title = escape(&plot.title);
    let svg = |form: Form, class: &str| -> Result<String> {
        let label = title.replace('"', "&quot;");
        Ok(plot.to_svg(form)?.replacen(
            "<svg",
            &format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{label}\""),
            1,
        ))
    };
    let (page, narrow) = (svg(Form::Page, "page")?, svg(Form::Narrow, "narrow")?);
    let note = match plot.has_spread() {
        true => "<p class=\"note\">Medians of the rounds; a bar goes from quartile to quartile.</p>",
        false => "",
    };
    Ok(format!("<figure><figcaption>{title}</figcaption>{page}{narrow}{note}</figure>"))
}

/// With what each of them means, for which a terminal has no room.
fn figures(outcome: &Outcome) -> String {
    let row = |figure: &Figure| {
        let bound = figure.bound.map_or_else(String::new, |bound| escape(&bound.to_string()));
        let (name, value) = (escape(&figure.name), number(figure.value));
        let verdict = match figure.verdict() {
            MISSED => format!("<td class=\"missed\">{MISSED}"),
            other => format!("<td>{other}"),
        };
        let meaning = &figure.meaning;
        let words = [meaning.metric.as_str(), meaning.load.as_str()].into_iter().filter(|words| !words.is_empty());
        let means = escape(&words.collect::<Vec<_>>().join("; "));
        let unit = meaning.unit;
        format!("<tr><td>{name}<td>{value}<td>{unit}<td>{bound}{verdict}<td class=\"means\">{means}")
    };
    let rows: String = outcome.figures.iter().map(row).collect();
    let head = "<tr><th>figure<th>value<th>unit<th>must be<th><th>";
    format!("<h2>Figures</h2><div class=\"wide\"><table id=\"figures\">{head}{rows}</table></div>")
}

fn rendered(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2><div class=\"wide\"><table><tr>", escape(&table.title));
    for cell in &table.head {
        let _ = write!(html, "<th>{}</th>", escape(cell));
    }
    html.push_str("</tr>");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let class = if cell == "MISSED" { " class=\"missed\"" } else { "" };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table></div>");
    for note in &table.notes {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(note));
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;

    #[test]
    fn text_cannot_become_markup() {
        let mut outcome = Outcome { name: "<x>", ..Outcome::default() };
        let mut table = Table::new("a < b", &["h"]);
        table.row(["1 & 2"]);
        outcome.tables.push(table);
        outcome.plots.push(Plot { title: "\"a\" > b".into(), ..Plot::default() });
        let page = render(&outcome, &made()).expect("drawn");
        assert!(page.contains("a &lt; b") && page.contains("1 &amp; 2") && !page.contains("<x>"));
        assert!(page.contains("aria-label=\"&quot;a&quot; &gt; b\""), "{page}");
    }

    fn made() -> Made {
        Made {
            date: "2026-11-25T18:00:00Z".into(),
            version: "0.1.0",
            command: "fief lab demo".into(),
            kernel: "6.18".into(),
            cpus: 2,
            cpu_model: String::new(),
        }
    }

    #[test]
    fn every_figure_of_the_json_is_on_the_page_with_its_meaning_and_nothing_comes_from_elsewhere() {
        let mut outcome = Outcome { name: "demo", ..Outcome::default() };
        outcome.figures.add("one.ratio", 1.25).of("this, of that", "ratio", "40 others");
        outcome.figures.add("other.ms", 3.5).of("how long", "ms", "");
        let page = render(&outcome, &made()).expect("drawn");
        let figures = outcome.figures.to_json();
        for name in figures.as_object().expect("an object").keys() {
            assert!(page.contains(name.as_str()), "{name} is not on the page: {page}");
        }
        assert!(page.contains("this, of that; 40 others"), "{page}");
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }

    #[test]
    fn what_the_bars_are_is_said_where_there_are_bars() {
        let page = |values: Vec<f64>| {
            let plot = Plot { series: vec![Series::of("s", [(1.0, values)])], ..Plot::default() };
            render(&Outcome { plots: vec![plot], ..Outcome::default() }, &made()).expect("drawn")
        };
        assert!(page(vec![1.0, 2.0]).contains("from quartile to quartile"));
        assert!(!page(vec![1.0]).contains("quartile"));
    }
}
