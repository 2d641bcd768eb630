// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules on what a TLS client says before anything is encrypted, with real handshakes: curl at nginx.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use fief_bpf::abi;
use fief_testkit::{Feature, Nginx, NginxConfig, require, run, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::{SOON, one_installation};

const POLICY: &str = r#"
[container.web]
[container."web/gold"]
[container."web/h2"]
[listener.tls]
address = "0.0.0.0:443"
[[listener.tls.client]]
from = ["any"]
container = "web"
[[listener.tls.request]]
server-name = ["gold.example", "*.gold.example"]
container = "web/gold"
[[listener.tls.request]]
server-name = "away.example"
refuse = "reset"
[[listener.tls.request]]
server-name = "silent.example"
refuse = "drop"
[[listener.tls.request]]
server-name = "few.example"
rate = { per-second = 1, burst = 3 }
[[listener.tls.request]]
server-name = "*"
alpn = "h2"
container = "web/h2"
[[listener.tls.request]]
server-name = "*"
[[listener.tls.request]]
refuse = "503"
"#;

/// curl's exit statuses.
const DONE: i32 = 0;
const NO_HANDSHAKE: i32 = 35;
const TIMEOUT: i32 = 28;

struct Rig {
    front: Front,
    _nginx: Nginx,
    keys: tempfile::TempDir,
}

impl Rig {
    fn new(door: Door) -> Self {
        Self::with(door, "")
    }

    /// With this in nginx's configuration.
    fn with(door: Door, words_of_nginx: &str) -> Self {
        let front = Front::new(door, POLICY);
        let keys = tempfile::Builder::new().prefix("ff-tls-").tempdir().unwrap();
        let (key, certificate) = (keys.path().join("key"), keys.path().join("certificate"));
        let words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=server", "-keyout"];
        run(Command::new("openssl").args(words).arg(&key).arg("-out").arg(&certificate)).unwrap();
        let more = format!(
            "ssl_certificate {};\nssl_certificate_key {};\n{words_of_nginx}",
            certificate.display(),
            key.display()
        );
        let config = NginxConfig::listening(80, &["80", "443 ssl http2"], 1, &more).unwrap();
        let nginx = Nginx::start_with(&front.topology.server, config).unwrap();
        Self { front, _nginx: nginx, keys }
    }

    /// curl's exit status, and the version of HTTP that was spoken.
    fn curl(&self, host: &str, words: &[&str]) -> (i32, String) {
        let output = self.curl_command(host, words).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn curl_command(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.front.topology.clients.command("curl");
        command.args(["-sk", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_version}", "--resolve"]);
        command.arg(format!("{host}:443:10.77.0.1")).args(words).arg(format!("https://{host}/1k"));
        command
    }

    /// What a client is told whose first hello names one server, and the second one, which nginx asks for, the other; these
    /// bytes come before it.
    fn ask_twice(&self, first: &str, second: &str, between: &str) -> String {
        let mut command = self.front.topology.clients.command("python3");
        command.args(["-c", TWO_HELLOS, first, second, between]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(!said.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// A client of OpenSSL at the server of this name, which ends with its connection.
    fn openssl(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.front.topology.clients.command("timeout");
        command.args(["60", "openssl", "s_client", "-connect", "10.77.0.1:443", "-ign_eof", "-servername", host]);
        command.args(words);
        command
    }

    /// What OpenSSL tells, and the server, whom this is asked.
    fn ask(&self, host: &str, request: &str, words: &[&str]) -> String {
        let question = self.keys.path().join("question");
        std::fs::write(&question, request).unwrap();
        let output = self.openssl(host, words).stdin(File::open(&question).unwrap()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Connections had this verdict, and each was counted.
    #[track_caller]
    fn has_counted(&self, container: &str, reason: abi::fief_reason, asked: u64) {
        let counted = self.verdicts(container, reason);
        let verdicts = self.front.verdicts();
        assert!(self.front.is_counted(counted, asked), "{:?}: {counted}, {asked}: {verdicts:?}", self.front.door);
    }

    /// How often a connection had this verdict, as this container's.
    fn verdicts(&self, container: &str, reason: abi::fief_reason) -> u64 {
        let all = self.front.verdicts();
        let its = all.all().iter().filter(|verdict| verdict.container == container && verdict.reason == reason);
        its.map(|verdict| verdict.count).sum()
    }
}

fn has_tls() -> bool {
    ready() && [Feature::Nginx, Feature::Curl, Feature::OpenSsl].into_iter().all(require)
}

#[test]
fn the_server_name_and_the_protocols_offered_say_whose_a_connection_is() {
    if !has_tls() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        for (host, words, version) in [
            ("gold.example", "--http2", "2"),
            ("WWW.Gold.Example", "--http1.1", "1.1"),
            ("other.example", "--http2", "2"),
            ("other.example", "--http1.1", "1.1"),
        ] {
            assert_eq!(rig.curl(host, &[words]), (DONE, version.to_owned()), "{door:?}, {host}, {words}");
        }
        let passed = |container| rig.verdicts(container, abi::FIEF_REQUEST_RULE);
        wait_until(SOON, || passed("web") > 0).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts()));
        for (container, asked) in [("web", 1), ("web/gold", 2), ("web/h2", 1)] {
            rig.has_counted(container, abi::FIEF_REQUEST_RULE, asked);
        }
    }
}

#[test]
fn a_refused_name_gets_no_handshake() {
    if !has_tls() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        assert_eq!(rig.curl("away.example", &[]).0, NO_HANDSHAKE, "{door:?}: reset");
        assert_eq!(rig.curl("silent.example", &["--max-time", "3"]).0, TIMEOUT, "{door:?}: silence");
        let refused = rig.verdicts("web", abi::FIEF_REQUEST_REFUSED);
        assert!(refused >= 2, "{door:?}: {:?}", rig.front.verdicts());
        let (begin, mut statuses) = (Instant::now(), Vec::<i32>::new());
        let with = |statuses: &[i32], status: i32| statuses.iter().filter(|own| **own == status).count();
        // at once: one after the other they may take longer than the rate asks for, and where the machine stands still these do
        while with(&statuses, NO_HANDSHAKE) < 3 && statuses.len() < 50 {
            let few: Vec<_> = (0..10).map(|_| rig.curl_command("few.example", &[]).spawn().unwrap()).collect();
            statuses.extend(few.into_iter().map(|mut curl| curl.wait().unwrap().code().unwrap()));
        }
        let (done, limited) = (with(&statuses, DONE), with(&statuses, NO_HANDSHAKE));
        assert!(done >= 3 && limited >= 3 && done + limited == statuses.len(), "{door:?}: {statuses:?}");
        let took = begin.elapsed();
        assert!(done as u64 <= 7 + took.as_secs(), "{door:?}: {done} in {took:?}");
        rig.has_counted("web", abi::FIEF_REQUEST_RATE, limited as u64);
    }
}

#[test]
fn a_client_of_tls_understands_no_503_and_gets_a_reset() {
    if !has_tls() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        // an address is no server name
        assert_eq!(rig.curl("10.77.0.1", &[]).0, NO_HANDSHAKE, "{door:?}");
        rig.has_counted("web", abi::FIEF_REQUEST_REFUSED, 1);
        let plain = ["-s", "-w", "%{http_code}", "http://10.77.0.1:443/"];
        let said = rig.front.topology.clients.command("curl").args(plain).output().unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&said), "503", "{door:?}: HTTP at the same port");
        rig.has_counted("web", abi::FIEF_REQUEST_REFUSED, 2);
    }
}

/// OpenSSL's library, which names what it is told to before each hello.
const TWO_HELLOS: &str = r#"
import ctypes, socket, sys
ssl, crypto = ctypes.CDLL("libssl.so.3"), ctypes.CDLL("libcrypto.so.3")
void = ctypes.c_void_p
for call in (ssl.TLS_client_method, ssl.SSL_CTX_new, ssl.SSL_new, crypto.BIO_new, crypto.BIO_s_mem):
    call.restype = void
ssl.SSL_ctrl.argtypes = [void, ctypes.c_int, ctypes.c_long, ctypes.c_char_p]
first, second = (word.encode() for word in sys.argv[1:3])
between = bytes.fromhex(sys.argv[3])
one = void(ssl.SSL_new(void(ssl.SSL_CTX_new(void(ssl.TLS_client_method())))))
ssl.SSL_ctrl(one, 92, 0, b"X25519:P-384")
ssl.SSL_ctrl(one, 55, 0, first)
reads, writes = (void(crypto.BIO_new(void(crypto.BIO_s_mem()))) for _ in range(2))
ssl.SSL_set_bio(one, reads, writes)
ssl.SSL_set_connect_state(one)
stream = socket.create_connection(("10.77.0.1", 443))
stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
stream.settimeout(5)
buffer = ctypes.create_string_buffer(65536)
def send():
    length = crypto.BIO_read(writes, buffer, 65536)
    if length > 0:
        stream.sendall(buffer.raw[:length])
def take():
    words = stream.recv(65536)
    if not words:
        raise ConnectionError
    crypto.BIO_write(reads, words, len(words))
    return bytes.fromhex("cf21ad74e59a6111") in words
try:
    asked = False
    while ssl.SSL_do_handshake(one) != 1:
        if asked and between:
            stream.sendall(between)
        send()
        asked = take() or asked
        ssl.SSL_ctrl(one, 55, 0, second)
    request = b"GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ssl.SSL_write(one, request, len(request))
    send()
    while ssl.SSL_read(one, buffer, 65536) <= 0:
        take()
    print("asked again," if asked else "taken,", buffer.raw[:12].decode())
except ConnectionError:
    print("cut off")
except TimeoutError:
    print("silence")
"#;

/// A server that takes no key of the first hello goes by the name in the second.
#[test]
fn the_name_in_a_hello_that_its_server_asks_for_is_ruled() {
    if !(has_tls() && require(Feature::Python)) {
        return;
    }
    const WARNING: &str = "1503030002015a";
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::with(door, "ssl_protocols TLSv1.2 TLSv1.3;\nssl_ecdh_curve secp384r1;");
        let refused = || rig.verdicts("web", abi::FIEF_REQUEST_REFUSED);
        let served = "asked again, HTTP/1.1 200".to_owned();
        for between in ["", WARNING] {
            let said = rig.ask_twice("gold.example", "gold.example", between);
            assert_eq!(said, served, "{door:?}, {between}: {:?}", rig.front.verdicts());
            let before = refused();
            let said = rig.ask_twice("gold.example", "away.example", between);
            let counted = rig.front.is_counted(refused() - before, 1);
            assert!(said == "cut off" && counted, "{door:?}, {between}: {said}, {:?}", rig.front.verdicts());
        }
        assert_eq!(rig.curl("gold.example", &["--curves", "X25519:P-384"]).0, DONE, "{door:?}");
        assert_eq!(rig.curl("gold.example", &["--tls-max", "1.2"]).0, DONE, "{door:?}");
    }
}

