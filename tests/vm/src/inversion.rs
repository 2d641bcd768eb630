// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of priority inversion: a server of one thread works for a worse class while a request of a better one waits for it,
//! and a third container keeps the CPU from the worse one. Server and hog have one CPU of the guest.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fief_bpf::pin::Pins;
use fief_bpf::queue;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::command::{fief, write_policy};
use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::schedule::Spinner;
use crate::server::connect_from;
use crate::work::spin;

const SCOPE: &str = "fief";
/// What comes out of a queue at the loopback is no packet of the machine's own to the kernel, which refuses these addresses then.
const TAKES_ALL: [&str; 2] = ["route_localnet", "accept_local"];
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
const GOLD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 7);
const BRONZE: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 7);
/// What a request of bronze takes of the CPU, ms: less than a turn is lent for.
const LONG: u64 = 80;
/// Likewise, of gold.
const SHORT: u64 = 10;
/// A slice, as ticks of 4 ms round it.
const SLICE: Duration = Duration::from_millis(8);
/// Idle requests by which it is found out what one takes beside its work.
const TRIALS: u32 = 5;
/// Of one CPU, %: a request of bronze is less than the debt that is ever paid off.
const LIMIT: u64 = 20;
/// Until all debt is paid off, and long enough that what was forgiven would show.
const PAID: Duration = Duration::from_secs(3);
/// Of what bronze may have in that time.
const PAID_WITHIN: f64 = 0.06;
const WINDOW: Duration = Duration::from_secs(1);
/// For what happens by itself, in the guest's time: shorter than a request of bronze takes by the floor alone.
const DEADLINE: Duration = Duration::from_secs(10);

const PRIORITIES: [&str; 3] = ["cpu.priority = 9", "cpu.priority = 1", "cpu.priority = 5"];
const SHARES: [&str; 3] = ["cpu.share = \"60%\"", "cpu.share = \"5%\"", "cpu.share = \"35%\""];

/// Those that show whether a turn is lent at all.
pub fn check_briefly(report: &mut Report) {
    report.check("a request of a better class that waits in the queue has the server finish the worse one's", in_queue);
    report.check("so has one that the server holds and has not read", in_server);
    report.check("so has the first one for which the server wakes up, having worked for the worse class last", woken);
    report.check("without a better request the worse one waits", alone);
}

/// All of them.
pub fn check(report: &mut Report) {
    check_briefly(report);
    report.check("a better client that goes away, or asks nothing, lends nothing", nothing_waits);
    report.check("of shares the server has both while the better one waits", by_shares);
    report.check("a limit of the worse class holds nobody up, and is paid off", on_debt);
}

/// A server of one thread under a policy, beside a hog.
struct Rig {
    run: Child,
    server: Pid,
    hog: Option<Spinner>,
    /// What a request takes that asks for no work, while nobody else wants the CPU.
    idle: Duration,
}

