// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The servers: how each is started in the foreground. Each writes a line for what it answers, `CLIENT PID`, into the file
//! `answered` of its folder.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use fief_testkit::{Feature, NginxConfig, run};

use super::PORT;

#[derive(Clone, Copy, Debug)]
pub enum Server {
    Nginx,
    Haproxy,
    Apache,
    Go,
    /// Started with its listening socket by systemd's activator, which clears the environment.
    Gunicorn,
}

/// The words that start a server, and the files that must be there while it runs.
pub struct Start {
    pub words: Vec<OsString>,
    _nginx: Option<NginxConfig>,
}

impl Server {
    pub fn feature(self) -> Feature {
        match self {
            Server::Nginx => Feature::Nginx,
            Server::Haproxy => Feature::Haproxy,
            Server::Apache => Feature::Apache,
            Server::Go => Feature::Go,
            Server::Gunicorn => Feature::Gunicorn,
        }
    }

    /// Writes what it needs into the folder.
    pub fn start(self, folder: &Path) -> Start {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        let folder = folder.to_str().unwrap();
        let place = |name: &str, text: &str| {
            let file = format!("{folder}/{name}");
            std::fs::write(&file, text.replace("@ROOT@", folder)).unwrap();
            file
        };
        let words = match self {
            Server::Nginx => {
                // the policy's address alone: each copy would take another one for itself
                let format = "log_format answered '$remote_addr $pid';";
                let log = format!("access_log {folder}/answered answered;");
                let config = NginxConfig::with_http(PORT, &["8080"], 1, format, &log).unwrap();
                let words = [vec!["nginx".into()], config.arguments()].concat();
                return Start { words, _nginx: Some(config) };
            }
            Server::Haproxy => words(&["haproxy", "-db", "-f", &place("haproxy.cfg", HAPROXY)]),
            Server::Apache => {
                place("1k", &"x".repeat(1024));
                let account = std::fs::read_to_string("/etc/passwd").unwrap();
                let user = if account.contains("www-data:") { "www-data" } else { "nobody" };
                let file = place("apache.conf", &APACHE.replace("@USER@", user));
                // it does not start where the file names a process that lives, as another copy's
                let script = format!("exec apache2 -DFOREGROUND -f {file} -C \"PidFile {folder}/pid.$$\"");
                words(&["sh", "-c", &script])
            }
            Server::Go => {
                let (source, program) = (place("web.go", include_str!("web.go")), format!("{folder}/web"));
                run(Command::new("go").args(["build", "-o", &program, &source]).env("CGO_ENABLED", "0")).unwrap();
                words(&[&program, "0.0.0.0:8080", &format!("{folder}/answered")])
            }
            Server::Gunicorn => {
                place("app.py", GUNICORN);
                let server = ["gunicorn", "--workers", "1", "--chdir", folder, "app:application"];
                words(&[&["systemd-socket-activate", "--listen", "0.0.0.0:8080"], &server[..]].concat())
            }
        };
        Start { words, _nginx: None }
    }
}

/// It logs to standard output, which is the file.
const HAPROXY: &str = "
global
    nbthread 1
    log stdout format raw local0
defaults
    mode http
    timeout client 30s
frontend front
    bind 0.0.0.0:8080 backlog 4096
    log global
    log-format \"%ci %pid\"
    http-request return status 200 content-type text/plain string served
";

/// Its standard output is the file.
const GUNICORN: &str = "
import os

def application(environ, start):
    print(environ['REMOTE_ADDR'], os.getpid(), flush=True)
    start('200 OK', [('Content-Length', '6')])
    return [b'served']
";

const APACHE: &str = "
ServerRoot @ROOT@
ServerName server
DefaultRuntimeDir @ROOT@
Mutex pthread
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User @USER@
StartServers 1
ServerLimit 1
ThreadsPerChild 4
MinSpareThreads 1
MaxRequestWorkers 4
ListenBacklog 4096
Listen 0.0.0.0:8080
ErrorLog @ROOT@/error.log
LogFormat \"%a %P\" answered
CustomLog @ROOT@/answered answered
DocumentRoot @ROOT@
<Directory @ROOT@>
    Require all granted
</Directory>
";