const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const SERVED: &str = "HTTP/1.1 200";

/// The first request comes right behind the hello, before any answer.
#[test]
fn what_comes_as_early_data_is_ruled_by_the_name_before_it() {
    if !has_tls() {
        return;
    }
    let _one = one_installation();
    // A server that takes no key of the first hello refuses early data, and asks for another hello behind it.
    for (curve, accepted) in [("X25519", true), ("secp384r1", false)] {
        for door in Door::GUARDS {
            let nginx = format!("ssl_protocols TLSv1.3;\nssl_early_data on;\nssl_ecdh_curve {curve};");
            let rig = Rig::with(door, &nginx);
            let (session, early) = (rig.keys.path().join("session"), rig.keys.path().join("early"));
            std::fs::write(&early, REQUEST).unwrap();
            let groups = ["-groups", "X25519:P-384"];
            let first = [&groups[..], &["-sess_out", session.to_str().unwrap()]].concat();
            let again = ["-sess_in", session.to_str().unwrap(), "-early_data", early.to_str().unwrap()];
            let again = [&groups[..], &again].concat();
            let said = rig.ask("gold.example", REQUEST, &first);
            assert!(said.contains(SERVED), "{door:?}, {curve}: {said}");
            let gold = || rig.verdicts("web/gold", abi::FIEF_REQUEST_RULE);
            let refused = || rig.verdicts("web", abi::FIEF_REQUEST_REFUSED);
            let before = (gold(), refused());
            let said = rig.ask("gold.example", if accepted { "" } else { REQUEST }, &again);
            let early = if accepted { "Early data was accepted" } else { "Early data was rejected" };
            assert!(said.contains(early) && said.contains(SERVED), "{door:?}, {curve}: {said}");
            assert!(gold() > before.0, "{door:?}, {curve}: {:?}", rig.front.verdicts());
            let said = rig.ask("away.example", "", &again);
            assert!(!said.contains("HTTP/1.1"), "{door:?}, {curve}: {said}");
            let counted = rig.front.is_counted(refused() - before.1, 1);
            assert!(counted, "{door:?}, {curve}: {:?}", rig.front.verdicts());
        }
    }
}

