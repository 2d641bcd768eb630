// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares and limits of the CPU by cgroups: processes have them by their own clocks, and nothing is left behind.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fief_control::{ApplyOptions, Fief, Hierarchy, LetGo, ManageOptions, SchedulerView, Target};
use fief_testkit::{Cgroup, Process, SchedStat, cpus, pin_command, require_if, sweep_cgroups, wait_until};
use fief_tests_netns::{SOON, cpu_group, fief_binary, has_its_tenth, kill_before, kill_when};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// For what others on the machine can hold up.
const AT_LAST: Duration = Duration::from_secs(300);

/// The hierarchy with the controller; `None`: this machine has none.
fn hierarchy() -> Option<Hierarchy> {
    let found = Hierarchy::find().ok();
    require_if("a cgroup with the controller cpu", found.is_some(), false).then_some(())?;
    found
}

/// An installation whose policy is divided by cgroups, and that is taken down at the end.
struct Divided {
    fief: Fief,
    hierarchy: Hierarchy,
}

impl Divided {
    fn new(hierarchy: Hierarchy) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| {
            sweep_cgroups();
        });
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let fief = Fief::with_scope(&format!("ff-{}-groups{next}", std::process::id()));
        Self { fief, hierarchy }
    }

    fn with(hierarchy: Hierarchy, containers: &str) -> Self {
        let divided = Self::new(hierarchy);
        divided.apply(containers);
        divided
    }

    fn apply(&self, containers: &str) -> Vec<String> {
        let text = policy(containers);
        let parsed = fief_policy::parse(&text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions { containers: Some(1024), let_go: LetGo::All, ..ApplyOptions::default() };
        self.fief.apply(&parsed, &text, &options).unwrap_or_else(|e| panic!("{e}")).notes
    }

    fn manage(&self, process: &Process, container: &str) {
        let options = ManageOptions { container: Some(container.into()), follow: false };
        self.fief.manage(&Target::Process(process.pid().cast_signed()), &options).unwrap_or_else(|e| panic!("{e}"));
    }

    fn root(&self) -> PathBuf {
        root(&self.hierarchy, self.fief.pins().scope())
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root().join(file)).unwrap_or_default().trim().to_owned()
    }

    /// Weight among siblings, in any unit.
    fn weight(&self, folder: &str) -> f64 {
        let found = ["cpu.shares", "cpu.weight"].map(|file| self.read(&format!("{folder}/{file}")));
        found.iter().find_map(|text| text.parse().ok()).unwrap_or_else(|| panic!("{folder} has no weight"))
    }
}