impl Rig {
    fn new(in_service: u32, cpu: [&str; 3]) -> Result<Self, String> {
        let [gold, bronze, hog] = cpu;
        let policy = format!(
            r#"
version = 1
schedule = "auto"
[front]
interfaces = ["lo"]
[container.unused]
cpu.limit = "50%"
[container.shop]
[container."shop/gold"]
{gold}
[container."shop/bronze"]
{bronze}
[container."shop/hog"]
{hog}
[listener.web]
address = "{SERVER}"
queue = {{ in-service = {in_service}, stale = "30s", wait = "60s" }}
[[listener.web.client]]
from = ["127.0.1.0/24"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop/bronze"
"#
        );
        let program = std::env::current_exe().map_err(text)?;
        for name in TAKES_ALL {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/lo/{name}"), "1").map_err(text)?;
        }
        // the programs stay from check to check: to load them takes the guest minutes
        fief(&["apply", write_policy(&policy)?])?;
        let mut run = Command::new("fief")
            .args(["exec", "--"])
            .arg(program)
            .args(["serve-requests", &SERVER.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let mut said = String::new();
        BufReader::new(run.stdout.take().expect("piped")).read_line(&mut said).map_err(text)?;
        let server = said.trim().parse().map_err(|_| format!("the server said {said:?}"));
        let mut rig = Self { run, server: Pid::from_raw(server?), hog: None, idle: Duration::ZERO };
        // not one of gold, or it would have both their turns for a while as it is
        rig.ask(BRONZE, 0)?.answered("the first one")?;
        for _ in 0..TRIALS {
            rig.idle = rig.idle.max(rig.ask(BRONZE, 0)?.answered("an idle one")?);
        }
        rig.hog = Some(Spinner::telling("shop/hog", "spin", pin)?);
        Ok(rig)
    }

    /// A request that takes so many ms of the CPU.
    fn ask(&self, from: Ipv4Addr, ms: u64) -> Result<Asked, String> {
        let mut stream = connect_from(from, SERVER).map_err(|e| format!("{from} cannot reach the server: {e}"))?;
        write!(stream, "GET /{ms} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n").map_err(text)?;
        let reader = stream.try_clone().map_err(text)?;
        let (sender, answer) = channel();
        let since = Instant::now();
        std::thread::spawn(move || {
            let mut said = String::new();
            let answered = (&reader).read_to_string(&mut said).map_err(text);
            // nobody may wait for it any more
            let _ = sender.send(answered.map(|_| (said.starts_with("HTTP/1.1 200"), since.elapsed())));
        });
        Ok(Asked { stream, answer })
    }

    /// One of bronze, which the server has.
    fn ask_long(&self, ms: u64) -> Result<Asked, String> {
        let asked = self.ask(BRONZE, ms)?;
        self.wait_for(1, 0)?;
        Ok(asked)
    }

    /// Until so many requests are with the server, and so many wait.
    fn wait_for(&self, in_service: u32, waiting: u32) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let all = queue::all(&Pins::new(SCOPE)).map_err(text)?;
            let found: Vec<_> = all.iter().map(|(_, queue)| (queue.busy, queue.waiting)).collect();
            if found.contains(&(in_service, waiting)) {
                return Ok(());
            }
            if since.elapsed() > DEADLINE {
                return Err(format!("in service and waiting: {found:?}, not ({in_service}, {waiting})"));
            }
            std::thread::yield_now();
        }
    }

    /// What the server had of the CPU.
    fn used(&self) -> Result<Duration, String> {
        let clock = clock_getcpuclockid(self.server).map_err(text)?;
        clock_gettime(clock).map(Duration::from).map_err(text)
    }

    /// What it has in a window.
    fn uses(&self) -> Result<Duration, String> {
        let before = self.used()?;
        std::thread::sleep(WINDOW);
        Ok(self.used()? - before)
    }

    fn has_nothing(&self, when: &str) -> Found {
        let used = self.uses()?;
        let nothing = SLICE + self.idle;
        let said = format!("{when} {:.1} ms of at most {nothing:.1?} in {WINDOW:?}", used.as_secs_f64() * 1e3);
        if used <= nothing { Ok(said) } else { Err(said) }
    }

    /// What the hog may have while the server works for who comes first: the turn changes hands twice, each time at the end of a slice
    /// and of what is late by one, and what a switch takes here is within what an idle request takes. The floor alone would leave it ten
    /// times as much.
    fn changes(&self) -> Duration {
        4 * SLICE + 4 * self.idle
    }

    /// What the hog had of the CPU. Unlike the time that an answer took, it tells nothing of who else kept the guest from its CPUs.
    fn hog_had(&self) -> Result<Duration, String> {
        self.hog.as_ref().map_or(Ok(Duration::ZERO), Spinner::used)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.hog = None;
        // it passes the signal on, and one that has ended is as good
        let _ = kill(Pid::from_raw(self.run.id() as i32), Signal::SIGTERM);
        let _ = self.run.wait();
    }
}

struct Asked {
    stream: TcpStream,
    answer: Receiver<Result<(bool, Duration), String>>,
}

impl Asked {
    /// How long it took.
    fn answered(&self, who: &str) -> Result<Duration, String> {
        match self.answer.recv_timeout(DEADLINE) {
            Ok(Ok((true, took))) => Ok(took),
            Ok(Ok((false, _))) => Err(format!("{who} got no answer of 200")),
            Ok(Err(e)) => Err(format!("{who}: {e}")),
            Err(_) => Err(format!("{who} got no answer in {DEADLINE:?}")),
        }
    }

    /// Its client resets the connection.
    fn reset(self) -> Result<(), String> {
        let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.stream, Linger, &now).map_err(text)?;
        self.stream.shutdown(std::net::Shutdown::Read).map_err(text)
    }
}

/// Within these ms, and not before the work can have been done.
fn within(took: Duration, least: u64, most: u64) -> Found {
    let figures = format!("{:.1} ms of {least} to {most}", took.as_secs_f64() * 1e3);
    if (least..=most).contains(&(took.as_millis() as u64)) { Ok(figures) } else { Err(figures) }
}

/// A request of gold that came while the server worked for bronze; what of that one was left then has been done before it.
struct Behind {
    took: Duration,
    /// By the server, meanwhile.
    worked: Duration,
    hog: Duration,
}

