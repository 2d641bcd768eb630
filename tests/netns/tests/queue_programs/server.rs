// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers. Each answers a request with its path, and writes the path into the file `answered` of its folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fief_testkit::{Feature, NginxConfig, run};

pub const PORT: u16 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Nginx,
    Go,
    Node,
    Gunicorn,
}

/// The words that start a server, and what must be there while it runs.
pub struct Start {
    pub words: Vec<OsString>,
    _nginx: Option<NginxConfig>,
}

impl Server {
    pub fn feature(self) -> Feature {
        match self {
            Server::Nginx => Feature::Nginx,
            Server::Go => Feature::Go,
            Server::Node => Feature::Node,
            Server::Gunicorn => Feature::Gunicorn,
        }
    }

    /// Writes what it needs into the folder.
    pub fn prepare(self, folder: &Path) -> Start {
        let folder = folder.to_str().unwrap();
        let answered = format!("{folder}/answered");
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        let place = |name: &str, text: &str| {
            let file = format!("{folder}/{name}");
            std::fs::write(&file, text).unwrap();
            file
        };
        let words = match self {
            Server::Nginx => {
                let server = format!(
                    "access_log {answered} answered; keepalive_requests 1000000;\n\
                     location / {{ return 200 $request_uri; }}"
                );
                let format = "log_format answered $request_uri;";
                let config = NginxConfig::with_http(PORT, &["80"], 1, format, &server).unwrap();
                let words = [vec!["nginx".into()], config.arguments()].concat();
                return Start { words, _nginx: Some(config) };
            }
            Server::Go => words(&[go("web").to_str().unwrap(), "0.0.0.0:80", &answered]),
            Server::Node => words(&["node", &place("server.js", include_str!("server.js")), "80", &answered]),
            Server::Gunicorn => {
                place("app.py", include_str!("app.py"));
                let environment = format!("ANSWERED={answered}");
                let begin = ["gunicorn", "--chdir", folder, "--env", &environment, "--bind", "0.0.0.0:80"];
                let rest = ["--worker-class", "gthread", "--threads", "4", "--keep-alive", "65", "app:app"];
                words(&[&begin[..], &rest[..]].concat())
            }
        };
        Start { words, _nginx: None }
    }
}

/// A program of Go's beside this file, built once.
pub fn go(name: &str) -> PathBuf {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("ff-go-").tempdir().unwrap();
        for name in ["web", "client"] {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/queue_programs/{name}.go"));
            let mut command = Command::new("go");
            command.args(["build", "-o"]).arg(folder.path().join(name)).arg(source).env("CGO_ENABLED", "0");
            run(&mut command).unwrap();
        }
        folder
    });
    folder.path().join(name)
}
