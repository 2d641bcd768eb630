// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules on what a TLS client says before anything is encrypted, with real handshakes: curl at nginx.

use std::process::Command;

use fief_bpf::abi;
use fief_testkit::{Feature, Nginx, NginxConfig, require, run, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{Door, Front, ready};

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
    _keys: tempfile::TempDir,
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
        Self { front, _nginx: nginx, _keys: keys }
    }

    /// curl's exit status, and the version of HTTP that was spoken.
    fn curl(&self, host: &str, words: &[&str]) -> (i32, String) {
        let mut command = self.front.topology.clients.command("curl");
        command.args(["-sk", "--max-time", "3", "-o", "/dev/null", "-w", "%{http_version}", "--resolve"]);
        command.arg(format!("{host}:443:10.77.0.1")).args(words).arg(format!("https://{host}/1k"));
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
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
        wait_until(SOON, || passed("web") == 1).unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.front.verdicts()));
        assert_eq!((passed("web/gold"), passed("web/h2")), (2, 1), "{door:?}: {:?}", rig.front.verdicts());
    }
}

#[test]
fn a_refused_name_gets_no_handshake() {
    if !has_tls() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        assert_eq!(rig.curl("away.example", &[]).0, NO_HANDSHAKE, "{door:?}: reset");
        assert_eq!(rig.curl("silent.example", &[]).0, TIMEOUT, "{door:?}: silence");
        let refused = rig.verdicts("web", abi::FIEF_REQUEST_REFUSED);
        assert!(refused >= 2, "{door:?}: {:?}", rig.front.verdicts());
        let statuses: Vec<_> = (0..10).map(|_| rig.curl("few.example", &[]).0).collect();
        assert!(statuses[..3].iter().all(|status| *status == DONE), "{door:?}: {statuses:?}");
        let limited = statuses.iter().filter(|status| **status == NO_HANDSHAKE).count();
        assert_eq!(rig.verdicts("web", abi::FIEF_REQUEST_RATE), limited as u64, "{door:?}: {statuses:?}");
        assert!(limited >= 3, "{door:?}: {statuses:?}");
    }
}

#[test]
fn a_client_of_tls_understands_no_503_and_gets_a_reset() {
    if !has_tls() {
        return;
    }
    for door in Door::GUARDS {
        let rig = Rig::new(door);
        // an address is no server name
        assert_eq!(rig.curl("10.77.0.1", &[]).0, NO_HANDSHAKE, "{door:?}");
        assert_eq!(rig.verdicts("web", abi::FIEF_REQUEST_REFUSED), 1, "{door:?}: {:?}", rig.front.verdicts());
        let plain = ["-s", "-w", "%{http_code}", "http://10.77.0.1:443/"];
        let said = rig.front.topology.clients.command("curl").args(plain).output().unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&said), "503", "{door:?}: HTTP at the same port");
        assert_eq!(rig.verdicts("web", abi::FIEF_REQUEST_REFUSED), 2, "{door:?}: {:?}", rig.front.verdicts());
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
    for door in Door::GUARDS {
        let rig = Rig::with(door, "ssl_protocols TLSv1.2 TLSv1.3;\nssl_ecdh_curve secp384r1;");
        let refused = || rig.verdicts("web", abi::FIEF_REQUEST_REFUSED);
        let served = "asked again, HTTP/1.1 200".to_owned();
        for between in ["", WARNING] {
            let said = rig.ask_twice("gold.example", "gold.example", between);
            assert_eq!(said, served, "{door:?}, {between}: {:?}", rig.front.verdicts());
            let before = refused();
            let said = rig.ask_twice("gold.example", "away.example", between);
            assert_eq!(
                (said.as_str(), refused() - before),
                ("cut off", 1),
                "{door:?}, {between}: {:?}",
                rig.front.verdicts()
            );
        }
        assert_eq!(rig.curl("gold.example", &["--curves", "X25519:P-384"]).0, DONE, "{door:?}");
        assert_eq!(rig.curl("gold.example", &["--tls-max", "1.2"]).0, DONE, "{door:?}");
    }
}
