// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The board of Grafana, by its own queries, asked of a Prometheus that scrapes an agent.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fief_testkit::{Feature, require, wait_until};

use crate::agent::Agent;
use crate::place::Place;

const BOARD: &str = include_str!("../../../../packaging/grafana/fief.json");

/// Its namespace is the test's own, so the port is free.
const PROMETHEUS: &str = "127.0.0.1:9090";

/// What even a machine without clients answers.
const ALWAYS: [&str; 10] = [
    "fief_in_force",
    "fief_read_timestamp_seconds",
    "fief_problems",
    "fief_interfaces",
    "fief_policy_applied_timestamp_seconds",
    "fief_containers",
    "fief_container_cpu_seconds_total",
    "fief_system_cpu_seconds_total",
    "fief_core_errors_total",
    "fief_agent_build_info",
];

struct Prometheus<'a> {
    child: Child,
    place: &'a Place,
    _folder: tempfile::TempDir,
}

impl<'a> Prometheus<'a> {
    fn scraping(agent: &Agent, place: &'a Place) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let target = agent.address.expect("it listens");
        let text = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: fief\n  static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        std::fs::write(&config, text).expect("written");
        let mut prometheus = Command::new("prometheus");
        prometheus.arg(format!("--config.file={}", config.display()));
        prometheus.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        prometheus.arg(format!("--web.listen-address={PROMETHEUS}")).stdin(Stdio::null()).stderr(Stdio::null());
        place.namespace.enter(&mut prometheus);
        Self { child: prometheus.spawn().expect("it starts"), place, _folder: folder }
    }

    /// The answer to a query, empty where there are no series. Errors: it does not serve yet, or does not understand.
    fn answer(&self, query: &str) -> Result<String, String> {
        let mut promtool = Command::new("promtool");
        promtool.args(["query", "instant", &format!("http://{PROMETHEUS}"), query]);
        self.place.namespace.enter(&mut promtool);
        let output = promtool.output().expect("promtool starts");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As Grafana asks when everything is chosen.
fn queries() -> Vec<String> {
    let board: serde_json::Value = serde_json::from_str(BOARD).expect("an object");
    let panels = board["panels"].as_array().expect("a list").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("a query").replace("$__rate_interval", "30s"));
    let all = |query: String, name| query.replace(&format!("\"${name}\""), "\".*\"");
    queries.map(|query| ["instance", "container", "listener"].into_iter().fold(query, all)).collect()
}

#[test]
fn the_board_shows_what_a_prometheus_has_of_an_agent() {
    let Some(place) = Place::new() else { return };
    if !require(Feature::Prometheus) || !require(Feature::Promtool) {
        return;
    }
    place.apply();
    let agent = Agent::start(&place, &["--listen", "127.0.0.1:0"]);
    let prometheus = Prometheus::scraping(&agent, &place);
    let rates = || prometheus.answer("rate(fief_system_cpu_seconds_total[30s])").is_ok_and(|answer| !answer.is_empty());
    wait_until(Duration::from_secs(120), rates).expect("it has scraped the agent twice");
    for query in queries() {
        let is_always = ALWAYS.iter().any(|name| query.contains(&format!("{name}{{")));
        let mut answer = Err(String::new());
        // a scrape that takes a busy machine a second is one without series
        let told = wait_until(Duration::from_secs(60), || {
            answer = prometheus.answer(&query);
            answer.as_ref().is_ok_and(|answer| !is_always || !answer.is_empty())
        });
        told.unwrap_or_else(|_| panic!("{query}: {answer:?}"));
    }
    let is_up = || prometheus.answer("up{job=\"fief\"}").is_ok_and(|up| up.contains("=> 1 "));
    wait_until(Duration::from_secs(60), is_up).expect("scrapes are understood");
}
