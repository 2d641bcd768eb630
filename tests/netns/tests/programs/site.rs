// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A web server with CGI programs under `fief run`, whose policy is divided by cgroups.
//!
//! Each program writes its number into the folder `pids` and computes until there is a file `stop`.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_control::{Fief, Hierarchy};
use fief_testkit::{
    Client, Family, Feature, Process, Topology, lives, php_fpm, require, require_if, wait_ready, wait_until,
};
use fief_tests_netns::{SOON, connect_from, fief_binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PORT: u16 = 8080;
/// How long the kernel may take to verify all programs.
const LOADED: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// One process; mod_cgi.
    Lighttpd,
    /// The same, as the child of a script.
    Script,
    /// A process for each connection at a time (prefork); mod_cgi.
    ApacheCgi,
    /// Threads that ask a process of its own over a UNIX socket, and that one starts the programs; mod_cgid.
    ApacheCgid,
    /// nginx, and a persistent back end in Python behind a UNIX socket.
    BackEnd,
    /// nginx, and php-fpm with one process.
    PhpFpm,
    /// nginx, and fcgiwrap with two processes, which start programs.
    Fcgiwrap,
}

impl Server {
    fn features(self) -> &'static [Feature] {
        match self {
            Server::Lighttpd | Server::Script => &[Feature::Lighttpd],
            Server::ApacheCgi | Server::ApacheCgid => &[Feature::Apache],
            Server::BackEnd => &[Feature::Nginx],
            Server::PhpFpm => &[Feature::Nginx, Feature::PhpFpm],
            Server::Fcgiwrap => &[Feature::Nginx, Feature::Fcgiwrap],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Server::Lighttpd | Server::Script => "lighttpd",
            Server::ApacheCgi | Server::ApacheCgid => "apache2",
            Server::BackEnd | Server::PhpFpm | Server::Fcgiwrap => "nginx",
        }
    }

    /// The command that starts what stands behind nginx.
    fn behind(self, root: &str) -> String {
        match self {
            Server::PhpFpm => {
                let php = php_fpm().expect("the feature was asked for");
                format!("{} --allow-to-run-as-root --nodaemonize -n -y {root}/php.conf", php.display())
            }
            // its first process does not end the others
            Server::Fcgiwrap => {
                format!("setsid sh -c 'trap \"trap - TERM; kill 0\" TERM; fcgiwrap -c 2 -s unix:{root}/wrap & wait'")
            }
            _ => format!("python3 {root}/back_end.py"),
        }
    }

    /// Writes its configuration, and returns the words that start it.
    fn words(self, root: &str) -> Vec<String> {
        let text = match self {
            Server::Lighttpd | Server::Script => LIGHTTPD.to_owned(),
            Server::ApacheCgi => APACHE.to_owned(),
            Server::ApacheCgid => {
                APACHE.replace("prefork", "event").replace("cgi_module", "cgid_module").replace("mod_cgi.", "mod_cgid.")
                    + "ScriptSock @ROOT@/cgid\n"
            }
            Server::BackEnd | Server::PhpFpm | Server::Fcgiwrap => NGINX.to_owned(),
        };
        for (name, text) in [("back_end.py", BACK_END), ("php.conf", PHP_FPM), ("back.php", PHP)] {
            fs::write(format!("{root}/{name}"), text.replace("@ROOT@", root)).unwrap();
        }
        let file = format!("{root}/server.conf");
        fs::write(&file, text.replace("@ROOT@", root)).unwrap();
        let words: &[&str] = match self {
            Server::Lighttpd => &["lighttpd", "-D", "-f", &file],
            // with a second command the shell stays
            Server::Script => &["sh", "-c", &format!("lighttpd -D -f {file}; true")],
            Server::ApacheCgi | Server::ApacheCgid => &["apache2", "-DFOREGROUND", "-f", &file],
            // what stands behind nginx ends with it
            Server::BackEnd | Server::PhpFpm | Server::Fcgiwrap => &[
                "sh",
                "-c",
                &format!(
                    "setpriv --pdeathsig TERM {} & exec nginx -p {root} -c {file} -e {root}/error.log",
                    self.behind(root)
                ),
            ],
        };
        words.iter().map(|&word| word.to_owned()).collect()
    }
}

/// A site under `fief run`.
pub struct Site {
    process: Process,
    server: Server,
    topology: Topology,
    pub fief: Fief,
    folder: tempfile::TempDir,
}

impl Site {
    /// `None`: the machine lacks something. `containers`: lines of the policy.
    pub fn new(server: Server, containers: &str) -> Option<Self> {
        Self::under(server, &policy_of(containers))
    }

