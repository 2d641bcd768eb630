// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real systemd boots, with Fief's service and nginx under it: the policy is in force from the first request on, and over restarts
//! and reloads; and over an upgrade of the package and a reboot.

#[path = "services/package.rs"]
mod package;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use fief_control::Fief;
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::machine::{Machine, service_is_restarted};
use fief_tests_netns::{SOON, fief_binary, two_classes};

/// Generous: before a boot, services of the one before end, which systemd gives time.
const BOOTED: Duration = Duration::from_secs(180);

/// A machine in namespaces, whose PID 1 is systemd.
struct Namespaces {
    init: u32,
    fief: Fief,
    process: Process,
    cgroup: Cgroup,
    folder: tempfile::TempDir,
}

impl Namespaces {
    /// With the program that is built here. `None`: this machine cannot boot another.
    fn boot() -> Option<Self> {
        let service = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/fief.service");
        Self::boot_with(|_| vec![fief_binary(), service])
    }

    /// `given` makes what the machine is given, in a folder that is there as long as the machine is.
    fn boot_with(given: impl FnOnce(&Path) -> Vec<PathBuf>) -> Option<Self> {
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
        std::fs::write(
            &policy,
            two_classes("address = \"0.0.0.0:80\"\nclasses = \"listeners\"").replace("10.77.1.0/24", "127.0.0.2"),
        )
        .unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut command = Command::new("sh");
        // its cgroups are below this one
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(cgroup.path());
        command.args(["unshare", "--mount", "bash"]).arg(here.join("tests/services/boot.sh"));
        command.arg(&root).arg(&policy).args(given(folder.path()));
        let said = File::create(folder.path().join("said")).unwrap();
        command.env("FIEF_SCOPE", fief.pins().scope()).stdout(said.try_clone().unwrap()).stderr(said);
        let process = Process::start(command).unwrap();
        let mut machine = Self { init: 0, fief, process, cgroup, folder };
        machine.comes_up();
        Some(machine)
    }

    /// Waits for a PID 1 that is not the one before, and for all that it starts.
    fn comes_up(&mut self) {
        let before = self.init;
        let is_up = |machine: &mut Self| {
            machine.find_init()
                && machine.init != before
                && machine.does("systemctl --quiet is-active multi-user.target")
        };
        wait_until(BOOTED, || is_up(self)).unwrap_or_else(|_| panic!("it does not boot: {}", self.said()));
    }

    fn find_init(&mut self) -> bool {
        // the shell, its unshare, PID 1
        let child = |pid: u32| {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            children.trim().parse().unwrap_or(0)
        };
        let init = child(child(self.process.pid()));
        let name = std::fs::read_to_string(format!("/proc/{init}/comm")).unwrap_or_default();
        if name.trim() == "systemd" {
            self.init = init;
        }
        name.trim() == "systemd"
    }

    /// Threads at home in a container.
    fn threads(&self, path: &str) -> usize {
        let line = format!("fief show {path} --json");
        let shown: String = self.must(&line);
        let at = shown.find("\"threads\":").unwrap() + "\"threads\":".len();
        shown[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }
}

impl Machine for Namespaces {
    fn fief(&self) -> &Fief {
        &self.fief
    }

    fn run(&self, line: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.init.to_string(),
            "--all",
            "--root",
            "--wd",
            "sh",
            "-c",
            &format!("PATH=$PATH:/usr/sbin:/sbin; {line}"),
        ]);
        command.env("FIEF_SCOPE", self.fief.pins().scope()).output().unwrap()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }
}

impl Drop for Namespaces {
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
    let Some(machine) = Namespaces::boot() else { return };
    machine.must("systemctl is-active fief nginx");
    // what waits for the network finds the policy in force, without a drop-in
    machine.must("systemctl is-active online");
    machine.serves_by_class();
    for _ in 0..2 {
        service_is_restarted(&machine);
    }
    machine.must("systemctl reload nginx");
    machine.serves_by_class();
    machine.must("systemctl reload fief");
    machine.serves_by_class();

    // a policy without its container is refused, as long as the service's drop-in leads nowhere else
    machine.must("sed --in-place=.before s/shop/store/g /etc/fief/policy.toml");
    assert!(!machine.does("systemctl reload fief"));
    machine.must("fief apply /etc/fief/policy.toml 2>&1 | grep -qF 'nginx.service is at home in shop (by '");
    machine.serves_by_class();
    machine.must("fief unit nginx && systemctl reload fief");
    assert!(machine.threads("store") > 0, "it is above the classes: {}", machine.complaints());
    machine.must("mv /etc/fief/policy.toml.before /etc/fief/policy.toml && systemctl reload fief");
    machine.must("fief unit nginx --container shop && systemctl restart nginx");
    machine.serves_by_class();

    // a service that is not root; nginx may have been ready before it had forked all that it forks, which now wait for clients
    let all_wait = "[ $(cat /proc/[0-9]*/stat 2> /dev/null | grep -cF '(nginx) S') -gt $(getconf _NPROCESSORS_ONLN) ]";
    wait_until(SOON, || machine.does(all_wait)).unwrap_or_else(|_| panic!("{}", machine.complaints()));
    let before = machine.threads("shop");
    machine.must("systemctl start web");
    wait_until(SOON, || machine.threads("shop") == before + 1).unwrap();

    // taken down by hand it stays away, since for systemd its service is active: so the command says it
    let said = machine.must("systemctl reset-failed nginx; fief down");
    assert!(said.contains("do not start: nginx.service, web.service; `systemctl restart fief`"), "{said}");
    assert!(!machine.does("systemctl restart nginx"));
    machine.must("systemctl restart fief && systemctl reset-failed nginx && systemctl restart nginx");
    machine.serves_by_class();

    // whatever became of the policy, the next start has it in force first; then the command has nothing to say
    let told = "printf '[Service]\\nStandardOutput=append:/run/told\\n' > /run/systemd/system/fief.service.d/told.conf";
    machine.must(&format!("mkdir -p /run/systemd/system/fief.service.d && {told} && systemctl daemon-reload"));
    machine.must("systemctl stop fief && grep -q 'took down' /run/told && ! grep -q 'do not start' /run/told");
    assert!(!machine.fief.installed());
    machine.must("systemctl restart nginx");
    machine.serves_by_class();
    // and without a policy it says why it does not start
    machine.must("systemctl stop fief && rm /etc/fief/policy.toml");
    assert!(!machine.does("systemctl restart nginx"));
    machine.must("fief unit nginx --undo && systemctl start nginx");
    machine.must("curl -sf -o /dev/null http://127.0.0.1/");
}
