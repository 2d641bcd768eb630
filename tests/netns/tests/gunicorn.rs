// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that reads requests otherwise than most: to gunicorn a line ends at CR LF alone, and a method in small letters is the
//! one in capitals. Nobody gets past a rule by that.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use fief_bpf::abi;
use fief_testkit::{Family, Feature, Process, read_until, require, wait_ready};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{SOON, connect_from, one_installation};

const POLICY: &str = r#"
[container.web]
[listener.plain]
address = "0.0.0.0:80"
[[listener.plain.client]]
from = ["any"]
container = "web"
[[listener.plain.request]]
path = "/secret/*"
refuse = "reset"
[[listener.plain.request]]
header = { X-Secret = "yes" }
refuse = "reset"
[[listener.plain.request]]
method = "POST"
path = "/login"
refuse = "reset"
"#;

/// It tells what it served.
const APP: &str = r#"
def application(environ, start):
    environ["wsgi.input"].read()
    secret = environ.get("HTTP_X_SECRET", "no")
    body = f"served {environ['REQUEST_METHOD']} {environ['PATH_INFO']}, {secret}\n".encode()
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"#;

const FIRST: &str = "GET /public/1 HTTP/1.1\r\nHost: server\r\n\r\n";
const SECRET: &str = "GET /secret/1 HTTP/1.1\r\nHost: server\r\n\r\n";
const LAST: &str = "GET /public/2 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

struct Judge {
    front: Front,
    _server: Process,
    _folder: tempfile::TempDir,
}

impl Judge {
    fn start(door: Door) -> Self {
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().unwrap();
        std::fs::write(folder.path().join("app.py"), APP).unwrap();
        let front = Front::new(door, POLICY);
        let mut command = front.server_command("gunicorn");
        command.arg("--chdir").arg(folder.path()).args(["--bind", "0.0.0.0:80", "--worker-class", "gthread"]);
        command.args(["--threads", "4", "--keep-alive", "65", "app:application"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Process::start(command).unwrap();
        wait_ready(&front.topology.server, &mut server, 80, None).unwrap();
        Self { front, _server: server, _folder: folder }
    }

    /// What is served of these bytes and of the last request behind them, as a connection's first ones or later.
    fn served(&self, bytes: &str, is_later: bool) -> String {
        let mut stream = connect_from(&self.front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        if is_later {
            stream.write_all(FIRST.as_bytes()).unwrap();
            assert!(read_until(&mut stream, "served GET /public/1, no\n").contains("served"));
        }
        let _ = stream.write_all(bytes.as_bytes());
        let answered = read_until(&mut stream, "served ");
        let _ = stream.write_all(LAST.as_bytes());
        answered + &rest(stream)
    }
}

fn rest(mut stream: TcpStream) -> String {
    let mut words = Vec::new();
    let _ = stream.read_to_end(&mut words);
    String::from_utf8_lossy(&words).into_owned()
}

#[test]
fn what_gunicorn_reads_otherwise_is_refused() {
    if !(ready() && require(Feature::Gunicorn)) {
        return;
    }
    let length = SECRET.len();
    let hostile = [
        format!("POST /public/3 HTTP/1.1\r\nHost: server\r\nX: y\nContent-Length: {length}\r\n\r\n{SECRET}"),
        "GET /public/3 HTTP/1.1\r\nHost: server\r\nA: b\nX-Secret: no\r\nX-Secret: yes\r\n\r\n".to_owned(),
        "post /login HTTP/1.1\r\nHost: server\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "POSt /login HTTP/1.1\r\nHost: server\r\nContent-Length: 0\r\n\r\n".to_owned(),
    ];
    let honest = [
        "POST /public/3 HTTP/1.1\r\nHost: server\r\nX: y\r\nContent-Length: 5\r\n\r\nhello",
        "GET /public/3 HTTP/1.1\r\nHost: server\r\nX-Secret: no\r\n\r\n",
    ];
    let _one = one_installation();
    for door in Door::GUARDS {
        let judge = Judge::start(door);
        for is_later in [false, true] {
            for bytes in &hostile {
                let before = judge.front.verdicts();
                let words = judge.served(bytes, is_later);
                let is_round = ["/secret", ", yes", "POST /login"].iter().any(|word| words.contains(word));
                assert!(!is_round, "{door:?}, {is_later}, {bytes:?}: {words}");
                let new = judge.front.verdicts().since(&before);
                let unread = new.count(abi::FIEF_REFUSED_MALFORMED);
                assert!(judge.front.is_counted(unread, 1), "{door:?}, {is_later}, {bytes:?}: {new:?}");
            }
            for bytes in honest {
                let words = judge.served(bytes, is_later);
                let both = words.contains("/public/3, no\n") && words.contains("/public/2, no\n");
                assert!(both, "{door:?}, {is_later}, {bytes:?}: {words}");
            }
        }
    }
}
