// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of priority inversion: a server of one thread works for a worse class while a request of a better one waits for it,
//! and a third container keeps the CPU from the worse one. Server and hog have one CPU of the guest.
//!
//! What the hog had is read on that CPU, by the server, once it has done its work. The client mostly has the other one. A guest's CPUs are
//! emulated in turn, from one timer to the next, so the client may be told ticks later, and all of these would count as the hog's.

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
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::command::{fief, write_policy};
use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::schedule::Spinner;
use crate::server::connect_from;
use crate::work::spin;

const SCOPE: &str = "fief";
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
pub const GOLD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 7);
const BRONZE: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 7);
/// What a request of bronze takes of the CPU, ms: less than a turn is lent for.
const LONG: u64 = 80;
/// For which nothing is lent to its end: more than SERVED_WORK_NS.
const LONGER: u64 = 160;
/// Likewise, of gold.
const SHORT: u64 = 10;
/// A slice, as ticks of 4 ms round it.
const SLICE: Duration = Duration::from_millis(8);
/// What the hog may have while the server works for who comes first: the turn changes hands twice, each time at the end of a slice and of
/// what is late by one. The floor alone would leave it a hundred times as much.
const CHANGES: Duration = SLICE.saturating_mul(4);
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
    report.check("however long the worse one took", woken_after_long);
    report.check("without a better request the worse one waits", alone);
}

/// All of them.
pub fn check(report: &mut Report) {
    check_briefly(report);
    // here, since the programs of a queue are there: to load them takes the guest minutes
    report.check("who waits in a queue is served while a CPU goes and comes", crate::hotplug::is_borne_by_a_queue);
    report.check("a better client that goes away, or asks nothing, lends nothing", nothing_waits);
    report.check("of shares the server has both while the better one waits", by_shares);
    report.check("a limit of the worse class holds nobody up, and is paid off", on_debt);
}

/// A server of one thread under a policy, beside a hog.
pub struct Rig {
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
            rig.idle = rig.idle.max(rig.ask(BRONZE, 0)?.answered("an idle one")?.took);
        }
        rig.hog_begins()?;
        Ok(rig)
    }

    fn hog_begins(&mut self) -> Result<(), String> {
        self.hog = Some(Spinner::telling("shop/hog", "spin", pin)?);
        Ok(())
    }

    /// One that has one place, and that nobody else wants the CPU beside.
    pub fn alone() -> Result<Self, String> {
        let mut rig = Self::new(1, PRIORITIES)?;
        rig.hog = None;
        Ok(rig)
    }

    /// A request that takes so many ms of the CPU.
    pub fn ask(&self, from: Ipv4Addr, ms: u64) -> Result<Asked, String> {
        let mut stream = connect_from(from, SERVER).map_err(|e| format!("{from} cannot reach the server: {e}"))?;
        let hog = self.hog.as_ref().map_or(self.server, Spinner::pid);
        let request = format!("GET /{ms}/{hog} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n");
        let sent = now().map_err(text)?;
        stream.write_all(request.as_bytes()).map_err(text)?;
        // the server has been woken: what the hog had before kept nobody waiting
        let hog = used_by(hog).map_err(text)?;
        let reader = stream.try_clone().map_err(text)?;
        let (sender, answer) = channel();
        std::thread::spawn(move || {
            let mut said = String::new();
            let answered = (&reader).read_to_string(&mut said).map_err(text);
            // nobody may wait for it any more
            let _ = sender.send(answered.map(|_| said));
        });
        Ok(Asked { stream, answer, sent, hog })
    }

    /// One of bronze, which the server has.
    pub fn ask_long(&self, ms: u64) -> Result<Asked, String> {
        let asked = self.ask(BRONZE, ms)?;
        self.wait_for(1, 0)?;
        Ok(asked)
    }

    /// Until so many requests are with the server, and so many wait.
    pub fn wait_for(&self, in_service: u32, waiting: u32) -> Result<(), String> {
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

    /// The state of its queue, for a message.
    pub fn state(&self) -> String {
        let told = |(_, queue): (_, fief_bpf::abi::fief_queue)| {
            let of = |class: &fief_bpf::abi::fief_queue_class| (class.entered, class.held, class.released, class.gone);
            let classes: Vec<_> = queue.class.iter().map(of).filter(|of| *of != (0, 0, 0, 0)).collect();
            format!(
                "in service {}, waiting {}, refused {}; entered, held, released, gone: {classes:?}; kicks {}, idle {}",
                queue.busy, queue.waiting, queue.refused, queue.kicks, queue.idle_kicks
            )
        };
        queue::all(&Pins::new(SCOPE)).map_or_else(text, |all| all.into_iter().map(told).collect())
    }

    /// What the server had of the CPU.
    fn used(&self) -> Result<Duration, String> {
        used_by(self.server).map_err(text)
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
}

fn now() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from)
}

