// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers, each as its users start it and without a word of Fief: what a request costs is a number that it is given.
//!
//! nginx and lighttpd compress a text of that many bytes, PostgreSQL adds up that many numbers, the others compute that many rounds
//! of a digest. All serve the same at every path, but for [`LONG`], where nginx and Go do four times as much.

use super::postgres;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::experiments::overload::text;
use crate::load::{Load, Protocol};
use fief_testkit::{Feature, NginxConfig};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A path of nginx and Go with four times the work.
pub const LONG: &str = "/long";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// One worker.
    Nginx,
    /// Two workers.
    Nginx2,
    /// Four workers.
    Nginx4,
    /// One worker that speaks TLS alone.
    NginxTls,
    Go,
    Node,
    /// One process of eight threads.
    Gunicorn,
    Lighttpd,
    /// A process for each connection. Its clients ask first whether it has TLS, as its own client library does if told nothing.
    Postgres,
    /// Clients that do not (`sslmode=disable`).
    PostgresBare,
    /// Go, each of whose requests waits for 5 ms besides what it computes, as for a database.
    Sleeper,
    /// Go without multipath TCP, as Fief asks for where it is to hold what comes before there is a connection.
    GoTcp,
    /// The one that waits likewise.
    SleeperTcp,
}

/// The words that start a server in the foreground, and what must be there while it runs.
#[derive(Debug)]
pub struct Start {
    pub words: Vec<OsString>,
    pub environment: Vec<(&'static str, String)>,
    /// Where it says why it does not start.
    pub log: PathBuf,
    _folder: tempfile::TempDir,
    _nginx: Option<NginxConfig>,
}

impl Start {
    fn of(words: Vec<OsString>, log: PathBuf, folder: tempfile::TempDir) -> Start {
        Start { words, environment: Vec::new(), log, _folder: folder, _nginx: None }
    }
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Nginx,
        Kind::Nginx2,
        Kind::NginxTls,
        Kind::Go,
        Kind::Node,
        Kind::Gunicorn,
        Kind::Lighttpd,
        Kind::Postgres,
        Kind::PostgresBare,
    ];