fn gold_behind_bronze(rig: &Rig) -> Result<Behind, String> {
    let bronze = rig.ask_long(LONG)?;
    let (before, hog) = (rig.used()?, rig.hog_had()?);
    let took = rig.ask(GOLD, SHORT)?.answered("gold")?;
    let behind = Behind { took, worked: rig.used()? - before, hog: rig.hog_had()? - hog };
    bronze.answered("bronze")?;
    Ok(behind)
}

fn finished(rig: &Rig) -> Found {
    let Behind { took, worked, hog } = gold_behind_bronze(rig)?;
    if worked < Duration::from_millis(LONG / 2) {
        return Err(format!("bronze's request was nearly done: {worked:.1?}"));
    }
    first(rig, took, worked, hog)
}

/// Who was answered so late came first: the server worked for it, and the hog did not.
fn first(rig: &Rig, took: Duration, worked: Duration, hog: Duration) -> Found {
    let most = rig.changes();
    let figures = format!("{took:.1?} for {worked:.1?} of work, the hog had {hog:.1?} of at most {most:.1?}");
    if took + Duration::from_millis(1) >= worked && hog <= most { Ok(figures) } else { Err(figures) }
}

fn in_queue() -> Found {
    finished(&Rig::new(1, PRIORITIES)?)
}

fn in_server() -> Found {
    finished(&Rig::new(2, PRIORITIES)?)
}

fn woken() -> Found {
    let rig = Rig::new(1, PRIORITIES)?;
    let hog = rig.hog_had()?;
    let took = rig.ask(GOLD, SHORT)?.answered("gold")?;
    first(&rig, took, Duration::from_millis(SHORT), rig.hog_had()? - hog)
}

fn alone() -> Found {
    let rig = Rig::new(1, PRIORITIES)?;
    let _bronze = rig.ask_long(10 * LONG)?;
    rig.has_nothing("alone")
}

fn nothing_waits() -> Found {
    let rig = Rig::new(1, PRIORITIES)?;
    let _bronze = rig.ask_long(10 * LONG)?;
    let _silent = connect_from(GOLD, SERVER).map_err(text)?;
    let mut half = connect_from(GOLD, SERVER).map_err(text)?;
    write!(half, "GET /{SHORT} HTTP/1.1\r\nHost:").map_err(text)?;
    let silent = rig.has_nothing("beside clients that ask nothing")?;
    let gold = rig.ask(GOLD, SHORT)?;
    rig.wait_for(1, 1)?;
    gold.reset()?;
    rig.wait_for(1, 0)?;
    let gone = rig.has_nothing("after one that went away")?;
    Ok(format!("{silent}, {gone}"))
}

fn by_shares() -> Found {
    let rig = Rig::new(1, SHARES)?;
    let Behind { took, worked, .. } = gold_behind_bronze(&rig)?;
    let worked = worked.as_millis() as u64;
    // 65 of a hundred; without gold's, bronze would have 5 of the 40 that are asked for
    within(took, worked * 100 / 75, worked * 100 / 55 + rig.changes().as_millis() as u64)
}

fn on_debt() -> Found {
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).map_err(text)?.unwrap_or(1) as u64;
    let limit = format!("cpu.priority = 1\ncpu.limit = \"{}%\"", LIMIT as f64 / cpus as f64);
    let mut rig = Rig::new(1, [PRIORITIES[0], &limit, PRIORITIES[2]])?;
    let (since, before) = (Instant::now(), rig.used()?);
    let said = finished(&rig)?;
    // nobody else wants the CPU, and bronze pays off what it had beyond its limit
    rig.hog = None;
    let bronze = Spinner::telling("shop/bronze", "spin", pin)?;
    std::thread::sleep(PAID.saturating_sub(since.elapsed()));
    let own = (rig.used()? - before).saturating_sub(Duration::from_millis(SHORT));
    let has = (own + bronze.used()?).as_secs_f64();
    let may = since.elapsed().as_secs_f64() * LIMIT as f64 / 100.0;
    let said = format!("{said}; in {PAID:?} it had {:.1} of {:.1} ms", has * 1e3, may * 1e3);
    if (has / may - 1.0).abs() <= PAID_WITHIN { Ok(said) } else { Err(said) }
}

/// The part `serve-requests`: a server with one thread that knows nothing of containers. Says its number when it listens, then answers
/// each request with as many ms of work as its path says, until a signal ends it.
pub fn serve(address: &str) {
    pin(Pid::this()).expect("the first CPU is there");
    let listener = TcpListener::bind(address).expect("the address is free");
    println!("{}", Pid::this());
    for stream in listener.incoming() {
        // a client that went away needs no answer
        let _ = stream.map(answer);
    }
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let ms = line.trim_start_matches("GET /").split(' ').next().and_then(|ms| ms.parse().ok());
    spin(Duration::from_millis(ms.unwrap_or(0)));
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}