impl Drop for Divided {
    fn drop(&mut self) {
        if self.fief.installed() {
            self.fief.down().unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

fn policy(containers: &str) -> String {
    format!("version = 1\nschedule = \"cgroup\"\n{containers}")
}

fn root(hierarchy: &Hierarchy, scope: &str) -> PathBuf {
    hierarchy.top.join("fief").join(scope)
}

/// A process that only computes; stopped until it is told to go on.
fn busy(cpu: Option<usize>) -> Process {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
    if let Some(cpu) = cpu {
        pin_command(&mut command, cpu);
    }
    let process = Process::start(command).unwrap();
    process.signal(Signal::SIGSTOP);
    process
}

fn ran(processes: &[&Process]) -> Duration {
    processes.iter().map(|process| SchedStat::of(process.pid()).unwrap().ran).sum()
}

/// Percent of the first one's time in both's, over some seconds of it.
fn percent_of_first(both: [&Process; 2]) -> f64 {
    both.iter().for_each(|process| process.signal(Signal::SIGCONT));
    // what they ran before both did is not counted
    wait_until(AT_LAST, || both.iter().all(|one| ran(&[one]) > Duration::from_millis(100))).unwrap();
    let before = both.map(|one| ran(&[one]));
    let since = || [0, 1].map(|n| (ran(&[both[n]]) - before[n]).as_secs_f64());
    wait_until(AT_LAST, || since().iter().sum::<f64>() > 4.0).unwrap();
    let [first, second] = since();
    first / (first + second) * 100.0
}

#[test]
fn two_busy_processes_have_their_shares_and_down_leaves_nothing() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided =
        Divided::with(hierarchy, "[container.high]\ncpu.share = \"30%\"\n[container.low]\ncpu.share = \"10%\"\n");
    let cpu = cpus()[0];
    let (high, low) = (busy(Some(cpu)), busy(Some(cpu)));
    let before = cpu_group(high.pid());
    divided.manage(&high, "high");
    divided.manage(&low, "low");
    let percent = percent_of_first([&high, &low]);
    assert!((72.0..=78.0).contains(&percent), "{percent} %");
    let SchedulerView::Groups(groups) = divided.fief.snapshot().unwrap().scheduler else { panic!("no groups") };
    assert!(groups.containers.contains("high") && groups.problems.is_empty(), "{groups:?}");
    assert_eq!(divided.fief.status().unwrap().unenforced, [""; 0]);

    // another policy is in force for the same processes
    divided.apply("[container.high]\ncpu.weight = 100\n[container.low]\ncpu.weight = 300\n");
    let percent = percent_of_first([&high, &low]);
    assert!((22.0..=28.0).contains(&percent), "{percent} %");
    let root = divided.root();
    assert!(root.exists());
    divided.fief.down().unwrap();
    assert!(!root.exists());
    assert_eq!(cpu_group(high.pid()), before);
}

#[test]
fn processes_of_a_limited_container_have_its_limit_together() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::with(hierarchy, "[container.little]\ncpu.limit = \"10%\"\n");
    let processes = [busy(None), busy(None)];
    for process in &processes {
        divided.manage(process, "little");
        process.signal(Signal::SIGCONT);
    }
    let all: Vec<&Process> = processes.iter().collect();
    let machine = divided.fief.snapshot().unwrap().cpus;
    has_its_tenth(machine, AT_LAST, || ran(&all));
    // it was the limit that kept them from more
    let stat = divided.read("@little/cpu.stat");
    assert!(stat.lines().any(|line| line.starts_with("nr_throttled ") && line != "nr_throttled 0"), "{stat}");
}

#[test]
fn groups_follow_what_is_managed_and_what_the_policy_says() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::new(hierarchy);
    let containers = "[container.shop]\ncpu.share = \"40%\"\n[container.\"shop/gold\"]\ncpu.share = \"30%\"\n\
                      [container.\"shop/tin\"]\n[container.later]\ncpu.priority = 0\n[container.empty]\ncpu.limit = \"5%\"\n";
    let notes = divided.apply(containers);
    assert!(notes.iter().any(|note| note.contains("are held by cgroup v")), "{notes:?}");
    let [gold, shop, later] = [busy(None), busy(None), busy(None)];
    divided.manage(&gold, "shop/gold");
    divided.manage(&shop, "shop");
    divided.manage(&later, "later");
    // what the shares leave is the parent's own threads'
    assert!((divided.weight("@shop/@gold") / divided.weight("@shop/own") - 3.0).abs() < 0.01);
    assert_eq!(divided.read("@later/cpu.idle"), "1");
    assert!(cpu_group(gold.pid()).contains("/@shop/@gold/own"), "{}", cpu_group(gold.pid()));
    let said = divided.fief.status().unwrap().unenforced;
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("empty: cpu.limit (no process"), "{said:?}");

    // the process moves to another container, and the group that it leaves goes with the next policy
    divided.manage(&gold, "shop/tin");
    assert!(cpu_group(gold.pid()).contains("/@shop/@tin/own"), "{}", cpu_group(gold.pid()));
    divided.apply(containers);
    assert!(!divided.root().join("@shop/@gold").exists());
    divided.apply(&containers.replace("cpu.priority = 0", "cpu.weight = 50"));
    assert_eq!(divided.read("@later/cpu.idle"), "0");

    // a limit above comes and goes over a lower one below
    let limits = |shop: &str, tin: &str| format!("[container.shop]\n{shop}\n[container.\"shop/tin\"]\n{tin}\n");
    for (shop, tin) in [("cpu.limit = \"50%\"", "cpu.limit = \"40%\""), ("cpu.limit = \"5%\"", "cpu.limit = \"2%\"")] {
        divided.apply(&limits(shop, tin));
    }
    divided.apply(&limits("cpu.limit = \"0.2%\"", "cpu.limit = \"0.2%\""));
    divided.apply(&limits("cpu.limit = \"60%\"", "cpu.limit = \"90%\""));
    let (above, below) = (divided.fief.snapshot().unwrap(), divided.read("@shop/@tin/cpu.stat"));
    assert!(above.containers.iter().any(|c| c.path == "shop/tin") && below.contains("nr_periods"), "{below}");
    divided.apply(&limits("cpu.weight = 7", "cpu.weight = 7"));

    let off = "version = 1\n[container.shop]\ncpu.weight = 7\n";
    let parsed = fief_policy::parse(off, "off.toml").unwrap();
    divided.fief.apply(&parsed, off, &ApplyOptions { let_go: LetGo::All, ..ApplyOptions::default() }).unwrap();
    assert_eq!(divided.fief.snapshot().unwrap().scheduler, SchedulerView::Off);
}