    /// The first part of its figures' names.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Nginx2 => "nginx2",
            Kind::Nginx4 => "nginx4",
            Kind::NginxTls => "nginx_tls",
            Kind::Go => "go",
            Kind::Node => "node",
            Kind::Gunicorn => "gunicorn",
            Kind::Lighttpd => "lighttpd",
            Kind::Postgres => "postgresql",
            Kind::PostgresBare => "postgresql_bare",
            Kind::Sleeper => "sleeper",
            Kind::GoTcp => "go_tcp",
            Kind::SleeperTcp => "sleeper_tcp",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx, one worker",
            Kind::Nginx2 => "nginx, two workers",
            Kind::Nginx4 => "nginx, four workers",
            Kind::NginxTls => "nginx with TLS, one worker",
            Kind::Go => "Go net/http",
            Kind::Node => "Node",
            Kind::Gunicorn => "gunicorn, eight threads",
            Kind::Lighttpd => "lighttpd",
            Kind::Postgres => "PostgreSQL",
            Kind::PostgresBare => "PostgreSQL, clients that do not ask for TLS",
            Kind::Sleeper => "Go that waits for 5 ms",
            Kind::GoTcp => "Go net/http without multipath TCP",
            Kind::SleeperTcp => "Go that waits for 5 ms, without multipath TCP",
        }
    }

    /// Whether it is measured at every load and by every way; the others show that it works with them too.
    pub fn is_main(self) -> bool {
        matches!(self, Kind::Nginx | Kind::NginxTls | Kind::Go | Kind::Node)
    }

    pub fn protocol(self) -> Protocol {
        match self {
            Kind::NginxTls => Protocol::Tls,
            Kind::Postgres => Protocol::Postgres { asks_tls: true },
            Kind::PostgresBare => Protocol::Postgres { asks_tls: false },
            _ => Protocol::Http,
        }
    }

    /// The same clients, asking this server.
    pub fn asked_by(self, load: Load) -> Load {
        let path = if self.is_postgres() { postgres::QUERY.to_owned() } else { load.path };
        Load { protocol: self.protocol(), path, ..load }
    }

    /// How many requests it can work on at once. Threads that take turns under one lock are one.
    pub fn workers(self) -> usize {
        match self {
            Kind::Nginx2 => 2,
            // each has a process of its own: one computes while the next is woken
            Kind::Postgres | Kind::PostgresBare => 2,
            Kind::Nginx4 => 4,
            Kind::Sleeper | Kind::SleeperTcp => 64,
            _ => 1,
        }
    }

    pub fn is_nginx(self) -> bool {
        matches!(self, Kind::Nginx | Kind::Nginx2 | Kind::Nginx4 | Kind::NginxTls)
    }

    pub fn is_postgres(self) -> bool {
        matches!(self, Kind::Postgres | Kind::PostgresBare)
    }

    pub fn check(self) -> Result<()> {
        let there = match self {
            Kind::Nginx | Kind::Nginx2 | Kind::Nginx4 => Feature::Nginx.is_there(),
            Kind::NginxTls => Feature::Nginx.is_there() && Feature::OpenSsl.is_there(),
            Kind::Go | Kind::GoTcp | Kind::Sleeper | Kind::SleeperTcp => Feature::Go.is_there(),
            Kind::Node => Feature::Node.is_there(),
            Kind::Gunicorn => Feature::Gunicorn.is_there(),
            // its compression is a package of its own
            Kind::Lighttpd => Feature::Lighttpd.is_there() && Path::new(DEFLATE).exists(),
            Kind::Postgres | Kind::PostgresBare => Feature::PostgreSql.is_there(),
        };
        match there {
            true => Ok(()),
            false => {
                let what = format!("{} is not installed; `make deps` in the source tree installs it", self.title());
                Err(Error::new(ErrorKind::Missing, what))
            }
        }
    }

    /// Work of about half a millisecond, from where its cost is measured.
    pub fn guess(self) -> usize {
        match self {
            Kind::Nginx | Kind::Nginx2 | Kind::Nginx4 | Kind::NginxTls | Kind::Lighttpd => 20_000,
            Kind::Postgres | Kind::PostgresBare => 5000,
            Kind::Go | Kind::GoTcp | Kind::Sleeper | Kind::SleeperTcp => 600,
            Kind::Node | Kind::Gunicorn => 150,
        }
    }

    /// As little work as it can be given. nginx compresses nothing below 2 kB.
    pub fn least(self) -> usize {
        match self {
            Kind::Nginx | Kind::Nginx2 | Kind::Nginx4 | Kind::NginxTls | Kind::Lighttpd => 3000,
            _ => 0,
        }
    }

    /// Writes what it needs. `more` goes into nginx's http and server block.
    pub fn prepare(self, port: u16, work: usize, more: [&str; 2]) -> Result<Start> {
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().context("make a folder for a server")?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).context("open the folder of a server")?;
        let place = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).context(format!("write {}", file.display())).map(|()| file)
        };
        let log = folder.path().join("said");
        let mut environment = Vec::new();
        let mut words: Vec<OsString> = Vec::new();
        match self {
            Kind::Nginx | Kind::Nginx2 | Kind::Nginx4 | Kind::NginxTls => {
                let config = match self {
                    Kind::NginxTls => nginx((port, "ssl"), 1, work, [TLS, ""])?,
                    _ => nginx((port, ""), self.workers(), work, more)?,
                };
                if self == Kind::NginxTls {
                    certify(&config)?;
                }
                words.push("nginx".into());
                words.extend(config.arguments());
                let start = Start::of(words, config.log(), folder);
                return Ok(Start { _nginx: Some(config), ..start });
            }
            Kind::Postgres | Kind::PostgresBare => words.extend(postgres::words(port, work)?),
            Kind::Go | Kind::GoTcp | Kind::Sleeper | Kind::SleeperTcp => {
                words.extend([go()?.into(), format!("0.0.0.0:{port}").into(), work.to_string().into()]);
                if matches!(self, Kind::Sleeper | Kind::SleeperTcp) {
                    words.push("5ms".into());
                }
                if matches!(self, Kind::GoTcp | Kind::SleeperTcp) {
                    environment.push(("GODEBUG", "multipathtcp=0".to_owned()));
                }
                environment.push(("GOMAXPROCS", "1".to_owned()));
            }
            Kind::Node => {
                let file = place("server.js", include_str!("servers/server.js"))?;
                words.extend(["node".into(), file.into(), port.to_string().into(), work.to_string().into()]);
            }
            Kind::Gunicorn => {
                place("app.py", include_str!("servers/app.py"))?;
                environment.push(("ROUNDS", work.to_string()));
                words.extend(["gunicorn", "--chdir"].map(OsString::from));
                words.push(folder.path().into());
                words.extend(GUNICORN.split(' ').map(OsString::from));
                words.extend(["--bind".into(), format!("0.0.0.0:{port}").into(), "app:app".into()]);
            }
            Kind::Lighttpd => {
                place("page.txt", &text(work))?;
                let root = folder.path().display().to_string();
                let file = place("lighttpd.conf", &lighttpd(&root, port))?;
                words.extend(["lighttpd".into(), "-D".into(), "-f".into(), file.into()]);
            }
        }
        Ok(Start { environment, ..Start::of(words, log, folder) })
    }
}

