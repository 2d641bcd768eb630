// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `fief`: its words, their arguments and their help. The man pages and completions are made of it.
//!
//! Nouns and reads (`probe`, `check`, `status`, `ls`, `show`, `explain`, `usage`, `top`, `replay`, `bill`) never change anything; verbs do.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};

mod agent;
mod client;
mod mount;

pub use agent::{Agent, Bill, BillFormat, History, Record, Replay};
pub use client::{Ban, Explain, Pardon};
pub use mount::{Mount, Umount};

pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage or an error in a policy. \
`fief run` and `fief exec` end with the code of the server (128 plus the signal that ended it); 125: fief itself failed; \
126: the server's program cannot be run; 127: it was not found.";

/// Resource containers for stock Linux: who uses the machine, and who goes first
///
/// A container is a tenant, a class of clients or a single request. Fief charges CPU time, packets and faults to it,
/// wherever in the kernel or in a server the work is done, and serves clients by their class. It needs no patched kernel,
/// no module and no daemon.
#[derive(Debug, Parser)]
#[command(name = "fief", version, max_term_width = 100, after_long_help = EXIT_CODES)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Probe(Probe),
    Check(Check),
    Apply(Apply),
    Status(Status),
    Down(Down),
    Run(Run),
    Exec(Exec),
    Unit(Unit),
    Manage(Manage),
    Bind(Bind),
    Mount(Mount),
    Umount(Umount),
    Ls(Ls),
    Show(Show),
    Explain(Explain),
    Ban(Ban),
    Pardon(Pardon),
    Usage(Usage),
    Top(Top),
    Agent(Agent),
    Record(Record),
    Replay(Replay),
    Bill(Bill),
    Lab(fief_lab_args::Lab),
    /// Print the JSON schema of policies, for editors
    Schema,
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
}

/// Show what this kernel can do, found out by trying
///
/// Each feature is tried, not looked up in a list of versions; what is missing is shown with its remedy. Fails if
/// something is missing that Fief cannot do without.
#[derive(Debug, Args)]
pub struct Probe {
    /// One JSON object a line: the machine, then each feature
    #[arg(long)]
    pub json: bool,
}

