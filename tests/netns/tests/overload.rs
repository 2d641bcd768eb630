// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Controls that depend on what is measured: on the depth of a real accept queue, on the CPU, and on the CPU time that a
//! real server is charged.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::{Cgroup, Family, Process, get, wait_ready, wait_until};
use fief_tests_netns::front::{Door, Front, anywhere, plain, ready};
use fief_tests_netns::{SOON, connect_from, spin};

const HOLD: Duration = Duration::from_secs(3);
/// Of the listen queue.
const PLACES: i32 = 16;

/// What is dear is refused while the listener is busy by this threshold.
fn policy(busy: &str) -> String {
    format!(
        "[overload]\nbusy = {{ {busy} }}\noverloaded = {{ drops = 1000000 }}\nhold = \"3s\"\n\
         [container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/dear\"\nrefuse = \"503\"\nwhen = \"busy\"\n"
    )
}

#[test]
fn a_rule_for_busy_times_is_in_force_while_the_accept_queue_is_deep_and_a_hold_longer() {
    if !ready() {
        return;
    }
    for door in Door::GUARDS {
        let front = Front::new(door, &policy("queue = \"25%\""));
        let let_it = front.server_with_queue(PLACES);
        let first = front.ask("/dear");
        assert_eq!(front.load().0, "always", "{door:?}");
        let waiting: Vec<_> = (0..8).map(|_| front.ask("/cheap")).collect();
        // before the queue was found deep
        let mut deep = Instant::now();
        wait_until(SOON, || {
            let now = Instant::now();
            drop(connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)));
            let is_busy = front.load().0 == "busy";
            deep = if is_busy { deep } else { now };
            is_busy
        })
        .unwrap_or_else(|_| panic!("{door:?}: {:?}", front.load()));
        assert!(front.load().1 >= 25, "{door:?}: {:?}", front.load());
        assert_eq!(front.status("/dear"), Ok(503), "{door:?}: refused though the server accepts nothing");
        let go = Instant::now();
        let_it.send(()).unwrap();
        for mut stream in waiting.into_iter().chain([first]) {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.0 200"), "{door:?}: {answer}");
        }
        assert_eq!(front.status("/cheap"), Ok(200), "{door:?}");
        let dear = front.status("/dear");
        let holds = dear == Ok(503) || go.elapsed() >= HOLD / 2;
        assert!(holds, "{door:?}: {dear:?}, the queue is empty, the hold goes on");
        wait_until(SOON, || front.status("/dear") == Ok(200)).expect("the level is left");
        assert!(deep.elapsed() >= HOLD, "{door:?}: {:?}", deep.elapsed());
        assert_eq!(front.load().0, "always", "{door:?}");
        let refused = front.verdicts().count(abi::FIEF_REQUEST_REFUSED);
        assert!(refused > u64::from(dear == Ok(503)), "{door:?}: {refused}");
    }
}

#[test]
fn work_on_every_cpu_makes_a_listener_busy() {
    if !ready() {
        return;
    }
    let front = Front::new(Door::Own, &policy("cpu = \"90%\""));
    front.server_with_queue(PLACES).send(()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    spin(Duration::from_millis(10));
                }
            });
        }
        let refused = wait_until(SOON, || front.status("/dear") == Ok(503));
        done.store(true, Ordering::Relaxed);
        refused.expect("refused while every CPU works");
    });
}

/// A request to /burn takes 20 ms of CPU.
const SERVER: &str = r#"
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/burn":
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("0.0.0.0", 80), Handler).serve_forever()
"#;

/// About as long as it takes until the burst is there again: what time brings while a request takes longer, nobody can use.
const FILLS: Duration = Duration::from_millis(200);

/// 20 % of one CPU on a machine of so many.
fn cpu_policy(cpus: usize) -> String {
    format!(
        "[container.web]\n[container.\"web/burn\"]\n[listener.plain]\naddress = \"0.0.0.0:80\"\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/burn\"\ncontainer = \"web/burn\"\n\
         rate = {{ cpu = \"{:.4}%\", burst = \"50ms\" }}\n",
        20.0 / cpus as f64
    )
}

#[test]
fn a_url_uses_the_cpu_time_that_its_rule_grants() {
    if !ready() {
        return;
    }
    let cpus = std::thread::available_parallelism().unwrap().get();
    let front = Front::new(Door::Own, &cpu_policy(cpus));
    let unit = Cgroup::new("burn").unwrap();
    front.installation().manage(unit.path(), Some("web"), true);
    let mut command = front.installation().command_in(unit.path(), "python3");
    front.topology.server.enter(&mut command);
    command.args(["-c", SERVER]);
    let mut server = Process::start(command).unwrap();
    wait_ready(&front.topology.server, &mut server, 80, None).unwrap();

    let address: SocketAddr = plain(Family::V4);
    let served = || get(&front.topology.clients, address, "/burn").unwrap().starts_with("HTTP/1.0 200");
    wait_until(SOON, || !served()).expect("the burst ends");
    let used = || {
        let snapshot = front.installation().fief().snapshot().unwrap();
        let burn = snapshot.containers.iter().find(|container| container.path == "web/burn").unwrap();
        Duration::from_nanos(burn.usage.cpu_ns())
    };
    let (before, began) = (used(), Instant::now());
    let (mut count, mut stood) = (0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        count += u32::from(served());
        stood += asked.elapsed().saturating_sub(FILLS);
    }
    let (spent, time) = (used() - before, began.elapsed());
    let error = |time: Duration| spent.as_secs_f64() / (time.as_secs_f64() * 0.2) - 1.0;
    eprintln!("{count} requests used {spent:?} in {time:?}, of 20 %: {:+.1} %; {stood:?} unused", error(time) * 100.0);
    // one request more or less at each end is 4 %
    assert!(error(time) <= 0.1 && error(time - stood) >= -0.1, "{spent:?} in {time:?}, {stood:?} unused");
    assert!(count >= 20, "{count}");
    let status = |path| get(&front.topology.clients, address, path).unwrap();
    assert!(status("/cheap").starts_with("HTTP/1.0 200"), "other URLs are served");
    assert!(front.verdicts().count(abi::FIEF_REQUEST_CPU) > 0);
}