/// Version 1 refuses a quota below that of a group beneath, and counts a group that was removed for a moment more.
#[test]
fn a_limit_goes_down_over_the_group_of_a_service_that_was_stopped() {
    let Some(hierarchy) = hierarchy() else { return };
    let limits = |shop: &str| {
        format!(
            "[container.shop]\ncpu.limit = \"{shop}\"\n[container.\"shop/gold\"]\ncpu.limit = \"50%\"\n\
             [container.\"shop/tin\"]\n"
        )
    };
    let divided = Divided::with(hierarchy, &limits("60%"));
    let [gold, tin] = [busy(None), busy(None)];
    divided.manage(&tin, "shop/tin");
    let service = Cgroup::new("stopped").unwrap();
    service.add(gold.pid()).unwrap();
    let options = ManageOptions { container: Some("shop/gold".into()), follow: false };
    divided.fief.manage(&Target::Cgroup(service.path().to_owned()), &options).unwrap_or_else(|e| panic!("{e}"));
    // as systemd stops it: nobody tells Fief
    drop(gold);
    drop(service);
    assert!(divided.root().join("@shop/@gold").exists());
    let notes = divided.apply(&limits("30%"));
    assert!(!notes.iter().any(|note| note.contains("not enforced")), "{notes:?}");
    assert!(!divided.root().join("@shop/@gold").exists());
    let [v1, v2] = ["cpu.cfs_quota_us", "cpu.max"].map(|file| divided.read(&format!("@shop/{file}")));
    let thirty = 30_000 * divided.fief.snapshot().unwrap().cpus;
    assert_eq!((v1 + &v2).split(' ').next(), Some(thirty.to_string().as_str()));
    assert!(cpu_group(tin.pid()).contains("/@shop/@tin/own"), "{}", cpu_group(tin.pid()));
}

#[test]
fn a_process_in_the_cgroup_of_another_manager_stays_there_and_is_told() {
    let Some(hierarchy) = hierarchy() else { return };
    let scope = format!("ff-{}-foreign", std::process::id());
    let foreign = hierarchy.top.join(&scope);
    fs::create_dir(&foreign).unwrap();
    let divided = Divided::with(hierarchy, "[container.a]\ncpu.share = \"10%\"\n");
    let process = busy(None);
    fs::write(foreign.join("cgroup.procs"), process.pid().to_string()).unwrap();
    let options = ManageOptions { container: Some("a".into()), follow: false };
    let managed = divided.fief.manage(&Target::Process(process.pid().cast_signed()), &options).unwrap();
    let told = |notes: &[String]| notes.iter().any(|note| note.contains("in a cgroup of another manager"));
    assert!(told(&managed.notes), "{:?}", managed.notes);
    assert!(cpu_group(process.pid()).ends_with(&scope), "{}", cpu_group(process.pid()));
    assert!(told(&divided.fief.status().unwrap().problems));
    drop(process);
    divided.fief.down().unwrap();
    wait_until(AT_LAST, || fs::remove_dir(&foreign).is_ok()).unwrap();
}

/// A server under `fief run` that only sleeps.
fn run(divided: &Divided, folder: &Path, policy: &str) -> Process {
    let file = folder.join("policy.toml");
    fs::write(&file, policy).unwrap();
    let mut command = Command::new(fief_binary());
    command.arg("run").arg(&file).args(["--", "sleep", "1000"]).env("FIEF_SCOPE", divided.fief.pins().scope());
    command.stdin(Stdio::null());
    Process::start(command).unwrap()
}

/// Processes of a group.
fn members(divided: &Divided, folder: &str) -> Vec<u32> {
    let mut found = Vec::new();
    let mut folders = vec![divided.root().join(folder)];
    while let Some(folder) = folders.pop() {
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders
            .extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    found
}

const COPIES: &str = "[container.\"shop/gold\"]\ncpu.share = \"30%\"\n[container.\"shop/tin\"]\ncpu.limit = \"10%\"\n\
                      [listener.web]\naddress = \"127.0.0.9:8099\"\ncopies = \"per-class\"\n\
                      [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"shop/gold\"\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop/tin\"\n";

#[test]
fn copies_under_run_have_their_classes_groups_and_a_kill_leaves_nothing() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::new(hierarchy);
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let process = run(&divided, folder.path(), &policy(COPIES));
        let comes = |class: &str| wait_until(AT_LAST, || members(&divided, class).len() == 1).unwrap();
        comes("@shop/@gold/own");
        comes("@shop/@tin/own");
        process.signal(signal);
        // after a kill -9 it is the guard who takes all down
        wait_until(AT_LAST, || !divided.root().exists() && !divided.fief.installed()).unwrap();
        drop(process);
    }
}