/// Check policies and say what they mean; nothing is changed
///
/// Errors are shown in their line, with what was expected and the remedy. A policy without errors is explained: its
/// containers, what stands before each listener, and what its rules do. Needs no privilege and no kernel.
#[derive(Debug, Args)]
pub struct Check {
    /// Policies (TOML); `-`: standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// One JSON object a line: each policy or each of its errors
    #[arg(long)]
    pub json: bool,
    /// Only errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Put a policy in force, in place of the one before
///
/// The policy is replaced as a whole: what cannot be put in force changes nothing. Connections keep the class they have.
/// Containers that the new policy no longer names stay while applications hold them, below the nearest container above that
/// stays. The policy stays in force after the
/// command has ended, until `fief down` or the next start of the machine. The last lines say what `fief status --brief` says:
/// who serves each listener now, what is enforced, and what does not work.
#[derive(Debug, Args)]
pub struct Apply {
    /// The policy (TOML); `-`: standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Room for so many containers; counts when nothing is in force yet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub containers: Option<u32>,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Change nothing where a policy is in force already, and say so; for what starts at boot
    #[arg(long, conflicts_with = "dry_run")]
    pub unless_in_force: bool,
    /// Also where the policy in force is of another network namespace: the front door moves to this one
    #[arg(long)]
    pub here: bool,
    /// So many containers for each unprivileged user; counts when nothing is in force yet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub user_quota: Option<u32>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Tell whether what is in force works
///
/// Which policy is in force and for how long, who listens where it says, whether they are managed, where the front door
/// stands, and what does not work, with what to do about it. Exit codes: 0 all works; 1 something does not; 3 nothing is in
/// force.
#[derive(Debug, Args)]
pub struct Status {
    /// The few lines with which `apply` and `run` end their start
    #[arg(long, conflicts_with = "json")]
    pub brief: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Take down everything that is in force
///
/// Servers go on, unmanaged, also the one of a `fief run`. Containers that applications still hold lose what they were used for.
/// Where nothing is in force that is said, and is no failure.
#[derive(Debug, Args)]
pub struct Down {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

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
/// error.
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
/// root, or may less, is managed before it starts instead, and has one listening socket for all classes. Nothing changes for what
/// runs; a file that Fief did not write is left alone. Where nothing is in force, the service then does not start.
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

/// List the containers
#[derive(Debug, Args)]
pub struct Ls {
    #[command(flatten)]
    pub history: History,
    /// One JSON object a line, one for each container
    #[arg(long)]
    pub json: bool,
}

/// Show all about one container
///
/// Its attributes, holders, children and usage. `fief show system` tells by name what the time went to that belongs to
/// nobody.
#[derive(Debug, Args)]
pub struct Show {
    /// Path of the container, as `fief ls` shows it
    pub container: String,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Print what containers have used
///
/// The numbers count from the making of a container. With --interval, the table shows what was used in each interval; the
/// JSON objects go on counting from the making, with the time of each reading.
#[derive(Debug, Args)]
pub struct Usage {
    /// Paths of containers, as `fief ls` shows them; none: all
    #[arg(value_name = "CONTAINER")]
    pub containers: Vec<String>,
    /// One JSON object a line, one for each container and reading; raw integers, the unit in the name
    #[arg(long)]
    pub json: bool,
    /// Together with all containers below
    #[arg(long, short)]
    pub recursive: bool,
    /// Read again every so many seconds
    #[arg(long, short, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// End after so many readings
    #[arg(long, short = 'n', value_name = "N", requires = "interval")]
    pub count: Option<NonZeroU32>,
    #[command(flatten)]
    pub history: History,
}

/// Watch containers, live
///
/// A tree of the containers with their CPU time in user mode, in the kernel and in receiving packets, as percent of the
/// whole machine, and their packets, connection requests and threads. Each line counts what is below it too. Keys: see the
/// last line of the screen, and `?`. Plain lines where standard output is not a terminal.
#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two looks
    #[arg(long, short, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// End after so many looks
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<NonZeroU32>,
    /// Plain lines, also on a terminal
    #[arg(long)]
    pub plain: bool,
    #[command(flatten)]
    pub history: History,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct Completions {
    pub shell: clap_complete::Shell,
}

/// Write the man pages into a folder, one for each command
#[derive(Debug, Args)]
pub struct Man {
    /// The folder, made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

/// From a hundredth of a second to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds, as in 0.5".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("expected 0.01 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_has_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_servers_own_options_stay_the_servers() {
        let cli = Cli::parse_from(["fief", "run", "p.toml", "--", "nginx", "-g", "daemon off;", "--help"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.policy, PathBuf::from("p.toml"));
        assert_eq!(run.server, ["nginx", "-g", "daemon off;", "--help"]);
    }

    #[test]
    fn an_interval_of_no_length_is_refused() {
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(Cli::try_parse_from(["fief", "top", "--interval", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ban_has_a_prefix_and_a_time_with_its_unit() {
        let ban = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["fief", "ban"], words].concat()).map_err(|error| error.to_string())?;
            let Command::Ban(ban) = cli.command else { panic!("not ban") };
            Ok::<_, String>((ban.prefix.map(|prefix| prefix.to_string()), ban.time.as_secs()))
        };
        assert_eq!(ban(&["10.1.2.3"]), Ok((Some("10.1.2.3/32".into()), 3600)));
        assert_eq!(ban(&["fd77::/48", "--for", "7d"]), Ok((Some("fd77::/48".into()), 604_800)));
        assert_eq!(ban(&["--list"]), Ok((None, 3600)));
        for (words, remedy) in [
            (&["10.1.2.3/24"][..], "write \"10.1.2.0/24\""),
            (&["any"], "is everybody"),
            (&["10.0.0.1-10.0.0.2"], "name one at a time"),
            (&["10.1.2.3", "--for", "10"], "as in 90s, 10m, 12h or 7d"),
            (&["10.1.2.3", "--for", "0s"], "1s to 365d"),
            (&["10.1.2.3", "--for", "366d"], "1s to 365d"),
            (&["10.1.2.3", "--list"], "cannot be used with"),
            (&[], "required"),
        ] {
            let error = ban(words).expect_err("refused");
            assert!(error.contains(remedy), "{words:?}: {error}");
        }
    }

    #[test]
    fn every_argument_says_what_it_is() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            for argument in command.get_arguments().filter(|a| a.get_id() != "shell") {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }
}
