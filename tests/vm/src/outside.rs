// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks from outside, as root: the whole course of an installation, from probe to down.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{fief, number, objects, thread_ns, usage, write_policy};
use crate::report::{Found, Report, same_time, text};
use crate::server::ask;
use crate::types;
use crate::work::SPELL;

const POLICY: &str = r#"
version = 1
[container.shop]
[container."shop/gold"]
[container."shop/browse"]
[listener.web]
address = "127.0.0.1:8080"
[[listener.web.client]]
from = ["127.0.1.0/24"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop/browse"
"#;
const PLAIN_POLICY: &str = "version = 1\n[container.unit]\n";
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
const GOLD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 7);
const CGROUP: &str = "/sys/fs/cgroup/vm-unit";

/// All of them; those of the application among them.
pub fn check(report: &mut Report) {
    report.check("the kernel has all that is required", probes);
    report.check("a policy comes into force", applies);
    report.check("a process that enters a managed cgroup is charged to its home", manages);
    report.check("a running process is bound from outside", binds);
    report.check("all containers together have the time of the CPUs", conserves);
    report.check("nothing is left after down", goes_down);
    report.check("an application runs under a policy", runs_application);
    report.check("a server's work is that of its clients' classes", serves);
    report.check("nothing is left after a run", is_down);
}

/// Whether the kernel takes every program, which one has to try: verifiers differ.
pub fn check_loads(report: &mut Report) {
    report.check("the kernel has all that is required", probes);
    report.check("the kernel takes all programs", loads);
    report.check("nothing is left after down", goes_down);
}

fn loads() -> Found {
    let policy = POLICY
        .replace("version = 1\n", "version = 1\nlabel-files = true\n")
        .replace("address = ", "queue = true\nrestart = \"5s\"\nisolate = { above = 1000, for = \"10s\" }\naddress = ");
    let applied = fief(&["apply", write_policy(&policy)?])?;
    std::fs::create_dir_all(CGROUP).map_err(text)?;
    fief(&["manage", CGROUP, "--container", "shop/browse"])?;
    Ok(applied.lines().last().unwrap_or_default().to_owned())
}

fn probes() -> Found {
    let all = objects(&["probe"])?;
    let (machine, features) = all.split_first().ok_or("probe says nothing")?;
    // 6.12 has all but the scheduler's extension
    let schedules = std::path::Path::new("/sys/kernel/sched_ext").exists();
    let lacks = features.iter().filter(|f| f["available"] != true && (schedules || f["verb"] != "schedule"));
    let (scheduler, others): (Vec<_>, Vec<_>) = lacks.partition(|f| f["verb"] == "schedule");
    let found = format!("{}: {} features", machine["kernel"], features.len());
    if machine["enough"] == true && others.is_empty() {
        if scheduler.is_empty() {
            return Ok(found);
        }
        if let Some(why) = types::broken() {
            return Ok(format!("{found}, without a scheduler: {why}"));
        }
    }
    Err(scheduler.iter().chain(&others).map(|lacking| lacking.to_string()).collect::<Vec<_>>().join("\n"))
}

fn applies() -> Found {
    fief(&["apply", write_policy(POLICY)?])?;
    let listed = fief(&["ls"])?;
    for name in ["shop", "gold", "browse"] {
        if !listed.lines().any(|line| line.trim_start().starts_with(name)) {
            return Err(listed);
        }
    }
    Ok(format!("{} containers listed", listed.lines().count() - 1))
}

/// This program in the part `work`, told when to work.
struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(text)?;
        let mut process =
            Command::new(program).arg("work").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(text)?;
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Ok(Self { process, orders, answers })
    }

    fn spell(&mut self) -> Result<u64, String> {
        self.orders.write_all(b"1").map_err(text)?;
        let mut said = String::new();
        self.answers.read_line(&mut said).map_err(text)?;
        said.trim().parse().map_err(|_| format!("the worker said {said:?}"))
    }

    fn end(mut self) -> Result<(), String> {
        drop(self.orders);
        self.process.wait().map(drop).map_err(text)
    }
}

fn manages() -> Found {
    std::fs::create_dir_all(CGROUP).map_err(text)?;
    fief(&["manage", CGROUP, "--container", "shop/browse"])?;
    let mut worker = Worker::start()?;
    let unmanaged = worker.spell()?;
    std::fs::write(Path::new(CGROUP).join("cgroup.procs"), worker.process.id().to_string()).map_err(text)?;
    let before = thread_ns("shop/browse")?;
    let worked = worker.spell()?;
    let charged = thread_ns("shop/browse")? - before;
    worker.end()?;
    same_time(charged, worked).map(|figures| format!("{figures}; not the {:.1} ms before", unmanaged as f64 / 1e6))
}