#[test]
fn a_killed_apply_or_down_leaves_no_group_to_the_next() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::with(hierarchy, "[container.a]\ncpu.share = \"10%\"\n");
    let process = busy(None);
    divided.manage(&process, "a");
    let both = ["[container.a]\ncpu.limit = \"20%\"\n", "[container.a]\n[container.b]\ncpu.weight = 10\n"];
    let (mut step, mut rounds) = (0, 0);
    while kill_before(step, || drop(divided.apply(both[rounds % 2]))) {
        step += 3;
        rounds += 1;
    }
    assert!(rounds > 5, "{rounds}");
    let mut step = 0;
    while kill_before(step, || drop(divided.fief.down())) {
        step += 5;
        if !divided.fief.installed() {
            break;
        }
        divided.apply(both[0]);
    }
    // the rest of it
    let _ = divided.fief.down();
    assert!(!divided.root().exists());
    assert!(!cpu_group(process.pid()).contains("@a"), "{}", cpu_group(process.pid()));
}

/// The words that a process was started with. Who starts it goes on a moment before the kernel has put them there.
fn command_line(pid: u32) -> Vec<u8> {
    let line = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == fief_binary()) {
        let _ = wait_until(SOON, || !line().is_empty());
    }
    line()
}

/// Processes that move programs for an installation.
fn movers(scope: &str) -> Vec<u32> {
    let words = format!("\0run-move\0{scope}\0");
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .filter(|pid| command_line(*pid).ends_with(words.as_bytes()))
        .collect()
}

/// A command of its own, which starts itself again for the mover: it applies a policy that moves programs, from a file in the folder.
fn apply_programs(scope: &str, folder: &Path) -> Command {
    let file = folder.join("policy.toml");
    let programs = "[container.site]\nprograms = \"site/cgi\"\n[container.\"site/cgi\"]\ncpu.limit = \"10%\"\n";
    fs::write(&file, policy(programs)).unwrap();
    let mut command = Command::new(fief_binary());
    command.arg("apply").arg(&file).env("FIEF_SCOPE", scope).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Two would read a ring that knows one reader.
#[test]
fn a_killed_apply_leaves_no_mover_that_is_not_noted() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::with(hierarchy, "[container.site]\n");
    let scope = divided.fief.pins().scope();
    let folder = tempfile::tempdir().unwrap();
    let apply = || apply_programs(scope, folder.path());
    let note = Path::new("/run/fief").join(scope).join("move.pid");
    for has_file in [false, true] {
        let is_started = || !movers(scope).is_empty() && note.exists() == has_file;
        assert!(kill_when(|| panic!("{}", apply().exec()), is_started));
        assert_eq!(fs::read_to_string(&note).unwrap_or_default(), "", "the kill came too late");
        wait_until(SOON, || movers(scope).is_empty()).expect("it ends with the one that was to note it");
    }
    assert!(apply().status().unwrap().success());
    assert_eq!(movers(scope), [noted(&note)]);
    divided.fief.down().unwrap();
    assert!(movers(scope).is_empty());
}

/// The process that a note names: by its number and when it started.
fn noted(note: &Path) -> u32 {
    fs::read_to_string(note).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Anybody chooses the words that a process is started with, and may get its number.
#[test]
fn who_has_the_number_and_the_words_of_a_mover_is_not_ended_in_its_place() {
    let Some(hierarchy) = hierarchy() else { return };
    let divided = Divided::with(hierarchy, "[container.site]\n");
    let scope = divided.fief.pins().scope();
    let folder = tempfile::tempdir().unwrap();
    assert!(apply_programs(scope, folder.path()).status().unwrap().success());
    // it opens a pipe with nobody at the other end, and waits
    mkfifo(&folder.path().join("run-move"), Mode::S_IRWXU).unwrap();
    let mut alike = Command::new("cat");
    alike.args(["run-move", scope]).current_dir(folder.path()).stdin(Stdio::null());
    let mut alike = Process::start(alike).unwrap();
    let note = Path::new("/run/fief").join(scope).join("move.pid");
    let mover = noted(&note);
    let text = fs::read_to_string(&note).unwrap();
    fs::write(&note, text.replacen(&mover.to_string(), &alike.pid().to_string(), 1)).unwrap();
    wait_until(AT_LAST, || !movers(scope).contains(&mover)).expect("it is no longer the one that is noted");
    divided.fief.down().unwrap();
    assert!(alike.try_wait().is_none(), "it was ended");
}