    /// The same under a whole policy.
    pub fn under(server: Server, text: &str) -> Option<Self> {
        let needed = [Feature::NetNs, Feature::Cgroup2, Feature::Bpf].iter().chain(server.features());
        let divides = require_if("a cgroup with the controller cpu", Hierarchy::find().is_ok(), false);
        if !needed.copied().all(require) || !divides {
            return None;
        }
        let topology = Topology::new().unwrap();
        let folder = tempfile::Builder::new().prefix("ff-programs-").tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        write_programs(folder.path());
        let fief = Fief::with_scope(folder.path().file_name().unwrap().to_str().unwrap());
        let policy = folder.path().join("policy.toml");
        fs::write(&policy, text).unwrap();
        let mut command = Command::new(fief_binary());
        command.env("FIEF_SCOPE", fief.pins().scope()).arg("run").arg(&policy).arg("--");
        command.args(server.words(folder.path().to_str().unwrap()));
        topology.server.enter(&mut command);
        let said = folder.path().join("said");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        let mut process = Process::start(command).unwrap();
        process.ask_first(SOON);
        // a busy machine takes its time to verify the programs
        wait_until(LOADED, || fief.installed() || process.try_wait().is_some()).unwrap_or_else(|e| panic!("{e}"));
        wait_ready(&topology.server, &mut process, PORT, Some(&said)).unwrap();
        Some(Self { process, server, topology, fief, folder })
    }

    /// Puts another policy in force, as `fief apply` does.
    pub fn apply(&self, containers: &str) {
        let policy = self.folder.path().join("next.toml");
        fs::write(&policy, policy_of(containers)).unwrap();
        let mut command = Command::new(fief_binary());
        command.env("FIEF_SCOPE", self.fief.pins().scope()).arg("apply").arg(&policy);
        self.topology.server.enter(&mut command);
        assert!(command.status().unwrap().success());
    }

    /// A request that is sent.
    pub fn ask(&self, path: &str) -> TcpStream {
        self.ask_as(Client::High, path)
    }

    /// The same by a client of another class.
    pub fn ask_as(&self, class: Client, path: &str) -> TcpStream {
        let from: SocketAddr = (class.address(Family::V4, 1), 0).into();
        let to = Topology::server_address(Family::V4, PORT);
        let mut stream = connect_from(&self.topology.clients, from, to).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes()).unwrap();
        stream
    }

    /// The programs that run, once there are so many.
    pub fn programs(&self, count: usize) -> Vec<u32> {
        let found = || -> Vec<u32> {
            let entries = fs::read_dir(self.folder.path().join("pids")).unwrap().flatten();
            let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            numbers.filter(|pid| lives(*pid)).collect()
        };
        wait_until(SOON, || found().len() >= count).unwrap_or_else(|_| panic!("{:?}", found()));
        found()
    }

    /// Waits until lighttpd has said so often that it started.
    pub fn starts(&self, count: usize) {
        let log = self.folder.path().join("error.log");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        wait_until(SOON, || said().matches("server started").count() >= count).unwrap_or_else(|_| panic!("{}", said()));
    }

    pub fn stop_programs(&self) {
        fs::write(self.folder.path().join("stop"), "").unwrap();
    }

    /// Containers whose path begins so, with the CPU time of each.
    pub fn containers(&self, path: &str) -> Vec<(String, u64)> {
        let views = self.fief.snapshot().unwrap().containers.into_iter();
        views.filter(|view| view.path.starts_with(path)).map(|view| (view.path, view.usage.cpu_ns())).collect()
    }

    /// CPU time that one container itself was charged.
    pub fn used(&self, path: &str) -> u64 {
        let own = self.containers(path).into_iter().find(|(own, _)| own == path);
        own.unwrap_or_else(|| panic!("no container {path}")).1
    }

    /// The server's first process.
    pub fn server(&self) -> u32 {
        let is_server = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == self.server.name())
        };
        self.topology.server.pids().into_iter().filter(is_server).min().expect("it runs")
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.server().cast_signed()), signal).unwrap();
    }

    /// The process that moves programs.
    pub fn mover(&self) -> Option<u32> {
        let noted = Path::new("/run/fief").join(self.fief.pins().scope()).join("move.pid");
        // when it started follows
        fs::read_to_string(noted).ok()?.split(' ').next()?.parse().ok().filter(|pid| lives(*pid))
    }

    /// Ends the server, and sees that nothing is left.
    pub fn end(self) {
        let mover = self.mover();
        self.process.signal(Signal::SIGTERM);
        assert!(mover.is_some() || self.mover().is_none());
        self.goes();
        wait_until(SOON, || mover.is_none_or(|pid| !lives(pid))).unwrap();
    }

    /// `fief run` has ended and taken all down.
    pub fn goes(mut self) {
        wait_until(SOON, || self.process.try_wait().is_some()).unwrap();
        assert!(!self.fief.installed());
        let groups = Hierarchy::find().unwrap().top.join("fief").join(self.fief.pins().scope());
        assert!(!groups.exists());
    }
}

fn policy_of(containers: &str) -> String {
    format!(
        "version = 1\nschedule = \"cgroup\"\n{containers}[listener.web]\naddress = \"0.0.0.0:{PORT}\"\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"site\"\n"
    )
}

/// Whether it is answered with 200.
pub fn answers(mut stream: TcpStream) -> bool {
    let mut response = String::new();
    stream.read_to_string(&mut response).is_ok() && response.split(' ').nth(1) == Some("200")
}

