// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one page of HTML that needs nothing else. Pure.

use crate::experiments::Outcome;
use crate::table::Table;
use std::fmt::Write;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse}\
th,td{padding:.25rem .8rem;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}\
.missed{color:#b00020;font-weight:600}svg{max-width:100%;height:auto}.note{color:#555;font-size:.9rem}";

pub fn render(outcome: &Outcome, plots: &[String], kernel: &str) -> String {
    let mut page = String::new();
    let name = escape(outcome.name);
    let mut put = |text: String| page.push_str(&text);
    put(format!("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>fief lab {name}</title>"));
    put(format!("<meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>"));
    put(format!("<h1>fief lab {name}</h1><p>{}</p>", escape(&outcome.about)));
    put(format!("<p class=\"note\">Linux {}</p>", escape(kernel)));
    plots.iter().for_each(|svg| put(svg.clone()));
    outcome.tables.iter().for_each(|table| put(rendered(table)));
    put(rendered(&Table::of_figures("Figures", &outcome.figures)));
    put("<p class=\"note\">Every single measurement is in <a href=\"result.json\">result.json</a>.</p></html>\n".into());
    page
}

fn rendered(table: &Table) -> String {
    let mut html = format!("<h2>{}</h2><table><tr>", escape(&table.title));
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
    html.push_str("</table>");
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
        let page = render(&outcome, &[], "6.18");
        assert!(page.contains("a &lt; b") && page.contains("1 &amp; 2") && !page.contains("<x>"));
    }
}
