// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one page of HTML that needs nothing else: no network, light or dark, on a telephone too. Pure.

use super::Made;
use crate::experiments::Outcome;
use crate::table::Table;
use std::fmt::Write;

const STYLE: &str = ":root{color-scheme:light dark;--text:#222;--back:#fff;--line:#ddd;--note:#555;--missed:#b00020}\
@media(prefers-color-scheme:dark){:root{--text:#ddd;--back:#181818;--line:#444;--note:#aaa;--missed:#ff7b8a}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--text);background:var(--back)}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse}.wide{overflow-x:auto}\
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}\
.missed{color:var(--missed);font-weight:600}svg{max-width:100%;height:auto}.note{color:var(--note);font-size:.9rem}\
code{overflow-wrap:anywhere}";

pub fn render(outcome: &Outcome, plots: &[String], made: &Made) -> String {
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
    plots.iter().for_each(|svg| put(svg.clone()));
    outcome.tables.iter().for_each(|table| put(rendered(table)));
    put(rendered(&Table::of_figures("Figures", &outcome.figures)));
    put("<p class=\"note\">Every single measurement is in <a href=\"result.json\">result.json</a>.</p></html>\n".into());
    page
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

    #[test]
    fn text_cannot_become_markup() {
        let mut outcome = Outcome { name: "<x>", ..Outcome::default() };
        let mut table = Table::new("a < b", &["h"]);
        table.row(["1 & 2"]);
        outcome.tables.push(table);
        let page = render(&outcome, &[], &made());
        assert!(page.contains("a &lt; b") && page.contains("1 &amp; 2") && !page.contains("<x>"));
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
    fn every_figure_of_the_json_is_on_the_page_and_nothing_comes_from_elsewhere() {
        let mut outcome = Outcome { name: "demo", ..Outcome::default() };
        outcome.figures.add("one.ratio", 1.25);
        outcome.figures.add("other.ms", 3.5);
        let page = render(&outcome, &[], &made());
        let figures = outcome.figures.to_json();
        for name in figures.as_object().expect("an object").keys() {
            assert!(page.contains(name.as_str()), "{name} is not on the page: {page}");
        }
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }
}
