// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real systemd boots, with Fief's service and nginx under it: the policy is in force from the first request on, and over restarts
//! and reloads.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use fief_control::Fief;
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::{SOON, fief_binary, two_classes};

/// A machine in namespaces, whose PID 1 is systemd.
struct Machine {
    init: u32,
    fief: Fief,
    process: Process,
    cgroup: Cgroup,
    folder: tempfile::TempDir,
}

impl Machine {
    /// `None`: this machine cannot boot another.
    fn boot() -> Option<Self> {
        let kernel = [Feature::NetNs, Feature::Cgroup2, Feature::Bpf];
        let programs = [Feature::Systemd, Feature::Nginx, Feature::Curl, Feature::Python];
        if !kernel.into_iter().chain(programs).all(require) {
            return None;
        }
        let folder = tempfile::Builder::new().prefix("ff-boot-").tempdir().unwrap();
        let fief = Fief::with_scope(folder.path().file_name().unwrap().to_str().unwrap());
        let cgroup = Cgroup::new("boot").unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let policy = folder.path().join("policy.toml");
        std::fs::write(&policy, two_classes("address = \"0.0.0.0:80\"").replace("10.77.1.0/24", "127.0.0.2")).unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut command = Command::new("sh");
        // its cgroups are below this one
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(cgroup.path());
        command.args(["unshare", "--mount", "--pid", "--net", "--cgroup", "--uts", "--ipc"]);
        command.args(["--fork", "--kill-child", "bash"]).arg(here.join("tests/services/boot.sh"));
        command.arg(&root).arg(fief_binary()).arg(here.join("../../packaging/fief.service")).arg(&policy);
        let said = File::create(folder.path().join("said")).unwrap();
        command.env("FIEF_SCOPE", fief.pins().scope()).stdout(said.try_clone().unwrap()).stderr(said);
        let process = Process::start(command).unwrap();
        let mut machine = Self { init: 0, fief, process, cgroup, folder };
        wait_until(SOON, || machine.find_init() && machine.does("systemctl --quiet is-active multi-user.target"))
            .unwrap_or_else(|_| panic!("it does not boot: {}", machine.said()));
        Some(machine)
    }

    fn find_init(&mut self) -> bool {
        let pid = self.process.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        self.init = children.trim().parse().unwrap_or(0);
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.init)).unwrap_or_default();
        name.trim() == "systemd"
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }

    /// Runs a line of a shell on it.
    fn run(&self, line: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "--root", "--wd", "sh", "-c", line]);
        command.env("FIEF_SCOPE", self.fief.pins().scope()).output().unwrap()
    }

    fn does(&self, line: &str) -> bool {
        self.run(line).status.success()
    }

    fn must(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(status.success(), "{line}: {}\n{}", text(&stderr), self.said());
        text(&stdout)
    }

    /// Connections that a class was given so far.
    fn accepts(&self, path: &str) -> u64 {
        let snapshot = self.fief.snapshot().unwrap();
        snapshot.containers.iter().find(|view| view.path == path).map_or(0, |view| view.usage.accepts)
    }

    fn class_listeners(&self) -> usize {
        self.fief.snapshot().unwrap().class_listeners.len()
    }

    /// A request of each class is answered and counted, by a server whose classes have listening sockets of their own.
    fn serves_by_class(&self) {
        wait_until(SOON, || self.class_listeners() == 2).unwrap_or_else(|_| panic!("{}", self.must("fief status")));
        let before = ["shop/high", "shop/low"].map(|path| self.accepts(path));
        self.must("curl -sf --interface 127.0.0.2 -o /dev/null http://127.0.0.1/");
        self.must("curl -sf --interface 127.0.0.3 -o /dev/null http://127.0.0.1/");
        assert_eq!(["shop/high", "shop/low"].map(|path| self.accepts(path)), before.map(|count| count + 1));
    }

    /// Threads at home in a container.
    fn threads(&self, path: &str) -> usize {
        let line = format!("fief show {path} --json");
        let shown: String = self.must(&line);
        let at = shown.find("\"threads\":").unwrap() + "\"threads\":".len();
        shown[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.init != 0 {
            // PID 1 takes all others along
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.init.cast_signed()), nix::sys::signal::SIGKILL);
        }
        if self.fief.installed()
            && let Err(error) = self.fief.down()
        {
            eprintln!("cannot take the test's installation down: {error}");
        }
        remove_below(self.cgroup.path());
    }
}

/// Cgroups that systemd made, once nobody is in them.
fn remove_below(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        remove_below(&entry.path());
        let _ = wait_until(SOON, || std::fs::remove_dir(entry.path()).is_ok() || !entry.path().exists());
    }
}

#[test]
fn a_service_is_in_its_policy_from_the_boot_on_and_over_restarts_and_reloads() {
    let Some(machine) = Machine::boot() else { return };
    machine.must("systemctl is-active fief nginx");
    machine.serves_by_class();
    for _ in 0..2 {
        machine.must("systemctl restart nginx");
        machine.serves_by_class();
        assert_eq!(machine.fief.snapshot().unwrap().units.len(), 1, "the cgroup before is forgotten");
    }
    machine.must("systemctl reload nginx");
    machine.serves_by_class();
    machine.must("systemctl reload fief");
    machine.serves_by_class();

    // a service that is not root
    let before = machine.threads("shop");
    machine.must("systemctl start web");
    wait_until(SOON, || machine.threads("shop") == before + 1).unwrap();

    // whatever became of the policy, the next start has it in force first
    machine.must("systemctl stop fief");
    assert!(!machine.fief.installed());
    machine.must("systemctl restart nginx");
    machine.serves_by_class();
    // and without a policy it says why it does not start
    machine.must("systemctl stop fief && rm /etc/fief/policy.toml");
    assert!(!machine.does("systemctl restart nginx"));
    machine.must("fief unit nginx --undo && systemctl start nginx");
    machine.must("curl -sf -o /dev/null http://127.0.0.1/");
}
