// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The real servers: each with the answers that tell which resource it served, at three ports. Two are guarded, one by a
//! rule that resets and one by a rule that answers 503; the third one is open.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fief_testkit::{Feature, NetNs, Process, require, run, wait_ready};

use crate::stage::Port;

/// What stands in a server's answer; no case contains one of them.
pub const REFUSED: &str = "%the-refused-resource%";
pub const PLAIN: &str = "%another-resource%";
/// What the end of both has.
pub const RESOURCE: &str = "resource%";
pub const MARKER: &str = "%the-marker%";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Nginx,
    Haproxy,
    Apache,
    Lighttpd,
    Node,
    Python,
    Go,
}

impl Kind {
    pub const ALL: [Kind; 7] =
        [Kind::Nginx, Kind::Haproxy, Kind::Apache, Kind::Lighttpd, Kind::Node, Kind::Python, Kind::Go];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Haproxy => "haproxy",
            Kind::Apache => "apache",
            Kind::Lighttpd => "lighttpd",
            Kind::Node => "node",
            Kind::Python => "python",
            Kind::Go => "go",
        }
    }

    pub fn feature(self) -> Feature {
        match self {
            Kind::Nginx => Feature::Nginx,
            Kind::Haproxy => Feature::Haproxy,
            Kind::Apache => Feature::Apache,
            Kind::Lighttpd => Feature::Lighttpd,
            Kind::Node => Feature::Node,
            Kind::Python => Feature::Python,
            Kind::Go => Feature::Go,
        }
    }

    /// Those that this machine has.
    pub fn present() -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|kind| require(kind.feature())).collect()
    }

    /// Debian's lighttpd has it in a package of its own.
    pub fn speaks_tls(self) -> bool {
        self != Kind::Lighttpd
    }

    /// Whether the policy says that it reads the body of a GET to its end, or ends the connection. Python's takes it for the next
    /// request. lighttpd ends the connection (1.4.69), which its policy does not say: so another server is tried under those rules.
    pub fn reads_bodies(self) -> bool {
        !matches!(self, Kind::Python | Kind::Lighttpd)
    }

    pub fn port(self, port: Port) -> u16 {
        8100 + 10 * self as u16 + port as u16
    }
}

/// A running server of one kind.
#[derive(Debug)]
pub struct Server {
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts it in the namespace by a command that `prepare` makes of a program's name.
    pub fn start(kind: Kind, namespace: &NetNs, prepare: impl Fn(&str) -> Command) -> Server {
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().expect("a folder");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("a folder of ours");
        for (name, text) in [("refused", REFUSED), ("plain", PLAIN), ("marker", MARKER)] {
            std::fs::write(folder.path().join(format!("{name}.txt")), text).expect("a file");
        }
        for (name, resource) in [("plain", PLAIN), ("secret", REFUSED)] {
            certificate(&folder.path().join(format!("{name}.pem")), &format!("/O={resource}/CN={name}.example"));
        }
        let place = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, filled(kind, folder.path(), text)).expect("a file");
            file
        };
        let with = |program: &str, words: &[&str], file: PathBuf| {
            let mut command = prepare(program);
            command.args(words).arg(file);
            command
        };
        let mut command = match kind {
            Kind::Nginx => {
                let file = place("nginx.conf", include_str!("servers/nginx.conf"));
                let mut command = with("nginx", &["-c"], file);
                command.arg("-p").arg(folder.path()).arg("-e").arg(folder.path().join("error.log"));
                command
            }
            Kind::Haproxy => with("haproxy", &["-db", "-f"], place("haproxy.cfg", include_str!("servers/haproxy.cfg"))),
            Kind::Apache => {
                with("apache2", &["-DFOREGROUND", "-f"], place("apache.conf", include_str!("servers/apache.conf")))
            }
            Kind::Lighttpd => {
                with("lighttpd", &["-D", "-f"], place("lighttpd.conf", include_str!("servers/lighttpd.conf")))
            }
            Kind::Node => with("node", &[], place("server.js", include_str!("servers/server.js"))),
            Kind::Python => with(python(), &[], place("server.py", include_str!("servers/server.py"))),
            Kind::Go => {
                let program = go_program(&place("server.go", include_str!("servers/server.go")));
                let mut command = prepare(program.to_str().expect("a plain path"));
                command.args(Port::HTTP.map(|port| kind.port(port).to_string()));
                command
            }
        };
        let log = folder.path().join("said.log");
        let said = std::fs::File::create(&log).expect("a file");
        command.stdout(Stdio::null()).stderr(said).current_dir(folder.path());
        let mut process = Process::start(command).unwrap_or_else(|e| panic!("{e}"));
        for port in Port::HTTP {
            wait_ready(namespace, &mut process, kind.port(port), Some(&log))
                .unwrap_or_else(|e| panic!("{}: {e}", kind.name()));
        }
        Server { _process: process, _folder: folder }
    }
}

fn filled(kind: Kind, folder: &Path, text: &str) -> String {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = if accounts.contains("www-data:") { "www-data" } else { "nobody" };
    let group = if user == "nobody" { "nogroup" } else { user };
    text.replace("@ROOT@", folder.to_str().expect("a plain path"))
        .replace("@RESET@", &kind.port(Port::Reset).to_string())
        .replace("@UNAVAILABLE@", &kind.port(Port::Unavailable).to_string())
        .replace("@OPEN@", &kind.port(Port::Open).to_string())
        .replace("@TLS@", &kind.port(Port::Tls).to_string())
        .replace("@TLS-OPEN@", &kind.port(Port::TlsOpen).to_string())
        .replace("@REFUSED@", REFUSED)
        .replace("@PLAIN@", PLAIN)
        .replace("@MARKER@", MARKER)
        .replace("@MODULES@", "/usr/lib/apache2/modules")
        .replace("@USER@", user)
        .replace("@GROUP@", group)
}

/// That of the distribution, where another one comes first: to a later Python no version of HTTP has a sign, and what Debian's reads as a
/// request would be one to no server here.
fn python() -> &'static str {
    let own = "/usr/bin/python3";
    if Path::new(own).exists() { own } else { "python3" }
}

/// Built beside its source: the compiler's own cache makes the second time short.
fn go_program(source: &Path) -> PathBuf {
    let program = source.with_extension("");
    run(Command::new("go").args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", "0"))
        .unwrap_or_else(|e| panic!("{e}"));
    program
}

/// A key and a certificate for it in one file. The subject tells whose it is, in the clear before TLS 1.3.
fn certificate(file: &Path, subject: &str) {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    let key = file.with_extension("key");
    command.args(["-subj", subject, "-keyout"]).arg(&key);
    let certificate = run(&mut command).unwrap_or_else(|e| panic!("{e}"));
    let key = std::fs::read_to_string(key).expect("openssl wrote it");
    std::fs::write(file, key + &certificate).expect("a file");
}
