// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words about servers: started under a policy, or managed as they run.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::EXIT_CODES;

/// Run a server under a policy, and take everything down when it ends
///
/// The server needs no change: its listening sockets are told apart by the policy's listeners, its threads follow the
/// connection they work on. Signals are passed on to it. One that goes into the background is waited for. Notes on the policy
/// go to standard error, and once the server listens, or after five seconds, what `fief status --brief` says.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES)]
#[command(override_usage = "fief run [OPTIONS] <POLICY> -- <SERVER> [ARGS]...")]
pub struct Run {
    /// The policy (TOML)
    #[arg(value_name = "POLICY", value_hint = ValueHint::FilePath)]
    pub policy: PathBuf,
    /// Do not move the server's threads to the container of the connection they work on
    #[arg(long)]
    pub no_follow: bool,
    /// The server's program, found by PATH, and its arguments
    #[arg(value_name = "SERVER", required = true, last = true, value_hint = ValueHint::CommandWithArguments)]
    pub server: Vec<OsString>,
}

/// Start a server under the policy that is in force
///
/// As `fief run` starts it, beside whatever else runs: its listening sockets are told apart by the policy's listeners, its threads
/// follow the connection they work on, signals are passed on to it. The policy stays in force when it ends. Notes go to standard
/// error; if nothing listens after five seconds where a listener that was named says, or the policy's only one, that is one of them.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES)]
#[command(override_usage = "fief exec [OPTIONS] -- <SERVER> [ARGS]...")]
pub struct Exec {
    /// Home of its threads, by path; without it, the container above the classes of its listeners
    #[arg(long, value_name = "PATH")]
    pub container: Option<String>,
    /// A listener of the policy that it serves; can be given several times. Without it, all of them
    #[arg(long, value_name = "NAME")]
    pub listener: Vec<String>,
    /// Do not move the server's threads to the container of the connection they work on
    #[arg(long)]
    pub no_follow: bool,
    /// Become the server, in the cgroup that this command is in, which is managed with all that is in it: for services, whose
    /// process and cgroup systemd knows them by. Without it, the command waits for the server, in a cgroup of its own
    #[arg(long)]
    pub here: bool,
    /// What the server is told as its own name, in place of its program
    #[arg(long, value_name = "NAME", requires = "here", allow_hyphen_values = true)]
    pub argv0: Option<OsString>,
    /// The server's program, found by PATH, and its arguments
    #[arg(value_name = "SERVER", required = true, last = true, value_hint = ValueHint::CommandWithArguments)]
    pub server: Vec<OsString>,
}

/// Have a systemd service start under the policy in force, at each of its starts
///
/// Writes a drop-in that puts `fief exec --here` before the programs that the service starts. A service whose processes are not
/// root, or may less, is managed before it starts instead, and has no shim. Nothing changes for what
/// runs; a file that Fief did not write is left alone. Where nothing is in force, the service then does not start. Connections that are
/// asked for while it restarts are refused, or wait where its listener has `restart = "10s"`.
#[derive(Debug, Args)]
pub struct Unit {
    /// The service, as nginx or nginx.service
    #[arg(value_name = "UNIT")]
    pub unit: String,
    /// Home of its threads, by path; without it, the container above the classes of its listeners
    #[arg(long, value_name = "PATH", conflicts_with = "undo")]
    pub container: Option<String>,
    /// A listener of the policy that it serves; can be given several times. Without it, all of them
    #[arg(long, value_name = "NAME", conflicts_with = "undo")]
    pub listener: Vec<String>,
    /// Do not move its threads to the container of the connection they work on
    #[arg(long, conflicts_with = "undo")]
    pub no_follow: bool,
    /// Only print the drop-in
    #[arg(long)]
    pub print: bool,
    /// Remove the drop-in
    #[arg(long, conflicts_with = "print")]
    pub undo: bool,
    /// Read and write below this folder, as in the image of another machine, whose program is /usr/bin/fief
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
}

/// Manage a unit, process or cgroup that already runs
///
/// From now on its threads can make, bind and pass containers, what they use is charged, and their listening sockets have
/// the classes of the policy. A process stands for its cgroup; at the top of the hierarchy it gets one of its own, with
/// the processes below it. What is managed already takes the new home, and follows or no longer does, as is said now.
#[derive(Debug, Args)]
pub struct Manage {
    /// A systemd unit, a process id, or the folder of a cgroup
    #[arg(value_name = "UNIT|PID|CGROUP")]
    pub target: String,
    /// Home of its threads; without it, a container is made for the unit
    #[arg(long, value_name = "PATH")]
    pub container: Option<String>,
    /// Its threads take the container of the connection they work on
    #[arg(long)]
    pub follow: bool,
    /// Manage it over its restarts too, until Ctrl-C. Needs a unit or a cgroup. A service that can be started anew is better off with
    /// `fief unit`: its start is not missed by milliseconds, and it survives a restart of the machine
    #[arg(long)]
    pub keep: bool,
    /// One JSON object, with --keep one for each time
    #[arg(long)]
    pub json: bool,
}

/// Bind the threads of a process that already runs to a container
///
/// Threads that it starts later inherit the container.
#[derive(Debug, Args)]
pub struct Bind {
    /// Process id
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Path of the container, as `fief ls` shows it
    pub container: String,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
