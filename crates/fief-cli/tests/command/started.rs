// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The binary `fief` in a scope of its own, so that what is in force on the machine does not matter.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A policy of two classes, for an address that only a namespace of its own should listen on.
pub const SHOP: &str = r#"
version = 1

[container.shop]
cpu.share = "60%"
[container."shop/gold"]
cpu.priority = 200

[listener.web]
address = "0.0.0.0:80"
classes = "listeners"
[[listener.web.client]]
from = ["10.1.0.0/16"]
container = "shop/gold"
[[listener.web.client]]
from = ["any"]
container = "shop"
"#;

/// A copy of the command that everybody runs. By another process: a child of another test would hold open what is written here, and
/// then nobody runs it.
pub fn for_everybody(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("own folder");
    let program = folder.join("fief");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fief")).arg(&program).status();
    assert!(copied.expect("cp starts").success());
    program
}

pub struct Fief(Command);

#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn fief() -> Fief {
    fief_in(&format!("ff-cli-{}", std::process::id()))
}

pub fn fief_in(scope: &str) -> Fief {
    let mut fief = fief_at(Path::new(env!("CARGO_BIN_EXE_fief")));
    fief.command().env("FIEF_SCOPE", scope);
    fief
}

/// The binary under another name.
pub fn fief_at(program: &Path) -> Fief {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    Fief(command)
}

impl Fief {
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.0.arg(word);
        self
    }

    pub fn args(mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.0.args(words);
        self
    }

    /// For what is not said here.
    pub fn command(&mut self) -> &mut Command {
        &mut self.0
    }

    pub fn ends(mut self) -> Ended {
        self.0.output().expect("fief starts").into()
    }

    pub fn given(mut self, text: &str) -> Ended {
        self.0.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.0.spawn().expect("fief starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("fief reads");
        drop(stdin);
        child.wait_with_output().expect("fief ends").into()
    }

    /// Its exit code where nobody reads what it prints.
    pub fn unread(mut self) -> i32 {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        self.0.stdout(writer).status().expect("fief starts").code().expect("no signal")
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("no signal"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

impl Ended {
    /// One for each line.
    pub fn objects(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    }
}

pub fn policy(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
    file.write_all(text.as_bytes()).expect("room on the disk");
    file
}