/// What a process had of the CPU.
fn used_by(pid: Pid) -> nix::Result<Duration> {
    clock_gettime(clock_getcpuclockid(pid)?).map(Duration::from)
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.hog = None;
        // it passes the signal on, and one that has ended is as good
        let _ = kill(Pid::from_raw(self.run.id() as i32), Signal::SIGTERM);
        let _ = self.run.wait();
    }
}

pub struct Asked {
    stream: TcpStream,
    answer: Receiver<Result<String, String>>,
    /// When it was.
    sent: Duration,
    /// What the hog had had of the CPU by then.
    hog: Duration,
}

/// What the server says of a request for which it has done the work.
pub struct Said {
    /// How long that took.
    took: Duration,
    /// What the server had had of the CPU by then.
    used: Duration,
    /// What the hog had of it meanwhile.
    hog: Duration,
}

impl Asked {
    pub fn answered(&self, who: &str) -> Result<Said, String> {
        match self.answer.recv_timeout(DEADLINE) {
            Ok(Ok(answer)) => self.said(&answer).ok_or_else(|| format!("{who} got no answer of 200")),
            Ok(Err(e)) => Err(format!("{who}: {e}")),
            Err(_) => Err(format!("{who} got no answer in {DEADLINE:?}")),
        }
    }

    fn said(&self, answer: &str) -> Option<Said> {
        let numbers = answer.strip_prefix("HTTP/1.1 200 OK\r\nSaid: ")?.lines().next()?.split(' ');
        let mut times = numbers.map_while(|ns| ns.parse().ok().map(Duration::from_nanos));
        let (done, used, hog) = (times.next()?, times.next()?, times.next()?);
        Some(Said { took: done.saturating_sub(self.sent), used, hog: hog.saturating_sub(self.hog) })
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

/// What became of a request of gold.
struct Gold {
    took: Duration,
    /// By the server, meanwhile.
    worked: Duration,
    hog: Duration,
}

fn gold(rig: &Rig) -> Result<Gold, String> {
    let before = rig.used()?;
    let Said { took, used, hog } = rig.ask(GOLD, SHORT)?.answered("gold")?;
    Ok(Gold { took, worked: used - before, hog })
}

/// It came while the server worked for bronze; what of that one was left then has been done before it.
fn gold_behind_bronze(rig: &Rig) -> Result<Gold, String> {
    let bronze = rig.ask_long(LONG)?;
    let behind = gold(rig)?;
    bronze.answered("bronze")?;
    Ok(behind)
}

fn finished(rig: &Rig) -> Found {
    let behind = gold_behind_bronze(rig)?;
    if behind.worked < Duration::from_millis(LONG / 2) {
        return Err(format!("bronze's request was nearly done: {:.1?}", behind.worked));
    }
    first(&behind)
}

/// For whom the server had done its work so late came first: the server worked for it, and the hog did not.
fn first(gold: &Gold) -> Found {
    let Gold { took, worked, hog } = gold;
    let figures = format!("{took:.1?} for {worked:.1?} of work, the hog had {hog:.1?} of at most {CHANGES:.1?}");
    if *took + Duration::from_millis(1) >= *worked && *hog <= CHANGES { Ok(figures) } else { Err(figures) }
}

fn in_queue() -> Found {
    finished(&Rig::new(1, PRIORITIES)?)
}

fn in_server() -> Found {
    finished(&Rig::new(2, PRIORITIES)?)
}

fn woken() -> Found {
    first(&gold(&Rig::new(1, PRIORITIES)?)?)
}

fn woken_after_long() -> Found {
    let mut rig = Rig::alone()?;
    rig.ask(BRONZE, LONGER)?.answered("bronze")?;
    rig.hog_begins()?;
    first(&gold(&rig)?)
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
    let Gold { took, worked, .. } = gold_behind_bronze(&rig)?;
    let worked = worked.as_millis() as u64;
    // 65 of a hundred; without gold's, bronze would have 5 of the 40 that are asked for
    within(took, worked * 100 / 75, worked * 100 / 55 + CHANGES.as_millis() as u64)
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
/// each request with as many ms of work as its path says, until a signal ends it. With an answer it says when it had done the work, and
/// what it and the process that the path names had had of the CPU.
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
    let mut words = line.trim_start_matches("GET /").split(['/', ' ']);
    let ms = words.next().and_then(|ms| ms.parse().ok());
    let hog = words.next().and_then(|pid| pid.parse().ok()).map_or(Pid::this(), Pid::from_raw);
    spin(Duration::from_millis(ms.unwrap_or(0)));
    let [done, used, hog] = [now()?, used_by(Pid::this())?, used_by(hog)?].map(|time| time.as_nanos());
    let said = format!("HTTP/1.1 200 OK\r\nSaid: {done} {used} {hog}\r\n");
    (&stream).write_all(format!("{said}Content-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())
}
