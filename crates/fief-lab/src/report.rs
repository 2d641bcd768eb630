// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is left of an experiment: tables on the terminal or lines of JSON, and a folder to look at later.

mod page;

use crate::error::{Context, Result};
use crate::experiments::Outcome;
use crate::plot::Form;
use crate::table::Table;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Prints to standard output. With `json` one object a line: the measurements, what each figure means, and the figures
/// as the last one.
pub fn print(outcome: &Outcome, json: bool, folder: Option<&Path>) {
    if json {
        for measurement in &outcome.measurements {
            println!("{measurement}");
        }
        for figure in outcome.figures.told() {
            println!("{figure}");
        }
        println!("{}", outcome.figures.to_json());
        return;
    }
    for table in &outcome.tables {
        println!("\n{table}");
    }
    println!("\n{}", Table::of_figures("Figures", &outcome.figures));
    if let Some(folder) = folder {
        println!("Report: {}", folder.join("index.html").display());
    }
}

/// Writes result.json, the plots and index.html.
pub fn write(folder: &Path, outcome: &Outcome, command: &str) -> Result<()> {
    std::fs::create_dir_all(folder).context(format!("make {}", folder.display()))?;
    let put = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).context(format!("write {}", file.display()))
    };
    for plot in &outcome.plots {
        put(&format!("{}.svg", plot.name), &plot.to_svg(Form::File)?)?;
    }
    let made = Made::now(command);
    let result = json!({
        "experiment": outcome.name,
        "made": made.date,
        "version": made.version,
        "command": made.command,
        "kernel": made.kernel,
        "cpus": made.cpus,
        "cpu_model": made.cpu_model,
        "figures": outcome.figures.to_json(),
        "meanings": outcome.figures.told(),
        "measurements": outcome.measurements,
    });
    put("result.json", &format!("{result:#}\n"))?;
    put("index.html", &page::render(outcome, &made)?)
}

/// When, by what and on what the figures were made, and how to make them again.
struct Made {
    /// RFC 3339, in UTC.
    date: String,
    version: &'static str,
    command: String,
    kernel: String,
    cpus: usize,
    cpu_model: String,
}

impl Made {
    fn now(command: &str) -> Self {
        Self {
            date: format!("{:.0}", jiff::Timestamp::now()),
            version: env!("CARGO_PKG_VERSION"),
            command: command.to_owned(),
            kernel: kernel(),
            cpus: fief_testkit::cpus().len(),
            cpu_model: cpu_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        }
    }
}

/// As the kernel has it; empty where it has none.
fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(String::new, |(_, model)| model.trim().to_owned())
}

/// A new folder for a report that nobody named a place for.
pub fn fresh_folder() -> Result<PathBuf> {
    // not among the lab's own files, which go with it
    let place = std::env::temp_dir();
    let folder =
        tempfile::Builder::new().prefix("fief-demo-").tempdir_in(place).context("make a folder for the report")?;
    // The lab runs as root; the browser that opens the page should not.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).context("open the report's folder")?;
    Ok(folder.keep())
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Plot;

    #[test]
    fn the_folder_holds_the_figures_the_plot_and_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut outcome = Outcome { name: "demo", ..Outcome::default() };
        outcome.figures.add("single.flatness", 1.25).of("this, of that", "ratio", "");
        outcome.plots.push(Plot { name: "flat".into(), title: "Flat".into(), ..Plot::default() });
        let target = folder.path().join("a/b");
        write(&target, &outcome, "fief lab demo --quick").expect("written");
        let text = std::fs::read_to_string(target.join("result.json")).expect("a result");
        let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(result["figures"]["single.flatness"], 1.25);
        assert!(target.join("flat.svg").exists());
        let page = std::fs::read_to_string(target.join("index.html")).expect("a page");
        assert!(page.contains("<svg"), "{page}");
        // who reads the page can tell when it was made, on what, and make it again
        for name in ["made", "version", "command", "kernel", "cpu_model"] {
            let told = result[name].as_str().unwrap_or_else(|| panic!("{name} in {result}"));
            assert!(page.contains(told), "{name} is not on the page: {page}");
        }
        assert!(page.contains(&format!("{} CPUs", result["cpus"])), "{page}");
    }

    #[test]
    fn the_model_of_the_cpu_is_the_kernels_name_of_it() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: x\n"), "Some CPU @ 2 GHz");
        assert_eq!(cpu_model("processor: 0\n"), "");
    }
}