const DEFLATE: &str = "/usr/lib/lighttpd/mod_deflate.so";
const GUNICORN: &str = "--worker-class gthread --workers 1 --threads 8 --backlog 4096 --keep-alive 65";

/// A whole handshake on each connection.
const TLS: &str =
    "ssl_certificate cert.pem; ssl_certificate_key key.pem; ssl_protocols TLSv1.3; ssl_session_tickets off;";

/// Every path is the text. It is compressed as it leaves, at nginx's own level.
fn nginx((port, how): (u16, &str), workers: usize, work: usize, [http, server]: [&str; 2]) -> Result<NginxConfig> {
    let server = format!(
        "gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_min_length 2000; keepalive_requests 1000000;\n\
         location / {{ {server} try_files /page =404; }}\nlocation {LONG} {{ try_files {LONG} =404; }}\n"
    );
    let config = NginxConfig::with_http(port, &[&format!("{port} {how}")], workers, http, &server)?;
    for (name, length) in [("/page", work), (LONG, 4 * work)] {
        let file = config.folder().join(&name[1..]);
        std::fs::write(&file, text(length)).context(format!("write {}", file.display()))?;
    }
    Ok(config)
}

/// A key and a certificate beside its configuration.
fn certify(config: &NginxConfig) -> Result<()> {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=server -keyout key.pem -out cert.pem";
    let mut command = Command::new("openssl");
    command.args(words.split(' ')).current_dir(config.folder());
    fief_testkit::run(&mut command).map(drop).map_err(Error::from)
}

fn lighttpd(root: &str, port: u16) -> String {
    format!(
        "server.document-root = \"{root}\"\nserver.errorlog = \"{root}/said\"\nserver.port = {port}\n\
         server.bind = \"0.0.0.0\"\nserver.listen-backlog = 4096\nserver.max-fds = 8192\nserver.max-connections = 4096\n\
         server.max-keep-alive-requests = 1000000\nserver.modules = ( \"mod_rewrite\", \"mod_deflate\" )\n\
         mimetype.assign = ( \".txt\" => \"text/plain\" )\nurl.rewrite-once = ( \"\" => \"/page.txt\" )\n\
         deflate.mimetypes = ( \"text/plain\" )\ndeflate.allowed-encodings = ( \"gzip\" )\n"
    )
}

/// The server's program, built once.
fn go() -> Result<PathBuf> {
    static BUILT: OnceLock<std::result::Result<(tempfile::TempDir, PathBuf), String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::Builder::new().prefix("ff-go-").tempdir().map_err(|error| error.to_string())?;
        let (source, program) = (folder.path().join("web.go"), folder.path().join("web"));
        std::fs::write(&source, include_str!("servers/web.go")).map_err(|error| error.to_string())?;
        let mut command = Command::new("go");
        command.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0");
        fief_testkit::run(&mut command).map_err(|error| error.to_string())?;
        Ok((folder, program))
    });
    built.as_ref().map(|(_, program)| program.clone()).map_err(|said| Error::failed(said.clone()))
}
