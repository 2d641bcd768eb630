// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers. Each answers a request with its path, and writes the path into the file `answered` of its folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fief_testkit::{Feature, NginxConfig, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Nginx,
    /// Two workers.
    NginxTwo,
    /// It speaks TLS alone.
    NginxTls,
    Lighttpd,
    Go,
    Node,
    Gunicorn,
}

/// Beside that of TLS, so that one can find out whether it is there.
const PLAIN_BESIDE_TLS: u16 = 81;

const TLS: &str = "ssl_certificate certificate; ssl_certificate_key key;";

/// The words that start a server, and what must be there while it runs.
pub struct Start {
    pub words: Vec<OsString>,
    _nginx: Option<NginxConfig>,
}

impl Server {
    pub fn features(self) -> &'static [Feature] {
        match self {
            Server::Nginx | Server::NginxTwo => &[Feature::Nginx],
            Server::NginxTls => &[Feature::Nginx, Feature::OpenSsl],
            Server::Lighttpd => &[Feature::Lighttpd],
            Server::Go => &[Feature::Go],
            Server::Node => &[Feature::Node],
            Server::Gunicorn => &[Feature::Gunicorn],
        }
    }

    pub fn port(self) -> u16 {
        if self == Server::NginxTls { 443 } else { 80 }
    }

    /// Where it answers without TLS.
    pub fn plain_port(self) -> u16 {
        if self == Server::NginxTls { PLAIN_BESIDE_TLS } else { self.port() }
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
            Server::Nginx | Server::NginxTwo | Server::NginxTls => {
                let config = self.nginx(&answered);
                let words = [vec!["nginx".into()], config.arguments()].concat();
                return Start { words, _nginx: Some(config) };
            }
            Server::Lighttpd => {
                place("page.shtml", "<!--#echo var=\"REQUEST_URI\"-->");
                words(&["lighttpd", "-D", "-f", &place("lighttpd.conf", &lighttpd(folder))])
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

    fn nginx(self, answered: &str) -> NginxConfig {
        let (workers, more, addresses): (_, _, &[&str]) = match self {
            Server::NginxTwo => (2, "", &["80"]),
            Server::NginxTls => (1, TLS, &["443 ssl", "127.0.0.1:81"]),
            _ => (1, "", &["80"]),
        };
        let server = format!(
            "access_log {answered} answered; keepalive_requests 1000000; {more}\n\
             location / {{ return 200 $request_uri; }}"
        );
        let format = "log_format answered $request_uri;";
        let config = NginxConfig::with_http(self.plain_port(), addresses, workers, format, &server).unwrap();
        if self == Server::NginxTls {
            let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=server \
                         -keyout key -out certificate";
            run(Command::new("openssl").args(words.split_whitespace()).current_dir(config.folder())).unwrap();
        }
        config
    }
}

/// Its log has whole request lines: what a rewritten request asked for stands nowhere else. After five seconds it would end a connection whose
/// next request waits in the queue.
fn lighttpd(folder: &str) -> String {
    format!(
        "server.document-root = \"{folder}\"\nserver.bind = \"0.0.0.0\"\nserver.port = 80\n\
         server.max-keep-alive-requests = 1000000\nserver.max-keep-alive-idle = 65\n\
         server.modules = ( \"mod_rewrite\", \"mod_ssi\", \"mod_accesslog\" )\n\
         url.rewrite-once = ( \"\" => \"/page.shtml\" )\nssi.extension = ( \".shtml\" )\n\
         accesslog.filename = \"{folder}/answered\"\naccesslog.format = \"%r\"\n"
    )
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
