// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A report as somebody looks at it: in a real browser, in the light and in the dark, on a wide screen and a narrow one, where no
//! network is.

use std::path::Path;
use std::process::Command;

use fief_testkit::{Feature, alone, require};
use serde::Deserialize;
use serde_json::Value;

use crate::lab;

/// Loads the page in a frame of each width, and writes what it finds into its own title.
const LOOK: &str = include_str!("page/look.html");

/// Of the smallest report: a plot's, and those of the tables.
const LEAST_TEXTS: usize = 50;

/// What the browser found at one width.
#[derive(Debug, Deserialize)]
struct Look {
    width: u32,
    is_dark: bool,
    /// What the page takes; more than `width` has to be scrolled sideways.
    takes: f64,
    /// Plots that are seen, and texts that were looked at.
    plots: usize,
    texts: usize,
    /// Texts that end outside of their plot, or can hardly be read on what is behind them.
    wrong: Vec<String>,
    /// Name and value of each row.
    figures: Vec<(String, String)>,
}

/// The page of a report in the browser; and what its console said.
fn look(report: &Path, is_dark: bool) -> (Vec<Look>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let page = std::fs::read_to_string(report.join("index.html")).expect("a page");
    let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
    let looking = folder.path().join("look.html");
    std::fs::write(&looking, LOOK.replace("PAGE", &quoted)).expect("written");
    let mut browser = Command::new("unshare");
    // a network without anything, not even a loopback
    browser.args(["--net", "chromium-headless-shell", "--headless", "--no-sandbox", "--disable-gpu"]);
    browser.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
    browser.arg(format!("--blink-settings=preferredColorScheme={}", if is_dark { 0 } else { 1 }));
    browser.args(["--enable-logging=stderr", "--virtual-time-budget=60000", "--dump-dom"]);
    let output = browser.arg(format!("file://{}", looking.display())).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (found, _) = found.unwrap_or_else(|| panic!("it found nothing: {dom}\n{said}"));
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let looks = serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"));
    let console = said.lines().filter(|line| line.contains(":CONSOLE(")).collect::<Vec<_>>().join("\n");
    (looks, console)
}

/// As the page has numbers.
fn is_shown(shown: &str, value: &Value) -> bool {
    match value.as_f64() {
        Some(value) => {
            let shown: f64 = shown.parse().unwrap_or(f64::NAN);
            (shown - value).abs() <= 0.006 * value.abs() + 0.000_05
        }
        None => shown == "-",
    }
}

/// Plots that a report has.
pub fn plots(report: &Path) -> usize {
    let files = std::fs::read_dir(report).expect("a folder").flatten();
    files.filter(|file| file.path().extension().is_some_and(|ending| ending == "svg")).count()
}

/// The page is read on a wide screen and on a narrow one, and has every plot of the report and every figure of its JSON.
pub fn is_read(report: &Path, is_dark: bool) {
    let text = std::fs::read_to_string(report.join("result.json")).expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    let name = &result["experiment"];
    let figures = result["figures"].as_object().expect("an object");
    let (looks, console) = look(report, is_dark);
    assert_eq!(console, "", "{name}: the console is empty");
    assert_eq!(looks.iter().map(|look| look.width).collect::<Vec<_>>(), [400, 1280]);
    for look in looks {
        assert_eq!(look.is_dark, is_dark, "the browser obeys");
        assert!(look.takes <= f64::from(look.width), "{name}: {look:?}");
        assert!(look.plots == plots(report) && look.texts > LEAST_TEXTS, "{name}: {look:?}");
        assert!(look.wrong.is_empty(), "{name}, dark {is_dark}: {:#?}", look.wrong);
        assert_eq!(look.figures.len(), figures.len(), "{name}");
        for (figure, shown) in &look.figures {
            let value = figures.get(figure).unwrap_or_else(|| panic!("{figure} is no figure of {name}"));
            assert!(is_shown(shown, value), "{figure} of {name}: {shown} on the page, {value} in the JSON");
        }
    }
}

#[test]
fn a_report_is_read_on_any_screen_and_has_every_figure_of_its_json() {
    let kernel = [Feature::Root, Feature::NetNs, Feature::Cgroup2, Feature::Bpf];
    if !kernel.into_iter().chain([Feature::Chromium]).all(require) {
        return;
    }
    let _alone = alone();
    let report = tempfile::tempdir().expect("a folder");
    let ended = lab("primitives").arg("--report").arg(report.path()).env("FIEF_LAB_LEAST", "1").output();
    let ended = ended.expect("fief starts");
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(plots(report.path()), 1);
    for is_dark in [false, true] {
        is_read(report.path(), is_dark);
    }
}