pub fn is_answered(mut stream: TcpStream) {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert_eq!(response.split(' ').nth(1), Some("200"), "{response}");
}

fn write_programs(folder: &Path) {
    fs::create_dir(folder.join("pids")).unwrap();
    fs::set_permissions(folder.join("pids"), Permissions::from_mode(0o777)).unwrap();
    fs::write(folder.join("1k"), "x".repeat(1024)).unwrap();
    for (name, text) in [("burn.cgi", BURN), ("a\u{9b}8m.cgi", BURN), ("family.cgi", FAMILY), ("leave.cgi", LEAVE)] {
        let file = folder.join(name);
        fs::write(&file, text.replace("@ROOT@", folder.to_str().unwrap())).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    }
}

const BURN: &str = "#!/bin/sh
: > @ROOT@/pids/$$
while [ ! -e @ROOT@/stop ]; do :; done
printf 'Content-Type: text/plain\\r\\n\\r\\ndone'
";

/// A child, and a grandchild in another session whose parent has ended.
const FAMILY: &str = "#!/bin/sh
burn='echo > @ROOT@/pids/$$; while [ ! -e @ROOT@/stop ]; do :; done'
sh -c \"$burn\" &
( setsid sh -c \"$burn\" </dev/null >/dev/null 2>&1 & )
: > @ROOT@/pids/$$
while [ ! -e @ROOT@/stop ]; do :; done
printf 'Content-Type: text/plain\\r\\n\\r\\ndone'
";

/// Answers at once and leaves somebody behind.
const LEAVE: &str = "#!/bin/sh
burn='echo > @ROOT@/pids/$$; while [ ! -e @ROOT@/stop ]; do :; done'
( setsid sh -c \"$burn\" </dev/null >/dev/null 2>&1 & )
printf 'Content-Type: text/plain\\r\\n\\r\\ndone'
";

const LIGHTTPD: &str = "
server.document-root = \"@ROOT@\"
server.port = 8080
server.bind = \"0.0.0.0\"
server.modules = (\"mod_cgi\")
server.errorlog = \"@ROOT@/error.log\"
cgi.assign = (\".cgi\" => \"\")
mimetype.assign = (\"\" => \"text/plain\")
";

const APACHE: &str = "
ServerRoot @ROOT@
ServerName server
DefaultRuntimeDir @ROOT@
PidFile @ROOT@/pid
Mutex pthread
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
LoadModule cgi_module /usr/lib/apache2/modules/mod_cgi.so
TypesConfig /dev/null
User www-data
StartServers 3
Listen 0.0.0.0:8080
ErrorLog @ROOT@/error.log
DocumentRoot @ROOT@
<Directory @ROOT@>
    Options +ExecCGI
    AddHandler cgi-script .cgi
    Require all granted
</Directory>
";

/// Connections to the back end are kept, and each serves whoever comes.
const NGINX: &str = "
user root;
pid @ROOT@/pid;
daemon off;
events {}
http {
    access_log off;
    client_body_temp_path @ROOT@/body;
    proxy_temp_path @ROOT@/proxy;
    fastcgi_temp_path @ROOT@/fastcgi;
    uwsgi_temp_path @ROOT@/uwsgi;
    scgi_temp_path @ROOT@/scgi;
    upstream back { server unix:@ROOT@/back; keepalive 1; }
    upstream php { server unix:@ROOT@/php; keepalive 1; }
    fastcgi_keep_conn on;
    fastcgi_param REQUEST_METHOD $request_method;
    fastcgi_param SCRIPT_FILENAME @ROOT@$fastcgi_script_name;
    server {
        listen 8080;
        root @ROOT@;
        location /back { proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\"; }
        location ~ [.]php$ { fastcgi_pass php; }
        location ~ [.]cgi$ { fastcgi_pass unix:@ROOT@/wrap; fastcgi_keep_conn off; }
    }
}
";

/// One thread; each answer takes 100 ms of CPU.
const BACK_END: &str = "
import http.server, socketserver, time
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        end = time.thread_time() + 0.1
        while time.thread_time() < end: pass
        self.send_response(200)
        self.send_header('Content-Length', '4')
        self.end_headers()
        self.wfile.write(b'done')
    def address_string(self): return 'unix'
    def log_message(self, *words): pass
class Server(socketserver.UnixStreamServer):
    def get_request(self): return self.socket.accept()[0], ('unix', 0)
Server('@ROOT@/back', Answer).serve_forever()
";

const PHP_FPM: &str = "
[global]
error_log = @ROOT@/php.log
[one]
user = root
group = root
listen = @ROOT@/php
pm = static
pm.max_children = 1
";

/// Each answer takes 100 ms of CPU.
const PHP: &str = "<?php
function used() {
    $of = getrusage();
    $part = fn($mode) => $of['ru_' . $mode . '.tv_sec'] + $of['ru_' . $mode . '.tv_usec'] / 1e6;
    return $part('utime') + $part('stime');
}
$end = used() + 0.1;
while (used() < $end);
echo 'done';
";
