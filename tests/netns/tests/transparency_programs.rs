// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs as they are, through admission: curl, wrk, ab, Python, Go, nginx, HTTP/1.1 and HTTP/2 over TLS.
//!
//! Each test does the same without a guard, with our own handshake and with the kernel's; outcomes must be equal.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fief_testkit::{Family, Feature, Nginx, NginxConfig, Process, pattern, require, run, wait_until};
use fief_tests_netns::front::{Front, GUARDED, anywhere, plain, ready, through_every_door};
use fief_tests_netns::{SOON, connect_from, one_installation};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const DOWNLOAD: usize = 6 << 20;

/// nginx on 80 and, with TLS and HTTP/2, on 443; it keeps what is put below /up.
struct Web {
    _nginx: Nginx,
    folder: tempfile::TempDir,
}

impl Web {
    fn start(front: &Front) -> Self {
        let folder = tempfile::Builder::new().prefix("ff-web-").tempdir().unwrap();
        let (key, certificate) = (folder.path().join("key.pem"), folder.path().join("certificate.pem"));
        run(Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=server", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate))
        .unwrap();
        let up = folder.path().join("up");
        let more = format!(
            "ssl_certificate {};\nssl_certificate_key {};\nclient_max_body_size 0;\nlarge_client_header_buffers 8 80k;\n\
             location /up/ {{ alias {}/; dav_methods PUT; client_body_in_file_only on; }}",
            certificate.display(),
            key.display(),
            up.display()
        );
        let addresses = ["80", "[::]:80", "443 ssl http2", "[::]:443 ssl http2"];
        let config = NginxConfig::listening(80, &addresses, 2, &more).unwrap();
        std::fs::create_dir(&up).unwrap();
        for folder in [folder.path(), &up] {
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(folder, open).unwrap();
        }
        std::fs::write(config.folder().join("large"), pattern(DOWNLOAD)).unwrap();
        let mut command = front.server_command("nginx");
        command.args(config.arguments()).stderr(std::process::Stdio::null());
        let nginx = Nginx::start_command(&front.topology.server, command, config).unwrap();
        Self { _nginx: nginx, folder }
    }

    fn uploaded(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join("up").join(name)).unwrap()
    }
}

fn has_web() -> bool {
    ready() && require(Feature::Nginx) && require(Feature::Curl) && require(Feature::OpenSsl)
}

fn host(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.77.0.1",
        Family::V6 => "[fd77::1]",
    }
}

/// curl's exit status and what it writes with `-w`.
fn curl(front: &Front, words: &[&str]) -> (Option<i32>, String) {
    let mut command = front.topology.clients.command("curl");
    let format = "%{http_code} %{http_version} %{size_download} %{num_connects}\n";
    command.args(["-sSk", "--max-time", "30", "-w", format]).args(words);
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn curl_gets_files_in_every_version_of_http() {
    if !has_web() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let _web = Web::start(front);
        let mut told = Vec::new();
        for family in FAMILIES {
            let (http, https) = (format!("http://{}/1k", host(family)), format!("https://{}/1k", host(family)));
            for (version, url) in
                [("--http1.0", &http), ("--http1.1", &http), ("--http1.1", &https), ("--http2", &https)]
            {
                let discard = ["-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null"];
                let (status, text) = curl(front, &[&discard[..], &[version, url, url, url]].concat());
                assert_eq!(status, Some(0), "{version} {url}: {text}");
                told.push(text);
            }
        }
        assert!(
            told[1].starts_with("200 1.1 1024 1\n200 1.1 1024 0") && told[3].starts_with("200 2 1024 1\n"),
            "{told:?}"
        );
        front.assert_ruled(8);
        told
    });
}

#[test]
fn curl_uploads_and_downloads_megabytes_unchanged() {
    if !has_web() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let web = Web::start(front);
        let folder = tempfile::tempdir().unwrap();
        let (sent, got) = (folder.path().join("sent"), folder.path().join("got"));
        std::fs::write(&sent, pattern(DOWNLOAD)).unwrap();
        let (sent, got_word) = (sent.to_str().unwrap(), got.to_str().unwrap());
        for (n, base) in ["http://10.77.0.1", "https://[fd77::1]"].iter().enumerate() {
            let (status, text) = curl(front, &["-o", got_word, &format!("{base}/large")]);
            assert!(status == Some(0) && text.starts_with("200 "), "{text}");
            assert!(std::fs::read(&got).unwrap() == pattern(DOWNLOAD), "{base}");
            let (status, text) = curl(front, &["-T", sent, &format!("{base}/up/{n}")]);
            assert!(status == Some(0) && text.contains("201 "), "{text}");
            assert!(web.uploaded(&n.to_string()) == pattern(DOWNLOAD), "{base}");
        }
        front.assert_ruled(4);
    });
}