fn binds() -> Found {
    let mut worker = Worker::start()?;
    fief(&["bind", &worker.process.id().to_string(), "shop/gold"])?;
    let before = thread_ns("shop/gold")?;
    let worked = worker.spell()?;
    let charged = thread_ns("shop/gold")? - before;
    worker.end()?;
    same_time(charged, worked)
}

fn conserves() -> Found {
    let total = |all: &std::collections::BTreeMap<String, serde_json::Value>| -> (u64, u64) {
        let time = all.values().map(|one| number(one, "thread_ns") + number(one, "receive_ns")).sum();
        (time, all.values().next().map_or(0, |one| number(one, "taken_ns")))
    };
    let (before, start) = total(&usage()?);
    let mut worker = Worker::start()?;
    for _ in 0..5 {
        worker.spell()?;
    }
    worker.end()?;
    let (after, end) = total(&usage()?);
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).map_err(text)?.unwrap_or(1) as u64;
    let share = (after - before) as f64 / (cpus * (end - start)) as f64;
    let figures = format!("{:.2} % of {cpus} CPUs over {} ms", share * 100.0, (end - start) / 1_000_000);
    if (0.98..1.02).contains(&share) { Ok(figures) } else { Err(figures) }
}

fn goes_down() -> Found {
    let said = fief(&["down"])?;
    std::fs::remove_dir(CGROUP).map_err(text)?;
    is_down().map(|_| said.trim().to_owned())
}

fn is_down() -> Found {
    let pins = Path::new("/sys/fs/bpf/fief");
    let left = std::fs::read_dir(pins).map_or(0, Iterator::count);
    let cgroups = Path::new("/sys/fs/cgroup/fief").exists();
    match fief(&["ls"]) {
        Ok(listed) => Err(listed),
        Err(_) if left > 0 || cgroups => Err(format!("{left} pins, cgroup {cgroups}")),
        Err(_) => Ok("no pin, no cgroup".to_owned()),
    }
}

fn runs_application() -> Found {
    let program = std::env::current_exe().map_err(text)?;
    let policy = write_policy(PLAIN_POLICY)?;
    let ended = Command::new("fief").args(["run", policy, "--"]).arg(program).arg("application").status();
    let ended = ended.map_err(text)?;
    if ended.success() { Ok("its checks are above".to_owned()) } else { Err(ended.to_string()) }
}

fn serves() -> Found {
    let program = std::env::current_exe().map_err(text)?;
    let policy = write_policy(POLICY)?;
    let mut run = Command::new("fief")
        .args(["run", policy, "--"])
        .arg(program)
        .args(["serve", &SERVER.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(text)?;
    let mut said = String::new();
    BufReader::new(run.stdout.take().expect("piped")).read_line(&mut said).map_err(text)?;
    let charged = if said == "listening\n" { charges_of_classes() } else { Err(format!("the server said {said:?}")) };
    // it waits for the signal in any case, and passes it on
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).map_err(text)?;
    let ended = run.wait().map_err(text)?;
    charged.and_then(|figures| match ended.code() {
        Some(143) => Ok(figures),
        _ => Err(format!("{figures}; but the run ended with {ended}")),
    })
}

fn charges_of_classes() -> Found {
    let before = usage()?;
    let mut gold = 0;
    let mut browse = 0;
    for _ in 0..2 {
        gold += ask(GOLD, SERVER)?;
        browse += ask(OTHER, SERVER)?;
        gold += ask(GOLD, SERVER)?;
    }
    let after = usage()?;
    let of = |path: &str, name: &str| number(&after[path], name) - number(&before[path], name);
    let accepts = (of("shop/gold", "accepts"), of("shop/browse", "accepts"));
    if accepts != (4, 2) {
        return Err(format!("accepts {accepts:?}"));
    }
    let gold = same_time(of("shop/gold", "thread_ns"), gold)?;
    let browse = same_time(of("shop/browse", "thread_ns"), browse)?;
    Ok(format!("4 requests of gold: {gold}; 2 of browse: {browse}; {} ms each", SPELL.as_millis()))
}
