// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a policy at the command line: what is said when it comes into force, and when it is taken down.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_testkit::{Feature, Process, require};
use serde_json::json;

use crate::place::Place;
use crate::started::{SHOP, policy};

/// Generous: the machine may be busy.
const SOON: Duration = Duration::from_secs(60);

/// `fief run` of a server, and what it says on standard error.
struct Run {
    process: Process,
    said: BufReader<std::process::ChildStderr>,
    _policy: tempfile::NamedTempFile,
}

impl Run {
    fn new(place: &Place, server: &[&str]) -> Self {
        let policy = policy(SHOP);
        let mut run = place.fief().arg("run").arg(policy.path()).arg("--").args(server);
        run.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let command = std::mem::replace(run.command(), Command::new("true"));
        let mut process = Process::start(command).expect("fief starts");
        process.ask_first(SOON);
        let said = BufReader::new(process.child().stderr.take().expect("a pipe"));
        Self { process, said, _policy: policy }
    }

    /// All that it says up to the line that has these words.
    fn says(&mut self, words: &str) -> String {
        let mut told = String::new();
        while !told.contains(words) {
            assert!(self.said.read_line(&mut told).expect("text") > 0, "{words} is not in: {told}");
        }
        told
    }
}

#[test]
fn apply_ends_with_who_serves_the_listeners() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let apply = || place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends();
    let alone = apply();
    assert!(alone.stdout.contains("\nmode: enforce\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nkept, not enforced: shop: cpu.share\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nproblem: web: nothing listens on 0.0.0.0:80;"), "{alone:?}");

    let bind = || TcpListener::bind("0.0.0.0:80").expect("nobody else is in the namespace");
    let _listener = place.namespace.run(bind).expect("a namespace");
    let (served, pid) = (apply(), std::process::id());
    assert!(served.stdout.contains("\nweb on 0.0.0.0:80: "), "{served:?}");
    assert!(served.stdout.contains(&format!(" (process {pid}, not managed)\n")), "{served:?}");
    assert!(!served.stdout.contains("nothing listens"), "{served:?}");
    let brief = place.fief().args(["status", "--brief"]).ends();
    let of_brief = brief.stdout.split_once('\n').expect("a heading").1;
    assert!(served.stdout.ends_with(of_brief) && of_brief.starts_with("mode: "), "{brief:?}");

    let json = place.fief().args(["apply", "--json"]).arg(shop.path()).ends();
    let object = json.objects().remove(0);
    assert_eq!((json.objects().len(), json.stderr.as_str()), (1, ""));
    let listener = &object["status"]["listeners"][0];
    assert_eq!((&listener["listener"], &listener["servers"][0]["pid"]), (&json!("web"), &json!(pid)), "{object}");
}

#[test]
fn run_says_who_serves_once_the_server_listens() {
    let Some(place) = Place::new().filter(|_| require(Feature::Python)) else { return };
    let mut run = Run::new(&place, &["python3", "-m", "http.server", "80"]);
    let told = run.says("web on ");
    assert!(told.contains("fief: mode: enforce\n"), "{told}");
    let line = told.lines().last().expect("a line");
    assert!(line.starts_with("fief: web on 0.0.0.0:80: python") && line.ends_with(", managed)"), "{told}");
    run.process.stop(SOON).expect("it ends");
}

#[test]
fn run_says_that_nobody_listens_where_the_policy_says() {
    let Some(place) = Place::new() else { return };
    let mut run = Run::new(&place, &["sleep", "1000"]);
    let told = run.says("nothing listens");
    assert!(told.ends_with("start its server there, or change the policy\n"), "{told}");
    assert_eq!(place.fief().args(["status", "--json"]).ends().code, 1, "the policy is in force all the same");
    run.process.stop(SOON).expect("it ends");
}
