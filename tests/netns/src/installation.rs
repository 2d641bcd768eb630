// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One policy in force in a scope of its own, with managed cgroups.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use fief_control::{Applied, ApplyOptions, Fief, LetGo, ManageOptions, Result, Target};
use fief_testkit::{Cgroup, Process, lives};

/// One container for the unit and nothing else.
pub const PLAIN_POLICY: &str = "version = 1\n[container.unit]\n";

/// Two classes of the clients of one listener: high, from [`fief_testkit::Client::High`], goes before low, all others.
/// `listener` are its lines, the address among them.
pub fn two_classes(listener: &str) -> String {
    format!(
        r#"version = 1
[container.shop]
[container."shop/high"]
cpu.priority = 200
[container."shop/low"]
cpu.priority = 100
[listener.web]
{listener}
[[listener.web.client]]
from = ["10.77.1.0/24"]
container = "shop/high"
[[listener.web.client]]
from = ["any"]
container = "shop/low"
"#
    )
}

/// What to install.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// Text of the policy.
    pub policy: &'a str,
    /// Home of the first managed cgroup.
    pub home: &'a str,
    /// Its threads follow the sockets they work on.
    pub follow: bool,
    /// Size of the container table.
    pub containers: u32,
    /// Containers of one unprivileged user; `None`: the default.
    pub user_quota: Option<u32>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self { policy: PLAIN_POLICY, home: "unit", follow: false, containers: 4096, user_quota: None }
    }
}

/// A policy in force in a scope of its own, and a cgroup managed by it.
#[derive(Debug)]
pub struct Installation {
    fief: Fief,
    cgroup: Cgroup,
}

impl Installation {
    /// Applies `policy` and manages a new cgroup whose home is the container `home`.
    pub fn new(policy: &str, home: &str) -> Self {
        Self::with(&Setup { policy, home, ..Setup::default() })
    }

    /// Applies a policy and manages a new cgroup.
    pub fn with(setup: &Setup<'_>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let scope = format!("ff-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let fief = Fief::with_scope(&scope);
        let parsed = fief_policy::parse(setup.policy, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions {
            containers: Some(setup.containers),
            user_quota: setup.user_quota,
            ..ApplyOptions::default()
        };
        fief.apply(&parsed, setup.policy, &options).unwrap_or_else(|e| panic!("{e}"));
        let cgroup = Cgroup::new(&scope).unwrap_or_else(|e| panic!("{e}"));
        let installation = Self { fief, cgroup };
        installation.manage(installation.cgroup.path(), Some(setup.home), setup.follow);
        installation
    }

    /// The control plane's side.
    pub fn fief(&self) -> &Fief {
        &self.fief
    }

    /// The name of the installation.
    pub fn scope(&self) -> &str {
        self.fief.pins().scope()
    }

    /// The managed cgroup.
    pub fn cgroup(&self) -> PathBuf {
        self.cgroup.path().to_owned()
    }

    /// Manages one more cgroup.
    pub fn manage(&self, cgroup: &Path, home: Option<&str>, follow: bool) {
        let manage = ManageOptions { container: home.map(str::to_owned), follow };
        self.fief.manage(&Target::Cgroup(cgroup.to_owned()), &manage).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Replaces the policy, and moves it to the caller's network namespace. Where the managed cgroup loses its container, that stays
    /// for it.
    pub fn apply(&self, policy: &str) -> Result<Applied> {
        let parsed = fief_policy::parse(policy, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        self.fief.apply(&parsed, policy, &ApplyOptions { here: true, let_go: LetGo::All, ..ApplyOptions::default() })
    }

    /// Before `down`, which waits half a second for requests under way before it gives sysctls back: those of a
    /// namespace that ends with its test nobody misses. Those of the caller's own namespace stay noted, and are given
    /// back.
    pub(crate) fn forget_sysctls(&self) {
        let note = Path::new("/run/fief").join(self.scope()).join("sysctls");
        let (Ok(text), Ok(own)) = (fs::read_to_string(&note), fs::metadata("/proc/thread-self/ns/net")) else { return };
        let of_own = format!("netns = {} ", own.ino());
        if !text.lines().any(|line| line.starts_with(&of_own)) {
            // where it stays, `down` waits
            let _ = fs::remove_file(note);
        }
    }

    /// A command that will run inside the managed cgroup.
    pub fn command(&self, program: &str) -> Command {
        self.command_in(self.cgroup.path(), program)
    }

    /// A command that will run inside a cgroup.
    pub fn command_in(&self, cgroup: &Path, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg("echo $$ > \"$0/cgroup.procs\" && exec \"$@\"")
            .arg(cgroup)
            .arg(program)
            .env("FIEF_SCOPE", self.scope());
        command
    }

    /// The command that runs the test `name` again as `role`, in a cgroup or as a stranger.
    pub fn part(&self, cgroup: Option<&Path>, name: &str, role: &str) -> Command {
        let exe = std::env::current_exe().expect("a test has an executable");
        let exe = exe.to_string_lossy();
        let mut command = match cgroup {
            Some(cgroup) => self.command_in(cgroup, &exe),
            None => {
                let mut command = Command::new(&*exe);
                command.env("FIEF_SCOPE", self.scope());
                command
            }
        };
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env("FIEF_TEST_INSIDE", role);
        command
    }

    /// Starts a part of the test `name` in a cgroup or as a stranger.
    pub fn start(&self, cgroup: Option<&Path>, name: &str, role: &str) -> Process {
        Process::start(self.part(cgroup, name, role)).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs the test `name` again as `role` inside the managed cgroup; it must pass.
    pub fn play(&self, name: &str, role: &str) {
        let output = self.part(Some(self.cgroup.path()), name, role).output().expect("a test can start itself");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{name} failed as {role}:\n{stdout}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if !self.fief.installed() {
            return;
        }
        self.forget_sysctls();
        if let Err(e) = self.fief.down() {
            eprintln!("cannot take the test's installation down: {e}");
        }
    }
}

/// Lets go of the programs of tests that were killed: they would stay on every context switch and packet. What they left has the name
/// `ff-<pid>-<n>`, perhaps with more behind it: their pins, and what their agents speak by.
fn sweep() {
    for folder in ["/sys/fs/bpf", "/run/fief"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| name.strip_prefix("ff-")?.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|owner| !lives(owner)) {
                // a test beside this one may be faster
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }
}

/// The command `fief` as built beside the tests.
pub fn fief_binary() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let binary = exe.parent().and_then(Path::parent).map(|folder| folder.join("fief")).expect("target/<profile>/deps");
    assert!(binary.exists(), "{} is not there: cargo build -p fief-cli", binary.display());
    binary
}
