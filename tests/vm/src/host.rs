// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts: the guest itself, and network namespaces beside it, with links, servers and clients. The web server is busybox's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use crate::command::finish;
use crate::report::text;

/// Where the files of the servers are; there are `yes` and `no`.
const FILES: &str = "/tmp/files";
/// How long a client waits for its answer; what the door drops gets none.
const PATIENCE: Duration = Duration::from_secs(20);

/// A host.
pub struct Host {
    /// A network namespace lasts as long as a process in it; none: the guest itself.
    sleeper: Option<Running>,
}

impl Host {
    /// The guest itself.
    pub fn guest() -> Self {
        Self { sleeper: None }
    }

    /// A new one, without any link.
    pub fn new() -> Result<Self, String> {
        let own = namespace("self")?;
        let sleeper = Running::start(Command::new("unshare").args(["-n", "sleep", "1000"]))?;
        // it begins where this process is, and leaves in a moment
        while namespace(&sleeper.pid())? == own {
            std::thread::yield_now();
        }
        Ok(Self { sleeper: Some(sleeper) })
    }

    fn command(&self, program: &str) -> Command {
        let Some(sleeper) = &self.sleeper else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.args(["-t", &sleeper.pid(), "-n", program]);
        command
    }

    /// Runs `ip` with the words of each line.
    pub fn ip(&self, lines: &[&str]) -> Result<(), String> {
        for line in lines {
            finish(self.command("ip").args(line.split_whitespace()))?;
        }
        Ok(())
    }

    /// A link between two hosts; the other end is named as this one with an `x`.
    pub fn link(&self, name: &str, other: &Host) -> Result<(), String> {
        self.ip(&[&format!("link add {name} type veth peer name {name}x")])?;
        if let Some(sleeper) = &other.sleeper {
            self.ip(&[&format!("link set {name}x netns {}", sleeper.pid())])?;
        }
        self.ip(&[&format!("link set {name} up")])?;
        other.ip(&[&format!("link set {name}x up")])
    }

    /// A web server on port 80.
    pub fn serve(&self) -> Result<Running, String> {
        std::fs::create_dir_all(FILES).map_err(text)?;
        for name in ["yes", "no"] {
            std::fs::write(format!("{FILES}/{name}"), name).map_err(text)?;
        }
        Running::start(self.command("httpd").args(["-f", "-p", "80", "-h", FILES]))
    }

    /// The status that a client gets for a file, or what went wrong.
    pub fn get(&self, address: &str, file: &str) -> Result<String, String> {
        let program = std::env::current_exe().map_err(text)?;
        let mut command = self.command(&program.to_string_lossy());
        finish(command.args(["get", address, file])).map(|said| said.trim().to_owned())
    }
}

/// The part `get`: prints the status of one request, or what went wrong.
pub fn get(address: &str, file: &str) {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((address, 80))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /{file} HTTP/1.0\r\nHost: guest\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split(' ').nth(1).unwrap_or("no status").to_owned())
    };
    println!("{}", asked().unwrap_or_else(|e| e.to_string()));
}

/// A process that ends when it is dropped.
pub struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self, String> {
        command.spawn().map(Self).map_err(text)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // one that has ended already is only to be reaped
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespace(process: &str) -> Result<PathBuf, String> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).map_err(text)
}
