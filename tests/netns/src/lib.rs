// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation of Fief for one test: a scope, a policy, a cgroup of its own; everything gone at the end.
//!
//! A test's body runs in a process of its own inside the managed cgroup: the test starts itself again there. What it
//! asserts fails the process, and that fails the test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use fief_control::{ApplyOptions, Fief, ManageOptions, Target};
use fief_testkit::Cgroup;

/// One container for the unit and nothing else.
pub const PLAIN_POLICY: &str = "version = 1\n[container.unit]\n";

/// A policy in force in a scope of its own, and a cgroup managed by it.
#[derive(Debug)]
pub struct Installation {
    fief: Fief,
    cgroup: Cgroup,
}

impl Installation {
    /// Applies `policy` and manages a new cgroup whose home is the container `home`.
    pub fn new(policy: &str, home: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let scope = format!("ff-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let fief = Fief::with_scope(&scope);
        let parsed = fief_policy::parse(policy, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions { containers: Some(4096) };
        fief.apply(&parsed, policy, &options).unwrap_or_else(|e| panic!("{e}"));
        let cgroup = Cgroup::new(&scope).unwrap_or_else(|e| panic!("{e}"));
        let manage = ManageOptions { container: Some(home.to_owned()), follow: false };
        fief.manage(&Target::Cgroup(cgroup.path().to_owned()), &manage).unwrap_or_else(|e| panic!("{e}"));
        Self { fief, cgroup }
    }

    /// The control plane's side.
    pub fn fief(&self) -> &Fief {
        &self.fief
    }

    /// The managed cgroup.
    pub fn cgroup(&self) -> PathBuf {
        self.cgroup.path().to_owned()
    }

    /// A command that will run inside the managed cgroup.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg("echo $$ > \"$0/cgroup.procs\" && exec \"$@\"")
            .arg(self.cgroup.path())
            .arg(program)
            .env("FIEF_SCOPE", self.fief.pins().scope());
        command
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(e) = self.fief.down() {
            eprintln!("cannot take the test's installation down: {e}");
        }
    }
}

/// Whether this process is the one that runs a test's body.
pub fn inside() -> bool {
    std::env::var_os("FIEF_TEST_INSIDE").is_some()
}

/// Runs the test `name` again inside a managed cgroup; there, runs `body`.
pub fn in_unit(name: &str, body: impl FnOnce()) {
    in_unit_with(name, body, |_| ());
}

/// As [`in_unit`]; afterwards `check` looks at what the body left, from outside.
pub fn in_unit_with(name: &str, body: impl FnOnce(), check: impl FnOnce(&Installation)) {
    if inside() {
        body();
        return;
    }
    let installation = Installation::new(PLAIN_POLICY, "unit");
    let exe = std::env::current_exe().expect("a test has an executable");
    let output = installation
        .command(&exe.to_string_lossy())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("FIEF_TEST_INSIDE", "1")
        .output()
        .expect("a test can start itself");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name} failed inside the unit:\n{stdout}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    check(&installation);
}