#[test]
fn curl_sends_headers_of_64_kb() {
    if !has_web() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let _web = Web::start(front);
        let header = format!("X-Long: {}", "y".repeat(65_000));
        let urls = ["http://10.77.0.1/1k", "http://[fd77::1]/1k", "https://10.77.0.1/1k"];
        urls.map(|url| {
            let told = curl(front, &["--http1.1", "-o", "/dev/null", "-H", &header, url]);
            assert_eq!(told, (Some(0), "200 1.1 1024 1\n".into()), "{url}");
        })
    });
}

#[test]
fn wrk_sees_no_error() {
    if !(has_web() && require(Feature::Wrk)) {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let _web = Web::start(front);
        for url in ["http://10.77.0.1/1k", "https://[fd77::1]/1k"] {
            let mut command = front.topology.clients.command("wrk");
            let text = run(command.args(["-t1", "-c40", "-d3s", "--timeout", "30s", url])).unwrap();
            let served: u64 =
                text.lines().find_map(|line| line.trim().split_once(" requests in")).unwrap().0.parse().unwrap();
            assert!(served > 0 && !text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
        }
    });
}

#[test]
fn ab_sees_no_error_with_and_without_persistent_connections() {
    if !(has_web() && require(Feature::Ab)) {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let _web = Web::start(front);
        for keep in [&[][..], &["-k"]] {
            for host in FAMILIES.map(host) {
                let mut command = front.topology.clients.command("ab");
                command.args(["-q", "-n", "2000", "-c", "20"]).args(keep).arg(format!("http://{host}/1k"));
                let text = run(&mut command).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").trim();
                assert_eq!(field("Complete requests:"), "2000", "{text}");
                assert_eq!((field("Failed requests:"), field("Non-2xx responses:")), ("0", "0"), "{text}");
            }
        }
        front.assert_ruled(4000);
    });
}

/// A server of its own; ready when it accepts on the loopback, where nothing is guarded.
fn serve(front: &Front, mut command: Command) -> Process {
    command.stdout(std::process::Stdio::null());
    let server = Process::start(command).unwrap();
    let there = || front.topology.server.run(|| std::net::TcpStream::connect("127.0.0.1:80").is_ok()).unwrap();
    wait_until(SOON, there).unwrap();
    server
}

#[test]
fn python_posts_to_python() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transparency/web.py");
    through_every_door(GUARDED, |front| {
        let mut command = front.server_command("python3");
        command.arg(&program).args(["serve", "80"]);
        let _server = serve(front, command);
        let told = ["10.77.0.1", "fd77::1"].map(|host| {
            run(front.topology.clients.command("python3").arg(&program).args(["ask", host, "80"])).unwrap()
        });
        assert_eq!(told, ["40\n", "40\n"]);
        front.assert_ruled(80);
    });
}

/// The Go program, built once.
fn go_program() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("web");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transparency/web.go");
        run(Command::new("go").args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", "0")).unwrap();
        (folder, program)
    });
    program
}

#[test]
fn go_posts_to_go() {
    if !(ready() && require(Feature::Go)) {
        return;
    }
    let _one = one_installation();
    let program = go_program().to_str().unwrap();
    through_every_door(GUARDED, |front| {
        let mut command = front.server_command(program);
        // By itself it listens with multipath TCP, where the kernel makes the connections, whoever is to answer (tests/multipath.rs).
        command.args(["serve", "[::]:80"]).env("GODEBUG", "multipathtcp=0");
        let _server = serve(front, command);
        let told = FAMILIES.map(|family| {
            let url = format!("http://{}/", host(family));
            run(front.topology.clients.command(program).args(["ask", &url, "5", "40"])).unwrap()
        });
        assert_eq!(told, ["200\n", "200\n"]);
        front.assert_ruled(10);
    });
}

#[test]
fn a_server_that_is_restarted_serves_on() {
    if !has_web() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        for _ in 0..2 {
            let web = Web::start(front);
            let told = curl(front, &["-o", "/dev/null", "http://10.77.0.1/1k"]);
            assert_eq!(told, (Some(0), "200 1.1 1024 1\n".into()));
            drop(web);
            // 7: refused, once the last process of the server has let go of the listener
            let refused = || curl(front, &["-o", "/dev/null", "http://10.77.0.1/1k"]).0 == Some(7);
            wait_until(SOON, refused).expect("refused");
            let errno = || connect_from(&front.topology.clients, anywhere(Family::V6), plain(Family::V6)).err();
            wait_until(SOON, || errno() == Some(nix::errno::Errno::ECONNREFUSED)).expect("refused");
        }
    });
}