/// What is inside cannot be ruled by other rules than those that let it pass.
#[test]
fn a_connection_goes_on_under_the_same_rules_and_ends_under_others() {
    if !has_tls() {
        return;
    }
    const NEXT: &[u8] = b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n";
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        let mut command = rig.openssl("gold.example", &["-quiet"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        let mut asks = client.stdin.take().unwrap();
        let mut hears = BufReader::new(client.stdout.take().unwrap());
        let mut is_served = || {
            asks.write_all(NEXT).is_ok()
                && loop {
                    let mut line = Vec::new();
                    match hears.read_until(b'\n', &mut line) {
                        Ok(0) | Err(_) => break false,
                        Ok(_) if String::from_utf8_lossy(&line).contains(SERVED) => break true,
                        Ok(_) => {}
                    }
                }
        };
        assert!(is_served(), "{door:?}");
        rig.front.apply(POLICY).unwrap();
        assert!(is_served(), "{door:?}: the same policy again: {:?}", rig.front.verdicts());
        rig.front.apply(&POLICY.replace("silent.example", "quiet.example")).unwrap();
        assert!(!is_served(), "{door:?}: other rules");
        rig.has_counted("web", abi::FIEF_REFUSED_OTHER, 1);
        client.wait().unwrap();
    }
}
