// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kernel-work`: datagrams flood a limited container, whose thread has much to do for each, beside a neighbour that wants the whole CPU.
//!
//! What the container had is told twice: by Fief's account, and by the kernel's, which is the clock of its process and the time that the
//! machine spent in softirqs.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use fief_testkit::Process;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::json;

use super::load::{Spinner, Stand, bind, used};
use super::require_one_cpu;
use crate::command::{child, fief, own, usage};
use crate::effort::is_least;
use crate::error::{Context, Error, Kind, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::plot::{Plot, Series};
use crate::progress::Progress;
use crate::table::Table;

const ABOUT: &str = "A container that is limited to 30 % of the CPU is flooded with datagrams. What the kernel does to receive them counts \
against the limit, and what exceeds its part of it is discarded early: the container has its limit in all, and its neighbour has its share.";

const LIMIT: f64 = 30.0;
const SHARE: f64 = 40.0;
/// `cpu.limit` of the flooded container, and none beside it.
const LIMITED: &str = "cpu.limit = \"30%\"";
/// The thread's own work for a datagram.
const WORK: Duration = Duration::from_micros(50);
/// The sender sends as many as are due at a time.
const TURN: Duration = Duration::from_millis(1);

/// The child's main: says at which port it receives, and works for what comes, without end.
pub fn receive_main() -> Result<()> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).context("make a socket")?;
    println!("{}", socket.local_addr().context("a socket's port")?.port());
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).context("the thread's clock");
    let mut datagram = [0; 64];
    loop {
        socket.recv(&mut datagram).context("receive")?;
        let begin = now()?;
        while now()? - begin < WORK {}
    }
}

/// The child's main: sends so many datagrams a second to that port of this machine, without end.
pub fn send_main(words: &[String]) -> Result<()> {
    let wrong = || Error::new(Kind::Usage, "a port and datagrams a second are wanted");
    let [port, rate] = words else { return Err(wrong()) };
    let (port, rate): (u16, f64) = (port.parse().map_err(|_| wrong())?, rate.parse().map_err(|_| wrong())?);
    let socket = UdpSocket::bind(("127.0.0.1", 0)).context("make a socket")?;
    socket.connect(("127.0.0.1", port)).context("name the receiver")?;
    let mut begin = Instant::now();
    let mut sent = 0u64;
    loop {
        let due = (begin.elapsed().as_secs_f64() * rate) as u64;
        // what it had no CPU for is not caught up with later
        if due > sent + rate as u64 / 10 {
            (begin, sent) = (Instant::now(), 0);
            continue;
        }
        while sent < due {
            // a full queue is what a flood leads to
            let _ = socket.send(&[0; 16]);
            sent += 1;
        }
        std::thread::sleep(TURN);
    }
}

/// Started in a unit of its own, whose packets are its container's. Ended with the guard.
#[derive(Debug)]
struct Receiver {
    _process: Process,
    _said: BufReader<ChildStdout>,
    pid: Pid,
    port: u16,
}

impl Receiver {
    fn start(container: &str) -> Result<Receiver> {
        let mut command = fief()?;
        command.args(["exec", "--container", container, "--no-follow", "--"]).arg(own()?).arg("lab-receives");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let mut said = BufReader::new(process.child().stdout.take().expect("it was piped"));
        let mut line = String::new();
        said.read_line(&mut line).context("hear the receiver")?;
        let port = line.trim().parse().map_err(|_| Error::failed("the receiver told no port"))?;
        // `fief exec` becomes what it starts
        let pid = Pid::from_raw(process.pid().cast_signed());
        Ok(Receiver { _process: process, _said: said, pid, port })
    }
}

/// Of what was measured over a window, in percent of the machine.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    thread: f64,
    receive: f64,
    /// By the kernel: its process and all softirqs.
    by_kernel: f64,
    neighbour: f64,
    /// Datagrams a second that were counted in.
    received: f64,
}

impl Had {
    fn total(&self) -> f64 {
        self.thread + self.receive
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    require_one_cpu("kernel-work", |cpus| format!("{cpus} CPUs would receive beside what they run"))?;
    let (rates, length): (&[u32], Duration) = match (is_least(), quick) {
        (true, _) => (&[5_000], Duration::from_millis(200)),
        (_, true) => (&[0, 5_000, 20_000], Duration::from_secs(10)),
        _ => (&[0, 2_000, 5_000, 10_000, 15_000, 20_000], Duration::from_secs(10)),
    };
    let mut progress = Progress::new("kernel-work", 2 * rates.len());
    let mut outcome = Outcome { name: "kernel-work", about: ABOUT.to_owned(), ..Outcome::default() };
    let mut table = Table::new(
        "Percent of the CPU, of a flooded container and of its neighbour",
        &["limit", "datagrams/s", "threads", "receiving", "both", "by the kernel", "neighbour"],
    );
    let mut stand = Stand::default();
    let mut series = Vec::new();
    let mut limited = Vec::new();
    let mut free = Vec::new();
    for (given, of) in [("", &mut free), (LIMITED, &mut limited)] {
        let limit = if given.is_empty() { "none" } else { "30 %" };
        stand.give(&[("flooded", given), ("neighbour", "cpu.share = \"40%\""), ("sender", "cpu.share = \"30%\"")])?;
        for &rate in rates {
            progress.step(&format!("limit {limit}, {rate} datagrams a second"))?;
            let had = flood(rate, length)?;
            let cells =
                [had.thread, had.receive, had.total(), had.by_kernel, had.neighbour].map(|part| format!("{part:.2}"));
            table.row([limit.to_owned(), rate.to_string()].into_iter().chain(cells));
            outcome.measurements.push(json!({
                "limit": limit, "datagrams_per_second": rate, "thread_percent": had.thread, "receive_percent": had.receive,
                "by_kernel_percent": had.by_kernel, "neighbour_percent": had.neighbour, "received_per_second": had.received,
            }));
            of.push(had);
        }
        let points = |part: fn(&Had) -> f64| {
            rates.iter().zip(&*of).map(|(rate, had)| (f64::from(*rate), part(had))).collect::<Vec<_>>()
        };
        series.push(Series::of_single(format!("flooded, limit {limit}"), points(Had::total)));
        series.push(Series::of_single(format!("neighbour, limit {limit}"), points(|had| had.neighbour)));
    }
    stand.end()?;
    let most = |of: &[Had], part: fn(&Had) -> f64| of.iter().map(part).fold(0.0, f64::max);
    let load = format!(
        "0 to {} datagrams a second for a container of 30 %, beside a share of 40 % that computes",
        rates.last().expect("there is a rate")
    );
    let percent = "percent of the machine";
    let kept = limited.iter().map(|had| had.neighbour / SHARE).fold(f64::INFINITY, f64::min);
    let figures = &mut outcome.figures;
    // loopback has no receive thread
    let all = "threads and softirqs of the container of 30 %, at the worst rate";
    figures.must("total_points", most(&limited, Had::total), Bound::AtMost(LIMIT + 1.0)).of(all, percent, &load);
    figures.must("neighbour_kept", kept, Bound::AtLeast(0.99)).of(
        "what the neighbour got, of its share, at the worst rate",
        "ratio",
        &load,
    );
    let by_kernel = "the same by the kernel's accounts: its process and all softirqs, also the timer's";
    figures.add("total_by_kernel_points", most(&limited, |had| had.by_kernel)).of(by_kernel, percent, &load);
    let last = *limited.last().expect("there is a rate");
    figures.add("thread_points", last.thread).of("what its threads had at the highest rate", percent, &load);
    figures.add("receive_points", last.receive).of("what receiving for it took at the highest rate", percent, &load);
    let free_load = "the same without a limit";
    figures.add("unlimited_points", most(&free, Had::total)).of(all, percent, free_load);
    let receive = most(&free, |had| had.receive);
    figures.add("unlimited_receive_points", receive).of("what receiving took at the worst rate", percent, free_load);
    outcome.plots.push(Plot {
        name: "flood".to_owned(),
        title: "A flooded container and its neighbour".to_owned(),
        x: "datagrams a second".to_owned(),
        y: percent.to_owned(),
        series,
        logarithmic: false,
    });
    outcome.tables.push(table);
    Ok(outcome)
}

fn flood(rate: u32, length: Duration) -> Result<Had> {
    let receiver = Receiver::start("flooded")?;
    let neighbour = Spinner::start("neighbour")?;
    let mut sender = child("lab-sends")?;
    sender.args([receiver.port.to_string(), rate.to_string()]).stdin(Stdio::null());
    let sender = Process::start(sender)?;
    bind(Pid::from_raw(sender.pid().cast_signed()), "sender")?;
    neighbour.go_on()?;
    // until debts and allowances of the begin are over
    std::thread::sleep(length.min(Duration::from_secs(1)));
    let before = Reading::take(&receiver, &neighbour)?;
    std::thread::sleep(length);
    let after = Reading::take(&receiver, &neighbour)?;
    Ok(after.since(&before))
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    thread_ns: u64,
    receive_ns: u64,
    packets: u64,
    process: Duration,
    softirq: Duration,
    neighbour: Duration,
}

impl Reading {
    fn take(receiver: &Receiver, neighbour: &Spinner) -> Result<Reading> {
        let all = usage()?;
        let own =
            all.iter().find(|used| used.container == "flooded").ok_or_else(|| Error::failed("nobody is flooded"))?;
        Ok(Reading {
            at: Instant::now(),
            thread_ns: own.thread_ns,
            receive_ns: own.receive_ns,
            packets: own.packets_in,
            process: used(receiver.pid)?,
            softirq: softirq()?,
            neighbour: neighbour.used()?,
        })
    }

    fn since(&self, before: &Reading) -> Had {
        let passed = (self.at - before.at).as_secs_f64();
        let part = |seconds: f64| seconds * 100.0 / passed;
        let of_ns = |after: u64, before: u64| part((after - before) as f64 / 1e9);
        let kernel = self.process - before.process + (self.softirq - before.softirq);
        Had {
            thread: of_ns(self.thread_ns, before.thread_ns),
            receive: of_ns(self.receive_ns, before.receive_ns),
            by_kernel: part(kernel.as_secs_f64()),
            neighbour: part((self.neighbour - before.neighbour).as_secs_f64()),
            received: (self.packets - before.packets) as f64 / passed,
        }
    }
}

/// Of all CPUs since the start (proc_stat(5)).
fn softirq() -> Result<Duration> {
    const SOFTIRQ: usize = 7;
    let text = std::fs::read_to_string("/proc/stat").context("read the machine's times")?;
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(SOFTIRQ)?.parse::<f64>().ok());
    let each = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let ticks = ticks.ok_or_else(|| Error::failed("/proc/stat has no time of softirqs"))?;
    Ok(Duration::from_secs_f64(ticks / each as f64))
}
